"""Java's date patterns (`SimpleDateFormat`), as far as names of topics need them; always in UTC.

    y year    M month    d day    H hour (0 to 23)    m minute    s second    S millisecond

A number is padded with zeros to as many digits as the pattern has letters; `yy` is the year's last
two digits. Text in single quotes is literal, and so is every character that is no letter. Other
letters, and names of months (`MMM`), are refused: they depend on the locale of Java's process.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

_PARTS: Final = re.compile(r"'(?:[^']|'')*'|([a-zA-Z])\1*|[^a-zA-Z']+")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TEXT_MONTH: Final = 3

_FIELDS: Final[dict[str, Callable[[datetime], int]]] = {
    "y": lambda at: at.year,
    "M": lambda at: at.month,
    "d": lambda at: at.day,
    "H": lambda at: at.hour,
    "m": lambda at: at.minute,
    "s": lambda at: at.second,
    "S": lambda at: at.microsecond // 1000,
}


def date_format(pattern: str) -> Callable[[int], str]:
    """The function that formats milliseconds since 1970 by a pattern.

    The function raises OverflowError for times outside of the years 1 to 9999.

    Raises:
        ValueError: the pattern has letters of another meaning, or an open quote.
    """
    parts: list[Callable[[datetime], str]] = []
    position = 0
    while position < len(pattern):
        match = _PARTS.match(pattern, position)
        if match is None:
            raise ValueError(f"a date pattern; the quote at position {position} is not closed")
        parts.append(_part(match[0], match[1]))
        position = match.end()

    def format_ms(timestamp_ms: int) -> str:
        at = _EPOCH + timedelta(milliseconds=timestamp_ms)
        return "".join(part(at) for part in parts)

    return format_ms


def _part(text: str, letter: str | None) -> Callable[[datetime], str]:
    if letter is None:
        literal = text
        if text.startswith("'"):
            literal = "'" if text == "''" else text[1:-1].replace("''", "'")
        return lambda _: literal
    field, width = _FIELDS.get(letter), len(text)
    if field is None or (letter == "M" and width >= _TEXT_MONTH):
        raise ValueError(
            f"a date pattern of the letters y, M (one or two), d, H, m, s and S; {text!r} is none"
        )
    if text == "yy":
        return lambda at: f"{at.year % 100:02}"
    return lambda at: f"{field(at):0{width}}"
