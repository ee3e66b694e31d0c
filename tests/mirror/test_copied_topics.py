"""Twin of twinlog.mirror.copied_topics."""

import pytest

from twinlog.mirror.copied_topics import copied_topics, is_cycle
from twinlog.mirror.flow_settings import FlowSettings
from twinlog.mirror.flow_settings_parser import parse_flow_settings
from twinlog.mirror.replication_policy import (
    DefaultReplicationPolicy,
    IdentityReplicationPolicy,
    ReplicationPolicy,
)

DEFAULT = DefaultReplicationPolicy()


def _settings(values: dict[str, str] | None = None) -> FlowSettings:
    settings = parse_flow_settings({"enabled": "true"} | (values or {}), "a", "b")
    assert isinstance(settings, FlowSettings)
    return settings


@pytest.mark.parametrize(
    ("topic", "copy"),
    [
        ("orders", "a.orders"),
        ("c.orders", "a.c.orders"),
        ("b.orders", None),  # it was written on the target
        ("c.b.orders", None),  # it has come from there in two hops
        ("a.a.b.orders", None),  # an alias that comes again hides nothing
        ("orders.orders.b.z", None),
        ("c.c.orders", "a.c.c.orders"),
        ("__consumer_offsets", None),
        ("mm2-offset-syncs.b.internal", None),
        ("b.checkpoints.internal", None),
        ("orders.replica", None),
        ("heartbeats", "a.heartbeats"),
        ("c.heartbeats", "a.c.heartbeats"),
        ("b.heartbeats", None),
    ],
)
def test_names_and_cycles_under_the_default_policy(topic: str, copy: str | None) -> None:
    assert copied_topics([topic], _settings(), DEFAULT) == ({} if copy is None else {topic: copy})


class Round(ReplicationPolicy):
    """A policy of one's own, whose upstream topics go round."""

    def format_remote_topic(self, source_cluster_alias: str, topic: str) -> str:
        return f"{source_cluster_alias}-{topic}"

    def topic_source(self, topic: str) -> str:
        return topic

    def upstream_topic(self, topic: str) -> str:
        return {"x": "y", "y": "z"}.get(topic, "y")


def test_a_policy_that_goes_round_ends() -> None:
    """Goal: each name is asked for once, so a target is found, or the walk ends."""
    assert is_cycle("x", "z", Round())
    assert not is_cycle("x", "b", Round())


def test_only_topics_that_match_are_copied_and_heartbeats_always() -> None:
    topics = ["orders", "orders2", "payments", "heartbeats"]
    copied = copied_topics(topics, _settings({"topics": "orders, pay.*"}), DEFAULT)
    assert copied == {t: f"a.{t}" for t in ("orders", "payments", "heartbeats")}
    off = _settings({"topics": "orders", "heartbeats.replication.enabled": "false"})
    assert copied_topics(topics, off, DEFAULT) == {"orders": "a.orders"}
    assert copied_topics(topics, _settings({"enabled": "false"}), DEFAULT) == {}


def test_the_identity_policy_keeps_names() -> None:
    """Goal: names tell nothing of where topics come from: cycles are the operator's to avoid."""
    policy = IdentityReplicationPolicy(source_cluster_alias="a")
    copied = copied_topics(["orders", "b.orders"], _settings(), policy)
    assert copied == {"orders": "orders", "b.orders": "b.orders"}
