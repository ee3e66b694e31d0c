"""Topics follow the source's (KIP-1279, "Metadata Synchronization").

    on the source                             on the destination
    ----------------------------------------  ----------------------------------------------------
    a topic matches what was added by a       it is added, too, unless it was in a mirror before
    regular expression
    a topic has more partitions               it grows
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
from twinlog.control.failback import read_their_mirrors
from twinlog.control.mirrors import add_named, matching
from twinlog.control.store import MirrorStore
from twinlog.core.errors import Refusal, TwinlogError
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


async def grow_topics(
    destination: KafkaCluster,
    store: MirrorStore,
    topics: Collection[MirrorTopic],
    there: Mapping[str, int],
) -> int:
    """Create the partitions that the source has and the destination has not.

    Args:
        destination: where partitions are created.
        store: the destination's mirrors.
        topics: of one mirror.
        there: how many partitions the source's topics have.

    Returns:
        How many topics could not grow.
    """
    grown = {
        topic.topic: there[topic.topic]
        for topic in topics
        if there.get(topic.topic, 0) > topic.partitions
    }
    if not grown:
        return 0
    failed = 0
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
