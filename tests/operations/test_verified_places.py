"""`verify` of flows with transforms on real brokers: which topics and partitions are compared."""

import secrets
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import librdkafka_tools
import pytest
from confluent_kafka import Producer
from copied_topic import CopiedTopic
from tasks_here import run_tasks_here
from waiting import until

from conftest import Pair
from twinlog.engines.transactional.positions import position_group
from twinlog.operations.verification_report import SAME, Verification
from twinlog.verify.flow_job import FOREIGN
from twinlog.verify.verdict import DifferenceKind

pytestmark = [pytest.mark.broker]

BEGAN_MS = int(time.time() * 1000)
DAY = datetime.fromtimestamp(BEGAN_MS // 1000, UTC).strftime("%Y%m%d")
ROUTER = "org.apache.kafka.connect.transforms."
DATED = {"transforms": "day", "transforms.day.type": f"{ROUTER}TimestampRouter"}


def merged(target: str) -> dict[str, str]:
    """All topics of a flow are routed to one."""
    return {
        "transforms": "all",
        "transforms.all.type": f"{ROUTER}RegexRouter",
        "transforms.all.regex": ".*",
        "transforms.all.replacement": target,
    }


@pytest.fixture(autouse=True)
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the tasks in this process."""
    run_tasks_here(monkeypatch)


def send(
    servers: str, topic: str, values: Sequence[str], partition: int = 0, *, first: int = 0
) -> None:
    producer = Producer({"bootstrap.servers": servers})
    for number, value in enumerate(values, first):
        producer.produce(topic, value, None, partition, timestamp=BEGAN_MS + number)
    assert producer.flush(120) == 0


def set_positions(copied: CopiedTopic, ends: Mapping[str, Mapping[int, int]]) -> None:
    """Set the flow's positions, by remote topic and partition."""
    for remote, of_topic in ends.items():
        librdkafka_tools.commit(
            copied.target, position_group("twinlog", copied.flow), remote, dict(of_topic)
        )


def found(result: Verification) -> list[tuple[str, int, int, int, str]]:
    return [(*one.partition, *one[1:]) for one in result.differences]


def test_topics_that_one_year_has_in_common(pair: Pair) -> None:
    """Goal: topics of a present year in one archive; those of 1970 would be two."""
    archive = f"archive-{secrets.token_hex(4)}"
    copied = CopiedTopic(
        pair,
        {
            **DATED,
            "transforms": "day,archive",
            "transforms.archive.type": f"{ROUTER}RegexRouter",
            "transforms.archive.regex": "(.*)-20[0-9]{6}",
            "transforms.archive.replacement": archive,
        },
    )
    other, other_remote = copied.add_topic()
    librdkafka_tools.make_topic(copied.target, archive)
    send(copied.source, copied.topic, ["a0", "a1"])
    send(copied.source, other, ["b0", "b1"])
    send(copied.target, archive, ["a0", "a1"])
    send(copied.target, archive, ["b0", "b1"])
    set_positions(copied, {copied.remote: {0: 2}, other_remote: {0: 2}})
    result = copied.verify()
    assert (result.verdict, result.counts.compared) == (SAME, 4), result.differences
    send(copied.target, archive, ["x"])
    assert set(found(copied.verify())) == {(archive, 0, 4, 5, f"remote log: {FOREIGN}")}


def test_a_partition_of_a_topic_named_by_time_that_nothing_goes_to(pair: Pair) -> None:
    """Goal: a copy once more where no record of the source goes; with and without such a source."""
    copied = CopiedTopic(pair, DATED, partitions=2)
    day = f"{copied.remote}-{DAY}"
    librdkafka_tools.make_topic(copied.target, day, 4)
    send(copied.source, copied.topic, ["a0", "a1"])
    send(copied.target, day, ["a0", "a1"])
    set_positions(copied, {copied.remote: {0: 2, 1: 0}})
    result = copied.verify()
    assert (result.verdict, result.counts.compared) == (SAME, 2), result.unseen
    assert {log.remote.partition for log in result.logs if log.remote is not None} == {
        (copied.remote, 0),
        (copied.remote, 1),
        (day, 0),
    }
    send(copied.target, day, ["a0"], 1)
    assert found(copied.verify()) == [(day, 1, 0, 1, f"remote log: {FOREIGN}")]
    send(copied.target, day, ["a1"], 3)
    assert found(copied.verify()) == [
        (day, 1, 0, 1, f"remote log: {FOREIGN}"),
        (day, 3, 0, 1, f"remote log: {FOREIGN}"),
    ]


def test_a_lost_record_of_a_topic_named_by_time_whose_remote_topic_is_gone(pair: Pair) -> None:
    """Goal: the remote topic, which no record goes to, does not excuse what another topic lacks."""
    copied = CopiedTopic(pair, DATED)
    day = f"{copied.remote}-{DAY}"
    librdkafka_tools.make_topic(copied.target, day)
    send(copied.source, copied.topic, ["a0", "a1"])
    send(copied.target, day, ["a1"], first=1)
    librdkafka_tools.delete_topic(copied.target, copied.remote)
    lost = [(copied.topic, 0, 0, 1, DifferenceKind.LOST)]
    until(lambda: found(copied.verify()) == lost, what="a0 is lost")
