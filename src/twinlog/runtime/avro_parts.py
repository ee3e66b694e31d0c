"""Keys or values in Avro, in the wire format of a schema registry, as a column of Spark.

A record is read by the schema that its id names, and resolved to the schema of the column: the
latest version of one subject when the transform is prepared. A result is written by the latest
schema of `TOPIC-key` or `TOPIC-value` in the target's registry. Bytes that stay as they are keep
their id, or get the one that the same schema has in the target's registry.

No value is altered to fit. fastavro rounds (2**53 + 1 in a `double`), cuts (microseconds in a
`timestamp-millis`), and takes the first branch of a union that has something like the value. So
what was written is read again, and has to be equal. Spark rounds decimals to the scale of their
column, so what it would round is refused before.
"""

import datetime
import io
import json
import math
import struct
import uuid
from collections.abc import Callable, Mapping
from decimal import Context, Decimal
from typing import Any, Final, NamedTuple

from pyspark.sql import Row
from pyspark.sql import types as t

from twinlog.runtime.avro_schemas import (
    ParsedSchema,
    check_aliases,
    check_definitions,
    skips_fields,
    without_logical_types,
)
from twinlog.runtime.schema_registry import (
    MAGIC,
    WIRE,
    NotAvro,
    RegisteredSchema,
    SchemaRegistry,
    UnsupportedSchema,
)

try:
    import fastavro
except ImportError:  # it is an extra, and few flows need it
    _INSTALLED = False
else:
    _INSTALLED = True

_PRIMITIVES: Final[Mapping[str, t.DataType]] = {
    "boolean": t.BooleanType(),
    "int": t.IntegerType(),
    "long": t.LongType(),
    "float": t.FloatType(),
    "double": t.DoubleType(),
    "bytes": t.BinaryType(),
    "fixed": t.BinaryType(),
    "string": t.StringType(),
    "enum": t.StringType(),
}
_LOGICAL: Final[Mapping[tuple[str, str], t.DataType]] = {
    ("int", "date"): t.DateType(),
    ("long", "timestamp-millis"): t.TimestampType(),
    ("long", "timestamp-micros"): t.TimestampType(),
    ("string", "uuid"): t.StringType(),
}
"""By the type that a logical type is stored as: fastavro leaves bytes of a UUID (Avro 1.12)."""
_ALL_DIGITS: Final = Context(prec=100_000)
_FLOAT: Final = struct.Struct("<f")


def _decimal(data: bytes, schema: Any, _: object = None) -> Decimal:
    """A decimal with all its digits: fastavro's own reader rounds to the schema's precision."""
    digits = int.from_bytes(data, "big", signed=True)
    if abs(digits) >= 10 ** schema["precision"]:
        raise ValueError("a decimal has more digits than its schema")
    return Decimal(digits).scaleb(-schema.get("scale", 0), _ALL_DIGITS)


def _uuid(text: str, *_: object) -> str:
    """A UUID as it is written: fastavro's own reader makes small letters of capitals."""
    uuid.UUID(text)
    return text


def _whole(number: int, *_: object) -> int:
    """A whole number as it is, for `_plain`: fastavro rounds those that become a `double`."""
    return number


_WHOLE: Final = "twinlog-whole"
if _INSTALLED:  # of this process, which decodes nothing else
    fastavro.read.LOGICAL_READERS.update(
        {
            "bytes-decimal": _decimal,
            "fixed-decimal": _decimal,
            "string-uuid": _uuid,
            f"int-{_WHOLE}": _whole,
            f"long-{_WHOLE}": _whole,
        }
    )


class AvroNotInstalled(Exception):
    """The package fastavro is missing on this host; the text says so."""


class AvroPart:
    """The keys or the values of a flow's records.

    Args:
        part: `key` or `value`.
        subject: whose latest schema the column has.
        source: the registry of the source's ids.
        target: the registry of the target's ids; with the same URL and credentials, ids stay.

    Raises:
        RegistryTrouble, RegistryRefusal, UnsupportedSchema, AvroNotInstalled: there is no column.
    """

    def __init__(
        self, part: str, subject: str, source: SchemaRegistry, target: SchemaRegistry
    ) -> None:
        if not _INSTALLED:
            raise AvroNotInstalled(
                "format=avro needs the package fastavro: pip install 'twinlog[avro]' on each host "
                "of a lane"
            )
        self._part, self._source, self._target = part, source, target
        self._reader = _parsed(source.latest(subject))
        self.column_type = column_type(*self._reader)
        if isinstance(self.column_type, t.BinaryType):
            raise UnsupportedSchema("bytes that are no part of a record have no column")
        self._check = t._make_type_verifier(self.column_type)  # noqa: SLF001 - no public one
        self._writers: dict[int, _Writer] = {}
        self._written: dict[str, tuple[int, ParsedSchema]] = {}
        self._mapped: dict[tuple[int, str], int] = {}

    @property
    def keeps_ids(self) -> bool:
        """Whether bytes that stay as they are keep their id.

        One URL may have several registries, of which the user is let into one.
        """
        return self._source.access == self._target.access

    def decoded(self, data: bytes | None) -> object:
        """What the column has for these bytes.

        Raises:
            NotAvro: see the class.
            RegistryTrouble, RegistryRefusal, UnsupportedSchema: its schema is not known.
        """
        if data is None:
            return None
        schema_id = _id_of(data)
        if schema_id not in self._writers:
            self._writers[schema_id] = self._writer(self._source.schema(schema_id))
        writer = self._writers[schema_id]
        stream = io.BytesIO(data[WIRE.size :])
        try:
            if writer.whole is not None:
                fastavro.schemaless_reader(
                    stream, writer.whole, None, handle_unicode_errors="replace"
                )
                stream.seek(0)
            found = fastavro.schemaless_reader(stream, writer.schema, self._reader.schema)
        except Exception as error:  # fastavro raises whatever its decoders do
            raise NotAvro(f"a {self._part} does not fit its schema {schema_id}") from error
        if stream.read(1):
            raise NotAvro(f"a {self._part} has more bytes than its schema {schema_id}")
        try:  # Spark makes null of a value that is of another type
            cell = _plain(found, self.column_type)
            self._check(cell)
        except Exception as error:
            raise NotAvro(
                f"a {self._part} of schema {schema_id} has a value that its column cannot hold"
            ) from error
        if cell is None:
            raise NotAvro(
                f"a {self._part} of schema {schema_id} is null, which would become a tombstone"
            )
        return cell

    def encoded(self, value: object, topic: str) -> bytes | None:
        """The bytes for a row's column, in the latest schema of its topic.

        Raises:
            NotAvro: the column does not fit that schema.
            RegistryTrouble, RegistryRefusal: the topic's subject has no schema.
        """
        if value is None or isinstance(value, bytes | bytearray):
            return None if value is None else bytes(value)
        if topic not in self._written:
            latest = self._target.latest(self._subject(topic))
            self._written[topic] = latest.id, _parsed(latest)
        schema_id, (schema, named) = self._written[topic]
        unfit = f"a {self._part} does not fit the latest schema of {self._subject(topic)}"
        stream = io.BytesIO()
        stream.write(WIRE.pack(MAGIC, schema_id))
        try:
            data = hinted = _without_rows(value)
            if _has_choices(schema) or any(map(_has_choices, named.values())):
                hinted = _hinted(schema, value, named)
            # The writer alone makes an int of 5,000,000,000, and false of null.
            fastavro.validate(data, schema, strict=True)
            fastavro.schemaless_writer(stream, schema, hinted, strict=True)
            stream.seek(WIRE.size)
            same = _same(data, fastavro.schemaless_reader(stream, schema, None))
        except Exception as error:  # fastavro raises whatever its encoders do
            raise NotAvro(unfit) from error
        if not same:
            raise NotAvro(unfit)
        return stream.getvalue()

    def mapped(self, data: bytes | None, topic: str) -> bytes | None:
        """The same bytes with the id that their schema has in the target's registry.

        Raises:
            NotAvro: they are not in the wire format.
            RegistryTrouble, RegistryRefusal: there is no such id, or the target takes none.
        """
        if data is None or self.keeps_ids:
            return data
        key = _id_of(data), topic
        if key not in self._mapped:
            schema = self._source.schema(key[0])
            self._mapped[key] = self._target.register(self._subject(topic), schema)
        return WIRE.pack(MAGIC, self._mapped[key]) + data[WIRE.size :]

    def _writer(self, schema: RegisteredSchema) -> "_Writer":
        """The schema that a record is read by.

        Raises:
            UnsupportedSchema: it cannot be used, or not be resolved to the column's.
        """
        parsed = _parsed(schema)
        if parsed == self._reader:
            return _Writer(parsed.schema, None)
        try:
            check_aliases(parsed, self._reader)
        except ValueError as error:
            raise UnsupportedSchema(f"schema {schema.id} cannot be resolved: {error}") from error
        skips = skips_fields(parsed, self._reader)
        return _Writer(
            _parsed(schema, _unpromoted).schema,
            _parsed(schema, without_logical_types).schema if skips else None,
        )

    def _subject(self, topic: str) -> str:
        return f"{topic}-{self._part}"


def _id_of(data: bytes) -> int:
    if len(data) < WIRE.size or data[0] != MAGIC:
        raise NotAvro("bytes are not in the wire format of a schema registry")
    schema_id: int = WIRE.unpack_from(data)[1]
    return schema_id


class _Writer(NamedTuple):
    """The schema that a record was written by."""

    schema: Any
    whole: Any
    """The same without logical types, to read all fields once; None: the column has them all.
    fastavro skips a field that the column lacks without a look at its length."""


def _parsed(schema: RegisteredSchema, altered: Callable[[Any], Any] | None = None) -> ParsedSchema:
    types: dict[str, Any] = {}
    try:
        for each in (*schema.definitions(), schema):
            found = json.loads(each.text)
            last = _with_types(found if altered is None else altered(found), types)
    except Exception as error:  # fastavro raises whatever its parser does
        raise UnsupportedSchema(f"schema {schema.id} cannot be read: {error}") from error
    return ParsedSchema(last, types)


def _with_types(schema: Any, types: dict[str, Any]) -> Any:
    """A schema as fastavro parses it, which adds its named types to these and keeps them.

    fastavro keeps them with a record only. An array, a map or a name that refers to types of other
    schemas would be accepted, and fail with each value.

    Raises:
        ValueError: it defines one of them in another way.
    """
    if isinstance(schema, list):  # fastavro parses each branch by itself, too
        return [_with_types(one, types) for one in schema]
    known = dict(types)
    parsed = fastavro.parse_schema(schema, named_schemas=types)
    check_definitions(known, types)
    found = types.get(parsed, parsed) if isinstance(parsed, str) else parsed
    if not isinstance(found, dict):
        return found
    return {**found, "__fastavro_parsed": True, "__named_schemas": types}


def _unpromoted(schema: Any) -> Any:
    """A schema whose whole numbers stay whole numbers, whatever the column has."""
    if isinstance(schema, list):
        return [_unpromoted(one) for one in schema]
    if schema in ("int", "long"):
        schema = {"type": schema}
    if not isinstance(schema, dict):
        return schema
    if schema["type"] in ("int", "long"):
        logical = f"{schema['type']}-{schema.get('logicalType')}"
        known = logical in fastavro.read.LOGICAL_READERS
        return schema if known else {**schema, "logicalType": _WHOLE}
    parts = {name: _unpromoted(schema[name]) for name in ("items", "values") if name in schema}
    if isinstance(schema["type"], dict | list):
        parts["type"] = _unpromoted(schema["type"])
    if "fields" in schema:
        parts["fields"] = [{**one, "type": _unpromoted(one["type"])} for one in schema["fields"]]
    return {**schema, **parts}


def column_type(schema: Any, types: Mapping[str, Any]) -> t.DataType:
    """The type of a column with values of an Avro schema.

    Args:
        schema: as fastavro parses it.
        types: named ones, also those of schemas that it refers to.

    Raises:
        UnsupportedSchema: Spark has no such type.
    """
    return _type(schema, _Types(types, {}))


class _Types(NamedTuple):
    """The named types of a schema."""

    definitions: Mapping[str, Any]
    """All, also those of schemas that it refers to."""
    built: dict[str, t.DataType | None]
    """Those so far; None while one is being built."""


def _type(schema: Any, named: _Types) -> t.DataType:
    """The type of a part."""
    if isinstance(schema, list):
        options = [one for one in schema if one != "null"]
        if len(options) != 1:
            raise UnsupportedSchema("a union of several types has no column type in Spark")
        return _type(options[0], named)
    if isinstance(schema, str):
        if schema in named.definitions and schema not in named.built:
            return _type(named.definitions[schema], named)
        found = _PRIMITIVES.get(schema, named.built.get(schema))
        if found is None:
            raise UnsupportedSchema(f"the type {schema} contains itself, or is not supported")
        return found
    logical = schema.get("logicalType")
    return _complex_type(schema, named) if logical is None else _logical_type(schema, logical)


def _logical_type(schema: Any, logical: str) -> t.DataType:
    base = schema["type"]
    if logical == "decimal" and base in ("bytes", "fixed"):
        return t.DecimalType(schema["precision"], schema.get("scale", 0))
    found = _LOGICAL.get((base, logical)) if isinstance(base, str) else None
    if found is None:
        raise UnsupportedSchema(f"the logical type {logical} of {base} is not supported")
    return found


def _complex_type(schema: Any, named: _Types) -> t.DataType:
    found: t.DataType
    match schema["type"]:
        case "record":
            named.built[schema["name"]] = None
            found = t.StructType(
                [t.StructField(one["name"], _type(one["type"], named)) for one in schema["fields"]]
            )
        case "array":
            return t.ArrayType(_type(schema["items"], named))
        case "map":
            return t.MapType(t.StringType(), _type(schema["values"], named))
        case kind:
            found = _type(kind, named)
    if "name" in schema:
        named.built[schema["name"]] = found
    return found


def _plain(value: object, kind: t.DataType) -> object:
    """A value of fastavro as Spark takes it: defaults as the type has them.

    Raises:
        ValueError: Spark would alter it.
    """
    plain = value
    match value, kind:
        case dict(), t.StructType():
            plain = {one.name: _plain(value[one.name], one.dataType) for one in kind.fields}
        case dict(), t.MapType():
            plain = {name: _plain(one, kind.valueType) for name, one in value.items()}
        case list(), t.ArrayType():
            plain = [_plain(one, kind.elementType) for one in value]
        case bool(), _:
            pass
        case int(), t.FloatType() | t.DoubleType():
            plain = float(value)
            if isinstance(kind, t.FloatType):
                plain = _FLOAT.unpack(_FLOAT.pack(plain))[0]
            if plain != value:
                raise ValueError("a whole number that is rounded")
        case Decimal(), t.DecimalType():
            if value != 0 and not _fits(value, kind):
                raise ValueError("a decimal that is rounded")
        case str(), t.BinaryType():
            plain = value.encode("latin-1")
        case _, t.StringType() if value is not None and not isinstance(value, str):
            raise ValueError("no text: Spark would take what Java prints of it")
    return plain


def _fits(value: Decimal, kind: t.DecimalType) -> bool:
    """Whether a column has all digits of a decimal, before the point and behind it."""
    shortest = value.normalize(_ALL_DIGITS)
    exponent = shortest.as_tuple().exponent
    whole_digits = shortest.adjusted() + 1
    return (
        isinstance(exponent, int)
        and -exponent <= kind.scale
        and whole_digits <= kind.precision - kind.scale
    )


def _same(value: object, found: object) -> bool:
    """Whether what was read is what was written: of a column of Spark, which has no time zone."""
    match value:
        case dict():
            return (
                isinstance(found, dict)
                and value.keys() == found.keys()
                and all(_same(one, found[name]) for name, one in value.items())
            )
        case list():
            return (
                isinstance(found, list)
                and len(value) == len(found)
                and all(map(_same, value, found))
            )
        case datetime.datetime() if value.tzinfo is None:
            return value.replace(tzinfo=datetime.UTC) == found
        case float():
            return isinstance(found, float) and (
                value == found or (math.isnan(value) and math.isnan(found))
            )
        case int():
            return (
                isinstance(found, int | float)
                and isinstance(value, bool) == isinstance(found, bool)
                and value == found
            )
        case _:
            return isinstance(value, Decimal) == isinstance(found, Decimal) and value == found


def _has_choices(schema: Any) -> bool:
    """Whether a schema has a union of several types besides null."""
    match schema:
        case list():
            return len(schema) - ("null" in schema) > 1 or any(map(_has_choices, schema))
        case dict():
            parts = [schema.get("items"), schema.get("values"), schema["type"]]
            parts += [one["type"] for one in schema.get("fields", ())]
            return any(map(_has_choices, parts))
        case _:
            return False


def _without_rows(value: Any) -> Any:
    """A value with dicts for rows, which are tuples: fastavro takes those for hints."""
    match value:
        case Row():
            return value.asDict(recursive=True)
        case dict():
            return {name: _without_rows(one) for name, one in value.items()}
        case list():
            return [_without_rows(one) for one in value]
        case _:
            return value


def _hinted(schema: Any, value: Any, named: Mapping[str, Any]) -> Any:
    """A value with the branches of unions that hold it as it is.

    fastavro takes a pair of a branch's type and the value. By itself it would take any branch that
    has something like the value, and a map rather than a record.

    Raises:
        ValueError: no branch is meant, or several may be.
    """
    if isinstance(schema, str) and schema in named:
        schema = named[schema]
    if isinstance(schema, list):
        return _branch([one for one in schema if one != "null"], value, named)
    kind = schema["type"] if isinstance(schema, dict) else schema
    if kind == "record" and isinstance(value, dict | Row):
        types = {one["name"]: one["type"] for one in schema["fields"]}
        fields = value.asDict() if isinstance(value, Row) else value
        return {
            name: _hinted(types[name], one, named) if name in types else _without_rows(one)
            for name, one in fields.items()
        }
    if kind == "map" and isinstance(value, dict):
        return {name: _hinted(schema["values"], one, named) for name, one in value.items()}
    if kind == "array" and isinstance(value, list):
        return [_hinted(schema["items"], one, named) for one in value]
    return _without_rows(value)


def _branch(options: list[Any], value: Any, named: Mapping[str, Any]) -> Any:
    """A value with its branch, where there are several; null has no need of one."""
    if value is None or not options:
        return value
    if len(options) == 1:
        return _hinted(options[0], value, named)
    if isinstance(value, dict | list | Row):
        return _branch_of_parts(options, value, named)
    return _branch_of_leaf(options, value, named)


def _branch_of_parts(options: list[Any], value: Any, named: Mapping[str, Any]) -> Any:
    """A STRUCT with the record that holds it, a MAP with the map, an ARRAY with the array.

    Raises:
        ValueError: there is no such branch, or several records have the fields.
    """
    wanted = "record" if isinstance(value, Row) else "map" if isinstance(value, dict) else "array"
    holding: list[tuple[str, Any]] = []
    for option in options:
        found = named.get(option) if isinstance(option, str) else option
        if not isinstance(found, dict) or found["type"] != wanted:
            continue
        if wanted == "record" and {one["name"] for one in found["fields"]} != set(value.asDict()):
            continue
        holding.append((found.get("name", wanted), found))
    if len(holding) != 1:
        raise ValueError("the branch of a union is not clear")
    name, found = holding[0]
    return name, _hinted(found, value, named)


def _branch_of_leaf(options: list[Any], value: Any, named: Mapping[str, Any]) -> Any:
    """A value with the first branch that holds it, and rather one that has its type in Python.

    Raises:
        ValueError: several branches hold it that differ in their names only.
    """
    holding: list[tuple[bool, Any]] = []
    names: list[str] = []
    for option in options:
        schema = named.get(option, option) if isinstance(option, str) else option
        kind = schema["type"] if isinstance(schema, dict) else schema
        if not isinstance(kind, str) or kind not in _PRIMITIVES:
            continue
        found = _found_by(schema, value)
        if found is None or not _same(value, found):
            continue
        if kind in {"fixed", "enum"}:
            names.append(schema["name"])
        else:
            holding.append((type(value) is not type(found), kind))
    if not holding and len(names) > 1:
        raise ValueError("the branch of a union is not clear")
    branches = [kind for _, kind in sorted(holding, key=lambda one: one[0])] or names
    return (branches[0], value) if branches else value


def _found_by(schema: Any, value: Any) -> Any:
    """What is read of a value that was written by a schema; None: it cannot be written."""
    stream = io.BytesIO()
    try:
        fastavro.validate(value, schema, strict=True)
        fastavro.schemaless_writer(stream, schema, value, strict=True)
        stream.seek(0)
        return fastavro.schemaless_reader(stream, schema, None)
    except Exception:  # fastavro raises whatever its encoders do
        return None
