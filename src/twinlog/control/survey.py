"""What there is to know before a failover, asked of both clusters: the facts of readiness.py.

What the source holds is asked of it; where it does not answer, the statuses of its partitions'
owners say what it held when it was last heard of. The destination is asked first: what is written
and mirrored in between counts as lag, so that a loss is never made smaller than it is.
"""

import asyncio
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from twinlog.cluster.client import KafkaCluster
from twinlog.cluster.metadata import Topic
from twinlog.cluster.mirrorlog import LANES_GROUP
from twinlog.cluster.offsets import list_groups
from twinlog.cluster.partitions import (
    CONSUMER,
    Isolation,
    OffsetSpec,
    list_offsets,
    open_transactions,
)
from twinlog.cluster.transactions import transactional_ids
from twinlog.control.acl_sync import Compared, compare_acls
from twinlog.control.config_sync import Difference, Unreadable, compare_configs
from twinlog.control.described import MirrorDescription, PartitionDescription, describe
from twinlog.control.group_survey import ByTopic, group_facts, remembered_facts
from twinlog.control.lifecycle import Topics, choose
from twinlog.control.mirror_errors import MirrorError
from twinlog.control.mirrors import connected_source
from twinlog.control.readiness import (
    AclFacts,
    Finding,
    MirrorFacts,
    PartitionFacts,
    Reason,
    SourceLog,
    SourceTopic,
    TopicFacts,
)
from twinlog.control.store import MirrorStore
from twinlog.core.errors import Refusal, TwinlogError
from twinlog.core.mirror_settings import MirrorSettings, parse_settings
from twinlog.core.types import TopicPartition
from twinlog.wire.config_records import Mirror, MirrorTopic, Wanted

FRESH_S: Final = 15.0
"""Where the lanes' group is not to be seen, a status of the last so many seconds shows that a node
runs: lanes write one each 5 s."""
CONNECT_S: Final = 5.0
"""Seconds after which a source that does not answer is taken for dead: somebody waits."""
PATIENCE_S: Final = 60.0
"""Seconds after which one that answers some questions is, too."""

Logs = dict[TopicPartition, SourceLog]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is to be surveyed, and what the control topics say of it."""

    mirror: Mirror
    topics: tuple[MirrorTopic, ...]
    described: MirrorDescription
    node_runs: bool

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
    names = {topic.topic for topic in chosen}
    statuses, _ = await store.statuses()
    (described,) = describe(snapshot, await store.states(), statuses.values(), [mirror])
    newest = max((status.time_ms for status in statuses.values()), default=0)
    lanes = (await list_groups(destination)).get(LANES_GROUP)
    return Subject(
        mirror=snapshot.mirrors[mirror],
        topics=tuple(chosen),
        described=replace(
            described, topics=tuple(one for one in described.topics if one.topic in names)
        ),
        node_runs=(time.time() - newest / 1000 < FRESH_S if lanes is None else not lanes.idle),
    )


async def survey(destination: KafkaCluster, subject: Subject) -> MirrorFacts:
    """The facts, of the source as well, if it answers.

    Raises:
        Retriable, UserError: the destination does not answer, or refuses.
    """
    ends = await destination_ends(destination, subject.partitions)
    try:
        async with (
            asyncio.timeout(PATIENCE_S),
            connected_source(subject.mirror, destination.config.grants, CONNECT_S) as source,
        ):
            return await survey_live(source, destination, subject, ends)
    except TwinlogError as error:
        trouble = str(error)
    except TimeoutError:
        trouble = f"the source gives no answers within {PATIENCE_S:g} s"
    here = await _partition_counts(destination, subject)
    groups, unknown = await remembered_facts(
        destination, subject.mirror.name, subject.partitions, int(time.time() * 1000)
    )
    facts = _as_was_said(subject, ends, here, trouble)
    return replace(
        facts,
        unknown=(*facts.unknown, *unknown),
        topics=tuple(replace(topic, groups=groups.get(topic.topic, ())) for topic in facts.topics),
    )


async def _partition_counts(destination: KafkaCluster, subject: Subject) -> dict[str, int]:
    """How many partitions the destination's topics have, of those that are there."""
    found = (await destination.refresh(subject.names)).topics
    return {name: len(found[name].partitions) for name in subject.names if name in found}


async def survey_live(
    source: KafkaCluster,
    destination: KafkaCluster,
    subject: Subject,
    ends: Mapping[TopicPartition, int],
) -> MirrorFacts:
    """The facts, of a source that is connected.

    Args:
        source: the mirror's.
        destination: the mirror's cluster.
        subject: what is to be surveyed.
        ends: see `destination_ends`; read before.

    Raises:
        TwinlogError: the source does not answer, or refuses.
    """
    there = (await source.refresh(subject.names)).topics
    here = await _partition_counts(destination, subject)
    found = {topic.topic: _on_source(topic, there.get(topic.topic)) for topic in subject.topics}
    same = [topic for topic in subject.topics if found[topic.topic] is SourceTopic.SAME]
    logs = await source_logs(
        source, [one for one in subject.partitions if found[one.topic] is SourceTopic.SAME]
    )
    names = [topic.topic for topic in same]
    unknown: list[Finding] = []
    groups: ByTopic = {}
    try:
        groups, unreadable = await group_facts(
            *(source, destination, subject.mirror.name, subject.settings.groups_include, logs)
        )
        unknown += unreadable
    except TwinlogError as error:
        unknown.append(Finding(Reason.GROUP_UNREADABLE, f"groups: {error}"))
    compared: dict[str, Difference | Unreadable] = {}
    exclude = subject.settings.topic_properties_exclude
    try:
        compared = await compare_configs(source, destination, names, exclude)
    except TwinlogError as error:
        unknown.append(Finding(Reason.CONFIGURATION_UNREADABLE, f"configurations: {error}"))
    acls = AclFacts()
    try:
        acls = await _acls(source, destination, subject)
    except TwinlogError as error:
        unknown.append(Finding(Reason.ACL_UNREADABLE, f"ACLs: {error}"))
    held = await holders(source, [one for one, log in logs.items() if log.is_open])
    return MirrorFacts(
        mirror=subject.mirror.name,
        node_runs=subject.node_runs,
        unknown=tuple(unknown),
        acls=acls,
        topics=tuple(
            TopicFacts(
                topic=topic.topic,
                on_source=found[topic.topic],
                source_partitions=(
                    len(there[topic.topic].partitions) if topic.topic in names else None
                ),
                destination_partitions=here.get(topic.topic),
                partitions=tuple(
                    _partition(one, ends.get(key), logs.get(key), held.get(key, ()))
                    for one in topic.partitions
                    for key in [TopicPartition(topic.topic, one.partition)]
                ),
                groups=groups.get(topic.topic, ()),
                configurations=_differing(compared.get(topic.topic)),
                configurations_unknown=_unreadable(compared.get(topic.topic)),
            )
            for topic in subject.described.topics
        ),
    )


def _on_source(topic: MirrorTopic, found: Topic | None) -> SourceTopic:
    if found is None:
        return SourceTopic.GONE
    if found.error:
        return SourceTopic.UNKNOWN
    return SourceTopic.SAME if found.topic_id == topic.topic_id else SourceTopic.MADE_AGAIN


def _as_was_said(
    subject: Subject, ends: Mapping[TopicPartition, int], here: Mapping[str, int], trouble: str
) -> MirrorFacts:
    """The facts of a source that does not answer: what it held when it was last heard of."""
    rows = [one for topic in subject.described.topics for one in topic.partitions]
    heard = [one.source_time_ms for one in rows if one.source_time_ms is not None]
    return MirrorFacts(
        mirror=subject.mirror.name,
        node_runs=subject.node_runs,
        source_trouble=trouble,
        known_until_ms=int(time.time() * 1000) - min(heard) if heard else None,
        topics=tuple(
            TopicFacts(
                topic=topic.topic,
                destination_partitions=here.get(topic.topic),
                partitions=tuple(
                    _partition(
                        one, ends.get(TopicPartition(topic.topic, one.partition)), _said(one)
                    )
                    for one in topic.partitions
                ),
            )
            for topic in subject.described.topics
        ),
    )


def _said(one: PartitionDescription) -> SourceLog | None:
    if one.source_offset < 0:
        return None
    return SourceLog(None, one.source_offset, one.source_last_stable_offset)


def _partition(
    one: PartitionDescription,
    end: int | None,
    source: SourceLog | None,
    held_by: tuple[str, ...] = (),
) -> PartitionFacts:
    return PartitionFacts(
        partition=one.partition,
        state=one.state,
        reason=one.reason,
        source=source,
        destination_end=end,
        lag_ms=one.lag_ms,
        held_by=held_by,
    )


async def destination_ends(
    destination: KafkaCluster, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, int]:
    """The high watermarks of these partitions, of those that can be asked."""
    found = await list_offsets(destination, partitions, OffsetSpec.LATEST, replica_id=CONSUMER)
    return {one: end.offset for one, end in found.items() if not isinstance(end, Refusal)}


async def source_logs(source: KafkaCluster, partitions: Collection[TopicPartition]) -> Logs:
    """Where these partitions' logs begin and end, of those that can be asked.

    The last stable offset is read before the high watermark, so that what is open is never made
    smaller than it is.
    """
    starts, stable = await asyncio.gather(
        list_offsets(source, partitions, OffsetSpec.EARLIEST),
        list_offsets(source, partitions, OffsetSpec.LATEST, isolation=Isolation.READ_COMMITTED),
    )
    ends = await list_offsets(source, partitions, OffsetSpec.LATEST)
    logs = {}
    for one in partitions:
        start, last_stable, end = starts[one], stable[one], ends[one]
        if (
            not isinstance(start, Refusal)
            and not isinstance(last_stable, Refusal)
            and not isinstance(end, Refusal)
        ):
            logs[one] = SourceLog(start.offset, end.offset, last_stable.offset)
    return logs


async def holders(
    source: KafkaCluster, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, tuple[str, ...]]:
    """Who holds transactions open on these partitions, for people.

    By transactional id where we may see that, else by producer id; nothing of partitions that
    cannot be asked: who it is changes no verdict.
    """
    if not partitions:
        return {}
    told = await open_transactions(source, partitions)
    found = {one: answer for one, answer in told.items() if not isinstance(answer, Refusal)}
    names: dict[int, str] = {}
    with suppress(TwinlogError):
        producer_ids = {each.producer_id for some in found.values() for each in some}
        names = await transactional_ids(source, producer_ids)
    return {
        one: tuple(
            f"transactional id {names[each.producer_id]}"
            if each.producer_id in names
            else f"producer id {each.producer_id}"
            for each in some
        )
        for one, some in found.items()
    }


# ---- what follows ------------------------------------------------------------------------------


async def _acls(source: KafkaCluster, destination: KafkaCluster, subject: Subject) -> AclFacts:
    """What is to be done to ACLs; nothing where they do not follow.

    Raises:
        UserError: a right is missing, to see ACLs.
        Retriable: a cluster does not answer.
    """
    rules = subject.settings.acl_include
    if not rules or all(topic.wanted is not Wanted.MIRRORING for topic in subject.topics):
        return AclFacts()
    found = await compare_acls(
        source, destination, MirrorStore(destination), subject.mirror.name, subject.settings
    )
    if not isinstance(found, Compared):
        return AclFacts()
    make, remove, denying, missed = (
        tuple(map(str, sorted(acls)))
        for acls in (found.changes.make, found.changes.remove, found.denying, found.missed)
    )
    return AclFacts(to_make=make, to_remove=remove, denying=denying, missed=missed)


def _differing(found: Difference | Unreadable | None) -> tuple[str, ...]:
    """Names of a topic's configurations that are not as they are to be."""
    return tuple(sorted({*found.changes, *found.fixed})) if isinstance(found, Difference) else ()


def _unreadable(found: Difference | Unreadable | None) -> str:
    """Why they cannot be compared; empty where they were, or nothing is known of any topic."""
    return f"its configurations {found}" if isinstance(found, Unreadable) else ""
