"""A mirror under load, something that is killed in it, and the proof afterwards.

    load ─► mirror ─► node(s) ─► kill, resumed; kill, resumed; ... ─► the load ends ─► nothing
    lags ─► every partition in what is wanted of it, on allowed ways only (control_records.py) ─►
    twinlog verify ─► the independent checker

A kill is over when every partition has *resumed*: its destination holds a record that was written
to the source after the kill, so somebody living has copied it. The time until then is measured
from librdkafka_tools by librdkafka, and it has the load's own rhythm in it: `rest` is the same
without a kill.
"""

import random
import statistics
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import control_records as book
import librdkafka_tools as outside
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from waiting import until

from twinlog.local.check import Log, Partition, Report
from twinlog.local.cluster import LocalCluster
from twinlog.local.errors import LocalError
from twinlog.local.load import TOPICS
from twinlog.local.stage import MIRROR, Stage

LOAD_SECONDS: Final = 7200.0
RESUME_SECONDS: Final = 300.0
CATCH_UP_SECONDS: Final = 300.0
LOOK_SECONDS: Final = 3.0
RESTS: Final = 5
STILL_SECONDS: Final = 5.0
"""A topic of the load of which nothing arrives for so long does not move."""
MOMENT_SECONDS: Final = 3.0
"""A kill comes at any moment within so long after everything has resumed."""
_POLL_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What was done, and what it came to. Times in seconds, from a kill to all resumed."""

    rest: float
    recoveries: Sequence[float]
    written: int
    aborted: int
    records: int
    gaps: int
    verified: str
    steps: int

    @property
    def median(self) -> float:
        """Of the recoveries."""
        return statistics.median(self.recoveries)


class Ordeal:
    """See the module. `random` decides what is left to chance, from the seed that is shown.

    Several of one destination differ in their names, which their topics begin with.
    """

    def __init__(self, stage: Stage, seed: str, name: str = "") -> None:
        self.stage = stage
        self.random = random.Random(seed)
        self.topics = [f"{name}{topic}" for topic in TOPICS]
        self._name = name
        self.resting: set[str] = set()
        """Topics of the load that do not move just now: they are paused."""
        self.compared: set[str] = set()
        """Topics besides the load's that are mirrored, for the proof."""
        self.rest = 0.0
        self._began = time.monotonic()
        self.recoveries: list[float] = []
        self._source = _Offsets(stage.source, self.topics)
        self._destination = _Offsets(stage.destination, self.topics)

    def begin(self, rate: float) -> None:
        """The load, and a mirror of it; nodes are started by who wants them."""
        mirror = self._name or MIRROR
        self.stage.start_load(rate, LOAD_SECONDS, self._name)
        self.stage.create_mirror(mirror)
        self.stage.add("|".join(self.topics), mirror)

    def await_all(self) -> float:
        """Wait until every partition goes on; how long it took, in seconds."""
        seconds = self._resumed(time.monotonic())
        self.say(f"all goes on after {seconds:.1f} s")
        return seconds

    def measure_rest(self) -> None:
        """Measure what a kill is measured by, without one, when everything goes on."""
        self.await_all()
        self.rest = statistics.median(self._resumed(time.monotonic()) for _ in range(RESTS))
        self.say(f"without a kill {self.rest:.1f} s")

    def await_still(self, topics: Collection[str]) -> None:
        """Wait until nothing arrives any more of these topics, which are written to all the time.

        That what was taken from them is felt; else nothing would be tried.
        """
        deadline = time.monotonic() + RESUME_SECONDS
        before: dict[Partition, int] = {}
        since = time.monotonic()
        while time.monotonic() < since + STILL_SECONDS or not before:
            ends = self._destination.ask(Log.ends)
            ours = {one: end for one, end in ends.items() if one[0] in topics}
            if ours != before:
                before, since = ours, time.monotonic()
            assert time.monotonic() < deadline, f"{sorted(topics)} goes on"
            time.sleep(_POLL_SECONDS)
        self.say(f"{', '.join(sorted(topics))}: nothing arrives any more")

    def await_moment(self) -> None:
        """Let a random time pass: what is killed is at any point of its work."""
        time.sleep(self.random.uniform(0, MOMENT_SECONDS))

    def await_resumed(self, since: float) -> None:
        """Wait until every partition has resumed, and note how long it took since the kill."""
        self.recoveries.append(self._resumed(since))
        self.say(f"resumed after {self.recoveries[-1]:.1f} s")

    def kill(self, strike: Callable[[], object]) -> None:
        """Kill something at a random moment, and wait until every partition has resumed."""
        self.await_moment()
        since = time.monotonic()
        strike()
        self.await_resumed(since)

    def say(self, what: str) -> None:
        """For whoever looks at a failure, or watches (pytest -s)."""
        name = f"{self._name} " if self._name else ""
        sys.stdout.write(f"{time.monotonic() - self._began:6.1f} s  {name}{what}\n")
        sys.stdout.flush()

    def _resumed(self, since: float) -> float:
        """Wait until every partition has a record that is written from now on; seconds since."""
        deadline = since + RESUME_SECONDS
        mark: dict[Partition, int] = {}
        late: list[Partition] = []
        while True:
            mark = mark or self._source.ask(Log.stable)
            ends = self._destination.ask(Log.ends) if mark else {}
            late = [
                one for one in mark if one[0] not in self.resting and ends.get(one, -1) <= mark[one]
            ]
            if mark and not late:
                return time.monotonic() - since
            assert time.monotonic() < deadline, (
                f"not resumed after {RESUME_SECONDS:g} s: {late or 'no answer from the source'}"
            )
            time.sleep(_POLL_SECONDS)

    def prove(self, *, may_fail: bool = False) -> Proof:
        """See `prove`."""
        return prove([self], may_fail=may_fail)

    def end(self) -> dict[str, int]:
        """End the load, and wait until the destination has all of it; what was written."""
        totals = self.stage.stop_load()
        self.say(f"the load has ended: {totals}")
        self.stage.await_no_lag(self.topics, CATCH_UP_SECONDS)
        self.stage.await_no_lag(self.compared, CATCH_UP_SECONDS)
        return totals

    def compare(self) -> Report:
        """The independent checker's opinion of all that is mirrored of this source."""
        if self.compared:
            others = self.stage.check(self.compared, numbered=False)
            assert others.good, others.problems
        report = self.stage.check(self.topics)
        assert report.good, report.problems
        assert report.records > 0
        self.say(f"checker: {report.records} records, {report.gaps} offsets without one")
        return report

    def check_ways(self) -> int:
        """Every transition that was written is one of the table's; how many there were.

        The last states are what is wanted, in the end.
        """
        servers = self.stage.destination.bootstrap_servers
        until(lambda: not book.read(servers).disagreeing(), 60, "all states as they are wanted")
        found = book.read(servers)
        assert not found.forbidden(), found.forbidden()
        self.say(f"{found.steps} transitions, all of them allowed")
        return found.steps

    def unwell(self) -> list[str]:
        """The partitions that are in any other state than MIRRORING and STOPPED, and why."""
        return [
            f"{row['topic']}-{row['partition']} {row['state']}: {row['reason']}"
            for row in outside.all_described(self.stage)
            if row["state"] not in {"MIRRORING", "STOPPED"}
        ]


def prove(mirrors: Sequence[Ordeal], *, may_fail: bool = False) -> Proof:
    """End the loads; each mirror has to be its source's log, with every partition well.

    Args:
        mirrors: of one destination; the first one's stage has the nodes.
        may_fail: partitions may have been FAILED meanwhile.
    """
    first = mirrors[0]
    totals = [one.end() for one in mirrors]
    until(lambda: not first.unwell(), 30, "all partitions MIRRORING or STOPPED")
    steps = first.check_ways()
    said = [one for node in first.stage.nodes.values() for one in node.said()]
    assert may_fail or not [one for one in said if one["failed"]], "a partition was FAILED"
    verified = first.stage.verify()
    assert verified.status == 0, verified
    first.say(verified.output.strip())
    reports = [one.compare() for one in mirrors]
    return Proof(
        rest=first.rest,
        recoveries=tuple(seconds for one in mirrors for seconds in one.recoveries),
        written=sum(one["records"] for one in totals),
        aborted=sum(one["aborted"] for one in totals),
        records=sum(report.records for report in reports),
        gaps=sum(report.gaps for report in reports),
        verified=verified.output.strip().splitlines()[-1],
        steps=steps,
    )


class _Offsets:
    """The load's partitions in one cluster, asked by a new client where one has trouble."""

    def __init__(self, cluster: LocalCluster, topics: Sequence[str]) -> None:
        self._servers = cluster.bootstrap_servers
        self._topics = topics
        self._log: Log | None = None
        self._partitions: list[Partition] = []

    def ask(
        self, question: Callable[[Log, Sequence[Partition]], dict[Partition, int]]
    ) -> dict[Partition, int]:
        """An offset of every partition; empty where one cannot be had just now."""
        self._log = self._log or Log(self._servers, LOOK_SECONDS)
        try:
            self._partitions = self._partitions or self._log.partitions(self._topics)
            found = question(self._log, self._partitions)
        except (KafkaException, TimeoutError, LocalError):
            self._log = None
            return {}
        return found if all(offset >= 0 for offset in found.values()) else {}


@contextmanager
def ordeal(
    directory: Path,
    seed: str,
    rate: float,
    *,
    source: int = 1,
    destination: int = 1,
    controllers: int = 1,
) -> Iterator[Ordeal]:
    """Clusters of so many brokers, and a mirror of a load of so many records a second.

    `controllers`: of the destination.
    """
    sys.stdout.write(f"seed {seed}\n")  # pytest shows it with a failure
    with Stage(directory) as stage:
        stage.start_source(source)
        stage.start_destination(destination, controllers=controllers)
        found = Ordeal(stage, seed)
        found.begin(rate)
        yield found


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """One kind of kill, so many times: what `make chaos` wants of a test."""

    kind: str
    times: int
    seed: str
    rate: float
    gone_seconds: float
    directory: Path
    proofs: dict[str, Proof]
    """Of all kinds, for the table at the end."""

    @property
    def own_seed(self) -> str:
        """The seed of this kind alone."""
        return f"{self.seed}/{self.kind}"

    def ordeal(
        self, *, source: int = 1, destination: int = 1, controllers: int = 1
    ) -> AbstractContextManager[Ordeal]:
        """A mirror under load, between clusters of so many brokers."""
        return ordeal(
            *(self.directory, self.own_seed, self.rate),
            source=source,
            destination=destination,
            controllers=controllers,
        )

    def prove(self, *mirrors: Ordeal, may_fail: bool = False) -> None:
        """Prove that nothing was lost, doubled or misplaced, and note what it came to."""
        self.proofs[self.kind] = prove(mirrors, may_fail=may_fail)


def leaders(cluster: LocalCluster) -> list[int]:
    """The brokers that lead partitions of the load's topics."""
    client = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 2})
    topics = client.list_topics(timeout=LOOK_SECONDS).topics
    return sorted({one.leader for name in TOPICS for one in topics[name].partitions.values()})


def await_in_sync(cluster: LocalCluster) -> None:
    """Wait until every replica of every partition is in sync: then any broker may be killed."""
    client = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 2})

    def in_sync() -> bool:
        try:
            topics = client.list_topics(timeout=LOOK_SECONDS).topics.values()
        except KafkaException:
            return False
        every = [one for topic in topics for one in topic.partitions.values()]
        return all(len(one.isrs) == len(one.replicas) for one in every)

    until(in_sync, 120, "all replicas in sync")
