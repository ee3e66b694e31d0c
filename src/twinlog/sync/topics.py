"""Topics follow the source's (KIP-1279, "Metadata Synchronization").

    on the source                             on the destination
    ----------------------------------------  ----------------------------------------------------
    a topic matches what was added by a       it is added, too, unless it was in a mirror before
    regular expression
    a topic has more partitions               it grows
    it has fewer                              somebody has added some here: they are named, counted,
                                              and not mirrored; the others are exact all the same
    a topic is mirrored there, too, or no     from which clusters it comes is written down, by
    more                                      which a loop of several clusters is seen
    a topic is gone, in two checks running,   it is removed from the mirror, as by --remove, so that
    and every broker answers that             its records stay and its partitions are STOPPED

A topic that was made again under its name is not the one that was mirrored: its partitions are
FAILED, and the operator decides.

Every topic of the source that the mirror stands for is either one of its topics or *not mirrored*
with a reason. Which these are is concluded from all topics of the source (`not_mirrored`), not from
what adding them has answered. They are stored with the mirror (store/config_records.py), so that
--describe and readiness name them also while the source is dead, and counted at each refresh.
"""

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.metadata import Topic, is_another
from twinlog.kafka.errors import Refusal, TwinlogError
from twinlog.kafka.requests import topics as admin
from twinlog.kafka.requests.partitions import DEBUGGING, OffsetSpec, list_offsets
from twinlog.kafka.types import TopicPartition
from twinlog.lifecycle.creation import add_named, matching
from twinlog.lifecycle.failback import read_their_mirrors
from twinlog.mirror.settings import PARTITIONS, parse_settings
from twinlog.store.config_records import (
    MAX_NAMED,
    MAX_REASON,
    Mirror,
    MirrorTopic,
    NotMirrored,
    Removed,
    Wanted,
    key_of,
)
from twinlog.store.mirrors import MirrorStore
from twinlog.store.snapshot import Snapshot
from twinlog.text import few

log = logging.getLogger(__name__)

_INVALID_PARTITIONS: Final = 37  # it has as many already


def not_mirrored(
    mirror: Mirror, snapshot: Snapshot, there: Mapping[str, Topic], loops: Collection[str]
) -> dict[str, str]:
    """The source's topics that a mirror stands for and does not mirror, by name.

    A mirror stands for what matches one of its patterns, and for what was taken from it because the
    source had it no more. Not so for what an operator has removed, what comes from this cluster,
    and what another mirror of the same source has.

    Args:
        mirror: the mirror.
        snapshot: all mirrors of the destination.
        there: all topics of the source.
        loops: those of them that the source mirrors from the destination.

    Returns:
        Why, as far as `snapshot` tells; empty where nothing is known to keep it from being added.
    """
    own = {topic.topic: topic for topic in snapshot.topics_of(mirror.name)}
    others = {
        topic.topic: topic.mirror
        for topic in snapshot.topics
        if topic.mirror != mirror.name and topic.wanted is not Wanted.STOPPED
    }
    names = {name for regex in mirror.topic_patterns for name in matching(regex, there)}
    names |= {name for name, topic in own.items() if topic.source_deleted and name in there}
    found = {}
    for name in sorted(names.difference(loops)):
        if name in others:
            if snapshot.mirrors[others[name]].source_cluster_id != mirror.source_cluster_id:
                found[name] = f"the destination's topic belongs to mirror {others[name]}"
        elif name not in own:
            found[name] = ""
        elif own[name].wanted is Wanted.STOPPED and (why := _removed(own[name], there[name])):
            found[name] = why
    return found


def _removed(topic: MirrorTopic, there: Topic) -> str:
    """Why a topic that was removed from its mirror is missed there; empty: an operator did it."""
    if is_another(topic.topic_id, there.topic_id):
        return "the source topic was deleted and recreated; --add mirrors the new topic"
    if topic.source_deleted:
        return "it was removed while the source did not list it; --add mirrors it again"
    return ""


class Room:
    """How many partitions a mirror may still have: the source decides how many it has.

    Args:
        mirror: it.
        topics: topics of all mirrors.
    """

    def __init__(self, mirror: Mirror, topics: Collection[MirrorTopic]) -> None:
        self._limit = parse_settings(mirror.source).partitions_max
        self._held = sum(
            topic.partitions
            for topic in topics
            if topic.mirror == mirror.name and topic.wanted is not Wanted.STOPPED
        )

    def refuses(self, more: int) -> str:
        """Why so many more partitions are too many; empty: they are not."""
        if self._held + more <= self._limit:
            return ""
        return (
            f"{PARTITIONS} is {self._limit}, the mirror has {self._held} partition(s), and these "
            f"are {more} more"
        )

    def take(self, more: int) -> None:
        """So many have been added."""
        self._held += more


async def add_new_topics(
    source: KafkaCluster,
    destination: KafkaCluster,
    store: MirrorStore,
    mirror: Mirror,
    snapshot: Snapshot,
) -> int:
    """Add what matches one of the mirror's patterns, and store what is not mirrored after that.

    What was removed from a mirror is not added again.

    Returns:
        How many of the source's topics the mirror stands for and does not mirror.

    Raises:
        Retriable: the source does not answer.
    """
    before = snapshot.not_mirrored(mirror.name)
    missed: dict[str, str] = {}
    if mirror.topic_patterns or any(topic.source_deleted for topic in snapshot.topics):
        there = (await source.refresh(None)).topics
        missed = not_mirrored(mirror, snapshot, there, ())
    if missed:
        theirs = await read_their_mirrors(source, destination)
        missed = not_mirrored(mirror, snapshot, there, theirs.loops)
        taken = {topic.topic for topic in snapshot.topics}
        room = Room(mirror, snapshot.topics)
        for name in sorted(missed.keys() - taken):
            if why := room.refuses(len(there[name].partitions)):
                missed[name] = why
                continue
            pattern = next(
                one for one in mirror.topic_patterns if matching(one, {name: there[name]})
            )
            try:
                await add_named(
                    destination, source, mirror.name, [name], theirs, while_matching=pattern
                )
                log.info("mirror %s: added the new topic %s", mirror.name, name)
                del missed[name]
                room.take(len(there[name].partitions))
            except TwinlogError as error:
                missed[name] = str(error)
    await _store_not_mirrored(store, mirror.name, before, missed)
    return len(missed)


async def _store_not_mirrored(
    store: MirrorStore, mirror: str, before: NotMirrored, missed: Mapping[str, str]
) -> None:
    """Log and store what is not mirrored, where it is something else than before."""
    named = {name: missed[name][:MAX_REASON] for name in sorted(missed)[:MAX_NAMED]}
    now = NotMirrored(mirror=mirror, topics=tuple(named.items()), total=len(missed))
    if now == before:
        return
    for name, why in now.topics:
        if (name, why) not in before.topics:
            log.warning("mirror %s: source topic %s is not mirrored: %s", mirror, name, why)
    if now.total > len(now.topics):
        log.warning("mirror %s: %d source topics are not mirrored", mirror, now.total)
    await store.change(
        lambda snapshot: (
            [now if missed else Removed(key_of(now))] if mirror in snapshot.mirrors else []
        )
    )


async def follow_origins(
    source: KafkaCluster,
    destination: KafkaCluster,
    store: MirrorStore,
    topics: Collection[MirrorTopic],
) -> int:
    """Write down where the source has these topics from.

    Returns:
        How many come from the destination, or may come from there.

    Nobody can write to a topic of a loop. It can come to be while several clusters add the topic
    at the same time.

    Raises:
        Retriable: the source does not answer.
    """
    if not topics:
        return 0
    theirs = await read_their_mirrors(source, destination)
    unsure = theirs.unsure_among(topic.topic for topic in topics)
    if unsure:
        why = next(iter(unsure.values()))
        log.warning("whether the source mirrors %s from here is not known: %s", few(unsure), why)
    if theirs.unknown:
        return len(unsure)
    changed = {
        topic.incarnation: origins
        for topic in topics
        if topic.topic not in unsure
        and (origins := theirs.origins.get(topic.topic, ())) != topic.origins
    }
    if changed:
        await store.change(
            lambda now: [
                replace(topic, origins=changed[topic.incarnation])
                for topic in now.topics
                if topic.incarnation in changed
            ]
        )
    looped = [topic.topic for topic in topics if topic.topic in theirs.loops]
    for name in looped:
        log.warning("%s is mirrored in a loop: remove it from the mirror of one cluster", name)
    return len(looped) + len(unsure)


def name_extra(
    topics: Collection[MirrorTopic], there: Mapping[str, int], here: Mapping[str, int]
) -> int:
    """Name the topics that have partitions here which the source has not; how many they are.

    Args:
        topics: of one mirror.
        there: how many partitions the source's topics have, as far as it is known.
        here: how many the destination's have.
    """
    extra = [
        topic
        for topic in topics
        if here.get(topic.topic, 0) > max(topic.partitions, there.get(topic.topic, 0))
    ]
    for topic in extra:
        log.warning(
            "%s has %d partitions, %d are mirrored: the others were added on the destination",
            topic.topic,
            here[topic.topic],
            topic.partitions,
        )
    return len(extra)


async def grow_topics(
    destination: KafkaCluster,
    store: MirrorStore,
    topics: Collection[MirrorTopic],
    there: Mapping[str, int],
    here: Mapping[str, int],
    *,
    room: Room,
) -> int:
    """Create the partitions that the source has and the destination has not.

    Those that somebody has added here before are taken. Where there are records in them, their
    owner sees that these are not the source's, and they are FAILED; where there were some and are
    no more, nobody could see it, and the topic does not grow.

    Args:
        destination: where partitions are created.
        store: the destination's mirrors.
        topics: of one mirror.
        there: how many partitions the source's topics have.
        here: how many the destination's have.
        room: how many partitions the mirror may still have.

    Returns:
        How many topics could not grow.

    Raises:
        UserError: a right is missing.
        Retriable: the destination does not answer.
    """
    grown = {}
    failed = 0
    for topic in topics:
        more = there.get(topic.topic, 0) - topic.partitions
        if more > 0 and (why := room.refuses(more)):
            log.warning("%s cannot grow to %d partitions: %s", topic.topic, there[topic.topic], why)
            failed += 1
        elif more > 0:
            room.take(more)
            grown[topic.topic] = there[topic.topic]
    if not grown:
        return failed
    emptied = await _emptied(
        destination,
        [
            TopicPartition(topic.topic, index)
            for topic in topics
            for index in range(topic.partitions, here.get(topic.topic, 0))
            if index < grown.get(topic.topic, 0)
        ],
    )
    failed += len(emptied)
    for name, why in emptied.items():
        log.warning("%s cannot grow to %d partitions: %s", name, grown.pop(name), why)
    answers = await admin.create_partitions(destination, grown)
    for name, answer in answers.items():
        if isinstance(answer, Refusal) and answer.code != _INVALID_PARTITIONS:
            log.warning("%s cannot grow to %d partitions: %s", name, grown.pop(name), answer)
            failed += 1
    counts = {one.incarnation: grown[one.topic] for one in topics if one.topic in grown}
    # What is wanted of the topics may be another thing by now, and stays.
    await store.change(
        lambda now: [
            replace(topic, partitions=counts[topic.incarnation])
            for topic in now.topics
            if topic.incarnation in counts
        ]
    )
    return failed


async def _emptied(destination: KafkaCluster, extra: Collection[TopicPartition]) -> dict[str, str]:
    """Topics of which one of these partitions has lost what it held; why they cannot grow."""
    if not extra:
        return {}
    starts = await list_offsets(destination, extra, OffsetSpec.EARLIEST)
    ends = await list_offsets(destination, extra, replica_id=DEBUGGING)
    found = {}
    for one in extra:
        start, end = starts[one], ends[one]
        if isinstance(start, Refusal) or isinstance(end, Refusal):
            found[one.topic] = f"partition {one.partition} cannot be looked at"
        elif start.offset == end.offset > 0:
            found[one.topic] = (
                f"partition {one.partition}, which was added on the destination, held records up "
                f"to offset {end.offset}; remove the topic from the mirror, delete it on the "
                f"destination, and add it again"
            )
    return found


def missing(topics: Collection[MirrorTopic], found: Mapping[str, Topic]) -> set[MirrorTopic]:
    """Those of a mirror's topics that its source has no more."""
    return {topic for topic in topics if topic.topic not in found}


async def stop_deleted(store: MirrorStore, deleted: Collection[MirrorTopic]) -> int:
    """Remove topics from their mirror whose source topics are gone; 0, since all of them are."""
    for topic in deleted:
        log.warning("%s is gone on the source: removed from mirror %s", topic.topic, topic.mirror)
    await store.change(
        lambda now: [
            replace(topic, wanted=Wanted.STOPPED, source_deleted=True)
            for topic in now.topics
            if topic in deleted
        ]
    )
    return 0
