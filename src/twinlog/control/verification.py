"""`twinlog verify` seen from above: which partitions, what to compare of each, and the verdict."""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from twinlog.cluster import admin
from twinlog.cluster.client import KafkaCluster
from twinlog.cluster.config import parse_config, parse_source
from twinlog.control.mirrors import connected
from twinlog.control.store import MirrorStore, unknown_mirror
from twinlog.core.errors import Refusal, UserError
from twinlog.core.types import TopicPartition
from twinlog.pipeline.kafka import KafkaDestination, KafkaSource
from twinlog.pipeline.session import map_tasks, start_spark, stop_spark
from twinlog.pipeline.verify import (
    Compared,
    Differs,
    Extent,
    VerifyTask,
    extent,
    stretches,
    verify_task,
)
from twinlog.wire.config_records import Mirror, MirrorTopic, Wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyConfig:
    """What to verify, and where Spark runs."""

    destination: Mapping[str, str] = field(repr=False)
    mirror: str | None = None
    topic: re.Pattern[str] | None = None
    master: str = "local[*]"
    spark_conf: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The verdict."""

    partitions: int
    records: int
    behind: int
    """Offsets that the source has decided and the destination does not have yet."""
    differences: tuple[Differs, ...]

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        return not self.differences


async def verify_mirrors(config: VerifyConfig) -> Verification:
    """Compare the logs of all mirrors, or of one.

    Raises:
        UserError: there is nothing to compare, or a cluster cannot be reached as configured.
    """
    async with connected(parse_config(config.destination).config, "destination") as cluster:
        snapshot = await MirrorStore(cluster).snapshot()
        if config.mirror is not None and config.mirror not in snapshot.mirrors:
            raise unknown_mirror(config.mirror, snapshot)
        tasks: list[VerifyTask] = []
        extents: list[Extent] = []
        for mirror in snapshot.mirrors.values():
            topics = [
                topic
                for topic in snapshot.topics
                if topic.mirror == mirror.name
                and topic.wanted is not Wanted.STOPPED
                and config.mirror in {None, mirror.name}
                and (config.topic is None or config.topic.fullmatch(topic.topic))
            ]
            if topics:
                found, made = await _plan(config, cluster, mirror, topics)
                extents += found
                tasks += made
    if not extents:
        raise UserError("no topic of a mirror is to be compared", hint="see kafka-mirrors --list")
    compared = await asyncio.to_thread(_compare, config, tasks) if tasks else []
    return Verification(
        partitions=len(extents),
        records=sum(one.records for one in compared),
        behind=sum(one.behind for one in extents),
        differences=(
            *(difference for one in extents for difference in one.differences),
            *(difference for one in compared for difference in one.differences),
        ),
    )


async def _plan(
    config: VerifyConfig, cluster: KafkaCluster, mirror: Mirror, topics: list[MirrorTopic]
) -> tuple[list[Extent], list[VerifyTask]]:
    """What can be compared of one mirror, cut into tasks."""
    partitions = [TopicPartition(t.topic, index) for t in topics for index in range(t.partitions)]
    parsed = parse_source(mirror.source, cluster.config.grants)
    async with connected(parsed.config, mirror.name) as source:
        theirs, ours, compacted = await asyncio.gather(
            KafkaSource(source).bounds(partitions),
            KafkaDestination(cluster, lambda: False).bounds(partitions),
            _compacted(source, cluster, {topic.topic for topic in topics}),
        )
    extents = [extent(partition, theirs[partition], ours[partition]) for partition in partitions]
    tasks = [
        VerifyTask(source=mirror.source, destination=config.destination, stretches=[stretch])
        for stretch in stretches(extents, compacted)
    ]
    return extents, tasks


async def _compacted(
    source: KafkaCluster, destination: KafkaCluster, topics: set[str]
) -> dict[str, bool]:
    """Whether a cleaner is at work on either side of these topics."""
    found = dict.fromkeys(topics, False)
    resources = [admin.topic_resource(name) for name in topics]
    for cluster in (source, destination):
        answers = await admin.describe_configs(cluster, resources, ["cleanup.policy"])
        for resource, entries in answers.items():
            if isinstance(entries, Refusal):
                entries.fail("see the configuration", topic=resource.name)
            policy = entries["cleanup.policy"].value or ""
            found[resource.name] = found[resource.name] or "compact" in policy
    return found


def _compare(config: VerifyConfig, tasks: list[VerifyTask]) -> list[Compared]:
    spark = start_spark(config.master, config.spark_conf)
    try:
        return [one for part in map_tasks(spark, verify_task, tasks) for one in part]
    finally:
        stop_spark(spark)
