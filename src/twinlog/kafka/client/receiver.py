"""Cuts received bytes into frames, in the buffers where the frames stay.

    state             get_buffer returns          until
    --------------    ------------------------    -------------------------------------
    between frames    the free part of staging    four bytes of a length, and what came
                                                  with them, are there
    within a frame    the frame's missing part    it is full

A frame's buffer is allocated after its length has been checked. Of a large frame at most `STAGING`
bytes are copied: the kernel writes the rest into the frame itself. Small frames arrive many at
once, and are copied out of staging.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from twinlog.kafka.errors import ProtocolError, TwinlogError
from twinlog.kafka.protocol import frames

STAGING: Final = 16 << 10
"""Bytes for what arrives between frames: whole small frames, or a large one's first bytes."""


class Receiver(asyncio.BufferedProtocol):
    """Cuts received bytes into frames. Knows nothing of requests."""

    def __init__(
        self,
        max_length: Callable[[], int],
        on_frame: Callable[[memoryview], None],
        on_error: Callable[[TwinlogError], None],
        on_gate: Callable[[str, bool], None],
        on_lost: Callable[[Exception | None], None],
    ) -> None:
        self._max_length = max_length  # the maximum length of the next frame
        self._on_frame = on_frame
        self._on_error = on_error
        self._on_gate = on_gate
        self._on_lost = on_lost
        self._staging = memoryview(bytearray(STAGING))
        self._staged_bytes = 0
        self._frame: memoryview | None = None
        self._filled_bytes = 0
        self.stopped = False
        self.received = 0

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 (asyncio's signature)
        """The buffer for the next bytes; never empty."""
        frame = self._frame
        if frame is None:
            return self._staging[self._staged_bytes :]
        return frame[self._filled_bytes :]

    def buffer_updated(self, nbytes: int) -> None:
        """Handle `nbytes` that were written to the buffer of `get_buffer`."""
        self.received += nbytes
        frame = self._frame
        if frame is None:
            self._staged_bytes += nbytes
            self._unstage()
            return
        self._filled_bytes += nbytes
        if self._filled_bytes == len(frame):
            self._frame = None
            self._deliver(frame)

    def _unstage(self) -> None:
        """Copy the frames out of staging; an incomplete last frame gets its own buffer."""
        staging, at, end = self._staging, 0, self._staged_bytes
        while end - at >= frames.LENGTH_SIZE and not self.stopped:
            try:
                prefix = staging[at : at + frames.LENGTH_SIZE]
                length = frames.frame_length(prefix, self._max_length())
            except ProtocolError as error:
                self._on_error(error)
                return
            at += frames.LENGTH_SIZE
            frame = memoryview(bytearray(length))
            size = min(length, end - at)
            frame[:size] = staging[at : at + size]
            at += size
            if size < length:
                self._frame, self._filled_bytes = frame, size
                break
            self._deliver(frame)
        rest = end - at
        staging[:rest] = staging[at:end]
        self._staged_bytes = rest

    def _deliver(self, frame: memoryview) -> None:
        try:
            self._on_frame(frame)
        except ProtocolError as error:
            self._on_error(error)

    def pause_writing(self) -> None:
        """The transport's buffer is above its high-water mark."""
        self._on_gate("writing", True)

    def resume_writing(self) -> None:
        """The transport's buffer has room again."""
        self._on_gate("writing", False)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed."""
        self._on_lost(exc)
