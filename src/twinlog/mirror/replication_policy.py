"""Replication policies: what a MirrorMaker 2 flow names its topics on the destination (KIP-382).

A policy is a naming convention, and names are all that it works on. The default policy marks a
remote topic by its source, hop by hop, so that cycles end and clusters are told apart:

    us-west           us-east              backup
    orders       ──►  us-west.orders  ──►  us-east.us-west.orders
    heartbeats   ──►  us-west.heartbeats ► us-east.us-west.heartbeats

    topic_source     us-east              the first part, the nearest cluster
    upstream_topic   us-west.orders       what is left: its name on that cluster
    original_topic   orders               its name where it was written

The identity policy keeps names, except for heartbeats: a chain of clusters is counted by them.
KIP-382's table calls it LegacyReplicationPolicy, "to mimic legacy MirrorMaker": the name of a class
that no MirrorMaker 2 has.

Names follow Kafka 4.3, bit by bit, since MirrorMaker 2 and its tools may work on the same topics.
`tests/interfaces/test_mirror_maker_java.py` compares each answer with Kafka's own classes. Some
results are surprising, and stay so:

- A topic with a separator in its name looks like a remote topic: `my.topic` comes from `my`.
- A name that ends with separators has no source, as Java's `split` drops empty parts at the end.
- The identity policy renames each topic that ends with `heartbeats`, such as `app-heartbeats`.
- A topic that merely ends with `.internal` or `-internal` is not internal since KIP-1074: only
  `mm2*.internal` and checkpoints are MirrorMaker's own.

One difference is deliberate: a separator that cannot be part of a topic's name is refused when it
is set. MirrorMaker 2 accepts it, and then fails to create topics.

A policy of your own is a Python package with an entry point of the group `ENTRY_POINTS`. Loading it
runs its code, as an import does; nothing else here depends on the machine.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Any, Final, Protocol

from twinlog.kafka.errors import UserError
from twinlog.text import few

ENTRY_POINTS: Final = "twinlog.replication_policies"
"""The group of entry points. Each names a class, or a function, that takes the properties
(`Mapping[str, str]`, with the names of MirrorMaker 2) and returns a `ReplicationPolicy`. The entry
point's name is the value of `replication.policy.class`; it may be that of a Java class."""

POLICY_CLASS: Final = "replication.policy.class"
SEPARATOR: Final = "replication.policy.separator"
INTERNAL_SEPARATOR: Final = "replication.policy.internal.topic.separator.enabled"
POLICY_NAMES: Final = (POLICY_CLASS, SEPARATOR, INTERNAL_SEPARATOR)
"""All properties `replication.policy...` that Kafka has."""
SOURCE_ALIAS: Final = "source.cluster.alias"

HEARTBEATS: Final = "heartbeats"
"""The topic of heartbeats, where they are written; no separator changes it."""
DEFAULT_SEPARATOR: Final = "."

_PACKAGE: Final = "org.apache.kafka.connect.mirror."
DEFAULT: Final = "DefaultReplicationPolicy"
IDENTITY: Final = "IdentityReplicationPolicy"
LEGACY: Final = "LegacyReplicationPolicy"
"""The name of the identity policy in KIP-382."""
SAME_NAMES: Final = "SameNamesPolicy"
"""The policy of flows of the former `kafka-mirror-maker.sh`, which has no name in Kafka."""
_OF_KAFKA: Final = frozenset({DEFAULT, IDENTITY, LEGACY, SAME_NAMES})
_KAFKA_INTERNAL: Final = ("__consumer_offsets", "__transaction_state", "__share_group_state")
_CONTROL_TOPICS: Final = "__mirror_"
_IN_NAMES: Final = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)
_NO_PROPERTIES: Final[Mapping[str, str]] = MappingProxyType({})


class ReplicationPolicy(Protocol):
    """How topics are named; the methods of MirrorMaker 2's interface of this name.

    A policy of your own needs the first three. It inherits the others if it is a subclass.
    """

    def format_remote_topic(self, source_cluster_alias: str, topic: str) -> str:
        """The destination's name of a topic of that source."""
        ...

    def topic_source(self, topic: str) -> str | None:
        """The alias of the cluster that a topic was copied from; None if it is not remote."""
        ...

    def upstream_topic(self, topic: str) -> str | None:
        """A remote topic's name on the cluster that it was copied from; None if it is not remote.

        It may be a remote topic there.
        """
        ...

    def original_topic(self, topic: str) -> str:
        """The name of a topic where it was written; the topic itself if it is not remote."""
        seen = {topic}
        while (upstream := self.upstream_topic(topic)) is not None and upstream not in seen:
            seen.add(upstream)
            topic = upstream
        return topic

    def heartbeats_topic(self) -> str:
        """The name of the topic that heartbeats are written to."""
        return HEARTBEATS

    def offset_syncs_topic(self, cluster_alias: str) -> str:
        """The topic of offset syncs between this cluster and that one."""
        return f"mm2-offset-syncs.{cluster_alias}.internal"

    def checkpoints_topic(self, cluster_alias: str) -> str:
        """The topic of checkpoints of groups of that source."""
        return f"{cluster_alias}.checkpoints.internal"

    def is_heartbeats_topic(self, topic: str) -> bool:
        """Whether it is the topic of heartbeats, or a copy of it."""
        return self.heartbeats_topic() == self.original_topic(topic)

    def is_checkpoints_topic(self, topic: str) -> bool:
        """Whether it is a topic of checkpoints."""
        return topic.endswith(".checkpoints.internal")

    def is_mm2_internal_topic(self, topic: str) -> bool:
        """Whether it is a topic of MirrorMaker's own, which is never copied."""
        own = topic.startswith("mm2") and topic.endswith(".internal")
        return own or self.is_checkpoints_topic(topic)

    def is_internal_topic(self, topic: str) -> bool:
        """Whether it is a topic of MirrorMaker's or of Kafka's own."""
        return topic.startswith(("__", ".")) or self.is_mm2_internal_topic(topic)


@dataclass(frozen=True, kw_only=True)
class DefaultReplicationPolicy(ReplicationPolicy):
    """Remote topics have the source's alias in front: `us-west.orders`.

    Attributes:
        separator: between alias and topic (`replication.policy.separator`).
        internal_topic_separator_enabled: whether it is also used in the names of checkpoints and
            offset syncs; otherwise they have a period, as in Kafka before 2.8
            (`replication.policy.internal.topic.separator.enabled`).

    Raises:
        UserError: the separator cannot be part of a topic's name.
    """

    separator: str = DEFAULT_SEPARATOR
    internal_topic_separator_enabled: bool = True

    def __post_init__(self) -> None:
        if not _IN_NAMES.fullmatch(self.separator):
            raise _invalid(SEPARATOR, self.separator, "letters, digits, '.', '_' or '-'")

    def format_remote_topic(self, source_cluster_alias: str, topic: str) -> str:
        """The alias, the separator and the topic."""
        return f"{source_cluster_alias}{self.separator}{topic}"

    def topic_source(self, topic: str) -> str | None:
        """What is before the first separator, if anything but separators follows it."""
        source, _, rest = topic.partition(self.separator)
        # Java's Pattern.split drops empty parts at the end: "a.." has one part, and no source.
        return source if any(rest.split(self.separator)) else None

    def upstream_topic(self, topic: str) -> str | None:
        """What follows the first separator."""
        source = self.topic_source(topic)
        return None if source is None else topic[len(source) + len(self.separator) :]

    def offset_syncs_topic(self, cluster_alias: str) -> str:
        """Such as `mm2-offset-syncs.us-east.internal`."""
        return f"mm2-offset-syncs{self._internal_separator}{cluster_alias}{self._internal_suffix}"

    def checkpoints_topic(self, cluster_alias: str) -> str:
        """Such as `us-west.checkpoints.internal`."""
        return f"{cluster_alias}{self._checkpoints_suffix}"

    def is_checkpoints_topic(self, topic: str) -> bool:
        """Whether it ends like a topic of checkpoints."""
        return topic.endswith(self._checkpoints_suffix)

    def is_mm2_internal_topic(self, topic: str) -> bool:
        """Whether it begins and ends like one of MirrorMaker's own, or is a checkpoints topic."""
        own = topic.startswith("mm2") and topic.endswith(self._internal_suffix)
        return own or self.is_checkpoints_topic(topic)

    @property
    def _internal_separator(self) -> str:
        return self.separator if self.internal_topic_separator_enabled else DEFAULT_SEPARATOR

    @property
    def _internal_suffix(self) -> str:
        return f"{self._internal_separator}internal"

    @property
    def _checkpoints_suffix(self) -> str:
        return f"{self._internal_separator}checkpoints{self._internal_suffix}"


@dataclass(frozen=True, kw_only=True)
class IdentityReplicationPolicy(DefaultReplicationPolicy):
    """Remote topics have the name that they have on the source.

    Names do not end cycles, so flows must not form one. Topics that end with `heartbeats` are named
    as by the default policy.

    Attributes:
        source_cluster_alias: the cluster that every topic counts as copied from
            (`source.cluster.alias`); None: no topic counts as remote.
    """

    source_cluster_alias: str | None = None

    def format_remote_topic(self, source_cluster_alias: str, topic: str) -> str:
        """The topic."""
        if self._like_heartbeats(topic):
            return super().format_remote_topic(source_cluster_alias, topic)
        return topic

    def topic_source(self, topic: str) -> str | None:
        """The source, whatever the topic."""
        return super().topic_source(topic) if self._like_heartbeats(topic) else self._alias

    def upstream_topic(self, topic: str) -> str | None:
        """The topic: any topic may be remote."""
        return super().upstream_topic(topic) if self._like_heartbeats(topic) else topic

    @property
    def _alias(self) -> str | None:
        return self.source_cluster_alias

    def _like_heartbeats(self, topic: str) -> bool:
        return topic.endswith(self.heartbeats_topic())


def count_hops(policy: ReplicationPolicy, topic: str, alias: str) -> int | None:
    """The number of clusters that a topic has passed since it left that cluster.

    Returns:
        1 if it was copied directly from it; None if the topic was never there, as far as its name
        shows.
    """
    for hops, source in enumerate(_sources(policy, topic), start=1):
        if source == alias:
            return hops
    return None


def all_sources(policy: ReplicationPolicy, topic: str) -> frozenset[str]:
    """The aliases of all clusters that a topic has passed."""
    return frozenset(_sources(policy, topic))


def _sources(policy: ReplicationPolicy, topic: str) -> Iterable[str]:
    """The sources, nearest first, up to one that comes again (`MirrorClient.countHopsForTopic`).

    A policy that leaves names unchanged would name the same one without end.
    """
    seen: set[str] = set()
    upstream: str | None = topic
    while upstream is not None:
        source = policy.topic_source(upstream)
        if source is None or source in seen:
            return
        seen.add(source)
        yield source
        upstream = policy.upstream_topic(upstream)


def installed() -> Iterable[EntryPoint]:
    """The policies that this Python's packages register."""
    return entry_points(group=ENTRY_POINTS)


class SameNamesPolicy(ReplicationPolicy):
    """Every topic keeps its name, and none counts as remote, as `kafka-mirror-maker.sh` had it.

    Internal are only the topics in which brokers and twinlog's nodes keep their own state.
    """

    def format_remote_topic(self, source_cluster_alias: str, topic: str) -> str:  # noqa: ARG002
        """The topic."""
        return topic

    def topic_source(self, topic: str) -> None:
        """None."""

    def upstream_topic(self, topic: str) -> None:
        """None."""

    def is_internal_topic(self, topic: str) -> bool:
        """Whether it is one of Kafka's internal topics, or of twinlog's control topics."""
        return topic in _KAFKA_INTERNAL or topic.startswith(_CONTROL_TOPICS)


def policy_class(name: str) -> str:
    """The name of a policy as policies are told apart by it: without the package of Kafka's own."""
    return name.strip().removeprefix(_PACKAGE)


def refused_policy(
    name: str, registered: Callable[[], Iterable[EntryPoint]] = installed
) -> str | None:
    """Why there is no policy of this name; nothing is loaded.

    Returns:
        What is expected, as the end of a sentence; None: there is one, and it may be loaded.
    """
    known = policy_class(name)
    if known in _OF_KAFKA:
        return None
    points = list(registered())
    count = sum(point.name == known for point in points)
    names = few(sorted({DEFAULT, IDENTITY, *(point.name for point in points)}))
    if count == 1:
        return None
    if not known:
        return f"expected one of {names}"
    return f"which {count} installed packages register: expected one of {names}"


def policy_of(
    properties: Mapping[str, str],
    registered: Callable[[], Iterable[EntryPoint]] = installed,
) -> ReplicationPolicy:
    """The policy of MirrorMaker 2's properties; without `replication.policy.class` the default.

    Raises:
        UserError: see `policy_named`.
    """
    return policy_named(properties.get(POLICY_CLASS, DEFAULT), properties, registered)


def has_properties_of_its_own(properties: Mapping[str, str]) -> bool:
    """Whether the policy of these properties is none of Kafka's: it may read more of them."""
    return policy_class(properties.get(POLICY_CLASS, DEFAULT)) not in _OF_KAFKA


def policy_named(
    name: str,
    properties: Mapping[str, str] = _NO_PROPERTIES,
    registered: Callable[[], Iterable[EntryPoint]] = installed,
) -> ReplicationPolicy:
    """The policy of this name.

    Args:
        name: the class in MirrorMaker 2, with or without its package, or the name of an entry
            point of the group `twinlog.replication_policies`.
        properties: MirrorMaker 2's, by their names there. Kafka's policies use the separator,
            whether it is that of internal topics too, and the source's alias; others are ignored.
        registered: the entry points, for tests.

    Raises:
        UserError: there is no such policy, it cannot be loaded, or a property is malformed.
    """
    known = policy_class(name)
    if known == DEFAULT:
        return DefaultReplicationPolicy(**_separators(properties))
    if known in {IDENTITY, LEGACY}:
        alias = properties.get(SOURCE_ALIAS)
        return IdentityReplicationPolicy(source_cluster_alias=alias, **_separators(properties))
    if known == SAME_NAMES:
        return SameNamesPolicy()
    points = list(registered())
    if refused := refused_policy(known, lambda: points):
        raise UserError(
            f"{POLICY_CLASS} is {known!r}, {refused}",
            hint=f"install one Python package with an entry point of this name in the group "
            f"{ENTRY_POINTS}; Java classes cannot be loaded",
        )
    (point,) = (point for point in points if point.name == known)
    return _loaded(point, properties)


def _separators(properties: Mapping[str, str]) -> dict[str, Any]:
    enabled = properties.get(INTERNAL_SEPARATOR, "true")
    if enabled.lower() not in {"true", "false"}:
        raise _invalid(INTERNAL_SEPARATOR, enabled, "true or false")
    return {
        "separator": properties.get(SEPARATOR, DEFAULT_SEPARATOR),
        "internal_topic_separator_enabled": enabled.lower() == "true",
    }


def _loaded(point: EntryPoint, properties: Mapping[str, str]) -> ReplicationPolicy:
    try:
        policy: Any = point.load()(properties)
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"{POLICY_CLASS} is {point.name!r}: cannot load {point.value}: "
            f"{type(error).__name__}: {error}",
            hint="correct the package that registers it, or reinstall it",
        ) from error
    return _checked(point, policy)


def _checked(point: EntryPoint, policy: Any) -> ReplicationPolicy:
    """The policy, if it has all methods."""
    methods = [method for method in vars(ReplicationPolicy) if not method.startswith("_")]
    missing = [method for method in methods if not callable(getattr(policy, method, None))]
    if missing:
        raise UserError(
            f"{POLICY_CLASS} is {point.name!r}: {point.value} has no method {few(missing)}",
            hint="make it a subclass of twinlog.ReplicationPolicy",
        )
    result: ReplicationPolicy = policy
    return result


def _invalid(name: str, value: str, expectation: str) -> UserError:
    return UserError(f"{name} is {value!r}: expected {expectation}")
