"""Plans `twinlog verify` and sums it up: the partitions, what to compare of each, the verdict."""

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final
from uuid import UUID

from twinlog.engines.kinds import kind_named
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.metadata import NO_TOPIC_ID, is_another
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Refusal, UserError
from twinlog.kafka.requests import topics as admin
from twinlog.kafka.types import TopicPartition
from twinlog.lifecycle.creation import connected_source
from twinlog.runtime.job_progress import JobProgress
from twinlog.store.config_records import Mirror, MirrorTopic, Wanted
from twinlog.store.mirrors import MirrorStore, unknown_mirror
from twinlog.verify.job import (
    Compared,
    Extent,
    RangeDifference,
    Sides,
    VerifyTask,
    extent,
    other,
    stretches,
    verify_task,
)
from twinlog.verify.log_reader import PATIENCE_S, read_bounds
from twinlog.verify.translated_reader import destination_bounds
from twinlog.verify.verdict import REASONS

SAME: Final = "the same"
DIFFERS: Final = "differs"
NOT_SEEN: Final = "not seen"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyConfig:
    """What to verify, and where Spark runs."""

    destination: Mapping[str, str] = field(repr=False)
    mirror: str | None = None
    topic: re.Pattern[str] | None = None
    master: str = "local[*]"
    spark_conf: Mapping[str, str] = field(default_factory=dict, repr=False)
    patience: float = PATIENCE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Offsets by class; `length` is their sum."""

    compared: int = 0
    differs: int = 0
    absent: Mapping[str, int] = field(default_factory=dict)
    not_seen: int = 0
    behind: int = 0

    @property
    def length(self) -> int:
        """The sum of all classes."""
        return (
            self.compared + self.differs + sum(self.absent.values()) + self.not_seen + self.behind
        )

    @property
    def absent_by_reason(self) -> Mapping[str, int]:
        """`absent` with all reasons, in their order."""
        return {reason: self.absent.get(reason, 0) for reason in REASONS}

    def as_json(self) -> Mapping[str, object]:
        """The length, and the classes."""
        return {
            "length": self.length,
            "compared": self.compared,
            "differs": self.differs,
            "absent": self.absent_by_reason,
            "not_seen": self.not_seen,
            "behind": self.behind,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class LogReport:
    """The comparison of a partition's two logs."""

    partition: TopicPartition
    counts: Counts
    differences: tuple[RangeDifference, ...]
    unseen: tuple[RangeDifference, ...]

    def as_json(self) -> Mapping[str, object]:
        """The partition with its counts; the ranges of all logs are in the `Verification`."""
        return {**self.partition._asdict(), **self.counts.as_json()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The verdict."""

    logs: tuple[LogReport, ...]
    unreadable: tuple[str, ...] = ()
    """Configuration records that cannot be read: what they concern was not compared."""

    @property
    def counts(self) -> Counts:
        """The sums over all logs."""
        return _sum(report.counts for report in self.logs)

    @property
    def differences(self) -> tuple[RangeDifference, ...]:
        """All ranges that differ."""
        return tuple(difference for report in self.logs for difference in report.differences)

    @property
    def unseen(self) -> tuple[RangeDifference, ...]:
        """All ranges that were not seen; an empty range if a log's bounds were not."""
        return tuple(difference for report in self.logs for difference in report.unseen)

    @property
    def verdict(self) -> str:
        """`DIFFERS`; else `NOT_SEEN` if a single offset or record was not seen; else `SAME`."""
        if self.differences or self.counts.differs:
            return DIFFERS
        return NOT_SEEN if self.unseen or self.counts.not_seen or self.unreadable else SAME

    @property
    def equal(self) -> bool:
        """Whether all that the destination has reached was seen, and nothing differs."""
        return self.verdict == SAME

    def as_json(self) -> Mapping[str, object]:
        """The verdict, the sums, the ranges, and the counts of each log."""
        counts = self.counts
        return {
            "equal": self.equal,
            "verdict": self.verdict,
            "partitions": len(self.logs),
            "records": counts.compared,
            **counts.as_json(),
            "differences": self.differences,
            "unseen": self.unseen,
            "unreadable": self.unreadable,
            "logs": self.logs,
        }


def _sum(counts: Iterable[Counts]) -> Counts:
    every = list(counts)
    absent: Counter[str] = Counter()
    for part in every:
        absent.update(part.absent)
    return Counts(
        compared=sum(part.compared for part in every),
        differs=sum(part.differs for part in every),
        absent=dict(absent),
        not_seen=sum(part.not_seen for part in every),
        behind=sum(part.behind for part in every),
    )


async def verify_mirrors(
    cluster: KafkaCluster,
    config: VerifyConfig,
    progress: Callable[[JobProgress], None] = lambda _: None,
) -> Verification:
    """Compare the logs of all mirrors, or of one.

    Args:
        cluster: the destination.
        config: which, and how.
        progress: receives how many tasks have ended, now and then, from another thread.

    Raises:
        UserError: there is nothing to compare, or a cluster cannot be reached as configured.
    """
    snapshot = await MirrorStore(cluster).snapshot()
    if config.mirror is not None and config.mirror not in snapshot.mirrors:
        raise unknown_mirror(config.mirror, snapshot)
    tasks: list[VerifyTask] = []
    extents: list[Extent] = []
    for mirror in snapshot.mirrors.values():
        topics = [
            topic
            for topic in snapshot.topics_of(mirror.name)
            if topic.wanted is not Wanted.STOPPED
            and config.mirror in {None, mirror.name}
            and (config.topic is None or config.topic.fullmatch(topic.topic))
        ]
        if topics:
            mirror_extents, mirror_tasks = await _plan(config, cluster, mirror, topics)
            extents += mirror_extents
            tasks += mirror_tasks
    if not extents:
        raise UserError("no mirrored topic to compare", hint="see kafka-mirrors --list")
    compared = await asyncio.to_thread(_compare, config, tasks, progress) if tasks else []
    verified = verification(extents, compared)
    return replace(verified, unreadable=tuple(snapshot.unreadable.values()))


def verification(extents: Iterable[Extent], compared: Collection[Compared]) -> Verification:
    """Combine what the bounds show with what the tasks have found.

    Offsets that no task reports were not seen, whatever the cause: the counts are the log's length.
    """
    return Verification(
        logs=tuple(
            _log(
                extent,
                [
                    comparison
                    for comparison in compared
                    if comparison.stretch.partition == extent.partition
                ],
            )
            for extent in extents
        )
    )


def _log(extent: Extent, compared: Collection[Compared]) -> LogReport:
    tallies = [extent.tally, *(comparison.tally for comparison in compared)]
    counts = _sum(
        Counts(
            compared=tally.compared,
            differs=tally.differs,
            absent=tally.absent,
            not_seen=tally.not_seen,
        )
        for tally in tallies
    )
    unclassified = extent.length - counts.length - extent.behind
    partition = extent.partition
    spans = [RangeDifference(partition, *span) for tally in tallies for span in tally.unseen]
    if unclassified:
        spans.append(
            RangeDifference(partition, extent.start, extent.end, f"{unclassified} not classified")
        )
    return LogReport(
        partition=partition,
        counts=_sum([counts, Counts(not_seen=unclassified, behind=extent.behind)]),
        differences=tuple(
            sorted(
                RangeDifference(partition, *difference)
                for tally in tallies
                for difference in tally.differences
            )
        ),
        unseen=tuple(spans),
    )


async def _plan(
    config: VerifyConfig, cluster: KafkaCluster, mirror: Mirror, topics: list[MirrorTopic]
) -> tuple[list[Extent], list[VerifyTask]]:
    """What can be compared of one mirror, cut into tasks."""
    async with connected_source(mirror, cluster.config.grants) as source:
        translation = await kind_named(mirror.kind).translation(cluster, topics)
        partitions = await _partitions(source, cluster, topics)
        # The destination is read first, so that a running mirror is never ahead of its source.
        copy_bounds = await destination_bounds(cluster, partitions, translation)
        source_bounds = await read_bounds(source, partitions)
        compacted = await _compacted(source, cluster, topics)
        # The ids are read last: a topic that still has its id had it all the time.
        ids = await _topic_ids(source, cluster, topics)
        source_id = source.cluster_id
    made_again = {topic.topic: why for topic in topics if (why := _made_again(topic, ids))}
    extents = []
    for partition in partitions:
        bounds = source_bounds[partition], copy_bounds[partition]
        why = made_again.get(partition.topic)
        extents.append(
            extent(partition, *bounds) if why is None else other(partition, *bounds, why)
        )
    tasks = [
        VerifyTask(
            source=mirror.source,
            destination=config.destination,
            cluster_ids=Sides(source_id, cluster.cluster_id),
            topic_ids=ids[stretch.partition.topic],
            stretches=[stretch],
            translation=translation,
            patience=config.patience,
        )
        for stretch in stretches(extents, compacted)
    ]
    return extents, tasks


async def _topic_ids(
    source: KafkaCluster, destination: KafkaCluster, topics: list[MirrorTopic]
) -> dict[str, Sides[UUID]]:
    """The topics' present ids; `NO_TOPIC_ID` for a topic without one, or that does not exist."""
    source_topics = (await source.refresh([topic.topic for topic in topics])).topics
    destination_topics = (
        await destination.refresh([topic.destination_name for topic in topics])
    ).topics
    topics_by_name = {
        topic.topic: (
            source_topics.get(topic.topic),
            destination_topics.get(topic.destination_name),
        )
        for topic in topics
    }
    return {
        name: Sides(*(NO_TOPIC_ID if topic is None else topic.topic_id for topic in sides))
        for name, sides in topics_by_name.items()
    }


def _made_again(topic: MirrorTopic, ids: Mapping[str, Sides[UUID]]) -> str | None:
    """Why a topic's logs are not the mirrored ones; None if they are."""
    current_ids = ids[topic.topic]
    if is_another(topic.topic_id, current_ids.source):
        return "source: the topic was deleted and recreated"
    if is_another(topic.destination_topic_id, current_ids.destination):
        return "destination: the topic was deleted and recreated"
    return None


async def _partitions(
    source: KafkaCluster, destination: KafkaCluster, topics: list[MirrorTopic]
) -> list[TopicPartition]:
    """All partitions that the mirror knows, or that one of the clusters has."""
    source_topics = (await source.refresh([topic.topic for topic in topics])).topics
    destination_topics = (
        await destination.refresh([topic.destination_name for topic in topics])
    ).topics
    return [
        TopicPartition(topic.topic, index)
        for topic in topics
        for pair in [
            (source_topics.get(topic.topic), destination_topics.get(topic.destination_name))
        ]
        for index in range(
            max(
                topic.partitions,
                *(len(topic_side.partitions) if topic_side else 0 for topic_side in pair),
            )
        )
    ]


async def _compacted(
    source: KafkaCluster, destination: KafkaCluster, topics: list[MirrorTopic]
) -> dict[str, bool]:
    """Whether each of these topics is compacted on either side."""
    compacted = dict.fromkeys((topic.topic for topic in topics), False)
    by_name = {topic.destination_name: topic.topic for topic in topics}
    for cluster, names in ((source, list(compacted)), (destination, list(by_name))):
        resources = [admin.topic_resource(name) for name in names]
        answers = await admin.describe_configs(cluster, resources, ["cleanup.policy"])
        for resource, entries in answers.items():
            if isinstance(entries, Refusal):
                if entries.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    continue  # its bounds cannot be read either
                entries.fail("read the configuration", topic=resource.name)
            policy = entries["cleanup.policy"].value or ""
            name = resource.name if cluster is source else by_name[resource.name]
            compacted[name] = compacted[name] or "compact" in policy
    return compacted


def _compare(
    config: VerifyConfig, tasks: list[VerifyTask], progress: Callable[[JobProgress], None]
) -> list[Compared]:
    # Spark takes 200 ms to import, for which other operations need not wait.
    from twinlog.runtime.session import (  # noqa: PLC0415
        BATCH_FAILURES,
        map_tasks,
        start_spark,
        stop_spark,
    )

    spark = start_spark(config.master, config.spark_conf, max_failures=BATCH_FAILURES)
    try:
        parts = map_tasks(spark, verify_task, tasks, progress=progress)
        return [comparison for part in parts for comparison in part]
    finally:
        stop_spark(spark)
