"""The remote topics of flows whose transforms route records by the names of topics."""

import pytest

from twinlog.kafka.errors import UserError
from twinlog.mirror.replication_policy import (
    DefaultReplicationPolicy,
    IdentityReplicationPolicy,
    ReplicationPolicy,
)
from twinlog.mirror.routed_names import (
    ROUTED_TOPICS,
    RoutedPolicy,
    has_routed_topics,
    name_for_transforms,
    routed_policy,
    routing_differs,
)
from twinlog.mirror.settings import FLOW_PREFIX
from twinlog.mirror.transform_chain import parse_transforms

VALUES = {
    "transforms": "r",
    "transforms.r.type": "RegexRouter",
    "transforms.r.regex": "(A[.])?(.*)",
    "transforms.r.replacement": "eu-$2",
}
STORED = {**VALUES, ROUTED_TOPICS: "true"}


def test_remote_topics_are_those_that_records_are_routed_to() -> None:
    policy = routed_policy(DefaultReplicationPolicy(), STORED)
    assert policy.format_remote_topic("A", "orders") == "eu-orders"
    assert policy.format_remote_topic("A", "heartbeats") == "A.heartbeats", "never transformed"
    assert policy.format_remote_topic("A", "C.heartbeats") == "A.C.heartbeats"


def test_a_property_of_the_mirror_tells_whether_routing_differs() -> None:
    """Goal: what is not "true" is as if it was not stored (`has_routed_topics`)."""
    name = f"{FLOW_PREFIX}{ROUTED_TOPICS}"
    assert routing_differs({name: "true"}, {})
    assert routing_differs({}, {name: "true"})
    assert not routing_differs({name: "true"}, {name: "true", "other": "x"})
    assert not routing_differs({}, {name: "false"})


def test_other_flows_have_the_names_of_their_policy() -> None:
    plain = DefaultReplicationPolicy()
    assert not has_routed_topics(VALUES)
    assert routed_policy(plain, VALUES) is plain
    assert name_for_transforms(plain, "A", "orders", "stored") == "stored"


def test_transforms_see_the_name_that_the_policy_gives() -> None:
    """Goal: no name is routed twice."""
    policy = routed_policy(DefaultReplicationPolicy(), STORED)
    assert name_for_transforms(policy, "A", "orders", "eu-orders") == "A.orders"


def test_wrong_transforms_name_nothing() -> None:
    with pytest.raises(UserError, match="regex is missing"):
        routed_policy(
            DefaultReplicationPolicy(), {k: v for k, v in STORED.items() if "regex" not in k}
        )


@pytest.mark.parametrize(
    "plain",
    [
        DefaultReplicationPolicy(separator="_"),
        IdentityReplicationPolicy(source_cluster_alias="A"),
    ],
)
def test_all_else_is_as_the_policy_has_it(plain: ReplicationPolicy) -> None:
    """Goal: a method that is added to policies is not forgotten here."""
    policy = RoutedPolicy(plain, parse_transforms(VALUES))
    asked = [name for name in vars(ReplicationPolicy) if not name.startswith("_")]
    assert len(asked) == 11
    for name in asked:
        if name in {"format_remote_topic", "heartbeats_topic"}:
            continue
        assert name in vars(RoutedPolicy)
        for topic in ("A", "A_heartbeats", "heartbeats", "mm2_x_internal", "A_B_orders", "__x"):
            assert getattr(policy, name)(topic) == getattr(plain, name)(topic)
    assert policy.heartbeats_topic() == plain.heartbeats_topic()
