"""Surveys both clusters before a failover: the facts of facts.py.

The source is asked for what it holds. If it does not answer, the statuses of its partitions' owners
report what it held at last contact. The destination is read first: what is written and mirrored in
between counts as lag, so that a loss is never reported smaller than it is.

Each request may be answered late, in part, with an error, or by a peer with less knowledge. The
conclusions are then:

    request                   no answer, or not all of it       an answer that misleads
    ------------------------  --------------------------------  -------------------------------
    config and state records  error, no verdict                 -
      one that is unreadable  CONTROL_UNREADABLE                -
    statuses                  error, no verdict                 old, or dated ahead: read again
                                                                (statuses.py), then UNKNOWN
    the nodes' groups         by fresh statuses                 foreign members: FOREIGN_MEMBER
    ends of the destination   DESTINATION_UNREADABLE            -
    its log starts            the same                          -
    the source at all         SOURCE_UNREACHABLE; offsets       of a pause, or stale: they
                              by fresh statuses                 count as unknown
    the source's own mirrors  what they may have from the       without READ they count as
                              destination is NOT_MIRRORED       none
    all topics of the source  as stored by the last refresh     without DESCRIBE a topic is not
                                                                listed (docs/readiness.md)
    the destination's topics  DESTINATION_UNREADABLE            a recreated topic:
                                                                DESTINATION_RECREATED
    the mirror's topics       TOPIC_GONE, SOURCE_UNREADABLE     -
    log start, stable, end    SOURCE_UNREADABLE                 a follower's: refused by the
                                                                leader epoch (KIP-320)
    the leader's log end      LOG_END_UNREADABLE                below the high watermark:
                                                                counts as unknown
    groups, configs, ACLs     ..._UNREADABLE, each after 12 s,  -
                              also if the source does not
                              answer at all
    holders of transactions   left out: no verdict depends on   -
                              them
"""

import asyncio
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.metadata import Topic, is_another
from twinlog.kafka.errors import Refusal, Retriable, TwinlogError
from twinlog.kafka.requests.partitions import (
    DEBUGGING,
    Isolation,
    ListedOffset,
    OffsetSpec,
    list_offsets,
    open_transactions,
)
from twinlog.kafka.requests.transactions import transactional_ids
from twinlog.kafka.types import TopicPartition
from twinlog.lifecycle.creation import connected_source
from twinlog.lifecycle.failback import TheirMirrors, read_their_mirrors
from twinlog.mirror.settings import FLOW_KINDS
from twinlog.mirror.states import State
from twinlog.mirror.translation import SAME, Translation
from twinlog.operations.describe import PartitionDescription
from twinlog.operations.readiness.begins_later import Front, begins_later, log_starts, may_lack
from twinlog.operations.readiness.facts import (
    MirrorFacts,
    PartitionFacts,
    SourceLog,
    SourceTopic,
    TopicFacts,
)
from twinlog.operations.readiness.flow_survey import FlowSurvey
from twinlog.operations.readiness.group_survey import ByTopic, group_facts, remembered_facts
from twinlog.operations.readiness.reasons import Finding, Reason
from twinlog.operations.readiness.source_topics import all_source_topics
from twinlog.operations.readiness.subject import Subject, confirmed, source_age_ms, status_age_ms
from twinlog.operations.readiness.sync_survey import bounded, compare_syncs, not_compared
from twinlog.store.config_records import MirrorTopic
from twinlog.store.mirrors import MirrorStore
from twinlog.sync.base import SyncContext
from twinlog.sync.group_selection import named_groups
from twinlog.sync.topics import not_mirrored
from twinlog.sync.translated_offsets import list_translated_offsets

CONNECT_S: Final = 5.0
"""Seconds after which a source that does not answer counts as dead: an operator waits."""
PATIENCE_S: Final = 60.0
"""Seconds after which one that answers some requests counts as dead, too."""
PART_S: Final = 12.0
"""Seconds for a part without which the rest is still known: each part has a finding of its own."""

_UNDISCOVERED: Final = "not discovered yet; the next refresh adds it"

Logs = dict[TopicPartition, SourceLog]


async def survey(destination: KafkaCluster, subject: Subject) -> MirrorFacts:
    """The facts, including the source's if it answers.

    Raises:
        Retriable, UserError: the destination is unreachable, or refuses.
    """
    began = time.monotonic()
    flow = None
    if subject.mirror.kind in FLOW_KINDS:
        flow = await FlowSurvey.of(destination, subject)
        ends = flow.ends
    else:
        ends = await destination_ends(destination, subject.partitions, subject.translation)
    try:
        async with (
            asyncio.timeout(PATIENCE_S),
            connected_source(subject.mirror, destination.config.grants, CONNECT_S) as source,
        ):
            facts = await survey_live(source, destination, subject, ends, part_s=PART_S, flow=flow)
    except TwinlogError as error:
        trouble = str(error)
    except TimeoutError:
        trouble = f"the source does not respond within {PATIENCE_S:g} s"
    else:
        return facts if flow is None else await flow.completed(facts)
    subject = await confirmed(destination, subject, ends)
    destination_topics = await _destination_topics(destination, subject)
    groups: ByTopic = {}
    if flow is not None and not flow.syncs_groups:
        findings = flow.unknown_groups()
    else:
        groups, findings = await remembered_facts(
            destination,
            subject.mirror.name,
            subject.group_partitions,
            int(time.time() * 1000),
            subject.of_groups,
        )
        groups = subject.by_selected_topic(groups)
    facts = _as_reported(subject, ends, destination_topics, trouble)
    findings += await not_compared(destination, subject)
    facts = replace(
        facts,
        age_ms=int((time.monotonic() - began) * 1000),
        unknown=(*facts.unknown, *findings),
        topics=tuple(replace(topic, groups=groups.get(topic.topic, ())) for topic in facts.topics),
    )
    return facts if flow is None else await flow.completed(facts)


async def _destination_topics(destination: KafkaCluster, subject: Subject) -> dict[str, Topic]:
    """Those of the topics that the destination has, by their names on the source."""
    names = {name: subject.translation.topic(name) for name in subject.names}
    topics = (await destination.refresh(list(names.values()))).topics
    return {
        name: topics[destination_name]
        for name, destination_name in names.items()
        if destination_name in topics
    }


def _count(topic: Topic | None) -> int | None:
    return None if topic is None else len(topic.partitions)


def _is_recreated(subject: Subject, topic: str, destination_topics: Mapping[str, Topic]) -> bool:
    """Whether the destination's copy of this topic is not the mirror's any more."""
    return topic in destination_topics and any(
        is_another(description.destination_topic_id, destination_topics[topic].topic_id)
        for description in subject.topics
        if description.topic == topic
    )


async def survey_live(
    source: KafkaCluster,
    destination: KafkaCluster,
    subject: Subject,
    ends: Mapping[TopicPartition, int],
    *,
    part_s: float | None = None,
    flow: FlowSurvey | None = None,
) -> MirrorFacts:
    """The facts, with a source that is connected.

    Args:
        source: the mirror's source.
        destination: the mirror's cluster.
        subject: what is to be surveyed.
        ends: see `destination_ends`; read before.
        part_s: seconds for each part that has a finding of its own; None: it takes what it takes,
            for a switchover, which goes on only if everything is known.
        flow: what is different, if it is a flow.

    Raises:
        TwinlogError: the source is unreachable, or refuses.
    """
    began = time.monotonic()
    all_topics = await all_source_topics(source, part_s)
    fronts: Mapping[TopicPartition, Front] = {}
    if flow is None:
        starts = await log_starts(destination, subject.partitions, subject.translation)
        missed = await _not_mirrored(source, destination, subject, all_topics.topics, part_s)
    else:
        starts, fronts = await flow.log_starts()
        missed = flow.not_copied(all_topics.topics)
    ends = {partition: end for partition, end in ends.items() if partition in starts}
    source_topics = (await source.refresh(subject.names)).topics
    destination_topics = await _destination_topics(destination, subject)
    on_source = {
        topic.topic: _on_source(topic, source_topics.get(topic.topic)) for topic in subject.topics
    }
    unchanged = [topic for topic in subject.topics if on_source[topic.topic] is SourceTopic.SAME]
    logs = await source_logs(
        source, [p for p in subject.partitions if on_source[p.topic] is SourceTopic.SAME]
    )
    lacking = await begins_later(source, logs, starts)
    doubtful = await may_lack(source, destination, logs, fronts)
    names = [topic.topic for topic in unchanged]
    findings: list[Finding] = []
    groups: ByTopic = {}
    try:
        async with bounded(part_s):
            if flow is None:
                name, include = subject.mirror.name, named_groups(subject.settings.groups_include)
                groups, unreadable = await group_facts(
                    *(source, destination, name, include, logs),
                    translation=subject.translation,
                )
            else:
                groups, unreadable = await flow.groups(source, logs)
        findings += unreadable
    except TwinlogError as error:
        findings.append(Finding(Reason.GROUP_UNREADABLE, f"groups: {error}"))
    context = SyncContext(
        destination=destination,
        store=MirrorStore(destination),
        name=subject.mirror.name,
        snapshot=subject.snapshot,
        source=source,
        settings=subject.settings,
        topics=subject.topics,
        same=[
            topic
            for topic in unchanged
            if not _is_recreated(subject, topic.topic, destination_topics)
        ],
        there=source_topics,
        here=destination_topics,
        latest=lambda: subject.snapshot,
    )
    synced = await compare_syncs(context, part_s)
    holders_by_partition = await holders(source, [p for p, log in logs.items() if log.is_open])
    return MirrorFacts(
        mirror=subject.mirror.name,
        node_runs=subject.node_runs,
        not_mirrored=missed,
        age_ms=int((time.monotonic() - began) * 1000),
        status_age_ms=status_age_ms(subject),
        unknown=(*subject.findings, *all_topics.findings, *findings, *synced.unknown),
        acls=synced.acls,
        synced=synced.findings.get(None, ()),
        topics=tuple(
            TopicFacts(
                topic=topic.topic,
                behind_ms=subject.behind_ms(topic.topic),
                on_source=on_source[topic.topic],
                source_partitions=(
                    max(
                        len(source_topics[topic.topic].partitions),
                        all_topics.counts.get(topic.topic, 0),
                    )
                    if topic.topic in names
                    else None
                ),
                destination_partitions=_count(destination_topics.get(topic.topic)),
                destination_recreated=_is_recreated(subject, topic.topic, destination_topics),
                partitions=tuple(
                    replace(
                        _partition(
                            p,
                            ends.get(key),
                            logs.get(key),
                            holders_by_partition.get(key, ()),
                            live=True,
                        ),
                        lacks=lacking.get(key),
                        may_lack=doubtful.get(key),
                    )
                    for p in topic.partitions
                    for key in [TopicPartition(topic.topic, p.partition)]
                ),
                groups=groups.get(topic.topic, ()),
                configurations=synced.configurations(topic.topic),
                synced=synced.findings.get(topic.topic, ()),
            )
            for topic in subject.described.topics
        ),
    )


async def _not_mirrored(
    source: KafkaCluster,
    destination: KafkaCluster,
    subject: Subject,
    source_topics: Mapping[str, Topic],
    part_s: float | None,
) -> dict[str, str]:
    """The source's topics that the mirror does not mirror, with the reason as far as known."""
    mirror, snapshot = subject.mirror, subject.snapshot
    reasons = not_mirrored(mirror, snapshot, source_topics, ())
    if reasons:
        their_mirrors = await _their_mirrors(source, destination, part_s)
        reasons = not_mirrored(mirror, snapshot, source_topics, their_mirrors.loops)
        reasons = {name: why or their_mirrors.unsure(name) for name, why in reasons.items()}
    stored_reasons = dict(snapshot.not_mirrored(mirror.name).topics)
    return {
        name: why or stored_reasons.get(name, _UNDISCOVERED)
        for name, why in reasons.items()
        if subject.named(name)
    }


async def _their_mirrors(
    source: KafkaCluster, destination: KafkaCluster, part_s: float | None
) -> TheirMirrors:
    """The source's own mirrors; a survey that is bounded continues if they cannot be read."""
    try:
        async with bounded(part_s):
            return await read_their_mirrors(source, destination)
    except Retriable as error:
        if part_s is None:
            raise
        reason = f"cannot read __mirror_config of the source: {error}"
        return TheirMirrors({}, frozenset(), {}, unknown=reason)


def _on_source(topic: MirrorTopic, metadata: Topic | None) -> SourceTopic:
    if metadata is None:
        return SourceTopic.GONE
    if metadata.error:
        return SourceTopic.UNKNOWN
    return SourceTopic.SAME if metadata.topic_id == topic.topic_id else SourceTopic.MADE_AGAIN


def _as_reported(
    subject: Subject,
    ends: Mapping[TopicPartition, int],
    destination_topics: Mapping[str, Topic],
    trouble: str,
) -> MirrorFacts:
    """The facts of a source that does not answer: what it held at last contact."""
    stored_reasons = dict(subject.snapshot.not_mirrored(subject.mirror.name).topics)
    return MirrorFacts(
        mirror=subject.mirror.name,
        node_runs=subject.node_runs,
        source_trouble=trouble,
        known_until_ms=source_age_ms(subject),
        not_mirrored={name: why for name, why in stored_reasons.items() if subject.named(name)},
        status_age_ms=status_age_ms(subject),
        unknown=subject.findings,
        topics=tuple(
            TopicFacts(
                topic=topic.topic,
                behind_ms=subject.behind_ms(topic.topic),
                destination_partitions=_count(destination_topics.get(topic.topic)),
                destination_recreated=_is_recreated(subject, topic.topic, destination_topics),
                partitions=tuple(
                    _partition(
                        partition,
                        ends.get(TopicPartition(topic.topic, partition.partition)),
                        _reported_source(partition),
                        live=False,
                    )
                    for partition in topic.partitions
                ),
            )
            for topic in subject.described.topics
        ),
    )


def _reported_source(partition: PartitionDescription) -> SourceLog | None:
    """What the source held at the last contact of a partition's owner.

    None for a partition that no lane fetches: its status is of the time of the pause, of the
    failure, or of an owner that is gone.
    """
    watched = (
        partition.state is State.MIRRORING
        and partition.fresh
        and partition.source_time_ms is not None
    )
    if not watched or partition.source_offset < 0:
        return None
    return SourceLog(None, partition.source_offset, partition.source_last_stable_offset)


def _partition(
    partition: PartitionDescription,
    end: int | None,
    source: SourceLog | None,
    held_by: tuple[str, ...] = (),
    *,
    live: bool,
) -> PartitionFacts:
    return PartitionFacts(
        partition=partition.partition,
        state=partition.state,
        reason=partition.reason,
        source=source,
        destination_end=end,
        lag_ms=partition.lag_ms,
        held_by=held_by,
        reported_end=_reported_end(partition, live=live),
    )


def _reported_end(partition: PartitionDescription, *, live: bool) -> int | None:
    """The end of the mirror's records by a status that is not older than the destination's end.

    None for a partition that is mirrored from a source that answers. None is needed: the source's
    own end shows it.
    """
    counts = partition.state is State.PAUSED or (
        partition.state is State.MIRRORING and partition.fresh and not live
    )
    return partition.mirrored_offset if counts and partition.mirrored_offset >= 0 else None


async def destination_ends(
    destination: KafkaCluster,
    partitions: Collection[TopicPartition],
    translation: Translation = SAME,
) -> dict[TopicPartition, int]:
    """The source's offsets up to which the destination has everything, where it can be read.

    They are the destination's high watermarks, in the source's offsets.
    """
    answers = await list_translated_offsets(destination, partitions, OffsetSpec.LATEST, translation)
    return {partition: end for partition, end in answers.items() if not isinstance(end, Refusal)}


async def source_logs(source: KafkaCluster, partitions: Collection[TopicPartition]) -> Logs:
    """Where these partitions' logs begin and end, of those that can be read.

    The last stable offset is read before the high watermark, so that the open part is never
    reported smaller than it is. The leader's log end is read last (replica id -2, which needs no
    other right: tests/contract/test_log.py), so that the unreplicated part is not, either.
    """
    starts, stable = await asyncio.gather(
        list_offsets(source, partitions, OffsetSpec.EARLIEST),
        list_offsets(source, partitions, OffsetSpec.LATEST, isolation=Isolation.READ_COMMITTED),
    )
    ends = await list_offsets(source, partitions, OffsetSpec.LATEST)
    log_ends = await list_offsets(source, partitions, OffsetSpec.LATEST, replica_id=DEBUGGING)
    logs = {}
    for partition in partitions:
        start, last_stable, end = starts[partition], stable[partition], ends[partition]
        if (
            not isinstance(start, Refusal)
            and not isinstance(last_stable, Refusal)
            and not isinstance(end, Refusal)
        ):
            log_end = _log_end(log_ends[partition], end.offset)
            logs[partition] = SourceLog(start.offset, end.offset, last_stable.offset, log_end)
    return logs


def _log_end(answer: ListedOffset | Refusal, high_watermark: int) -> int | None:
    """A leader's log end; None if below the high watermark, as it is not the leader's then."""
    if isinstance(answer, Refusal) or answer.offset < high_watermark:
        return None
    return answer.offset


async def holders(
    source: KafkaCluster, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, tuple[str, ...]]:
    """The producers that hold transactions open on these partitions, as text.

    By transactional id if that may be described, otherwise by producer id. Partitions that cannot
    be read are left out: no verdict depends on the holder.
    """
    if not partitions:
        return {}
    answers = await open_transactions(source, partitions)
    transactions_by_partition = {
        p: answer for p, answer in answers.items() if not isinstance(answer, Refusal)
    }
    names: dict[int, str] = {}
    with suppress(TwinlogError):
        producer_ids = {
            transaction.producer_id
            for transactions in transactions_by_partition.values()
            for transaction in transactions
        }
        names = await transactional_ids(source, producer_ids)
    return {
        partition: tuple(
            f"transactional id {names[transaction.producer_id]}"
            if transaction.producer_id in names
            else f"producer id {transaction.producer_id}"
            for transaction in some
        )
        for partition, some in transactions_by_partition.items()
    }
