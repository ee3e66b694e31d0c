"""Settings of the C heap of a lane: freed memory is kept."""

import ctypes
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
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
