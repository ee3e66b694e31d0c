"""The Fetch codec, with kafka-python's messages as the oracle."""

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer.fetch import FetchRequest, FetchResponse

from twinlog.kafka.errors import ProtocolError
from twinlog.kafka.protocol import fetch
from twinlog.kafka.protocol.compact import topic_key
from twinlog.kafka.types import AbortedTransaction, EpochEnd, FetchPosition, TopicPartition

IDS = {"orders": UUID(int=1), "payments": UUID(int=2), "ä" * 80: UUID(int=3)}
VERSIONS = st.integers(fetch.MIN_VERSION, fetch.MAX_VERSION)
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
PARTITIONS = st.builds(TopicPartition, st.sampled_from(sorted(IDS)), st.integers(0, 1 << 31 - 1))


def keys(version: int) -> dict[str, bytes]:
    """The topics as this version names them."""
    by_id = version >= fetch.BY_ID
    return {name: topic_key(name, topic_id if by_id else None) for name, topic_id in IDS.items()}


def names(version: int) -> dict[bytes, str]:
    """Return the inverse mapping."""
    return {key: name for name, key in keys(version).items()}


def name_of(topic: Any, version: int) -> str:
    """A topic's name in one of the oracle's messages."""
    by_id = {topic_id: name for name, topic_id in IDS.items()}
    return by_id[topic.topic_id] if version >= fetch.BY_ID else str(topic.topic)


def encode(version: int, partitions: dict[TopicPartition, FetchPosition], **changes: Any) -> bytes:
    """Encode a request with distinguishable numbers."""
    settings = {
        "session_id": 11,
        "session_epoch": 12,
        "isolation": fetch.READ_COMMITTED,
        "max_wait_ms": 13,
        "min_bytes": 14,
        "max_bytes": 15,
        "partition_max_bytes": 16,
    }
    forgotten = changes.pop("forgotten", ())
    return fetch.encode_fetch(version, keys(version), partitions, forgotten, **(settings | changes))


POSITIONS = st.builds(FetchPosition, INT64, INT32, INT32)


@given(VERSIONS, st.dictionaries(PARTITIONS, POSITIONS), st.sets(PARTITIONS), INT32, INT32)
def test_the_request_is_encoded_as_by_the_oracle(
    version: int,
    partitions: dict[TopicPartition, FetchPosition],
    forgotten: set[TopicPartition],
    session_id: int,
    session_epoch: int,
) -> None:
    """The oracle reads every field as intended, and writes the same bytes."""
    body = encode(
        version,
        partitions,
        forgotten=forgotten,
        session_id=session_id,
        session_epoch=session_epoch,
    )
    request = FetchRequest.decode(body, version=version)
    assert request.encode() == body
    assert (request.session_id, request.session_epoch) == (session_id, session_epoch)
    assert (request.max_wait_ms, request.min_bytes, request.max_bytes) == (13, 14, 15)
    assert (request.isolation_level, request.replica_id, request.rack_id) == (1, -1, "")
    asked = {
        TopicPartition(name_of(topic, version), part.partition): part
        for topic in request.topics
        for part in topic.partitions
    }
    assert partitions == {
        partition: (part.fetch_offset, part.last_fetched_epoch, part.current_leader_epoch)
        for partition, part in asked.items()
    }
    for part in asked.values():
        assert (part.log_start_offset, part.partition_max_bytes) == (-1, 16)
    dropped = {
        TopicPartition(name_of(topic, version), index)
        for topic in request.forgotten_topics_data
        for index in topic.partitions
    }
    assert dropped == forgotten


FETCHED = st.builds(
    fetch.Fetched,
    error=st.integers(-1, 133),
    high_watermark=INT64,
    last_stable=INT64,
    log_start=INT64,
    aborted=st.lists(st.builds(AbortedTransaction, INT64, INT64), max_size=200).map(tuple),
    records=st.binary(max_size=300).map(memoryview),
    diverging=st.none() | st.builds(EpochEnd, INT32, st.integers(0, 1 << 62)),
    preferred_replica=INT32,
)


def respond(
    version: int,
    partitions: dict[TopicPartition, fetch.Fetched],
    *,
    null: bool = False,
    hints: bool = False,
) -> bytes:
    """Encode the oracle's response: null for empty arrays if `null`, leader hints if `hints`."""
    message, part = FetchResponse, FetchResponse.FetchableTopicResponse.PartitionData
    grouped: dict[str, list[Any]] = {}
    for (topic, index), fetched in partitions.items():
        tags: dict[str, Any] = {}
        if hints:
            tags = {"current_leader": part.LeaderIdAndEpoch(leader_id=4, leader_epoch=5)}
        if fetched.diverging is not None:
            epoch, end = fetched.diverging
            tags["diverging_epoch"] = part.EpochEndOffset(epoch=epoch, end_offset=end)
        aborted = [
            part.AbortedTransaction(producer_id=each.producer_id, first_offset=each.first_offset)
            for each in fetched.aborted
        ]
        grouped.setdefault(topic, []).append(
            part(
                partition_index=index,
                error_code=fetched.error,
                high_watermark=fetched.high_watermark,
                last_stable_offset=fetched.last_stable,
                log_start_offset=fetched.log_start,
                aborted_transactions=aborted or (None if null else []),
                preferred_read_replica=fetched.preferred_replica,
                records=bytes(fetched.records) or (None if null else b""),
                **tags,
            )
        )
    top: dict[str, Any] = {}
    if hints and version >= 16:
        endpoint = message.NodeEndpoint(node_id=4, host="host", port=9092, rack=None)
        top = {"node_endpoints": [endpoint]}
    topics = [
        message.FetchableTopicResponse(topic=topic, topic_id=IDS[topic], partitions=parts)
        for topic, parts in grouped.items()
    ]
    response = message(throttle_time_ms=1, error_code=2, session_id=3, responses=topics, **top)
    return bytes(response.encode(version=version))


@given(VERSIONS, st.dictionaries(PARTITIONS, FETCHED, max_size=8), st.booleans(), st.booleans())
def test_a_response_of_the_oracle_is_decoded(
    version: int,
    partitions: dict[TopicPartition, fetch.Fetched],
    null: bool,
    hints: bool,
) -> None:
    """All fields, with and without nulls and tags."""
    body = memoryview(respond(version, partitions, null=null, hints=hints))
    response = fetch.decode_fetch(version, names(version), body)
    assert response == (1, 2, 3, partitions)


def test_records_are_not_copied_from_the_response() -> None:
    """Nothing is copied: a write into the body is seen in the records."""
    fetched = fetch.Fetched(0, 1, 1, 0, (), memoryview(b"records"))
    body = memoryview(bytearray(respond(17, {TopicPartition("orders", 0): fetched})))
    response = fetch.decode_fetch(17, names(17), body)
    body[bytes(body).index(b"records")] = ord("R")
    assert bytes(response.partitions[TopicPartition("orders", 0)].records) == b"Records"


@given(
    VERSIONS,
    st.dictionaries(PARTITIONS, FETCHED, min_size=1, max_size=3),
    st.booleans(),
    st.data(),
)
def test_a_damaged_response_is_decoded_or_refused(
    version: int,
    partitions: dict[TopicPartition, fetch.Fetched],
    hints: bool,
    data: st.DataObject,
) -> None:
    """Any byte changed and any end cut off: a result within the body, or a ProtocolError."""
    body = bytearray(respond(version, partitions, hints=hints))
    cut = data.draw(st.integers(0, len(body) - 1))
    with pytest.raises(ProtocolError):
        fetch.decode_fetch(version, names(version), memoryview(body)[:cut])
    body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    read_or_refused(version, bytes(body))


@given(VERSIONS, st.binary(max_size=200))
def test_any_bytes_are_decoded_or_refused(version: int, data: bytes) -> None:
    """Bytes that were never a response."""
    read_or_refused(version, data)
    read_or_refused(version, b"\0" * 10 + data)


def read_or_refused(version: int, data: bytes) -> None:
    """Decode; all views must be within the data."""
    try:
        response = fetch.decode_fetch(version, names(version), memoryview(data))
    except ProtocolError:
        return
    assert sum(len(part.records) for part in response.partitions.values()) <= len(data)


def test_a_topic_that_was_not_requested_is_refused() -> None:
    """The session and the broker disagree: the connection is not usable any more."""
    body = respond(17, {TopicPartition("orders", 0): fetch.Fetched(
        0, 1, 1, 0, (), memoryview(b"")
    )})  # fmt: skip
    with pytest.raises(ProtocolError, match="a topic that was not requested"):
        fetch.decode_fetch(17, {}, memoryview(body))


def test_trailing_bytes_of_a_response_are_refused() -> None:
    """A response fills its frame."""
    with pytest.raises(ProtocolError, match="ends at"):
        fetch.decode_fetch(17, names(17), memoryview(respond(17, {}) + b"\0"))


def test_the_number_of_aborted_transactions_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: no answer blocks an event loop for longer than a session: 128 MiB had 7.9 million.

    This holds for one partition and for several.
    """
    monkeypatch.setattr(fetch, "MAX_ABORTED", 10)
    nothing = fetch.Fetched(0, 0, 0, 0, (), memoryview(b""))
    some = nothing._replace(aborted=(AbortedTransaction(1, 2),) * 5)
    two = {TopicPartition("orders", index): some for index in range(2)}
    version = fetch.MAX_VERSION
    body = memoryview(respond(version, two))
    assert fetch.decode_fetch(version, names(version), body).partitions == two
    for topic in IDS:
        more = two | {TopicPartition(topic, 7): nothing._replace(aborted=some.aborted[:1])}
        with pytest.raises(ProtocolError, match="more than 10 aborted transactions"):
            fetch.decode_fetch(version, names(version), memoryview(respond(version, more)))
