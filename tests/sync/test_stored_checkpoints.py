"""Twin of twinlog.sync.stored_checkpoints, without brokers."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from twinlog.kafka.errors import Retriable
from twinlog.kafka.types import TopicPartition
from twinlog.mirror.mm2_records import Checkpoint, encode
from twinlog.store.topic_reader import ControlRecord
from twinlog.sync import stored_checkpoints
from twinlog.sync.stored_checkpoints import StoredCheckpoints, read_checkpoints

TOPIC = "a.checkpoints.internal"
COPY = TopicPartition("a.t", 0)
WRITTEN = [
    Checkpoint(group=group, partition=COPY, upstream_offset=at, downstream_offset=at + 1)
    for group, at in (("g", 5), ("h", 6), ("g", 9))
]


def found(
    patch: pytest.MonkeyPatch, *, shown: bool, known: bool, keys: Sequence[bytes] = ()
) -> StoredCheckpoints:
    """What is read where one broker shows the topic, or another one knows it."""
    pairs = [*map(encode, WRITTEN), (encode(WRITTEN[1])[0], b"\0\7")]
    pairs += [(key, b"") for key in keys]
    records = [ControlRecord(0, at, 100 + at, *pair) for at, pair in enumerate(pairs)]

    async def read(*_: object) -> list[ControlRecord]:
        assert shown
        return records

    async def refresh(names: list[str]) -> object:
        return SimpleNamespace(topics=dict.fromkeys(names if shown else []))

    async def confirm(_: object, name: str) -> None:
        if known:
            raise Retriable("the topic is not yet known to every broker", topic=name)

    patch.setattr(stored_checkpoints, "read_whole", read)
    patch.setattr(stored_checkpoints, "confirm_absent", confirm)
    cluster: Any = SimpleNamespace(refresh=refresh)
    return asyncio.run(read_checkpoints(cluster, TOPIC))


def test_the_last_readable_checkpoint_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: as clients read them; one that cannot be decoded is left out, and told."""
    stored = found(monkeypatch, shown=True, known=True)
    assert {(one.group, one.partition): one for one in stored.checkpoints} == {
        ("g", COPY): WRITTEN[2]
    }
    assert (max(stored.times_ms), len(stored.unreadable)) == (103, 1)
    assert stored.written_ms == {("g", COPY): 102}
    assert (len(stored.unreadable_of("h")), stored.unreadable_of("g")) == (1, [])


def test_a_checkpoint_with_an_unreadable_key_may_be_of_each_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored = found(monkeypatch, shown=True, known=True, keys=[b"\0"])
    assert [len(stored.unreadable_of(group)) for group in ("g", "h")] == [1, 2]


def test_there_are_none_if_no_broker_has_the_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(monkeypatch, shown=False, known=False) == StoredCheckpoints()


def test_a_broker_that_does_not_show_the_topic_proves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: a group that goes back does not keep a checkpoint that it is behind of."""
    with pytest.raises(Retriable):
        found(monkeypatch, shown=False, known=True)
