"""A cluster in memory: topics, leaders, replication, and the answers of its brokers.

Every method does what a broker does when a request has arrived. It returns the answer, or a future
of the answer where the broker waits (acks=all, a fetch without data). `network.py` delivers the
requests.

A partition is one log. Its high watermark follows the log end after the time `replication`, or not
at all while a follower lags. A leader change takes the time `election`, raises the leader epoch,
and truncates the log to what the new leader has: nothing below the high watermark is lost, unless
the election is unclean.

The coordinator writes a marker *again* that it has written, but that was not confirmed when the
leader changed: the broker does not compare markers with earlier ones (see the contract suite).
"""

import asyncio
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar
from uuid import UUID

from model.coordinator import Coordinator
from model.fences import DataFences
from model.log import OFFSET_OUT_OF_RANGE, Log, Marker, stored_batch
from model.loop import VirtualLoop
from model.producers import Refused
from model.unusual import Unusual
from twinlog.engines.ports import (
    ActiveProducers,
    Appended,
    Batch,
    LeaderReport,
    LogEnd,
    Markers,
)
from twinlog.kafka.log.batch import batches
from twinlog.kafka.protocol.fetch import Fetched
from twinlog.kafka.types import FetchPosition, LogBounds, TopicPartition

T = TypeVar("T")

UNKNOWN_TOPIC_OR_PARTITION: Final = 3
LEADER_NOT_AVAILABLE: Final = 5
NOT_LEADER: Final = 6
REQUEST_TIMED_OUT: Final = 7
NOT_ENOUGH_REPLICAS: Final = 19
NOT_ENOUGH_REPLICAS_AFTER_APPEND: Final = 20
TOPIC_AUTHORIZATION_FAILED: Final = 29
CLUSTER_AUTHORIZATION_FAILED: Final = 31
POLICY_VIOLATION: Final = 44
OPERATION_NOT_ATTEMPTED: Final = 55
FENCED_LEADER_EPOCH: Final = 74
UNKNOWN_LEADER_EPOCH: Final = 75
OFFSET_NOT_AVAILABLE: Final = 78
UNKNOWN_TOPIC_ID: Final = 100

EPOCH_MS: Final = 1_700_000_000_000
"""The wall clock in milliseconds at the start of virtual time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """The cluster's intervals in seconds; configuration names are Kafka's."""

    replication: float = 0.003
    election: float = 0.3
    markers: float = 0.01
    late_markers: float = 1.0
    produce_timeout: float = 5.0
    producer_id_expiration: float = 86_400.0
    producer_id_expiration_check: float = 600.0
    transaction_timeout: float = 60.0
    transactional_id_expiration: float = 604_800.0


@dataclass(slots=True, eq=False)
class Partition:
    """A partition and its leader.

    `lagging`: an in-sync follower does not fetch. `short`: fewer replicas are in sync than
    `min.insync.replicas`.
    """

    log: Log
    leader: int
    lagging: bool = False
    short: bool = False
    waiting: list[tuple[int, "asyncio.Future[int]"]] = field(default_factory=list)

    def settle(self, error: int = 0) -> None:
        """Answer the requests that wait for the high watermark, or all of them with an error."""
        left = []
        for end, future in self.waiting:
            if future.done():
                continue
            if error or self.log.high_watermark >= end:
                future.set_result(error)
            else:
                left.append((end, future))
        self.waiting = left


@dataclass(slots=True, eq=False)
class Topic:
    """A topic and the part of its configuration that a mirror uses."""

    topic_id: UUID
    partitions: list[Partition]
    compact: bool
    delete: bool
    log_append_time: bool


class Cluster:
    """The cluster; see the module."""

    def __init__(
        self,
        loop: VirtualLoop,
        rng: random.Random,
        *,
        nodes: Sequence[int] = (1, 2, 3),
        timings: Timings | None = None,
        markers_allowed: bool = True,
    ) -> None:
        self.loop = loop
        self.rng = rng
        self.nodes = tuple(nodes)
        self.timings = Timings() if timings is None else timings
        self.markers_allowed = markers_allowed
        self.markers_refusal = CLUSTER_AUTHORIZATION_FAILED
        self.markers_written_twice = True
        self.markers_cut = 0.0
        """The share of requests with several markers per partition that meet a lagging follower."""
        self.data_fences = DataFences()
        self.read_only: set[str] = set()
        """Topics on which no principal has WRITE."""
        self.topics: dict[str, Topic] = {}
        self.coordinator = Coordinator(
            self._write_later,
            self._watch_transaction,
            loop.time,
            lambda: self.timings.transactional_id_expiration,
        )
        self.changed: list[asyncio.Future[None]] = []
        self.unusual = Unusual(loop, random.Random(0))
        """Legal answers that are inconvenient for a reader; none unless a test asks for them."""
        self.followers_answer = False
        """Whether other replicas than the leader answer consumers (KIP-392)."""
        self.round_trip_s = 0.0  # what mirrors measure, whatever the network does
        self._check_producers()

    @property
    def now_ms(self) -> int:
        """Return the wall clock in milliseconds."""
        return EPOCH_MS + int(self.loop.time() * 1000)

    # --- topics and leaders -----------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        compact: bool = False,
        delete: bool = True,
        log_append_time: bool = False,
        on_append: Callable[[TopicPartition], Callable[[Any], None]] | None = None,
    ) -> Topic:
        """Create a topic; its partitions' leaders are assigned round robin."""
        states = []
        for index in range(partitions):
            log = Log(compact=compact)
            if on_append is not None:
                log.on_append = on_append(TopicPartition(name, index))
            states.append(Partition(log, self.nodes[index % len(self.nodes)]))
        topic_id = UUID(int=self.rng.getrandbits(128))
        topic = Topic(topic_id, states, compact, delete, log_append_time)
        self.topics[name] = topic
        return topic

    def delete_topic(self, name: str) -> None:
        """Delete a topic; waiting requests get UNKNOWN_TOPIC_OR_PARTITION."""
        for partition in self.topics.pop(name).partitions:
            partition.settle(UNKNOWN_TOPIC_OR_PARTITION)

    def partition(self, key: TopicPartition) -> Partition:
        """Return a partition; KeyError if it does not exist."""
        partitions = self.topics[key.topic].partitions
        if not 0 <= key.partition < len(partitions):
            raise KeyError(key)
        return partitions[key.partition]

    def log(self, key: TopicPartition) -> Log:
        """Return a partition's log."""
        return self.partition(key).log

    def move_leader(
        self, key: TopicPartition, *, lose: int | None = None, snapshot: bool = False
    ) -> None:
        """Elect another leader.

        Args:
            key: the partition.
            lose: cut that many offsets below the high watermark (unclean); None: the new leader's
            log
                ends at a random offset from the high watermark on.
            snapshot: the new leader has just loaded its log, and remembers one batch per producer.
        """
        partition = self.partition(key)
        if partition.leader < 0:
            return
        log = partition.log
        former, partition.leader = partition.leader, -1
        partition.settle(NOT_LEADER)
        if lose is None:
            end = self.rng.randint(log.high_watermark, log.end)
        else:
            end = max(log.start, log.high_watermark - lose)
        log.truncate(end, snapshot=snapshot)
        log.lead()
        others = [node for node in self.nodes if node != former] or [former]
        chosen = self.rng.choice(others)

        def elect() -> None:
            partition.leader = chosen
            partition.lagging = False
            self._replicate(partition)

        self.loop.later(self.rng.uniform(0.05, 1.0) * self.timings.election, elect)

    def lag(self, key: TopicPartition, seconds: float) -> None:
        """Stop a follower of the partition for a while; acks=all waits for it."""
        partition = self.partition(key)
        partition.lagging = True

        def go_on() -> None:
            partition.lagging = False
            self._replicate(partition)

        self.loop.later(seconds, go_on)

    def lack_replicas(self, key: TopicPartition, seconds: float) -> None:
        """Let fewer replicas be in sync than needed for a while: neither data nor markers land."""
        partition = self.partition(key)
        partition.short = True
        self.loop.later(seconds, partial(setattr, partition, "short", False))

    def end_lacks(self) -> None:
        """Let all partitions have enough replicas."""
        for topic in self.topics.values():
            for partition in topic.partitions:
                partition.short = False

    def _replicate(self, partition: Partition) -> None:
        end = partition.log.end
        delay = self.rng.uniform(0.2, 1.0) * self.timings.replication
        epoch = partition.log.leader_epoch
        self.loop.later(delay, lambda: self._replicated(partition, epoch, end))

    def _replicated(self, partition: Partition, epoch: int, end: int) -> None:
        log = partition.log
        if partition.lagging or partition.leader < 0 or log.leader_epoch != epoch:
            return
        if end > log.high_watermark:
            log.high_watermark = min(end, log.end)
            partition.settle()
            self._wake()

    def _wake(self) -> None:
        changed, self.changed = self.changed, []
        for future in changed:
            if not future.done():
                future.set_result(None)

    def _check_producers(self) -> None:
        for topic in self.topics.values():
            for partition in topic.partitions:
                partition.log.producers.expire(
                    self.now_ms, int(self.timings.producer_id_expiration * 1000)
                )
        self.loop.later(self.timings.producer_id_expiration_check, self._check_producers)

    # --- answers of brokers -----------------------------------------------------------------

    def metadata(self, topics: Collection[str]) -> Mapping[TopicPartition, LeaderReport]:
        """Answer Metadata."""
        return {
            TopicPartition(name, index): LeaderReport(
                partition.leader,
                partition.log.leader_epoch,
                self.topics[name].topic_id,
                LEADER_NOT_AVAILABLE if partition.leader < 0 else 0,
            )
            for name in sorted(topics)
            if name in self.topics
            for index, partition in enumerate(self.topics[name].partitions)
        }

    def _is_another(self, name: str, topic_id: UUID | None) -> bool:
        """Return whether the topic id of a request is not the id of the existing topic."""
        topic = self.topics.get(name)
        return topic_id is not None and (topic is None or topic.topic_id != topic_id)

    def _led(self, key: TopicPartition, node: int | None) -> Partition | int:
        try:
            partition = self.partition(key)
        except KeyError:
            return UNKNOWN_TOPIC_OR_PARTITION
        if partition.leader < 0 or (node is not None and partition.leader != node):
            return NOT_LEADER
        return partition

    def produce(
        self, node: int, wanted: Sequence[Batch], ids: Mapping[str, UUID]
    ) -> "asyncio.Future[Mapping[TopicPartition, Appended]]":
        """Produce with acks=all: answered when all batches are replicated, or cannot be."""
        answer: asyncio.Future[Mapping[TopicPartition, Appended]] = self.loop.create_future()
        results: dict[TopicPartition, Appended] = {}
        waits: list[asyncio.Future[int]] = []
        for batch in wanted:
            if self._is_another(batch.partition.topic, ids.get(batch.partition.topic)):
                results[batch.partition] = Appended(UNKNOWN_TOPIC_ID, -1, -1)
            else:
                results[batch.partition] = self._append(node, batch, results, waits)
        self._answer_after(waits, answer, results)
        return answer

    def _answer_after(
        self, waits: "Sequence[asyncio.Future[int]]", answer: "asyncio.Future[T]", result: T
    ) -> None:
        """Set the answer once all waits are done."""
        pending = len(waits)

        def one_more(_: object = None) -> None:
            nonlocal pending
            pending -= 1
            if pending <= 0 and not answer.done():
                answer.set_result(result)

        if not waits:
            answer.set_result(result)
        for wait in waits:
            wait.add_done_callback(one_more, context=self.loop.outside)

    def _append(
        self,
        node: int,
        batch: Batch,
        results: dict[TopicPartition, Appended],
        waits: "list[asyncio.Future[int]]",
    ) -> Appended:
        partition = self._led(batch.partition, node)
        if batch.partition.topic in self.read_only:
            return Appended(TOPIC_AUTHORIZATION_FAILED, -1, -1)
        if isinstance(partition, int):
            return Appended(partition, -1, -1)
        if partition.short:
            return Appended(NOT_ENOUGH_REPLICAS, -1, -1)
        log = partition.log
        data = batch.header + bytes(batch.records)
        known_end = log.end
        try:
            base_offset = log.append(data)
        except Refused as refused:
            return Appended(refused.code, -1, log.start, str(refused))
        if not partition.lagging:
            self._replicate(partition)
        key = batch.partition

        def replicated(error: int) -> None:
            if error:
                results[key] = Appended(error, -1, -1)

        end = base_offset + batches_span(data)
        waits.append(self._wait(partition, end, replicated))
        again = base_offset < known_end
        stamped_ms = stored_batch(data).header.max_timestamp if again else -1
        return Appended(0, base_offset, log.start, stamped_ms=stamped_ms)

    def _wait(
        self, partition: Partition, end: int, then: Callable[[int], None]
    ) -> "asyncio.Future[int]":
        """Wait until the high watermark reaches `end`, the leader changes, or the timeout ends."""
        future: asyncio.Future[int] = self.loop.create_future()
        future.add_done_callback(lambda done: then(done.result()), context=self.loop.outside)
        if partition.log.high_watermark >= end:
            future.set_result(0)
            return future
        partition.waiting.append((end, future))
        self.loop.later(
            self.timings.produce_timeout,
            partial(_settle, future, REQUEST_TIMED_OUT),
        )
        return future

    def log_end(self, key: TopicPartition) -> LogEnd:
        """Answer ListOffsets, latest, as replica -2."""
        partition = self._led(key, None)
        if isinstance(partition, int):
            return LogEnd(partition, -1, -1)
        return LogEnd(0, partition.log.end, partition.log.leader_epoch)

    def bounds(self, key: TopicPartition) -> LogBounds:
        """Answer ListOffsets as for a consumer: earliest, latest, latest of read_committed."""
        partition = self._led(key, None)
        if isinstance(partition, int):
            return LogBounds(partition, -1, -1, -1)
        log = partition.log
        return LogBounds(0, log.start, log.high_watermark, log.stable_end, log.leader_epoch)

    def producers(self, key: TopicPartition) -> ActiveProducers:
        """Answer DescribeProducers."""
        partition = self._led(key, None)
        if isinstance(partition, int):
            return ActiveProducers(partition, ())
        return ActiveProducers(0, partition.log.producers.described())

    def fetch(
        self,
        key: TopicPartition,
        position: FetchPosition,
        max_bytes: int,
        *,
        committed: bool,
        node: int | None = None,
        topic_id: UUID | None = None,
    ) -> Fetched:
        """Answer one partition's part of a Fetch."""
        if self._is_another(key.topic, topic_id):
            return _fetch_error(UNKNOWN_TOPIC_ID)
        follower = self.is_follower(key, node)
        partition = self._led(key, None if follower else node)
        if isinstance(partition, int):
            return _fetch_error(partition)
        log = partition.log
        offset = position.offset
        high_watermark = self.unusual.follower_end(key, log) if follower else log.high_watermark
        limit = log.stable_below(high_watermark) if committed else high_watermark
        checked = _check_position(log, position, high_watermark)
        if checked.error or checked.diverging:
            return checked
        records = b"".join(log.read(offset, limit, max_bytes))
        aborted = log.aborted(offset, limit) if committed else ()
        return checked._replace(aborted=aborted, records=memoryview(records))

    def is_follower(self, key: TopicPartition, node: int | None) -> bool:
        """Return whether this broker answers consumers of the partition, and does not lead it."""
        exists = key.topic in self.topics
        return self.followers_answer and exists and node not in {None, self.partition(key).leader}

    def delete_records(self, key: TopicPartition, before: int) -> int:
        """Answer DeleteRecords."""
        partition = self._led(key, None)
        if isinstance(partition, int):
            return partition
        if not self.topics[key.topic].delete:
            return POLICY_VIOLATION
        log = partition.log
        target = log.high_watermark if before == -1 else before
        if target > log.high_watermark or target < 0:
            return 1
        log.delete_before(target)
        return 0

    # --- transactions -----------------------------------------------------------------------

    def add_partitions(
        self, name: str, producer_id: int, epoch: int, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        """Answer AddPartitionsToTxn: if one partition is refused, none is added."""
        codes = {key: self._may_add(key) for key in partitions}
        if any(codes.values()):
            return {key: code or OPERATION_NOT_ATTEMPTED for key, code in codes.items()}
        return dict.fromkeys(
            partitions, self.coordinator.add_partitions(name, producer_id, epoch, partitions)
        )

    def _may_add(self, key: TopicPartition) -> int:
        if key.topic in self.read_only:
            return TOPIC_AUTHORIZATION_FAILED
        topic = self.topics.get(key.topic)
        exists = topic is not None and 0 <= key.partition < len(topic.partitions)
        return 0 if exists else UNKNOWN_TOPIC_OR_PARTITION

    def _watch_transaction(self, time_out: Callable[[], None]) -> None:
        self.loop.later(self.timings.transaction_timeout, time_out)

    def _write_later(self, key: TopicPartition, marker: Marker, stands: Callable[[], None]) -> None:
        late = self.timings.late_markers if self.rng.random() < 0.02 else self.timings.markers
        self.loop.later(
            self.rng.uniform(0.05, 1.0) * late, lambda: self._write_marker(key, marker, stands)
        )

    def _write_marker(
        self, key: TopicPartition, marker: Marker, stands: Callable[[], None]
    ) -> None:
        """Write a marker until it is replicated; a marker for a deleted topic is dropped."""
        partition = self._led(key, None)
        if partition == UNKNOWN_TOPIC_OR_PARTITION:
            stands()
            return
        if isinstance(partition, int) or partition.short:
            self._write_later(key, marker, stands)
            return
        try:
            offset = partition.log.append_marker(marker, self.now_ms)
        except Refused:
            stands()  # the coordinator drops a marker of an old epoch
            return
        if not partition.lagging:
            self._replicate(partition)

        def confirmed(error: int) -> None:
            if error and (self.markers_written_twice or partition.log.end <= offset):
                self._write_later(key, marker, stands)
            else:
                stands()

        self._wait(partition, offset + 1, confirmed)

    def write_markers(
        self, wanted: Mapping[TopicPartition, Sequence[Marker]], node: int | None = None
    ) -> "asyncio.Future[Mapping[TopicPartition, int]]":
        """Answer WriteTxnMarkers of permitted clients, when the markers are replicated.

        `node` refuses what it does not lead; None: each partition's leader answers.
        """
        answer: asyncio.Future[Mapping[TopicPartition, int]] = self.loop.create_future()
        results: dict[TopicPartition, int] = {}
        if not self.markers_allowed:
            answer.set_result(dict.fromkeys(wanted, self.markers_refusal))
            return answer
        waits = []
        for key, markers in wanted.items():
            partition = self._led(key, node)
            if isinstance(partition, int):
                results[key] = partition
                continue
            if self._lacks_replicas(markers):
                results[key] = NOT_ENOUGH_REPLICAS
                continue
            results[key] = 0
            try:
                for each in self._in_sync(markers):
                    partition.log.append_marker(each, self.now_ms)
            except Refused as refused:
                results[key] = refused.code
                continue
            if not partition.lagging:
                self._replicate(partition)

            def replicated(error: int, key: TopicPartition = key) -> None:
                results[key] = error

            waits.append(self._wait(partition, partition.log.end, replicated))
        self._answer_after(waits, answer, results)
        return answer

    def _lacks_replicas(self, markers: Sequence[Marker]) -> bool:
        """Whether a single marker is refused: of several requests, an earlier one may be."""
        return len(markers) == 1 and self.rng.random() < self.markers_cut / 4

    def _in_sync(self, markers: Sequence[Marker]) -> Sequence[Marker]:
        """Return the markers appended before a follower leaves the ISR; later ones are refused.

        Earlier markers are answered later, and hide the refusal (KAFKA_FACTS: a broker merges the
        results of one partition's markers in the order in which they complete).
        """
        if len(markers) < 2 or not self.markers_cut or self.rng.random() >= self.markers_cut:
            return markers
        return markers[: self.rng.randint(1, len(markers))]


def control_records(wanted: Markers, template: Marker) -> list[Marker]:
    """Return the control records of one partition, in order."""
    if not wanted.number:
        return []
    before = template._replace(coordinator_epoch=wanted.before)
    return [before] * (wanted.number - 1) + [template._replace(coordinator_epoch=wanted.last)]


def _settle(future: "asyncio.Future[int]", error: int) -> None:
    if not future.done():
        future.set_result(error)


def batches_span(data: bytes) -> int:
    """Return how many offsets a batch takes."""
    return next(batches(memoryview(data))).last_offset_delta + 1


def _check_position(log: Log, position: FetchPosition, high_watermark: int) -> Fetched:
    """Answer without records: an error, the diverging epoch's end, or the partition's bounds.

    `high_watermark` is that of the replica, which has no records above it.
    """
    offset, last_epoch, leader_epoch = position
    if leader_epoch >= 0 and leader_epoch != log.leader_epoch:
        older = leader_epoch < log.leader_epoch
        return _fetch_error(FENCED_LEADER_EPOCH if older else UNKNOWN_LEADER_EPOCH)
    stable_end = log.stable_below(high_watermark)
    nothing = Fetched(0, high_watermark, stable_end, log.start, (), memoryview(b""))
    if last_epoch >= 0:
        found = log.epoch_end(last_epoch)
        if found is None:
            return nothing._replace(error=OFFSET_OUT_OF_RANGE)
        if found.leader_epoch < last_epoch or found.end_offset < offset:
            return nothing._replace(diverging=found)
    if not log.start <= offset <= high_watermark:
        return nothing._replace(error=OFFSET_OUT_OF_RANGE)
    return nothing


def _fetch_error(code: int) -> Fetched:
    return Fetched(code, -1, -1, -1, (), memoryview(b""))
