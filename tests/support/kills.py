"""One kill of each kind, at a random moment; each waits until every partition has resumed."""

import asyncio
import time
from collections.abc import Collection

import librdkafka_tools
import process_tree
from chaos_harness import Ordeal, await_in_sync, leaders
from clients import Quorum, describe_quorum
from spark_cluster import SparkCluster
from waiting import until

from twinlog.kafka.errors import Retriable
from twinlog.local.cluster import LocalCluster
from twinlog.local.identity import Identity

LANES = 2


def kill_lane(mirror: Ordeal, node: str) -> None:
    """Kill a lane, which is a Python worker."""
    found = process_tree.await_lanes(mirror.stage.nodes[node].pid, LANES)
    mirror.kill(lambda: process_tree.end(mirror.random.choice(found)))


def kill_daemon(mirror: Ordeal, node: str) -> None:
    """Kill the daemon that forks the lanes: its lanes end by themselves, and new ones start."""
    pid = mirror.stage.nodes[node].pid
    before = process_tree.await_lanes(pid, LANES)
    (daemon,) = process_tree.daemons(pid)

    def strike() -> None:
        process_tree.end(daemon)
        until(lambda: not any(lane.alive() for lane in before), what="the end of the former lanes")

    mirror.kill(strike)


def kill_lane_spark(mirror: Ordeal, node: str, *parts: str) -> None:
    """Kill processes of the Spark beside a lane (fields of `LaneSpark`); the lanes live on."""
    pid = mirror.stage.nodes[node].pid
    lanes = process_tree.await_lanes(pid, LANES)

    def strike() -> None:
        victim = mirror.random.choice(process_tree.await_lane_sparks(pid))
        for part in parts:
            process_tree.end(getattr(victim, part))

    process_tree.await_lane_sparks(pid)
    mirror.kill(strike)
    assert all(lane.alive() for lane in lanes), "a lane has ended with the Spark beside it"


def kill_driver(mirror: Ordeal, node: str, *arguments: str) -> None:
    """Kill a node's own process, and restart the node at once."""
    driver = mirror.stage.nodes[node]
    process_tree.await_lanes(driver.pid, LANES)

    def strike() -> None:
        driver.kill()
        mirror.stage.start_node(node, *arguments)

    mirror.kill(strike)


def kill_jvm(mirror: Ordeal, node: str, *arguments: str) -> None:
    """Kill a node's JVM: the node reports that and ends; then it is restarted."""
    driver = mirror.stage.nodes[node]
    process_tree.await_lanes(driver.pid, LANES)
    jvm = process_tree.jvm(driver.pid)

    def strike() -> None:
        process_tree.end(jvm)
        until(lambda: not driver.alive, 300, "the end of a node that has lost its JVM")
        said = driver.log.read_text(errors="replace").splitlines()
        assert any(line.startswith("Error: Spark's JVM has ended") for line in said), said
        mirror.stage.start_node(node, *arguments)

    mirror.kill(strike)


def kill_executor(mirror: Ordeal, spark: SparkCluster) -> None:
    """Kill one executor; the Spark beside its lane, if there is one, ends with it."""

    def there() -> list[Identity]:
        found = [executor for number in spark.workers for executor in spark.executors(number)]
        return found if len(found) == LANES else []

    found = until(there, 300, "an executor for each lane")
    sparks: list[process_tree.LaneSpark] = []

    def strike() -> None:
        victim = mirror.random.choice(found)
        sparks.extend(process_tree.lane_sparks(victim.pid))
        process_tree.end(victim)

    mirror.kill(strike)
    left = [part for spark in sparks for part in spark]
    until(lambda: not any(part.alive() for part in left), what="the end of the Spark beside it")


def kill_spark_worker(mirror: Ordeal, spark: SparkCluster) -> None:
    """Kill a worker that has lanes; the other worker's lanes go on; then restart it."""

    def with_lanes() -> list[int]:
        every = {number: spark.lanes(number) for number in spark.workers}
        return [number for number, lanes in every.items() if lanes]

    victim = mirror.random.choice(until(with_lanes, 300, "a worker with lanes"))
    others = [lane for number in spark.workers if number != victim for lane in spark.lanes(number)]
    mirror.kill(lambda: spark.kill_worker(victim))
    assert all(lane.alive() for lane in others), "lanes of another worker were touched"
    spark.start_worker(victim)


def kill_broker(mirror: Ordeal, cluster: LocalCluster) -> None:
    """Kill a broker that leads partitions; restart it, and let it catch up."""
    victim = mirror.random.choice(leaders(cluster))
    mirror.kill(lambda: cluster.kill(victim))
    cluster.start_broker(victim)
    await_in_sync(cluster)


def kill_controller(mirror: Ordeal, cluster: LocalCluster) -> None:
    """Kill the active controller, perhaps with a broker; restart them."""
    victims = controller_and_perhaps_a_broker(mirror, cluster)
    mirror.kill(lambda: kill_all(cluster, victims))
    start_again(cluster, victims)


def controller_and_perhaps_a_broker(mirror: Ordeal, cluster: LocalCluster) -> list[int]:
    """Return the active controller and, at random, a broker that leads partitions."""
    brokers = mirror.random.choice(([], [mirror.random.choice(leaders(cluster))]))
    victims = [await_quorum(cluster).leader, *brokers]
    mirror.say(f"to be killed: {victims}")
    return victims


def kill_all(cluster: LocalCluster, victims: Collection[int]) -> None:
    """Kill these nodes, one directly after the other."""
    for victim in victims:
        cluster.kill(victim)


def start_again(cluster: LocalCluster, victims: Collection[int]) -> None:
    """Restart nodes once another controller is active, and let all of them catch up."""
    assert await_quorum(cluster, without=victims).leader not in victims
    for victim in victims:
        cluster.start_broker(victim)
    await_quorum(cluster)
    await_in_sync(cluster)


def await_quorum(cluster: LocalCluster, without: Collection[int] = ()) -> Quorum:
    """Wait for an active controller, and until all other voters have its log as of then."""

    def ask() -> Quorum | None:
        try:
            found = asyncio.run(describe_quorum(cluster))
        except Retriable:
            return None
        return found if found.leader >= 0 and found.leader not in without else None

    first = until(ask, 300, "an active controller")

    def caught_up() -> Quorum | None:
        found = ask()
        if found is None or any(
            end < first.high_watermark for node, end in found.ends.items() if node not in without
        ):
            return None
        return found

    return until(caught_up, 300, "controllers that have all of the metadata log")


def kill_only_broker(mirror: Ordeal, cluster: LocalCluster) -> None:
    """Kill a cluster's only broker, and restart it at once."""
    (broker,) = cluster.brokers

    def strike() -> None:
        cluster.kill(broker.node_id)
        cluster.start_broker(broker.node_id)

    mirror.kill(strike)


def pause_lane(mirror: Ordeal, seconds: float) -> None:
    """Pause the only lane of one of two nodes; the other node takes over; the lane continues.

    This ends when both nodes own state partitions again.
    """
    stage = mirror.stage
    librdkafka_tools.await_shares(stage, len(stage.nodes))
    owners = {row["node"] for row in librdkafka_tools.all_described(stage)} & set(stage.nodes)
    (lane,) = process_tree.await_lanes(stage.nodes[mirror.random.choice(sorted(owners))].pid, 1)
    mirror.await_moment()
    with process_tree.paused(lane):
        since = time.monotonic()
        mirror.await_resumed(since)
        time.sleep(max(0.0, since + seconds - time.monotonic()))  # the pause's length is tested
        assert lane.alive(), "what stood still was ended"
    librdkafka_tools.await_shares(stage, len(stage.nodes))
    mirror.await_all()
