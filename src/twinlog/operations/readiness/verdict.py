"""Judges whether a failover is possible now, and what it would lose: the verdict and its reasons.

Pure: it judges what survey.py has found. Each reason has its weight, in one table (`WEIGHTS`):

    verdict     a failover
    ----------  -------------------------------------------------------------------------------
    READY       loses nothing
    WARNING     works, and loses or changes what the reasons name
    NOT_READY   would not be carried out, or yields topics whose losses are unknown

A topic's verdict is the worst of its own reasons and of those of the whole mirror; a mirror's
verdict is the worst of its topics'.

Losses are counted in offsets of the source's log. These include markers, aborted records and what
compaction has removed, so for transactional and compacted topics there are at most so many records.
"""

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from twinlog.kafka.types import TopicPartition
from twinlog.mirror.states import State
from twinlog.text import few


class Verdict(enum.IntEnum):
    """See the module; the greater value is worse."""

    READY = 0
    WARNING = 1
    NOT_READY = 2


class Reason(enum.Enum):
    """The reasons against a failover."""

    NO_NODE = "no node is running that could carry out the failover"
    DESTINATION_UNREADABLE = "the destination's log cannot be looked at"
    DESTINATION_RECREATED = "the destination's topic was deleted and recreated"
    NOT_MIRRORING = "partitions that are not MIRRORING"
    PAUSED = "partitions that are paused"
    NOT_MIRRORED = "source topics that the mirror stands for and does not mirror"
    FOREIGN_MEMBER = "members of the nodes' groups that are not twinlog's"
    CONTROL_UNREADABLE = "records of the control topics that cannot be read"
    SOURCE_UNREACHABLE = "what the source holds by now is not known"
    SOURCE_UNREADABLE = "what some of its partitions hold by now is not known"
    TOPIC_GONE = "the source's topic was deleted"
    TOPIC_MADE_AGAIN = "the source's topic was deleted and recreated"
    NEW_PARTITIONS = "the source's topic has partitions that the mirror has not"
    EXTRA_PARTITIONS = "partitions were added to the destination's topic"
    PURGED = "the source has deleted what was not mirrored yet"
    BEGINS_LATER = "the destination has deleted what the source keeps"
    DIVERGED = "the destination holds what the source does not"
    FOREIGN_RECORDS = "the destination holds more than its mirror has written"
    COMPACTION_MISSED = "compacted topics that were behind for longer than tombstones are kept"
    NOT_COMPARED = "whether the destination holds more than its mirror has written is not known"
    LOG_END_UNREADABLE = "what the source has acknowledged and not replicated is not known"
    UNREPLICATED = "records of the source that it has not replicated itself"
    LAG = "records that are not mirrored yet"
    OPEN_TRANSACTION = "records of the source whose transactions are not decided"
    GROUP_BEHIND = "a group would read records again"
    GROUP_AHEAD = "a group has read what is not mirrored yet"
    GROUP_REWOUND = "a group was rewound on the source, and not yet on the destination"
    GROUP_SKIPS = "a group would skip records"
    GROUP_DELETED = "a group's offsets were deleted on the source, and not on the destination"
    GROUP_NOT_COPIED = "a group's offsets are not copied"
    GROUP_UNREADABLE = "groups' offsets cannot be looked at"
    CONFIGURATION = "configurations that are not the source's"
    CONFIGURATION_UNREADABLE = "configurations cannot be looked at"
    ACL = "ACLs that are not the source's"
    ACL_UNREADABLE = "ACLs cannot be looked at"


_SHARE: Final = "share"
_STREAMS: Final = "streams"
WEIGHTS: Final[Mapping[Reason, Verdict]] = {
    Reason.NO_NODE: Verdict.NOT_READY,
    Reason.DESTINATION_UNREADABLE: Verdict.NOT_READY,
    Reason.DESTINATION_RECREATED: Verdict.NOT_READY,
    Reason.NOT_MIRRORING: Verdict.NOT_READY,
    Reason.PAUSED: Verdict.WARNING,
    Reason.NOT_MIRRORED: Verdict.WARNING,
    Reason.FOREIGN_MEMBER: Verdict.WARNING,
    Reason.CONTROL_UNREADABLE: Verdict.WARNING,
    Reason.SOURCE_UNREACHABLE: Verdict.WARNING,
    Reason.SOURCE_UNREADABLE: Verdict.WARNING,
    Reason.TOPIC_GONE: Verdict.WARNING,
    Reason.TOPIC_MADE_AGAIN: Verdict.WARNING,
    Reason.NEW_PARTITIONS: Verdict.WARNING,
    Reason.EXTRA_PARTITIONS: Verdict.WARNING,
    Reason.PURGED: Verdict.WARNING,
    Reason.BEGINS_LATER: Verdict.WARNING,
    Reason.DIVERGED: Verdict.WARNING,
    Reason.FOREIGN_RECORDS: Verdict.WARNING,
    Reason.NOT_COMPARED: Verdict.WARNING,
    Reason.COMPACTION_MISSED: Verdict.WARNING,
    Reason.LOG_END_UNREADABLE: Verdict.WARNING,
    Reason.UNREPLICATED: Verdict.WARNING,
    Reason.LAG: Verdict.WARNING,
    Reason.OPEN_TRANSACTION: Verdict.WARNING,
    Reason.GROUP_BEHIND: Verdict.WARNING,
    Reason.GROUP_AHEAD: Verdict.WARNING,
    Reason.GROUP_REWOUND: Verdict.WARNING,
    Reason.GROUP_SKIPS: Verdict.WARNING,
    Reason.GROUP_DELETED: Verdict.WARNING,
    Reason.GROUP_NOT_COPIED: Verdict.WARNING,
    Reason.GROUP_UNREADABLE: Verdict.WARNING,
    Reason.CONFIGURATION: Verdict.WARNING,
    Reason.CONFIGURATION_UNREADABLE: Verdict.WARNING,
    Reason.ACL: Verdict.WARNING,
    Reason.ACL_UNREADABLE: Verdict.WARNING,
}

BEYOND_LAG: Final = frozenset(
    {
        Reason.NOT_MIRRORED,
        Reason.DESTINATION_RECREATED,
        Reason.CONTROL_UNREADABLE,
        Reason.SOURCE_UNREACHABLE,
        Reason.SOURCE_UNREADABLE,
        Reason.LOG_END_UNREADABLE,
        Reason.TOPIC_GONE,
        Reason.TOPIC_MADE_AGAIN,
        Reason.NEW_PARTITIONS,
        Reason.PURGED,
        Reason.BEGINS_LATER,
        Reason.DIVERGED,
        Reason.FOREIGN_RECORDS,
        Reason.NOT_COMPARED,
        Reason.COMPACTION_MISSED,
    }
)
"""With these reasons, records may be lost, or may differ, that no lag counts."""


class Finding(NamedTuple):
    """A reason, and a text for people about what was found."""

    reason: Reason
    text: str

    @property
    def verdict(self) -> Verdict:
        """What it means for a failover."""
        return WEIGHTS[self.reason]


class SourceLog(NamedTuple):
    """A partition on the source.

    Attributes:
        start: the log start offset; None if only a status reports the partition.
        high_watermark: the offset up to which all in-sync replicas have the log.
        last_stable: the offset up to which no transaction is open.
        log_end: the leader's log end offset, which is above the high watermark while a follower
            lags: a producer with acks=1 has been answered for these records. None: unknown.
    """

    start: int | None
    high_watermark: int
    last_stable: int
    log_end: int | None = None

    @property
    def end(self) -> int:
        """The log end offset, as far as it is known."""
        return max(self.high_watermark, self.log_end or 0)

    @property
    def is_open(self) -> bool:
        """Whether a transaction is open."""
        return self.last_stable < self.high_watermark


class SourceTopic(enum.Enum):
    """What has happened to a topic on the source."""

    SAME = enum.auto()
    GONE = enum.auto()
    MADE_AGAIN = enum.auto()
    UNKNOWN = enum.auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFacts:
    """What was found about a mirror partition."""

    partition: int
    state: State
    reason: str | None = None
    """Why it is FAILED."""
    source: SourceLog | None = None
    """None: it cannot be read, and no fresh status reports it."""
    destination_end: int | None = None
    """The destination's high watermark, read before the source's."""
    lag_ms: int | None = None
    """Age of the oldest record that is not mirrored yet, as its owner reported; None: unknown."""
    held_by: tuple[str, ...] = ()
    """The producers that hold transactions open on the source, as text; none if they cannot be
    read."""
    reported_end: int | None = None
    """The destination's log end as the partition's owner reported it after `destination_end` was
    read, or when it stopped writing. None: no such report, or none needed as the source was read.
    """
    lacks: tuple[int, int] | None = None
    """Offsets `[start, end)` that the source keeps, and that are below the destination's log start.
    """


class Standing(NamedTuple):
    """The offset up to which a group has read a partition."""

    partition: TopicPartition
    offset: int


class Skip(NamedTuple):
    """A partition in which the destination's committed offset is ahead of the source's."""

    partition: TopicPartition
    source: int
    destination: int
    follows: bool
    """Whether the destination's offset is the mirror's own, and is lowered at the next check."""

    def __str__(self) -> str:
        return f"{self.partition} (source {self.source}, destination {self.destination})"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFacts:
    """A group that has committed for a topic on the source."""

    group: str
    kind: str = "classic"
    followed: bool = True
    """Whether its offsets are copied."""
    idle_on_source: bool = True
    idle_on_destination: bool = True
    due: int = 0
    """Partitions whose offsets are still to be copied, without those in `skips`."""
    behind: int = 0
    """Offsets that it would read again without these copies."""
    missing: int = 0
    """Partitions without an offset on the destination: auto.offset.reset decides there."""
    skips: tuple[Skip, ...] = ()
    ahead: int = 0
    """Offsets that it has read on the source and that the destination does not have."""
    deleted: tuple[Standing, ...] = ()
    """Offsets that the mirror has copied to the destination, and the source does not have now."""
    unread: int = 0
    """Offsets that it has not read on the source, in the partitions that it has committed for."""
    unread_from: tuple[Standing, ...] = ()
    """Where these begin."""

    @property
    def pending(self) -> bool:
        """Whether the next check copies something."""
        return self.followed and (self.due > 0 or any(one.follows for one in self.skips))


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFacts:
    """What was found about a topic. What is unknown of the source is None or empty."""

    topic: str
    on_source: SourceTopic = SourceTopic.UNKNOWN
    source_partitions: int | None = None
    destination_partitions: int | None = None
    destination_recreated: bool = False
    """Whether the destination's topic is not the one that the mirror writes to."""
    behind_ms: int = 0
    """For how long it was behind, if that was longer than delete.retention.ms; else 0."""
    partitions: tuple[PartitionFacts, ...]
    groups: tuple[GroupFacts, ...] = ()
    configurations: tuple[str, ...] = ()
    """Names of those that are not what they have to be."""
    configurations_unknown: str = ""
    """Why they cannot be compared, as text; empty: they were."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AclFacts:
    """What is left to do until the destination's ACLs are the source's, as text."""

    to_make: tuple[str, ...] = ()
    to_remove: tuple[str, ...] = ()
    denying: tuple[str, ...] = ()
    """The source's denials that are not copied, since they would stop nodes."""
    missed: tuple[str, ...] = ()
    """The source's ACLs that are not copied, and that applications may need."""
    withheld: tuple[str, ...] = ()
    """The source's ACLs that are not copied, since a denial beside them is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorFacts:
    """What was found about a mirror."""

    mirror: str
    topics: tuple[TopicFacts, ...]
    source_trouble: str | None = None
    """Why the source cannot be read; None: it was."""
    known_until_ms: int | None = None
    """If the source was not read: the time since last contact with it, by statuses; None: no status
    reports it."""
    node_runs: bool = True
    not_mirrored: Mapping[str, str] = field(default_factory=dict)
    """Source topics that the mirror covers and does not have, with the reason."""
    age_ms: int = 0
    """Time since the first of these facts was requested."""
    status_age_ms: int | None = None
    """Age of the oldest status that counts; None: none does."""
    unknown: tuple[Finding, ...] = ()
    """Findings about what else could not be read."""
    acls: AclFacts = AclFacts()


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """A mirror's verdict."""

    mirror: str
    verdict: Verdict
    findings: tuple[Finding, ...]
    """Findings about the whole mirror."""
    topics: tuple[TopicReadiness, ...]
    acls: AclFacts = AclFacts()
    not_mirrored: Mapping[str, str] = field(default_factory=dict)
    age_ms: int = 0
    status_age_ms: int | None = None
    source_age_ms: int | None = 0
    """Time since last contact with the source, by any component; None: unknown."""

    @property
    def lag(self) -> int | None:
        """Offsets that would be lost; None if that is unknown for a topic."""
        lags = [topic.lag for topic in self.topics]
        return None if None in lags else sum(lag for lag in lags if lag is not None)

    @property
    def lag_is_all(self) -> bool:
        """Whether `lag` counts all records that a failover may lose, as far as known."""
        return self.lag is not None and not any(
            one.reason in BEYOND_LAG for one in self.all_findings()
        )

    def all_findings(self) -> Iterator[Finding]:
        """The mirror's findings, and those of its topics with the topic's name."""
        yield from self.findings
        for topic in self.topics:
            for one in topic.findings:
                yield Finding(one.reason, f"{topic.topic}: {one.text}")


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
        age_ms=facts.age_ms,
        status_age_ms=facts.status_age_ms,
        source_age_ms=facts.age_ms if facts.source_trouble is None else facts.known_until_ms,
    )


def lag_of(one: PartitionFacts) -> int | None:
    """Offsets that the source has and the destination lacks; None: unknown.

    Offsets that the source has deleted meanwhile do not count.
    """
    if one.source is None or one.destination_end is None:
        return None
    return max(one.source.end - max(one.destination_end, one.source.start or 0), 0)


def unreplicated_of(one: PartitionFacts) -> int:
    """Offsets of the lag that are above the source's high watermark.

    No consumer can read them, and the source itself loses them with its leader.
    """
    if one.source is None or one.destination_end is None:
        return 0
    return max(one.source.end - max(one.source.high_watermark, one.destination_end), 0)


def undecided_of(one: PartitionFacts) -> int:
    """Offsets of the lag that are above the source's last stable offset."""
    if one.source is None or one.destination_end is None:
        return 0
    decided = max(one.source.last_stable, one.destination_end)
    return max(one.source.high_watermark - decided, 0)


def _worst(findings: Iterable[Finding]) -> Verdict:
    return max((one.verdict for one in findings), default=Verdict.READY)


def _of_mirror(facts: MirrorFacts) -> Iterator[Finding]:
    if not facts.node_runs:
        yield Finding(Reason.NO_NODE, "no node runs, and a failover needs one (twinlog run)")
    if facts.source_trouble is not None:
        known = (
            "when it was last heard of is not known"
            if facts.known_until_ms is None
            else f"it was last heard of {facts.known_until_ms / 1000:.0f} s ago"
        )
        yield Finding(
            Reason.SOURCE_UNREACHABLE,
            f"{facts.source_trouble}; {known}, and what it holds since then, or has not "
            f"replicated, is not known",
        )
    if facts.not_mirrored:
        named = [f"{topic} ({why})" for topic, why in sorted(facts.not_mirrored.items())]
        yield Finding(
            Reason.NOT_MIRRORED,
            f"{len(named)} source topic(s) are not mirrored: {few(named, '; ')}",
        )
    yield from facts.unknown
    for acls, what in ((facts.acls.to_make, "made"), (facts.acls.to_remove, "removed")):
        if acls:
            yield Finding(Reason.ACL, f"{len(acls)} ACL(s) are still to be {what}: {few(acls)}")
    if denying := facts.acls.denying:
        yield Finding(
            Reason.ACL,
            f"{len(denying)} denial(s) of the source are not copied, since they would stop nodes "
            f"or cover control topics: {few(denying)}",
        )
    if missed := facts.acls.missed:
        yield Finding(
            Reason.ACL,
            f"{len(missed)} ACL(s) of the source that applications may need are not copied, since "
            f"they reach beyond the mirror's topics and groups: {few(missed)}",
        )
    if withheld := facts.acls.withheld:
        yield Finding(
            Reason.ACL,
            f"{len(withheld)} ACL(s) of the source are not copied, or stay as they were, since a "
            f"denial that limits them there is not copied: {few(withheld)}",
        )


def _judge_topic(topic: TopicFacts, mirror: MirrorFacts, common: Verdict) -> TopicReadiness:
    live = mirror.source_trouble is None
    findings = (
        *_of_topic(topic),
        *_of_logs(topic, live=live),
        *_of_starts(topic),
        *_of_reports(topic, live=live),
        *_of_followers(topic),
    )
    lags = [lag_of(one) for one in topic.partitions]
    ages = [0 if lag == 0 else one.lag_ms for one, lag in zip(topic.partitions, lags, strict=True)]
    return TopicReadiness(
        topic=topic.topic,
        verdict=max(common, _worst(findings)),
        lag=None if None in lags else sum(lag for lag in lags if lag is not None),
        undecided=sum(undecided_of(one) for one in topic.partitions),
        lag_ms=None if None in ages else max((age for age in ages if age is not None), default=0),
        findings=findings,
        facts=topic,
    )


def _of_topic(topic: TopicFacts) -> Iterator[Finding]:
    """Findings about what has happened to the topic, and about its partitions' states."""
    if topic.on_source is SourceTopic.GONE:
        yield Finding(Reason.TOPIC_GONE, "the source has no topic of this name any more")
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
            f"delete.retention.ms: keys that were deleted on the source meanwhile may have stayed "
            f"(twinlog verify finds them; --remove, then --add --rebuild, mirrors it again)",
        )
    for state in State:
        found = [one for one in topic.partitions if one.state is state]
        if found and state is not State.MIRRORING:
            paused = state in {State.PAUSING, State.PAUSED}
            reasons = "; ".join(dict.fromkeys(one.reason for one in found if one.reason))
            yield Finding(
                Reason.PAUSED if paused else Reason.NOT_MIRRORING,
                f"{state.name} ({_partitions(found)}){f': {reasons}' if reasons else ''}",
            )


def _of_logs(topic: TopicFacts, *, live: bool) -> Iterator[Finding]:
    """Findings about what either log lacks of the other."""
    if found := [one for one in topic.partitions if one.destination_end is None]:
        yield Finding(
            Reason.DESTINATION_UNREADABLE,
            f"the destination's log cannot be looked at ({_partitions(found)})",
        )
    if topic.on_source in {SourceTopic.GONE, SourceTopic.MADE_AGAIN}:
        return  # offsets of another log mean nothing
    if found := [one for one in topic.partitions if one.source is None]:
        yield Finding(
            Reason.SOURCE_UNREADABLE,
            f"it is not known what the source holds ({_partitions(found)})",
        )
    if live and (found := [one for one in topic.partitions if _log_end_unknown(one)]):
        yield Finding(
            Reason.LOG_END_UNREADABLE,
            f"the source's log end offset cannot be read ({_partitions(found)}): records above the "
            f"high watermark, which acks=1 acknowledges, are not counted",
        )
    if unreplicated := sum(unreplicated_of(one) for one in topic.partitions):
        found = [one for one in topic.partitions if unreplicated_of(one)]
        yield Finding(
            Reason.UNREPLICATED,
            f"{unreplicated} offsets are above the source's high watermark ({_partitions(found)}): "
            f"acknowledged with acks=1 perhaps, and not readable yet",
        )
    if lag := sum(lag_of(one) or 0 for one in topic.partitions):
        found = [one for one in topic.partitions if lag_of(one)]
        yield Finding(Reason.LAG, f"{lag} offsets are not mirrored yet ({_partitions(found)})")
    if undecided := sum(undecided_of(one) for one in topic.partitions):
        found = [one for one in topic.partitions if undecided_of(one)]
        held_by = list(dict.fromkeys(name for one in found for name in one.held_by))
        of = f", of {few(held_by)}" if held_by else ""
        yield Finding(
            Reason.OPEN_TRANSACTION,
            f"{undecided} of them are of transactions that are not decided "
            f"({_partitions(found)}){of}",
        )
    for one in topic.partitions:
        if one.source is None or one.destination_end is None:
            continue
        if one.destination_end < (one.source.start or 0):
            yield Finding(
                Reason.PURGED,
                f"partition {one.partition}: the source has deleted [{one.destination_end}, "
                f"{one.source.start}) before it was mirrored",
            )
        # Only for a live source: a status may be older than the destination's log.
        if live and one.destination_end > one.source.high_watermark:
            yield Finding(
                Reason.DIVERGED,
                f"partition {one.partition}: the destination ends at {one.destination_end}, "
                f"the source at {one.source.high_watermark}",
            )


def _of_starts(topic: TopicFacts) -> Iterator[Finding]:
    """Findings about what the destination does not have any more."""
    for one in topic.partitions:
        if one.lacks is not None:
            start, end = one.lacks
            yield Finding(
                Reason.BEGINS_LATER,
                f"partition {one.partition}: the destination has deleted [{start}, {end}), which "
                f"the source keeps; groups that have not read these offsets would skip them",
            )


def _of_reports(topic: TopicFacts, *, live: bool) -> Iterator[Finding]:
    """Findings about what the destination's log holds beyond what its mirror has written.

    These need no source: they cover paused partitions, and all partitions if the source is dead.
    """
    for one in topic.partitions:
        if one.destination_end is None or one.reported_end is None:
            continue
        if one.destination_end > one.reported_end:
            yield Finding(
                Reason.FOREIGN_RECORDS,
                f"partition {one.partition}: the destination ends at {one.destination_end}, its "
                f"owner reports {one.reported_end}: another client has written there",
            )
    mirrored = {State.MIRRORING, State.PAUSED}
    found = [one for one in topic.partitions if one.state in mirrored and one.reported_end is None]
    if found and not live:
        yield Finding(
            Reason.NOT_COMPARED,
            f"no status tells where the mirror's records end ({_partitions(found)}): whether "
            f"another client has written to the destination is not known",
        )


def _log_end_unknown(one: PartitionFacts) -> bool:
    return one.source is not None and one.source.log_end is None


def _of_followers(topic: TopicFacts) -> Iterator[Finding]:
    """Findings about groups and configurations."""
    for group in topic.groups:
        yield from _of_group(group)
    if topic.configurations:
        yield Finding(Reason.CONFIGURATION, f"not as on the source: {few(topic.configurations)}")
    if topic.configurations_unknown:
        yield Finding(Reason.CONFIGURATION_UNREADABLE, topic.configurations_unknown)


def _of_group(group: GroupFacts) -> Iterator[Finding]:
    """Findings about what a group would read again or skip."""
    name = f"{'share ' if group.kind == _SHARE else ''}group {group.group}"
    if group.due and group.followed:
        why = "" if group.idle_on_destination else ", as it has members on the destination"
        yield Finding(
            Reason.GROUP_BEHIND,
            f"{name}: its offsets of {group.due} partition(s) are not copied yet{why}; it would "
            f"read {group.behind} offsets again{_reset(group)}",
        )
    if group.due and not group.followed:
        why = "streams groups are not" if group.kind == _STREAMS else "see mirror.groups.include"
        yield Finding(
            Reason.GROUP_NOT_COPIED,
            f"{name}: its offsets of {group.due} partition(s) are not copied ({why}); it would "
            f"read {group.behind} offsets again{_reset(group)}",
        )
    if group.kind == _SHARE and group.unread:
        yield Finding(
            Reason.GROUP_NOT_COPIED,
            f"{name}: which records it has acknowledged above its start offsets is not copied; up "
            f"to {group.unread} offsets would be delivered again",
        )
    if group.ahead:
        yield Finding(
            Reason.GROUP_AHEAD,
            f"{name} has read {group.ahead} offsets that are not mirrored yet",
        )
    if group.deleted:
        yield _deleted(group, name)
    if not group.followed and group.skips:
        yield Finding(
            Reason.GROUP_NOT_COPIED,
            f"{name} would skip records of {_places(group.skips)}, unless it has read them on the "
            f"destination: its offsets are not copied",
        )
        return
    if rewound := [one for one in group.skips if one.follows]:
        yield Finding(
            Reason.GROUP_REWOUND,
            f"{name} was rewound on the source; until the next check copies that, it would skip "
            f"records of {_places(rewound)}",
        )
    if kept := [one for one in group.skips if not one.follows]:
        yield Finding(
            Reason.GROUP_SKIPS,
            f"{name} would skip records of {_places(kept)}, unless it has read them on the "
            f"destination; the mirror did not commit these offsets and does not lower them: reset "
            f"them on the destination (kafka-consumer-groups --reset-offsets)",
        )


def _deleted(group: GroupFacts, name: str) -> Finding:
    places = few([f"{partition} ({offset})" for partition, offset in group.deleted])
    return Finding(
        Reason.GROUP_DELETED,
        f"{name} has no offsets on the source any more for {places}, and goes on from these, which "
        f"were copied; they were deleted there or have expired; if it is to begin anew, delete "
        f"them on the destination, too (kafka-consumer-groups --delete-offsets)",
    )


def _places(skips: Iterable[Skip]) -> str:
    return few([str(one) for one in skips])


def _reset(group: GroupFacts) -> str:
    if not group.missing:
        return ""
    return (
        f"; {group.missing} partition(s) have no offset on the destination, where "
        f"auto.offset.reset decides: latest skips records"
    )


def _partitions(found: Sequence[PartitionFacts]) -> str:
    """`partition 3`, or `2 partitions: 0, 1`."""
    if len(found) == 1:
        return f"partition {found[0].partition}"
    return f"{len(found)} partitions: {few([str(one.partition) for one in found])}"
