"""Which configurations a mirror's topic has on the destination, and why.

    copied       configurations set on the source's topic itself, and CONTENT wherever it is set;
                 except `mirror.topic.properties.exclude` and NEVER_COPIED
    NEVER_COPIED configurations that have another meaning in another cluster
    REQUIRED     what the append needs, whatever the source has; failover sets it back to the value
                 set on the source's topic itself, or else unsets it

Other defaults of the source's brokers are not copied: they belong to that cluster, not to the
topic.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from re import Pattern
from typing import Final, NamedTuple, TypeAlias

ConfigChanges: TypeAlias = Mapping[str, str | None]
"""Changes of a topic's configurations, by name; None unsets a configuration."""

FOREVER: Final = str((1 << 63) - 1)
GENEROUS_BATCH: Final = 64 << 20
"""Bytes: above any batch that a producer sends in a request of socket.request.max.bytes / 1.5."""
BATCH_LIMITS: Final = (*(GENEROUS_BATCH >> halvings for halvings in range(6)), 0)
"""Limits to try if a destination caps `max.message.bytes`: 64 to 2 MiB, then the source's own."""

MAX_MESSAGE_BYTES: Final = "max.message.bytes"


class Requirement(NamedTuple):
    """A configuration that a mirror's topic must have, unless brokers know `unless`."""

    name: str
    value: str
    reason: str
    unless: str | None = None


REQUIRED: Final = (
    Requirement(
        "message.timestamp.type",
        "CreateTime",
        "with LogAppendTime the broker would replace the timestamp of each record",
    ),
    Requirement(
        "message.timestamp.before.max.ms",
        FOREVER,
        "records have any age; the broker would refuse older ones (INVALID_TIMESTAMP)",
    ),
    Requirement(
        "message.timestamp.after.max.ms",
        FOREVER,
        "records of clocks that are ahead are mirrored too (INVALID_TIMESTAMP; the default is an "
        "hour)",
    ),
    Requirement(
        "message.timestamp.difference.max.ms",
        FOREVER,
        "the same, for brokers before 3.6, which have only this configuration",
        unless="message.timestamp.before.max.ms",
    ),
    Requirement(
        "compression.type",
        "producer",
        "otherwise the broker would recompress the source's batches",
    ),
    Requirement(
        MAX_MESSAGE_BYTES,
        str(GENEROUS_BATCH),
        "at least the source's; merged batches, and those from before it was lowered, are larger",
    ),
)

CONTENT: Final = frozenset({"cleanup.policy", "retention.ms", "retention.bytes"})
"""Configurations that decide which records are kept: with a shorter retention, the destination
would lose records that the source still has."""

KEEPING: Final = (*sorted(CONTENT), "delete.retention.ms", "min.compaction.lag.ms")
"""Configurations that decide which records the source keeps, and for how long tombstones and
records that later ones supersede."""

TIERED_STORAGE: Final = (
    "remote.storage.enable",
    "remote.log.copy.disable",
    "remote.log.delete.on.disable",
    "local.retention.ms",
    "local.retention.bytes",
)
"""Configurations of tiered storage (KIP-405, KIP-950). A cluster without
`remote.log.storage.system.enable` refuses a topic with `remote.storage.enable`, and one that has it
refuses to unset that (tests/sync/test_flow_configs.py)."""

NEVER_COPIED: Final = {
    **dict.fromkeys(TIERED_STORAGE, "tiered storage is configured for each cluster"),
    "message.format.version": "removed in 4.0, without effect since 3.0",
    "message.downconversion.enable": "removed in 4.0",
    "mirror.name": "KIP-1279 always excludes it: a mirror of a mirror is another mirror",
}


FIXED: Final = frozenset({"cleanup.policy"})
"""Configurations that a mirror's topic keeps from its creation on."""


@dataclass(frozen=True, slots=True)
class DestinationConfig:
    """A configuration of a topic on the destination. `explicit`: set on the topic itself."""

    value: str | None
    explicit: bool


class ConfigOrigin(Enum):
    """Where a topic's value comes from on the source. Only flows go by it (copied_configs.py)."""

    TOPIC = auto()
    """Set on the topic itself."""
    DYNAMIC = auto()
    """Set for all brokers or for one, by a client: `kafka-configs --entity-type brokers`."""
    STATIC = auto()
    """From a broker's server.properties."""
    DEFAULT = auto()
    """Kafka's own default."""
    DIFFERENT = auto()
    """Some broker reports TOPIC or DYNAMIC, and others another value, or another origin."""
    UNKNOWN = auto()
    """The broker does not tell (before Kafka 1.1), or nobody may change the value of a topic."""


@dataclass(frozen=True, slots=True)
class SourceConfig:
    """A configuration of a topic on the source. `explicit`: set on the topic itself."""

    value: str
    explicit: bool
    unsettled: str = ""
    """Why the source may have another value by now; empty: all of its brokers report this one."""
    origin: ConfigOrigin = ConfigOrigin.UNKNOWN


def agreed(name: str, values: Collection[str]) -> str | None:
    """The value of one of KEEPING to go by, where brokers have different defaults.

    Records are to be kept as long as any of the brokers keeps them, and tombstones count as gone
    when the first broker may have removed them.

    Args:
        name: the configuration.
        values: of all brokers, at least one.

    Returns:
        None: there is none, since a policy is no quantity.
    """
    if len({*values}) == 1:
        return next(iter(values))
    if name == "cleanup.policy":
        return None
    return min(values, key=int) if name == "delete.retention.ms" else max(values, key=_quantity)


def _quantity(value: str) -> tuple[bool, int]:
    """Orders retentions; a negative one has no limit."""
    return int(value) < 0, int(value)


def reported(name: str, reports: Sequence[SourceConfig], missing: str = "") -> SourceConfig | None:
    """One of KEEPING, by what the source's brokers report of a topic.

    Different defaults belong to the brokers, and stay different. Where the topic itself sets a
    value, a broker with another one is behind, and it is not known which broker that is. One that
    does not report may be the only one that is not.

    Args:
        name: the configuration.
        reports: of all brokers that have reported, at least one.
        missing: which ones have not, as text; empty: all have.

    Returns:
        None: the policies differ by default.
    """
    values = sorted({report.value for report in reports})
    contested = len(values) > 1 and any(report.explicit for report in reports)
    value = agreed(name, values)
    if value is None:
        if not contested:
            return None
        value = values[0]
    explicit = any(report.explicit for report in reports if report.value == value)
    why = f"{name} is {' or '.join(values)} by the source's brokers" if contested else missing
    return SourceConfig(value, explicit, why, _origin(reports))


def _origin(reports: Sequence[SourceConfig]) -> ConfigOrigin:
    """The origin that all brokers report; else one by which a remote topic keeps no less."""
    origins = {report.origin for report in reports}
    if not origins & {ConfigOrigin.TOPIC, ConfigOrigin.DYNAMIC}:
        return origins.pop() if len(origins) == 1 else ConfigOrigin.STATIC
    alike = len({(report.origin, report.value) for report in reports}) == 1
    return origins.pop() if alike else ConfigOrigin.DIFFERENT


def settled_changes(
    changes: ConfigChanges,
    source: Mapping[str, SourceConfig],
    current: Mapping[str, DestinationConfig],
) -> ConfigChanges:
    """The changes without those by unsettled values, unless the topic keeps more by them.

    A value of the past that is shorter would delete records that the source still has.

    Args:
        changes: of a topic on the destination.
        source: the source topic's configurations.
        current: those of the topic on the destination.
    """
    return {
        name: value
        for name, value in changes.items()
        if name not in source
        or not source[name].unsettled
        or keeps_more(name, value, current[name].value)
    }


def keeps_more(name: str, value: str | None, former: str | None) -> bool:
    """Whether a topic certainly keeps more by a value of one of KEEPING than by its former one."""
    if name == "cleanup.policy" or value is None or former is None:
        return False  # a policy is no quantity, and what is unset is the broker's default
    return _quantity(value) > _quantity(former)


def unsettled(source: Mapping[str, SourceConfig], exclude: Iterable[Pattern[str]]) -> list[str]:
    """Why configurations of a topic are not known for certain, if they are copied.

    Args:
        source: the source topic's configurations.
        exclude: names that match one of these in full are not copied.
    """
    patterns = list(exclude)
    reasons = {
        config.unsettled
        for name, config in source.items()
        if config.unsettled and not any(pattern.fullmatch(name) for pattern in patterns)
    }
    return sorted(reasons)


def destination_configs(
    source: Mapping[str, SourceConfig],
    exclude: Iterable[Pattern[str]],
    known_names: Collection[str],
    batch_limit: int = GENEROUS_BATCH,
) -> dict[str, str]:
    """The configurations with which a mirror's topic is created on the destination.

    Args:
        source: all configurations of the source's topic, defaults included.
        exclude: names that match one of these in full are not copied.
        known_names: names of the configurations that the destination's brokers know.
        batch_limit: `max.message.bytes` where the source's is less.
    """
    patterns = list(exclude)
    copied_configs = {
        name: config.value
        for name, config in source.items()
        if (config.explicit or name in CONTENT)
        and name not in NEVER_COPIED
        and not any(pattern.fullmatch(name) for pattern in patterns)
    }
    return {**copied_configs, **required_configs(source, known_names, batch_limit)}


def required_configs(
    source: Mapping[str, SourceConfig],
    known_names: Collection[str],
    batch_limit: int = GENEROUS_BATCH,
) -> dict[str, str]:
    """The `REQUIRED` configurations for a destination whose brokers know these names."""
    configs = {
        requirement.name: requirement.value
        for requirement in REQUIRED
        if requirement.name in known_names
        and (requirement.unless is None or requirement.unless not in known_names)
    }
    if MAX_MESSAGE_BYTES in configs and MAX_MESSAGE_BYTES in source:
        configs[MAX_MESSAGE_BYTES] = str(max(batch_limit, batch_limit_of(source)))
    return configs


def batch_limit_of(source: Mapping[str, SourceConfig]) -> int:
    """The source's own `max.message.bytes`; 0 if it is not reported."""
    return int(source[MAX_MESSAGE_BYTES].value) if MAX_MESSAGE_BYTES in source else 0


def accepted_batch_limit(current: Mapping[str, DestinationConfig]) -> int:
    """The limit set on the destination's topic; the destination may cap it (`BATCH_LIMITS`)."""
    limit = current.get(MAX_MESSAGE_BYTES)
    return int(limit.value) if limit and limit.explicit and limit.value else GENEROUS_BATCH


def set_back(source: Mapping[str, SourceConfig]) -> tuple[tuple[str, str], ...]:
    """The `REQUIRED` configurations that a topic has once mirroring has ended, by name.

    The others are unset then. Exclusions do not apply: an exclusion that protects mirroring from a
    harmful copy (`message.timestamp.type`) has no purpose any more.
    """
    return tuple(
        (name, source[name].value)
        for name in sorted(requirement.name for requirement in REQUIRED)
        if name in source and source[name].explicit
    )


def not_of_mirroring(
    reports: Collection[Mapping[str, str | None]], known_names: Collection[str]
) -> set[str]:
    """The `REQUIRED` configurations that certainly have another value than mirroring needs.

    They have been set back, or are a user's. `max.message.bytes` is none of them: mirroring keeps
    what is set, if it is no less than the source's, so any value may be its own.

    Args:
        reports: values of the destination's topic, as each broker reports them. One that reports
            nothing may know the value that mirroring needs.
        known_names: names of the configurations that the destination's brokers know.
    """
    return {
        name
        for name, value in required_configs({}, known_names).items()
        if name != MAX_MESSAGE_BYTES
        and reports
        and all(report.get(name, value) != value for report in reports)
    }


def set_back_changes(
    set_back_values: Iterable[tuple[str, str]], known_names: Collection[str]
) -> ConfigChanges:
    """The changes of the destination's topic at failover; None unsets a configuration.

    Args:
        set_back_values: see `set_back`.
        known_names: names of the configurations that the destination's brokers know.
    """
    values = dict(set_back_values)
    return {
        requirement.name: values.get(requirement.name)
        for requirement in REQUIRED
        if requirement.name in known_names
    }


def config_changes(
    desired_configs: Mapping[str, str],
    current: Mapping[str, DestinationConfig],
    exclude: Iterable[Pattern[str]],
) -> ConfigChanges:
    """The changes of the destination's topic; None unsets a configuration.

    `FIXED` is not changed: the owner of a partition relies on it. The rest of `CONTENT` is set on
    the topic itself, also where the destination's default is equal: brokers may have another one,
    or get it, and would delete by it until the next check, or for good if the source is dead.

    Args:
        desired_configs: see `destination_configs`.
        current: all configurations of the destination's topic, defaults included.
        exclude: names that match one of these in full are unchanged, unless they are desired.
    """
    patterns = list(exclude)
    changes: dict[str, str | None] = {
        name: value
        for name, value in desired_configs.items()
        if name in current
        and name not in FIXED
        and (current[name].value != value or (name in CONTENT and not current[name].explicit))
    }
    for name, config in current.items():
        if (
            config.explicit
            and name not in desired_configs
            and name not in FIXED
            and name not in NEVER_COPIED
            and not any(pattern.fullmatch(name) for pattern in patterns)
        ):
            changes[name] = None
    return changes


def fixed_differences(
    desired_configs: Mapping[str, str], current: Mapping[str, DestinationConfig]
) -> dict[str, str]:
    """The desired values of `FIXED` where the destination's topic differs, and stays different."""
    return {
        name: desired_configs[name]
        for name in sorted(FIXED & desired_configs.keys() & current.keys())
        if current[name].value != desired_configs[name]
    }
