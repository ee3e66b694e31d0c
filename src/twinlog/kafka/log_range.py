"""Reads a range of a partition once, from any offset; without session and state."""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from typing import Final, Protocol

from twinlog.kafka.errors import Reaction, Refusal, Retriable
from twinlog.kafka.protocol.fetch import Fetched
from twinlog.kafka.types import TopicPartition

READ_BYTES: Final = 4 * 1024 * 1024
READ_TRIES: Final = 50


class RangeReader(Protocol):
    """A reader of a cluster's logs: as consumers see them (`KafkaSource`), or unfiltered."""

    async def leaders(self, topics: Collection[str]) -> object:
        """Refresh the leaders of these topics' partitions."""

    async def read(
        self, partitions: Mapping[TopicPartition, int], *, partition_max_bytes: int
    ) -> Mapping[TopicPartition, Fetched]:
        """Read the partitions once at these offsets."""


async def answers(
    reader: RangeReader, partition: TopicPartition, start: int
) -> AsyncIterator[Fetched]:
    """Answers without an error at this offset, a bounded number of times.

    Args:
        reader: it knows the topic's leaders.
        partition: the partition to read.
        start: the offset.

    Raises:
        UserError: a right is missing.
        Retriable: no answer satisfied the caller.
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
        elif attempt:  # not after the first try: the caller has refreshed the leaders
            await reader.leaders({partition.topic})
        await asyncio.sleep(min(0.05 * attempt, 1.0))
    raise Retriable(
        f"cannot read the log at offset {start}",
        topic=partition.topic,
        partition=partition.partition,
    )
