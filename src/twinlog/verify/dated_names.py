"""The names of topics that `TimestampRouter` makes of a record's time: for the check.

Written from the documentation of Java's `SimpleDateFormat`, in UTC, and of the transform's
`topic.format`; the engine's (mirror/date_patterns.py) is not used, and `pyproject.toml` forbids it.

    yyyyMMdd       20240131          letters: at least so many digits; `yy` has the last two
    yyyy.M.d       2024.1.31
    'day-'yyyy     day-2024          text in single quotes stands for itself; '' is a quote

A record without a timestamp has the time -1, and so the last millisecond of 1969, as in Kafka
Connect: MirrorMaker 2 hands on the number.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

_DAY_MS: Final = 86_400_000
_LETTERS: Final = "yMdHmsS"
_GREGORIAN: Final = 1583
"""The first whole year in which Java counts as the calendar below does."""
_LAST_YEAR: Final = 9999
_TOKENS: Final = ("${topic}", "${timestamp}")


class NoDate(Exception):
    """A time is not within the years that names are made of."""


class _Field(NamedTuple):
    letter: str
    width: int


def date_text(pattern: str) -> Callable[[int], str]:
    """The function that writes milliseconds since 1970 by a pattern; it raises NoDate.

    Raises:
        ValueError: the pattern has a letter that is not supported, or an open quote.
    """
    parts = _compiled(pattern)

    def write(time_ms: int) -> str:
        values = _calendar(time_ms)
        return "".join(
            part if isinstance(part, str) else _digits(part, values[part.letter]) for part in parts
        )

    return write


def _digits(field: _Field, value: int) -> str:
    if field == ("y", 2):
        value %= 100
    return str(value).rjust(field.width, "0")


def _compiled(pattern: str) -> Sequence[str | _Field]:
    """Walk a pattern as Java does: a quote opens or closes a text, and two of them are one."""
    parts: list[str | _Field] = []
    quoted, at = False, 0
    while at < len(pattern):
        character = pattern[at]
        end = at + 1
        if pattern.startswith("''", at):
            parts.append("'")
            end += 1
        elif character == "'":
            quoted = not quoted
        elif quoted or not (character.isascii() and character.isalpha()):
            parts.append(character)
        else:
            while pattern.startswith(character, end):
                end += 1
            field = _Field(character, end - at)
            if character not in _LETTERS or (character == "M" and field.width > 2):
                raise ValueError(f"{pattern[at:end]!r} is no part of a date that verify can write")
            parts.append(field)
        at = end
    if quoted:
        raise ValueError("a quote is not closed")
    return parts


def _calendar(time_ms: int) -> dict[str, int]:
    """Year to millisecond, by the letters of patterns."""
    days, rest = divmod(time_ms, _DAY_MS)
    # Years are counted from March, so that a leap day is the last one; 400 years have 146097 days.
    era, day_of_era = divmod(days + 719_468, 146_097)
    year_of_era = (
        day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096
    ) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month_from_march = (5 * day_of_year + 2) // 153
    month = (month_from_march + 2) % 12 + 1
    year = era * 400 + year_of_era + (month <= 2)
    if not _GREGORIAN <= year <= _LAST_YEAR:
        raise NoDate(f"its timestamp {time_ms} has no date")
    seconds, millisecond = divmod(rest, 1000)
    return {
        "y": year,
        "M": month,
        "d": day_of_year - (153 * month_from_march + 2) // 5 + 1,
        "H": seconds // 3600,
        "m": seconds // 60 % 60,
        "s": seconds % 60,
        "S": millisecond,
    }


def dated_name(topic_format: str, pattern: str) -> Callable[[str, int], str]:
    """The function that names the topic of a record, of its topic before and its time.

    It raises NoDate.

    Args:
        topic_format: a name with `${topic}` and `${timestamp}`, each any number of times.
        pattern: of the latter, see `date_text`.

    Raises:
        ValueError: see `date_text`.
    """
    write = date_text(pattern)
    pieces = _pieces(topic_format)

    def name(topic: str, time_ms: int) -> str:
        values = dict(zip(_TOKENS, (topic, write(time_ms)), strict=True))
        return "".join(values.get(piece, piece) for piece in pieces)

    return name


def _pieces(topic_format: str) -> Sequence[str]:
    """The tokens of a format, and the texts between them."""
    pieces, text, at = [], "", 0
    while at < len(topic_format):
        token = next((one for one in _TOKENS if topic_format.startswith(one, at)), None)
        if token is None:
            text += topic_format[at]
            at += 1
            continue
        pieces += [text, token]
        text = ""
        at += len(token)
    return [*pieces, text]
