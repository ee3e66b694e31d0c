"""Twin of twinlog.engines.translated.leaders, and what the engine does with leaders."""

import asyncio
import random
from types import SimpleNamespace
from typing import cast
from uuid import UUID

import pytest
from sole_owner import owned_for_good

from twinlog.engines.base import Assignment, LaneContext
from twinlog.engines.ports import DestinationPort, LeaderReport, SourcePort
from twinlog.engines.settings import LaneSettings
from twinlog.engines.translated import engine as engine_module
from twinlog.engines.translated.engine import FlowEngine, FlowEngines, source_begins
from twinlog.engines.translated.found_losses import FoundLosses
from twinlog.engines.translated.location import NotLocated
from twinlog.engines.translated.partitions import FlowPartition, FlowStage
from twinlog.engines.translated.sequence import PartitionSequence
from twinlog.engines.translated.writers import FlowWriters
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import Retriable
from twinlog.kafka.requests.expiration import Expirations
from twinlog.kafka.types import LogBounds, Offset, ProducerEpoch, ProducerId, TopicPartition
from twinlog.mirror.flow import flow_properties
from twinlog.mirror.offset_runs import Ends
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.states import State

KEY, REMOTE = TopicPartition("orders", 0), TopicPartition("a.orders", 0)
SOURCE_ID, DESTINATION_ID = UUID(int=1), UUID(int=2)


def _lane() -> LaneContext:
    brokers_time = SimpleNamespace(now_ms=lambda: 0)
    return LaneContext(
        destination=cast("KafkaCluster", SimpleNamespace(brokers_time=brokers_time)),
        settings=LaneSettings(),
        id_prefix="twinlog",
        may_write=lambda: True,
        confirm_ownership=owned_for_good,
        random=random.Random(1),
    )


def _engine() -> FlowEngine:
    return FlowEngine(_lane(), None, cast("DestinationPort", None), lambda *_: None)


def _copying(engine: FlowEngine) -> FlowPartition[FlowWriters, PartitionSequence]:
    assignment = Assignment(
        name=MirrorPartition("flow", *KEY),
        source=KEY,
        destination=REMOTE,
        state_partition=0,
        source_topic_id=SOURCE_ID,
        destination_topic_id=DESTINATION_ID,
        compacted=False,
    )
    partition = FlowPartition[FlowWriters, PartitionSequence](
        assignment,
        cast("FlowWriters", SimpleNamespace(losses=FoundLosses())),
        owned_before=True,
        locate_at=0.0,
        unguarded_until=0.0,
        stage=FlowStage.COPYING,
        sequence=PartitionSequence(
            (ProducerId(7), ProducerEpoch(1)), Ends(Offset(0), Offset(0)), Offset(0)
        ),
    )
    engine.flow.all[assignment.name] = partition
    return partition


def test_a_partition_is_located_again_if_its_destination_has_another_leader() -> None:
    """Goal: a leader that has lost records, and the producer with them, would take any batch."""

    async def body() -> None:
        engine = _engine()
        partition = _copying(engine)
        source = LeaderReport(1, 1, SOURCE_ID)
        # A broker whose metadata is stale reports a former leader.
        for epoch, copied in ((4, True), (4, True), (3, True), (5, False)):
            engine._leaders.led(partition, source, LeaderReport(2, epoch, DESTINATION_ID))
            assert (partition.sequence is not None) is copied
        assert partition.stage is FlowStage.LOCATING

    asyncio.run(body())


def test_a_leader_that_is_elected_during_a_location_has_the_partition_located_again() -> None:
    """Goal: what was read is of the former leader's log; the new one's may lack its end."""

    async def body() -> None:
        engine = _engine()
        partition = _copying(engine)
        located, partition.sequence = partition.sequence, None
        assert located is not None
        partition.locating = True
        for epoch in (4, 5):
            engine._leaders.led(
                partition,
                LeaderReport(1, 1, SOURCE_ID),
                LeaderReport(2, epoch, DESTINATION_ID),
            )
        partition.locating = False
        engine._located(partition, located)
        assert partition.sequence is None
        engine._located(partition, located)
        assert partition.sequence is located

    asyncio.run(body())


@pytest.mark.parametrize("recreated", ["source", "destination"])
@pytest.mark.parametrize("silent", [True, False], ids=["silent", "unreachable"])
def test_a_recreated_topic_is_known_though_the_other_cluster_does_not_answer(
    recreated: str, silent: bool
) -> None:
    """Goal: nothing is read from it, or written to it.

    From the answer on, requests use the topic ids in it, and the other cluster may be unreachable
    for as long as it takes.
    """
    known = {"source": (KEY, SOURCE_ID), "destination": (REMOTE, DESTINATION_ID)}

    class Port:
        def __init__(self, side: str) -> None:
            self.side = side

        async def leaders(self, _: object) -> dict[TopicPartition, LeaderReport]:
            key, topic_id = known[self.side]
            if self.side == recreated:
                return {key: LeaderReport(1, 0, UUID(int=topic_id.int + 10))}
            if silent:
                await asyncio.Event().wait()
            raise Retriable("unreachable")

    async def body() -> None:
        engine = _engine()
        partition = _copying(engine)
        engine._leaders._destination = cast("DestinationPort", Port("destination"))
        asking = asyncio.create_task(engine._leaders.ask(cast("SourcePort", Port("source"))))
        for _ in range(5):
            await asyncio.sleep(0)
        assert partition.sequence is None
        assert (partition.stage, partition.transient) == (FlowStage.FAILED, False)
        assert "was deleted and recreated" in str(partition.reason)
        assert partition.losses.times == (recreated == "destination")
        assert partition.source_losses.times == (recreated == "source")
        asking.cancel()

    asyncio.run(body())


def test_leaders_are_asked_for_when_a_partition_cannot_be_located() -> None:
    """Goal: a log is shorter for another topic, too, which leaders tell before a loss counts."""

    async def body() -> None:
        engine = _engine()
        partition = _copying(engine)
        engine.flow.leaders_due = engine.flow.now() + 1000
        engine._located(partition, NotLocated("its log is shorter"))
        assert engine.flow.leaders_due < engine.flow.now() + engine.flow.settings.lease_s

    asyncio.run(body())


def test_a_flow_that_goes_on_waits_until_its_record_names_the_recreated_topic() -> None:
    """Goal: one broker that is behind neither ends the flow nor counts as a loss.

    Meanwhile the partition is neither located nor sent to, as its record is of another log.
    """

    async def body() -> None:
        engine = _engine()
        partition = _copying(engine)
        engine.configure(flow_properties({"twinlog.data.loss": "continue"}, "a", "b"))
        assert engine.flow.passes_recreated
        source, target = LeaderReport(1, 1, SOURCE_ID), LeaderReport(2, 4, DESTINATION_ID)
        engine._leaders.led(partition, source, target)
        assert partition.destination_node == 2
        engine._leaders.led(partition, source, target._replace(topic_id=UUID(int=9)))
        assert partition.sequence is None
        assert (partition.stage, partition.transient) == (FlowStage.FAILED, True)
        assert partition.destination_node == -1
        assert "deleted and recreated; the flow goes on in the new one" in str(partition.reason)
        assert partition.losses.times == 0
        partition.locate_at = 0.0
        engine._locate_due(cast("SourcePort", None), 1.0)
        assert not partition.locating
        engine._leaders.led(partition, source, target)
        assert partition.destination_node == 2, "it is located again"

    asyncio.run(body())


@pytest.mark.parametrize(
    ("known", "last"),
    [
        ((7, 9), "orders-0, offsets [7, 9) at least"),
        ((7, 7), "orders-0, offsets from 7 on, if there were any"),
        ((None, 9), "orders-0, offsets up to 9, from an unknown one on"),
        ((None, -1), "orders-0, an unknown number of offsets"),
    ],
)
@pytest.mark.parametrize("passes_lost", [False, True])
def test_what_was_not_copied_of_a_recreated_source_topic_is_counted(
    known: tuple[int | None, int],
    last: str,
    passes_lost: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Goal: with the range as far as it is known, also if the topic was missing for a while.

    Where the flow goes on, the partition ends with its topic, and a node counts (`FlowTopics`).
    It is an error only if a record is known that was not copied.
    """

    async def body() -> None:
        engine = _engine()
        engine.flow.passes_lost = passes_lost
        partition = _copying(engine)
        assert partition.sequence is not None
        copied, partition.source_stable = known
        partition.read_stable = partition.source_stable
        partition.source_end = max(partition.source_stable, 12)  # of a transaction that is open
        if copied is None:
            partition.sequence = None
        else:
            partition.sequence.mirrored_end = Offset(copied)
        destination = LeaderReport(2, 1, DESTINATION_ID)
        engine._leaders.led(partition, None, destination)
        assert partition.source_losses.times == 0
        for _ in range(2):
            engine._leaders.led(partition, LeaderReport(1, 1, UUID(int=9)), destination)
        assert partition.stage is FlowStage.FAILED
        lost = (0, 0, None) if passes_lost else (1, 2 if known == (7, 9) else 0, last)
        assert partition.source_losses == lost
        logged = [r for r in caplog.records if r.message.endswith(last)]
        is_loss = known == (7, 9)
        level, count = ("ERROR" if is_loss else "WARNING"), int(is_loss or not passes_lost)
        assert [record.levelname for record in logged] == [level] * count

    asyncio.run(body())


def test_what_was_not_copied_of_a_deleted_source_topic_is_reported() -> None:
    """Goal: whoever removes the topic tells what was lost, with the offsets."""

    async def body() -> None:
        engine = _engine()
        partition = _copying(engine)
        assert partition.sequence is not None
        partition.sequence.mirrored_end = Offset(7)
        partition.source_end, partition.source_stable, partition.read_stable = 20, 15, 9
        target = LeaderReport(2, 1, DESTINATION_ID)
        engine._leaders.led(partition, None, target)
        row = partition.row(0.0)
        assert (row.state, row.mirrored_end, row.source_last_stable) == (State.FAILED, 7, 9)
        engine._leaders.led(partition, LeaderReport(1, 1, SOURCE_ID), target)
        row = partition.row(0.0)
        assert (row.mirrored_end, row.source_last_stable) == (-1, 15)

    asyncio.run(body())


def test_a_lanes_first_flow_knows_how_long_brokers_remember_producers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: it counts from its first batch on; lanes read it before the flow has an engine."""

    async def told(_: object) -> Expirations:
        return Expirations(producer_ms=600_000, transactional_ms=700_000)

    async def body() -> None:
        monkeypatch.setattr(engine_module, "expirations", told)
        engines = FlowEngines(_lane())
        await engines.refresh()
        settings = engines.engine("flow", None, lambda *_: None).flow.settings
        assert (settings.producer_expiration_ms, settings.ids_expiration_ms) == (600_000, 700_000)

    asyncio.run(body())


def test_a_flow_begins_at_the_last_stable_offset() -> None:
    """Goal: a transaction that is open is copied whole, or not at all."""

    async def bounds(_: object) -> dict[TopicPartition, LogBounds]:
        return {KEY: LogBounds(error=0, start=2, high_watermark=9, last_stable=5)}

    async def body() -> None:
        partition = _copying(_engine())
        partition.fresh = True
        source = cast("SourcePort", SimpleNamespace(bounds=bounds))
        for at_end, begin in ((False, 2), (True, 5)):
            assert partition.begins
            assert await source_begins(source, [partition], at_end=at_end) == {
                partition.name: begin
            }
        assert not partition.begins  # what is deleted behind this end is lost

    asyncio.run(body())
