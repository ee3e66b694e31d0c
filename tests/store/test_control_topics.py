"""Folding `__mirror_state`: what counts if a partition has had more than one state partition."""

import asyncio
from collections.abc import Iterable
from typing import cast

import pytest

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.types import LeaderEpoch, Offset
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.states import State
from twinlog.store import control_topics
from twinlog.store.config_records import Mirror, Tombstone, key_of
from twinlog.store.control_topics import (
    CONFIG_TOPIC,
    STATE_TOPIC,
    config_entry,
    epoch_entry,
    fold_states,
    forget_entry,
    state_entry,
)
from twinlog.store.snapshot import Snapshot, StoredRecord
from twinlog.store.state_records import LastMirrored, PartitionState, epochs_key, state_key
from twinlog.store.topic_reader import ControlRecord
from twinlog.store.topic_writer import Entry

NAME = MirrorPartition("m", "t", 0)
FORMER, NOW = 20, 48
END = LastMirrored(LeaderEpoch(3), Offset(100))


def state(place: int, state: State) -> Entry:
    return state_entry(PartitionState(NAME, state), place)


IN_FORMER = (
    state(FORMER, State.MIRRORING),
    epoch_entry(NAME, LastMirrored(LeaderEpoch(1), Offset(7)), FORMER),
    state(FORMER, State.STOPPED),
    forget_entry(state_key(NAME), FORMER),
    forget_entry(epochs_key(NAME), FORMER),
)
"""A topic that was recreated since: its states are deleted in their former partitions."""
IN_THIS = (
    state(NOW, State.PREPARING),
    epoch_entry(NAME, END, NOW),
    state(NOW, State.STOPPED),
)


def as_read(*logs: Iterable[Entry]) -> list[ControlRecord]:
    return [
        ControlRecord(entry.partition, offset, 0, entry.key, entry.value)
        for log in logs
        for offset, entry in enumerate(log)
    ]


@pytest.mark.parametrize("logs", [(IN_FORMER, IN_THIS), (IN_THIS, IN_FORMER)])
def test_tombstones_of_a_former_state_partition_hide_no_newer_records(
    logs: tuple[tuple[Entry, ...], ...],
) -> None:
    """Partitions are read in any order, and a tombstone hides no record of another partition."""
    found = fold_states(as_read(*logs))
    assert found.states == {NAME: PartitionState(NAME, State.STOPPED)}
    assert found.epochs == {NAME: END}


@pytest.mark.parametrize("read_before", range(len(IN_FORMER) + len(IN_THIS) + 1))
def test_following_and_reading_give_equal_states(read_before: int) -> None:
    """Records come as written: former partition first; some exist when following begins."""
    records = as_read(IN_FORMER, IN_THIS)
    found = fold_states(records[:read_before])
    for record in records[read_before:]:
        found = fold_states([record], found)
    assert (found.state(NAME), found.epochs) == (State.STOPPED, {NAME: END})


def test_a_tombstone_in_the_current_state_partition_deletes_the_state() -> None:
    found = fold_states(())
    for record in as_read(IN_FORMER):
        found = fold_states([record], found)
    assert (found.states, found.epochs, dict(found.places)) == ({}, {}, {})


@pytest.mark.parametrize("followed", [True, False])
def test_an_unreadable_record_invalidates_the_earlier_state(followed: bool) -> None:
    """It holds for a reader that has read them and for a new one, until a readable record."""
    records = as_read([*IN_THIS, Entry("", NOW, state_key(NAME), b"\x00\x09")])
    found = fold_states(records[:-1] if followed else ())
    found = fold_states(records[-1:] if followed else records, found)
    assert (found.state(NAME), found.epochs) == (State.UNKNOWN, {NAME: END})
    assert "version 9" in found.unread(NAME)
    assert not found.unread(NAME._replace(partition=1))
    mended = fold_states(as_read([state(NOW, State.STOPPED)]), found)
    assert (mended.state(NAME), mended.unread(NAME), dict(mended.unreadable)) == (
        *(State.STOPPED, ""),
        {},
    )


@pytest.mark.parametrize(
    ("topic", "key"), [(CONFIG_TOPIC, b'["topic","m","t"]'), (STATE_TOPIC, state_key(NAME))]
)
def test_unreadable_records_are_evidence_of_earlier_mirrors(
    monkeypatch: pytest.MonkeyPatch, topic: str, key: bytes
) -> None:
    """So the missing other control topic is not created as an empty one."""

    async def read(_: KafkaCluster, name: str) -> list[ControlRecord]:
        return as_read([Entry(name, 0, key, b"\x00\x09")])

    monkeypatch.setattr(control_topics, "read_whole", read)
    cluster = cast(KafkaCluster, None)
    found = asyncio.run(control_topics._evidence(cluster, {topic}))
    assert found == f"{topic} holds 1 unreadable record(s)"


def test_a_key_keeps_its_partition_when_partitions_are_added() -> None:
    mirror = Mirror(name="m", source={}, source_cluster_id="c")
    first = config_entry(mirror, 8)
    snapshot = Snapshot().after([StoredRecord(first.partition, 0, first.key, first.value)])
    moved = next(n for n in range(9, 100) if config_entry(mirror, n).partition != first.partition)
    for change in (mirror, Tombstone(key_of(mirror))):
        assert config_entry(change, moved, snapshot.places).partition == first.partition
