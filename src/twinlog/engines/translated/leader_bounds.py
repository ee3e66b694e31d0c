"""Asks the leaders of partitions that a flow reads from followers how far the source reaches.

A follower that lags, or is cut off from its leader, answers without an error and without news for
as long as it stays in the ISR (`replica.lag.time.max.ms`), and longer until the leader is asked
again. Meanwhile the leader takes records. So a follower's answers do not count as contact with the
source: the time of last contact, and lag 0, are what the leader says (KIP-392).
"""

import logging
from typing import Any, Final

from twinlog.engines.ports import SourcePort
from twinlog.engines.translated.partitions import FlowPartitions
from twinlog.kafka.errors import TwinlogError

log = logging.getLogger(__name__)

BOUNDS_S: Final = 3.0
"""Seconds between two questions to a leader. The lag is unknown after 10 s without an answer."""

_LOOK_S: Final = 1.0
"""Seconds between two looks for followed partitions; the engine's loop turns more often."""


class LeaderBounds:
    """The ends of a flow's followed partitions, as their leaders know them.

    Args:
        flow: its partitions.
        source: what is read.
    """

    def __init__(self, flow: FlowPartitions[Any, Any], source: SourcePort) -> None:
        self._flow = flow
        self._source = source
        self._asked_at: dict[int, float] = {}  # by leader; only those of followed partitions
        self._asking: set[int] = set()
        self._look_at = 0.0

    def due(self) -> list[int]:
        """The leaders that `ask` is to be called for now."""
        now = self._flow.now()
        if now < self._look_at:
            return []
        self._look_at = now + _LOOK_S
        leaders = {p.source_node for p, _ in self._flow.copying if p.follows}
        # The leader has just named the follower that is read: its answer counts.
        self._asked_at = {node: self._asked_at.get(node, now) for node in leaders}
        due = [
            node
            for node, asked_at in self._asked_at.items()
            if now >= asked_at + BOUNDS_S and node not in self._asking
        ]
        self._asking.update(due)
        return due

    async def ask(self, leader: int) -> None:
        """Ask a leader for the ends of the partitions that are read from followers of it."""
        asked_at = self._asked_at[leader] = self._flow.now()
        asked = {
            partition.source: (partition, sequence)
            for partition, sequence in self._flow.copying
            if partition.follows and partition.source_node == leader
        }
        try:
            bounds = await self._source.bounds(list(asked)) if asked else {}
        except TwinlogError as error:
            log.info("source broker %d does not say how far it reaches: %s", leader, error)
            return
        finally:
            self._asking.discard(leader)
        for key, (partition, sequence) in asked.items():
            ends = bounds[key]
            if not ends.error and partition.sequence is sequence:
                partition.note_ends(ends.high_watermark, ends.last_stable, self._flow.now())
                partition.heard_at = asked_at
