"""The two ports on real brokers (see `ports.py` for what each method promises).

A broker answers the requests of one connection in order, so there are several connections:

- each fetcher has its own, since a Fetch may wait;
- Produce has its own (`node_writer.py`);
- short requests and transactions use the client's control connection;
- reads without a session, and WriteTxnMarkers, may be large and have one each.

A request that writes checks the lease immediately before its bytes are handed over, at each
attempt. The connection has to discard what the kernel still holds then: the destination's
`ClusterConfig.user_timeout` has to be set, to less than the lease.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from twinlog.engines.destination.node_writer import Answers, NodeWriter
from twinlog.engines.ports import (
    ANSWERED_EACH,
    WHOLE_TOPIC,
    ActiveProducers,
    Batch,
    FetchResult,
    LeaderReport,
    LogEnd,
    MarkerRequest,
    Markers,
    ProducerIdentity,
)
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.metadata import Leader, Metadata, is_another
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import (
    LEFT_OUT,
    Disconnected,
    Fenced,
    ProtocolError,
    Refusal,
    Retriable,
    TwinlogError,
    UserError,
    check,
)
from twinlog.kafka.log_reader import ClusterLogs, ReadAlone
from twinlog.kafka.protocol.fetch import READ_COMMITTED, Fetched, FetchResponse
from twinlog.kafka.protocol.markers import Marker
from twinlog.kafka.requests import partitions as questions
from twinlog.kafka.requests import transactions
from twinlog.kafka.requests.fetch_requests import FetchRequests, Limits
from twinlog.kafka.requests.fetch_session import SESSION_ERRORS, FetchSession
from twinlog.kafka.requests.partitions import (
    DEBUGGING,
    PATIENCE,
    Isolation,
)
from twinlog.kafka.requests.topic_keys import TopicKeys
from twinlog.kafka.requests.topics import absent_everywhere
from twinlog.kafka.types import (
    UNKNOWN_EPOCH,
    FetchPosition,
    LeaderEpoch,
    LogBounds,
    TopicPartition,
)

log = logging.getLogger(__name__)

MAX_MARKERS: Final = 10_000
"""Markers of one WriteTxnMarkers request, which takes half a second on 4.3.1."""

_MARKERS_LANE: Final = "markers"
_TRIES: Final = 3
_OF_A_TOPIC: Final = frozenset(
    {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.TOPIC_AUTHORIZATION_FAILED}
)
"""UNKNOWN_TOPIC_OR_PARTITION, TOPIC_AUTHORIZATION_FAILED."""

_Plan: TypeAlias = tuple[ProducerIdentity, Markers]
"""The control records that a partition still needs, and their producer."""
_Wanted: TypeAlias = dict[TopicPartition, _Plan]


class KafkaSource:
    """`SourcePort` on a started cluster."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster
        self._requests = FetchRequests(cluster, pinned=True)
        self._logs = ClusterLogs(cluster, self._requests)
        self._sessions: dict[tuple[int, int], FetchSession] = {}
        self._generation = 0  # of the topic keys that the sessions use

    async def leaders(self, topics: Collection[str]) -> Mapping[TopicPartition, LeaderReport]:
        """Refresh and return the leaders of all partitions of these topics.

        Later fetches use the topic ids of this answer, so they never return data of a recreated
        topic.
        """
        return _leaders(await self._requests.refresh(topics), topics)

    async def fetch(
        self,
        node: int,
        positions: Mapping[TopicPartition, FetchPosition],
        *,
        max_wait_ms: int,
        max_bytes: int,
        partition_max_bytes: int,
        fetcher: int = 0,
    ) -> FetchResult:
        """Read each wanted partition from its position, up to its last stable offset."""
        topic_errors = await self._requests.unknown(positions)
        if topic_errors:
            positions = {p: position for p, position in positions.items() if p not in topic_errors}
            max_wait_ms = 0  # missing partitions are reported at once
        if not positions:
            await asyncio.sleep(max_wait_ms / 1000)
            return FetchResult(topic_errors, 0)
        limits = Limits(READ_COMMITTED, max_wait_ms, max_bytes, partition_max_bytes)
        for _ in range(_TRIES):
            response, size = await self._fetch(node, fetcher, positions, limits)
            if response.error not in SESSION_ERRORS:
                break
        check(response.error, f"fetch from node {node}")
        news = response.partitions
        return FetchResult(
            {**news, **topic_errors} if topic_errors else news, size, response.throttle_ms
        )

    def round_trip_s(self, node: int) -> float:
        """Seconds of a round trip to this broker; 0 if none is known."""
        return self._cluster.round_trip_s(node)

    async def _fetch(
        self,
        node: int,
        fetcher: int,
        positions: Mapping[TopicPartition, FetchPosition],
        limits: Limits,
    ) -> tuple[FetchResponse, int]:
        """Send one request in the session. After any error the next request begins a new one."""
        connection = await self._cluster.connection(node, f"fetch.{fetcher}")
        await connection.ready()
        if self._generation != self._requests.generation:
            self._generation = self._requests.generation
            for other in self._sessions.values():
                other.renew()
        session = self._sessions.setdefault((node, fetcher), FetchSession())
        ask = session.ask(positions, limits.partition_max_bytes)
        success = False
        try:
            response, size = await self._requests.exchange(
                connection, ask.partitions, ask.forgotten, (ask.session_id, ask.epoch), limits
            )
            success = not response.error
        finally:
            if success:
                session.answered(response.session_id)
            else:
                session.renew()
        return response, size

    async def read(
        self, partitions: Mapping[TopicPartition, int], *, partition_max_bytes: int
    ) -> Mapping[TopicPartition, Fetched]:
        """Read at these offsets, without a session (read_committed, no waiting)."""
        return await self._logs.read(partitions, partition_max_bytes=partition_max_bytes)

    async def read_alone(
        self,
        partition: TopicPartition,
        offset: int,
        *,
        max_wait_ms: int,
        partition_max_bytes: int,
        last_epoch: LeaderEpoch = UNKNOWN_EPOCH,
    ) -> ReadAlone:
        """Read this partition by a request of its own, from the leader (read_committed)."""
        return await self._logs.read_alone(
            partition,
            offset,
            max_wait_ms=max_wait_ms,
            partition_max_bytes=partition_max_bytes,
            last_epoch=last_epoch,
        )

    async def compacts(self, topics: Collection[str]) -> Mapping[str, bool | None]:
        """Whether each topic's cleanup.policy contains `compact`; None where it cannot be read."""
        return await self._logs.compacts(topics)

    async def bounds(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, LogBounds]:
        """Read log start offsets, high watermarks and last stable offsets."""
        return await self._logs.bounds(partitions)


class KafkaDestination:
    """`DestinationPort` on a started cluster.

    `may_write` is called before each request that writes; if it returns False, the request ends in
    Fenced, and it was not sent.

    Batches carry the topic id of the last answer of `leaders` (Kafka 4.1; older brokers know topics
    by name only), so a recreated topic refuses them. Requests that read use the newest metadata.
    """

    def __init__(self, cluster: KafkaCluster, may_write: Callable[[], bool]) -> None:
        self._cluster = cluster
        self._may_write = may_write
        self._topic_keys = TopicKeys()
        requests = FetchRequests(cluster, pinned=False)
        self._logs = ClusterLogs(cluster, requests, Isolation.READ_UNCOMMITTED)
        self._committed = ClusterLogs(cluster, requests)
        self._writers: dict[int, NodeWriter] = {}

    async def leaders(self, topics: Collection[str]) -> Mapping[TopicPartition, LeaderReport]:
        """Refresh and return the leaders of these topics; `produce` uses the ids of this answer."""
        metadata = await self._cluster.refresh(topics)
        self._topic_keys.learn(metadata, topics)
        return _leaders(metadata, topics)

    def appends_to(self, topic: str, topic_id: UUID | None) -> bool:
        """See `DestinationPort.appends_to`."""
        return not is_another(topic_id, self._topic_keys.topic_id(topic))

    def produce(self, node: int, batches: Sequence[Batch]) -> asyncio.Future[Answers]:
        """Append one batch to each of these partitions, all led by `node`, with acks=all.

        Call `leaders` for the topics first: a topic that the metadata does not have is refused.
        """
        self._topic_keys.learn(self._cluster.metadata, ())
        writer = self._writers.get(node)
        if writer is None:
            writer = NodeWriter(self._cluster, node, self._topic_keys, self._permit)
            self._writers[node] = writer
        return writer.send(batches)

    async def log_ends(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, LogEnd]:
        """Log end offsets (ListOffsets as replica -2, of the leaders)."""
        partition_list = list(partitions)  # a mapping would be taken for one of timestamps
        answers = await questions.list_offsets(
            self._cluster, partition_list, replica_id=DEBUGGING, patience=PATIENCE
        )
        return {
            p: LogEnd(answer.code, -1, -1)
            if isinstance(answer, Refusal)
            else LogEnd(0, answer.offset, answer.leader_epoch)
            for p, answer in answers.items()
        }

    async def bounds(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, LogBounds]:
        """Read log start offsets, high watermarks and last stable offsets."""
        return await self._logs.bounds(partitions)

    async def producers(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, ActiveProducers]:
        """Read the producers that the leaders remember (DescribeProducers)."""
        answers = await questions.describe_producers(self._cluster, partitions, patience=PATIENCE)
        return {
            p: ActiveProducers(answer.code, ())
            if isinstance(answer, Refusal)
            else ActiveProducers(0, answer)
            for p, answer in answers.items()
        }

    async def read(
        self, partitions: Mapping[TopicPartition, int], *, partition_max_bytes: int
    ) -> Mapping[TopicPartition, Fetched]:
        """Read at these offsets, aborted data included (read_uncommitted)."""
        return await self._logs.read(partitions, partition_max_bytes=partition_max_bytes)

    async def read_alone(
        self,
        partition: TopicPartition,
        offset: int,
        *,
        max_wait_ms: int,
        partition_max_bytes: int,
        committed: bool = False,
    ) -> ReadAlone:
        """See `DestinationPort.read_alone`."""
        logs = self._committed if committed else self._logs
        return await logs.read_alone(
            partition, offset, max_wait_ms=max_wait_ms, partition_max_bytes=partition_max_bytes
        )

    async def absent(self, topics: Collection[str]) -> Collection[str]:
        """The topics that, by the metadata of every broker, do not exist."""
        await self._cluster.refresh(topics)  # a broker that has died is not asked
        return await absent_everywhere(self._cluster, topics)

    async def lacking_replicas(
        self, partitions: Collection[TopicPartition]
    ) -> Collection[TopicPartition]:
        """Those that have fewer in-sync replicas than min.insync.replicas, as far as is known.

        Brokers require no more replicas than a partition has.
        """
        topics = {partition.topic for partition in partitions}
        try:
            metadata, minimums = await asyncio.gather(
                self._cluster.refresh(topics), self._logs.min_insync_replicas(topics)
            )
        except TwinlogError as error:  # then a fence may wait
            log.info("min.insync.replicas cannot be compared now: %s", error)
            return ()
        lacking: list[TopicPartition] = []
        for partition in partitions:
            topic, minimum = metadata.topics.get(partition.topic), minimums[partition.topic]
            state = None if topic is None else topic.partitions.get(partition.partition)
            if state is None or minimum is None:
                continue
            if len(state.isr) < min(minimum, len(state.replicas)):
                lacking.append(partition)
        return lacking

    async def init_producer(self, transactional_id: str) -> ProducerIdentity:
        """Run InitProducerId; wait while the coordinator loads, moves, or ends a transaction."""
        identity = await transactions.init_producer_id(
            self._cluster, transactional_id, before_send=self._permit
        )
        return ProducerIdentity(transactional_id, identity.producer_id, identity.epoch)

    async def empty_transaction(
        self, producer: ProducerIdentity, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        """Write one control record to each of these partitions, some time after the answer.

        A broker that refuses one partition adds none of them and opens no transaction: the others
        are requested again without it. If all are refused there is no transaction to end. EndTxn
        can be retried: a committed transaction can be committed again.

        Returns:
            An error code for each; a refused partition gets no control record.

        Raises:
            Fenced: the id has a newer epoch, or the lane may not write.
            Disconnected: whether control records will be written is unknown.
            UserError, Retriable: it was refused for all, and no control record will be written.
        """
        codes = dict.fromkeys(partitions, 0)
        while pending := [p for p, code in codes.items() if not code]:
            refusals = await self._add(producer, pending)
            if not refusals:
                await self._commit(producer)
                break
            codes |= refusals
        return codes

    async def _add(
        self, producer: ProducerIdentity, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        """Open a transaction of these; return refused partitions, with which none is open."""
        name, identity = producer.transactional_id, transactions.ProducerId(*producer[1:])
        try:
            answers = await transactions.add_partitions_to_txn(
                self._cluster, name, identity, partitions, before_send=self._permit
            )
        except (Retriable, ProtocolError) as error:
            raise Disconnected(str(error), cluster=self._cluster.name) from error
        return _refused(answers)

    async def _commit(self, producer: ProducerIdentity) -> None:
        """End the open transaction."""
        name, identity = producer.transactional_id, transactions.ProducerId(*producer[1:])
        try:
            await transactions.end_txn(
                self._cluster, name, identity, commit=True, before_send=self._permit
            )
        except (Retriable, ProtocolError) as error:
            raise Disconnected(str(error), cluster=self._cluster.name) from error

    async def write_markers(
        self,
        requests: Sequence[MarkerRequest],
        *,
        committed: bool = False,
        node: int | None = None,
    ) -> Mapping[TopicPartition, int]:
        """Write control records of several producer ids at once; return error codes.

        13 NETWORK_EXCEPTION: how many were written is unknown. 35 UNSUPPORTED_VERSION: the brokers
        do not have WriteTxnMarkers, and none was written.
        """
        wanted: _Wanted = {
            partition: (request.producer, markers)
            for request in requests
            for partition, markers in request.partitions.items()
        }
        if node is not None:
            metadata = self._cluster.metadata
            misrouted = [p for p in wanted if not metadata.leads(node, p)]
            for p in misrouted:
                del wanted[p]
            codes = await self._write_markers(node, wanted, committed)
            return codes | dict.fromkeys(misrouted, int(ErrorCode.NOT_LEADER_OR_FOLLOWER))

        async def ask(node: int, part: questions.Asked[_Plan]) -> questions.Answers[int]:
            codes = await self._write_markers(
                node, {p: plan for p, (_, plan) in part.items()}, committed
            )
            return dict(codes)

        answers = await questions.by_leader(self._cluster, wanted, ask, tries=1)
        return {
            p: result.code if isinstance(result, Refusal) else result
            for p, result in answers.items()
        }

    async def _write_markers(
        self, node: int, wanted: _Wanted, committed: bool
    ) -> dict[TopicPartition, int]:
        """Send the markers of `ANSWERED_EACH` or fewer in requests of their own (`ports.py`).

        These go at once, with the first request for those that need more. The rest follows in
        sequence; a refused partition gets no more.
        """
        codes = dict.fromkeys(wanted, 0)
        many = {p: plan for p, plan in wanted.items() if plan[1].number > ANSWERED_EACH}
        few = {p: plan for p, plan in wanted.items() if p not in many} if many else wanted
        requests = _answered_each(few, committed)
        try:
            while requests or many:
                if many:
                    request, many = _as_many_as_fit(many, committed)
                    requests.append(request)
                answers = await transactions.write_txn_markers(
                    self._cluster,
                    node,
                    [request.markers for request in requests],
                    lane=_MARKERS_LANE,
                    before_send=self._permit,
                )
                for request, answer in zip(requests, answers, strict=True):
                    for p in request.partitions:
                        results = answer.get(wanted[p][0].producer_id, {})
                        codes[p] = codes[p] or results.get(p, LEFT_OUT.code)
                requests = []
                many = {p: plan for p, plan in many.items() if not codes[p]}
        except (Retriable, ProtocolError):
            return dict.fromkeys(wanted, int(ErrorCode.NETWORK_EXCEPTION))
        except UserError as error:
            if error.code != ErrorCode.UNSUPPORTED_VERSION:
                raise
            return dict.fromkeys(wanted, int(ErrorCode.UNSUPPORTED_VERSION))
        return codes

    async def delete_records(
        self, before: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, int]:
        """Move log start offsets up to these; return error codes."""
        answers = await questions.delete_records(
            self._cluster, before, patience=PATIENCE, before_send=self._permit
        )
        return {p: _code(answer) for p, answer in answers.items()}

    def _permit(self) -> None:
        """Raise Fenced if the lane may not write any more."""
        if not self._may_write():
            raise Fenced("not sent: the lease has ended", cluster=self._cluster.name)


def _leaders(metadata: Metadata, topics: Collection[str]) -> Mapping[TopicPartition, LeaderReport]:
    leaders: dict[TopicPartition, LeaderReport] = {}
    for name in topics:
        topic = metadata.topics.get(name)
        if topic is None:
            continue
        if topic.error and not topic.partitions:
            whole = TopicPartition(name, WHOLE_TOPIC)
            leaders[whole] = LeaderReport(-1, -1, topic.topic_id, topic.error)
        for index in topic.partitions:
            partition = TopicPartition(name, index)
            leader = metadata.leader(partition)
            if isinstance(leader, Leader):
                leaders[partition] = LeaderReport(leader.node_id, leader.epoch, topic.topic_id)
            else:
                leaders[partition] = LeaderReport(-1, -1, topic.topic_id, leader.code)
    return leaders


class _WriteRequest(NamedTuple):
    """A WriteTxnMarkers request, and the partitions that it is about."""

    partitions: Collection[TopicPartition]
    markers: list[Marker]


def _answered_each(wanted: _Wanted, committed: bool) -> list[_WriteRequest]:
    """Requests with one control record of each partition at most."""
    requests: list[_WriteRequest] = []
    while wanted:
        requests.append(_WriteRequest(wanted, _one_marker_each(wanted, committed)))
        wanted = _without_one_each(wanted)
    return requests


def _as_many_as_fit(wanted: _Wanted, committed: bool) -> tuple[_WriteRequest, _Wanted]:
    """A request of a bounded size, with several control records of a partition; and the rest."""
    partitions, markers, room = wanted.keys(), list[Marker](), MAX_MARKERS
    while wanted and (room >= len(wanted) or not markers):
        markers += _one_marker_each(wanted, committed)
        room -= len(wanted)
        wanted = _without_one_each(wanted)
    return _WriteRequest(partitions, markers), wanted


def _without_one_each(wanted: _Wanted) -> _Wanted:
    """What is left after one control record of each partition."""
    return {
        p: (producer, markers._replace(number=markers.number - 1))
        for p, (producer, markers) in wanted.items()
        if markers.number > 1
    }


def _one_marker_each(wanted: _Wanted, committed: bool) -> list[Marker]:
    """One control record for each partition, grouped by producer and coordinator epoch."""
    groups: defaultdict[tuple[int, int, int], list[TopicPartition]] = defaultdict(list)
    for partition, (producer, (number, before, last)) in wanted.items():
        epoch = before if number > 1 else last
        groups[producer.producer_id, producer.epoch, epoch].append(partition)
    # The last entry is the one whose partitions are least likely to be gone (`marker_writer.send`).
    return [
        Marker(producer_id, producer_epoch, group, committed, epoch)
        for (producer_id, producer_epoch, epoch), group in sorted(
            groups.items(), key=lambda item: len(item[1])
        )
    ]


def _code(answer: object) -> int:
    return answer.code if isinstance(answer, Refusal) else 0


def _refused(answers: Mapping[TopicPartition, Refusal | None]) -> dict[TopicPartition, int]:
    """The partitions that are refused individually; the others have code 55, or were added.

    A broker checks the topic of each partition first (29, 3). Its coordinator refuses all of them
    or none; such a refusal is raised.
    """
    codes = {p: answer.code for p, answer in answers.items() if answer is not None}
    refusals = {p: code for p, code in codes.items() if code != ErrorCode.OPERATION_NOT_ATTEMPTED}
    each_alone = len(refusals) < len(codes) or _OF_A_TOPIC.issuperset(refusals.values())
    if codes and not (refusals and each_alone):
        Refusal(min((refusals or codes).values())).fail("add partitions to a transaction")
    return refusals
