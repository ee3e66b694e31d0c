"""Adds removed topics again: the recovery of a FAILED partition (KIP-1279).

In the KIP, the operator removes the topic from its mirror and adds it again, and the brokers then
truncate the log. Stock brokers let no client do that. And a removed topic holds more than its
source: at least the marker that fences it, at the offset of the source's next record.

    source        | what both clusters have       | the next records
    destination   | what both clusters have       | tail: foreign records, marker, later records |
                  log start                       not after the last mirrored end

So the topic is rebuilt (rebuild.py), if the operator allows it; an empty log is used as it is.

The logs show where the tail begins. The marker is at the last mirrored end, and a foreign record,
which made the partition FAILED, is before it. So both logs are compared backwards from there until
they are equal. Leader epochs do not help: those that are stored are the source's. The whole log is
the tail if

- the last mirrored end is unknown,
- retention on the source has left no offsets that could be equal, or
- the source's topic was recreated, so that it has none of these records.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Refusal
from twinlog.kafka.requests.partitions import DEBUGGING, OffsetSpec, list_offsets
from twinlog.kafka.types import LogBounds, TopicPartition
from twinlog.lifecycle.failback import Ends
from twinlog.lifecycle.rebuild import DivergentTail
from twinlog.verify.job import Compared, Comparison, Stretch
from twinlog.verify.log_reader import read_bounds
from twinlog.verify.verdict import LOG_START, DifferenceKind

FIRST_STEP: Final = 1000
"""Offsets that are compared first, at the end of the mirrored range."""
FURTHER: Final = 4
"""Factor by which the next step is larger if all of a step differs."""
AT_ONCE: Final = 20
"""Partitions that are compared concurrently."""


async def whole_logs(destination: KafkaCluster, topics: Mapping[str, int]) -> list[DivergentTail]:
    """All that these topics hold, as a tail of each of their partitions, in order.

    Args:
        destination: the cluster that holds them.
        topics: how many partitions each has.

    Raises:
        Retriable, UserError: a partition cannot be read.
    """
    partitions = [TopicPartition(name, at) for name in sorted(topics) for at in range(topics[name])]
    starts = await list_offsets(destination, partitions, OffsetSpec.EARLIEST)
    ends = await list_offsets(destination, partitions, replica_id=DEBUGGING)
    tails = []
    for partition in partitions:
        start, end = starts[partition], ends[partition]
        if isinstance(start, Refusal):
            raise start.error("read the log start offset", topic=partition.topic)
        if isinstance(end, Refusal):
            raise end.error("read the log end offset", topic=partition.topic)
        tails.append(DivergentTail(partition, start.offset, end.offset))
    return tails


async def where_logs_part(
    source: KafkaCluster, destination: KafkaCluster, tails: Sequence[DivergentTail], ends: Ends
) -> list[DivergentTail]:
    """The tails, each from where the two logs begin to differ.

    Args:
        source: the mirror's source.
        destination: the mirror's cluster.
        tails: each with the first offset at which it may begin, as far as the callers know.
        ends: last mirrored ends of the source's topics in the destination's own mirrors.

    Returns:
        Tails that do not begin before their logs.

    Raises:
        Retriable: a log cannot be read.
        UserError: a right is missing.
    """
    tails = [
        tail._replace(start=min(max(tail.start, ends[tail.partition].end), tail.end))
        if tail.partition in ends
        else tail
        for tail in tails
    ]
    return await _moved(source, destination, tails, _equal_before)


async def not_proved_equal(
    source: KafkaCluster,
    destination: KafkaCluster,
    tails: Sequence[DivergentTail],
    tell: Callable[[str], None],
) -> list[DivergentTail]:
    """The tails, each from the first offset of its log that is not proven to be equal.

    Both logs are read completely. What retention has deleted on the source is not proven.

    Raises:
        Retriable: the bounds of a log cannot be read.
        UserError: a right is missing.
    """
    tell(f"comparing both logs of {len(tails)} partition(s) before they are deleted")

    async def first_unequal(
        comparison: Comparison, stretch: Stretch, source: LogBounds
    ) -> int | None:
        first = await _equal_from_start(comparison, stretch, source)
        equal = "no equal offset" if first is None else f"equal up to offset {first}"
        tell(f"{stretch.partition}: {equal}, the rest is saved")
        return first

    return await _moved(source, destination, tails, first_unequal)


_Parts = Callable[[Comparison, Stretch, LogBounds], Awaitable[int | None]]
"""The offset from which a stretch differs, at most its end; None if nothing is equal."""


async def _moved(
    source: KafkaCluster, destination: KafkaCluster, tails: Sequence[DivergentTail], parts: _Parts
) -> list[DivergentTail]:
    """The tails with other starts, each within its log."""
    if not tails:
        return []
    partitions = [tail.partition for tail in tails]
    copy_bounds, source_bounds = (
        await read_bounds(destination, partitions),
        await read_bounds(source, partitions),
    )
    comparison = Comparison(source, destination)
    limit = asyncio.Semaphore(AT_ONCE)

    async def moved(tail: DivergentTail) -> DivergentTail:
        copy, original = copy_bounds[tail.partition], source_bounds[tail.partition]
        for bounds in (copy, original):
            # A topic that the source does not have is equal nowhere; other errors prove nothing.
            if bounds.error and (
                bounds is copy or bounds.error != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            ):
                raise Refusal(bounds.error).error(
                    "read the bounds of a log to compare", topic=tail.partition.topic
                )
        end = min(tail.start, copy.last_stable, original.last_stable)
        start: int | None = None
        if not original.error and end > copy.start:
            stretch = Stretch(tail.partition, copy.start, end, compacted=False)
            async with limit:
                start = await parts(comparison, stretch, original)
        return tail._replace(start=copy.start if start is None else max(start, copy.start))

    return list(await asyncio.gather(*(moved(tail) for tail in tails)))


async def _equal_before(comparison: Comparison, stretch: Stretch, source: LogBounds) -> int | None:
    """Compare backwards until a record is equal and nothing after it differs."""
    lowest, start, step = max(stretch.start, source.start), stretch.end, FIRST_STEP
    upto = start
    while upto > lowest:
        begin = max(lowest, upto - step)
        result = await comparison.compare(stretch._replace(start=begin, end=upto))
        if result.tally.absent[LOG_START]:  # the source's log start has moved since it was read
            return None
        first = _first_unequal(result)
        if first is not None:
            start = first
        if result.tally.compared and start > begin:
            return start
        upto, step = begin, step * FURTHER
    return None


async def _equal_from_start(
    comparison: Comparison, stretch: Stretch, source: LogBounds
) -> int | None:
    """Compare everything; what the source does not have any more counts as unequal."""
    if source.start > stretch.start:
        return None
    result = await comparison.compare(stretch)
    first = stretch.end if (offset := _first_unequal(result)) is None else offset
    return None if result.tally.absent[LOG_START] else first


def _first_unequal(result: Compared) -> int | None:
    """The first offset that is not proven to be equal; None if there is none.

    At an offset without a record on the destination, a rebuild loses nothing.
    """
    differing = [
        difference
        for difference in result.differences
        if not (isinstance(difference.reason, DifferenceKind) and difference.reason.loses_nothing)
    ]
    return min((difference.start for difference in (*differing, *result.unseen)), default=None)
