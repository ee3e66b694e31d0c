"""Log start offsets of one source log, which the destination follows after a delay.

Records that the source deletes are deleted on the destination, too. `mirror.log.start.delay.ms`
gives the user time to notice an unwanted deletion, and to pause the mirror:

    seen   100, 0 s   140, 30 s   200, 70 s
    due    at 80 s, with a delay of 60 s  ─►  100

Moves are stored in order, up to `MAX_MOVES`: a further one replaces the last. Invariant: no start
is due before it has been known for the whole delay. It may be due later, by a second delay at most.
"""

from collections import deque
from typing import Final, NamedTuple

from twinlog.kafka.types import Offset

MAX_MOVES: Final = 32


class _Move(NamedTuple):
    """A log start offset of the source, and when it was first seen."""

    start: Offset
    at: float


class LogStarts:
    """Log start offsets that the destination has not followed yet. Times are in seconds."""

    __slots__ = ("_moves",)

    def __init__(self) -> None:
        self._moves: deque[_Move] = deque()

    def __bool__(self) -> bool:
        """Whether there is a start that is not followed yet."""
        return bool(self._moves)

    def seen(self, start: int, now: float) -> None:
        """Note the source's log start offset."""
        moves = self._moves
        if moves and start <= moves[-1].start:
            return
        if len(moves) == MAX_MOVES:
            moves.pop()
        moves.append(_Move(Offset(start), now))

    def due(self, now: float, delay: float, at_once: int = 0) -> Offset | None:
        """The highest start that is due; None if there is none.

        Args:
            now: the time.
            delay: how long a start has to be known.
            at_once: starts up to this offset are not delayed.
        """
        highest = None
        for start, at in self._moves:
            if start > at_once and now < at + delay:
                break
            highest = start
        return highest

    def followed(self, start: int) -> None:
        """Note the destination's log start offset."""
        while self._moves and self._moves[0].start <= start:
            self._moves.popleft()
