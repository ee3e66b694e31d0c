"""Each transform by itself, and its errors; test_record_transforms_java.py compares with Java."""

from typing import Any

import pytest

from twinlog.kafka.errors import UserError
from twinlog.mirror.record_converters import BYTES, JSON, TransformError
from twinlog.mirror.record_transforms import (
    FlowRecord,
    Headers,
    Part,
    predicate_named,
    transform_named,
)
from twinlog.mirror.transform_options import TransformOptions


def record(
    value: bytes | None = b'{"a":1,"b":"x"}',
    key: bytes | None = b"k",
    *,
    topic: str = "A.orders",
    headers: Headers = (("h", b"1"),),
) -> FlowRecord:
    return FlowRecord(topic, 3, 1_753_000_059_007, Part(key, BYTES), Part(value, JSON), headers)


def apply(name: str, one: FlowRecord, **properties: str) -> Any:
    values = {key.replace("_", "."): value for key, value in properties.items()}
    return transform_named(name, TransformOptions("transforms.t.", values))(one)


def changed(name: str, value: bytes | None = b'{"a":1,"b":"x"}', **properties: str) -> Any:
    return apply(name, record(value), **properties).value.bytes()


@pytest.mark.parametrize(
    ("regex", "replacement", "expected"),
    [
        (r"A\.(.*)", "$1", "orders"),
        (r"(.)\.(.*)", r"$2-\$1-$12", "orders-$1-A2"),
        (r"orders", "x", "A.orders"),  # the whole name has to match
        (r"A|A\.orders", "x", "x.orders"),  # what is replaced is the first match
        (r"A\.(x)?orders", "<$1>", "<>"),
        (r".*", "p-$0", "p-A.orders"),
    ],
)
def test_topics_by_a_regular_expression(regex: str, replacement: str, expected: str) -> None:
    assert apply("RegexRouter", record(), regex=regex, replacement=replacement).topic == expected


def test_topics_by_the_timestamp() -> None:
    assert apply("TimestampRouter", record()).topic == "A.orders-20250720"
    formats = {"topic_format": "${timestamp}_${topic}", "timestamp_format": "yyyy"}
    assert apply("TimestampRouter", record(), **formats).topic == "2025_A.orders"
    late = FlowRecord("t", 0, 1 << 60, Part(None, BYTES), Part(None, BYTES))
    with pytest.raises(TransformError, match="no date"):
        apply("TimestampRouter", late)


def test_fields_are_inserted() -> None:
    fields = {"topic_field": "t", "partition_field": "p!", "timestamp_field": "ts?"}
    assert changed("InsertField$Value", b"{}", **fields) == (
        b'{"t":"A.orders","p":3,"ts":1753000059007}'
    )
    static: dict[str, Any] = {"static_field": "a", "static_value": "new"}
    assert changed("InsertField$Value", **static) == b'{"a":"new","b":"x"}'
    assert changed("InsertField$Value", None, **static) is None


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        (b'{"id":1}', None, b'{"id":1,"s":"v"}'),
        (b'{"id":1}', b"null", b'{"id":1,"s":"v"}'),
        (None, b"{}", None),
        (b"null", b"{}", b"null"),
        (None, None, None),
    ],
)
def test_fields_are_inserted_into_the_keys_of_tombstones(
    key: bytes | None, value: bytes | None, expected: bytes | None
) -> None:
    """Goal: a compacted topic forgets what it has under the changed key (KAFKA-9707)."""
    one = record(value)._replace(key=Part(key, JSON))
    after = apply("InsertField$Key", one, static_field="s", static_value="v")
    assert (after.key.bytes(), after.value.bytes()) == (expected, value)


def test_fields_are_dropped_and_renamed() -> None:
    assert changed("ReplaceField$Value", exclude="a", renames="b:c") == b'{"c":"x"}'
    assert changed("ReplaceField$Value", include="a") == b'{"a":1}'
    # The names until Kafka 3.9; the present ones have precedence.
    assert changed("ReplaceField$Value", blacklist="a") == b'{"b":"x"}'
    assert changed("ReplaceField$Value", whitelist="a") == b'{"a":1}'
    assert changed("ReplaceField$Value", blacklist="a", exclude="b") == b'{"a":1}'
    with pytest.raises(TransformError, match="same name"):
        changed("ReplaceField$Value", renames="a:b")


def test_fields_are_masked_by_their_type() -> None:
    value = b'{"i":5,"f":2.5,"s":"x","b":true,"l":[1],"o":{"x":1},"n":null}'
    names = "i,f,s,b,l,o,n,missing"
    assert changed("MaskField$Value", value, fields=names) == (
        b'{"i":0,"f":0.0,"s":"","b":false,"l":[],"o":{},"n":null,"missing":null}'
    )
    assert changed("MaskField$Value", value, fields="i,s", replacement="7").startswith(
        b'{"i":7,"f":2.5,"s":"7"'
    )
    for name, text in (("b", "x"), ("l", "x"), ("i", "x"), ("f", "x"), ("f", "NaN")):
        with pytest.raises(TransformError, match="MaskField"):
            changed("MaskField$Value", value, fields=name, replacement=text)


def test_keys_are_made_from_values() -> None:
    keyed = apply("ValueToKey", FlowRecord("t", 0, 0, Part(b"x", JSON), record().value), fields="b")
    assert keyed.key.bytes() == b'{"b":"x"}'
    assert apply("ExtractField$Key", keyed, field="b").key.bytes() == b'"x"'
    with pytest.raises(UserError, match=r"property transforms\.t\.topics"):
        apply("ValueToKey", record(), fields="b", topics="others")
    assert apply("ExtractField$Value", record(None), field="b").value.bytes() is None


def test_headers() -> None:
    added = apply("InsertHeader", record(), header="n", value_literal="é")
    assert added.headers == (("h", b"1"), ("n", "é".encode()))
    assert apply("DropHeaders", added, headers="h, x").headers == (("n", "é".encode()),)
    lists = {"fields": "a,b,c", "headers": "x,y,z"}
    moved = apply("HeaderFrom$Value", record(), **lists, operation="move")
    assert moved.headers[1:] == (("x", b"1"), ("y", b"x"), ("z", None))
    assert moved.value.bytes() == b"{}"
    copied = apply("HeaderFrom$Value", record(), **lists, operation="copy")
    assert (copied.headers, copied.value.bytes()) == (moved.headers, record().value.bytes())


def test_what_is_not_changed_keeps_its_bytes() -> None:
    """Goal: a value that a transform does not touch is not written anew."""
    text = b' { "a" : 1.0 } '
    assert changed("RegexRouter", text, regex="x", replacement="y") == text
    assert changed("HeaderFrom$Value", text, fields="a", headers="h", operation="copy") == text


def test_fields_of_bytes_are_an_error_that_names_the_converter() -> None:
    with pytest.raises(TransformError, match=r"key is bytes.*key\.converter"):
        apply("MaskField$Key", record(), fields="a")
    with pytest.raises(TransformError, match="is a list") as error:
        changed("MaskField$Value", b"[]", fields="a")
    assert "converter" not in str(error.value), "it is set"
    assert "predicate" in str(error.value)


def test_predicates() -> None:
    options = {"pattern": r"A\..*"}
    assert predicate_named("TopicNameMatches", TransformOptions("p.", options))(record())
    assert not predicate_named("TopicNameMatches", TransformOptions("p.", {"pattern": "A"}))(
        record()
    )
    has = predicate_named("HasHeaderKey", TransformOptions("p.", {"name": "h"}))
    assert (has(record()), has(record(headers=()))) == (True, False)
    tombstone = predicate_named("RecordIsTombstone", TransformOptions("p.", {}))
    assert [tombstone(record(v)) for v in (None, b"null", b"", b"{}")] == [True, True, True, False]


@pytest.mark.parametrize(
    ("name", "properties", "error"),
    [
        ("MaskField", {}, r"t\.type is 'MaskField': expected one of .*MaskField\$Value"),
        ("org.example.Mine", {}, "expected one of"),
        ("MaskField$Value", {}, r"transforms\.t\.fields is missing"),
        ("MaskField$Value", {"fields": "a", "replacment": "x"}, "unknown property .*replacment"),
        ("MaskField$Value", {"fields": "a,,b"}, "empty items"),
        ("MaskField$Value", {"fields": "a", "replacement": ""}, "not empty"),
        ("RegexRouter", {"regex": "(", "replacement": "x"}, "regular expression"),
        ("RegexRouter", {"regex": "x", "replacement": "$1"}, "with a group"),
        ("RegexRouter", {"regex": "x", "replacement": "${a}"}, "with a group"),
        ("RegexRouter", {"regex": "x", "replacement": "a\\"}, "backslash"),
        ("TimestampRouter", {"timestamp_format": "MMM"}, "date pattern"),
        ("InsertField$Value", {}, r"topic\.field is missing"),
        ("InsertField$Value", {"static_field": "a"}, r"static\.value is missing"),
        ("InsertField$Value", {"offset_field": "o"}, "sink connectors only"),
        ("ReplaceField$Value", {"renames": "a"}, "OLD:NEW"),
        ("ReplaceField$Value", {"renames": "a:c,b:c"}, "different new names"),
        ("ExtractField$Key", {"field": "a", "field_syntax_version": "V2"}, "nested"),
        ("HeaderFrom$Key", {"fields": "a", "headers": "x,y", "operation": "move"}, "as many"),
        ("HeaderFrom$Key", {"fields": "a", "headers": "x", "operation": "cut"}, "move or copy"),
        ("InsertField$Value", {"topic_field": "t", "replace_null_with_default": "x"}, "true or"),
    ],
)
def test_wrong_properties_are_refused(name: str, properties: dict[str, str], error: str) -> None:
    with pytest.raises(UserError, match=error):
        apply(name, record(), **properties)


def test_an_unknown_predicate_is_refused() -> None:
    with pytest.raises(UserError, match="TopicNameMatches, HasHeaderKey"):
        predicate_named("Mine", TransformOptions("predicates.p.", {}))
