"""Over by a switchover, back by a failover, between clusters with authorizers."""

import asyncio
from pathlib import Path

import librdkafka_tools
import pytest
from secured_clusters import Secured
from switchover_process import Switching, switched_over
from waiting import until

from twinlog.kafka.acls import Acl, Operation, PatternType, Permission, ResourceType
from twinlog.local.cluster import LocalCluster
from twinlog.local.stage import Stage

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(1200)]

REFRESH = ["mirror.metadata.refresh.interval.ms=1000"]


def begin(stage: Stage, name: str, source: LocalCluster, destination: LocalCluster) -> None:
    """Create a mirror without topics, and start a node."""
    stage.source, stage.destination = source, destination
    stage.create_mirror(name, REFRESH, state_partitions=4)
    stage.start_node(name, "--lanes", "1")


@pytest.mark.long
def test_producers_may_write_to_exactly_one_cluster(
    secured_pair: tuple[Secured, Secured], topic: str, tmp_path: Path
) -> None:
    """Always on one cluster; and the first one's failover needs nothing of a dead second."""
    first, second = secured_pair
    writes = Acl(
        *(ResourceType.TOPIC, topic, PatternType.LITERAL, "User:alice", "*"),
        *(Operation.WRITE, Permission.ALLOW),
    )
    allowed, denied = str(writes), str(writes._replace(permission=Permission.DENY))
    asyncio.run(first.give([writes]))
    librdkafka_tools.make_topic(first.local.bootstrap_servers, topic)
    librdkafka_tools.until_written(topic, first.as_alice())
    with Stage(tmp_path / "there") as outbound, Stage(tmp_path / "back") as return_stage:
        begin(outbound, "there", first.local, second.local)
        begin(return_stage, "back", second.local, first.local)
        outbound.add(topic, "there")
        until(lambda: {allowed, denied} <= second.acls(topic), what="the guard")
        outbound.await_no_lag([topic])
        # Its log is empty, so that it may have no lag before its lane has reported it.
        until(lambda: librdkafka_tools.described(outbound, topic)[0]["fresh"], what="its status")
        switched_over(
            lambda: Switching(
                *("--bootstrap-server", second.local.bootstrap_servers, "--mirror", "there"),
                *("--silence-seconds", "1"),
            )
        )
        librdkafka_tools.until_written(topic, second.as_alice())
        until(lambda: first.acls(topic) == {allowed, denied}, what="the denial of the switchover")

        return_stage.add(topic, "back")
        librdkafka_tools.await_state(return_stage, topic, 0, "MIRRORING")
        return_stage.await_no_lag([topic])
        with pytest.raises(AssertionError, match="TOPIC_AUTHORIZATION_FAILED"):
            librdkafka_tools.write("", topic, librdkafka_tools.simple(1), **first.as_alice())
        second.local.kill(1)
        done = return_stage.mirrors("--remove", "--topic", topic, "--mirror", "back")
        assert done.status == 0, done.errors
        librdkafka_tools.await_state(return_stage, topic, 0, "STOPPED")
        librdkafka_tools.until_written(topic, first.as_alice())
        until(lambda: first.acls(topic) == {allowed}, what="no denial")

        second.local.start_broker(1)
        outbound.add(topic, "there")
        until(lambda: {allowed, denied} <= second.acls(topic), what="the guard")
        outbound.await_no_lag([topic])
        report = outbound.check([topic], numbered=False)
        assert report.good, report.problems
        assert report.records == 3
        assert first.acls(topic) == {allowed}
