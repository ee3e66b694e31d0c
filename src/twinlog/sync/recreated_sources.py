"""What a flow tells of source topics that were deleted, and perhaps recreated since.

What producers have written last, before a topic was deleted, is never known. So it is not known
either that nothing was lost:

    a report of the owner has an end behind what was copied    error, with the offsets
    it does not, or is missing                                 warning, with how far it was copied
"""

import logging
from collections.abc import Collection, Mapping
from typing import NamedTuple

from twinlog.kafka.errors import TwinlogError, UserError
from twinlog.kafka.types import Offset, TopicPartition
from twinlog.lifecycle.flow_creation import copied_to
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.record_losses import RecordLoss
from twinlog.mirror.settings import TRANSLATED
from twinlog.store.config_records import MirrorTopic
from twinlog.store.recorded_maps import read_ends
from twinlog.store.status_records import PartitionStatus, Status
from twinlog.sync.base import SyncContext
from twinlog.text import few

log = logging.getLogger(__name__)


class _FormerPartition(NamedTuple):
    """What is known of a partition whose source topic was deleted."""

    partition: TopicPartition
    end: int | None
    """Up to where it was copied, at least; None: not known, or nothing was."""
    known_end: int
    """Up to where the source had committed records when its owner last reported it; -1: unknown."""

    @property
    def is_loss(self) -> bool:
        """Whether records are known that were not copied."""
        return self.known_end > (self.end or 0)

    @property
    def text(self) -> str:
        """What was copied, and what is known to be lost."""
        if self.is_loss:
            start, end = Offset(self.end or 0), Offset(self.known_end)
            return RecordLoss(self.partition, start, end, at_least=True).text
        if self.end is None:
            return f"{self.partition}: unknown what was copied"
        return f"{self.partition}: copied up to offset {self.end} at least"


async def log_recreated(context: SyncContext, topics: Collection[MirrorTopic]) -> None:
    """Log what is known of the records of recreated topics that were not copied."""
    then = "; copying the new one from its beginning"
    await _log_losses(context, topics, "was deleted and recreated on the source", then)


async def log_deleted(context: SyncContext, topics: Collection[MirrorTopic]) -> None:
    """Log what is known of the records of deleted topics that were not copied."""
    await _log_losses(context, topics, "was deleted on the source", "; it is removed from the flow")


async def _log_losses(
    context: SyncContext, topics: Collection[MirrorTopic], what: str, then: str
) -> None:
    copied = await _copied(context, topics)
    for topic in topics:
        partitions = [copied[name] for name in topic.mirror_partitions]
        losses = [partition for partition in partitions if partition.is_loss]
        doubt = "records of the former topic that were not copied are lost"
        log.log(
            logging.ERROR if losses else logging.WARNING,
            "flow %s: %s %s: %s (%s)%s",
            context.name,
            topic.topic,
            what,
            doubt if losses else f"{doubt}, if there were any",
            few([partition.text for partition in (losses or partitions)]),
            then,
        )


async def _copied(
    context: SyncContext, topics: Collection[MirrorTopic]
) -> Mapping[MirrorPartition, _FormerPartition]:
    """What is recorded and reported of partitions of topics that were deleted."""
    mirror = context.mirror
    recorded: Mapping[TopicPartition, int] = {}
    statuses: Mapping[int, Status] = {}
    try:
        statuses, _ = await context.store.statuses()
        if mirror.kind == TRANSLATED:
            recorded = await read_ends(context.destination, topics)
        else:
            recorded = await copied_to(context.destination, mirror, topics)
    except (TwinlogError, UserError) as error:  # the topics are deleted all the same
        log.info("flow %s: what was copied is not known: %s", context.name, error)
    # An owner that does not copy a partition may report where the log of the new topic ends.
    rows = {
        row.partition: row
        for status in statuses.values()
        for row in status.partitions
        if row.mirrored >= 0
    }
    copied: dict[MirrorPartition, _FormerPartition] = {}
    for name in (name for topic in topics for name in topic.mirror_partitions):
        row = rows.get(name)
        ends = [recorded.get(name.source, -1), -1 if row is None else row.mirrored]
        end = max(ends) if max(ends) >= 0 else None
        copied[name] = _FormerPartition(name.source, end, -1 if row is None else _stable_end(row))
    return copied


def _stable_end(row: PartitionStatus) -> int:
    """Without transactions that were open: with their topic, these were never committed."""
    return row.source_end if row.source_last_stable < 0 else row.source_last_stable
