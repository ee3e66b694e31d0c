"""Reports a flow's positions to its source: kafka-consumer-groups there shows the lag (KIP-656).

    source     group twinlog.flow.A-to-B   orders-0    at a refresh, best effort; never read back
    target     group twinlog.flow.A-to-B   A.orders-0  in the transactions: the truth

KIP-656 has the same group id on both clusters: its sink connector's. A flow that records a map
(kind `translated`) has no group on the target; with `connector.type=sink` it reports all the same.

What is written never costs another program its offsets:

- A group with members is refused by the broker: the commit is one of a client that is no member.
- A group is this flow's if each of its offsets has this flow's mark (mirror/reported_positions.py),
  or if it has none. It is read right before the commit. Kafka has no conditional commit, so an
  offset of a client that is no member, committed within these milliseconds, would be lost.

A right that is missing, or another program's group, is logged once, and counted at each attempt.
"""

import logging
import time
from collections.abc import Callable, Collection, Mapping
from typing import Final

from twinlog.engines.transactional.positions import committed_positions, position_group
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Refusal, UserError
from twinlog.kafka.groups.offsets import Committed, commit_offsets, committed_offsets, in_parts
from twinlog.kafka.types import TopicPartition
from twinlog.mirror.flow import flow_of, reports_positions
from twinlog.mirror.reported_positions import report_mark
from twinlog.mirror.settings import TRANSACTIONAL
from twinlog.store.config_records import MirrorTopic
from twinlog.store.control_topics import LANES_GROUP
from twinlog.store.recorded_maps import read_ends
from twinlog.sync.base import Moved, Sync, SyncContext, drop
from twinlog.sync.flow_topics import FLOWS
from twinlog.sync.group_offsets import GroupSync

log = logging.getLogger(__name__)

_ACTIVE: Final = frozenset({ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID})
"""The group has members."""
_EARLY_S: Final = 1.0
"""A refresh may come a little before its time; a report must not wait for the next one then."""


class SourcePositions(Sync[Mapping[TopicPartition, int]]):
    """Commits the positions of flows on their sources.

    Args:
        clock: seconds, of any beginning.
    """

    kinds = FLOWS
    name = "positions on the source"
    metric = GroupSync.metric

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due: dict[str, float] = {}
        self._troubles: dict[str, str] = {}

    def forget(self, moved: Moved) -> None:
        """Report at once: another node may have done it meanwhile."""
        drop(moved, self._due)

    async def compare(self, context: SyncContext) -> Mapping[TopicPartition, int]:
        """The positions to report, by the source's partition; none if it is not time yet.

        Raises:
            Retriable: the target is unreachable.
            UserError: a right on the target is missing, or the flow's settings are malformed.
        """
        properties = context.mirror.source
        now = self._clock()
        if not reports_positions(properties) or self._due.get(context.name, now) > now:
            return {}
        interval = flow_of(properties).settings.twinlog_source_offsets_interval_seconds
        self._due[context.name] = now + interval - _EARLY_S
        if context.mirror.kind == TRANSACTIONAL:
            group = position_group(LANES_GROUP, context.name)
            return await committed_positions(context.destination, group, context.same)
        return await _recorded_positions(context.destination, context.same)

    async def apply(self, context: SyncContext, difference: Mapping[TopicPartition, int]) -> int:
        """Commit the positions on the source; return 1 if they could not be committed.

        Raises:
            Retriable: the source is unreachable.
        """
        if not difference:
            return 0
        group = position_group(LANES_GROUP, context.name)
        mark = report_mark(context.name, context.destination.cluster_id)
        try:
            await _commit(context.source, group, mark, difference)
        except UserError as error:
            if self._troubles.get(context.name) != str(error):
                log.warning("flow %s: its source shows no lag: %s", context.name, error)
            self._troubles[context.name] = str(error)
            return 1
        self._troubles.pop(context.name, None)
        return 0


async def _commit(
    source: KafkaCluster, group: str, mark: str, positions: Mapping[TopicPartition, int]
) -> None:
    """Commit positions for a group, if it is this flow's.

    Raises:
        UserError: it is not, or has members, or a right is missing.
        Retriable: the source is unreachable.
    """
    held = await committed_offsets(source, group)
    foreign = sorted(partition for partition, at in held.items() if at.metadata != mark)
    if foreign:
        raise UserError(
            f"group {group} on the source has an offset of another program, of {foreign[0]}",
            hint="delete the group there if nothing uses it (kafka-consumer-groups --delete), or "
            "set twinlog.source.offsets.interval.seconds=-1",
        )
    offsets = {partition: Committed(offset, mark) for partition, offset in positions.items()}
    for part in in_parts(group, offsets):
        for partition, refusal in (await commit_offsets(source, group, part)).items():
            if isinstance(refusal, Refusal) and refusal.code in _ACTIVE:
                raise UserError(
                    f"group {group} has members on the source ({refusal})",
                    hint="only this flow may use it, and it is no member: end what has joined",
                )
            if isinstance(refusal, Refusal):
                refusal.fail(f"commit the position for group {group}", topic=partition.topic)


async def _recorded_positions(
    destination: KafkaCluster, topics: Collection[MirrorTopic]
) -> dict[TopicPartition, int]:
    """How far a flow has copied, by its recorded maps; partitions that have not begun are left out.

    Raises:
        TwinlogError: it cannot be read now.
    """
    if not topics:
        return {}
    ends = await read_ends(destination, topics)
    begins = {
        name.source: topic.begin(name.partition)
        for topic in topics
        for name in topic.mirror_partitions
    }
    return {
        partition: max(ends.get(partition, 0), begin or 0)
        for partition, begin in begins.items()
        if partition in ends or begin is not None
    }
