"""Lists in messages: a person reads the first few, and how many more there are."""

from collections.abc import Collection
from itertools import islice
from typing import Final

SHOWN: Final = 5
"""Items that a message names."""


def few(items: Collection[object], separator: str = ", ") -> str:
    """The first items, and how many more there are: `a, b, c, d, e and 7 more`."""
    more = f" and {len(items) - SHOWN} more" if len(items) > SHOWN else ""
    return separator.join(map(str, islice(items, SHOWN))) + more
