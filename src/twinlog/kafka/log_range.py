"""Reading a stretch of a partition once, from wherever it stands; no session, no state."""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from typing import Final, Protocol

from twinlog.kafka.errors import Reaction, Refusal, Retriable
from twinlog.kafka.protocol.fetch import Fetched
from twinlog.kafka.types import TopicPartition

READ_BYTES: Final = 4 * 1024 * 1024
READ_TRIES: Final = 50


class Reader(Protocol):
    """A cluster's logs, read as their consumers (`KafkaSource`) or as they are."""

    async def leaders(self, topics: Collection[str]) -> object:
        """Ask anew who leads these topics' partitions."""

    async def read(
        self, partitions: Mapping[TopicPartition, int], *, partition_max_bytes: int
    ) -> Mapping[TopicPartition, Fetched]:
        """What stands at these offsets now."""


async def answers(reader: Reader, partition: TopicPartition, start: int) -> AsyncIterator[Fetched]:
    """What is answered at this offset, without an error, a bounded number of times.

    Args:
        reader: has been told of the topic's leaders.
        partition: which.
        start: the offset.

    Raises:
        UserError: a right is missing.
        Retriable: no answer was what the caller has been waiting for.
    """
    for attempt in range(READ_TRIES):
        try:
            found = await reader.read({partition: start}, partition_max_bytes=READ_BYTES)
        except Retriable:
            found = {}
        answer = found.get(partition)
        if answer is not None and not answer.error:
            yield answer
        elif answer is not None and Refusal(answer.error).reaction is Reaction.USER:
            Refusal(answer.error).fail("read the log", topic=partition.topic)
        elif attempt:
            await reader.leaders({partition.topic})
        await asyncio.sleep(min(0.05 * attempt, 1.0))
    raise Retriable(
        f"the log cannot be read at offset {start}",
        topic=partition.topic,
        partition=partition.partition,
    )
