"""`twinlog mirror-maker FILE` with transforms: exactly once, though all is killed (KIP-656)."""

import io
import itertools
import json
import signal
import struct
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import fastavro
import librdkafka_tools
import process_tree
import pytest
from confluent_kafka import Producer, TopicPartition
from mirror_maker_process import RUNNING
from remote_topics import raw_records, text_of
from tiny_registry import TinyRegistry, tiny_registry
from waiting import SECONDS, until

from twinlog.local import commands
from twinlog.local.identity import identity_of
from twinlog.local.stage import Stage

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(1200)]

FIRST = 2_000
COUNT = 30_000
FILE = r"""
clusters = east, west
east.bootstrap.servers = {east}
west.bootstrap.servers = {west}
east->west.enabled = true
east->west.topics = {topics}
replication.factor = 1
heartbeats.topic.replication.factor = 1
refresh.topics.interval.seconds = 1
west->east.emit.heartbeats.enabled = false
"""
TRANSFORMS = r"""
east->west.transforms = drop, mask, rename
east->west.transforms.drop.type = org.apache.kafka.connect.transforms.Filter
east->west.transforms.drop.predicate = test
east->west.transforms.mask.type = org.apache.kafka.connect.transforms.MaskField$Value
east->west.transforms.mask.fields = card
east->west.transforms.rename.type = org.apache.kafka.connect.transforms.RegexRouter
east->west.transforms.rename.regex = east\\.(.*)
east->west.transforms.rename.replacement = masked.$1
east->west.predicates = test
east->west.predicates.test.type = org.apache.kafka.connect.transforms.predicates.HasHeaderKey
east->west.predicates.test.name = test
east->west.value.converter = org.apache.kafka.connect.json.JsonConverter
east->west.value.converter.schemas.enable = false
"""
QUERY = r"""
east->west.twinlog.transform.sql = SELECT record, concat('masked.', substring(topic, 6)) AS topic, \
    struct(value.number, '' AS card) AS value \
    FROM records WHERE NOT exists(headers, h -> h.key = 'test')
east->west.twinlog.transform.value.format = json
east->west.twinlog.transform.value.schema = number BIGINT, card STRING
"""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Start two clusters."""
    with Stage(tmp_path_factory.mktemp("transforms")) as stage:
        stage.start_source()
        stage.start_destination()
        yield stage


class Running:
    """The command, with all of its processes, and a log of its own."""

    _numbers = itertools.count()

    def __init__(self, file: Path, *arguments: str) -> None:
        self.log = file.with_suffix(f".{next(self._numbers)}.log")
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*commands.TWINLOG, "mirror-maker", str(file), "--lanes", "1", *arguments],
                stdout=log,
                stderr=log,
            )

    def kill(self) -> None:
        """End everything by SIGKILL: the command, the node, the JVM, the lanes."""
        found = [identity_of(one.pid) for one in process_tree.below(self.process.pid)]
        self.process.kill()
        self.process.wait(120)
        for one in found:
            if one is not None:
                one.signal(signal.SIGKILL)

    def end(self) -> None:
        """Ask it to end, once it can do so in order."""
        until(lambda: RUNNING in self.log.read_text(), SECONDS, "a command that ends in order")
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(180) == 0


def arrived_bytes(stage: Stage, topic: str) -> list[bytes | None]:
    names = librdkafka_tools.admin(stage.destination.bootstrap_servers).list_topics(timeout=120)
    return [v for _, v in raw_records(stage.destination, topic)] if topic in names.topics else []


def arrived(stage: Stage, topic: str) -> list[str]:
    return [text_of(value) for value in arrived_bytes(stage, topic)]


def log_end(servers: str, topic: str) -> int:
    """The high watermark; a reader would not reach the end of a log that grows."""
    with librdkafka_tools.consumer(servers, "log-end") as consumer:
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=120)
    return int(end)


EXPECTED = [f'{{"number":{number},"card":""}}'.encode() for number in range(COUNT) if number % 10]
"""What the transforms make of the records that `produce` writes."""


def order(number: int) -> bytes:
    """The value of a record, in JSON."""
    return json.dumps({"number": number, "card": f"4111-{number}"}).encode()


def held(numbers: Iterable[int], at: int, gate: threading.Event) -> Iterator[int]:
    """Numbers, with a pause before one of them until the gate is open."""
    for number in numbers:
        if number == at:
            gate.wait()
        yield number


class Endless:
    """Numbers from `end` on, until they are ended; `end` is then the one behind the last."""

    def __init__(self, first: int) -> None:
        self.end, self.ended = first, threading.Event()

    def __iter__(self) -> Iterator[int]:
        while not self.ended.is_set():
            yield self.end
            self.end += 1


def produce(
    servers: str, topic: str, numbers: Iterable[int], value_of: Callable[[int], bytes] = order
) -> None:
    """Write a thousand records a second."""
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 2})
    for number in numbers:
        headers: list[tuple[str, str | bytes | None]] = [("test", b"")] if number % 10 == 0 else []
        producer.produce(topic, value_of(number), partition=0, headers=headers)
        producer.poll(0)
        if number % 30 == 0:
            threading.Event().wait(0.03)
    assert producer.flush(120) == 0


@pytest.mark.parametrize("transforms", [TRANSFORMS, QUERY], ids=["in-the-lane", "by-spark"])
def test_records_are_transformed_once_though_all_is_killed(
    stage: Stage, topic: str, tmp_path: Path, transforms: str
) -> None:
    """Goal: dropped, masked, routed, each once at read_committed, after kill -9 in the middle.

    The source's own group of the flow follows the positions.
    """
    copied_once_though_all_is_killed(
        stage, f"orders-{topic}", tmp_path, transforms, expected=lambda: EXPECTED
    )


def copied_once_though_all_is_killed(
    stage: Stage,
    name: str,
    folder: Path,
    transforms: str,
    *,
    expected: Callable[[], Sequence[bytes]],
    value_of: Callable[[int], bytes] = order,
    count: int = COUNT,
    alias: str = "east",
) -> None:
    """Copy the records of a topic to `masked.NAME`; kill everything in the middle.

    Args:
        stage: the clusters.
        name: the source's topic.
        folder: where the flow's file is written.
        transforms: the properties of the flow's transforms.
        expected: the values in `masked.NAME`; asked when they have arrived.
        value_of: the value of each record.
        count: of the records. One in ten is dropped.
        alias: of the source, instead of `east`.
    """
    kept = count - count // 10
    east, west = stage.source.bootstrap_servers, stage.destination.bootstrap_servers
    file = folder / "mm2.properties"
    report = "twinlog.source.offsets.interval.seconds = 1\n"
    text = FILE.format(east=east, west=west, topics=name) + transforms + report
    file.write_text(text.replace("east", alias))
    librdkafka_tools.make_topic(east, name)
    produce(east, name, range(FIRST), value_of)
    running = Running(file)
    # The end of the load is held back, so that it is not over when all is killed.
    gate, numbers = threading.Event(), range(FIRST, count)
    load = threading.Thread(
        target=produce,
        args=(east, name, held(numbers, count - count // 4, gate), value_of),
        daemon=True,
    )
    try:
        until(lambda: arrived_bytes(stage, f"masked.{name}"), SECONDS, "the first records")
        load.start()
        until(lambda: log_end(west, f"masked.{name}") > 2 * FIRST, SECONDS, "later ones")
        running.kill()
        assert load.is_alive()
        gate.set()
        assert len(arrived_bytes(stage, f"masked.{name}")) < kept
        running = Running(file)
        load.join()
        until(
            lambda: len(arrived_bytes(stage, f"masked.{name}")) >= kept,
            SECONDS,
            f"{kept} records",
        )
        assert arrived_bytes(stage, f"masked.{name}") == expected()
        assert arrived_bytes(stage, f"{alias}.{name}") == []
        group = f"twinlog.flow.{alias}-to-west"
        until(
            lambda: librdkafka_tools.committed(east, group, name) == {0: count},
            SECONDS,
            "the position on the source",
        )
        running.end()
        assert librdkafka_tools.committed(west, group, f"{alias}.{name}") == {0: count}
    finally:
        running.kill()
        gate.set()
        if load.ident is not None:
            load.join()


ORDERS = tuple(
    {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "number", "type": "long"}, {"name": "card", "type": "string"}, *more],
    }
    for more in ([], [{"name": "note", "type": ["null", "string"], "default": None}])
)
"""Two versions of one schema. A third of the records has the first one."""
AVRO = r"""
east->west.twinlog.transform.sql = SELECT record, {columns} \
    concat('masked.', substring(topic, 6)) AS topic FROM records WHERE value.number % 10 <> 0
east->west.twinlog.transform.value.format = avro
east->west.twinlog.transform.value.subject = orders-value
east->west.twinlog.transform.registry.url = {source}
east->west.twinlog.transform.registry.basic.auth.user.info = ${{secrets:{secrets}:source}}
config.providers = secrets
config.providers.secrets.class = org.apache.kafka.common.config.provider.FileConfigProvider
"""
TARGET = r"""
east->west.twinlog.transform.target.registry.url = {target}
east->west.twinlog.transform.target.registry.basic.auth.user.info = ${{secrets:{secrets}:target}}
"""
AVRO_COUNT = 20_000
ALIASES = {"kept": "keep", "mapped": "maps", "written": "anew"}
"""Each of the length of `east`, which the query cuts off."""
PASSWORDS = {"source": "geheim-east", "target": "geheim-west"}
MASKED = "struct(value.number, '' AS card, value.note) AS value,"


def wire(schema_id: int, version: int, number: int, card: str, note: str | None) -> bytes:
    """A value in a registry's wire format."""
    stream = io.BytesIO(struct.pack(">bI", 0, schema_id))
    stream.seek(5)
    fields: dict[str, Any] = {"number": number, "card": card}
    if version:
        fields["note"] = note
    fastavro.schemaless_writer(stream, fastavro.parse_schema(ORDERS[version]), fields)
    return stream.getvalue()


def version_of(number: int) -> int:
    return 0 if number % 3 == 0 else 1


@pytest.mark.long
@pytest.mark.parametrize(
    "how",
    # Each takes a minute or more; one of them runs for each change.
    ["mapped", *(pytest.param(how, marks=pytest.mark.long) for how in ("kept", "written"))],
)
def test_avro_records_are_transformed_once_though_all_is_killed(
    stage: Stage, topic: str, tmp_path: Path, how: str
) -> None:
    """Goal: the same bytes with the same ids, with those of another registry, or written anew.

    Both registries demand a password, which no listing and no log shows.
    """
    name, secrets = f"{how}-{topic}", tmp_path / "registries.properties"
    secrets.write_text("".join(f"{side}=twinlog:{word}\n" for side, word in PASSWORDS.items()))
    numbers = [number for number in range(AVRO_COUNT) if number % 10]
    with tiny_registry(7) as source, tiny_registry(100) as target:
        ids = [source.add("orders-value", schema) for schema in ORDERS]
        target.add("other-value", {"type": "string"})
        for side, registry in (("source", source), ("target", target)):
            registry.user_info = f"twinlog:{PASSWORDS[side]}"

        def value_of(number: int) -> bytes:
            version = version_of(number)
            return wire(ids[version], version, number, f"4111-{number}", f"n{number}")

        def mapped() -> list[bytes]:
            versions = [id_in(target, f"masked.{name}-value", schema) for schema in ORDERS]
            return [
                struct.pack(">bI", 0, versions[version_of(number)]) + value_of(number)[5:]
                for number in numbers
            ]

        def masked() -> list[bytes]:
            notes = [f"n{number}" if version_of(number) else None for number in numbers]
            return [
                wire(gold, 1, number, "", note) for number, note in zip(numbers, notes, strict=True)
            ]

        columns = MASKED if how == "written" else ""
        flow = AVRO.format(columns=columns, source=source.url, secrets=secrets)
        if how != "kept":
            flow += TARGET.format(target=target.url, secrets=secrets)
        gold = target.add(f"masked.{name}-value", ORDERS[1]) if how == "written" else 0
        expected = {
            "kept": lambda: [value_of(number) for number in numbers],
            "mapped": mapped,
            "written": masked,
        }
        copied_once_though_all_is_killed(
            stage,
            name,
            tmp_path,
            flow,
            expected=expected[how],
            value_of=value_of,
            count=AVRO_COUNT,
            alias=ALIASES[how],
        )
        if how == "kept":
            assert target.requests == []
    logs = [*tmp_path.glob("mm2.*.log")]
    servers = stage.destination.bootstrap_servers
    for arguments in (("flows", "describe"), ("flows", "describe", "--json")):
        described = commands.run(commands.TWINLOG, *arguments, "--bootstrap-server", servers)
        assert f"${{file:{secrets}:source}}" in described.output
        assert "geheim" not in described.output + described.errors
    assert logs
    assert not any("geheim" in log.read_text() for log in logs)


def id_in(registry: TinyRegistry, subject: str, schema: object) -> int:
    """The id of a schema, which is one of a subject's versions."""
    [number] = [
        each for each in registry.subjects[subject] if registry.schemas[each] == json.dumps(schema)
    ]
    return number


@pytest.mark.long
def test_transactions_without_transforms_copy_records_as_they_are(
    stage: Stage, topic: str, tmp_path: Path
) -> None:
    """Goal: `transaction.producer` (KIP-656)."""
    east, west = stage.source.bootstrap_servers, stage.destination.bootstrap_servers
    name, file = f"plain-{topic}", tmp_path / "mm2.properties"
    text = FILE.format(east=east, west=west, topics=name).replace("east", "third")
    file.write_text(text + "transaction.producer = true\n")
    librdkafka_tools.make_topic(east, name)
    librdkafka_tools.write(east, name, librdkafka_tools.simple(500), compression_type="zstd")
    running = Running(file)
    try:
        until(lambda: len(arrived(stage, f"third.{name}")) >= 500, SECONDS, "500 records")
        assert arrived(stage, f"third.{name}") == [f"v{at}" for at in range(500)]
        running.end()
    finally:
        running.kill()


@pytest.mark.long
def test_instances_change_to_a_sink_one_by_one(stage: Stage, topic: str, tmp_path: Path) -> None:
    """Goal: KIP-656's migration: some with the old and some with the new file, all killed once.

    The flow is that of the file that was started last, for all of them. Transactions are another
    kind of flow: they are refused, and the others go on.
    """
    east, west = stage.source.bootstrap_servers, stage.destination.bootstrap_servers
    name, old, new, last = f"step-{topic}", *(tmp_path / f"{n}.properties" for n in "onl")
    text = FILE.format(east=east, west=west, topics=name).replace("east", "fourth")
    old.write_text(text)
    new.write_text(f"{text}connector.type = sink\ntwinlog.source.offsets.interval.seconds = 1\n")
    last.write_text(f"{text}connector.type = sink\ntransaction.producer = true\n")
    librdkafka_tools.make_topic(east, name)
    produce(east, name, range(FIRST))
    remote, group = f"fourth.{name}", "twinlog.flow.fourth-to-west"
    running = [Running(old, "--node", f"step-{at}") for at in (0, 1)]
    numbers = Endless(FIRST)
    load = threading.Thread(target=produce, args=(east, name, numbers), daemon=True)
    try:
        until(lambda: arrived(stage, remote), SECONDS, "the first records")
        load.start()
        assert librdkafka_tools.committed(east, group, name) == {}
        for at in (0, 1):
            running[at].kill()
            running[at] = Running(new, "--node", f"step-{at}")
            before = log_end(west, remote)
            until(lambda before=before: log_end(west, remote) > before, SECONDS, "more records")
        until(lambda: librdkafka_tools.committed(east, group, name), SECONDS, "the source's group")
        refused = commands.run(commands.TWINLOG, "mirror-maker", str(last), seconds=300)
        assert refused.status == 1, refused
        assert "flow fourth-to-west exists without transforms and transaction.producer" in (
            refused.errors
        )
        numbers.ended.set()
        load.join()
        count = numbers.end
        until(lambda: log_end(west, remote) >= count, SECONDS, f"{count} records")
        until(lambda: len(arrived(stage, remote)) >= count, SECONDS, f"{count} records")
        values = [json.loads(value)["number"] for value in arrived(stage, remote)]
        assert values == list(range(count))
        until(
            lambda: librdkafka_tools.committed(east, group, name) == {0: count},
            SECONDS,
            "the position on the source",
        )
        for one in running:
            one.end()
    finally:
        for one in running:
            one.kill()
        numbers.ended.set()
        if load.ident is not None:
            load.join()


@pytest.mark.long
def test_a_flow_changes_to_transactions_and_back(stage: Stage, topic: str, tmp_path: Path) -> None:
    """Goal: by the positions that are handed back and taken over, each record once, under load."""
    east, west = stage.source.bootstrap_servers, stage.destination.bootstrap_servers
    name, plain, transactional = f"kind-{topic}", tmp_path / "plain", tmp_path / "transactional"
    text = FILE.format(east=east, west=west, topics=name).replace("east", "fifth")
    plain.write_text(text)
    transactional.write_text(f"{text}transaction.producer = true\n")
    librdkafka_tools.make_topic(east, name)
    produce(east, name, range(FIRST))
    remote, flow = f"fifth.{name}", ("--mirror", "fifth-to-west")
    running = Running(plain)
    numbers = Endless(FIRST)
    load = threading.Thread(target=produce, args=(east, name, numbers), daemon=True)
    try:
        load.start()
        for old, new in ((plain, transactional), (transactional, plain)):
            before = _end(stage, remote)
            until(
                lambda before=before: _end(stage, remote) > before + FIRST, SECONDS, "more records"
            )
            removed = stage.mirrors("--remove", "--topic", ".*", *flow, "--wait-seconds", "180")
            assert removed.status == 0, removed
            running.end()
            done = commands.run(
                commands.TWINLOG, "mirror-maker", str(old), "--hand-back", seconds=300
            )
            assert done.status == 0, done
            assert "MirrorMaker 2 goes on at offset" in done.errors
            deleted = stage.mirrors("--delete", *flow)
            assert deleted.status == 0, deleted
            running = Running(new, "--takeover")
        numbers.ended.set()
        load.join()
        count = numbers.end
        until(lambda: _end(stage, remote) >= count, SECONDS, f"{count} records")
        until(lambda: len(arrived(stage, remote)) >= count, SECONDS, f"{count} records")
        values = [json.loads(value)["number"] for value in arrived(stage, remote)]
        assert values == list(range(count))
        running.end()
    finally:
        running.kill()
        numbers.ended.set()
        if load.ident is not None:
            load.join()


def _end(stage: Stage, topic: str) -> int:
    """The log end; 0 while there is no such topic."""
    servers = stage.destination.bootstrap_servers
    names = librdkafka_tools.admin(servers).list_topics(timeout=120)
    return log_end(servers, topic) if topic in names.topics else 0
