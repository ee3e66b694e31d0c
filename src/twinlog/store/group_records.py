"""Records of `__mirror_groups`: each group's last known offsets, and those committed for it.

Two facts have to survive a node, and neither can be read back from a cluster:

- which committed offsets on the destination are the mirror's own. OffsetCommit has no field for it:
  the metadata belongs to the application, and an invalid leader epoch would break its consumer.
  Only the mirror's own offset may be lowered (KIP-545), or raised without a pause;
- what groups had committed on the source, for the time when the source is unreachable.

Losing the topic is safe: then no offset on the destination is known to be the mirror's own.

    key     JSON: [mirror] or [mirror, group]
    value   zstd of JSON: version, and
            of a mirror: time_ms (start of the last complete check), failed (groups not read in it)
            of a group: kind, active_ms, copied_ms,
                        topics: {topic: [[partition, source, copied, metadata, other, deleted,
                        sent, sent_metadata, translated], ...]}

Trailing defaults of a row are left out (`copied` defaults to `source`). Later versions may add
fields, and columns to a row: unknown ones are ignored, missing ones have their default.

The size depends on the groups that have committed offsets of the mirror's topics: 5,000 groups with
20 partitions each take 1.5 MB, 300 bytes a group (tests/store/test_group_records.py).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias
from zlib import crc32

from twinlog.kafka.errors import CorruptBatch, ProtocolError
from twinlog.kafka.log.compression import Codec, compress, decompress
from twinlog.kafka.types import TopicPartition
from twinlog.store.json_fields import JsonObject, decode_json, encode_json

NO_OFFSET: Final = -1
JOINED: Final = 2
"""`PartitionMemory.translated`, where several source partitions share one of the destination."""

MAX_RECORD: Final = 64 * 1024 * 1024
"""Bytes of JSON."""

_VERSION: Final = 1
_WHAT: Final = "a record of __mirror_groups"
_DEFAULTS: Final = (None, NO_OFFSET, None, 0, NO_OFFSET, 0, NO_OFFSET, 0, 0)
"""Defaults of a row's cells: without the third cell, `copied` is `source`."""
_CELLS: Final = len(_DEFAULTS)


class PartitionMemory(NamedTuple):
    """A partition of a group. A missing offset is -1.

    `copied`, `other` and `sent` are offsets of the destination, as they are committed there.
    """

    source: int = NO_OFFSET
    """The group's committed offset on the source at the last check that covered the partition."""
    copied: int = NO_OFFSET
    """The offset that the mirror last committed for the group on the destination."""
    metadata: int = 0
    """CRC-32 of the metadata that was committed with `copied`."""
    other: int = NO_OFFSET
    """The destination's offset at the last check, if the mirror did not commit it."""
    deleted: int = 0
    """1 if the group had no offset on the source at the last check that covered the partition, but
    had one before."""
    sent: int = NO_OFFSET
    """What the mirror was going to commit last, until the outcome is known: it may be there."""
    sent_metadata: int = 0
    """CRC-32 of the metadata that goes with `sent`."""
    translated: int = 0
    """1 if the destination has other offsets than the source (a flow). Former versions stored a
    flow's in the source's offsets, without this: what they have stored proves nothing. `JOINED`:
    several source partitions share the destination's, and `source` is an offset there, and missing
    if the group had no place."""

    @property
    def may_be_copied(self) -> bool:
        """Whether the destination may have an offset of the mirror's."""
        return max(self.copied, self.sent) != NO_OFFSET

    def is_own(self, offset: int, metadata: int) -> bool:
        """Whether the mirror has committed this, or may have; by the metadata's checksum."""
        return (offset, metadata) in {
            (self.copied, self.metadata),
            (self.sent, self.sent_metadata),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMemory:
    """What a mirror remembers of a group."""

    mirror: str
    group: str
    kind: str
    active_ms: int = 0
    """When the group was last active on the destination: it had members, or its offsets changed,
    but not by the mirror. 0: not seen."""
    copied_ms: int = 0
    """When all copied offsets were last committed (again)."""
    partitions: Mapping[TopicPartition, PartitionMemory] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LastCheck:
    """The last complete check of a mirror's groups."""

    mirror: str
    time_ms: int
    """When it began: later commits of the groups on the source are not known."""
    failed: tuple[str, ...] = ()
    """Groups that could not be read in it."""


Key: TypeAlias = tuple[str, str | None]
"""A mirror, and a group or None."""


def metadata_checksum(metadata: str) -> int:
    """The checksum of a committed offset's metadata; 0 if it is empty."""
    return crc32(metadata.encode("utf-8", "surrogatepass"))


def encode_key(mirror: str, group: str | None = None) -> bytes:
    """The key of a mirror's last check, or of a group."""
    return encode_json([mirror] if group is None else [mirror, group])


def encode(record: GroupMemory | LastCheck) -> tuple[bytes, bytes]:
    """Key and value."""
    if isinstance(record, LastCheck):
        body: dict[str, object] = {"time_ms": record.time_ms, "failed": list(record.failed)}
        return encode_key(record.mirror), _packed(body)
    topics: dict[str, list[list[int]]] = {}
    for partition, memory in sorted(record.partitions.items()):
        topics.setdefault(partition.topic, []).append(_row(partition.partition, memory))
    body = {
        "kind": record.kind,
        "active_ms": record.active_ms,
        "copied_ms": record.copied_ms,
        "topics": topics,
    }
    return encode_key(record.mirror, record.group), _packed(body)


def _packed(body: dict[str, object]) -> bytes:
    return bytes(compress(Codec.ZSTD, encode_json({"version": _VERSION, **body})))


def _row(partition: int, memory: PartitionMemory) -> list[int]:
    row: list[int] = [partition, *memory]
    while row[-1] == (memory.source if len(row) == 3 else _DEFAULTS[len(row) - 1]):
        row.pop()
    return row


def decode_key(key: bytes | None) -> Key:
    """The mirror and the group of a record.

    Raises:
        ProtocolError: the bytes do not have this module's format.
    """
    names = decode_json(key or b"", f"the key of {_WHAT}")
    match names:
        case [str(mirror)]:
            return mirror, None
        case [str(mirror), str(group)]:
            return mirror, group
    raise ProtocolError(
        f"the key of {_WHAT} is {json.dumps(names)[:80]}: expected one or two names"
    )


def decode(key: bytes | None, value: bytes) -> GroupMemory | LastCheck:
    """Decode a record.

    Raises:
        ProtocolError: the bytes do not have this module's format, or have a later one.
    """
    mirror, group = decode_key(key)
    try:
        data = decompress(Codec.ZSTD, memoryview(value))
    except CorruptBatch as error:
        raise ProtocolError(f"{_WHAT}: {error}") from error
    if len(data) > MAX_RECORD:
        raise ProtocolError(f"{_WHAT} has {len(data)} bytes (expected at most {MAX_RECORD})")
    body = JsonObject(decode_json(bytes(data), _WHAT), f"{_WHAT}, {mirror}, {group}")
    if body.number("version") != _VERSION:
        raise body.error("version", str(_VERSION))
    if group is None:
        return LastCheck(mirror=mirror, time_ms=body.number("time_ms"), failed=body.texts("failed"))
    return GroupMemory(
        mirror=mirror,
        group=group,
        kind=body.text("kind"),
        active_ms=body.number("active_ms"),
        copied_ms=body.number("copied_ms"),
        partitions=dict(_partitions(body)),
    )


def _partitions(body: JsonObject) -> list[tuple[TopicPartition, PartitionMemory]]:
    memories = []
    topics: Any = body.object("topics")
    for topic, rows in topics.items():
        if not isinstance(rows, list):
            raise body.error("topics", "lists of rows")
        for row in rows:
            if (
                not isinstance(row, list)
                or not row
                or not all(type(cell) is int for cell in row[:_CELLS])
            ):
                raise body.error("topics", "rows of whole numbers")
            cells = (*row, *_DEFAULTS[len(row) :])[:_CELLS]
            partition, source, copied, *others = cells
            memory = PartitionMemory(source, source if copied is None else copied, *others)
            memories.append((TopicPartition(topic, partition), memory))
    return memories
