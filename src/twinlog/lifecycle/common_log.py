"""Compares two logs below an offset, and finds where they diverge.

A failback continues the existing log from the last common offset. The last mirrored ends that both
sides have stored prove nothing: they may be wrong, and two logs of the same length may differ. So
the records themselves are compared, backwards from that offset:

    source       | records, the same on both sides | ... | last common offset
    destination  | records, the same on both sides | ... | last common offset | tail
                   <-- 160 -- <-- 40 -- <-- 10 offsets --

The comparison ends after `ENOUGH` equal records, or `ENOUGH_BYTES` of them, with no difference
above them. Offsets that are only absent on both sides, or that an answer does not show, are no
evidence (verify/agreement.py). If retention has left nothing that both sides have, nothing can be
compared, and a warning is logged. If something exists and cannot be read, that is an error.

An answer without records proves nothing (kafka/log_reader.py): its offsets are unseen. They do not
stop a comparison that other records decide, unless the topic is not compacted: then records exist
that the brokers do not return. Offsets above a last stable offset are not read: if the log that
is to be continued has some below its end, that is an error, too.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Final

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import Refusal, Retriable
from twinlog.kafka.log_reader import ClusterLogs
from twinlog.kafka.types import LogBounds, Offset, TopicPartition
from twinlog.lifecycle.rebuild import DivergentTail
from twinlog.mirror.plan import plan
from twinlog.verify.agreement import MAX_DECODED, Side, agreement

log = logging.getLogger(__name__)

FIRST_STEP: Final = 10
"""Offsets that are compared first."""
FURTHER: Final = 4
"""Factor by which each step is larger than the one before."""
ENOUGH: Final = 100
ENOUGH_BYTES: Final = 1 << 20
AT_ONCE: Final = 20
"""Partitions that are compared concurrently."""
_EMPTY_ANSWERS: Final = 15
"""Empty answers in a row, after which an offset counts as not seen: about 5 s."""


async def compared(
    source: KafkaCluster, destination: KafkaCluster, tails: Sequence[DivergentTail]
) -> list[DivergentTail]:
    """The tails, each from where the two logs diverge, if that is earlier.

    Args:
        source: the new source, to which the topics were failed over.
        destination: the cluster that continues its old logs.
        tails: of all partitions, including the empty ones.

    Raises:
        Retriable: a log cannot be read or compared.
        UserError: a right is missing.
    """
    partitions = [tail.partition for tail in tails]
    if not partitions:
        return []
    source_logs, destination_logs = ClusterLogs(source), ClusterLogs(destination)
    topics = {partition.topic for partition in partitions}
    await asyncio.gather(source_logs.refresh(topics), destination_logs.refresh(topics))
    source_bounds, bounds = await asyncio.gather(
        source_logs.bounds(partitions), destination_logs.bounds(partitions)
    )
    limit = asyncio.Semaphore(AT_ONCE)

    async def parted(tail: DivergentTail) -> DivergentTail:
        original, copy = _known(source_bounds, tail.partition), _known(bounds, tail.partition)
        start = min(tail.start, original.high_watermark)
        stable = min(start, original.last_stable, copy.last_stable)
        begin = max(original.start, copy.start)
        async with limit:
            part = await _part(source_logs, destination_logs, tail.partition, begin, stable)
        if part is None and stable < start == tail.end:
            raise Retriable(
                f"{tail.partition}: cannot compare the offsets {stable} to {start - 1}: a "
                "transaction is open, or a follower lags",
                hint="nothing was added; try again when the transaction has ended",
            )
        return tail._replace(start=start if part is None else max(min(part, tail.end), copy.start))

    return list(await asyncio.gather(*(parted(tail) for tail in tails)))


def _known(bounds: Mapping[TopicPartition, LogBounds], partition: TopicPartition) -> LogBounds:
    bound = bounds[partition]
    if bound.error:
        raise Refusal(bound.error).error("read the log's bounds", topic=partition.topic)
    return bound


async def _part(
    source: ClusterLogs, destination: ClusterLogs, partition: TopicPartition, begin: int, end: int
) -> int | None:
    """The first offset below `end` from which the logs differ; None if they do not."""
    if begin >= end > 0:
        log.warning(
            "%s: no offset below %d is left on both sides to compare; only the stored last "
            "mirrored end shows where the logs diverge",
            partition,
            end,
        )
    part: int | None = None
    equal = size = unseen = 0
    given_up = False
    upto, step = end, FIRST_STEP
    while upto > begin and equal < ENOUGH and size < ENOUGH_BYTES:
        start = max(begin, upto - step)
        original, copy = await asyncio.gather(
            _read(source, partition, start, upto), _read(destination, partition, start, upto)
        )
        result = agreement(original, copy, start, upto)
        if result.first_difference is not None:
            # Only records below the lowest difference are evidence, so counting starts again.
            part, equal, size = result.first_difference, 0, 0
        else:
            equal, size = equal + result.equal, size + result.size
        unseen += result.unseen
        given_up |= original.given_up or copy.given_up
        upto, step = start, step * FURTHER
    if part is None and unseen and (given_up or not equal):
        raise Retriable(
            f"{partition}: cannot compare {unseen} of the offsets {max(upto, begin)} to {end - 1} "
            "on both sides",
            hint="nothing was added; try again",
        )
    return part


async def _read(source: ClusterLogs, partition: TopicPartition, start: int, end: int) -> Side:
    side, at = Side(), Offset(start)
    while at < end:
        empty = 0
        async for answer in source.answers(partition, at):
            pieces = plan(answer.records, at, answer.aborted, MAX_DECODED)
            if pieces:
                side.add(pieces, start, end)
                at = pieces[-1].end
                break
            empty += 1
            if empty >= _EMPTY_ANSWERS:
                side.given_up = not await _is_compacted(source, partition, at)
                return side
    return side


async def _is_compacted(source: ClusterLogs, partition: TopicPartition, at: Offset) -> bool:
    """Whether compaction may have removed the log's last records."""
    size = ENOUGH_BYTES
    answer = await source.read_alone(partition, at, max_wait_ms=0, partition_max_bytes=size)
    return answer.compacts is True
