"""What the engine of transactional flows does with a location, without brokers."""

import asyncio
import random
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from batch_builders import record
from flow_assignment import ASSIGNMENT, IN_TRANSACTIONS

from twinlog.engines.dataframes import ResultRows, SourceRow
from twinlog.engines.ports import LeaderReport
from twinlog.engines.settings import LaneSettings
from twinlog.engines.transactional import engine as engine_module
from twinlog.engines.transactional.engine import TransactionalEngine
from twinlog.engines.transactional.outputs import Outputs
from twinlog.engines.transactional.queue import TransactionalQueue
from twinlog.engines.transactional.record_rules import RecordRules, record_rules
from twinlog.engines.transactional.remote_tails import tail_of_batch
from twinlog.engines.transactional.routed_tails import Doubt, RoutedTail
from twinlog.engines.transactional.source_position import ToBegin
from twinlog.engines.transactional.writers import Outdated, TransactionalWriters
from twinlog.engines.translated.location import NotLocated
from twinlog.engines.translated.partitions import FlowPartition, FlowStage
from twinlog.kafka.errors import Retriable
from twinlog.kafka.log.compression import Codec
from twinlog.kafka.log.records import build, decode, each_record
from twinlog.kafka.types import LeaderEpoch, Offset, Sequence, TopicPartition
from twinlog.lifecycle.flow_creation import stored_properties
from twinlog.mirror.dataframe_transform import DataFrameTransform
from twinlog.mirror.flow import flow_properties, records_map
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.plan import Data
from twinlog.mirror.transform_chain import OF_HEARTBEATS, TransformChain

LANE: Any = SimpleNamespace(
    settings=LaneSettings(),
    random=random.Random(1),
    destination=SimpleNamespace(),
    dataframes=None,
    id_prefix="lanes",
)
PORT: Any = SimpleNamespace()


PAYMENTS = TopicPartition("a.payments", 0)


def _data(count: int) -> list[Data]:
    built = build([record(at) for at in range(count)], Codec.NONE)
    return [Data(Offset(0), Offset(count), built.header, built.records)]


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


WITH_MAP = {**IN_TRANSACTIONS, "mirror.flow.twinlog.offset.map": "true"}


def test_partitions_are_located_again_if_no_map_is_recorded_any_more() -> None:
    """Goal: no head stays where nothing is copied while the map is off."""

    async def body() -> None:
        engine, partition = _started()
        engine.configure(WITH_MAP)
        engine._located(partition, TransactionalQueue(Offset(9), LeaderEpoch(-1)))
        engine.configure({**WITH_MAP, "mirror.flow.groups": "g"})
        kept = partition.sequence
        assert kept is not None
        engine.configure(IN_TRANSACTIONS)
        assert (partition.stage, partition.sequence) == (FlowStage.LOCATING, None)
        # Also one that is being located meanwhile.
        engine.configure(WITH_MAP)

        async def locate(*_: object, **options: bool) -> Mapping[MirrorPartition, object]:
            assert options["is_mapped"]
            engine.configure(IN_TRANSACTIONS)
            return {partition.name: TransactionalQueue(Offset(9), LeaderEpoch(-1))}

        writers: Any = SimpleNamespace(locate=locate)
        found = await engine._find_positions(writers, {partition: Offset(0)})
        assert isinstance(found[partition.name], NotLocated)

    asyncio.run(body())


def test_two_topics_that_are_copied_to_one_are_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: neither goes on at the other's position; the flow's other topics do."""
    located: list[MirrorPartition] = []

    async def locate(
        _: object, mirror: str, partitions: Mapping[MirrorPartition, ToBegin], **options: bool
    ) -> Mapping[MirrorPartition, NotLocated]:
        # The settings are not known yet, so it may route records.
        assert options == {"passes_lost": False, "is_mapped": False, "has_routed": True}
        assert mirror == "flow"
        located.extend(partitions)
        return {name: NotLocated("later") for name in partitions}

    monkeypatch.setattr(TransactionalWriters, "locate", locate)
    other = replace(ASSIGNMENT, name=MirrorPartition("flow", "payments", 0), destination=PAYMENTS)
    second = replace(ASSIGNMENT, name=MirrorPartition("flow", "x.orders", 0))

    async def body() -> None:
        engine, first = _started()
        engine.start(first.writers, [second, other], lease_s=0.0)
        begins = {partition: Offset(0) for partition in engine.flow.all.values()}
        found = await engine._find_positions(first.writers, begins)
        assert found[other.name] == NotLocated("later")
        for name in (ASSIGNMENT.name, second.name):
            refused = found[name]
            assert isinstance(refused, NotLocated)
            assert not refused.transient
            assert "orders-0 and x.orders-0 are copied to a.orders-0" in refused.reason
        await engine.stop([second.name])
        del begins[next(p for p in begins if p.name == second.name)]
        assert await engine._find_positions(first.writers, begins) == {
            name: NotLocated("later") for name in (ASSIGNMENT.name, other.name)
        }

    asyncio.run(body())
    assert located == [other.name, ASSIGNMENT.name, other.name]


def test_a_refused_write_does_not_take_the_routed_topics_from_another_one() -> None:
    """Goal: two state partitions write at the same time; one is refused, the other one goes on."""

    async def body() -> None:
        engine, partition = _started()
        engine._partitions_of["a.known"] = 1

        async def refresh(_: object) -> Any:
            engine._partitions_of = {}  # as a refused write does it
            topic = SimpleNamespace(error=0, partitions=[0, 1])
            return SimpleNamespace(topics={"a.new": topic})

        engine._cluster = SimpleNamespace(refresh=refresh)  # type: ignore[assignment]
        keys = [TopicPartition("a.known", 0), TopicPartition("a.new", 1)]
        outputs: Any = {partition.name: SimpleNamespace(batches=keys)}
        rules: Any = None
        assert await engine._unroutable(outputs, rules) == {}

    asyncio.run(body())


def test_the_results_of_two_partitions_are_not_mixed() -> None:
    """Goal: whatever their remote partitions are, each gets what its own records give."""
    second = replace(ASSIGNMENT, name=MirrorPartition("flow", "x.orders", 0))
    policy = SimpleNamespace(is_heartbeats_topic=lambda _: False)
    flow: Any = SimpleNamespace(policy=policy, settings=SimpleNamespace(source_cluster_alias="a"))
    rules = RecordRules(
        flow, TransformChain(), is_mapped=False, has_routed=False, passes_recreated=False
    )

    async def body() -> None:
        engine, first = _started()
        engine.start(first.writers, [second], lease_s=0.0)
        given: Any = {
            partition: _data(number + 1)
            for number, partition in enumerate(engine.flow.all.values())
        }
        results = await engine._transformed(given, rules, list(given))
        counts = {
            name: sum(one.header.num_records for one in result.batches[ASSIGNMENT.destination])
            for name, result in results.items()
            if isinstance(result, Outputs)
        }
        assert counts == {ASSIGNMENT.name: 1, second.name: 2}

    asyncio.run(body())


def test_a_stop_of_a_partition_that_waits_for_its_turn_ends_a_query(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: a stop does not wait for Spark, also if others only are in the transaction."""

    async def hangs(*_: object, **_more: object) -> Any:
        await asyncio.sleep(3600)

    monkeypatch.setattr(engine_module, "frame_outputs", hangs)
    monkeypatch.setattr(engine_module, "_available", lambda _: None)
    second = replace(ASSIGNMENT, name=MirrorPartition("flow", "x.orders", 0))
    policy = SimpleNamespace(is_heartbeats_topic=lambda _: False)
    flow: Any = SimpleNamespace(policy=policy, settings=SimpleNamespace(source_cluster_alias="a"))
    rules = RecordRules(
        flow,
        object.__new__(DataFrameTransform),
        is_mapped=False,
        has_routed=False,
        passes_recreated=False,
    )

    async def body() -> None:
        engine, first = _started()
        engine.start(first.writers, [second], lease_s=0.0)
        waiting = list(engine.flow.all.values())
        given: Any = {first: _data(1)}
        waiting[1].leave()
        async with asyncio.timeout(30):
            with pytest.raises(Outdated):
                await engine._transformed(given, rules, waiting)

    asyncio.run(body())


def test_topics_of_heartbeats_are_not_transformed() -> None:
    """Goal: by the policy's names, and only where a flow has transforms."""
    header = {
        "transforms": "header",
        "transforms.header.type": "InsertHeader",
        "transforms.header.header": "from",
        "transforms.header.value.literal": "a",
    }
    query = {"twinlog.transform.sql": "SELECT * FROM records"}
    for values in (header, query):
        rules = record_rules(flow_properties(values, "a", "b"))
        assert rules.of_topic("heartbeats") is OF_HEARTBEATS
        assert rules.of_topic("devices.heartbeats") is OF_HEARTBEATS
        assert rules.of_topic("orders") is rules.transforms
    rules = record_rules(flow_properties({}, "a", "b"))
    assert rules.of_topic("heartbeats") == TransformChain()


@pytest.mark.parametrize("former", [True, False])
def test_with_a_map_records_go_to_their_remote_topic_only(*, former: bool) -> None:
    """Goal: transforms see the policy's name; altered ones route nothing past the map."""
    text = "eu-$0" if former else "us-$0"
    values = {
        "transforms": "route",
        "transforms.route.type": "RegexRouter",
        "transforms.route.regex": ".*",
        "transforms.route.replacement": text,
        "twinlog.offset.map": "true",
        "enabled": "true",
    }
    properties = stored_properties({"bootstrap.servers": "a:1"}, values, "a", "b")
    assert records_map(properties)
    remote = TopicPartition("eu-a.orders", 0)

    async def body() -> None:
        engine = TransactionalEngine("flow", LANE, None, PORT, observe=lambda *_: None)
        engine.configure(properties)
        assert engine._rules is not None
        writers = TransactionalWriters(0, LANE, PORT)
        engine.start(writers, [replace(ASSIGNMENT, destination=remote)], lease_s=0.0)
        (partition,) = engine.flow.all.values()
        queue = TransactionalQueue(Offset(0), LeaderEpoch(-1))
        engine._located(partition, queue)
        queue.offer(_data(3))
        outputs = await engine._outputs([(partition, queue)], engine._rules)
        if former:
            (output,) = outputs.values()
            assert output.batches.keys() == {remote}
            assert output.sources == [(0, 3)]
            assert partition.stage is FlowStage.COPYING
        else:
            assert outputs == {}
            assert partition.stage is FlowStage.FAILED
            assert partition.reason == (
                "its records are routed to us-a.orders, and the flow copies orders to eu-a.orders: "
                "start twinlog mirror-maker with the former transforms"
            )

    asyncio.run(body())


ROUTED = RoutedTail(
    TopicPartition("x.orders", 0), UUID(int=3), tail_of_batch(50, 3, (7, 4), Sequence(10))
)


def _queue(engine: TransactionalEngine, routed: RoutedTail) -> TransactionalQueue:
    """The queue of the flow's partition, which is located, with three records."""
    (partition,) = engine.flow.all.values()
    queue = TransactionalQueue(Offset(0), LeaderEpoch(-1), routed=(routed,))
    engine._located(partition, queue)
    queue.offer(_data(3))
    return queue


def test_no_record_goes_where_records_may_be_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: no topic is created in the place of a deleted one; records of other topics go on."""
    missing, unled = (
        ROUTED._replace(doubt=Doubt(reason, is_missing))
        for reason, is_missing in (("the destination does not have it", True), ("no leader", False))
    )

    async def body() -> None:
        engine, partition = _started()
        flow = SimpleNamespace(policy=None)
        rules: Any = SimpleNamespace(is_mapped=False, transforms=TransformChain(), flow=flow)

        async def outputs(to: TopicPartition, routed: RoutedTail) -> Any:
            async def transformed(*_: object) -> object:
                return {partition.name: Outputs({to: []})}

            monkeypatch.setattr(engine, "_transformed", transformed)
            queue = _queue(engine, routed)
            return await engine._outputs([(partition, queue)], rules)

        for routed in (missing, unled):
            assert partition.name in await outputs(ASSIGNMENT.destination, routed)
            assert partition.stage is FlowStage.COPYING
        assert not await outputs(ROUTED.log, unled)
        assert (partition.stage, partition.sequence) == (FlowStage.LOCATING, None)
        assert not await outputs(ROUTED.log, missing)
        assert (partition.stage, partition.sequence) == (FlowStage.FAILED, None)
        assert partition.reason == (
            "the destination does not have it; position 0 of group lanes.flow.flow; commit the "
            "source's offset to go on at"
        )
        # Located at the same record it stays FAILED until this is committed.
        queue = _queue(engine, ROUTED)
        assert (partition.stage, partition.sequence) == (FlowStage.FAILED, queue)
        queue.take(1000)
        output: Any = SimpleNamespace(end=Offset(3), failure=None, records=3, bytes=1)
        engine._committed([(partition, queue)], {partition.name: output})
        assert (partition.stage, partition.sequence) == (FlowStage.COPYING, queue)
        _queue(engine, ROUTED._replace(leader_epoch=LeaderEpoch(4)))
        await _follow(engine, LeaderReport(1, 4, UUID(int=3)))
        copying = partition.sequence
        assert copying is not None
        await _follow(engine, None)
        state = (partition.stage, partition.sequence)
        assert state == (FlowStage.COPYING, copying), "no answer changes nothing"
        await _follow(engine, LeaderReport(1, 5, UUID(int=3)))
        assert (partition.stage, partition.sequence) == (FlowStage.LOCATING, None)

    asyncio.run(body())


def test_no_row_is_made_of_records_that_are_left_out() -> None:
    """Goal: a query counts exactly the records whose positions are committed with its rows.

    One of two partitions has written to a topic which has no leader now.
    """
    seen: list[list[str]] = []

    class Frames:
        async def run(self, _: object, rows: Iterable[SourceRow]) -> ResultRows:
            topics = [row.topic for row in rows]
            seen.append(sorted(set(topics)))
            return ResultRows(("record", "value"), [(0, str(len(topics)).encode())])

    policy = SimpleNamespace(is_heartbeats_topic=lambda _: False)
    flow: Any = SimpleNamespace(policy=policy, settings=SimpleNamespace(source_cluster_alias="a"))
    transforms = DataFrameTransform(sql="SELECT")
    rules = RecordRules(flow, transforms, is_mapped=False, has_routed=False, passes_recreated=False)
    payments = replace(
        ASSIGNMENT, name=MirrorPartition("flow", "payments", 0), destination=PAYMENTS
    )

    async def body() -> None:
        engine, first = _started()
        engine.start(first.writers, [payments], lease_s=0.0)
        second = engine.flow.all[payments.name]
        engine._dataframes = cast(Any, Frames())
        unled = ROUTED._replace(log=ASSIGNMENT.destination, doubt=Doubt("no leader", False))
        queues = [
            TransactionalQueue(Offset(0), LeaderEpoch(-1), routed=routed)
            for routed in ((unled,), ())
        ]
        both = list(zip((first, second), queues, strict=True))
        for partition, queue in both:
            engine._located(partition, queue)
            queue.offer(_data(3))
        outputs = await engine._outputs(both, rules)
        assert seen == [["a.orders", "a.payments"], ["a.payments"]]
        assert outputs.keys() == {payments.name}
        (built,) = outputs[payments.name].batches[PAYMENTS]
        (written,) = each_record(built.header, built.records)
        assert decode(written).value == b"3", "of its own records"
        assert first.sequence is None

    asyncio.run(body())


async def _follow(engine: TransactionalEngine, report: LeaderReport | None) -> None:
    """Have the engine ask for the leaders of routed topics; None: the target is unreachable."""

    async def leaders(topics: set[str]) -> Mapping[TopicPartition, LeaderReport]:
        assert topics == {"x.orders"}
        if report is None:
            raise Retriable("unreachable")
        return {ROUTED.log: report}

    port: Any = SimpleNamespace(leaders=leaders)
    engine._destination = port
    await engine._follow_routed()
