"""Reads a topic's records as they are written, as kafka-console-consumer does.

Transactions that are aborted are left out. That there is nothing more to read is concluded only
from the high watermark: a quota, or a leader change, also makes a topic look idle.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import UserError
from twinlog.kafka.requests.partitions import OffsetSpec
from twinlog.kafka.requests.topics import absent_everywhere
from twinlog.kafka.types import Offset
from twinlog.store.topic_reader import ControlRecord, Tail


async def read_topic(
    cluster: KafkaCluster,
    topic: str,
    start: OffsetSpec | Offset,
    *,
    partition: int | None = None,
    idle_s: float | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> AsyncGenerator[list[ControlRecord], None]:
    """The records of a topic, in order within each partition.

    Args:
        cluster: the cluster that has the topic.
        topic: the topic's name.
        start: where to begin: EARLIEST, the log start; LATEST, the end; or an offset, with
            `partition` only. An offset that the log does not have is replaced by the end, as by
            kafka-console-consumer (`auto.offset.reset=latest`).
        partition: the only partition to read; None: all.
        idle_s: seconds without a record after which it ends, if all was read; None: never.
        tell: receives a line if it begins elsewhere than at the offset that was asked for.

    Raises:
        UserError: no right to read the topic, or it does not exist.
        Retriable: the cluster does not answer, the topic does not have the partition, or a
            transaction stays open.
    """
    if await absent_everywhere(cluster, [topic]):
        raise UserError(
            "the topic does not exist",
            topic=topic,
            hint="check the name, and the cluster",
            code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        )
    tail = Tail(cluster, topic, None if partition is None else [partition])
    positions = await _positions(tail, start, tell)
    while True:
        tail.positions = dict(positions)
        async with aclosing(tail.follow()) as polls:
            while records := await _within(polls, idle_s):
                positions |= _behind(records)
                yield records
        # What a poll had read when it was cancelled is read again.
        tail.positions = dict(positions)
        try:
            records = await tail.catch_up()
        finally:
            await tail.close()
        if not records:
            return
        positions |= _behind(records)
        yield records


async def _positions(
    tail: Tail, start: OffsetSpec | Offset, tell: Callable[[str], None]
) -> dict[int, int]:
    """The offset at which each partition begins."""
    if start == OffsetSpec.EARLIEST:
        return await tail.starts()
    ends = await tail.ends()
    if start == OffsetSpec.LATEST:
        return ends
    starts = await tail.starts()
    ((partition, end),) = ends.items()
    if starts[partition] <= start <= end:
        return {partition: start}
    tell(
        f"partition {partition} has no offset {start}: expected {starts[partition]} to {end}; "
        f"beginning at its end, {end}"
    )
    return ends


async def _within(
    polls: AsyncGenerator[list[ControlRecord], None], seconds: float | None
) -> list[ControlRecord]:
    """The next records; none if there were none in time."""
    try:
        async with asyncio.timeout(seconds):
            return await anext(polls)
    except TimeoutError:
        return []


def _behind(records: list[ControlRecord]) -> dict[int, int]:
    """The offset behind the last record of each partition."""
    return {record.partition: record.offset + 1 for record in records}
