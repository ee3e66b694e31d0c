"""Twin of twinlog.engines.transactional.remote_tails, with a log in memory."""

import asyncio
from collections.abc import Collection
from typing import Any, cast

import pytest
from batch_builders import ABORT, COMMIT, altered, batch, marker, record
from hypothesis import given
from hypothesis import strategies as st
from remote_logs import RemoteLog

from twinlog.engines.ports import DestinationPort
from twinlog.engines.transactional import remote_reader
from twinlog.engines.transactional.remote_tails import (
    OlderPosition,
    ShorterLog,
    TailProblem,
    compare_tails,
    parse_tail,
    tail_of_batch,
)
from twinlog.engines.translated.remote_log import LostEnd
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Retriable
from twinlog.kafka.log.batch import TRANSACTIONAL, batches
from twinlog.kafka.log.compression import Codec
from twinlog.kafka.log.records import build, whole
from twinlog.kafka.types import Sequence, TopicPartition

KEY = TopicPartition("a.orders", 0)
OWN = tail_of_batch(50, 3, (7, 4), Sequence(10))
"""The batch of the offsets 50 to 52."""


MARKER = marker(53, 7, COMMIT)


def log(found: bytes, *, end: int = 54, **what: Any) -> RemoteLog:
    """A log with these batches, and the marker of the tail's transaction."""
    return RemoteLog(found + (MARKER if end > 53 else b""), end, **what)


def problem(of: RemoteLog) -> TailProblem | None:
    port = cast("DestinationPort", of)
    return asyncio.run(compare_tails(port, {KEY: OWN})).get(KEY)


def own(*, epoch: int = 4, sequence: int = 10, first: int = 50) -> bytes:
    built = build([record(at) for at in range(first, 53)], Codec.NONE)
    whole_batch = whole(
        built, attributes=TRANSACTIONAL, producer_id=7, epoch=epoch, sequence=sequence
    )
    return first.to_bytes(8, "big") + whole_batch[8:]


def test_the_batch_that_was_committed_is_no_loss() -> None:
    assert problem(log(own())) is None
    assert asyncio.run(compare_tails(cast("DestinationPort", None), {})) == {}


@pytest.mark.parametrize(
    "other",
    [
        own(epoch=5),
        own(sequence=11),
        own(first=51),
        batch([record(50), record(51), record(52)]),
        batch([record(52), record(53)], producer_id=7),
        marker(52, 7, COMMIT),
    ],
)
def test_another_batch_in_its_place_is_a_loss(other: bytes) -> None:
    """Goal: records that are lost are found though the log is longer again."""
    found = problem(RemoteLog(other, 54))
    assert isinstance(found, LostEnd)
    assert not isinstance(found, ShorterLog)
    assert "the record at offset 52 is not the one" in str(found)


def test_a_log_that_ends_before_it_is_a_loss() -> None:
    found = problem(log(b"", end=52))
    assert isinstance(found, ShorterLog)
    assert "a.orders-0 ends at 52, and records were copied up to 53" in str(found)


def test_a_transaction_without_its_marker_is_not_written_behind() -> None:
    """Goal: the next one, if it is aborted, does not abort committed records with its own."""
    found = problem(log(own(), end=53))
    assert isinstance(found, Retriable)
    assert "a.orders-0 ends at 53, without the marker" in str(found)


def written(producer_id: int, first: int = 54) -> bytes:
    """A batch of two records of a transaction."""
    return batch(
        [record(first), record(first + 1)], attributes=TRANSACTIONAL, producer_id=producer_id
    )


def unmarked(*content: bytes, **what: Any) -> RemoteLog:
    """A log with this behind the tail, at the offset 53, in place of the marker."""
    found = b"".join([own(), *content])
    return RemoteLog(found, [*batches(memoryview(found))][-1].next_offset, **what)


ABORTED = [
    [marker(53, 7, ABORT)],
    [written(7, 53), marker(55, 7, ABORT)],
    [batch([record(53)], producer_id=8), marker(54, 7, ABORT)],
    [written(8, 53), marker(55, 7, ABORT), marker(56, 8, COMMIT)],
    [marker(53, 7, ABORT), written(7), marker(56, 7, COMMIT)],
]
UNDECIDED = [
    [written(7, 53)],
    [batch([record(53)], producer_id=8)],
    [written(8, 53), marker(55, 8, ABORT)],
    [batch([record(53)])],
]
COMMITTED = [
    [MARKER],
    [written(7, 53), marker(55, 7, COMMIT)],
    [batch([record(53)], producer_id=8), marker(54, 7, COMMIT)],
    [written(8, 53), marker(55, 7, COMMIT), written(7, 56), marker(58, 7, ABORT)],
    [MARKER, marker(54, 7, ABORT)],
    [MARKER, written(8)],
    [MARKER, written(7), marker(56, 7, ABORT)],
]


def judged(of: RemoteLog, own_ids: Collection[int]) -> object:
    port = cast("DestinationPort", of)
    return asyncio.run(compare_tails(port, {KEY: OWN}, {KEY: own_ids})).get(KEY)


@pytest.mark.parametrize("own_ids", [(), (7,)])
@pytest.mark.parametrize("content", ABORTED)
def test_an_abort_in_place_of_a_lost_marker_is_a_loss(
    content: list[bytes], own_ids: Collection[int]
) -> None:
    """Goal: an election takes the marker, the next transaction fails: readers see neither.

    However far behind it is, and whatever producers are open before it.
    """
    for each in (1, 1000):
        for start in (b"", batch([record(48)], attributes=TRANSACTIONAL, producer_id=6)):
            of = unmarked(*content, batches_each=each)
            of.found = start + of.found
            found = judged(of, own_ids)
            assert isinstance(found, LostEnd)
            assert not isinstance(found, ShorterLog)
            assert "has lost the marker that committed the records up to 53" in str(found)
            assert (found.start, found.end) == (None, 53)


@pytest.mark.parametrize("own_ids", [(), (7,)])
@pytest.mark.parametrize("content", UNDECIDED)
def test_nothing_is_written_behind_a_transaction_without_a_marker(
    content: list[bytes], own_ids: Collection[int]
) -> None:
    """Goal: whatever others have written since; it may also not be written yet."""
    for each in (1, 1000):
        found = judged(unmarked(*content, batches_each=each), own_ids)
        assert isinstance(found, Retriable)
        assert "without the marker of the last transaction, which wrote up to 53" in str(found)


@pytest.mark.parametrize("content", COMMITTED)
def test_the_first_marker_that_commits_decides(content: list[bytes]) -> None:
    """Goal: what follows is of later transactions; another one's marker commits both."""
    for each in (1, 1000):
        for start in (b"", batch([record(48)], attributes=TRANSACTIONAL, producer_id=6)):
            of = unmarked(*content, batches_each=each)
            of.found = start + of.found
            assert judged(of, ()) is None


@pytest.mark.parametrize("kind", [COMMIT, ABORT])
def test_a_marker_far_behind_the_tail_is_found_by_one_request(kind: int) -> None:
    """Goal: what others write for days hides no loss, and is not read at each location."""
    others = [batch([record(at)], producer_id=8) for at in range(53, 353)]
    of = unmarked(*others, marker(353, 7, kind), batches_each=1)
    found = judged(of, ())
    assert found is None if kind == COMMIT else isinstance(found, LostEnd)
    assert (of.reads, of.asked) == (1, 1)


def test_a_marker_in_the_answer_with_the_tail_costs_no_request() -> None:
    of = unmarked(written(8, 53), marker(55, 7, COMMIT), marker(56, 8, COMMIT))
    assert judged(of, ()) is None
    assert (of.reads, of.asked) == (1, 0)


def test_a_marker_that_is_nowhere_near_and_may_be_far_is_not_known() -> None:
    """Goal: a transaction of another producer, open since before the tail, holds up nobody.

    Nor does an answer without records prove anything.
    """
    others = [batch([record(at)], producer_id=8) for at in range(53, 353)]
    for what in ({"hides": True}, {}):
        of = unmarked(*others, marker(353, 7, COMMIT), batches_each=1, **what)
        of.found = batch([record(48)], attributes=TRANSACTIONAL, producer_id=6) + of.found
        assert judged(of, ()) is None
        assert of.reads <= 65


@pytest.mark.parametrize("kind", [COMMIT, ABORT])
def test_an_empty_answer_is_no_open_transaction(kind: int) -> None:
    """Goal: a tail in remote storage hides no abort: without evidence the flow does not go on."""
    others = [batch([record(at)], producer_id=8) for at in range(53, 353)]
    of = unmarked(*others, marker(353, 7, kind), batches_each=1, hides=True)
    found = judged(of, ())
    assert isinstance(found, Retriable)
    assert "cannot read a.orders-0 at 52: the broker shows no batch there" in str(found)
    assert (of.reads, of.asked) == (1, 2)


def test_a_marker_that_compaction_has_emptied_is_not_judged() -> None:
    emptied = altered(marker(53, 7, ABORT), body=b"", num_records=0)
    assert judged(unmarked(emptied), ()) is None


def test_a_marker_behind_what_was_compacted_or_deleted_is_not_judged() -> None:
    """Goal: compaction removes the marker as well then, and with the log start both are gone."""
    for of in (
        RemoteLog(written(8) + marker(56, 8, COMMIT), 57),
        RemoteLog(written(7) + marker(56, 7, ABORT), 57),
        unmarked(written(8, 53), marker(55, 7, ABORT), start=53),
    ):
        assert judged(of, (7,)) is None


def test_a_marker_that_is_not_replicated_is_waited_for() -> None:
    for replicated in (53, 54):
        of = unmarked(batch([record(53)], producer_id=8), marker(54, 7, COMMIT))
        of.replicated = replicated
        found = judged(of, ())
        assert isinstance(found, Retriable)
        assert "is replicated up to" in str(found)
    refused = unmarked(*UNDECIDED[1], error_committed=ErrorCode.OFFSET_OUT_OF_RANGE)
    assert isinstance(judged(refused, ()), Retriable)


def test_what_was_compacted_or_deleted_is_not_known() -> None:
    """Goal: retention and compaction are no loss."""
    assert problem(log(b"")) is None
    assert problem(log(own(), start=53)) is None
    assert problem(RemoteLog(b"", 60, start=60)) is None


def test_a_log_that_cannot_be_read_is_neither() -> None:
    """Goal: no evidence is no verdict: a new leader may not know yet what is replicated."""
    for one in (
        log(own(), error=ErrorCode.LEADER_NOT_AVAILABLE),
        log(b"", replicated=52),
        log(own(), replicated=52),
    ):
        assert isinstance(problem(one), Retriable)


def test_an_answer_without_records_hides_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the batch in the tail's place is seen, however late the broker shows it."""
    monkeypatch.setattr(remote_reader, "_PAUSE_S", 0.001)
    foreign = batch([record(50), record(51), record(52)])
    for empty in (1, 3):
        found = problem(log(foreign, empty=empty))
        assert isinstance(found, LostEnd)
        assert problem(log(own(), empty=empty)) is None
    monkeypatch.setattr(remote_reader, "_INTERVAL_S", 0.01)
    monkeypatch.setattr(remote_reader, "WAIT_MS", 1)
    found = problem(log(foreign, empty=1000))
    assert isinstance(found, Retriable)
    assert "the broker answers without records" in str(found)


def behind(*content: bytes, own_ids: tuple[int, ...] = (7, 9), **what: Any) -> object:
    """What is found in a log with this behind the marker of the tail, at the offset 54."""
    found = own() + MARKER + b"".join(content)
    end = 54 if not content else [*batches(memoryview(found))][-1].next_offset
    one = RemoteLog(found, end, **what)
    port = cast("DestinationPort", one)
    return asyncio.run(compare_tails(port, {KEY: OWN}, {KEY: own_ids})).get(KEY)


@pytest.mark.parametrize("content", [[own(), MARKER], [MARKER], []])
@pytest.mark.parametrize("producer_id", [7, 9])
def test_own_committed_records_behind_the_tail_show_an_older_position(
    content: list[bytes], producer_id: int
) -> None:
    """Goal: they are not copied again; also where the tail was compacted or deleted."""
    later = [written(producer_id), marker(56, producer_id, COMMIT)]
    start = 0 if content else 54
    one = RemoteLog(b"".join([*content, *later]), 57, start)
    port = cast("DestinationPort", one)
    found = asyncio.run(compare_tails(port, {KEY: OWN}, {KEY: (7, 9)}))[KEY]
    assert isinstance(found, OlderPosition)
    assert "committed records at offset 54 of a.orders-0" in str(found)
    assert "written up to 53" in str(found)
    assert not asyncio.run(compare_tails(port, {KEY: OWN}))


@pytest.mark.parametrize(
    "content",
    [
        [],
        [written(7), marker(56, 7, ABORT)],
        [written(7), marker(56, 7, ABORT), marker(57, 7, COMMIT)],
        [written(7)],
        [written(7), marker(56, 9, COMMIT)],
        [written(8), marker(56, 8, COMMIT)],
        [batch([record(54), record(55)]), marker(56, 7, COMMIT)],
        [marker(54, 7, COMMIT)],
    ],
)
def test_what_else_is_behind_the_tail_is_no_older_position(content: list[bytes]) -> None:
    """Goal: no aborted transaction, other producer or open one stops a flow."""
    assert behind(*content) is None
    assert behind(*content, batches_each=1) is None


def test_records_of_others_between_are_read_over() -> None:
    content = [written(8), marker(56, 8, COMMIT), written(7, 57), marker(59, 7, COMMIT)]
    for each in (1, 1000):
        found = behind(*content, batches_each=each)
        assert isinstance(found, OlderPosition)
        assert behind(*content, own_ids=(), batches_each=each) is None


def test_no_more_than_the_beginning_behind_the_tail_is_searched() -> None:
    """Goal: what others write for days is not read at each location."""
    others = [written(8, at) for at in range(54, 354, 2)]
    content = [*others, written(7, 354), marker(356, 7, COMMIT)]
    assert isinstance(behind(*content), OlderPosition)
    assert behind(*content, batches_each=1) is None


def test_an_older_position_is_not_concluded_from_what_is_not_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {"_PAUSE_S": 0.001, "_INTERVAL_S": 0.01, "WAIT_MS": 1}.items():
        monkeypatch.setattr(remote_reader, name, value)
    found = behind(written(7), marker(56, 7, COMMIT), replicated=54)
    assert isinstance(found, Retriable)
    assert "replicated up to 54" in str(found)
    found = behind(written(7), marker(56, 7, COMMIT), empty=1000)
    assert isinstance(found, Retriable)


@given(st.integers(0, 1 << 62), st.integers(1, 4096), st.integers(0, 1 << 62))
def test_a_tail_survives_its_text(base: int, count: int, producer_id: int) -> None:
    tail = tail_of_batch(base, count, (producer_id, 3), Sequence(0))
    assert parse_tail(tail.text()) == tail
    assert (tail.end, tail.last.sequence) == (base + count, count - 1)


@pytest.mark.parametrize("text", ["", "1,2,3", "1,2,3,4,5", "0,1,2,3", "1,-1,2,3", "1,²,2,3", "x"])
def test_text_that_is_no_tail_is_none(text: str) -> None:
    """Goal: the metadata of another program harms nothing."""
    assert parse_tail(text) is None
