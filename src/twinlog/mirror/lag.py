"""For how long the source has had what the destination lacks.

A record's own timestamp does not tell: producers write what they like, and what was mirrored by
another mirror is as old as it is. So it is noted when the source's end was first seen where it is:

    seen     end 100, 0.0 s     end 140, 0.5 s     end 200, 1.5 s
    reached  120  ─►  what lies from 120 on was first seen at 0.5 s

Marks are few, however fast the source grows: those of one moment are one, and when there are too
many, neighbours become one, under the earlier one's time. Invariant: what is told is never later
than the truth, and earlier by a share of the lag at most.
"""

from collections import deque
from typing import Final, NamedTuple

MAX_MARKS: Final = 32
RESOLUTION_S: Final = 0.1
"""Marks are at least this far apart, in seconds; twice that each time that they are thinned out."""


class _Mark(NamedTuple):
    """The source's log reached up to `end`; more than before was first seen `at`."""

    end: int
    at: float


class LagClock:
    """The ends of one source log, and when they were first seen. Times in seconds."""

    __slots__ = ("_marks", "_resolution")

    def __init__(self) -> None:
        self._marks: deque[_Mark] = deque()
        self._resolution = RESOLUTION_S

    def seen(self, end: int, now: float) -> None:
        """The source's log ends here now."""
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

    def since(self, reached: int) -> float | None:
        """When the first record from offset `reached` on was first seen; None if there is none.

        What lies below is forgotten.
        """
        marks = self._marks
        while marks and marks[0].end <= reached:
            marks.popleft()
        if not marks:
            self._resolution = RESOLUTION_S
            return None
        return marks[0].at

    def _thin_out(self) -> None:
        marks = list(self._marks)
        pairs = zip(marks[::2], marks[1::2], strict=False)
        odd = marks[-1:] if len(marks) % 2 else []
        self._marks = deque([*(_Mark(later.end, first.at) for first, later in pairs), *odd])
        self._resolution *= 2
