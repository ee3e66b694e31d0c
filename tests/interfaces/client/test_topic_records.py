"""Twin of twinlog.interfaces.client.topic_records: nothing is missed, and the end is proved."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import pytest
from clients import client, make_topic, put
from waiting import until_async

from twinlog.interfaces.client import topic_records
from twinlog.interfaces.client.topic_records import read_topic
from twinlog.kafka.errors import Retriable, UserError
from twinlog.kafka.requests.partitions import OffsetSpec
from twinlog.local.cluster import LocalCluster
from twinlog.store.topic_reader import ControlRecord
from twinlog.store.topic_writer import Entry, TransactionalWriter


def record(offset: int, partition: int = 0) -> ControlRecord:
    return ControlRecord(partition, offset, 0, b"k", b"%d" % offset)


class Log:
    """A log of records at these offsets, whose polls lose what they have read when cancelled."""

    def __init__(self, *polled: list[int], end: int) -> None:
        self.polled = list(polled)
        self.end = end
        self.positions: dict[int, int] = {}
        self.caught_up: list[int] = []

    async def starts(self) -> dict[int, int]:
        return {0: 0}

    async def ends(self) -> dict[int, int]:
        return {0: self.end}

    async def close(self) -> None: ...

    async def follow(self) -> AsyncGenerator[list[ControlRecord], None]:
        while self.polled:
            yield [record(offset) for offset in self.polled.pop(0)]
        self.positions = {0: self.end}  # a poll has read up to the end, and is cancelled now
        await asyncio.sleep(60)

    async def catch_up(self) -> list[ControlRecord]:
        self.caught_up.append(self.positions[0])
        return [record(offset) for offset in range(self.positions[0], self.end)]


def collected(monkeypatch: pytest.MonkeyPatch, log: Log, start: OffsetSpec) -> list[int]:
    """The offsets that are read of a log."""

    async def none_absent(*_: object) -> set[str]:
        return set()

    monkeypatch.setattr(topic_records, "Tail", lambda *_: log)
    monkeypatch.setattr(topic_records, "absent_everywhere", none_absent)

    async def run() -> list[int]:
        cluster: Any = None
        batches = read_topic(cluster, "t", start, idle_s=0.01)
        return [record.offset async for batch in batches for record in batch]

    return asyncio.run(run())


def test_what_a_cancelled_poll_has_read_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a position that a poll has moved is no evidence that its records were printed."""
    log = Log([0, 1], [2], end=5)
    assert collected(monkeypatch, log, OffsetSpec.EARLIEST) == [0, 1, 2, 3, 4]
    assert log.caught_up == [3, 5]


def test_it_begins_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(end=5)
    assert collected(monkeypatch, log, OffsetSpec.LATEST) == []
    assert log.caught_up == [5]


@pytest.mark.broker
def test_records_of_all_partitions_are_followed(
    any_kafka: LocalCluster, topic: str, fresh_name: Callable[[str], str]
) -> None:
    """Goal: each committed record once, in order within its partition."""

    async def run() -> None:
        async with client(any_kafka) as cluster:
            await make_topic(cluster, topic, 3)
            first = [Entry(topic, index, b"k", b"first") for index in range(3)]
            await put(cluster, first)
            found: list[tuple[int, bytes | None]] = []
            batches = read_topic(cluster, topic, OffsetSpec.EARLIEST, idle_s=2)
            writer = TransactionalWriter(cluster, fresh_name("id"))
            async with aclosing(batches):
                async for batch in batches:
                    found += [(record.partition, record.value) for record in batch]
                    if len(found) == 3:
                        await writer.fence()
                        await writer.write([Entry(topic, 1, b"k", b"second")])
                        assert writer._id._producer is not None
                        await writer._prepare(
                            writer._id._producer, [Entry(topic, 2, b"k", b"lost")]
                        )
                        await writer.fence()
                        await put(cluster, [Entry(topic, 2, b"k", b"third")])
            assert {*found[:3]} == {(index, b"first") for index in range(3)}
            assert sorted(found[3:]) == [(1, b"second"), (2, b"third")]

    asyncio.run(run())


@pytest.mark.broker
def test_an_end_that_is_not_reached_is_an_error(
    kafka: LocalCluster, topic: str, fresh_name: Callable[[str], str]
) -> None:
    """Goal: an open transaction hides records; silence is not taken for the end."""

    async def run() -> None:
        hasty = client(kafka, api_timeout=1.0)
        await hasty.start(60)
        try:
            async with client(kafka) as other:
                await make_topic(other, topic)
                writer = TransactionalWriter(other, fresh_name("id"))
                await writer.fence()
                assert writer._id._producer is not None
                await writer._prepare(writer._id._producer, [Entry(topic, 0, b"k", b"open")])

                async def is_named() -> bool:  # unless the time is over before an answer
                    with pytest.raises(Retriable) as hidden:
                        async for _ in read_topic(hasty, topic, OffsetSpec.EARLIEST, idle_s=0.2):
                            pass
                    return "a transaction that begins there" in str(hidden.value)

                await until_async(is_named, what="the open transaction")
                with pytest.raises(UserError, match=r"the topic does not exist; check the name"):
                    await anext(read_topic(other, f"{topic}-gone", OffsetSpec.EARLIEST))
        finally:
            await hasty.close()

    asyncio.run(run())
