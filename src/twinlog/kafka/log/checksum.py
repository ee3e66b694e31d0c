"""CRC-32C of a batch whose header changes, without reading its records again.

A CRC is linear. If two messages of one length differ in their first bytes only, their checksums
differ by those bytes' own difference, shifted by as many zero bytes as follow. So the new checksum
follows from the old one, and the source producer's checksum over the records still protects them on
the way to the destination's broker. A bit that flips on the way, also in this process's memory, is
refused there as CORRUPT_MESSAGE. A recomputed checksum would confirm it.

Compiled if there is a C compiler (docs/decisions/0007-compiled-modules.md).
"""

from typing import Final

from crc32c import crc32c
from mypy_extensions import i64

_POLYNOMIAL: Final = 0x82F63B78
"""Castagnoli's polynomial, the highest power in the lowest bit."""
_ONE: Final = 0x80000000
_LENGTHS: Final = 63
"""Bits of a length."""


def patched(crc: int, old_prefix: bytes, new_prefix: bytes, suffix_size: int) -> int:
    """The checksum of a message whose first bytes have changed.

    Args:
        crc: the old checksum.
        old_prefix: the old first bytes.
        new_prefix: the new first bytes, of the same length.
        suffix_size: the number of bytes after them, which are unchanged.
    """
    difference: i64 = crc32c(old_prefix) ^ crc32c(new_prefix)
    size: i64 = suffix_size
    bit: i64 = 0
    while size:
        if size & 1:
            difference = _product(difference, _ZEROS[bit])
        size >>= 1
        bit += 1
    return crc ^ difference


def _product(first: i64, second: i64) -> i64:
    """The product of two polynomials over GF(2), modulo Castagnoli's."""
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
"""By power of two: the factor that shifts a difference by that many zero bytes."""
