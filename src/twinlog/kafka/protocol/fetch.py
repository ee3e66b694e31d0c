"""Fetch requests and responses: the first half of the hot path.

kafka-python's messages would work, but create an object for each partition and copy its records.
Here a request is one join of packed structs, and a response is decoded with two or three struct
calls for each partition. Its records are slices of the buffer that the socket was read into, and
are sent on from there.

Versions 12 to 18, all flexible. From 13 on topics are identified by id (KIP-516), from 15 on the
replica id is a tag (KIP-903), 16 adds node endpoints (KIP-951), 17 and 18 add tags for followers
(KIP-853, KIP-1166). Every broker from 2.7 on supports 12. A partition in a request is 33 bytes:

    partition:4 leader epoch:4 offset:8 last fetched epoch:4 log start:8 max bytes:4 tags:1

and in a response:

    partition:4 error:2 high watermark:8 last stable:8 log start:8
    aborted: count, each producer id:8 first offset:8 tags:1
    preferred replica:4  records: size, bytes  tags

Of a partition's tags only the diverging epoch (KIP-595) is read: leader epoch:4 end offset:8 tags.

Fetch sessions (KIP-227): a request lists what is new to the session; `session_id` 0 and epoch 0 ask
for a session, epoch -1 works without one. `kafka/requests/fetch_session.py` keeps the state.
"""

import struct
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from twinlog.kafka.errors import ProtocolError
from twinlog.kafka.protocol.compact import (
    EMPTY,
    NO_TAGS,
    read_count,
    read_topic_key,
    read_unsigned_varint,
    reading,
    skip_tags,
    unsigned_varint,
)
from twinlog.kafka.types import AbortedTransaction, EpochEnd, FetchPosition, TopicPartition

API_KEY: Final = 1
MIN_VERSION: Final = 12
MAX_VERSION: Final = 18
BY_ID: Final = 13
"""From this version on a topic is identified by its id."""

READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1

NO_SESSION: Final = -1
"""The epoch of a request that asks for no session."""

_REPLICA_IS_A_TAG: Final = 15
_CONSUMER: Final = struct.pack(">i", -1)
_HEAD: Final = struct.Struct(">iiibii")
_ASKED: Final = struct.Struct(">iiqiqib")
_INDEX: Final = struct.Struct(">i")

_TOP: Final = struct.Struct(">ihi")
_PARTITION: Final = struct.Struct(">ihqqqB")
_ABORTED: Final = struct.Struct(">qq")
_PREFERRED_REPLICA: Final = struct.Struct(">i")
MAX_ABORTED: Final = 1_000_000
"""Aborted transactions in a response. Each is an object in memory and 17 bytes on the wire, while
its marker, somewhere in the log, has 78: an answer of 64 MiB has no more of them by itself."""
_NONE_ABORTED: Final[tuple[AbortedTransaction, ...]] = ()
_DIVERGING_TAG: Final = 0
_EPOCH_END: Final = struct.Struct(">iq")


class Fetched(NamedTuple):
    """A partition in a response.

    `records` are raw batches up to the last stable offset or the high watermark, as requested,
    still with aborted data and markers. Offsets are -1 if the broker does not report them.

    `diverging` means that the leader's log is not the one that was read before (`FetchPosition`):
    the leader's end of the largest epoch that is not above the requested one. There are no records
    then.

    `preferred_replica` is the broker that the leader wants to be read from instead (KIP-392), or
    -1. If it is set there are no records, whatever the log holds.
    """

    error: int
    high_watermark: int
    last_stable: int
    log_start: int
    aborted: tuple[AbortedTransaction, ...]
    records: memoryview
    diverging: EpochEnd | None = None
    preferred_replica: int = -1


class FetchResponse(NamedTuple):
    """A response. `error` concerns the whole request; there are no partitions then.

    With `throttle_ms` above 0 a quota is exceeded: the broker leaves out all partitions, or their
    records, so nothing may be concluded from what is missing (KIP-219).
    """

    throttle_ms: int
    error: int
    session_id: int
    partitions: dict[TopicPartition, Fetched]


def encode_fetch(
    version: int,
    topic_keys: Mapping[str, bytes],
    partitions: Mapping[TopicPartition, FetchPosition],
    forgotten_partitions: Iterable[TopicPartition] = (),
    *,
    session_id: int,
    session_epoch: int,
    isolation: int,
    max_wait_ms: int,
    min_bytes: int,
    max_bytes: int,
    partition_max_bytes: int,
) -> bytes:
    """The body of a request.

    Args:
        version: 12 to 18.
        topic_keys: `compact.topic_key` of each topic, as `version` wants it.
        partitions: the fetch position of each partition that the session does not know.
        forgotten_partitions: what the session knows and is no longer wanted.
        session_id: of the session, or 0.
        session_epoch: 0 asks for a new session, `NO_SESSION` for none.
        isolation: `READ_COMMITTED` or `READ_UNCOMMITTED`.
        max_wait_ms: how long the broker may wait for `min_bytes`.
        min_bytes: how many bytes make the broker answer at once.
        max_bytes: how many bytes of records it may answer with, its first batch aside.
        partition_max_bytes: the same for each partition.
    """
    topics: dict[str, list[bytes]] = {}
    pack = _ASKED.pack
    for (topic, index), (offset, last_epoch, leader_epoch) in partitions.items():
        entry = pack(index, leader_epoch, offset, last_epoch, -1, partition_max_bytes, 0)
        topics.setdefault(topic, []).append(entry)
    forgotten_topics: dict[str, list[bytes]] = {}
    for topic, index in forgotten_partitions:
        forgotten_topics.setdefault(topic, []).append(_INDEX.pack(index))
    return b"".join(
        (
            b"" if version >= _REPLICA_IS_A_TAG else _CONSUMER,
            _HEAD.pack(max_wait_ms, min_bytes, max_bytes, isolation, session_id, session_epoch),
            _encode_topics(topic_keys, topics),
            _encode_topics(topic_keys, forgotten_topics),
            EMPTY,  # the rack
            NO_TAGS,
        )
    )


def _encode_topics(topic_keys: Mapping[str, bytes], topics: Mapping[str, list[bytes]]) -> bytes:
    parts = [unsigned_varint(len(topics) + 1)]
    for topic, partitions in topics.items():
        parts += (topic_keys[topic], unsigned_varint(len(partitions) + 1), *partitions, NO_TAGS)
    return b"".join(parts)


def decode_fetch(version: int, topics: Mapping[bytes, str], body: memoryview) -> FetchResponse:
    """Decode a response; its records are slices of `body`.

    Args:
        version: of the request.
        topics: the topic of each topic key that may come.
        body: the response after its header.

    Raises:
        ProtocolError: the body is not a response of this version, or names a topic that was not
            requested.
    """
    partitions: dict[TopicPartition, Fetched] = {}
    with reading(f"Fetch response v{version}", len(body)):
        throttle_ms, error, session_id = _TOP.unpack_from(body)
        count, at = read_count(body, _TOP.size)
        budget = [MAX_ABORTED]
        for _ in range(count):
            key, at = read_topic_key(body, at, by_id=version >= BY_ID)
            topic = topics.get(key)
            if topic is None:
                raise ProtocolError(
                    f"a Fetch response contains a topic that was not requested: {key.hex()}"
                )
            at = _decode_partitions(body, at, topic, partitions, budget)
        at = skip_tags(body, at)
    if at != len(body):
        raise ProtocolError(
            f"a Fetch response v{version} has {len(body)} bytes, but its content ends at {at}"
        )
    return FetchResponse(throttle_ms, error, session_id, partitions)


def _decode_partitions(
    body: memoryview, at: int, topic: str, results: dict[TopicPartition, Fetched], budget: list[int]
) -> int:
    """Decode one topic's partitions; return the position after the topic.

    `budget` has how many aborted transactions the response may still list.
    """
    unpack, new = _PARTITION.unpack_from, tuple.__new__  # half the time of a NamedTuple's own
    read_replica = _PREFERRED_REPLICA.unpack_from
    count, at = read_count(body, at)
    for _ in range(count):
        index, error, high_watermark, last_stable, log_start, mark = unpack(body, at)
        at += _PARTITION.size
        aborted = _NONE_ABORTED
        if mark > 1:
            aborted, at = _decode_aborted(body, at - 1, budget)
        (preferred,) = read_replica(body, at)
        at += _PREFERRED_REPLICA.size
        size = body[at]
        at += 1
        if size >= 0x80:
            size, at = read_unsigned_varint(body, at - 1)
        end = at + size - 1 if size else at
        records = body[at:end]
        diverging = None
        if body[end]:  # IndexError: `end` is beyond the body
            diverging, at = _decode_tags(body, end)
        else:
            at = end + 1
        partition = new(TopicPartition, (topic, index))
        results[partition] = new(
            Fetched,
            (error, high_watermark, last_stable, log_start, aborted, records, diverging, preferred),
        )
    return skip_tags(body, at)


def _decode_tags(body: memoryview, at: int) -> tuple[EpochEnd | None, int]:
    """Decode a partition's tags: the diverging epoch, and the position after them."""
    diverging = None
    tags_end = skip_tags(body, at)
    count, at = read_unsigned_varint(body, at)
    for _ in range(count):
        tag, at = read_unsigned_varint(body, at)
        size, at = read_unsigned_varint(body, at)
        if tag == _DIVERGING_TAG:
            diverging = EpochEnd._make(_EPOCH_END.unpack_from(body[at : at + size]))
        at += size
    return diverging, tags_end


def _decode_aborted(
    body: memoryview, at: int, budget: list[int]
) -> tuple[tuple[AbortedTransaction, ...], int]:
    count, at = read_count(body, at)
    budget[0] -= count
    if budget[0] < 0:
        raise ProtocolError(f"a Fetch response lists more than {MAX_ABORTED} aborted transactions")
    aborted = []
    for _ in range(count):
        aborted.append(AbortedTransaction._make(_ABORTED.unpack_from(body, at)))
        at = skip_tags(body, at + _ABORTED.size)
    return tuple(aborted), at
