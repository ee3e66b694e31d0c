"""Further partitions of topics that are named by time: `verify` looks for records there, too.

Each task of a partition of the source compares that partition alone of the topics that it finds
(verify/flow_targets.py). So a record in a partition of such a topic that no record of the source
should go to would be seen by no task:

    source, of one day    t-0: a, b     t-1: nothing
    target                D-0: a, b     D-1: a        the task of t-0 finds D: so look into D-1, too

Partitions that are empty have nothing wrong in them. Each of the others gets a task.
"""

from collections import defaultdict
from collections.abc import Collection
from dataclasses import replace

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.types import TopicPartition
from twinlog.operations.flow_verification import FlowPlan, neighbours_at
from twinlog.verify.flow_targets import EMPTY, is_empty, unexpected
from twinlog.verify.flow_task import FlowCompared, FlowTask
from twinlog.verify.job import Sides
from twinlog.verify.log_reader import read_bounds


async def unexpected_tasks(
    destination: KafkaCluster, plan: FlowPlan, compared: Collection[FlowCompared]
) -> list[FlowTask]:
    """Tasks for partitions where no record should be, of the topics that a flow's tasks have found.

    Args:
        destination: the target.
        plan: of a flow.
        compared: the results of all flows' tasks.

    Raises:
        TwinlogError: the target is unreachable, or refuses.
    """
    finders = {task.pair.source: task for task in plan.tasks if task.finds_topics}
    flows = {task.pair.flow for task in finders.values()}
    pairs = [each.pair for each in compared if each.bounds is not None and each.pair.flow in flows]
    sources = {pair.remote.topic: pair.source.topic for pair in sorted(pairs, reverse=True)}
    if not sources:
        return []
    known = (await destination.refresh(sources)).topics
    partitions = {name: topic.partitions for name, topic in known.items()}
    others = unexpected([pair.remote for pair in pairs], partitions)
    remote_bounds = await read_bounds(destination, others)
    planned = {pair.source for pair in plan.pairs}
    topics: defaultdict[TopicPartition, set[str]] = defaultdict(set)
    for place in others:
        if not is_empty(remote_bounds[place]):
            source = TopicPartition(sources[place.topic], place.partition)
            if source in finders or source not in planned:  # others are reported as not seen
                topics[source].add(place.topic)
    return [
        replace(
            finders.get(source) or _without_source(plan, finders, source),
            only_topics=frozenset(names),
        )
        for source, names in sorted(topics.items())
    ]


def _without_source(
    plan: FlowPlan, finders: dict[TopicPartition, FlowTask], source: TopicPartition
) -> FlowTask:
    """A task for a partition that the source does not have: no record should be there."""
    like = next(task for task in finders.values() if task.pair.source.topic == source.topic)
    remote = like.pair.remote._replace(partition=source.partition)
    return replace(
        like,
        pair=like.pair._replace(source=source, remote=remote),
        bounds=Sides(EMPTY, EMPTY),
        has_source=False,
        neighbours=neighbours_at(plan.routes, plan.neighbours[source.topic], source.partition),
    )
