"""`log_cursor`: the records of a log, what lies between them, and what it may lack."""

import asyncio

from written_logs import WrittenLog

from twinlog.kafka.log.records import decode
from twinlog.verify.log_cursor import Blank, LogCursor
from twinlog.verify.log_view import Kind


def values(records: list) -> list[str]:
    return [(decode(record).value or b"").decode() for record in records]


def test_records_and_blanks_come_in_order() -> None:
    log = WrittenLog().records("ab").skip(1).records("c").skip(2, Kind.ABORTED).sparse(["d", None])
    seen: list[Blank] = []

    async def run() -> list[str]:
        cursor = LogCursor(log, 0, log.end, seen.append)
        read: list[str] = []
        while records := await cursor.scan():
            read += values(records)
        assert cursor.ended
        assert cursor.position == log.end
        return read

    assert asyncio.run(run()) == list("abcd")
    assert [blank[:3] for blank in seen] == [
        (2, 3, Kind.CONTROL),
        (4, 6, Kind.ABORTED),
        (7, 8, Kind.HOLE),
    ]


def test_only_what_is_no_proof_is_a_lack() -> None:
    """Goal: a marker proves that no record is missing there; a hole, and unseen offsets, do not."""

    async def lack(kind: Kind) -> tuple[str, str]:
        log = WrittenLog().records("a").skip(1, kind).records("b")
        cursor = LogCursor(log, 0, log.end)
        await cursor.look(2)
        ahead = cursor.lack_until(2)
        await cursor.drain(2, lambda _: None)
        return ahead, cursor.lack

    async def run() -> dict[Kind, tuple[str, str]]:
        return {kind: await lack(kind) for kind in Kind if kind is not Kind.DATA}

    lacks = asyncio.run(run())
    proven = {Kind.CONTROL, Kind.ABORTED, Kind.FILTERED, Kind.ROUTED, Kind.OTHERS}
    assert {kind for kind, (ahead, _) in lacks.items() if not ahead} == proven
    assert all(ahead == after for ahead, after in lacks.values())


def test_what_was_looked_at_is_still_next() -> None:
    log = WrittenLog().records("ab").skip(1).records("cd").records("ef")

    async def run() -> None:
        cursor = LogCursor(log, 0, log.end)
        await cursor.ready()
        assert cursor.batch() is not None
        assert values(await cursor.look(3)) == list("abc")
        assert values(cursor.held()) == list("abcd")
        assert (cursor.position, cursor.read_to) == (0, 5)
        assert cursor.batch() is None, "its first batch is decoded"
        taken: list[str] = []
        await cursor.drain(4, lambda record: taken.append(values([record])[0]))
        assert taken == list("abc")
        assert cursor.position == 4
        assert values(await cursor.scan()) == ["d"]
        await cursor.ready()
        assert cursor.batch() is not None
        cursor.take_batch()
        await cursor.ready()
        assert cursor.ended

    asyncio.run(run())


def test_only_a_part_of_a_log_is_read() -> None:
    log = WrittenLog().records("abcdef")

    async def run() -> None:
        cursor = LogCursor(log, 2, 4)
        await cursor.ready()
        assert cursor.batch() is None, "a part of a batch is decoded"
        assert values(await cursor.scan()) == list("cd")
        assert await cursor.scan() == []

    asyncio.run(run())
