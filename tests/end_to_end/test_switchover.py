"""A planned switchover under load: no loss, no duplicate, groups read on."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import librdkafka_tools
import pytest
from clients import client
from confluent_kafka import Consumer, Producer, TopicPartition
from readiness_check import find_readiness
from switchover_process import Switching
from waiting import until

from twinlog import MirrorAdmin, State
from twinlog.kafka.types import TopicPartition as KafkaPartition
from twinlog.local.check import ConsumerView
from twinlog.local.stage import Stage
from twinlog.local.writers import Totals, TransactionalProducer
from twinlog.operations.readiness.reasons import Reason
from twinlog.operations.switchover.records import (
    LeftBehind,
    Producers,
    ProducersNotStopped,
    Progress,
    Step,
    SwitchedOver,
)
from twinlog.operations.switchover.switchover import switch_over

pytestmark = [pytest.mark.broker, pytest.mark.spark]

MIRROR = "everything"
PARTITIONS = (0, 1)
OPEN = {"transaction.timeout.ms": 900_000}
"""No coordinator aborts what a test keeps open."""
Place = tuple[int, int]
"""Partition and offset of a record."""


class Writing:
    """A transactional producer that writes until it is stopped; a third is aborted."""

    def __init__(self, servers: str, topic: str) -> None:
        self.totals = Totals()
        self._writer = TransactionalProducer(servers, f"{topic}-writer", self.totals)
        self._topic = topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        count = 0
        while not self._stop.is_set():
            count += 1
            self._writer.begin()
            for at in range(20):
                self._writer.write(self._topic, at % 2, f"k{at}", f"{count}.{at}")
            self._writer.flush()
            self._stop.wait(0.05)
            self._writer.end(commit=count % 3 != 0)

    def stop(self) -> None:
        """End the open transaction."""
        self._stop.set()
        self._thread.join()


@contextmanager
def writing(servers: str, topic: str) -> Iterator[Writing]:
    load = Writing(servers, topic)
    try:
        yield load
    finally:
        load.stop()


@contextmanager
def consumer(
    servers: str, group: str, topic: str = "", protocol: str = "classic"
) -> Iterator[Consumer]:
    """Return a member of a group that reads a topic; without a topic it is no member."""
    client = Consumer(
        {
            "bootstrap.servers": servers,
            "group.protocol": protocol,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    try:
        if topic:
            client.subscribe([topic])
        yield client
    finally:
        client.close()


def read(client: Consumer, count: int) -> list[Place]:
    """Return the positions of the next records."""
    found: list[Place] = []

    def more() -> bool:
        for message in client.consume(count - len(found), 1.0):
            partition, offset = message.partition(), message.offset()
            assert message.error() is None
            assert partition is not None
            assert offset is not None
            found.append((partition, offset))
        return len(found) == count

    until(more, what=f"{count} records")
    return found


def switching(stage: Stage, topic: str, *more: str) -> Switching:
    """Start a switchover of one topic, with producers declared stopped."""
    servers = ("--bootstrap-server", stage.destination.bootstrap_servers)
    return Switching(*servers, "--mirror", MIRROR, "--topic", topic, "--producers-stopped", *more)


def mirrored(stage: Stage, topic: str) -> tuple[str, str]:
    """Mirror a topic of two partitions; return both clusters' servers."""
    source, destination = stage.source.bootstrap_servers, stage.destination.bootstrap_servers
    librdkafka_tools.make_topic(source, topic, len(PARTITIONS))
    librdkafka_tools.write(
        source, topic, [*librdkafka_tools.simple(5, 0), *librdkafka_tools.simple(5, 1)]
    )
    stage.add(topic, MIRROR)
    for partition in PARTITIONS:
        librdkafka_tools.await_state(stage, topic, partition, "MIRRORING")
    until(
        lambda: all(row["fresh"] for row in librdkafka_tools.described(stage, topic).values()),
        what="its status",
    )
    return source, destination


def test_a_planned_switchover_loses_and_duplicates_nothing(world: Stage, topic: str) -> None:
    """With a live transactional producer, and a group that moves to the destination.

    The switchover waits for the producer to stop, and for the group to leave the source. Then the
    group continues at the very next record, and producers write. Another group has read everything,
    and
    stays: only a marker is left for it.
    """
    source, destination = mirrored(world, topic)
    group = f"{topic}-group"
    with (
        writing(source, topic) as producer,
        consumer(source, f"{topic}-whole", topic) as whole_reader,
    ):
        with consumer(source, group, topic) as reader:
            first = read(reader, 60)
            reader.commit(asynchronous=False)
            switch = switching(world, topic, "--silence-seconds", "10")
            switch.until_step("SILENCE", "written to")
            producer.stop()
            written = sum(numbers.least for numbers in producer.totals.numbers.values()) + 10
            read(whole_reader, written)
            whole_reader.commit(asynchronous=False)
            switch.until_step("GROUPS", f"still reading on the source: {group}")
        assert switch.end() == 0, switch.said
    assert switch.done == ["READINESS", "PRODUCERS", "SILENCE", "LAG", "GROUPS", "FAILOVER"]
    last = switch.said[-1]
    assert last == {
        "result": "SWITCHED_OVER",
        "mirror": MIRROR,
        "topics": [topic],
        "left_behind": [],
        "denied": [],
        "not_denied": "",
        "groups_behind": "",
    }
    source_view, destination_view = ConsumerView(source), ConsumerView(destination)
    places = [(topic, index) for index in PARTITIONS]
    ends = source_view.ends(places)
    fences = {destination_view.ends([one])[one] - end for one, end in ends.items()}
    assert fences <= {1, 2}, "and one marker or two that fence each partition"
    group_offsets = librdkafka_tools.committed(source, group, topic)
    assert sum(group_offsets.values()) >= 60
    assert librdkafka_tools.committed(destination, group, topic) == group_offsets
    behind = librdkafka_tools.committed(source, f"{topic}-whole", topic)
    assert any(behind[index] < ends[topic, index] for index in PARTITIONS), "but for a marker"
    assert librdkafka_tools.committed(destination, f"{topic}-whole", topic) == behind

    seen = source_view.read({one: (0, end) for one, end in ends.items()}, time.monotonic() + 180)
    whole = sorted((index, one.offset) for (_, index), some in seen.items() for one in some)
    assert len(whole) == written
    with consumer(destination, group, topic) as reader:
        second = read(reader, written - len(first))
    assert sorted(first + second) == whole, "nothing lost, nothing twice"

    with writing(destination, topic) as producer:
        until(lambda: producer.totals.committed, what="a transaction on the destination")


@pytest.mark.long
def test_groups_that_may_still_commit_first_offsets_are_waited_for(
    world: Stage, topic: str
) -> None:
    """Members that have read and not committed, and offsets in an open transaction.

    A group without a commit is in no list of offsets; its first commit may still come.
    """
    source, destination = mirrored(world, topic)
    pending = f"{topic}-pending"
    producer = Producer({"bootstrap.servers": source, "transactional.id": pending, **OPEN})
    producer.init_transactions(librdkafka_tools.SECONDS)
    with ExitStack() as members:
        live = {
            protocol: members.enter_context(
                consumer(source, f"{topic}-{protocol}", topic, protocol)
            )
            for protocol in ("classic", "consumer")
        }
        for one in live.values():
            assert len(read(one, 10)) == 10
        producer.begin_transaction()
        metadata = consumer(source, pending)
        producer.send_offsets_to_transaction(
            [TopicPartition(topic, 0, 3)],
            members.enter_context(metadata).consumer_group_metadata(),
            librdkafka_tools.SECONDS,
        )
        switch = switching(world, topic)
        switch.until_step("GROUPS", "UNSTABLE_OFFSET_COMMIT")
        producer.commit_transaction(librdkafka_tools.SECONDS)
        early = "still reading, without a commit yet: "
        switch.until_step("GROUPS", f"{early}{topic}-classic ({topic}-0, {topic}-1), {topic}-cons")
        live["classic"].commit(asynchronous=False)
        switch.until_step("GROUPS", f"{early}{topic}-consumer ({topic}-0, {topic}-1)")
    assert switch.end() == 0, switch.said
    assert librdkafka_tools.committed(destination, pending, topic) == {0: 3}
    assert librdkafka_tools.committed(destination, f"{topic}-classic", topic) == {0: 5, 1: 5}
    assert librdkafka_tools.committed(destination, f"{topic}-consumer", topic) == {}


@pytest.mark.long
def test_a_switchover_aborts_while_producers_write(world: Stage, topic: str) -> None:
    """With producers that were not stopped it ends after its time limit, and nothing has changed.

    It ends at once if the producers are not declared stopped.
    """
    source, destination = mirrored(world, topic)
    asked = Switching("--bootstrap-server", destination, "--mirror", MIRROR, "--topic", topic)
    assert asked.end() == 1
    assert asked.said[-1]["result"] == "GONE_BACK"
    last_line = asked.errors.splitlines()[-1]
    assert last_line.startswith(
        "Error: PRODUCERS: they are not stopped; everything is as before"
    ), asked.errors
    with writing(source, topic):

        def last_error() -> str:
            switch = switching(world, topic, "--step-timeout-seconds", "3")
            assert switch.end() == 1
            last = switch.said[-1]
            assert (last["result"], last["step"]) == ("GONE_BACK", "SILENCE")
            return str(last["error"])

        # Where a look takes 3 s, or a transaction stays open for long, it is another one.
        until(last_error, good=lambda text: "timed out after 3 s: written to" in text)
    world.await_no_lag([topic])
    for index in PARTITIONS:
        row = librdkafka_tools.await_state(world, topic, index, "MIRRORING")
        assert row["wanted"] == "MIRRORING"


@pytest.mark.long
def test_the_producer_of_an_open_transaction_is_named(world: Stage, topic: str) -> None:
    """By readiness, and by a switchover that waits for it."""
    source, destination = mirrored(world, topic)
    holder = Producer({"bootstrap.servers": source, "transactional.id": f"{topic}-holder", **OPEN})
    holder.init_transactions(librdkafka_tools.SECONDS)
    holder.begin_transaction()
    holder.produce(topic, partition=1, value="held")
    assert holder.flush(librdkafka_tools.SECONDS) == 0

    def named() -> str | None:
        found = asyncio.run(find_readiness({"bootstrap.servers": destination}, MIRROR, topic))
        texts = {finding.reason: finding.text for finding in found.all_findings()}
        return texts.get(Reason.OPEN_TRANSACTION)

    text = (
        f"{topic}: 1 of them belong to open transactions (partition 1), "
        f"of transactional id {topic}-holder"
    )
    until(named, what="the producer in readiness", good=lambda found: found == text)
    switch = switching(world, topic)
    switch.until_step(
        "SILENCE", f"with an open transaction: {topic}-1 (transactional id {topic}-holder)"
    )
    switch.interrupt()
    assert switch.end() == 130
    assert switch.said[-1]["result"] == "GONE_BACK"
    holder.abort_transaction(librdkafka_tools.SECONDS)


@pytest.mark.long
def test_records_written_after_the_last_check_are_named(world: Stage, topic: str) -> None:
    """By a producer that was not stopped, between the last check and the end of mirroring."""
    source, destination = mirrored(world, topic)
    late = Producer({"bootstrap.servers": source, "transactional.id": f"{topic}-late", **OPEN})
    late.init_transactions(librdkafka_tools.SECONDS)
    written: list[int] = []

    def tell(progress: Progress) -> None:
        if progress.step is Step.FAILOVER and not progress.done and not written:
            late.begin_transaction()
            late.produce(topic, partition=1, value="late")
            written.append(late.flush(librdkafka_tools.SECONDS))

    async def switch(*, stopped: bool) -> SwitchedOver:
        async with client(world.destination) as cluster:
            return await switch_over(
                *(cluster, MIRROR, [topic]),
                producers=Producers(stopped=stopped),
                silence_s=0.5,
                timeout_s=240,
                tell=tell,
            )

    async def states() -> set[State]:
        async with MirrorAdmin({"bootstrap.servers": destination}) as admin:
            (mirror,) = (await admin.describe_mirrors([MIRROR])).mirrors
        (found,) = (one for one in mirror.topics if one.topic == topic)
        return {partition.state for partition in found.partitions}

    with pytest.raises(
        ProducersNotStopped, match="the source has no authorizer; everything is as before"
    ):
        asyncio.run(switch(stopped=False))
    found = asyncio.run(switch(stopped=True))
    assert found.topics == (topic,)
    assert found.left_behind == (LeftBehind(KafkaPartition(topic, 1), 5, 6),)
    assert written == [0]
    assert asyncio.run(states()) == {State.STOPPED}
    late.abort_transaction(librdkafka_tools.SECONDS)
