"""The checkpoints that a target has of a flow, as MirrorMaker 2's clients read them."""

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import NamedTuple

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import ProtocolError
from twinlog.kafka.requests.topics import confirm_absent
from twinlog.kafka.types import TopicPartition
from twinlog.mirror.mm2_records import Checkpoint, decode_checkpoint, decode_checkpoint_key
from twinlog.store.topic_reader import latest, read_whole


class UnreadableCheckpoint(NamedTuple):
    """Whose checkpoint cannot be read, and why; the group is None if the key is unreadable, too."""

    group: str | None
    reason: str


class StoredCheckpoints(NamedTuple):
    """The last checkpoint of each group and partition.

    `times_ms`: when they were written, the unreadable ones too. `unreadable`: others that cannot
    be read; clients leave them out. `written_ms`: when each was written, by group and partition of
    the destination.
    """

    checkpoints: Collection[Checkpoint] = ()
    times_ms: Collection[int] = ()
    unreadable: Collection[UnreadableCheckpoint] = ()
    written_ms: Mapping[tuple[str, TopicPartition], int] = MappingProxyType({})

    def unreadable_of(self, group: str) -> list[str]:
        """Why checkpoints that are of this group, or may be, cannot be read."""
        return sorted(one.reason for one in self.unreadable if one.group in {group, None})


async def read_checkpoints(cluster: KafkaCluster, topic: str) -> StoredCheckpoints:
    """Read all checkpoints of a topic; there are none if every broker reports that it is missing.

    Raises:
        Retriable: not now; or only some brokers have the topic.
        UserError: a right is missing.
    """
    if topic not in (await cluster.refresh([topic])).topics:
        # A broker that is behind may not show it: a group would keep a checkpoint too high.
        await confirm_absent(cluster, topic)
        return StoredCheckpoints()
    checkpoints: list[Checkpoint] = []
    unreadable: list[UnreadableCheckpoint] = []
    written_ms: dict[tuple[str, TopicPartition], int] = {}
    records = latest(await read_whole(cluster, topic)).values()
    for record in records:
        group = None
        try:
            group, _ = decode_checkpoint_key(record.key)
            checkpoint = decode_checkpoint(record.key, record.value)
        except ProtocolError as error:
            unreadable.append(UnreadableCheckpoint(group, str(error)))
            continue
        if checkpoint is not None:
            checkpoints.append(checkpoint)
            written_ms[checkpoint.group, checkpoint.partition] = record.timestamp
    times_ms = {record.timestamp for record in records}
    return StoredCheckpoints(checkpoints, times_ms, unreadable, written_ms)
