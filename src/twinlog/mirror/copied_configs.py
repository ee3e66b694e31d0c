"""Which configurations of its source topic a remote topic of a flow has (MirrorMaker 2 4.3).

Only what is set on the source's topic itself is copied, unless `use.defaults.from` is `source`:
then the source's defaults are, too. What `config.properties.exclude` matches is neither copied nor
unset.

Neither are configurations of tiered storage, which MirrorMaker 2 copies: a target without tiered
storage refuses a topic with them, and the topic would not be copied at all. Where the target has
it, its operator decides which remote topics use it.
"""

from collections.abc import Iterable, Mapping, Sequence
from re import Pattern

from twinlog.mirror.topic_configs import (
    TIERED_STORAGE,
    ConfigChanges,
    DestinationConfig,
    SourceConfig,
)


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
        source_defaults: whether the source's defaults are set, too.
    """
    patterns, known = list(exclude), set(known_names)
    return {
        name: config.value
        for name, config in source.items()
        if (config.explicit or source_defaults)
        and name in known
        and name not in TIERED_STORAGE
        and not any(pattern.fullmatch(name) for pattern in patterns)
    }


def left_out(source: Mapping[str, SourceConfig], exclude: Iterable[Pattern[str]]) -> list[str]:
    """What is set on the source's topic and not copied, although nothing excludes it.

    Args:
        source: see `remote_configs`.
        exclude: see `remote_configs`; what an operator has excluded is not missed.
    """
    patterns = list(exclude)
    return [
        name
        for name in TIERED_STORAGE
        if name in source
        and source[name].explicit
        and not any(pattern.fullmatch(name) for pattern in patterns)
    ]


def remote_changes(
    wanted: Mapping[str, str],
    current: Mapping[str, DestinationConfig],
    exclude: Iterable[Pattern[str]],
) -> ConfigChanges:
    """The changes of a remote topic; None unsets a configuration.

    Args:
        wanted: see `remote_configs`.
        current: all configurations of the remote topic, defaults included.
        exclude: names that match one of these in full stay as they are.
    """
    patterns = list(exclude)
    unset = {
        name: None
        for name, config in current.items()
        if config.explicit
        and name not in wanted
        and name not in TIERED_STORAGE
        and not any(pattern.fullmatch(name) for pattern in patterns)
    }
    different = {
        name: value
        for name, value in wanted.items()
        if name in current and (current[name].value != value or not current[name].explicit)
    }
    return {**different, **unset}


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
