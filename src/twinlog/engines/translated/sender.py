"""Sends the planned batches of a flow: one request holds one batch of each of many partitions."""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Final

from twinlog.engines.destination.given_requests import GivenRequests
from twinlog.engines.ports import Appended, Batch, DestinationPort
from twinlog.engines.translated.partitions import (
    LACKS_REPLICAS,
    TOO_LARGE,
    FlowPartition,
    FlowPartitions,
)
from twinlog.engines.translated.sequence import NumberedBatch, PartitionSequence
from twinlog.engines.translated.writers import FlowWriters
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Fenced, Refusal, Retriable
from twinlog.kafka.log.batch import patched_header
from twinlog.kafka.types import Offset, TopicPartition
from twinlog.mirror.sequence_plan import Contradiction

_READ_AGAIN_S: Final = 10.0
"""When dropped data of a blocked partition is read again, to try whether it is accepted."""
_MAX_REFUSALS: Final = 5
"""The refusals after which the pause, 1 to 2 s, does not grow any more: a request is one batch."""

_Partition = FlowPartition[FlowWriters, PartitionSequence]
_Owners = list[tuple[_Partition, PartitionSequence, NumberedBatch]]


class FlowSender:
    """The appends of a flow.

    Args:
        flow: its partitions.
        destination: where they are written.
        start: runs a task in the background.
        brokers_time_ms: the destination's clock.
    """

    def __init__(
        self,
        flow: FlowPartitions[FlowWriters, PartitionSequence],
        destination: DestinationPort,
        start: Callable[[Coroutine[object, object, None]], object],
        brokers_time_ms: Callable[[], int],
    ) -> None:
        self._flow = flow
        self._destination = destination
        self._start = start
        self._brokers_time_ms = brokers_time_ms
        self._in_flight: defaultdict[int, int] = defaultdict(int)
        self._requests = GivenRequests()
        self._first = 0  # the partition that comes first in the next request: each has its turn

    def send(self, node: int) -> None:
        """Send the next batches of one broker, several requests at a time."""
        settings = self._flow.settings
        fresh_after_ms = self._brokers_time_ms() - settings.producer_expiration_ms // 2
        while self._in_flight[node] < settings.produce_in_flight:
            batches, owners = self._next_request(node, fresh_after_ms)
            if not batches:
                return
            self._in_flight[node] += 1
            # Called here, not in the task: requests arrive in the order of the calls.
            answers = self._requests.add(self._destination.produce(node, batches))
            self._start(self._answer(node, answers, owners))

    def withdraw(self) -> None:
        """Send nothing of what still waits: the engine has ended."""
        self._requests.withdraw()

    def make_room(self) -> None:
        """Drop what blocked partitions hold beyond their share of the buffer.

        Of those that lack replicas, only what was refused just now: each one that is read again is
        tried once before it may be dropped again.
        """
        now, room = self._flow.now(), self._flow.blocked_room
        for partition, sequence in self._flow.copying:
            if room > 0:
                return
            if partition.destination_node < 0 or (partition.refusals and now < partition.send_at):
                dropped = sequence.drop()
                if dropped:
                    room += dropped
                    partition.doubted, partition.read_at = (), now + _READ_AGAIN_S

    def _next_request(self, node: int, fresh_after_ms: int) -> tuple[list[Batch], _Owners]:
        batches: list[Batch] = []
        owners: _Owners = []
        room = self._flow.settings.produce_max_bytes
        now, copying = self._flow.now(), self._flow.copying
        self._first = (self._first + 1) % max(len(copying), 1)
        keys: set[TopicPartition] = set()  # a request has one batch for each
        for partition, sequence in (*copying[self._first :], *copying[: self._first]):
            if partition.destination_node != node or room <= 0 or partition.destination in keys:
                continue
            if now < partition.send_at:
                continue
            assignment = partition.assignment
            if not self._destination.appends_to(
                partition.destination.topic, assignment.destination_topic_id
            ):
                # Another flow of the lane has seen that the topic was recreated: this one looks.
                # Until then the partition has no leader, so that the engine waits.
                partition.destination_node = -1
                self._flow.ask_leaders(failures=1)
                continue
            # Answers of two brokers have no order: what is in flight to the former leader comes
            # first.
            if partition.in_flight and partition.sent_to != node:
                continue
            guarded = now >= partition.unguarded_until
            if (numbered := sequence.take(fresh_after_ms, guarded=guarded)) is None:
                continue
            data = numbered.data
            writer = sequence.producer_id, sequence.epoch
            header = patched_header(data.header, data.records, *writer, numbered.sequence)
            batches.append(Batch(partition.destination, header, data.records))
            owners.append((partition, sequence, numbered))
            keys.add(partition.destination)
            partition.in_flight += 1
            partition.sent_to = node
            room -= data.size
        return batches, owners

    async def _answer(
        self,
        node: int,
        request: Awaitable[Mapping[TopicPartition, Appended]],
        owners: _Owners,
    ) -> None:
        """Take the outcome of one request.

        Raises:
            Fenced: the lane may not write any more.
        """
        answers: Mapping[TopicPartition, Appended] = {}
        trouble = "the Produce response does not contain this partition"
        try:
            answers = await request
        except Fenced:
            raise
        except Retriable as error:
            trouble = f"no answer to an append: {error}"
            unguarded_until = self._flow.now() + self._flow.settings.lease_s
            for partition, _, _ in owners:
                partition.unguarded_until = unguarded_until
            self._flow.ask_leaders()
        finally:
            self._requests.end(request)
            self._in_flight[node] -= 1
            for partition, _, _ in owners:
                partition.in_flight -= 1
            self._flow.changed.set()
        for partition, sequence, numbered in owners:
            if not partition.has(sequence):
                continue  # it is located again: the log shows whether this has landed
            answer = answers.get(partition.destination)
            if answer is None:
                self._flow.trouble(partition, trouble)
            elif answer.error == ErrorCode.NOT_ENOUGH_REPLICAS:
                self._refused(partition, sequence, numbered)
            elif answer.error:
                if answer.error in TOO_LARGE:
                    partition.note_too_large(numbered.data.size, self._flow.now())
                self._flow.ask_leaders()
                self._flow.trouble(partition, f"an append was refused: {Refusal(answer.error)}")
            else:
                self._landed(partition, sequence, numbered, Offset(answer.base_offset))

    def _refused(
        self, partition: _Partition, sequence: PartitionSequence, numbered: NumberedBatch
    ) -> None:
        """Send a batch again later: it was not appended, as too few replicas are in sync.

        The partition is not located again. Its fence would wait for the replicas, and those of all
        partitions of its state partition with it.
        """
        try:
            sequence.refused(numbered)
        except Contradiction as error:
            self._flow.trouble(partition, str(error))
            return
        partition.refusals += 1
        pause = self._flow.pause(min(partition.refusals, _MAX_REFUSALS))
        partition.send_at = self._flow.now() + pause
        partition.held_back = LACKS_REPLICAS
        self._flow.news.add(partition.assignment.state_partition)

    def _landed(
        self,
        partition: _Partition,
        sequence: PartitionSequence,
        numbered: NumberedBatch,
        base_offset: Offset,
    ) -> None:
        try:
            data = sequence.answered(numbered, base_offset)
        except Contradiction as error:
            self._flow.trouble(partition, str(error))
            return
        if partition.refusals:
            partition.refusals, partition.held_back = 0, None
        partition.failures = 0
        partition.records += data.header.num_records
        partition.bytes += data.size
        partition.note_lag(self._flow.now())
        self._flow.news.add(partition.assignment.state_partition)
