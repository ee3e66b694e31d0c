"""The properties of one transform or predicate, and what is wrong with them.

Each property is read by a method that never fails: it notes what is wrong, and returns something
harmless instead. So one pass over all transforms of a flow finds all mistakes, and nothing that was
built with a mistake is used: `finish` refuses it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from twinlog.kafka.errors import UserError
from twinlog.mirror.setting_values import parse_flag, split_list, trimmed
from twinlog.text import closest


class WrongProperty(NamedTuple):
    """A property that is missing, malformed or unknown."""

    name: str
    """With the transform's prefix."""
    error: UserError


def joined(wrong: Sequence[WrongProperty]) -> UserError:
    """One error with the messages of all; there is at least one."""
    if len(wrong) == 1:
        return wrong[0].error
    return UserError("; ".join(str(each.error) for each in wrong))


@dataclass(slots=True)
class TransformOptions:
    """The properties of one transform or predicate, without their prefix.

    `prefix` is theirs, for messages. What is read is noted, so that `finish` finds the others.
    """

    prefix: str
    values: Mapping[str, str]
    known: set[str] = field(default_factory=set)
    wrong: list[WrongProperty] = field(default_factory=list)

    def text(self, name: str, default: str | None = None) -> str | None:
        """A property, trimmed."""
        self.known.add(name)
        return trimmed(self.values[name]) if name in self.values else default

    def required(self, name: str) -> str:
        """A property that has to be there; empty if it is missing, or empty, which is wrong."""
        value = self.text(name) or ""
        if not value:
            self.missing(name)
        return value

    def names(self, name: str, *, required: bool = False) -> tuple[str, ...]:
        """A list, comma-separated; empty if it is no list, or is missing, which is wrong."""
        text = self.text(name) or ""
        try:
            items = split_list(text)
        except ValueError as error:
            self.refuse(name, str(error))
            return ()
        if required and not items:
            self.missing(name, "expected names, comma-separated")
        return items

    def flag(self, name: str, *, default: bool) -> bool:
        """A boolean; the default if it is none, which is wrong."""
        text = self.text(name)
        try:
            return default if text is None else parse_flag(text)
        except ValueError as error:
            self.refuse(name, str(error))
            return default

    def refuse(self, name: str, expectation: str) -> None:
        """Note that a property is malformed."""
        text = self.values.get(name, "")
        self._note(name, f"{self.prefix}{name} is {text!r}: expected {expectation}")

    def missing(self, name: str, why: str = "", hint: str = "") -> None:
        """Note that a property is missing."""
        self._note(name, f"{self.prefix}{name} is missing" + (why and f": {why}"), hint)

    def finish(self) -> None:
        """Refuse what is wrong, and properties that nothing has read.

        Kafka ignores the latter; a mistyped `replacement` would be one.

        Raises:
            UserError: there is one.
        """
        for name in sorted(self.values.keys() - self.known):
            guess = closest(name, self.known)
            hint = f"did you mean {self.prefix}{guess}?" if guess else ""
            self._note(name, f"unknown property {self.prefix}{name}", hint)
        if self.wrong:
            raise joined(self.wrong)

    def unknown_class(self, class_name: str, known: Sequence[str]) -> UserError:
        """The error for a class that twinlog does not have: its properties mean nothing."""
        self._note(
            "type",
            f"{self.prefix}type is {class_name.strip()!r}: expected one of {', '.join(known)}",
            "twinlog runs no Java and cannot load other classes",
        )
        return self.wrong[-1].error

    def _note(self, name: str, message: str, hint: str = "") -> None:
        full = f"{self.prefix}{name}"
        self.wrong.append(WrongProperty(full, UserError(message, hint=hint)))
