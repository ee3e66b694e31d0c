"""Each part of a mirror killed under load, many times: nothing lost, doubled or misplaced.

`make chaos` (TIMES=n, SEED=n, ONLY=test_driver). How it is proved: ordeal.py; docs/chaos.md has
what it came to.
"""

from collections.abc import Callable

import pytest

import passages
import striking
from ordeal import Ordeal, Trials, await_in_sync, leaders
from spark_cluster import SparkCluster

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(3600)]

PAUSE_SECONDS = 60.0


def test_python_worker(trials: Trials) -> None:
    """A lane's process, which Spark starts again."""
    with trials.ordeal() as mirror:
        mirror.stage.start_node("node", "--lanes", "2")
        mirror.measure_rest()
        for _ in range(trials.times):
            striking.kill_lane(mirror, "node")
        trials.prove(mirror)


def test_python_daemon(trials: Trials) -> None:
    """The process that lanes are forked from."""
    with trials.ordeal() as mirror:
        mirror.stage.start_node("node", "--lanes", "2")
        mirror.measure_rest()
        for _ in range(trials.times):
            striking.kill_daemon(mirror, "node")
        trials.prove(mirror)


def test_driver(trials: Trials) -> None:
    """The node's Python process or its JVM; the node is started again."""
    with trials.ordeal() as mirror:
        mirror.stage.start_node("node", "--lanes", "2")
        mirror.measure_rest()
        for _ in range(trials.times):
            kill = mirror.random.choice((striking.kill_driver, striking.kill_jvm))
            kill(mirror, "node", "--lanes", "2")
        trials.prove(mirror)


def test_executor(trials: Trials) -> None:
    """An executor of a standalone Spark cluster."""
    with trials.ordeal() as mirror, SparkCluster(trials.directory / "spark") as spark:
        mirror.stage.start_node("node", *spark.arguments)
        mirror.measure_rest()
        for _ in range(trials.times):
            striking.kill_executor(mirror, spark)
        trials.prove(mirror)


def test_spark_worker(trials: Trials) -> None:
    """A worker of a standalone Spark cluster; its lanes go to the other one."""
    with trials.ordeal() as mirror, SparkCluster(trials.directory / "spark") as spark:
        mirror.stage.start_node("node", *spark.arguments)
        mirror.measure_rest()
        for _ in range(trials.times):
            striking.kill_spark_worker(mirror, spark)
        trials.prove(mirror)


def test_destination_broker(trials: Trials) -> None:
    """One broker of three; the others lead what it led."""
    with trials.ordeal(destination=3) as mirror:
        mirror.stage.start_node("node", "--lanes", "2")
        mirror.measure_rest()
        for _ in range(trials.times):
            striking.kill_broker(mirror, mirror.stage.destination)
        trials.prove(mirror)


def test_source_broker(trials: Trials) -> None:
    """One broker of three; the others lead what it led."""
    with trials.ordeal(source=3) as mirror:
        mirror.stage.start_node("node", "--lanes", "2")
        mirror.measure_rest()
        for _ in range(trials.times):
            striking.kill_broker(mirror, mirror.stage.source)
        trials.prove(mirror)


def test_pause(trials: Trials) -> None:
    """A lane stands still for a minute (SIGSTOP); another node takes over; it goes on."""
    with trials.ordeal() as mirror:
        for name in ("one", "other"):
            mirror.stage.start_node(name, "--lanes", "1")
        mirror.measure_rest()
        for _ in range(trials.times):
            striking.pause_lane(mirror, PAUSE_SECONDS)
        trials.prove(mirror)


def test_node_while_preparing(trials: Trials) -> None:
    """The node, while a topic that was added is PREPARING."""
    _node_during(trials, passages.prepare)


def test_node_while_pausing(trials: Trials) -> None:
    """The node, while a topic is being paused."""
    _node_during(trials, passages.pause)


def test_node_while_resuming(trials: Trials) -> None:
    """The node, while a topic is being resumed."""
    _node_during(trials, passages.resume)


def test_node_while_removing(trials: Trials) -> None:
    """The node, while a topic is being removed: it is fenced once, and its end is where it is."""
    _node_during(trials, passages.remove)


def _node_during(trials: Trials, passage: Callable[[Ordeal, passages.Strike], None]) -> None:
    with trials.ordeal() as mirror:
        mirror.stage.start_node("node", "--lanes", "2")
        mirror.measure_rest()
        for _ in range(trials.times):
            passage(mirror, passages.strike_node(mirror, "node", "--lanes", "2"))
        trials.prove(mirror)


def test_destination_broker_while_removing(trials: Trials) -> None:
    """One broker of three, while a topic is being removed."""
    with trials.ordeal(destination=3) as mirror:
        cluster = mirror.stage.destination
        mirror.stage.start_node("node", "--lanes", "2")
        mirror.measure_rest()
        for _ in range(trials.times):
            victim = mirror.random.choice(leaders(cluster))
            passages.remove(mirror, lambda victim=victim: cluster.kill(victim))  # type: ignore[misc]
            cluster.start_broker(victim)
            await_in_sync(cluster)
        trials.prove(mirror)


def test_source_gone_while_removing(trials: Trials) -> None:
    """The only broker of the source is dead when a topic is removed: seconds until STOPPED."""
    with trials.ordeal() as mirror:
        mirror.stage.start_node("node", "--lanes", "2")
        mirror.measure_rest()
        for _ in range(trials.times):
            passages.remove_without_source(mirror)
        trials.prove(mirror)


def test_racing_commands(trials: Trials) -> None:
    """Twenty commands about two topics, four at a time, from processes of their own."""
    with trials.ordeal() as mirror:
        mirror.stage.start_node("node", "--lanes", "2")
        mirror.measure_rest()
        for _ in range(trials.times):
            passages.race(mirror)
        trials.prove(mirror, may_fail=True)
