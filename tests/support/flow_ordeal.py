"""A flow under load, a component that is killed, and the proof that each record was copied once.

    load ─► flow ─► node ─► kill, resumed; kill, resumed; ... ─► the load ends ─►
    each remote partition has exactly the source's committed records, in order, for readers of both
    isolation levels

The records are read by librdkafka, which shares no code with the flow. The load's compacted topic
is left out, since two cleaners keep different records, and so is one whose records are deleted.
"""

import asyncio
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import librdkafka_tools
from clients import client
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from waiting import until

from twinlog.lifecycle.flow_creation import create_flow, stored_properties
from twinlog.local.check import ConsumerView, Partition
from twinlog.local.errors import LocalError
from twinlog.local.load import TOPICS
from twinlog.local.stage import Stage
from twinlog.store.control_topics import ControlTopics

LOAD_SECONDS: Final = 7200.0
RESUME_SECONDS: Final = 300.0
CATCH_UP_SECONDS: Final = 300.0
MOMENT_SECONDS: Final = 3.0
_LOOK_SECONDS: Final = 3.0
_POLL_SECONDS: Final = 0.2
_READ_SECONDS: Final = 60.0

Copied = tuple[bytes | None, bytes | None, tuple[int, int], object]
"""Key, value, timestamp and headers of a record."""


class FlowOrdeal:
    """See the module. The functions of kills.py take it as they take an `Ordeal`."""

    def __init__(self, stage: Stage, seed: str, *, in_transactions: bool = False) -> None:
        self.stage = stage
        self._in_transactions = in_transactions
        self.random = random.Random(seed)
        # Not what is compacted, or deleted on the source while it is read.
        self.topics = ["orders", "clicks"]
        self.partitions: list[Partition] = [
            (name, index) for name in self.topics for index in range(TOPICS[name][0])
        ]
        self.recoveries: list[float] = []
        self._began = time.monotonic()

    def begin(self, rate: float) -> None:
        """Start the load, and create the flow; the caller starts the node."""
        self.stage.start_load(rate, LOAD_SECONDS)

        async def create() -> None:
            settings = {
                "enabled": "true",
                "topics": ", ".join(self.topics),
                "replication.factor": "-1",
                "refresh.topics.interval.seconds": "2",
                "emit.heartbeats.enabled": "false",
                "emit.checkpoints.enabled": "false",
                "transaction.producer": str(self._in_transactions).lower(),
            }
            source = {"bootstrap.servers": self.stage.source.bootstrap_servers}
            async with client(self.stage.destination) as destination:
                properties = stored_properties(source, settings, "a", "b")
                topics = ControlTopics(state_partitions=7)
                await create_flow(destination, "a", "b", properties, topics)

        asyncio.run(create())

    def await_all(self) -> None:
        """Wait until every partition makes progress."""
        self.say(f"all goes on after {self._resumed(time.monotonic()):.1f} s")

    def kill(self, strike: Callable[[], object]) -> None:
        """Kill something at a random moment, and wait until every partition makes progress."""
        time.sleep(self.random.uniform(0, MOMENT_SECONDS))
        since = time.monotonic()
        strike()
        self.recoveries.append(self._resumed(since))
        self.say(f"resumed after {self.recoveries[-1]:.1f} s")

    def say(self, what: str) -> None:
        """Print progress, for a failure's report or for `pytest -s`."""
        sys.stdout.write(f"{time.monotonic() - self._began:6.1f} s  {what}\n")
        sys.stdout.flush()

    def _ends(self) -> dict[Partition, int]:
        view = ConsumerView(self.stage.destination.bootstrap_servers, _LOOK_SECONDS)
        try:
            found = view.ends([(f"a.{topic}", index) for topic, index in self.partitions])
        except (KafkaException, TimeoutError, LocalError):
            return {}
        return found if all(end >= 0 for end in found.values()) else {}

    def _resumed(self, since: float) -> float:
        """Wait until records arrive in every partition; seconds since `since`."""
        deadline = since + RESUME_SECONDS
        marks: dict[Partition, int] = {}
        while True:
            ends = self._ends()
            # What was in flight at the kill arrives within this second.
            if not marks and time.monotonic() > since + 1:
                marks = ends
            late = [one for one, end in marks.items() if ends.get(one, -1) <= end]
            if marks and not late:
                return time.monotonic() - since
            assert time.monotonic() < deadline, (
                f"not resumed after {RESUME_SECONDS:g} s: {late}; {self._states()}"
            )
            time.sleep(_POLL_SECONDS)

    def _states(self) -> list[str]:
        return [
            f"{row['topic']}-{row['partition']} {row['state']}: {row['reason']}"
            for row in librdkafka_tools.all_described(self.stage)
        ]

    def prove(self) -> int:
        """Prove that each committed record was copied once, in order; return how many there are."""
        totals = self.stage.stop_load()
        self.say(f"the load has ended: {totals}")
        wanted = self._read(self.stage.source.bootstrap_servers, "", "read_committed")
        here = self.stage.destination.bootstrap_servers

        def complete() -> bool:
            found = self._read(here, "a.", "read_committed")
            return all(len(found[one]) >= len(wanted[one]) for one in wanted)

        until(complete, CATCH_UP_SECONDS, "all records in the remote topics")
        # Readers with read_uncommitted see what was aborted, too.
        others = () if self._in_transactions else ("read_uncommitted",)
        for isolation in ("read_committed", *others):
            found = self._read(here, "a.", isolation)
            for one, records in wanted.items():
                assert found[one] == records, f"{one}: {difference(records, found[one])}"
        count = sum(map(len, wanted.values()))
        self.say(f"{count} records, each copied once")
        assert count > 0
        return count

    def _read(self, servers: str, prefix: str, isolation: str) -> dict[Partition, list[Copied]]:
        return {
            (topic, index): records_of(servers, f"{prefix}{topic}", index, isolation)
            for topic, index in self.partitions
        }


def records_of(servers: str, topic: str, index: int, isolation: str) -> list[Copied]:
    """All records of a partition for readers of an isolation level."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "flow-ordeal",
            "isolation.level": isolation,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "log_level": 2,
        }
    )
    found: list[Copied] = []
    try:
        consumer.assign([TopicPartition(topic, index, 0)])
        deadline = time.monotonic() + _READ_SECONDS
        while True:
            assert time.monotonic() < deadline, f"no end of {topic}-{index}"
            for message in consumer.consume(2000, _POLL_SECONDS):
                error = message.error()
                if error is None:
                    found.append(
                        (
                            message.key(),
                            message.value(),
                            message.timestamp(),
                            message.headers(),
                        )
                    )
                elif error.code() == KafkaError._PARTITION_EOF:
                    return found
                else:
                    raise KafkaException(error)
    finally:
        consumer.close()


def difference(wanted: list[Copied], found: list[Copied]) -> str:
    """Where two lists of records differ first."""
    for at, (one, other) in enumerate(zip(wanted, found, strict=False)):
        if one != other:
            return f"record {at} is {other!r:.200}, expected {one!r:.200}"
    return f"{len(found)} records, expected {len(wanted)}"


@contextmanager
def flow_ordeal(
    directory: Path,
    seed: str,
    rate: float,
    *,
    source: int = 1,
    destination: int = 1,
    in_transactions: bool = False,
) -> Iterator[FlowOrdeal]:
    """Start clusters with that many brokers, and a flow of a load of `rate` records a second.

    `in_transactions`: with `transaction.producer` (KIP-656).
    """
    sys.stdout.write(f"seed {seed}\n")  # pytest shows it with a failure
    with Stage(directory) as stage:
        stage.start_source(source)
        stage.start_destination(destination)
        found = FlowOrdeal(stage, seed, in_transactions=in_transactions)
        found.begin(rate)
        yield found
