"""Topics follow the source's (KIP-1279, "Metadata Synchronization").

    on the source                             on the destination
    ----------------------------------------  ----------------------------------------------------
    a topic matches a regular expression      it is added, too, unless it was in a mirror before
    that topics were added by
    a topic has more partitions               it grows
    it has fewer                              another client has added some: they are logged,
                                              counted, and not mirrored; the others stay exact
    a topic is mirrored there, too, or no     the clusters that it comes from are stored, by which
    more                                      a loop of several clusters is detected
    a topic is missing in two checks in a     it is removed from the mirror, as by --remove, so that
    row, and every broker confirms that       its records stay and its partitions are STOPPED

A recreated topic is not the one that was mirrored: its partitions are FAILED, and the operator
decides.

Every topic of the source that the mirror covers is either one of its topics or *not mirrored* with
a reason. This is decided by all topics of the source (`not_mirrored`), not by the results of adding
them. It is stored with the mirror (store/config_records.py), so that --describe and readiness name
these topics also while the source is dead, and counted at each refresh.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple
from uuid import UUID

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.metadata import Topic, is_another
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Refusal, TwinlogError
from twinlog.kafka.requests import topics as admin
from twinlog.kafka.requests.partitions import DEBUGGING, OffsetSpec, list_offsets
from twinlog.kafka.types import TopicPartition
from twinlog.lifecycle.creation import add_named, matching
from twinlog.lifecycle.failback import TheirMirrors, read_their_mirrors
from twinlog.mirror.settings import FLOW_KINDS, PARTITIONS, MirrorSettings, parse_settings
from twinlog.store.config_records import (
    MAX_NAMED,
    MAX_REASON,
    Mirror,
    MirrorTopic,
    NotMirrored,
    Tombstone,
    Wanted,
    key_of,
)
from twinlog.store.mirrors import MirrorStore
from twinlog.store.snapshot import Snapshot
from twinlog.sync.base import METADATA, Moved, Sync, SyncContext, drop
from twinlog.sync.recreated_sources import log_deleted
from twinlog.text import few

log = logging.getLogger(__name__)


def not_mirrored(
    mirror: Mirror, snapshot: Snapshot, source_topics: Mapping[str, Topic], loops: Collection[str]
) -> dict[str, str]:
    """The source's topics that a mirror covers and does not mirror, by name.

    A mirror covers the topics that match one of its patterns, and those that were removed from it
    because the source did not have them any more. It does not cover topics that an operator has
    removed, that come from the destination, or that another mirror of the same source has.

    Args:
        mirror: the mirror.
        snapshot: all mirrors of the destination.
        source_topics: all topics of the source.
        loops: those of them that the source mirrors from the destination.

    Returns:
        Why, as far as `snapshot` shows it; empty if nothing known keeps the topic from being added.
    """
    mirror_topics = {topic.topic: topic for topic in snapshot.topics_of(mirror.name)}
    other_mirrors = {
        topic.topic: topic.mirror
        for topic in snapshot.topics
        if topic.mirror != mirror.name and topic.wanted is not Wanted.STOPPED
    }
    names = {name for regex in mirror.topic_patterns for name in matching(regex, source_topics)}
    names |= {
        name
        for name, topic in mirror_topics.items()
        if topic.source_deleted and name in source_topics
    }
    reasons = {}
    for name in sorted(names.difference(loops)):
        if name in other_mirrors:
            if snapshot.mirrors[other_mirrors[name]].source_cluster_id != mirror.source_cluster_id:
                reasons[name] = f"the destination topic belongs to mirror {other_mirrors[name]}"
        elif name not in mirror_topics:
            reasons[name] = ""
        elif mirror_topics[name].wanted is Wanted.STOPPED and (
            why := _removed(mirror_topics[name], source_topics[name])
        ):
            reasons[name] = why
    return reasons


def _removed(topic: MirrorTopic, source_topic: Topic) -> str:
    """Why a topic that was removed from its mirror is missed; empty: an operator removed it."""
    if is_another(topic.topic_id, source_topic.topic_id):
        return "the source topic was deleted and recreated; --add mirrors the new topic"
    if topic.source_deleted:
        return "it was removed while the source did not list it; --add mirrors it again"
    return ""


class Room:
    """How many more partitions a mirror may have: the source decides how many it has.

    Args:
        mirror: the mirror.
        topics: topics of all mirrors.
    """

    def __init__(self, mirror: Mirror, topics: Collection[MirrorTopic]) -> None:
        self._limit = parse_settings(mirror.source).partitions_max
        self._count = sum(
            topic.partitions
            for topic in topics
            if topic.mirror == mirror.name and topic.wanted is not Wanted.STOPPED
        )

    def refuses(self, more: int) -> str:
        """Why this many more partitions are too many; empty: they are not."""
        if self._count + more <= self._limit:
            return ""
        return (
            f"{PARTITIONS} is {self._limit}, but the mirror would have {self._count} + {more} "
            "partitions"
        )

    def take(self, more: int) -> None:
        """Count this many partitions as added."""
        self._count += more


class MissedTopics(NamedTuple):
    """The topics that a mirror covers and does not mirror."""

    missed: Mapping[str, str]
    """Why, by name, as far as it is known (`not_mirrored`)."""
    there: Mapping[str, Topic]
    """The source's topics."""
    theirs: TheirMirrors | None
    """The source's own mirrors; None: not read, as nothing is missed."""


class NewTopics(Sync[MissedTopics]):
    """Adds topics that match one of the mirror's patterns, and stores what is not mirrored then.

    A topic that was removed from a mirror is not added again.
    """

    name = "new topics"
    metric = METADATA

    async def compare(self, context: SyncContext) -> MissedTopics:
        """The source's topics that the mirror covers and does not mirror.

        Raises:
            Retriable: the source is unreachable.
        """
        mirror, snapshot = context.mirror, context.snapshot
        if not mirror.topic_patterns and not any(topic.source_deleted for topic in snapshot.topics):
            return MissedTopics({}, {}, None)
        source_topics = (await context.source.refresh(None)).topics
        if not not_mirrored(mirror, snapshot, source_topics, ()):
            return MissedTopics({}, source_topics, None)
        their_mirrors = await read_their_mirrors(context.source, context.destination)
        return MissedTopics(
            not_mirrored(mirror, snapshot, source_topics, their_mirrors.loops),
            source_topics,
            their_mirrors,
        )

    async def apply(self, context: SyncContext, difference: MissedTopics) -> int:
        """Add them; return how many are still not mirrored."""
        mirror, snapshot = context.mirror, context.snapshot
        source_topics, their_mirrors = difference.there, difference.theirs
        missed = dict(difference.missed)
        if their_mirrors is not None:
            mirrored_names = {topic.topic for topic in snapshot.topics}
            room = Room(mirror, snapshot.topics)
            for name in sorted(missed.keys() - mirrored_names):
                if why := room.refuses(len(source_topics[name].partitions)):
                    missed[name] = why
                    continue
                pattern = next(
                    pattern
                    for pattern in mirror.topic_patterns
                    if matching(pattern, {name: source_topics[name]})
                )
                try:
                    await add_named(
                        *(context.destination, context.source, mirror.name, [name], their_mirrors),
                        while_matching=pattern,
                    )
                    log.info("mirror %s: added the new topic %s", mirror.name, name)
                    del missed[name]
                    room.take(len(source_topics[name].partitions))
                except TwinlogError as error:
                    missed[name] = str(error)
        before = snapshot.not_mirrored(mirror.name)
        await _store_not_mirrored(context.store, mirror.name, before, missed)
        return len(missed)


async def _store_not_mirrored(
    store: MirrorStore, mirror: str, previous: NotMirrored, missed: Mapping[str, str]
) -> None:
    """Log and store what is not mirrored, if it has changed."""
    reasons = {name: missed[name][:MAX_REASON] for name in sorted(missed)[:MAX_NAMED]}
    current = NotMirrored(mirror=mirror, topics=tuple(reasons.items()), total=len(missed))
    if current == previous:
        return
    for name, why in current.topics:
        if (name, why) not in previous.topics:
            log.warning("mirror %s: source topic %s is not mirrored: %s", mirror, name, why)
    if current.total > len(current.topics):
        log.warning("mirror %s: %d source topics are not mirrored", mirror, current.total)
    await store.change(
        lambda snapshot: (
            [current if missed else Tombstone(key_of(current))]
            if mirror in snapshot.mirrors
            else []
        )
    )


class OriginChanges(NamedTuple):
    """The clusters that the source has topics from, where they are not as stored."""

    changed: Mapping[tuple[str, str, UUID, UUID | None], tuple[str, ...]]
    """By `MirrorTopic.incarnation`."""
    looped: Sequence[str]
    """Topics that come from the destination."""
    unsure: Mapping[str, str]
    """Topics that may come from there, and why that is unknown."""


class TopicOrigins(Sync[OriginChanges]):
    """Stores the clusters that the source has a mirror's topics from.

    No client can write to a topic in a loop. A loop can arise when several clusters add the topic
    at the same time.
    """

    name = "origins of topics"
    metric = METADATA

    def concerns(self, settings: MirrorSettings, topics: Collection[MirrorTopic]) -> bool:
        """Whether there are topics."""
        del settings
        return bool(topics)

    async def compare(self, context: SyncContext) -> OriginChanges:
        """Read the source's own mirrors.

        Raises:
            Retriable: the source is unreachable.
        """
        topics = context.topics
        their_mirrors = await read_their_mirrors(context.source, context.destination)
        unsure = their_mirrors.unsure_among(topic.topic for topic in topics)
        if their_mirrors.unknown:
            return OriginChanges({}, (), unsure)
        changes = {
            topic.incarnation: origins
            for topic in topics
            if topic.topic not in unsure
            and (origins := their_mirrors.origins.get(topic.topic, ())) != topic.origins
        }
        looped = [topic.topic for topic in topics if topic.topic in their_mirrors.loops]
        return OriginChanges(changes, looped, unsure)

    async def apply(self, context: SyncContext, difference: OriginChanges) -> int:
        """Store them; return how many topics come from the destination, or may come from there."""
        changes, looped, unsure = difference
        if unsure:
            why = next(iter(unsure.values()))
            log.warning(
                "cannot determine whether the source mirrors %s from this cluster: %s",
                few(unsure),
                why,
            )
        if changes:
            await context.store.change(
                lambda now: [
                    replace(topic, origins=changes[topic.incarnation])
                    for topic in now.topics
                    if topic.incarnation in changes
                ]
            )
        for name in looped:
            log.warning(
                "%s is mirrored in a loop: remove it from the mirror of one of the clusters", name
            )
        return len(looped) + len(unsure)


class Growth(NamedTuple):
    """Topics whose partition counts differ."""

    grown: Mapping[str, int]
    """New counts of the topics that grow."""
    refused: Mapping[str, str]
    """Why others cannot grow."""
    extra: Sequence[MirrorTopic]
    """Topics with partitions that only the destination has."""


class TopicGrowth(Sync[Growth]):
    """Creates the partitions that the source has and the destination lacks.

    Partitions that another client has added on the destination are used. If they hold records,
    their owner detects that these are not the source's, and they are FAILED. If they held records
    that are gone, this could not be detected, so the topic does not grow.

    A topic that was recreated on either side is left alone: the lanes report it.
    """

    name = "partitions"
    metric = METADATA

    async def compare(self, context: SyncContext) -> Growth:
        """Compare partition counts.

        Raises:
            Retriable: the destination is unreachable.
        """
        unchanged = {topic.topic for topic in context.same}
        source_counts = {
            name: len(topic.partitions)
            for name, topic in context.there.items()
            if name in unchanged
        }
        destination_counts = {name: len(topic.partitions) for name, topic in context.here.items()}
        extra = [
            topic
            for topic in context.topics
            if destination_counts.get(topic.topic, 0)
            > max(topic.partitions, source_counts.get(topic.topic, 0))
        ]
        room = Room(context.mirror, context.snapshot.topics)
        grown: dict[str, int] = {}
        refusals: dict[str, str] = {}
        for topic in context.topics:
            more = source_counts.get(topic.topic, 0) - topic.partitions
            if more > 0 and (why := room.refuses(more)):
                refusals[topic.topic] = (
                    f"cannot grow to {source_counts[topic.topic]} partitions: {why}"
                )
            elif more > 0:
                room.take(more)
                grown[topic.topic] = source_counts[topic.topic]
        extra_partitions = [
            TopicPartition(topic.topic, index)
            for topic in context.topics
            for index in range(topic.partitions, destination_counts.get(topic.topic, 0))
            if index < grown.get(topic.topic, 0)
        ]
        for name, why in (await _emptied(context.destination, extra_partitions)).items():
            refusals[name] = f"cannot grow to {grown.pop(name)} partitions: {why}"
        return Growth(grown, refusals, extra)

    async def apply(self, context: SyncContext, difference: Growth) -> int:
        """Create partitions; return how many topics could not grow, or have extra ones.

        Raises:
            UserError: a right is missing.
            Retriable: the destination is unreachable.
        """
        grown, failures = dict(difference.grown), len(difference.extra) + len(difference.refused)
        for topic in difference.extra:
            log.warning(
                "%s has %d partitions, %d are mirrored: the others were added on the destination",
                topic.topic,
                len(context.here[topic.topic].partitions),
                topic.partitions,
            )
        for name, why in difference.refused.items():
            log.warning("%s %s", name, why)
        if not grown:
            return failures
        answers = await admin.create_partitions(context.destination, grown)
        for name, answer in answers.items():
            # INVALID_PARTITIONS: it has that many already. If this check has not seen them, it has
            # not seen either whether they held records that are gone; the next one will.
            there = context.here.get(name)
            seen = there is not None and len(there.partitions) >= grown[name]
            if isinstance(answer, Refusal) and not (
                seen and answer.code == ErrorCode.INVALID_PARTITIONS
            ):
                log.warning("%s cannot grow to %d partitions: %s", name, grown.pop(name), answer)
                failures += 1
        counts = {
            topic.incarnation: grown[topic.topic]
            for topic in context.topics
            if topic.topic in grown
        }
        # The desired state of the topics may have changed meanwhile, and stays.
        await context.store.change(
            lambda now: [
                replace(topic, partitions=counts[topic.incarnation])
                for topic in now.topics
                if topic.incarnation in counts
            ]
        )
        return failures


async def _emptied(destination: KafkaCluster, extra: Collection[TopicPartition]) -> dict[str, str]:
    """Topics with one of these partitions that has lost its records; why they cannot grow."""
    if not extra:
        return {}
    starts = await list_offsets(destination, extra, OffsetSpec.EARLIEST)
    ends = await list_offsets(destination, extra, replica_id=DEBUGGING)
    reasons = {}
    for partition in extra:
        start, end = starts[partition], ends[partition]
        if isinstance(start, Refusal) or isinstance(end, Refusal):
            reasons[partition.topic] = (
                f"cannot read the log bounds of partition {partition.partition} on the destination"
            )
        elif start.offset == end.offset > 0:
            reasons[partition.topic] = (
                f"partition {partition.partition}, which was added on the destination, held "
                "records up "
                f"to offset {end.offset}; remove the topic from the mirror, delete it on the "
                f"destination, and add it again"
            )
    return reasons


class DeletedTopics(Sync[Collection[MirrorTopic]]):
    """Removes topics whose source topics are gone from their mirror."""

    kinds = None
    name = "deleted topics"
    metric = METADATA

    def __init__(self) -> None:
        self._missing_topics: dict[str, set[MirrorTopic]] = {}

    def forget(self, moved: Moved) -> None:
        """Begin anew: another node may have seen the topics meanwhile."""
        drop(moved, self._missing_topics)

    async def compare(self, context: SyncContext) -> Collection[MirrorTopic]:
        """Topics that were missing in two checks, and that no broker knows.

        Raises:
            Retriable: a broker of the source does not answer.
        """
        missing_topics = {topic for topic in context.topics if topic.topic not in context.there}
        repeatedly_missing = missing_topics & self._missing_topics.get(context.name, set())
        self._missing_topics[context.name] = missing_topics
        if not repeatedly_missing:
            return ()
        absent = await admin.absent_everywhere(
            context.source, {topic.topic for topic in repeatedly_missing}
        )
        return [topic for topic in repeatedly_missing if topic.topic in absent]

    async def apply(self, context: SyncContext, difference: Collection[MirrorTopic]) -> int:
        """Remove them; return 0, as none can fail."""
        if not difference:
            return 0
        if context.mirror.kind in FLOW_KINDS:
            await log_deleted(context, difference)
        else:
            for topic in difference:
                log.warning(
                    "%s no longer exists on the source: removed from mirror %s",
                    topic.topic,
                    topic.mirror,
                )
        await context.store.change(
            lambda now: [
                replace(topic, wanted=Wanted.STOPPED, source_deleted=True)
                for topic in now.topics
                if topic in difference
            ]
        )
        return 0
