"""WriteTxnMarkers requests and responses, which a log of small transactions needs by the thousand.

Version 1 only, which is flexible, and which every broker has that has the API at all (2.7 and
later; 4.0 dropped version 0).

    request    array of: producer id int64, epoch int16, committed bool, topics, coordinator epoch
               int32, tags;   topics: array of: name, array of int32, tags
    response   array of: producer id int64, topics, tags
               topics: array of: name, array of (partition int32, error int16, tags), tags
"""

import struct
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from twinlog.kafka.errors import ProtocolError
from twinlog.kafka.protocol.compact import (
    NO_TAGS,
    compact_string,
    read_count,
    read_string,
    reading,
    skip_tags,
    unsigned_varint,
)
from twinlog.kafka.types import TopicPartition

API_KEY: Final = 27
VERSION: Final = 1

Results: TypeAlias = Mapping[int, Mapping[TopicPartition, int]]
"""By producer id: its partitions' error codes."""

REMEMBERED: Final = 256
"""Encoded topics, and decoded responses, that are kept: rounds of a lane are much alike."""
REMEMBERED_BYTES: Final = 4096
"""The longest response that is kept."""

_PRODUCER: Final = struct.Struct(">qh?")
_COORDINATOR_EPOCH: Final = struct.Struct(">i")
_PRODUCER_ID: Final = struct.Struct(">q")
_RESULT: Final = struct.Struct(">ih")


class Marker(NamedTuple):
    """One control record on each of `partitions`, of the producer `producer_id`."""

    producer_id: int
    epoch: int
    partitions: Collection[TopicPartition]
    committed: bool = False
    coordinator_epoch: int = 0


def encode_write_txn_markers(markers: Sequence[Marker]) -> bytes:
    """The body of a request."""
    parts = [unsigned_varint(len(markers) + 1)]
    for producer_id, epoch, partitions, committed, coordinator_epoch in markers:
        parts += (
            _PRODUCER.pack(producer_id, epoch, committed),
            _encoded_topics(tuple(partitions)),
            _COORDINATOR_EPOCH.pack(coordinator_epoch),
            NO_TAGS,
        )
    parts.append(NO_TAGS)
    return b"".join(parts)


@lru_cache(REMEMBERED)
def _encoded_topics(partitions: tuple[TopicPartition, ...]) -> bytes:
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(index)
    parts = [unsigned_varint(len(topics) + 1)]
    for topic, indexes in topics.items():
        parts += (
            compact_string(topic),
            unsigned_varint(len(indexes) + 1),
            struct.pack(f">{len(indexes)}i", *indexes),
            NO_TAGS,
        )
    return b"".join(parts)


def decode_write_txn_markers(body: memoryview) -> Results:
    """The content of a response.

    It names no offsets, so the answers to a lane's rounds are often the same bytes.

    Raises:
        ProtocolError: the body is not a response of this version.
    """
    data = bytes(body)
    return _remembered(data) if len(data) <= REMEMBERED_BYTES else _decoded(data)


def _decoded(data: bytes) -> Results:
    body = memoryview(data)
    results: dict[int, dict[TopicPartition, int]] = {}
    with reading(f"WriteTxnMarkers response v{VERSION}", len(body)):
        producers, at = read_count(body, 0)
        for _ in range(producers):
            (producer_id,) = _PRODUCER_ID.unpack_from(body, at)
            at = _decode_topics(body, at + _PRODUCER_ID.size, results.setdefault(producer_id, {}))
        at = skip_tags(body, at)
    if at != len(body):
        raise ProtocolError(
            f"a WriteTxnMarkers response has {len(body)} bytes, but its content ends at {at}"
        )
    return MappingProxyType({key: MappingProxyType(codes) for key, codes in results.items()})


_remembered = lru_cache(REMEMBERED)(_decoded)


def _decode_topics(body: memoryview, at: int, results: dict[TopicPartition, int]) -> int:
    """Decode the results of one producer id; return the position after them."""
    topics, at = read_count(body, at)
    for _ in range(topics):
        topic, at = read_string(body, at)
        partitions, at = read_count(body, at)
        for _ in range(partitions):
            index, error = _RESULT.unpack_from(body, at)
            results[TopicPartition(topic, index)] = error
            at = skip_tags(body, at + _RESULT.size)
        at = skip_tags(body, at)
    return skip_tags(body, at)
