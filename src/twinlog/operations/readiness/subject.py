"""The topics to survey before a failover, and what the control topics hold about them.

A `Subject` is read once. What it holds of partitions is as old as its statuses; `confirmed` reads
those statuses again that are older than what they are compared with.
"""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.groups.offsets import CLASSIC, list_groups
from twinlog.kafka.types import TopicPartition
from twinlog.lifecycle.changes import Topics, choose
from twinlog.lifecycle.creation import compiled
from twinlog.mirror.errors import MirrorError
from twinlog.mirror.settings import MirrorSettings, parse_settings
from twinlog.mirror.translation import SAME, Translation
from twinlog.operations.describe import MirrorDescription, PartitionDescription, describe
from twinlog.operations.readiness.reasons import Finding, Reason
from twinlog.store.config_records import Mirror, MirrorTopic, Wanted
from twinlog.store.control_topics import LANES_GROUP, States
from twinlog.store.mirrors import MirrorStore
from twinlog.store.snapshot import Snapshot
from twinlog.store.statuses import Reports, foreign_members, is_fresh, read_reports, renewed
from twinlog.sync.compaction import topic_behind_ms
from twinlog.sync.shared_translation import read_translation
from twinlog.text import few

F = TypeVar("F")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The topics to survey, and what the control topics hold about them."""

    mirror: Mirror
    topics: tuple[MirrorTopic, ...]
    described: MirrorDescription
    node_runs: bool
    snapshot: Snapshot
    states: States
    reports: Reports
    expression: Topics
    """How the operator named the topics."""
    findings: tuple[Finding, ...] = ()
    """Further findings from the control topics and the nodes' groups."""
    read_at: float
    """Time of the reading, by the monotonic clock."""
    translation: Translation = SAME
    """Where the topics' partitions and offsets are on the destination."""
    of_groups: Translation = SAME
    """The same for offsets of groups (`Translation.joined`)."""

    @property
    def settings(self) -> MirrorSettings:
        """The mirror's settings."""
        return parse_settings(self.mirror.source)

    @property
    def names(self) -> list[str]:
        """The topics' names, in order."""
        return [topic.topic for topic in self.topics]

    @property
    def partitions(self) -> list[TopicPartition]:
        """All of the topics' partitions, in order."""
        return [
            TopicPartition(topic.topic, index)
            for topic in self.topics
            for index in range(topic.partitions)
        ]

    @property
    def group_partitions(self) -> list[TopicPartition]:
        """The partitions as which they count for groups, of which offsets are translated."""
        keys = {self.of_groups.key(partition) for partition in self.partitions}
        return sorted(keys - self.of_groups.unknown)

    def by_selected_topic(self, by_topic: Mapping[str, tuple[F, ...]]) -> dict[str, tuple[F, ...]]:
        """What is known of topics, by the selected ones: those of `of_groups` may be others."""
        selected, result = {*self.names}, dict[str, tuple[F, ...]]()
        for topic, facts in by_topic.items():
            among = {
                name
                for key, one in self.of_groups.shared.items()
                if key.topic == topic
                for name in one.topics
            }
            name = topic if topic in selected else min(among & selected, default=topic)
            result[name] = (*result.get(name, ()), *facts)
        return result

    def named(self, topic: str) -> bool:
        """Whether the operator's expression names this topic."""
        if not isinstance(self.expression, str):
            return topic in self.expression
        if self.expression in self.names:
            return topic == self.expression
        return compiled(self.expression).fullmatch(topic) is not None

    def behind_ms(self, topic: str) -> int:
        """For how long (ms) a compacted topic was behind, if that was too long; else 0."""
        now_ms = time.time_ns() // 1_000_000
        (description,) = (description for description in self.topics if description.topic == topic)
        return topic_behind_ms(self.snapshot, description, now_ms) or 0

    def with_reports(self, reports: Reports) -> "Subject":
        """The same subject with other statuses."""
        return replace(
            self,
            reports=reports,
            described=_described(self.snapshot, self.states, reports, self.mirror.name, self.names),
        )


def _described(
    snapshot: Snapshot, states: States, reports: Reports, mirror: str, names: Collection[str]
) -> MirrorDescription:
    (description,) = describe(
        snapshot, states, reports.statuses.values(), [mirror], ages=reports.ages
    )
    return replace(
        description, topics=tuple(topic for topic in description.topics if topic.topic in names)
    )


async def subject_of(destination: KafkaCluster, mirror: str, topics: Topics) -> Subject:
    """The selected topics of a mirror that were not removed, and what is stored about them.

    Raises:
        MirrorRefused: UNKNOWN_MIRROR, TOPIC_NOT_IN_MIRROR, MIRROR_TOPIC_BEING_REMOVED,
            INVALID_REGULAR_EXPRESSION.
        Retriable, UserError: the destination is unreachable, or refuses.
    """
    store = MirrorStore(destination)
    snapshot = await store.snapshot()
    selection = choose(
        snapshot,
        mirror,
        topics,
        lambda topic: (
            MirrorError.MIRROR_TOPIC_BEING_REMOVED if topic.wanted is Wanted.STOPPED else None
        ),
    )
    read_at = time.monotonic()
    groups = await list_groups(destination, whole=False)
    lanes = groups.get(LANES_GROUP)
    reports = await read_reports(store, has_lanes=lanes is None or not lanes.idle)
    states = await store.states()
    names = {topic.topic for topic in selection}
    foreign = await foreign_members(destination, groups)
    if lanes is not None and lanes.kind == CLASSIC:
        node_runs = not lanes.idle and not foreign.all_foreign
    else:
        # The group is missing, or another kind of group has its name: the nodes' statuses decide.
        node_runs = any(map(is_fresh, reports.ages.values()))
    translation = (await read_translation(destination, store, snapshot, mirror, names)).of_topics(
        names
    )
    unreadable = (*snapshot.unreadable.values(), *states.unreadable.values(), *reports.unreadable)
    return Subject(
        mirror=snapshot.mirrors[mirror],
        topics=tuple(selection),
        described=_described(snapshot, states, reports, mirror, names),
        node_runs=node_runs,
        snapshot=snapshot,
        states=states,
        reports=reports,
        expression=topics,
        findings=tuple(_of_control(unreadable, foreign.descriptions)),
        read_at=read_at,
        translation=translation,
        of_groups=translation.joined(),
    )


def _of_control(unreadable: Sequence[str], foreign: Sequence[str]) -> Iterator[Finding]:
    if unreadable:
        yield Finding(
            Reason.CONTROL_UNREADABLE,
            f"{len(unreadable)} record(s) of the control topics cannot be read: "
            f"{few(unreadable, '; ')}",
        )
    for member in foreign:
        yield Finding(Reason.FOREIGN_MEMBER, member)


async def confirmed(
    destination: KafkaCluster, subject: Subject, ends: Mapping[TopicPartition, int]
) -> Subject:
    """Read statuses again, after `ends`, of partitions whose log is longer than reported.

    The mirror has not written what such a status does not report.
    """
    longer = {
        TopicPartition(topic.topic, p.partition)
        for topic in subject.described.topics
        for p in topic.partitions
        if p.fresh
        and 0 <= p.mirrored_offset < ends.get(TopicPartition(topic.topic, p.partition), 0)
    }
    numbers = {
        number
        for number, status in subject.reports.statuses.items()
        for row in status.partitions
        if row.partition.mirror == subject.mirror.name
        and TopicPartition(row.partition.topic, row.partition.partition) in longer
    }
    if not numbers:
        return subject
    return subject.with_reports(await renewed(MirrorStore(destination), subject.reports, numbers))


def status_age_ms(subject: Subject) -> int | None:
    """Present age (ms) of the oldest status that counts; None: none does."""
    ages = [age for _, age in _reported(subject)]
    return int(max(ages)) if ages else None


def source_age_ms(subject: Subject) -> int | None:
    """Present time (ms) since last contact with the source, for the partition with the longest.

    The age of that contact when a status was written is a difference of one clock, its lane's,
    which may be wrong by any time. The status's own age is a difference of two clocks, unless it
    was read again: it counts only while it seems to be at most `FRESH_S` old (statuses.py).
    """
    ages = [
        age + partition.status_time_ms - partition.source_time_ms
        for partition, age in _reported(subject)
        if partition.source_time_ms is not None and partition.status_time_ms is not None
    ]
    return int(max(ages)) if ages else None


def _reported(subject: Subject) -> list[tuple[PartitionDescription, float]]:
    """The partitions that have a fresh status, with its present age in ms."""
    elapsed_s = time.monotonic() - subject.read_at
    ages: dict[tuple[str | None, int | None], float] = {}
    for number, status in subject.reports.statuses.items():
        known_age = ages.get((status.lane, status.time_ms), 0.0)
        # A lane's clock that is ahead makes no status younger than 0.
        ages[status.lane, status.time_ms] = max(known_age, subject.reports.ages[number])
    return [
        (partition, (ages[partition.lane, partition.status_time_ms] + elapsed_s) * 1000)
        for topic in subject.described.topics
        for partition in topic.partitions
        if partition.fresh and (partition.lane, partition.status_time_ms) in ages
    ]
