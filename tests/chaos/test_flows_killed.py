"""Each part of a running flow killed under load: `make chaos ONLY=flow [TIMES=n]`.

flow_ordeal.py has the proof; docs/chaos.md has the results.
"""

import os
import random
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, cast

import frame_functions
import kills
import pytest
from chaos_harness import Trials
from flow_kinds import BATCHES, FUNCTION, QUERY, TRANSACTIONS, FlowKind
from flow_ordeal import FlowOrdeal, flow_ordeal
from spark_cluster import SparkCluster
from unusual_load import UnusualLoad, unusual_brokers

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(7200)]

RATE = 400.0
LANES = ("--lanes", "2")
PARTS_OF_SPARK = (("session",), ("jvm",), ("worker",), ("daemon", "worker"))
"""What is killed together of the Spark beside a lane."""


@pytest.fixture(autouse=True)
def _functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let lanes import the functions of flows."""
    folder = Path(frame_functions.__file__).parent
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)


def kinds(*among: FlowKind) -> pytest.MarkDecorator:
    """Run a test for flows of each of these kinds."""
    return pytest.mark.parametrize("kind", among, ids=[kind.name for kind in among])


@kinds(BATCHES, TRANSACTIONS, QUERY, FUNCTION)
def test_flow_whose_processes_are_killed(trials: Trials, kind: FlowKind) -> None:
    """Kill a lane, the lanes' parent, a broker of each cluster, the driver's JVM, the driver."""
    with flow_ordeal(trials.directory, trials.own_seed, RATE, kind=kind) as flow:
        _kill_each(trials, flow)


@kinds(BATCHES, TRANSACTIONS, QUERY, FUNCTION)
def test_flow_of_an_unusual_source(trials: Trials, kind: FlowKind) -> None:
    """Kill the same where quotas and remote storage answer without records, and some are large."""
    with _of_an_unusual_source(trials, kind) as flow:
        _kill_each(trials, flow)


@kinds(BATCHES, TRANSACTIONS, QUERY, FUNCTION)
def test_flow_on_a_spark_cluster(trials: Trials, kind: FlowKind) -> None:
    """Kill executors and workers of a standalone Spark cluster."""
    with flow_ordeal(trials.directory, trials.own_seed, RATE, kind=kind) as flow:
        _kill_parts_of_a_spark_cluster(trials, flow)


@kinds(QUERY, FUNCTION)
def test_flow_of_an_unusual_source_on_a_spark_cluster(trials: Trials, kind: FlowKind) -> None:
    """Kill these where the source is unusual."""
    with _of_an_unusual_source(trials, kind) as flow:
        _kill_parts_of_a_spark_cluster(trials, flow)


@kinds(BATCHES, TRANSACTIONS, QUERY)
def test_flow_between_three_brokers(trials: Trials, kind: FlowKind) -> None:
    """Kill a broker that leads partitions; the other two of its cluster take over."""
    with flow_ordeal(
        *(trials.directory, trials.own_seed, RATE), kind=kind, source=3, destination=3
    ) as flow:
        flow.stage.start_node("node", *LANES, *flow.node_arguments)
        flow.await_all()
        victim = cast("Any", flow)
        for _ in range(trials.times):
            kills.kill_broker(victim, flow.stage.destination)
            kills.kill_broker(victim, flow.stage.source)
        trials.proofs[trials.kind] = flow.prove()


def _of_an_unusual_source(trials: Trials, kind: FlowKind) -> AbstractContextManager[FlowOrdeal]:
    seed = trials.own_seed
    choose = random.Random(seed)
    return flow_ordeal(
        *(trials.directory, seed, RATE / 2),
        kind=kind,
        source_config=unusual_brokers(trials.directory / "remote", choose),
        other_load=lambda source: UnusualLoad(source, seed),
    )


def _kill_parts_of_a_spark_cluster(trials: Trials, flow: FlowOrdeal) -> None:
    """Kill executors and workers in turn, and prove that each record was copied once."""
    with SparkCluster(trials.directory / "spark") as spark:
        flow.stage.start_node("node", *spark.arguments, *flow.node_arguments)
        flow.await_all()
        victim = cast("Any", flow)
        for _ in range(trials.times):
            kills.kill_executor(victim, spark)
            kills.kill_spark_worker(victim, spark)
        trials.proofs[trials.kind] = flow.prove()


def _kill_each(trials: Trials, flow: FlowOrdeal) -> None:
    """Kill each part of a flow on this machine, and prove that each record was copied once."""
    arguments = (*LANES, *flow.node_arguments)
    flow.stage.start_node("node", *arguments)
    flow.await_all()
    victim = cast("Any", flow)
    for _ in range(trials.times):
        kills.kill_lane(victim, "node")
        kills.kill_daemon(victim, "node")
        kills.kill_only_broker(victim, flow.stage.destination)
        kills.kill_only_broker(victim, flow.stage.source)
        if flow.kind.has_query:
            for parts in PARTS_OF_SPARK:
                kills.kill_lane_spark(victim, "node", *parts)
        kills.kill_jvm(victim, "node", *arguments)
        kills.kill_driver(victim, "node", *arguments)
    trials.proofs[trials.kind] = flow.prove()
