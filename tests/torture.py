"""Torture: random load and faults on real brokers, and an independent oracle.

    make torture SEED=n [SECONDS=3600] [BROKERS=1]

    writers ──► source ──► proxies ──► node, lanes ──► proxies ──► destination
                   └───────────► oracle (librdkafka) ◄──────────────────┘

The run consists of rounds. In each round one or two faults begin (`FAULTS`), the oracle checks
while they last, and they end. Faults are those of the network (tcp_proxy.py), quotas, kills and
pauses of brokers, lanes and nodes, and users' actions: pausing, DeleteRecords, adding and removing
topics. Writers run all the time: load.py's (transactions, compaction, all codecs), and writers of
records of 0 B to 5 MB, of a tiered topic, and of a topic whose records expire.

One seed decides every choice, so a seed repeats the faults and their order; the moments depend on
the machine. Volume and time are bounded. The summary is a JSON object in the last line of standard
output; the exit status is 1 when there is a problem.
"""

import argparse
import json
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import librdkafka_tools
import process_tree
from confluent_kafka import KafkaException, Producer, TopicPartition
from oracle import Oracle
from tcp_proxy import (
    FETCH,
    INIT_PRODUCER_ID,
    PRODUCE,
    PROXIED,
    WRITE_TXN_MARKERS,
    Faults,
    Proxies,
)
from unusual_sources import LARGEST, MEGABYTE, TIERED_TOPIC, set_quota, tiered
from waiting import until

from twinlog.local.check import ConsumerView
from twinlog.local.cluster import DEFAULT_VERSION, LocalCluster
from twinlog.local.errors import LocalError
from twinlog.local.load import TOPICS, delete_before
from twinlog.local.stage import MIRROR, Stage

LOAD_RATE: Final = 150.0
BYTES_PER_SECOND: Final = 400_000
MOST_BYTES: Final = 1_500_000_000
"""The most bytes that the writer beside the load writes."""
LONGEST_FAULT: Final = 50.0
CATCH_UP_SECONDS: Final = 600.0
VERIFY_EVERY: Final = 300.0
PARTITIONS: Final = 2
OWN_TOPICS: Final = {
    "sizes": LARGEST,
    "tiered": TIERED_TOPIC,
    "purged": {},
    "paused": {},
    "expiring": {"retention.ms": "20000", "segment.ms": "5000"},
}
EVERY: Final = (*TOPICS, *OWN_TOPICS)
TROUBLE: Final = (KafkaException, LocalError, TimeoutError, AssertionError)
"""Errors of a check, or of a user's command, while brokers are down."""


class Writer:
    """Writes to the topics beside the load's, until it is ended or has written `most_bytes`."""

    def __init__(self, servers: str, seed: str, most_bytes: int) -> None:
        self._servers = servers
        self._random = random.Random(f"{seed}/writer")
        self._left = most_bytes
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._producer = self._new()
        self.topics = list(OWN_TOPICS)
        self.records = 0
        self.bytes = 0

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """End once everything is acknowledged."""
        self._stop.set()
        self._thread.join(400)
        assert not self._thread.is_alive(), "the writer does not end"

    def _new(self) -> Producer:
        return Producer(
            {
                "bootstrap.servers": self._servers,
                "enable.idempotence": True,
                "message.timeout.ms": 0,
                "message.max.bytes": 8 << 20,
                "queue.buffering.max.kbytes": 32 << 10,
                "batch.size": 1_000_000,
                "linger.ms": 20,
                "log_level": 2,
            }
        )

    def _run(self) -> None:
        while not self._stop.is_set() and self._left > 0:
            began, written = time.monotonic(), self.bytes
            topic = self._random.choice(self.topics)
            for _ in range(self._random.randrange(1, 60)):
                self._write(topic)
            pause = (self.bytes - written) / BYTES_PER_SECOND - (time.monotonic() - began)
            self._stop.wait(max(0.05, pause))
        self._producer.flush(300)

    def _write(self, topic: str) -> None:
        size = self._size(large=topic == "sizes")
        choose = self._random
        try:
            self._producer.produce(
                topic,
                partition=choose.randrange(PARTITIONS),
                key=choose.choice((None, b"", choose.randbytes(8))),
                value=choose.choice((None, choose.randbytes(size), choose.randbytes(size))),
                headers=[("h", choose.choice((None, b"", b"x")))] * choose.randrange(3),
            )
            self.records += 1
            self.bytes += size
            self._left -= size
            self._producer.poll(0)
        except BufferError:
            self._producer.poll(0.2)
        except KafkaException:
            self._producer = self._new()  # a fatal error: the producer's unsent records are lost

    def _size(self, *, large: bool) -> int:
        choose = self._random
        if large and choose.random() < 0.1:
            return choose.choice((1 << 20, 5_000_000, choose.randrange(5_000_000)))
        return choose.randrange(choose.choice((1, 10, 100, 1000, 20_000)))


class Removed:
    """A topic that is mirrored, then removed, and then written to by its users (G1)."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ends: dict[int, int] = {}
        self.values: dict[int, list[bytes]] = {index: [] for index in range(PARTITIONS)}

    def write(self, servers: str) -> None:
        """Write five records to each partition, as users of the destination."""
        at = len(self.values[0])
        records = []
        for index, values in self.values.items():
            new = [f"{self.name}-{index}-{at + number}".encode() for number in range(5)]
            values.extend(new)
            records += [(index, None, value, None) for value in new]
        librdkafka_tools.write(servers, self.name, records)

    def check(self, oracle: Oracle, source: ConsumerView, servers: str) -> None:
        """Check that the log equals the source's up to the mirrored end; users' records follow."""
        partitions = [(self.name, index) for index in self.ends]
        extents = oracle.destination.extents(partitions)
        mirrored = {
            partition: (extents[partition].start, self.ends[partition[1]])
            for partition in partitions
        }
        deadline = time.monotonic() + 300
        if source.read(mirrored, deadline) != oracle.destination.read(mirrored, deadline):
            oracle.problem(f"{self.name}: differs below its mirrored end")
        for one in partitions:
            found = _values(servers, one, self.ends[one[1]], extents[one].end)
            offsets = [offset for offset, _ in found]
            if [value for _, value in found] != self.values[one[1]]:
                oracle.problem(f"{self.name}-{one[1]}: {len(found)} users' records, not as written")
            if offsets and offsets != list(range(offsets[0], extents[one].end)):
                oracle.problem(f"{self.name}-{one[1]}: something else among users' records")


def _values(
    servers: str, partition: tuple[str, int], start: int, end: int
) -> list[tuple[int, bytes | None]]:
    """Return offsets and values in `[start, end)`."""
    with librdkafka_tools.consumer(servers, "torture") as consumer:
        consumer.assign([TopicPartition(*partition, start)])
        found: list[tuple[int, bytes | None]] = []
        until_time = time.monotonic() + 300
        while time.monotonic() < until_time:
            messages = consumer.consume(500, 0.5)
            found += [
                (message.offset() or 0, message.value())
                for message in messages
                if not message.error()
            ]
            if consumer.position([TopicPartition(*partition)])[0].offset >= end:
                break
        return found


class Torture:
    """See the module."""

    def __init__(self, stage: Stage, seed: str, seconds: float, brokers: int = 1) -> None:
        self.stage = stage
        self.seed = seed
        self.seconds = seconds
        self.random = random.Random(seed)
        self.faults: Counter[str] = Counter()
        self.verdicts: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.held: Counter[str] = Counter()
        self.removed: list[Removed] = []
        self._began = time.monotonic()
        self._verified = self._began
        remote = tiered(stage.directory / "remote", DEFAULT_VERSION)
        large = {"message.max.bytes": str(8 << 20), "replica.fetch.max.bytes": str(8 << 20)}
        small = {"quota.window.num": "3", "log.retention.check.interval.ms": "2000"}
        slow = {
            "remote.fetch.max.wait.ms": str(self.random.choice((1, 20, 500))),
            "remote.log.manager.fetch.max.bytes.per.second": str(3 * MEGABYTE),
        }
        source = {**large, **small, **remote, **slow}
        stage.start_source(brokers, config=source, proxied=[PROXIED])
        stage.start_destination(brokers, config={**large, **small}, proxied=[PROXIED])
        self.source_proxies = Proxies.of(stage.source, seed)
        self.destination_proxies = Proxies.of(stage.destination, seed)
        servers = stage.source.bootstrap_servers
        for name, config in OWN_TOPICS.items():
            librdkafka_tools.make_topic(servers, name, PARTITIONS, config)
        self.writer = Writer(servers, seed, int(min(MOST_BYTES, seconds * BYTES_PER_SECOND)))
        self.oracle = Oracle(servers, stage.destination.bootstrap_servers, ["expiring"])

    def say(self, what: str) -> None:
        sys.stderr.write(f"{time.monotonic() - self._began:7.1f} s  {what}\n")

    # ---- the run -------------------------------------------------------------------------------

    def run(self) -> dict[str, Any]:
        """Run all of it; return the summary."""
        with self.source_proxies, self.destination_proxies:
            self.stage.start_load(LOAD_RATE, self.seconds + 600)
            self.writer.start()
            refresh = "mirror.metadata.refresh.interval.ms=3000"
            self.stage.create_mirror(MIRROR, [refresh])
            self.stage.add("|".join(EVERY))
            self.start_node()
            librdkafka_tools.await_all_mirroring(self.stage, 400)
            end = time.monotonic() + self.seconds
            while time.monotonic() < end and len(self.oracle.counts.problems) < 10:
                self._round(end)
            self._finish()
        return self.summary()

    def start_node(self) -> None:
        """Start the node, or restart it after its death."""
        self.stage.start_node("node", "--lanes", "2")

    def _round(self, end: float) -> None:
        """Run one or two faults at once, with a check during them and one after."""
        longest = min(LONGEST_FAULT, self.seconds / 6)
        chosen = self.random.sample(sorted(FAULTS), self.random.choice((1, 1, 2)))
        seconds = [1 + longest * self.random.random() ** 2 for _ in chosen]  # mostly short
        rest = self.random.uniform(0, 5)
        try:
            with ExitStack() as stack:
                for name in chosen:
                    self.say(name)
                    self.faults[name] += 1
                    stack.enter_context(FAULTS[name](self))
                until_time = min(time.monotonic() + max(seconds), end)
                self.look()
                time.sleep(max(0.0, until_time - time.monotonic()))
        except TROUBLE as error:
            self.say(f"{chosen}: {str(error)[:300]}")
            self.verdicts["fault that could not be"] += 1
        self._revive()
        time.sleep(rest)
        self.look(verify=time.monotonic() - self._verified > VERIFY_EVERY)

    def _revive(self) -> None:
        """Restart every node and broker that has died."""
        node = self.stage.nodes["node"]
        if not node.alive:
            self.say("the node has ended; it is started again")
            self.start_node()
        for cluster in (self.stage.source, self.stage.destination):
            for node_id in cluster.node_ids:
                if not cluster.alive(node_id):
                    cluster.start_broker(node_id)

    def _finish(self) -> None:
        """End all faults; then everything has to arrive, and every claim is checked."""
        self.say("the faults are over")
        self._revive()
        rows: list[dict[str, Any]] = []
        until(lambda: _done(lambda: rows.extend(self._rows())), 300, "an answer of each broker")
        for row in rows:
            if row["state"] in {"PAUSING", "PAUSED"}:
                self.stage.mirrors("--resume", "--topic", row["topic"], "--mirror", MIRROR)
        self.writer.end()
        self.stage.stop_load(400)
        try:
            self.stage.await_no_lag(EVERY, CATCH_UP_SECONDS)
        except LocalError as error:
            self.oracle.problem(f"{error}")
        for row in self._rows():
            if row["topic"] in EVERY and row["state"] != "MIRRORING":
                self.oracle.problem(
                    f"{row['topic']}-{row['partition']} is {row['state']}: {row['reason']}"
                )
        self.look(verify=True)
        self.oracle.look_at_the_end(EVERY)
        self._check_numbers()
        log = ConsumerView(self.stage.source.bootstrap_servers)
        for one in self.removed:
            if one.ends:
                one.write(self.stage.destination.bootstrap_servers)
                one.check(self.oracle, log, self.stage.destination.bootstrap_servers)

    def _check_numbers(self) -> None:
        """Check the writers' numbers on the destination.

        Where a broker of the source stands still for longer than its session, records of aborted
        transactions were in both logs, those of committed ones in neither. Which of the source's
        broker and its client does that is not known. Besides the faults here, a machine that is
        busy has that effect. A mirror writes nothing there, so wrong numbers that the source's own
        log has too are reported, and are no problem of the mirror; that the two logs are equal is
        what the oracle checks.
        """
        checked = self.stage.check(TOPICS)
        for problem in checked.problems:
            if problem in checked.in_source:
                self.say(f"wrong on the source, too: {problem}")
                self.verdicts["writers' numbers that are wrong on the source, too"] += 1
            else:
                self.oracle.problem(f"writers' numbers: {problem}")

    def summary(self) -> dict[str, Any]:
        """Return what was done, and the results."""
        return {
            "seed": self.seed,
            "seconds": round(time.monotonic() - self._began),
            "faults": sum(self.faults.values()),
            "faults_by_kind": dict(sorted(self.faults.items())),
            "written_beside_the_load": {"records": self.writer.records, "bytes": self.writer.bytes},
            "verdicts": dict(sorted(self.verdicts.items())),
            "holds": dict(self.held),
            "failed_meanwhile": dict(self.failed),
            "removed_topics": len([one for one in self.removed if one.ends]),
            "oracle": self.oracle.counts.as_json(),
        }

    # ---- checks --------------------------------------------------------------------------------

    def look(self, *, verify: bool = False) -> None:
        """Compare claims with the oracle's reads; brokers that are down are no problem."""
        try:
            self.oracle.look(EVERY)
            self._look_at_readiness()
            for row in self._rows():
                if row["state"] == "FAILED":
                    self.failed[f"{row['topic']}: {row['reason']}"[:300]] += 1
            if verify:
                self._verified = time.monotonic()
                self._look_at_verify()
        except TROUBLE as error:
            self.verdicts["not seen"] += 1
            self.oracle.reconnect()
            self.say(f"not seen: {str(error)[:200]}")

    def _rows(self) -> list[dict[str, Any]]:
        return librdkafka_tools.all_described(self.stage)

    def _look_at_readiness(self) -> None:
        before = self.oracle.ends(EVERY)
        servers = ("--bootstrap-server", self.stage.destination.bootstrap_servers)
        answer = librdkafka_tools.twinlog("readiness", *servers, "--mirror", MIRROR, "--json")
        if not answer.output.startswith("{"):
            self.verdicts[f"readiness: status {answer.status}"] += 1
            return
        found = json.loads(answer.output)
        self.verdicts[f"readiness: {found['readiness']}"] += 1
        topics = {topic["topic"] for topic in found["topics"]}
        if missing := set(EVERY) - topics:
            self.oracle.problem(f"readiness does not name {sorted(missing)}")
        claimed = {topic["topic"] for topic in found["topics"] if topic["lag"] == 0}
        if any(one["reason"].startswith("SOURCE_UN") for one in found["findings"]):
            claimed = set()  # what it knows is old, and it is named
        self.oracle.claim("readiness", {one: at for one, at in before.items() if one[0] in claimed})
        self.oracle.counts.withheld += len(topics - claimed)

    def _look_at_verify(self) -> None:
        before = self.oracle.ends(EVERY)
        done = self.stage.verify("--json", "--topic", "|".join(EVERY))
        self.verdicts[f"verify: status {done.status}"] += 1
        if done.status == 0 and json.loads(done.output).get("behind") == 0:
            self.oracle.claim("verify", before)
        elif done.status == 1:
            differences = json.loads(done.output).get("differences")
            self.oracle.problem(f"verify says that these differ: {differences}"[:500])
        elif done.status != 0:
            self.say(f"verify: {done.status} {done.output[:500]} {done.errors[-300:]}")


# ---- faults ------------------------------------------------------------------------------------

Fault = Callable[[Torture], Any]


def _sides(torture: Torture) -> Proxies:
    return torture.random.choice((torture.source_proxies, torture.destination_proxies))


def _network(pick: Callable[[random.Random], Faults]) -> Fault:
    """Make a fault of all connections to one cluster."""

    @contextmanager
    def fault(torture: Torture) -> Iterator[None]:
        proxies = _sides(torture)
        proxies.set(pick(torture.random))
        try:
            yield
        finally:
            proxies.clear()

    return fault


def _hold(*apis: int | None, answers: bool = False, kill: bool = False) -> Fault:
    """Make a fault that holds a connection's bytes in the proxy, and may kill a lane meanwhile."""

    @contextmanager
    def fault(torture: Torture) -> Iterator[None]:
        api = torture.random.choice(apis)
        proxies = torture.source_proxies if api == FETCH else torture.destination_proxies
        hold = proxies.hold(api=api, answers=answers)
        try:
            if kill:
                with suppress(*TROUBLE):
                    hold.await_caught(10)
                    _kill_lane(torture)
            yield
        finally:
            torture.held["caught" if hold.links else "not caught"] += 1
            torture.held["delivered without its client"] += hold.abandoned
            hold.release()

    return fault


@contextmanager
def cut(torture: Torture) -> Iterator[None]:
    """Reset connections a few times."""
    proxies = _sides(torture)
    for _ in range(torture.random.randrange(1, 5)):
        proxies.cut()
        time.sleep(torture.random.uniform(0, 0.5))
    yield


@contextmanager
def quota(torture: Torture) -> Iterator[None]:
    """Let the source throttle the mirror."""
    limits = torture.random.choice(
        (
            {"consumer_byte_rate": torture.random.uniform(0.2, 3) * MEGABYTE},
            {"request_percentage": torture.random.uniform(1, 10)},
        )
    )
    set_quota(torture.stage.source, limits)
    try:
        yield
    finally:
        until(lambda: _done(lambda: set_quota(torture.stage.source, dict.fromkeys(limits, 0))), 300)


def _done(do: Callable[[], object]) -> bool:
    """Return whether an action succeeded; a broker may be down."""
    try:
        do()
    except Exception as error:
        sys.stderr.write(f"again: {error}\n")
        return False
    return True


def _broker(torture: Torture) -> tuple[LocalCluster, int]:
    cluster = torture.random.choice((torture.stage.source, torture.stage.destination))
    return cluster, torture.random.choice(cluster.brokers).node_id


@contextmanager
def kill_broker(torture: Torture) -> Iterator[None]:
    """Kill -9 a broker; restart it after some seconds."""
    cluster, node_id = _broker(torture)
    if cluster.alive(node_id):
        cluster.kill(node_id)
        time.sleep(torture.random.uniform(0, 5))
        cluster.start_broker(node_id)
    yield


@contextmanager
def pause_broker(torture: Torture) -> Iterator[None]:
    """Pause a broker (SIGSTOP), for less than its session lasts, or longer."""
    cluster, node_id = _broker(torture)
    if cluster.alive(node_id):
        cluster.pause(node_id)
        time.sleep(torture.random.uniform(1, 12))
        cluster.resume(node_id)
    yield


def _kill_lane(torture: Torture) -> None:
    lanes = process_tree.lanes(torture.stage.nodes["node"].pid)
    if lanes:
        process_tree.end(torture.random.choice(lanes))


@contextmanager
def kill_lane(torture: Torture) -> Iterator[None]:
    """Kill a lane's process."""
    _kill_lane(torture)
    yield


@contextmanager
def kill_node(torture: Torture) -> Iterator[None]:
    """Kill the node's own process, and restart it."""
    torture.stage.nodes["node"].kill()
    torture.start_node()
    yield


@contextmanager
def pause_lane(torture: Torture) -> Iterator[None]:
    """Pause a lane for as long as the fault lasts; others take over."""
    lanes = process_tree.lanes(torture.stage.nodes["node"].pid)
    if not lanes:
        yield
        return
    lane = torture.random.choice(lanes)
    with suppress(OSError), process_tree.paused(lane):
        yield


@contextmanager
def pause_topic(torture: Torture) -> Iterator[None]:
    """Pause a topic and resume it, as a user."""
    arguments = ("--topic", "paused", "--mirror", MIRROR)
    torture.stage.mirrors("--pause", *arguments)
    try:
        yield
    finally:
        torture.stage.mirrors("--resume", *arguments)


@contextmanager
def delete_records(torture: Torture) -> Iterator[None]:
    """Delete records of the source, as a user."""
    servers = torture.stage.source.bootstrap_servers
    extents = ConsumerView(servers).extents([("purged", index) for index in range(PARTITIONS)])
    delete_before(
        servers,
        [(*one, torture.random.randint(at.start, at.stable)) for one, at in extents.items()],
    )
    yield


@contextmanager
def remove_topic(torture: Torture) -> Iterator[None]:
    """Add a topic, remove it while it is written to, then write to it as its users."""
    one = Removed(f"removed{len(torture.removed)}")
    torture.removed.append(one)
    stage = torture.stage
    librdkafka_tools.make_topic(stage.source.bootstrap_servers, one.name, PARTITIONS)
    torture.writer.topics.append(one.name)
    stage.add(one.name)
    for index in range(PARTITIONS):
        librdkafka_tools.await_state(stage, one.name, index, "MIRRORING", 60)
    yield
    torture.writer.topics.remove(one.name)
    until(lambda: not stage.mirrors("--remove", "--topic", one.name, "--mirror", MIRROR).status, 60)
    rows = [
        librdkafka_tools.await_state(stage, one.name, at, "STOPPED", 120)
        for at in range(PARTITIONS)
    ]
    one.write(stage.destination.bootstrap_servers)
    one.ends = {row["partition"]: row["last_mirrored_end"] for row in rows}


FAULTS: Final[dict[str, Fault]] = {
    "slow": _network(lambda choose: Faults(delay=(0, choose.uniform(0.01, 1)))),
    "narrow": _network(lambda choose: Faults(rate=choose.uniform(20_000, 2_000_000))),
    "cut within": _network(lambda choose: Faults(cut_after=choose.randrange(50, 3_000_000))),
    "black hole": _network(lambda _: Faults(black_hole=True)),
    "refused": _network(lambda _: Faults(refuse=True)),
    "held requests": _hold(WRITE_TXN_MARKERS, PRODUCE, INIT_PRODUCER_ID, FETCH, None),
    "held markers": _hold(WRITE_TXN_MARKERS),
    "held answers": _hold(WRITE_TXN_MARKERS, PRODUCE, INIT_PRODUCER_ID, FETCH, answers=True),
    "held, and a lane killed": _hold(WRITE_TXN_MARKERS, PRODUCE, kill=True),
    "cut": cut,
    "quota": quota,
    "broker killed": kill_broker,
    "broker paused": pause_broker,
    "lane killed": kill_lane,
    "node killed": kill_node,
    "lane paused": pause_lane,
    "topic paused": pause_topic,
    "records deleted": delete_records,
    "topic removed": remove_topic,
}


def torture(directory: Path, seed: str, seconds: float, brokers: int = 1) -> dict[str, Any]:
    """Run it in a folder; return the summary."""
    sys.stderr.write(f"seed {seed}\n")
    with Stage(directory) as stage:
        return Torture(stage, seed, seconds, brokers).run()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seed", default=str(time.time_ns() % 1_000_000))
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--brokers", type=int, default=1, help="of each cluster: 1 to 3")
    parser.add_argument("--directory", type=Path, help="kept; default: one that is removed")
    chosen = parser.parse_args(arguments)
    directory = chosen.directory or Path(tempfile.mkdtemp(prefix="torture-"))
    summary = torture(directory, chosen.seed, chosen.seconds, chosen.brokers)
    oracle = summary["oracle"]
    sys.stdout.write(
        f"seed {summary['seed']}: {summary['faults']} faults in {summary['seconds']} s, "
        f"{oracle['records']} records compared, {oracle['claims']} claims checked, "
        f"{len(oracle['problems'])} problems\n"
    )
    sys.stdout.write(json.dumps(summary) + "\n")
    if oracle["problems"]:
        sys.stderr.write(f"logs: {directory}\n")
        return 1
    if not chosen.directory:
        shutil.rmtree(directory, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
