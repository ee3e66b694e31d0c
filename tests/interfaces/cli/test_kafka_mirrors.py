"""`kafka-mirrors` as a user types it: the console script, real brokers, all kinds of bad input."""

import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from clients import client, make_topic, put, topic_configs
from waiting import until

from conftest import Pair
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.lifecycle import creation, destination_topics
from twinlog.local.cluster import LocalCluster
from twinlog.mirror.errors import MirrorError, MirrorRefused
from twinlog.mirror.placement import MirrorPartition, state_partition
from twinlog.mirror.states import State
from twinlog.store.config_records import Feature, Mirror, encode
from twinlog.store.control_topics import CONFIG_TOPIC, config_entry, state_entry, status_entry
from twinlog.store.mirrors import MirrorStore
from twinlog.store.state_records import PartitionState
from twinlog.store.status_records import PartitionStatus, Status
from twinlog.store.topic_reader import ControlRecord, read_whole
from twinlog.store.topic_writer import ALL, Entry, TransactionalWriter, append

pytestmark = pytest.mark.broker

SCRIPT = Path(sys.executable).parent / "kafka-mirrors"
TWINLOG = Path(sys.executable).parent / "twinlog"


@dataclass(frozen=True, slots=True)
class Ran:
    """The result of a command."""

    status: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """Return the error, which is one line."""
        (line,) = (line for line in self.err.splitlines() if line.startswith("Error: "))
        return line.removeprefix("Error: ")


def run(*arguments: object, script: tuple[object, ...] = (SCRIPT,)) -> Ran:
    done = subprocess.run(
        [str(argument) for argument in (*script, *arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return Ran(done.returncode, done.stdout, done.stderr)


class Commands:
    """Commands on a pair of clusters."""

    def __init__(self, pair: Pair, folder: Path) -> None:
        self.pair = pair
        self.server = ("--bootstrap-server", pair.destination.bootstrap_servers)
        self.folder = folder

    def properties(self, **more: str) -> Path:
        """Write a file for --mirror-config: the source's address, and settings with _ for a dot."""
        path = self.folder / "mirror.properties"
        settings = {"bootstrap.servers": self.pair.source.bootstrap_servers}
        settings |= {name.replace("_", "."): value for name, value in more.items()}
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return path

    def create(self, name: str, **more: str) -> Ran:
        config = self.properties(**more)
        return run(*self.server, "--create", "--mirror", name, "--mirror-config", config)

    def add(self, name: str, topic: str, *more: object) -> Ran:
        return run(*self.server, "--add", "--mirror", name, "--topic", topic, *more)

    def json(self, *arguments: object) -> Any:
        ran = run(*self.server, *arguments, "--json")
        assert ran.status == 0, ran.err
        return json.loads(ran.out)


@pytest.fixture
def commands(pair: Pair, tmp_path: Path) -> Commands:
    return Commands(pair, tmp_path)


def on(cluster: LocalCluster, action: Callable[[KafkaCluster], Awaitable[Any]]) -> Any:
    """Do something with twinlog's own client."""

    async def act() -> Any:
        async with client(cluster) as started:
            return await action(started)

    return asyncio.run(act())


def create_topic(
    cluster: LocalCluster, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None
) -> None:
    on(cluster, lambda c: make_topic(c, name, partitions, configs=configs))


def all_topics(cluster: LocalCluster) -> set[str]:
    async def names(c: KafkaCluster) -> set[str]:
        return set((await c.refresh(None)).topics)

    found: set[str] = on(cluster, names)
    return found


def configs_of(cluster: LocalCluster, topic: str) -> dict[str, str | None]:
    async def read(c: KafkaCluster) -> dict[str, str | None]:
        entries = await topic_configs(c, topic)
        return {name: entry.value for name, entry in entries.items()}

    found: dict[str, str | None] = on(cluster, read)
    return found


# The main job


def test_create_add_list_and_describe_print_the_words_of_the_kip(
    commands: Commands, fresh_name: Callable[[str], str]
) -> None:
    """The KIP's four commands run one after the other, with the KIP's words."""
    name, topic = fresh_name("m"), fresh_name("t")
    create_topic(commands.pair.source, topic, 3, {"cleanup.policy": "compact"})

    created = commands.create(name)
    assert (created.status, created.out, created.err) == (0, f"Created mirror {name}\n", "")

    added = commands.add(name, topic)
    assert (added.status, added.err) == (0, "")
    assert added.out == f"Added 1 topic(s) to mirror {name}: [{topic}]\n"
    assert configs_of(commands.pair.destination, topic)["cleanup.policy"] == "compact"

    listed = run(*commands.server, "--list")
    assert (listed.status, listed.err) == (0, "")
    lines = [line.split() for line in listed.out.splitlines()]
    assert lines[0] == ["MIRROR", "TOPICS", "CLUSTER-ID", "BOOTSTRAP-SERVER"]
    source = on(commands.pair.source, _cluster_id)
    assert [name, "1", source, commands.pair.source.bootstrap_servers] in lines

    expected = [[name, topic, str(i), "-1", "0", "-1", "UNKNOWN"] for i in range(3)]
    shown = until(
        lambda: run(*commands.server, "--describe", "--mirror", name),
        what=f"{expected}",
        good=lambda ran: [line.split() for line in ran.out.splitlines()[1:]] == expected,
    )
    assert shown.status == 0
    header, *_ = [line.split() for line in shown.out.splitlines()]
    assert header == [
        "MIRROR",
        "TOPIC",
        "PARTITION",
        "SOURCE-OFFSET",
        "DESTINATION-OFFSET",
        "LAG",
        "STATE",
    ]
    assert "check that a node is running" in shown.err


async def _cluster_id(cluster: KafkaCluster) -> str:
    return cluster.cluster_id


def test_twinlog_mirrors_is_the_same_command(commands: Commands) -> None:
    ran = run(*commands.server, "--list", script=(TWINLOG, "mirrors"))
    assert ran.status == 0
    assert ran.out.startswith("MIRROR")


def test_describe_shows_states_offsets_and_reasons(
    commands: Commands, fresh_name: Callable[[str], str]
) -> None:
    """Records are written as by a lane. Notes for a user go to standard error.

    They are why a partition is FAILED, missing statuses, and an unreachable source.
    """
    name, topic = fresh_name("m"), fresh_name("t")
    create_topic(commands.pair.source, topic, 2)
    assert commands.create(name).status == 0
    assert commands.add(name, topic).status == 0

    async def as_a_lane(cluster: KafkaCluster, time_ms: int) -> None:
        (owned,) = [
            topic
            for topic in (await MirrorStore(cluster).snapshot()).topics
            if topic.mirror == name
        ]
        writer = TransactionalWriter(cluster, name)
        await writer.fence()
        for index, state in ((0, State.MIRRORING), (1, State.FAILED)):
            partition = MirrorPartition(name, topic, index)
            place = state_partition(name, owned.topic_id, index, 50)
            reason = "the logs differ" if state is State.FAILED else None
            row = PartitionStatus(
                partition=partition,
                state=state,
                source_end=94,
                destination_end=84,
                lag_ms=7,
                source_time_ms=1,
            )
            status = Status(
                state_partition=place, lane="l", node="n", time_ms=time_ms, partitions=(row,)
            )
            await writer.write([state_entry(PartitionState(partition, state, reason), place)])
            await put(cluster, [status_entry(status)])

    on(commands.pair.destination, partial(as_a_lane, time_ms=16_000))
    shown = run(*commands.server, "--describe", "--mirror", name)
    assert re.search(rf"{topic}-0: no lane has reported it for \d+ s", shown.err)
    rows = [line.split() for line in shown.out.splitlines()[1:]]
    assert rows[0] == [name, topic, "0", "94", "84", "-1", "UNKNOWN"], "a status of long ago"

    def shown_fresh(*more: str) -> Ran:
        """Describe statuses of just now, which are old on a machine that stands still meanwhile."""
        on(commands.pair.destination, partial(as_a_lane, time_ms=time.time_ns() // 1_000_000))
        return run(*commands.server, "--describe", "--mirror", name, *more)

    expected = [
        [name, topic, "0", "94", "84", "10", "MIRRORING"],
        [name, topic, "1", "94", "84", "10", "FAILED"],
    ]
    shown = until(
        shown_fresh,
        what=f"{expected}",
        good=lambda ran: [line.split() for line in ran.out.splitlines()[1:]] == expected,
    )
    assert f"{name}/{topic}-1 is FAILED: the logs differ" in shown.err
    assert re.search(rf"{name}: the source has not responded for \d+ s for 1 partition", shown.err)
    values = [(10, 7, None, "l"), (10, 7, "the logs differ", "l")]
    until(
        lambda: json.loads(shown_fresh("--json").out),
        what=f"{values}",
        good=lambda rows: [(r["lag"], r["lag_ms"], r["reason"], r["lane"]) for r in rows] == values,
    )


def test_every_command_has_json_output(
    commands: Commands, fresh_name: Callable[[str], str]
) -> None:
    name, topic = fresh_name("m"), fresh_name("t")
    create_topic(commands.pair.source, topic)
    config = commands.properties(ssl_key_password="secret")
    created = commands.json("--create", "--mirror", name, "--mirror-config", config)
    assert created["created"] == name
    assert commands.json("--add", "--mirror", name, "--topic", topic) == {
        "mirror": name,
        "added": [topic],
    }
    (listed,) = [one for one in commands.json("--list") if one["mirror"] == name]
    assert (listed["topics"], listed["cluster_id"]) == (1, created["cluster_id"])
    assert listed["config"] == {
        "bootstrap.servers": commands.pair.source.bootstrap_servers,
        "ssl.key.password": "[hidden]",
    }
    (row,) = commands.json("--describe", "--mirror", name)
    assert (row["state"], row["source_offset"], row["wanted"]) == ("UNKNOWN", -1, "MIRRORING")


def test_regular_expressions_match_in_full(
    commands: Commands, fresh_name: Callable[[str], str]
) -> None:
    """Internal topics are left out, unless named."""
    name, stem = fresh_name("m"), fresh_name("t")
    topics = [f"{stem}-a", f"{stem}-b", f"{stem}-b-not", f"__{stem}-a"]
    for topic in topics:
        create_topic(commands.pair.source, topic)
    assert commands.create(name).status == 0
    added = commands.add(name, f".*{stem}-.")
    assert added.out == f"Added 2 topic(s) to mirror {name}: [{stem}-a, {stem}-b]\n"
    assert commands.add(name, topics[3]).status == 0


def test_a_topic_name_takes_precedence_over_an_expression(
    commands: Commands, fresh_name: Callable[[str], str]
) -> None:
    """A dot in a topic's name must not add similarly named topics."""
    name, stem = fresh_name("m"), fresh_name("t")
    create_topic(commands.pair.source, f"{stem}.x")
    create_topic(commands.pair.source, f"{stem}-x")
    assert commands.create(name).status == 0
    assert commands.add(name, f"{stem}.x").out.endswith(f"[{stem}.x]\n")


def test_a_created_topic_has_the_source_configs_and_required_settings(
    commands: Commands, fresh_name: Callable[[str], str]
) -> None:
    """They are the source's own, without the excluded, and those that identical offsets need."""
    name, topic = fresh_name("m"), fresh_name("t")
    explicit = {
        "retention.ms": "123456789",
        "segment.ms": "7200000",
        "min.insync.replicas": "1",
        "message.timestamp.type": "LogAppendTime",
        "compression.type": "gzip",
        "max.message.bytes": "2000",
    }
    create_topic(commands.pair.source, topic, 2, explicit)
    assert commands.create(name, mirror_topic_properties_exclude="segment.*").status == 0
    assert commands.add(name, topic).status == 0
    configs = configs_of(commands.pair.destination, topic)
    assert configs["retention.ms"] == "123456789"
    assert configs["segment.ms"] != "7200000"
    assert configs["message.timestamp.type"] == "CreateTime"
    assert configs["message.timestamp.before.max.ms"] == str(2**63 - 1)
    assert configs["message.timestamp.after.max.ms"] == str(2**63 - 1)
    assert configs["compression.type"] == "producer"
    assert configs["max.message.bytes"] == str(64 << 20)


def test_an_empty_destination_topic_of_equal_size_is_accepted(
    commands: Commands, fresh_name: Callable[[str], str]
) -> None:
    """It is configured as a created one would be."""
    name, topic = fresh_name("m"), fresh_name("t")
    for cluster in (commands.pair.source, commands.pair.destination):
        create_topic(cluster, topic, 2)
    assert commands.create(name).status == 0
    assert commands.add(name, topic).status == 0
    configs = configs_of(commands.pair.destination, topic)
    assert configs["max.message.bytes"] == str(64 << 20)


# What is refused, with nothing changed


def assert_refused(ran: Ran, *words: str) -> None:
    """Status 1, one line that has all these words, and nothing on standard output."""
    assert (ran.status, ran.out) == (1, ""), ran
    for word in words:
        assert word in ran.error


@pytest.mark.parametrize(
    "name", ["m.removed", "m.paused", "", "..", "a/b", "a b", "ü", "x" * 250, "a,b"]
)
def test_invalid_mirror_names_are_refused(commands: Commands, name: str) -> None:
    assert_refused(commands.create(name), "INVALID_MIRROR_NAME")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"mirror_group_include": ".*"}, ("mirror.group.include", "mirror.groups.include")),
        ({"mirror_groups_include": "*"}, ("mirror.groups.include", "'*'", "regular expression")),
        ({"mirror_metadata_refresh_interval_ms": "x"}, ("interval.ms", "'x'", "whole number")),
        ({"bootstrap_serves": "h:1"}, ("bootstrap.serves", "expected bootstrap.servers")),
        ({"bootstrap_servers": ""}, ("bootstrap.servers", "HOST:PORT")),
        ({"bootstrap_servers": "localhost"}, ("bootstrap.servers", "'localhost'", "HOST:PORT")),
        ({"security_protocol": "TLS"}, ("security.protocol", "'TLS'", "SASL_SSL")),
        ({"request_timeout_ms": "soon"}, ("request.timeout.ms", "'soon'", "whole number")),
    ],
)
def test_errors_of_invalid_settings_name_file_and_value(
    commands: Commands, fresh_name: Callable[[str], str], settings: dict[str, str], words: list[str]
) -> None:
    """The error names the file, the value and what is allowed, before any request to a cluster."""
    ran = commands.create(fresh_name("m"), **settings)
    assert_refused(ran, *words)
    assert ran.error.startswith(f"{commands.folder / 'mirror.properties'}: ")


def test_an_unreachable_source_is_named_and_no_mirror_is_created(
    commands: Commands, fresh_name: Callable[[str], str]
) -> None:
    """The error is one line with the address and the cause; the mirror is not created."""
    name = fresh_name("m")
    ran = commands.create(name, bootstrap_servers="127.0.0.1:1", default_api_timeout_ms="5000")
    assert_refused(ran, "cluster source", "127.0.0.1:1", "Connection refused", "bootstrap.servers")
    ran = commands.create(name, bootstrap_servers="no.such.host.invalid:9092")
    assert_refused(ran, "cluster source", "no.such.host.invalid:9092")
    assert name not in run(*commands.server, "--list").out


def test_an_unreachable_destination_is_named() -> None:
    ran = run("--bootstrap-server", "127.0.0.1:1", "--list")
    assert_refused(ran, "cluster destination", "127.0.0.1:1", "Connection refused")


def test_a_missing_configuration_file_is_a_usage_error(
    commands: Commands, fresh_name: Callable[[str], str]
) -> None:
    missing = commands.folder / "missing.properties"
    create = (*commands.server, "--create", "--mirror", fresh_name("m"))
    config = commands.properties()
    for files in (
        ("--mirror-config", missing),
        ("--mirror-config", config, "--command-config", missing),
        ("--mirror-config", commands.folder),
    ):
        ran = run(*create, *files)
        assert (ran.status, ran.out) == (2, ""), "as with every file of a command line"
        assert f"'{files[-2]}'" in ran.error
        assert str(files[-1]) in ran.error


def test_the_same_cluster_as_source_and_destination_is_refused(
    commands: Commands, fresh_name: Callable[[str], str]
) -> None:
    name = fresh_name("m")
    itself = commands.pair.destination.bootstrap_servers
    assert_refused(commands.create(name, bootstrap_servers=itself), "the same cluster")
    assert name not in run(*commands.server, "--list").out


def test_a_file_with_two_aliases_of_one_cluster_creates_nothing(commands: Commands) -> None:
    """Goal: a refused start of MirrorMaker's file leaves no topics, and has the user's words."""
    source = commands.pair.source

    def topics() -> set[str]:
        async def read() -> set[str]:
            async with client(source) as cluster:
                return {*(await cluster.refresh(None)).topics}

        return asyncio.run(read())

    file = commands.folder / "mm2.properties"
    servers = source.bootstrap_servers
    file.write_text(
        f"clusters = X, Y\nX.bootstrap.servers = {servers}\nY.bootstrap.servers = {servers}\n"
        "X->Y.enabled = true\nX->Y.topics = of-no-topic\n"
    )
    before = topics()
    ran = run("mirror-maker", file, script=(TWINLOG,))
    assert_refused(ran, "X and Y are the same cluster: ", "bootstrap.servers")
    assert "--mirror-config" not in ran.error
    assert topics() == before


def test_an_existing_mirror_is_not_created_again(
    commands: Commands, fresh_name: Callable[[str], str]
) -> None:
    name = fresh_name("m")
    assert commands.create(name).status == 0
    assert_refused(commands.create(name), "MIRROR_ALREADY_EXISTS", name)


def test_an_unknown_mirror_is_refused(commands: Commands, fresh_name: Callable[[str], str]) -> None:
    name = fresh_name("m")
    assert_refused(commands.add(name, "t"), "UNKNOWN_MIRROR", name)
    assert_refused(run(*commands.server, "--describe", "--mirror", name), "UNKNOWN_MIRROR", name)


def test_no_topic_is_added_if_any_is_refused(
    commands: Commands, fresh_name: Callable[[str], str]
) -> None:
    """Missing, a bad expression, in a mirror already: none of the other topics is added either."""
    name, stem = fresh_name("m"), fresh_name("t")
    for suffix in "ab":
        create_topic(commands.pair.source, f"{stem}-{suffix}")
    assert commands.create(name).status == 0
    assert_refused(commands.add(name, f"{stem}-c"), "UNKNOWN_TOPIC_OR_PARTITION", f"{stem}-c")
    assert_refused(commands.add(name, "*"), "INVALID_REGULAR_EXPRESSION", "'*'")
    assert commands.add(name, f"{stem}-a").status == 0
    assert_refused(
        commands.add(name, f"{stem}-."), "TOPIC_ALREADY_IN_MIRROR", f"{stem}-a (in {name})"
    )
    assert f"{stem}-b" not in all_topics(commands.pair.destination)
    assert [row["topic"] for row in commands.json("--describe", "--mirror", name)] == [f"{stem}-a"]


@pytest.mark.long
def test_a_removed_topic_stays_listed_until_a_node_has_stopped_it(
    commands: Commands, fresh_name: Callable[[str], str]
) -> None:
    """It is unknown whether a lane is about to start with it, and is just suspended."""
    name, other, topic = fresh_name("m"), fresh_name("other"), fresh_name("t")
    create_topic(commands.pair.source, topic)
    for mirror in (name, other):
        assert commands.create(mirror).status == 0
    assert commands.add(name, topic).status == 0
    in_it = ("--mirror", name)
    removal = ("--remove", *in_it, "--topic", topic, "--wait-seconds", "1")
    waited = run(*commands.server, *removal)
    assert waited.status == 1, "without a node it has no effect yet, and says so"
    assert waited.error.startswith("not STOPPED within 1 s: 1 partition(s): "), waited.error
    assert f"{topic}-0 is UNKNOWN (no lane has reported it; " in waited.error
    assert "the removal is stored and continues" in waited.error
    hint = "wait until --describe shows STOPPED; a node (twinlog run) must be running"
    deleted = run(*commands.server, "--delete", *in_it)
    assert_refused(deleted, "MIRROR_NOT_EMPTY", f"{topic}-0 (UNKNOWN)", hint)
    assert_refused(commands.add(other, topic), "MIRROR_TOPIC_BEING_REMOVED", "is UNKNOWN", hint)
    assert run(*commands.server, "--delete", "--mirror", other).status == 0
    assert commands.json("--describe", *in_it)[0]["wanted"] == "STOPPED"


def test_conflicting_destination_topics_are_named_and_nothing_is_created(
    commands: Commands, fresh_name: Callable[[str], str]
) -> None:
    """All that have another size or records are named, and nothing is created."""
    name, stem = fresh_name("m"), fresh_name("t")
    for suffix in ("full", "large", "new"):
        create_topic(commands.pair.source, f"{stem}-{suffix}")
    create_topic(commands.pair.destination, f"{stem}-full")
    create_topic(commands.pair.destination, f"{stem}-large", 2)
    record = Entry(f"{stem}-full", 0, b"k", b"v")
    on(commands.pair.destination, lambda c: append(c, [record], acks=ALL))
    assert commands.create(name).status == 0
    assert_refused(
        commands.add(name, f"{stem}-.*"),
        "TOPIC_ALREADY_EXISTS",
        f"{stem}-full-0 is not empty, its log end offset is 1",
        f"{stem}-large has 2 partitions, the source topic has 1",
    )
    assert f"{stem}-new" not in all_topics(commands.pair.destination)
    assert commands.json("--describe", "--mirror", name) == []


def test_an_invalid_replication_factor_creates_no_topic(
    commands: Commands, fresh_name: Callable[[str], str]
) -> None:
    """The broker's refusal comes before any topic is created."""
    name, stem = fresh_name("m"), fresh_name("t")
    for suffix in "ab":
        create_topic(commands.pair.source, f"{stem}-{suffix}")
    assert commands.create(name).status == 0
    ran = commands.add(name, f"{stem}-.", "--replication-factor", 3)
    assert_refused(
        ran, "INVALID_REPLICATION_FACTOR", "; nothing was added; set --replication-factor"
    )
    assert not {f"{stem}-a", f"{stem}-b"} & all_topics(commands.pair.destination)
    assert commands.add(name, f"{stem}-.", "--replication-factor", 1).status == 0


def test_a_source_with_another_cluster_id_is_refused(
    commands: Commands, fresh_name: Callable[[str], str]
) -> None:
    """The mirror was created for another cluster id than the one that answers."""
    name = fresh_name("m")
    source = {"bootstrap.servers": commands.pair.source.bootstrap_servers}
    other = Mirror(name=name, source=source, source_cluster_id="another")
    on(commands.pair.destination, lambda c: MirrorStore(c).create_mirror(other))
    assert_refused(commands.add(name, ".*"), "expected another")


@pytest.mark.parametrize(
    ("created_first", "refusal"),
    [(True, MirrorError.TOPIC_ALREADY_IN_MIRROR), (False, MirrorError.TOPIC_ALREADY_EXISTS)],
)
def test_topics_created_by_an_add_that_failed_are_deleted(
    commands: Commands,
    fresh_name: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
    created_first: bool,
    refusal: MirrorError,
) -> None:
    """Another command is faster: this one's created topics are deleted, without the other's."""
    name, stem = fresh_name("m"), fresh_name("t")
    for suffix in "ab":
        create_topic(commands.pair.source, f"{stem}-{suffix}")
    assert commands.create(name).status == 0
    assert commands.create(f"{name}.other").status == 0
    prepare = destination_topics.prepare

    async def overtaken(destination: KafkaCluster, *arguments: Any) -> dict[str, UUID]:
        monkeypatch.setattr(creation, "prepare", prepare)
        created = await prepare(destination, *arguments) if created_first else None
        await creation.add_topics(destination, f"{name}.other", f"{stem}-a")
        return await prepare(destination, *arguments) if created is None else created

    async def add(destination: KafkaCluster) -> None:
        with pytest.raises(MirrorRefused) as caught:
            await creation.add_topics(destination, name, f"{stem}-.")
        assert caught.value.kind is refusal

    monkeypatch.setattr(creation, "prepare", overtaken)
    on(commands.pair.destination, add)
    until(
        lambda: all_topics(commands.pair.destination) & {f"{stem}-a", f"{stem}-b"},
        what="the other command's topic alone",
        good=lambda topics: topics == {f"{stem}-a"},
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "exactly one action"),
        (("--list", "--describe"), "exactly one action"),
        (("--create", "--mirror", "m"), "--create needs --mirror-config"),
        (("--add", "--mirror", "m"), "--add needs --topic"),
        (("--list", "--mirror", "m"), "--mirror cannot be used with --list"),
        (("--describe", "--topic", "t"), "--topic cannot be used with --describe"),
        (("--add", "--mirror", "m", "--topic", "t", "--replication-factor", "0"), "range"),
        (("--pause", "--mirror", "m"), "--pause needs --topic"),
        (("--alter", "--mirror", "m"), "--alter needs --mirror-config"),
        (("--delete", "--mirror", "m", "--topic", "t"), "--topic cannot be used with --delete"),
        (("--restart", "--mirror", "m", "--topic", "t"), "No such option"),
    ],
)
def test_usage_errors_exit_with_status_2(arguments: tuple[str, ...], words: str) -> None:
    """Wrong usage gives status 2, and names the right one."""
    ran = run("--bootstrap-server", "127.0.0.1:1", *arguments)
    assert ran.status == 2
    assert words in ran.error


def test_a_missing_bootstrap_server_is_a_usage_error() -> None:
    ran = run("--list")
    assert (ran.status, "--bootstrap-server" in ran.error) == (2, True)


def test_help_and_version_have_the_words_of_the_kip() -> None:
    """The help has the KIP's words."""
    text = " ".join(run("--help").out.split())
    for words in (
        "This tool helps to create cluster mirrors and add topics to them.",
        "Add topic(s) to an existing cluster mirror (supports regex).",
        "REQUIRED: The destination Kafka server to connect to.",
        "Property file containing configs to be passed to Admin Client.",
        "Alter the configuration of an existing cluster mirror.",
        "Pause mirroring for topic(s) matching the pattern (supports regex).",
        "Remove topic(s) from an existing cluster mirror (supports regex).",
        "Resume mirroring for previously paused topic(s) matching the pattern (supports regex).",
        "Create a new cluster mirror from a source cluster.",
        "Describe a cluster mirror including partition lag and state.",
        "Print usage information.",
        "List all cluster mirrors.",
        "The name of the cluster mirror.",
        "Property file containing source cluster configs for mirroring.",
        "If not specified, uses the destination cluster's default.",
        "Topic name or regex pattern to match topics (e.g., 'my-topic' or 'test-.*').",
    ):
        assert words in text
    assert "twinlog" in run("--version").out


def test_debug_shows_a_traceback() -> None:
    done = subprocess.run(
        [SCRIPT, "--bootstrap-server", "x", "--list", "--debug"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1
    assert "Traceback" in done.stderr


def test_an_unused_destination_setting_is_a_warning(commands: Commands) -> None:
    path = commands.folder / "client.properties"
    path.write_text("group.id=g\nmirror.topic.num.partitions=7\n")
    ran = run(*commands.server, "--list", "--command-config", path)
    assert ran.status == 0
    assert ran.err == f"{path}: group.id is not used by twinlog\n"
    path.write_text("mirror.topic.num.partitions=many\n")
    ran = run(*commands.server, "--list", "--command-config", path)
    assert_refused(ran, "mirror.topic.num.partitions", "'many'", "whole number")


def test_an_unreadable_control_record_is_named(
    commands: Commands, fresh_name: Callable[[str], str]
) -> None:
    """It is named on standard error; the table is printed."""
    name = fresh_name("m")
    assert commands.create(name).status == 0
    good = config_entry(Mirror(name=f"{name}.x", source={}, source_cluster_id=""), 8)
    bad = good._replace(value=b"{")
    on(commands.pair.destination, lambda c: append(c, [bad], acks=ALL))
    ran = run(*commands.server, "--list")
    on(commands.pair.destination, lambda c: append(c, [bad._replace(value=None)], acks=ALL))
    assert (ran.status, name in ran.out) == (0, True)
    assert f"cannot be read: __mirror_config-{good.partition}" in ran.err


def test_an_unknown_mirror_version_is_refused(
    commands: Commands, fresh_name: Callable[[str], str]
) -> None:
    """`mirror.version` comes with the first mirror; one of level 2 refuses commands and nodes."""
    assert commands.create(fresh_name("m")).status == 0
    (key, value) = encode(Feature(name="mirror.version", level=1))
    written = [record for record in config_records(commands) if record.key == key]
    assert [record.value for record in written][-1] == value

    def level(number: int) -> None:
        entry = config_entry(Feature(name="mirror.version", level=number), 8)
        on(commands.pair.destination, lambda c: append(c, [entry], acks=ALL))

    level(2)
    try:
        words = "UNSUPPORTED_VERSION: the control topics have mirror.version 2, expected 1"
        for arguments in (("--list",), ("--describe",)):
            assert_refused(run(*commands.server, *arguments), words)
        assert_refused(commands.create(fresh_name("other")), words)
        assert_refused(run("run", *commands.server, script=(TWINLOG,)), words)
    finally:
        level(1)
    assert run(*commands.server, "--list").status == 0


def config_records(commands: Commands) -> list[ControlRecord]:
    records: list[ControlRecord] = on(
        commands.pair.destination, lambda c: read_whole(c, CONFIG_TOPIC)
    )
    return records
