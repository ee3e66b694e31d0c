"""A separate wall clock for some processes, which a test sets without privileges (libfaketime).

The preloaded library answers calls for the system's clock, shifted by an offset that it reads from
a file each second. The monotonic clocks do not change, as when an operator sets the system's clock.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Final

import libfaketime
import librdkafka_tools
import process_tree
import transition_faults
from chaos_harness import Ordeal
from kills import LANES
from waiting import until

HOUR: Final = 3600
JUMPS: Final = (13 * HOUR, -13 * HOUR, 48 * HOUR, 0)
"""Offsets from the true time in seconds, in turn. 13 hours exceeds half a day, the margin of the
one decision that needs the time of day; 48 hours exceeds what brokers accept of a timestamp."""
_SHOWN_SECONDS: Final = 60.0
_SHARED: Final = Path("/dev/shm")


class Clock:
    """See the module. `environment` holds the variables to start the processes with."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.offset_s = 0
        self.set(0)
        _, preloaded = libfaketime.get_reload_information()
        self.environment = {
            **preloaded,
            "FAKETIME_TIMESTAMP_FILE": str(file),
            # Otherwise each call for the time reads the file.
            "FAKETIME_NO_CACHE": "0",
            "FAKETIME_CACHE_DURATION": "0",
        }

    def set(self, offset_s: int) -> None:
        """Set the clock to the true time plus `offset_s`; it takes effect within two seconds."""
        self.offset_s = offset_s
        new = self._file.with_suffix(".new")
        new.write_text(f"{offset_s:+d}\n")
        new.replace(self._file)


def start_node(mirror: Ordeal) -> Clock:
    """Start a node whose processes have their own clock."""
    clock = Clock(mirror.stage.directory / "clock")
    mirror.stage.start_node("node", "--lanes", f"{LANES}", environment=clock.environment)
    return clock


@contextmanager
def nothing_left() -> Iterator[None]:
    """Remove the files that libfaketime leaves behind for processes of this block."""
    began = time.time()
    try:
        yield
    finally:
        # Shells that have exec'ed another program leave their shared files behind. A process that
        # has a file open keeps it.
        for path in (*_SHARED.glob("sem.faketime_sem_*"), *_SHARED.glob("faketime_shm_*")):
            if path.stat().st_mtime >= began - 1:
                path.unlink(missing_ok=True)


def jump(mirror: Ordeal, clock: Clock, times: int) -> None:
    """Let the node's clock jump `times` times: alone, before a lane dies, during a removal.

    Each time all partitions resume, and all lanes report the time of their clock.
    """
    ways = cycle((_alone, _before_a_lane_dies, _while_a_topic_is_removed))
    for _, offset_s, way in zip(range(times), cycle(JUMPS), ways, strict=False):
        mirror.say(f"the clock jumps to {offset_s / HOUR:+g} h, {way.__name__.strip('_')}")
        way(mirror, clock, offset_s)
        until(lambda: _shown(mirror, clock), _SHOWN_SECONDS, "the lanes' time")


def _alone(mirror: Ordeal, clock: Clock, offset_s: int) -> None:
    mirror.kill(lambda: clock.set(offset_s))


def _before_a_lane_dies(mirror: Ordeal, clock: Clock, offset_s: int) -> None:
    lanes = process_tree.await_lanes(mirror.stage.nodes["node"].pid, LANES)

    def strike() -> None:
        clock.set(offset_s)
        process_tree.end(mirror.random.choice(lanes))

    mirror.kill(strike)


def _while_a_topic_is_removed(mirror: Ordeal, clock: Clock, offset_s: int) -> None:
    transition_faults.remove(mirror, lambda: clock.set(offset_s))


def _shown(mirror: Ordeal, clock: Clock) -> bool:
    """Return whether all partitions' owners have written a status with this clock's time."""
    rows = [
        row for row in librdkafka_tools.all_described(mirror.stage) if row["state"] == "MIRRORING"
    ]
    return all(_agrees(row, time.time() + clock.offset_s) for row in rows)


def _agrees(row: Mapping[str, int | None], now: float) -> bool:
    said = row["status_time_ms"]
    return said is not None and abs(said / 1000 - now) < HOUR
