"""Text for people: abbreviated lists, and foreign text that is safe to print."""

from collections.abc import Collection
from itertools import islice
from typing import Final

SHOWN: Final = 5
"""Items of a list that a message names."""


def printable(text: str) -> str:
    """Escape the characters that a terminal obeys instead of showing them.

    A broker's error message, or the name of a topic or group, may contain escape sequences that
    overwrite the terminal, or line ends that look like separate log lines.
    """
    if text.isprintable():
        return text
    characters = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return "".join(characters)


def few(items: Collection[object], separator: str = ", ") -> str:
    """The first items, and how many follow: `a, b, c, d, e and 7 more`."""
    suffix = f" and {len(items) - SHOWN} more" if len(items) > SHOWN else ""
    return separator.join(map(str, islice(items, SHOWN))) + suffix
