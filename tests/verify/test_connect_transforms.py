"""`connect_transforms`: Kafka's transforms once more, and that the engine's agree with them."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinlog.kafka.errors import UserError
from twinlog.kafka.log.records import Headers, Record
from twinlog.mirror.record_converters import TransformError
from twinlog.mirror.transform_chain import parse_transforms
from twinlog.verify.connect_transforms import (
    KEY,
    VALUE,
    ConnectTransforms,
    Expected,
    NotTransformable,
)
from twinlog.verify.json_meaning import normal_form

PACKAGE = "org.apache.kafka.connect.transforms."
JSON = {
    f"{part}.converter{name}": text
    for part in ("key", "value")
    for name, text in (("", "org.apache.kafka.connect.json.JsonConverter"),)
} | {"key.converter.schemas.enable": "false", "value.converter.schemas.enable": "false"}


def one(class_name: str, /, **properties: str) -> dict[str, str]:
    """The settings of a flow with one transform; `value_literal` is `value.literal`."""
    own = {f"transforms.t.{k.replace('_', '.')}": v for k, v in properties.items()}
    return {"transforms": "t", "transforms.t.type": f"{PACKAGE}{class_name}", **own, **JSON}


def record(
    value: object = None, key: bytes | None = b"k", headers: Headers = (), timestamp: int = 1000
) -> Record:
    data = (
        None if value is None else value if isinstance(value, bytes) else json.dumps(value).encode()
    )
    return Record(7, timestamp, key, data, headers)


def expected(values: dict[str, str], given: Record, topic: str = "A.orders") -> Expected:
    return ConnectTransforms(values).expected(given, topic, 3)


def value_of(values: dict[str, str], value: object) -> object:
    data = expected(values, record(value)).value
    return None if data is None else json.loads(data)


@pytest.mark.parametrize(
    ("regex", "replacement", "topic"),
    [
        (r"A\.(.*)", "masked.$1", "masked.orders"),
        (r"A\.(.*)", "$12", "orders2"),
        (r"A\.(.*)", r"\$1\\$1", None),
        ("orders", "x", "A.orders"),
        (r"A|A\.orders", "B", "B.orders"),
        (r"(x)?A\.orders", "-$1-", "--"),
        (".*", "$0.copy", "A.orders.copy"),
    ],
)
def test_a_router_replaces_the_first_match(regex: str, replacement: str, topic: str | None) -> None:
    values = one("RegexRouter", regex=regex, replacement=replacement)
    if topic is None:
        with pytest.raises(NotTransformable, match=r"routed to '\$1"):
            expected(values, record())
        assert ConnectTransforms(values).topics_of("A.orders") == frozenset()
    else:
        assert expected(values, record()).topic == topic
        assert ConnectTransforms(values).topics_of("A.orders") == {topic}


DAY = 86_400_000


@pytest.mark.parametrize(
    ("formats", "timestamp", "topic"),
    [
        ({}, DAY, "A.orders-19700102"),
        ({}, -1, "A.orders-19691231"),
        ({"topic_format": "${timestamp}.x", "timestamp_format": "yyyy.M"}, 0, "1970.1.x"),
        ({"topic_format": "", "timestamp_format": "yyyy"}, 0, None),
        ({"timestamp_format": "HH:mm"}, 0, None),
        ({}, 1 << 60, None),
    ],
)
def test_a_router_names_topics_by_time(
    formats: dict[str, str], timestamp: int, topic: str | None
) -> None:
    values = one("TimestampRouter", **formats)
    transforms = ConnectTransforms(values)
    assert transforms.is_dated
    assert transforms.topics_of("A.orders") == frozenset()
    if topic is None:
        with pytest.raises(NotTransformable, match=r"routed to|has no date"):
            expected(values, record(timestamp=timestamp))
    else:
        assert expected(values, record(timestamp=timestamp)).topic == topic
        assert transforms.topics_of("A.orders", timestamp) == {topic}


def test_routers_by_time_and_by_name_together() -> None:
    """Goal: each sees the name that the one before has made, and predicates see that, too."""
    values = {
        **one("TimestampRouter", predicate="vip"),
        "transforms": "t,r,s",
        "transforms.r.type": "RegexRouter",
        "transforms.r.regex": r"A\.(\w+)-1970(\d+)",
        "transforms.r.replacement": "y1970.$1.$2",
        "transforms.s.type": "TimestampRouter",
        "transforms.s.topic.format": "${topic}_${timestamp}",
        "transforms.s.timestamp.format": "HH",
        "transforms.s.predicate": "old",
        "predicates": "vip,old",
        "predicates.vip.type": "HasHeaderKey",
        "predicates.vip.name": "vip",
        "predicates.old.type": "TopicNameMatches",
        "predicates.old.pattern": "y.*",
    }
    transforms = ConnectTransforms(values)
    assert transforms.topics_of("A.orders") == {"A.orders"}
    assert transforms.topics_of("A.orders", DAY) == {"A.orders", "y1970.orders.0102_00"}
    vip = (("vip", None),)
    for headers, timestamp, topic in (
        ((), DAY, "A.orders"),
        (vip, DAY, "y1970.orders.0102_00"),
        (vip, 400 * DAY, "A.orders-19710205"),
    ):
        assert expected(values, record(headers=headers, timestamp=timestamp)).topic == topic


def test_fields_are_changed_as_connect_does() -> None:
    value = {"a": 1, "b": "x", "c": [1], "d": {"e": 1}, "f": True, "g": 1.5, "h": None}
    masked = {"a": 0, "b": "", "c": [], "d": {}, "f": False, "g": 0.0, "h": None, "i": None}
    assert value_of(one("MaskField$Value", fields="a,b,c,d,f,g,h,i"), value) == masked
    assert value_of(one("MaskField$Value", fields="a,b", replacement="12"), value) == {
        **value,
        "a": 12,
        "b": "12",
    }
    assert value_of(
        one("ReplaceField$Value", exclude="a", include="a,b,c", renames="b:z"), value
    ) == {
        "z": "x",
        "c": [1],
    }
    assert value_of(one("ReplaceField$Value", blacklist="a,c,d,f,g,h"), value) == {"b": "x"}
    inserted = one(
        "InsertField$Value",
        topic_field="t?",
        partition_field="p!",
        timestamp_field="ts",
        static_field="s",
        static_value="v",
    )
    added = {"t": "A.orders", "p": 3, "ts": 1000, "s": "v"}
    assert value_of(inserted, {"a": 1}) == {"a": 1, **added}
    assert value_of(one("ExtractField$Value", field="d"), value) == {"e": 1}
    assert value_of(one("ExtractField$Value", field="none"), value) is None


def test_null_stays_null() -> None:
    """Goal: tombstones, and the text `null`, which keeps its bytes where nothing changes it."""
    for name in ("MaskField$Value", "ReplaceField$Value", "InsertField$Value"):
        values = one(name, fields="a", exclude="a", static_field="s", static_value="v")
        assert expected(values, record()).value is None
        assert expected(values, record(b" null")).value == b" null"
    assert expected(one("ExtractField$Value", field="a"), record(b"null")).value is None


def test_keys_and_headers_are_made_of_fields() -> None:
    value = {"id": 7, "name": "é", "list": [1], "none": None}
    keyed = expected(one("ValueToKey", fields="id,missing"), record(value))
    assert json.loads(keyed.key or b"") == {"id": 7, "missing": None}
    assert keyed.value == record(value).value, "not written anew"
    moved = one("HeaderFrom$Value", fields="id,name,none,list", headers="a,b,c,d", operation="move")
    result = expected(moved, record(value, headers=(("a", b"1"),)))
    assert result.headers == (
        ("a", b"1"),
        ("a", b"7"),
        ("b", "é".encode()),
        ("c", None),
        ("d", b"[1]"),
    )
    assert result.value == b"{}"
    copied = expected({**moved, "transforms.t.operation": "copy"}, record(value))
    assert copied.value == record(value).value


def test_a_field_becomes_a_key_of_text() -> None:
    """Goal: `ValueToKey` and `ExtractField$Key` with a StringConverter."""
    values = {
        **one("ValueToKey", fields="id"),
        "transforms": "t,e",
        "transforms.e.type": "ExtractField$Key",
        "transforms.e.field": "id",
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    }
    transforms = ConnectTransforms(values)
    assert transforms.meant_parts == set()
    for value, key in ((7, b"7"), ("é", "é".encode()), (True, b"true"), (None, None)):
        assert transforms.expected(record({"id": value}), "A.t", 0).key == key
    unwritable: tuple[object, ...] = (1.5, [1], {})
    for bad in unwritable:
        with pytest.raises(NotTransformable, match="cannot write"):
            transforms.expected(record({"id": bad}), "A.t", 0)


def test_headers_are_added_and_dropped() -> None:
    added = one("InsertHeader", header="h", value_literal="1 é")
    assert expected(added, record(headers=(("h", b"0"),))).headers == (
        ("h", b"0"),
        ("h", "1 é".encode()),
    )
    dropped = one("DropHeaders", headers="h,i")
    assert expected(dropped, record(headers=(("h", b"0"), ("j", None), ("h", b"1")))).headers == (
        ("j", None),
    )


@pytest.mark.parametrize("negate", [False, True])
def test_predicates_select_what_is_dropped(*, negate: bool) -> None:
    cases = [
        ("TopicNameMatches", {"pattern": r"A\..*"}, record(), "A.orders", True),
        ("TopicNameMatches", {"pattern": "orders"}, record(), "A.orders", False),
        ("HasHeaderKey", {"name": "h"}, record(headers=(("h", None),)), "A.orders", True),
        ("HasHeaderKey", {"name": "h"}, record(headers=(("hh", None),)), "A.orders", False),
        ("RecordIsTombstone", {}, record(), "A.orders", True),
        ("RecordIsTombstone", {}, record(b"null"), "A.orders", True),
        ("RecordIsTombstone", {}, record(b""), "A.orders", True),
        ("RecordIsTombstone", {}, record(b"{}"), "A.orders", False),
        ("HasHeaderKey", {"name": "h \n"}, record(headers=(("h", None),)), "A.orders", True),
    ]
    for name, properties, given_record, topic, holds in cases:
        values = {
            **one("Filter", predicate="p", negate=str(negate)),
            "predicates": "p",
            "predicates.p.type": f"{PACKAGE}predicates.{name}",
            **{f"predicates.p.{key}": text for key, text in properties.items()},
        }
        assert expected(values, given_record, topic).dropped == (holds != negate), name


def conditional(*steps: str) -> dict[str, str]:
    """Steps `to:TOPIC`, `drop` and `mask`, each by a header of its number, or by a topic's name."""
    values = {"transforms": ",".join(f"s{at}" for at in range(len(steps))), **JSON}
    predicates = []
    for at, step in enumerate(steps):
        action, _, rest = step.partition(" ")
        target, _, topic = rest.partition("@")
        prefix = f"transforms.s{at}."
        if action == "to":
            own = {"type": "RegexRouter", "regex": ".*", "replacement": target}
        else:
            own = (
                {"type": "Filter"}
                if action == "drop"
                else {"type": "MaskField$Value", "fields": "a"}
            )
        if topic != "always":
            predicates.append(f"p{at}")
            own["predicate"] = f"p{at}"
            kind = "TopicNameMatches" if topic else "HasHeaderKey"
            values[f"predicates.p{at}.type"] = kind
            values[f"predicates.p{at}.pattern" if topic else f"predicates.p{at}.name"] = (
                topic or str(at)
            )
        values |= {f"{prefix}{name}": text for name, text in own.items()}
    return {**values, "predicates": ",".join(predicates)}


@pytest.mark.parametrize(
    ("steps", "topics"),
    [
        (["to x@always"], {"x"}),
        (["to x"], {"x", "A.t"}),
        (["to x", "to y"], {"x", "y", "A.t"}),
        (["to x@always", "to y@x"], {"y"}),
        (["to x", "to y@x"], {"y", "A.t"}),
        (["drop"], {"A.t"}),
        (["drop @A.t"], set()),
        (["to x", "drop @A.t"], {"x"}),
        (["mask", "mask @A.t"], {"A.t"}),
        (["to __x", "to a:b"], {"A.t"}),
    ],
)
def test_the_topics_that_records_may_go_to(steps: list[str], topics: set[str]) -> None:
    assert ConnectTransforms(conditional(*steps)).topics_of("A.t") == topics


@given(
    steps=st.lists(
        st.sampled_from(
            ["to x", "to y", "to x@y", "to y@always", "drop", "drop @x", "mask", "to A.t@y"]
        ),
        min_size=1,
        max_size=5,
    ),
    headers=st.sets(st.integers(0, 4)),
)
def test_no_record_goes_elsewhere(steps: list[str], headers: set[int]) -> None:
    """Goal: the topics that follow from the settings are all."""
    transforms = ConnectTransforms(conditional(*steps))
    result = transforms.expected(
        record({"a": 1}, headers=tuple((str(at), b"") for at in sorted(headers))), "A.t", 0
    )
    assert result.dropped or result.topic in transforms.topics_of("A.t")


def test_what_cannot_be_transformed_is_an_error() -> None:
    for bad in (b"{", b"[1]", b'"x"', b"1", b"\xff", b"\x0b"):
        with pytest.raises(NotTransformable, match="transform t: the value is no"):
            expected(one("MaskField$Value", fields="a"), record(bad))
    with pytest.raises(NotTransformable, match="same name"):
        value_of(one("ReplaceField$Value", renames="a:b"), {"a": 1, "b": 2})
    with pytest.raises(NotTransformable, match="another type"):
        value_of(one("MaskField$Value", fields="a", replacement="x"), {"a": 1})
    bytes_only = one("MaskField$Value", fields="a")
    del bytes_only["value.converter"]
    with pytest.raises(NotTransformable, match="no JsonConverter"):
        expected(bytes_only, record({"a": 1}))


def test_a_dropped_record_needs_no_other_transform() -> None:
    values = {
        **one("Filter", predicate="p"),
        "transforms": "t,m",
        "transforms.m.type": "MaskField$Value",
        "transforms.m.fields": "a",
        "predicates": "p",
        "predicates.p.type": "HasHeaderKey",
        "predicates.p.name": "h",
    }
    marked = (("h", b""),)
    dropped = expected(values, record(b"{", headers=marked))
    assert (dropped.dropped, dropped.value) == (True, b"{")
    whole = expected(values, record({"a": 1}, headers=marked))
    assert (whole.dropped, json.loads(whole.value or b"")) == (True, {"a": 0}), "as it would be"


def test_what_verify_does_not_have_is_refused() -> None:
    with pytest.raises(UserError, match=r"transforms\.t\.timestamp\.format: 'MMM' is no part"):
        ConnectTransforms(one("TimestampRouter", timestamp_format="MMM"))
    with pytest.raises(UserError, match="a Cast: it has no such transform"):
        ConnectTransforms(one("Cast"))


# ---- the engine's -------------------------------------------------------------------------------

NAMES = st.sampled_from(["a", "b", "c", "card"])
LISTS = st.lists(NAMES, min_size=1, max_size=3, unique=True).map(",".join)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text("aé'\"\\\n{:,\x00", max_size=4)
)
FIELDS = SCALARS | st.lists(SCALARS, max_size=2) | st.dictionaries(NAMES, SCALARS, max_size=2)
OBJECTS = st.dictionaries(NAMES, FIELDS)
FULL_OBJECTS = st.fixed_dictionaries(
    {"a": FIELDS, "card": FIELDS}, optional={"b": FIELDS, "c": FIELDS}
)
TEXTS = st.builds(
    lambda value, indent: json.dumps(value, indent=indent).encode(),
    OBJECTS,
    st.none() | st.just(1),
) | st.sampled_from(
    [
        b"null",
        b" null\n",
        b"[1]",
        b'"x"',
        b"{",
        b"",
        b"\xff",
        b'{"a":1,"a":2.50}',
        b'{"a":1e400}',
        b'{"a":-0,"b":-0.0}',
        b'{"card":00}',
        b'{"a":NaN}',
        b"\xef\xbb\xbf{}",
    ]
)
HEADERS = st.lists(st.tuples(NAMES, st.none() | st.binary(max_size=3)), max_size=3).map(tuple)
RECORDS = st.builds(
    Record,
    st.just(7),
    st.integers(-1, 4_000_000_000_000),
    st.none() | st.binary(max_size=3) | TEXTS,
    st.none() | TEXTS,
    HEADERS,
)
PROPERTIES: dict[str, st.SearchStrategy[dict[str, str]]] = {
    "RegexRouter": st.fixed_dictionaries(
        {
            "regex": st.sampled_from([r"A\.(.*)", r"(.)\.(or)?(.*)", r"A|A\.orders", ".*", "x"]),
            "replacement": st.sampled_from(["$0", "x", "B$1", "$10", r"\$1\\", "__$0", "a.b"]),
        }
    ),
    "TimestampRouter": st.fixed_dictionaries(
        {},
        optional={
            "topic.format": st.sampled_from(["${timestamp}", "x", "B.${topic}.${timestamp}", "_"]),
            "timestamp.format": st.sampled_from(["yyyy-MM", "yyDDD", "HH'h'", "d.M.y", "_SSS"]),
        },
    ),
    "InsertHeader": st.fixed_dictionaries({"header": NAMES, "value.literal": st.just("some é")}),
    "DropHeaders": st.fixed_dictionaries({"headers": LISTS}),
    "ValueToKey": st.fixed_dictionaries({"fields": LISTS}),
    "Filter": st.just({}),
    "InsertField": st.fixed_dictionaries(
        {"topic.field": st.sampled_from(["t", "a?", "b!"])},
        optional={
            "partition.field": st.just("p"),
            "timestamp.field": st.just("ts"),
            "static.field": st.sampled_from(["s", "a"]),
            "static.value": st.just("fixed"),
        },
    ).filter(lambda own: "static.value" in own or "static.field" not in own),
    "ReplaceField": st.fixed_dictionaries(
        {},
        optional={
            "exclude": LISTS,
            "include": LISTS,
            "whitelist": LISTS,
            "renames": st.just("a:x,card:b"),
        },
    ),
    "MaskField": st.fixed_dictionaries(
        {"fields": LISTS},
        optional={"replacement": st.sampled_from(["12", "1.50", "-3e5", "xx"])},
    ),
    "ExtractField": st.fixed_dictionaries({"field": NAMES}),
    "HeaderFrom": st.fixed_dictionaries(
        {
            "fields": st.just("a,card"),
            "headers": st.just("a,from"),
            "operation": st.sampled_from(["move", "copy"]),
        }
    ),
}
OF_PARTS = ("InsertField", "ReplaceField", "MaskField", "ExtractField", "HeaderFrom")
SIDED = [f"{name}${side}" for name in OF_PARTS for side in ("Key", "Value")]
CLASSES = [*SIDED, *(name for name in PROPERTIES if name not in OF_PARTS)]


def properties_of(class_name: str) -> st.SearchStrategy[dict[str, str]]:
    return PROPERTIES[class_name.partition("$")[0]]


STEPS = st.sampled_from(CLASSES).flatmap(lambda name: st.tuples(st.just(name), properties_of(name)))
CONDITIONS = st.sampled_from(["", "topic", "header", "null"])
CONVERTERS = st.sampled_from(
    [
        "org.apache.kafka.connect.json.JsonConverter",
        "JsonConverter",
        "org.apache.kafka.connect.storage.StringConverter",
        "org.apache.kafka.connect.converters.ByteArrayConverter",
        "",
    ]
)


@st.composite
def flows(draw: st.DrawFn) -> dict[str, str]:
    """The settings of a flow with one to four transforms."""
    values = {
        "predicates": "topic,header,null",
        "predicates.topic.type": f"{PACKAGE}predicates.TopicNameMatches",
        "predicates.topic.pattern": r"A\..*",
        "predicates.header.type": "HasHeaderKey",
        "predicates.header.name": "a",
        "predicates.null.type": "RecordIsTombstone",
    }
    for part in ("key", "value"):
        if converter := draw(CONVERTERS):
            values[f"{part}.converter"] = converter
            values[f"{part}.converter.schemas.enable"] = "false"
    steps = draw(st.lists(st.tuples(STEPS, CONDITIONS, st.booleans()), min_size=1, max_size=4))
    values["transforms"] = ", ".join(f"t{at}" for at in range(len(steps)))
    for at, ((name, properties), condition, negate) in enumerate(steps):
        prefix = f"transforms.t{at}."
        values[f"{prefix}type"] = draw(st.sampled_from(["", PACKAGE])) + name
        values |= {f"{prefix}{key}": text for key, text in properties.items()}
        if condition or name == "Filter":
            values[f"{prefix}predicate"] = condition or "header"
            values[f"{prefix}negate"] = str(negate).lower()
    return values


def check_the_same(values: dict[str, str], given_record: Record) -> None:
    """The same topic, key, value and headers, or none, or an error of both.

    A key or value that is written anew is compared by its meaning, and all others by their bytes.
    """
    try:
        chain = parse_transforms(values)
    except UserError:  # `$1` without a group
        return
    transforms = ConnectTransforms(values)
    try:
        written = chain.apply(given_record, "A.orders", 3)
    except TransformError:
        with pytest.raises(NotTransformable):
            transforms.expected(given_record, "A.orders", 3)
        return
    result = transforms.expected(given_record, "A.orders", 3)
    assert result.dropped == (written is None)
    if written is None:
        return
    assert written.topic == result.topic
    assert written.topic in transforms.topics_of("A.orders", given_record.timestamp)
    assert transforms.is_dated or written.topic in transforms.topics_of("A.orders")
    assert (written.partition, written.timestamp) == (3, given_record.timestamp)
    for part, data, wanted in (
        (KEY, written.key, result.key),
        (VALUE, written.value, result.value),
    ):
        if part in transforms.meant_parts:
            assert normal_form(data) == normal_form(wanted)
        else:
            assert data == wanted
    meant = transforms.meant_headers
    assert [(n, normal_form(d) if n in meant else d) for n, d in written.headers] == [
        (n, normal_form(d) if n in meant else d) for n, d in result.headers
    ]


@settings(max_examples=300, deadline=None)
@given(values=flows(), given_record=RECORDS)
def test_the_engines_transforms_do_the_same(values: dict[str, str], given_record: Record) -> None:
    """Goal: chains of up to four transforms with predicates, on any records."""
    check_the_same(values, given_record)


@pytest.mark.parametrize("class_name", CLASSES)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_each_of_the_engines_transforms_does_the_same(class_name: str, data: st.DataObject) -> None:
    """Goal: each transform alone, on records that it can be applied to."""
    properties = data.draw(properties_of(class_name))
    values = {
        "transforms": "t",
        "transforms.t.type": class_name,
        **{f"transforms.t.{name}": text for name, text in properties.items()},
        **JSON,
    }
    if class_name == "Filter":
        values |= {"transforms.t.predicate": "p", "predicates": "p"}
        values |= {"predicates.p.type": "HasHeaderKey", "predicates.p.name": "a"}
    timestamp = data.draw(st.integers(0, 4_000_000_000_000))
    key, value = (json.dumps(data.draw(FULL_OBJECTS)).encode() for _ in (KEY, VALUE))
    check_the_same(values, Record(7, timestamp, key, value, data.draw(HEADERS)))
