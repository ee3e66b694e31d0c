"""Frames: the length and header around every request and response.

    request     length:4 api_key:2 api_version:2 correlation_id:4 client_id:2+n [tags:1]  body
    response    length:4 correlation_id:4 [tags:varint ...]                               body

The tags (KIP-482) exist in *flexible* versions: request header v2 instead of v1, response header v1
instead of v0. kafka-python's messages know which version of which API is flexible
(`flexible_version_q`); they come from Kafka's own schemas.

The one exception is ApiVersions. Its response header is always v0, since it is parsed before the
two sides have agreed on anything (KIP-511). If its error code is not 0, its body is version 0,
whatever was requested.

Everything here is pure: bytes in, bytes or `ProtocolError` out. A length from the wire is checked
before a slice or an allocation uses it.
"""

import struct
from typing import Any, Final

from kafka.protocol.api_header import RequestHeader

from twinlog.kafka.errors import ProtocolError

LENGTH: Final = struct.Struct(">i")
_REQUEST_HEAD: Final = struct.Struct(">ihhih")
_CORRELATION: Final = struct.Struct(">i")

LENGTH_SIZE: Final = LENGTH.size
MIN_RESPONSE: Final = _CORRELATION.size
"""A response is at least its correlation id."""

MAX_FRAME: Final = 128 << 20
"""The longest response that is accepted: Kafka's own default for a request is 100 MiB."""
MAX_DECODED: Final = 32 << 20
"""The longest response that holds no records, and is decoded in the event loop. Metadata of 500,000
partitions with three replicas each takes 21 MB of it (42 bytes for a partition)."""
MAX_UNTRUSTED: Final = 1 << 20
"""The longest response before authentication has ended."""

MAX_CORRELATION_ID: Final = (1 << 31) - 1
MAX_CLIENT_ID: Final = (1 << 15) - 1

API_VERSIONS: Final = 18
_FETCH: Final = 1
_BEFORE_AUTHENTICATION: Final = frozenset({17, API_VERSIONS, 36})
"""SaslHandshake, ApiVersions, SaslAuthenticate."""

_ONE_BY_ONE: Final = frozenset({2, 23})
"""ListOffsets, OffsetForLeaderEpoch: an answer has what was requested, some numbers for each
partition. Lanes send these to a source often, and decoding 32 MiB of empty topics takes longer than
their session (15 s)."""
_SMALL: Final = 64 << 10
_LONGER: Final = 4
"""Bytes of such an answer that are allowed for each byte of the request."""

_MAX_TAGS: Final = 64
_MAX_VARINT: Final = 5
_NO_TAGS: Final = b"\0"
_NO_ERROR: Final = b"\0\0"
_TLS_RECORDS: Final = frozenset({b"\x15\x03", b"\x16\x03"})


def encode_request_header(
    api_key: int,
    api_version: int,
    correlation_id: int,
    client_id: bytes,
    *,
    flexible: bool,
    body_size: int,
) -> bytes:
    """The frame's length and the request header, in front of a body of `body_size` bytes."""
    size = _REQUEST_HEAD.size - LENGTH_SIZE + len(client_id) + flexible + body_size
    head = _REQUEST_HEAD.pack(size, api_key, api_version, correlation_id, len(client_id))
    return head + client_id + _NO_TAGS if flexible else head + client_id


def frame_length(prefix: memoryview | bytes | bytearray, maximum: int = MAX_FRAME) -> int:
    """The length in a frame's first four bytes.

    Raises:
        ProtocolError: it is below a correlation id's size, or above `maximum`.
    """
    (length,) = LENGTH.unpack_from(prefix)
    if MIN_RESPONSE <= length <= maximum:
        return int(length)
    if bytes(prefix[:2]) in _TLS_RECORDS:
        raise ProtocolError(
            "the response is TLS, not Kafka's protocol",
            hint="this listener uses TLS: set security.protocol to SSL or SASL_SSL",
        )
    raise ProtocolError(f"invalid frame length {length} (expected {MIN_RESPONSE} to {maximum})")


def longest_response(api_key: int, request_size: int) -> int:
    """The maximum length of a response to a request of this API with `request_size` body bytes."""
    if api_key in _BEFORE_AUTHENTICATION:
        return MAX_UNTRUSTED
    if api_key in _ONE_BY_ONE:
        return min(_SMALL + _LONGER * request_size, MAX_DECODED)
    return MAX_FRAME if api_key == _FETCH else MAX_DECODED


def parse_response_header(frame: memoryview, *, flexible: bool) -> tuple[int, int]:
    """Parse the correlation id, and the position of the body.

    Raises:
        ProtocolError: the frame ends within the header, or the header's tags are invalid.
    """
    if len(frame) < MIN_RESPONSE:
        raise ProtocolError(f"a response of {len(frame)} bytes has no correlation id")
    (correlation_id,) = _CORRELATION.unpack_from(frame)
    if not flexible:
        return correlation_id, MIN_RESPONSE
    if len(frame) > MIN_RESPONSE and frame[MIN_RESPONSE] == 0:
        return correlation_id, MIN_RESPONSE + 1
    return correlation_id, _skip_tags(frame, MIN_RESPONSE)


def _skip_tags(frame: memoryview, at: int) -> int:
    count, at = _unsigned_varint(frame, at)
    if count > _MAX_TAGS:
        raise ProtocolError(f"invalid number of tagged fields in a response header: {count}")
    for _ in range(count):
        _tag, at = _unsigned_varint(frame, at)
        size, at = _unsigned_varint(frame, at)
        if size > len(frame) - at:
            raise ProtocolError(
                f"invalid length {size} of a tagged field: {len(frame) - at} bytes follow"
            )
        at += size
    return at


def _unsigned_varint(frame: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for index in range(_MAX_VARINT):
        if at + index >= len(frame):
            break
        byte = frame[at + index]
        value |= (byte & 0x7F) << (7 * index)
        if not byte & 0x80:
            return value, at + index + 1
    raise ProtocolError("invalid varint in a response header: truncated or too long")


def response_class(api_key: int) -> Any:
    """kafka-python's class for the response to `api_key`, without a version."""
    return RequestHeader(request_api_key=api_key, request_api_version=0).get_response_class()[None]


def request_flexible(message: Any, version: int) -> bool:
    """Whether a request of this class and version has header v2 (else v1)."""
    return bool(message.flexible_version_q(version))


def response_flexible(api_key: int, message: Any, version: int) -> bool:
    """Whether the response to this class and version of request has header v1 (else v0)."""
    return api_key != API_VERSIONS and bool(message.flexible_version_q(version))


def decode_body(message: Any, version: int, body: memoryview) -> Any:
    """Decode a response's body into kafka-python's message, which must fill `body` exactly.

    Raises:
        ProtocolError: it does not, for any reason.
    """
    if message.API_KEY == API_VERSIONS and bytes(body[:2]) != _NO_ERROR:
        version = 0
    flexible = message.flexible_version_q(version)
    # The message's own decode() does not report where it stopped, and a slice past the end is only
    # short: a truncated string would pass for a complete one.
    decode = message._struct.compiled_decode_from(  # noqa: SLF001
        version, compact=flexible, tagged=flexible, data_class=message
    )
    try:
        decoded, end = decode(body, 0)
    except Exception as error:  # any bytes may arrive; the exceptions they cause are unspecified
        raise ProtocolError(
            f"cannot decode a {message.name} v{version} of {len(body)} bytes: {error!r}"
        ) from error
    if end != len(body):
        raise ProtocolError(
            f"a {message.name} v{version} has {len(body)} bytes, but its content ends at {end}"
        )
    return decoded
