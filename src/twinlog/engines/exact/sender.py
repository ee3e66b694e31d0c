"""Sends the batches of partitions: one request holds one batch of each of many partitions.

Each destination broker has a set of partitions with a batch to send, and several requests in
flight. A partition that was served moves to the end of its broker's set, so each gets its turn.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from typing import Final

from twinlog.engines.destination.given_requests import GivenRequests
from twinlog.engines.exact.events import BatchAnswered, BatchLost, BatchNotSent, LeadersDoubted
from twinlog.engines.exact.partition import ExactPartition
from twinlog.engines.exact.plane import Plane
from twinlog.engines.ports import Appended, Batch
from twinlog.kafka.errors import Disconnected, Fenced, Retriable
from twinlog.kafka.log.batch import patched_header
from twinlog.kafka.types import TopicPartition
from twinlog.mirror.plan import Data

GATHER_S: Final = 0.002
"""Seconds that gaps wait for others whose batches are in flight: about one answer of a broker that
is near. With a distant one, round trips are the limit, and not the number of requests.
"""


class Sender:
    """The batches to send, by destination broker."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._ready: defaultdict[int, dict[ExactPartition, None]] = defaultdict(dict)
        self._in_flight: defaultdict[int, int] = defaultdict(int)
        self._before_gaps: defaultdict[int, int] = defaultdict(int)  # those with such a batch
        self._answer_events: defaultdict[int, asyncio.Event] = defaultdict(asyncio.Event)
        self._requests = GivenRequests()

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
            batches, owners, before_gap = self._next_request(ready)
            if not batches:
                return
            self._in_flight[node] += 1
            self._before_gaps[node] += before_gap
            answers = self._requests.add(self._plane.destination.produce(node, batches))
            answer = self._answer(node, owners, answers, before_gap=before_gap)
            self._plane.start(answer, about=owners)

    def withdraw(self) -> None:
        """Send nothing of what still waits: the engine has ended."""
        self._requests.withdraw()

    async def gather_gaps(self, node: int) -> None:
        """Wait until gaps are ready that wait for an answer of this broker, for a moment at most.

        They share the next request for control records then. Without that, two groups of partitions
        take turns, one with data and one with gaps in flight, and each request has half of them.
        """
        if not self._before_gaps[node]:
            return  # the timeout below is a timer of the event loop
        event = self._answer_events[node]
        with suppress(TimeoutError):
            async with asyncio.timeout(GATHER_S):
                while self._before_gaps[node]:
                    event.clear()
                    await event.wait()

    def _next_request(
        self, ready: dict[ExactPartition, None]
    ) -> tuple[list[Batch], list[ExactPartition], bool]:
        """Take one batch of each ready partition, as many as the request may hold.

        Returns:
            The batches, their partitions, and whether a gap follows one of the batches.
        """
        room, fresh_after_ms = self._plane.settings.produce_max_bytes, self._plane.fresh_after_ms()
        now = self._plane.now()
        batches: list[Batch] = []
        owners: list[ExactPartition] = []
        before_gaps = False
        for partition in list(ready):
            del ready[partition]
            outgoing = partition.append.take(fresh_after_ms)
            if outgoing is None:
                continue
            data, producer_id, epoch, sequence, next_piece = outgoing
            if isinstance(next_piece, Data):
                ready[partition] = None
            elif next_piece is not None:
                before_gaps = True
                partition.gap_begins(now)
            header = patched_header(data.header, data.records, producer_id, epoch, sequence)
            batches.append(Batch(partition.key, header, data.records))
            owners.append(partition)
            room -= data.size
            if room <= 0:
                break
        return batches, owners, before_gaps

    async def _answer(
        self,
        node: int,
        owners: list[ExactPartition],
        request: Awaitable[Mapping[TopicPartition, Appended]],
        *,
        before_gap: bool,
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
            self._plane.emit_all(
                (partition, _outcome(answers.get(partition.key))) for partition in owners
            )
        finally:
            self._requests.end(request)
            self._in_flight[node] -= 1
            self._before_gaps[node] -= before_gap
            self._answer_events[node].set()
        self._plane.answered()
        self.pump(node)
        if fenced is not None:
            raise fenced


def _outcome(answer: Appended | None) -> BatchAnswered | BatchLost:
    if answer is None:
        return BatchLost("the Produce response does not contain this partition")
    return BatchAnswered(answer)
