"""Foreign records: records above the mirrored ones that the mirror has not written.

A mirror partition that is stopped may hold records of other producers, which wrote to the
destination's topic while no lane was running, or while the source was idle. The source does not
have these records. So the last mirrored end lies before the first of them, whatever follows.

    offsets   |  mirrored                  |  foreign       |  mirror's, misplaced  | fence
              known end (at least)         last mirrored end

The log itself is the evidence. A data batch above the *known end* is the mirror's if it carries the
id of one of the mirror's data producers, and foreign otherwise. Control records carry no data. The
mirror's own (fillers, written markers, fences) have many ids, so all control records count as the
mirror's; the data of a foreign transaction is before its marker.

The known end is only a lower bound. Below it, users may have written records in an earlier failover
that the source has copied since (failback). Above it the log is read, completely if it is short.
Otherwise it is read backwards from the fence, until a stretch begins with more of the mirror's
batches than can have been in flight when the foreign batches were appended. An answer without
bytes proves nothing and is requested again.

The range is read by the port (`Log`), not by `ClusterLogs.answers`: a missing right is the result
of its partition, and offsets that retention removes meanwhile are passed over.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from itertools import takewhile
from typing import Final, NamedTuple, Protocol

from twinlog.engines.exact.append import MAX_IN_FLIGHT
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Refusal, Retriable
from twinlog.kafka.log.batch import Header, batches
from twinlog.kafka.protocol.fetch import Fetched
from twinlog.kafka.types import LogBounds, TopicPartition

NEAR: Final = 1000
"""The most offsets above the known end that are read completely."""
FURTHER: Final = 4
"""Factor by which a stretch is longer than the one behind it."""
ENOUGH: Final = MAX_IN_FLIGHT + 1
"""Consecutive batches of the mirror, which cannot all be misplaced."""
READ_BYTES: Final = 1 << 20
READ_TRIES: Final = 100
"""Consecutive answers without bytes after which the search ends with Retriable."""
READ_PAUSE_S: Final = 0.05
MOST_CONTROL: Final = 100_000
"""Offsets with only control records below which no foreign transaction is searched."""


class DestinationLogs(Protocol):
    """The destination's logs."""

    async def bounds(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, LogBounds]:
        """Read log start offsets, high watermarks and last stable offsets."""

    async def read(
        self, partitions: Mapping[TopicPartition, int], *, partition_max_bytes: int
    ) -> Mapping[TopicPartition, Fetched]:
        """Read at these offsets."""


class Searched(NamedTuple):
    """What to search: offsets `[known, fence)`, and the producer ids of the mirror's data."""

    known: int
    fence: int
    producers: Collection[int]


class Foreign(NamedTuple):
    """Offsets `[start, end)` with `records` foreign records, and perhaps some of the mirror's."""

    start: int
    end: int
    records: int
    producers: tuple[int, ...]
    """Their producer ids; -1 for a producer without idempotence."""

    def __str__(self) -> str:
        names = ", ".join("none" if producer < 0 else str(producer) for producer in self.producers)
        return (
            f"{self.records} record(s) at offsets {self.start} to {self.end - 1} were written by "
            f"other producers (producer id {names}) before the fence; the source does not have "
            f"them, and the last mirrored end is {self.start}"
        )


async def find_foreign(
    log: DestinationLogs, partition: TopicPartition, searched: Searched, bounds: LogBounds
) -> Foreign | Refusal | None:
    """Find the foreign records of a partition above its known end.

    Args:
        log: the destination's.
        partition: the partition; it is fenced, so the mirror writes nothing to it any more.
        searched: see `Searched`.
        bounds: recent bounds of the log.

    Returns:
        None if there are none; a refusal if the log may not be read.

    Raises:
        Retriable: the log cannot be read now.
    """
    if bounds.error:
        return _refusal(bounds.error, partition)
    known_end = searched.known if searched.known <= searched.fence else 0
    floor = min(max(known_end, bounds.start), searched.fence)
    step = NEAR if searched.fence - floor <= NEAR else ENOUGH
    upto, data = searched.fence, list[Header]()
    while upto > floor:
        start = max(floor, upto - step)
        headers = await _headers(log, partition, start, upto)
        if isinstance(headers, Refusal):
            return headers
        data = [header for header in headers if not header.is_control] + data
        own_batches = list(takewhile(lambda header: header.producer_id in searched.producers, data))
        if len(own_batches) >= ENOUGH:
            break
        if not data and searched.fence - start > MOST_CONTROL:
            break
        upto = min([start, *(header.base_offset for header in headers[:1])])
        step *= FURTHER
    foreign_batches = [header for header in data if header.producer_id not in searched.producers]
    return _named(foreign_batches) if foreign_batches else None


def _named(headers: Sequence[Header]) -> Foreign:
    return Foreign(
        headers[0].base_offset,
        headers[-1].next_offset,
        sum(header.num_records for header in headers),
        tuple(sorted({header.producer_id for header in headers})),
    )


async def _headers(
    log: DestinationLogs, partition: TopicPartition, start: int, upto: int
) -> list[Header] | Refusal:
    """The batches that hold offsets of `[start, upto)`; the log continues above `upto`."""
    all_headers: list[Header] = []
    empty = 0
    while start < upto:
        answer = (await log.read({partition: start}, partition_max_bytes=READ_BYTES))[partition]
        headers = list(batches(answer.records))
        if answer.error == ErrorCode.OFFSET_OUT_OF_RANGE:
            # Retention has moved the log start offset in the meantime.
            start = max(start, (await log.bounds([partition]))[partition].start)
        elif answer.error:
            return _refusal(answer.error, partition)
        elif headers:
            empty, start = 0, headers[-1].next_offset
            all_headers += headers
            continue
        empty += 1
        if empty > READ_TRIES:
            raise Retriable(f"{partition} cannot be read at offset {start} of the destination")
        await asyncio.sleep(READ_PAUSE_S)
    return [header for header in all_headers if header.base_offset < upto]


def _refusal(code: int, partition: TopicPartition) -> Refusal:
    """The refusal, if the user has to act.

    Raises:
        Retriable: a retry can help.
    """
    refusal = Refusal(code)
    if refusal.reaction.retriable:
        raise Retriable(f"{partition} cannot be read on the destination: {refusal}")
    return refusal
