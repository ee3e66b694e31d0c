"""The list of syncs, and how a refresh runs it: one sync's failure stops no other."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from twinlog.kafka.errors import Retriable, UserError
from twinlog.store.config_records import Mirror, MirrorTopic, key_of
from twinlog.store.snapshot import Snapshot
from twinlog.sync import refresh
from twinlog.sync.base import Host, Sync, SyncContext
from twinlog.sync.flow_records import Heartbeats
from twinlog.sync.read_only import ReadOnly
from twinlog.sync.refresh import Refresher
from twinlog.sync.registry import METRICS, REGISTRY, create_syncs

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
    assert [type(sync) for sync in syncs if not sync.needs_source] == [ReadOnly, Heartbeats]


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
    snapshot = Snapshot({key_of(one): one for one in (mirror, *topics)})
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
    return Refresher(cluster, store, lambda: snapshot), connected


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
    asyncio.run(one._refresh("m"))
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
        asyncio.run(one._refresh("m"))
    assert (good.applied, connected) == ([], [])
