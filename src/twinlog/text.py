"""Text for people: lists of which the first few are read, and words of others without harm."""

from collections.abc import Collection
from itertools import islice
from typing import Final

SHOWN: Final = 5
"""Items that a message names."""


def printable(text: str) -> str:
    """The text with characters escaped that a terminal obeys instead of showing them.

    A broker's error message, a topic's or a group's name may hold escape sequences that rewrite
    what stands on the terminal, or line ends that look like lines of their own.
    """
    if text.isprintable():
        return text
    shown = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return "".join(shown)


def few(items: Collection[object], separator: str = ", ") -> str:
    """The first items, and how many more there are: `a, b, c, d, e and 7 more`."""
    more = f" and {len(items) - SHOWN} more" if len(items) > SHOWN else ""
    return separator.join(map(str, islice(items, SHOWN))) + more
