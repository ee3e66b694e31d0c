"""The time by a cluster's brokers, which forget a producer by their clocks, not by this machine's.

A batch that is appended to a topic of LogAppendTime gets its leader's time, and the answer reports
it. From then on a monotonic clock continues that time; each answer corrects it.
"""

import time
from collections.abc import Callable
from typing import Final

NOT_STAMPED: Final = -1
"""The answer for a topic of CreateTime. Other values below zero are no time either."""
_NEVER: Final = 1 << 62
"""Later than any record's timestamp."""


class BrokersTime:
    """The brokers' time in milliseconds since 1970.

    Before the first answer it is later than all timestamps, so that nothing counts as young. If the
    topics do not report it, it is the wall clock's time.
    """

    def __init__(
        self,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._monotonic = monotonic
        self._wall = wall
        self._stamped_ms = _NEVER
        self._at = 0.0

    def heard(self, stamped_ms: int) -> None:
        """Take the time of an answer."""
        self._stamped_ms, self._at = stamped_ms, self._monotonic()

    def now_ms(self) -> int:
        """The time; it lags by the answer's latency."""
        if self._stamped_ms <= NOT_STAMPED:
            return int(self._wall() * 1000)
        return self._stamped_ms + int((self._monotonic() - self._at) * 1000)
