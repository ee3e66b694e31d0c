"""Twin of twinlog.lifecycle.common_log, for answers that the tests' brokers do not give."""

from collections.abc import Mapping

import pytest
from batch_builders import batch, record

from model.loop import VirtualLoop, run
from twinlog.kafka.client.metadata import EMPTY, Metadata
from twinlog.kafka.errors import Retriable
from twinlog.kafka.log.batch import batches
from twinlog.kafka.log_reader import ClusterLogs, ReadAlone
from twinlog.kafka.protocol.fetch import Fetched
from twinlog.kafka.types import TopicPartition
from twinlog.lifecycle.common_log import _part

KEY = TopicPartition("t", 0)
END = 300
COMMON = [batch([record(at, value=b"%d" % at)]) for at in range(END - 10)]


class Log(ClusterLogs):
    """A log that answers without bytes from an offset on, as a slow remote read does."""

    def __init__(self, last: bytes, silent_from: int = END, *, compacts: bool = False) -> None:
        rest = [batch([record(at, value=last)]) for at in range(END - 10, END)]
        self._log = b"".join([*COMMON, *rest])
        self._silent_from = silent_from
        self._compacts = compacts

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

    async def read_alone(self, partition: TopicPartition, offset: int, **_: int) -> ReadAlone:
        found = await self.read({partition: offset}, partition_max_bytes=0)
        return ReadAlone(found[partition], 0, 0, 0, self._compacts)


def part(source: Log, destination: Log) -> int | None:
    """Return the offset from which the logs differ."""

    async def main(_: VirtualLoop) -> int | None:
        return await _part(source, destination, KEY, 0, END)

    return run(main)


def test_the_first_differing_offset_is_found() -> None:
    assert part(Log(b"a"), Log(b"a")) is None
    assert part(Log(b"a"), Log(b"b")) == END - 10


def test_an_end_that_was_not_seen_proves_nothing() -> None:
    """Goal: the offsets below it are the same, but the deciding ones were not compared."""
    with pytest.raises(Retriable, match="10 of the offsets"):
        part(Log(b"a", END - 10), Log(b"b"))


def test_a_compacted_end_may_be_gone() -> None:
    """Goal: otherwise no such topic could be mirrored back."""
    assert part(Log(b"a", END - 10, compacts=True), Log(b"b")) is None
