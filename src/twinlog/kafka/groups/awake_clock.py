"""A monotonic clock that also counts the time for which this machine was suspended or paused.

A lease ends when a duration has passed on every machine, not just on its holder's. CLOCK_MONOTONIC
stops while the machine is suspended, and may stop while its virtual machine is paused, migrated or
restored: a lane would resume with most of its lease left. Two other clocks show the missed time:

    clock            suspended    virtual machine paused                     may be set
    ---------------  -----------  -----------------------------------------  ----------
    CLOCK_MONOTONIC  stops        stops, mostly                              no
    CLOCK_BOOTTIME   continues    stops, mostly                              no
    wall clock       continues    is set right after it, by the hypervisor   yes
                                  or by NTP

If one of the two has gained on CLOCK_MONOTONIC since the last reading, its gain is added for good.
So a wall clock that is set forward ends a lease early, until the next heartbeat. One that is set
back changes nothing. Until the wall clock is set after a pause of the virtual machine, no process
on it can detect the pause: then the append's comparison and the markers' epochs refuse what must
not land (docs/architecture/append.md).
"""

import time
from collections.abc import Callable, Sequence
from typing import Final

TOLERANCE_S: Final = 0.05
"""Seconds that the clocks may differ between two readings, which are not simultaneous."""

Clock = Callable[[], float]


_BOOT: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Only Linux has CLOCK_BOOTTIME."""


def _boot_time() -> float:
    return time.clock_gettime(_BOOT)


def _wall_time() -> float:
    return time.time()


class AwakeClock:
    """A monotonic clock that counts missed time (see the module). Call it for the seconds.

    Args:
        monotonic: the clock that it follows while no time is missed.
        others: the clocks that show missed time.
    """

    def __init__(
        self,
        monotonic: Clock = time.monotonic,
        other_clocks: Sequence[Clock] = (_boot_time, _wall_time),
    ) -> None:
        self._monotonic = monotonic
        self._other_clocks = other_clocks
        self._missed_s = 0.0
        self._leads = self._read(monotonic())

    def __call__(self) -> float:
        """Seconds since some time in the past."""
        now = self._monotonic()
        leads = self._read(now)
        gains = (lead - last_lead for lead, last_lead in zip(leads, self._leads, strict=True))
        gain = max(gains, default=0.0)
        if gain > TOLERANCE_S:
            self._missed_s += gain
        self._leads = leads
        return now + self._missed_s

    def _read(self, now: float) -> list[float]:
        return [clock() - now for clock in self._other_clocks]
