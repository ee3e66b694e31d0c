"""`verify` of flows on real brokers: right ones, and faults that are planted in each part."""

import asyncio
from dataclasses import replace
from pathlib import Path

import librdkafka_tools
import pytest
from clients import client
from confluent_kafka import Producer
from copied_topic import CopiedTopic
from lane_processes import lanes
from tasks_here import run_tasks_here
from waiting import SECONDS, until

from conftest import Pair
from twinlog.engines.transactional.positions import position_group
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import UserError
from twinlog.kafka.groups.offsets import Committed, commit_offsets
from twinlog.kafka.requests.partitions import delete_records
from twinlog.kafka.types import Offset, TopicPartition
from twinlog.mirror.offset_runs import Ends, Run
from twinlog.mirror.settings import FLOW_PREFIX
from twinlog.operations.flow_verification import NOTHING_RECORDED
from twinlog.operations.verification_report import (
    DIFFERS,
    NOT_SEEN,
    SAME,
    Counts,
    Verification,
)
from twinlog.store.map_chunks import MapChunk
from twinlog.store.mirrors import MirrorStore
from twinlog.store.offset_log import HeadedMap, StoredOffsets, read_offsets
from twinlog.store.offset_records import DroppedPart, MapPart, OffsetRecord
from twinlog.verify.flow_job import BEFORE, FOREIGN, REPEATED
from twinlog.verify.map_check import LOST_COPIES
from twinlog.verify.verdict import DifferenceKind

pytestmark = [pytest.mark.broker]


@pytest.fixture(autouse=True)
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the tasks in this process."""
    run_tasks_here(monkeypatch)


def found(result: Verification) -> list[tuple[str, int, int, str]]:
    """The ranges that differ."""
    return [(one.partition.topic, *one[1:]) for one in result.differences]


def write_transactions(servers: str, topic: str, numbers: range) -> None:
    """Write numbers, ten in a transaction; each third transaction is aborted, and repeated."""
    producer = Producer({"bootstrap.servers": servers, "transactional.id": topic})
    producer.init_transactions(120)
    for first in numbers[::10]:
        for commit in ([False] if first % 30 == 0 else []) + [True]:
            producer.begin_transaction()
            for number in range(first, first + 10):
                producer.produce(topic, str(number), partition=0, headers={"n": str(number)})
            producer.flush(120)
            if commit:
                producer.commit_transaction(120)
            else:
                producer.abort_transaction(120)


def await_same(copied: CopiedTopic) -> None:
    """Wait until all is copied and, a moment later, the map of it is stored."""
    until(
        copied.verify,
        SECONDS,
        "all of it copied",
        good=lambda now: (now.verdict, now.counts.behind) == (SAME, 0),
    )


def test_a_flow_whose_lane_was_killed_is_the_same(pair: Pair, tmp_path: Path) -> None:
    """Goal: transactions, aborted records and fences on the way; and what is behind is counted."""
    copied = CopiedTopic(pair)
    write_transactions(copied.source, copied.topic, range(100))
    assert (before := copied.verify()).verdict == SAME, "nothing is claimed"
    assert before.counts.behind > 110
    assert before.counts.compared == 0
    with lanes(copied.target, tmp_path) as running:
        running.start("first")
        copied.await_copied(100)
        running.kill("first")
        write_transactions(copied.source, copied.topic, range(100, 300))
        running.start("second")
        result = copied.await_copied(300)
        running.kill("second")
    assert result.verdict == SAME, (result.differences, result.unseen)
    (log,) = result.logs
    assert log.remote is not None
    assert log.remote.partition == TopicPartition(copied.remote, 0)
    assert log.remote.counts.compared == 300
    assert log.remote.counts.absent["marker"] >= 1, "the fence of the second lane"
    assert log.counts.absent["aborted"] == 100
    librdkafka_tools.write(copied.source, copied.topic, librdkafka_tools.simple(5))
    later = copied.verify()
    assert (later.verdict, later.counts.behind) == (SAME, 5)


def test_planted_faults_in_the_logs_are_found(pair: Pair, tmp_path: Path) -> None:
    """Goal: foreign and repeated records, and records that were deleted on either side."""
    copied = CopiedTopic(pair)
    librdkafka_tools.write_same(copied.source, copied.topic, 0, 0, 50)
    with lanes(copied.target, tmp_path) as running:
        running.start("node")
        copied.await_copied(50)
        librdkafka_tools.write_same(copied.target, copied.remote, 0, 7, 8)
        copied.written("foreign")
        # The two are in the middle once more is copied.
        librdkafka_tools.write_same(copied.source, copied.topic, 0, 50, 60)
        copied.await_copied(60)
        running.kill("node")
    result = copied.verify()
    assert result.verdict == DIFFERS
    expected = [
        (copied.remote, 50, 51, f"remote log: {REPEATED}"),
        (copied.remote, 51, 52, f"remote log: {FOREIGN}"),
    ]
    assert found(result) == expected
    assert not result.unseen

    async def delete(cluster: KafkaCluster, topic: str, before: int) -> None:
        await delete_records(cluster, {TopicPartition(topic, 0): before})

    copied.on_target(lambda cluster: delete(cluster, copied.remote, 55))
    result = copied.verify()
    assert found(result) == [], "the two are gone"
    assert result.verdict == NOT_SEEN
    assert [one[1:3] for one in result.unseen] == [(0, 53)]
    assert (result.counts.compared, result.counts.not_seen) == (7, 53)

    async def run() -> None:
        async with client(pair.source) as cluster:
            await delete(cluster, copied.topic, 57)

    asyncio.run(run())
    result = copied.verify()
    assert result.verdict == NOT_SEEN
    assert [(one.partition.topic, one.start, one.end) for one in result.unseen] == [
        (copied.remote, 55, 59)
    ]
    assert result.counts.compared == result.counts.length == 3


def test_a_wrong_map_is_found(pair: Pair, tmp_path: Path) -> None:
    """Goal: an entry of `__mirror_offsets` that was altered, although the records are right."""
    copied = CopiedTopic(pair)
    write_transactions(copied.source, copied.topic, range(40))
    with lanes(copied.target, tmp_path) as running:
        running.start("node")
        copied.await_copied(40)
        running.kill("node")

    def shifted(stored: StoredOffsets) -> OffsetRecord:
        (chunk,) = next(
            chunks for name, chunks in stored.chunks.items() if name.mirror == copied.flow
        )
        first, second, *others = chunk.runs.decoded()
        moved = second._replace(
            destination=Offset(second.destination + 1), length=second.length - 1
        )
        return MapChunk(chunk.name, chunk.number, chunk.runs.start, (first, moved, *others))

    copied.change_offsets(shifted)
    result = copied.verify()
    assert result.verdict == DIFFERS
    assert result.counts.compared == 40, "the records are the same"
    (log,) = result.logs
    assert log.remote is not None
    assert log.remote.recorded_map is not None
    assert log.remote.recorded_map.differs == 10
    texts = [one.reason for one in result.differences]
    assert texts[0].startswith("recorded map: it has remote offset"), texts
    assert texts[1].startswith("recorded map: it lacks this record"), texts
    assert {one.partition.topic for one in result.differences} == {copied.topic}


@pytest.mark.parametrize("transactions", ["false", "true"])
def test_copies_of_which_nothing_is_recorded_are_not_seen(pair: Pair, transactions: str) -> None:
    """Goal: `__mirror_offsets`, or a group, that has lost all it held of a flow."""
    copied = CopiedTopic(pair, transaction_producer=transactions)
    librdkafka_tools.write_same(copied.source, copied.topic, 0, 0, 20)
    assert copied.verify().verdict == SAME, "nothing is copied"
    librdkafka_tools.write_same(copied.target, copied.remote, 0, 0, 20)
    result = copied.verify()
    assert (result.verdict, result.counts.compared) == (NOT_SEEN, 20)
    assert [one.reason for one in result.unseen] == [f"recorded map: {NOTHING_RECORDED}"]


def test_records_that_a_flow_has_skipped_are_found(pair: Pair, tmp_path: Path) -> None:
    """Goal: a flow that goes on at a wrong position: its map agrees with what it has done."""
    copied = CopiedTopic(pair)
    librdkafka_tools.write_same(copied.source, copied.topic, 0, 0, 20)
    with lanes(copied.target, tmp_path) as running:
        running.start("first")
        copied.await_copied(20)
        running.kill("first")
        librdkafka_tools.write_same(copied.source, copied.topic, 0, 20, 50)

        def ahead(stored: StoredOffsets) -> OffsetRecord:
            (plan,) = [plan for name, plan in stored.plans.items() if name.mirror == copied.flow]
            recorded = Ends(Offset(30), plan.plan.recorded.destination)
            return replace(plan, plan=plan.plan._replace(recorded=recorded, runs=()))

        copied.change_offsets(ahead)
        running.start("second")
        until(
            copied.verify,
            SECONDS,
            "20 more records",
            good=lambda result: result.counts.compared == 40,
        )
        running.kill("second")
    result = copied.verify()
    assert result.verdict == DIFFERS
    assert found(result) == [(copied.topic, 20, 30, DifferenceKind.LOST)]


def test_what_another_program_has_copied_is_not_seen_or_equal(pair: Pair, tmp_path: Path) -> None:
    """Goal: a takeover's begin: repeats in front of it are not the flow's, and are never good."""
    copied = CopiedTopic(pair)
    librdkafka_tools.write_same(copied.source, copied.topic, 0, 0, 30)
    librdkafka_tools.write_same(copied.target, copied.remote, 0, 0, 20)
    librdkafka_tools.write_same(copied.target, copied.remote, 0, 15, 20)

    async def take_over(cluster: KafkaCluster) -> None:
        await MirrorStore(cluster).change(
            lambda now: [
                replace(topic, begins=(20,)) for topic in now.topics if topic.mirror == copied.flow
            ]
        )

    copied.on_target(take_over)
    nothing_yet = copied.verify()
    assert nothing_yet.verdict == NOT_SEEN
    assert not nothing_yet.differences
    with lanes(copied.target, tmp_path) as running:
        running.start("node")
        # Only the repeats are not seen, once the map is stored, too.
        until(
            copied.verify,
            SECONDS,
            "the rest copied",
            good=lambda now: now.counts.behind == 0 and len(now.unseen) == 1,
        )
        running.kill("node")
    result = copied.verify()
    assert not result.differences
    assert result.verdict == NOT_SEEN
    (repeats,) = result.unseen
    assert repeats[1:3] == (20, 25)
    assert repeats.reason == f"remote log: no original: source: {BEFORE}"
    assert result.counts.compared == 30


def test_a_flow_that_began_at_the_end_is_compared_from_there(pair: Pair, tmp_path: Path) -> None:
    copied = CopiedTopic(pair, consumer_auto_offset_reset="latest")
    librdkafka_tools.write_same(copied.source, copied.topic, 0, 0, 30)
    with lanes(copied.target, tmp_path) as running:
        running.start("node")

        def goes_on() -> bool:
            librdkafka_tools.write_same(copied.source, copied.topic, 0, 30, 31)
            return copied.verify().counts.compared > 0

        until(goes_on, SECONDS, "a record that was copied")
        await_same(copied)
        running.kill("node")
    result = copied.verify()
    assert result.verdict == SAME
    assert result.counts.length < 30 + result.counts.compared + result.counts.behind


@pytest.mark.parametrize("transactions", ["false", "true"])
def test_what_a_flow_has_not_left_out_on_purpose_is_compared(
    pair: Pair, tmp_path: Path, transactions: str
) -> None:
    """Goal: where a flow follows a partition from is stored; a later begin is never equal."""
    copied = CopiedTopic(
        pair, consumer_auto_offset_reset="latest", transaction_producer=transactions
    )
    librdkafka_tools.write_same(copied.source, copied.topic, 0, 0, 30)

    def follow(*offsets: int) -> None:
        async def write(cluster: KafkaCluster) -> None:
            await MirrorStore(cluster).change(
                lambda now: [replace(one, followed_from=offsets) for one in now.topics]
            )

        copied.on_target(write)

    follow(10 if transactions == "false" else 0)
    with lanes(copied.target, tmp_path) as running:
        running.start("first")
        until(lambda: copied.verify().counts.behind == 0, SECONDS, "all of it copied")
        running.kill("first")
        librdkafka_tools.write_same(copied.source, copied.topic, 0, 30, 40)
        running.start("second")
        await_same(copied)
        running.kill("second")
    result = copied.verify()
    assert result.verdict == SAME, (result.differences, result.unseen)
    if transactions == "true":
        assert result.counts.compared == 40, "it was there whole"
        return
    assert result.counts.compared == 30
    follow(4)
    result = copied.verify()
    assert result.verdict == NOT_SEEN
    assert [one[1:3] for one in result.unseen] == [(4, 10)]
    assert result.counts.compared == 30


def test_a_recreated_remote_topic_differs(pair: Pair, tmp_path: Path) -> None:
    copied = CopiedTopic(pair)
    librdkafka_tools.write_same(copied.source, copied.topic, 0, 0, 20)
    with lanes(copied.target, tmp_path) as running:
        running.start("node")
        copied.await_copied(20)
        running.kill("node")
    librdkafka_tools.delete_topic(copied.target, copied.remote)
    librdkafka_tools.make_topic(copied.target, copied.remote)
    librdkafka_tools.write_same(copied.target, copied.remote, 0, 0, 20)
    result = copied.verify()
    assert result.verdict == DIFFERS
    assert found(result) == [
        (copied.remote, 0, 20, "remote log: the topic was deleted and recreated")
    ]


def test_a_flow_in_transactions_is_compared_by_content(pair: Pair, tmp_path: Path) -> None:
    """Goal: without transforms its copies are equal; its markers have no originals."""
    copied = CopiedTopic(pair, transaction_producer="true")
    write_transactions(copied.source, copied.topic, range(60))
    with lanes(copied.target, tmp_path) as running:
        running.start("node")
        result = copied.await_copied(60)
        running.kill("node")
    assert result.verdict == SAME, (result.differences, result.unseen)
    (log,) = result.logs
    assert log.remote is not None
    assert log.remote.recorded_map is None
    copied.written("foreign")
    assert found(copied.verify()) == [
        (
            copied.remote,
            log.remote.counts.length,
            log.remote.counts.length + 1,
            f"remote log: {FOREIGN}",
        )
    ]


IN_TRANSACTIONS = {"transaction_producer": "true", "twinlog_offset_map": "true"}


def map_counts(result: Verification) -> Counts:
    """What was found of the map."""
    (log,) = result.logs
    assert log.remote is not None
    assert log.remote.recorded_map is not None
    return log.remote.recorded_map


def has_map(result: Verification) -> bool:
    return all(log.remote is not None and log.remote.recorded_map for log in result.logs)


def stored_map(copied: CopiedTopic) -> HeadedMap:
    """The map of the partition of a flow in transactions."""
    maps: list[HeadedMap] = []

    async def read(cluster: KafkaCluster) -> None:
        for stored in (await read_offsets(cluster)).values():
            maps.extend(
                one.whole() for name, one in stored.headed.items() if name.mirror == copied.flow
            )

    copied.on_target(read)
    (found,) = maps
    return found


def put_back(copied: CopiedTopic, offset: int) -> None:
    """Commit a position, as an operator does, once the group is without its lane."""

    async def commit(cluster: KafkaCluster) -> None:
        key = TopicPartition(copied.remote, 0)
        group = position_group("twinlog", copied.flow)
        answers = await commit_offsets(cluster, group, {key: Committed(offset)})
        assert answers == {key: None}, answers

    def done() -> bool:
        try:
            copied.on_target(commit)
        except AssertionError:
            return False
        return True

    until(done, SECONDS, "the group without its lane")


def test_a_wrong_map_of_a_flow_in_transactions_is_found(pair: Pair, tmp_path: Path) -> None:
    """Goal: what was altered in `__mirror_offsets`, and nothing else; first, it is the same."""
    copied = CopiedTopic(pair, IN_TRANSACTIONS)
    write_transactions(copied.source, copied.topic, range(40))
    with lanes(copied.target, tmp_path) as running:
        running.start("first")
        copied.await_copied(40)
        running.kill("first")
        write_transactions(copied.source, copied.topic, range(40, 80))
        running.start("second")
        result = copied.await_copied(80)
        running.kill("second")
    assert result.verdict == SAME, (result.differences, result.unseen)
    assert map_counts(result) == Counts(compared=80)
    stored = stored_map(copied)
    (chunk,) = (part.decoded() for part in stored.parts)
    head, second, *others = chunk.runs
    assert second.length == 10
    at, end, place = second.source, second.source_end, second.destination
    moved = f"recorded map: it has remote offset {place + 1}, the copy is at {place}"
    lacks = "recorded map: it lacks this record, whose copy is at remote offset"
    none = f"recorded map: it has remote offset {place}, and there is no copy"
    shorter = second._replace(length=9)
    faults: list[tuple[list[Run], list[tuple[int, int, str]]]] = [
        (
            [shorter._replace(destination=Offset(place + 1))],
            [(at, end - 1, moved), (end - 1, end, f"{lacks} {place + 9}")],
        ),
        ([], [(at, end, f"{lacks} {place}")]),
        (
            [
                Run(Offset(at - 1), place, 1),
                Run(Offset(at + 1), Offset(place + 1), 9),
            ],
            [(at - 1, at, none), (at, at + 1, f"{lacks} {place}")],
        ),
    ]
    for runs, expected in faults:
        altered = MapPart(replace(chunk, runs=(head, *runs, *others)))

        def alter(_: object, part: MapPart = altered) -> MapPart:
            return part

        copied.change_offsets(alter)
        result = copied.verify()
        assert result.verdict == DIFFERS
        assert result.counts.compared == 80, "the records are the same"
        assert found(result) == [(copied.topic, *one) for one in expected]
        assert not result.unseen
        differing = sum(last - first for first, last, _ in expected)
        assert map_counts(result).differs == differing
    copied.change_offsets(lambda _: MapPart(chunk))
    assert copied.verify().verdict == SAME
    assert stored.head is not None
    lost = replace(stored.head, lost=True)
    copied.change_offsets(lambda _: lost)
    result = copied.verify()
    assert result.verdict == NOT_SEEN
    assert [one.reason for one in result.unseen] == [LOST_COPIES]
    assert map_counts(result) == Counts(not_seen=80)


def test_a_map_that_has_begun_anew_is_equal_from_there(pair: Pair, tmp_path: Path) -> None:
    """Goal: a lane is killed and the map lost: it is equal from where it has begun, else not seen.

    Where records were copied again, it has the second copies: they are repeats, and it is right.
    """
    copied = CopiedTopic(pair, IN_TRANSACTIONS)
    write_transactions(copied.source, copied.topic, range(60))
    with lanes(copied.target, tmp_path) as running:
        running.start("first")
        copied.await_copied(60)
        running.kill("first")
        head = stored_map(copied).head
        assert head is not None
        copied.change_offsets(lambda _: DroppedPart(head.name, head.last))
        result = copied.verify()
        assert result.verdict == NOT_SEEN
        assert [one.reason for one in result.unseen] == [f"recorded map: {NOTHING_RECORDED}"]
        write_transactions(copied.source, copied.topic, range(60, 100))
        running.start("second")

        def mapped(count: int) -> Verification:
            return until(
                copied.verify,
                SECONDS,
                f"{count} records in the map",
                good=lambda now: (
                    now.counts.behind == 0 and has_map(now) and map_counts(now).compared == count
                ),
            )

        result = mapped(40)
        assert result.counts.compared == 100
        running.kill("second")
        assert not result.differences
        assert map_counts(result) == Counts(compared=40, not_seen=60)
        (in_front,) = result.unseen
        assert in_front.end == head.position
        assert in_front.reason.startswith("recorded map: it begins at source offset")
        assert result.verdict == NOT_SEEN
        start = stored_map(copied).parts[0].runs.start
        assert start.source == head.position
        put_back(copied, start.source)
        running.start("third")
        write_transactions(copied.source, copied.topic, range(100, 120))
        result = mapped(20)
        running.kill("third")
    assert len(found(result)) >= 1
    assert {reason for *_, reason in found(result)} == {f"remote log: {REPEATED}"}
    (log,) = result.logs
    assert log.remote is not None
    assert log.remote.counts.differs == 40
    assert map_counts(result) == Counts(compared=20, not_seen=100)


def test_the_map_of_a_flow_that_drops_records_is_compared(pair: Pair, tmp_path: Path) -> None:
    """Goal: records that a filter drops are not in it, though its lane is killed."""
    copied = CopiedTopic(
        pair,
        transaction_producer="true",
        twinlog_offset_map="true",
        transforms="drop",
        transforms_drop_type="org.apache.kafka.connect.transforms.Filter",
        transforms_drop_predicate="even",
        predicates="even",
        predicates_even_type="org.apache.kafka.connect.transforms.predicates.HasHeaderKey",
        predicates_even_name="even",
    )
    producer = Producer({"bootstrap.servers": copied.source})

    def write(numbers: range) -> None:
        for number in numbers:
            name, text = ("n", str(number)) if number % 2 else ("even", "")
            producer.produce(copied.topic, str(number), partition=0, headers={name: text})
        assert producer.flush(120) == 0

    with lanes(copied.target, tmp_path) as running:
        write(range(100))
        running.start("first")
        copied.await_copied(50)
        running.kill("first")
        write(range(100, 160))
        running.start("second")
        result = copied.await_copied(80)
        running.kill("second")
    assert result.verdict == SAME, (result.differences, result.unseen)
    assert map_counts(result) == Counts(compared=80)
    (chunk,) = (part.decoded() for part in stored_map(copied).parts)
    first, second, *others = chunk.runs
    assert (first, second.source) == ((1, first.destination, 1), 3)
    altered = replace(chunk, runs=(first, Run(Offset(2), second.destination, 1), *others))
    copied.change_offsets(lambda _: MapPart(altered))
    assert [(start, end) for _, start, end, _ in found(copied.verify())] == [(2, 3), (3, 4)]


def test_a_flow_with_malformed_settings_does_not_stop_the_others(pair: Pair) -> None:
    """Goal: it is reported, the verdict is not good, and the others are compared."""
    good, bad = CopiedTopic(pair), CopiedTopic(pair)

    def set_factor(factor: str) -> None:
        async def store(cluster: KafkaCluster) -> None:
            mirrors = MirrorStore(cluster)
            mirror = (await mirrors.snapshot()).mirrors[bad.flow]
            source = {**mirror.source, f"{FLOW_PREFIX}replication.factor": factor}
            await mirrors.change(lambda _: [replace(mirror, source=source)])

        bad.on_target(store)

    set_factor("many")
    try:
        with pytest.raises(UserError, match=r"replication\.factor is 'many'"):
            bad.verify()
        result = good.verify(None)
    finally:
        set_factor("1")
    assert result.unverified.keys() == {bad.flow}
    assert "replication.factor is 'many'" in result.unverified[bad.flow]
    topics = {log.partition.topic for log in result.logs}
    assert good.topic in topics
    # Flows of other tests may differ.
    own = tuple(log for log in result.logs if log.partition.topic == good.topic)
    assert replace(result, logs=own).verdict == NOT_SEEN
    assert bad.topic not in topics
