"""Which topics of its source a flow copies, and under which names (KIP-382, MirrorMaker 2 4.3).

a topic of the source          copied
-----------------------------  -------------------------------------------------------------
matches `topics`               yes, unless a line below applies
matches `topics.exclude`       no
is internal                    no: `__...`, and the bookkeeping of MirrorMaker 2
was copied from the target     no: its records would come back to where they were written
holds heartbeats               yes, so that they are found behind each hop
"""

from collections.abc import Iterable

from twinlog.mirror.flow_settings import FlowSettings
from twinlog.mirror.replication_policy import ReplicationPolicy


def copied_topics(
    topics: Iterable[str], settings: FlowSettings, policy: ReplicationPolicy
) -> dict[str, str]:
    """The destination's names of those of these topics that are copied, by the source's."""
    if not settings.enabled:  # it has heartbeats only
        return {}
    source = settings.source_cluster_alias
    return {
        topic: policy.format_remote_topic(source, topic)
        for topic in topics
        if _is_copied(topic, settings, policy)
    }


def is_cycle(topic: str, target: str, policy: ReplicationPolicy) -> bool:
    """Whether a topic of the source was copied from this target, directly or by way of others.

    As `MirrorSourceConnector.isCycle`: an alias may occur again in a name (`A.A.B.orders`), and the
    walk goes on behind it. It ends where a name is its own upstream (`IdentityReplicationPolicy`),
    or comes again: a policy of one's own may go round, and MirrorMaker 2 fails then.
    """
    seen: set[str] = set()
    name: str | None = topic
    while name is not None and name not in seen:
        source = policy.topic_source(name)
        if source is None:
            return False
        if source == target:
            return True
        seen.add(name)
        name = policy.upstream_topic(name)
    return False


def _is_copied(topic: str, settings: FlowSettings, policy: ReplicationPolicy) -> bool:
    if policy.is_internal_topic(topic):
        return False
    if is_cycle(topic, settings.target_cluster_alias, policy):
        return False
    if settings.heartbeats_replication_enabled and policy.is_heartbeats_topic(topic):
        return True
    return settings.selects_topic(topic)
