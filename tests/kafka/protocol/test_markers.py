"""The WriteTxnMarkers codec, with kafka-python's messages as the oracle."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.producer import WriteTxnMarkersRequest, WriteTxnMarkersResponse

from twinlog.kafka.errors import ProtocolError
from twinlog.kafka.protocol import markers
from twinlog.kafka.protocol.markers import (
    Marker,
    decode_write_txn_markers,
    encode_write_txn_markers,
)
from twinlog.kafka.types import TopicPartition

INT32 = st.integers(0, (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
EPOCH = st.integers(-1, (1 << 15) - 1)
PARTITIONS = st.builds(TopicPartition, st.sampled_from(["t", "orders", "ä" * 80]), INT32)
MARKERS = st.builds(
    Marker, INT64, EPOCH, st.lists(PARTITIONS, unique=True, max_size=5), st.booleans(), INT32
)
RESULTS = st.dictionaries(INT64, st.dictionaries(PARTITIONS, EPOCH, max_size=5), max_size=4)


@given(st.lists(MARKERS, max_size=5))
def test_the_request_is_encoded_as_by_kafka_python(wanted: list[Marker]) -> None:
    """Goal: kafka-python reads what was written, topics grouped."""
    data = encode_write_txn_markers(wanted)
    request = WriteTxnMarkersRequest.decode(data, version=markers.VERSION)
    assert request.encode() == data
    assert [
        Marker(
            marker.producer_id,
            marker.producer_epoch,
            frozenset(
                TopicPartition(t.name, index)
                for t in marker.topics
                for index in t.partition_indexes
            ),
            marker.transaction_result,
            marker.coordinator_epoch,
        )
        for marker in request.markers
    ] == [one._replace(partitions=frozenset(one.partitions)) for one in wanted]


def response(results: dict[int, dict[TopicPartition, int]]) -> bytes:
    """Return a response as kafka-python writes it, each partition in a topic of its own."""
    result = WriteTxnMarkersResponse.WritableTxnMarkerResult
    topic = result.WritableTxnMarkerTopicResult
    partition = topic.WritableTxnMarkerPartitionResult
    message = WriteTxnMarkersResponse(
        markers=[
            result(
                producer_id=producer,
                topics=[
                    topic(
                        name=name,
                        partitions=[partition(partition_index=index, error_code=error)],
                    )
                    for (name, index), error in found.items()
                ],
            )
            for producer, found in results.items()
        ],
        version=markers.VERSION,
    )
    return bytes(message.encode())


@given(RESULTS)
def test_the_response_is_decoded(results: dict[int, dict[TopicPartition, int]]) -> None:
    """Goal: each producer's partitions have their error codes, also when decoded again."""
    data = response(results)
    assert decode_write_txn_markers(memoryview(data)) == results
    assert decode_write_txn_markers(memoryview(bytearray(data))) == results


def test_a_response_longer_than_those_that_are_kept_is_decoded() -> None:
    """Goal: the limit of what is remembered is no limit of what is read."""
    results = {
        7: {TopicPartition("t", index): index % 2 for index in range(markers.REMEMBERED_BYTES)}
    }
    data = response(results)
    assert len(data) > markers.REMEMBERED_BYTES
    assert decode_write_txn_markers(memoryview(data)) == results


def test_no_caller_can_change_what_is_remembered() -> None:
    """Goal: the answer to a later round is what the broker sent."""
    results = decode_write_txn_markers(memoryview(response({7: {TopicPartition("t", 0): 0}})))
    with pytest.raises(TypeError):
        results[7][TopicPartition("t", 0)] = 13  # type: ignore[index]


@given(RESULTS, st.data())
def test_a_truncated_response_is_refused(
    results: dict[int, dict[TopicPartition, int]], data: st.DataObject
) -> None:
    """Goal: no result is invented, and no other error leaves the codec."""
    whole = response(results)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(ProtocolError):
        decode_write_txn_markers(memoryview(whole[:cut]))
    with pytest.raises(ProtocolError):
        decode_write_txn_markers(memoryview(whole + b"\0"))


@given(st.binary(max_size=60))
def test_any_bytes_give_results_or_a_protocol_error(data: bytes) -> None:
    """Goal: what is no response is refused, whatever counts it claims."""
    try:
        decode_write_txn_markers(memoryview(data))
    except ProtocolError:
        return
    assert len(data) > 1
