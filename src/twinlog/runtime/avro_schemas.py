"""What schemas in Avro have to keep to before a record is read or written by them.

fastavro believes what it is given, and goes on with one of several answers where a schema has
several. Other clients go on with another one of them. So such a schema is refused.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

_DECIDING: Final = frozenset(
    {
        *("type", "name", "aliases", "fields", "default", "symbols", "size", "items", "values"),
        *("logicalType", "precision", "scale"),
    }
)
"""What decides how a type is read and written; `doc`, or which class Java makes of it, do not."""


class ParsedSchema(NamedTuple):
    """A schema as fastavro parses it."""

    schema: Any
    types: Mapping[str, Any]
    """Named ones, also those of schemas that it refers to."""


def check_definitions(known: Mapping[str, Any], types: Mapping[str, Any]) -> None:
    """Refuse a second definition of a type that differs from the first one.

    A schema may reach two versions of a type by its references. A registry takes it, but a schema
    has one type of a name: fastavro takes the last definition, other clients the first.

    Args:
        known: named types, as fastavro parses them, before a schema was parsed.
        types: the same with those of the schema, which have replaced others of their names.

    Raises:
        ValueError: two definitions differ; the text names the type.
    """
    for name, former in known.items():
        if _definition(former) != _definition(types[name]):
            raise ValueError(f"it has two definitions of {name} that differ")


def check_aliases(writer: ParsedSchema, reader: ParsedSchema) -> None:
    """Refuse a field that several fields of the record as it was written can be read into.

    fastavro would give it the value of any of them, also of one that is known by an alias only
    where another one has the field's own name.

    Args:
        writer: the schema that records were written by.
        reader: the schema that they are resolved to.

    Raises:
        ValueError: there is such a field; the text names it.
    """
    for written, wanted in _records(writer, reader):
        names, own = _names(written), _names(wanted)
        for field in wanted["fields"]:
            # A field that has an alias of another one for its name is the one that is meant.
            matching = names & {field["name"], *_aliases(field) - own}
            if len(matching) > 1:
                raise ValueError(
                    f"field {field['name']} of {wanted['name']} can be read from several fields: "
                    f"{', '.join(sorted(matching))}"
                )


def skips_fields(writer: ParsedSchema, reader: ParsedSchema) -> bool:
    """Whether a record that was written has fields which the reader has not.

    Args:
        writer: the schema that records were written by.
        reader: the schema that they are resolved to.
    """
    return any(
        _names(written) - _names(wanted) - {n for f in wanted["fields"] for n in _aliases(f)}
        for written, wanted in _records(writer, reader)
    )


def without_logical_types(schema: Any) -> Any:
    """A schema whose values are all that its bytes can be: times beyond Python's, for example."""
    match schema:
        case list():
            return [without_logical_types(one) for one in schema]
        case dict():
            return {
                name: without_logical_types(one)
                for name, one in schema.items()
                if name != "logicalType"
            }
        case _:
            return schema


def _records(
    writer: ParsedSchema, reader: ParsedSchema
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The records as they were written, each with those that it is resolved to.

    Two records of one name in different namespaces are resolved to each other only where a value
    of the one is read into a place of the other.
    """
    seen = set()
    pending = [(writer.schema, reader.schema)]
    while pending:
        written, wanted = (
            side.types.get(one, one) if isinstance(one, str) else one
            for side, one in zip((writer, reader), pending.pop(), strict=True)
        )
        if isinstance(written, list):
            pending += [(one, wanted) for one in written]
        elif isinstance(wanted, list):
            pending += [(written, one) for one in wanted]
        elif not isinstance(written, dict) or not isinstance(wanted, dict):
            continue
        elif "fields" in written and "fields" in wanted:
            names = written["name"], wanted["name"]
            if names not in seen and _resolves(written, wanted):
                seen.add(names)
                yield written, wanted
                pending += _fields(written, wanted)
        else:
            both = {"items", "values"} & written.keys() & wanted.keys()
            pending += [(written[part], wanted[part]) for part in both]


def _fields(written: Any, wanted: Any) -> Iterator[tuple[Any, Any]]:
    """The types of a record's fields, each with that of the field that it is read into."""
    for field in written["fields"]:
        name = field["name"]
        same = [one for one in wanted["fields"] if one["name"] == name]
        for other in same or [one for one in wanted["fields"] if name in _aliases(one)]:
            yield field["type"], other["type"]


def _names(record: Any) -> set[str]:
    return {field["name"] for field in record["fields"]}


def _aliases(schema: Any) -> set[str]:
    """Former names of a record or a field."""
    return set(schema.get("aliases", ()))


def _resolves(written: Any, wanted: Any) -> bool:
    """Whether fastavro reads one record as the other, by its name without the namespace."""
    name = written["name"]
    unqualified = name.split(".")[-1]
    return unqualified == wanted["name"].split(".")[-1] or not _aliases(wanted).isdisjoint(
        (name, unqualified)
    )


def _definition(schema: Any) -> Any:
    """A type as it decides about bytes, with the names of those that are defined within it."""
    match schema:
        case list():
            return [_within(one) for one in schema]
        case dict():
            found = {name: one for name, one in schema.items() if name in _DECIDING}
            for name in ("type", "items", "values"):
                if name in found:
                    found[name] = _within(found[name])
            if "fields" in found:
                found["fields"] = [_definition(one) for one in found["fields"]]
            return found["type"] if found.keys() == {"type"} else found
        case _:
            return schema


def _within(schema: Any) -> Any:
    """A part of a type: a named type, which has a comparison of its own, is its name."""
    is_named = isinstance(schema, dict) and "name" in schema
    return schema["name"] if is_named else _definition(schema)
