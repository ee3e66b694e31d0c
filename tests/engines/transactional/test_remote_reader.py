"""Twin of twinlog.engines.transactional.remote_reader, with a log in memory."""

import asyncio
from typing import cast

import pytest
from batch_builders import batch, record
from remote_logs import RemoteLog

from twinlog.engines.ports import DestinationPort
from twinlog.engines.transactional import remote_reader
from twinlog.engines.transactional.remote_reader import RemoteBatches, read_batches
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Retriable
from twinlog.kafka.types import Offset, TopicPartition

KEY = TopicPartition("a.orders", 0)
CONTENT = batch([record(50), record(51)]) + batch([record(52), record(53)])


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second that passes in a tenth; in less, a busy machine would be a silent broker."""
    for name in ("_INTERVAL_S", "_PAUSE_S"):
        monkeypatch.setattr(remote_reader, name, getattr(remote_reader, name) / 10)
    monkeypatch.setattr(remote_reader, "WAIT_MS", 5)


def read(log: RemoteLog, at: int = 51) -> RemoteBatches:
    return asyncio.run(read_batches(cast("DestinationPort", log), KEY, Offset(at)))


def test_the_batch_with_the_offset_is_the_first_one() -> None:
    found = read(RemoteLog(CONTENT, end=54))
    assert [header.base_offset for header in found.headers] == [50, 52]
    assert (found.start, found.replicated) == (51, 54)
    assert [header.base_offset for header in read(RemoteLog(CONTENT, end=54), 52).headers] == [52]


def test_a_log_that_starts_later_is_read_from_there() -> None:
    found = read(RemoteLog(CONTENT, end=54, start=52))
    assert (found.start, [header.base_offset for header in found.headers]) == (52, [52])
    assert read(RemoteLog(b"", end=54, start=54)) == RemoteBatches(
        Offset(54), [], memoryview(b""), 54
    )


def test_an_answer_without_records_is_asked_again() -> None:
    """Goal: remote storage that is slow, or a quota, hides no batch."""
    log = RemoteLog(CONTENT, end=54, empty=3)
    assert len(read(log).headers) == 2
    assert (log.reads, log.longest_wait_ms) == (4, 5)


def test_a_broker_that_does_not_show_what_it_has_is_no_evidence() -> None:
    """Goal: of a log that is not compacted no silence is believed."""
    for log in (
        RemoteLog(b"", end=54),
        RemoteLog(b"", end=54, compacts=True, throttle_ms=5),
        RemoteLog(b"", end=54, compacts=True, local_start=53),
        RemoteLog(b"", end=54, compacts=True, local_start=-1),
    ):
        with pytest.raises(Retriable, match="answers without records"):
            read(log)
        assert log.reads > 2, "two are believed of a compacted log"
    with pytest.raises(Retriable, match=r"cannot read a\.orders-0 at 51"):
        read(RemoteLog(CONTENT, end=54, error=ErrorCode.NOT_LEADER_OR_FOLLOWER))


def test_the_end_that_compaction_has_removed_is_known_after_two_readings() -> None:
    """Goal: such a partition is located."""
    log = RemoteLog(b"", end=54, compacts=True)
    found = read(log)
    assert (found.headers, found.replicated) == ((), 54)
    assert log.reads > 1


def test_what_is_not_replicated_is_not_waited_for() -> None:
    log = RemoteLog(CONTENT, end=54, replicated=51)
    found = read(log)
    assert (found.headers, found.replicated) == ([], 51)
    assert (log.reads, log.longest_wait_ms) == (1, 0)
