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
"""Castagnoli's, the lowest power in the highest bit."""
_WORD: Final = 32

_tables: list[list[int]] = []
"""By power of two: what a difference becomes behind so many zeros, for each value of each byte."""


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
    power: i64 = 0
    while left:
        if left & 1:
            moved = _moved(_table(power), moved)
        left >>= 1
        power += 1
    return crc ^ moved


def _moved(table: list[int], difference: i64) -> i64:
    first: i64 = table[difference & 0xFF]
    second: i64 = table[256 + (difference >> 8 & 0xFF)]
    third: i64 = table[512 + (difference >> 16 & 0xFF)]
    fourth: i64 = table[768 + (difference >> 24)]
    return first ^ second ^ third ^ fourth


def _table(power: i64) -> list[int]:
    while len(_tables) <= power:
        _tables.append(_next_table())
    return _tables[power]


def _next_table() -> list[int]:
    """Twice as many zeros as the last table's; the first one's is one."""
    bits: list[int] = []
    for bit in range(_WORD):
        value: i64 = 1 << bit
        if _tables:
            value = _moved(_tables[-1], _moved(_tables[-1], value))
        else:
            for _ in range(8):
                value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        bits.append(value)
    table: list[int] = []
    for byte in range(4):
        for number in range(256):
            found: i64 = 0
            for bit in range(8):
                if number >> bit & 1:
                    found ^= bits[8 * byte + bit]
            table.append(found)
    return table
