"""Refusals because a control topic's record is unreadable, on the destination or the source."""

import asyncio
from collections.abc import Collection
from dataclasses import replace
from types import SimpleNamespace
from typing import cast
from uuid import UUID

import pytest
from sync_contexts import sync_context

from twinlog.kafka.acls import Acl, Operation, PatternType, Permission, ResourceType
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.metadata import Topic
from twinlog.kafka.errors import UnsupportedVersion, UserError
from twinlog.kafka.types import LeaderEpoch, Offset
from twinlog.lifecycle import changes, failback
from twinlog.lifecycle.creation import add_named
from twinlog.lifecycle.failback import TheirMirrors, last_mirrored, their_mirrors
from twinlog.mirror.placement import state_partition
from twinlog.mirror.settings import parse_settings
from twinlog.mirror.states import State
from twinlog.operations.switchover import denials
from twinlog.store import mirrors as store_module
from twinlog.store.config_records import (
    ConfigRecord,
    MadeAcl,
    MadeFor,
    Mirror,
    MirrorTopic,
    Wanted,
    encode,
    encode_key,
    key_of,
)
from twinlog.store.control_topics import States
from twinlog.store.mirrors import Decide, MirrorStore
from twinlog.store.snapshot import Snapshot, StoredRecord
from twinlog.store.state_records import LastMirrored, PartitionState, epochs_key
from twinlog.sync import acls as acl_sync
from twinlog.sync import topics as topic_sync
from twinlog.sync.base import run_sync

COUNT = 50
MIRROR = Mirror(name="m", source={}, source_cluster_id="s")
OTHER = Mirror(name="o", source={}, source_cluster_id="s")
TOPIC = MirrorTopic(
    mirror="m", topic="t", topic_id=UUID(int=1), partitions=1, wanted=Wanted.STOPPED
)
(NAME,) = TOPIC.mirror_partitions
STOPPED = States({NAME: PartitionState(NAME, State.STOPPED)}, {})


def with_unread(*keys: tuple[str, ...]) -> Snapshot:
    """Return two mirrors, a topic of the first one, and unreadable records."""
    records = [encode(one) for one in (MIRROR, OTHER, TOPIC)]
    records += [(encode_key(key), b"{") for key in keys]
    return Snapshot().after(StoredRecord(0, at, *one) for at, one in enumerate(records))


class Store(MirrorStore):
    """A store with these mirrors and states; changes are kept, and not written."""

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
    async def partition_count(*_: object) -> int:
        return COUNT

    monkeypatch.setattr(store_module, "known_partition_count", partition_count)


@pytest.mark.parametrize("topics", ["t.*", ["t"]])
def test_a_topic_with_an_unreadable_record_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, topics: str | list[str]
) -> None:
    """Otherwise a partial failover would seem to be one of all topics."""
    mirrored = encode(replace(TOPIC, wanted=Wanted.MIRRORING))
    records = [encode(MIRROR), mirrored, (encode_key(("topic", "m", "t-unread")), b"{")]
    snapshot = Snapshot().after(StoredRecord(0, at, *one) for at, one in enumerate(records))
    store = Store(snapshot)
    monkeypatch.setattr(changes, "MirrorStore", lambda _: store)
    nowhere = cast(KafkaCluster, None)
    assert asyncio.run(changes.remove_topics(nowhere, "m", topics)) == ["t"]
    named = [line for line in caplog.messages if "t-unread is unchanged" in line]
    assert len(named) == (1 if topics == "t.*" else 0)


@pytest.mark.parametrize("key", [("topic", "o", "t"), ("mirror", "m"), ("topic", "gone", "t")])
def test_a_topic_that_may_belong_to_another_mirror_is_not_added(key: tuple[str, ...]) -> None:
    async def add(topic: str) -> None:
        added = replace(TOPIC, mirror="o", topic=topic, wanted=Wanted.MIRRORING)
        await Store(with_unread(key)).add_topics("o", [added])

    asyncio.run(add("another"))
    with pytest.raises(UnsupportedVersion, match="cannot determine whether t belongs to a mirror"):
        asyncio.run(add("t"))


@pytest.mark.parametrize(
    "key", [("topic", "m", "u"), ("not-mirrored", "m"), ("followed", "m", "t"), ("mirror", "m")]
)
def test_a_mirror_with_an_unreadable_record_is_not_deleted(key: tuple[str, ...]) -> None:
    store = Store(with_unread(key))
    with pytest.raises(
        UnsupportedVersion,
        match="refusing to overwrite a record that cannot be read: __mirror_config-0, offset 3",
    ):
        asyncio.run(store.delete_mirror("m", lambda *_: None))
    assert store.changes is None


def test_unreadable_records_of_other_mirrors_do_not_block_a_deletion() -> None:
    store = Store(with_unread(("topic", "o", "u"), ("stop", "m"), ("feature", "m")))
    asyncio.run(store.delete_mirror("m", lambda *_: None))
    assert store.changes


def test_unreadable_states_are_not_overwritten() -> None:
    """They are kept when the mirror is deleted, and when the source topic was recreated."""
    place = state_partition("m", TOPIC.topic_id, 0, COUNT)
    states = STOPPED._replace(unreadable={(place, epochs_key(NAME)): "a newer version"})
    again = replace(TOPIC, topic_id=UUID(int=2), wanted=Wanted.MIRRORING)
    store = Store(with_unread(), states)
    for change in (store.delete_mirror("m", lambda *_: None), store.add_topics("m", [again])):
        with pytest.raises(
            UnsupportedVersion,
            match="refusing to overwrite a record that cannot be read: a newer version",
        ):
            asyncio.run(change)
    assert store.changes is None


# ---- the source's mirrors ------------------------------------------------------------------------


def test_unreadable_source_mirrors_may_mirror_a_topic_back() -> None:
    source_mirrors = their_mirrors(with_unread(("topic", "o", "u"), ("mirror", "m")), "s")
    assert [bool(source_mirrors.unsure(name)) for name in ("t", "u", "v")] == [True, True, False]


@pytest.mark.parametrize("origins", [("c",) * 100, ("c" * 256,)])
def test_impossible_origins_of_a_topic_are_not_stored(origins: tuple[str, ...]) -> None:
    """Goal: a source does not fill the destination's own `__mirror_config` at each refresh.

    It is then also unknown whether the topic comes from the destination.
    """
    longest = replace(TOPIC, topic="u", wanted=Wanted.MIRRORING, origins=("c" * 255,) * 99)
    too_long = replace(TOPIC, topic="v", wanted=Wanted.MIRRORING, origins=("d", *origins))
    records = [encode(one) for one in (MIRROR, longest, too_long)]
    snapshot = Snapshot().after(StoredRecord(0, at, *one) for at, one in enumerate(records))
    source_mirrors = their_mirrors(snapshot, "d")
    assert source_mirrors.origins == {"u": ("s", *longest.origins)}
    assert source_mirrors.unsure_among("tuv").keys() == {"v"}


@pytest.mark.parametrize(
    ("error", "unsure"),
    [(UserError("no right", code=29), False), (UnsupportedVersion("level 2", code=35), True)],
)
def test_unreadable_mirrors_of_the_source_count_as_unknown(
    monkeypatch: pytest.MonkeyPatch, error: UserError, unsure: bool
) -> None:
    """The right to read them is optional (docs/security.md); an unknown format is not."""

    class Refusing(Store):
        async def snapshot(self) -> Snapshot:
            raise error

    monkeypatch.setattr(failback, "MirrorStore", lambda _: Refusing(Snapshot()))
    cluster = cast(KafkaCluster, None)
    source_mirrors = asyncio.run(failback.read_their_mirrors(cluster, cluster))
    assert source_mirrors.unknown
    assert bool(source_mirrors.unsure("t")) is unsure


def test_a_topic_that_the_source_may_mirror_back_is_not_added(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Looked(Exception):
        """Raised once all checks have passed."""

    async def done(*_: object) -> None:
        pass

    async def look(*_: object, **__: object) -> None:
        raise Looked

    monkeypatch.setattr("twinlog.lifecycle.creation.check_apis", done)
    monkeypatch.setattr("twinlog.lifecycle.creation._look", look)
    monkeypatch.setattr("twinlog.lifecycle.creation.MirrorStore", lambda _: Store(with_unread()))
    topic = Topic("u", UUID(int=3), False, {0: None})  # type: ignore[dict-item]
    cluster = cast(
        KafkaCluster,
        SimpleNamespace(cluster_id="d", metadata=SimpleNamespace(topics={"u": topic})),
    )
    with pytest.raises(Looked):
        asyncio.run(add_named(cluster, cluster, "m", ["u"], their_mirrors(with_unread(), "d")))
    source_mirrors = their_mirrors(with_unread(("topic", "o", "u")), "d")
    with pytest.raises(
        UserError, match="cannot determine whether the source mirrors u from this cluster"
    ):
        asyncio.run(add_named(cluster, cluster, "m", ["u"], source_mirrors))


def test_stored_origins_are_kept_while_the_source_is_unreadable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A loop is not forgotten, and counts as a loop while it is unknown."""
    looped = [
        replace(TOPIC, topic=name, wanted=Wanted.MIRRORING, origins=("a", "b")) for name in "tu"
    ]
    source_mirrors = their_mirrors(with_unread(("topic", "m", "t")), "d")
    records: list[ConfigRecord] = [MIRROR, *looped]
    store = Store(Snapshot().after(StoredRecord(0, 0, *encode(one)) for one in records))

    async def read(*_: object) -> TheirMirrors:
        return source_mirrors

    monkeypatch.setattr(topic_sync, "read_their_mirrors", read)
    assert _failed_origins(store, looped) == 1
    assert store.changes == [replace(looped[1], origins=())]
    made_again = [replace(one, topic_id=UUID(int=9)) for one in looped]
    assert _failed_origins(store, made_again) == 1
    assert store.changes == [], "said of others than those that stand there"
    source_mirrors = TheirMirrors({}, frozenset(), {}, unknown="level 2")
    assert _failed_origins(store, looped) == 2


def _failed_origins(store: Store, topics: Collection[MirrorTopic]) -> int:
    context = sync_context(None, None, store, topics=topics)
    return asyncio.run(run_sync(topic_sync.TopicOrigins(), context))


def test_a_last_mirrored_end_beside_an_unreadable_one_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of several mirrors that had the topic, another one may have mirrored more of it."""
    known = {NAME: LastMirrored(LeaderEpoch(1), Offset(7))}
    states = [STOPPED._replace(epochs=known)]
    states.append(states[0]._replace(unreadable={(0, epochs_key(NAME)): "a newer version"}))
    cluster = cast(KafkaCluster, None)
    monkeypatch.setattr(failback, "MirrorStore", lambda _: Store(Snapshot(), states.pop()))
    found = [asyncio.run(last_mirrored(cluster, [TOPIC])) for _ in range(2)]
    assert [list(ends.values()) for ends in found] == [[], [known[NAME]]]


def test_denials_stay_on_topics_that_the_source_may_mirror_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def read(*_: object) -> TheirMirrors:
        return their_mirrors(with_unread(("topic", "m", "u")), "d")

    monkeypatch.setattr(denials, "read_their_mirrors", read)
    cluster = cast(KafkaCluster, None)

    def taken_over(topic: str) -> frozenset[str]:
        asked = denials._taken_over(cluster, cluster, Snapshot(), "m", {topic})
        return asyncio.run(asked)

    assert taken_over("v") == frozenset()
    with pytest.raises(UserError, match="cannot determine whether the source mirrors u from here"):
        taken_over("u")


# ---- ACLs ----------------------------------------------------------------------------------------

COPIED = Acl(
    *(ResourceType.TOPIC, "t", PatternType.LITERAL, "User:app", "*"),
    *(Operation.READ, Permission.ALLOW),
)


@pytest.mark.parametrize("side", ["here", "there"])
def test_no_acl_is_copied_if_a_mirror_may_have_created_it(
    monkeypatch: pytest.MonkeyPatch, side: str
) -> None:
    """A copied denial that keeps a source topic read-only would stop producers after a failover."""
    cluster = cast(KafkaCluster, SimpleNamespace(cluster_id="c"))

    def look(*keys: tuple[str, ...]) -> frozenset[Acl]:
        unread, readable = Store(with_unread(*keys)), Store(with_unread())
        on_destination, on_source = (unread, readable) if side == "here" else (readable, unread)
        monkeypatch.setattr(acl_sync, "MirrorStore", lambda _: on_source)
        return asyncio.run(acl_sync._not_its_own(cluster, cluster, on_destination))

    assert look(("topic", "m", "u")) == frozenset()
    made = key_of(MadeAcl(mirror="m", acl=COPIED, made_for=MadeFor.READ_ONLY))
    for key in (made, ("mirror", "m")):
        with pytest.raises(
            UnsupportedVersion, match="cannot determine which ACLs were created by mirrors"
        ):
            look(key)


def test_acls_of_an_unreadable_topic_are_kept() -> None:
    """They stay, as those of a paused topic. A copied right still makes no principal a node."""
    topic = replace(TOPIC, wanted=Wanted.MIRRORING)
    made = MadeAcl(mirror="m", acl=COPIED, made_for=MadeFor.SOURCE)
    records = [encode(one) for one in (MIRROR, topic, made)]
    records.append((encode_key(("topic", "m", "u")), b"{"))
    snapshot = Snapshot().after(StoredRecord(0, at, *one) for at, one in enumerate(records))
    cluster = cast(KafkaCluster, None)
    found = acl_sync._scope(
        cluster, snapshot, "m", parse_settings({}), about=(), destination_acls=()
    )
    scope = asyncio.run(found)
    assert scope.topics == {"t"}
    assert scope.inactive_topics == {"u"}
    unread = snapshot.after([StoredRecord(0, 9, encode_key(("mirror", "m")), b"{")])
    assert unread.copied_acls == {COPIED}
