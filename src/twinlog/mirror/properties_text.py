r"""The text of a Java properties file, with the line of each property.

The format is that of `java.util.Properties.load`: `key=value`, `key: value` or `key value`;
comments begin with `#` or `!`; a backslash continues a line; `\uXXXX` is a character. White space
at the end of a value belongs to the value. A key that occurs twice has its last value.

Java reads such files as ISO-8859-1 (`Properties.load(InputStream)`), whatever their author meant.
"""

import re
from dataclasses import dataclass
from typing import Final

from twinlog.kafka.errors import UserError

ENCODING: Final = "iso-8859-1"
"""In which Java reads the bytes of a properties file."""
_NATURAL_LINE: Final = re.compile(r"([ \t\f]*([^\r\n]*)(\r\n?|\n|\Z))")
"""A line, its content behind white space, and its end."""


@dataclass(frozen=True, slots=True)
class Property:
    """One property as written."""

    line: int
    """The number of its first line, from 1. 0: it is in no file."""
    key: str
    value: str
    is_ascii: bool = True
    """Whether it is written in ASCII, as an escape is whatever its character is."""


def parse_lines(text: str) -> tuple[Property, ...]:
    """The properties of a file in their order; a key may occur several times.

    Raises:
        UserError: an escape sequence is malformed.
    """
    import javaproperties  # noqa: PLC0415 (25 ms, for which a command without a file need not wait)

    properties = []
    line = 1
    try:
        for element in javaproperties.parse(_without_bare_lines(text)):
            if isinstance(element, javaproperties.KeyValue):
                is_ascii = element.source.isascii()
                properties.append(Property(line, element.key, element.value, is_ascii))
            line += _line_ends(element.source)
    except ValueError as error:
        raise UserError(f"line {line} is no valid line of a properties file: {error}") from error
    return tuple(properties)


def last_values(properties: tuple[Property, ...]) -> dict[str, Property]:
    """The properties by key, each as it was set last."""
    return {item.key: item for item in properties}


def _without_bare_lines(text: str) -> str:
    """A text whose properties begin with no line that has a backslash alone: it is blank instead.

    Java goes on as if there was no such line; javaproperties would take a comment behind it for a
    part of the property.
    """
    lines: list[str] = []
    continues = False  # the line before
    for line, content, end in _NATURAL_LINE.findall(text):
        if not continues and end and content == "\\":
            lines.append(end)
            continue
        lines.append(line)
        if continues or not content.startswith(("#", "!")):
            continues = (len(content) - len(content.rstrip("\\"))) % 2 == 1
    return "".join(lines)


def _line_ends(source: str) -> int:
    return source.replace("\r\n", "\n").replace("\r", "\n").count("\n")
