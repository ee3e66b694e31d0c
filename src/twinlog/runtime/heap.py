"""Settings of a lane's memory: freed memory is kept, and cycles are looked for less often."""

import ctypes
import gc
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_YOUNG_OBJECTS: Final = 10_000
_MOST_ON_HEAP: Final = 32 * 1024 * 1024  # glibc refuses a larger threshold


def keep_freed(size: int) -> None:
    """Let the C library keep up to `size` freed bytes for later allocations.

    By default glibc returns each freed Fetch answer to the kernel, which clears 8 MB of pages again
    for the next answer: a fifth of the CPU that uncompressed data costs. With another C library,
    nothing changes.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MOST_ON_HEAP)
        mallopt(_M_TRIM_THRESHOLD, size)


def collect_seldom() -> None:
    """Let Python look for unreachable cycles after 10,000 new objects instead of 700.

    Each look visits what was created since the last one, and a lane that plans a Fetch answer
    creates tens of thousands of objects that stay until they are sent: 4 to 9 % of the CPU that
    small transactions cost. Nothing on the hot path is a cycle.
    """
    gc.set_threshold(_YOUNG_OBJECTS, *gc.get_threshold()[1:])
