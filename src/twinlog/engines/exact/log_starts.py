"""The log starts of one source log, each followed once it has been known for long enough.

What the source deletes leaves the destination, too. `mirror.log.start.delay.ms` leaves time to
notice a deletion that nobody wanted, and to pause the mirror:

    seen   100, 0 s   140, 30 s   200, 70 s
    due    at 80 s, with a delay of 60 s  ─►  100

Moves are noted in order, and few: when there are too many, the last one is noted anew. Invariant:
no start is due before it has been known for the whole delay; one may be due later than that, by a
second delay at most.
"""

from collections import deque
from typing import Final, NamedTuple

from twinlog.kafka.types import Offset

MAX_MOVES: Final = 32


class _Move(NamedTuple):
    """The source's log was first seen to begin at `start` at this time."""

    start: Offset
    at: float


class LogStarts:
    """The starts of a source log that its destination has not followed yet. Times in seconds."""

    __slots__ = ("_moves",)

    def __init__(self) -> None:
        self._moves: deque[_Move] = deque()

    def __bool__(self) -> bool:
        """Whether there is one that is not followed yet."""
        return bool(self._moves)

    def seen(self, start: int, now: float) -> None:
        """The source's log begins here now."""
        moves = self._moves
        if moves and start <= moves[-1].start:
            return
        if len(moves) == MAX_MOVES:
            moves.pop()
        moves.append(_Move(Offset(start), now))

    def due(self, now: float, delay: float, at_once: int = 0) -> Offset | None:
        """The last start that is to be followed by now; None if there is none.

        Args:
            now: the time.
            delay: for how long it has to be known.
            at_once: starts up to here are not delayed.
        """
        found = None
        for start, at in self._moves:
            if start > at_once and now < at + delay:
                break
            found = start
        return found

    def followed(self, start: int) -> None:
        """The destination's log begins here now."""
        while self._moves and self._moves[0].start <= start:
            self._moves.popleft()
