"""How fast a counter grows, over a window that moves with it."""

from collections import deque


class Rate:
    """A counter's growth per second, over the last `window` seconds.

    A counter that decreases was reset; the window starts again.
    """

    __slots__ = ("_seen", "_window")

    def __init__(self, window: float) -> None:
        self._window = window
        self._seen: deque[tuple[float, int]] = deque()

    def count(self, count: int, now: float) -> None:
        """Note the counter's value at `now`, in seconds; a time that is not later is ignored."""
        seen = self._seen
        if seen and count < seen[-1][1]:
            seen.clear()
        if not seen or now > seen[-1][0]:
            seen.append((now, count))
        while len(seen) > 2 and seen[1][0] <= now - self._window:
            seen.popleft()

    @property
    def per_second(self) -> float:
        """The growth per second; 0 until the counter was noted twice."""
        (first, before), (last, after) = (self._seen[0], self._seen[-1]) if self._seen else _NONE
        return (after - before) / (last - first) if last > first else 0.0


_NONE = ((0.0, 0), (0.0, 0))
