"""The list of syncs, and how a refresh runs it: one sync's failure stops no other."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from sync_contexts import snapshot_of

from twinlog.kafka.errors import Retriable, UserError
from twinlog.lifecycle.flow_creation import stored_properties
from twinlog.store.config_records import Mirror, MirrorTopic, Wanted
from twinlog.store.snapshot import Snapshot
from twinlog.sync import refresh
from twinlog.sync.absent_acls import AbsentAcls
from twinlog.sync.base import Host, Sync, SyncContext
from twinlog.sync.heartbeats import Heartbeats, SourceHeartbeats
from twinlog.sync.read_only import ReadOnly
from twinlog.sync.refresh import Refresher
from twinlog.sync.registry import METRICS, REGISTRY, create_syncs
from twinlog.sync.repeated_commits import DEFAULT_REPEAT_S
from twinlog.sync.unsettled_configs import UnsettledConfigs

ID, OTHER = UUID(int=1), UUID(int=2)
SAME = MirrorTopic(mirror="m", topic="same", topic_id=ID, partitions=1, destination_topic_id=ID)


def test_syncs_have_unique_names_and_the_metrics_of_the_kip() -> None:
    """Goal: metrics and findings name each sync; KIP-1279's four metrics are there, in order."""
    assert METRICS[:4] == (
        "MetadataRefreshError",
        "TopicConfigMetadataSyncError",
        "ConsumerGroupOffsetSyncError",
        "AclSyncError",
    )
    names = [sync.name for sync in REGISTRY]
    assert len(set(names)) == len(names)


def test_one_instance_of_each_sync_is_created() -> None:
    """Goal: ACLs are copied under the same lock by which topics are kept read-only."""
    nobody: Any = None
    host = Host(nobody, nobody)
    syncs = create_syncs(host)
    assert [type(sync) for sync in syncs] == [*REGISTRY]
    assert create_syncs(host) == syncs
    beside = [type(sync) for sync in syncs if not sync.needs_source]
    assert beside == [ReadOnly, Heartbeats, SourceHeartbeats]


class Fake(Sync[str]):
    """A sync that compares, and that may fail."""

    name = "fakes"
    metric = "FakeSyncError"

    def __init__(self, error: Exception | None = None, *, concerns: bool = True) -> None:
        self.applied: list[tuple[SyncContext, str]] = []
        self.is_concerned = concerns
        self._error = error

    def concerns(self, settings: object, topics: object) -> bool:
        del settings, topics
        return self.is_concerned

    async def compare(self, context: SyncContext) -> str:
        del context
        if self._error is not None:
            raise self._error
        return "difference"

    async def apply(self, context: SyncContext, difference: str) -> int:
        self.applied.append((context, difference))
        return 3


class Rare(Fake):
    """It runs each ten minutes; a run fails, by an error or in part, if `failing`."""

    failing = False

    def interval_s(self, mirror: Mirror) -> float:
        assert mirror.name == "m"
        return 600.0

    async def apply(self, context: SyncContext, difference: str) -> int:
        await super().apply(context, difference)
        return int(self.failing)


class Cluster:
    """A cluster with these ids of topics."""

    def __init__(self, **ids: UUID) -> None:
        self.config = SimpleNamespace(grants=None)
        self._ids = ids

    async def refresh(self, names: list[str]) -> Any:
        known = {name: SimpleNamespace(topic_id=self._ids[name]) for name in names}
        return SimpleNamespace(topics=known)


def refresher(
    monkeypatch: pytest.MonkeyPatch, source: Cluster, destination: Cluster, mirror: Mirror
) -> tuple[Refresher, list[str]]:
    """Return a refresher of three topics, and the sources that it has connected to."""
    topics = [SAME, *(replace(SAME, topic=name) for name in ("recreated", "copied"))]
    snapshot = snapshot_of(mirror, *topics)
    connected: list[str] = []

    async def read() -> Snapshot:
        return snapshot

    @asynccontextmanager
    async def connect(mirror: Mirror, _grants: object) -> AsyncIterator[Cluster]:
        connected.append(mirror.name)
        yield source

    monkeypatch.setattr(refresh, "connected_source", connect)
    store: Any = SimpleNamespace(snapshot=read)
    cluster: Any = destination
    one = Refresher(cluster, store, lambda: snapshot)
    one._partitions, one._config_partitions = 1, {0}
    return one, connected


def test_a_failure_stops_no_other_sync(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: an error, and a bug, of one sync are counted and logged, and the others run."""
    source = Cluster(same=ID, recreated=OTHER, copied=ID)
    destination = Cluster(same=ID, recreated=ID, copied=OTHER)
    mirror = Mirror(name="m", source={}, source_cluster_id="s")
    one, _ = refresher(monkeypatch, source, destination, mirror)
    good, idle = Fake(), Fake(concerns=False)
    one._syncs = (Fake(Retriable("refused")), Fake(ZeroDivisionError("bug")), idle, good)
    asyncio.run(one._refresh("m", 0.0))
    [(context, difference)] = good.applied
    assert difference == "difference"
    assert [topic.topic for topic in context.same] == ["same"], "neither was recreated"
    assert len(context.topics) == 3
    assert one.errors["m", "FakeSyncError"] == 1 + 1 + 3
    assert "mirror m, FakeSyncError: refused" in caplog.text
    assert "ZeroDivisionError: bug" in caplog.text
    assert idle.applied == []


def test_no_sync_runs_for_an_unknown_mirror_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: its engine may give topics other names: the source is not even asked."""
    mirror = Mirror(name="m", source={"mirror.kind": "later"}, source_cluster_id="s")
    one, connected = refresher(monkeypatch, Cluster(), Cluster(), mirror)
    good = Fake()
    one._syncs = (good,)
    with pytest.raises(UserError, match=r"mirror\.kind=later"):
        asyncio.run(one._refresh("m", 0.0))
    assert (good.applied, connected) == ([], [])


def test_a_sync_runs_at_its_own_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: not at each refresh; again at the next one after a failure, and where all is new."""
    mirror = Mirror(name="m", source={}, source_cluster_id="s")
    cluster = Cluster(same=ID, recreated=ID, copied=ID)
    one, _ = refresher(monkeypatch, cluster, cluster, mirror)

    each, rare, broken = Fake(), Rare(), Rare(Retriable("refused"))
    one._syncs = (each, rare, broken)

    def runs(*times: float) -> list[float]:
        """Refresh at these times; return those at which `rare` has run."""
        result = []
        for now in times:
            count = len(rare.applied)
            asyncio.run(one._refresh("m", now))
            result += [now] * (len(rare.applied) - count)
        return result

    assert runs(0, 60, 599, 600, 661, 1199, 1200) == [0, 600, 1200]
    assert len(each.applied) == 7
    assert one.errors["m", "FakeSyncError"] == 7 * 3 + 7, "what has failed is run again"
    rare.failing = True
    assert runs(1800, 1860) == [1800, 1860]
    rare.failing = False
    assert runs(1920, 1980) == [1920]
    asyncio.run(one.on_assigned({0}))
    assert runs(2040, 2100) == [2040], "another node may have had the mirror"
    changed = replace(mirror, source={"mirror.partitions.max": "9"})
    one._store = refresher(monkeypatch, cluster, cluster, changed)[0]._store
    assert runs(2160, 2220) == [2160], "its settings have changed"


def test_all_is_due_for_a_mirror_without_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: one that was deleted and created again does not wait for the former one's intervals."""
    mirror = Mirror(name="m", source={}, source_cluster_id="s")
    cluster = Cluster()
    one, _ = refresher(monkeypatch, cluster, cluster, mirror)
    snapshot = snapshot_of(mirror)

    async def read() -> Snapshot:
        return snapshot

    store: Any = SimpleNamespace(snapshot=read)
    one._store = store
    rare = Rare()
    one._syncs = (rare,)
    for now in (0.0, 60.0):
        asyncio.run(one._refresh("m", now))
    assert len(rare.applied) == 2


def test_all_is_due_where_topics_have_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a topic that is new, or goes on, does not keep its configurations for an interval."""
    mirror = Mirror(name="m", source={}, source_cluster_id="s")
    cluster = Cluster(same=ID, recreated=ID, copied=ID)
    one, _ = refresher(monkeypatch, cluster, cluster, mirror)
    rare = Rare()
    one._syncs = (rare,)
    snapshot = asyncio.run(one._store.snapshot())
    first, *others = snapshot.topics_of("m")
    stopped = replace(first, wanted=Wanted.STOPPED)
    records: list[MirrorTopic] = [first, *others]

    async def read() -> Snapshot:
        return snapshot_of(mirror, *records)

    store: Any = SimpleNamespace(snapshot=read)
    one._store = store
    counts = []
    for now, topic in enumerate([first, first, stopped, stopped, first, first]):
        records[0] = topic
        asyncio.run(one._refresh("m", float(now)))
        counts.append(len(rare.applied))
    assert counts == [1, 1, 2, 2, 3, 3]


def test_syncs_of_flows_have_the_intervals_of_their_settings() -> None:
    """Goal: as MirrorMaker 2's schedules. Offsets are not committed later than they expire."""
    nobody: Any = None
    names = {
        "topics of a flow": "refresh.topics",
        "configurations of a flow": "sync.topic.configs",
        "ACLs of a flow": "sync.topic.acls",
        "checkpoints": "emit.checkpoints",
        "group offsets": "sync.group.offsets",
    }
    seconds = {name: 100 + number for number, name in enumerate(names.values())}
    values = {f"{name}.interval.seconds": str(number) for name, number in seconds.items()}
    mirror = flow({"enabled": "true", "sync.group.offsets.enabled": "true", **values})
    syncs = {sync.name: sync for sync in create_syncs(Host(nobody, nobody))}
    intervals = {name: sync.interval_s(mirror) for name, sync in syncs.items()}
    own = {name: float(seconds[setting]) for name, setting in names.items()}
    assert intervals == dict.fromkeys(syncs, 0.0) | own
    assert set(intervals.values()) > {0.0}
    once = flow({"enabled": "true", "refresh.topics.enabled": "false"})
    assert syncs["topics of a flow"].interval_s(once) == 0
    rare = flow({"enabled": "true", "sync.group.offsets.interval.seconds": "604800"})
    assert syncs["group offsets"].interval_s(rare) == DEFAULT_REPEAT_S
    exact = Mirror(name="m", source={}, source_cluster_id="s")
    assert syncs["group offsets"].interval_s(exact) == 0


def test_what_two_checks_decide_waits_for_no_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a revoked ACL is removed by the next refresh, and a shorter retention copied."""
    nobody: Any = None
    syncs = {sync.name: sync for sync in create_syncs(Host(nobody, nobody))}
    mirror = flow({"enabled": "true"})
    names = ("ACLs of a flow", "configurations of a flow")
    assert [syncs[name].interval_s(mirror) for name in names] == [600, 600]
    for remembered in (AbsentAcls, UnsettledConfigs):
        monkeypatch.setattr(remembered, "waits", lambda _, name: name == mirror.name)
    assert [syncs[name].interval_s(mirror) for name in names] == [0, 0]
    other = replace(mirror, name="other")
    assert [syncs[name].interval_s(other) for name in names] == [600, 600]


def flow(values: dict[str, str]) -> Mirror:
    source = stored_properties({"bootstrap.servers": "a:1"}, values, "a", "b")
    return Mirror(name="a-to-b", source=source, source_cluster_id="a")
