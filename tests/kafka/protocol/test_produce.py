"""The Produce codec, with kafka-python's messages as the oracle."""

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.producer.produce import ProduceRequest, ProduceResponse

from twinlog.kafka.errors import ProtocolError
from twinlog.kafka.protocol import produce
from twinlog.kafka.protocol.compact import topic_key
from twinlog.kafka.types import TopicPartition

IDS = {"orders": UUID(int=1), "payments": UUID(int=2), "ä" * 80: UUID(int=3)}
VERSIONS = st.integers(produce.MIN_VERSION, produce.MAX_VERSION)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
PARTITIONS = st.builds(TopicPartition, st.sampled_from(sorted(IDS)), st.integers(0, 1 << 31 - 1))


def keys(version: int) -> dict[str, bytes]:
    """Return the topics as this version names them."""
    by_id = version >= produce.BY_ID
    return {name: topic_key(name, topic_id if by_id else None) for name, topic_id in IDS.items()}


def names(version: int) -> dict[bytes, str]:
    """Return the inverse mapping."""
    return {key: name for name, key in keys(version).items()}


def name_of(topic: Any, version: int) -> str:
    """Return a topic's name in one of the oracle's messages."""
    by_id = {topic_id: name for name, topic_id in IDS.items()}
    return by_id[topic.topic_id] if version >= produce.BY_ID else str(topic.name)


HEADER = st.binary(min_size=61, max_size=61)
RECORDS = st.sampled_from((0, 1, 65, 66, 67, 127, 128, 16321, 16322, 16323, 2097152)).flatmap(
    lambda size: st.binary(max_size=8).map(lambda seed: (seed * size)[:size])
)


@given(
    VERSIONS,
    st.dictionaries(PARTITIONS, st.tuples(HEADER, RECORDS), min_size=1, max_size=6),
    st.text(max_size=9) | st.none(),
)
def test_the_request_is_encoded_as_by_the_oracle(
    version: int,
    batches: dict[TopicPartition, tuple[bytes, bytes]],
    transactional_id: str | None,
) -> None:
    """The oracle reads the joined pieces as intended, and writes the same bytes."""
    parts = produce.encode_produce(
        keys(version),
        [(partition, head, memoryview(tail)) for partition, (head, tail) in batches.items()],
        timeout_ms=77,
        transactional_id=transactional_id,
    )
    body = b"".join(parts)
    request = ProduceRequest.decode(body, version=version)
    assert request.encode() == body
    assert (request.acks, request.timeout_ms) == (-1, 77)
    assert request.transactional_id == transactional_id
    sent = {
        TopicPartition(name_of(topic, version), part.index): bytes(part.records)
        for topic in request.topic_data
        for part in topic.partition_data
    }
    assert sent == {partition: head + tail for partition, (head, tail) in batches.items()}


def test_records_are_not_copied_into_the_request() -> None:
    """The given view itself is among the pieces."""
    records = memoryview(b"records")
    parts = produce.encode_produce(
        keys(12), [(TopicPartition("orders", 0), bytes(61), records)], timeout_ms=1
    )
    assert any(part is records for part in parts)


PRODUCED = st.builds(
    produce.ProducedPartition,
    error=st.integers(-1, 133),
    base_offset=INT64,
    log_start=INT64,
    message=st.text(max_size=300),
    stamped_ms=INT64,
)


def respond(
    version: int,
    partitions: dict[TopicPartition, produce.ProducedPartition],
    *,
    record_errors: list[str | None] | None = None,
    hints: bool = False,
) -> bytes:
    """The oracle's response."""
    message, part = ProduceResponse, ProduceResponse.TopicProduceResponse.PartitionProduceResponse
    errors = [
        part.BatchIndexAndErrorMessage(batch_index=at, batch_index_error_message=text)
        for at, text in enumerate(record_errors or [])
    ]
    hints = hints and version >= 10
    tags: dict[str, Any] = {}
    top: dict[str, Any] = {}
    if hints:
        tags = {"current_leader": part.LeaderIdAndEpoch(leader_id=4, leader_epoch=5)}
        endpoint = message.NodeEndpoint(node_id=4, host="host", port=9092, rack=None)
        top = {"node_endpoints": [endpoint]}
    grouped: dict[str, list[Any]] = {}
    for (topic, index), produced in partitions.items():
        grouped.setdefault(topic, []).append(
            part(
                index=index,
                error_code=produced.error,
                base_offset=produced.base_offset,
                log_append_time_ms=produced.stamped_ms,
                log_start_offset=produced.log_start,
                record_errors=errors,
                error_message=produced.message or None,
                **tags,
            )
        )
    topics = [
        message.TopicProduceResponse(name=topic, topic_id=IDS[topic], partition_responses=parts)
        for topic, parts in grouped.items()
    ]
    response = message(responses=topics, throttle_time_ms=5, **top)
    return bytes(response.encode(version=version))


@given(VERSIONS, st.dictionaries(PARTITIONS, PRODUCED, max_size=8), st.booleans())
def test_a_response_of_the_oracle_is_decoded(
    version: int, partitions: dict[TopicPartition, produce.ProducedPartition], hints: bool
) -> None:
    """All fields, with and without messages and tags."""
    body = memoryview(respond(version, partitions, hints=hints))
    assert produce.decode_produce(version, names(version), body) == (5, partitions)


@pytest.mark.parametrize(
    ("message", "record_errors", "expected"),
    [
        ("why", ["because"], "why"),
        ("", [None, "because", "of that"], "because"),
        ("", [None], ""),
    ],
)
def test_a_refusal_contains_the_message_of_the_broker(
    message: str, record_errors: list[str | None], expected: str
) -> None:
    """The batch's message, else the first of its records' messages."""
    partition = TopicPartition("orders", 1)
    refused = produce.ProducedPartition(87, -1, -1, message)
    body = respond(12, {partition: refused}, record_errors=record_errors)
    response = produce.decode_produce(12, names(12), memoryview(body))
    assert response.partitions == {partition: refused._replace(message=expected)}


@given(
    VERSIONS,
    st.dictionaries(PARTITIONS, PRODUCED, min_size=1, max_size=3),
    st.booleans(),
    st.data(),
)
def test_a_damaged_response_is_decoded_or_refused(
    version: int,
    partitions: dict[TopicPartition, produce.ProducedPartition],
    hints: bool,
    data: st.DataObject,
) -> None:
    """Any byte changed and any end cut off: a result, or a ProtocolError."""
    body = bytearray(respond(version, partitions, record_errors=["x", None], hints=hints))
    cut = data.draw(st.integers(0, len(body) - 1))
    with pytest.raises(ProtocolError):
        produce.decode_produce(version, names(version), memoryview(body)[:cut])
    body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    read_or_refused(version, bytes(body))


@given(VERSIONS, st.binary(max_size=200))
def test_any_bytes_are_decoded_or_refused(version: int, data: bytes) -> None:
    """Bytes that were never a response."""
    read_or_refused(version, data)


def read_or_refused(version: int, data: bytes) -> None:
    """Decode; only a ProtocolError may be raised."""
    try:
        produce.decode_produce(version, names(version), memoryview(data))
    except ProtocolError:
        return


def test_a_topic_that_was_not_in_the_request_is_refused() -> None:
    """It answers another request: the connection is not usable any more."""
    body = respond(12, {TopicPartition("orders", 0): produce.ProducedPartition(0, 0, 0)})
    with pytest.raises(ProtocolError, match="a topic that was not requested"):
        produce.decode_produce(12, {}, memoryview(body))
