"""The real MirrorMaker 2 of Kafka on two clusters, killed while it works, and a flow that follows.

    numbers ─► source ─► MirrorMaker 2 ─► kill -9 ─► twinlog mirror-maker FILE --takeover ─►
    the numbers end ─► each one in the remote topic, and twice only what was named

Each handover has topics and an alias of its own, so that several may follow each other on the same
clusters. Both programs read the same file.
"""

import random
import re
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple, TextIO

import librdkafka_tools
import process_tree
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from flow_kinds import Copied
from flow_ordeal import records_of
from waiting import until

from twinlog.local import commands
from twinlog.local.artifacts import mirror_maker_jars
from twinlog.local.check import ConsumerView
from twinlog.local.cluster import DEFAULT_VERSION, LocalCluster
from twinlog.local.errors import LocalError
from twinlog.local.identity import identity_of
from twinlog.local.processes import SHORT_LIVED, JavaProcess, JavaProgram, ProcessGroup

PARTITIONS: Final = 3
START_S: Final = 400.0
"""Seconds that MirrorMaker 2, or a node, may take to start on a busy machine."""
END_S: Final = 300.0
_LINE: Final = re.compile(
    r"(?P<topic>[\w.-]+)-(?P<partition>\d+): begins at offset (?P<begin>\d+), MirrorMaker 2 has "
    r"recorded (?:nothing|offset (?P<recorded>\d+))"
    r"(?:; no record is copied twice|; up to \d+ records, \[(?P<start>\d+), (?P<end>\d+)\), .*)$"
)
_SMALL: Final = ("checkpoints.topic", "heartbeats.topic", "offset-syncs.topic")
_STORAGE: Final = ("offset.storage", "status.storage", "config.storage")


class Named(NamedTuple):
    """What twinlog says of a partition that it takes over."""

    begin: int
    recorded: int | None
    twice: range


class Handover:
    """A topic, a writer of numbers, MirrorMaker 2, and twinlog behind it."""

    def __init__(
        self,
        folder: Path,
        name: str,
        source: LocalCluster,
        target: LocalCluster,
        settings: Mapping[str, str],
    ) -> None:
        self.folder = folder
        self.alias = f"a{name}"
        self.topic = f"orders-{name}"
        self.cluster = settings.get("source.cluster.alias", self.alias)
        """What the flow calls its source."""
        self.remote = f"{self.cluster}.{self.topic}"
        self.source, self.target = source, target
        self.file = folder / f"{name}.properties"
        self.written = 0
        self._stop = threading.Event()
        self._log: TextIO
        properties = {
            "clusters": f"{self.alias}, b",
            f"{self.alias}.bootstrap.servers": source.bootstrap_servers,
            "b.bootstrap.servers": target.bootstrap_servers,
            f"{self.alias}->b.enabled": "true",
            f"{self.alias}->b.topics": self.topic,
            "replication.factor": "1",
            "emit.heartbeats.enabled": "false",
            "emit.checkpoints.interval.seconds": "1",
            "refresh.topics.interval.seconds": "2",
            "dedicated.mode.enable.internal.rest": "false",
            "sync.topic.acls.enabled": "false",
            **{f"{one}.replication.factor": "1" for one in (*_SMALL, *_STORAGE)},
            **settings,
        }
        self.file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))

    # ---- numbers -------------------------------------------------------------------------------

    @contextmanager
    def writing(self, rate: float) -> Iterator[None]:
        """Write numbers, in turn to each partition, until the end of the block."""
        servers = self.source.bootstrap_servers
        librdkafka_tools.make_topic(servers, self.topic, PARTITIONS)
        self._writer = threading.Thread(target=self._write, args=(rate,))
        self._writer.start()
        try:
            yield
        finally:
            self._stop_writing()

    def _stop_writing(self) -> None:
        """And wait until everything is written."""
        self._stop.set()
        self._writer.join()

    def _write(self, rate: float) -> None:
        producer = Producer(
            {"bootstrap.servers": self.source.bootstrap_servers, "enable.idempotence": True}
        )
        began = time.monotonic()
        while not self._stop.is_set():
            due = int((time.monotonic() - began) * rate)
            for number in range(self.written, due):
                producer.produce(
                    self.topic,
                    partition=number % PARTITIONS,
                    key=None if number % 7 == 0 else f"key-{number % 50}",
                    value=f"{number}",
                    headers=[("h", b"%d" % (number % 3))] if number % 5 == 0 else None,
                )
            self.written = max(self.written, due)
            producer.poll(0.01)
        assert producer.flush(120) == 0

    # ---- programs ------------------------------------------------------------------------------

    def start_mirror_maker(self, group: ProcessGroup) -> JavaProcess:
        """Start MirrorMaker 2, and wait until it copies."""
        process = group.start(
            JavaProgram(
                jars=mirror_maker_jars(DEFAULT_VERSION),
                main="org.apache.kafka.connect.mirror.MirrorMaker",
                arguments=[str(self.file)],
                flags=SHORT_LIVED,
                log=self.folder / f"mm2-{self.alias}.log",
            )
        )
        self.await_copies(1)
        return process

    def await_copies(self, more: int) -> None:
        """Wait until each remote partition has some more records."""
        marks = self.ends()
        until(
            lambda: all(end >= mark + more for end, mark in zip(self.ends(), marks, strict=True)),
            START_S,
            f"{more} more records in {self.remote}, beyond {marks}",
        )

    def ends(self) -> list[int]:
        """Where each remote partition ends; 0 while it does not exist.

        A log that grows all the time has no last record that one could read up to.
        """
        partitions = [(self.remote, index) for index in range(PARTITIONS)]
        servers = self.target.bootstrap_servers

        def found() -> list[int]:
            if self.remote not in librdkafka_tools.admin(servers).list_topics(timeout=END_S).topics:
                return [0] * PARTITIONS
            try:
                ends = ConsumerView(servers).ends(partitions)
            except (KafkaException, TimeoutError, LocalError):
                return []  # a busy broker is no empty log
            return [max(0, ends[partition]) for partition in partitions]

        return until(found, END_S, f"the ends of {self.remote}")

    def place(self, number: int) -> int:
        """Where a number is in its remote partition, in which it has to be."""
        partition = TopicPartition(self.remote, number % PARTITIONS, 0)
        settings = {"bootstrap.servers": self.target.bootstrap_servers, "group.id": "place"}
        consumer = Consumer({**settings, "isolation.level": "read_committed"})
        try:
            consumer.assign([partition])
            while (message := consumer.poll(END_S)) is not None:
                assert message.error() is None, message.error()
                if message.value() == b"%d" % number:
                    offset = message.offset()
                    assert offset is not None
                    return offset
            raise AssertionError(f"{number} is not in {partition}")
        finally:
            consumer.close()

    def refused(self, *arguments: str) -> str:
        """Run twinlog on the file, which does not begin; return what it says."""
        done = commands.run(
            commands.TWINLOG, "mirror-maker", str(self.file), *arguments, seconds=START_S
        )
        assert done.status != 0, done.output
        return done.errors

    def twinlog_ends(self, *arguments: str) -> str:
        """Run twinlog on the file to its end; return what it says."""
        done = commands.run(
            commands.TWINLOG, "mirror-maker", str(self.file), *arguments, seconds=START_S
        )
        assert done.status == 0, done
        return done.errors

    @contextmanager
    def twinlog(self, *arguments: str, kills: bool = False) -> Iterator[Path]:
        """Run twinlog on the file; give its output, and end it with SIGTERM.

        `kills`: end everything by SIGKILL instead: the command, the node, the JVM, the lanes.
        """
        output = self.folder / f"twinlog-{self.alias}.log"
        with output.open("w") as log:
            process = subprocess.Popen(
                [*commands.TWINLOG, "mirror-maker", str(self.file), "--lanes", "1", *arguments],
                stdout=log,
                stderr=log,
                text=True,
            )
            try:
                yield output
                assert process.poll() is None, output.read_text()
                if kills:
                    _kill_all(process)
                else:
                    process.send_signal(signal.SIGTERM)
                    assert process.wait(END_S) == 0
            finally:
                process.kill()
                process.wait(120)

    # ---- proof ---------------------------------------------------------------------------------

    def named(self, output: Path) -> dict[int, Named]:
        """What twinlog says of each partition, as soon as it has said it of all."""

        def said() -> dict[int, Named]:
            found = {}
            for line in output.read_text().splitlines():
                if (match := _LINE.search(line)) and match["topic"] == self.topic:
                    recorded = None if match["recorded"] is None else int(match["recorded"])
                    twice = range(int(match["start"] or 0), int(match["end"] or 0))
                    found[int(match["partition"])] = Named(int(match["begin"]), recorded, twice)
            return found if len(found) == PARTITIONS else {}

        return until(said, START_S, f"the partitions in {output}")

    def prove(self, named: Mapping[int, Named]) -> Counter[str]:
        """Prove that each record was copied, and twice only what was named; count them."""
        self._stop_writing()
        source, target = self.source.bootstrap_servers, self.target.bootstrap_servers
        tally: Counter[str] = Counter()
        for index in range(PARTITIONS):
            wanted = records_of(source, self.topic, index, "read_committed")
            assert len(wanted) == len(range(index, self.written, PARTITIONS))

            def copies(index: int = index) -> list[Copied]:
                return records_of(target, self.remote, index, "read_committed")

            until(
                lambda wanted=wanted, copies=copies: {*map(repr, wanted)} <= {*map(repr, copies())},
                END_S,
                f"all records of {self.topic}-{index}",
            )
            found = copies()
            counts = Counter(map(repr, found))
            twice = [offset for offset, one in enumerate(wanted) if counts[repr(one)] > 1]
            assert {*twice} <= {*named[index].twice}, (index, twice, named[index])
            assert len(found) == len(wanted) + sum(counts[repr(wanted[at])] - 1 for at in twice)
            once = list(dict.fromkeys(map(repr, found)))
            assert once == [repr(one) for one in wanted], f"{self.topic}-{index} is out of order"
            tally["records"] += len(wanted)
            tally["twice"] += len(twice)
            recorded = named[index].recorded
            tally["unrecorded"] += named[index].begin - (0 if recorded is None else recorded + 1)
        return tally


def _kill_all(process: subprocess.Popen[str]) -> None:
    found = [identity_of(one.pid) for one in process_tree.below(process.pid)]
    process.kill()
    for one in found:
        if one is not None:
            one.signal(signal.SIGKILL)


def random_settings(chance: random.Random) -> dict[str, str]:
    """How often MirrorMaker 2 records what it has copied, and how it copies."""
    return {
        "b.offset.flush.interval.ms": chance.choice(["500", "2000", "60000"]),
        "offset.lag.max": chance.choice(["0", "100", "1000000"]),
        "tasks.max": chance.choice(["1", "3"]),
        "offset-syncs.topic.location": chance.choice(["source", "target"]),
    }
