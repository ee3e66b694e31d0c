"""The two ports of `twinlog.engines.ports` on the model, over its network.

A port belongs to one client (a process); its connections die with the client. This port does what
the real port does by itself, such as retrying while a coordinator is busy. What the real port
passes to the engine (Disconnected, error codes), this one passes on as the model's network gives
it.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar
from uuid import UUID

from model.cluster import (
    NOT_LEADER,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_OR_PARTITION,
    Cluster,
    control_records,
)
from model.coordinator import CONCURRENT_TRANSACTIONS
from model.log import Marker
from model.network import Network
from twinlog.engines.ports import (
    ANSWERED_EACH,
    ActiveProducers,
    Appended,
    Batch,
    FetchResult,
    LeaderReport,
    LogEnd,
    MarkerRequest,
    ProducerIdentity,
)
from twinlog.kafka.errors import Disconnected, Fenced, Refusal, Retriable
from twinlog.kafka.log_reader import ReadAlone
from twinlog.kafka.protocol.fetch import Fetched
from twinlog.kafka.types import (
    UNKNOWN_EPOCH,
    FetchPosition,
    LeaderEpoch,
    LogBounds,
    Offset,
    TopicPartition,
)

T = TypeVar("T")

CALL_SECONDS: Final = 30.0
RETRY_SECONDS: Final = 0.02
_OF_A_TOPIC: Final = frozenset({UNKNOWN_TOPIC_OR_PARTITION, TOPIC_AUTHORIZATION_FAILED})


class _Client:
    """The common part of both ports."""

    def __init__(self, cluster: Cluster, network: Network, name: str) -> None:
        self.cluster = cluster
        self.network = network
        self.name = name
        self._ids: dict[str, UUID] = {}

    async def leaders(self, topics: Collection[str]) -> Mapping[TopicPartition, LeaderReport]:
        """Ask any broker for Metadata; later requests name topics by the ids seen last."""
        node = self.network.rng.choice(self.cluster.nodes)
        wanted = frozenset(topics)
        result: Mapping[TopicPartition, LeaderReport] = await self.network.send_alone(
            self.name, node, lambda: self.cluster.metadata(wanted)
        )
        for key, leader in result.items():
            self._ids[key.topic] = leader.topic_id
        return result

    async def ask(
        self,
        partitions: Collection[TopicPartition],
        answer: Callable[[TopicPartition], T],
        failed: Callable[[int], T],
    ) -> Mapping[TopicPartition, T]:
        """Ask each partition's leader; an unreachable leader's partitions get NETWORK_EXCEPTION."""
        by_node: defaultdict[int, list[TopicPartition]] = defaultdict(list)
        for key in sorted(partitions):
            by_node[self._leader(key)].append(key)
        results: dict[TopicPartition, T] = {}
        requests = [(node, keys, self._one(node, keys, answer)) for node, keys in by_node.items()]
        for node, keys, request in requests:
            if node < 0:
                results.update((key, failed(NOT_LEADER)) for key in keys)
                request.cancel()
                continue
            try:
                results.update(await request)
            except Disconnected:
                results.update((key, failed(13)) for key in keys)
        return results

    def _leader(self, key: TopicPartition) -> int:
        try:
            return self.cluster.partition(key).leader
        except KeyError:
            return self.cluster.nodes[0]

    def _one(
        self, node: int, keys: Sequence[TopicPartition], answer: Callable[[TopicPartition], T]
    ) -> "asyncio.Future[Mapping[TopicPartition, T]]":
        if node < 0:
            return asyncio.get_running_loop().create_future()
        return self.network.send_alone(self.name, node, lambda: {key: answer(key) for key in keys})

    async def bounds(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, LogBounds]:
        """Send ListOffsets as a consumer."""
        return await self.ask(
            partitions, self.cluster.bounds, lambda code: LogBounds(code, -1, -1, -1)
        )

    async def _read(
        self,
        partitions: Mapping[TopicPartition, int],
        partition_max_bytes: int,
        *,
        committed: bool,
        last_epoch: LeaderEpoch = UNKNOWN_EPOCH,
    ) -> Mapping[TopicPartition, Fetched]:
        cluster = self.cluster
        asked = dict(partitions)  # the request is sent: the caller may change its mapping
        known = dict(self._ids) if committed else {}  # the destination is read by topic name
        return await self.ask(
            asked,
            lambda key: cluster.fetch(
                key,
                FetchPosition(Offset(asked[key]), last_epoch),
                partition_max_bytes,
                committed=committed,
                topic_id=known.get(key.topic),
            ),
            lambda code: Fetched(code, -1, -1, -1, (), memoryview(b"")),
        )


def _marker_requests(
    partitions: Mapping[TopicPartition, list[Marker]],
) -> list[dict[TopicPartition, list[Marker]]]:
    """The requests of a call: up to `ANSWERED_EACH` markers of a partition are in one each."""
    many = {key: markers for key, markers in partitions.items() if len(markers) > ANSWERED_EACH}
    few = {key: markers for key, markers in partitions.items() if key not in many}
    rounds = [
        {key: [markers[at]] for key, markers in few.items() if len(markers) > at}
        for at in range(ANSWERED_EACH)
    ]
    return [part for part in (*rounds, many) if part]


class ModelSource(_Client):
    """SourcePort."""

    def round_trip_s(self, node: int) -> float:
        """A round trip as long as the cluster says, whatever its network does."""
        del node
        return self.cluster.round_trip_s

    async def fetch(
        self,
        node: int,
        wanted: Mapping[TopicPartition, FetchPosition],
        *,
        max_wait_ms: int,
        max_bytes: int,
        partition_max_bytes: int,
        fetcher: int = 0,
    ) -> FetchResult:
        """Fetch read_committed; wait at the broker while there is no data."""
        asked = dict(wanted)
        known = dict(self._ids)
        cluster = self.cluster
        deadline = cluster.loop.time() + max_wait_ms / 1000

        def look() -> FetchResult:
            return self._fetch_now(node, asked, known, max_bytes, partition_max_bytes)

        def handle() -> object:
            if throttle_ms := cluster.unusual.throttle_ms():
                return FetchResult({}, 0, throttle_ms)
            found = look()
            if _has_news(found):
                return found
            answer: asyncio.Future[FetchResult] = cluster.loop.create_future()
            self._wait_for_data(answer, look, deadline)
            return answer

        result: FetchResult = await self.network.send(self.name, node, f"fetch {fetcher}", handle)
        return result

    def _wait_for_data(
        self,
        answer: "asyncio.Future[FetchResult]",
        look: Callable[[], FetchResult],
        deadline: float,
    ) -> None:
        """Fetch again whenever any high watermark has moved, until the deadline."""
        loop = self.cluster.loop

        def finish() -> None:
            if not answer.done():
                answer.set_result(look())

        def changed(_: object) -> None:
            if answer.done():
                return
            found = look()
            if _has_news(found):
                answer.set_result(found)
            else:
                watch()

        def watch() -> None:
            future: asyncio.Future[None] = loop.create_future()
            future.add_done_callback(changed, context=loop.outside)
            self.cluster.changed.append(future)

        watch()
        loop.later(max(0.0, deadline - loop.time()), finish)

    def _fetch_now(
        self,
        node: int,
        wanted: Mapping[TopicPartition, FetchPosition],
        ids: Mapping[str, UUID],
        max_bytes: int,
        partition_max_bytes: int,
    ) -> FetchResult:
        left = max_bytes
        size = 0
        partitions: dict[TopicPartition, Fetched] = {}
        for key, position in wanted.items():
            found = self.cluster.fetch(
                key,
                position,
                min(left, partition_max_bytes) if left > 0 else 0,
                committed=True,
                node=node,
                topic_id=ids.get(key.topic),
            )
            if left <= 0 and not found.error:
                found = found._replace(records=memoryview(b""))
            if not found.error and not self.cluster.is_follower(key, node):
                log = self.cluster.log(key)
                found = self.cluster.unusual.alter(key, position.offset, log, found)
            left -= len(found.records)
            size += len(found.records)
            partitions[key] = found
        return FetchResult(partitions, size)

    async def read(
        self, partitions: Mapping[TopicPartition, int], *, partition_max_bytes: int
    ) -> Mapping[TopicPartition, Fetched]:
        """Fetch without a session, read_committed."""
        found = await self._read(partitions, partition_max_bytes, committed=True)
        return {
            key: one
            if one.error
            else self.cluster.unusual.alter(key, partitions[key], self.cluster.log(key), one)
            for key, one in found.items()
        }

    async def read_alone(
        self,
        partition: TopicPartition,
        offset: int,
        *,
        max_wait_ms: int,
        partition_max_bytes: int,
        last_epoch: LeaderEpoch = UNKNOWN_EPOCH,
    ) -> ReadAlone:
        """Fetch one partition without a session, without waiting for data."""
        del max_wait_ms
        found = await self._read(
            {partition: offset}, partition_max_bytes, committed=True, last_epoch=last_epoch
        )
        fetched = found[partition]
        unusual = self.cluster.unusual
        if fetched.error:
            return ReadAlone(fetched, 0, -1)
        log = self.cluster.log(partition)
        fetched = unusual.alter(partition, offset, log, fetched, alone=True)
        throttle_ms = unusual.throttle_ms()
        if throttle_ms:
            fetched = Fetched(0, -1, -1, -1, (), memoryview(b""))
        local_start = unusual.local_start(partition, log)
        compacts = self.cluster.topics[partition.topic].compact
        return ReadAlone(fetched, throttle_ms, log.leader_epoch, local_start, compacts)

    async def compacts(self, topics: Collection[str]) -> Mapping[str, bool | None]:
        """Send DescribeConfigs to any broker; none for a topic that it cannot describe now."""
        asked, cluster = sorted(topics), self.cluster
        node = self.network.rng.choice(cluster.nodes)

        def described() -> dict[str, bool | None]:
            known = cluster.topics
            return {
                topic: known[topic].compact
                if topic in known and not cluster.unusual.cannot_describe()
                else None
                for topic in asked
            }

        return await self.network.send_alone(self.name, node, described)


def _answered(result: T) -> "asyncio.Future[T]":
    answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    answer.set_result(result)
    return answer


def _has_news(found: FetchResult) -> bool:
    """Return whether a broker answers at once."""
    return found.size > 0 or any(f.error or f.diverging for f in found.partitions.values())


def _add(
    cluster: Cluster,
    producer: ProducerIdentity,
    keys: Collection[TopicPartition],
    refused: dict[TopicPartition, int],
) -> int:
    """Add partitions, or note the refused ones; return the code that holds for all of them."""
    codes = cluster.add_partitions(*producer, keys)
    own = {key: code for key, code in codes.items() if code in _OF_A_TOPIC}
    refused |= own
    return 0 if own else next(iter(codes.values()))


class _Lost(Exception):
    """The step got no answer, and must not be retried."""


def always() -> bool:
    """Permit every request."""
    return True


class ModelDestination(_Client):
    """DestinationPort. `may_write` is checked before each request that writes; Fenced if false."""

    def __init__(
        self,
        cluster: Cluster,
        network: Network,
        name: str,
        may_write: Callable[[], bool] = always,
    ) -> None:
        super().__init__(cluster, network, name)
        self._may_write = may_write
        self.sends_transactions_again = False
        """Whether the steps of a transaction are retried after Disconnected (see contract)."""

    def _permit(self) -> None:
        if not self._may_write():
            raise Fenced(f"the lease of {self.name} has ended")

    def appends_to(self, topic: str, topic_id: UUID | None) -> bool:
        """Compare with the id that requests have."""
        known = self._ids.get(topic)
        return None in {known, topic_id} or known == topic_id

    def produce(
        self, node: int, batches: Sequence[Batch]
    ) -> Awaitable[Mapping[TopicPartition, Appended]]:
        """Produce; the request is on the wire when this returns."""
        if not self._may_write():
            refused: asyncio.Future[Mapping[TopicPartition, Appended]] = (
                asyncio.get_running_loop().create_future()
            )
            refused.set_exception(Fenced(f"the lease of {self.name} has ended"))
            return refused
        # The bytes are in the kernel from here on: the caller may change its buffers.
        taken = [b._replace(records=memoryview(bytes(b.records))) for b in batches]
        known = dict(self._ids)
        return self.network.send(
            self.name,
            node,
            "produce",
            partial(self._produce, node, taken, known, self._now()),
            writes=True,
        )

    def _produce(
        self, node: int, batches: Sequence[Batch], ids: Mapping[str, UUID], sent: float
    ) -> "asyncio.Future[Mapping[TopicPartition, Appended]]":
        if not self.cluster.data_fences.meet({batch.partition for batch in batches}, sent):
            return self.cluster.produce(node, batches, ids)
        return _answered({batch.partition: Appended(NOT_LEADER, -1, -1) for batch in batches})

    async def log_ends(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, LogEnd]:
        """Send ListOffsets as replica -2."""
        return await self.ask(partitions, self.cluster.log_end, lambda code: LogEnd(code, -1, -1))

    async def producers(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, ActiveProducers]:
        """Send DescribeProducers."""
        return await self.ask(
            partitions, self.cluster.producers, lambda code: ActiveProducers(code, ())
        )

    async def read(
        self, partitions: Mapping[TopicPartition, int], *, partition_max_bytes: int
    ) -> Mapping[TopicPartition, Fetched]:
        """Fetch without a session, read_uncommitted."""
        return await self._read(partitions, partition_max_bytes, committed=False)

    async def read_alone(
        self,
        partition: TopicPartition,
        offset: int,
        *,
        max_wait_ms: int,
        partition_max_bytes: int,
        committed: bool = False,
    ) -> ReadAlone:
        """Fetch one partition without a session, without waiting for data."""
        del max_wait_ms
        found = await self._read({partition: offset}, partition_max_bytes, committed=committed)
        if found[partition].error:
            return ReadAlone(found[partition], 0, -1)
        log = self.cluster.log(partition)
        compacts = self.cluster.topics[partition.topic].compact
        return ReadAlone(found[partition], 0, log.leader_epoch, log.start, compacts)

    async def absent(self, topics: Collection[str]) -> Collection[str]:
        """Send Metadata to each broker."""
        known, asked = self.cluster.topics, frozenset(topics)
        answers = [
            await self.network.send_alone(self.name, node, lambda: asked - known.keys())
            for node in self.cluster.nodes
        ]
        return asked.intersection(*answers)

    async def lacking_replicas(
        self, partitions: Collection[TopicPartition]
    ) -> Collection[TopicPartition]:
        """Send Metadata to any broker, and compare; none if it does not answer."""
        node, cluster, asked = self.network.rng.choice(self.cluster.nodes), self.cluster, partitions

        def answer() -> list[TopicPartition]:
            known = [key for key in asked if key.topic in cluster.topics]
            return [key for key in known if cluster.partition(key).short]

        try:
            return await self.network.send_alone(self.name, node, answer)
        except Disconnected:
            return ()

    async def init_producer(self, transactional_id: str) -> ProducerIdentity:
        """Send InitProducerId; retry while the coordinator is busy (51) or unreachable."""
        coordinator = self.cluster.coordinator

        async def attempt() -> ProducerIdentity | None:
            error, producer_id, epoch = await self._coordinated(
                transactional_id, lambda: coordinator.init(transactional_id)
            )
            if error == CONCURRENT_TRANSACTIONS:
                return None
            assert error == 0
            return ProducerIdentity(transactional_id, producer_id, epoch)

        return await self._persist(attempt)

    async def empty_transaction(
        self, producer: ProducerIdentity, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        """Send AddPartitionsToTxn, with retries while the coordinator is busy (51), then EndTxn.

        Partitions that are refused individually are left out, and the others are tried again.
        """
        cluster = self.cluster
        codes = dict.fromkeys(sorted(partitions), 0)
        while keys := tuple(key for key, code in codes.items() if not code):
            refused: dict[TopicPartition, int] = {}
            add = partial(_add, cluster, producer, keys, refused)
            await self._until_zero(producer, add, "add partitions")
            if not refused:
                end = partial(cluster.coordinator.end, *producer, committed=True)
                await self._until_zero(producer, end, "end the transaction")
                break
            codes |= refused
        return codes

    async def _until_zero(
        self, producer: ProducerIdentity, step: Callable[[], int], what: str
    ) -> None:
        async def attempt() -> bool | None:
            try:
                code: int = await self._coordinated(producer.transactional_id, step)
            except Disconnected as error:
                if self.sends_transactions_again:
                    raise
                raise _Lost from error
            if code == CONCURRENT_TRANSACTIONS:
                return None
            if code:
                Refusal(code).fail(f"{what} of {producer.transactional_id}")
            return True

        try:
            await self._persist(attempt)
        except _Lost as lost:
            raise Disconnected(f"no answer: {what} of {producer.transactional_id}") from lost

    def _coordinated(self, transactional_id: str, step: Callable[[], T]) -> "asyncio.Future[T]":
        self._permit()
        nodes = self.cluster.nodes
        node = nodes[len(transactional_id) % len(nodes)]
        return self.network.send(
            self.name, node, f"transactions {transactional_id}", step, risk=4.0, writes=True
        )

    async def _persist(self, attempt: Callable[[], Awaitable[T | None]]) -> T:
        """Try until there is a result; after the deadline raise the last attempt's failure."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + CALL_SECONDS
        while True:
            failure = Retriable("the coordinator is busy")
            try:
                result = await attempt()
            except Disconnected as error:
                failure, result = error, None
            if result is not None:
                return result
            if loop.time() > deadline:
                raise failure
            await asyncio.sleep(RETRY_SECONDS)

    async def write_markers(
        self, requests: Sequence[MarkerRequest], *, committed: bool = False, node: int | None = None
    ) -> Mapping[TopicPartition, int]:
        """Send WriteTxnMarkers once."""
        self._permit()
        last = frozenset(requests[-1].partitions) if node is not None and requests else None
        wanted = {
            key: control_records(markers, Marker(*request.producer[1:], committed=committed))
            for request in requests
            for key, markers in request.partitions.items()
        }
        by_node: defaultdict[int, dict[TopicPartition, list[Marker]]] = defaultdict(dict)
        for key in sorted(wanted):
            by_node[self._leader(key) if node is None else node][key] = wanted[key]
        results: dict[TopicPartition, int] = dict.fromkeys(by_node.pop(-1, {}), NOT_LEADER)
        sent = [
            answer
            for leader, partitions in by_node.items()
            for answer in self.network.send_in_turn(
                self.name,
                leader,
                [
                    partial(
                        self._write_markers,
                        leader,
                        part,
                        self._ends(part),
                        self._now(),
                        None if last is None else last & part.keys(),
                    )
                    for part in _marker_requests(partitions)
                ],
                risk=10.0,
            )
        ]
        for answer in await asyncio.gather(*sent):
            for key, code in answer.items():
                results[key] = results.get(key) or code
        return results

    def _now(self) -> float:
        return self.cluster.loop.time()

    def _ends(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        topics = self.cluster.topics
        return {key: self.cluster.log(key).end for key in partitions if key.topic in topics}

    def _write_markers(
        self,
        node: int,
        wanted: Mapping[TopicPartition, Sequence[Marker]],
        ends: Mapping[TopicPartition, int],
        sent: float,
        last: Collection[TopicPartition] | None,
    ) -> "asyncio.Future[Mapping[TopicPartition, int]]":
        """Carry the request out on a broker; `ends` are the log end offsets when it was `sent`.

        It is not answered if the broker has none of the `last` producer id's partitions
        (tests/contract/test_markers_of_gone_partitions.py).
        """
        fences = self.cluster.data_fences
        if not fences.meet(wanted, sent) and not fences.have_begun(ends):
            answer = self.cluster.write_markers(wanted, node)
            topics = self.cluster.topics
            if not last or any(key.topic in topics for key in last):
                return answer
            never: asyncio.Future[Mapping[TopicPartition, int]] = self.cluster.loop.create_future()
            return never
        return _answered(dict.fromkeys(wanted, NOT_LEADER))

    async def delete_records(
        self, before: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, int]:
        """Send DeleteRecords."""
        self._permit()
        cluster = self.cluster
        return await self.ask(
            before, lambda key: cluster.delete_records(key, before[key]), lambda code: code
        )
