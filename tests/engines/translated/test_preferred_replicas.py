"""Flows whose source wants to be read from another replica than the leader (KIP-392)."""

import asyncio
import random
import secrets
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest
from batch_builders import batch, record
from confluent_kafka import Producer
from flow_assignment import ASSIGNMENT
from lane_processes import lanes
from stored_flows import store_flow
from transformed_flows import PARTITIONS, consumed, count, flow_properties
from unusual_sources import compile_selector
from waiting import SECONDS, until

from conftest import Pair
from twinlog.engines.ports import FetchResult, SourcePort
from twinlog.engines.settings import LaneSettings
from twinlog.engines.translated.partitions import FlowPartition, FlowPartitions, FlowStage
from twinlog.engines.translated.reader import FlowReader
from twinlog.engines.translated.sequence import PartitionSequence
from twinlog.engines.translated.writers import FlowWriters
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Retriable
from twinlog.kafka.log_reader import ReadAlone
from twinlog.kafka.protocol.fetch import Fetched
from twinlog.kafka.types import (
    EpochEnd,
    FetchPosition,
    Offset,
    ProducerEpoch,
    ProducerId,
    TopicPartition,
)
from twinlog.local.cluster import DEFAULT_VERSION
from twinlog.local.stage import Stage
from twinlog.mirror.offset_runs import Ends

KEY = ASSIGNMENT.source
LEADER, REPLICA = 3, 2
END = 13
_Partition = FlowPartition[FlowWriters, PartitionSequence]


def fetched(records: bytes = b"", **more: object) -> Fetched:
    """An answer of a source whose last stable offset is `END`."""
    return Fetched(0, END, END, 0, (), memoryview(records))._replace(**cast("Any", more))


NAMED = fetched(preferred_replica=REPLICA)
RECORDS = fetched(batch([record(at) for at in range(10, END)]))


class Source:
    """A source (`SourcePort`) with one answer for each broker."""

    def __init__(self, answers: Mapping[int, Fetched | Retriable]) -> None:
        self.answers = dict(answers)

    async def fetch(
        self, node: int, positions: Mapping[TopicPartition, FetchPosition], **_: int
    ) -> FetchResult:
        assert KEY in positions
        answer = self.answers.pop(node)
        if isinstance(answer, Retriable):
            raise answer
        return FetchResult({KEY: answer}, len(answer.records))


class Flow:
    """A flow of one partition that has copied up to offset 10, and a clock that is set."""

    def __init__(self) -> None:
        self.now = 100.0
        self.flow = FlowPartitions[FlowWriters, PartitionSequence](
            LaneSettings(fetch_pace_s=0.0, backoff_s=0.0), random.Random(1), lambda _: None
        )
        self.flow.now = lambda: self.now  # type: ignore[method-assign]
        self.partition = _Partition(
            ASSIGNMENT,
            cast("FlowWriters", None),
            owned_before=True,
            locate_at=0.0,
            unguarded_until=0.0,
        )
        producer = ProducerId(7), ProducerEpoch(1)
        ends = Ends(Offset(10), Offset(50))
        self.sequence = PartitionSequence(producer, ends, Offset(10))
        self.partition.sequence, self.partition.stage = self.sequence, FlowStage.COPYING
        self.partition.source_node = self.partition.destination_node = LEADER
        self.flow.all[ASSIGNMENT.name] = self.partition

    async def fetch(self, **answers: Fetched | Retriable) -> None:
        """Fetch from the broker that is read now, once; `leader` and `replica` answer so."""
        nodes = {"leader": LEADER, "replica": REPLICA}
        source = Source({nodes[name]: answer for name, answer in answers.items()})
        reader = FlowReader(self.flow, cast("SourcePort", source))
        ((node, throttled),) = reader.loops()
        assert node in source.answers, f"broker {node} is read"

        class Once(Exception):
            """The loop goes on with the next fetch."""

        fetch = source.fetch

        async def fetch_once(*positional: Any, **named: Any) -> FetchResult:
            if not source.answers:
                raise Once
            return await fetch(*positional, **named)

        source.fetch = fetch_once  # type: ignore[method-assign]
        with suppress(Once):
            await reader.read((node, throttled))

    @property
    def read_node(self) -> int:
        return self.partition.read_node


def test_a_partition_is_read_from_the_replica_that_the_leader_names() -> None:
    async def body() -> None:
        flow = Flow()
        await flow.fetch(leader=NAMED)
        assert flow.read_node == REPLICA
        await flow.fetch(replica=RECORDS)
        assert flow.sequence.position == END
        assert flow.read_node == REPLICA

    asyncio.run(body())


def test_the_leader_is_asked_again_after_a_while() -> None:
    """Goal: it may name another one, or return records itself."""

    async def body() -> None:
        flow = Flow()
        await flow.fetch(leader=NAMED)
        flow.now += LaneSettings().leaders_max_age_s - 1
        await flow.fetch(replica=fetched())
        assert flow.read_node == REPLICA
        flow.now += 1
        await flow.fetch(replica=fetched())
        assert flow.read_node == LEADER
        await flow.fetch(leader=NAMED._replace(preferred_replica=7))
        assert flow.read_node == 7

    asyncio.run(body())


@pytest.mark.parametrize(
    "answer",
    [
        fetched(error=ErrorCode.OFFSET_OUT_OF_RANGE),
        fetched(error=ErrorCode.UNKNOWN_LEADER_EPOCH),
        fetched(error=ErrorCode.NOT_LEADER_OR_FOLLOWER),
        fetched(error=ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        fetched(diverging=EpochEnd(3, 8)),
        Retriable("unreachable"),
    ],
)
def test_a_replica_that_does_not_answer_with_records_proves_nothing(
    answer: Fetched | Retriable,
) -> None:
    """Goal: a lagging replica is no source that has lost records; the leader is read again.

    It is not left for the replica at once: both would be asked in turn.
    """

    async def body() -> None:
        flow = Flow()
        await flow.fetch(leader=NAMED)
        await flow.fetch(replica=answer)
        assert flow.read_node == LEADER
        assert flow.partition.sequence is flow.sequence
        assert (flow.partition.stage, flow.partition.failures) == (FlowStage.COPYING, 0)
        await flow.fetch(leader=NAMED)
        assert flow.read_node == LEADER
        await flow.fetch(leader=RECORDS)
        assert flow.sequence.position == END

    asyncio.run(body())


def reaching(end: int) -> Fetched:
    return fetched(high_watermark=end, last_stable=end)


def test_the_leader_tells_that_the_source_has_lost_its_end() -> None:
    """Goal: records that no source has any more are no lag without end, and are not suspected."""

    async def body() -> None:
        flow = Flow()
        await flow.fetch(leader=reaching(20))
        row = flow.partition.row(flow.now)
        assert (row.source_end, row.source_last_stable) == (20, 20)
        assert row.lag_ms == 1
        await flow.fetch(leader=reaching(10))
        row = flow.partition.row(flow.now)
        assert (row.source_end, row.source_last_stable, row.lag_ms) == (10, 10, 0)
        await flow.fetch(leader=fetched(high_watermark=-1, last_stable=-1))
        later = flow.partition.row(flow.now)
        assert later._replace(source_time_ms=row.source_time_ms) == row

    asyncio.run(body())


def test_neither_a_follower_nor_a_former_leader_tells_that_the_source_has_lost_its_end() -> None:
    """Goal: a replica that lags, or an answer that comes late, makes no lag smaller."""

    async def body() -> None:
        flow = Flow()
        await flow.fetch(leader=NAMED)
        await flow.fetch(replica=reaching(10))
        assert flow.partition.row(flow.now).source_end == END
        flow = Flow()
        await flow.fetch(leader=reaching(20))

        class Moved(Source):
            """Another broker leads by the time that the former one answers."""

            async def fetch(self, node: int, *positional: Any, **named: Any) -> FetchResult:
                flow.partition.source_node = REPLICA
                return await super().fetch(node, *positional, **named)

        reader = FlowReader(flow.flow, cast("SourcePort", Moved({LEADER: reaching(10)})))
        await reader.read((LEADER, False))
        assert flow.partition.row(flow.now).source_last_stable == 20
        await flow.fetch(replica=reaching(10))
        assert flow.partition.row(flow.now).source_last_stable == 10

    asyncio.run(body())


class Redirecting:
    """A source whose leader names a replica to each session, which cannot be read."""

    def __init__(self, flow: Flow, alone: Fetched) -> None:
        self.flow = flow
        self.answers: dict[int, Fetched | Retriable] = {LEADER: NAMED}
        self.alone = alone

    async def fetch(
        self, node: int, positions: Mapping[TopicPartition, FetchPosition], **_: int
    ) -> FetchResult:
        assert KEY in positions
        self.flow.now += 0.5
        answer = self.answers[node]
        if isinstance(answer, Retriable):
            raise answer
        return FetchResult({KEY: answer}, 0)

    async def read_alone(self, *_: object, **__: object) -> ReadAlone:
        return ReadAlone(self.alone, 0, 5, local_start=0, compacts=False)


@pytest.mark.parametrize("alone", [RECORDS, NAMED], ids=["records", "named"])
@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (Retriable("no connection"), "no connection"),
        (fetched(error=ErrorCode.UNKNOWN_LEADER_EPOCH), "UNKNOWN_LEADER_EPOCH"),
        (fetched(diverging=EpochEnd(3, 8)), "its log ends at offset 8"),
    ],
    ids=["unreachable", "refused", "diverging"],
)
def test_a_replica_that_cannot_be_read_is_reported(
    answer: Fetched | Retriable, why: str, alone: Fetched
) -> None:
    """Goal: a flow that copies nothing says why, whatever the leader answers to other requests."""

    async def body() -> None:
        flow = Flow()
        source = Redirecting(flow, alone)
        source.answers[REPLICA] = answer
        reader = FlowReader(flow.flow, cast("SourcePort", source))

        async def pass_time(seconds: float) -> list[str | None]:
            end, reasons = flow.now + seconds, []
            while flow.now < end:
                (loop,) = reader.loops()
                task = asyncio.ensure_future(reader.read(loop))
                for _ in range(6):
                    await asyncio.sleep(0)
                task.cancel()
                for partition in reader.absences.due():
                    await reader.absences.read(partition)
                reasons.append(flow.partition.row(flow.now).held_back)
            return reasons

        await pass_time(20)
        for reason in await pass_time(100):
            assert f"redirects fetches to broker {REPLICA} " in str(reason)
            assert f"which cannot be read: {why}" in str(reason).replace("(3) ", "")
        source.answers[LEADER] = source.answers[REPLICA] = RECORDS
        await pass_time(1)
        assert flow.sequence.position == END
        assert flow.partition.row(flow.now).held_back is None
        assert flow.partition.unreadable is None

    asyncio.run(body())


def test_no_replica_is_read_whose_leader_has_no_more_records() -> None:
    async def body() -> None:
        flow = Flow()
        await flow.fetch(leader=NAMED._replace(last_stable=10))
        assert flow.read_node == LEADER

    asyncio.run(body())


def test_a_partition_whose_leader_is_not_known_is_not_read() -> None:
    async def body() -> None:
        flow = Flow()
        await flow.fetch(leader=NAMED)
        flow.partition.source_node = -1
        assert flow.read_node == -1
        assert FlowReader(flow.flow, cast("SourcePort", None)).loops() == set()

    asyncio.run(body())


@pytest.mark.long
@pytest.mark.broker
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["plain", "transactional"])
def test_a_flow_is_copied_once_from_replicas_that_are_killed(tmp_path: Path, kind: str) -> None:
    """Goal: all records, once and in order, though a lane and a replica are killed under load.

    While there are two replicas, leaders return no records: all are read from followers. The one
    that is killed leads some, too.
    """
    mirror, topic = (f"{name}-{secrets.token_hex(4)}" for name in ("flow", "t"))
    remote = f"a.{topic}"
    with Stage(tmp_path / "stage") as stage:
        config = {"replica.selector.class": "FollowerSelector"}
        classpath = [str(compile_selector(tmp_path, DEFAULT_VERSION))]
        source = stage.start_source(2, config=config, classpath=classpath)
        destination = stage.start_destination().bootstrap_servers
        pair = Pair(stage.source, stage.destination)
        properties = flow_properties(
            pair, {"transaction.producer": "true"} if kind == "transactional" else {}
        )
        names = topic, remote
        replicas = [[1, 2], [2, 1], *[[1, 2]] * (PARTITIONS - 2)]
        asyncio.run(
            store_flow(pair, mirror, properties, names, PARTITIONS, source_replicas=replicas)
        )
        load = Load(source.bootstrap_servers, topic)

        def await_more(records: int = 1000) -> None:
            wanted = count(destination, remote) + records
            until(lambda: count(destination, remote) >= wanted, SECONDS, f"{wanted} records")

        try:
            with lanes(destination, tmp_path) as running:
                running.start("one")
                await_more()
                running.kill("one")
                running.start("two")
                await_more()
                source.kill(2)
                await_more()
                log = tmp_path / "two.log"
                until(lambda: "source broker 2: " in log.read_text(), SECONDS, "the broker's name")
                source.start_broker(2)
                await_more()
                wanted = load.end()
                until(
                    lambda: count(destination, remote) >= sum(map(len, wanted.values())),
                    SECONDS,
                    "all records",
                )
        finally:
            load.end()
        copied = consumed(destination, remote)
        assert {index: [value for value, _ in copied[index]] for index in copied} == wanted


class Load:
    """Writes numbers to all partitions of a topic until it is ended, each once and in order."""

    def __init__(self, servers: str, topic: str) -> None:
        self._producer = Producer(
            {"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 5}
        )
        self._topic = topic
        self._written: dict[int, list[bytes]] = {index: [] for index in range(PARTITIONS)}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        number = 0
        while not self._stop.wait(0.01):
            for _ in range(10):
                value = b"%d" % number
                self._producer.produce(self._topic, value, partition=number % PARTITIONS)
                self._written[number % PARTITIONS].append(value)
                number += 1
            self._producer.poll(0)

    def end(self) -> dict[int, list[bytes]]:
        """End it; return what was written, by partition."""
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(180) == 0
        return self._written
