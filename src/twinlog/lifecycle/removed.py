"""Adding again what was removed: the way on for a partition that is FAILED (KIP-1279).

The KIP has the operator remove the topic from its mirror and add it again. Its brokers truncate the
log then, which stock brokers let no client do. And what was removed holds more than its source: at
least the marker that fences it, which stands where the source's next record would have to stand.

    source        | what both clusters have       | what comes next
    destination   | what both clusters have       | tail: others' records, marker, what came since |
                  log start                       not after the last mirrored end

So it is rebuilt (rebuild.py), if the operator allows it; a log that is empty is taken as it is.

Where the tail begins is seen in the logs. The last mirrored end is where the marker stands, and a
record of somebody else, for which the partition is FAILED, stands before it. So both logs are
compared from there backwards, until they are equal. There are no leader epochs to go by: those that
are kept are the source's. The whole log is the tail where the last mirrored end is not known, where
no stretch is left that could be equal, as retention has taken it on the source, and where the
source's topic was made again, so that it has nothing of all this.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from twinlog.engines.exact.ports import Bounds
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Refusal
from twinlog.kafka.requests.partitions import DEBUGGING, OffsetSpec, list_offsets
from twinlog.kafka.types import TopicPartition
from twinlog.lifecycle.failback import Ends
from twinlog.lifecycle.rebuild import Tail
from twinlog.verify.job import Compared, Comparison, Stretch
from twinlog.verify.log_reader import read_bounds
from twinlog.verify.verdict import LOG_START, NOTHING_TO_LOSE

FIRST_STEP: Final = 1000
"""Offsets that are compared first, at the end of what was mirrored."""
FURTHER: Final = 4
"""By how much more is compared, each time that all of it differs."""
AT_ONCE: Final = 20
"""Partitions that are compared side by side."""


async def whole_logs(destination: KafkaCluster, topics: Mapping[str, int]) -> list[Tail]:
    """All that these topics hold, as a tail of each of their partitions, in order.

    Args:
        destination: where they are.
        topics: how many partitions each has.

    Raises:
        Retriable, UserError: a partition cannot be asked.
    """
    asked = [TopicPartition(name, at) for name in sorted(topics) for at in range(topics[name])]
    starts = await list_offsets(destination, asked, OffsetSpec.EARLIEST)
    ends = await list_offsets(destination, asked, replica_id=DEBUGGING)
    tails = []
    for partition in asked:
        start, end = starts[partition], ends[partition]
        if isinstance(start, Refusal):
            raise start.error("read the log's start", topic=partition.topic)
        if isinstance(end, Refusal):
            raise end.error("read the log's end", topic=partition.topic)
        tails.append(Tail(partition, start.offset, end.offset))
    return tails


async def where_logs_part(
    source: KafkaCluster, destination: KafkaCluster, tails: Sequence[Tail], ends: Ends
) -> list[Tail]:
    """The tails, each from where the two logs begin to differ.

    Args:
        source: the mirror's.
        destination: the mirror's cluster.
        tails: what begins with a tail at most, as far as others know.
        ends: where what our own mirrors have had of the source's topics ends.

    Returns:
        None of them begins before its log.

    Raises:
        Retriable: a log cannot be read.
        UserError: a right is missing.
    """
    tails = [
        one._replace(start=min(max(one.start, ends[one.partition].end), one.end))
        if one.partition in ends
        else one
        for one in tails
    ]
    return await _moved(source, destination, tails, _equal_before)


async def not_proved_equal(
    source: KafkaCluster,
    destination: KafkaCluster,
    tails: Sequence[Tail],
    tell: Callable[[str], None],
) -> list[Tail]:
    """The tails, each from the first offset of its log on that is not proved to be equal.

    All of both logs is read. What retention has taken on the source is not proved.

    Raises:
        Retriable: the bounds of a log cannot be read.
        UserError: a right is missing.
    """
    tell(f"comparing both logs of {len(tails)} partition(s), before they are deleted")

    async def first_unequal(comparison: Comparison, stretch: Stretch, source: Bounds) -> int | None:
        first = await _equal_from_start(comparison, stretch, source)
        equal = "not the same" if first is None else f"the same up to offset {first}"
        tell(f"{stretch.partition}: {equal}, the rest is saved")
        return first

    return await _moved(source, destination, tails, first_unequal)


_Parts = Callable[[Comparison, Stretch, Bounds], Awaitable[int | None]]
"""Where what differs begins in a stretch, its end at the latest; None where nothing is equal."""


async def _moved(
    source: KafkaCluster, destination: KafkaCluster, tails: Sequence[Tail], parts: _Parts
) -> list[Tail]:
    """The tails with other starts, each within its log."""
    if not tails:
        return []
    asked = [tail.partition for tail in tails]
    ours, theirs = await read_bounds(destination, asked), await read_bounds(source, asked)
    comparison = Comparison(source, destination)
    limit = asyncio.Semaphore(AT_ONCE)

    async def moved(tail: Tail) -> Tail:
        here, there = ours[tail.partition], theirs[tail.partition]
        for bounds in (here, there):
            if bounds.error and (
                bounds is here or bounds.error != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            ):
                raise Refusal(bounds.error).error(
                    "read the bounds of a log that is to be compared", topic=tail.partition.topic
                )
        end = min(tail.start, here.last_stable, there.last_stable)
        start: int | None = None
        if not there.error and end > here.start:
            stretch = Stretch(tail.partition, here.start, end, compacted=False)
            async with limit:
                start = await parts(comparison, stretch, there)
        return tail._replace(start=here.start if start is None else max(start, here.start))

    return list(await asyncio.gather(*(moved(tail) for tail in tails)))


async def _equal_before(comparison: Comparison, stretch: Stretch, source: Bounds) -> int | None:
    """Compare backwards, until some record is equal with nothing behind it that differs."""
    lowest, start, step = max(stretch.start, source.start), stretch.end, FIRST_STEP
    upto = start
    while upto > lowest:
        begin = max(lowest, upto - step)
        found = await comparison.compare(stretch._replace(start=begin, end=upto))
        if found.tally.absent[LOG_START]:  # it has moved on the source since it was asked for
            return None
        first = _first_unequal(found)
        if first is not None:
            start = first
        if found.tally.compared and start > begin:
            return start
        upto, step = begin, step * FURTHER
    return None


async def _equal_from_start(comparison: Comparison, stretch: Stretch, source: Bounds) -> int | None:
    """Compare all, and see what the source does not have any more as unequal."""
    if source.start > stretch.start:
        return None
    found = await comparison.compare(stretch)
    first = stretch.end if (one := _first_unequal(found)) is None else one
    return None if found.tally.absent[LOG_START] else first


def _first_unequal(found: Compared) -> int | None:
    """The first offset that is not proved equal; None where there is none.

    An offset at which the destination has no record holds none that a rebuild would lose.
    """
    differing = [one for one in found.differences if one.reason not in NOTHING_TO_LOSE]
    return min((one.start for one in (*differing, *found.unseen)), default=None)
