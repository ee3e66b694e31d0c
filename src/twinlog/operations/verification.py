"""Plans `twinlog verify` and sums it up: the partitions, what to compare of each, the verdict."""

import asyncio
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from twinlog.engines.kinds import kind_named
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Refusal, Retriable, TwinlogError, UserError
from twinlog.kafka.requests import topics as admin
from twinlog.lifecycle.creation import connected_source
from twinlog.mirror.settings import FLOW_KINDS
from twinlog.operations.dated_partitions import unexpected_tasks
from twinlog.operations.flow_routes import Writer, writers_of
from twinlog.operations.flow_verification import FlowPlan, flow_logs, plan_flow
from twinlog.operations.verification_report import Counts, LogReport, Verification, sum_of
from twinlog.operations.verified_topics import partitions_of, recreation, topic_ids
from twinlog.runtime.job_progress import JobProgress
from twinlog.store.config_records import Mirror, MirrorTopic, Wanted
from twinlog.store.mirrors import MirrorStore, unknown_mirror
from twinlog.verify.flow_job import run_task
from twinlog.verify.flow_task import FlowCompared, FlowTask
from twinlog.verify.job import (
    Compared,
    Extent,
    RangeDifference,
    Sides,
    VerifyTask,
    extent,
    other,
    stretches,
)
from twinlog.verify.log_reader import PATIENCE_S, read_bounds
from twinlog.verify.query_job import QueryAnswer, QueryTask
from twinlog.verify.translated_reader import destination_bounds


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyConfig:
    """What to verify, and where Spark runs."""

    destination: Mapping[str, str] = field(repr=False)
    mirror: str | None = None
    topic: re.Pattern[str] | None = None
    master: str = "local[*]"
    spark_conf: Mapping[str, str] = field(default_factory=dict, repr=False)
    patience: float = PATIENCE_S


async def verify_mirrors(
    cluster: KafkaCluster,
    config: VerifyConfig,
    progress: Callable[[JobProgress], None] = lambda _: None,
) -> Verification:
    """Compare the logs of all mirrors, or of one.

    Of all mirrors, one that cannot be compared (malformed settings, an unreachable source) is
    reported, and the others are compared.

    Args:
        cluster: the destination.
        config: which, and how.
        progress: receives how many tasks have ended, now and then, from another thread.

    Raises:
        UserError: there is nothing to compare, the destination refuses, or the one mirror cannot
            be compared.
        Retriable: the destination, or the one mirror's source, is unreachable.
    """
    snapshot = await MirrorStore(cluster).snapshot()
    if config.mirror is not None and config.mirror not in snapshot.mirrors:
        raise unknown_mirror(config.mirror, snapshot)
    writers = writers_of(snapshot)
    tasks: list[VerifyTask | FlowTask] = []
    extents: list[Extent] = []
    flows: list[FlowPlan] = []
    unverified: dict[str, str] = {}
    for mirror in snapshot.mirrors.values():
        topics = [
            topic
            for topic in snapshot.topics_of(mirror.name)
            if topic.wanted is not Wanted.STOPPED
            and config.mirror in {None, mirror.name}
            and (config.topic is None or config.topic.fullmatch(topic.topic))
        ]
        try:
            if topics and mirror.kind in FLOW_KINDS:
                flow = await _plan_flow(
                    *(config, cluster, mirror, topics),
                    all_topics=snapshot.topics_of(mirror.name),
                    writers=writers,
                )
                flows.append(flow)
                tasks += flow.tasks
            elif topics:
                mirror_extents, mirror_tasks = await _plan(config, cluster, mirror, topics)
                extents += mirror_extents
                tasks += mirror_tasks
        except TwinlogError as error:
            if config.mirror is not None:
                raise
            unverified[mirror.name] = str(error)
    if not extents and not any(flow.pairs for flow in flows) and not unverified:
        raise UserError("no mirrored topic to compare", hint="see kafka-mirrors --list")
    results = await asyncio.to_thread(_compare, config, tasks, progress) if tasks else []
    copied = [one for one in results if isinstance(one, FlowCompared)]
    more = [task for flow in flows for task in await unexpected_tasks(cluster, flow, copied)]
    if more:
        results = [*results, *await asyncio.to_thread(_compare, config, more, progress)]
        copied = [one for one in results if isinstance(one, FlowCompared)]
    verified = verification(extents, [one for one in results if isinstance(one, Compared)])
    queries = [flow.query for flow in flows if flow.query is not None]
    answers = await asyncio.to_thread(_answers, queries) if queries else ()
    for query, answer in zip(queries, answers, strict=True):
        copied += answer.results
        if answer.refusal and config.mirror is not None:
            raise UserError(f"flow {query.flow}: {answer.refusal}", hint=answer.hint)
        if answer.refusal:
            unverified[query.flow] = answer.refusal
            flows = [flow for flow in flows if flow.query is not query]
    logs = (*verified.logs, *(log for flow in flows for log in flow_logs(flow, copied)))
    unreadable = tuple(snapshot.unreadable.values())
    return replace(verified, logs=logs, unreadable=unreadable, unverified=unverified)


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
    counts = sum_of(
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
        counts=sum_of([counts, Counts(not_seen=unclassified, behind=extent.behind)]),
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
        translation = await kind_named(mirror.kind).translation(cluster, topics, mirror.source)
        partitions = await partitions_of(source, cluster, topics)
        # The destination is read first, so that a running mirror is never ahead of its source.
        copy_bounds = await destination_bounds(cluster, partitions, translation)
        source_bounds = await read_bounds(source, partitions)
        compacted = await _compacted(source, cluster, topics)
        # The ids are read last: a topic that still has its id had it all the time.
        ids = await topic_ids(source, cluster, topics)
        source_id = source.cluster_id
    made_again = {topic.topic: why for topic in topics if (why := recreation(topic, ids))}
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


async def _plan_flow(
    config: VerifyConfig,
    cluster: KafkaCluster,
    mirror: Mirror,
    topics: list[MirrorTopic],
    *,
    all_topics: Sequence[MirrorTopic],
    writers: Mapping[str, Collection[Writer]],
) -> FlowPlan:
    async with connected_source(mirror, cluster.config.grants) as source:
        return await plan_flow(
            *(source, cluster, mirror, topics),
            all_topics=all_topics,
            writers=writers,
            properties=config.destination,
            patience=config.patience,
        )


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


def _answers(tasks: Sequence[QueryTask]) -> Sequence[QueryAnswer]:
    """The results of flows with queries; what the others have shown outlives their process."""
    try:
        return _compare_queries(tasks)
    except Retriable as error:
        return [QueryAnswer(refusal=error.message, hint=error.hint)] * len(tasks)


def _compare_queries(tasks: Sequence[QueryTask]) -> Sequence[QueryAnswer]:
    # It imports Spark.
    from twinlog.verify.query_worker import run_queries  # noqa: PLC0415

    return run_queries(tasks)


def _compare(
    config: VerifyConfig,
    tasks: Sequence[VerifyTask | FlowTask],
    progress: Callable[[JobProgress], None],
) -> Sequence[Compared | FlowCompared]:
    # Spark takes 200 ms to import, for which other operations need not wait.
    from twinlog.runtime.session import (  # noqa: PLC0415
        BATCH_FAILURES,
        map_tasks,
        start_spark,
        stop_spark,
    )

    spark = start_spark(config.master, config.spark_conf, max_failures=BATCH_FAILURES)
    try:
        parts = map_tasks(spark, run_task, tasks, progress=progress)
        return [comparison for part in parts for comparison in part]
    finally:
        stop_spark(spark)
