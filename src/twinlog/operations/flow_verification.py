"""Plans `twinlog verify` for flows, and sums it up (verify/flow_job.py compares).

What a flow claims is read first, then the bounds of the remote logs, then those of the source: so
the remote logs hold all that was claimed, and the source all that they were copied from. A flow may
begin with a partition in between. So where nothing is recorded, that is read again at the end: of
what was copied up to the bounds, something is recorded by then.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.metadata import NO_TOPIC_ID, is_another
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Refusal, UserError
from twinlog.kafka.types import LogBounds, TopicPartition
from twinlog.mirror.flow import begins_at_end, flow_of
from twinlog.mirror.settings import TRANSACTIONAL
from twinlog.operations.flow_claims import FlowClaims, read_claims, unclaimed
from twinlog.operations.flow_routes import TopicRoute, Writer, flow_routes
from twinlog.operations.verification_report import Counts, LogReport, RemoteReport
from twinlog.operations.verified_topics import partitions_of, topic_ids
from twinlog.store.config_records import Mirror, MirrorTopic
from twinlog.verify.flow_job import unseen
from twinlog.verify.flow_targets import EMPTY, Neighbour
from twinlog.verify.flow_task import FlowClaim, FlowCompared, FlowPair, FlowTask
from twinlog.verify.job import RangeDifference, Sides
from twinlog.verify.log_reader import read_bounds
from twinlog.verify.query_job import QuerySource, QueryTask
from twinlog.verify.verdict import Range, Tally

NOTHING_RECORDED: Final = "nothing is recorded, but records were copied"

Bounds = Mapping[FlowPair, Sides[LogBounds]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowPlan:
    """What is to be compared of a flow, and what is known without that.

    A partition of the source has a pair for each topic that its records may go to.
    """

    pairs: Bounds
    tasks: tuple[FlowTask, ...] = ()
    query: QueryTask | None = None
    """Of a flow with a query or function, whose topics it compares."""
    done: tuple[FlowCompared, ...] = ()
    unmapped: frozenset[FlowPair] = frozenset()
    """Those of which no map, or no position, is recorded, and one is due if there are copies."""
    trouble: str | None = None
    """Why the recorded maps could not be read."""
    routes: Mapping[str, TopicRoute] = field(default_factory=dict)
    """Of all topics of the flow."""
    neighbours: Mapping[str, Sequence[MirrorTopic]] = field(default_factory=dict)
    """By topic: others of the flow whose records may go to the same topics."""
    writers: Mapping[str, Collection[Writer]] = field(default_factory=dict)
    """Whose records the target's topics may hold."""


async def plan_flow(
    source: KafkaCluster,
    destination: KafkaCluster,
    mirror: Mirror,
    topics: Sequence[MirrorTopic],
    *,
    all_topics: Sequence[MirrorTopic],
    writers: Mapping[str, Collection[Writer]],
    properties: Mapping[str, str],
    patience: float,
) -> FlowPlan:
    """The partitions of these topics of a flow, and a task for each that can be compared.

    Args:
        source: the flow's source, connected.
        destination: its target.
        mirror: the flow.
        topics: those to compare.
        all_topics: all topics of the flow.
        writers: whose records the target's topics may hold (`writers_of`).
        properties: of the target, for the tasks.
        patience: seconds of retries for an offset without any progress.

    Raises:
        UserError: `verify` cannot apply the flow's transforms, or may not run its query.
        TwinlogError: a cluster is unreachable, or refuses.
    """
    routes = flow_routes(mirror, all_topics)
    if any(route.query for route in routes.values()):
        _check_grant(destination, mirror.name)
    neighbours = _neighbours(routes, topics, all_topics)
    claims = await read_claims(destination, mirror, topics)
    pairs = await _pairs(mirror.name, source, destination, topics, routes)
    remote_bounds = await read_bounds(destination, sorted({pair.remote for pair in pairs}))
    source_bounds = await read_bounds(source, [pair.source for pair in pairs])
    # The ids are read last: a topic that still has its id had it all the time.
    ids = await topic_ids(source, destination, topics)
    target_ids = await _target_ids(destination, pairs)
    by_name = {topic.topic: topic for topic in topics}
    claimed = {
        at: claims.of.get(at) or unclaimed(mirror, by_name[at.topic], at.partition, claims.trouble)
        for at in {pair.source for pair in pairs}
    }
    lacking, trouble = await _lacking(destination, mirror, topics, claims, claimed)
    shares = _shares(pairs, routes, all_topics)
    bounds: dict[FlowPair, Sides[LogBounds]] = {}
    tasks: list[FlowTask] = []
    queried: list[QuerySource] = []
    done: list[FlowCompared] = []
    for pair in pairs:
        topic, route = by_name[pair.source.topic], routes[pair.source.topic]
        side_ids = ids[pair.source.topic]
        claim = claimed[pair.source]
        sides = Sides(source_bounds[pair.source], remote_bounds[pair.remote])
        is_absent = _is_absent(route, sides)
        if is_absent:
            sides = sides._replace(destination=EMPTY)
        if is_only_remote(topic, pair.source.partition, sides) or _is_unused(
            pair, route, sides, writers
        ):
            continue
        in_transactions = mirror.kind == TRANSACTIONAL
        at_end = begins_at_end(flow_of(mirror.source).settings)
        begins_with_map = at_end and not in_transactions and claim.map is not None
        if begins_with_map and not sides.source.error:
            begin = min(claim.begin.source, sides.source.last_stable)
            if (stored := topic.follows_from(pair.source.partition)) is not None:
                begin = min(begin, stored)  # what is behind that was not left out on purpose
            start = max(sides.source.start, begin)
            sides = sides._replace(source=sides.source._replace(start=start))
        bounds[pair] = sides
        is_remote = pair.remote.topic == topic.destination_name
        if is_remote and is_another(topic.destination_topic_id, side_ids.destination):
            done.append(_recreated(pair, sides))
        elif why := (
            _why_mixed(pair, routes, writers)
            or _why_not(topic, side_ids, sides, 0 if route.is_transformed else shares[pair.remote])
        ):
            done.append(unseen(pair, sides, why))
        elif route.query is not None:
            side_ids = side_ids._replace(destination=NO_TOPIC_ID)
            queried.append(QuerySource(pair=pair, topic_ids=side_ids, claim=claim))
        else:
            tasks.append(
                FlowTask(
                    source=mirror.source,
                    destination=properties,
                    cluster_ids=Sides(source.cluster_id, destination.cluster_id),
                    topic_ids=side_ids._replace(destination=target_ids[pair.remote.topic]),
                    pair=pair,
                    bounds=sides,
                    claim=claim,
                    in_transactions=in_transactions,
                    transforms=route.transforms,
                    is_absent=is_absent,
                    neighbours=neighbours_at(
                        routes, neighbours[pair.source.topic], pair.source.partition
                    ),
                    finds_topics=is_remote and route.is_dated,
                    patience=patience,
                )
            )
    return FlowPlan(
        pairs=bounds,
        tasks=tuple(tasks),
        query=_query_task(
            *(source, destination, mirror, all_topics),
            routes=routes,
            compared=queried,
            properties=properties,
            patience=patience,
        ),
        done=tuple(done),
        unmapped=frozenset(pair for pair in bounds if pair.source in lacking),
        trouble=trouble,
        routes=routes,
        neighbours=neighbours,
        writers=writers,
    )


def flow_logs(plan: FlowPlan, compared: Collection[FlowCompared]) -> list[LogReport]:
    """A report for each partition of a flow.

    Offsets that no task reports were not seen, whatever the cause: the counts are the length of
    each log.
    """
    results = {result.pair: result for result in (*plan.done, *compared)}
    sources = {(pair.flow, pair.source.topic) for pair in plan.pairs}
    found: dict[FlowPair, Sides[LogBounds]] = {}
    for result in compared:
        pair, bounds = result.pair, result.bounds
        if bounds is not None and (pair.flow, pair.source.topic) in sources:
            found[pair] = bounds
            if why := _why_mixed(pair, plan.routes, plan.writers):
                results[pair] = unseen(pair, bounds, why)
    return [
        _report(results.get(pair) or unseen(pair, bounds, "no result"), bounds, plan)
        for pair, bounds in {**plan.pairs, **found}.items()
    ]


async def _lacking(
    destination: KafkaCluster,
    mirror: Mirror,
    topics: Sequence[MirrorTopic],
    claims: FlowClaims,
    claimed: Mapping[TopicPartition, FlowClaim],
) -> tuple[Collection[TopicPartition], str | None]:
    """The partitions of which something has to be recorded, and is not; why that is not known.

    Args:
        destination: the flow's target.
        mirror: the flow.
        topics: those to compare.
        claims: what was read before the bounds.
        claimed: the same, or nothing, of each partition.

    Raises:
        TwinlogError: see `read_claims`.
    """
    lacking = [at for at, claim in claimed.items() if claims.lacks(at, claim)]
    if claims.trouble is not None or not lacking:
        return (), claims.trouble
    later = await read_claims(destination, mirror, topics)
    if later.trouble is not None:
        return (), later.trouble
    return [at for at in lacking if later.lacks(at, later.of.get(at, claimed[at]))], None


def _report(result: FlowCompared, bounds: Sides[LogBounds], plan: FlowPlan) -> LogReport:
    source, remote = result.pair.sides
    source_counts = _counted(result.source, bounds.source, result.behind)
    remote_counts = _counted(result.remote, bounds.destination, 0)
    recorded = result.recorded
    recorded_ranges = recorded or Tally()
    differences = [
        *(RangeDifference(source, *span) for span in result.source.differences),
        *(
            RangeDifference(remote, start, end, f"remote log: {reason}")
            for start, end, reason in result.remote.differences
        ),
        *(RangeDifference(source, *span) for span in recorded_ranges.differences),
    ]
    spans = [
        *(RangeDifference(source, *span) for span in result.source.unseen),
        *(
            RangeDifference(remote, start, end, f"remote log: {reason}")
            for start, end, reason in result.remote.unseen
        ),
        *(RangeDifference(source, *span) for span in recorded_ranges.unseen),
    ]
    trouble = plan.trouble
    unmapped = {(pair.flow, pair.source) for pair in plan.unmapped}
    if (result.pair.flow, source) in unmapped and result.remote.compared:
        trouble = NOTHING_RECORDED
    if trouble is not None:
        spans.append(RangeDifference(source, 0, 0, f"recorded map: {trouble}"))
    return LogReport(
        partition=source,
        counts=source_counts,
        differences=tuple(differences),
        unseen=tuple(spans),
        remote=RemoteReport(
            flow=result.pair.flow,
            partition=remote,
            counts=remote_counts,
            recorded_map=None
            if recorded is None
            else Counts(
                compared=recorded.compared, differs=recorded.differs, not_seen=recorded.not_seen
            ),
        ),
    )


def _counted(tally: Tally, bounds: LogBounds, behind: int) -> Counts:
    """The counts of a log; offsets without a class are named as not seen."""
    length = 0 if bounds.error else max(bounds.last_stable - bounds.start, tally.length + behind)
    unclassified = length - tally.length - behind
    if unclassified > 0:
        reason = f"{unclassified} not classified"
        tally.unseen.append(Range(bounds.start, bounds.last_stable, reason))
        tally.not_seen += unclassified
    return Counts(
        compared=tally.compared,
        differs=tally.differs,
        absent=tally.absent,
        not_seen=tally.not_seen,
        behind=behind,
    )


async def _pairs(
    flow: str,
    source: KafkaCluster,
    destination: KafkaCluster,
    topics: Sequence[MirrorTopic],
    routes: Mapping[str, TopicRoute],
) -> list[FlowPair]:
    """The partitions of these topics, each with all that its records may go to.

    The remote topic is always one of them, also if nothing may be in it; and so are partitions of a
    target that neither the source nor the remote topic has.
    """
    partitions = await partitions_of(source, destination, topics)
    counts = Counter(partition.topic for partition in partitions)
    names = {topic.topic: topic.destination_name for topic in topics}
    targets = {name: routes[name].targets | {remote} for name, remote in names.items()}
    found = (await destination.refresh(set().union(*targets.values()))).topics
    return [
        FlowPair(flow, TopicPartition(name, index), TopicPartition(target, index))
        for name in names
        for target in sorted(targets[name])
        for index in range(
            max(counts[name], len(found[target].partitions) if target in found else 0)
        )
    ]


async def _target_ids(destination: KafkaCluster, pairs: Collection[FlowPair]) -> dict[str, UUID]:
    """The ids of the target's topics; `NO_TOPIC_ID` for one that does not exist."""
    names = {pair.remote.topic for pair in pairs}
    found = (await destination.refresh(names)).topics
    return {name: found[name].topic_id if name in found else NO_TOPIC_ID for name in names}


def _is_absent(route: TopicRoute, bounds: Sides[LogBounds]) -> bool:
    """Whether a partition is not there that transforms may route records to.

    It is created with the first record. So its absence is no difference, and is no evidence either.
    """
    unknown = bounds.destination.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return route.is_transformed and unknown


def _is_unused(
    pair: FlowPair,
    route: TopicRoute,
    bounds: Sides[LogBounds],
    writers: Mapping[str, Collection[Writer]],
) -> bool:
    """Whether all records of a topic are routed elsewhere, and its remote partition is empty.

    One that holds records of other topics is compared with these. With the remote topic's partition
    those are compared that are named by time.
    """
    if route.is_dated or not route.targets or pair.remote.topic in route.targets:
        return False
    remote = bounds.destination
    is_empty = not remote.error and remote.start == remote.high_watermark
    return is_empty or bool(writers.get(pair.remote.topic))


def _check_grant(destination: KafkaCluster, flow: str) -> None:
    """Refuse to run a flow's query or function here, unless that is allowed.

    Raises:
        UserError: the target's configuration does not grant it.
    """
    try:
        destination.config.grants.check_dataframes()
    except UserError as error:
        raise UserError(
            f"verify has to run the query or function of flow {flow}: {error.message}",
            hint=error.hint,
        ) from error


def _query_task(
    source: KafkaCluster,
    destination: KafkaCluster,
    mirror: Mirror,
    all_topics: Iterable[MirrorTopic],
    *,
    routes: Mapping[str, TopicRoute],
    compared: Sequence[QuerySource],
    properties: Mapping[str, str],
    patience: float,
) -> QueryTask | None:
    """The comparison of a flow with a query; None: there is nothing to compare.

    The other partitions of the flow are needed as well: their records may go anywhere.
    """
    transform = next((route.query for route in routes.values() if route.query is not None), None)
    if transform is None or not compared:
        return None
    known = {one.pair.source for one in compared}
    others = [
        QuerySource(
            pair=FlowPair(mirror.name, name.source, topic.on_destination(name)),
            topic_ids=Sides(topic.topic_id, NO_TOPIC_ID),
            claim=FlowClaim(),
            is_compared=False,
        )
        for topic in all_topics
        for name in topic.mirror_partitions
        if routes[topic.topic].query is not None and name.source not in known
    ]
    return QueryTask(
        flow=mirror.name,
        source=mirror.source,
        destination=properties,
        cluster_ids=Sides(source.cluster_id, destination.cluster_id),
        transform=transform,
        sources=(*compared, *others),
        patience=patience,
    )


def _neighbours(
    routes: Mapping[str, TopicRoute],
    topics: Iterable[MirrorTopic],
    all_topics: Iterable[MirrorTopic],
) -> Mapping[str, Sequence[MirrorTopic]]:
    """By topic: the other transformed topics of a flow that may have a target in common with it.

    Where topics are named by time, all others may: a later transform can send a year's topics of
    all of them to one.
    """
    transformed = sorted(
        (topic for topic in all_topics if routes[topic.topic].transforms is not None),
        key=lambda topic: topic.topic,
    )
    neighbours: dict[str, Sequence[MirrorTopic]] = {}
    for topic in topics:
        route = routes[topic.topic]
        neighbours[topic.topic] = [
            other
            for other in transformed
            if other.topic != topic.topic
            and (route.is_dated or route.targets & routes[other.topic].targets)
        ]
    return neighbours


def neighbours_at(
    routes: Mapping[str, TopicRoute], topics: Iterable[MirrorTopic], partition: int
) -> tuple[Neighbour, ...]:
    """The partitions of neighbours whose records may go to the same partitions as this one's."""
    return tuple(
        Neighbour(
            source=TopicPartition(topic.topic, partition),
            topic_id=topic.topic_id,
            remote=transforms.topic,
        )
        for topic in topics
        if partition < topic.partitions
        and (transforms := routes[topic.topic].transforms) is not None
    )


def _why_mixed(
    pair: FlowPair, routes: Mapping[str, TopicRoute], writers: Mapping[str, Collection[Writer]]
) -> str | None:
    """Why a log cannot be judged that records are routed to; None: it can.

    What other topics of the same flow have there is known, if transforms route them.
    """
    if not routes[pair.source.topic].is_transformed:
        return None
    others = sorted(
        writer
        for writer in writers.get(pair.remote.topic, ())
        if writer.flow != pair.flow
        or writer.topic not in routes
        or not routes[writer.topic].is_transformed
    )
    if not others:
        return None
    names = ", ".join(f"{other.topic} of flow {other.flow}" for other in others)
    return f"records of {names} go to {pair.remote.topic}, too, and cannot be told from its own"


def _shares(
    pairs: Iterable[FlowPair],
    routes: Mapping[str, TopicRoute],
    all_topics: Iterable[MirrorTopic],
) -> Counter[TopicPartition]:
    """How many partitions of the source are copied to each remote one.

    Those that are not compared count, too, as do removed ones: their records are in the log.
    """
    targets = {
        (pair.source, pair.remote)
        for pair in pairs
        if pair.remote.topic in routes[pair.source.topic].targets
    }
    others = {
        (name.source, topic.on_destination(name))
        for topic in all_topics
        if not routes[topic.topic].is_transformed
        for name in topic.mirror_partitions
    }
    return Counter(remote for _, remote in targets | others)


def _why_not(
    topic: MirrorTopic, ids: Sides[UUID], bounds: Sides[LogBounds], shares: int
) -> str | None:
    """Why a partition cannot be compared; None: it can."""
    unread = [
        f"{side}: {Refusal(of_side.error)}"
        for side, of_side in zip(("source", "destination"), bounds, strict=True)
        if of_side.error
    ]
    if unread:
        return f"cannot read the bounds: {'; '.join(unread)}"
    if is_another(topic.topic_id, ids.source):
        return "source: the topic was deleted and recreated, and is not copied yet"
    if shares > 1:
        return f"{shares} partitions of the source are copied to the same remote partition"
    return None


def _recreated(pair: FlowPair, bounds: Sides[LogBounds]) -> FlowCompared:
    """The result for a remote topic that is another one than the flow has written to."""
    result = unseen(pair, bounds, "destination: the topic was deleted and recreated")
    result.remote = Tally()
    if not bounds.destination.error:
        start, end = bounds.destination.start, bounds.destination.last_stable
        result.remote.differ(start, end, "the topic was deleted and recreated")
    return result


def is_only_remote(topic: MirrorTopic, partition: int, bounds: Sides[LogBounds]) -> bool:
    """Whether only the remote topic has a partition, and nobody has written to it."""
    source, remote = bounds
    return (
        partition >= topic.partitions
        and source.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        and not remote.error
        and remote.start == remote.high_watermark
    )
