"""What the engine of transactional flows does with a location, without brokers."""

import asyncio
import random
from types import SimpleNamespace
from typing import Any

from flow_assignment import ASSIGNMENT

from twinlog.engines.settings import LaneSettings
from twinlog.engines.transactional.engine import TransactionalEngine
from twinlog.engines.transactional.queue import TransactionalQueue
from twinlog.engines.transactional.writers import TransactionalWriters
from twinlog.engines.translated.partitions import FlowPartition
from twinlog.kafka.types import LeaderEpoch, Offset

LANE: Any = SimpleNamespace(
    settings=LaneSettings(),
    random=random.Random(1),
    destination=SimpleNamespace(),
    dataframes=None,
    id_prefix="lanes",
)
PORT: Any = SimpleNamespace()


def _started() -> tuple[TransactionalEngine, FlowPartition[Any, TransactionalQueue]]:
    """A flow of one partition that had no owner."""
    engine = TransactionalEngine("flow", LANE, None, PORT, observe=lambda *_: None)
    engine.start(TransactionalWriters(0, LANE, PORT), [ASSIGNMENT], lease_s=0.0)
    (partition,) = engine.flow.all.values()
    return engine, partition


def test_the_lag_ends_with_a_location_that_finds_everything_copied() -> None:
    """Goal: a transaction whose answer was lost is committed; an idle source answers no more."""

    async def body() -> None:
        engine, partition = _started()
        engine._located(partition, TransactionalQueue(Offset(10), LeaderEpoch(-1)))
        partition.source_end = partition.source_stable = 12
        partition.heard_at = engine.flow.now()
        partition.note_lag(0.0)
        assert partition.behind_since == 0.0
        engine.flow.trouble(partition, "no answer")
        engine._located(partition, TransactionalQueue(Offset(12), LeaderEpoch(-1), has_begun=True))
        assert partition.row(engine.flow.now()).lag_ms == 0

    asyncio.run(body())


def test_a_flow_begins_until_it_has_read_a_record() -> None:
    """Goal: what the source deletes before that is no loss, also where it is located again."""

    async def body() -> None:
        engine, partition = _started()
        engine._located(partition, TransactionalQueue(Offset(0), LeaderEpoch(-1)))
        assert partition.begins
        # The position that was found is the one that the first location has committed.
        engine._located(partition, TransactionalQueue(Offset(0), LeaderEpoch(-1), has_begun=True))
        assert partition.begins

    asyncio.run(body())


def test_a_position_of_a_former_flow_is_no_beginning() -> None:
    async def body() -> None:
        engine, partition = _started()
        engine._located(partition, TransactionalQueue(Offset(9), LeaderEpoch(-1), has_begun=True))
        assert not partition.begins

    asyncio.run(body())
