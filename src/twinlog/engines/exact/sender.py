"""Sends the batches of partitions: one request holds one batch of each of many partitions.

Each destination broker has a set of partitions with a batch to send, and several requests in
flight. A partition that was served moves to the end of its broker's set, so each gets its turn.
"""

from collections import defaultdict
from collections.abc import Awaitable, Mapping

from twinlog.engines.exact.events import BatchAnswered, BatchLost, BatchNotSent, LeadersDoubted
from twinlog.engines.exact.partition import ExactPartition
from twinlog.engines.exact.plane import Plane
from twinlog.engines.exact.ports import Appended, Batch
from twinlog.kafka.errors import Disconnected, Fenced, Retriable
from twinlog.kafka.log.batch import patched_header
from twinlog.kafka.types import TopicPartition


class Sender:
    """The batches to send, by destination broker."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._ready: defaultdict[int, dict[ExactPartition, None]] = defaultdict(dict)
        self._in_flight: defaultdict[int, int] = defaultdict(int)

    def want(self, partition: ExactPartition) -> None:
        """Send its next batch when its broker's turn comes."""
        self._ready[partition.destination_node][partition] = None

    def forget(self, partition: ExactPartition) -> None:
        """Do not send its next batch."""
        for ready in self._ready.values():
            ready.pop(partition, None)

    def pump(self, node: int) -> None:
        """Send the ready batches of one destination broker, several requests at a time."""
        ready = self._ready[node]
        while ready and self._in_flight[node] < self._plane.settings.produce_in_flight:
            batches, owners = self._next_request(ready)
            if not batches:
                return
            self._in_flight[node] += 1
            answers = self._plane.destination.produce(node, batches)
            self._plane.start(self._answer(node, owners, answers), about=owners)

    def _next_request(
        self, ready: dict[ExactPartition, None]
    ) -> tuple[list[Batch], list[ExactPartition]]:
        """Take one batch of each ready partition, as many as the request may hold."""
        room, fresh_after_ms = self._plane.settings.produce_max_bytes, self._plane.fresh_after_ms()
        batches: list[Batch] = []
        owners: list[ExactPartition] = []
        for partition in list(ready):
            del ready[partition]
            outgoing = partition.append.take(fresh_after_ms)
            if outgoing is None:
                continue
            ready[partition] = None
            data, producer_id, epoch, sequence = outgoing
            header = patched_header(data.header, data.records, producer_id, epoch, sequence)
            batches.append(Batch(partition.key, header, data.records))
            owners.append(partition)
            room -= data.size
            if room <= 0:
                break
        return batches, owners

    async def _answer(
        self,
        node: int,
        owners: list[ExactPartition],
        request: Awaitable[Mapping[TopicPartition, Appended]],
    ) -> None:
        """Report the outcome of one Produce request.

        Raises:
            Fenced: the lane may not write any more.
        """
        emit = self._plane.emit
        fenced: Fenced | None = None
        try:
            answers = await request
        except Disconnected as error:
            for partition in owners:
                emit(partition, LeadersDoubted())
                emit(partition, BatchLost(f"no answer to an append: {error}"))
        except (Fenced, Retriable) as error:
            # Not sent: the broker may be down; metadata is refreshed to find the new leader.
            fenced = error if isinstance(error, Fenced) else None
            for partition in owners:
                emit(partition, LeadersDoubted())
                emit(partition, BatchNotSent(f"an append was not sent: {error}"))
        else:
            for partition in owners:
                answer = answers.get(partition.key)
                lost = BatchLost("the Produce response does not contain this partition")
                emit(partition, lost if answer is None else BatchAnswered(answer))
        finally:
            self._in_flight[node] -= 1
        self._plane.answered()
        self.pump(node)
        if fenced is not None:
            raise fenced
