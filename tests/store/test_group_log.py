"""How `__mirror_groups` is read; on brokers: sync/test_groups_on_brokers.py."""

import asyncio
from typing import Any

import pytest

from twinlog.kafka.errors import Retriable
from twinlog.kafka.requests import topics
from twinlog.store import group_log
from twinlog.store.group_log import GROUPS_TOPIC, Remembered, read_groups
from twinlog.store.group_records import GroupMemory, LastCheck, encode, encode_key
from twinlog.store.topic_reader import ControlRecord


class Topic:
    """The topic as one broker knows it, and whether another broker knows it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count: int | None = 1
        self.elsewhere = True
        self.records: list[ControlRecord] = []
        monkeypatch.setattr(group_log, "partition_count", self.partition_count)
        monkeypatch.setattr(topics, "absent_everywhere", self.absent_everywhere)
        monkeypatch.setattr(group_log, "read_whole", self.read_whole)

    def write(self, key: bytes, value: bytes) -> None:
        self.records.append(ControlRecord(0, len(self.records), 0, key, value))

    def read(self) -> Remembered:
        nobody: Any = None
        return asyncio.run(read_groups(nobody, "m"))

    async def partition_count(self, *_: Any) -> int | None:
        return self.count

    async def absent_everywhere(self, _: Any, names: list[str]) -> set[str]:
        assert names == [GROUPS_TOPIC]
        return set() if self.elsewhere else set(names)

    async def read_whole(self, *_: Any) -> list[ControlRecord]:
        return self.records


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> Topic:
    return Topic(monkeypatch)


def test_a_broker_with_stale_metadata_does_not_hide_group_records(topic: Topic) -> None:
    """It may have just started: the remembered groups would be taken for none."""
    topic.count = None
    with pytest.raises(Retriable, match=GROUPS_TOPIC):
        topic.read()
    topic.elsewhere = False
    assert topic.read() == Remembered()


def test_undecodable_records_name_their_groups(topic: Topic) -> None:
    """Another mirror's records are ignored."""
    group = GroupMemory(mirror="m", group="g", kind="classic")
    topic.write(*encode(group))
    topic.write(encode_key("m", "h"), b"of a later version")
    topic.write(encode_key("other", "i"), b"of a later version")
    found = topic.read()
    assert found.groups == {"g": group}
    assert found.undecoded == {"h"}
    assert len(found.unreadable) == 1
    topic.write(encode_key("m"), b"of a later version")
    assert topic.read().undecoded == {"h", None}
    topic.write(*encode(LastCheck(mirror="m", time_ms=1)))
    assert topic.read().undecoded == {"h"}
