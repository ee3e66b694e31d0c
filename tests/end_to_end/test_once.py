"""`twinlog run --once`: a mirror that is brought up to date now and then."""

from collections.abc import Iterator

import librdkafka_tools
import pytest

from twinlog.local import commands
from twinlog.local.check import ConsumerView
from twinlog.local.commands import Done
from twinlog.local.load import delete_before
from twinlog.local.stage import Stage

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(1200)]

LOOK_AGAIN_SECONDS = 240.0
"""A busy broker may not answer a check. The node has ended, so a real lag stays."""


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Start two clusters and a mirror without topics; no node runs."""
    with Stage(tmp_path_factory.mktemp("alone")) as stage:
        stage.start_source()
        # As brokers have it by default: a node learns late which mirrors it has to refresh.
        stage.start_destination(config={"group.initial.rebalance.delay.ms": "3000"})
        stage.create_mirror("now-and-then", state_partitions=5)
        yield stage


def once(stage: Stage) -> Done:
    servers = stage.destination.bootstrap_servers
    return commands.run(
        commands.TWINLOG, "run", "--bootstrap-server", servers, "--once", seconds=300
    )


@pytest.mark.long
def test_records_deleted_before_they_were_mirrored_are_skipped(alone: Stage, topic: str) -> None:
    """Records that the source has deleted before they were mirrored: the destination skips them.

    Its log start offset is then the source's, and every offset after it is the source's.
    """
    servers = alone.source.bootstrap_servers
    librdkafka_tools.make_topic(servers, topic, 2)
    librdkafka_tools.write(
        servers, topic, [*librdkafka_tools.simple(200, 0), *librdkafka_tools.simple(200, 1)]
    )
    alone.add(topic, "now-and-then")
    assert once(alone).status == 0
    alone.await_no_lag([topic], LOOK_AGAIN_SECONDS)
    librdkafka_tools.write(servers, topic, librdkafka_tools.simple(500, 0))
    delete_before(servers, [(topic, 0, 450)])
    librdkafka_tools.write(servers, topic, librdkafka_tools.simple(50, 1))
    assert once(alone).status == 0
    alone.await_no_lag([topic], LOOK_AGAIN_SECONDS)
    assert (
        ConsumerView(alone.destination.bootstrap_servers).extents([(topic, 0)])[topic, 0].start
        == 450
    )
    report = alone.check([topic], numbered=False)
    assert report.good, report.problems
    assert report.records == 250 + 250
    verified = alone.verify("--topic", topic)
    assert verified.status == 0, verified


@pytest.mark.long
def test_a_single_run_finds_partitions_that_the_source_has_gained(alone: Stage, topic: str) -> None:
    """Goal: it ends only after a refresh, also if all that was known before is mirrored."""
    servers = alone.source.bootstrap_servers
    librdkafka_tools.make_topic(servers, topic)
    librdkafka_tools.write(servers, topic, librdkafka_tools.simple(10))
    alone.add(topic, "now-and-then")
    assert once(alone).status == 0
    librdkafka_tools.grow_topic(servers, topic, 3)
    librdkafka_tools.write(servers, topic, librdkafka_tools.simple(20, 2))
    assert once(alone).status == 0
    ends = ConsumerView(alone.destination.bootstrap_servers).extents([(topic, 2)])
    assert ends[topic, 2].end == 20


@pytest.mark.long
def test_an_unreachable_source_ends_a_single_run_with_an_error(alone: Stage, topic: str) -> None:
    """It does not wait for ever."""
    servers = alone.source.bootstrap_servers
    librdkafka_tools.make_topic(servers, topic)
    librdkafka_tools.write(servers, topic, librdkafka_tools.simple(10))
    alone.add(topic, "now-and-then")
    alone.source.kill(1)
    try:
        done = once(alone)
    finally:
        alone.source.start_broker(1)
    assert done.status == 1
    assert "no bootstrap server responds" in done.errors.splitlines()[-1], done.errors
