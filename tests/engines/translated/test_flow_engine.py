"""What the engine of flows does with a location, without brokers."""

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import pytest
from flow_assignment import ASSIGNMENT

from twinlog.engines.settings import LaneSettings
from twinlog.engines.translated.engine import FlowEngine
from twinlog.engines.translated.partitions import FlowPartition
from twinlog.engines.translated.sequence import PartitionSequence
from twinlog.engines.translated.writers import FlowWriters
from twinlog.kafka.types import Offset, ProducerEpoch, ProducerId
from twinlog.mirror.offset_runs import Ends

CLUSTER = SimpleNamespace(brokers_time=SimpleNamespace(now_ms=lambda: 0))
LANE: Any = SimpleNamespace(
    settings=LaneSettings(),
    random=random.Random(1),
    destination=CLUSTER,
    id_prefix="lanes",
    may_write=lambda: True,
)
PORT: Any = SimpleNamespace()


def _started() -> tuple[FlowEngine, FlowPartition[FlowWriters, PartitionSequence]]:
    """A flow of one partition that had no owner."""
    engine = FlowEngine(LANE, None, PORT, lambda *_: None)
    engine.start(FlowWriters(0, LANE, PORT), [ASSIGNMENT], lease_s=0.0)
    (partition,) = engine.flow.all.values()
    return engine, partition


def _sequence(position: int, *, has_begun: bool) -> PartitionSequence:
    ends = Ends(Offset(position), Offset(50))
    producer = ProducerId(7), ProducerEpoch(1)
    return PartitionSequence(producer, ends, ends.source, has_begun=has_begun)


@pytest.mark.parametrize("has_begun", [True, False])
def test_a_flow_that_is_created_again_does_not_begin(has_begun: bool) -> None:
    """Goal: what the source has deleted since the former flow's end is reported as lost."""

    async def body() -> None:
        engine, partition = _started()
        engine._located(partition, _sequence(10, has_begun=has_begun))
        assert partition.begins is not has_begun
        # A second location finds its own map, and still nothing was read.
        engine._located(partition, _sequence(10, has_begun=True))
        assert partition.begins is not has_begun

    asyncio.run(body())


def test_the_lag_ends_with_a_location_that_finds_everything_copied() -> None:
    """Goal: an answer that was lost has landed; an idle source's next answer leaves it out."""

    async def body() -> None:
        engine, partition = _started()
        engine._located(partition, _sequence(10, has_begun=False))
        partition.source_end = partition.source_stable = 12
        partition.heard_at = engine.flow.now()
        partition.note_lag(0.0)
        assert partition.behind_since == 0.0
        engine.flow.trouble(partition, "an answer was lost")
        engine._located(partition, _sequence(12, has_begun=True))
        assert partition.row(engine.flow.now()).lag_ms == 0

    asyncio.run(body())
