"""`__mirror_groups`: groups' last known offsets, and those committed for them (group_records.py).

It is a topic of its own: its records are many and change with each check, and readers of mirrors
and states need not read them. All records of a mirror are in the partition of `__mirror_groups`
that its name hashes to. The node that synchronises the mirror's groups writes them.

The topic may be lost, or be missing in a cluster that an older version has set up. Mirroring is
then unchanged, and no offset on the destination is taken for the mirror's own.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import ProtocolError, Refusal, UserError
from twinlog.kafka.requests.topics import confirm_absent
from twinlog.mirror.placement import config_partition
from twinlog.store.control_topics import partition_count
from twinlog.store.group_records import (
    GroupMemory,
    LastCheck,
    decode,
    decode_key,
    encode,
    encode_key,
)
from twinlog.store.topic_creation import StoredTopic, create_stored
from twinlog.store.topic_reader import latest, read_whole
from twinlog.store.topic_writer import ALL, Entry, append

GROUPS_TOPIC: Final = "__mirror_groups"
PARTITIONS: Final = 8
MAX_BATCH: Final = 512 * 1024
"""Bytes of one write; the topic accepts 1 MiB."""

_CONFIGS: Final = {
    "message.timestamp.type": "LogAppendTime",
    "cleanup.policy": "compact",
    "compression.type": "producer",
    # The cleaner skips the active segment, and most records are stale after one check.
    "segment.bytes": str(4 << 20),
    "segment.ms": str(60 * 60 * 1000),
    "min.cleanable.dirty.ratio": "0.1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """What `__mirror_groups` holds of a mirror."""

    check: LastCheck | None = None
    """None: no complete check is known."""
    groups: Mapping[str, GroupMemory] = field(default_factory=dict)
    unreadable: tuple[str, ...] = ()
    """Records that cannot be decoded."""
    undecoded: frozenset[str | None] = frozenset()
    """The groups of these records; None stands for the last check."""


async def create_groups_topic(cluster: KafkaCluster, replication_factor: int | None = None) -> None:
    """Create the topic if it does not exist.

    Args:
        cluster: the destination.
        replication_factor: None: 3, or the number of brokers if that is less.

    Raises:
        UserError: no right to create it, or fewer brokers than the replication factor.
        Retriable: the cluster is unreachable.
    """
    with suppress(UserError):  # a principal with CREATE may lack DESCRIBE
        if await partition_count(cluster, GROUPS_TOPIC) is not None:
            return
    topic = StoredTopic(GROUPS_TOPIC, PARTITIONS, _CONFIGS)
    await create_stored(cluster, [topic], replication_factor)


async def read_groups(cluster: KafkaCluster, mirror: str) -> Remembered:
    """The records of a mirror's groups; empty if no broker has the topic.

    Raises:
        Retriable, UserError: see `topic_reader.Tail`; or only some brokers have the topic.
    """
    count = await partition_count(cluster, GROUPS_TOPIC)
    if count is None:
        await confirm_absent(cluster, GROUPS_TOPIC)
        return Remembered()
    records = await read_whole(cluster, GROUPS_TOPIC, [config_partition(mirror, count)])
    check, groups, unreadable = None, {}, []
    undecoded: set[str | None] = set()
    for record in latest(records).values():
        assert record.value is not None, "`latest` leaves out tombstones"
        try:
            owner, group = decode_key(record.key)
            if owner != mirror:
                continue
            undecoded.add(group)
            memory = decode(record.key, record.value)
            undecoded.remove(group)
        except ProtocolError as error:
            place = f"{GROUPS_TOPIC}-{record.partition}, offset {record.offset}"
            unreadable.append(f"{place}: {error.message}")
            continue
        if isinstance(memory, LastCheck):
            check = memory
        else:
            groups[memory.group] = memory
    return Remembered(
        check=check,
        groups=groups,
        unreadable=tuple(unreadable),
        undecoded=frozenset(undecoded),
    )


async def write_groups(
    cluster: KafkaCluster,
    mirror: str,
    records: Sequence[GroupMemory | LastCheck],
    forgotten_groups: Iterable[str] = (),
) -> None:
    """Write records of a mirror, and tombstones of its forgotten groups.

    Raises:
        UserError: a right is missing, or the topic does not exist.
        Retriable: not everything is known to be written.
    """
    count = await partition_count(cluster, GROUPS_TOPIC)
    if count is None:
        Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION).fail(
            "write the group records", topic=GROUPS_TOPIC
        )
    place = config_partition(mirror, count)
    entries = [Entry(GROUPS_TOPIC, place, *encode(record)) for record in records]
    entries += [
        Entry(GROUPS_TOPIC, place, encode_key(mirror, name), None) for name in forgotten_groups
    ]
    for batch in _batches(entries):
        for partition, answer in (await append(cluster, batch, acks=ALL)).items():
            if isinstance(answer, Refusal):
                with cluster.needing("WRITE", f"the topic {GROUPS_TOPIC}"):
                    answer.fail("write the group records", topic=partition.topic)


def _batches(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    batch: list[Entry] = []
    size = 0
    for entry in entries:
        length = len(entry.key) + len(entry.value or b"") + 32
        if batch and size + length > MAX_BATCH:
            yield batch
            batch, size = [], 0
        batch.append(entry)
        size += length
    if batch:
        yield batch
