"""Each part of a running flow killed once, under load: the short form of tests/chaos."""

import secrets
from pathlib import Path
from typing import Any, cast

import kills
import pytest
from flow_ordeal import flow_ordeal

pytestmark = [pytest.mark.last, pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(1200)]

RATE = 400.0


def test_a_flow_copies_each_record_once_though_each_process_is_killed(tmp_path: Path) -> None:
    """Kill a lane, the lanes' parent, a broker of each cluster, the driver's JVM, the driver."""
    with flow_ordeal(tmp_path, secrets.token_hex(4), RATE) as flow:
        flow.stage.start_node("node", "--lanes", "2")
        flow.await_all()
        victim = cast("Any", flow)
        kills.kill_lane(victim, "node")
        kills.kill_daemon(victim, "node")
        kills.kill_only_broker(victim, flow.stage.destination)
        kills.kill_only_broker(victim, flow.stage.source)
        kills.kill_jvm(victim, "node", "--lanes", "2")
        kills.kill_driver(victim, "node", "--lanes", "2")
        flow.prove()
