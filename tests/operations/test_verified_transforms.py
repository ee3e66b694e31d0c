"""`verify` of flows with transforms on real brokers: right ones, and faults that are planted."""

import asyncio
import json
import secrets
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
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
from twinlog.kafka.errors import UserError
from twinlog.kafka.requests.partitions import delete_records
from twinlog.kafka.types import TopicPartition
from twinlog.operations.verification_report import DIFFERS, NOT_SEEN, SAME, LogReport, Verification
from twinlog.verify.flow_job import (
    ABSENT,
    DELETED,
    FOREIGN,
    REPEATED,
    UNWANTED,
)
from twinlog.verify.verdict import DifferenceKind

pytestmark = [pytest.mark.broker]

BEGAN_MS = int(time.time() * 1000)
"""Brokers delete records with timestamps of former years."""
MASKED = {
    "replication.factor": "-1",
    "transforms": "drop,mask,vip",
    "transforms.drop.type": "org.apache.kafka.connect.transforms.Filter",
    "transforms.drop.predicate": "skipped",
    "transforms.mask.type": "org.apache.kafka.connect.transforms.MaskField$Value",
    "transforms.mask.fields": "card",
    "transforms.vip.type": "org.apache.kafka.connect.transforms.RegexRouter",
    "transforms.vip.regex": "(.*)",
    "transforms.vip.replacement": "vip-$1",
    "transforms.vip.predicate": "important",
    "predicates": "skipped,important",
    "predicates.skipped.type": "org.apache.kafka.connect.transforms.predicates.HasHeaderKey",
    "predicates.skipped.name": "skip",
    "predicates.important.type": "org.apache.kafka.connect.transforms.predicates.HasHeaderKey",
    "predicates.important.name": "vip",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter.schemas.enable": "false",
}


def all_routed() -> dict[str, str]:
    """As `MASKED`, and all records are routed."""
    conditional = ("transforms.vip.predicate", "predicates.important")
    kept = {name: text for name, text in MASKED.items() if not name.startswith(conditional)}
    return {**kept, "predicates": "skipped"}


@pytest.fixture(autouse=True)
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the tasks in this process."""
    run_tasks_here(monkeypatch)


def headers_of(number: int) -> list[tuple[str, str | bytes | None]]:
    skip: list[tuple[str, str | bytes | None]] = [("skip", b"")] if number % 5 == 0 else []
    return [*skip, ("vip", b"")] if number % 7 == 0 else skip


def send(producer: Producer, topic: str, number: int, card: str = "1234") -> None:
    value = json.dumps({"n": number, "card": card, "price": 1.5}).encode()
    producer.produce(
        *(topic, value, str(number), 0), headers=headers_of(number), timestamp=BEGAN_MS + number
    )


def write_numbers(servers: str, topic: str, numbers: range) -> None:
    """Write numbers, ten in a transaction; each third one is aborted, and repeated."""
    producer = Producer({"bootstrap.servers": servers, "transactional.id": f"of-{topic}"})
    producer.init_transactions(120)
    for first in numbers[::10]:
        for commits in ([False] if first % 30 == 0 else []) + [True]:
            producer.begin_transaction()
            for number in range(first, min(first + 10, numbers.stop)):
                send(producer, topic, number)
            producer.flush(120)
            producer.commit_transaction(120) if commits else producer.abort_transaction(120)


def write_masked(servers: str, topic: str, numbers: Sequence[int]) -> None:
    """Write what the transforms make of these numbers, without a flow."""
    producer = Producer({"bootstrap.servers": servers})
    for number in numbers:
        send(producer, topic, number, card="")
    assert producer.flush(120) == 0


def set_position(copied: CopiedTopic, offset: int) -> None:
    """Set the position of a flow, as an operator does."""
    group = position_group("twinlog", copied.flow)
    librdkafka_tools.commit(copied.target, group, copied.remote, {0: offset})


def delete_originals(copied: CopiedTopic, before: int) -> None:
    async def run() -> None:
        async with client(copied.pair.source) as cluster:
            await delete_records(cluster, {TopicPartition(copied.topic, 0): before})

    asyncio.run(run())


def copied_numbers(end: int) -> tuple[list[int], list[int]]:
    """Those that stay in the remote topic, and those that are routed."""
    kept = [number for number in range(end) if number % 5]
    return [n for n in kept if n % 7], [n for n in kept if n % 7 == 0]


def logs_of(result: Verification) -> Mapping[str, LogReport]:
    """The reports, by topic of the target."""
    return {log.remote.partition.topic: log for log in result.logs if log.remote is not None}


def await_copied(copied: CopiedTopic, end: int) -> Verification:
    def complete() -> Verification | None:
        result = copied.verify()
        is_whole = result.counts.compared == sum(map(len, copied_numbers(end)))
        return result if is_whole and result.counts.behind == 0 else None

    return until(complete, SECONDS, f"{end} records copied")


def found(result: Verification) -> list[tuple[str, int, int, str]]:
    return [(one.partition.topic, *one[1:]) for one in result.differences]


def test_a_flow_with_transforms_is_the_same_although_its_lane_was_killed(
    pair: Pair, tmp_path: Path
) -> None:
    """Goal: filtered, masked and routed records, once each; then faults in both logs are found."""
    copied = CopiedTopic(pair, MASKED)
    vip = f"vip-{copied.remote}"
    write_numbers(copied.source, copied.topic, range(100))
    assert (before := copied.verify()).verdict == SAME, "nothing is claimed"
    assert (before.counts.compared, before.counts.differs) == (0, 0)
    with lanes(copied.target, tmp_path) as running:
        running.start("first")
        await_copied(copied, 100)
        running.kill("first")
        write_numbers(copied.source, copied.topic, range(100, 300))
        running.start("second")
        until(lambda: copied.verify().counts.compared > 100, SECONDS, "more records")
        running.kill("second")
        running.start("third")
        result = await_copied(copied, 300)
        running.kill("third")
    assert result.verdict == SAME, (result.differences, result.unseen)
    kept, routed = copied_numbers(300)
    logs = logs_of(result)
    assert {name: log.counts.compared for name, log in logs.items()} == {
        copied.remote: len(kept),
        vip: len(routed),
    }
    for log, other in ((logs[copied.remote], len(routed)), (logs[vip], len(kept))):
        assert log.counts.absent["filtered"] == 60
        assert log.counts.absent["routed"] == other
        assert log.counts.absent["aborted"] == 100
    write_masked(copied.source, copied.topic, [301, 307])
    assert (later := copied.verify()).verdict == SAME
    assert later.counts.behind == 3, "307 in the remote topic; 301, and what follows, in the other"

    ends = {name: log.remote.counts.length for name, log in logs.items() if log.remote is not None}
    write_masked(copied.target, copied.remote, [3, 5, 7, 999])
    write_masked(copied.target, vip, [8])
    first, other = ends[copied.remote], ends[vip]
    result = copied.verify()
    assert result.verdict == DIFFERS
    assert found(result) == [
        (copied.remote, first, first + 1, f"remote log: {REPEATED}"),
        (copied.remote, first + 1, first + 3, f"remote log: {UNWANTED}"),
        (copied.remote, first + 3, first + 4, f"remote log: {FOREIGN}"),
        (vip, other, other + 1, f"remote log: {UNWANTED}"),
    ]
    command = librdkafka_tools.twinlog(
        *("verify", "--bootstrap-server", copied.target, "--mirror", copied.flow),
        *("--topic", copied.topic),
    )
    assert command.status == 1, command.errors
    assert f"DIFFERS {vip}-0 [{other}, {other + 1}): remote log: {UNWANTED}" in command.output
    assert command.output.splitlines()[-1].startswith("2 partitions, "), command.output
    assert "filtered 120, routed 241" in command.output.splitlines()[-1]


def test_faults_in_a_copy_are_found(pair: Pair) -> None:
    """Goal: a copy by another program: whole, then with a record lost, altered, or out of order."""
    kept, routed = copied_numbers(40)

    def verified(copies: Sequence[int], *, masked: bool = True) -> Verification:
        copied = CopiedTopic(pair, MASKED)
        librdkafka_tools.make_topic(copied.target, f"vip-{copied.remote}")
        producer = Producer({"bootstrap.servers": copied.source})
        for number in range(40):
            send(producer, copied.topic, number)
        assert producer.flush(120) == 0
        write_masked(copied.target, f"vip-{copied.remote}", routed)
        if masked:
            write_masked(copied.target, copied.remote, copies)
        else:
            raw = Producer({"bootstrap.servers": copied.target})
            for number in copies:
                send(raw, copied.remote, number, card="1234" if number == 17 else "")
            assert raw.flush(120) == 0
        set_position(copied, 40)
        result = copied.verify()
        assert logs_of(result)[f"vip-{copied.remote}"].counts.compared == len(routed)
        return result

    assert verified(kept).verdict == SAME
    result = verified([number for number in kept if number != 17])
    assert [one[1:] for one in found(result)] == [(17, 18, DifferenceKind.LOST)]
    result = verified(kept, masked=False)
    at = kept.index(17)
    assert [one[1:] for one in found(result)] == [
        (17, 18, DifferenceKind.CONTENT),
        (at, at + 1, f"remote log: {DifferenceKind.CONTENT}"),
    ]
    result = verified([*kept[:at], kept[at + 1], kept[at], *kept[at + 2 :]])
    assert [one[3] for one in found(result)] == [DifferenceKind.LOST, f"remote log: {REPEATED}"]


def test_records_that_a_flow_has_skipped_are_found(pair: Pair, tmp_path: Path) -> None:
    """Goal: a flow that goes on at a wrong position."""
    copied = CopiedTopic(pair, MASKED)
    write_masked(copied.source, copied.topic, range(20))
    with lanes(copied.target, tmp_path) as running:
        running.start("first")
        await_copied(copied, 20)
        running.kill("first")
        write_masked(copied.source, copied.topic, range(20, 40))
        set_position(copied, 30)
        running.start("second")

        kept = [number for number in copied_numbers(40)[0] if not 20 <= number < 30]

        def goes_on() -> bool:
            return logs_of(copied.verify())[copied.remote].counts.compared == len(kept)

        until(goes_on, SECONDS, "ten more records")
        running.kill("second")
    result = copied.verify()
    lost = [(one[0], one[1]) for one in found(result) if one[3] == DifferenceKind.LOST]
    offsets = {offset for _, start, end, _ in found(result) for offset in range(start, end)}
    assert result.verdict == DIFFERS
    assert {topic for topic, _ in lost} == {copied.topic}
    assert offsets == {number for number in range(20, 30) if number % 5}


def test_what_cannot_be_judged_is_not_seen(pair: Pair) -> None:
    """Goal: purged records, a topic that does not exist, and one that two flows route to."""
    copied = CopiedTopic(pair, MASKED)
    vip = f"vip-{copied.remote}"
    write_masked(copied.source, copied.topic, range(15))
    write_masked(copied.target, copied.remote, copied_numbers(15)[0])
    set_position(copied, 15)
    result = copied.verify()
    assert result.verdict == NOT_SEEN
    assert [(one.partition.topic, *one[1:]) for one in result.unseen] == [
        (copied.topic, 7, 8, f"no copy: remote log: {ABSENT}"),
        (copied.topic, 14, 15, f"no copy: remote log: {ABSENT}"),
    ]
    librdkafka_tools.make_topic(copied.target, vip)
    assert [one[1:] for one in found(copied.verify())] == [
        (7, 8, DifferenceKind.LOST),
        (14, 15, DifferenceKind.LOST),
    ]
    write_masked(copied.target, vip, [7, 14])
    assert copied.verify().verdict == SAME

    delete_originals(copied, 5)
    result = copied.verify()
    assert result.verdict == NOT_SEEN
    reason = f"remote log: no original: source: {DELETED}"
    assert [(one.partition.topic, *one[1:]) for one in result.unseen] == [
        (copied.remote, 0, 4, reason)
    ]

    merged = {**MASKED, "transforms.vip.replacement": vip}
    other = CopiedTopic(pair, merged)
    result = copied.verify()
    assert result.verdict == NOT_SEEN
    log = logs_of(result)[vip]
    assert log.counts.compared == 0
    reason = (
        f"records of {other.topic} of flow {other.flow} go to {vip}, too, and cannot be told from "
        "its own"
    )
    assert [one.reason for one in log.unseen] == [reason, f"remote log: {reason}"]


def test_where_no_record_may_be_each_one_is_found(pair: Pair) -> None:
    """Goal: a remote topic that all records leave, and a partition that the source does not have.

    While they are empty, they are not named.
    """
    copied = CopiedTopic(pair, all_routed())
    target = f"vip-{copied.remote}"
    librdkafka_tools.make_topic(copied.target, target, 2)
    write_masked(copied.source, copied.topic, range(1, 5))
    write_masked(copied.target, target, range(1, 5))
    set_position(copied, 4)
    result = copied.verify()
    assert (result.verdict, result.counts.compared) == (SAME, 4)
    assert logs_of(result).keys() == {target}
    write_masked(copied.target, copied.remote, [2])
    assert found(copied.verify()) == [(copied.remote, 0, 1, f"remote log: {UNWANTED}")]
    librdkafka_tools.write(copied.target, target, [(1, None, "x", None)])
    texts = [one.reason for one in copied.verify().unseen]
    assert len(texts) == 2
    assert all("cannot read the bounds: source: " in text for text in texts)


DAY_MS = 86_400_000


def send_dated(servers: str, topic: str, numbers: Sequence[int], *, named: str = "") -> None:
    """Write numbers, each third one of the day before; `named`: the text of the value."""
    producer = Producer({"bootstrap.servers": servers})
    for number in numbers:
        at = BEGAN_MS + number - (DAY_MS if number % 3 == 0 else 0)
        producer.produce(topic, f"{named}{number}", None, 0, timestamp=at)
    assert producer.flush(120) == 0


def day_of(number: int) -> str:
    days = BEGAN_MS + number - (DAY_MS if number % 3 == 0 else 0)
    return datetime.fromtimestamp(days // 1000, UTC).strftime("%Y%m%d")


def compared(result: Verification) -> dict[str, int]:
    """The compared records, by topic of the target."""
    return {name: log.counts.compared for name, log in logs_of(result).items()}


def test_topics_that_are_named_by_time_are_the_same_although_a_lane_was_killed(
    pair: Pair, tmp_path: Path
) -> None:
    """Goal: the topics of two days; then a lost, a repeated and a misplaced record."""
    copied = CopiedTopic(
        pair,
        {
            "replication.factor": "-1",
            "transforms": "day",
            "transforms.day.type": "org.apache.kafka.connect.transforms.TimestampRouter",
            "transforms.day.topic.format": "${timestamp}.${topic}",
        },
    )
    send_dated(copied.source, copied.topic, range(100))
    assert (before := copied.verify()).verdict == SAME, "nothing is claimed"
    assert before.counts.compared == 0
    names = {day: f"{day}.{copied.remote}" for day in map(day_of, range(300))}
    assert len(names) == 2
    wanted = {
        copied.remote: 0,
        **{name: sum(day_of(n) == day for n in range(300)) for day, name in names.items()},
    }
    with lanes(copied.target, tmp_path) as running:
        running.start("first")
        until(lambda: copied.verify().counts.compared == 100, SECONDS, "records are copied")
        running.kill("first")
        send_dated(copied.source, copied.topic, range(100, 300))
        running.start("second")
        until(lambda: copied.verify().counts.compared > 100, SECONDS, "more records")
        running.kill("second")
        running.start("third")
        until(lambda: compared(copied.verify()) == wanted, SECONDS, "all records")
        running.kill("third")
    result = copied.verify()
    assert result.verdict == SAME, (result.differences, result.unseen)
    assert result.counts.behind == 0
    logs = logs_of(result)
    assert logs[copied.remote].counts.absent["routed"] == 300
    ends = {name: log.remote.counts.length for name, log in logs.items() if log.remote is not None}

    first, second = (names[day] for day in sorted(names))
    send_dated(copied.target, first, [3, 4])
    send_dated(copied.target, copied.remote, [5])
    result = copied.verify()
    assert result.verdict == DIFFERS
    assert found(result) == [
        (copied.remote, 0, 1, f"remote log: {UNWANTED}"),
        (first, ends[first], ends[first] + 1, f"remote log: {REPEATED}"),
        (first, ends[first] + 1, ends[first] + 2, f"remote log: {UNWANTED}"),
    ]
    send_dated(copied.source, copied.topic, [300, 301])
    send_dated(copied.target, first, [300])
    set_position(copied, 302)
    assert [one for one in found(copied.verify()) if one[0] == copied.topic] == [
        (copied.topic, 301, 302, DifferenceKind.LOST)
    ], f"missing in {second}"


def test_a_topic_named_by_time_that_does_not_exist_is_not_seen(pair: Pair) -> None:
    copied = CopiedTopic(
        pair,
        {
            "transforms": "day",
            "transforms.day.type": "TimestampRouter",
            "transforms.day.timestamp.format": "yyyyMMdd",
        },
    )
    send_dated(copied.source, copied.topic, [1, 2])
    set_position(copied, 2)
    result = copied.verify()
    assert (result.verdict, result.counts.compared) == (NOT_SEEN, 0)
    assert [one[1:] for one in result.unseen] == [(0, 2, f"no copy: remote log: {ABSENT}")]
    name = f"{copied.remote}-{day_of(1)}"
    assert logs_of(result).keys() == {copied.remote, name}
    librdkafka_tools.make_topic(copied.target, name)
    assert [one[1:] for one in found(copied.verify())] == [(0, 2, DifferenceKind.LOST)]
    send_dated(copied.target, name, [1, 2])
    assert copied.verify().verdict == SAME


def merged(target: str) -> dict[str, str]:
    """All topics of a flow are routed to one."""
    return {
        "replication.factor": "-1",
        "transforms": "all",
        "transforms.all.type": "RegexRouter",
        "transforms.all.regex": ".*",
        "transforms.all.replacement": target,
    }


@pytest.mark.long
def test_two_topics_in_one_are_the_same_although_a_lane_was_killed(
    pair: Pair, tmp_path: Path
) -> None:
    """Goal: each topic's records once and in order; faults in either of them are found."""
    target = f"all-{secrets.token_hex(4)}"
    copied = CopiedTopic(pair, merged(target))
    other, _ = copied.add_topic()

    def write(numbers: range) -> None:
        for first in numbers[::10]:
            part = range(first, min(first + 10, numbers.stop))
            send_dated(copied.source, copied.topic, part, named="a")
            send_dated(copied.source, other, part, named="b")

    def complete(count: int) -> bool:
        result = copied.verify()
        return result.counts.compared == 2 * count and result.counts.behind == 0

    write(range(100))
    with lanes(copied.target, tmp_path) as running:
        running.start("first")
        until(lambda: complete(100), SECONDS, "records are copied")
        running.kill("first")
        write(range(100, 300))
        running.start("second")
        until(lambda: copied.verify().counts.compared > 200, SECONDS, "more records")
        running.kill("second")
        running.start("third")
        until(lambda: complete(300), SECONDS, "all records")
        running.kill("third")
    result = copied.verify()
    assert result.verdict == SAME, (result.differences, result.unseen)
    for log in result.logs:
        assert log.remote is not None
        assert (log.remote.partition.topic, log.remote.counts.compared) == (target, 300)
        assert log.remote.counts.absent["other_topics"] == 300
    end = result.logs[0].remote.counts.length if result.logs[0].remote is not None else 0

    send_dated(copied.target, target, [7], named="a")
    send_dated(copied.target, target, [8], named="b")
    result = copied.verify()
    assert result.verdict == DIFFERS
    assert sorted(found(result)) == [
        (target, end, end + 1, f"remote log: {REPEATED}"),
        (target, end + 1, end + 2, f"remote log: {REPEATED}"),
    ], "each one by the topic that it is of"


def test_faults_in_two_topics_in_one_are_found(pair: Pair) -> None:
    """Goal: a copy by another program: whole; then a record lost, altered, swapped or foreign."""

    def verified(copies: Sequence[tuple[str, int]]) -> list[tuple[str, int, int, str]]:
        target = f"all-{secrets.token_hex(4)}"
        copied = CopiedTopic(pair, merged(target))
        other, other_remote = copied.add_topic()
        librdkafka_tools.make_topic(copied.target, target)
        send_dated(copied.source, copied.topic, range(6), named="a")
        send_dated(copied.source, other, range(4), named="b")
        for name, number in copies:
            send_dated(copied.target, target, [number], named=name)
        set_position(copied, 6)
        librdkafka_tools.commit(
            copied.target, position_group("twinlog", copied.flow), other_remote, {0: 4}
        )
        result = copied.verify()
        assert not result.unseen
        names = {copied.topic: "a", other: "b", target: "all"}
        return sorted((names[one[0]], *one[1:]) for one in found(result))

    right = [("a", 0), ("b", 0), ("b", 1), ("a", 1), ("a", 2), ("b", 2), ("a", 3), ("a", 4)]
    right += [("b", 3), ("a", 5)]
    assert verified(right) == []
    assert verified([one for one in right if one != ("b", 2)]) == [("b", 2, 3, DifferenceKind.LOST)]
    swapped = [right[3], *right[1:3], right[0], *right[4:]]
    assert [one[0] for one in verified(swapped)] == ["a", "all"]
    foreign = f"remote log: {FOREIGN}"
    assert verified([*right, ("c", 9)]) == [("all", 10, 11, foreign), ("all", 10, 11, foreign)]


def test_a_query_that_may_not_run_is_never_good(pair: Pair) -> None:
    copied = CopiedTopic(pair, {"twinlog.transform.sql": "SELECT record FROM records"})
    reason = r"needs mirror\.dataframes\.enable=true"
    with pytest.raises(UserError, match=reason):
        copied.verify()
    result = copied.verify(None)
    assert result.verdict != SAME
    assert copied.flow in result.unverified
    assert copied.topic not in {log.partition.topic for log in result.logs}
