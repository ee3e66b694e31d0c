"""`verify` of flows with a query on real brokers: right ones, and faults that are planted."""

import asyncio
import json
import re
import time
from collections.abc import Sequence
from pathlib import Path

import librdkafka_tools
import pytest
from clients import patient
from confluent_kafka import Producer
from copied_topic import CopiedTopic
from lane_processes import lanes
from stored_flows import states
from transformed_flows import alter, count, headers_of, new_flow, numbers_written_to
from waiting import SECONDS, until

from conftest import Pair
from twinlog.engines.transactional.positions import position_group
from twinlog.kafka.errors import UserError
from twinlog.operations.mirror_admin import MirrorAdmin
from twinlog.operations.verification_report import (
    DIFFERS,
    SAME,
    LogReport,
    Verification,
)
from twinlog.verify.flow_job import ABSENT, FOREIGN, REPEATED
from twinlog.verify.query_job import TABLES
from twinlog.verify.query_spool import SEVERAL
from twinlog.verify.verdict import DifferenceKind

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(1200)]

BEGAN_MS = int(time.time() * 1000)
JSON = {
    "twinlog.transform.value.format": "json",
    "twinlog.transform.value.schema": "number BIGINT, secret STRING",
}
QUERY = {
    "twinlog.transform.sql": """
        SELECT record, if(value.number % 7 = 0, concat('vip-', topic), topic) AS topic,
               named_struct('number', value.number, 'secret', '') AS value
        FROM records WHERE value.number % 5 <> 0
    """,
    **JSON,
}


def verify(servers: str, flow: str | None, *topics: str) -> Verification:
    """As the command does, where flows may run code; without a flow, of these topics."""
    pattern = re.compile("|".join(topics)) if topics else None

    async def run() -> Verification:
        properties = {**patient(servers), "mirror.dataframes.enable": "true"}
        async with MirrorAdmin(properties) as admin:
            return await admin.verify(flow, pattern, patience_s=60.0)

    return asyncio.run(run())


def found(result: Verification) -> list[tuple[str, int, int, int, str]]:
    return [(*one.partition, *one[1:]) for one in result.differences]


def remote_logs(result: Verification) -> dict[tuple[str, int], LogReport]:
    """The reports, by the target's partition, of those that were compared with it."""
    logs = ((log.remote, log) for log in result.logs)
    return {remote.partition: log for remote, log in logs if remote is not None}


@pytest.mark.long
def test_a_flow_with_a_query_is_the_same_although_its_lane_was_killed(
    pair: Pair, tmp_path: Path
) -> None:
    """Goal: filtered, masked and routed records, once each; then faults in its logs are found."""
    flow, topic = new_flow(pair, QUERY)
    source, target = pair.source.bootstrap_servers, pair.destination.bootstrap_servers
    remote, vip = f"a.{topic}", f"vip-a.{topic}"
    writing = numbers_written_to(source, topic)
    try:
        with lanes(target, tmp_path) as running:
            for turn in range(2):
                running.start(f"node-{turn}")
                before = count(target, remote)
                until(lambda seen=before: count(target, remote) > seen + 100, SECONDS, "more")
                running.kill(f"node-{turn}")
            committed = sorted(writing.end())
            running.start("last")
            kept = [number for number in committed if number % 5]
            until(
                lambda: count(target, remote) + count(target, vip) >= len(kept), SECONDS, "the rest"
            )
            # The last records may be dropped: only the flow's position shows that they were read.
            result = until(
                lambda: verify(target, flow),
                SECONDS,
                "no record behind the flow",
                good=lambda now: now.counts.behind == 0,
            )
            running.kill("last")
    finally:
        writing.end()
    assert result.verdict == SAME, (result.differences, result.unseen)
    assert result.counts.compared == len(kept)
    assert result.counts.behind == 0
    logs = remote_logs(result)
    assert {name for name, _ in logs} == {remote, vip}
    dropped = len(committed) - len(kept)
    by_topic = [log for (name, _), log in logs.items() if name == remote]
    assert sum(log.counts.absent["filtered"] for log in by_topic) == dropped

    producer = Producer({"bootstrap.servers": target})
    producer.produce(remote, b'{"number":1,"secret":"x"}', None, 0)
    assert producer.flush(120) == 0
    result = verify(target, flow)
    assert result.verdict == DIFFERS
    ((name, partition, _, _, reason),) = found(result)
    assert (name, partition, reason) == (remote, 0, f"remote log: {FOREIGN}")


@pytest.mark.long
def test_a_map_is_compared_with_its_own_log_alone(pair: Pair, tmp_path: Path) -> None:
    """Goal: a row that goes where none may stops the flow; what is before it is right."""
    sql = "SELECT record, if(value.number = 8, concat('vip-', topic), topic) AS topic FROM records"
    kept = {"twinlog.transform.routes": "false", "twinlog.offset.map": "true"}
    flow, topic = new_flow(pair, {"twinlog.transform.sql": sql, **JSON, **kept})
    source, target = pair.source.bootstrap_servers, pair.destination.bootstrap_servers
    send(source, topic, range(20))
    send(target, f"vip-a.{topic}", [99])
    with lanes(target, tmp_path) as running:
        running.start("node")
        until(lambda: count(target, f"a.{topic}") == 8, SECONDS, "the records before it")
        until(
            lambda: states(pair, flow)[0],
            SECONDS,
            "the reason",
            good=lambda now: now[0] == "FAILED" and "offset 8 cannot be transf" in str(now[1]),
        )
    result = verify(target, flow)
    assert result.differences == ()
    (log,) = (one for one in result.logs if one.partition.partition == 0)
    assert log.remote is not None
    assert log.remote.recorded_map is not None
    assert (log.remote.recorded_map.compared, log.counts.compared) == (8, 8)


def send(
    servers: str, topic: str, numbers: Sequence[int], *, secret: str = "s", partition: int = 0
) -> None:
    producer = Producer({"bootstrap.servers": servers})
    for number in numbers:
        value = json.dumps({"number": number, "secret": secret})
        producer.produce(
            *(topic, value, str(number), partition),
            headers=headers_of(number),
            timestamp=BEGAN_MS + number,
        )
    assert producer.flush(120) == 0


def copied_by_a_program(
    pair: Pair, copies: Sequence[int], query: dict[str, str], count: int = 20
) -> CopiedTopic:
    """A flow whose source has numbers, and whose remote topic another program has written."""
    copied = CopiedTopic(pair, query)
    send(copied.source, copied.topic, range(count))
    send(copied.target, copied.remote, copies, secret="")
    group = position_group("twinlog", copied.flow)
    librdkafka_tools.commit(copied.target, group, copied.remote, {0: count})
    return copied


MASK = {
    "twinlog.transform.sql": "SELECT record, named_struct('number', value.number, 'secret', '') "
    "AS value FROM records WHERE value.number % 5 <> 0",
    **JSON,
}
KEPT = [number for number in range(20) if number % 5]


def test_faults_in_a_copy_are_found(pair: Pair) -> None:
    """Goal: a whole copy; a record lost, doubled, altered, swapped, foreign, or not filtered."""
    at = KEPT.index(8)
    doubled = [*KEPT[: at + 1], 8, *KEPT[at + 1 :]]
    swapped = [*KEPT[:at], KEPT[at + 1], 8, *KEPT[at + 2 :]]
    flows = {
        "whole": copied_by_a_program(pair, KEPT, MASK),
        "lost": copied_by_a_program(pair, [one for one in KEPT if one != 8], MASK),
        "doubled": copied_by_a_program(pair, doubled, MASK),
        "swapped": copied_by_a_program(pair, swapped, MASK),
        "unfiltered": copied_by_a_program(pair, [0, *KEPT], MASK),
    }
    altered = flows["altered"] = copied_by_a_program(pair, KEPT[:at], MASK)
    send(altered.target, altered.remote, [8], secret="s")
    send(altered.target, altered.remote, KEPT[at + 1 :], secret="")
    result = verify(altered.target, None, *(flow.topic for flow in flows.values()))
    assert result.verdict == DIFFERS
    by_topic = {
        name: [one[2:] for one in found(result) if one[0] in {flow.topic, flow.remote}]
        for name, flow in flows.items()
    }
    assert by_topic["whole"] == []
    assert by_topic["lost"] == [(8, 9, DifferenceKind.LOST)]
    assert by_topic["doubled"] == [(at + 1, at + 2, f"remote log: {REPEATED}")]
    assert [reason for _, _, reason in by_topic["swapped"]] == [
        DifferenceKind.LOST,
        f"remote log: {REPEATED}",
    ]
    assert by_topic["unfiltered"] == [(0, 1, f"remote log: {FOREIGN}")]
    assert by_topic["altered"] == [
        (8, 9, DifferenceKind.CONTENT),
        (at, at + 1, f"remote log: {DifferenceKind.CONTENT}"),
    ]


@pytest.mark.long
def test_what_cannot_be_judged_is_not_seen(pair: Pair, tmp_path: Path) -> None:
    """Goal: several records of one, a topic that does not exist, and a static table."""
    split = {
        "twinlog.transform.sql": "SELECT record, t AS key FROM (SELECT record, "
        "explode(if(offset = 3, array('a', 'b'), array('a'))) AS t FROM records)"
    }
    flows = {
        "split": copied_by_a_program(pair, [], split, 5),
        "absent": copied_by_a_program(
            pair,
            [],
            {"twinlog.transform.sql": "SELECT record, 'gone-' || topic AS topic FROM records"},
        ),
    }
    table = tmp_path / "names.csv"
    table.write_text("id\n" + "\n".join(map(str, range(19))) + "\n")
    joined = {
        **MASK,
        "twinlog.transform.sql": "SELECT record, named_struct('number', number, 'secret', '') AS "
        "value FROM (SELECT record, value.number FROM records) JOIN names ON id = number "
        "WHERE number % 5 <> 0",
        "twinlog.transform.tables.names": str(table),
    }
    flows["joined"] = copied_by_a_program(pair, KEPT, joined)
    result = verify(flows["split"].target, None, *(flow.topic for flow in flows.values()))
    unseen = {
        name: [
            (one.partition.topic, *one[1:])
            for one in result.unseen
            if flow.topic in one.partition.topic
        ]
        for name, flow in flows.items()
    }
    assert not [one for one in found(result) if one[0] != flows["split"].topic]
    assert unseen["split"] == [(flows["split"].topic, 3, 4, SEVERAL)]
    absent = flows["absent"]
    assert unseen["absent"] == [(absent.topic, 0, 20, f"no copy: remote log: {ABSENT}")]
    joined_flow = flows["joined"]
    assert unseen["joined"] == [
        (joined_flow.remote, len(KEPT) - 1, len(KEPT), f"remote log: no original: source: {TABLES}")
    ], "19 is not in the table now"


@pytest.mark.long
def test_records_go_to_other_partitions(pair: Pair) -> None:
    """Goal: partitions that the query chooses; a record in a wrong one is found."""
    query = {
        "twinlog.transform.sql": "SELECT record, CAST(CAST(CAST(key AS STRING) AS INT) % 2 AS INT) "
        "AS partition FROM records"
    }
    flow, topic = new_flow(pair, query)
    source, target, remote = (
        pair.source.bootstrap_servers,
        pair.destination.bootstrap_servers,
        f"a.{topic}",
    )
    for partition in range(3):
        send(source, topic, range(partition * 10, partition * 10 + 10), partition=partition)
    for number in (0, 10, 2, 20, 4, 6, 12, 8, 14, 22, 24, 16, 26, 18, 28):
        send(target, remote, [number])
    for number in (21, 1, 3, 11, 13, 23, 5, 7, 15, 25, 27, 29, 17, 19, 9):
        send(target, remote, [number], partition=1)
    group = position_group("twinlog", flow)
    librdkafka_tools.commit(target, group, remote, {0: 10, 1: 10, 2: 10})
    result = verify(target, flow)
    assert result.verdict == SAME, (result.differences, result.unseen)
    assert result.counts.compared == 30
    send(target, remote, [2], partition=1)
    result = verify(target, flow)
    assert result.verdict == DIFFERS
    assert {one[:2] for one in found(result)} == {(remote, 1)}


@pytest.mark.long
def test_a_query_that_cannot_be_decided_is_never_good(pair: Pair, tmp_path: Path) -> None:
    """Goal: a refusal by name, and beside other flows; so is a query that may not run here.

    The command says the same.
    """
    grouped = {
        "twinlog.transform.sql": "SELECT max(record) AS record FROM records GROUP BY key",
    }
    copied = CopiedTopic(pair, grouped)
    with pytest.raises(UserError, match="may depend on more than one record: Aggregate"):
        verify(copied.target, copied.flow)
    result = verify(copied.target, None, copied.topic)
    assert result.verdict != SAME
    assert copied.flow in result.unverified
    assert copied.topic not in {log.partition.topic for log in result.logs}
    with pytest.raises(UserError, match=r"needs mirror\.dataframes\.enable=true"):
        copied.verify()
    properties = tmp_path / "client.properties"
    properties.write_text("mirror.dataframes.enable=true\n")
    arguments = (
        *("verify", "--bootstrap-server", copied.target, "--mirror", copied.flow),
        *("--command-config", str(properties)),
    )
    command = librdkafka_tools.twinlog(*arguments)
    assert (command.status, command.output) == (1, "")
    assert "rows may depend on more than one record: Aggregate" in command.errors
    asyncio.run(alter(pair, copied.flow, {"twinlog.transform.sql": "SELECT record FROM records"}))
    assert verify(copied.target, copied.flow).verdict == SAME
    command = librdkafka_tools.twinlog(*arguments)
    assert command.status == 0, command.errors
    assert command.output.splitlines()[-1].endswith(": the same"), command.output


@pytest.mark.long
def test_a_partition_that_the_query_sends_nothing_to(pair: Pair) -> None:
    """Goal: a copy once more in a partition of a topic where no record should be."""
    flow, topic = new_flow(pair, QUERY)
    source, target = pair.source.bootstrap_servers, pair.destination.bootstrap_servers
    remote, vip = f"a.{topic}", f"vip-a.{topic}"
    librdkafka_tools.make_topic(target, vip, 3)
    send(source, topic, range(1, 9))
    send(target, remote, [1, 2, 3, 4, 6, 8], secret="")
    send(target, vip, [7], secret="")
    librdkafka_tools.commit(target, position_group("twinlog", flow), remote, {0: 8, 1: 0, 2: 0})
    result = verify(target, flow)
    assert (result.verdict, result.counts.compared) == (SAME, 7), result.differences
    assert {place for place in remote_logs(result) if place[0] == vip} == {(vip, 0)}
    send(target, vip, [7], secret="", partition=1)
    assert found(verify(target, flow)) == [(vip, 1, 0, 1, f"remote log: {FOREIGN}")]
