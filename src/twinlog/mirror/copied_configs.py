"""Which configurations of its source topic a remote topic of a flow has (MirrorMaker 2 4.3).

    value on the source (`ConfigOrigin`)    remote topic
    --------------------------------------  -----------------------------------------------------
    TOPIC, DYNAMIC                          set, also when it is created
    STATIC, UNKNOWN, or not known there     left as it is
    DEFAULT                                 unset; with `use.defaults.from=source` set
    DIFFERENT                               set when it is created; then only where it keeps more

So an operator's own value stays where the source has its value from server.properties, as
`retention.ms` by `log.retention.ms`. (Brokers report one by `log.retention.hours`, which Kafka
comes with, as DEFAULT.) What `config.properties.exclude` matches is left as it is. MirrorMaker 2
asks one broker, and so has no DIFFERENT; for the rest, its own classes are the oracle
(tests/mirror/test_mirror_maker_java.py).

Configurations of tiered storage, which MirrorMaker 2 copies, are left, too: a target without tiered
storage refuses a topic with them, and the topic would not be copied at all. Where the target has
it, its operator decides which remote topics use it.
"""

from collections.abc import Iterable, Mapping, Sequence
from re import Pattern
from typing import Final

from twinlog.mirror.topic_configs import (
    KEEPING,
    TIERED_STORAGE,
    ConfigChanges,
    ConfigOrigin,
    DestinationConfig,
    SourceConfig,
    keeps_more,
)

_SET: Final = frozenset({ConfigOrigin.TOPIC, ConfigOrigin.DYNAMIC, ConfigOrigin.DIFFERENT})


def remote_configs(
    source: Mapping[str, SourceConfig],
    exclude: Iterable[Pattern[str]],
    known_names: Iterable[str],
    *,
    source_defaults: bool,
) -> dict[str, str]:
    """The configurations to set on a remote topic.

    Args:
        source: all configurations of the source's topic, defaults included.
        exclude: names that match one of these in full are left out (`config.properties.exclude`).
        known_names: the names that the destination's brokers know.
        source_defaults: whether Kafka's own defaults on the source are set, too.
    """
    patterns, known = list(exclude), set(known_names)
    origins = {*_SET, ConfigOrigin.DEFAULT} if source_defaults else _SET
    return {
        name: config.value
        for name, config in source.items()
        if config.origin in origins
        and name in known
        and name not in TIERED_STORAGE
        and not any(pattern.fullmatch(name) for pattern in patterns)
    }


def left_out(source: Mapping[str, SourceConfig], exclude: Iterable[Pattern[str]]) -> list[str]:
    """What is set on the source and not copied, although nothing excludes it.

    Args:
        source: see `remote_configs`.
        exclude: see `remote_configs`; what an operator has excluded is not missed.
    """
    patterns = list(exclude)
    return [
        name
        for name in TIERED_STORAGE
        if name in source
        and source[name].origin in _SET
        and not any(pattern.fullmatch(name) for pattern in patterns)
    ]


def remote_changes(
    source: Mapping[str, SourceConfig],
    wanted: Mapping[str, str],
    current: Mapping[str, DestinationConfig],
    exclude: Iterable[Pattern[str]],
) -> ConfigChanges:
    """The changes of a remote topic; None unsets a configuration.

    Args:
        source: all configurations of the source's topic, defaults included.
        wanted: what of it is to be set (`remote_configs`).
        current: all configurations of the remote topic, defaults included.
        exclude: names that match one of these in full stay as they are.
    """
    patterns = list(exclude)
    unset = {
        name: None
        for name, config in current.items()
        if config.explicit
        and name in source
        and source[name].origin is ConfigOrigin.DEFAULT
        and name not in wanted
        and name not in TIERED_STORAGE
        and not any(pattern.fullmatch(name) for pattern in patterns)
    }
    different = {
        name: value
        for name, value in wanted.items()
        if name in current
        and (current[name].value != value or not current[name].explicit)
        and (
            source[name].origin is not ConfigOrigin.DIFFERENT
            or keeps_more(name, value, current[name].value)
        )
    }
    return {**different, **unset}


def shortened(
    changes: ConfigChanges,
    source: Mapping[str, SourceConfig],
    current: Mapping[str, DestinationConfig],
) -> dict[str, str]:
    """The changes by which a remote topic may keep less than before, as text by name.

    Args:
        changes: see `remote_changes`.
        source: all configurations of the source's topic.
        current: those of the remote topic.
    """
    return {
        name: f"{name} from {former} to {value}"
        if value is not None
        else f"{name} from {former} to the target's default (the source's is {source[name].value})"
        for name, value in changes.items()
        if name in KEEPING
        for former in [current[name].value]
        if value != former and not keeps_more(name, value, former)
    }


def agreed_changes(changes: Sequence[ConfigChanges]) -> ConfigChanges:
    """The changes of a remote topic that all topics which are copied to it have in common.

    Where they differ, each of them would undo what another one has set, check by check, and
    records would be deleted by the shortest retention of all.

    Args:
        changes: by each of the topics, at least one.
    """
    first, *others = changes
    return {
        name: value
        for name, value in first.items()
        if all(name in other and other[name] == value for other in others)
    }
