"""What a node knows of a mirror's groups: what it has read and committed (group_offsets.py)."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from twinlog.kafka.groups.offsets import Committed
from twinlog.kafka.types import TopicPartition
from twinlog.store.group_records import NO_OFFSET, GroupMemory, PartitionMemory, metadata_checksum
from twinlog.sync.group_rules import own_offsets


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
    sent: dict[str, dict[TopicPartition, Committed]] = field(default_factory=dict)
    """Commits of unknown outcome: such an offset is the mirror's own, too."""
    unlisted: dict[str, float] = field(default_factory=dict)
    """Since when (ms) the source has not listed a group."""

    def own(
        self, group: str, offsets: Mapping[TopicPartition, Committed]
    ) -> frozenset[TopicPartition]:
        """The partitions whose offset on the destination is the mirror's own."""
        in_flight = self.sent.get(group, {})
        unanswered = (p for p in offsets if p in in_flight and in_flight[p] == offsets[p])
        return own_offsets(offsets, self.groups.get(group)) | frozenset(unanswered)

    def copied(self, group: str, offsets: Mapping[TopicPartition, Committed]) -> None:
        """Remember that these offsets were committed."""
        before = self.groups[group]
        news = {
            partition: before.partitions.get(partition, PartitionMemory())._replace(
                copied=offset.offset, metadata=metadata_checksum(offset.metadata), other=NO_OFFSET
            )
            for partition, offset in offsets.items()
        }
        self.groups[group] = replace(before, partitions={**before.partitions, **news})
        for partition in offsets:
            self.sent.get(group, {}).pop(partition, None)
