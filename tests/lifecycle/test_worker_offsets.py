"""Where offsets are written for MirrorMaker 2, if their topic is created meanwhile.

What is written where the topic exists is in tests/lifecycle/test_flow_handback.py.
"""

import asyncio
from typing import Any, cast

import pytest
from kafka.partitioner.default import murmur2

from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Refusal, Retriable
from twinlog.kafka.requests.topics import NewTopic
from twinlog.kafka.types import TopicPartition
from twinlog.lifecycle import worker_offsets
from twinlog.lifecycle.worker_offsets import read_recorded, write_offsets
from twinlog.mirror.connect_offsets import CONNECTOR, ConnectOffset, encode
from twinlog.store.topic_reader import ControlRecord
from twinlog.store.topic_writer import Entry

TOPIC = "mm2-offsets.a.internal"
ENDS = {TopicPartition("orders", index): 7 for index in range(20)}


class Target:
    """A cluster without the topic, which another program creates first."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shown: int | None = None
        """How many partitions of the topic it shows."""
        self.created = 50
        """How many the other program's has; 0: the broker that is asked does not show it yet."""
        self.records: list[ControlRecord] = []
        self.written: list[Entry] = []
        monkeypatch.setattr(worker_offsets, "append", self._append)
        monkeypatch.setattr(worker_offsets, "confirm_absent", self._confirm_absent)
        monkeypatch.setattr(worker_offsets, "create_topics", self._create)
        monkeypatch.setattr(worker_offsets, "partition_count", self._partition_count)
        monkeypatch.setattr(worker_offsets, "read_whole", self._read_whole)

    async def _append(self, _: object, entries: list[Entry], **__: object) -> dict[Any, object]:
        self.written += entries
        return {}

    async def _confirm_absent(self, *_: object) -> None:
        """Every broker reports that there is none."""

    async def _create(self, _: object, topics: list[NewTopic]) -> dict[str, object]:
        assert [one.name for one in topics] == [TOPIC]
        self.shown = self.created or None
        return {TOPIC: Refusal(ErrorCode.TOPIC_ALREADY_EXISTS)}

    async def _partition_count(self, *_: object) -> int | None:
        return self.shown

    async def _read_whole(self, *_: object) -> list[ControlRecord]:
        return self.records

    def hand_back(self) -> None:
        """Write the offsets of a flow; nothing was there when they were compared."""

        async def run() -> None:
            cluster = cast("Any", None)
            recorded = await read_recorded(cluster, TOPIC, "a")
            await write_offsets(cluster, CONNECTOR, "a", recorded, ENDS)

        asyncio.run(run())


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Target:
    return Target(monkeypatch)


def test_the_partitions_of_a_topic_that_another_program_creates_count(target: Target) -> None:
    """Goal: Connect's producer writes each key to the same partition, and never a second record."""
    target.hand_back()
    places = [(murmur2(one.key) & 0x7FFFFFFF) % 50 for one in target.written]
    assert [one.partition for one in target.written] == places
    assert max(places) >= 25, "Connect's default would not do"


def test_offsets_that_are_recorded_meanwhile_are_not_replaced(target: Target) -> None:
    """Goal: nothing is written over what nobody has compared with the flow."""
    known = encode(ConnectOffset(CONNECTOR, "a", TopicPartition("orders", 0), 5000))
    target.records = [ControlRecord(3, 0, 0, *known)]
    with pytest.raises(Retriable, match="has created the topic and recorded offsets"):
        target.hand_back()
    assert target.written == []


def test_a_topic_whose_partitions_are_not_shown_yet(target: Target) -> None:
    """Goal: no count is guessed."""
    target.created = 0
    with pytest.raises(Retriable, match="does not show the topic"):
        target.hand_back()
    assert target.written == []
