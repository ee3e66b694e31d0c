"""A monotonic clock that also counts the time for which this machine stood still.

A lease ends when a duration has passed for everybody, not just for its holder. CLOCK_MONOTONIC
stops while the machine is suspended, and may stop while its virtual machine is paused, migrated or
restored: a lane would resume with most of its lease left. Two other clocks show what it missed:

    clock            suspended    virtual machine paused                     may be set
    ---------------  -----------  -----------------------------------------  ----------
    CLOCK_MONOTONIC  stands       stands, mostly                             no
    CLOCK_BOOTTIME   goes on      stands, mostly                             no
    wall clock       goes on      is set right after it, by the hypervisor   yes
                                  or by NTP

Where one of the two has run ahead since the last reading, its lead is added, for good. A wall clock
that is set forward, for whatever reason, therefore ends a lease early, until the next heartbeat;
one that is set back changes nothing. Until something has set the wall clock after a pause of the
virtual machine, nobody on it can know of the pause: then the append's comparison and the markers'
epochs refuse what must not land (docs/architecture/append.md).
"""

import time
from collections.abc import Callable, Sequence
from typing import Final

TOLERANCE_S: Final = 0.05
"""How far the clocks may be apart at two readings, which come one after the other."""

Clock = Callable[[], float]


_BOOT: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Only Linux has it."""


def _boot_time() -> float:
    return time.clock_gettime(_BOOT)


def _wall_time() -> float:
    return time.time()


class AwakeClock:
    """See the module. Call it for the seconds.

    Args:
        monotonic: what it gives while nothing is missed.
        others: the clocks that show what was missed.
    """

    def __init__(
        self,
        monotonic: Clock = time.monotonic,
        others: Sequence[Clock] = (_boot_time, _wall_time),
    ) -> None:
        self._monotonic = monotonic
        self._others = others
        self._missed = 0.0
        self._leads = self._read(monotonic())

    def __call__(self) -> float:
        """Seconds since some time in the past."""
        now = self._monotonic()
        leads = self._read(now)
        gains = (new - old for new, old in zip(leads, self._leads, strict=True))
        gain = max(gains, default=0.0)
        if gain > TOLERANCE_S:
            self._missed += gain
        self._leads = leads
        return now + self._missed

    def _read(self, now: float) -> list[float]:
        return [clock() - now for clock in self._others]
