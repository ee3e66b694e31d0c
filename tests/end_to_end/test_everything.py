"""All kinds of partition content arrive, and failures that must be reported are reported."""

import os
import time
from collections.abc import Callable

import librdkafka_tools
import pytest
from waiting import until

from twinlog.local.check import ConsumerView
from twinlog.local.load import TOPICS, delete_before
from twinlog.local.stage import ALL_TOPICS, Stage

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(1200)]

MEGABYTE = 1 << 20


def is_compacted(stage: Stage) -> bool:
    """Return whether the cleaner has compacted the source's customers."""
    log = ConsumerView(stage.source.bootstrap_servers)
    extents = log.extents([("customers", 0)])
    ranges = {one: (extent.start, extent.stable) for one, extent in extents.items()}
    found = log.read(ranges, float("inf"))["customers", 0]
    return len(found) < extents["customers", 0].stable - 1


def test_every_kind_of_partition_content_is_mirrored(world: Stage) -> None:
    """Codecs, transactions, holes, a late start, an empty partition, nulls, large records, times.

    The load writes its topics before the mirror sees them, and continues while it does.
    """
    servers = world.source.bootstrap_servers
    world.start_load(800, 600)
    until(lambda: is_compacted(world), what="holes in customers")
    librdkafka_tools.make_topic(servers, "odd", 3, {"max.message.bytes": str(16 * MEGABYTE)})
    large = [(0, "large", os.urandom(size * MEGABYTE), None) for size in (1, 3, 5, 2)]
    librdkafka_tools.write(servers, "odd", large, message_max_bytes=16 * MEGABYTE)
    bare = [(2, None, None, None), (2, None, b"", [("h", None)]), (2, b"", None, [("h", b"")] * 2)]
    librdkafka_tools.write(servers, "odd", bare)
    librdkafka_tools.make_topic(servers, "stamped", 1, {"message.timestamp.type": "LogAppendTime"})
    for codec in ("none", "zstd"):
        librdkafka_tools.write(
            servers, "stamped", librdkafka_tools.simple(50), compression_type=codec
        )
    every = f"{ALL_TOPICS}|odd|stamped"
    world.add(every, "everything")
    librdkafka_tools.await_state(world, "odd", 1, "MIRRORING")
    world.stop_load()
    world.await_no_lag([*TOPICS, "odd", "stamped"])
    report = world.check()
    assert report.good, report.problems
    assert report.gaps > 0
    odd = world.check(["odd", "stamped"], numbered=False)
    assert odd.good, odd.problems
    assert odd.records == 107
    verified = world.verify("--topic", every)
    assert verified.status == 0, verified
    assert "the same" in verified.output


def mirror_records(stage: Stage, topic: str, count: int) -> None:
    """Mirror a topic of one partition, in `everything`, with `count` records on both sides."""
    servers = stage.source.bootstrap_servers
    librdkafka_tools.make_topic(servers, topic)
    librdkafka_tools.write(servers, topic, librdkafka_tools.simple(count))
    stage.add(topic, "everything")
    stage.await_no_lag([topic])


def test_partitions_added_on_the_source_are_mirrored(world: Stage, topic: str) -> None:
    """A topic that grows on the source grows on the destination; new partitions are mirrored."""
    servers = world.source.bootstrap_servers
    mirror_records(world, topic, 100)
    librdkafka_tools.grow_topic(servers, topic, 3)
    librdkafka_tools.write(
        servers, topic, [*librdkafka_tools.simple(50, 1), *librdkafka_tools.simple(50, 2)]
    )
    librdkafka_tools.await_state(world, topic, 2, "MIRRORING")
    world.await_no_lag([topic])
    report = world.check([topic], numbered=False)
    assert report.good, report.problems
    assert report.records == 200


@pytest.mark.long
def test_the_log_start_offset_follows_the_source(world: Stage, topic: str) -> None:
    """Retention on the source raises the destination's log start offset, too."""
    servers = world.source.bootstrap_servers
    mirror_records(world, topic, 300)
    delete_before(servers, [(topic, 0, 123)])
    log = ConsumerView(world.destination.bootstrap_servers)
    until(lambda: log.extents([(topic, 0)])[topic, 0].start == 123, what="the log start")
    assert world.check([topic], numbered=False).good


def test_the_log_start_offset_follows_after_the_configured_delay(world: Stage, topic: str) -> None:
    """`mirror.log.start.delay.ms`: records that the source has deleted stay for that long."""
    servers = world.source.bootstrap_servers
    librdkafka_tools.alter(world, "mirror.log.start.delay.ms=3600000")
    # Lanes read the records of a mirror in order: the delay, and then the topic.
    mirror_records(world, topic, 30)
    delete_before(servers, [(topic, 0, 12)])
    librdkafka_tools.write(servers, topic, librdkafka_tools.simple(1))
    world.await_no_lag([topic])
    time.sleep(3)  # three times `lane.trim.interval.ms`
    log = ConsumerView(world.destination.bootstrap_servers)
    assert log.extents([(topic, 0)])[topic, 0].start == 0
    librdkafka_tools.alter(world, "mirror.log.start.delay.ms=0")
    until(lambda: log.extents([(topic, 0)])[topic, 0].start == 12, what="the log start")


def test_a_recreated_source_topic_is_failed(world: Stage, fresh_name: Callable[[str], str]) -> None:
    """A recreated topic is not mixed into the deleted one: FAILED, with the reason."""
    servers = world.source.bootstrap_servers
    name = fresh_name("again")
    librdkafka_tools.make_topic(servers, name)
    librdkafka_tools.write(servers, name, librdkafka_tools.simple(20))
    world.add(name, "everything")
    world.await_no_lag([name])
    librdkafka_tools.delete_topic(servers, name)
    librdkafka_tools.make_topic(servers, name)
    librdkafka_tools.write(servers, name, librdkafka_tools.simple(40, text="other"))

    def told() -> bool:
        row = librdkafka_tools.described(world, name)[0]
        return row["state"] == "FAILED" and "deleted and recreated" in (row["reason"] or "")

    until(told, what="FAILED, and why")
    assert ConsumerView(world.destination.bootstrap_servers).ends([(name, 0)])[name, 0] == 20


def test_a_foreign_write_fails_only_its_partition(world: Stage, topic: str) -> None:
    """A foreign write fails that partition alone; verify names the range, and exits with 1."""
    servers = world.source.bootstrap_servers
    librdkafka_tools.make_topic(servers, topic, 2)
    librdkafka_tools.write(
        servers, topic, [*librdkafka_tools.simple(30, 0), *librdkafka_tools.simple(30, 1)]
    )
    world.add(topic, "everything")
    world.await_no_lag([topic])
    librdkafka_tools.write(world.destination.bootstrap_servers, topic, [(0, "intruder", "x", None)])
    librdkafka_tools.write(
        servers, topic, [*librdkafka_tools.simple(30, 0), *librdkafka_tools.simple(30, 1)]
    )
    row = librdkafka_tools.await_state(world, topic, 0, "FAILED")
    assert "destination" in row["reason"], row["reason"]
    ends = ConsumerView(world.destination.bootstrap_servers)
    until(lambda: ends.ends([(topic, 1)])[topic, 1] == 60, what="the other partition's end")
    librdkafka_tools.await_state(world, topic, 1, "MIRRORING")
    verified = world.verify("--topic", topic)
    assert verified.status == 1, verified
    assert f"DIFFERS {topic}-0 [30, 60)" in verified.output
    assert f"DIFFERS {topic}-1" not in verified.output
    assert "0 not seen" in verified.output.splitlines()[-1]
