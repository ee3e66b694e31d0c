"""What is to be surveyed before a failover, and what the control topics say of it.

A `Subject` is read once. What it says of partitions is as old as the statuses in it; `confirmed`
reads those again that are older than what they are compared with.
"""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.groups.offsets import CLASSIC, list_groups
from twinlog.kafka.types import TopicPartition
from twinlog.lifecycle.changes import Topics, choose
from twinlog.lifecycle.creation import compiled
from twinlog.mirror.errors import MirrorError
from twinlog.mirror.settings import MirrorSettings, parse_settings
from twinlog.operations.describe import MirrorDescription, PartitionDescription, describe
from twinlog.operations.readiness.verdict import Finding, Reason
from twinlog.store.config_records import Mirror, MirrorTopic, Wanted
from twinlog.store.control_topics import LANES_GROUP, States
from twinlog.store.mirrors import MirrorStore
from twinlog.store.snapshot import Snapshot
from twinlog.store.statuses import Reports, foreign_members, is_fresh, read_reports, renewed
from twinlog.sync.compaction import topic_behind_ms
from twinlog.text import few


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is to be surveyed, and what the control topics say of it."""

    mirror: Mirror
    topics: tuple[MirrorTopic, ...]
    described: MirrorDescription
    node_runs: bool
    snapshot: Snapshot
    states: States
    reports: Reports
    expression: Topics
    """How the topics were named."""
    findings: tuple[Finding, ...] = ()
    """What the control topics and the nodes' groups show beside."""
    read_at: float
    """When it was read, by the monotonic clock."""

    @property
    def settings(self) -> MirrorSettings:
        """The mirror's."""
        return parse_settings(self.mirror.source)

    @property
    def names(self) -> list[str]:
        """Of the topics, in order."""
        return [topic.topic for topic in self.topics]

    @property
    def partitions(self) -> list[TopicPartition]:
        """All of the topics' partitions, in order."""
        return [
            TopicPartition(topic.topic, index)
            for topic in self.topics
            for index in range(topic.partitions)
        ]

    def named(self, topic: str) -> bool:
        """Whether a topic of this name is among those that were asked for."""
        if not isinstance(self.expression, str):
            return topic in self.expression
        if self.expression in self.names:
            return topic == self.expression
        return compiled(self.expression).fullmatch(topic) is not None

    def behind_ms(self, topic: str) -> int:
        """For how long a compacted topic was behind, where that was too long; else 0."""
        now_ms = time.time_ns() // 1_000_000
        (one,) = (one for one in self.topics if one.topic == topic)
        return topic_behind_ms(self.snapshot, one, now_ms) or 0

    def with_reports(self, reports: Reports) -> "Subject":
        """The same by other statuses."""
        return replace(
            self,
            reports=reports,
            described=_described(self.snapshot, self.states, reports, self.mirror.name, self.names),
        )


def _described(
    snapshot: Snapshot, states: States, reports: Reports, mirror: str, names: Collection[str]
) -> MirrorDescription:
    (found,) = describe(snapshot, states, reports.statuses.values(), [mirror], ages=reports.ages)
    return replace(found, topics=tuple(one for one in found.topics if one.topic in names))


async def subject_of(destination: KafkaCluster, mirror: str, topics: Topics) -> Subject:
    """Topics of a mirror that were not removed, and what is said of them.

    Raises:
        MirrorRefused: UNKNOWN_MIRROR, TOPIC_NOT_IN_MIRROR, MIRROR_TOPIC_BEING_REMOVED,
            INVALID_REGULAR_EXPRESSION.
        Retriable, UserError: the destination does not answer, or refuses.
    """
    store = MirrorStore(destination)
    snapshot = await store.snapshot()
    chosen = choose(
        snapshot,
        mirror,
        topics,
        lambda one: (
            MirrorError.MIRROR_TOPIC_BEING_REMOVED if one.wanted is Wanted.STOPPED else None
        ),
    )
    read_at = time.monotonic()
    groups = await list_groups(destination, whole=False)
    lanes = groups.get(LANES_GROUP)
    reports = await read_reports(store, alive=lanes is None or not lanes.idle)
    states = await store.states()
    names = {topic.topic for topic in chosen}
    foreign = await foreign_members(destination, groups)
    if lanes is not None and lanes.kind == CLASSIC:
        node_runs = not lanes.idle and not foreign.only
    else:
        # The group is missing, or another one has its name: the nodes' statuses tell.
        node_runs = any(map(is_fresh, reports.ages.values()))
    unreadable = (*snapshot.unreadable.values(), *states.unreadable.values(), *reports.unreadable)
    return Subject(
        mirror=snapshot.mirrors[mirror],
        topics=tuple(chosen),
        described=_described(snapshot, states, reports, mirror, names),
        node_runs=node_runs,
        snapshot=snapshot,
        states=states,
        reports=reports,
        expression=topics,
        findings=tuple(_of_control(unreadable, foreign.named)),
        read_at=read_at,
    )


def _of_control(unreadable: Sequence[str], foreign: Sequence[str]) -> Iterator[Finding]:
    if unreadable:
        yield Finding(
            Reason.CONTROL_UNREADABLE,
            f"{len(unreadable)} record(s) of the control topics cannot be read: "
            f"{few(unreadable, '; ')}",
        )
    for one in foreign:
        yield Finding(Reason.FOREIGN_MEMBER, one)


async def confirmed(
    destination: KafkaCluster, subject: Subject, ends: Mapping[TopicPartition, int]
) -> Subject:
    """With statuses that are younger than these ends, of the partitions whose log is longer.

    What such a status does not know of its mirror has not written.
    """
    longer = {
        TopicPartition(topic.topic, one.partition)
        for topic in subject.described.topics
        for one in topic.partitions
        if one.fresh
        and 0 <= one.destination_offset < ends.get(TopicPartition(topic.topic, one.partition), 0)
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
    """Age of the oldest status that counts, by now."""
    ages = [age for _, age in _reported(subject)]
    return int(max(ages)) if ages else None


def source_age_ms(subject: Subject) -> int | None:
    """How long ago the source was heard of, of the partition of which that is longest, by now.

    How old that was when a status was written is a difference of one clock, its lane's, which may
    be wrong by any time. The status's own age is taken across two clocks, unless it was read again:
    it counts only while it seems to be at most `FRESH_S` old (statuses.py).
    """
    heard = [
        age + one.status_time_ms - one.source_time_ms
        for one, age in _reported(subject)
        if one.source_time_ms is not None and one.status_time_ms is not None
    ]
    return int(max(heard)) if heard else None


def _reported(subject: Subject) -> list[tuple[PartitionDescription, float]]:
    """The partitions that have a fresh status, with its age by now in ms."""
    since = time.monotonic() - subject.read_at
    ages: dict[tuple[str | None, int | None], float] = {}
    for number, status in subject.reports.statuses.items():
        known = ages.get((status.lane, status.time_ms), 0.0)
        # A lane's clock that is ahead makes no status younger than 0.
        ages[status.lane, status.time_ms] = max(known, subject.reports.ages[number])
    return [
        (one, (ages[one.lane, one.status_time_ms] + since) * 1000)
        for topic in subject.described.topics
        for one in topic.partitions
        if one.fresh and (one.lane, one.status_time_ms) in ages
    ]
