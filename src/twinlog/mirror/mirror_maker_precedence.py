"""What a flow of MirrorMaker 2's properties file has: which line of several counts.

It is computed as `MirrorMakerConfig` and `MirrorConnectorConfig` of Kafka 4.3 compute it, step by
step, since the order has surprises. Lowest precedence first:

| a flow's setting | a property of a client (`role`: consumer, producer, admin) |
| --- | --- |
| default | `A->B.role.NAME` |
| `NAME`, if MirrorMaker 2 reads it without prefix | `NAME`, only connection properties |
| `A->B.NAME` | `A.NAME`, only connection properties |
| | `A.role.NAME` |
| | `A->B.source.role.NAME` (for the target: `B`, `target.role`) |
| | `A->B.producer.override.NAME`, only for the target's producer |

So `A->B.consumer.ssl.protocol` has no effect where `A.ssl.protocol` is set. `A->B.source.cluster.`
has the lowest precedence with the connection properties, as the second line already gives a role
its own. A setting with a cluster's prefix (`B.replication.factor`) has no effect at all.

twinlog has one client on each cluster, for all roles. That of a flow's source has what the consumer
has; that of a target has the connection properties of the cluster, and of `B.producer.NAME` all
others (`MirrorMakerFile.clusters`). `apart` has the lines of which this client has another value.

What `client_properties` has of the target's producer is that of two of MirrorMaker 2's:
`target.producer.` is for offset syncs, and `producer.override.` for records.
"""

from collections.abc import Mapping
from typing import Final

from twinlog.mirror.config_providers import PROVIDERS
from twinlog.mirror.connect_worker import lines_read
from twinlog.mirror.flow_settings import POLICY_PREFIX, SETTINGS
from twinlog.mirror.mirror_maker_names import (
    CLIENT_NAMES,
    CONNECTOR_NAMES,
    ROLE_NAMES,
    ROLES,
    SIDES,
    role_of,
)
from twinlog.mirror.properties_text import Property

OVERRIDE: Final = "override."

OWN_SETTINGS: Final = frozenset(
    name for name, setting in SETTINGS.items() if setting.origin != "client"
)
"""Settings that are no properties of a client, whatever their names begin with."""

CLIENTS_OF_FLOW: Final = frozenset(
    {("source", "consumer"), ("source", "admin"), ("target", "producer"), ("target", "admin")}
)
"""Side and role of the clients that mirror. MirrorMaker 2's others are for its internal topics."""

Properties = Mapping[str, Property]


def prefixed(properties: Properties, prefix: str) -> dict[str, Property]:
    """The properties with a prefix, by the rest of their keys."""
    return {
        key.removeprefix(prefix): item
        for key, item in properties.items()
        if key.startswith(prefix) and len(key) > len(prefix)
    }


def cluster_properties(properties: Properties, alias: str) -> dict[str, Property]:
    """What one cluster has (`MirrorMakerConfig.clusterProps`).

    Args:
        properties: the whole file.
        alias: the cluster's alias.

    Returns:
        Its properties without prefix. Connection properties, its own or those of the whole file,
        are there for each role, too.
    """
    own = prefixed(properties, f"{alias}.")
    for level in (dict(own), properties):
        for name in CLIENT_NAMES:
            if name in level:
                for role in ROLES:
                    own.setdefault(f"{role}.{name}", level[name])
                own.setdefault(name, level[name])
    return own


def connector_properties(properties: Properties, source: str, target: str) -> dict[str, Property]:
    """What one flow has (`MirrorMakerConfig.connectorBaseConfig`).

    Args:
        properties: the whole file.
        source: the source's alias.
        target: the target's alias.

    Returns:
        Settings by name. Client properties have the prefix `source.cluster.` or `target.cluster.`;
        those of a role `consumer.`, `source.consumer.` and so on.
    """
    merged = {
        key: item
        for key, item in properties.items()
        if key in CONNECTOR_NAMES or key.startswith((PROVIDERS, POLICY_PREFIX))
    }
    for side, alias in zip(SIDES, (source, target), strict=True):
        for name, item in cluster_properties(properties, alias).items():
            merged[f"{side}.{name}" if role_of(name) else f"{side}.cluster.{name}"] = item
    return merged | prefixed(properties, f"{source}->{target}.")


def target_properties(properties: Properties, alias: str) -> dict[str, Property]:
    """What twinlog's client on a cluster has to which flows copy.

    Args:
        properties: the whole file.
        alias: the cluster's alias.
    """
    own = cluster_properties(properties, alias)
    client = {name: own[name] for name in CLIENT_NAMES if name in own}
    # No property that only twinlog has: what a node may read, say.
    others = ROLE_NAMES["producer"].difference(CLIENT_NAMES)
    return client | {n: own[f"producer.{n}"] for n in others if f"producer.{n}" in own}


def worker_properties(properties: Properties, source: str, target: str) -> dict[str, Property]:
    """What names a flow's Connect worker (connect_worker.py), by the names of the lines.

    Args:
        properties: the whole file.
        source: the source's alias.
        target: the target's alias.
    """
    found = {
        name: [properties[key] for key in keys if key in properties]
        for name, keys in lines_read(source, target).items()
    }
    return {name: items[0] for name, items in found.items() if items}


def client_properties(merged: Properties, side: str, role: str) -> dict[str, Property]:
    """What the clients of a role have (`MirrorConnectorConfig.sourceConsumerConfig` and others).

    Args:
        merged: what `connector_properties` returns.
        side: `source` or `target`.
        role: `consumer`, `producer` or `admin`.
    """
    connection = prefixed(merged, f"{side}.cluster.")
    properties = {name: connection[name] for name in CLIENT_NAMES if name in connection}
    of_role = {key: item for key, item in merged.items() if key not in OWN_SETTINGS}
    properties |= prefixed(of_role, f"{role}.")
    properties |= prefixed(of_role, f"{side}.{role}.")
    if (side, role) == ("target", "producer"):
        properties |= prefixed(of_role, f"{role}.{OVERRIDE}")
    return {name: item for name, item in properties.items() if not name.startswith(OVERRIDE)}


def client_of_flow(rest: str) -> tuple[str, str, str] | None:
    """Side, role (or `client`) and name of a client property of a flow; None: it is another."""
    if rest in SETTINGS and SETTINGS[rest].origin != "client":
        return None
    for side in SIDES:
        for role in ROLES:
            if rest.startswith(f"{side}.{role}."):
                return side, role, rest.removeprefix(f"{side}.{role}.")
        connection = rest.removeprefix(f"{side}.cluster.")
        if connection != rest and connection in CLIENT_NAMES:
            return side, "client", connection
    role, dot, name = rest.partition(".")
    if dot and role in ROLES:
        return "target" if role == "producer" else "source", role, name
    return None
