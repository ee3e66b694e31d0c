"""Frames come out as sent, however the bytes are cut; anything else is one error."""

import struct

from hypothesis import given
from hypothesis import strategies as st

from twinlog.kafka.client.receiver import STAGING, Receiver
from twinlog.kafka.errors import TwinlogError

MAX_FRAME = 3 * STAGING
BODIES = st.lists(
    st.one_of(
        st.binary(min_size=4, max_size=40),
        st.integers(4, MAX_FRAME).map(lambda n: bytes([n & 255]) * n),
    ),
    max_size=12,
)


class Sink:
    """The receiver's calls to its connection."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.errors: list[TwinlogError] = []
        self.receiver = Receiver(
            lambda: MAX_FRAME,
            self._frame,
            self._error,
            lambda _name, _closed: None,
            lambda _exc: None,
        )

    def _frame(self, frame: memoryview) -> None:
        assert not frame.readonly, "a frame is patched in place"
        self.frames.append(bytes(frame))

    def _error(self, error: TwinlogError) -> None:
        self.errors.append(error)
        self.receiver.stopped = True

    def feed(self, data: bytes, sizes: list[int]) -> None:
        """Feed the bytes as the kernel would: as many as fit, and as many as there are."""
        at, turn = 0, 0
        while at < len(data) and not self.errors:
            buffer = self.receiver.get_buffer(-1)
            assert len(buffer) > 0
            size = min(len(buffer), len(data) - at, sizes[turn % len(sizes)])
            buffer[:size] = data[at : at + size]
            self.receiver.buffer_updated(size)
            at, turn = at + size, turn + 1


SIZES = st.lists(st.integers(1, 2 * STAGING), min_size=1, max_size=10)


@given(bodies=BODIES, sizes=SIZES)
def test_frames_are_delivered_unchanged(bodies: list[bytes], sizes: list[int]) -> None:
    sink = Sink()
    sink.feed(b"".join(struct.pack(">i", len(b)) + b for b in bodies), sizes)
    assert sink.frames == bodies
    assert not sink.errors


@given(bodies=BODIES, garbage=st.binary(max_size=100), sizes=SIZES)
def test_garbage_is_an_error_or_waits_for_more(
    bodies: list[bytes], garbage: bytes, sizes: list[int]
) -> None:
    """Good frames before the garbage come out, and nothing is ever raised."""
    sink = Sink()
    sink.feed(b"".join(struct.pack(">i", len(b)) + b for b in bodies) + garbage, sizes)
    assert sink.frames[: len(bodies)] == bodies
    assert len(sink.errors) <= 1


def test_no_buffer_is_allocated_for_an_excessive_length() -> None:
    sink = Sink()
    sink.feed(struct.pack(">i", MAX_FRAME + 1), [4])
    assert "expected 4 to" in str(sink.errors[0])
    assert len(sink.receiver.get_buffer(-1)) <= STAGING


def test_a_large_frame_is_received_in_place() -> None:
    """After its first bytes, the buffer that is offered is the missing part of the frame."""
    sink = Sink()
    sink.feed(struct.pack(">i", MAX_FRAME) + b"x" * 100, [104])
    assert len(sink.receiver.get_buffer(-1)) == MAX_FRAME - 100
