"""CRC-32C of a batch whose header changes, without reading its records again.

A checksum is linear. If two messages of one length differ in their first bytes only, their
checksums differ by those bytes' own difference, moved over as many zeros as there are bytes behind.
So the new checksum follows from the old one, and what the source's producer computed over the
records still holds for what reaches the destination's broker: a bit that turns over on the way, in
our memory too, is refused there as CORRUPT_MESSAGE. A checksum computed anew would confirm it.

Compiled where there is a C compiler (docs/decisions/0007-compiled-modules.md).
"""

from typing import Final

from crc32c import crc32c
from mypy_extensions import i64

_POLYNOMIAL: Final = 0x82F63B78
"""Castagnoli's, the highest power in the lowest bit."""
_ONE: Final = 0x80000000
_LENGTHS: Final = 63
"""Bits that a length may have."""


def patched(crc: int, before: bytes, after: bytes, behind: int) -> int:
    """The checksum of a message whose first bytes have changed.

    Args:
        crc: what it was.
        before: the first bytes as they were.
        after: as they are now, as many.
        behind: how many bytes follow them, the same ones in both.
    """
    moved: i64 = crc32c(before) ^ crc32c(after)
    left: i64 = behind
    bit: i64 = 0
    while left:
        if left & 1:
            moved = _product(moved, _ZEROS[bit])
        left >>= 1
        bit += 1
    return crc ^ moved


def _product(first: i64, second: i64) -> i64:
    """Of two polynomials over one bit, modulo Castagnoli's."""
    product: i64 = 0
    while first:
        if first & _ONE:
            product ^= second
        first = first << 1 & 0xFFFFFFFF
        second = second >> 1 ^ (_POLYNOMIAL if second & 1 else 0)
    return product


def _powers() -> list[int]:
    powers: list[int] = [_ONE >> 8]
    while len(powers) < _LENGTHS:
        powers.append(_product(powers[-1], powers[-1]))
    return powers


_ZEROS: Final = _powers()
"""By power of two: what a difference is multiplied by for so many bytes of zeros behind it."""
