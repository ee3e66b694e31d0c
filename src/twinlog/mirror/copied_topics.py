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
from twinlog.mirror.replication_policy import ReplicationPolicy, all_sources


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


def _is_copied(topic: str, settings: FlowSettings, policy: ReplicationPolicy) -> bool:
    if policy.is_internal_topic(topic):
        return False
    if settings.target_cluster_alias in all_sources(policy, topic):
        return False
    if settings.heartbeats_replication_enabled and policy.is_heartbeats_topic(topic):
        return True
    return settings.selects_topic(topic)
