"""Whether groups' positions are translated exactly: twinlog beside MirrorMaker 2.

    PYTHONPATH=tests/support .venv/bin/python bench/translation.py [--positions 10000]
                                                        [--groups 2500] [--seconds 100] [--seed N]

    journal ─┬─► twinlog flow t->b ───────► t.journal       killed and restarted while they copy
             └─► MirrorMaker 2, two flows ─► m100.journal   offset.lag.max 100, the default
                                           ► m0.journal     offset.lag.max 0

The topic `journal` is compacted (every superseded record is removed, before and after it is
copied), and is written by interleaved transactions, a third of them aborted, and by a producer
without transactions. The copies are compacted, too. When writing has ended, and the cleaners of
both clusters have removed all that they can, all four logs have the same committed records; only
then is anything judged (translation_judge.py).

10,000 random offsets of the source are translated by `twinlog flows translate`. Groups commit
random offsets again and again, forwards and back, the last ones when all is copied. These are
compared with the checkpoints of all three flows, which MirrorMaker 2's own classes read, and with
the offsets that twinlog commits for the groups on the target.

An offset may be a record's, or a marker's, an aborted record's, a compacted one's. The exit status
is 1 if twinlog has not translated each of them exactly. Runs are stored in
bench/results/translation.json.
"""

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import process_tree
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic
from mirror_maker_java import MirrorMakerJava, mirror_maker_java
from translation_judge import Pair, Place, Verdict, summary

import results
from twinlog.local import commands
from twinlog.local.artifacts import mirror_maker_jars
from twinlog.local.check import ConsumerView
from twinlog.local.cluster import DEFAULT_VERSION
from twinlog.local.processes import SHORT_LIVED, JavaProcess, JavaProgram, ProcessGroup
from twinlog.local.stage import Stage
from twinlog.local.writers import PlainWriter, Totals, TransactionalProducer

T = TypeVar("T")

JOURNAL: Final = "journal"
PARTITIONS: Final = 4
COMPACTED: Final = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.0",
    "segment.ms": "1000",
}
FLOW: Final = "t"
MIRROR_MAKERS: Final = {"m100": "100", "m0": "0"}
"""`offset.lag.max` by the flow's alias."""
ALIASES: Final = (FLOW, *MIRROR_MAKERS)
WRITERS: Final = 3
HOT_KEYS: Final = 150
PAUSE_S: Final = 0.15
"""Between two rounds of transactions."""
BEFORE_S: Final = 15.0
"""How long the source is written to before anything is copied."""
WAIT_S: Final = 600.0
QUIET_S: Final = 25.0
QUIET_PER_GROUP_S: Final = 0.03
"""How long nothing has changed when checkpoints and offsets are taken for the last ones. A task of
MirrorMaker 2 asks for one group after another, and writes no checkpoint before it has asked for all
of them."""
AT_ONCE: Final = 100
"""Requests about groups that are in flight."""
KEY: Final = ("program", "answer", "seed")
LISTS: Final = ("checkpoints.topic", "heartbeats.topic", "offset-syncs.topic")
STORAGE: Final = ("offset.storage", "status.storage", "config.storage")


def main() -> None:
    """Make the logs, judge all positions, print and store the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--positions", type=int, default=10_000)
    parser.add_argument("--groups", type=int, default=2500)
    parser.add_argument("--seconds", type=float, default=100.0, help="how long the flows copy")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as name,
        Stage(Path(name) / "stage") as stage,
        ProcessGroup() as group,
    ):
        stage.start_source()
        stage.start_destination()
        bench = Bench(stage, group, options.seed, options.groups)
        bench.copy(options.seconds)
        found = bench.judge(options.positions)
    for run in found:
        results.put("translation", run, KEY)
        say(json.dumps(run))
    inexact = [run for run in found if run["program"] == FLOW and run["exact"] != run["positions"]]
    sys.exit(1 if inexact else 0)


def say(text: str) -> None:
    """Print a line of progress."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def until(look: Callable[[], T], what: str, seconds: float = WAIT_S) -> T:
    """Wait until a value is true, and return it."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:g} s: {what}")
        time.sleep(1)
    return found


class Checkpoint(NamedTuple):
    """The offsets of a checkpoint; upstream is the one that the group had committed."""

    upstream: int
    downstream: int


Checkpoints = dict[tuple[str, int], Checkpoint]
"""The last checkpoints of a flow, by group and partition."""


class Journal:
    """Writes the topic: a round is a transaction of each producer, interleaved, and some more."""

    def __init__(self, servers: str, seed: int) -> None:
        self._random = random.Random(seed)
        self.totals = Totals()
        self._serial = 0
        self._ending = threading.Event()
        self._ended = False
        self._producers = [
            TransactionalProducer(servers, f"{JOURNAL}-{at}", self.totals) for at in range(WRITERS)
        ]
        self._plain = PlainWriter(servers, "plain", self.totals)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Write until the end of the block."""
        thread = threading.Thread(target=self._write)
        thread.start()
        try:
            yield
        finally:
            self._ending.set()
            thread.join()
        assert self._ended, "the writer has failed"
        assert not self.totals.failures, self.totals.failures

    def roll(self) -> None:
        """Write a last record to each partition, which closes the segment before."""
        for index in range(PARTITIONS):
            self._one(index, "last")
        assert self._plain.flush(30) == 0

    def _write(self) -> None:
        while not self._ending.wait(PAUSE_S):
            self._round()
        self._ended = self._plain.flush(30) == 0

    def _round(self) -> None:
        for producer in self._producers:
            producer.begin()
        for _ in range(2):
            for producer in self._producers:
                for _ in range(self._random.randrange(1, 30)):
                    producer.write(JOURNAL, self._random.randrange(PARTITIONS), *self._record())
            for producer in self._producers:
                producer.flush()
            for _ in range(self._random.randrange(20)):
                self._one(self._random.randrange(PARTITIONS))
        for producer in self._random.sample(self._producers, WRITERS):
            producer.end(commit=self._random.random() < 2 / 3)

    def _one(self, partition: int, key: str | None = None) -> None:
        chosen, value = self._record()
        self._plain.write(JOURNAL, partition, key or chosen, value)

    def _record(self) -> tuple[str, str]:
        """A key, which half of the time is used again, and a unique value."""
        self._serial += 1
        hot = self._random.random() < 0.5
        key = f"hot-{self._random.randrange(HOT_KEYS)}" if hot else f"once-{self._serial}"
        return key, f"{self._serial}"


class Bench:
    """The clusters, the programs that copy, and the groups."""

    def __init__(self, stage: Stage, group: ProcessGroup, seed: int, groups: int) -> None:
        self._stage = stage
        self._group = group
        self._seed = seed
        self._random = random.Random(seed)
        self._source = stage.source.bootstrap_servers
        self._target = stage.destination.bootstrap_servers
        self._admin = AdminClient({"bootstrap.servers": self._source})
        self._journal = Journal(self._source, seed)
        self._groups = [f"g-{at}" for at in range(groups)]
        self._committed: dict[tuple[str, int], int] = {}
        self._restarts = 0
        self._mirror_maker: JavaProcess | None = None

    # ---- copying -------------------------------------------------------------------------------

    def copy(self, seconds: float) -> None:
        """Write the journal and copy it, with programs killed, until all logs are the same."""
        new = NewTopic(JOURNAL, num_partitions=PARTITIONS, config=COMPACTED)
        self._admin.create_topics([new])[JOURNAL].result(30)
        with self._journal.writing():
            time.sleep(BEFORE_S)
            until(self._is_compacted, "the source's cleaner")
            self._start()
            until(lambda: all(map(self._ends, ALIASES)), "the first copies")
            ending = time.monotonic() + seconds
            faults = [self._kill_lane, self._restart_node, self._kill_mirror_maker]
            while (left := ending - time.monotonic()) > 0:
                self._commit()
                time.sleep(min(left, 8))
                self._random.choice(faults)()
                self._restarts += 1
            for fault in faults:  # each one at least once
                fault()
                self._restarts += 1
                time.sleep(5)
        totals = self._journal.totals
        say(f"written: {totals.records} records, {totals.aborted} transactions aborted")
        self._pairs = until(self._same_logs, "the same records in all logs")

    def _is_compacted(self) -> bool:
        written = self._journal.totals.records
        left = sum(len(one) for one in self._read(self._source, JOURNAL))
        say(f"{written} records written, {left} left by the cleaner")
        return left < 0.8 * written

    def _start(self) -> None:
        self._create_flow()
        self._stage.start_node("node", "--lanes", "2")
        self._start_mirror_maker()

    def _create_flow(self) -> None:
        settings = {
            "replication.factor": "1",
            "groups": "g-.*",
            "refresh.topics.interval.seconds": "2",
            "refresh.groups.interval.seconds": "2",
            "emit.checkpoints.interval.seconds": "2",
            "sync.group.offsets.enabled": "true",
            "sync.group.offsets.interval.seconds": "2",
            "emit.heartbeats.enabled": "false",
            **{f"{name}.replication.factor": "1" for name in LISTS},
        }
        self._twinlog(
            "create",
            *("--source", FLOW, "--target", "b", "--source-bootstrap-server", self._source),
            *("--topics", JOURNAL),
            *(part for item in settings.items() for part in ("--config", "=".join(item))),
        )

    def _twinlog(self, action: str, *arguments: str) -> str:
        servers = ("--bootstrap-server", self._target)
        done = commands.run(commands.TWINLOG, "flows", action, *servers, *arguments)
        # 3: an offset is unknown, which is judged.
        assert done.status in {0, 3}, done
        return done.output

    def _start_mirror_maker(self) -> None:
        properties = {
            "clusters": ", ".join((*MIRROR_MAKERS, "b")),
            "b.bootstrap.servers": self._target,
            "groups": "g-.*",
            "topics": JOURNAL,
            "tasks.max": "2",
            "replication.factor": "1",
            "refresh.topics.interval.seconds": "2",
            "refresh.groups.interval.seconds": "2",
            "emit.checkpoints.interval.seconds": "2",
            "emit.heartbeats.enabled": "false",
            "sync.topic.acls.enabled": "false",
            "dedicated.mode.enable.internal.rest": "false",
            # Both flows are of the same clusters: on the source they would share a topic.
            "offset-syncs.topic.location": "target",
            **{f"{name}.replication.factor": "1" for name in (*LISTS, *STORAGE)},
        }
        for alias, lag in MIRROR_MAKERS.items():
            properties |= {
                f"{alias}.bootstrap.servers": self._source,
                f"{alias}->b.enabled": "true",
                f"{alias}->b.offset.lag.max": lag,
                # Otherwise it copies what was aborted, too.
                f"{alias}.consumer.isolation.level": "read_committed",
            }
        file = self._stage.directory / "mm2.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        self._mirror_maker = self._group.start(
            JavaProgram(
                jars=mirror_maker_jars(DEFAULT_VERSION),
                main="org.apache.kafka.connect.mirror.MirrorMaker",
                arguments=[str(file)],
                flags=SHORT_LIVED,
                log=self._stage.directory / "mm2.log",
            )
        )

    def _kill_lane(self) -> None:
        lanes = process_tree.await_lanes(self._stage.nodes["node"].pid, 2)
        process_tree.end(self._random.choice(lanes))
        say("a lane was killed")

    def _restart_node(self) -> None:
        self._stage.nodes["node"].kill()
        self._stage.start_node("node", "--lanes", "2")
        say("the node was killed and restarted")

    def _kill_mirror_maker(self) -> None:
        assert self._mirror_maker is not None
        self._mirror_maker.kill()
        self._start_mirror_maker()
        say("MirrorMaker 2 was killed and restarted")

    # ---- groups --------------------------------------------------------------------------------

    def _commit(self) -> None:
        """Let each group commit a random offset of each partition, forwards or back."""
        ends = ConsumerView(self._source).stable([(JOURNAL, at) for at in range(PARTITIONS)])
        commits: dict[str, list[TopicPartition]] = {}
        for group in self._groups:
            commits[group] = []
            for (topic, index), end in ends.items():
                at = self._random.randrange(end + 1)
                self._committed[group, index] = at
                commits[group].append(TopicPartition(topic, index, at))
        answers_of(self._admin.alter_consumer_group_offsets, commits)

    # ---- logs ----------------------------------------------------------------------------------

    def _same_logs(self) -> dict[str, list[Pair]]:
        """All logs, as soon as they have the same records, and the cleaners nothing to remove."""
        self._journal.roll()
        time.sleep(5)  # the segment's age, and the cleaner's interval
        before = self._read(self._source, JOURNAL)
        copies = {alias: self._read(self._target, f"{alias}.{JOURNAL}") for alias in ALIASES}
        ends = {alias: self._ends(alias) for alias in ALIASES}
        values = [[place.value for place in log] for log in before]
        lacking = [
            alias
            for alias in ALIASES
            if [[place.value for place in log] for log in copies[alias]] != values
        ]
        counts = [sum(map(len, logs)) for logs in (before, *copies.values())]
        say(f"records of {(JOURNAL, *ALIASES)}: {counts}; others than the source's: {lacking}")
        if lacking or before != self._read(self._source, JOURNAL):
            return {}
        return {
            alias: [
                Pair(before[at], copies[alias][at], ends[alias][at]) for at in range(PARTITIONS)
            ]
            for alias in ALIASES
        }

    def _ends(self, alias: str) -> list[int]:
        """Log end offsets of a remote topic; empty while a partition has no record."""
        partitions = [(f"{alias}.{JOURNAL}", index) for index in range(PARTITIONS)]
        try:
            ends = ConsumerView(self._target).ends(partitions)
        except (KafkaException, TimeoutError):
            return []
        found = [ends[partition] for partition in partitions]
        return found if min(found) > 0 else []

    @staticmethod
    def _read(servers: str, topic: str) -> list[list[Place]]:
        """The records of each partition, as a read_committed consumer sees them."""
        return [read(servers, topic, index) for index in range(PARTITIONS)]

    # ---- judging -------------------------------------------------------------------------------

    def judge(self, positions: int) -> list[dict[str, Any]]:
        """Judge all answers; each result has its program and where the answer was found."""
        self._commit()
        stable = ConsumerView(self._source).stable([(JOURNAL, at) for at in range(PARTITIONS)])
        facts = {
            "seed": self._seed,
            "offsets": sum(stable.values()),
            "records": sum(pair.records for pair in self._pairs[FLOW]),
            "restarts": self._restarts,
        }
        found = [{"program": FLOW, "answer": "translate", **self._translated(positions, stable)}]
        with mirror_maker_java(self._stage.directory) as java:
            for alias, checkpoints in self._last_checkpoints(java).items():
                translated = {key: one.downstream for key, one in checkpoints.items()}
                stale = sum(
                    one.upstream != self._committed[key] for key, one in checkpoints.items()
                )
                judged = summary(self._of_groups(alias, translated))
                found.append({"program": alias, "answer": "checkpoint", **judged, "stale": stale})
        synced = summary(self._of_groups(FLOW, self._synced()))
        found.append({"program": FLOW, "answer": "group offset", **synced})
        return [{**run, **facts} for run in found]

    def _translated(self, positions: int, stable: Mapping[Any, int]) -> dict[str, Any]:
        """Translate random offsets of each partition by command."""
        verdicts: list[Verdict] = []
        kinds: dict[str, int] = {}
        for index in range(PARTITIONS):
            asked = [
                self._random.randrange(stable[JOURNAL, index] + 1)
                for _ in range(positions // PARTITIONS)
            ]
            said = self._twinlog(
                "translate",
                *("--flow", f"{FLOW}-to-b", "--topic", JOURNAL, "--partition", str(index)),
                *(part for offset in asked for part in ("--offset", str(offset))),
                "--json",
            )
            answers = json.loads(said)["offsets"]
            assert [one["source"]["offset"] for one in answers] == asked
            for one in answers:
                kinds[one["answer"]] = kinds.get(one["answer"], 0) + 1
                target = one["target"]["offset"] if one["known"] else None
                verdicts.append(self._pairs[FLOW][index].judge(one["source"]["offset"], target))
        say(f"answers of translate: {kinds}")
        return {**summary(verdicts), "kinds": json.dumps(kinds)}

    def _of_groups(self, alias: str, offsets: Mapping[tuple[str, int], int]) -> Iterator[Verdict]:
        for (group, index), committed in self._committed.items():
            yield self._pairs[alias][index].judge(committed, offsets.get((group, index)))

    def _last_checkpoints(self, java: MirrorMakerJava) -> dict[str, Checkpoints]:
        """The last checkpoints of each flow, once no checkpoint or offset changes any more."""
        before: object = None
        since = began = time.monotonic()
        quiet_s = QUIET_S + len(self._groups) * QUIET_PER_GROUP_S

        def quiet() -> bool:
            nonlocal before, since
            topics = {alias: (f"{alias}.checkpoints.internal", 0) for alias in ALIASES}
            found = ConsumerView(self._target).ends(list(topics.values()))
            ends = {alias: found[topic] for alias, topic in topics.items()}
            if (now := (ends, self._synced())) != before:
                before, since = now, time.monotonic()
                say(f"checkpoint topics end at {ends} after {since - began:.0f} s")
            return time.monotonic() > since + quiet_s

        until(quiet, "the end of all checkpoints, and of all offsets on the target")
        found = {alias: self._checkpoints(java, alias) for alias in ALIASES}
        self._check_sample(java, found)
        return found

    def _checkpoints(self, java: MirrorMakerJava, alias: str) -> Checkpoints:
        """The last checkpoint of each group and partition, decoded by MirrorMaker 2's class."""
        last = {
            message.key(): message.value()
            for message in messages(self._target, f"{alias}.checkpoints.internal", 0)
        }
        found = {}
        for key, value in last.items():
            checkpoint = java["Checkpoint"].deserializeRecord(java.consumed(key, value))
            place = checkpoint.topicPartition()
            if place.topic() == f"{alias}.{JOURNAL}":
                offsets = checkpoint.upstreamOffset(), checkpoint.downstreamOffset()
                found[checkpoint.consumerGroupId(), place.partition()] = Checkpoint(*offsets)
        return found

    def _check_sample(self, java: MirrorMakerJava, found: Mapping[str, Checkpoints]) -> None:
        """Check that MirrorMaker 2's clients find the same for some groups."""
        properties = java.properties({"bootstrap.servers": self._target})
        for alias, offsets in found.items():
            for group in self._random.sample(self._groups, 5):
                answers = java["RemoteClusterUtils"].translateOffsets(
                    properties, alias, group, java.seconds(30)
                )
                same = {
                    partition.partition(): offset.offset() for partition, offset in answers.items()
                }
                wanted = {
                    index: one.downstream for (name, index), one in offsets.items() if name == group
                }
                assert same == wanted, (alias, group, same, wanted)

    def _synced(self) -> dict[tuple[str, int], int]:
        """The offsets that groups have on the target, in twinlog's remote topic."""
        admin = AdminClient({"bootstrap.servers": self._target})
        topic = f"{FLOW}.{JOURNAL}"
        asked = [TopicPartition(topic, index) for index in range(PARTITIONS)]
        found = {}
        answers = answers_of(admin.list_consumer_group_offsets, dict.fromkeys(self._groups, asked))
        for group, answer in answers.items():
            for one in answer.topic_partitions or ():
                if one.offset >= 0:
                    found[group, one.partition] = one.offset
        return found


def answers_of(
    ask: Callable[..., Mapping[str, Future[ConsumerGroupTopicPartitions]]],
    groups: Mapping[str, list[TopicPartition]],
) -> dict[str, ConsumerGroupTopicPartitions]:
    """The answers to a request for each group, of which `AT_ONCE` are in flight."""
    found = {}
    names = list(groups)
    for start in range(0, len(names), AT_ONCE):
        some = names[start : start + AT_ONCE]
        asked = {name: ask([ConsumerGroupTopicPartitions(name, groups[name])]) for name in some}
        found.update({name: futures[name].result(WAIT_S) for name, futures in asked.items()})
    return found


def read(servers: str, topic: str, index: int) -> list[Place]:
    """The records of a partition, as a read_committed consumer sees them."""
    return [Place(one.offset(), one.value()) for one in messages(servers, topic, index)]


def messages(servers: str, topic: str, index: int) -> Sequence[Any]:
    """All messages of a partition below its present last stable offset."""
    (end,) = ConsumerView(servers).stable([(topic, index)]).values()
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "translation",
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "log_level": 2,
        }
    )
    found: list[Any] = []
    try:
        start, _ = consumer.get_watermark_offsets(TopicPartition(topic, index), timeout=30)
        consumer.assign([TopicPartition(topic, index, start)])
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            for message in consumer.consume(2000, 1.0):
                error = message.error()
                if error is None:
                    offset = message.offset()
                    assert offset is not None
                    if offset < end:
                        found.append(message)
                    else:
                        return found  # a log that grows has no end to wait for
                elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - its name
                    return found
                else:
                    raise KafkaException(error)
    finally:
        consumer.close()
    raise TimeoutError(f"no end of {topic}-{index}")


if __name__ == "__main__":
    main()
