"""Topic configurations follow the source's (KIP-1279, "Configuration Sync").

What somebody changes on the destination is changed back with the next look, but for what
`mirror.topic.properties.exclude` names. `cleanup.policy` stays as it was when the topic was added:
whether records without a key are taken, and log starts can be moved, hangs on it, and the lanes go
by it; that it differs is said.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from re import Pattern
from typing import NamedTuple

from twinlog.cluster.admin import (
    Alteration,
    AlterOperation,
    ConfigSource,
    describe_configs,
    incremental_alter_configs,
    topic_resource,
)
from twinlog.cluster.client import KafkaCluster
from twinlog.control.destination_topics import chunks, known_configs, source_configs
from twinlog.core.errors import Refusal
from twinlog.core.topic_configs import (
    DestinationConfig,
    config_changes,
    destination_configs,
    fixed_differences,
)

log = logging.getLogger(__name__)


class Difference(NamedTuple):
    """What of a topic's configurations is not on the destination as it is to be."""

    changes: Mapping[str, str | None]
    """What has to be changed; None for what is to be unset."""
    fixed: Mapping[str, str]
    """What is another on the source by now, and is not changed here: the source's."""


async def compare_configs(
    source: KafkaCluster,
    destination: KafkaCluster,
    topics: Sequence[str],
    exclude: Collection[Pattern[str]],
) -> dict[str, Difference | Refusal]:
    """How the configurations of topics, which are there in both clusters, differ; nothing is done.

    Args:
        source: the mirror's source.
        destination: the mirror's cluster.
        topics: their names.
        exclude: names of configurations that are left alone.

    Returns:
        For each topic the difference, or why the destination does not tell.

    Raises:
        UserError: a right is missing, to read configurations.
        Retriable: a cluster does not answer.
    """
    known = await known_configs(destination)
    found: dict[str, Difference | Refusal] = {}
    for some in chunks(topics):
        theirs = await source_configs(source, some)
        ours = await describe_configs(destination, [topic_resource(name) for name in some])
        for (_, name), entries in ours.items():
            if isinstance(entries, Refusal):
                found[name] = entries
                continue
            wanted = destination_configs(theirs[name], exclude, known)
            current = {
                key: DestinationConfig(entry.value, entry.source == ConfigSource.TOPIC)
                for key, entry in entries.items()
            }
            found[name] = Difference(
                config_changes(wanted, current, exclude), fixed_differences(wanted, current)
            )
    return found


async def sync_configs(
    source: KafkaCluster,
    destination: KafkaCluster,
    topics: Sequence[str],
    exclude: Collection[Pattern[str]],
) -> int:
    """Change the destination's topics to what the source's are; how many could not be.

    Args, Raises: as `compare_configs`.
    """
    failed = 0
    changes: dict[str, list[Alteration]] = {}
    for name, found in (await compare_configs(source, destination, topics, exclude)).items():
        if isinstance(found, Refusal):
            failed += 1
            log.warning("%s: its configurations cannot be read: %s", name, found)
            continue
        for key, value in found.fixed.items():
            log.warning("%s: %s is %s on the source by now, and stays here", name, key, value)
        if found.changes:
            changes[name] = [_alteration(key, value) for key, value in found.changes.items()]
    for some in chunks(list(changes)):
        failed += await _change(destination, {name: changes[name] for name in some})
    return failed


def _alteration(name: str, value: str | None) -> Alteration:
    return Alteration(name, AlterOperation.DELETE if value is None else AlterOperation.SET, value)


async def _change(destination: KafkaCluster, changes: Mapping[str, Sequence[Alteration]]) -> int:
    answers = await incremental_alter_configs(
        destination, {topic_resource(name): some for name, some in changes.items()}
    )
    failed = 0
    for (_, name), refusal in answers.items():
        if refusal is None:
            names = ", ".join(change.name for change in changes[name])
            log.info("%s: changed as on the source: %s", name, names)
        else:
            failed += 1
            log.warning("%s: its configurations cannot be changed: %s", name, refusal)
    return failed
