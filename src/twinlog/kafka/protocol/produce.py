"""Produce requests and responses: the second half of the hot path.

A request is a list of buffers, not one: the records of each batch are the very bytes that the
source's broker sent, and stay where they were received. Between them is *glue*, which ends the
previous batch and begins the next one:

    glue                                                            records   glue    records ...
    [transactional id, acks, timeout, topic count]
    topic key, partition count, partition:4, size, batch header:61  bytes     tags:1  ...

Versions 9 to 13, all flexible; from 13 on topics are identified by id (KIP-516). Every broker from
2.8 on supports 9. A partition in a response has 33 fixed bytes, of which the last three are usually
"no record errors, no message, no tags", so a successful append takes one struct call.

A partition has exactly one batch in a request: a broker refuses more.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from twinlog.kafka.errors import ProtocolError
from twinlog.kafka.protocol.compact import (
    NO_TAGS,
    compact_string,
    read_count,
    read_string,
    read_topic_key,
    reading,
    skip_tags,
    unsigned_varint,
)
from twinlog.kafka.types import TopicPartition

API_KEY: Final = 0
MIN_VERSION: Final = 9
MAX_VERSION: Final = 13
BY_ID: Final = 13
"""From this version on a topic is identified by its id."""

ALL_IN_SYNC: Final = -1
"""acks=all."""

Part: TypeAlias = bytes | memoryview
"""A piece of a request."""
OutgoingBatch: TypeAlias = tuple[TopicPartition, bytes, memoryview]
"""A partition, the batch's 61 bytes of header, and its records."""

_ACKS_AND_TIMEOUT: Final = struct.Struct(">hi")
_INDEX: Final = struct.Struct(">i")
_PARTITION: Final = struct.Struct(">ihqqqBBB")
_DETAILS: Final = 3
"""Bytes of an empty array of record errors, a null message, no tags."""
_THROTTLE: Final = struct.Struct(">i")


class ProducedPartition(NamedTuple):
    """A partition in a response. `base_offset` is -1 if nothing was appended.

    `stamped_ms` is the broker's time if the broker has set it on every record, which it does if the
    topic has LogAppendTime; the newest timestamp of a batch that it had already; else -1.
    """

    error: int
    base_offset: int
    log_start: int
    message: str = ""
    stamped_ms: int = -1


class ProduceResponse(NamedTuple):
    """A Produce response."""

    throttle_ms: int
    partitions: dict[TopicPartition, ProducedPartition]


def encode_produce(
    topic_keys: Mapping[str, bytes],
    batches: Sequence[OutgoingBatch],
    *,
    timeout_ms: int,
    transactional_id: str | None = None,
) -> list[Part]:
    """The body of a request with acks=all, in pieces.

    All versions have the same layout; only the topic keys differ.

    Args:
        topic_keys: `compact.topic_key` of each topic, as the version wants it.
        batches: at most one for each partition.
        timeout_ms: how long the broker may wait for its followers.
        transactional_id: for transactional batches only. From version 12 on such a request also
            adds the partitions to the transaction (KIP-890).
    """
    topics: dict[str, list[OutgoingBatch]] = {}
    for batch in batches:
        topics.setdefault(batch[0][0], []).append(batch)
    parts: list[Part] = []
    glue = (
        compact_string(transactional_id)
        + _ACKS_AND_TIMEOUT.pack(ALL_IN_SYNC, timeout_ms)
        + unsigned_varint(len(topics) + 1)
    )
    for topic, group in topics.items():
        glue += topic_keys[topic] + unsigned_varint(len(group) + 1)
        for (_, index), header, records in group:
            size = unsigned_varint(len(header) + len(records) + 1)
            parts += (glue + _INDEX.pack(index) + size + header, records)
            glue = NO_TAGS  # the partition's
        glue += NO_TAGS  # the topic's
    parts.append(glue + NO_TAGS)
    return parts


def decode_produce(version: int, topics: Mapping[bytes, str], body: memoryview) -> ProduceResponse:
    """Decode a response.

    Args:
        version: of the request.
        topics: the topic of each topic key that was sent.
        body: the response after its header.

    Raises:
        ProtocolError: the body is not a response of this version, or names a topic to which nothing
            was sent.
    """
    partitions: dict[TopicPartition, ProducedPartition] = {}
    with reading(f"Produce response v{version}", len(body)):
        count, at = read_count(body, 0)
        for _ in range(count):
            key, at = read_topic_key(body, at, by_id=version >= BY_ID)
            topic = topics.get(key)
            if topic is None:
                raise ProtocolError(
                    f"a Produce response contains a topic that was not requested: {key.hex()}"
                )
            at = _decode_partitions(body, at, topic, partitions)
        (throttle_ms,) = _THROTTLE.unpack_from(body, at)
        at = skip_tags(body, at + _THROTTLE.size)
    if at != len(body):
        raise ProtocolError(
            f"a Produce response v{version} has {len(body)} bytes, but its content ends at {at}"
        )
    return ProduceResponse(throttle_ms, partitions)


def _decode_partitions(
    body: memoryview, at: int, topic: str, results: dict[TopicPartition, ProducedPartition]
) -> int:
    """Decode one topic's partitions; return the position after the topic."""
    unpack, new = _PARTITION.unpack_from, tuple.__new__  # half the time of a NamedTuple's own
    count, at = read_count(body, at)
    for _ in range(count):
        index, error, base_offset, stamped_ms, log_start, errors, note, tags = unpack(body, at)
        at += _PARTITION.size
        message = ""
        if errors > 1 or note or tags:
            message, at = _decode_details(body, at - _DETAILS)
        partition = new(TopicPartition, (topic, index))
        results[partition] = new(
            ProducedPartition, (error, base_offset, log_start, message, stamped_ms)
        )
    return skip_tags(body, at)


def _decode_details(body: memoryview, at: int) -> tuple[str, int]:
    """Why a batch was refused: the message, else the first message of its records."""
    first = ""
    count, at = read_count(body, at)
    for _ in range(count):
        text, at = read_string(body, at + _INDEX.size)
        first = first or text
        at = skip_tags(body, at)
    message, at = read_string(body, at)
    return message or first, skip_tags(body, at)
