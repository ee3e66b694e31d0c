"""Reading a control topic: all records up to its end, and then each change.

The `__mirror_*` topics are the database: small, compacted, with few writers. A reader needs the
last value for each key, and each new value within milliseconds.

    catch_up()   from the reader's position to the end at the time of the call
    follow()     endless: one long poll at a time to each leader, on a connection of its own

A reader borrows its connections' lane from the cluster, and the next reader gets the same open
connections (`KafkaCluster.borrow_lane`): a node reads control topics each second.

Reading is read_committed: control batches and aborted data are left out (see mirror/plan.py).
`catch_up` reads up to the *high watermark*, not the last stable offset, and waits for transactions
that are being decided. A writer that got its answer then finds what it wrote, although a
transaction's markers are written after its answer.

If a transaction's owner dies, the transaction hides later records until the coordinator aborts it,
within its timeout and 10 s. A reader that did not wait would take the hidden records for absent.

The caller decides what to do about an unreadable record: bytes are passed on unchanged.

It is no reader of ranges (kafka/log_reader.py): it follows logs whose end moves, in long polls of
its own connections, and gives the leader epoch of the last record in each Fetch. An answer without
records means that there is nothing new *yet*; that all was read is concluded from the end that was
asked for before.

A source that has mirrors of its own also has control topics, and they are read. Their size depends
on any client that may write to the source or answers in its name. So a batch is decompressed to
`MAX_DECODED` at most, and `MAX_FOREIGN` is held of a source's topic.
"""

import asyncio
import itertools
import logging
from collections import defaultdict
from collections.abc import AsyncGenerator, Collection, Coroutine, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple

from kafka.protocol.consumer import FetchRequest

from twinlog.kafka.backoff import Backoff
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.pool import Lane
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import (
    ProtocolError,
    Reaction,
    Refusal,
    Retriable,
    TwinlogError,
    UserError,
)
from twinlog.kafka.log.compression import TooLong
from twinlog.kafka.log.leader_epochs import SourceEpochs
from twinlog.kafka.log.records import decode, each_record
from twinlog.kafka.requests.partitions import (
    Answers,
    Isolation,
    ListedOffset,
    OffsetSpec,
    list_offsets,
)
from twinlog.kafka.types import AbortedTransaction, Offset, TopicPartition
from twinlog.mirror.plan import Data, plan_with_epoch

log = logging.getLogger(__name__)

LONG_POLL: Final = 1.0
"""Seconds that a leader holds a Fetch without new records; also the longest time until a partition
is read from its new leader after a leader change."""
UNDECIDED: Final = 5.0
"""Seconds after which an open transaction is reported; callers with other work wait no longer."""
PAUSE: Final = 0.02
"""Seconds between two Fetch requests to a leader that answers at once and without records."""
MAX_BYTES: Final = 16 << 20
PARTITION_MAX_BYTES: Final = 2 << 20
MAX_DECODED: Final = 16 << 20
"""Bytes that a batch may decompress to. twinlog writes uncompressed batches of up to 1 MiB."""
MAX_FOREIGN: Final = 256 << 20
"""Bytes that may be held of a source's control topic: enough for about 500,000 mirrored topics."""
RECORD_COST: Final = 256
"""Bytes that a record takes in memory in addition to its key and value."""

_SHORT_POLL: Final = 0.05
_FETCH_VERSION: Final = 12  # the last with topic names; Kafka 2.8 has it


class ControlRecord(NamedTuple):
    """A record as stored in a control topic. `value` is None for a tombstone."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


def latest(records: Iterable[ControlRecord]) -> dict[tuple[int, bytes | None], ControlRecord]:
    """The records that compaction will keep: the last record for each key, no tombstones.

    Keys of different partitions are different keys, as they are for the broker.
    """
    table: dict[tuple[int, bytes | None], ControlRecord] = {}
    for record in records:
        slot = (record.partition, record.key)
        if record.value is None:
            table.pop(slot, None)
        else:
            table[slot] = record
    return table


async def read_whole(
    cluster: KafkaCluster,
    topic: str,
    partitions: Collection[int] | None = None,
    *,
    patience: float | None = None,
) -> list[ControlRecord]:
    """All records of a control topic up to its end now, in order within each partition.

    Args:
        cluster: the cluster that has the topic.
        topic: the topic's name.
        partitions: which to read; by default all.
        patience: see `Tail.catch_up`.

    Raises:
        Retriable: see `Tail.catch_up`.
        UserError: no right to read the topic, or it does not exist.
    """
    tail = Tail(cluster, topic, partitions)
    try:
        return await tail.catch_up(patience)
    finally:
        await tail.close()


async def read_last(cluster: KafkaCluster, topic: str) -> list[ControlRecord]:
    """The last record of each partition, for topics with one key in each (`__mirror_status`).

    It finds plain records only: the last offset of a transaction is its marker's.

    Raises:
        Retriable, UserError: as `read_whole`.
    """
    tail = Tail(cluster, topic)
    try:
        ends = await tail.ends()
        starts = await tail.starts()
        tail.positions = {index: max(starts[index], end - 1) for index, end in ends.items()}
        return await tail.catch_up()
    finally:
        await tail.close()


class Tail:
    """A reader of a control topic, or of some of its partitions, from `positions` on.

    `restarts` counts how often a partition was read again from its start because its log no longer
    had the position (an unclean election, a recreated topic): records that were read may be gone.
    If the log has grown past the position again, the leader epoch of the last record that was read
    reveals it (KIP-320).
    """

    def __init__(
        self, cluster: KafkaCluster, topic: str, partitions: Collection[int] | None = None
    ) -> None:
        self.positions: dict[int, int] = {}
        self.restarts = 0
        self._cluster = cluster
        self._topic = topic
        self._indexes = partitions
        self._lane: Lane | None = None
        self._held_bytes = 0  # bytes of the records of this `catch_up`
        self._epochs: defaultdict[int, SourceEpochs] = defaultdict(SourceEpochs)

    async def catch_up(self, patience: float | None = None) -> list[ControlRecord]:
        """Read the records from the position to the end as it is now, and move the position there.

        Args:
            patience: seconds without progress, because of an open transaction, before it gives up;
                default.api.timeout.ms by default.

        Raises:
            Retriable: the brokers are unreachable for default.api.timeout.ms, or the end cannot be
                reached: a transaction stays open.
            UserError: no right to read the topic, or it does not exist, or it is a source's and
                holds too much.
        """
        loop = asyncio.get_running_loop()
        self._held_bytes = 0
        ends = await self.ends()
        if lost_indexes := {i for i, at in self.positions.items() if at > ends.get(i, at)}:
            # Not a lagging leader: that refuses to report an end below its epoch's start (KIP-207).
            self.restarts += 1
            self.positions = {i: at for i, at in self.positions.items() if i not in lost_indexes}
            for index in lost_indexes:
                self._epochs.pop(index, None)
        if ends.keys() - self.positions.keys():
            self.positions = await self.starts() | self.positions
        records: list[ControlRecord] = []
        limit = self._cluster.config.api_timeout if patience is None else patience
        moved_at, reported = loop.time(), False
        failures = _Patience(self._cluster)
        while remaining_indexes := {i for i, end in ends.items() if self.positions[i] < end}:
            last_positions = dict(self.positions)
            polls = await self._polls(remaining_indexes, _SHORT_POLL, failures)
            record_lists = await asyncio.gather(*(poll for poll, _ in polls))
            records += itertools.chain.from_iterable(record_lists)
            idle_s = loop.time() - moved_at
            if self.positions != last_positions:
                moved_at, reported = loop.time(), False
            elif idle_s > limit:
                raise self._undecided(remaining_indexes)
            elif idle_s > UNDECIDED and not reported:
                log.warning("%s; waiting for it to end", self._undecided(remaining_indexes).message)
                reported = True
        return records

    def _undecided(self, indexes: Collection[int]) -> Retriable:
        index = min(indexes)
        return Retriable(
            f"cannot read beyond offset {self.positions[index]}: a transaction that begins there "
            "seems to be open",
            cluster=self._cluster.name,
            topic=self._topic,
            partition=index,
            hint="if its writer died, the broker aborts it after its timeout (30 s) and 10 s; then "
            "try again",
        )

    async def follow(self) -> AsyncGenerator[list[ControlRecord], None]:
        """New records from the position on, as they are written; never ends by itself.

        Each list holds one or more records of one leader's partitions. Close the generator
        (`contextlib.aclosing`) to stop.

        Raises:
            Retriable: no leader has answered for default.api.timeout.ms.
            UserError: no right to read the topic, or it does not exist.
        """
        if not self.positions:
            self.positions = await self.starts()
        patience = _Patience(self._cluster)
        polls: dict[asyncio.Task[list[ControlRecord]], Collection[int]] = {}
        try:
            while True:
                polled_indexes = set(itertools.chain.from_iterable(polls.values()))
                free_indexes = self.positions.keys() - polled_indexes
                for poll, indexes in await self._polls(free_indexes, LONG_POLL, patience):
                    polls[asyncio.create_task(poll)] = indexes
                done, _ = await asyncio.wait(polls, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    del polls[task]
                for task in done:
                    if records := task.result():
                        yield records
        finally:
            for task in polls:
                task.cancel()
            await asyncio.gather(*polls, return_exceptions=True)
            await self.close()

    async def ends(self) -> dict[int, int]:
        """The high watermark of each partition."""
        return await self._offsets(OffsetSpec.LATEST)

    async def starts(self) -> dict[int, int]:
        """The log start offset of each partition."""
        return await self._offsets(OffsetSpec.EARLIEST)

    async def close(self) -> None:
        """Return the connections. A closed reader may be used again."""
        lane, self._lane = self._lane, None
        if lane is not None:
            await self._cluster.return_lane(lane)

    async def _offsets(self, spec: OffsetSpec) -> dict[int, int]:
        # Metadata lists the leaders of a new topic before these leaders know of it.
        return await self._cluster.persist(lambda: self._offsets_once(spec))

    async def _offsets_once(self, spec: OffsetSpec) -> dict[int, int]:
        answers = await list_offsets(
            self._cluster, await self._partitions(), spec, isolation=Isolation.READ_UNCOMMITTED
        )
        return dict(_granted(answers, f"get the end offsets of {self._topic}"))

    async def _partitions(self) -> list[TopicPartition]:
        await self._cluster.leaders([TopicPartition(self._topic, 0)])
        topic = self._cluster.metadata.topics.get(self._topic)
        if topic is None or topic.error:
            code = 3 if topic is None else topic.error
            with self._needing():
                Refusal(code).fail("read the control topic", topic=self._topic)
        indexes = topic.partitions if self._indexes is None else self._indexes
        return [TopicPartition(self._topic, index) for index in sorted(indexes)]

    async def _polls(
        self, indexes: Collection[int], wait: float, patience: "_Patience"
    ) -> list[tuple[Coroutine[Any, Any, list[ControlRecord]], list[int]]]:
        """The polls of these partitions: a Fetch to each leader, a pause for those without one."""
        nodes: defaultdict[int, list[int]] = defaultdict(list)
        leaderless_indexes: list[int] = []
        leader_error: TwinlogError | None = None
        try:
            leaders = await self._cluster.leaders(
                [TopicPartition(self._topic, index) for index in indexes]
            )
        except Retriable as error:
            return [(self._pause(error, patience), list(indexes))] if indexes else []
        for partition, leader in leaders.items():
            if isinstance(leader, Refusal):
                leaderless_indexes.append(partition.partition)
                leader_error = leader.error(
                    "read", topic=self._topic, partition=partition.partition
                )
            else:
                nodes[leader.node_id].append(partition.partition)
        polls = [
            (self._try_fetch(node, group, wait, patience), group) for node, group in nodes.items()
        ]
        if leader_error is not None:
            polls.append((self._pause(leader_error, patience), leaderless_indexes))
        return polls

    async def _pause(self, error: TwinlogError, patience: "_Patience") -> list[ControlRecord]:
        await patience.pause(error)
        return []

    async def _try_fetch(
        self, node: int, indexes: Collection[int], wait: float, patience: "_Patience"
    ) -> list[ControlRecord]:
        loop = asyncio.get_running_loop()
        start = loop.time()
        try:
            records = await self._fetch(node, indexes, wait)
        except (Retriable, ProtocolError) as error:
            await patience.pause(error)
            await self._refresh(patience)
            return []
        patience.reset()
        if not records and loop.time() < start + wait / 2:
            # A new leader's high watermark lags behind its log until its followers have fetched
            # once. Until then a Fetch above it is answered at once and without records.
            await asyncio.sleep(PAUSE)
        return records

    async def _refresh(self, patience: "_Patience") -> None:
        try:
            await self._cluster.refresh([self._topic])
        except Retriable as error:
            await patience.pause(error)

    async def _fetch(self, node: int, indexes: Collection[int], wait: float) -> list[ControlRecord]:
        """Send one Fetch to one leader; this moves `positions`."""
        if self._lane is None:
            self._lane = self._cluster.borrow_lane()
        connection = await self._cluster.connection(node, self._lane)
        timeout = wait + self._cluster.config.request_timeout
        response = await connection.call(self._request(indexes, wait), timeout=timeout)
        records: list[ControlRecord] = []
        failure: Refusal | None = None
        for topic in response.responses:
            for part in topic.partitions:
                if part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE or _diverges(
                    part.diverging_epoch
                ):
                    self.positions.update(await self._restart(part.partition_index))
                elif part.error_code:
                    failure = Refusal(part.error_code)
                else:
                    records += self._taken(part)
        if failure is not None and not records:
            with self._needing():
                failure.fail("read the control topic", topic=self._topic)
        return records

    def _needing(self) -> AbstractContextManager[None]:
        return self._cluster.needing("READ", f"the topic {self._topic}")

    async def _restart(self, index: int) -> dict[int, int]:
        """Go back to the log start: the log lost the position (an unclean election)."""
        self.restarts += 1
        self._epochs.pop(index, None)
        return {index: (await self.starts())[index]}

    def _request(self, indexes: Collection[int], wait: float) -> Any:
        topic = FetchRequest.FetchTopic
        return FetchRequest(
            replica_id=-1,
            max_wait_ms=int(wait * 1000),
            min_bytes=1,
            max_bytes=MAX_BYTES,
            isolation_level=int(Isolation.READ_COMMITTED),
            session_id=0,
            session_epoch=-1,
            topics=[
                topic(
                    topic=self._topic,
                    partitions=[
                        topic.FetchPartition(
                            partition=index,
                            fetch_offset=self.positions[index],
                            last_fetched_epoch=self._epochs[index].before(
                                Offset(self.positions[index])
                            ),
                            partition_max_bytes=PARTITION_MAX_BYTES,
                        )
                        for index in indexes
                    ],
                )
            ],
            forgotten_topics_data=[],
            rack_id="",
            min_version=_FETCH_VERSION,
            max_version=_FETCH_VERSION,
        )

    def _taken(self, part: Any) -> Iterator[ControlRecord]:
        """The records of one partition in an answer; its position moves behind them."""
        foreign = self._cluster.config.foreign
        try:
            for record in self._decoded(part):
                self._held_bytes += RECORD_COST + len(record.key or b"") + len(record.value or b"")
                if foreign and self._held_bytes > MAX_FOREIGN:
                    raise self._too_much(f"its records exceed {MAX_FOREIGN} bytes")
                yield record
        except TooLong as error:
            raise self._too_much(error.message) from error

    def _too_much(self, reason: str) -> UserError:
        return UserError(
            f"cannot read the control topic: {reason}",
            cluster=self._cluster.name,
            topic=self._topic,
            hint="only twinlog may write to it",
        )

    def _decoded(self, part: Any) -> Iterator[ControlRecord]:
        index = part.partition_index
        aborted = (
            AbortedTransaction(transaction.producer_id, transaction.first_offset)
            for transaction in part.aborted_transactions or ()
        )
        buffer, position = memoryview(part.records or b""), Offset(self.positions[index])
        pieces, epoch = plan_with_epoch(buffer, position, aborted, MAX_DECODED)
        for piece in pieces:
            if isinstance(piece, Data):
                for raw in each_record(piece.header, piece.records, MAX_DECODED):
                    record = decode(raw)
                    yield ControlRecord(
                        index, record.offset, record.timestamp, record.key, record.value
                    )
        if pieces:
            self.positions[index] = pieces[-1].end
            self._epochs[index].learn(pieces[-1].end, epoch)


def _diverges(epoch: Any) -> bool:
    """Whether the log diverges from what was read; otherwise brokers leave the epoch out."""
    return epoch is not None and bool(epoch.end_offset >= 0)


class _Patience:
    """The time limit for consecutive failures, and the backoff between them."""

    def __init__(self, cluster: KafkaCluster) -> None:
        config = cluster.config
        self._limit = config.api_timeout
        self._backoff = Backoff(min(config.retry_backoff, 0.05), config.retry_backoff_max)
        self._rng = cluster.rng
        self._failures = 0
        self._first_failure_at = 0.0

    def reset(self) -> None:
        """Note that a broker has answered."""
        self._failures = 0

    async def pause(self, error: TwinlogError) -> None:
        """Wait before the next try, or raise `error` if failures have lasted too long."""
        now = asyncio.get_running_loop().time()
        if not self._failures:
            self._first_failure_at = now
        if (
            not isinstance(error, Retriable | ProtocolError)
            or now > self._first_failure_at + self._limit
        ):
            raise error
        self._failures += 1
        await asyncio.sleep(self._backoff.delay(self._failures, self._rng.random()))


def _granted(answers: Answers[ListedOffset], action: str) -> Iterator[tuple[int, int]]:
    for (topic, index), answer in answers.items():
        if isinstance(answer, Refusal):
            if (
                answer.reaction in {Reaction.RETRY, Reaction.METADATA}
                or answer.code == ErrorCode.NETWORK_EXCEPTION
            ):
                raise Retriable(f"cannot {action}: {answer}", topic=topic, partition=index)
            answer.fail(action, topic=topic, partition=index)
        else:
            yield index, answer.offset
