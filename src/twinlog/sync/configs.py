"""Topic configurations follow the source's (KIP-1279, "Configuration Sync").

What somebody changes on the destination is changed back with the next look, but for what
`mirror.topic.properties.exclude` names. `cleanup.policy` stays as it was when the topic was added:
whether records without a key are taken, and log starts can be moved, hangs on it, and the lanes go
by it; that it differs is said.

What mirroring itself needs otherwise (mirror/topic_configs.py, REQUIRED) is set back at failover,
when the source may be gone. So what the source has of it is written down with the topic, and
forgotten when it is done: from then on the topic's configurations are its users'.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from re import Pattern
from typing import Final, NamedTuple

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.metadata import is_another
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Refusal
from twinlog.kafka.requests.topics import (
    Alteration,
    AlterOperation,
    ConfigSource,
    absent_everywhere,
    describe_configs,
    incremental_alter_configs,
    topic_resource,
)
from twinlog.lifecycle.destination_topics import chunks, known_configs, source_configs
from twinlog.mirror.topic_configs import (
    ConfigChanges,
    DestinationConfig,
    accepted_batch_limit,
    config_changes,
    destination_configs,
    fixed_differences,
    set_back,
    set_back_changes,
)
from twinlog.store.config_records import MirrorTopic, Wanted
from twinlog.store.mirrors import MirrorStore
from twinlog.store.snapshot import Snapshot

log = logging.getLogger(__name__)

_NEVER: Final = frozenset({ErrorCode.INVALID_CONFIG, ErrorCode.POLICY_VIOLATION})
"""A value, or a policy, that refuses."""


class Difference(NamedTuple):
    """What of a topic's configurations is not on the destination as it is to be."""

    changes: ConfigChanges
    fixed: Mapping[str, str]
    """What is another on the source by now, and is not changed here: the source's."""
    set_back: tuple[tuple[str, str], ...]
    """What is to be set at failover."""


class Unreadable(NamedTuple):
    """Why a topic's configurations cannot be compared."""

    side: str
    refusal: Refusal

    def __str__(self) -> str:
        return f"cannot be read on the {self.side}: {self.refusal}"


async def compare_configs(
    source: KafkaCluster,
    destination: KafkaCluster,
    topics: Sequence[str],
    exclude: Collection[Pattern[str]],
) -> dict[str, Difference | Unreadable]:
    """How the configurations of topics, which are there in both clusters, differ; nothing is done.

    Args:
        source: the mirror's source.
        destination: the mirror's cluster.
        topics: their names.
        exclude: names of configurations that are left alone.

    Returns:
        For each topic the difference, or why a cluster does not tell.

    Raises:
        UserError: a right is missing, to read the control topic's configurations.
        Retriable: a cluster does not answer.
    """
    known = await known_configs(destination)
    found: dict[str, Difference | Unreadable] = {}
    for some in chunks(topics):
        theirs = await source_configs(source, some)
        ours = await describe_configs(destination, [topic_resource(name) for name in some])
        for (_, name), entries in ours.items():
            there = theirs[name]
            if isinstance(entries, Refusal):
                found[name] = Unreadable("destination", entries)
                continue
            if isinstance(there, Refusal):
                found[name] = Unreadable("source", there)
                continue
            current = {
                key: DestinationConfig(entry.value, entry.source == ConfigSource.TOPIC)
                for key, entry in entries.items()
            }
            wanted = destination_configs(there, exclude, known, accepted_batch_limit(current))
            found[name] = Difference(
                config_changes(wanted, current, exclude),
                fixed_differences(wanted, current),
                set_back(there),
            )
    return found


async def sync_configs(
    source: KafkaCluster,
    destination: KafkaCluster,
    store: MirrorStore,
    topics: Collection[MirrorTopic],
    exclude: Collection[Pattern[str]],
) -> int:
    """Change the destination's topics to what the source's are; how many could not be.

    Args, Raises: as `compare_configs`; `store` has the topics.
    """
    failed = 0
    changes: dict[str, ConfigChanges] = {}
    compared = await compare_configs(source, destination, [one.topic for one in topics], exclude)
    # They were read by name, so they say nothing of a topic that was recreated meanwhile.
    others = await _others(source, destination, topics)
    topics = [one for one in topics if one not in others]
    compared = {one.topic: compared[one.topic] for one in topics}
    await _note_set_back(store, topics, compared)
    for name, found in compared.items():
        if isinstance(found, Unreadable):
            failed += 1
            log.warning("%s: its configurations %s", name, found)
            continue
        for key, value in found.fixed.items():
            log.warning("%s: %s is %s on the source by now, and stays here", name, key, value)
        if found.changes:
            changes[name] = found.changes
    return failed + len(await _change(destination, changes, "to what it is on the source"))


async def _others(
    source: KafkaCluster, destination: KafkaCluster, topics: Collection[MirrorTopic]
) -> set[MirrorTopic]:
    """Those whose topic, on either side, is another one by now."""
    names = [one.topic for one in topics]
    there, here = (await source.refresh(names)).topics, (await destination.refresh(names)).topics
    return {
        one
        for one in topics
        for known, found in (
            (one.topic_id, there.get(one.topic)),
            (one.destination_topic_id, here.get(one.topic)),
        )
        if found is not None and is_another(known, found.topic_id)
    }


async def _note_set_back(
    store: MirrorStore,
    topics: Collection[MirrorTopic],
    compared: Mapping[str, Difference | Unreadable],
) -> None:
    """Write down what is to be set back, where it is another than before."""
    changed = {
        topic.incarnation: found.set_back
        for topic in topics
        if isinstance(found := compared[topic.topic], Difference)
        and found.set_back != topic.set_back
    }
    if changed:
        await store.change(
            lambda now: [
                replace(topic, set_back=changed[topic.incarnation])
                for topic in now.topics
                if topic.incarnation in changed and topic.wanted is not Wanted.STOPPED
            ]
        )


async def set_configs_back(
    destination: KafkaCluster, store: MirrorStore, mirror: str, names: Collection[str]
) -> set[str]:
    """Set back what mirroring needed otherwise of topics that are STOPPED; what could not be.

    It is done between fence and write of a change, so that nobody adds the topics meanwhile. Topics
    that no broker has any more, or that are others by now, and what the destination's brokers will
    never take, are done with.

    Args:
        destination: the mirror's cluster.
        store: its mirrors.
        mirror: whose topics.
        names: theirs.

    Raises:
        UserError: no right to read configurations, or to write `__mirror_config`.
        Retriable: the destination does not answer.
    """
    known = await known_configs(destination)
    failed: set[str] = set()

    async def decide(now: Snapshot) -> list[MirrorTopic]:
        states = await store.states()
        due = [
            topic
            for topic in now.topics
            if (topic.mirror, topic.wanted) == (mirror, Wanted.STOPPED)
            and topic.topic in names
            and topic.set_back is not None
            and states.stopped(topic.mirror_partitions)
        ]
        there = (await destination.refresh([one.topic for one in due])).topics if due else {}
        changes = {
            one.topic: set_back_changes(one.set_back or (), known)
            for one in due
            if one.topic in there
            and not is_another(one.destination_topic_id, there[one.topic].topic_id)
        }
        refused = await _change(destination, changes, "back")
        absent = {
            name
            for name, one in refused.items()
            if one.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        }
        absent |= {one.topic for one in due} - there.keys()
        gone = await absent_everywhere(destination, absent) if absent else set()
        failed.clear()
        failed.update(absent - gone)
        failed.update(
            name
            for name, one in refused.items()
            if one.code not in {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, *_NEVER}
        )
        return [replace(topic, set_back=None) for topic in due if topic.topic not in failed]

    await store.change(decide)
    return failed


async def _change(
    destination: KafkaCluster, changes: Mapping[str, ConfigChanges], why: str
) -> dict[str, Refusal]:
    """Change configurations of topics; what was refused."""
    refused: dict[str, Refusal] = {}
    for some in chunks(list(changes)):
        answers = await incremental_alter_configs(
            destination,
            {topic_resource(name): _alterations(changes[name]) for name in some},
        )
        for (_, name), refusal in answers.items():
            if refusal is None:
                log.info("%s: changed %s: %s", name, why, ", ".join(changes[name]))
            else:
                refused[name] = refusal
                log.warning("%s: its configurations cannot be changed: %s", name, refusal)
    return refused


def _alterations(changes: ConfigChanges) -> list[Alteration]:
    return [
        Alteration(name, AlterOperation.DELETE if value is None else AlterOperation.SET, value)
        for name, value in changes.items()
    ]
