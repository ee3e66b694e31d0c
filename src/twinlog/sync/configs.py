"""Topic configurations follow the source's (KIP-1279, "Configuration Sync").

The next check reverts a change on the destination, except of what `mirror.topic.properties.exclude`
names. `cleanup.policy` stays as it was when the topic was added: it decides whether records without
a key are accepted and whether log starts can be moved, and the lanes rely on it. A difference is
logged.

Mirroring itself needs other values of some configurations (mirror/topic_configs.py, REQUIRED). They
are set back at failover, when the source may be unreachable. So the source's values are stored with
the topic, and forgotten when they are set back: from then on the topic's configurations are its
users'.

If another writer takes over between the two, or the node ends, what is done is found not to be
done. A user may have set something meanwhile. So one call sets a topic back once. And a value that
is not mirroring's stays, if every broker reports it: one that is cut off from the controllers may
still report what was set before the topic was mirrored. Kafka has no conditional change: what is
set between the reports and the set-back, milliseconds as a rule, is overwritten.
"""

import asyncio
import logging
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final, NamedTuple

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.metadata import is_another
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import REFUSED_VALUE, Refusal, TwinlogError
from twinlog.kafka.requests.topics import (
    Alteration,
    AlterOperation,
    ConfigSource,
    absent_everywhere,
    describe_configs,
    incremental_alter_configs,
    topic_resource,
)
from twinlog.lifecycle.destination_topics import chunks, known_configs
from twinlog.lifecycle.source_configs import broker_reports, source_configs
from twinlog.mirror.topic_configs import (
    REQUIRED,
    ConfigChanges,
    DestinationConfig,
    accepted_batch_limit,
    config_changes,
    destination_configs,
    fixed_differences,
    not_of_mirroring,
    set_back,
    set_back_changes,
    settled_changes,
    unsettled,
)
from twinlog.store.config_records import MirrorTopic, Wanted
from twinlog.store.mirrors import MirrorStore
from twinlog.store.snapshot import Snapshot
from twinlog.sync.base import Moved, Remark, ReportedSync, SyncContext
from twinlog.sync.topic_identity import recreated_topics
from twinlog.sync.unsettled_configs import UnsettledConfigs, by_reason
from twinlog.text import few

log = logging.getLogger(__name__)

_REPORT_S: Final = 5.0
"""Seconds within which a broker has to report a topic's values at a failover."""


class ConfigDifference(NamedTuple):
    """How a topic's configurations on the destination differ from what they have to be."""

    changes: ConfigChanges
    fixed: Mapping[str, str]
    """Configurations that differ and are not changed, with the source's value."""
    set_back: tuple[tuple[str, str], ...]
    """What is to be set at failover."""
    unsettled: tuple[str, ...] = ()
    """Why the source may have other values by now; the topic keeps no less meanwhile."""

    @property
    def names(self) -> tuple[str, ...]:
        """The configurations that are not what they have to be."""
        return tuple(sorted({*self.changes, *self.fixed}))


class UnreadableConfigs(NamedTuple):
    """Why a topic's configurations cannot be compared."""

    side: str
    refusal: Refusal

    def __str__(self) -> str:
        return f"cannot be read on the {self.side}: {self.refusal}"


Compared = Mapping[str, ConfigDifference | UnreadableConfigs]


class ConfigSync(ReportedSync[Compared]):
    """Copies the configurations of topics."""

    name = "configurations"
    metric = "TopicConfigMetadataSyncError"

    def __init__(self) -> None:
        self._unsettled = UnsettledConfigs()

    def forget(self, moved: Moved) -> None:
        """Let brokers disagree for a while again before it is logged."""
        self._unsettled.forget(moved)

    async def compare(self, context: SyncContext) -> Compared:
        """Compare the configurations of the topics that exist in both clusters.

        Returns:
            For each topic the difference, or why a cluster cannot be read.

        Raises:
            UserError: the right to read the control topic's configurations is missing.
            Retriable: a cluster is unreachable.
        """
        exclude = context.settings.topic_properties_exclude
        config_names = await known_configs(context.destination)
        comparison: dict[str, ConfigDifference | UnreadableConfigs] = {}
        all_names = [topic.topic for topic in context.same]
        reports = await broker_reports(context.source, all_names)
        for names in chunks(all_names):
            source_entries = await source_configs(context.source, names, reports)
            resources = [topic_resource(name) for name in names]
            destination_entries = await describe_configs(context.destination, resources)
            for (_, name), entries in destination_entries.items():
                topic_entries = source_entries[name]
                if isinstance(entries, Refusal):
                    comparison[name] = UnreadableConfigs("destination", entries)
                    continue
                if isinstance(topic_entries, Refusal):
                    comparison[name] = UnreadableConfigs("source", topic_entries)
                    continue
                current = {
                    key: DestinationConfig(entry.value, entry.source == ConfigSource.TOPIC)
                    for key, entry in entries.items()
                }
                target = destination_configs(
                    topic_entries, exclude, config_names, accepted_batch_limit(current)
                )
                changes = config_changes(target, current, exclude)
                comparison[name] = ConfigDifference(
                    settled_changes(changes, topic_entries, current),
                    {
                        key: value
                        for key, value in fixed_differences(target, current).items()
                        if not topic_entries[key].unsettled
                    },
                    set_back(topic_entries),
                    tuple(unsettled(topic_entries, exclude)),
                )
        return comparison

    async def apply(self, context: SyncContext, difference: Compared) -> int:
        """Change the destination's topics to the source's configurations."""
        failures = 0
        changes: dict[str, ConfigChanges] = {}
        differing = [t for t in context.same if _differs(t, difference[t.topic])]
        recreated = await recreated_topics(context, differing)
        topics = [topic for topic in context.same if topic not in recreated]
        compared = {topic.topic: difference[topic.topic] for topic in topics}
        await _note_set_back(context.store, topics, compared)
        for name, difference_of_topic in compared.items():
            if isinstance(difference_of_topic, UnreadableConfigs):
                failures += 1
                log.warning("%s: its configurations %s", name, difference_of_topic)
                continue
            for key, value in difference_of_topic.fixed.items():
                log.warning(
                    "%s: %s is now %s on the source; the destination keeps its own value",
                    name,
                    key,
                    value,
                )
            if difference_of_topic.changes:
                changes[name] = difference_of_topic.changes
        failures += self._unsettled.note(
            context.name,
            by_reason(
                {
                    name: one.unsettled
                    for name, one in difference.items()
                    if isinstance(one, ConfigDifference)
                }
            ),
        )
        refusals = await change_configs(context.destination, changes, "to the source's value")
        return failures + len(refusals)

    def describe(self, difference: Compared) -> Iterator[Remark]:
        """A remark for each topic that differs, or cannot be compared."""
        for topic, topic_difference in difference.items():
            if isinstance(topic_difference, UnreadableConfigs):
                yield Remark(f"its configurations {topic_difference}", topic, unreadable=True)
                continue
            for text in topic_difference.unsettled:
                yield Remark(
                    f"unknown whether it follows the source: {text}", topic, unreadable=True
                )
            if topic_difference.names:
                yield Remark(f"different from the source: {few(topic_difference.names)}", topic)


def _differs(topic: MirrorTopic, compared: ConfigDifference | UnreadableConfigs) -> bool:
    """Whether something is to be written or reported."""
    if isinstance(compared, UnreadableConfigs):
        return True
    return bool(compared.names) or compared.set_back != topic.set_back


async def _note_set_back(
    store: MirrorStore,
    topics: Collection[MirrorTopic],
    compared: Compared,
) -> None:
    """Store what is to be set back, if it has changed."""
    changes = {
        topic.incarnation: difference.set_back
        for topic in topics
        if isinstance(difference := compared[topic.topic], ConfigDifference)
        and difference.set_back != topic.set_back
    }
    if changes:
        await store.change(
            lambda now: [
                replace(topic, set_back=changes[topic.incarnation])
                for topic in now.topics
                if topic.incarnation in changes and topic.wanted is not Wanted.STOPPED
            ]
        )


async def set_configs_back(
    destination: KafkaCluster, store: MirrorStore, mirror: str, names: Collection[str]
) -> set[str]:
    """Set back what mirroring has changed in STOPPED topics; return the topics that failed.

    This is done between fence and write of a change, so that no command adds the topics meanwhile.
    These count as done: topics that no broker has any more, topics that were recreated, and values
    that the destination's brokers will never accept, or that are not mirroring's any more.

    Args:
        destination: the mirror's cluster.
        store: its mirrors.
        mirror: the mirror's name.
        names: its topics.

    Raises:
        UserError: no right to read configurations, or to write `__mirror_config`.
        Retriable: the destination is unreachable.
    """
    config_names = {*await known_configs(destination)}
    failures: set[str] = set()
    done: set[MirrorTopic] = set()  # by an attempt before this one

    async def decide(current: Snapshot) -> list[MirrorTopic]:
        states = await store.states()
        topics = [
            topic
            for topic in current.topics
            if (topic.mirror, topic.wanted) == (mirror, Wanted.STOPPED)
            and topic.topic in names
            and topic.set_back is not None
            and states.stopped(topic.mirror_partitions)
        ]
        failures.clear()
        if not topics:
            return []
        metadata = await destination.refresh([topic.topic for topic in topics])
        destination_topics = metadata.topics
        due = {
            topic.topic: topic
            for topic in topics
            if topic not in done
            and topic.topic in destination_topics
            and not is_another(topic.destination_topic_id, destination_topics[topic.topic].topic_id)
        }
        kept = await _not_of_mirroring(destination, metadata.brokers, due, config_names)
        changes = {
            name: set_back_changes(topic.set_back or (), config_names - kept[name])
            for name, topic in due.items()
        }
        refusals = await change_configs(destination, changes, "back")
        done.update(due[name] for name in due.keys() - refusals.keys())
        absent = {
            name
            for name, refusal in refusals.items()
            if refusal.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        }
        absent |= {topic.topic for topic in topics} - destination_topics.keys()
        deleted = await absent_everywhere(destination, absent) if absent else set()
        failures.update(absent - deleted)
        failures.update(
            name
            for name, refusal in refusals.items()
            if refusal.code not in {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, *REFUSED_VALUE}
        )
        return [replace(topic, set_back=None) for topic in topics if topic.topic not in failures]

    await store.change(decide)
    return failures


async def _not_of_mirroring(
    destination: KafkaCluster,
    nodes: Collection[int],
    names: Collection[str],
    config_names: Collection[str],
) -> dict[str, set[str]]:
    """By topic, the configurations that are not mirroring's any more (`not_of_mirroring`).

    A broker that does not answer holds up no failover: then they count as mirroring's.
    """
    keys = [requirement.name for requirement in REQUIRED]

    async def reported(node: int) -> dict[str, Mapping[str, str | None]]:
        values: dict[str, Mapping[str, str | None]] = {}
        with suppress(TwinlogError):
            for group in chunks(list(names)):
                resources = [topic_resource(name) for name in group]
                answers = await describe_configs(
                    destination, resources, keys, node=node, timeout=_REPORT_S
                )
                values |= {
                    name: {key: entry.value for key, entry in entries.items()}
                    for (_, name), entries in answers.items()
                    if not isinstance(entries, Refusal)
                }
        return values

    reports = await asyncio.gather(*map(reported, nodes)) if names else []
    kept = {
        name: not_of_mirroring([report.get(name, {}) for report in reports], config_names)
        for name in names
    }
    for name, configs in kept.items():
        if configs:
            log.info(
                "%s: not changed back, as mirroring needs another value: %s",
                name,
                few(sorted(configs)),
            )
    return kept


async def change_configs(
    destination: KafkaCluster, changes: Mapping[str, ConfigChanges], why: str
) -> dict[str, Refusal]:
    """Change configurations of topics; return the refusals."""
    refusals: dict[str, Refusal] = {}
    for names in chunks(list(changes)):
        answers = await incremental_alter_configs(
            destination,
            {topic_resource(name): _alterations(changes[name]) for name in names},
        )
        for (_, name), refusal in answers.items():
            if refusal is None:
                log.info("%s: changed %s: %s", name, why, ", ".join(changes[name]))
            else:
                refusals[name] = refusal
                log.warning("%s: cannot alter its configurations: %s", name, refusal)
    return refusals


def _alterations(changes: ConfigChanges) -> list[Alteration]:
    return [
        Alteration(name, AlterOperation.DELETE if value is None else AlterOperation.SET, value)
        for name, value in changes.items()
    ]
