"""Avro in a registry's wire format, without Spark: what is read and written, under which id."""

import datetime
import io
import json
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from pyspark.sql import Row
from pyspark.sql import types as t
from tiny_registry import TinyRegistry, tiny_registry

from twinlog.mirror.dataframe_transform import RegistryAccess
from twinlog.runtime.avro_parts import AvroPart, column_type
from twinlog.runtime.avro_schemas import ParsedSchema, check_aliases
from twinlog.runtime.schema_registry import (
    NotAvro,
    RegistryRefusal,
    RegistryTrouble,
    SchemaRegistry,
    UnsupportedSchema,
)

OLD = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
NEW = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
    ],
}
SUBJECT = "orders-value"


@pytest.fixture
def source() -> Iterator[TinyRegistry]:
    with tiny_registry(first_id=7) as registry:
        yield registry


@pytest.fixture
def target() -> Iterator[TinyRegistry]:
    with tiny_registry(first_id=100) as registry:
        yield registry


def wire(number: int, schema: Any, value: object) -> bytes:
    """A record as a producer's serializer writes it."""
    stream = io.BytesIO()
    stream.write(struct.pack(">bI", 0, number))
    fastavro.schemaless_writer(stream, fastavro.parse_schema(json.loads(json.dumps(schema))), value)
    return stream.getvalue()


def client(registry: TinyRegistry) -> SchemaRegistry:
    return SchemaRegistry(RegistryAccess(registry.url))


def kept(source: TinyRegistry) -> AvroPart:
    registry = client(source)
    return AvroPart("value", SUBJECT, registry, registry)


def between(source: TinyRegistry, target: TinyRegistry) -> AvroPart:
    return AvroPart("value", SUBJECT, client(source), client(target))


def test_records_of_several_schemas_become_one_column(source: TinyRegistry) -> None:
    """Goal: each is read by its own schema, which is asked for once."""
    old, new = source.add(SUBJECT, OLD), source.add(SUBJECT, NEW)
    part = kept(source)
    assert part.column_type == t.StructType(
        [t.StructField("id", t.LongType()), t.StructField("note", t.StringType())]
    )
    for _ in range(3):
        assert part.decoded(wire(old, OLD, {"id": 1})) == {"id": 1, "note": None}
        assert part.decoded(wire(new, NEW, {"id": 2, "note": "x"})) == {"id": 2, "note": "x"}
    assert part.decoded(None) is None
    assert len(source.requests) == 3


def test_a_result_is_written_by_the_latest_schema_of_its_topic(
    source: TinyRegistry, target: TinyRegistry
) -> None:
    """Goal: with its id in the target's registry, and only what fits."""
    source.add(SUBJECT, NEW)
    number = target.add("gold-value", NEW)
    part = between(source, target)
    expected = wire(number, NEW, {"id": 5, "note": "x"})
    assert part.encoded(Row(id=5, note="x"), "gold") == expected
    assert part.encoded({"id": 5, "note": "x"}, "gold") == expected
    assert part.encoded(bytearray(b"as it is"), "gold") == b"as it is"
    assert part.encoded(None, "gold") is None
    for value in (Row(id="secret", note="x"), Row(id=5), Row(id=5, note="x", more="secret")):
        with pytest.raises(NotAvro, match="does not fit the latest schema of gold-value") as error:
            part.encoded(value, "gold")
        assert "secret" not in str(error.value)
    with pytest.raises(RegistryRefusal, match="answers 404 to /subjects/silver-value/versions"):
        part.encoded(Row(id=5, note="x"), "silver")


def record_of(**fields: object) -> dict[str, Any]:
    """A schema with these fields."""
    return {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": name, **(kind if isinstance(kind, dict) else {"type": kind})}
            for name, kind in fields.items()
        ],
    }


MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
MICROS = {"type": "long", "logicalType": "timestamp-micros"}
DATE = {"type": "int", "logicalType": "date"}
UUID = {"type": "string", "logicalType": "uuid"}
AT = datetime.datetime(2024, 1, 1, 10, 0, 0, 123456)  # noqa: DTZ001 - as Spark's collect() has it


def decimal_of(precision: int, scale: int) -> dict[str, object]:
    """A decimal's schema."""
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("long", 1.7),
        ("long", 5.0),
        ("long", Decimal("1.7")),
        ("float", 1e300),
        ("float", 0.1),
        ("float", 2**24 + 1),
        ("double", 2**53 + 1),
        ("double", 2**70 + 1),
        (["null", "float"], 0.1),
        (["null", "float", "double"], 2**53 + 1),
        ({"type": {"type": "map", "values": "float"}}, {"a": 0.1}),
        ({"type": {"type": "array", "items": "float"}}, [0.5, 0.1]),
        ({"type": MILLIS}, AT),
        ({"type": MILLIS}, 5),
        ({"type": DATE}, AT),
        ({"type": UUID}, "no UUID"),
        ({"type": decimal_of(3, 2)}, Decimal(100)),
        ({"type": decimal_of(3, 2)}, Decimal("1.239")),
        ("int", 5_000_000_000),
        ("boolean", "false"),
        ("boolean", None),
        ("boolean", 1),
        ("long", True),
        ("long", Decimal(5)),
        ("double", Decimal("1.5")),
        ("bytes", "x"),
        ("string", b"x"),
        ("string", 5),
    ],
)
def test_values_of_a_result_are_not_altered_to_fit(
    source: TinyRegistry, kind: object, value: object
) -> None:
    """Goal: what fastavro would write as another value is refused."""
    source.add(SUBJECT, OLD)
    source.add("t-value", record_of(f=kind))
    with pytest.raises(NotAvro, match="does not fit the latest schema"):
        kept(source).encoded(Row(f=value), "t")


@pytest.mark.parametrize(
    ("kind", "value", "written"),
    [
        ("float", 0.10000000149011612, 0.10000000149011612),
        ("float", float("inf"), float("inf")),
        ("float", 2**24, 2.0**24),
        ("double", 0.1, 0.1),
        ("double", 2**53, 2.0**53),
        ("double", float("nan"), float("nan")),
        (["null", "double", "long"], 2**53 + 1, 2**53 + 1),
        (["null", "double", "long"], 5, 5),
        (["null", "int", "long"], 2**40, 2**40),
        (["null", "float", "double"], 0.1, 0.1),
        (["null", DATE, MICROS], AT, AT.replace(tzinfo=datetime.UTC)),
        ({"type": {"type": "array", "items": ["double", "long"]}}, [2**53 + 1], [2**53 + 1]),
        ({"type": MICROS}, AT, AT.replace(tzinfo=datetime.UTC)),
        ({"type": DATE}, AT.date(), AT.date()),
        ({"type": UUID}, "12345678-1234-5678-1234-56781234ABCD", None),
        ({"type": decimal_of(38, 2)}, Decimal("-" + "9" * 36 + ".99"), None),
        ({"type": decimal_of(4, 2)}, Decimal("1.5"), None),
    ],
)
def test_values_of_a_result_that_fit_are_written_as_they_are(
    source: TinyRegistry, kind: object, value: object, written: object
) -> None:
    """Goal: the same value and type, in the branch of a union that holds it."""
    schema = record_of(f=kind)
    source.add(SUBJECT, OLD)
    source.add("t-value", schema)
    data = kept(source).encoded(Row(f=value), "t")
    assert data is not None
    whole: Any = fastavro.schemaless_reader(
        io.BytesIO(data[5:]), fastavro.parse_schema(json.loads(json.dumps(schema))), None
    )
    found = whole["f"]
    expected = value if written is None else written
    assert repr(found) == repr(expected) or found == expected
    assert type(found) is type(expected)


CITY = {**record_of(city="string", zip="string"), "name": "City"}
TOWN = {**CITY, "name": "Town"}
OTHER = {**record_of(city="string"), "name": "Other"}
TEXTS = {"type": "map", "values": "string"}
BERN = {"city": "Bern", "zip": "3000"}


@pytest.mark.parametrize(
    ("options", "value", "index"),
    [
        (["null", CITY, TEXTS], Row(**BERN), 1),
        (["null", TEXTS, CITY], Row(**BERN), 2),
        (["null", CITY, TEXTS], BERN, 2),
        (["null", OTHER, CITY], Row(**BERN), 2),
        (["null", CITY, TEXTS], None, 0),
        (["null", CITY, {"type": "array", "items": ["City", TEXTS]}], [Row(**BERN)], 2),
    ],
)
def test_a_struct_is_a_record_and_a_map_is_a_map(
    source: TinyRegistry, options: list[object], value: object, index: int
) -> None:
    """Goal: of a union, the branch that the column's type means, whatever validates first."""
    source.add(SUBJECT, OLD)
    source.add("t-value", record_of(f={"type": options}))
    data = kept(source).encoded(Row(f=value), "t")
    assert data is not None
    assert data[5] == 2 * index
    expected = {"f": [BERN] if isinstance(value, list) else value and BERN}
    schema = fastavro.parse_schema(record_of(f={"type": options}))
    assert fastavro.schemaless_reader(io.BytesIO(data[5:]), schema, None) == expected


def test_a_record_that_was_defined_before_is_hinted_by_its_name(source: TinyRegistry) -> None:
    """Goal: a union may have the name of a record only."""
    source.add(SUBJECT, OLD)
    source.add("t-value", record_of(home={"type": CITY}, f={"type": [TEXTS, "City"]}))
    data = kept(source).encoded(Row(home=Row(**BERN), f=Row(**BERN)), "t")
    assert data == wire(
        8,
        record_of(home={"type": CITY}, f={"type": [TEXTS, "City"]}),
        {"home": BERN, "f": ("City", BERN)},
    )


def test_branches_of_types_by_name_in_a_union(source: TinyRegistry) -> None:
    """Goal: a schema that is a union keeps the hints of types that are used by their names."""
    place = {**record_of(f={"type": ["null", TEXTS, CITY]}), "name": "Place"}
    whole = record_of(home={"type": place}, work="Place")
    source.add(SUBJECT, OLD)
    number = source.add("t-value", ["null", whole])
    data = kept(source).encoded(Row(home=Row(f=Row(**BERN)), work=Row(f=Row(**BERN))), "t")
    city = {"f": ("City", BERN)}
    assert data == wire(number, ["null", whole], {"home": city, "work": city})


SUIT = {"type": "enum", "name": "Suit", "symbols": ["A", "B"]}
GRADE = {"type": "enum", "name": "Grade", "symbols": ["B", "C"]}
TWO = {"type": "fixed", "name": "Two", "size": 2}
DUO = {"type": "fixed", "name": "Duo", "size": 2}
TRIO = {"type": "fixed", "name": "Trio", "size": 3}


@pytest.mark.parametrize(
    ("options", "value", "index"),
    [
        (["null", SUIT, GRADE], "A", 1),
        (["null", SUIT, GRADE], "C", 2),
        (["null", SUIT, GRADE, "string"], "B", 3),
        (["null", TRIO, TWO], b"xy", 2),
        (["null", SUIT, TWO], b"xy", 2),
        (["null", {"type": "array", "items": ["null", SUIT]}, "Suit"], "B", 2),
    ],
)
def test_an_enum_or_fixed_that_holds_a_value_is_its_branch(
    source: TinyRegistry, options: list[object], value: object, index: int
) -> None:
    """Goal: the only one that holds it, also by its name, and rather a type without a name."""
    source.add(SUBJECT, OLD)
    source.add("t-value", record_of(f={"type": options}))
    data = kept(source).encoded(Row(f=value), "t")
    assert data is not None
    assert data[5] == 2 * index


@pytest.mark.parametrize(
    ("options", "value"),
    [
        (["null", CITY, TOWN], Row(**BERN)),
        (["null", CITY, "string"], BERN),
        (["null", TEXTS, "string"], Row(**BERN)),
        (["null", SUIT, GRADE], "B"),
        (["null", {"type": "array", "items": ["null", SUIT]}, GRADE, "Suit"], "B"),
        (["null", TWO, DUO], b"xy"),
    ],
)
def test_a_branch_that_is_not_clear_is_refused(
    source: TinyRegistry, options: list[object], value: object
) -> None:
    """Goal: no STRUCT in a map, no MAP in a record, and no first of two records."""
    source.add(SUBJECT, OLD)
    source.add("t-value", record_of(f={"type": options}))
    with pytest.raises(NotAvro, match="does not fit the latest schema"):
        kept(source).encoded(Row(f=value), "t")


@pytest.mark.parametrize(
    ("written", "read", "value"),
    [
        (decimal_of(10, 4), decimal_of(10, 2), Decimal("1.2345")),
        (decimal_of(10, 2), decimal_of(4, 2), Decimal("123.45")),
        (decimal_of(10, 0), decimal_of(10, 2), Decimal(1234567890)),
        ("long", "double", 2**53 + 1),
        ("long", "float", 2**24 + 1),
        ("int", "float", 2**24 + 1),
        (["null", "long"], ["null", "double"], 2**53 + 1),
        ({"type": "long"}, "double", 2**53 + 1),
        ({"type": "long", "logicalType": "timestamp-nanos"}, "double", 2**53 + 1),
        (decimal_of(4, 2), "string", Decimal("1.5")),
        ({"type": "array", "items": "long"}, {"type": "array", "items": "double"}, [2**53 + 1]),
        ({"type": "map", "values": "long"}, {"type": "map", "values": "double"}, {"a": 2**53 + 1}),
        (
            {**record_of(g="long"), "name": "Inner"},
            {**record_of(g="double"), "name": "Inner"},
            {"g": 2**53 + 1},
        ),
    ],
)
def test_values_of_other_schemas_are_not_rounded(
    source: TinyRegistry, written: object, read: object, value: object
) -> None:
    """Goal: what Spark would round to its column is refused."""
    number = source.add(SUBJECT, record_of(f={"type": written}))
    source.add(SUBJECT, record_of(f={"type": read}))
    data = wire(number, record_of(f={"type": written}), {"f": value})
    with pytest.raises(NotAvro, match="a value that its column cannot hold"):
        kept(source).decoded(data)


def test_a_decimal_of_more_digits_than_its_schema_is_refused(source: TinyRegistry) -> None:
    """Goal: fastavro's reader would round 1234.56 to 1235."""
    number = source.add(SUBJECT, record_of(f={"type": decimal_of(4, 2)}))
    data = wire(number, record_of(f="bytes"), {"f": (123456).to_bytes(4, "big")})
    with pytest.raises(NotAvro, match="does not fit its schema"):
        kept(source).decoded(data)


def test_a_uuid_keeps_its_letters(source: TinyRegistry) -> None:
    """Goal: capitals stay capitals."""
    schema = record_of(f={"type": UUID})
    number = source.add(SUBJECT, schema)
    source.add("t-value", schema)
    data = wire(number, schema, {"f": "12345678-1234-5678-1234-56781234ABCD"})
    assert kept(source).encoded(kept(source).decoded(data), "t") == data


@pytest.mark.parametrize(
    ("written", "read", "value", "expected"),
    [
        ({}, {"f": {"type": "double", "default": 0}}, {}, {"f": 0.0}),
        ({}, {"f": {"type": "bytes", "default": "\u00ff"}}, {}, {"f": b"\xff"}),
        ({"f": "long"}, {"f": "double"}, {"f": 3}, {"f": 3.0}),
        ({"f": "long"}, {"f": "float"}, {"f": 2**24}, {"f": 2.0**24}),
        (
            {"f": {"type": decimal_of(10, 4)}},
            {"f": {"type": decimal_of(10, 2)}},
            {"f": Decimal("1.2300")},
            {"f": Decimal("1.23")},
        ),
    ],
)
def test_values_of_other_schemas_have_the_type_of_their_column(
    source: TinyRegistry, written: Any, read: Any, value: Any, expected: Any
) -> None:
    """Goal: Spark would make null of a value of another type."""
    number = source.add(SUBJECT, record_of(**written))
    source.add(SUBJECT, record_of(**read))
    found = kept(source).decoded(wire(number, record_of(**written), value))
    assert found == expected
    assert type(found["f"]) is type(expected["f"])  # type: ignore[index]


def test_null_is_no_tombstone(source: TinyRegistry) -> None:
    """Goal: a record whose schema allows null for the whole value is not written as a deletion."""
    number = source.add(SUBJECT, ["null", "string"])
    with pytest.raises(
        NotAvro, match=f"a value of schema {number} is null, which would become a tombstone"
    ):
        kept(source).decoded(wire(number, ["null", "string"], None))


OPTIMIZED = """
from twinlog.runtime.avro_parts import AvroPart
from twinlog.runtime.schema_registry import NotAvro, RegisteredSchema

class Registry:
    def latest(self, subject):
        texts = {"s": '["null", "string"]', "t-value": '["null", "float"]'}
        return RegisteredSchema(1, texts[subject])

    def schema(self, number):
        return self.latest("s")

part = AvroPart("value", "s", Registry(), Registry())
for attempt in (lambda: part.decoded(bytes(6)), lambda: part.encoded(0.1, "t")):
    try:
        print(attempt())
    except NotAvro:
        print("refused")
"""


def test_guards_hold_in_an_optimized_python() -> None:
    """Goal: PYTHONOPTIMIZE removes assertions, and lets no value be altered."""
    command = [sys.executable, "-O", "-c", OPTIMIZED]
    assert subprocess.check_output(command, text=True) == "refused\nrefused\n"


AB = record_of(a="string", b={"type": ["null", "string"]})
RENAMED = {"type": ["null", "string"], "default": None, "aliases": ["a"]}


@pytest.mark.parametrize(
    ("written", "read", "name"),
    [
        (AB, record_of(b=RENAMED), "R"),
        (AB, {**record_of(b=RENAMED), "name": "S", "aliases": ["R"]}, "S"),
        (record_of(a="string", c="string"), record_of(b={**RENAMED, "aliases": ["a", "c"]}), "R"),
        (
            {**record_of(f={"type": {"type": "array", "items": AB}}), "name": "T"},
            {**record_of(f={"type": {"type": "array", "items": record_of(b=RENAMED)}})}
            | {"name": "T"},
            "R",
        ),
        (
            {"type": "map", "values": ["null", AB]},
            {"type": "map", "values": {**record_of(b=RENAMED), "namespace": "acme"}},
            "acme.R",
        ),
    ],
)
def test_a_field_that_several_fields_are_read_into_is_refused(
    source: TinyRegistry, written: dict[str, Any], read: dict[str, Any], name: str
) -> None:
    """Goal: an alias does not replace the value of the field that has the name."""
    number = source.add(SUBJECT, written)
    source.add(SUBJECT, read)
    text = rf"schema {number} cannot be resolved: field b of {name} can be read from several fields"
    with pytest.raises(UnsupportedSchema, match=f"{text}: a, [bc]"):
        kept(source).decoded(struct.pack(">bI", 0, number) + b"\2x\2\2y")


def test_a_field_is_read_by_its_name_or_by_one_alias(source: TinyRegistry) -> None:
    """Goal: a renamed field, and one whose former name is in use again."""
    renamed = source.add(SUBJECT, record_of(a="string"))
    both = source.add(SUBJECT, AB)
    source.add(SUBJECT, record_of(b=RENAMED))
    assert kept(source).decoded(wire(renamed, record_of(a="string"), {"a": "x"})) == {"b": "x"}
    source.add(SUBJECT, record_of(a="string", b=RENAMED))
    assert kept(source).decoded(wire(both, AB, {"a": "x", "b": "y"})) == {"a": "x", "b": "y"}


def item(namespace: str, **fields: object) -> dict[str, Any]:
    """A record with a name that others have in other namespaces."""
    return {**record_of(**fields), "name": f"{namespace}.Item"}


def parsed_of(schema: Any) -> ParsedSchema:
    types: dict[str, Any] = {}
    return ParsedSchema(fastavro.parse_schema(schema, named_schemas=types), types)


CODE = {"type": "string", "aliases": ["id"]}
NOTE = {"type": "string", "default": "-"}
X = item("x", id="long", code="string")
Y = item("y", code=CODE)


@pytest.mark.parametrize(
    ("kind_of", "value_of"),
    [
        (lambda one: one, lambda value: value),
        (lambda one: ["null", one], lambda value: value),
        (lambda one: {"type": "array", "items": one}, lambda value: [value, value]),
        (lambda one: {"type": "map", "values": ["null", one]}, lambda value: {"k": value}),
        (lambda one: item("z", f={"type": one}), lambda value: {"f": value}),
    ],
)
def test_records_of_one_name_that_are_not_read_into_each_other(
    source: TinyRegistry, kind_of: Callable[[Any], Any], value_of: Callable[[Any], Any]
) -> None:
    """Goal: an alias in one namespace is no matter for a record of another one."""
    written = record_of(a={"type": kind_of(X)}, b={"type": Y}, c="x.Item", d="y.Item")
    number = source.add(SUBJECT, written)
    source.add(SUBJECT, {**written, "fields": [*written["fields"], {"name": "note", **NOTE}]})
    x, y = {"id": 1, "code": "p"}, {"code": "q"}
    value = {"a": value_of(x), "b": y, "c": x, "d": y}
    part = kept(source)
    assert part.decoded(wire(number, written, value)) == {**value, "note": "-"}


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (record_of(a={"type": X}), record_of(a={"type": Y}, b={"type": ["null", X]})),
        (record_of(a={"type": X}, b="x.Item"), record_of(a={"type": X}, b={"type": Y})),
        (record_of(a={"type": X}), record_of(b={"type": Y, "aliases": ["a"]}, c={"type": X})),
        (record_of(a={"type": ["null", X, Y]}), record_of(a={"type": ["null", Y]})),
        (
            record_of(a={"type": item("w", n={"type": ["null", "w.Item"]}, x={"type": X})}),
            record_of(a={"type": item("w", n={"type": ["null", "w.Item"]}, x={"type": Y})}),
        ),
    ],
)
def test_records_of_one_name_that_are_read_into_each_other(
    written: dict[str, Any], read: dict[str, Any]
) -> None:
    """Goal: fastavro reads a record as one of another namespace, also where its own is there."""
    with pytest.raises(ValueError, match=r"field code of y\.Item can be read from several fields"):
        check_aliases(parsed_of(written), parsed_of(read))


def test_a_value_that_its_column_cannot_hold_is_refused(source: TinyRegistry) -> None:
    """Goal: it does not become null."""
    millis = record_of(f={"type": {"type": "long", "logicalType": "timestamp-millis"}})
    number = source.add(SUBJECT, millis)
    source.add(SUBJECT, record_of(f="long"))
    at = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
    with pytest.raises(NotAvro, match="a value that its column cannot hold"):
        kept(source).decoded(wire(number, millis, {"f": at}))


def test_bytes_that_stay_keep_their_id_or_get_that_of_the_target(
    source: TinyRegistry, target: TinyRegistry
) -> None:
    """Goal: nothing but the id changes; the schema is registered under the topic's subject."""
    old = source.add(SUBJECT, OLD)
    data = wire(old, OLD, {"id": 1})
    assert kept(source).mapped(data, "a.orders") == data
    part = between(source, target)
    for _ in range(3):
        mapped = part.mapped(data, "a.orders")
        assert mapped is not None
        assert mapped[5:] == data[5:]
        assert struct.unpack(">bI", mapped[:5]) == (0, 100)
    assert part.mapped(None, "a.orders") is None
    assert {name: [target.schemas[n] for n in ids] for name, ids in target.subjects.items()} == {
        "a.orders-value": [json.dumps(OLD)]
    }
    assert target.requests == ["POST /subjects/a.orders-value/versions"]
    assert mapped is not None
    assert fastavro.schemaless_reader(
        io.BytesIO(mapped[5:]), fastavro.parse_schema(json.loads(target.schemas[100])), None
    ) == {"id": 1}


def test_registries_of_one_url_are_told_by_their_users(source: TinyRegistry) -> None:
    """Goal: where the user chooses the registry, ids are mapped; of the same user, they stay."""
    number = source.add(SUBJECT, OLD)
    source.tenants["target:secret"] = other = TinyRegistry(first_id=300)
    target = SchemaRegistry(RegistryAccess(source.url, "target:secret"))
    part = AvroPart("value", SUBJECT, client(source), target)
    assert not part.keeps_ids
    data = wire(number, OLD, {"id": 1})
    assert part.mapped(data, "a.orders") == wire(300, OLD, {"id": 1})
    assert other.subjects == {"a.orders-value": [300]}
    same = SchemaRegistry(RegistryAccess(f"{source.url}/"))
    assert AvroPart("value", SUBJECT, client(source), same).keeps_ids


@pytest.mark.parametrize("data", [b"", b"\0\0\0\0", b"\1\0\0\0\7\2", b'{"id": 1}'])
def test_bytes_that_are_not_in_the_wire_format_are_refused(
    source: TinyRegistry, target: TinyRegistry, data: bytes
) -> None:
    """Goal: no byte is taken for an id that is none."""
    source.add(SUBJECT, OLD)
    part = between(source, target)
    with pytest.raises(NotAvro, match="not in the wire format"):
        part.decoded(data)
    with pytest.raises(NotAvro, match="not in the wire format"):
        part.mapped(data, "t")


def test_bytes_that_do_not_fit_their_schema_are_refused(source: TinyRegistry) -> None:
    """Goal: a record that is cut off, has more bytes, or an id that nobody knows."""
    old = source.add(SUBJECT, OLD)
    part = kept(source)
    good = wire(old, OLD, {"id": 1_000_000})
    for data in (good[:-1], good[:5]):
        with pytest.raises(NotAvro, match=f"does not fit its schema {old}"):
            part.decoded(data)
    with pytest.raises(NotAvro, match="has more bytes than its schema"):
        part.decoded(good + b"x")
    with pytest.raises(RegistryRefusal, match="answers 404 to /schemas/ids/9"):
        part.decoded(struct.pack(">bI", 0, 9) + good[5:])


@pytest.mark.parametrize(
    ("schema_of", "value_of"),
    [
        (lambda record: record, lambda value: value),
        (lambda record: {"type": "array", "items": record}, lambda value: [value]),
        (lambda record: {**record_of(f={"type": record}), "name": "S"}, lambda value: {"f": value}),
    ],
)
def test_a_record_that_is_cut_off_in_a_skipped_field_is_refused(
    source: TinyRegistry, schema_of: Callable[[Any], Any], value_of: Callable[[Any], Any]
) -> None:
    """Goal: fields that the column lacks are there, whatever text they have."""
    schema = schema_of(record_of(id="long", x="string", y={"type": DUO}, z="double"))
    number = source.add(SUBJECT, schema)
    source.add(SUBJECT, schema_of(record_of(id="long")))
    data = wire(number, schema, value_of({"id": 1, "x": "abc", "y": b"xy", "z": 1.5}))
    expected = value_of({"id": 1})
    part = kept(source)
    assert part.decoded(data) == expected
    assert part.decoded(data.replace(b"abc", b"\xff\xff\xff")) == expected
    for length in range(5, len(data)):
        with pytest.raises(NotAvro, match=f"does not fit its schema {number}"):
            part.decoded(data[:length])


def test_times_beyond_those_of_python_are_skipped(source: TinyRegistry) -> None:
    """Goal: a field that the column lacks may have any value of its type."""
    number = source.add(SUBJECT, record_of(id="long", at={"type": MILLIS}))
    source.add(SUBJECT, record_of(id="long"))
    data = wire(number, record_of(id="long", at="long"), {"id": 1, "at": 2**60})
    assert kept(source).decoded(data) == {"id": 1}


def test_a_registry_that_is_away_is_named() -> None:
    """Goal: the message says which one."""
    registry = SchemaRegistry(RegistryAccess("http://127.0.0.1:9/"))
    with pytest.raises(RegistryTrouble, match=r"http://127\.0\.0\.1:9 does not answer"):
        registry.latest("orders-value")


def test_schemas_of_other_kinds_are_refused(
    source: TinyRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: what is not supported is said, and not read wrongly."""
    answer = {"id": 1, "schema": "x", "schemaType": "PROTOBUF"}
    monkeypatch.setattr(source, "answer", lambda *_: (200, answer))
    with pytest.raises(RegistryRefusal, match="schema 1 is of type PROTOBUF: expected AVRO"):
        kept(source)


COUNTRY: dict[str, Any] = {"type": "enum", "name": "acme.Country", "symbols": ["CH", "JP"]}
ADDRESS: dict[str, Any] = {
    "type": "record",
    "name": "acme.Address",
    "fields": [{"name": "city", "type": "string"}, {"name": "country", "type": "acme.Country"}],
}
SHIPPED: dict[str, Any] = {
    "type": "record",
    "name": "acme.Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "from", "type": "acme.Address"},
        {"name": "to", "type": ["null", "acme.Address"]},
        {"name": "made", "type": "acme.Country"},
    ],
}


def reference(name: str, subject: str, version: int) -> dict[str, Any]:
    return {"name": name, "subject": subject, "version": version}


def shipped(registry: TinyRegistry, address_version: int) -> int:
    """Register SHIPPED with what it refers to; one of it in two ways."""
    registry.add("country", COUNTRY)
    country = reference("acme.Country", "country", 1)
    registry.add("address", ADDRESS, [country])
    address = reference("acme.Address", "address", address_version)
    return registry.add(SUBJECT, SHIPPED, [address, country])


def test_schemas_that_refer_to_others(source: TinyRegistry, target: TinyRegistry) -> None:
    """Goal: read, written, and registered in the target in subjects of the same names."""
    target.add("address", {"type": "string"})  # versions differ from the source's
    number = shipped(source, 1)
    whole = {**SHIPPED, "fields": [*SHIPPED["fields"]]}
    whole["fields"][1] = {
        "name": "from",
        "type": {**ADDRESS, "fields": [ADDRESS["fields"][0], {"name": "country", "type": COUNTRY}]},
    }
    home = {"city": "Bern", "country": "CH"}
    value = {"id": 7, "from": home, "to": None, "made": "JP"}
    data = wire(number, whole, value)
    part = between(source, target)
    address = "struct<city:string,country:string>"
    assert part.column_type.simpleString() == (
        f"struct<id:bigint,from:{address},to:{address},made:string>"
    )
    assert part.decoded(data) == value
    for _ in range(2):
        mapped = part.mapped(data, "a.orders")
        assert mapped is not None
        assert mapped[5:] == data[5:]
    assert mapped is not None
    mapped_id = struct.unpack(">bI", mapped[:5])[1]
    assert target.subjects["a.orders-value"] == [mapped_id]
    country = reference("acme.Country", "country", 1)
    assert target.references[mapped_id] == [reference("acme.Address", "address", 2), country]
    assert [target.references[each] for each in target.subjects["address"]] == [[], [country]]
    assert part.encoded(part.decoded(data), "a.orders") == mapped


PARTY: dict[str, Any] = {**record_of(home="acme.Address"), "name": "acme.Party"}
DEPOT: dict[str, Any] = {**record_of(place="acme.Address", size="int"), "name": "acme.Depot"}
WHOLE_ADDRESS = {**ADDRESS, "fields": [ADDRESS["fields"][0], {"name": "country", "type": COUNTRY}]}
WHOLE_PARTY = {**record_of(home={"type": WHOLE_ADDRESS}), "name": "acme.Party"}
BERN_CH = {"city": "Bern", "country": "CH"}
PARTY_ROW = Row(home=Row(**BERN_CH))
DEPOT_ROW = Row(place=Row(**BERN_CH), size=3)


def events(registry: TinyRegistry, subject: str, schema: object) -> int:
    """Register a schema that refers to PARTY and DEPOT, which both refer to ADDRESS."""
    registry.add("country", COUNTRY)
    registry.add("address", ADDRESS, [reference("acme.Country", "country", 1)])
    address = reference("acme.Address", "address", 1)
    registry.add("party", PARTY, [address])
    registry.add("depot", DEPOT, [address])
    both = [reference("acme.Party", "party", 1), reference("acme.Depot", "depot", 1)]
    return registry.add(subject, json.dumps(schema), both)


@pytest.mark.parametrize(
    ("schema_of", "value_of"),
    [
        (lambda party: party, lambda value: value),
        (lambda party: ["null", party], lambda value: value),
        (lambda party: {"type": "array", "items": party}, lambda value: [value, value]),
        (lambda party: {"type": "map", "values": party}, lambda value: {"a": value, "b": value}),
        (lambda party: ["null", {"type": "array", "items": party}], lambda value: [value]),
        (
            lambda party: {"type": "array", "items": record_of(p={"type": party}, q="acme.Party")},
            lambda value: [Row(p=value, q=value)],
        ),
    ],
)
def test_schemas_that_are_made_of_types_of_others(
    source: TinyRegistry, schema_of: Callable[[Any], Any], value_of: Callable[[Any], Any]
) -> None:
    """Goal: a name, union, array or map of types that it refers to is read and written."""
    number = events(source, SUBJECT, schema_of("acme.Party"))
    events(source, "t-value", schema_of("acme.Party"))
    row = value_of(PARTY_ROW)
    value = Row(v=row).asDict(recursive=True)["v"]
    data = wire(number, schema_of(WHOLE_PARTY), value)
    part = kept(source)
    for _ in range(2):
        assert part.decoded(data) == value
        assert part.encoded(row, "t") == data
    with pytest.raises(NotAvro, match=f"does not fit its schema {number}"):
        part.decoded(data[:-1])


def test_several_types_of_other_schemas_in_one_topic(source: TinyRegistry) -> None:
    """Goal: a union of event types is written, is read as one of them, and is no column."""
    both = ["acme.Party", "acme.Depot"]
    number = events(source, SUBJECT, both)
    with pytest.raises(UnsupportedSchema, match="a union of several types has no column type"):
        kept(source)
    events(source, "t-value", both)
    for name, row in {"acme.Party": PARTY_ROW, "acme.Depot": DEPOT_ROW}.items():
        events(source, f"{name}-value", name)
        source.subjects[SUBJECT] = source.subjects[f"{name}-value"]
        part = kept(source)
        value = row.asDict(recursive=True)
        data = wire(number, [WHOLE_PARTY, DEPOT], (name, value))
        for _ in range(2):
            assert part.encoded(row, "t") == data
            assert part.decoded(data) == value


def test_records_of_types_of_others_are_resolved_to_a_later_version(source: TinyRegistry) -> None:
    """Goal: a union by names is read by a schema that is no union, and the other way round."""
    shapes = ["acme.Party", ["null", "acme.Party"], ["acme.Depot", "acme.Party"]]
    numbers = [events(source, f"{at}-value", shape) for at, shape in enumerate(shapes)]
    later = record_of(home="acme.Address", note={"type": "string", "default": "-"})
    address = reference("acme.Address", "address", 1)
    source.add("party", {**later, "name": "acme.Party"}, [address])
    value = {"home": BERN_CH}
    whole_depot = {**record_of(place={"type": WHOLE_ADDRESS}, size="int"), "name": "acme.Depot"}
    written = [WHOLE_PARTY, ["null", WHOLE_PARTY], [whole_depot, PARTY]]
    for latest in ("acme.Party", ["null", "acme.Party"]):
        source.add(SUBJECT, json.dumps(latest), [reference("acme.Party", "party", 2)])
        part = kept(source)
        for number, schema in zip(numbers, written, strict=True):
            hint = ("acme.Party", value) if isinstance(schema, list) else value
            assert part.decoded(wire(number, schema, hint)) == {**value, "note": "-"}


def test_a_name_that_no_schema_defines_is_refused(source: TinyRegistry) -> None:
    """Goal: it is said at the start, and no record is blamed."""
    for schema in ("acme.No", ["null", "acme.No"], {"type": "array", "items": "acme.No"}):
        number = events(source, SUBJECT, schema)
        with pytest.raises(UnsupportedSchema, match=rf"schema {number} cannot be read: acme\.No"):
            kept(source)


def two_versions(registry: TinyRegistry, other: dict[str, Any]) -> int:
    """Register a schema that reaches COUNTRY by an address, and this type directly."""
    registry.add("country", COUNTRY)
    country = reference("acme.Country", "country", 1)
    registry.add("address", ADDRESS, [country])
    registry.add("country", other)
    versions = [reference("acme.Address", "address", 1), reference("acme.Country", "country", 2)]
    return registry.add("other-value", SHIPPED, versions)


def test_two_definitions_of_a_type_are_refused(source: TinyRegistry) -> None:
    """Goal: CH is not read as AT, nor written as AT, whichever definition a client takes."""
    number = two_versions(source, {**COUNTRY, "symbols": ["AT", "CH", "JP"]})
    source.add(SUBJECT, OLD)
    part = kept(source)
    text = f"schema {number} cannot be read: it has two definitions of acme.Country that differ"
    with pytest.raises(UnsupportedSchema, match=text):
        part.decoded(struct.pack(">bI", 0, number) + b"\0")
    with pytest.raises(UnsupportedSchema, match=text):
        part.encoded(Row(id=1), "other")
    home = Row(city="Bern", country="CH")
    source.subjects["t-value"] = source.subjects["other-value"]
    with pytest.raises(UnsupportedSchema, match=text):
        part.encoded(Row(**{"id": 1, "from": home, "to": None, "made": "CH"}), "t")
    with pytest.raises(UnsupportedSchema, match=text):
        AvroPart("value", "other-value", client(source), client(source))


@pytest.mark.parametrize(
    "own",
    [
        {"name": "made", "type": {**COUNTRY, "symbols": ["JP", "CH"]}},
        {"name": "made", "type": ["null", {**COUNTRY, "default": "JP"}]},
        {"name": "x", "type": {"type": "array", "items": {**ADDRESS, "aliases": ["acme.A"]}}},
        {"name": "x", "type": {**ADDRESS, "fields": [*ADDRESS["fields"][::-1]]}},
    ],
)
def test_a_definition_that_differs_from_a_reference_is_refused(
    source: TinyRegistry, own: dict[str, Any]
) -> None:
    """Goal: types that the schema itself defines are compared with those that it refers to."""
    source.add("country", COUNTRY)
    country = reference("acme.Country", "country", 1)
    source.add("address", ADDRESS, [country])
    schema = {"type": "record", "name": "acme.Order", "fields": [own]}
    for text in (schema, ["null", schema]):
        source.add(SUBJECT, text, [reference("acme.Address", "address", 1)])
        with pytest.raises(UnsupportedSchema, match=r"two definitions of acme\.\w+ that differ"):
            kept(source)


def test_branches_with_two_definitions_of_a_type_are_refused(source: TinyRegistry) -> None:
    """Goal: fastavro parses the branches of a schema that is a union one by one."""
    other = {**COUNTRY, "symbols": ["AT", "CH"]}
    branches = [record_of(f={"type": COUNTRY}), {**record_of(f={"type": other}), "name": "S"}]
    source.add(SUBJECT, OLD)
    source.add("t-value", branches)
    with pytest.raises(UnsupportedSchema, match=r"two definitions of acme\.Country that differ"):
        kept(source).encoded(Row(f="CH"), "t")


def test_equal_definitions_of_a_type_are_no_matter(source: TinyRegistry) -> None:
    """Goal: one that differs in its text only is the same type."""
    fields = [{"name": "city", "type": {"type": "string", "avro.java.string": "String"}}]
    whole = {**ADDRESS, "doc": "x", "fields": [*fields, {"name": "country", "type": COUNTRY}]}
    source.add("address", whole)
    country = {"name": "Country", "namespace": "acme", "type": "enum", "symbols": ["CH", "JP"]}
    source.add("country", country)
    source.add("other", ADDRESS, [reference("acme.Country", "country", 1)])
    references = [reference("acme.Address", "address", 1), reference("other", "other", 1)]
    number = source.add(SUBJECT, SHIPPED, references)
    home = {"city": "Bern", "country": "CH"}
    value = {"id": 7, "from": home, "to": None, "made": "JP"}
    schema = {**SHIPPED, "fields": [*SHIPPED["fields"]]}
    schema["fields"][1] = {"name": "from", "type": whole}
    assert kept(source).decoded(wire(number, schema, value)) == value


RULES = {"domainRules": [{"name": "encrypt", "kind": "TRANSFORM", "type": "ENCRYPT"}]}


@pytest.mark.parametrize("subject", [SUBJECT, "address", "country"])
def test_schemas_with_rules_are_not_registered_without_them(
    source: TinyRegistry, target: TinyRegistry, subject: str
) -> None:
    """Goal: nobody writes in the clear what the source's registry has encrypted."""
    number = shipped(source, 1)
    source.more[source.subjects[subject][0]] = {"ruleSet": RULES}
    data = struct.pack(">bI", 0, number)
    with pytest.raises(RegistryRefusal, match=r"schema \d+ has a ruleSet: it is not registered"):
        between(source, target).mapped(data, "t")
    assert "t-value" not in target.subjects
    assert kept(source).mapped(data, "t") == data


def test_schemas_with_no_rules_or_metadata_are_registered(
    source: TinyRegistry, target: TinyRegistry
) -> None:
    """Goal: only rules are missed where they are not copied."""
    number = source.add(SUBJECT, OLD)
    none: dict[str, Any] = {"domainRules": [], "migrationRules": None}
    source.more[number] = {"ruleSet": none, "metadata": {"properties": {"owner": "x"}}}
    data = wire(number, OLD, {"id": 1})
    assert between(source, target).mapped(data, "t") == wire(100, OLD, {"id": 1})
    source.more[number] = {"ruleSet": None}
    assert between(source, target).mapped(data, "t") == wire(100, OLD, {"id": 1})


def test_references_without_an_end_are_refused(
    source: TinyRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: no registry makes the client ask for ever."""
    answer = source.answer

    def endless(method: str, path: str, body: Any) -> tuple[int, dict[str, Any]]:
        answer(method, path, body)
        more = [reference("a", "s", len(source.requests))]
        return 200, {"id": len(source.requests), "schema": "{}", "references": more}

    monkeypatch.setattr(source, "answer", endless)
    with pytest.raises(RegistryRefusal, match="more than 32 nested references"):
        kept(source)
    assert len(source.requests) < 50


def column_of(schema: Any) -> t.DataType:
    return column_type(*parsed_of(schema))


def test_the_types_of_columns() -> None:
    """Goal: each type of Avro has its type in Spark, and its values fit."""
    schema = {
        "type": "record",
        "name": "All",
        "namespace": "acme",
        "fields": [
            {"name": "flag", "type": "boolean"},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
            {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}]},
            {
                "name": "price",
                "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
            },
            {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
            {"name": "other", "type": "acme.Kind"},
            {"name": "raw", "type": {"type": "fixed", "name": "Two", "size": 2}},
            {"name": "tags", "type": {"type": "array", "items": "string"}},
            {"name": "counts", "type": {"type": "map", "values": "int"}},
            {"name": "uuid", "type": {"type": "string", "logicalType": "uuid"}},
        ],
    }
    found = column_of(schema)
    assert found.simpleString() == (
        "struct<flag:boolean,at:timestamp,day:date,price:decimal(9,2),kind:string,other:string,"
        "raw:binary,tags:array<string>,counts:map<string,int>,uuid:string>"
    )
    with tiny_registry() as registry:
        number = registry.add(SUBJECT, schema)
        part = kept(registry)
        value = {
            "flag": True,
            "at": datetime.datetime(2026, 1, 2, 3, 4, 5, 678901, datetime.UTC),
            "day": datetime.date(2026, 1, 2),
            "price": Decimal("12.50"),
            "kind": "A",
            "other": "B",
            "raw": b"xy",
            "tags": ["a"],
            "counts": {"a": 1},
            "uuid": "12345678-1234-5678-1234-567812345678",
        }
        data = wire(number, schema, value)
        assert part.decoded(data) == value
        registry.add("t-value", schema)
        assert part.encoded(part.decoded(data), "t") == data


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (["int", "string"], "union of several types"),
        (["null", {"type": "int", "logicalType": "time-millis"}], "time-millis of int is not supp"),
        (
            {"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"},
            "uuid of fixed is not supported",
        ),
        ({"type": "string", "logicalType": "date"}, "date of string is not supported"),
        ("Tree", "contains itself"),
    ],
)
def test_types_that_spark_does_not_have_are_refused(kind: object, text: str) -> None:
    """Goal: no value is squeezed into another type."""
    schema = {"type": "record", "name": "Tree", "fields": [{"name": "a", "type": kind}]}
    with pytest.raises(UnsupportedSchema, match=text):
        column_of(schema)
