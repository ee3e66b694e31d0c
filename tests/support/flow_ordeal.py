"""A flow under load, a component that is killed, and the proof that each record was copied once.

    load ─► flow ─► node ─► kill, resumed; kill, resumed; ... ─► the load ends ─►
    each remote partition has exactly what the flow makes of the source's committed records
    (flow_kinds.py), in order, for readers of both isolation levels ─►
    each number that a writer knows as written is there once ─►
    `twinlog verify` finds no difference, in the map of offsets neither, if the flow has one ─►
    every transition of `__mirror_state` was allowed (control_records.py)

The records are read by librdkafka, which shares no code with the flow. Only `verify` knows the map.
The load's compacted topic
is left out, since two cleaners keep different records, and so is one whose records are deleted.
A second load may be added (`OtherLoad`), for example of unusual_load.py.
"""

import asyncio
import hashlib
import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

import control_records
import librdkafka_tools
from chaos_harness import Proof
from clients import client
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from flow_kinds import BATCHES, Copied, FlowKind, Placed, aborted
from waiting import until

from twinlog.lifecycle.flow_creation import create_flow, stored_properties
from twinlog.local.check import ConsumerView, Partition
from twinlog.local.cluster import LocalCluster
from twinlog.local.errors import LocalError
from twinlog.local.load import TOPICS
from twinlog.local.stage import Stage
from twinlog.local.writers import Numbers, Totals
from twinlog.store.control_topics import ControlTopics

LARGE_BATCHES: Final = {
    "message.max.bytes": str(8 << 20),
    "replica.fetch.max.bytes": str(8 << 20),
}
NOT_COPIED: Final = (
    "remote\\.storage\\.enable",
    "local\\.retention\\..*",
    "min\\.insync\\.replicas",
)
"""The target has no remote storage, and its own number of replicas."""
LOAD_SECONDS: Final = 7200.0
RESUME_SECONDS: Final = 600.0
CATCH_UP_SECONDS: Final = 300.0
_VERIFY_SECONDS: Final = 1800.0
"""An unusual source gives 2 to 4 MB a second, and has 0.5 MB for each second of the load."""
MOMENT_SECONDS: Final = 3.0
LEVELS: Final = ("read_committed", "read_uncommitted")
_LOOK_SECONDS: Final = 3.0
_POLL_SECONDS: Final = 0.2
_READ_SECONDS: Final = 300.0
"""How long reading a partition may take: reads of remote storage may be limited."""
_LOG_LINES: Final = 60
_KEPT_BYTES: Final = 1000
"""Larger values are kept as their digest."""

_FLOW: Final = "a-to-b"
_PREFIX: Final = "a."
"""Of remote topics."""
_POSITIONS: Final = "twinlog.flow.a-to-b"
"""The group in which flows with transactions or transforms keep their positions."""


class OtherLoad(Protocol):
    """A load beside that of the stage; its records have the same headers."""

    topics: Mapping[str, int]
    """Partitions by topic."""

    def start(self) -> None:
        """Begin to write to all partitions, in a thread."""
        ...

    def stop(self) -> Totals:
        """End, and return what was written."""
        ...


class FlowOrdeal:
    """See the module. The functions of kills.py take it as they take an `Ordeal`."""

    def __init__(
        self,
        stage: Stage,
        seed: str,
        kind: FlowKind = BATCHES,
        other: OtherLoad | None = None,
    ) -> None:
        self.stage = stage
        self.kind = kind
        self._other = other
        self.random = random.Random(seed)
        # Not what is compacted, or deleted on the source while it is read.
        counts = {name: TOPICS[name][0] for name in ("orders", "clicks")}
        counts |= {} if other is None else other.topics
        self.topics = list(counts)
        self.partitions: list[Partition] = [
            (name, index) for name, count in counts.items() for index in range(count)
        ]
        self.remotes: list[Partition] = [
            (f"{_PREFIX}{topic}", index) for topic, index in self.partitions
        ]
        """Where records have to arrive after a kill."""
        self._node_config = stage.directory / "node.properties"
        self._node_config.write_text(f"mirror.dataframes.enable={kind.has_query}\n".lower())
        self.rest = 0.0
        self.recoveries: list[float] = []
        self._began = time.monotonic()

    @property
    def node_arguments(self) -> tuple[str, ...]:
        """The arguments that a node needs for this kind of flow."""
        return "--command-config", str(self._node_config)

    def begin(self, rate: float) -> None:
        """Start the load, and create the flow; the caller starts the node."""
        self.stage.start_load(rate, LOAD_SECONDS)
        if self._other is not None:
            self._other.start()

        async def create() -> None:
            settings = {
                "enabled": "true",
                "topics": ", ".join(self.topics),
                "replication.factor": "-1",
                "config.properties.exclude": ", ".join(NOT_COPIED),
                "refresh.topics.interval.seconds": "2",
                "emit.heartbeats.enabled": "false",
                "emit.checkpoints.enabled": "false",
                **self.kind.settings,
            }
            source = {"bootstrap.servers": self.stage.source.bootstrap_servers}
            async with client(self.stage.destination) as destination:
                properties = stored_properties(source, settings, "a", "b")
                topics = ControlTopics(state_partitions=7)
                await create_flow(destination, "a", "b", properties, topics)

        asyncio.run(create())

    def await_all(self) -> None:
        """Wait until every partition makes progress, and measure how long that takes at rest."""
        self.say(f"all goes on after {self._resumed(time.monotonic()):.1f} s")
        self.rest = self._resumed(time.monotonic())

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
            found = view.ends(self.remotes)
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
                f"not resumed after {RESUME_SECONDS:g} s: {late or 'no ends of the target'}; "
                f"{self.circumstances()}"
            )
            time.sleep(_POLL_SECONDS)

    def circumstances(self) -> str:
        """What explains that nothing arrives: the load, the nodes' logs, the states."""
        load = self.stage.load
        assert load is not None
        texts = [f"the load {'runs' if load.alive else 'has ended'}: {load.last()}"]
        for name, node in self.stage.nodes.items():
            lines = node.log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
            texts.append("\n".join([f"{name} {'runs' if node.alive else 'has ended'}:", *lines]))
        return "\n".join([*texts, *self._states()])

    def _states(self) -> list[str]:
        return [
            f"{row['topic']}-{row['partition']} {row['state']}: {row['reason']}"
            for row in librdkafka_tools.all_described(self.stage)
        ]

    def prove(self) -> Proof:
        """Prove that each committed record was copied once, in order (see the module)."""
        totals = self.stage.stop_load()
        written = dict(self.stage.written)
        if self._other is not None:
            others = self._other.stop()
            written |= others.numbers
            totals = {**totals, "records": totals["records"] + others.records}
        self.say(f"the load has ended: {totals}")
        compared = beyond = dropped = 0
        for one in self.partitions:
            source, kept = self._source_records(one)
            check_numbers(one, [record for _, record in source], written)
            wanted = [record for offset, record in source if offset in kept]
            dropped += len(source) - len(wanted)
            if self.kind.drops:
                self._await_position(one, source[-1][0] + 1)
            self._await_copies(one, len(wanted))
            committed, seen = (self._copies(one, level) for level in LEVELS)
            found = [record for _, record in committed]
            assert found == wanted, f"{one}: {difference(wanted, found)}"
            more = aborted(committed, seen)
            assert self.kind.is_transactional or not more, f"{one}: {more} aborted copies"
            compared += len(committed) + len(seen)
            beyond += more
        assert compared > 0
        assert self.kind.drops == (dropped > 0), dropped
        self.say(
            f"{compared} records read with {' and '.join(LEVELS)}, {beyond} of them aborted; "
            f"{dropped} of the source's dropped"
        )
        self._verify()
        return Proof(
            rest=self.rest,
            recoveries=tuple(self.recoveries),
            written=totals["records"],
            aborted=totals["aborted"],
            records=compared,
            gaps=0,
            verified=f"each record once, {dropped} of the source's dropped, and {beyond} copies "
            "that the flow has aborted",
            steps=self._check_ways(),
        )

    def _verify(self) -> None:
        """Have `twinlog verify` compare both logs, and the map, by code of its own."""
        report = until(
            self._verification,
            CATCH_UP_SECONDS,
            "no record behind what the flow has recorded",
            good=lambda found: found["behind"] == 0,
            pause=1.0,
        )
        logs = {(one["remote"]["topic"], one["remote"]["partition"]): one for one in report["logs"]}
        assert logs.keys() == {*self.remotes}
        for place, log in logs.items():
            recorded = log["remote"]["recorded_map"]
            assert log["compared"] > 0, (place, log)
            assert (recorded is not None) == self.kind.is_mapped, (place, log)
            assert recorded is None or recorded["agrees"] == log["compared"], (place, log)
        counts = {name: report[name] for name in ("verdict", "compared", "not_seen")}
        self.say(f"verify has found no difference: {counts}")

    def _verification(self) -> Mapping[str, Any]:
        done = self.stage.verify(
            *self.node_arguments, "--mirror", _FLOW, "--json", seconds=_VERIFY_SECONDS
        )
        # 3: something was not seen, as where the source has deleted records.
        assert done.status in {0, 3}, done
        report: Mapping[str, Any] = json.loads(done.output)
        assert not report["differences"], done
        return report

    def _await_position(self, partition: Partition, end: int) -> None:
        """Wait until the flow has read up to `end`, also where it has dropped the last records.

        It commits its position on the target, of the remote partition, in the source's offsets.
        """
        topic, index = partition
        servers = self.stage.destination.bootstrap_servers
        until(
            lambda: self._position(servers, TopicPartition(f"{_PREFIX}{topic}", index)),
            CATCH_UP_SECONDS,
            f"a position of {end} in {_PREFIX}{partition}",
            good=lambda offset: offset >= end,
            pause=1.0,
        )

    @staticmethod
    def _position(servers: str, remote: TopicPartition) -> int:
        with librdkafka_tools.consumer(servers, _POSITIONS) as group:
            (found,) = group.committed([remote], timeout=30)
        return int(found.offset)

    def _await_copies(self, partition: Partition, count: int) -> None:
        """Wait until a remote partition has so many records, and no open transaction."""
        until(
            lambda: len(self._copies(partition, "read_committed")),
            CATCH_UP_SECONDS,
            f"{count} records in {_PREFIX}{partition}",
            good=lambda found: found >= count,
            pause=1.0,
        )
        topic, index = partition
        remote = [(f"{_PREFIX}{topic}", index)]
        view = ConsumerView(self.stage.destination.bootstrap_servers)
        until(
            lambda: view.stable(remote) == view.ends(remote),
            CATCH_UP_SECONDS,
            f"no transaction in {remote}",
        )

    def _check_ways(self) -> int:
        """Check that every stored transition was allowed; return how many there were."""
        servers = self.stage.destination.bootstrap_servers
        until(
            lambda: not control_records.read(servers).disagreeing(),
            CATCH_UP_SECONDS,
            "all states as they are wanted",
        )
        book = control_records.read(servers)
        assert not book.forbidden(), book.forbidden()
        return book.steps

    def _source_records(self, partition: Partition) -> tuple[Placed, set[int]]:
        """The committed records of the source, with the values that their copies are to have.

        Returns:
            The records, and the offsets of those that are to be copied.
        """
        topic, index = partition
        place, kept = f"{_PREFIX}{topic}-{index}", set[int]()

        def changed(offset: int, value: bytes | None) -> bytes | None:
            if self.kind.kept(offset, value):
                kept.add(offset)
            return self.kind.changed(place, offset, value)

        servers = self.stage.source.bootstrap_servers
        return placed_records_of(servers, *partition, "read_committed", changed), kept

    def _copies(self, partition: Partition, level: str) -> Placed:
        topic, index = partition
        servers = self.stage.destination.bootstrap_servers
        return placed_records_of(servers, f"{_PREFIX}{topic}", index, level)


def check_numbers(
    partition: Partition,
    records: list[Copied],
    written: Mapping[tuple[str, int, str], Numbers],
) -> None:
    """Check that a partition has each writer's numbers once, in order, up to the last one.

    Args:
        partition: the source's.
        records: as a reader sees them.
        written: what the writers know, by topic, partition and writer.
    """
    numbers: dict[str, list[int]] = {}
    for _, _, _, headers in records:
        values = dict(headers)  # type: ignore[call-overload]
        numbers.setdefault(values["writer"].decode(), []).append(int(values["number"]))
    known = {
        writer: span for (*place, writer), span in written.items() if tuple(place) == partition
    }
    assert numbers.keys() <= known.keys(), (partition, numbers.keys() - known.keys())
    for writer, span in known.items():
        found = numbers.get(writer, [])
        at = next((at for at, number in enumerate(found) if number != at + 1), None)
        assert at is None, (
            f"{partition}: numbers of {writer} around {at}: {found[max(0, at - 3) : at + 30]}"
        )
        assert span.least <= len(found) <= span.most, (partition, writer, len(found), span)


def records_of(servers: str, topic: str, index: int, isolation: str) -> list[Copied]:
    """All records of a partition for readers of an isolation level."""
    return [record for _, record in placed_records_of(servers, topic, index, isolation)]


def placed_records_of(
    servers: str,
    topic: str,
    index: int,
    isolation: str,
    changed: Callable[[int, bytes | None], bytes | None] = lambda _offset, value: value,
) -> Placed:
    """The same, each with its offset; `changed` makes the value from offset and value."""
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
    found: Placed = []
    try:
        consumer.assign([TopicPartition(topic, index, 0)])
        deadline = time.monotonic() + _READ_SECONDS
        while True:
            assert time.monotonic() < deadline, f"no end of {topic}-{index}"
            for message in consumer.consume(2000, _POLL_SECONDS):
                error = message.error()
                if error is None:
                    offset = message.offset()
                    assert offset is not None
                    value = _kept(changed(offset, message.value()))
                    record = message.key(), value, message.timestamp(), message.headers()
                    found.append((offset, record))
                elif error.code() == KafkaError._PARTITION_EOF:
                    return found
                else:
                    raise KafkaException(error)
    finally:
        consumer.close()


def _kept(value: bytes | None) -> bytes | None:
    """The value, or a digest of a large one."""
    if value is None or len(value) <= _KEPT_BYTES:
        return value
    return b"%d bytes, sha256 " % len(value) + hashlib.sha256(value).digest()


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
    kind: FlowKind = BATCHES,
    source_config: Mapping[str, str] | None = None,
    other_load: Callable[[LocalCluster], OtherLoad] | None = None,
) -> Iterator[FlowOrdeal]:
    """Start clusters with that many brokers, and a flow of a load of `rate` records a second.

    Args:
        directory: for all files.
        seed: of all choices.
        rate: of the stage's load.
        source: the number of its brokers.
        destination: the number of its brokers.
        kind: what the flow does to records.
        source_config: of the source's brokers.
        other_load: makes a second load on the source; the flow copies it, too.
    """
    sys.stdout.write(f"seed {seed}\n")  # pytest shows it with a failure
    with Stage(directory) as stage:
        cluster = stage.start_source(source, config=source_config)
        stage.start_destination(destination, config=LARGE_BATCHES)
        other = None if other_load is None else other_load(cluster)
        found = FlowOrdeal(stage, seed, kind, other)
        found.begin(rate)
        yield found
