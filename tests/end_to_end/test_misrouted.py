"""A broker's address that goes to a broker of another cluster while a mirror works (KIP-1242)."""

import time
from pathlib import Path

import librdkafka_tools
import pytest
from tcp_proxy import PROXIED, Proxies

from twinlog.local.stage import MIRROR, Stage

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(1200)]

TOPIC = "orders"
"""The load's transactions."""


@pytest.mark.long
def test_a_mirror_writes_nothing_to_the_cluster_that_has_got_an_address(tmp_path: Path) -> None:
    """Goal: the source, which has the same topics, gets nothing; then the mirror goes on.

    A foreign marker would end a transaction of the source's producers, and their numbers would
    show it.
    """
    with Stage(tmp_path) as stage:
        stage.start_source(1)
        stage.start_destination(1, proxied=[PROXIED])
        ((name, (_, real)),) = stage.destination.proxy_ports(PROXIED).items()
        other = int(stage.source.bootstrap_servers.rpartition(":")[2])
        with Proxies.of(stage.destination) as proxies:
            stage.start_load(1000.0, 300.0)
            stage.create_mirror(MIRROR)
            stage.add(TOPIC)
            stage.start_node("node", "--lanes", "2")
            librdkafka_tools.await_all_mirroring(stage, 300)
            for _ in range(6):
                proxies.lead_to(other, name)
                time.sleep(2)
                proxies.lead_to(real, name)
                time.sleep(2)
            stage.stop_load()
            stage.await_no_lag([TOPIC])
            report = stage.check([TOPIC])
            assert report.good, report.problems
            assert report.records > 0
