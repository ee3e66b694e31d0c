"""What happens to a mirror's engine after an unforeseen error."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any, ClassVar
from uuid import UUID

import pytest
from batch_builders import batch, record
from positions import START

from twinlog.engines.base import PartitionProgress
from twinlog.engines.exact import engine
from twinlog.engines.exact.partition import ExactPartition
from twinlog.engines.exact.shard import Shard
from twinlog.engines.exact.spec import PartitionSpec, PartitionStage
from twinlog.engines.loop_steps import Steps
from twinlog.engines.settings import LaneSettings
from twinlog.engines.translated import engine as flow_engine
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.configuration import Parsed, parse_config, parse_source
from twinlog.kafka.client.references import NOTHING, Grants
from twinlog.kafka.errors import Fenced, Retriable, UserError
from twinlog.kafka.groups.group_config import GroupConfig
from twinlog.kafka.groups.membership import GroupMember
from twinlog.kafka.log.batch import LOG_APPEND_TIME
from twinlog.kafka.log.compression import Codec
from twinlog.kafka.protocol.fetch import Fetched
from twinlog.kafka.requests.expiration import Expirations
from twinlog.kafka.types import TopicPartition
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.settings import EXACT, TRANSLATED
from twinlog.runtime import lane, mirror_engines
from twinlog.runtime.mirror_engines import RunningEngine
from twinlog.store.config_records import Mirror, MirrorTopic, key_of
from twinlog.store.snapshot import Snapshot

DEFAULTS = LaneSettings()
MIRROR = Mirror(name="m", source={"bootstrap.servers": "a:1"}, source_cluster_id="source")
SECRET = "geheim"


class Source:
    """A source that is reachable after its errors."""

    cluster_id = "source"
    errors: ClassVar[list[Exception]] = []

    def __init__(self, *_: object, **__: object) -> None: ...

    async def start(self, _timeout: float) -> None:
        if self.errors:
            raise self.errors.pop(0)

    async def close(self) -> None: ...


class Engine:
    """An engine that fails if the test gives it an error, and otherwise runs for ever."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error
        self.reasons: list[str] = []

    async def run(self) -> None:
        if self.error is not None:
            raise self.error
        await asyncio.Event().wait()

    def fail_all(self, reason: str) -> None:
        self.reasons.append(reason)


class Lane:
    """Supplies engines, each with its error; `running` is set when all have been supplied."""

    lane = "node-0"
    random = Random(1)
    grants = NOTHING

    def __init__(self, *errors: Exception | None) -> None:
        self.engines = [Engine(error) for error in errors]
        self.running = asyncio.Event()
        self._left = list(self.engines)

    def engine_for(self, _mirror: Mirror, _cluster: Source) -> Engine:
        return self._left.pop(0)

    def engine_changed(self, _mirror: str, *, ended: bool) -> None:
        assert not ended
        if not self._left:
            self.running.set()


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror_engines, "KafkaCluster", Source)
    monkeypatch.setattr(mirror_engines, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(mirror_engines, "SOURCE_PAUSE_S", 0.01)


async def _until_the_last_runs(running_lane: Lane, **source: str) -> None:
    mirror = Mirror(
        name="m", source={"bootstrap.servers": "a:1"} | source, source_cluster_id="source"
    )
    running = RunningEngine(running_lane, mirror)  # type: ignore[arg-type]
    try:
        await asyncio.wait_for(running_lane.running.wait(), 60)
    finally:
        await running.close()


def test_a_defect_is_logged_and_reported_and_the_engine_restarts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The reason has the exception's type alone, the log has its location."""

    async def run() -> list[Engine]:
        running_lane = Lane(KeyError("what"), None)
        await _until_the_last_runs(running_lane)
        return running_lane.engines

    first, second = asyncio.run(run())
    assert first.reasons == ["KeyError, an internal error: see the log of node-0"]
    assert second.reasons == []
    (record,) = caplog.records
    assert (record.levelname, record.getMessage()) == ("ERROR", "mirror m")
    assert "raise self.error" in (record.exc_text or "")


def test_a_defect_before_the_source_connects_is_retried(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is retried, however often."""
    errors: list[Exception] = [TypeError("one"), UnicodeError("two")]

    def parse(properties: Mapping[str, str], grants: Grants) -> Parsed:
        if errors:
            raise errors.pop(0)
        return parse_source(properties, grants)

    monkeypatch.setattr(mirror_engines, "parse_source", parse)

    async def run() -> list[Engine]:
        running_lane = Lane(None, None)
        await _until_the_last_runs(running_lane)
        return running_lane.engines

    first, second = asyncio.run(run())
    assert [r.levelname for r in caplog.records] == ["ERROR", "ERROR"]
    assert [reason.split(",")[0] for reason in first.reasons] == ["TypeError", "UnicodeError"]
    assert second.reasons == []


@pytest.mark.parametrize(
    ("error", "said"), [(UserError("wrong password"), ["wrong password"]), (Retriable("gone"), [])]
)
def test_a_source_that_refuses_access_is_reported_by_an_idle_engine(
    error: Exception, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine without work reports it; the lane waits for an unreachable source."""
    monkeypatch.setattr(Source, "errors", [error])

    async def run() -> list[Engine]:
        running_lane = Lane(*([None] * (len(said) + 1)))
        await _until_the_last_runs(running_lane)
        return running_lane.engines

    *before, last = asyncio.run(run())
    assert [one.reasons for one in before] == [[one] for one in said]
    assert last.reasons == []


def test_another_cluster_at_the_source_address_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is reported until the source is the former cluster again."""
    monkeypatch.setattr(Source, "cluster_id", "another")

    async def run() -> Engine:
        running_lane = Lane(None)
        await _until_the_last_runs(running_lane)
        return running_lane.engines[0]

    (reason,) = set(asyncio.run(run()).reasons)
    assert "bootstrap.servers of the source lead to cluster another, expected source" in reason


def _real_lane(settings: LaneSettings = DEFAULTS) -> lane.Lane:
    config = lane.LaneConfig(
        node="node",
        index=0,
        lanes=1,
        destination={},
        settings=settings,
        group_id="twinlog",
        session_timeout_s=10.0,
    )
    running_lane = lane.Lane(config)
    running_lane._cluster = SimpleNamespace()  # type: ignore[assignment]
    running_lane._group = SimpleNamespace(holds_lease=True, owned=frozenset())  # type: ignore[assignment]
    running_lane._make_engines()
    return running_lane


def test_a_lane_writes_only_while_the_lease_holds() -> None:
    """Goal: each write of the lane checks the group's lease."""

    async def story() -> None:
        running_lane = _real_lane()
        await running_lane.on_assigned({3})
        owned = running_lane._owned[3]
        guards = (running_lane._may_write, owned._may_write, owned._states._may_write)  # type: ignore[attr-defined]
        assert all(guard() for guard in guards)
        running_lane._group.holds_lease = False  # type: ignore[misc]
        assert not any(guard() for guard in guards)
        await owned.close()

    asyncio.run(story())


def test_the_expiration_is_read_at_each_takeover(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: running shards use what brokers report now; without a report, the last value (A8)."""
    told: list[Expirations] = [Expirations(1_000, 5_000), Expirations(), Expirations(2_000, 5_000)]
    told_flows = list(told)

    async def expiration(_: object) -> Expirations:
        return told.pop(0)

    async def expiration_of_flows(_: object) -> Expirations:
        return told_flows.pop(0)

    async def story() -> None:
        running_lane = _real_lane()
        running_lane._cluster.brokers_time = SimpleNamespace(now_ms=lambda: 0)  # type: ignore[assignment]
        plane = running_lane._engines.engine_for(MIRROR, None).plane  # type: ignore[attr-defined]
        monkeypatch.setattr(engine, "expirations", expiration)
        monkeypatch.setattr(flow_engine, "expirations", expiration_of_flows)
        for known in (1_000, 1_000, 2_000):
            await running_lane.on_assigned({len(told)})
            await running_lane._engines._refresh()
            assert plane.settings.producer_expiration_ms == known
            shards = [one.writers[EXACT].shard for one in running_lane._owned.values()]  # type: ignore[attr-defined]
            assert {shard.settings.producer_expiration_ms for shard in shards} == {known}
            assert {shard.settings.ids_expiration_ms for shard in shards} == {5_000}
            flows = [one.writers[TRANSLATED] for one in running_lane._owned.values()]
            assert {one.settings.ids_expiration_ms for one in flows} == {5_000}  # type: ignore[attr-defined]
        for owned in running_lane._owned.values():
            owned.informed = True
        await running_lane._engines._refresh()
        running_lane._engines._refresh_due = 0.0
        with pytest.raises(IndexError):
            await running_lane._engines._refresh()
        for owned in running_lane._owned.values():
            await owned.close()

    asyncio.run(story())


def test_the_lane_buffer_bounds_the_decompressed_size_of_a_batch() -> None:
    """Goal: a batch that has to be decoded takes `lane.buffer.bytes` at most; else FAILED (B8)."""
    key, count, size = TopicPartition("t", 0), 100, 1_000
    records = [record(at, value=bytes(size)) for at in range(count)]
    data = batch(records, Codec.ZSTD, attributes=LOG_APPEND_TIME)
    assert len(data) < size
    answer = Fetched(0, count, count, 0, (), memoryview(data))

    async def taken(buffer_bytes: int) -> ExactPartition:
        running_lane = _real_lane(LaneSettings(buffer_bytes=buffer_bytes, corrupt_reads=1))
        running_lane._cluster = KafkaCluster(parse_config({"bootstrap.servers": "h:1"}).config)
        running_lane._make_engines()
        plane = running_lane._engines.engine_for(MIRROR, None).plane  # type: ignore[attr-defined]
        shard = Shard(0, "twinlog", plane.destination, plane.settings)
        spec = PartitionSpec(partition=key, source_topic_id=UUID(int=1), shard=0, compacted=False)
        plane.own(shard, [spec], lease_s=0.0)
        partition = plane.partitions[key]
        partition.append.place(START, plane.now(), compared=True)
        fetcher = plane.fetcher
        await fetcher._take(partition, answer, fetcher.clock, Steps(), follower=False)
        await plane.close()
        return partition

    fits = asyncio.run(taken(2 * count * size))
    assert fits.append.planned_end == count
    bound = count * size // 2
    too_long = asyncio.run(taken(bound))
    assert too_long.stage is PartitionStage.FAILED
    assert f"decompresses to more than {bound}" in too_long.reason


def test_a_state_partition_revoked_during_its_release_is_not_reacquired() -> None:
    """A write is Fenced; while the shard is dropped, the group gives its state partition away."""

    async def story() -> None:
        running_lane = _real_lane()
        config = SimpleNamespace(retry_backoff=0.1, retry_backoff_max=1.0)
        cluster: Any = SimpleNamespace(config=config, rng=Random(1))
        group = GroupMember(
            cluster, GroupConfig(group_id="twinlog", topic="__mirror_state"), running_lane
        )
        running_lane._group = group
        await group._apply(frozenset({3}))
        slow = SlowEngine()
        running_lane._engines._engines["m"] = SimpleNamespace(engine=slow)  # type: ignore[assignment]
        fenced = asyncio.create_task(
            running_lane._fenced(running_lane._owned[3], Fenced("the lease had ended"))
        )
        await slow.asked.wait()
        taken_away = asyncio.create_task(group._apply(frozenset()))
        await asyncio.sleep(0)
        slow.answered.set()
        await asyncio.gather(fenced, taken_away)
        assert not group.owned
        assert not running_lane._owned

    asyncio.run(story())


def test_partitions_start_anew_when_their_remote_topic_is_another_one() -> None:
    """Goal: nothing of the former topic is in flight when a partition goes on in the new one.

    A topic that was recreated without that, as by an operator who adds it again, changes nothing.
    """
    topic = MirrorTopic(
        mirror="m", topic="t", topic_id=UUID(int=1), partitions=1, destination_topic_id=UUID(int=2)
    )
    name = MirrorPartition("m", "t", 0)

    class Named(SlowEngine):
        names = (name,)
        stops = 0

        def progress(self, _: object = None) -> list[PartitionProgress]:
            return []

        async def stop(self, names: object) -> None:
            self.stops += list(names) == [name]  # type: ignore[call-overload]

    async def story() -> None:
        engines = _real_lane()._engines
        running = Named()
        engines._engines["m"] = SimpleNamespace(engine=running)  # type: ignore[assignment]
        present = topic

        def known() -> Snapshot:
            return Snapshot({key_of(one): one for one in (MIRROR, present)})

        engines._snapshot = known
        owned = SimpleNamespace(number=3, run=_nothing)

        async def reconcile() -> int:
            await engines.stop_all_but([name])
            await engines.run_partitions(owned, [(name, present)])  # type: ignore[arg-type]
            return running.stops

        engines._is_compacted = _nothing  # type: ignore[method-assign, assignment]
        assert [await reconcile(), await reconcile()] == [0, 0]
        present = replace(topic, destination_topic_id=UUID(int=3))
        assert await reconcile() == 0
        present = replace(present, lost_topic_ids=(UUID(int=2),))
        assert [await reconcile(), await reconcile()] == [1, 1]

    asyncio.run(story())


def test_the_engines_of_a_lane_stop_at_once() -> None:
    """Goal: a handover of many flows waits for the slowest one, not for the sum of all waits."""

    async def story() -> None:
        engines = _real_lane()._engines
        slow = [SlowEngine(), SlowEngine()]
        for number, one in enumerate(slow):
            engines._engines[f"m{number}"] = SimpleNamespace(engine=one)  # type: ignore[assignment]
        stop = asyncio.create_task(engines.stop_state_partitions([3]))
        async with asyncio.timeout(60):
            for one in slow:
                await one.asked.wait()
        assert not stop.done()
        for one in slow:
            one.answered.set()
        await stop

    asyncio.run(story())


async def _nothing(*_: object) -> None: ...


class SlowEngine:
    """An engine some of whose requests are not answered before `answered`."""

    def __init__(self) -> None:
        self.asked, self.answered = asyncio.Event(), asyncio.Event()

    def progress(self, _: object) -> list[PartitionProgress]:
        return []

    async def stop(self, _: object) -> None:
        self.asked.set()
        await self.answered.wait()
