"""A destination's log, read in the source's names and offsets.

`verify` compares offset by offset. For a mirror whose records have other offsets on the destination
these are translated first; the log of an exact mirror is read as it is.
"""

from collections.abc import Collection
from typing import Protocol

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.types import LogBounds, TopicPartition
from twinlog.mirror.translation import OffsetMap, Translation
from twinlog.verify.log_reader import LogReader, read_bounds
from twinlog.verify.log_view import Span, SpanRecords


class SpanReader(Protocol):
    """A reader of one partition's log."""

    async def span(self, at: int, end: int) -> Span:
        """What the log holds from offset `at` on, up to `end` at most."""
        ...


class TranslatedReader:
    """The log of a partition on the destination, in the source's offsets."""

    def __init__(self, reader: LogReader, offsets: OffsetMap) -> None:
        self._reader = reader
        self._offsets = offsets

    async def span(self, at: int, end: int) -> Span:
        """What the log holds from offset `at` on, up to `end` at most.

        Raises:
            CorruptBatch: see `SpanRecords.by_offset`.
        """
        to_source = self._offsets.to_source
        place, upto = self._offsets.to_destination(at), self._offsets.to_destination(end)
        part = await self._reader.span(place, upto)
        while to_source(part.end) <= at:  # offsets of the destination alone, which prove nothing
            part = await self._reader.span(part.end, upto)
        batch = None
        if part.batch is not None:
            records = part.batch.by_offset().values()
            batch = SpanRecords(
                None,
                memoryview(b""),
                [record._replace(offset=to_source(record.offset)) for record in records],
            )
        return part._replace(start=at, end=to_source(part.end), batch=batch)


async def destination_bounds(
    destination: KafkaCluster, partitions: Collection[TopicPartition], translation: Translation
) -> dict[TopicPartition, LogBounds]:
    """The bounds of these partitions on the destination, in the source's offsets."""
    answers = await read_bounds(destination, [translation.name(p) for p in partitions])
    return {
        partition: bounds
        if bounds.error or partition not in translation.maps
        else LogBounds(0, *map(translation.offsets(partition).to_source, bounds[1:4]))
        for partition, bounds in translation.by_source(partitions, answers).items()
    }
