"""Frames and headers against kafka-python's own, and against any bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.admin import CreateTopicsResponse
from kafka.protocol.api_header import RequestHeader, ResponseHeader
from kafka.protocol.consumer import FetchRequest, HeartbeatResponse
from kafka.protocol.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataResponse,
)

from twinlog.kafka.errors import ProtocolError
from twinlog.kafka.protocol import frames

I32 = st.integers(0, frames.MAX_CORRELATION_ID)


@given(
    numbers=st.tuples(st.integers(0, 100), st.integers(0, 20), I32),
    client_id=st.text(max_size=50),
    flexible=st.booleans(),
    body=st.binary(max_size=50),
)
def test_the_request_header_is_encoded_as_by_kafka_python(
    numbers: tuple[int, int, int], client_id: str, flexible: bool, body: bytes
) -> None:
    api_key, version, correlation_id = numbers
    encoded = frames.encode_request_header(
        api_key,
        version,
        correlation_id,
        client_id.encode(),
        flexible=flexible,
        body_size=len(body),
    )
    expected = RequestHeader(
        request_api_key=api_key,
        request_api_version=version,
        correlation_id=correlation_id,
        client_id=client_id,
    ).encode(flexible=flexible)
    assert encoded[4:] == expected
    assert frames.LENGTH.unpack_from(encoded) == (len(expected) + len(body),)


@given(correlation_id=I32, flexible=st.booleans(), body=st.binary(max_size=50))
def test_the_response_header_is_decoded(correlation_id: int, flexible: bool, body: bytes) -> None:
    head = ResponseHeader(correlation_id=correlation_id).encode(flexible=flexible)
    frame = memoryview(bytes(head) + body)
    assert frames.parse_response_header(frame, flexible=flexible) == (correlation_id, len(head))


def test_tags_of_a_response_header_are_skipped() -> None:
    """Unknown tags are no error (KIP-482)."""
    head = b"\0\0\0\7" + b"\2" + b"\0\3abc" + b"\x81\1\0"
    assert frames.parse_response_header(memoryview(head + b"body"), flexible=True) == (7, len(head))


@given(st.binary(max_size=40), st.booleans())
def test_any_bytes_give_a_header_or_a_protocol_error(data: bytes, flexible: bool) -> None:
    try:
        _, body_at = frames.parse_response_header(memoryview(data), flexible=flexible)
    except ProtocolError:
        return
    assert 4 <= body_at <= len(data)


@pytest.mark.parametrize("length", [4, 5, 1000])
def test_frame_lengths_within_bounds_are_accepted(length: int) -> None:
    assert frames.frame_length(frames.LENGTH.pack(length), 1000) == length


@pytest.mark.parametrize("length", [-(1 << 31), -1, 0, 3, 1001, (1 << 31) - 1])
def test_frame_lengths_out_of_bounds_are_refused(length: int) -> None:
    with pytest.raises(ProtocolError, match="expected 4 to 1000"):
        frames.frame_length(frames.LENGTH.pack(length), 1000)


def test_a_tls_alert_is_reported_as_tls() -> None:
    """A TLS listener answers a plain request with an alert; its first bytes are no length."""
    with pytest.raises(ProtocolError, match="uses TLS"):
        frames.frame_length(b"\x15\x03\x03\x00\x02\x02\x46")


def test_flexible_versions_are_known() -> None:
    assert not frames.request_flexible(FetchRequest, 11)
    assert frames.request_flexible(FetchRequest, 12)
    assert frames.response_flexible(3, MetadataRequest, 9)
    assert frames.request_flexible(ApiVersionsRequest, 3)
    assert not frames.response_flexible(frames.API_VERSIONS, ApiVersionsRequest, 3)


def _metadata() -> bytes:
    broker = MetadataResponse.MetadataResponseBroker(node_id=1, host="h", port=9, rack=None)
    return bytes(MetadataResponse(brokers=[broker], topics=[], cluster_id="c").encode(version=12))


def test_a_response_body_is_decoded() -> None:
    decoded = frames.decode_body(frames.response_class(3), 12, memoryview(_metadata()))
    assert isinstance(decoded, MetadataResponse)
    assert decoded.cluster_id == "c"


@given(st.data())
def test_a_truncated_body_is_a_protocol_error(data: st.DataObject) -> None:
    """kafka-python alone would accept a cut string as a whole one."""
    body = _metadata()
    end = data.draw(st.integers(0, len(body) - 1))
    with pytest.raises(ProtocolError):
        frames.decode_body(MetadataResponse, 12, memoryview(body[:end]))


def test_bytes_after_the_body_are_a_protocol_error() -> None:
    with pytest.raises(ProtocolError, match="ends at"):
        frames.decode_body(MetadataResponse, 12, memoryview(_metadata() + b"\0"))


@given(
    message=st.sampled_from([MetadataResponse, ApiVersionsResponse, CreateTopicsResponse]),
    version=st.integers(0, 4),
    body=st.binary(max_size=200),
)
def test_any_body_gives_a_message_or_a_protocol_error(
    message: type, version: int, body: bytes
) -> None:
    try:
        frames.decode_body(message, version, memoryview(body))
    except ProtocolError:
        return


def test_api_versions_responses_with_an_error_use_version_0() -> None:
    """A broker that does not have the requested version answers in version 0 (KIP-511)."""
    key = ApiVersionsResponse.ApiVersion(api_key=18, min_version=0, max_version=2)
    body = bytes(ApiVersionsResponse(error_code=35, api_keys=[key]).encode(version=0))
    decoded = frames.decode_body(ApiVersionsResponse, 4, memoryview(body))
    assert (decoded.error_code, decoded.api_keys[0].max_version) == (35, 2)


def test_response_classes_are_found_by_api_key() -> None:
    assert frames.response_class(12) is HeartbeatResponse


def test_response_length_limits_depend_on_the_api() -> None:
    """Goal: records need room, lists of a large cluster some, and unauthenticated peers little."""
    limits = {key: frames.longest_response(key, 10_000_000) for key in range(100)}
    assert limits.pop(FetchRequest.API_KEY) == 128 << 20
    strangers = {17, 18, 36}  # SaslHandshake, ApiVersions, SaslAuthenticate
    assert {limits.pop(key) for key in strangers} == {1 << 20}
    assert set(limits.values()) == {32 << 20}
    answers_what_was_asked = {2, 23}  # ListOffsets, OffsetForLeaderEpoch
    assert {k for k in limits if frames.longest_response(k, 100) < 70_000} == answers_what_was_asked
