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
    a topic is gone, in two looks running     it is removed from the mirror, as by --remove, so that
                                              its records stay and its partitions are STOPPED

A topic that was made again under its name is not the one that was mirrored: its partitions are
FAILED, and the operator decides.
"""

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

from twinlog.cluster import admin
from twinlog.cluster.client import KafkaCluster
from twinlog.cluster.metadata import Topic
from twinlog.cluster.partitions import DEBUGGING, OffsetSpec, list_offsets
from twinlog.control.failback import read_their_mirrors
from twinlog.control.mirrors import add_named, matching
from twinlog.control.store import MirrorStore
from twinlog.core.errors import Refusal, TwinlogError
from twinlog.core.types import TopicPartition
from twinlog.wire.config_records import Mirror, MirrorTopic, Wanted
from twinlog.wire.snapshot import Snapshot

log = logging.getLogger(__name__)

_INVALID_PARTITIONS: Final = 37  # it has as many already


async def add_new_topics(
    source: KafkaCluster, destination: KafkaCluster, mirror: Mirror, snapshot: Snapshot
) -> int:
    """Add what matches one of the mirror's patterns; how many topics could not be added.

    What was removed from a mirror is not added again.

    Raises:
        Retriable: the source does not answer.
    """
    if not mirror.topic_patterns:
        return 0
    there = (await source.refresh(None)).topics
    found = {name: regex for regex in mirror.topic_patterns for name in matching(regex, there)}
    news = sorted(found.keys() - {topic.topic for topic in snapshot.topics})
    if not news:
        return 0
    theirs = await read_their_mirrors(source, destination)
    failed = 0
    for name in [name for name in news if name not in theirs.loops]:
        try:
            await add_named(
                destination, source, mirror.name, [name], theirs, while_matching=found[name]
            )
            log.info("mirror %s: added the new topic %s", mirror.name, name)
        except TwinlogError as error:
            failed += 1
            log.warning("mirror %s: the new topic %s is not added: %s", mirror.name, name, error)
    return failed


async def follow_origins(
    source: KafkaCluster,
    destination: KafkaCluster,
    store: MirrorStore,
    topics: Collection[MirrorTopic],
) -> int:
    """Write down where the source has these topics from; how many come from the destination.

    Nobody can write to a topic of a loop. It can come to be while several clusters add the topic
    at the same time.

    Raises:
        Retriable: the source does not answer.
    """
    if not topics:
        return 0
    theirs = await read_their_mirrors(source, destination)
    if theirs.unknown:
        return 0
    changed = {
        (topic.mirror, topic.topic): origins
        for topic in topics
        if (origins := theirs.origins.get(topic.topic, ())) != topic.origins
    }
    if changed:
        await store.change(
            lambda now: [
                replace(topic, origins=changed[topic.mirror, topic.topic])
                for topic in now.topics
                if (topic.mirror, topic.topic) in changed
            ]
        )
    looped = [topic.topic for topic in topics if topic.topic in theirs.loops]
    for name in looped:
        log.warning("%s is mirrored in a loop: remove it from the mirror of one cluster", name)
    return len(looped)


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
            "%s has %d partitions, of which %d are mirrored: somebody has added the others here",
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

    Returns:
        How many topics could not grow.

    Raises:
        UserError: a right is missing.
        Retriable: the destination does not answer.
    """
    grown = {
        topic.topic: there[topic.topic]
        for topic in topics
        if there.get(topic.topic, 0) > topic.partitions
    }
    if not grown:
        return 0
    emptied = await _emptied(
        destination,
        [
            TopicPartition(topic.topic, index)
            for topic in topics
            for index in range(topic.partitions, here.get(topic.topic, 0))
            if index < grown.get(topic.topic, 0)
        ],
    )
    failed = len(emptied)
    for name, why in emptied.items():
        log.warning("%s cannot grow to %d partitions: %s", name, grown.pop(name), why)
    answers = await admin.create_partitions(destination, grown)
    for name, answer in answers.items():
        if isinstance(answer, Refusal) and answer.code != _INVALID_PARTITIONS:
            log.warning("%s cannot grow to %d partitions: %s", name, grown.pop(name), answer)
            failed += 1
    keys = {(topic.mirror, topic.topic) for topic in topics}
    # What is wanted of the topics may be another thing by now, and stays.
    await store.change(
        lambda now: [
            replace(topic, partitions=grown[topic.topic])
            for topic in now.topics
            if (topic.mirror, topic.topic) in keys and topic.topic in grown
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
                f"partition {one.partition}, which somebody has added here, held records up to "
                f"offset {end.offset}; remove the topic from the mirror, delete it here, and add "
                f"it again"
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
            replace(topic, wanted=Wanted.STOPPED) for topic in now.topics if topic in deleted
        ]
    )
    return 0
