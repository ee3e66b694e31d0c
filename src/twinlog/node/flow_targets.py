"""From the flows of a properties file to what runs them: nodes, stored flows, heartbeats.

A node may read what the file itself refers to, on this machine (lifecycle/flow_references.py). It
may run queries and functions of Spark if a flow of the file has one.
"""

from collections.abc import Iterable, Mapping, Sequence

from twinlog.kafka.client.references import DATAFRAMES
from twinlog.lifecycle.flow_creation import properties_of, used_properties
from twinlog.lifecycle.flow_references import grants_of
from twinlog.mirror.dataframe_transform import is_dataframe_property
from twinlog.mirror.flow import FlowRules
from twinlog.mirror.flow_settings import TAKEOVER
from twinlog.mirror.mirror_maker_file import Flow
from twinlog.mirror.replication_policy import policy_of
from twinlog.mirror.settings import FLOW_PREFIX
from twinlog.node.mirror_maker import HeartbeatPair, StoredFlow, Target


def run_parts(
    flows: Iterable[Flow],
    clusters: Mapping[str, Mapping[str, str]],
    *,
    disabled: Sequence[tuple[str, str]] = (),
    takeover: bool = False,
) -> tuple[list[Target], list[HeartbeatPair]]:
    """What runs these flows.

    Args:
        flows: of the file; those that are to run here.
        clusters: the connection properties of each cluster, by alias.
        disabled: the pairs of source and target that the file disables (`disabled_pairs`).
        takeover: whether flows go on where MirrorMaker 2 has stopped; the default of
            `twinlog.takeover` is `compare` then.

    Raises:
        UserError: a flow has a setting that twinlog does not support, or refers to what does not
            exist.
    """
    stored: dict[str, list[StoredFlow]] = {}
    pairs: list[HeartbeatPair] = []
    for flow in flows:
        alias = flow.target_alias
        if flow.heartbeats_only:
            if flow.settings.emits_heartbeats:
                named = {**flow.values, **flow.policy_properties}
                rules = FlowRules(flow.settings, policy_of(named))
                connection = used_properties(clusters[alias])
                pairs.append(HeartbeatPair(target=alias, properties=connection, flow=rules))
            continue
        properties = properties_of(flow)
        if takeover:
            properties.setdefault(f"{FLOW_PREFIX}{TAKEOVER}", "compare")
        stored.setdefault(alias, []).append(
            StoredFlow(source=flow.source_alias, properties=properties)
        )
    targets = [
        Target(
            alias=alias,
            properties={**used_properties(clusters[alias]), **_grants(found)},
            flows=found,
            disabled=[source for source, target in disabled if target == alias],
        )
        for alias, found in stored.items()
    ]
    return targets, pairs


def _grants(flows: Iterable[StoredFlow]) -> dict[str, str]:
    """The node's rights to read what the flows' connections refer to, and to run code."""
    flows = list(flows)
    grants = grants_of(flow.properties for flow in flows)
    names = {name.removeprefix(FLOW_PREFIX) for flow in flows for name in flow.properties}
    if any(map(is_dataframe_property, names)):
        grants[DATAFRAMES] = "true"
    return grants
