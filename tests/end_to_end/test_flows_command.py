"""`twinlog flows` on real clusters, each command as a user types it.

Offsets are compared with the records themselves, as librdkafka reads them on both sides: values are
numbers that no other record of the topic has.
"""

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import librdkafka_tools
import pytest
from clients import client
from confluent_kafka import Producer, TopicPartition
from number_producer import NumberProducer
from remote_topics import counts, records
from waiting import SECONDS, until

from twinlog.engines.transactional.positions import position_group
from twinlog.kafka.groups.offsets import Committed, committed_offsets
from twinlog.kafka.types import TopicPartition as KafkaPartition
from twinlog.local.commands import Done
from twinlog.local.load import delete_before
from twinlog.local.stage import Stage
from twinlog.store.control_topics import LANES_GROUP
from twinlog.store.offset_log import forgetting_entries
from twinlog.store.topic_writer import Entry

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(1200)]

FLOW = "a-to-b"
SETTINGS = {
    "replication.factor": "1",
    "refresh.topics.interval.seconds": "1",
    "twinlog.data.loss": "continue",
    "emit.heartbeats.enabled": "false",
    "emit.checkpoints.enabled": "false",
}
UNKNOWN = 3
"""Exit status of `translate` if an offset is unknown."""


def flows(stage: Stage, action: str, *arguments: str) -> Done:
    """Run `twinlog flows` on the target; `delete` waits for longer than by default."""
    servers = stage.destination.bootstrap_servers
    if action == "delete" and "--wait-seconds" not in arguments:
        arguments = (*arguments, "--wait-seconds", f"{SECONDS:g}")
    return librdkafka_tools.twinlog("flows", action, "--bootstrap-server", servers, *arguments)


def done(stage: Stage, action: str, *arguments: str) -> Any:
    """Run `twinlog flows --json`; return its result."""
    result = flows(stage, action, *arguments, "--json")
    assert result.status == 0, result
    return json.loads(result.output)


def create(stage: Stage, source: str, topics: str, *more: str) -> Any:
    """Create a flow of the source under this alias."""
    settings = [part for item in SETTINGS.items() for part in ("--config", "=".join(item))]
    file = stage.directory / "command.properties"
    file.write_text("mirror.topic.num.partitions=5\n")
    servers = stage.source.bootstrap_servers
    return done(
        stage,
        "create",
        *("--command-config", str(file), "--source", source, "--target", "b"),
        *("--source-bootstrap-server", servers, "--topics", topics, *settings, *more),
    )


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Start two clusters, a flow `a->b` that was created by command, and a node."""
    with Stage(tmp_path_factory.mktemp("flows-command")) as stage:
        stage.start_source()
        stage.start_destination()
        created = create(stage, "a", "copied-.*")
        assert created["created"] == FLOW
        stage.start_node()
        yield stage


def await_values(stage: Stage, topic: str, wanted: Sequence[str], partition: int = 0) -> None:
    """Wait until a topic of the target has these records, in order."""
    until(
        lambda: [value for _, value in records(stage.destination, topic, partition)],
        SECONDS,
        f"{len(wanted)} records of {topic}",
        good=lambda values: values == list(wanted),
    )


def write_transactions(servers: str, topic: str, numbers: range) -> None:
    """Write numbers, ten in a transaction; each third transaction is aborted, and repeated."""
    producer = Producer({"bootstrap.servers": servers, "transactional.id": topic})
    producer.init_transactions(120)
    for first in numbers[::10]:
        for commit in ([False] if first % 30 == 0 else []) + [True]:
            producer.begin_transaction()
            for number in range(first, first + 10):
                producer.produce(topic, str(number), partition=0)
            producer.flush(120)
            if commit:
                producer.commit_transaction(120)
            else:
                producer.abort_transaction(120)


def translated(
    stage: Stage, topic: str, offsets: range, *more: str, partition: int = 0, flow: str = FLOW
) -> list[dict[str, Any]]:
    """Translate offsets by command; the status says whether all are known."""
    asked = [part for offset in offsets for part in ("--offset", str(offset))]
    result = flows(
        stage,
        "translate",
        *("--flow", flow, "--topic", topic, "--partition", str(partition)),
        *(*asked, *more, "--json"),
    )
    assert result.status in {0, UNKNOWN}, result
    data = json.loads(result.output)
    assert data["all_known"] == (result.status == 0)
    found: list[dict[str, Any]] = data["offsets"]
    assert all(one["known"] == (one["answer"] not in {"NOT_COPIED"}) for one in found)
    return found


def log_end(servers: str, topic: str) -> int:
    with librdkafka_tools.consumer(servers, "ends") as client:
        return int(client.get_watermark_offsets(TopicPartition(topic, 0), timeout=120)[1])


def state(stage: Stage, topic: str) -> str:
    (flow,) = done(stage, "describe", "--flow", FLOW)
    (row,) = [row for row in flow["partitions"] if row["topic"] == topic] or [{"state": "none"}]
    return str(row["state"])


def await_state(stage: Stage, topic: str, wanted: str) -> None:
    until(lambda: state(stage, topic), SECONDS, wanted, good=lambda found: found == wanted)


@pytest.fixture
def copied(stage: Stage, topic: str) -> str:
    """Copy 300 numbers in transactions; the flow is paused and resumed in the middle.

    So the target's log has a fence between records, and the source's has markers and aborted ones.
    """
    servers, name = stage.source.bootstrap_servers, f"copied-{topic}"
    librdkafka_tools.make_topic(servers, name)
    write_transactions(servers, name, range(150))
    await_values(stage, f"a.{name}", list(map(str, range(150))))
    assert done(stage, "pause", "--flow", FLOW, "--topic", name)["paused"] == [name]
    await_state(stage, name, "PAUSED")
    write_transactions(servers, name, range(150, 300))
    assert done(stage, "resume", "--flow", FLOW, "--topic", name)["resumed"] == [name]
    await_values(stage, f"a.{name}", list(map(str, range(300))))
    # The map is stored a moment later than the records.
    last = records(stage.source, name)[-1][0]
    until(
        lambda: translated(stage, name, range(last, last + 1)),
        SECONDS,
        f"the map of {name}",
        good=lambda found: found[0]["known"],
    )
    return name


@pytest.mark.long
def test_a_flow_is_paused_before_its_topics_exist(stage: Stage, topic: str) -> None:
    """Goal: as a connector of MirrorMaker 2, also for topics of later, and after another start."""
    create(stage, "p", f"{topic}.*")
    paused = done(stage, "pause", "--flow", "p->b")
    assert paused == {"mirror": "p-to-b", "paused": []}
    librdkafka_tools.make_topic(stage.source.bootstrap_servers, topic)
    librdkafka_tools.write(stage.source.bootstrap_servers, topic, librdkafka_tools.simple(20))

    def described() -> Any:
        (flow,) = done(stage, "describe", "--flow", "p->b")
        assert flow["paused"]
        return flow["partitions"]

    until(described, SECONDS, "the topic is added")
    create(stage, "p", f"{topic}.*", "--replace")
    assert "to b, paused" in flows(stage, "describe", "--flow", "p->b").output
    time.sleep(3)  # a topic that is copied has its records within milliseconds
    assert records(stage.destination, f"p.{topic}") == []
    assert done(stage, "resume", "--flow", "p->b")["resumed"] == [topic]
    until(
        lambda: len(records(stage.destination, f"p.{topic}")),
        SECONDS,
        "20 copies",
        good=lambda count: count == 20,
    )
    done(stage, "delete", "--flow", "p->b")


def test_each_offset_of_a_transactional_log_is_translated_exactly(
    stage: Stage, copied: str
) -> None:
    """Goal: in both directions, each record is at its copy, and each position leaves the same.

    A position is where a group goes on: the records from it on are the same on both sides.
    """
    source, target = records(stage.source, copied), records(stage.destination, f"a.{copied}")
    assert [value for _, value in source] == [value for _, value in target]
    ends = [
        log_end(stage.source.bootstrap_servers, copied),
        log_end(stage.destination.bootstrap_servers, f"a.{copied}"),
    ]
    assert target[-1][0] - target[0][0] > 299, "the target's log has a fence between records"
    assert ends[0] > 300 + 30, "the source's log has markers and aborted records"
    directions = [
        ("source", "target", copied, ()),
        ("target", "source", f"a.{copied}", ("--to-source",)),
    ]
    for (here, there, name, flags), log, other, end in zip(
        directions, (source, target), (target, source), ends, strict=True
    ):

        def whole(
            name: str = name, end: int = end, flags: tuple[str, ...] = flags
        ) -> list[dict[str, Any]]:
            return translated(stage, name, range(end + 1), *flags)

        # The markers behind the last record are recorded about a second after it.
        found = until(whole, SECONDS, f"all offsets of {name}", good=lambda all_: all_[-1]["known"])
        places = dict(log)
        assert [one[here]["offset"] for one in found] == list(range(end + 1))
        for offset, one in enumerate(found):
            place = one[there]["offset"]
            left = [value for at, value in log if at >= offset]
            assert [value for at, value in other if at >= place] == left, one
            assert (one["answer"] == "RECORD") == (offset in places), one
            if offset in places:
                assert dict(other)[place] == places[offset], one
        assert {one["answer"] for one in found} == {"RECORD", "NEXT", "END"}


def test_a_group_is_translated(stage: Stage, copied: str, topic: str) -> None:
    """Goal: all committed offsets at once, also those that the flow does not copy; both ways."""
    here, there = stage.source.bootstrap_servers, stage.destination.bootstrap_servers
    other, group = f"other-{topic}", f"g-{topic}"
    librdkafka_tools.make_topic(here, other)
    source, target = records(stage.source, copied), records(stage.destination, f"a.{copied}")
    librdkafka_tools.commit(here, group, copied, {0: source[137][0]})
    librdkafka_tools.commit(here, group, other, {0: 0})
    ran = flows(stage, "translate", "--flow", "a->b", "--group", group, "--json")
    assert ran.status == UNKNOWN, ran
    first, last = json.loads(ran.output)["offsets"]
    assert first["target"] == {"topic": f"a.{copied}", "partition": 0, "offset": target[137][0]}
    assert (last["source"]["topic"], last["target"], last["answer"]) == (other, None, "NOT_IN_FLOW")

    librdkafka_tools.commit(there, group, f"a.{copied}", {0: target[200][0]})
    back = done(stage, "translate", "--flow", FLOW, "--group", group, "--to-source")
    assert [one["source"]["offset"] for one in back["offsets"]] == [source[200][0]]

    nobody = flows(stage, "translate", "--flow", FLOW, "--group", f"{group}-x")
    assert nobody.status == 1
    assert f"group {group}-x has committed no offset on the source" in nobody.errors


@pytest.mark.long
@pytest.mark.parametrize("to_source", [False, True])
def test_a_time_is_translated(stage: Stage, copied: str, to_source: bool) -> None:
    """Goal: the first record from a time on, and the same record on the other cluster.

    The offsets of both sides are compared with the records themselves, and the time is looked up in
    the log of the side that is asked for.
    """
    sides = (
        (stage.source, copied, records(stage.source, copied)),
        (stage.destination, f"a.{copied}", records(stage.destination, f"a.{copied}")),
    )
    (cluster, topic, log), (_, _, other) = reversed(sides) if to_source else sides
    asked = ("--flow", FLOW, "--topic", topic, *(["--to-source"] if to_source else []))
    here, there = ("target", "source") if to_source else ("source", "target")
    time_ms, offset = first_from(cluster.bootstrap_servers, topic, log[150][0])
    # A broker's answer may be a marker: of an aborted transaction, or the flow's fence, which is
    # newer than the records that were written while it was paused.
    number = next(index for index, (at, _) in enumerate(log) if at >= offset)
    assert log[number][1] == other[number][1]
    (found,) = done(stage, "translate", *asked, "--timestamp", str(time_ms))["offsets"]
    assert (found[here]["offset"], found[there]["offset"]) == (offset, other[number][0])
    assert found["answer"] == ("RECORD" if log[number][0] == offset else "NEXT")
    ran = flows(stage, "translate", *asked, "--timestamp", "2999-01-01T00:00:00Z", "--json")
    assert ran.status == UNKNOWN, ran
    (found,) = json.loads(ran.output)["offsets"]
    assert (found[here]["offset"], found["answer"]) == (None, "NO_RECORD")


def first_from(servers: str, topic: str, offset: int) -> tuple[int, int]:
    """The time of the record at an offset, and the first offset of the log from that time on.

    Both are those of librdkafka.
    """
    with librdkafka_tools.consumer(servers, "times") as client:
        client.assign([TopicPartition(topic, 0, offset)])
        message = client.poll(120)
        assert message is not None
        time_ms = int(message.timestamp()[1])
        (at,) = client.offsets_for_times([TopicPartition(topic, 0, time_ms)], timeout=120)
        return time_ms, int(at.offset)


def test_what_is_not_copied_yet_and_what_is_lost_is_said(stage: Stage, topic: str) -> None:
    """Goal: no number for what is not copied; behind lost records the next one is named."""
    servers, name = stage.source.bootstrap_servers, f"copied-{topic}"
    librdkafka_tools.make_topic(servers, name)
    librdkafka_tools.write(servers, name, librdkafka_tools.simple(100))
    await_values(stage, f"a.{name}", [f"v{at}" for at in range(100)])
    done(stage, "pause", "--flow", FLOW, "--topic", name)
    await_state(stage, name, "PAUSED")
    librdkafka_tools.write(servers, name, librdkafka_tools.simple(60, text="w"))
    table = flows(
        stage,
        *("translate", "--flow", FLOW, "--topic", name, "--partition", "0"),
        *("--offset", "7", "--offset", "110"),
    )
    assert table.status == UNKNOWN, table
    # Behind a fence, if a node that has just started has moved the partition between its lanes.
    place = {value: at for at, value in records(stage.destination, f"a.{name}")}["v7"]
    assert [" ".join(line.split()) for line in table.output.splitlines()] == [
        "SOURCE SOURCE-OFFSET TARGET TARGET-OFFSET ANSWER",
        f"{name}-0 7 a.{name}-0 {place} record",
        (
            f"{name}-0 110 a.{name}-0 - not copied: not copied yet, or not recorded yet: the map "
            "ends at source offset 100"
        ),
    ]
    delete_before(servers, [(name, 0, 130)])
    done(stage, "resume", "--flow", FLOW, "--topic", name)
    kept = [*(f"v{at}" for at in range(100)), *(f"w{at}" for at in range(30, 60))]
    await_values(stage, f"a.{name}", kept)
    place = {value: at for at, value in records(stage.destination, f"a.{name}")}["w30"]
    (lost, first) = until(
        lambda: translated(stage, name, range(129, 131)),
        SECONDS,
        "the map of the records behind the lost ones",
        good=lambda both: both[1]["answer"] == "RECORD",
    )
    assert (lost["answer"], lost["target"]["offset"]) == ("NEXT", place)
    assert "the next record that was copied is source offset 130" in lost["text"]
    assert first["target"]["offset"] == place


@pytest.mark.long
def test_each_copy_is_translated_when_a_busy_flow_was_paused_or_its_node_stopped(
    stage: Stage, topic: str
) -> None:
    """Goal: nothing runs then that could record later what has landed last."""
    servers, name, indexes = stage.source.bootstrap_servers, f"copied-{topic}", range(4)
    librdkafka_tools.make_topic(servers, name, len(indexes))
    writing = NumberProducer(servers, name, len(indexes), lambda n: {"value": str(n)}, {})

    def await_copies(at_least: int) -> None:
        until(
            lambda: min(counts(stage.destination, f"a.{name}", len(indexes))),
            SECONDS,
            f"{at_least} copies in each partition",
            good=lambda least: least >= at_least,
        )

    def check_last_copies() -> None:
        for index in indexes:
            at, value = records(stage.destination, f"a.{name}", index)[-1]
            places = {text: offset for offset, text in records(stage.source, name, index)}
            behind = range(places[value], places[value] + 2)
            found = translated(stage, name, behind, partition=index)
            assert [one["answer"] for one in found] == ["RECORD", "END"]
            assert [one["target"]["offset"] for one in found] == [at, at + 1]

    def paused() -> bool:
        (flow,) = done(stage, "describe", "--flow", FLOW)
        rows = [row for row in flow["partitions"] if row["topic"] == name]
        return {row["state"] for row in rows} == {"PAUSED"}

    try:
        await_copies(50)
        done(stage, "pause", "--flow", FLOW, "--topic", name)
        until(paused, SECONDS, "PAUSED")
        check_last_copies()
        copied = max(counts(stage.destination, f"a.{name}", len(indexes)))
        done(stage, "resume", "--flow", FLOW, "--topic", name)
        await_copies(copied + 50)
        node = stage.nodes["node"]
        node.signal(15)
        node.end()
        try:
            check_last_copies()
        finally:
            stage.start_node()
    finally:
        committed = writing.end()
    until(
        lambda: sum(counts(stage.destination, f"a.{name}", len(indexes))),
        SECONDS,
        "each record once, also by the next node",
        good=lambda total: total == len(committed),
    )


def test_a_flow_shows_its_settings_states_and_topics(stage: Stage, topic: str) -> None:
    servers, name = stage.source.bootstrap_servers, f"copied-{topic}"
    librdkafka_tools.make_topic(servers, name, 2)
    librdkafka_tools.write(servers, name, librdkafka_tools.simple(20, 1))
    await_values(stage, f"a.{name}", [f"v{at}" for at in range(20)], 1)

    def row() -> dict[str, Any]:
        (flow,) = done(stage, "describe", "--flow", "a->b")
        return next(r for r in flow["partitions"] if (r["topic"], r["partition"]) == (name, 1))

    def caught_up(found: dict[str, Any]) -> bool:
        return (found["lag"], found["state"]) == (0, "MIRRORING")

    # A state is stored after the first records were copied; a lag comes by another topic.
    shown = until(row, SECONDS, "a lag of 0 while mirroring", good=caught_up)
    assert shown["target_topic"] == f"a.{name}"
    (flow,) = done(stage, "describe", "--flow", FLOW)
    assert (flow["source"], flow["target"], flow["config"]) == (
        "a",
        "b",
        {"bootstrap.servers": servers},
    )
    assert flow["settings"]["topics"] == "copied-.*"
    assert flow["settings"]["offset.lag.max"] == "100"
    assert set(flow["changed_settings"]) == {*SETTINGS, "topics", "enabled"}

    def described() -> list[str]:
        text = flows(stage, "describe", "--flow", FLOW).output
        return [" ".join(line.split()) for line in text.splitlines()]

    mirroring = f"{name} 1 a.{name} 20 20 20 0 MIRRORING"
    lines = until(
        described,
        SECONDS,
        mirroring,
        good=lambda shown: any(line.startswith(mirroring) for line in shown),
    )
    assert any(line.startswith("Flow a-to-b: from a (cluster ") for line in lines)
    assert "topics copied-.*" in lines
    (listed,) = [one for one in done(stage, "list") if one["flow"] == FLOW]
    assert listed["partitions"] == len(flow["partitions"])
    assert sum(listed["states"].values()) == listed["partitions"]
    names = [line.split()[0] for line in flows(stage, "list").output.splitlines()]
    assert names[0] == "FLOW"
    assert FLOW in names


@pytest.mark.long
def test_a_flow_begins_at_the_end_and_is_deleted_in_one_step(stage: Stage, topic: str) -> None:
    """Goal: what was before the flow has no place; its topics stay; it goes on if created again."""
    servers, name = stage.source.bootstrap_servers, f"late-{topic}"
    librdkafka_tools.make_topic(servers, name)
    librdkafka_tools.write(servers, name, librdkafka_tools.simple(20))
    latest = ("--config", "consumer.auto.offset.reset=latest")
    assert create(stage, "c", "late-.*", *latest)["created"] == "c-to-b"

    def before() -> Done:
        asked = ("--flow", "c->b", "--topic", name, "--partition", "0", "--offset", "5")
        return flows(stage, "translate", *asked, "--json")

    early = until(before, SECONDS, "the map", good=lambda ran: "BEFORE_START" in ran.output)
    assert early.status == UNKNOWN
    assert "the flow began at source offset 20" in early.output
    librdkafka_tools.write(servers, name, librdkafka_tools.simple(5, text="w"))
    await_values(stage, f"c.{name}", [f"w{at}" for at in range(5)])

    again = flows(
        stage,
        *("create", "--source", "c", "--target", "b", "--source-bootstrap-server", servers),
    )
    assert again.status == 1
    *_, error = again.errors.splitlines()
    assert error.startswith("Error: MIRROR_ALREADY_EXISTS: flow c-to-b already exists")
    replaced = create(stage, "c", "late-.*", *latest, "--config", "tasks.max=2", "--replace")
    assert replaced["replaced"] == "c-to-b"

    deleted = done(stage, "delete", "--flow", "c->b")
    assert deleted["deleted"] == "c-to-b"
    assert "c-to-b" not in [one["flow"] for one in done(stage, "list")]
    librdkafka_tools.write(servers, name, librdkafka_tools.simple(5, text="x"))
    create(stage, "c", "late-.*", *latest)
    expected = [*(f"w{at}" for at in range(5)), *(f"x{at}" for at in range(5))]
    await_values(stage, f"c.{name}", expected)
    assert done(stage, "delete", "--flow", "c->b") == {
        "deleted": "c-to-b",
        "removed": [name],
        "forgot_offsets": False,
    }


@pytest.mark.long
def test_a_flow_is_not_deleted_while_no_node_runs(stage: Stage, topic: str) -> None:
    """Goal: what may still be copied is not forgotten; the end is stored, and completed later."""
    servers, name = stage.source.bootstrap_servers, f"kept-{topic}"
    librdkafka_tools.make_topic(servers, name)
    librdkafka_tools.write(servers, name, librdkafka_tools.simple(5))
    create(stage, "e", "kept-.*")
    await_values(stage, f"e.{name}", [f"v{at}" for at in range(5)])
    node = stage.nodes["node"]
    node.signal(15)
    node.end()
    try:
        hasty = flows(stage, "delete", "--flow", "e-to-b", "--wait-seconds", "1")
        assert hasty.status == 1
        assert f"not STOPPED within 1 s: 1 partition(s): {name}-0 is " in hasty.errors
        (kept,) = done(stage, "describe", "--flow", "e-to-b")
        assert [row["wanted"] for row in kept["partitions"]] == ["STOPPED"]
    finally:
        stage.start_node()
    again = done(stage, "delete", "--flow", "e-to-b", "--wait-seconds", f"{SECONDS:g}")
    assert again["removed"] == []


@pytest.mark.long
@pytest.mark.parametrize(("alias", "more"), [("f", ()), ("g", ("transaction.producer=true",))])
def test_a_flow_that_was_forgotten_begins_anew(
    stage: Stage, topic: str, alias: str, more: Sequence[str]
) -> None:
    """Goal: for the owner that has copied it, which goes on, and for one after a kill -9.

    Each record is copied once more, and offsets are translated to the second copy.
    """
    servers, name, flow = stage.source.bootstrap_servers, f"{alias}x-{topic}", f"{alias}-to-b"
    librdkafka_tools.make_topic(servers, name)
    librdkafka_tools.write(servers, name, librdkafka_tools.simple(20))
    settings = [part for item in more for part in ("--config", item)]
    create(stage, alias, f"{alias}x-.*", *settings)
    expected = [f"v{at}" for at in range(20)]
    await_values(stage, f"{alias}.{name}", expected)
    forgotten = done(stage, "delete", "--flow", flow, "--forget-offsets")
    assert forgotten == {"deleted": flow, "removed": [name], "forgot_offsets": True}
    assert recorded(stage, flow) == ([], {})
    create(stage, alias, f"{alias}x-.*", *settings)
    await_values(stage, f"{alias}.{name}", expected * 2)
    stage.nodes["node"].signal(9)
    stage.nodes["node"].end()
    stage.start_node()
    librdkafka_tools.write(servers, name, librdkafka_tools.simple(5, text="w"))
    await_values(stage, f"{alias}.{name}", [*expected * 2, *(f"w{at}" for at in range(5))])
    if not more:
        places = [at for at, _ in records(stage.destination, f"{alias}.{name}")][20:]
        found = until(
            lambda: translated(stage, name, range(25), flow=flow),
            SECONDS,
            "the whole map",
            good=lambda all_: all_[-1]["known"],
        )
        assert [one["target"]["offset"] for one in found] == places
    done(stage, "delete", "--flow", flow)


def recorded(stage: Stage, flow: str) -> tuple[list[Entry], dict[KafkaPartition, Committed]]:
    """What is recorded of a flow: its keys in `__mirror_offsets`, and its positions."""

    async def body() -> tuple[list[Entry], dict[KafkaPartition, Committed]]:
        async with client(stage.destination) as cluster:
            group = position_group(LANES_GROUP, flow)
            return await forgetting_entries(cluster, flow), await committed_offsets(cluster, group)

    return asyncio.run(body())


def test_the_flows_of_a_file_are_created(stage: Stage, topic: str, tmp_path: Path) -> None:
    """Goal: a file of MirrorMaker 2, without mirror-maker; the node that runs copies it."""
    servers, name = stage.source.bootstrap_servers, f"filed-{topic}"
    librdkafka_tools.make_topic(servers, name)
    librdkafka_tools.write(servers, name, librdkafka_tools.simple(10))
    file = tmp_path / "mm2.properties"
    lines = {
        "clusters": "d,b",
        "d.bootstrap.servers": servers,
        "b.bootstrap.servers": stage.destination.bootstrap_servers,
        "d->b.enabled": "true",
        "d->b.topics": name,
        **SETTINGS,
    }
    file.write_text("".join(f"{key} = {value}\n" for key, value in lines.items()))
    ran = librdkafka_tools.twinlog("flows", "create", "--file", str(file), "--json")
    assert ran.status == 0, ran
    (created,) = json.loads(ran.output)
    assert created["created"] == "d-to-b"
    await_values(stage, f"d.{name}", [f"v{at}" for at in range(10)])
    assert done(stage, "delete", "--flow", "d-to-b")["removed"] == [name]


def test_a_mirror_that_is_no_flow_is_refused(stage: Stage, topic: str) -> None:
    stage.create_mirror(f"exact-{topic}")
    refused = flows(stage, "pause", "--flow", f"exact-{topic}")
    assert refused.status == 1
    assert f"mirror exact-{topic} is no flow" in refused.errors
    unknown = flows(stage, "describe", "--flow", "x->y")
    assert unknown.status == 1
    assert unknown.errors.startswith("Error: UNKNOWN_MIRROR: ")
    elsewhere = flows(
        stage,
        *("translate", "--flow", FLOW, "--topic", topic, "--partition", "0", "--offset", "1"),
    )
    assert elsewhere.status == 1
    assert elsewhere.errors.startswith("Error: TOPIC_NOT_IN_MIRROR: ")
