"""What time it is by a cluster's brokers: they forget a producer by their clocks, not by ours.

Appended to a topic of LogAppendTime, a batch gets its leader's time, and the answer says which.
From then on that time goes on by a clock that nobody sets; each answer sets it right again.
"""

import time
from collections.abc import Callable
from typing import Final

NOT_STAMPED: Final = -1
"""What a broker answers of a topic of CreateTime. What is below zero is no time either."""
_NEVER: Final = 1 << 62
"""Later than any record's timestamp."""


class BrokersTime:
    """The brokers' time in milliseconds since 1970.

    Until they have told it, it is later than all timestamps, so that nothing counts as young. Where
    their topics do not tell it, it is the wall clock's.
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
        """Take what an answer says."""
        self._stamped_ms, self._at = stamped_ms, self._monotonic()

    def now_ms(self) -> int:
        """The time, a little late: by how long the answer took."""
        if self._stamped_ms <= NOT_STAMPED:
            return int(self._wall() * 1000)
        return self._stamped_ms + int((self._monotonic() - self._at) * 1000)
