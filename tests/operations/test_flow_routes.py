"""`flow_routes`: where the records of flows may go, and whose records a topic may hold."""

from collections.abc import Mapping
from dataclasses import replace
from uuid import UUID

from twinlog.lifecycle.flow_creation import stored_properties
from twinlog.mirror.dataframe_transform import DataFrameTransform
from twinlog.operations.flow_routes import Writer, flow_routes, writers_of
from twinlog.store.config_records import ConfigRecord, Mirror, MirrorTopic, key_of
from twinlog.store.snapshot import Snapshot

MERGED = {
    "transforms": "all",
    "transforms.all.type": "RegexRouter",
    "transforms.all.regex": ".*",
    "transforms.all.replacement": "all",
}


def flow(name: str, values: Mapping[str, str]) -> Mirror:
    connection = {"bootstrap.servers": "a:9092"}
    properties = stored_properties(
        connection, {"enabled": "true", "topics": "x", **values}, "a", "b"
    )
    return Mirror(name=name, source=properties, source_cluster_id="source")


def topic(flow_name: str, name: str) -> MirrorTopic:
    return MirrorTopic(
        mirror=flow_name,
        topic=name,
        topic_id=UUID(int=1),
        partitions=1,
        destination_topic=f"a.{name}",
    )


def snapshot(*records: ConfigRecord) -> Snapshot:
    return Snapshot(records={key_of(record): record for record in records})


def test_without_transforms_a_topic_goes_to_its_remote_topic() -> None:
    for values in ({}, {"transaction.producer": "true"}):
        (route,) = flow_routes(flow("f", values), [topic("f", "t")]).values()
        assert (route.targets, route.transforms) == (frozenset({"a.t"}), None)


def test_transforms_route_all_topics_but_heartbeats() -> None:
    routes = flow_routes(flow("f", MERGED), [topic("f", "t"), topic("f", "heartbeats")])
    assert routes["t"].targets == {"all"}
    transforms = routes["t"].transforms
    assert transforms is not None
    assert (transforms.topic, transforms.values) == ("a.t", MERGED), "no other setting"
    beats = routes["heartbeats"]
    assert (beats.targets, beats.transforms) == (frozenset({"a.heartbeats"}), None)


def test_with_a_map_transforms_see_another_name_than_that_of_the_remote_topic() -> None:
    """Goal: what is verified is what the flow does: no record is routed twice."""
    values = {**MERGED, "transforms.all.replacement": "eu-$0", "twinlog.offset.map": "true"}
    stored = replace(topic("f", "t"), destination_topic="eu-a.t")
    route = flow_routes(flow("f", values), [stored])["t"]
    assert route.targets == {"eu-a.t"}
    assert route.transforms is not None
    assert route.transforms.topic == "a.t"


def test_a_query_may_send_records_anywhere() -> None:
    values = {"twinlog.transform.sql": "SELECT record FROM records"}
    routes = flow_routes(flow("f", values), [topic("f", "t"), topic("f", "heartbeats")])
    assert routes["t"].query == DataFrameTransform(sql="SELECT record FROM records")
    assert (routes["t"].targets, routes["t"].is_transformed) == (frozenset(), True)
    beats = routes["heartbeats"]
    assert (beats.query, beats.targets) == (None, frozenset({"a.heartbeats"}))


def test_topics_that_are_named_by_time_are_not_known() -> None:
    values = {"transforms": "day", "transforms.day.type": "TimestampRouter"}
    routes = flow_routes(flow("f", values), [topic("f", "t")])
    assert (routes["t"].targets, routes["t"].is_dated) == (frozenset(), True)
    assert not writers_of(snapshot(flow("f", values), topic("f", "t")))


def test_all_flows_are_known_that_write_to_a_topic() -> None:
    """Goal: of one flow, of several, and of flows without transforms; never of a query."""
    query = flow("query", {"twinlog.transform.sql": "SELECT record FROM records"})
    plain = flow("plain", {})
    broken = flow("broken", MERGED)
    bad = {**broken.source, "mirror.flow.transforms.all.type": "Unknown"}
    writers = writers_of(
        snapshot(
            flow("one", MERGED),
            *(topic("one", "t"), topic("one", "u")),
            *(flow("two", MERGED), topic("two", "t")),
            *(plain, topic("plain", "x")),
            *(query, topic("query", "t")),
            *(Mirror(name="broken", source=bad, source_cluster_id="source"),),
            topic("broken", "t"),
        )
    )
    assert {name: set(each) for name, each in writers.items()} == {
        "all": {Writer("one", "t"), Writer("one", "u"), Writer("two", "t")},
        "a.x": {Writer("plain", "x")},
    }
