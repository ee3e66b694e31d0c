"""A mirror under load, a component that is killed, and the proof that nothing was lost.

    load ─► mirror ─► node(s) ─► kill, resumed; kill, resumed; ... ─► the load ends ─► lag 0 ─►
    every partition in its desired state, allowed transitions only (control_records.py) ─►
    twinlog verify ─► the independent checker

A kill is over when every partition has *resumed*: its destination holds a record that was written
to the source after the kill, so a living lane has copied it. librdkafka_tools measures the time
until then with librdkafka. The time includes the load's own intervals: `rest` is the same time
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

import control_records
import librdkafka_tools
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from waiting import until

from twinlog.local.check import ConsumerView, Partition, Report
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
"""A topic of the load stands still if nothing arrives for this long."""
MOMENT_SECONDS: Final = 3.0
"""A kill comes at a random moment within this time after all partitions have resumed."""
_POLL_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What was done, and its results. Times in seconds, from a kill until all have resumed."""

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
        """The median recovery time."""
        return statistics.median(self.recoveries)


class Ordeal:
    """See the module. `random` makes all random choices, from the seed that is printed.

    Ordeals that share a destination have different names, which prefix their topics.
    """

    def __init__(self, stage: Stage, seed: str, name: str = "") -> None:
        self.stage = stage
        self.random = random.Random(seed)
        self.topics = [f"{name}{topic}" for topic in TOPICS]
        self._name = name
        self.resting: set[str] = set()
        """Topics of the load that are expected to stand still, for example paused ones."""
        self.compared: set[str] = set()
        """Mirrored topics besides the load's, for the proof."""
        self.rest = 0.0
        self._began = time.monotonic()
        self.recoveries: list[float] = []
        self._source = _Offsets(stage.source, self.topics)
        self._destination = _Offsets(stage.destination, self.topics)

    def begin(self, rate: float) -> None:
        """Start the load, and create a mirror of it; the caller starts the nodes."""
        mirror = self._name or MIRROR
        self.stage.start_load(rate, LOAD_SECONDS, self._name)
        self.stage.create_mirror(mirror)
        self.stage.add("|".join(self.topics), mirror)

    def await_all(self) -> float:
        """Wait until every partition makes progress; return how long it took, in seconds."""
        seconds = self._resumed(time.monotonic())
        self.say(f"all goes on after {seconds:.1f} s")
        return seconds

    def measure_rest(self) -> None:
        """Measure the recovery time without a kill, once every partition makes progress."""
        self.await_all()
        self.rest = statistics.median(self._resumed(time.monotonic()) for _ in range(RESTS))
        self.say(f"without a kill {self.rest:.1f} s")

    def await_still(self, topics: Collection[str]) -> None:
        """Wait until nothing arrives of these topics, which are written to all the time.

        This shows that the fault has taken effect; otherwise nothing would be tested.
        """
        deadline = time.monotonic() + RESUME_SECONDS
        before: dict[Partition, int] = {}
        since = time.monotonic()
        while time.monotonic() < since + STILL_SECONDS or not before:
            ends = self._destination.ask(ConsumerView.ends)
            topic_ends = {one: end for one, end in ends.items() if one[0] in topics}
            if topic_ends != before:
                before, since = topic_ends, time.monotonic()
            assert time.monotonic() < deadline, f"{sorted(topics)} goes on"
            time.sleep(_POLL_SECONDS)
        self.say(f"{', '.join(sorted(topics))}: nothing arrives any more")

    def await_moment(self) -> None:
        """Wait for a random time, so that a kill can hit at any point of the work."""
        time.sleep(self.random.uniform(0, MOMENT_SECONDS))

    def await_resumed(self, since: float) -> None:
        """Wait until every partition has resumed, and note the time since the kill."""
        self.recoveries.append(self._resumed(since))
        self.say(f"resumed after {self.recoveries[-1]:.1f} s")

    def kill(self, strike: Callable[[], object]) -> None:
        """Kill something at a random moment, and wait until every partition has resumed."""
        self.await_moment()
        since = time.monotonic()
        strike()
        self.await_resumed(since)

    def say(self, what: str) -> None:
        """Print progress, for a failure's report or for `pytest -s`."""
        name = f"{self._name} " if self._name else ""
        sys.stdout.write(f"{time.monotonic() - self._began:6.1f} s  {name}{what}\n")
        sys.stdout.flush()

    def _resumed(self, since: float) -> float:
        """Wait until every partition has a record written from now on; seconds since `since`."""
        deadline = since + RESUME_SECONDS
        mark: dict[Partition, int] = {}
        late: list[Partition] = []
        while True:
            mark = mark or self._source.ask(ConsumerView.stable)
            ends = self._destination.ask(ConsumerView.ends) if mark else {}
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
        """Prove this mirror alone: see `prove`."""
        return prove([self], may_fail=may_fail)

    def end(self) -> dict[str, int]:
        """End the load, wait until the destination has all of it; return what was written."""
        totals = self.stage.stop_load()
        self.say(f"the load has ended: {totals}")
        self.stage.await_no_lag(self.topics, CATCH_UP_SECONDS)
        self.stage.await_no_lag(self.compared, CATCH_UP_SECONDS)
        return totals

    def compare(self) -> Report:
        """Run the independent checker on all that is mirrored of this source."""
        if self.compared:
            others = self.stage.check(self.compared, numbered=False)
            assert others.good, others.problems
        report = self.stage.check(self.topics)
        assert report.good, report.problems
        assert report.records > 0
        self.say(f"checker: {report.records} records, {report.gaps} offsets without one")
        return report

    def check_ways(self) -> int:
        """Check that every stored transition is allowed; return how many there were.

        At the end the last states have to match the desired states.
        """
        servers = self.stage.destination.bootstrap_servers
        until(
            lambda: not control_records.read(servers).disagreeing(),
            300,
            "all states as they are wanted",
        )
        found = control_records.read(servers)
        assert not found.forbidden(), found.forbidden()
        self.say(f"{found.steps} transitions, all of them allowed")
        return found.steps

    def unwell(self) -> list[str]:
        """Return the partitions that are neither MIRRORING nor STOPPED, with reasons."""
        return [
            f"{row['topic']}-{row['partition']} {row['state']}: {row['reason']}"
            for row in librdkafka_tools.all_described(self.stage)
            if row["state"] not in {"MIRRORING", "STOPPED"}
        ]


def prove(mirrors: Sequence[Ordeal], *, may_fail: bool = False) -> Proof:
    """End the loads; each destination log has to equal its source's, with every partition well.

    Args:
        mirrors: mirrors of one destination; the first one's stage has the nodes.
        may_fail: partitions may have been FAILED meanwhile.
    """
    first = mirrors[0]
    totals = [mirror.end() for mirror in mirrors]
    until(lambda: not first.unwell(), 300, "all partitions MIRRORING or STOPPED")
    steps = first.check_ways()
    said = [one for node in first.stage.nodes.values() for one in node.said()]
    assert may_fail or not [one for one in said if one["failed"]], "a partition was FAILED"
    verified = first.stage.verify()
    assert verified.status == 0, verified
    first.say(verified.output.strip())
    reports = [mirror.compare() for mirror in mirrors]
    return Proof(
        rest=first.rest,
        recoveries=tuple(seconds for mirror in mirrors for seconds in mirror.recoveries),
        written=sum(total["records"] for total in totals),
        aborted=sum(total["aborted"] for total in totals),
        records=sum(report.records for report in reports),
        gaps=sum(report.gaps for report in reports),
        verified=f"verify: {verified.output.strip().splitlines()[-1]}",
        steps=steps,
    )


class _Offsets:
    """The load's partitions in one cluster; after a client error a new client is used."""

    def __init__(self, cluster: LocalCluster, topics: Sequence[str]) -> None:
        self._servers = cluster.bootstrap_servers
        self._topics = topics
        self._log: ConsumerView | None = None
        self._partitions: list[Partition] = []

    def ask(
        self, question: Callable[[ConsumerView, Sequence[Partition]], dict[Partition, int]]
    ) -> dict[Partition, int]:
        """Return an offset of every partition; empty if one is not available now."""
        self._log = self._log or ConsumerView(self._servers, LOOK_SECONDS)
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
    """Start clusters with that many brokers, and a mirror of a load of `rate` records a second.

    `controllers`: the number of the destination's controllers.
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
    """One kind of kill, repeated `times` times, as `make chaos` asks of a test."""

    kind: str
    times: int
    seed: str
    rate: float
    gone_seconds: float
    directory: Path
    proofs: dict[str, Proof]
    """The proofs of all kinds, for the table at the end."""

    @property
    def own_seed(self) -> str:
        """The seed of this kind alone."""
        return f"{self.seed}/{self.kind}"

    def ordeal(
        self, *, source: int = 1, destination: int = 1, controllers: int = 1
    ) -> AbstractContextManager[Ordeal]:
        """Start a mirror under load, between clusters with that many brokers."""
        return ordeal(
            *(self.directory, self.own_seed, self.rate),
            source=source,
            destination=destination,
            controllers=controllers,
        )

    def prove(self, *mirrors: Ordeal, may_fail: bool = False) -> None:
        """Prove that nothing was lost, duplicated or misplaced, and note the result."""
        self.proofs[self.kind] = prove(mirrors, may_fail=may_fail)


def leaders(cluster: LocalCluster) -> list[int]:
    """Return the brokers that lead partitions of topics, internal topics left out."""
    client = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 2})
    topics = client.list_topics(timeout=librdkafka_tools.SECONDS).topics
    return sorted(
        {
            partition.leader
            for name, topic in topics.items()
            if not name.startswith("__")
            for partition in topic.partitions.values()
        }
    )


def await_in_sync(cluster: LocalCluster) -> None:
    """Wait until every replica of every partition is in sync: then any broker may be killed."""
    client = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 2})

    def in_sync() -> bool:
        try:
            topics = client.list_topics(timeout=LOOK_SECONDS).topics.values()
        except KafkaException:
            return False
        every = [partition for topic in topics for partition in topic.partitions.values()]
        return all(len(one.isrs) == len(one.replicas) for one in every)

    until(in_sync, 300, "all replicas in sync")
