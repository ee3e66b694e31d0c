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


def closest(name: str, known: Collection[str]) -> str | None:
    """The known name that is most alike, or None."""
    import difflib  # noqa: PLC0415 (only for names that are unknown)

    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.75)), None)
