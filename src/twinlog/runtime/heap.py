"""What a lane's heap does with freed memory."""

import ctypes
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_MOST_ON_HEAP: Final = 32 * 1024 * 1024  # more than this is refused


def keep_freed(size: int) -> None:
    """Let the C library keep up to `size` freed bytes for what is allocated next.

    By default glibc gives each freed Fetch answer back to the kernel, which clears 8 MB of pages
    anew for the next one: a fifth of the CPU that uncompressed data costs. Where the C library is
    another one, nothing changes.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MOST_ON_HEAP)
        mallopt(_M_TRIM_THRESHOLD, size)
