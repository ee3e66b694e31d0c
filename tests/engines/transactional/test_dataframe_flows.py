"""A flow with a query of Spark's on real brokers, while lanes and Spark are killed."""

import asyncio
import os
import random
import signal
from pathlib import Path

import process_tree
import pytest
from confluent_kafka import Producer
from lane_processes import lanes
from stored_flows import states
from transformed_flows import (
    alter,
    await_position,
    await_progress,
    check_copies,
    consumed,
    count,
    headers_of,
    new_flow,
    numbers_written_to,
)
from waiting import SECONDS, until

from conftest import Pair

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(900)]

NAMES = ("nul", "one", "two")
QUERY = {
    "twinlog.transform.sql": """
        SELECT record, if(value.number % 7 = 0, concat('vip-', topic), topic) AS topic,
               named_struct('number', value.number, 'secret', '', 'name', n.name) AS value
        FROM records JOIN names n ON n.id = value.number % 3
        WHERE value.number % 5 <> 0
    """,
    "twinlog.transform.value.format": "json",
    "twinlog.transform.value.schema": "number BIGINT, secret STRING",
}


def names_table(folder: Path) -> dict[str, str]:
    """The property of a static table."""
    path = folder / "names.csv"
    lines = [f"{number},{name}" for number, name in enumerate(NAMES)]
    path.write_text("\n".join(["id,name", *lines, ""]))
    return {"twinlog.transform.tables.names": str(path)}


def transformed(number: int) -> tuple[bytes, object]:
    """What the query makes of a number."""
    value = f'{{"number":{number},"secret":"","name":"{NAMES[number % 3]}"}}'
    return value.encode(), headers_of(number)


def spark_below(pid: int) -> list[int]:
    """The processes of a lane's Spark: Python first, then Java."""
    found = process_tree.below(pid)
    return [
        next((one.pid for one in found if part in one.command), 0)
        for part in ("dataframe_worker", "java")
    ]


@pytest.mark.long
def test_transformed_records_arrive_once_though_lanes_and_spark_are_killed(
    pair: Pair, tmp_path: Path
) -> None:
    """Goal: kill -9 of lane, worker and JVM at random moments: each record once, in order."""
    _, topic = new_flow(pair, {**QUERY, **names_table(tmp_path)})
    source, destination = pair.source.bootstrap_servers, pair.destination.bootstrap_servers
    rng = random.Random(12)
    writing = numbers_written_to(source, topic)

    def goes_on() -> None:
        await_progress(destination, f"a.{topic}", rng, SECONDS)

    try:
        with lanes(destination, tmp_path) as running:
            for turn in range(3):
                node = f"node-{turn}"
                pid = running.start(node)
                goes_on()
                if turn:  # the lane starts Spark again
                    os.kill(spark_below(pid)[turn - 1], signal.SIGKILL)
                    goes_on()
                # What was read before the kill may be written while Spark starts again.
                below = until(
                    lambda pid=pid: spark_below(pid), SECONDS, "Spark is there again", good=all
                )
                running.kill(node)
                until(
                    lambda below=below: not any(map(lives, below)), SECONDS, "Spark has ended, too"
                )
            committed = writing.end()
            running.start("last")
            check_copies(destination, topic, committed, transformed, SECONDS)
    finally:
        writing.end()


def lives(pid: int) -> bool:
    assert pid > 0, "0 is this process's own group"
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.long
def test_what_cannot_be_transformed_is_failed_until_the_query_is_altered(
    pair: Pair, tmp_path: Path
) -> None:
    """Goal: one partition at one record, with its offset; all of them for a wrong query."""
    mirror, topic = new_flow(pair, {"twinlog.transform.sql": "SELECT record FROM recrods"})
    source, destination = pair.source.bootstrap_servers, pair.destination.bootstrap_servers
    producer = Producer({"bootstrap.servers": source})
    good = '{"number":1,"secret":"x"}'
    for partition, values in ((0, [good, good, "{", good]), (1, [good] * 3)):
        for value in values:
            producer.produce(topic, value, partition=partition)
        assert producer.flush(120) == 0  # one batch

    def failed(partition: int, text: str) -> bool:
        state, reason = states(pair, mirror)[partition]
        return state == "FAILED" and text in str(reason)

    with lanes(destination, tmp_path) as running:
        running.start("node")
        until(lambda: failed(0, "TABLE_OR_VIEW_NOT_FOUND"), SECONDS, "the wrong query")
        until(lambda: failed(1, "TABLE_OR_VIEW_NOT_FOUND"), SECONDS, "the wrong query")
        assert count(destination, f"a.{topic}") == 0

        asyncio.run(alter(pair, mirror, {**QUERY, **names_table(tmp_path)}))
        until(lambda: len(consumed(destination, f"a.{topic}")[1]) == 3, SECONDS, "partition 1")
        reason = "the record at offset 2 cannot be transformed: MALFORMED_RECORD"
        until(lambda: failed(0, reason), SECONDS, "the malformed record")
        # What is before it is written, and its own offset is the position.
        until(lambda: len(consumed(destination, f"a.{topic}")[0]) == 2, SECONDS, "two records")
        await_position(pair, mirror, topic, 2, SECONDS)
        until(lambda: states(pair, mirror)[1][0] == "MIRRORING", SECONDS, "the other partition")

        lenient = "SELECT record FROM records WHERE get_json_object(string(value), '$.number') = 1"
        asyncio.run(alter(pair, mirror, {"twinlog.transform.sql": lenient}))
        until(lambda: states(pair, mirror)[0] == ("MIRRORING", None), SECONDS, "it goes on")
        await_position(pair, mirror, topic, 4, SECONDS)
        # Each partition of a transaction has its own marker, which may be written later.
        until(lambda: count(destination, f"a.{topic}") == 6, SECONDS, "all records")
    one = b'{"number":1,"secret":"","name":"one"}'
    assert consumed(destination, f"a.{topic}") == {
        0: [(one, None), (one, None), (good.encode(), None)],
        1: [(one, None)] * 3,
    }
