"""Reads a topic's records as they are written, as kafka-console-consumer does.

Transactions that are aborted are left out. That there is nothing more to read is concluded only
from the high watermark: a quota, or a leader change, also makes a topic look idle.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import UserError
from twinlog.kafka.requests.topics import absent_everywhere
from twinlog.store.topic_reader import ControlRecord, Tail


async def read_topic(
    cluster: KafkaCluster, topic: str, *, from_beginning: bool, idle_s: float | None = None
) -> AsyncGenerator[list[ControlRecord], None]:
    """The records of a topic, in order within each partition.

    Args:
        cluster: the cluster that has the topic.
        topic: the topic's name.
        from_beginning: whether to begin at the log start; otherwise at the end.
        idle_s: seconds without a record after which it ends, if all was read; None: never.

    Raises:
        UserError: no right to read the topic, or it does not exist.
        Retriable: the cluster does not answer, or a transaction stays open.
    """
    if await absent_everywhere(cluster, [topic]):
        raise UserError(
            "the topic does not exist",
            topic=topic,
            hint="check the name, and the cluster",
            code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        )
    tail = Tail(cluster, topic)
    positions = await (tail.starts() if from_beginning else tail.ends())
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
