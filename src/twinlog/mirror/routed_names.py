"""Remote topics of flows that route records by the names of their topics, and record a map.

A map of offsets is of one remote partition (decision 0014). `RegexRouter` sends all records of a
remote topic to one other topic if it has no predicate, or `TopicNameMatches`: only the name
decides. So that topic can be the flow's remote topic itself:

    source    policy      transforms see    remote topic, with its position, map, configurations,
    orders    A.orders    A.orders      ──► eu-orders       ACLs, checkpoints and groups

The topic that the policy names is not created then. This is stored with a flow (`ROUTED_TOPICS`),
since flows without a map, and those of earlier versions, have their positions at the policy's
topic, and may route several topics to one. With a map each source topic has a remote topic of its
own, as in any flow that writes in transactions.

A node of an earlier version does not know the property: it fails the partitions of such a flow,
instead of routing the records of `eu-orders` once more.
"""

from collections.abc import Mapping
from typing import Final

from twinlog.mirror.replication_policy import ReplicationPolicy
from twinlog.mirror.settings import FLOW_PREFIX
from twinlog.mirror.transform_chain import TransformChain, parse_transforms

ROUTED_TOPICS: Final = "twinlog.routed.topics"
"""What is stored with a flow, beside its settings."""


def has_routed_topics(values: Mapping[str, str]) -> bool:
    """Whether the remote topics of a flow are those that its transforms route to.

    Args:
        values: what is stored with the flow, by name.
    """
    return values.get(ROUTED_TOPICS) == "true"


def routing_differs(before: Mapping[str, str], after: Mapping[str, str]) -> bool:
    """Whether a flow begins, or ends, to have remote topics that records are routed to.

    Args:
        before: the properties of its mirror.
        after: those that it has, or is to have, later.
    """
    name = f"{FLOW_PREFIX}{ROUTED_TOPICS}"
    return (before.get(name) == "true") != (after.get(name) == "true")


class RoutedPolicy(ReplicationPolicy):
    """A policy behind which transforms route records by the names of their topics.

    Only the names of remote topics differ. What names show (sources, cycles, heartbeats) is what
    the policy shows.

    Args:
        unrouted: the flow's policy.
        chain: its transforms.
    """

    def __init__(self, unrouted: ReplicationPolicy, chain: TransformChain) -> None:
        self.unrouted = unrouted
        self._chain = chain

    def format_remote_topic(self, source_cluster_alias: str, topic: str) -> str:
        """The topic that records are routed to; heartbeats are not transformed."""
        remote = self.unrouted.format_remote_topic(source_cluster_alias, topic)
        return remote if self.is_heartbeats_topic(topic) else self._chain.routed_topic(remote)

    def topic_source(self, topic: str) -> str | None:
        """As the policy."""
        return self.unrouted.topic_source(topic)

    def upstream_topic(self, topic: str) -> str | None:
        """As the policy."""
        return self.unrouted.upstream_topic(topic)

    def original_topic(self, topic: str) -> str:
        """As the policy."""
        return self.unrouted.original_topic(topic)

    def heartbeats_topic(self) -> str:
        """As the policy."""
        return self.unrouted.heartbeats_topic()

    def offset_syncs_topic(self, cluster_alias: str) -> str:
        """As the policy."""
        return self.unrouted.offset_syncs_topic(cluster_alias)

    def checkpoints_topic(self, cluster_alias: str) -> str:
        """As the policy."""
        return self.unrouted.checkpoints_topic(cluster_alias)

    def is_heartbeats_topic(self, topic: str) -> bool:
        """As the policy."""
        return self.unrouted.is_heartbeats_topic(topic)

    def is_checkpoints_topic(self, topic: str) -> bool:
        """As the policy."""
        return self.unrouted.is_checkpoints_topic(topic)

    def is_mm2_internal_topic(self, topic: str) -> bool:
        """As the policy."""
        return self.unrouted.is_mm2_internal_topic(topic)

    def is_internal_topic(self, topic: str) -> bool:
        """As the policy."""
        return self.unrouted.is_internal_topic(topic)


def routed_policy(policy: ReplicationPolicy, values: Mapping[str, str]) -> ReplicationPolicy:
    """The policy that names the remote topics of a flow.

    Args:
        policy: the flow's.
        values: its settings and transforms, and what is stored with it, by name.

    Raises:
        UserError: the transforms that name topics are wrong.
    """
    return RoutedPolicy(policy, parse_transforms(values)) if has_routed_topics(values) else policy


def name_for_transforms(policy: ReplicationPolicy, alias: str, topic: str, remote: str) -> str:
    """The name that transforms see of a topic.

    Args:
        policy: the flow's (`FlowRules`).
        alias: the source's.
        topic: the source's topic.
        remote: its remote topic.
    """
    if isinstance(policy, RoutedPolicy):
        return policy.unrouted.format_remote_topic(alias, topic)
    return remote
