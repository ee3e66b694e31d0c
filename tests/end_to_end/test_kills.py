"""Each part of a running mirror killed once, under load: the short form of tests/chaos."""

import secrets
from pathlib import Path

import kills
import pytest
import transition_faults
from chaos_harness import ordeal
from spark_cluster import SparkCluster

pytestmark = [pytest.mark.last, pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(1200)]

RATE = 400.0


def test_a_mirror_survives_the_kill_of_each_local_process(tmp_path: Path) -> None:
    """Kill a lane, the lanes' parent, a broker of each cluster, the driver's JVM, the driver.

    The last one is killed while a topic is being removed.
    """
    with ordeal(tmp_path, secrets.token_hex(4), RATE) as mirror:
        mirror.stage.start_node("node", "--lanes", "2")
        mirror.await_all()
        kills.kill_lane(mirror, "node")
        kills.kill_daemon(mirror, "node")
        kills.kill_only_broker(mirror, mirror.stage.destination)
        kills.kill_only_broker(mirror, mirror.stage.source)
        kills.kill_jvm(mirror, "node", "--lanes", "2")
        transition_faults.remove(
            mirror, transition_faults.strike_node(mirror, "node", "--lanes", "2")
        )
        mirror.prove()


@pytest.mark.long
def test_a_mirror_survives_kills_in_a_spark_cluster(tmp_path: Path) -> None:
    """Kill one of two workers: its lane moves to the other one, whose own lane is not affected.

    Then kill an executor, which is replaced.
    """
    with (
        ordeal(tmp_path, secrets.token_hex(4), RATE) as mirror,
        SparkCluster(tmp_path / "spark") as spark,
    ):
        mirror.stage.start_node("node", *spark.arguments)
        spark.await_spread()
        mirror.await_all()
        kills.kill_spark_worker(mirror, spark)
        kills.kill_executor(mirror, spark)
        mirror.prove()
