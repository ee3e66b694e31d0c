"""What a node knows of a mirror's groups: what it has read and committed (group_offsets.py)."""

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Self

from twinlog.kafka.groups.offsets import Committed
from twinlog.kafka.types import TopicPartition
from twinlog.mirror.translation import SAME, Translation
from twinlog.store.group_log import Remembered
from twinlog.store.group_records import NO_OFFSET, GroupMemory, PartitionMemory, metadata_checksum
from twinlog.sync.group_rules import own_offsets

log = logging.getLogger(__name__)

_NOT_SENT: Final = {"sent": NO_OFFSET, "sent_metadata": 0}


@dataclass(slots=True)
class KnownGroups:
    """What is known of a mirror's groups."""

    groups: dict[str, GroupMemory] = field(default_factory=dict)
    written: dict[str, GroupMemory] = field(default_factory=dict)
    """The part of it that `__mirror_groups` holds."""
    undecoded: frozenset[str | None] = frozenset()
    """Groups with a record there that cannot be decoded, perhaps of a later version (None: the last
    check). They are not written."""
    was_read: bool = True
    """Whether it could be read. If not, nothing is written: the topic may hold more."""
    unlisted: dict[str, float] = field(default_factory=dict)
    """Since when (ms) the source has not listed a group."""
    _former: dict[str, Mapping[TopicPartition, PartitionMemory]] = field(
        default_factory=dict, init=False
    )
    """By group: the partitions of the last `sends`, as they were before."""

    @classmethod
    def of(cls, mirror: str, records: Remembered) -> Self:
        """What `__mirror_groups` holds of a mirror."""
        for text in records.unreadable:
            log.warning("mirror %s: keeping a group record that cannot be read: %s", mirror, text)
        groups = dict(records.groups)
        return cls(groups=groups, written=dict(groups), undecoded=records.undecoded)

    def own(
        self,
        group: str,
        offsets: Mapping[TopicPartition, Committed],
        translation: Translation = SAME,
    ) -> frozenset[TopicPartition]:
        """The partitions whose offset on the destination is the mirror's own (`own_offsets`)."""
        return own_offsets(offsets, self.groups.get(group), translation)

    def sends(self, group: str, offsets: Mapping[TopicPartition, Committed]) -> None:
        """Remember that these offsets are going to be committed."""
        memory = self.groups.get(group)
        known = {} if memory is None else memory.partitions
        self._former[group] = {p: known.get(p, PartitionMemory()) for p in offsets}
        self._alter(
            group,
            {
                partition: {
                    "sent": offset.offset,
                    "sent_metadata": metadata_checksum(offset.metadata),
                }
                for partition, offset in offsets.items()
            },
        )

    def not_sent(self, group: str, partitions: Collection[TopicPartition]) -> None:
        """Remember that what was announced of these partitions (`sends`) was not sent.

        An equal offset that stands there later is the group's own. What an earlier check has sent,
        and whose outcome is unknown, may still land.
        """
        former = self._former.get(group, {})
        self._alter(
            group,
            {
                partition: {
                    "sent": former[partition].sent,
                    "sent_metadata": former[partition].sent_metadata,
                }
                for partition in partitions
            },
        )

    def refused(self, group: str, partition: TopicPartition) -> None:
        """Remember that what was sent was not committed.

        An equal offset that stands there later is the group's own.
        """
        self._alter(group, {partition: _NOT_SENT})

    def copied(self, group: str, offsets: Mapping[TopicPartition, Committed]) -> None:
        """Remember that these offsets were committed."""
        self._alter(
            group,
            {
                partition: {
                    "copied": offset.offset,
                    "metadata": metadata_checksum(offset.metadata),
                    "other": NO_OFFSET,
                    **_NOT_SENT,
                }
                for partition, offset in offsets.items()
            },
        )

    def repeated(self, group: str, now_ms: int) -> None:
        """Remember that all copied offsets were committed again."""
        self.groups[group] = replace(self.groups[group], copied_ms=now_ms)

    def active(self, group: str, now_ms: int) -> None:
        """Remember that the group is active on the destination."""
        self.groups[group] = replace(self.groups[group], active_ms=now_ms)

    def _alter(self, group: str, fields: Mapping[TopicPartition, Mapping[str, int]]) -> None:
        if not fields:
            return
        before = self.groups[group]
        news = {
            partition: before.partitions.get(partition, PartitionMemory())._replace(**changed)
            for partition, changed in fields.items()
        }
        self.groups[group] = replace(before, partitions={**before.partitions, **news})
