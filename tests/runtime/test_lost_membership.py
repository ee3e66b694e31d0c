"""A lane that has lost its state partitions sends nothing of them, even with another lease."""

import asyncio
from random import Random
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from positions import START

from twinlog.engines.exact.bulk import empty_records
from twinlog.engines.exact.engine import ExactEngine, ExactWriters
from twinlog.engines.exact.events import Queued
from twinlog.engines.exact.spec import PartitionSpec
from twinlog.engines.settings import LaneSettings
from twinlog.kafka.client.metadata import Metadata, Topic
from twinlog.kafka.client.references import NOTHING
from twinlog.kafka.groups.group_config import GroupConfig
from twinlog.kafka.groups.member_requests import MembershipLostError
from twinlog.kafka.groups.membership import GroupMember
from twinlog.kafka.protocol.produce import API_KEY as PRODUCE
from twinlog.kafka.types import Offset, TopicPartition
from twinlog.mirror.settings import EXACT
from twinlog.runtime import lane, mirror_engines
from twinlog.runtime.mirror_engines import RunningEngine
from twinlog.store.config_records import Mirror

KEY = TopicPartition("t", 0)
MIRROR = Mirror(name="m", source={"bootstrap.servers": "a:1"}, source_cluster_id="source")
STATE_PARTITION = 3


async def _never(*_: object, **__: object) -> Any:
    await asyncio.Event().wait()


class Source:
    """A source that is connected, and never answers."""

    cluster_id = "source"
    metadata = Metadata()
    refresh = connection = staticmethod(_never)

    def __init__(self, *_: object, **__: object) -> None: ...

    def round_trip_s(self, _node: int) -> float:
        return 0.0

    async def start(self, _timeout: float) -> None: ...

    async def close(self) -> None: ...


class Connection:
    """A connection to a destination broker, which a quota throttles until `ready` is set."""

    can_send = False

    def __init__(self) -> None:
        self.throttle_ends = asyncio.Event()
        self.sent: list[int] = []

    async def ready(self, _timeout: float | None = None) -> None:
        await self.throttle_ends.wait()

    def send_raw(self, api_key: int, *_: object, **__: object) -> asyncio.Future[memoryview]:
        self.sent.append(api_key)
        return asyncio.get_running_loop().create_future()

    def negotiate(self, *_: object) -> int:
        return 9  # topics are known by name


def _lane(connection: Connection) -> lane.Lane:
    """A lane whose group is driven by the test; its destination has this connection only."""
    config = lane.LaneConfig(
        node="node",
        index=0,
        lanes=1,
        destination={},
        settings=LaneSettings(position_pause_s=0.01),
        group_id="twinlog",
        session_timeout_s=0.3,
    )
    running_lane = lane.Lane(config)
    topic = Topic("t", UUID(int=2), internal=False, partitions={})
    cluster: Any = SimpleNamespace(
        name="destination",
        config=SimpleNamespace(
            request_timeout=30.0, retry_backoff=0.1, retry_backoff_max=1.0, grants=NOTHING
        ),
        rng=Random(1),
        connected=lambda *_: connection,
        metadata=Metadata(topics={"t": topic}),
        refresh=_never,
        brokers_time=SimpleNamespace(now_ms=lambda: 0),
    )
    running_lane._cluster = cluster
    running_lane._make_engines()
    group = GroupConfig(
        group_id="twinlog",
        topic="__mirror_state",
        session_timeout=config.session_timeout_s,
        heartbeat_interval=0.05,
        rebalance_timeout=config.session_timeout_s,
    )
    running_lane._group = GroupMember(cluster, group, running_lane)
    return running_lane


async def _engine(running_lane: lane.Lane) -> ExactEngine:
    """The engine of a mirror whose source is connected."""
    engines = running_lane._engines
    runner = engines._engines["m"] = RunningEngine(engines, MIRROR)
    async with asyncio.timeout(60):
        while runner.engine is None:
            await asyncio.sleep(0)
    assert isinstance(runner.engine, ExactEngine)
    return runner.engine


@pytest.mark.parametrize("lost", [True, False], ids=["lost", "kept"])
def test_a_queued_append_of_a_lost_partition_is_never_sent(
    lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: what a quota holds back is dropped with the membership, and not sent in the next one.

    The revocation of a state partition waits for a batch that a quota holds back, until the
    rebalance timeout ends it. Then another lane owns the partition. This lane rejoins, and its
    lease holds again when the quota lets the connection go on. `kept`: without the loss the batch
    is sent, so the test would notice if nothing were sent at all.
    """
    monkeypatch.setattr(mirror_engines, "KafkaCluster", Source)

    async def story() -> None:
        connection = Connection()
        running_lane = _lane(connection)
        group = running_lane._group
        await group._apply(frozenset({STATE_PARTITION}))
        group._lease.settle(group._clock())
        plane = (await _engine(running_lane)).plane
        writers = running_lane._owned[STATE_PARTITION].writers[EXACT]
        assert isinstance(writers, ExactWriters)
        spec = PartitionSpec(
            partition=KEY, source_topic_id=UUID(int=1), shard=STATE_PARTITION, compacted=False
        )
        plane.own(writers.shard, [spec], lease_s=0.0)
        partition = plane.partitions[KEY]
        partition.source_node = partition.destination_node = 1
        partition.append.place(START, plane.now(), compared=True)
        plane.emit(partition, Queued([empty_records(Offset(0), Offset(5))], touch=True))
        plane.pump(1)
        assert partition.append.in_flight
        assert not connection.sent
        if lost:
            with pytest.raises(MembershipLostError) as loss:
                await group._apply(frozenset())
            await asyncio.wait_for(group._lose(loss.value.code), 60)
        group._lease.settle(group._clock())
        assert running_lane._may_write()
        connection.throttle_ends.set()
        await asyncio.sleep(0.05)
        assert connection.sent == ([] if lost else [PRODUCE])
        await running_lane._engines.close()
        await running_lane.on_lost({STATE_PARTITION})

    asyncio.run(story())
