"""Topic configurations follow the source's (KIP-1279, "Configuration Sync").

What somebody changes on the destination is changed back with the next look, but for what
`mirror.topic.properties.exclude` names. `cleanup.policy` stays as it was when the topic was added:
whether records without a key are taken, and log starts can be moved, hangs on it, and the lanes go
by it; that it differs is said.
"""

import logging
from collections.abc import Collection, Sequence
from re import Pattern

from twinlog.cluster.admin import (
    Alteration,
    AlterOperation,
    ConfigSource,
    Resource,
    describe_configs,
    incremental_alter_configs,
    topic_resource,
)
from twinlog.cluster.client import KafkaCluster
from twinlog.control.mirrors import CHUNK, known_configs, source_configs
from twinlog.core.errors import Refusal
from twinlog.core.topic_configs import (
    FIXED,
    DestinationConfig,
    config_changes,
    destination_configs,
)

log = logging.getLogger(__name__)


async def sync_configs(
    source: KafkaCluster,
    destination: KafkaCluster,
    topics: Sequence[str],
    exclude: Collection[Pattern[str]],
) -> int:
    """Change the destination's topics to what the source's are; how many could not be.

    Args:
        source: the mirror's source.
        destination: where topics are changed.
        topics: those to look at; they are there in both clusters.
        exclude: names of configurations that are left alone.

    Raises:
        UserError: a right is missing, to read configurations.
        Retriable: a cluster does not answer.
    """
    known = await known_configs(destination)
    failed = 0
    for start in range(0, len(topics), CHUNK):
        some = topics[start : start + CHUNK]
        failed += await _sync(source, destination, some, exclude, known)
    return failed


async def _sync(
    source: KafkaCluster,
    destination: KafkaCluster,
    topics: Sequence[str],
    exclude: Collection[Pattern[str]],
    known: Collection[str],
) -> int:
    theirs = await source_configs(source, topics)
    ours = await describe_configs(destination, [topic_resource(name) for name in topics])
    changes: dict[Resource, list[Alteration]] = {}
    failed = 0
    for resource, entries in ours.items():
        if isinstance(entries, Refusal):
            failed += 1
            log.warning("%s: its configurations cannot be read: %s", resource.name, entries)
            continue
        wanted = destination_configs(theirs[resource.name], exclude, known)
        for name in FIXED & wanted.keys():
            if entries[name].value != wanted[name]:
                log.warning(
                    "%s: %s is %s on the source by now, and stays %s here",
                    *(resource.name, name, wanted[name], entries[name].value),
                )
        current = {
            name: DestinationConfig(entry.value, entry.source == ConfigSource.TOPIC)
            for name, entry in entries.items()
        }
        if changed := config_changes(wanted, current, exclude):
            changes[resource] = [
                Alteration(
                    name, AlterOperation.DELETE if value is None else AlterOperation.SET, value
                )
                for name, value in changed.items()
            ]
    if not changes:
        return failed
    answers = await incremental_alter_configs(destination, changes)
    for resource, refusal in answers.items():
        if refusal is None:
            names = ", ".join(change.name for change in changes[resource])
            log.info("%s: changed as on the source: %s", resource.name, names)
        else:
            failed += 1
            log.warning("%s: its configurations cannot be changed: %s", resource.name, refusal)
    return failed
