"""The values of settings, as Kafka's `ConfigDef.parseType` of 4.3 reads them.

Each parser is a function from a value as written to its meaning; it raises ValueError, whose text
is what is expected. Surrounding white space does not count, except in a separator: the replication
policy is given the value as it is in the file.
"""

import re
from collections.abc import Callable
from re import Pattern
from typing import Any, Final, NamedTuple

from twinlog.mirror.pattern_lists import compile_list

MAX_LONG: Final = (1 << 63) - 1
MAX_INT: Final = (1 << 31) - 1
MAX_SHORT: Final = (1 << 15) - 1
MAX_SECONDS: Final = MAX_LONG // 1000
"""Java's limit: more seconds are not representable as milliseconds."""

_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,19}")
_TOPIC_CHARACTERS: Final = re.compile(r"[a-zA-Z0-9._-]*")
_TRIMMED: Final = "".join(map(chr, range(0x21)))
_COMMA: Final = re.compile(r"\s*,\s*")
_DURATION: Final = re.compile(
    r"P(?=[0-9T])(?:[0-9]+D)?(?:T(?=[0-9])(?:[0-9]+H)?(?:[0-9]+M)?(?:[0-9]+(?:\.[0-9]+)?S)?)?"
)

Parser = Callable[[str], Any]
"""From a value as written to its meaning; raises ValueError with what is expected."""
Names = Pattern[str] | None
"""Names that match in full; None: none does."""


class FlowSetting(NamedTuple):
    """A setting of a flow."""

    name: str
    default: str | None
    """As it is written in a file; None: it depends on the flow."""
    parse: Parser
    unit: str
    """The unit, or the allowed values."""
    meaning: str
    differs: str = ""
    """What twinlog does otherwise than MirrorMaker 2; empty: nothing."""
    everywhere: bool = True
    """Whether it may be written without `A->B.`, for all flows."""
    origin: str = "4.3"
    """`4.3`; `removed`: MirrorMaker 2 had it until 3.9; `draft`: no version has it; `client`: it
    is a property of the source's consumer; `twinlog`: it is twinlog's own."""


INTERVAL: Final = f"whole seconds from 1 to {MAX_SECONDS}, or a negative number: never"
_WITHOUT_PAUSE: Final = f"whole seconds from 0 to {MAX_SECONDS}, or a negative number: never"


def split_set(text: str) -> tuple[str, ...]:
    """The items of a list, as Kafka's `ConfigDef` splits them; duplicates are removed (4.3).

    Raises:
        ValueError: an item is empty, which Kafka 4.3 refuses.
    """
    items = _COMMA.split(text.strip()) if text.strip() else ()
    if "" in items:
        raise ValueError("a list without empty items")
    return tuple(dict.fromkeys(items))


def split_list(text: str) -> tuple[str, ...]:
    """The items of a list of which none may occur twice, as in `transforms`.

    Raises:
        ValueError: an item is empty or occurs twice.
    """
    items = split_set(text)
    if items and len(items) <= text.count(","):
        raise ValueError("a list without duplicates")
    return items


def trimmed(text: str) -> str:
    """A text without what Java's `String.trim` removes: all up to the space, at both ends."""
    return text.strip(_TRIMMED)


def parse_text(text: str) -> str:
    """Any text."""
    return text.strip()


def parse_connector(text: str) -> str:
    """The name of a connector; not empty.

    Raises:
        ValueError: it is empty.
    """
    if not text.strip():
        raise ValueError("the name of a connector")
    return text.strip()


def parse_alias(text: str) -> str:
    """What a cluster is called in the names of topics; not empty.

    Raises:
        ValueError: it is empty.
    """
    if not text.strip():
        raise ValueError("a name; IdentityReplicationPolicy leaves names of topics unchanged")
    return text.strip()


def parse_flag(text: str) -> bool:
    """`true` or `false`, in any case.

    Raises:
        ValueError: it is neither.
    """
    value = text.strip().lower()
    if value not in {"true", "false"}:
        raise ValueError("true or false")
    return value == "true"


def number(lowest: int, highest: int, expectation: str) -> Parser:
    """A parser for whole numbers of a range, with an optional sign, both ends included."""

    def parse(text: str) -> int:
        match = _NUMBER.fullmatch(text.strip())
        if match is None or not lowest <= int(match[0]) <= highest:
            raise ValueError(expectation)
        return int(match[0])

    return parse


def parse_interval(text: str) -> int:
    """An interval in seconds; a negative one means *never*, as in MirrorMaker 2.

    Raises:
        ValueError: it is no whole number, or 0: MirrorMaker 2's scheduler fails at it.
    """
    seconds: int = number(-MAX_LONG - 1, MAX_SECONDS, INTERVAL)(text)
    if seconds == 0:
        raise ValueError(INTERVAL)
    return seconds


def parse_task_interval(text: str) -> int:
    """An interval in seconds of which 0 is valid, and means one: `parse_interval` otherwise.

    MirrorMaker 2's tasks wait by themselves for it, not its scheduler: with 0, they do not pause.
    A second is the shortest interval that twinlog has.

    Raises:
        ValueError: it is no whole number.
    """
    seconds: int = number(-MAX_LONG - 1, MAX_SECONDS, _WITHOUT_PAUSE)(text)
    return seconds or 1


def replicas(highest: int) -> Parser:
    """A parser for a replication factor; -1 is the cluster's default (KIP-464)."""
    expectation = f"a whole number from 1 to {highest}, or -1: the cluster's default"
    factor = number(-1, highest, expectation)

    def parse(text: str) -> int:
        value: int = factor(text)
        if value == 0:
            raise ValueError(expectation)
        return value

    return parse


def parse_names(text: str) -> Names:
    """A list of regular expressions (pattern_lists.py).

    Raises:
        ValueError: it is no list, or an expression is invalid.
    """
    items = split_set(text)
    try:
        return compile_list(items)
    except ValueError as error:
        raise ValueError(f"regular expressions, comma-separated ({error})") from error


def choice(*allowed: str) -> Parser:
    """A parser for one of some texts; case counts."""

    def parse(text: str) -> str:
        if text.strip() not in allowed:
            raise ValueError(f"one of {', '.join(allowed)}")
        return text.strip()

    return parse


def parse_formats(text: str) -> tuple[str, ...]:
    """The formats of metric names: `legacy`, `new` or both.

    Raises:
        ValueError: it is another list, or an empty one.
    """
    items = split_set(text)
    if not items or not set(items) <= {"legacy", "new"}:
        raise ValueError("legacy, new, or both, comma-separated")
    return items


def parse_separator(text: str) -> str:
    """The separator of remote topic names, not stripped; it may be empty.

    Raises:
        ValueError: no topic's name can have it; a space at its end, for example.
    """
    if not _TOPIC_CHARACTERS.fullmatch(text):
        raise ValueError("characters of topic names: ASCII letters, digits, '.', '_' and '-'")
    return text


def only(class_name: str) -> Parser:
    """A parser that accepts only one Java class, whose behaviour twinlog has."""

    def parse(text: str) -> str:
        if text.strip() != class_name:
            raise ValueError(f"{class_name}: twinlog runs no Java and cannot load other classes")
        return text.strip()

    return parse


def parse_offset_reset(text: str) -> str:
    """Where a consumer begins: `earliest`, `latest`, `none` or `by_duration:PT1H` (KIP-1106).

    Raises:
        ValueError: it is none of them.
    """
    value = text.strip()
    kind, _, duration = value.partition(":")
    if value in {"earliest", "latest", "none"}:
        return value
    if kind == "by_duration" and _DURATION.fullmatch(duration):
        return value
    raise ValueError("earliest, latest, none or by_duration:PnDTnHnMnS")
