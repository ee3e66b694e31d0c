"""Each part of a mirror killed under load, many times: nothing lost, duplicated or misplaced.

`make chaos` (TIMES=n, SEED=n, ONLY=test_driver). chaos_harness.py has the proof; docs/chaos.md has
the results.
"""

from collections.abc import Callable

import clock
import kills
import pytest
import revoked_rights
import transition_faults
import unreachable_sources
from chaos_harness import Ordeal, Trials, await_in_sync, leaders
from spark_cluster import SparkCluster

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(3600)]

PAUSE_SECONDS = 60.0
SOURCE_RATE = 150.0
"""Records a second of each source, where there are several."""


def test_python_worker(trials: Trials) -> None:
    """Kill a lane's process, which Spark restarts."""
    with trials.ordeal() as mirror:
        mirror.stage.start_node("node", "--lanes", "2")
        mirror.measure_rest()
        for _ in range(trials.times):
            kills.kill_lane(mirror, "node")
        trials.prove(mirror)


def test_python_daemon(trials: Trials) -> None:
    """Kill the process that lanes are forked from."""
    with trials.ordeal() as mirror:
        mirror.stage.start_node("node", "--lanes", "2")
        mirror.measure_rest()
        for _ in range(trials.times):
            kills.kill_daemon(mirror, "node")
        trials.prove(mirror)


def test_driver(trials: Trials) -> None:
    """Kill the node's Python process or its JVM; the node is restarted."""
    with trials.ordeal() as mirror:
        mirror.stage.start_node("node", "--lanes", "2")
        mirror.measure_rest()
        for _ in range(trials.times):
            kill = mirror.random.choice((kills.kill_driver, kills.kill_jvm))
            kill(mirror, "node", "--lanes", "2")
        trials.prove(mirror)


def test_executor(trials: Trials) -> None:
    """Kill an executor of a standalone Spark cluster."""
    with trials.ordeal() as mirror, SparkCluster(trials.directory / "spark") as spark:
        mirror.stage.start_node("node", *spark.arguments)
        mirror.measure_rest()
        for _ in range(trials.times):
            kills.kill_executor(mirror, spark)
        trials.prove(mirror)


def test_spark_worker(trials: Trials) -> None:
    """Kill a worker of a standalone Spark cluster; its lanes move to the other one."""
    with trials.ordeal() as mirror, SparkCluster(trials.directory / "spark") as spark:
        mirror.stage.start_node("node", *spark.arguments)
        mirror.measure_rest()
        for _ in range(trials.times):
            kills.kill_spark_worker(mirror, spark)
        trials.prove(mirror)


def test_destination_broker(trials: Trials) -> None:
    """Kill one broker of three; the others take over its partitions."""
    with trials.ordeal(destination=3) as mirror:
        mirror.stage.start_node("node", "--lanes", "2")
        mirror.measure_rest()
        for _ in range(trials.times):
            kills.kill_broker(mirror, mirror.stage.destination)
        trials.prove(mirror)


def test_source_broker(trials: Trials) -> None:
    """Kill one broker of three; the others take over its partitions."""
    with trials.ordeal(source=3) as mirror:
        mirror.stage.start_node("node", "--lanes", "2")
        mirror.measure_rest()
        for _ in range(trials.times):
            kills.kill_broker(mirror, mirror.stage.source)
        trials.prove(mirror)


def test_pause(trials: Trials) -> None:
    """Pause a lane for a minute (SIGSTOP); another node takes over; the lane continues."""
    with trials.ordeal() as mirror:
        for name in ("one", "other"):
            mirror.stage.start_node(name, "--lanes", "1")
        mirror.measure_rest()
        for _ in range(trials.times):
            kills.pause_lane(mirror, PAUSE_SECONDS)
        trials.prove(mirror)


def test_node_while_preparing(trials: Trials) -> None:
    """Kill the node while an added topic is PREPARING."""
    _node_during(trials, transition_faults.prepare)


def test_node_while_pausing(trials: Trials) -> None:
    """Kill the node while a topic is being paused."""
    _node_during(trials, transition_faults.pause)


def test_node_while_resuming(trials: Trials) -> None:
    """Kill the node while a topic is being resumed."""
    _node_during(trials, transition_faults.resume)


def test_node_while_removing(trials: Trials) -> None:
    """Kill the node while a topic is being removed: it has one fence, and the correct end."""
    _node_during(trials, transition_faults.remove)


def test_node_while_failed(trials: Trials) -> None:
    """Kill the node before, while or after topics are FAILED for a missing right or user."""
    with revoked_rights.guarded(trials.directory, trials.own_seed, trials.rate) as guarded:
        guarded.mirror.measure_rest()
        deaths: list[revoked_rights.Death] = []
        for _ in range(trials.times):
            deaths = deaths or guarded.mirror.random.sample(
                [*revoked_rights.Death], len(revoked_rights.Death)
            )
            said = [loss for loss in guarded.losses() if loss.reason]
            guarded.suffer(said[0], deaths.pop())
        trials.prove(guarded.mirror, may_fail=True)


def _node_during(
    trials: Trials, passage: Callable[[Ordeal, transition_faults.Strike], None]
) -> None:
    with trials.ordeal() as mirror:
        mirror.stage.start_node("node", "--lanes", "2")
        mirror.measure_rest()
        for _ in range(trials.times):
            passage(mirror, transition_faults.strike_node(mirror, "node", "--lanes", "2"))
        trials.prove(mirror)


def test_destination_broker_while_removing(trials: Trials) -> None:
    """Kill one broker of three while a topic is being removed."""
    with trials.ordeal(destination=3) as mirror:
        cluster = mirror.stage.destination
        mirror.stage.start_node("node", "--lanes", "2")
        mirror.measure_rest()
        for _ in range(trials.times):
            victim = mirror.random.choice(leaders(cluster))
            transition_faults.remove(mirror, lambda victim=victim: cluster.kill(victim))  # type: ignore[misc]
            cluster.start_broker(victim)
            await_in_sync(cluster)
        trials.prove(mirror)


def test_source_gone_while_removing(trials: Trials) -> None:
    """Remove a topic while its source's only broker is dead; measure the time until STOPPED."""
    with trials.ordeal() as mirror:
        mirror.stage.start_node("node", "--lanes", "2")
        mirror.measure_rest()
        for _ in range(trials.times):
            transition_faults.remove_without_source(mirror)
        trials.prove(mirror)


def test_racing_commands(trials: Trials) -> None:
    """Run twenty commands about two topics, four at a time, each in a separate process."""
    with trials.ordeal() as mirror:
        mirror.stage.start_node("node", "--lanes", "2")
        mirror.measure_rest()
        for _ in range(trials.times):
            transition_faults.race(mirror)
        trials.prove(mirror, may_fail=True)


def test_active_controller(trials: Trials) -> None:
    """Kill the destination's active controller, of three; at random a broker with it."""
    with trials.ordeal(destination=3, controllers=3) as mirror:
        mirror.stage.start_node("node", "--lanes", "2")
        mirror.measure_rest()
        for _ in range(trials.times):
            kills.kill_controller(mirror, mirror.stage.destination)
        trials.prove(mirror)


def test_controller_during_a_passage(trials: Trials) -> None:
    """Kill the controller while a topic is being removed, or is added and PREPARING, in turn."""
    with trials.ordeal(destination=3, controllers=3) as mirror:
        cluster = mirror.stage.destination
        mirror.stage.start_node("node", "--lanes", "2")
        mirror.measure_rest()
        for at in range(trials.times):
            victims = kills.controller_and_perhaps_a_broker(mirror, cluster)
            passage = transition_faults.prepare if at % 2 else transition_faults.remove
            passage(mirror, lambda victims=victims: kills.kill_all(cluster, victims))  # type: ignore[misc]
            kills.start_again(cluster, victims)
        trials.prove(mirror)


def test_absent_sources(trials: Trials) -> None:
    """Make five sources unreachable for five minutes (--gone-seconds); a sixth one stays."""
    at_once = min(trials.times, unreachable_sources.AT_ONCE)
    make = (trials.directory, trials.own_seed, SOURCE_RATE, at_once + 1)
    with unreachable_sources.sources(*make) as mirrors:
        first = mirrors[0]
        first.measure_rest()
        left = trials.times
        while left > 0:
            count = min(left, at_once)
            longest = unreachable_sources.be_gone(mirrors, first.random, count, trials.gone_seconds)
            first.say(f"without news of a source that stayed for at most {longest:.1f} s")
            left -= count
        trials.prove(*mirrors, may_fail=True)


def test_credentials(trials: Trials) -> None:
    """Revoke and restore users, passwords and rights, at the source and at the destination."""
    with revoked_rights.guarded(trials.directory, trials.own_seed, trials.rate) as guarded:
        guarded.mirror.measure_rest()
        losses: list[revoked_rights.Loss] = []
        for _ in range(trials.times):
            losses = losses or guarded.losses()
            guarded.suffer(losses.pop())
        longest = guarded.longest_beside
        guarded.mirror.say(f"other topics were without news for at most {longest:.1f} s")
        trials.prove(guarded.mirror, may_fail=True)


def test_clock(trials: Trials) -> None:
    """Let the node's clock jump by hours and days, forward and back."""
    with clock.nothing_left(), trials.ordeal() as mirror:
        own = clock.start_node(mirror)
        mirror.measure_rest()
        clock.jump(mirror, own, trials.times)
        trials.prove(mirror)
