"""What a stop of a flow's partitions records of what has landed last, without brokers."""

import asyncio
import random
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest
from flow_assignment import ASSIGNMENT

from twinlog.engines.exact.bulk import empty_records
from twinlog.engines.ports import Appended, Batch
from twinlog.engines.settings import LaneSettings
from twinlog.engines.translated import engine as engine_module
from twinlog.engines.translated.engine import FlowEngine
from twinlog.engines.translated.partitions import FlowPartition, FlowStage
from twinlog.engines.translated.sequence import PartitionSequence
from twinlog.engines.translated.writers import FlowWriters
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Disconnected, Fenced, Retriable, TwinlogError
from twinlog.kafka.types import Offset, ProducerEpoch, ProducerId, TopicPartition
from twinlog.mirror.offset_runs import Ends, Run
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.sequence_plan import SequencePlan

NODE: Final = 1
PLACE: Final = 100
"""The offset of the first copy in each partition of the destination."""
COPIED: Final = [Run(Offset(0), Offset(PLACE), 15)]
"""All records of the source's partition, which come in batches of five."""
LACKS: Final = int(ErrorCode.NOT_ENOUGH_REPLICAS)
_Partition = FlowPartition[FlowWriters, PartitionSequence]


class Destination:
    """A destination (`DestinationPort`) that answers appends one after another, when it is told."""

    def __init__(self) -> None:
        self._requests: list[tuple[Sequence[Batch], asyncio.Future[object]]] = []
        self._ends: dict[TopicPartition, int] = {}

    def appends_to(self, _topic: str, _topic_id: object) -> bool:
        return True

    def produce(self, node: int, requested: Sequence[Batch]) -> asyncio.Future[object]:
        assert node == NODE
        answer = asyncio.get_running_loop().create_future()
        self._requests.append((requested, answer))
        return answer

    async def answer(self, error: int | TwinlogError = 0, count: int = 1) -> None:
        """Answer the requests that are in flight for longest."""
        for _ in range(count):
            requested, answer = self._requests.pop(0)
            if isinstance(error, TwinlogError):
                answer.set_exception(error)
            else:
                answer.set_result({one.partition: self._append(one, error) for one in requested})
        await asyncio.sleep(0.01)

    def _append(self, one: Batch, error: int) -> Appended:
        if error:
            return Appended(error, -1, -1)
        base = self._ends.get(one.partition, PLACE)
        self._ends[one.partition] = base + 5
        return Appended(0, base, -1)


class Writers:
    """Stores maps and plans at once (`FlowWriters`), or as `before` does."""

    def __init__(self) -> None:
        self.runs: dict[MirrorPartition, list[Run]] = {}
        self.plans: dict[MirrorPartition, SequencePlan] = {}
        self.calls: list[Collection[MirrorPartition]] = []
        self.before: Callable[[], Coroutine[object, object, None]] = at_once

    async def record(self, sequences: Mapping[MirrorPartition, PartitionSequence]) -> None:
        self.calls.append(sequences.keys())
        for name, sequence in sequences.items():
            if sequence.landed:
                last = sequence.landed[-1]
                self.runs.setdefault(name, []).extend(sequence.landed)
                sequence.record(Ends(last.source_end, last.destination_end))
            plan = sequence.plan()
            await self.before()
            self.plans[name] = plan


async def at_once() -> None:
    """Store at once."""
    await asyncio.sleep(0)


class Flow:
    """A flow of some partitions, in whose engine nothing happens by itself."""

    def __init__(self, count: int = 1) -> None:
        self.destination, self.writers = Destination(), Writers()
        lane: Any = SimpleNamespace(
            settings=LaneSettings(position_pause_s=0.002),
            random=random.Random(1),
            destination=SimpleNamespace(brokers_time=SimpleNamespace(now_ms=lambda: 0)),
            id_prefix="lanes",
        )
        port: Any = self.destination
        self.engine = FlowEngine(lane, port, port, lambda *_: None)
        self.engine._run = self._never  # type: ignore[method-assign, assignment]
        policies: Any = SimpleNamespace(run=self._never)
        assert self.engine._reader is not None
        self.engine._reader.policies = policies
        self.partitions = [self._partition(index) for index in range(count)]
        self.sequences = [cast("PartitionSequence", one.sequence) for one in self.partitions]
        self.names = [one.name for one in self.partitions]

    def _partition(self, index: int) -> _Partition:
        assignment = replace(
            ASSIGNMENT,
            name=MirrorPartition("flow", "orders", index),
            source=TopicPartition("orders", index),
            destination=TopicPartition("a.orders", index),
        )
        partition = _Partition(
            assignment,
            cast("FlowWriters", self.writers),
            owned_before=True,
            locate_at=0.0,
            unguarded_until=0.0,
        )
        producer = ProducerId(7), ProducerEpoch(0)
        ends = Ends(Offset(0), Offset(PLACE))
        partition.sequence = PartitionSequence(producer, ends, ends.source)
        partition.stage, partition.destination_node = FlowStage.COPYING, NODE
        self.engine.flow.all[assignment.name] = partition
        return partition

    @staticmethod
    async def _never(_: object) -> None:
        await asyncio.Event().wait()

    async def copy(self) -> None:
        """Copy a batch of each partition, and send two more, which are in flight on return."""
        for start in (0, 5, 10):
            for sequence in self.sequences:
                sequence.offer([empty_records(Offset(start), Offset(start + 5))])
        for sequence in self.sequences:
            sequence.plan()
            sequence.stored()
        self.engine._sender.send(NODE)
        await self.destination.answer()
        self.engine._sender.send(NODE)
        assert [sequence.in_flight for sequence in self.sequences] == [2] * len(self.sequences)


def _run(body: Callable[[Flow], Coroutine[object, object, None]], count: int = 1) -> None:
    """Run a test with a flow whose engine runs."""

    async def with_engine() -> None:
        flow = Flow(count)
        running = asyncio.create_task(flow.engine.run())
        await asyncio.sleep(0)
        try:
            await body(flow)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(with_engine())


def test_a_stop_records_what_is_answered_while_it_waits() -> None:
    """Goal: a flow that is paused while it copies has a complete map, and no plan."""

    async def body(flow: Flow) -> None:
        await flow.copy()
        stop = asyncio.create_task(flow.engine.stop(flow.names))
        await asyncio.sleep(0.01)
        assert not stop.done()
        assert flow.engine.flow.copying == []
        await flow.destination.answer(count=2)
        await stop
        assert flow.writers.runs == dict.fromkeys(flow.names, COPIED)
        assert [plan.runs for plan in flow.writers.plans.values()] == [(), ()]
        assert [plan.recorded for plan in flow.writers.plans.values()] == [(15, PLACE + 15)] * 2
        assert len(flow.writers.calls) == 1

    _run(body, count=2)


def test_what_was_queued_and_not_sent_is_in_no_plan() -> None:
    """Goal: a log that is compacted during a long pause does not fail the flow.

    Nor is what has landed taken for what may have: `translate --to-source` answers to its end.
    """

    async def body(flow: Flow) -> None:
        await flow.copy()
        (sequence,) = flow.sequences
        sequence.offer([empty_records(Offset(15), Offset(40))])
        await flow.writers.record({flow.names[0]: sequence})
        sequence.stored()
        assert flow.writers.plans[flow.names[0]].runs == ((5, 40),)
        stop = asyncio.create_task(flow.engine.stop(flow.names))
        await flow.destination.answer()
        await flow.destination.answer(LACKS)  # it was not appended
        await stop
        plan = flow.writers.plans[flow.names[0]]
        assert (plan.runs, plan.recorded) == ((), (10, PLACE + 10))

    _run(body)


def test_a_stop_of_some_partitions_records_these() -> None:
    """Goal: the others of the state partition go on, and take their own answers."""

    async def body(flow: Flow) -> None:
        await flow.copy()
        stop = asyncio.create_task(flow.engine.stop(flow.names[:1]))
        await flow.destination.answer(count=2)
        await stop
        assert flow.writers.runs == {flow.names[0]: COPIED}
        going_on = flow.partitions[1]
        assert going_on.sequence is flow.sequences[1]
        assert going_on.sequence.landed == COPIED

    _run(body, count=2)


def test_a_stop_waits_for_a_plan_of_its_partitions_that_is_being_stored() -> None:
    """Goal: what lands meanwhile is recorded behind it; a plan of others is not waited for."""

    async def body(flow: Flow) -> None:
        await flow.copy()
        stored = asyncio.Event()

        async def wait() -> None:
            await stored.wait()

        flow.writers.before = wait
        now = flow.engine.flow.now()
        flow.engine._plan_due(flow.engine.flow.copying, now + 10)
        await asyncio.sleep(0)
        stop = asyncio.create_task(flow.engine.stop(flow.names))
        await flow.destination.answer(count=2)
        assert not stop.done()
        flow.writers.before = at_once
        stored.set()
        await stop
        assert flow.writers.runs[flow.names[0]] == [
            Run(Offset(0), Offset(PLACE), 5),
            Run(Offset(5), Offset(PLACE + 5), 10),
        ]
        assert len(flow.writers.calls) == 2

    _run(body)


def test_without_an_answer_a_stop_records_nothing() -> None:
    """Goal: the log shows later what has landed: no place is guessed, and the plan stays."""

    async def body(flow: Flow) -> None:
        await flow.copy()
        stop = asyncio.create_task(flow.engine.stop(flow.names))
        await flow.destination.answer(Disconnected("no answer"))
        await flow.destination.answer()
        await stop
        assert flow.writers.calls == []

    _run(body)


@pytest.mark.parametrize("refused", [Fenced("another owner"), Retriable("no answer"), None])
def test_a_stop_does_not_fail_where_nothing_can_be_recorded(
    refused: TwinlogError | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a handover goes on, and so does the engine; None: it takes too long."""
    monkeypatch.setattr(engine_module, "_LAST_RECORD_S", 0.05)

    async def refuse() -> None:
        if refused is not None:
            raise refused
        await asyncio.Event().wait()

    async def body(flow: Flow) -> None:
        await flow.copy()
        flow.writers.before = refuse
        stop = asyncio.create_task(flow.engine.stop(flow.names))
        await flow.destination.answer(count=2)
        async with asyncio.timeout(60):
            await stop
        assert len(flow.writers.calls) == 1
        assert flow.writers.plans == {}
        assert flow.engine._failure is not None
        assert not flow.engine._failure.done()

    _run(body)


def test_a_stop_of_what_is_recorded_stores_nothing() -> None:
    """Goal: a stop of a thousand idle partitions costs no write."""

    async def body(flow: Flow) -> None:
        await flow.engine.stop(flow.names)
        assert flow.writers.calls == []

    _run(body)


def test_an_engine_that_has_ended_records_nothing() -> None:
    """Goal: a lane that may not write any more writes nothing."""

    async def body() -> None:
        flow = Flow()
        running = asyncio.create_task(flow.engine.run())
        await asyncio.sleep(0)
        await flow.copy()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await flow.engine.stop(flow.names)
        assert flow.writers.calls == []

    asyncio.run(body())
