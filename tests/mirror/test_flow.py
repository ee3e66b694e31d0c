"""Twin of twinlog.mirror.flow."""

from collections.abc import Mapping
from importlib.metadata import EntryPoint

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from twinlog.kafka.errors import UserError
from twinlog.lifecycle.flow_creation import properties_of, stored_properties
from twinlog.mirror import replication_policy
from twinlog.mirror.dataframe_transform import DataFrameTransform
from twinlog.mirror.flow import (
    THROTTLE,
    flow_of,
    flow_properties,
    flow_settings_of,
    kept_settings,
    lasting_settings,
    may_have_routed,
    may_route,
    records_map,
    transforms_of,
    wrong_throttle,
)
from twinlog.mirror.flow_circles import EXAMPLE_TOPIC
from twinlog.mirror.flow_settings import DEFAULT_POLICY, IDENTITY_POLICY, SETTINGS
from twinlog.mirror.mirror_maker_file import Flow, parse_mirror_maker_file
from twinlog.mirror.mirror_maker_report import flow_row
from twinlog.mirror.replication_policy import ReplicationPolicy
from twinlog.mirror.routed_names import ROUTED_TOPICS
from twinlog.mirror.settings import PARTITIONS, RATE, REPLICAS, kind_of, parse_settings
from twinlog.mirror.settings import SETTINGS as MIRROR_SETTINGS
from twinlog.mirror.transform_chain import TransformChain


def test_a_flow_survives_being_stored() -> None:
    properties = flow_properties({"topics": "orders", "replication.factor": "1"}, "a", "b")
    parse_settings(properties)
    assert kind_of(properties) == "translated"
    settings, policy = flow_of(properties)
    assert (settings.source_cluster_alias, settings.target_cluster_alias) == ("a", "b")
    assert settings.replication_factor == 1
    assert policy.format_remote_topic("a", "orders") == "a.orders"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"mirror.flow.source.cluster.alias": " "}, "source.cluster.alias is missing"),
        ({"mirror.flow.topic": "x"}, "mirror.flow.topic is not a setting of a flow"),
        ({"mirror.flow.topics": "("}, "mirror.flow.topics is '\\(': expected regular"),
        ({"mirror.flow.replication.policy.class": "Own"}, "replication.policy.class is 'Own'"),
    ],
)
def test_malformed_properties_are_refused(change: dict[str, str], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        flow_of(flow_properties({}, "a", "b") | change)


TRANSFORMS = {
    "transforms": "route",
    "transforms.route.type": "TimestampRouter",
    "transforms.route.topic.format": "${topic}-${timestamp}",
}


def test_transforms_are_stored_with_the_flow() -> None:
    """Goal: of a kind of its own, which no version without transforms runs."""
    properties = flow_properties(TRANSFORMS, "a", "b")
    parse_settings(properties)
    assert kind_of(properties) == "transactional"
    flow_of(properties)
    chain = transforms_of(properties)
    assert isinstance(chain, TransformChain)
    (step,) = chain.steps
    assert step.name == "route"
    in_transactions = flow_properties({"transaction.producer": "TRUE"}, "a", "b")
    assert kind_of(in_transactions) == "transactional"
    assert transforms_of(in_transactions) == TransformChain()
    with pytest.raises(UserError, match="expected one of"):
        transforms_of({**properties, "mirror.flow.transforms.route.type": "Mine"})


TIMED = TRANSFORMS
ROUTED = {
    "transforms": "r",
    "transforms.r.type": "org.apache.kafka.connect.transforms.RegexRouter",
    "transforms.r.regex": ".*",
    "transforms.r.replacement": "x",
}
MASKED = {
    "transforms": "m",
    "transforms.m.type": "MaskField$Value",
    "transforms.m.fields": "x",
    "value.converter": "JsonConverter",
    "value.converter.schemas.enable": "false",
}
QUERY = {"twinlog.transform.sql": "SELECT record FROM records"}
IN_TRANSACTIONS = {"transaction.producer": "true"}
GROUPS, MAP = "sync.group.offsets.enabled", "twinlog.offset.map"


ROUTED_BY_NAME = {
    **ROUTED,
    "transforms.r.predicate": "named",
    "predicates": "named",
    "predicates.named.type": "TopicNameMatches",
    "predicates.named.pattern": "a[.].*",
}
ROUTED_BY_HEADER = {
    **ROUTED_BY_NAME,
    "predicates.named.type": "HasHeaderKey",
    "predicates.named.name": "h",
}
del ROUTED_BY_HEADER["predicates.named.pattern"]
STAYING = {**QUERY, "twinlog.transform.routes": "false"}
TIMED_AND_ROUTED = {**TIMED, **ROUTED, "transforms": "r, route"}


@pytest.mark.parametrize("transforms", [TIMED, ROUTED_BY_HEADER, TIMED_AND_ROUTED, QUERY])
@pytest.mark.parametrize("name", [GROUPS, MAP])
def test_what_cannot_be_translated_is_refused(transforms: dict[str, str], name: str) -> None:
    """Goal: nobody relies on a map that is not recorded."""
    settings = {"enabled": "true", name: "true", **transforms}
    with pytest.raises(UserError, match=f"{name} of a->b is true: expected false"):
        stored_properties({"bootstrap.servers": "a:9092"}, settings, "a", "b")


@pytest.mark.parametrize(
    ("settings", "recorded"),
    [
        ({}, True),
        ({MAP: "false"}, True),
        (IN_TRANSACTIONS, False),
        (MASKED, False),
        ({**IN_TRANSACTIONS, MAP: "true"}, True),
        ({**MASKED, MAP: "true"}, True),
        ({**MASKED, GROUPS: "true"}, True),
        ({**MASKED, GROUPS: "true", "emit.checkpoints.enabled": "false"}, True),
        ({**TIMED, "enabled": "false", MAP: "true"}, False),
        (ROUTED, False),
        ({**ROUTED, MAP: "true"}, True),
        ({**ROUTED_BY_NAME, GROUPS: "true"}, True),
        ({**QUERY, "enabled": "false", GROUPS: "true"}, False),
        ({**STAYING, GROUPS: "true"}, True),
        ({**STAYING, MAP: "true"}, True),
        (STAYING, False),
    ],
)
def test_in_transactions_a_map_is_recorded_on_request(
    settings: dict[str, str], *, recorded: bool
) -> None:
    """Goal: others make no request for it, and offer no translation."""
    properties = stored_properties(
        {"bootstrap.servers": "a:9092"}, {"enabled": "true", **settings}, "a", "b"
    )
    assert records_map(properties) == recorded


@pytest.mark.parametrize(
    ("settings", "remote"),
    [
        (ROUTED, "a.orders"),
        ({**ROUTED, MAP: "true"}, "x"),
        ({**ROUTED_BY_NAME, GROUPS: "true"}, "x"),
        ({**MASKED, MAP: "true"}, "a.orders"),
        # An earlier version has accepted it, since no group is synced then.
        ({**ROUTED, GROUPS: "true", "emit.checkpoints.enabled": "false"}, "a.orders"),
        ({**ROUTED, GROUPS: "true", "sync.group.offsets.interval.seconds": "-1"}, "a.orders"),
    ],
)
def test_with_a_map_the_remote_topic_is_where_records_are_routed_to(
    settings: dict[str, str], remote: str
) -> None:
    """Goal: groups and checkpoints name the topic that has the records; other flows stay."""
    connection = {"bootstrap.servers": "a:9092"}
    properties = stored_properties(connection, {"enabled": "true", **settings}, "a", "b")
    assert flow_of(properties).policy.format_remote_topic("a", "orders") == remote
    assert (f"mirror.flow.{ROUTED_TOPICS}" in properties) == (remote == "x")


def test_an_earlier_version_s_setting_makes_no_map() -> None:
    """Goal: where positions are at another topic than the records, none is believed to be a map."""
    properties = flow_properties({"enabled": "true", **ROUTED, MAP: "true"}, "a", "b")
    assert not records_map(properties)
    assert flow_of(properties).policy.format_remote_topic("a", "orders") == "a.orders"


def test_transforms_of_a_file_are_stored() -> None:
    """Goal: no way from a file to a stored flow leaves its transforms behind."""
    text = "clusters = a, b\na.bootstrap.servers = a:1\nb.bootstrap.servers = b:1\n"
    text += "a->b.enabled = true\n"
    text += "".join(f"a->b.{name} = {value}\n" for name, value in TRANSFORMS.items())
    (flow, _) = parse_mirror_maker_file(text, lambda _, value: value).flows
    properties = properties_of(flow)
    assert kind_of(properties) == "transactional"
    chain = transforms_of(properties)
    assert isinstance(chain, TransformChain)
    assert [step.name for step in chain.steps] == ["route"]


def test_a_transform_by_spark_is_stored_with_the_flow() -> None:
    """Goal: the same kind as with other transforms, so that a flow may change to it and back."""
    text = "clusters = a, b\na.bootstrap.servers = a:1\nb.bootstrap.servers = b:1\n"
    text += "a->b.enabled = true\nkey.converter = StringConverter\n"
    text += "a->b.twinlog.transform.sql = SELECT record FROM records\n"
    (flow, _) = parse_mirror_maker_file(text, lambda _, value: value).flows
    properties = properties_of(flow)
    assert kind_of(properties) == "transactional"
    assert transforms_of(properties) == DataFrameTransform(sql="SELECT record FROM records")
    assert "mirror.flow.key.converter" not in properties
    flow_of(properties)
    with pytest.raises(UserError, match="both set: expected one of them"):
        transforms_of({**properties, "mirror.flow.transforms": "route"})


@pytest.mark.parametrize(
    ("transform", "routes"),
    [
        ({}, False),
        ({"transaction.producer": "true"}, False),
        (TRANSFORMS, True),
        ({**TRANSFORMS, "transforms.route.type": " RegexRouter"}, True),
        ({**TRANSFORMS, "transforms": " ", "twinlog.transform.sql": "SELECT record"}, True),
        ({"transforms": "drop", "transforms.drop.type": "DropHeaders"}, False),
        (
            {
                "transforms": "drop, route",
                "transforms.drop.type": "DropHeaders",
                "transforms.route.type": "org.apache.kafka.connect.transforms.TimestampRouter",
            },
            True,
        ),
    ],
)
def test_transforms_that_may_route(transform: Mapping[str, str], routes: bool) -> None:
    """Goal: an empty remote topic of such a flow does not show that nothing was copied."""
    properties = flow_properties(transform, "a", "b")
    assert may_route(properties) == may_have_routed(properties) == routes


def test_a_query_may_have_routed_before_it_may_not() -> None:
    """Goal: its former remote topics count, though the present query routes nothing."""
    properties = flow_properties(STAYING, "a", "b")
    assert not may_route(properties)
    assert may_have_routed(properties)


class Suffixed(ReplicationPolicy):
    """A policy that has a property of its own."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self.mark = properties["replication.policy.mark"]

    def format_remote_topic(self, source_cluster_alias: str, topic: str) -> str:
        return f"{topic}{self.mark}{source_cluster_alias}"

    def topic_source(self, topic: str) -> str | None:
        return topic.rpartition(self.mark)[2] if self.mark in topic else None

    def upstream_topic(self, topic: str) -> str | None:
        return topic.rpartition(self.mark)[0] if self.mark in topic else None


POLICY_FILE = """\
clusters = a, b
a.bootstrap.servers = a:1
b.bootstrap.servers = b:1
a->b.enabled = true
replication.policy.mark = -of-
"""


def test_the_properties_of_a_policy_of_ones_own_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: each node that runs the flow makes the same policy of the stored properties."""
    point = EntryPoint("Own", f"{__name__}:Suffixed", replication_policy.ENTRY_POINTS)
    monkeypatch.setattr(replication_policy, "entry_points", lambda **_: [point])
    text = f"{POLICY_FILE}a->b.replication.policy.class = Own\n"
    (flow, _) = parse_mirror_maker_file(text, lambda _, value: value).flows
    properties = properties_of(flow)
    parse_settings(properties)
    assert flow_of(properties).policy.format_remote_topic("a", "orders") == "orders-of-a"
    with pytest.raises(UserError, match=r"mirror\.flow\.policy\.x is not a setting of a flow"):
        flow_of({**properties, "mirror.flow.policy.x": "1"})


def test_kafkas_policies_ignore_properties_that_they_do_not_know() -> None:
    """Goal: a file that MirrorMaker 2 accepts can be stored."""
    (flow, _) = parse_mirror_maker_file(POLICY_FILE, lambda _, value: value).flows
    properties = properties_of(flow)
    assert flow_of(properties).policy.format_remote_topic("a", "orders") == "a.orders"
    with pytest.raises(UserError, match=r"replication\.policy\.mark is not a setting"):
        flow_of({**properties, "mirror.flow.replication.policy.mark": "-of-"})


HEADER = """\
clusters = A, B
A.bootstrap.servers = a:1
B.bootstrap.servers = b:1
A->B.enabled = true
B->A.emit.heartbeats.enabled = false
"""
FLAGS = st.sampled_from(["true", "false", "TRUE"])
INTERVALS = st.sampled_from(["7", "-1"])
FACTORS = st.sampled_from(["1", "-1"])
NAMES = st.sampled_from(["", "a.*,b", "orders"])
OTHERS = {
    "enabled": st.just("true"),
    "source.cluster.alias": st.sampled_from(["eu", "eu-1.x"]),
    "target.cluster.alias": st.sampled_from(["us"]),
    "twinlog.takeover.connector": st.sampled_from(["MirrorSourceConnector", "a->b.Source"]),
    "topics": NAMES,
    "topics.exclude": NAMES,
    "groups": NAMES,
    "groups.exclude": NAMES,
    "config.properties.exclude": NAMES,
    "replication.policy.class": st.sampled_from([DEFAULT_POLICY, IDENTITY_POLICY]),
    "replication.policy.separator": st.sampled_from([".", "_", "--"]),
    "replication.factor": FACTORS,
    "heartbeats.topic.replication.factor": FACTORS,
    "checkpoints.topic.replication.factor": FACTORS,
    "offset-syncs.topic.replication.factor": FACTORS,
    "use.defaults.from": st.sampled_from(["source", "target"]),
    "offset-syncs.topic.location": st.sampled_from(["source", "target"]),
    "offset.lag.max": st.just("0"),
    "tasks.max": st.just("4"),
    "admin.timeout.ms": st.just("5"),
    "consumer.poll.timeout.ms": st.just("5"),
    "metric.names.formats": st.just("new"),
    "metric.reporters": st.just("x.Y"),
    "connector.type": st.sampled_from(["source", "sink"]),
    "twinlog.data.loss": st.sampled_from(["fail", "continue"]),
    "twinlog.takeover": st.sampled_from(["refuse", "compare", "recorded", "ignore"]),
    "consumer.auto.offset.reset": st.sampled_from(["earliest", "latest"]),
    "consumer.isolation.level": st.sampled_from(["read_uncommitted", "read_committed"]),
}
"""Values of settings that are neither flags, nor intervals, nor of one class only."""


def value_of(name: str) -> st.SearchStrategy[str]:
    """Values of a setting; not only its default, except where it may have no other."""
    setting = SETTINGS[name]
    if name in OTHERS:
        return OTHERS[name]
    if name.endswith(".interval.seconds"):
        return INTERVALS
    if setting.default in {"true", "false"}:
        return FLAGS
    assert name.endswith(".class"), name
    return st.just(str(setting.default))


@st.composite
def flows(draw: st.DrawFn) -> Flow:
    """A flow of a file with any settings, each for all flows or for this one."""
    lines = []
    for name in draw(st.lists(st.sampled_from(list(SETTINGS)), unique=True)):
        everywhere = SETTINGS[name].everywhere and draw(st.booleans())
        value = f"{draw(value_of(name))}{draw(st.sampled_from(['', ' ']))}"
        if name.endswith((".separator", ".separator.enabled")):
            value = value.strip()  # Kafka's policies do not strip these
        lines.append(f"{'' if everywhere else 'A->B.'}{name} = {value}\n")
    file = parse_mirror_maker_file(HEADER + "".join(lines), lambda _, value: value)
    assert all("offset-syncs.topic" in problem.text for problem in file.problems)
    assume(not file.problems)
    (flow,) = file.flows
    return flow


@given(flow=flows())
def test_what_is_stored_of_a_file_and_read_back_is_the_same(flow: Flow) -> None:
    """Goal: what --check reports is what nodes do, whatever the file sets."""
    rules = flow_of(properties_of(flow))
    assert rules.settings == flow.settings
    alias = rules.settings.source_cluster_alias
    assert rules.policy.format_remote_topic(alias, EXAMPLE_TOPIC) == flow_row(flow).remote_topic


def test_settings_are_read_without_the_policy() -> None:
    """Goal: who needs no names of topics needs no package of the policy."""
    properties = flow_properties({"replication.policy.class": "com.example.Absent"}, "a", "b")
    with pytest.raises(UserError, match="Absent"):
        flow_of(properties)
    assert (
        flow_settings_of(properties).topics
        == flow_settings_of(flow_properties({}, "a", "b")).topics
    )


def test_a_flow_keeps_what_no_start_sets() -> None:
    """Goal: neither its own settings, nor its connection, nor what a start derives from both."""
    client = {"bootstrap.servers": "a:1", "client.id": "x"}
    own = stored_properties(client, {"topics": "t"}, "a", "b")
    assert lasting_settings(own) == {}
    defaults = {name: f" {setting.default}" for name, setting in MIRROR_SETTINGS.items()}
    assert lasting_settings(own | {name: defaults[name] for name in THROTTLE}) == {}
    altered = {RATE: "1000000", REPLICAS: "t:0", PARTITIONS: "7"}
    assert lasting_settings(own | altered) == altered


def test_what_a_flow_has_kept_is_reported_in_one_line() -> None:
    stored = {RATE: "1000000 ", REPLICAS: "t:*", PARTITIONS: MIRROR_SETTINGS[PARTITIONS].default}
    assert kept_settings(stored, {}) == (
        f"keeps {RATE}=1000000, {REPLICAS}=t:*, which kafka-mirrors --alter or an earlier start "
        "has set; to undo it, set its default"
    )
    assert kept_settings(stored, {RATE: "1000000"}).startswith(f"keeps {REPLICAS}=t:*, which")
    assert kept_settings(stored, stored) == ""


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        (RATE, " 1000000 ", None),
        (RATE, "0", "expected a whole number from 1 to"),
        (RATE, "1 MB", f"{RATE} is '1 MB': expected a whole number"),
        (REPLICAS, "*", None),
        (REPLICAS, "orders:0,users:*", None),
        (REPLICAS, "orders", "topic:partition and topic:*"),
    ],
)
def test_a_throttle_is_checked_as_that_of_a_mirror(
    name: str, text: str, expected: str | None
) -> None:
    wrong = wrong_throttle(name, text)
    assert wrong is None if expected is None else wrong is not None and expected in wrong
