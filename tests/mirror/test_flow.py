"""Twin of twinlog.mirror.flow."""

from collections.abc import Mapping
from importlib.metadata import EntryPoint

import pytest

from twinlog.kafka.errors import UserError
from twinlog.lifecycle.flow_creation import properties_of, stored_properties
from twinlog.mirror import replication_policy
from twinlog.mirror.dataframe_transform import DataFrameTransform
from twinlog.mirror.flow import flow_of, flow_properties, transforms_of
from twinlog.mirror.mirror_maker_file import parse_mirror_maker_file
from twinlog.mirror.replication_policy import ReplicationPolicy
from twinlog.mirror.settings import kind_of, parse_settings
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
    ((name, _),) = chain.steps
    assert name == "route"
    in_transactions = flow_properties({"transaction.producer": "TRUE"}, "a", "b")
    assert kind_of(in_transactions) == "transactional"
    assert transforms_of(in_transactions) == TransformChain()
    with pytest.raises(UserError, match="expected one of"):
        transforms_of({**properties, "mirror.flow.transforms.route.type": "Mine"})


def test_groups_are_not_translated_for_transforms() -> None:
    settings = {"enabled": "true", "sync.group.offsets.enabled": "true", **TRANSFORMS}
    with pytest.raises(UserError, match=r"sync\.group\.offsets\.enabled of a->b is true"):
        stored_properties({"bootstrap.servers": "a:9092"}, settings, "a", "b")


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
    assert [name for name, _ in chain.steps] == ["route"]


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
