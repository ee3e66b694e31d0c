"""Transforms of a flow: from properties to what is written."""

import pytest

from twinlog.kafka.errors import UserError
from twinlog.kafka.log.records import Record
from twinlog.mirror.mm2_records import Heartbeat, encode
from twinlog.mirror.record_converters import TransformError
from twinlog.mirror.transform_chain import (
    OF_HEARTBEATS,
    TransformChain,
    Transformed,
    has_transforms,
    is_transform_property,
    parse_transforms,
    routes_by_name,
    wrong_transforms,
)

PACKAGE = "org.apache.kafka.connect.transforms."
RECORD = Record(7, 1000, b"k", b'{"card":"1234","a":1}', (("h", b"1"),))
JSON = {
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter.schemas.enable": "false",
}
MASK = {
    "transforms": "mask",
    "transforms.mask.type": f"{PACKAGE}MaskField$Value",
    "transforms.mask.fields": "card",
    **JSON,
}


def test_without_transforms_a_record_stays_as_it_is() -> None:
    assert parse_transforms({"topics": "x"}) == TransformChain()
    assert TransformChain().apply(RECORD, "A.t", 2) == Transformed("A.t", 2, *RECORD[1:])


def test_heartbeats_stay_as_they_are_and_other_records_of_their_topics_are_refused() -> None:
    """Goal: `devices.heartbeats` may be an application's; a mask is not left out in silence."""
    beat = Heartbeat(source_cluster_alias="devices", target_cluster_alias="b", timestamp=1000)
    key, value = encode(beat)
    for record in (Record(7, 1000, key, value, ()), Record(8, 1000, key, None, ())):
        applied = OF_HEARTBEATS.apply(record, "A.devices.heartbeats", 0)
        assert applied == Transformed("A.devices.heartbeats", 0, *record[1:])
    others = [(b"k", b'{"card":"1234"}'), (None, value), (key, b"{}")]
    for record in [Record(7, 1000, *other, ()) for other in others]:
        with pytest.raises(TransformError, match=r"no heartbeat .*heartbeats\.replication\.enab"):
            OF_HEARTBEATS.apply(record, "A.devices.heartbeats", 0)


def test_transforms_are_applied_in_their_order() -> None:
    values = {
        **MASK,
        "transforms": "route, mask, stamp",
        "transforms.route.type": "RegexRouter",
        "transforms.route.regex": "A\\.(.*)",
        "transforms.route.replacement": "masked.$1",
        "transforms.stamp.type": "InsertField$Value",
        "transforms.stamp.topic.field": "topic",
    }
    assert parse_transforms(values).apply(RECORD, "A.t", 2) == Transformed(
        "masked.t", 2, 1000, b"k", b'{"card":"","a":1,"topic":"masked.t"}', (("h", b"1"),)
    )


ROUTE = {
    "transforms": "mask, old, drop, route",
    "transforms.mask.type": f"{PACKAGE}MaskField$Value",
    "transforms.mask.fields": "card",
    "transforms.old.type": "RegexRouter",
    "transforms.old.regex": "A[.](.*)",
    "transforms.old.replacement": "$1",
    "transforms.drop.type": "Filter",
    "transforms.drop.predicate": "unwanted",
    "transforms.route.type": "RegexRouter",
    "transforms.route.regex": ".*",
    "transforms.route.replacement": "eu-$0",
    "transforms.route.predicate": "kept",
    "transforms.route.negate": "true",
    "predicates": "unwanted, kept",
    "predicates.unwanted.type": "TopicNameMatches",
    "predicates.unwanted.pattern": "unwanted",
    "predicates.kept.type": f"{PACKAGE}predicates.TopicNameMatches",
    "predicates.kept.pattern": "kept",
    **JSON,
}
"""Routes by names alone, and changes values."""


@pytest.mark.parametrize(
    ("remote", "routed"),
    [("A.t", "eu-t"), ("B.t", "eu-B.t"), ("A.kept", "kept")],
)
def test_where_names_route_all_records_go_to_one_topic(remote: str, routed: str) -> None:
    """Goal: the topic that is known in advance is the one that records are written to."""
    chain = parse_transforms(ROUTE)
    assert routes_by_name(ROUTE)
    assert chain.routed_topic(remote) == routed
    written = chain.apply(RECORD, remote, 2)
    assert (written.topic if written else remote) == routed
    assert TransformChain().routed_topic(remote) == remote


@pytest.mark.parametrize(
    "change",
    [
        {"predicates.kept.type": "HasHeaderKey"},
        {"transforms.old.type": f"{PACKAGE}TimestampRouter"},
        {"transforms.route.predicate": "unknown"},
    ],
)
def test_what_routes_by_more_than_names(change: dict[str, str]) -> None:
    assert not routes_by_name({**ROUTE, **change})


def test_other_transforms_may_read_records() -> None:
    assert routes_by_name(MASK)
    assert routes_by_name({**ROUTE, "predicates.unwanted.type": "RecordIsTombstone"})


def test_a_filter_moves_no_topic() -> None:
    """Goal: with a `Filter` more or less, a flow's topics keep their names, and it starts."""
    chain = parse_transforms(ROUTE)
    assert chain.apply(RECORD, "A.unwanted", 2) is None
    kept = {name: text for name, text in ROUTE.items() if "drop" not in name}
    del kept["predicates.unwanted.type"], kept["predicates.unwanted.pattern"]
    without = parse_transforms({**kept, "transforms": "mask, old, route", "predicates": "kept"})
    assert chain.routed_topic("A.unwanted") == without.routed_topic("A.unwanted") == "eu-unwanted"


def test_a_topic_that_none_may_be_routed_to_keeps_its_name() -> None:
    """Goal: its partition fails with the reason that `apply` gives; no such topic is created."""
    chain = parse_transforms({**ROUTE, "transforms.route.replacement": "__$0"})
    assert chain.routed_topic("A.t") == "A.t"
    with pytest.raises(TransformError, match="__t, an internal topic"):
        chain.apply(RECORD, "A.t", 2)


@pytest.mark.parametrize(("negate", "dropped"), [("false", True), ("true", False)])
def test_a_filter_drops_what_its_predicate_selects(negate: str, dropped: bool) -> None:
    values = {
        "transforms": "drop",
        "transforms.drop.type": f"{PACKAGE}Filter",
        "transforms.drop.predicate": "marked",
        "transforms.drop.negate": negate,
        "predicates": "marked",
        "predicates.marked.type": f"{PACKAGE}predicates.HasHeaderKey",
        "predicates.marked.name": "h",
    }
    chain = parse_transforms(values)
    assert (chain.apply(RECORD, "A.t", 2) is None) == dropped
    assert (chain.apply(RECORD._replace(headers=()), "A.t", 2) is None) != dropped


def test_a_failure_names_the_transform() -> None:
    with pytest.raises(TransformError, match="transform mask: it is no JSON text"):
        parse_transforms(MASK).apply(RECORD._replace(value=b"{"), "A.t", 0)


@pytest.mark.parametrize("topic", ["a b", "", "..", "x" * 250, "__consumer_offsets"])
def test_a_record_is_not_routed_to_what_is_no_topic(topic: str) -> None:
    values = {
        "transforms": "r",
        "transforms.r.type": "TimestampRouter",
        "transforms.r.topic.format": topic,
    }
    with pytest.raises(TransformError, match="routed"):
        parse_transforms(values).apply(RECORD, "A.t", 0)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"transforms": "mask,other"}, r"transforms\.other\.type is missing.*SOURCE->TARGET"),
        ({"transforms": "mask,,x"}, "transforms is 'mask,,x': expected a list without empty"),
        ({"transforms.mask.type": "Mine"}, "expected one of"),
        ({"transforms.mask.predicate": "p"}, "expected one of predicates: none"),
        ({"transforms.mask.negate": "true"}, "negate needs one"),
        ({"transforms.mask.type": "Filter", "transforms.mask.fields": ""}, "fields"),
        ({"transforms.more.type": "Filter"}, "transforms does not name it"),
        ({"predicates.p.type": "HasHeaderKey"}, "predicates does not name it"),
        ({"value.converter": "AvroConverter"}, "expected one of ByteArrayConverter"),
        ({"value.converter.schemas.enable": "true"}, "expected false"),
        ({"value.converter.schemas.enable": "x"}, "true or false"),
        ({"value.converter.schema.enable": "x"}, "unknown property"),
        (
            {"key.converter": "StringConverter", "key.converter.converter.encoding": "ISO-8859-1"},
            "expected UTF-8",
        ),
    ],
)
def test_wrong_properties_are_refused(change: dict[str, str], error: str) -> None:
    with pytest.raises(UserError, match=error):
        parse_transforms({**MASK, **change})


MISTAKES = {
    "transforms": "route, insert, head, gone",
    "transforms.route.type": "TimestampRouter",
    "transforms.route.timestamp.format": "MMM",
    "transforms.insert.type": "InsertField$Value",
    "transforms.insert.offset.field": "o",
    "transforms.insert.static.field": "s",
    "transforms.insert.predicate": "marked",
    "transforms.head.type": "HeaderFrom$Key",
    "transforms.head.fields": "a,,b",
    "transforms.head.headers": "x",
    "transforms.head.operation": "cut",
    "transforms.more.type": "Filter",
    "transforms.more.predicate": "marked",
    "predicates": "marked",
    "predicates.marked.type": "HasHeaderKey",
    "predicates.marked.nam": "h",
    "key.converter": "AvroConverter",
    "value.converter": "JsonConverter",
}
WRONG = [
    "predicates.marked.name",
    "predicates.marked.nam",
    "transforms.route.timestamp.format",
    "transforms.insert.offset.field",
    "transforms.insert.static.value",
    "transforms.head.fields",
    "transforms.head.operation",
    "transforms.gone.type",
    "transforms.more.predicate",
    "key.converter",
    "value.converter.schemas.enable",
]


def test_properties_of_converters_that_mean_nothing_without_schemas() -> None:
    more = ("schemas.cache.size", "decimal.format", "replace.null.with.default", "plugin.version")
    values = {**MASK, **{f"value.converter.{name}": "x" for name in more}}
    values |= {"key.converter": "StringConverter", "key.converter.converter.encoding": "utf8"}
    assert parse_transforms(values).key_converter.name == "StringConverter"


def test_all_mistakes_are_found_at_once() -> None:
    """Goal: none hides another one, and none is reported that follows from another one only."""
    wrong = wrong_transforms(MISTAKES)
    assert [one.name for one in wrong] == WRONG
    with pytest.raises(UserError) as raised:
        parse_transforms(MISTAKES)
    assert str(raised.value) == "; ".join(str(one.error) for one in wrong)
    assert wrong_transforms(MASK) == ()
    assert wrong_transforms({"topics": "x"}) == ()


def test_a_filter_without_a_predicate_is_refused() -> None:
    """Goal: in Kafka it drops every record."""
    with pytest.raises(UserError, match="drop every record"):
        parse_transforms({"transforms": "f", "transforms.f.type": f"{PACKAGE}Filter"})


def test_which_properties_belong_to_transforms() -> None:
    names = ["transforms", "transforms.x.type", "predicates.p.type", "key.converter", "topics"]
    assert [is_transform_property(name) for name in names] == [True, True, True, True, False]
    assert [has_transforms({"transforms": text}) for text in ("", " ", "x")] == [False, False, True]
