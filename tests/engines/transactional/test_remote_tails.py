"""Twin of twinlog.engines.transactional.remote_tails, with a log in memory."""

import asyncio
from typing import cast

import pytest
from batch_builders import COMMIT, batch, marker, record
from hypothesis import given
from hypothesis import strategies as st
from remote_logs import RemoteLog

from twinlog.engines.exact.ports import DestinationPort
from twinlog.engines.transactional import remote_reader
from twinlog.engines.transactional.remote_tails import (
    ShorterLog,
    compare_tails,
    parse_tail,
    tail_of_batch,
)
from twinlog.engines.translated.remote_log import LostEnd
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Retriable, TwinlogError
from twinlog.kafka.log.compression import Codec
from twinlog.kafka.log.records import build, whole
from twinlog.kafka.types import Sequence, TopicPartition

KEY = TopicPartition("a.orders", 0)
OWN = tail_of_batch(50, 3, (7, 4), Sequence(10))
"""The batch of the offsets 50 to 52."""


MARKER = marker(53, 7, COMMIT)


def log(found: bytes, *, end: int = 54, **what: int) -> RemoteLog:
    """A log with these batches, and the marker of the tail's transaction."""
    return RemoteLog(found + (MARKER if end > 53 else b""), end, **what)


def problem(of: RemoteLog) -> LostEnd | TwinlogError | None:
    port = cast("DestinationPort", of)
    return asyncio.run(compare_tails(port, {KEY: OWN})).get(KEY)


def own(*, epoch: int = 4, sequence: int = 10, first: int = 50) -> bytes:
    built = build([record(at) for at in range(first, 53)], Codec.NONE)
    whole_batch = whole(built, producer_id=7, epoch=epoch, sequence=sequence)
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
    monkeypatch.setattr(remote_reader, "_WAIT_MS", 1)
    found = problem(log(foreign, empty=1000))
    assert isinstance(found, Retriable)
    assert "the broker answers without records" in str(found)


@given(st.integers(0, 1 << 62), st.integers(1, 4096), st.integers(0, 1 << 62))
def test_a_tail_survives_its_text(base: int, count: int, producer_id: int) -> None:
    tail = tail_of_batch(base, count, (producer_id, 3), Sequence(0))
    assert parse_tail(tail.text()) == tail
    assert (tail.end, tail.last.sequence) == (base + count, count - 1)


@pytest.mark.parametrize("text", ["", "1,2,3", "1,2,3,4,5", "0,1,2,3", "1,-1,2,3", "1,²,2,3", "x"])
def test_text_that_is_no_tail_is_none(text: str) -> None:
    """Goal: the metadata of another program harms nothing."""
    assert parse_tail(text) is None
