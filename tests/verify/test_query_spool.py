"""`query_spool`: what a query should make of a log, by the partition of the target."""

import asyncio
from pathlib import Path

from twinlog.kafka.log.records import Headers, decode
from twinlog.kafka.types import TopicPartition
from twinlog.verify.log_cursor import Blank
from twinlog.verify.log_view import Kind
from twinlog.verify.query_results import Failed, OutputRow
from twinlog.verify.query_spool import FAILED, SEVERAL, SpooledLog, spooled

X, Y = TopicPartition("x", 0), TopicPartition("y", 2)
JSON = frozenset({"value"})


def row(target: TopicPartition, value: bytes, headers: Headers = ()) -> OutputRow:
    return OutputRow(*target, 5, b"k", value, headers)


def spans_in(log: SpooledLog, target: TopicPartition, start: int = 0) -> list[tuple[object, ...]]:
    async def run() -> list[tuple[object, ...]]:
        reader, at = log.expected_in(target), start
        found: list[tuple[object, ...]] = []
        while at < log.end:
            span = await reader.span(at, log.end)
            found.append((span.start, span.end, span.kind, span.reason))
            at = span.end
        return found

    return asyncio.run(run())


def test_what_is_expected_depends_on_the_target(tmp_path: Path) -> None:
    """Goal: records, none, blanks, several of one, and failures; in two parts of the file."""
    log = SpooledLog(tmp_path / "a")
    assert (tmp_path / "a").stat().st_mode & 0o77 == 0
    log.add(
        [
            spooled(3, [row(X, b'{"a": 1}')], JSON),
            spooled(4, [], JSON),
            Blank(5, 7, Kind.CONTROL),
            spooled(7, [row(X, b"1"), row(Y, b"2")], JSON),
        ]
    )
    assert (log.end, log.lack, log.targets) == (8, "", {X, Y})
    log.add([spooled(8, [row(Y, b"1"), row(Y, b"2")], JSON), spooled(9, Failed("no"), JSON)])
    assert log.lack == f"{FAILED}: no"
    tail = [(9, 10, Kind.UNSEEN, f"{FAILED}: no")]
    assert spans_in(log, X, 3) == [
        (3, 4, Kind.DATA, ""),
        (4, 5, Kind.FILTERED, ""),
        (5, 7, Kind.CONTROL, ""),
        (7, 8, Kind.DATA, ""),
        (8, 9, Kind.ROUTED, ""),
        *tail,
    ]
    assert spans_in(log, Y, 3) == [
        (3, 4, Kind.ROUTED, ""),
        (4, 5, Kind.FILTERED, ""),
        (5, 7, Kind.CONTROL, ""),
        (7, 8, Kind.DATA, ""),
        (8, 9, Kind.UNSEEN, SEVERAL),
        *tail,
    ]
    assert len(list(log.keys_in(Y))) == 3
    log.add([Blank(10, 12, Kind.HOLE)])
    assert log.end == 12


def test_json_is_compared_by_its_meaning(tmp_path: Path) -> None:
    log = SpooledLog(tmp_path / "a")
    log.add([spooled(0, [row(X, b'{"a": 1, "b": 2}')], JSON)])
    other = SpooledLog(tmp_path / "b")
    other.add([spooled(0, [row(X, b'{"b":2,"a":1}')], JSON)])
    third = SpooledLog(tmp_path / "c")
    third.add([spooled(0, [row(X, b'{"b":2,"a":1}')], frozenset())])
    keys = [list(one.keys_in(X)) for one in (log, other, third)]
    assert keys[0] == keys[1] != keys[2]


def test_a_record_keeps_offset_time_and_headers(tmp_path: Path) -> None:
    log = SpooledLog(tmp_path / "a")
    log.add([spooled(4, [row(X, b"v", (("h", None),))], frozenset())])
    span = asyncio.run(log.expected_in(X).span(4, 5))
    record = span.record(4)
    assert record is not None
    assert (record.offset, record.timestamp) == (4, 5)
    assert decode(record)[2:] == (b"k", b"v", (("h", None),))


def test_nothing_is_expected_behind_the_file(tmp_path: Path) -> None:
    log = SpooledLog(tmp_path / "a")
    assert asyncio.run(log.expected_in(X).span(0, 3)).kind is Kind.UNSEEN
