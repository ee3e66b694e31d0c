"""Reads one partition's log for a check: bytes, or a reason why there are none.

The mirror reads many partitions in one request and in a session. A check must not repeat the
mirror's oversights, so this reader has its own requests: kafka-python's Fetch message, one
partition in each, without a session. It shares with the mirror only the connections
(`kafka/client/cluster.py`) and, through `verify/log_view.py`, the batch format.
So it stays beside kafka/log_reader.py, which the mirror uses: `pyproject.toml` forbids its import.

An answer without bytes proves nothing: the client may exceed a quota, another replica may be
preferred, a remote read may have timed out. So the reader retries until `patience` seconds have
passed without any progress. Each retry requests fewer bytes (more if the answer ended within a
batch): a small remote read ends in time, and a broker returns one whole batch in any case. The
offsets that are left are *not seen*, with the last reason. Only one cause makes offsets absent
without bytes: they are below the log start offset, which the leader reports.
"""

import asyncio
from collections.abc import Collection
from typing import Any, Final, NamedTuple
from uuid import UUID

from kafka.protocol.consumer import FetchRequest

from twinlog.kafka.backoff import Backoff
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.metadata import NO_TOPIC_ID, Leader
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import CorruptBatch, Reaction, Refusal, TwinlogError
from twinlog.kafka.requests.partitions import Isolation, OffsetSpec, list_offsets
from twinlog.kafka.types import LogBounds, TopicPartition
from twinlog.verify.log_view import Kind, Span, spans

PATIENCE_S: Final = 60.0
"""Seconds of retries for an offset without any progress."""
READ_BYTES: Final = 4 << 20
"""Bytes of the first request; a broker returns at least one whole batch."""
MIN_READ_BYTES: Final = 64 << 10
MAX_READ_BYTES: Final = 64 << 20

READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1

_LANE: Final = "check"
_MAX_WAIT_MS: Final = 500
_BACKOFF: Final = Backoff(0.1, 0.5)
_BEFORE_IDS: Final = 12
_NO_REPLICA: Final = -1


class Bytes(NamedTuple):
    """An answer's record batches, and the aborted transactions that it lists."""

    records: memoryview
    aborted: tuple[tuple[int, int], ...]


class BelowLogStart(NamedTuple):
    """The log start offset is `start`, above the requested offset."""

    start: int


class Nothing(NamedTuple):
    """No bytes, and why; `final`: a retry does not help; `cut`: less than one batch."""

    reason: str
    final: bool = False
    cut: bool = False


class LogReader:
    """Reads one partition of a cluster, from any offset on, in order of offset.

    Args:
        cluster: the cluster.
        partition: the partition.
        isolation: whether aborted transactions are listed.
        topic_id: the id of the only topic to read; by default, the id at the first request.
        patience: seconds of retries for an offset without any progress.
    """

    def __init__(
        self,
        cluster: KafkaCluster,
        partition: TopicPartition,
        *,
        isolation: int = READ_COMMITTED,
        topic_id: UUID = NO_TOPIC_ID,
        patience: float = PATIENCE_S,
    ) -> None:
        self._cluster = cluster
        self._partition = partition
        self._isolation = isolation
        self._patience = patience
        self._topic_id = topic_id
        self._replica = _NO_REPLICA
        self._spans: list[Span] = []

    async def span(self, at: int, end: int) -> Span:
        """What the log holds at `at`.

        Args:
            at: an offset, not below the one of the last call.
            end: the end of the range to read; an unseen span reaches up to it.
        """
        while self._spans and self._spans[0].end <= at:
            self._spans.pop(0)
        if not self._spans or self._spans[0].start > at:
            self._spans = await self._read(at, end)
        return self._spans[0]

    async def _read(self, at: int, end: int) -> list[Span]:
        chunk = await self.chunk(at)
        if isinstance(chunk, BelowLogStart):
            return [Span(at, chunk.start, Kind.BELOW)]
        if isinstance(chunk, Nothing):
            return [Span(at, end, Kind.UNSEEN, reason=chunk.reason)]
        return spans(chunk.records, at, chunk.aborted)

    async def log_start(self) -> int | None:
        """The log start offset now, if the leader reports it."""
        answer = (await list_offsets(self._cluster, [self._partition], OffsetSpec.EARLIEST)).get(
            self._partition
        )
        return None if answer is None or isinstance(answer, Refusal) else answer.offset

    async def chunk(self, at: int) -> Bytes | BelowLogStart | Nothing:
        """The log's bytes from `at` on, with at least one complete batch that reaches beyond it."""
        clock = asyncio.get_running_loop().time
        deadline, size, tries = clock() + self._patience, READ_BYTES, 0
        earlier = ""
        while True:
            answer = await self._try(at, size, deadline)
            tries += 1
            if not isinstance(answer, Nothing):
                return answer
            if answer.final or clock() >= deadline:
                return Nothing(f"{answer.reason}{earlier} ({tries} tries)", final=True)
            earlier = f"; before: {answer.reason}"
            size = min(size * 2, MAX_READ_BYTES) if answer.cut else max(size // 4, MIN_READ_BYTES)
            await asyncio.sleep(_BACKOFF.delay(tries + 1))

    async def _try(self, at: int, size: int, deadline: float) -> Bytes | BelowLogStart | Nothing:
        try:
            async with asyncio.timeout_at(deadline):
                answer = await self._ask(at, size)
            if isinstance(answer, Bytes) and not spans(answer.records, at, answer.aborted):
                size = len(answer.records)
                return Nothing(f"a response of {size} bytes ends within a batch", cut=True)
        except TimeoutError:
            return Nothing(
                f"no response within {self._patience:g} s: the broker hangs or throttles"
            )
        except CorruptBatch as error:
            return Nothing(error.message)
        except TwinlogError as error:
            self._replica = _NO_REPLICA
            return Nothing(str(error))
        return answer

    async def _ask(self, at: int, size: int) -> Bytes | BelowLogStart | Nothing:
        leader = await self._leader()
        if isinstance(leader, Refusal):
            return Nothing(str(leader), final=leader.reaction is Reaction.USER)
        node = leader.node_id if self._replica == _NO_REPLICA else self._replica
        connection = await self._cluster.connection(node, _LANE)
        await connection.ready()
        response = await connection.call(self._request(at, size, leader.epoch))
        if response.error_code:
            return Nothing(f"Fetch: {Refusal(response.error_code)}")
        for topic in response.responses or ():
            for part in topic.partitions:
                if part.partition_index == self._partition.partition:
                    return await self._judge(at, part, response.throttle_time_ms)
        if response.throttle_time_ms > 0:
            return Nothing(f"throttled by a quota for {response.throttle_time_ms} ms")
        return Nothing("the partition is missing in the broker's response")

    async def _leader(self) -> Leader | Refusal:
        """The leader. The topic id of the first call is kept, so a recreated topic is not read."""
        name = self._partition.topic
        leader = (await self._cluster.leaders([self._partition]))[self._partition]
        topic = self._cluster.metadata.topics.get(name)
        if isinstance(leader, Refusal) or topic is None:
            await self._cluster.refresh({name})
            return (
                leader
                if isinstance(leader, Refusal)
                else Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            )
        if self._topic_id == NO_TOPIC_ID:
            self._topic_id = topic.topic_id
        return leader

    def _request(self, at: int, size: int, epoch: int) -> FetchRequest:
        topic = FetchRequest.FetchTopic
        partition = topic.FetchPartition(
            partition=self._partition.partition,
            current_leader_epoch=epoch if self._replica == _NO_REPLICA else -1,
            fetch_offset=at,
            partition_max_bytes=size,
        )
        versions = {} if self._topic_id != NO_TOPIC_ID else {"max_version": _BEFORE_IDS}
        return FetchRequest(
            replica_id=-1,
            max_wait_ms=_MAX_WAIT_MS,
            min_bytes=1,
            max_bytes=size,
            isolation_level=self._isolation,
            session_id=0,
            session_epoch=-1,
            topics=[
                topic(topic=self._partition.topic, topic_id=self._topic_id, partitions=[partition])
            ],
            forgotten_topics_data=[],
            rack_id="",
            min_version=4,
            **versions,
        )

    async def _judge(self, at: int, part: Any, throttle_ms: int) -> Bytes | BelowLogStart | Nothing:
        """What the answer for one partition proves."""
        if part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            return await self._out_of_range(at)
        if part.error_code:
            refusal = Refusal(part.error_code)
            self._replica = _NO_REPLICA
            await self._cluster.refresh({self._partition.topic})
            return Nothing(f"Fetch: {refusal}", final=refusal.reaction is Reaction.USER)
        if part.records:
            aborted = tuple(
                (transaction.producer_id, transaction.first_offset)
                for transaction in part.aborted_transactions or ()
            )
            return Bytes(memoryview(part.records), aborted)
        preferred = getattr(part, "preferred_read_replica", _NO_REPLICA)
        if preferred is not None and preferred >= 0:
            self._replica = preferred
            return Nothing(f"the leader redirects fetches to replica {preferred}")
        throttled = f"throttled by a quota for {throttle_ms} ms; " if throttle_ms else ""
        return Nothing(
            f"{throttled}responses without records, although the log start offset is "
            f"{part.log_start_offset} and the last stable offset {part.last_stable_offset}"
        )

    async def _out_of_range(self, at: int) -> BelowLogStart | Nothing:
        """The log start offset has moved (retention, DeleteRecords), or the log was truncated."""
        self._replica = _NO_REPLICA
        start = await self.log_start()
        if start is None:
            return Nothing("OFFSET_OUT_OF_RANGE (1), and the log start offset cannot be read")
        if start > at:
            return BelowLogStart(start)
        return Nothing(f"OFFSET_OUT_OF_RANGE (1) at {at}, although the log start offset is {start}")


async def read_bounds(
    cluster: KafkaCluster, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, LogBounds]:
    """Log start offsets, high watermarks and last stable offsets, read in a safe order.

    The end is read before the start: both only move forward.
    """
    partition_list = list(partitions)
    answers = [
        await list_offsets(cluster, partition_list, isolation=Isolation.READ_COMMITTED),
        await list_offsets(cluster, partition_list),
        await list_offsets(cluster, partition_list, OffsetSpec.EARLIEST),
    ]
    bounds = {}
    for partition in partition_list:
        offsets: list[int] = []
        code = 0
        for answer in (offsets[partition] for offsets in answers):
            if isinstance(answer, Refusal):
                code = answer.code
            else:
                offsets.append(answer.offset)
        if code:
            bounds[partition] = LogBounds(code, -1, -1, -1)
        else:
            last_stable, high_watermark, start = offsets
            bounds[partition] = LogBounds(
                0, start, max(high_watermark, start), max(last_stable, start)
            )
    return bounds
