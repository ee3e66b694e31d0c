"""Twin of twinlog.engines.transactional.remote_tails, with a log in memory."""

import asyncio
from collections.abc import Mapping
from typing import cast

import pytest
from batch_builders import COMMIT, batch, marker, record
from hypothesis import given
from hypothesis import strategies as st

from twinlog.engines.exact.ports import DestinationPort, LogEnd
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
from twinlog.kafka.protocol.fetch import Fetched
from twinlog.kafka.types import LogBounds, Sequence, TopicPartition

KEY = TopicPartition("a.orders", 0)
OWN = tail_of_batch(50, 3, (7, 4), Sequence(10))
"""The batch of the offsets 50 to 52."""


class Log:
    """`DestinationPort` of one partition; `found` is what a Fetch before the tail's end returns."""

    def __init__(
        self, found: bytes, *, end: int = 54, start: int = 0, replicated: int = 54, error: int = 0
    ) -> None:
        self._found, self._end, self._start = found, end, start
        self._replicated, self._error = replicated, error

    async def log_ends(self, keys: list[TopicPartition]) -> Mapping[TopicPartition, LogEnd]:
        return {key: LogEnd(self._error, self._end, 0) for key in keys}

    async def bounds(self, keys: list[TopicPartition]) -> Mapping[TopicPartition, LogBounds]:
        return {key: LogBounds(0, self._start, self._end, self._end) for key in keys}

    async def read(
        self, partitions: Mapping[TopicPartition, int], *, partition_max_bytes: int
    ) -> Mapping[TopicPartition, Fetched]:
        assert partition_max_bytes > 0
        assert partitions == {KEY: 52}
        code = ErrorCode.OFFSET_OUT_OF_RANGE if self._start > 52 else 0
        end = self._replicated
        return {KEY: Fetched(code, end, end, 0, (), memoryview(self._found))}


def problem(log: Log) -> LostEnd | TwinlogError | None:
    port = cast("DestinationPort", log)
    return asyncio.run(compare_tails(port, {KEY: OWN})).get(KEY)


def own(*, epoch: int = 4, sequence: int = 10, first: int = 50) -> bytes:
    built = build([record(at) for at in range(first, 53)], Codec.NONE)
    whole_batch = whole(built, producer_id=7, epoch=epoch, sequence=sequence)
    return first.to_bytes(8, "big") + whole_batch[8:]


def test_the_batch_that_was_committed_is_no_loss() -> None:
    assert problem(Log(own())) is None
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
    found = problem(Log(other))
    assert isinstance(found, LostEnd)
    assert not isinstance(found, ShorterLog)
    assert "the record at offset 52 is not the one" in str(found)


def test_a_log_that_ends_before_it_is_a_loss() -> None:
    found = problem(Log(b"", end=52))
    assert isinstance(found, ShorterLog)
    assert "a.orders-0 ends at 52, and records were copied up to 53" in str(found)


def test_a_transaction_without_its_marker_is_not_written_behind() -> None:
    """Goal: the next one, if it is aborted, does not abort committed records with its own."""
    found = problem(Log(own(), end=53))
    assert isinstance(found, Retriable)
    assert "a.orders-0 ends at 53, without the marker" in str(found)


def test_what_was_compacted_or_deleted_is_not_known() -> None:
    """Goal: retention and compaction are no loss."""
    assert problem(Log(batch([record(53)]))) is None
    assert problem(Log(b"")) is None
    assert problem(Log(b"", start=53)) is None


def test_a_log_that_cannot_be_read_is_neither() -> None:
    """Goal: no evidence is no verdict: a new leader may not know yet what is replicated."""
    for log in (Log(own(), error=ErrorCode.LEADER_NOT_AVAILABLE), Log(b"", replicated=52)):
        assert isinstance(problem(log), Retriable)


@given(st.integers(0, 1 << 62), st.integers(1, 4096), st.integers(0, 1 << 62))
def test_a_tail_survives_its_text(base: int, count: int, producer_id: int) -> None:
    tail = tail_of_batch(base, count, (producer_id, 3), Sequence(0))
    assert parse_tail(tail.text()) == tail
    assert (tail.end, tail.last.sequence) == (base + count, count - 1)


@pytest.mark.parametrize("text", ["", "1,2,3", "1,2,3,4,5", "0,1,2,3", "1,-1,2,3", "1,²,2,3", "x"])
def test_text_that_is_no_tail_is_none(text: str) -> None:
    """Goal: the metadata of another program harms nothing."""
    assert parse_tail(text) is None
