"""From the flows of a properties file to what runs them: nodes, stored flows, heartbeats.

A node may read what the file itself refers to, on this machine: the files and environment variables
that are named in the connection of a flow's source (kafka/client/references.py). It may run queries
and functions of Spark if a flow of the file has one.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from twinlog.kafka.client.references import ALLOWED_PATHS, ALLOWLIST_PATTERN, DATAFRAMES
from twinlog.lifecycle.flow_creation import properties_of, used_properties
from twinlog.mirror.dataframe_transform import is_dataframe_property
from twinlog.mirror.flow import FlowRules
from twinlog.mirror.flow_settings import TAKEOVER
from twinlog.mirror.mirror_maker_file import Flow
from twinlog.mirror.replication_policy import policy_of
from twinlog.mirror.settings import FLOW_PREFIX
from twinlog.node.mirror_maker import HeartbeatPair, StoredFlow, Target

_FILE: Final = re.compile(r"\$\{(?:file|directory):([^:}]+):")
_VARIABLE: Final = re.compile(r"\$\{env:([^}]+)\}")
_LOCATIONS: Final = ("ssl.truststore.location", "ssl.keystore.location")


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
        UserError: a flow has a setting that twinlog does not support.
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
    paths: set[str] = set()
    variables: set[str] = set()
    for flow in flows:
        for name, text in flow.properties.items():
            paths |= set(_FILE.findall(text))
            variables |= set(_VARIABLE.findall(text))
            # Also those of a schema registry, which have a prefix.
            if name.endswith(_LOCATIONS) and "${" not in text:
                paths.add(text)
    grants = {}
    if paths:
        grants[ALLOWED_PATHS] = ",".join(sorted(paths))
    if variables:
        grants[ALLOWLIST_PATTERN] = "|".join(re.escape(name) for name in sorted(variables))
    names = {name.removeprefix(FLOW_PREFIX) for flow in flows for name in flow.properties}
    if any(map(is_dataframe_property, names)):
        grants[DATAFRAMES] = "true"
    return grants
