"""Twin of twinlog.engines.exact.foreign: where the search may end, and where not."""

import asyncio
from collections.abc import Collection, Mapping
from typing import Final

import pytest
from batch_builders import batch, record

from twinlog.engines.exact.append import MAX_IN_FLIGHT
from twinlog.engines.exact.foreign import Foreign, Searched, find_foreign
from twinlog.kafka.protocol.fetch import Fetched
from twinlog.kafka.types import LogBounds, TopicPartition

KEY: Final = TopicPartition("t", 0)
OURS: Final = 7
FOREIGN: Final = 99


class Log:
    """A log that answers with one batch at a time, as brokers do with large batches."""

    def __init__(self) -> None:
        self.end = 0
        self.stored: list[tuple[int, bytes]] = []

    def write(self, producer_id: int, count: int, size: int = 10) -> "Log":
        """Append a batch."""
        offsets = range(self.end, self.end + count)
        records = [record(offset, value=b"v" * size) for offset in offsets]
        self.end += count
        self.stored.append((self.end, batch(records, producer_id=producer_id)))
        return self

    async def bounds(self, _: Collection[TopicPartition]) -> Mapping[TopicPartition, LogBounds]:
        return {KEY: LogBounds(0, 0, self.end, self.end)}

    async def read(
        self, partitions: Mapping[TopicPartition, int], *, partition_max_bytes: int
    ) -> Mapping[TopicPartition, Fetched]:
        del partition_max_bytes
        data = next(data for end, data in self.stored if end > partitions[KEY])
        return {KEY: Fetched(0, self.end, self.end, 0, (), memoryview(data))}

    def search(self, known: int) -> Foreign | None:
        """Return the foreign record that is found above this offset."""
        where, bounds = Searched(known, self.end, {OURS}), LogBounds(0, 0, self.end, self.end)
        found = asyncio.run(find_foreign(self, KEY, where, bounds))
        assert found is None or isinstance(found, Foreign)
        return found


@pytest.mark.parametrize(("count", "size"), [(2000, 10), (2000, 200), (150_000, 1)])
def test_a_foreign_record_is_found_below_a_batch_that_was_in_flight(count: int, size: int) -> None:
    """Goal: a foreign record is found below one batch of the mirror, of any size.

    That batch was in flight when the foreign record landed, and is one offset too far.
    """
    log = Log().write(OURS, 5000).write(FOREIGN, 1).write(OURS, count, size)
    found = log.search(known=5000)
    assert found is not None
    assert (found.start, found.records, found.producers) == (5000, 1, (FOREIGN,))


def test_the_search_ends_at_more_batches_than_can_be_in_flight() -> None:
    """Goal: the search ends where so many mirror batches follow one another; not all is read."""
    log = Log()
    for _ in range(10 * MAX_IN_FLIGHT):
        log.write(OURS, 300)
    first = log.stored[0][1]
    asked: list[bytes] = []
    read = log.read

    async def noting(
        partitions: Mapping[TopicPartition, int], *, partition_max_bytes: int
    ) -> Mapping[TopicPartition, Fetched]:
        answers = await read(partitions, partition_max_bytes=partition_max_bytes)
        asked.append(bytes(answers[KEY].records))
        return answers

    log.read = noting  # type: ignore[method-assign]
    assert log.search(known=0) is None
    assert first not in asked
    assert len(set(asked)) < 3 * MAX_IN_FLIGHT
