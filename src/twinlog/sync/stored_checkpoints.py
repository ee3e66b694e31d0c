"""The checkpoints that a target has of a flow, as MirrorMaker 2's clients read them."""

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import NamedTuple

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import ProtocolError
from twinlog.kafka.requests.topics import confirm_absent
from twinlog.kafka.types import TopicPartition
from twinlog.mirror.mm2_records import Checkpoint, decode_checkpoint
from twinlog.store.topic_reader import latest, read_whole


class StoredCheckpoints(NamedTuple):
    """The last checkpoint of each group and partition.

    `times_ms`: when they were written, the unreadable ones too. `unreadable`: why others cannot
    be read; clients leave them out. `written_ms`: when each was written, by group and partition of
    the destination. `last_ms`: when the one was written that is the last in the log; None: there is
    none.
    """

    checkpoints: Collection[Checkpoint] = ()
    times_ms: Collection[int] = ()
    unreadable: Collection[str] = ()
    written_ms: Mapping[tuple[str, TopicPartition], int] = MappingProxyType({})
    last_ms: int | None = None


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
    unreadable: list[str] = []
    written_ms: dict[tuple[str, TopicPartition], int] = {}
    records = latest(await read_whole(cluster, topic)).values()
    last_ms = None
    for record in sorted(records, key=lambda record: record.offset):
        try:
            checkpoint = decode_checkpoint(record.key, record.value)
        except ProtocolError as error:
            unreadable.append(str(error))
            continue
        if checkpoint is not None:
            checkpoints.append(checkpoint)
            written_ms[checkpoint.group, checkpoint.partition] = last_ms = record.timestamp
    times_ms = {record.timestamp for record in records}
    return StoredCheckpoints(checkpoints, times_ms, unreadable, written_ms, last_ms)
