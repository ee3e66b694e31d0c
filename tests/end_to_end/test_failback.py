"""A failed-over topic goes back: the delta alone, or rebuilt if there is a divergent tail."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import librdkafka_tools
import pytest
from waiting import until

from twinlog.kafka.log.batch import batches
from twinlog.local.check import ConsumerView
from twinlog.local.stage import Stage

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(1200)]


class Both(NamedTuple):
    """Two clusters, with a mirror and a node in each direction."""

    there: Stage
    back: Stage


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    with (
        Stage(tmp_path_factory.mktemp("there")) as there,
        Stage(tmp_path_factory.mktemp("back")) as back,
    ):
        back.destination = there.start_source()
        back.source = there.start_destination()
        for stage, name in ((there, "there"), (back, "back")):
            stage.create_mirror(name, state_partitions=5)
            stage.start_node(name, "--lanes", "1")
        yield Both(there, back)


def servers(stage: Stage) -> tuple[str, str]:
    return stage.source.bootstrap_servers, stage.destination.bootstrap_servers


def end(where: str, topic: str) -> int:
    return ConsumerView(where).ends([(topic, 0)])[topic, 0]


def fail_over(stage: Stage, mirror: str, topic: str) -> None:
    done = stage.mirrors("--remove", "--topic", topic, "--mirror", mirror)
    assert done.status == 0, done.errors
    librdkafka_tools.await_state(stage, topic, 0, "STOPPED")


def compared_records(stage: Stage, mirror: str, topic: str) -> int:
    """Check that both logs are equal for consumers; return the number of records."""
    stage.await_no_lag([topic])
    report = stage.check([topic], numbered=False)
    assert report.good, report.problems
    done = stage.verify("--mirror", mirror, "--topic", topic)
    assert done.status == 0, done.output + done.errors
    return report.records


def await_records(stage: Stage, topic: str, count: int) -> dict[str, Any]:
    """Wait until as many records are reported as copied, at least; return the row."""
    return until(
        lambda: librdkafka_tools.described(stage, topic)[0],
        what=f"{count} records of {topic}",
        good=lambda row: row["records"] >= count,
    )


def test_failback_and_another_failover_copy_only_new_records(both: Both, topic: str) -> None:
    """Each time only new records are copied, into the existing log."""
    first, second = servers(both.there)
    librdkafka_tools.make_topic(first, topic)
    librdkafka_tools.write(first, topic, librdkafka_tools.simple(1000))
    librdkafka_tools.transaction(first, topic, "committed", commit=True)
    librdkafka_tools.transaction(first, topic, "aborted", commit=False)
    both.there.add(topic, "there")
    librdkafka_tools.await_state(both.there, topic, 0, "MIRRORING")
    both.there.await_no_lag([topic])
    done = both.back.mirrors("--add", "--topic", topic, "--mirror", "back")
    assert done.errors.startswith("Error: MIRROR_LOOP: "), done.errors
    both.there.source.kill(1)
    fail_over(both.there, "there", topic)
    librdkafka_tools.write(second, topic, librdkafka_tools.simple(50, 0, "failed over"))
    librdkafka_tools.transaction(second, topic, "new", commit=True)
    both.there.source.start_broker(1)
    both.back.add(topic, "back")
    librdkafka_tools.await_state(both.back, topic, 0, "MIRRORING")
    assert compared_records(both.back, "back", topic) == 1000 + 10 + 50 + 10
    moved = await_records(both.back, topic, 60)
    assert moved["records"] == 60, "the delta alone"
    assert moved["bytes"] < 10_000
    fail_over(both.back, "back", topic)
    librdkafka_tools.write(first, topic, librdkafka_tools.simple(20, 0, "home"))
    both.there.add(topic, "there")
    librdkafka_tools.await_state(both.there, topic, 0, "MIRRORING")
    assert compared_records(both.there, "there", topic) == 1090
    assert await_records(both.there, topic, 20)["records"] == 20


@pytest.mark.long
def test_a_divergent_tail_is_reported_and_saved(both: Both, topic: str, tmp_path: Path) -> None:
    """It is named and nothing changes; with leave it is saved, and the topic is rebuilt."""
    first, second = servers(both.there)
    librdkafka_tools.make_topic(first, topic)
    librdkafka_tools.write(first, topic, librdkafka_tools.simple(100))
    both.there.add(topic, "there")
    librdkafka_tools.await_state(both.there, topic, 0, "MIRRORING")
    both.there.await_no_lag([topic])
    paused = both.there.mirrors("--pause", "--topic", topic, "--mirror", "there")
    assert paused.status == 0, paused.errors
    librdkafka_tools.await_state(both.there, topic, 0, "PAUSED")
    librdkafka_tools.write(first, topic, librdkafka_tools.simple(17, 0, "lost"))
    fail_over(both.there, "there", topic)
    librdkafka_tools.write(second, topic, librdkafka_tools.simple(30, 0, "instead"))
    add = ("--add", "--topic", topic, "--mirror", "back")
    refused = both.back.mirrors(*add)
    assert refused.status == 1
    assert refused.errors.startswith("Error: MIRROR_TOPIC_DIVERGED: "), refused.errors
    assert f"{topic}-0 from offset 100 to 116" in refused.errors
    assert end(first, topic) == 117
    done = both.back.mirrors(*add, "--rebuild", "--save-tail", str(tmp_path))
    assert done.status == 0, done.errors
    segment = tmp_path / f"{topic}-0" / f"{100:020d}.log"
    saved = list(batches(memoryview(segment.read_bytes())))
    assert (saved[0].base_offset, saved[-1].next_offset) == (100, 117)
    librdkafka_tools.await_state(both.back, topic, 0, "MIRRORING")
    assert compared_records(both.back, "back", topic) == 130
    fail_over(both.back, "back", topic)
    librdkafka_tools.write(first, topic, librdkafka_tools.simple(5, 0, "home"))
    both.there.add(topic, "there")
    librdkafka_tools.await_state(both.there, topic, 0, "MIRRORING")
    assert compared_records(both.there, "there", topic) == 135


def test_a_failed_partition_is_rebuilt_from_the_beginning(
    both: Both, topic: str, tmp_path: Path
) -> None:
    """In the same direction: differences are named and saved, the topic is rebuilt and mirrored."""
    first, second = servers(both.there)
    librdkafka_tools.make_topic(first, topic)
    librdkafka_tools.write(first, topic, librdkafka_tools.simple(100))
    both.there.add(topic, "there")
    librdkafka_tools.await_state(both.there, topic, 0, "MIRRORING")
    both.there.await_no_lag([topic])
    librdkafka_tools.write(second, topic, librdkafka_tools.simple(1, 0, "somebody else's"))
    librdkafka_tools.write(first, topic, librdkafka_tools.simple(50, 0, "more"))
    librdkafka_tools.await_state(both.there, topic, 0, "FAILED")
    fail_over(both.there, "there", topic)
    beyond = end(second, topic) - 1
    add = ("--add", "--topic", topic, "--mirror", "there")
    refused = both.there.mirrors(*add)
    assert refused.errors.startswith("Error: MIRROR_TOPIC_DIVERGED: "), refused.errors
    assert f"{topic}-0 from offset 100 to {beyond};" in refused.errors
    assert end(second, topic) == beyond + 1
    done = both.there.mirrors(*add, "--rebuild", "--save-tail", str(tmp_path))
    assert done.status == 0, done.errors
    segment = tmp_path / f"{topic}-0" / f"{100:020d}.log"
    saved = list(batches(memoryview(segment.read_bytes())))
    assert (saved[0].base_offset, saved[-1].next_offset) == (100, beyond + 1)
    assert b"somebody else's" in segment.read_bytes()
    librdkafka_tools.await_state(both.there, topic, 0, "MIRRORING")
    assert compared_records(both.there, "there", topic) == 150


def test_a_topic_that_was_never_failed_over_is_refused(both: Both, topic: str) -> None:
    """Not even with --rebuild: nothing shows that it was the same topic once."""
    first, second = servers(both.there)
    for where in (first, second):
        librdkafka_tools.make_topic(where, topic)
        librdkafka_tools.write(where, topic, librdkafka_tools.simple(10))
    done = both.back.mirrors("--add", "--topic", topic, "--mirror", "back", "--rebuild")
    assert done.errors.startswith("Error: TOPIC_ALREADY_EXISTS: "), done.errors
    assert end(first, topic) == 10


@pytest.mark.long
def test_foreign_records_from_before_the_failover_are_reported(both: Both, topic: str) -> None:
    """While no node runs the source goes on and dies, and users write to the destination.

    The two logs have almost the same length, both end in markers, and they have diverged.
    """
    first, second = servers(both.there)
    librdkafka_tools.make_topic(first, topic)
    librdkafka_tools.write(first, topic, librdkafka_tools.simple(10))
    both.there.add(topic, "there")
    librdkafka_tools.await_state(both.there, topic, 0, "MIRRORING")
    both.there.await_no_lag([topic])
    both.there.nodes["there"].signal(15)
    both.there.nodes["there"].end()
    librdkafka_tools.transactions(first, topic, 3)
    both.there.source.kill(1)
    for at in range(5):
        librdkafka_tools.write(second, topic, librdkafka_tools.simple(1, 0, f"foreign {at}"))
    done = both.there.mirrors("--remove", "--topic", topic, "--mirror", "there")
    assert done.status == 0, done.errors
    both.there.start_node("there", "--lanes", "1")
    librdkafka_tools.await_state(both.there, topic, 0, "STOPPED")
    shown = librdkafka_tools.described(both.there, topic)[0]
    assert shown["last_mirrored_end"] == 10
    assert "5 record(s) at offsets 10 to 14 were written by other producers" in shown["reason"]
    both.there.source.start_broker(1)
    refused = both.back.mirrors("--add", "--topic", topic, "--mirror", "back")
    assert refused.errors.startswith("Error: MIRROR_TOPIC_DIVERGED: "), refused.errors
    # The third marker is written after the commit's answer, perhaps not before the broker's death.
    assert f"{topic}-0 from offset 10 to 1" in refused.errors
