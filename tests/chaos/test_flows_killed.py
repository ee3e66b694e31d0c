"""Each part of a running flow killed under load: `make chaos ONLY=flow [TIMES=n]`."""

from typing import Any, cast

import kills
import pytest
from chaos_harness import Trials
from flow_ordeal import flow_ordeal

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(3600)]

RATE = 400.0


@pytest.mark.parametrize("in_transactions", [False, True], ids=["batches", "transactions"])
def test_flow_whose_processes_are_killed(trials: Trials, in_transactions: bool) -> None:
    """Kill a lane, the lanes' parent, a broker of each cluster, the driver's JVM, the driver."""
    with flow_ordeal(
        trials.directory, trials.own_seed, RATE, in_transactions=in_transactions
    ) as flow:
        flow.stage.start_node("node", "--lanes", "2")
        flow.await_all()
        victim = cast("Any", flow)
        for _ in range(trials.times):
            kills.kill_lane(victim, "node")
            kills.kill_daemon(victim, "node")
            kills.kill_only_broker(victim, flow.stage.destination)
            kills.kill_only_broker(victim, flow.stage.source)
            kills.kill_jvm(victim, "node", "--lanes", "2")
            kills.kill_driver(victim, "node", "--lanes", "2")
        flow.prove()
