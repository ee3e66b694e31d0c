"""Results of operations as data for JSON: one function for all of them.

    result                                  data
    --------------------------------------  --------------------------------------------------
    an object with a method `as_json`       what this method returns, which may hold results
    a dataclass, a named tuple              an object of its fields
    a mapping                               an object; its keys are texts
    a tuple, a list                         an array
    a set                                   an array in order
    an enum                                 its name
    a UUID                                  the text that Kafka's tools show for a topic id
    None, a truth value, a number, a text   the same

A result needs `as_json` only if its JSON has other names than its fields, or less or more. Fields
with `repr=False` are left out: they may hold secrets. Anything else is an error of ours, since a
text such as `<object at 0x7f...>` would be a wrong answer without a word.
"""

import enum
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from typing import Protocol, TypeAlias, runtime_checkable
from uuid import UUID

from twinlog.store.config_records import topic_id_text

JsonData: TypeAlias = "bool | int | float | str | list[JsonData] | dict[str, JsonData] | None"
"""What JSON can hold."""


@runtime_checkable
class HasJson(Protocol):
    """A result that chooses the form of its JSON."""

    def as_json(self) -> object:
        """Data, or results that are serialised in turn."""
        ...


def json_data(value: object) -> JsonData:
    """A result as data that `json.dumps` takes.

    Raises:
        TypeError: the value, or a part of it, has no form in JSON (see the module).
    """
    if isinstance(value, HasJson) and not isinstance(value, type):
        return json_data(value.as_json())
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, UUID):
        return topic_id_text(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    members = _members(value)
    if members is not None:
        return {name: json_data(part) for name, part in members}
    return [json_data(part) for part in _items(value)]


def _members(value: object) -> Iterable[tuple[str, object]] | None:
    """The members of an object, in order; None: the value is none.

    Raises:
        TypeError: a key of a mapping is not a text.
    """
    if isinstance(value, Mapping):
        if not all(type(key) is str for key in value):
            raise TypeError("the keys of an object have to be texts")
        return value.items()
    if is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name)) for field in fields(value) if field.repr]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return zip(value._fields, value, strict=True)
    return None


def _items(value: object) -> Iterable[object]:
    """The items of an array.

    Raises:
        TypeError: the value is none.
    """
    if isinstance(value, AbstractSet):
        return sorted(value)
    if isinstance(value, tuple | list):
        return value
    raise TypeError(f"{type(value).__name__} has no form in JSON")
