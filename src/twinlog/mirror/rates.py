"""How fast a counter grows, over a window that moves with it."""

from collections import deque


class Rate:
    """A counter's growth in a second, over the last `window` seconds.

    A counter that has become less has begun anew, and so does the window.
    """

    __slots__ = ("_seen", "_window")

    def __init__(self, window: float) -> None:
        self._window = window
        self._seen: deque[tuple[float, int]] = deque()

    def count(self, count: int, now: float) -> None:
        """The counter stands here now; times in seconds, and only those that are later count."""
        seen = self._seen
        if seen and count < seen[-1][1]:
            seen.clear()
        if not seen or now > seen[-1][0]:
            seen.append((now, count))
        while len(seen) > 2 and seen[1][0] <= now - self._window:
            seen.popleft()

    @property
    def per_second(self) -> float:
        """0 as long as it was seen less than twice."""
        (first, before), (last, after) = (self._seen[0], self._seen[-1]) if self._seen else _NONE
        return (after - before) / (last - first) if last > first else 0.0


_NONE = ((0.0, 0), (0.0, 0))
