"""Asks the leaders of partitions that are read from followers how far the source reaches.

A follower that lags, or is cut off from its leader, answers without an error and without news for
as long as it stays in the ISR (`replica.lag.time.max.ms`), and longer until the leader is asked
again. Meanwhile the leader takes records. So a follower's answers do not count as contact with the
source: the time of last contact, and lag 0, are what the leader says (KIP-392).

    engine     names the partitions that it reads from followers, with what it knows of each
    leader     answers ListOffsets, every `BOUNDS_S`
    engine     notes the bounds, and that the leader was heard of when it was asked

An answer counts only with its bounds, and only if it is the present leader's, as far as is known.
A former leader that is cut off from its cluster, and leads no more, goes on answering. Its leader
epoch shows that, or that it has less than was known before it was asked: a high watermark and a
last stable offset only grow. (A source that has lost its end in an unclean election has less, too.
The time of last contact then stays until the leader is read again, which shows the loss.)

`LeaderBounds` decides when a leader is asked, and which answers count. What is noted is the
engine's, behind `Followers`. An engine calls `due` at least once a second, and `ask` for each
broker that it returns.
"""

import logging
from collections.abc import Collection, Mapping
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from twinlog.kafka.errors import TwinlogError
from twinlog.kafka.types import UNKNOWN_EPOCH, LogBounds, TopicPartition

log = logging.getLogger(__name__)

BOUNDS_S: Final = 3.0
"""Seconds between two questions to a leader. The lag is unknown after 10 s without an answer."""

LOOK_S: Final = 1.0
"""Seconds between two looks for followed partitions; an engine may call `due` more often."""

P = TypeVar("P")


class FollowedPartition(NamedTuple):
    """What an engine knows of a partition that it reads from a follower.

    Attributes:
        source: its name on the source.
        leader: the broker that leads it.
        leader_epoch: of this leader; -1 if it is not known.
        high_watermark: how far the source reaches at least.
        last_stable: the same, as a last stable offset.
        reading: changes when the partition is located again, or read from another replica.
    """

    source: TopicPartition
    leader: int
    leader_epoch: int
    high_watermark: int
    last_stable: int
    reading: object


class Followers(Protocol[P]):
    """What an engine knows of its partitions, and where it notes what their leaders answer."""

    def now(self) -> float:
        """The loop's clock, in seconds."""
        ...

    def followed(self) -> Mapping[P, FollowedPartition]:
        """The partitions that are read from followers now."""
        ...

    async def bounds(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, LogBounds]:
        """Ask the leaders of these (`SourcePort.bounds`).

        Raises:
            TwinlogError: no answer arrived.
        """
        ...

    def heard(self, partition: P, bounds: LogBounds, asked_at: float) -> None:
        """Note how far the source reaches, and that the leader has answered what was asked then."""
        ...


class LeaderBounds(Generic[P]):
    """The ends of an engine's followed partitions, as their leaders know them.

    Args:
        engine: knows the partitions, and notes the answers.
    """

    def __init__(self, engine: Followers[P]) -> None:
        self._engine = engine
        self._asked_at: dict[int, float] = {}  # by leader; only those of followed partitions
        self._asking: set[int] = set()
        self._look_at = 0.0

    def due(self) -> list[int]:
        """The leaders that `ask` is to be called for now."""
        now = self._engine.now()
        if now < self._look_at:
            return []
        self._look_at = now + LOOK_S
        leaders = {followed.leader for followed in self._engine.followed().values()}
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
        asked_at = self._asked_at[leader] = self._engine.now()
        asked = {p: one for p, one in self._engine.followed().items() if one.leader == leader}
        try:
            sources = [one.source for one in asked.values()]
            bounds = await self._engine.bounds(sources) if sources else {}
        except TwinlogError as error:
            log.info("source broker %d does not say how far it reaches: %s", leader, error)
            return
        finally:
            self._asking.discard(leader)
        followed = self._engine.followed()
        for partition, before in asked.items():
            answer = bounds[before.source]
            if _counts(answer, before, followed.get(partition)):
                self._engine.heard(partition, answer, asked_at)


def _counts(answer: LogBounds, before: FollowedPartition, now: FollowedPartition | None) -> bool:
    """Whether an answer shows how far a log reaches that is still read as it was `before`."""
    if answer.error or now is None:
        return False
    if (now.leader, now.reading) != (before.leader, before.reading):
        return False
    if UNKNOWN_EPOCH < answer.leader_epoch < now.leader_epoch:
        return False  # another leader was elected, perhaps before it was asked
    return (
        answer.high_watermark >= before.high_watermark and answer.last_stable >= before.last_stable
    )
