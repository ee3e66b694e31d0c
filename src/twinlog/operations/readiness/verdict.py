"""Judges whether a failover is possible now, and what it would lose: the verdict and its reasons.

Pure: it judges the facts (facts.py) that survey.py has found. Each reason has a weight, which is a
verdict (reasons.py). A topic's verdict is the worst of its own reasons and of those of the whole
mirror; a mirror's verdict is the worst of its topics'.

Losses are counted in offsets of the source's log. These include markers, aborted records and what
compaction has removed, so for transactional and compacted topics there are at most so many records.

A topic of heartbeats that a flow copies has a lag whenever one was written just now, and no
consumer misses any. So a lag of a minute is shown, and is neither a finding nor part of the
mirror's lag. A greater one counts, and so does one that is not known.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from twinlog.mirror.states import State
from twinlog.operations.readiness.facts import (
    AclFacts,
    FlowFacts,
    MirrorFacts,
    PartitionFacts,
    SourceTopic,
    TopicFacts,
)
from twinlog.operations.readiness.group_findings import of_group
from twinlog.operations.readiness.reasons import BEYOND_LAG, Finding, Reason, Verdict
from twinlog.text import few

_HEARTBEATS_OF_A_MINUTE: Final = 60
"""Offsets of one partition: MirrorMaker writes a heartbeat each second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicReadiness:
    """A topic's verdict."""

    topic: str
    verdict: Verdict
    lag: int | None
    """Offsets that would be lost; None: unknown."""
    undecided: int
    """Of these, offsets of transactions that are open on the source."""
    lag_ms: int | None
    """Age of the oldest record that would be lost; None: unknown."""
    findings: tuple[Finding, ...]
    facts: TopicFacts

    def as_json(self) -> Mapping[str, object]:
        """The verdict, with the facts about partitions and groups."""
        return {
            "topic": self.topic,
            "readiness": self.verdict,
            "lag": self.lag,
            "undecided": self.undecided,
            "lag_ms": self.lag_ms,
            "findings": self.findings,
            "partitions": self.facts.partitions,
            "groups": self.facts.groups,
            "configurations": self.facts.configurations,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """A mirror's verdict."""

    mirror: str
    verdict: Verdict
    findings: tuple[Finding, ...]
    """Findings about the whole mirror."""
    topics: tuple[TopicReadiness, ...]
    acls: AclFacts = field(default_factory=AclFacts)
    not_mirrored: Mapping[str, str] = field(default_factory=dict)
    age_ms: int = 0
    status_age_ms: int | None = None
    flow: FlowFacts | None = None
    """None: it is no flow."""
    source_age_ms: int | None = 0
    """Time since last contact with the source, by any component; None: unknown."""

    @property
    def lag(self) -> int | None:
        """Offsets that would be lost, without the last heartbeats; None: unknown for a topic."""
        lags = [topic.lag for topic in self.topics if not _lacks_heartbeats_only(topic.facts)]
        return None if None in lags else sum(lag for lag in lags if lag is not None)

    @property
    def lag_is_all(self) -> bool:
        """Whether `lag` counts all records that a failover may lose, as far as known."""
        return self.lag is not None and not any(
            finding.reason in BEYOND_LAG for finding in self.all_findings()
        )

    def all_findings(self) -> Iterator[Finding]:
        """The mirror's findings, and those of its topics with the topic's name."""
        yield from self.findings
        for topic in self.topics:
            for finding in topic.findings:
                yield Finding(finding.reason, f"{topic.topic}: {finding.text}")

    def as_json(self) -> Mapping[str, object]:
        """The whole result."""
        flow = {} if self.flow is None else {"flow": self.flow}
        return {
            "mirror": self.mirror,
            "readiness": self.verdict,
            "lag": self.lag,
            "lag_is_all": self.lag_is_all,
            "age_ms": self.age_ms,
            "source_age_ms": self.source_age_ms,
            "status_age_ms": self.status_age_ms,
            "not_mirrored": self.not_mirrored,
            "findings": self.findings,
            "acls": self.acls,
            **flow,
            "topics": self.topics,
        }


def judge(facts: MirrorFacts) -> Readiness:
    """The verdict on a mirror."""
    findings = tuple(_of_mirror(facts))
    common = _worst(findings)
    topics = tuple(_judge_topic(topic, facts, common) for topic in facts.topics)
    return Readiness(
        mirror=facts.mirror,
        verdict=max((topic.verdict for topic in topics), default=common),
        findings=findings,
        topics=topics,
        acls=facts.acls,
        not_mirrored=facts.not_mirrored,
        flow=facts.flow,
        age_ms=facts.age_ms,
        status_age_ms=facts.status_age_ms,
        source_age_ms=facts.age_ms if facts.source_trouble is None else facts.known_until_ms,
    )


def lag_of(partition: PartitionFacts) -> int | None:
    """Offsets that the source has and the destination lacks; None: unknown.

    Offsets that the source has deleted meanwhile do not count.
    """
    if partition.source is None or partition.destination_end is None:
        return None
    return max(
        partition.source.end - max(partition.destination_end, partition.source.start or 0), 0
    )


def _lacks_heartbeats_only(topic: TopicFacts) -> bool:
    """Whether no more is missing than heartbeats of the last minute.

    More is a flow that stands still, or a topic with such a name that has other records.
    """
    lags = [lag_of(partition) for partition in topic.partitions]
    return topic.holds_heartbeats and all(
        lag is not None and lag <= _HEARTBEATS_OF_A_MINUTE for lag in lags
    )


def unreplicated_of(partition: PartitionFacts) -> int:
    """Offsets of the lag that are above the source's high watermark.

    No consumer can read them, and the source itself loses them with its leader.
    """
    if partition.source is None or partition.destination_end is None:
        return 0
    return max(
        partition.source.end - max(partition.source.high_watermark, partition.destination_end), 0
    )


def undecided_of(partition: PartitionFacts) -> int:
    """Offsets of the lag that are above the source's last stable offset."""
    if partition.source is None or partition.destination_end is None:
        return 0
    decided = max(partition.source.last_stable, partition.destination_end)
    return max(partition.source.high_watermark - decided, 0)


def _worst(findings: Iterable[Finding]) -> Verdict:
    return max((finding.verdict for finding in findings), default=Verdict.READY)


def _of_mirror(facts: MirrorFacts) -> Iterator[Finding]:
    if not facts.node_runs:
        yield Finding(Reason.NO_NODE, "no node is running, and a failover needs one (twinlog run)")
    if facts.source_trouble is not None:
        last_contact = (
            "time of last contact is unknown"
            if facts.known_until_ms is None
            else f"last contact {facts.known_until_ms / 1000:.0f} s ago"
        )
        yield Finding(
            Reason.SOURCE_UNREACHABLE,
            f"{facts.source_trouble}; {last_contact}; later records, and those that are not "
            "replicated, "
            "are unknown",
        )
    if facts.not_mirrored:
        topics = [f"{topic} ({why})" for topic, why in sorted(facts.not_mirrored.items())]
        yield Finding(
            Reason.NOT_MIRRORED,
            f"{len(topics)} source topic(s) are not mirrored: {few(topics, '; ')}",
        )
    yield from facts.unknown
    yield from facts.synced


def _judge_topic(topic: TopicFacts, mirror: MirrorFacts, common: Verdict) -> TopicReadiness:
    live = mirror.source_trouble is None
    findings = (
        *_of_topic(topic),
        *_of_logs(topic, live=live),
        *_of_starts(topic),
        *_of_reports(topic, live=live),
        *_of_followers(topic),
    )
    lags = [lag_of(partition) for partition in topic.partitions]
    ages = [0 if lag == 0 else p.lag_ms for p, lag in zip(topic.partitions, lags, strict=True)]
    return TopicReadiness(
        topic=topic.topic,
        verdict=max(common, _worst(findings)),
        lag=None if None in lags else sum(lag for lag in lags if lag is not None),
        undecided=sum(undecided_of(partition) for partition in topic.partitions),
        lag_ms=None if None in ages else max((age for age in ages if age is not None), default=0),
        findings=findings,
        facts=topic,
    )


def _of_topic(topic: TopicFacts) -> Iterator[Finding]:
    """Findings about what has happened to the topic, and about its partitions' states."""
    if topic.on_source is SourceTopic.GONE:
        yield Finding(Reason.TOPIC_GONE, "the source topic no longer exists")
    if topic.on_source is SourceTopic.MADE_AGAIN:
        yield Finding(
            Reason.TOPIC_MADE_AGAIN,
            "the source topic was deleted and recreated; the new topic is not mirrored",
        )
    count = len(topic.partitions)
    if (topic.source_partitions or 0) > count:
        yield Finding(
            Reason.NEW_PARTITIONS,
            f"the source has {topic.source_partitions} partitions, {count} are mirrored",
        )
    if (topic.destination_partitions or 0) > max(count, topic.source_partitions or 0):
        yield Finding(
            Reason.EXTRA_PARTITIONS,
            f"the destination has {topic.destination_partitions} partitions, {count} are "
            f"mirrored: the others were added on the destination",
        )
    if topic.destination_recreated:
        yield Finding(
            Reason.DESTINATION_RECREATED,
            "the destination topic was deleted and recreated; the new one is not mirrored",
        )
    if topic.behind_ms:
        yield Finding(
            Reason.COMPACTION_MISSED,
            f"it was behind for {topic.behind_ms / 1000:.0f} s, longer than the source's "
            "delete.retention.ms: keys that were deleted on the source in that time may still "
            "exist on the destination (find them with twinlog verify; mirror the topic again "
            "with --remove, then --add --rebuild)",
        )
    for state in State:
        partitions = [partition for partition in topic.partitions if partition.state is state]
        if partitions and state is not State.MIRRORING:
            paused = state in {State.PAUSING, State.PAUSED}
            reasons = "; ".join(dict.fromkeys(p.reason for p in partitions if p.reason))
            yield Finding(
                Reason.PAUSED if paused else Reason.NOT_MIRRORING,
                f"{state.name} ({_partitions(partitions)}){f': {reasons}' if reasons else ''}",
            )


def _of_logs(topic: TopicFacts, *, live: bool) -> Iterator[Finding]:
    """Findings about what either log lacks of the other."""
    if partitions := [p for p in topic.partitions if p.destination_end is None]:
        yield Finding(
            Reason.DESTINATION_UNREADABLE,
            f"the destination's log cannot be read ({_partitions(partitions)})",
        )
    if topic.on_source in {SourceTopic.GONE, SourceTopic.MADE_AGAIN}:
        return  # offsets of another log mean nothing
    if partitions := [partition for partition in topic.partitions if partition.source is None]:
        yield Finding(
            Reason.SOURCE_UNREADABLE,
            f"the source's log cannot be read ({_partitions(partitions)})",
        )
    if live and (partitions := [p for p in topic.partitions if _log_end_unknown(p)]):
        yield Finding(
            Reason.LOG_END_UNREADABLE,
            f"the source's log end offset cannot be read ({_partitions(partitions)}): records "
            "above the "
            f"high watermark, which acks=1 acknowledges, are not counted",
        )
    if not _lacks_heartbeats_only(topic):
        yield from _of_lags(topic)
    if undecided := sum(undecided_of(partition) for partition in topic.partitions):
        partitions = [partition for partition in topic.partitions if undecided_of(partition)]
        held_by = list(dict.fromkeys(name for p in partitions for name in p.held_by))
        of = f", of {few(held_by)}" if held_by else ""
        yield Finding(
            Reason.OPEN_TRANSACTION,
            f"{undecided} of them belong to open transactions ({_partitions(partitions)}){of}",
        )
    for partition in topic.partitions:
        if partition.source is None or partition.destination_end is None:
            continue
        if partition.destination_end < (partition.source.start or 0):
            yield Finding(
                Reason.PURGED,
                f"partition {partition.partition}: the source has deleted offsets "
                f"[{partition.destination_end}, {partition.source.start}) before they were "
                "mirrored",
            )
        # Only for a live source: a status may be older than the destination's log.
        if live and partition.destination_end > partition.source.high_watermark:
            yield Finding(
                Reason.DIVERGED,
                f"partition {partition.partition}: the destination ends at "
                f"{partition.destination_end}, "
                f"the source at {partition.source.high_watermark}",
            )


def _of_lags(topic: TopicFacts) -> Iterator[Finding]:
    """Findings about records that the destination does not have yet."""
    if unreplicated := sum(unreplicated_of(partition) for partition in topic.partitions):
        partitions = [partition for partition in topic.partitions if unreplicated_of(partition)]
        yield Finding(
            Reason.UNREPLICATED,
            f"{unreplicated} offsets are above the source's high watermark "
            f"({_partitions(partitions)}): they may have been acknowledged with acks=1, and cannot "
            "be read yet",
        )
    if lag := sum(lag_of(partition) or 0 for partition in topic.partitions):
        partitions = [partition for partition in topic.partitions if lag_of(partition)]
        yield Finding(Reason.LAG, f"{lag} offsets are not mirrored yet ({_partitions(partitions)})")


def _of_starts(topic: TopicFacts) -> Iterator[Finding]:
    """Findings about what the destination does not have any more."""
    for partition in topic.partitions:
        if partition.lacks is not None:
            start, end = partition.lacks
            yield Finding(
                Reason.BEGINS_LATER,
                f"partition {partition.partition}: the destination has deleted offsets [{start}, "
                f"{end}), which the source keeps; groups that have not read them would skip them",
            )
        if partition.may_lack is not None:
            start, end = partition.may_lack
            yield Finding(
                Reason.NOT_COMPARED,
                f"partition {partition.partition}: unknown whether the destination has deleted "
                f"copies of offsets [{start}, {end}), which the source keeps: its log begins among "
                "copies whose places are not recorded",
            )


def _of_reports(topic: TopicFacts, *, live: bool) -> Iterator[Finding]:
    """Findings about what the destination's log holds beyond what its mirror has written.

    These need no source: they cover paused partitions, and all partitions if the source is dead.
    """
    for partition in topic.partitions:
        if partition.destination_end is None or partition.reported_end is None:
            continue
        if partition.destination_end > partition.reported_end:
            yield Finding(
                Reason.FOREIGN_RECORDS,
                f"partition {partition.partition}: the destination ends at "
                f"{partition.destination_end}, its "
                f"owner reports {partition.reported_end}: another client has written to it",
            )
    mirrored = {State.MIRRORING, State.PAUSED}
    partitions = [p for p in topic.partitions if p.state in mirrored and p.reported_end is None]
    if partitions and not live:
        yield Finding(
            Reason.NOT_COMPARED,
            f"no status reports the end of the mirror's records ({_partitions(partitions)}): "
            "unknown "
            "whether another client has written to the destination",
        )


def _log_end_unknown(partition: PartitionFacts) -> bool:
    return partition.source is not None and partition.source.log_end is None


def _of_followers(topic: TopicFacts) -> Iterator[Finding]:
    """Findings about groups, configurations and what else follows the topic."""
    for group in topic.groups:
        yield from of_group(group)
    yield from topic.synced


def _partitions(partitions: Sequence[PartitionFacts]) -> str:
    """`partition 3`, or `2 partitions: 0, 1`."""
    if len(partitions) == 1:
        return f"partition {partitions[0].partition}"
    return f"{len(partitions)} partitions: {few([str(p.partition) for p in partitions])}"
