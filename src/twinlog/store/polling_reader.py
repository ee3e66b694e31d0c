"""The current content of a control topic, for callers that poll it.

The first read covers the whole topic, each later read only newer records. So a poll each second
costs Metadata and ListOffsets requests and, mostly, nothing more, however many mirrors there are.

A read ends at the log's end at the time of the call (`Tail.catch_up`), so a caller finds everything
that it wrote before. The reader drops what it has read, and reads the whole topic again,

- when the topic was recreated (its id has changed),
- when its log has lost its end (`Tail.restarts`),
- after an error.

A topic that one broker does not know is not absent: the broker may have just started. Only if no
broker knows it, its content is empty.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar
from uuid import UUID

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.metadata import is_another
from twinlog.kafka.errors import ControlTopicLost, Refusal
from twinlog.kafka.requests.topics import confirm_absent
from twinlog.store.topic_reader import ControlRecord, Tail

T = TypeVar("T")
Fold = Callable[[Sequence[ControlRecord], T], T]
Begin = Callable[[Tail], Awaitable[None]]


async def at_the_start(tail: Tail) -> None:
    """Read a topic from its partitions' log start offsets."""
    tail.positions = await tail.starts()


async def at_the_last(tail: Tail) -> None:
    """Read a topic from each partition's last record, for topics with one key in each."""
    ends, starts = await tail.ends(), await tail.starts()
    tail.positions = {index: max(starts[index], end - 1) for index, end in ends.items()}


class ControlReader(Generic[T]):
    """Reads one control topic.

    Args:
        cluster: the cluster that has the topic.
        topic: the topic's name.
        fold: the content after some records, which are in each partition's order.
        empty: the content before the first record, and if the topic does not exist.
        begin: where to begin.
        missing: called if the topic does not exist; it may refuse that by raising. With it, the
            topic must not be lost: deleting, recreating or truncating it while it is being read
            is an error, since what was read may no longer hold.
    """

    def __init__(
        self,
        cluster: KafkaCluster,
        topic: str,
        fold: Fold[T],
        empty: T,
        begin: Begin = at_the_start,
        *,
        on_missing: Callable[[KafkaCluster], Awaitable[None]] | None = None,
    ) -> None:
        self.partitions: int | None = None
        """How many the topic had at the last read; None if it did not exist."""
        self._cluster = cluster
        self._topic = topic
        self._fold = fold
        self._empty = self._content = empty
        self._begin = begin
        self._on_missing = on_missing
        self._tail: Tail | None = None
        self._topic_id: UUID | None = None
        self._read_lock = asyncio.Lock()  # guards the tail and what is known

    async def read(self) -> T:
        """Read the topic's current content.

        Raises:
            Retriable, UserError: see `Tail.catch_up`; no right to see the topic; only some brokers
                know it.
        """
        async with self._read_lock:
            try:
                return await self._read()
            except BaseException:
                self._forget()
                raise

    async def _read(self) -> T:
        metadata = await self._cluster.refresh([self._topic])
        topic = metadata.topics.get(self._topic)
        if topic is None:
            self._forget()
            if self._on_missing is not None:
                await self._on_missing(self._cluster)
            await confirm_absent(self._cluster, self._topic)
            return self._empty
        if topic.error:
            with self._cluster.needing("READ", f"the topic {self._topic}"):
                Refusal(topic.error).fail("describe the control topic", topic=self._topic)
        self.partitions = len(topic.partitions)
        if is_another(self._topic_id, topic.topic_id):
            self._lost("was deleted and recreated")
        if self._tail is None or is_another(self._topic_id, topic.topic_id):
            return await self._read_whole(topic.topic_id)
        restarts = self._tail.restarts
        records = await self._catch_up(self._tail)
        if self._tail.restarts != restarts:
            self._lost("has lost records that were read (an unclean leader election?)")
            return await self._read_whole(topic.topic_id)
        if records:
            self._content = self._fold(records, self._content)
        return self._content

    def _lost(self, loss: str) -> None:
        if self._on_missing is not None:
            raise ControlTopicLost(
                f"the control topic {self._topic} {loss}",
                cluster=self._cluster.name,
                hint='its remaining records are not used: see "A lost control topic" in '
                "docs/operations/control-topics.md",
            )

    async def _read_whole(self, topic_id: UUID) -> T:
        self._forget()
        tail = Tail(self._cluster, self._topic)
        await self._begin(tail)
        self._content = self._fold(await self._catch_up(tail), self._empty)
        self._tail, self._topic_id = tail, topic_id
        self.partitions = len(tail.positions)
        return self._content

    @staticmethod
    async def _catch_up(tail: Tail) -> list[ControlRecord]:
        try:
            return await tail.catch_up()
        finally:
            await tail.close()

    def _forget(self) -> None:
        self._tail, self._content, self.partitions = None, self._empty, None
