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
        found = await self._reader.span(place, upto)
        while to_source(found.end) <= at:  # offsets of the destination alone, which prove nothing
            found = await self._reader.span(found.end, upto)
        batch = None
        if found.batch is not None:
            records = found.batch.by_offset().values()
            batch = SpanRecords(
                None,
                memoryview(b""),
                [one._replace(offset=to_source(one.offset)) for one in records],
            )
        return found._replace(start=at, end=to_source(found.end), batch=batch)


async def destination_bounds(
    destination: KafkaCluster, partitions: Collection[TopicPartition], translation: Translation
) -> dict[TopicPartition, LogBounds]:
    """The bounds of these partitions on the destination, in the source's offsets."""
    found = await read_bounds(destination, [translation.name(one) for one in partitions])
    return {
        one: bounds
        if bounds.error or one not in translation.maps
        else LogBounds(0, *map(translation.offsets(one).to_source, bounds[1:]))
        for one, bounds in translation.by_source(partitions, found).items()
    }
