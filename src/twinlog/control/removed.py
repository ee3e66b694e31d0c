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
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from twinlog.cluster.client import KafkaCluster
from twinlog.cluster.partitions import DEBUGGING, OffsetSpec, list_offsets
from twinlog.control.failback import Ends
from twinlog.control.rebuild import Tail
from twinlog.core.errors import Refusal
from twinlog.core.types import TopicPartition
from twinlog.core.verdict import NOTHING_TO_LOSE
from twinlog.pipeline.log_reader import read_bounds
from twinlog.pipeline.verify import Comparison, Extent, Stretch, extent

FIRST_STEP: Final = 1000
"""Offsets that are compared first, at the end of what was mirrored."""
FURTHER: Final = 4
"""By how much more is compared, each time that all of it differs."""
AT_ONCE: Final = 20
"""Partitions that are compared side by side."""
_UNKNOWN_TOPIC: Final = 3


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
    if not tails:
        return []
    asked = [tail.partition for tail in tails]
    ours, theirs = await read_bounds(destination, asked), await read_bounds(source, asked)
    comparison = Comparison(source, destination)
    limit = asyncio.Semaphore(AT_ONCE)

    async def parted(tail: Tail) -> Tail:
        if theirs[tail.partition].error == _UNKNOWN_TOPIC:
            return tail
        here = ours[tail.partition]
        for bounds in (theirs[tail.partition], here):
            if bounds.error:
                raise Refusal(bounds.error).error(
                    "read the bounds of a log that is to be compared", topic=tail.partition.topic
                )
        comparable = extent(tail.partition, theirs[tail.partition], here)
        comparable = replace(comparable, start=max(comparable.start, here.start))
        async with limit:
            start = await _equal_up_to(comparison, comparable, tail.start)
        return tail._replace(start=here.start if start is None else max(start, here.start))

    return list(await asyncio.gather(*(parted(tail) for tail in tails)))


async def _equal_up_to(comparison: Comparison, extent: Extent, start: int) -> int | None:
    """Where what differs begins, `start` at the latest; None where nothing before it is equal.

    An offset that was not seen is not proved equal, so what differs begins there at the latest. An
    offset at which the destination has no record holds none that a rebuild would lose.
    """
    start, step = min(start, extent.end), FIRST_STEP
    while start > extent.start:
        begin = max(extent.start, start - step)
        found = await comparison.compare(Stretch(extent.partition, begin, start, compacted=False))
        differing = [one for one in found.differences if one.reason not in NOTHING_TO_LOSE]
        start = min((one.start for one in (*differing, *found.unseen)), default=start)
        if start > begin:
            return start
        step *= FURTHER
    return None
