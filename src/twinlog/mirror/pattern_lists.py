r"""Lists of regular expressions as MirrorMaker 2 reads them: one expression, matched in full.

MirrorMaker 2 splits a value at its commas, joins the items by `|`, compiles the result as one Java
expression, and matches whole names (`MirrorUtils.compilePatternList`). So the commas inside of
`(foo,bar)-.*` mean *or*, and `[0-9]{1,3}` cannot be written. An empty list matches nothing.

Python's expressions are Java's for all that names of topics and groups need. Where they differ, the
value is refused: a silent difference would mirror other topics.

| construct | Java | Python | here |
| --- | --- | --- | --- |
| `[a-z&&[^b]]`, `[a[bc]]` | intersection, union | literal characters | refused |
| `{` that is no quantifier | error | literal | refused |
| `{,3}` | error | 0 to 3 | refused |
| quotes, `\p{...}`, `(?<name>...)` | supported | error | refused |
| `\d`, `\w`, `\s`, `(?i)` | ASCII | Unicode | ASCII |
"""

import re
from collections.abc import Sequence
from re import Pattern
from typing import Final

_QUANTIFIER: Final = re.compile(r"\{[0-9]+(?:,[0-9]*)?\}")
_SET_OPERATORS: Final = ("[", "&&", "--", "||", "~~")
"""In a character class: operations in Java (the first two), or reserved for them in Python."""


def compile_list(items: Sequence[str]) -> Pattern[str] | None:
    """The expression that matches the names that one of the items matches.

    Args:
        items: regular expressions; names are expressions, too.

    Returns:
        A pattern for `fullmatch`, or None: it matches nothing, as there is no item.

    Raises:
        ValueError: the joined expression is invalid, or means something else in Java.
    """
    if not items:
        return None
    joined = "|".join(items)
    _check_java_meaning(joined)
    try:
        return re.compile(joined, re.ASCII)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(str(error)) from error


def matches(pattern: Pattern[str] | None, name: str) -> bool:
    """Whether a list matches the whole name."""
    return pattern is not None and pattern.fullmatch(name) is not None


def _check_java_meaning(expression: str) -> None:
    at = 0
    while at < len(expression):
        character = expression[at]
        if character == "\\":
            at += 2
        elif character == "[":
            at = _end_of_class(expression, at)
        elif character == "{" and not _QUANTIFIER.match(expression, at):
            raise ValueError(
                f"{{ at position {at} of {expression!r} begins no quantifier {{n}} or {{n,m}}; "
                "a comma separates expressions, also inside brackets"
            )
        else:
            at += 1


def _end_of_class(expression: str, start: int) -> int:
    """The position after the character class that begins at `start`.

    Raises:
        ValueError: it has a set operation.
    """
    at = start + 1
    if expression.startswith("^", at):
        at += 1
    first = at
    while at < len(expression):
        if expression[at] == "]" and at > first:
            break
        if expression.startswith(_SET_OPERATORS, at):
            raise ValueError(
                f"position {at} of {expression!r}: set operations and nested classes of Java's "
                "regular expressions are not supported"
            )
        at += 2 if expression[at] == "\\" else 1
    return at + 1
