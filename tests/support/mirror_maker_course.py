"""Two clusters, flows between them by one file, and cases that run beside each other.

    phase   what runs     what a case does in it
    ------  ------------  ---------------------------------------------
    0       no flow       writes what is there before the first start
    1       the flows     waits for what is to be copied
            then they end, or are killed while records are being copied
    2       no flow       writes, deletes, recreates
    3       the flows     waits, and compares

A case is a generator that yields at the end of the first three phases. The clusters take longer to
start than a case takes, so all cases of a condition share a pair, a file, and the restart.

    flow                settings beside the usual ones
    ------------------  ------------------------------------------------------------------------
    primary->backup     lost records are passed over; offsets of groups are committed
    backup->primary     the same, in the other direction
    off->backup         no offset syncs, so no checkpoints; lost records make a partition FAILED
    late->backup        begins at the ends of topics, with offset.lag.max=0; defaults of the source;
                        offset syncs on the target

`off` and `late` are other names of the primary cluster.
"""

import json
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import librdkafka_tools
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from mirror_maker_process import MirrorMakerProcess
from remote_topics import places, records
from secured_clusters import make_authority, make_store
from waiting import SECONDS, until

from twinlog.local import commands
from twinlog.local.cluster import LocalCluster
from twinlog.local.processes import SHORT_LIVED

CONDITIONS = ("renamed", "identity", "killed", "tls", "transactional", "exactly-once")
KILLED = {"killed", "exactly-once"}
WORKERS = 8
"""Cases at once: they wait most of their time."""
PAUSE = 0.5
"""Seconds between two looks: each look creates a client, and the clusters need the cores."""
IDENTITY = "org.apache.kafka.connect.mirror.IdentityReplicationPolicy"
BROKER = {
    "log.flush.start.offset.checkpoint.interval.ms": "1000",
    "log.initial.task.delay.ms": "1000",
}
FILE = """\
clusters = primary, backup, off, late
primary->backup.enabled = true
primary->backup.offset-syncs.topic.replication.factor = 1
primary->backup.topics = case-.*, both-.*
primary->backup.twinlog.data.loss = continue
primary->backup.emit.heartbeats.enabled = true
backup->primary.enabled = true
backup->primary.offset-syncs.topic.replication.factor = 1
backup->primary.topics = {back}
backup->primary.emit.heartbeats.enabled = true
off->backup.enabled = true
off->backup.topics = off-.*
off->backup.emit.offset-syncs.enabled = false
off->backup.heartbeats.replication.enabled = false
late->backup.enabled = true
late->backup.offset-syncs.topic.replication.factor = 1
late->backup.topics = late-.*
late->backup.use.defaults.from = source
late->backup.offset-syncs.topic.location = target
late->backup.offset.lag.max = 0
late->backup.heartbeats.replication.enabled = false
late.consumer.auto.offset.reset = latest
config.properties.exclude = delete\\\\.retention\\\\.ms
replication.factor = 1
heartbeats.topic.replication.factor = 1
checkpoints.topic.replication.factor = 1
refresh.topics.interval.seconds = 1
sync.topic.configs.interval.seconds = 1
sync.topic.acls.enabled = false
emit.heartbeats.enabled = false
emit.checkpoints.interval.seconds = 1
sync.group.offsets.enabled = true
sync.group.offsets.interval.seconds = 1
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Two:
    """The two clusters, and what a user does with them."""

    condition: str
    primary: LocalCluster
    backup: LocalCluster
    log: Callable[[], str]
    """Returns the log of the flows."""

    def remote(self, topic: str, alias: str = "primary") -> str:
        """The name of a topic's copy."""
        return topic if self.condition == "identity" else f"{alias}.{topic}"

    @property
    def renames(self) -> bool:
        """Whether copies have other names, so that a topic may be copied in both directions."""
        return self.condition != "identity"

    def create(
        self,
        cluster: LocalCluster,
        topic: str,
        partitions: int = 1,
        config: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic."""
        librdkafka_tools.make_topic(cluster.bootstrap_servers, topic, partitions, config)

    def write(
        self, cluster: LocalCluster, topic: str, values: Sequence[str], partition: int = 0
    ) -> None:
        """Write values; in transactions, with one that is aborted between them, if so wanted."""
        if self.condition != "transactional":
            rows = [(partition, None, value, None) for value in values]
            librdkafka_tools.write(cluster.bootstrap_servers, topic, rows)
            return
        producer = Producer(
            {"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": uuid.uuid4().hex}
        )
        producer.init_transactions(120)
        for first in range(0, len(values), 7):
            for aborted in (True, False):
                producer.begin_transaction()
                for value in values[first : first + 7]:
                    text = f"aborted {value}" if aborted else value
                    producer.produce(topic, text, partition=partition)
                if aborted:
                    producer.flush(120)
                    producer.abort_transaction(120)
                else:
                    producer.commit_transaction(120)

    def values(self, cluster: LocalCluster, topic: str, partition: int = 0) -> list[str]:
        """The committed records; none while the topic does not exist."""
        return [value for _, value in records(cluster, topic, partition)]

    def await_values(
        self, cluster: LocalCluster, topic: str, wanted: Sequence[str], partition: int = 0
    ) -> None:
        """Wait until a topic has as many records, and check that they are these."""
        found = until(
            lambda: self.values(cluster, topic, partition),
            SECONDS,
            f"{len(wanted)} records in {topic}",
            good=lambda values: len(values) >= len(wanted),
            pause=PAUSE,
        )
        assert found == list(wanted)

    def commit(self, cluster: LocalCluster, group: str, topic: str, record: int) -> None:
        """Commit that the group's next record is this one, counted from 0 (or behind the last).

        A transaction's end is answered before its markers are written: until then, its records are
        not seen.
        """
        found = until(
            lambda: places(cluster, topic),
            SECONDS,
            f"{record} records in {topic}",
            good=lambda seen: len(seen) >= record,
            pause=PAUSE,
        )
        offset = found[record] if record < len(found) else found[-1] + 1
        librdkafka_tools.commit(cluster.bootstrap_servers, group, topic, {0: offset})

    def next_record(self, cluster: LocalCluster, group: str, topic: str) -> int | None:
        """Which record is the group's next one, counted from 0; None: nothing is committed."""
        offset = librdkafka_tools.committed(cluster.bootstrap_servers, group, topic).get(0)
        if offset is None:
            return None
        return sum(place < offset for place in places(cluster, topic))

    def await_next(self, cluster: LocalCluster, group: str, topic: str, record: int) -> None:
        """Wait until this is the group's next record."""
        until(
            lambda: self.next_record(cluster, group, topic),
            SECONDS,
            f"{group} at record {record} of {topic}",
            good=lambda found: found == record,
            pause=PAUSE,
        )

    def resume(
        self, cluster: LocalCluster, group: str, topic: str, partition: int = 0
    ) -> list[str]:
        """Read from where the group is, up to the end, and commit that; return the records."""
        consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
            }
        )
        found: list[str] = []
        try:
            consumer.assign([TopicPartition(topic, partition)])
            while True:
                message = consumer.poll(120)
                assert message is not None, f"no answer for {topic}"
                error = message.error()
                if error is None:
                    value = message.value()
                    assert value is not None
                    found.append(value.decode())
                elif error.code() == KafkaError._PARTITION_EOF:
                    offset = message.offset()
                    assert offset is not None
                    end = TopicPartition(topic, partition, offset)
                    consumer.commit(offsets=[end], asynchronous=False)
                    return found
                else:
                    raise KafkaException(error)
        finally:
            consumer.close()

    def alter(self, cluster: LocalCluster, topic: str, **values: str | None) -> None:
        """Set configurations of a topic (`_` for `.`); None: delete them."""
        entries = [
            ConfigEntry(
                name.replace("_", "."),
                value,
                incremental_operation=AlterConfigOpType.SET
                if value is not None
                else AlterConfigOpType.DELETE,
            )
            for name, value in values.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        admin = librdkafka_tools.admin(cluster.bootstrap_servers)
        admin.incremental_alter_configs([resource])[resource].result(120)

    def await_configs(self, cluster: LocalCluster, topic: str, **wanted: str) -> None:
        """Wait until a topic has these configurations (`_` for `.`)."""

        def found() -> dict[str, str]:
            configs = librdkafka_tools.configs(cluster.bootstrap_servers, topic)
            return {name: configs[name.replace("_", ".")] for name in wanted}

        what = f"configurations of {topic}"
        until(found, SECONDS, what, good=lambda one: one == wanted, pause=PAUSE)

    def await_topic(self, cluster: LocalCluster, topic: str) -> None:
        """Wait until a topic exists."""
        until(lambda: topic in self.topics(cluster), SECONDS, f"the topic {topic}", pause=PAUSE)

    def topics(self, cluster: LocalCluster) -> set[str]:
        """The names of all topics."""
        return set(
            librdkafka_tools.admin(cluster.bootstrap_servers).list_topics(timeout=120).topics
        )

    def row(self, flow: str, topic: str) -> dict[str, Any]:
        """What `kafka-mirrors --describe` shows of a topic's first partition; empty: nothing."""
        servers = self.backup.bootstrap_servers
        shown = commands.run(
            *(commands.KAFKA_MIRRORS, "--bootstrap-server", servers),
            *("--describe", "--json", "--mirror", flow),
        )
        if "UNKNOWN_MIRROR" in shown.errors:
            return {}  # the flows are being created
        assert shown.status == 0, shown.errors
        rows: list[dict[str, Any]] = json.loads(shown.output)
        found = [row for row in rows if (row["topic"], row["partition"]) == (topic, 0)]
        return found[0] if found else {}

    def await_state(self, flow: str, topic: str, state: str) -> dict[str, Any]:
        """Wait until a topic's first partition has this state; return its row."""
        return until(
            lambda: self.row(flow, topic),
            SECONDS,
            f"{topic} {state}",
            good=lambda row: row.get("state") == state,
            pause=4 * PAUSE,  # a process each
        )


Case = Callable[[Two], Iterator[None]]


@dataclass(slots=True)
class Outcomes:
    """What became of each case of a condition."""

    errors: dict[str, BaseException] = field(default_factory=dict)
    """By the case's name."""


def run_course(condition: str, cases: Sequence[Case], folder: Path) -> Outcomes:
    """Run all cases under a condition."""
    outcomes = Outcomes()
    with ExitStack() as stack:
        listeners, config = {}, dict(BROKER)
        if condition == "tls":
            make_authority(folder, "ca")
            store = make_store(folder, "broker")
            listeners = {"TLS": "SSL"}
            config |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(store)}
        primary, backup = (
            stack.enter_context(
                LocalCluster.start(
                    heap="320m",
                    directory=folder / name,
                    config=config,
                    listeners=listeners,
                    jvm_flags=SHORT_LIVED,
                )
            )
            for name in ("primary", "backup")
        )
        maker = MirrorMakerProcess(
            folder, properties(condition, primary, backup, folder), "--lanes", "1"
        )
        maker.check()
        stack.callback(maker.clean_up)
        two = Two(condition=condition, primary=primary, backup=backup, log=maker.text)
        running = {case.__name__: case(two) for case in cases}
        with ThreadPoolExecutor(WORKERS) as pool:
            for phase in range(4):
                if phase in {1, 3}:
                    maker.start()
                began = time.monotonic()
                _step(pool, running, outcomes, phase, maker)
                took = time.monotonic() - began
                sys.stdout.write(f"{condition}: phase {phase} took {took:.1f} s\n")
                if phase == 1 and condition in KILLED:
                    maker.kill()
                elif phase in {1, 3}:
                    maker.end()
    return outcomes


def _step(
    pool: ThreadPoolExecutor,
    running: dict[str, Iterator[None]],
    outcomes: Outcomes,
    phase: int,
    maker: MirrorMakerProcess,
) -> None:
    """Run one phase of all cases; a case that fails is left out of later ones."""
    futures = {name: pool.submit(next, case, "ended") for name, case in running.items()}
    for name, future in futures.items():
        error = future.exception()
        if error is None and (future.result() == "ended") != (phase == 3):
            error = AssertionError(f"{name} has another number of phases")
        if error is not None:
            if phase in {1, 3}:
                error.add_note(f"phase {phase}; the end of the log:\n{maker.log()}")
            outcomes.errors[name] = error
            del running[name]


def properties(condition: str, primary: LocalCluster, backup: LocalCluster, folder: Path) -> str:
    """The file for `twinlog mirror-maker`."""
    lines = [FILE.format(back="back-.*, both-.*" if condition != "identity" else "back-.*")]
    if condition == "identity":
        lines.append(f"replication.policy.class = {IDENTITY}")
    if condition == "exactly-once":
        lines.append("transaction.producer = true")
    for alias in ("primary", "backup", "off", "late"):
        cluster = backup if alias == "backup" else primary
        if condition == "tls":
            lines += [
                f"{alias}.bootstrap.servers = {cluster.listener('TLS')}",
                f"{alias}.security.protocol = SSL",
                f"{alias}.ssl.truststore.type = PEM",
                f"{alias}.ssl.truststore.location = {folder / 'ca.pem'}",
            ]
        else:
            lines.append(f"{alias}.bootstrap.servers = {cluster.bootstrap_servers}")
    return "\n".join(lines) + "\n"
