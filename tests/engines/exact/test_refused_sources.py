"""A source that refuses the node says nothing about the destination's log."""

import asyncio
from collections.abc import Iterable
from random import Random
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

from twinlog.engines.base import Assignment, Sealing
from twinlog.engines.exact.engine import ExactEngine, ExactWriters
from twinlog.engines.exact.events import Failure
from twinlog.engines.settings import LaneSettings
from twinlog.kafka.types import LeaderEpoch, Offset, TopicPartition
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.states import State
from twinlog.runtime.reported_states import ReportedStates
from twinlog.store.control_topics import States
from twinlog.store.state_records import LastMirrored, PartitionState

KEY = TopicPartition("t", 0)
NAME = MirrorPartition("m", *KEY)
STORED_END = Offset(5_000)
"""As of the last change of state, long ago."""
FENCE = Offset(1_000_000)
DIFFERS = Failure("the batch of offset 100 landed at 101", differs=True)


def engine_of(reported: ReportedStates) -> ExactEngine:
    return ExactEngine(
        "m",
        lambda _, row: reported.observe(row),
        source=None,
        destination=cast(Any, SimpleNamespace()),
        settings=LaneSettings(),
        random=Random(1),
        brokers_time_ms=lambda: 0,
        confirm_ownership=cast(Any, None),
    )


def stopped_at(failures: Iterable[Failure]) -> Offset:
    """The end that is stored by a stop after an engine without a source, and these failures."""
    reported = ReportedStates()
    stored = LastMirrored(LeaderEpoch(3), STORED_END, (7,))
    reported.adopt(States({NAME: PartitionState(NAME, State.MIRRORING)}, {NAME: stored}))
    markers = SimpleNamespace(first_owned=lambda _: None, held_back="")
    shard = SimpleNamespace(number=0, data_producer=7, markers=markers, resumed=lambda _: None)
    writers = ExactWriters(cast(Any, shard))
    assignment = Assignment(
        name=NAME,
        source=KEY,
        destination=KEY,
        state_partition=0,
        source_topic_id=UUID(int=1),
        destination_topic_id=UUID(int=2),
        compacted=False,
    )

    async def body() -> None:
        engine = engine_of(reported)
        engine.start(writers, [assignment], lease_s=10.0)
        for failure in failures:
            engine.plane.emit(engine.plane.partitions[KEY], failure)
        # The source refuses the node: another engine takes its place, and knows nothing.
        another = engine_of(reported)
        another.fail_all("SASL authentication failed")
        another.start(writers, [assignment], lease_s=10.0)

    asyncio.run(body())
    assert reported.state(NAME) is State.FAILED
    sealing = Sealing(KEY, None, reported.last(NAME))
    return writers._sealed(FENCE, None, sealing).end


def test_a_failover_from_a_source_that_refuses_the_node_ends_at_the_fence() -> None:
    """Otherwise a failback would refuse equal logs, from an end that may be days old."""
    assert stopped_at([]) == FENCE


def test_a_log_that_is_known_to_differ_ends_where_it_was_proven() -> None:
    """Also if the source refuses the node later."""
    assert stopped_at([DIFFERS]) == STORED_END
