"""How fast a counter grows, over a window that moves with it."""

from collections import deque


class Rate:
    """A counter's growth per second, over the last `window` seconds.

    A counter that decreases was reset; the window starts again.
    """

    __slots__ = ("_samples", "_window")

    def __init__(self, window: float) -> None:
        self._window = window
        self._samples: deque[tuple[float, int]] = deque()

    def count(self, count: int, now: float) -> None:
        """Note the counter's value at `now`, in seconds; a time that is not later is ignored."""
        samples = self._samples
        if samples and count < samples[-1][1]:
            samples.clear()
        if not samples or now > samples[-1][0]:
            samples.append((now, count))
        while len(samples) > 2 and samples[1][0] <= now - self._window:
            samples.popleft()

    @property
    def per_second(self) -> float:
        """The growth per second; 0 until the counter was noted twice."""
        (first_time, first_count), (last_time, last_count) = (
            (self._samples[0], self._samples[-1]) if self._samples else _NONE
        )
        return (
            (last_count - first_count) / (last_time - first_time) if last_time > first_time else 0.0
        )


_NONE = ((0.0, 0), (0.0, 0))
