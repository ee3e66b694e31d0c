"""Twin of twinlog.lifecycle.common_log, for answers that the tests' brokers do not give."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from batch_builders import batch, record

from model.loop import VirtualLoop, run
from twinlog.kafka.client.metadata import EMPTY, Metadata
from twinlog.kafka.errors import Retriable
from twinlog.kafka.log.batch import batches
from twinlog.kafka.log_reader import ClusterLogs, ReadAlone
from twinlog.kafka.protocol.fetch import Fetched
from twinlog.kafka.types import LogBounds, TopicPartition
from twinlog.lifecycle import common_log
from twinlog.lifecycle.common_log import _part, compared
from twinlog.lifecycle.rebuild import DivergentTail

KEY = TopicPartition("t", 0)
END = 300
COMMON = [batch([record(at, value=b"%d" % at)]) for at in range(END - 10)]


class Log(ClusterLogs):
    """A log that answers without bytes from an offset on, as a slow remote read does."""

    def __init__(
        self,
        last: bytes,
        silent_from: int = END,
        *,
        compacts: bool = False,
        last_stable: int = END,
    ) -> None:
        rest = [batch([record(at, value=last)]) for at in range(END - 10, END)]
        self._log = b"".join([*COMMON, *rest])
        self._silent_from = silent_from
        self._compacts = compacts
        self._last_stable = last_stable

    async def refresh(self, topics: object) -> Metadata:
        del topics
        return EMPTY

    async def read(
        self, offsets: Mapping[TopicPartition, int], *, partition_max_bytes: int
    ) -> Mapping[TopicPartition, Fetched]:
        del partition_max_bytes
        found = [
            one
            for one in batches(memoryview(self._log))
            if one.next_offset > offsets[KEY] and one.base_offset < self._silent_from
        ]
        data = b"".join(self._log[one.position : one.end] for one in found)
        return {KEY: Fetched(0, END, END, 0, (), memoryview(data))}

    async def bounds(self, partitions: object) -> dict[TopicPartition, LogBounds]:
        del partitions
        return {KEY: LogBounds(0, 0, END, self._last_stable)}

    async def read_alone(self, partition: TopicPartition, offset: int, **_: int) -> ReadAlone:
        found = await self.read({partition: offset}, partition_max_bytes=0)
        return ReadAlone(found[partition], 0, 0, 0, self._compacts)


def first_difference(source: Log, destination: Log) -> int | None:
    """Return the offset from which the logs differ."""

    async def main(_: VirtualLoop) -> int | None:
        return await _part(source, destination, KEY, 0, END)

    return run(main)


def test_the_first_differing_offset_is_found() -> None:
    assert first_difference(Log(b"a"), Log(b"a")) is None
    assert first_difference(Log(b"a"), Log(b"b")) == END - 10


def test_an_unread_log_end_proves_nothing() -> None:
    """Goal: the offsets below it are the same, but the deciding ones were not compared."""
    with pytest.raises(Retriable, match="10 of the offsets"):
        first_difference(Log(b"a", END - 10), Log(b"b"))


def test_a_missing_end_of_a_compacted_log_is_accepted() -> None:
    """Goal: otherwise no such topic could be mirrored back."""
    assert first_difference(Log(b"a", END - 10, compacts=True), Log(b"b")) is None


def tails(monkeypatch: pytest.MonkeyPatch, last_stable: int, end: int = END) -> list[DivergentTail]:
    """Compare logs that differ from END - 10 on, of which the destination's ends at `end`."""
    logs: Iterator[Log] = iter([Log(b"a"), Log(b"b", last_stable=last_stable)])
    monkeypatch.setattr(common_log, "ClusterLogs", lambda _: next(logs))

    async def main(_: VirtualLoop) -> list[DivergentTail]:
        nobody: Any = None
        return await compared(nobody, nobody, [DivergentTail(KEY, END, end)])

    return run(main)


def test_an_open_transaction_hides_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the last stable offset nothing is read, so nothing is known to be the same."""
    (found,) = tails(monkeypatch, END)
    assert found.start == END - 10
    with pytest.raises(Retriable, match="cannot compare the offsets 290 to 299: a transaction"):
        tails(monkeypatch, END - 10)


def test_an_open_transaction_does_not_hinder_a_rebuild(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log with a tail is not continued in any case."""
    (found,) = tails(monkeypatch, END - 10, END + 5)
    assert not found.empty
