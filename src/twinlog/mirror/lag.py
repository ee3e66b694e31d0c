"""The time for which the source has had records that the destination lacks.

A record's own timestamp does not show it: producers may write any timestamp, and records from
another mirror keep their old ones. So a mark stores when an end of the source was first seen:

    seen     end 100, 0.0 s     end 140, 0.5 s     end 200, 1.5 s
    reached  120  ─►  the records from 120 on were first seen at 0.5 s

Marks are few, however fast the source grows: marks of one moment are merged, and if there are too
many, neighbours are merged under the earlier time. Invariant: the reported time is never later than
the truth, and earlier by at most a quarter of the reported lag, or 2 * `RESOLUTION_S`
(tests/mirror/test_lag.py).
"""

from collections import deque
from typing import Final, NamedTuple

MAX_MARKS: Final = 32
RESOLUTION_S: Final = 0.1
"""Least distance between marks, in seconds; it doubles each time that marks are thinned out."""


class _Mark(NamedTuple):
    """The source's log end was `end`; offsets above the mark before were first seen at `at`."""

    end: int
    at: float


class LagClock:
    """The ends of one source log, and when they were first seen. Times in seconds."""

    __slots__ = ("_marks", "_resolution")

    def __init__(self) -> None:
        self._marks: deque[_Mark] = deque()
        self._resolution = RESOLUTION_S

    def seen(self, end: int, now: float) -> None:
        """Note the end of the source's log."""
        marks = self._marks
        if marks:
            last = marks[-1]
            if end <= last.end:
                return
            if now < last.at + self._resolution:
                marks[-1] = _Mark(end, last.at)
                return
        marks.append(_Mark(end, now))
        if len(marks) > MAX_MARKS:
            self._thin_out()

    def since(self, position: int) -> float | None:
        """When the first record from offset `position` on was first seen; None if there is none.

        Marks up to `position` are dropped.
        """
        marks = self._marks
        while marks and marks[0].end <= position:
            marks.popleft()
        if not marks:
            self._resolution = RESOLUTION_S
            return None
        return marks[0].at

    def _thin_out(self) -> None:
        marks = list(self._marks)
        pairs = zip(marks[::2], marks[1::2], strict=False)
        remainder = marks[-1:] if len(marks) % 2 else []
        self._marks = deque([*(_Mark(second.end, first.at) for first, second in pairs), *remainder])
        self._resolution *= 2
