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
from collections.abc import Callable
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

    Each request that writes calls it, so that it does no more than read the three clocks.

    Args:
        monotonic: the clock that it follows while no time is missed.
        boot: shows the time of a suspension.
        wall: shows the time of a pause, once it is set.
    """

    def __init__(
        self,
        monotonic: Clock = time.monotonic,
        boot: Clock = _boot_time,
        wall: Clock = _wall_time,
    ) -> None:
        self._monotonic = monotonic
        self._boot = boot
        self._wall = wall
        self._missed_s = 0.0
        now = monotonic()
        self._boot_lead, self._wall_lead = boot() - now, wall() - now

    def __call__(self) -> float:
        """Seconds since some time in the past."""
        now = self._monotonic()
        boot_lead, wall_lead = self._boot() - now, self._wall() - now
        gain = max(boot_lead - self._boot_lead, wall_lead - self._wall_lead)
        if gain > TOLERANCE_S:
            self._missed_s += gain
        self._boot_lead, self._wall_lead = boot_lead, wall_lead
        return now + self._missed_s
