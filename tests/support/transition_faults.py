"""Kills and races while partitions are in transition from one state to another.

A test commands each transition and kills a component at a moment that the seed chooses. The
transition has to complete nevertheless, while the load's other topics go on. A topic that is to be
removed is a separate one, written to all the time; after its removal its users write to it.
"""

import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

import librdkafka_tools
from chaos_harness import Ordeal
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from waiting import until

from twinlog.local.check import ConsumerView
from twinlog.local.load import TOPICS
from twinlog.local.stage import MIRROR, Stage

PARTITIONS: Final = 4
MOMENT_SECONDS: Final = 1.5
"""A transition on a live node takes about a second, most of which is its command's start."""
ARRIVE_SECONDS: Final = 300.0
WRITE_PAUSE_SECONDS: Final = 0.02
OTHER: Final = "other"
"""The name of a second mirror, for which commands race."""

Strike = Callable[[], None]


def strike_node(mirror: Ordeal, node: str, *arguments: str) -> Strike:
    """Kill a node (SIGKILL), and restart it at once."""

    def strike() -> None:
        mirror.stage.nodes[node].kill()
        mirror.stage.start_node(node, *arguments)

    return strike


@contextmanager
def written(servers: str, topic: str) -> Iterator[None]:
    """Write to every partition of a topic while the block runs."""
    stop = threading.Event()
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 5})

    def write() -> None:
        number = 0
        while not stop.is_set():
            for partition in range(PARTITIONS):
                producer.produce(topic, key="k", value=f"{number}", partition=partition)
            number += 1
            producer.poll(0)
            stop.wait(WRITE_PAUSE_SECONDS)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        producer.flush(librdkafka_tools.SECONDS)


def _strike_during(mirror: Ordeal, strike: Strike, *command: str) -> float:
    """Run a command, and strike at about the time of its execution; return when that was."""
    wait = mirror.random.uniform(0.0, MOMENT_SECONDS)
    with ThreadPoolExecutor(1) as commands:
        given = commands.submit(mirror.stage.mirrors, *command, "--mirror", MIRROR)
        time.sleep(wait)  # the moment is tested
        since = time.monotonic()
        strike()
        done = given.result()
    assert done.status == 0, done.errors
    return since


def _await_states(stage: Stage, topic: str, state: str) -> dict[int, dict[str, Any]]:
    def there() -> dict[int, dict[str, Any]]:
        rows = librdkafka_tools.described(stage, topic)
        return rows if rows and all(row["state"] == state for row in rows.values()) else {}

    return until(there, ARRIVE_SECONDS, f"{topic} {state}")


def _make(mirror: Ordeal, name: str) -> str:
    """Create a separate topic at the source."""
    topic = f"{name}-{mirror.random.getrandbits(32):08x}"
    librdkafka_tools.make_topic(mirror.stage.source.bootstrap_servers, topic, PARTITIONS)
    return topic


def prepare(mirror: Ordeal, strike: Strike) -> None:
    """Add a topic with a history, so that it is PREPARING when the strike hits."""
    topic = _make(mirror, "prepared")
    servers = mirror.stage.source.bootstrap_servers
    librdkafka_tools.write(
        servers, topic, [one for p in range(PARTITIONS) for one in librdkafka_tools.simple(500, p)]
    )
    with written(servers, topic):
        since = _strike_during(mirror, strike, "--add", "--topic", topic)
        _await_states(mirror.stage, topic, "MIRRORING")
        mirror.await_resumed(since)
    mirror.compared.add(topic)


def pause(mirror: Ordeal, strike: Strike) -> None:
    """Pause one of the load's topics; then nothing of it arrives until it is resumed."""
    topic = mirror.random.choice(sorted(TOPICS))
    mirror.resting = {topic}
    since = _strike_during(mirror, strike, "--pause", "--topic", topic)
    _await_states(mirror.stage, topic, "PAUSED")
    mirror.await_resumed(since)
    # A dead owner's requests may arrive for a lease; the owner that resumed the rest waited it.
    before = _ends(mirror.stage, topic)
    mirror.await_all()
    assert _ends(mirror.stage, topic) == before
    _command(mirror, "--resume", "--topic", topic)
    mirror.resting = set()
    mirror.await_all()


def resume(mirror: Ordeal, strike: Strike) -> None:
    """Resume one of the load's topics; it continues exactly where it was."""
    topic = mirror.random.choice(sorted(TOPICS))
    mirror.resting = {topic}
    _command(mirror, "--pause", "--topic", topic)
    _await_states(mirror.stage, topic, "PAUSED")
    mirror.resting = set()
    since = _strike_during(mirror, strike, "--resume", "--topic", topic)
    _await_states(mirror.stage, topic, "MIRRORING")
    mirror.await_resumed(since)


def remove(mirror: Ordeal, strike: Strike) -> None:
    """Remove a topic that is being written to; from then on its users write to it."""
    topic = _make(mirror, "removed")
    with written(mirror.stage.source.bootstrap_servers, topic):
        _command(mirror, "--add", "--topic", topic)
        _await_states(mirror.stage, topic, "MIRRORING")
        until(
            lambda: min(_ends(mirror.stage, topic).values()) > 20,
            ARRIVE_SECONDS,
            "records of each partition",
        )
        since = _strike_during(mirror, strike, "--remove", "--topic", topic)
        rows = _await_states(mirror.stage, topic, "STOPPED")
        mirror.await_resumed(since)
    check_removed(mirror.stage, topic, rows)


def remove_without_source(mirror: Ordeal) -> None:
    """Kill the source, remove its topic, and restart the source."""
    topic = _make(mirror, "left")
    stage = mirror.stage
    (broker,) = stage.source.brokers
    with written(stage.source.bootstrap_servers, topic):
        _command(mirror, "--add", "--topic", topic)
        _await_states(stage, topic, "MIRRORING")
        until(
            lambda: min(_ends(stage, topic).values()) > 20,
            ARRIVE_SECONDS,
            "records of each partition",
        )
        mirror.await_moment()
        since = time.monotonic()
        stage.source.kill(broker.node_id)
        _command(mirror, "--remove", "--topic", topic)
        rows = _await_states(stage, topic, "STOPPED")
        mirror.recoveries.append(time.monotonic() - since)
        stage.source.start_broker(broker.node_id)
        mirror.await_all()
    check_removed(stage, topic, rows)


def _command(mirror: Ordeal, *command: str) -> None:
    done = mirror.stage.mirrors(*command, "--mirror", MIRROR)
    assert done.status == 0, done.errors


def _ends(stage: Stage, topic: str) -> dict[tuple[str, int], int]:
    log = ConsumerView(stage.destination.bootstrap_servers)
    return log.ends(log.partitions([topic]))


def check_removed(stage: Stage, topic: str, rows: Mapping[int, Mapping[str, Any]]) -> None:
    """Check that partitions equal the source up to the mirrored end, then have user records."""
    servers = stage.destination.bootstrap_servers
    stopped = _ends(stage, topic)
    librdkafka_tools.write(
        servers, topic, [one for p in rows for one in librdkafka_tools.simple(5, p, "user")]
    )
    for partition, row in rows.items():
        end = row["last_mirrored_end"]
        destination_records = _records(servers, topic, partition)
        source_records = _records(stage.source.bootstrap_servers, topic, partition)
        mirrored = [record for record in destination_records if record[0] < end]
        assert mirrored == [record for record in source_records if record[0] < end], (
            topic,
            partition,
            end,
        )
        assert [record[2] for record in destination_records if record[0] >= end] == [
            b"user%d" % at for at in range(5)
        ]
        assert _ends(stage, topic)[topic, partition] == stopped[topic, partition] + 5


def _records(servers: str, topic: str, partition: int) -> list[tuple[Any, ...]]:
    """Return what a read_committed reader sees of a partition."""
    client = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "passages",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    found: list[tuple[Any, ...]] = []
    try:
        client.assign([TopicPartition(topic, partition, 0)])

        def read_on() -> bool:
            for one in client.consume(1000, 1.0):
                if (error := one.error()) is not None:
                    if error.code() != KafkaError._PARTITION_EOF:
                        raise KafkaException(error)
                    return True
                found.append((one.offset(), one.key(), one.value(), one.headers(), one.timestamp()))
            return False

        until(read_on, librdkafka_tools.SECONDS, f"the end of {topic}-{partition}")
    finally:
        client.close()
    return found


# ---- races ------------------------------------------------------------------------------------

ANSWERS: Final[Mapping[str, frozenset[str]]] = {
    "--add": frozenset(
        {
            "UNKNOWN_MIRROR",
            "TOPIC_ALREADY_IN_MIRROR",
            "MIRROR_TOPIC_BEING_REMOVED",
            "TOPIC_ALREADY_EXISTS",
            "MIRROR_TOPIC_DIVERGED",
        }
    ),
    "--pause": frozenset(
        {"TOPIC_NOT_IN_MIRROR", "MIRROR_TOPIC_ALREADY_PAUSED", "MIRROR_TOPIC_BEING_REMOVED"}
    ),
    "--resume": frozenset(
        {"TOPIC_NOT_IN_MIRROR", "MIRROR_TOPIC_NOT_PAUSED", "MIRROR_TOPIC_BEING_REMOVED"}
    ),
    "--remove": frozenset({"TOPIC_NOT_IN_MIRROR", "MIRROR_TOPIC_BEING_REMOVED"}),
    "--alter": frozenset(),
    "--create": frozenset({"MIRROR_ALREADY_EXISTS"}),
    "--delete": frozenset({"UNKNOWN_MIRROR", "MIRROR_NOT_EMPTY"}),
}
"""The documented refusals of each command. `--create` and `--delete` are for the other mirror,
which half of the additions are to."""
RACERS: Final = 4
COMMANDS: Final = 20


def race(mirror: Ordeal) -> None:
    """Run several commands about the same topics at a time; every outcome is a documented one."""
    stage = mirror.stage
    topics = [_make(mirror, "raced") for _ in range(2)]
    properties = stage.directory / f"{MIRROR}.properties"
    commands = [_drawn(mirror.random, topics, str(properties)) for _ in range(COMMANDS)]
    since = time.monotonic()
    with (
        written(stage.source.bootstrap_servers, topics[0]),
        written(stage.source.bootstrap_servers, topics[1]),
        ThreadPoolExecutor(RACERS) as racers,
    ):
        for command, done in zip(
            commands, racers.map(lambda one: stage.mirrors(*one), commands), strict=True
        ):
            if done.status:
                name = re.match(r"Error: ([A-Z_]+): ", done.errors)
                assert name, (command, done.errors)
                assert name[1] in ANSWERS[command[0]], (command, done.errors)
        mirror.check_ways()
        mirror.await_resumed(since)
        rows = {topic: librdkafka_tools.described(stage, topic) for topic in topics}
        for topic, known in rows.items():
            if any(row["state"] == "PAUSED" for row in known.values()):
                where = {row["mirror"] for row in known.values() if row["state"] == "PAUSED"}
                for one in where:
                    assert stage.mirrors("--resume", "--topic", topic, "--mirror", one).status == 0
    mirror.check_ways()
    for topic in topics:
        known = librdkafka_tools.described(stage, topic)
        if any(row["state"] == "MIRRORING" for row in known.values()):
            mirror.compared.add(topic)
        elif known and all(row["state"] == "STOPPED" for row in known.values()):
            check_removed(stage, topic, known)


def _drawn(rng: random.Random, topics: Sequence[str], properties: str) -> tuple[str, ...]:
    """Draw a command; additions and state changes of a topic are more frequent than the rest."""
    frequent = ("--add", "--add", "--add", "--pause", "--pause", "--resume", "--resume")
    what = rng.choice((*frequent, "--remove", "--alter", "--create", "--delete"))
    if what in {"--create", "--delete"}:
        more = ("--mirror-config", properties) if what == "--create" else ()
        return (what, "--mirror", OTHER, *more)
    if what == "--alter":
        return (what, "--mirror", MIRROR, "--mirror-config", properties)
    where = OTHER if what == "--add" and rng.random() < 0.5 else MIRROR
    return (what, "--mirror", where, "--topic", rng.choice(topics))
