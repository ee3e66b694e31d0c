"""The decoded records of a range of a log, for comparisons that need their contents."""

from collections.abc import AsyncIterator
from typing import Final

from twinlog.kafka.log.records import Record, decode, each_record
from twinlog.kafka.log_reader import ClusterLogs
from twinlog.kafka.types import Offset, TopicPartition
from twinlog.mirror.copied_tail import OffsetRange
from twinlog.mirror.plan import Data, plan

_MAX_DECODED: Final = 64 << 20
"""Bytes that a batch may decompress to."""


async def record_at(
    logs: ClusterLogs, partition: TopicPartition, offset: int, bounds: OffsetRange
) -> Record | None:
    """The record at an offset; None if there is none."""
    if not bounds.start <= offset < bounds.end:
        return None
    async for records in records_in(
        logs, partition, OffsetRange(Offset(offset), Offset(offset + 1))
    ):
        for record in records:
            return record
    return None


async def records_in(
    logs: ClusterLogs, partition: TopicPartition, offsets: OffsetRange
) -> AsyncIterator[list[Record]]:
    """All records with these offsets, in order; the lists may be empty.

    Raises:
        Retriable: the end of the range cannot be reached.
    """
    at = offsets.start
    while at < offsets.end:
        async for answer in logs.answers(partition, at):
            if pieces := plan(answer.records, at, answer.aborted, _MAX_DECODED):
                break
        yield [
            decode(raw)
            for piece in pieces
            if isinstance(piece, Data)
            for raw in each_record(piece.header, piece.records, _MAX_DECODED)
            if offsets.start <= raw.offset < offsets.end
        ]
        at = pieces[-1].end
