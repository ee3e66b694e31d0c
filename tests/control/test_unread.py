"""What is refused because a record of a control topic cannot be read."""

import asyncio
from collections.abc import Collection
from dataclasses import replace
from typing import cast
from uuid import UUID

import pytest

from twinlog.cluster.client import KafkaCluster
from twinlog.cluster.mirrorlog import States
from twinlog.control import store as store_module
from twinlog.control.store import Decide, MirrorStore
from twinlog.core.errors import UnsupportedVersion
from twinlog.core.placement import state_partition
from twinlog.core.states import State
from twinlog.wire.config_records import Mirror, MirrorTopic, Wanted, encode, encode_key
from twinlog.wire.snapshot import Snapshot, Written
from twinlog.wire.state_records import PartitionState, epochs_key

COUNT = 50
MIRROR = Mirror(name="m", source={}, source_cluster_id="s")
OTHER = Mirror(name="o", source={}, source_cluster_id="s")
TOPIC = MirrorTopic(
    mirror="m", topic="t", topic_id=UUID(int=1), partitions=1, wanted=Wanted.STOPPED
)
(NAME,) = TOPIC.mirror_partitions
STOPPED = States({NAME: PartitionState(NAME, State.STOPPED)}, {})


def with_unread(*keys: tuple[str, ...]) -> Snapshot:
    """Two mirrors and a topic of the first one, and records that cannot be read."""
    records = [encode(one) for one in (MIRROR, OTHER, TOPIC)]
    records += [(encode_key(key), b"{") for key in keys]
    return Snapshot().after(Written(0, at, *one) for at, one in enumerate(records))


class Store(MirrorStore):
    """Of these mirrors and states; what is to be written to it is kept."""

    def __init__(self, snapshot: Snapshot, states: States = STOPPED) -> None:
        super().__init__(cast(KafkaCluster, None))
        self._there, self._said = snapshot, states
        self.changes: Collection[object] | None = None

    async def snapshot(self) -> Snapshot:
        return self._there

    async def states(self) -> States:
        return self._said

    async def change(self, decide: Decide) -> None:
        self.changes = await store_module._decided(decide, self._there)


@pytest.fixture(autouse=True)
def count(monkeypatch: pytest.MonkeyPatch) -> None:
    async def partition_count(_: object) -> int:
        return COUNT

    monkeypatch.setattr(store_module, "partition_count", partition_count)


@pytest.mark.parametrize("key", [("topic", "o", "t"), ("mirror", "m"), ("topic", "gone", "t")])
def test_a_topic_is_not_added_that_another_mirror_may_have(key: tuple[str, ...]) -> None:
    async def add(topic: str) -> None:
        added = replace(TOPIC, mirror="o", topic=topic, wanted=Wanted.MIRRORING)
        await Store(with_unread(key)).add_topics("o", [added])

    asyncio.run(add("another"))
    with pytest.raises(UnsupportedVersion, match="whether t belongs to a mirror is not known"):
        asyncio.run(add("t"))


@pytest.mark.parametrize(
    "key", [("topic", "m", "u"), ("not-mirrored", "m"), ("followed", "m", "t"), ("mirror", "m")]
)
def test_a_mirror_is_not_deleted_of_which_a_record_cannot_be_read(key: tuple[str, ...]) -> None:
    store = Store(with_unread(key))
    with pytest.raises(UnsupportedVersion, match="not overwritten: __mirror_config-0, offset 3"):
        asyncio.run(store.delete_mirror("m", lambda *_: None))
    assert store.changes is None


def test_a_mirror_is_deleted_beside_others_that_cannot_be_read() -> None:
    store = Store(with_unread(("topic", "o", "u"), ("stop", "m"), ("feature", "m")))
    asyncio.run(store.delete_mirror("m", lambda *_: None))
    assert store.changes


def test_states_that_cannot_be_read_are_not_forgotten() -> None:
    """Neither with their mirror, nor where the source's topic was made again."""
    place = state_partition("m", TOPIC.topic_id, 0, COUNT)
    states = STOPPED._replace(unreadable={(place, epochs_key(NAME)): "a newer version"})
    again = replace(TOPIC, topic_id=UUID(int=2), wanted=Wanted.MIRRORING)
    store = Store(with_unread(), states)
    for change in (store.delete_mirror("m", lambda *_: None), store.add_topics("m", [again])):
        with pytest.raises(UnsupportedVersion, match="not overwritten: a newer version"):
            asyncio.run(change)
    assert store.changes is None
