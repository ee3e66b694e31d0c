"""Maps of flows that write in transactions, on real brokers: every offset is translated exactly."""

import asyncio
import json
import random
import secrets
from collections.abc import Collection, Sequence
from pathlib import Path

import pytest
from clients import client, patient, put
from confluent_kafka import Producer
from lane_processes import Lanes, lanes
from transformed_flows import (
    PARTITIONS,
    alter,
    commit_position,
    count,
    kill_lanes,
    new_flow,
    numbers_written_to,
    positions,
)
from waiting import SECONDS, until
from whole_logs import read_whole_log

from conftest import Pair
from twinlog import MirrorAdmin
from twinlog.kafka.errors import UserError
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.recorded_map import MapAnswer
from twinlog.operations.flow_results import Direction, TranslatedOffset
from twinlog.store.offset_log import OFFSETS_TOPIC, read_offsets
from twinlog.store.offset_records import DroppedPart, encode
from twinlog.store.topic_writer import Entry

pytestmark = [pytest.mark.broker, pytest.mark.timeout(900)]

PACKAGE = "org.apache.kafka.connect.transforms."
MAP = {"twinlog.offset.map": "true"}
DROPPING = {
    "transforms": "drop, mask",
    "transforms.drop.type": f"{PACKAGE}Filter",
    "transforms.drop.predicate": "skipped",
    "transforms.mask.type": f"{PACKAGE}MaskField$Value",
    "transforms.mask.fields": "secret",
    "predicates": "skipped",
    "predicates.skipped.type": f"{PACKAGE}predicates.HasHeaderKey",
    "predicates.skipped.name": "skip",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter.schemas.enable": "false",
    **MAP,
}
"""See `numbers_written_to`: of each 5 numbers one is dropped."""
QUERY = {
    "twinlog.transform.sql": """
        SELECT record, named_struct('number', value.number, 'secret', '') AS value
        FROM records WHERE value.number % 5 <> 0
    """,
    "twinlog.transform.value.format": "json",
    "twinlog.transform.value.schema": "number BIGINT",
    "twinlog.transform.routes": "false",
    **MAP,
}
"""The same by Spark."""
IN_TRANSACTIONS = {"transaction.producer": "true", **MAP}


def placed(servers: str, topic: str, partition: int) -> list[tuple[int, bytes]]:
    """Return offset and value of each committed record of a partition."""
    found = read_whole_log(servers, topic, [partition]) or {partition: []}
    return [(one.offset(), one.value()) for one in found[partition]]


def number_of(value: bytes) -> int:
    number: int = json.loads(value)["number"]
    return number


def translated(
    pair: Pair,
    flow: str,
    place: tuple[str, int],
    offsets: Collection[int],
    direction: Direction = Direction.TO_TARGET,
) -> Sequence[TranslatedOffset]:
    """Translate offsets as `twinlog flows translate` does."""

    async def ask() -> Sequence[TranslatedOffset]:
        async with MirrorAdmin(patient(pair.destination.bootstrap_servers)) as admin:
            answer = await admin.flows.translate_offsets(flow, *place, offsets, direction)
        return answer.offsets

    return asyncio.run(ask())


def check_map(pair: Pair, flow: str, topic: str, partition: int, *, start: int = 0) -> int:
    """Check each offset of both logs against the records themselves; return how many were exact.

    Args:
        pair: the clusters.
        flow: the flow.
        topic: the source's topic, whose values have numbers.
        partition: of both.
        start: where the map begins: lower offsets are not to be translated.
    """
    source = placed(pair.source.bootstrap_servers, topic, partition)
    target = placed(pair.destination.bootstrap_servers, f"a.{topic}", partition)
    source_of = {number_of(value): offset for offset, value in source}
    # Where a record was copied twice, the later copy is of the present map.
    copies = sorted({source_of[number_of(value)]: offset for offset, value in target}.items())
    copies = [(at, to) for at, to in copies if at >= start]
    exact = 0
    asked = range(source[-1][0] + 2)
    forward = translated(pair, flow, (topic, partition), asked)
    for answer in forward:
        offset = answer.source_offset
        assert offset is not None
        if offset < start:
            assert answer.target_offset is None, answer
            assert answer.answer is MapAnswer.BEFORE_START
            continue
        following = next((to for at, to in copies if at >= offset), None)
        if following is not None:
            assert answer.target_offset == following, answer
            is_copied = any(at == offset for at, _ in copies)
            assert (answer.answer is MapAnswer.RECORD) == is_copied, answer
            exact += 1
        elif answer.target_offset is not None:  # behind the last copy: before what is copied next
            assert answer.answer is MapAnswer.END, answer
            assert copies[-1][1] < answer.target_offset <= target[-1][0] + 2, answer
        else:
            assert answer.answer is MapAnswer.NOT_COPIED, answer
    back = translated(
        pair,
        flow,
        (f"a.{topic}", partition),
        range(copies[0][1], copies[-1][1] + 1),
        Direction.TO_SOURCE,
    )
    for answer in back:
        offset = answer.target_offset
        assert offset is not None
        assert answer.source_offset == next(at for at, to in copies if to >= offset), answer
        exact += 1
    return exact


@pytest.mark.parametrize(
    "transforms",
    [DROPPING, pytest.param(QUERY, marks=[pytest.mark.spark, pytest.mark.long])],
    ids=["chain", "query"],
)
def test_each_offset_is_translated_though_lanes_are_killed(
    pair: Pair, tmp_path: Path, transforms: dict[str, str]
) -> None:
    """Goal: kill -9 at random moments, records that are dropped: the map is exact."""
    kills = 2 if transforms is QUERY else 4  # Spark takes its time to start
    flow, topic = new_flow(pair, transforms)
    source, destination = pair.source.bootstrap_servers, pair.destination.bootstrap_servers
    writing = numbers_written_to(source, topic)
    try:
        with lanes(destination, tmp_path) as running:
            kill_lanes(running, kills, f"a.{topic}", random.Random(11), SECONDS)
            committed = writing.end()
            running.start("last")
            wanted = sum(1 for number in committed if number % 5)
            until(lambda: count(destination, f"a.{topic}") >= wanted, SECONDS, f"{wanted} records")
            assert count(destination, f"a.{topic}") == wanted
            for partition in range(PARTITIONS):
                assert check_map(pair, flow, topic, partition) > 100
    finally:
        writing.end()


def write_numbers(servers: str, topic: str, numbers: Sequence[int]) -> None:
    """Write numbers, a transaction for each 10, with another one between them that is aborted."""
    producer = Producer({"bootstrap.servers": servers, "transactional.id": secrets.token_hex(4)})
    producer.init_transactions(120)
    for first in range(0, len(numbers), 10):
        for aborted in (True, False):
            producer.begin_transaction()
            for number in numbers[first : first + 10]:
                value = json.dumps({"number": -1 if aborted else number})
                producer.produce(topic, value, partition=number % PARTITIONS)
            if aborted:
                assert producer.flush(120) == 0
                producer.abort_transaction(120)
            else:
                producer.commit_transaction(120)


def await_count(pair: Pair, topic: str, wanted: int) -> None:
    servers = pair.destination.bootstrap_servers
    until(lambda: count(servers, f"a.{topic}") >= wanted, SECONDS, f"{wanted} records")
    assert count(servers, f"a.{topic}") == wanted


def copy_numbers(pair: Pair, topic: str, numbers: range) -> None:
    """Write numbers that follow those written before, and wait until they are copied."""
    write_numbers(pair.source.bootstrap_servers, topic, numbers)
    await_count(pair, topic, numbers.stop)


def flow_with_copies(pair: Pair, running: Lanes) -> tuple[str, str]:
    """Copy 300 numbers by a new flow, then kill its lane; return its name and the topic's."""
    flow, topic = new_flow(pair, IN_TRANSACTIONS)
    running.start("node")
    copy_numbers(pair, topic, range(300))
    running.kill("node")
    return flow, topic


def committed(pair: Pair, flow: str, topic: str, partition: int) -> int:
    return asyncio.run(positions(pair, flow, topic))[partition].offset


def first_translated(pair: Pair, flow: str, topic: str) -> int | None:
    """Return the lowest offset of partition 0 that is translated."""
    answers = translated(pair, flow, (topic, 0), range(600))
    return next((one.source_offset for one in answers if one.target_offset is not None), None)


def test_a_map_that_is_switched_on_later_begins_there(pair: Pair, tmp_path: Path) -> None:
    """Goal: nothing before is translated, by no guess; and nothing at all while it is off."""
    off = {"transaction.producer": "true"}
    flow, topic = new_flow(pair, off)
    with lanes(pair.destination.bootstrap_servers, tmp_path) as running:
        running.start("node")
        copy_numbers(pair, topic, range(150))
        with pytest.raises(UserError, match="its offsets are not recorded"):
            translated(pair, flow, (topic, 0), [1])
        starts = [committed(pair, flow, topic, partition) for partition in range(PARTITIONS)]
        asyncio.run(alter(pair, flow, IN_TRANSACTIONS))
        written = 150

        def begins() -> int | None:
            nonlocal written
            copy_numbers(pair, topic, range(written, written + 30))
            written += 30
            return first_translated(pair, flow, topic)

        start = until(begins, SECONDS, "a map", pause=1.0)
        assert start is not None
        assert start >= starts[0]
        assert check_map(pair, flow, topic, 0, start=start) > 10
        asyncio.run(alter(pair, flow, off))
        running.kill("node")
        running.start("second")
        copy_numbers(pair, topic, range(written, written + 90))
        written += 90
        asyncio.run(alter(pair, flow, IN_TRANSACTIONS))
        again = until(begins, SECONDS, "another map", good=lambda at: (at or 0) > start, pause=1.0)
        assert again is not None
        assert check_map(pair, flow, topic, 0, start=again) > 10


def test_an_offset_in_an_open_transaction_is_not_translated(pair: Pair, tmp_path: Path) -> None:
    """Goal: while a transaction is open, what the flow has copied in it is in no map."""
    servers = pair.destination.bootstrap_servers
    with lanes(servers, tmp_path) as running:
        flow, topic = flow_with_copies(pair, running)
    other = Producer({"bootstrap.servers": servers, "transactional.id": secrets.token_hex(4)})
    other.init_transactions(120)
    other.begin_transaction()
    for _ in range(3):
        other.produce(f"a.{topic}", b"open", partition=0)
    assert other.flush(120) == 0
    end = placed(servers, f"a.{topic}", 0)[-1][0]
    asked = range(end, end + 5)  # a record, its marker, and what is open

    def answers() -> list[MapAnswer]:
        place = (f"a.{topic}", 0)
        return [one.answer for one in translated(pair, flow, place, asked, Direction.TO_SOURCE)]

    known = [MapAnswer.RECORD, MapAnswer.END, MapAnswer.END]
    assert answers() == [*known, MapAnswer.NOT_COPIED, MapAnswer.NOT_COPIED]
    other.abort_transaction(120)
    assert answers() == [*known, MapAnswer.END, MapAnswer.END]


def test_an_offset_of_an_operator_begins_the_map_anew(pair: Pair, tmp_path: Path) -> None:
    """Goal: records that are copied again are translated to their later copies, others not."""
    with lanes(pair.destination.bootstrap_servers, tmp_path) as running:
        flow, topic = flow_with_copies(pair, running)
        for partition in range(PARTITIONS):
            assert check_map(pair, flow, topic, partition) > 100
        records = placed(pair.source.bootstrap_servers, topic, 0)
        back, again = records[40][0], len(records) - 40
        commit_position(pair, flow, f"a.{topic}", back)
        running.start("second")
        await_count(pair, topic, 300 + again)
        assert check_map(pair, flow, topic, 0, start=back) > 50
        for partition in (1, 2):
            assert check_map(pair, flow, topic, partition) > 100


def test_a_map_with_a_part_that_is_lost_begins_anew(pair: Pair, tmp_path: Path) -> None:
    """Goal: a partition without its map is not translated; it goes on, and so do the others."""
    with lanes(pair.destination.bootstrap_servers, tmp_path) as running:
        flow, topic = flow_with_copies(pair, running)
        start = committed(pair, flow, topic, 0)
        asyncio.run(lose_part(pair, flow, topic))
        (answer,) = translated(pair, flow, (topic, 0), [5])
        assert answer.answer is MapAnswer.NO_MAP
        running.start("second")
        copy_numbers(pair, topic, range(300, 360))
        assert check_map(pair, flow, topic, 0, start=start) > 10
        for partition in (1, 2):
            assert check_map(pair, flow, topic, partition) > 100
        (log,) = tmp_path.glob("second.log")
        assert log.read_text().count("its map of offsets begins anew") == 1


async def lose_part(pair: Pair, flow: str, topic: str) -> None:
    """Write a tombstone for the last part of the map of partition 0."""
    name = MirrorPartition(flow, topic, 0)
    async with client(pair.destination) as cluster:
        stored = await read_offsets(cluster)
        (place,) = (number for number, one in stored.items() if name in one.headed)
        head = stored[place].headed[name].end().head
        assert head is not None
        entry = Entry(OFFSETS_TOPIC, place, *encode(DroppedPart(name, head.last)))
        await put(cluster, [entry])
