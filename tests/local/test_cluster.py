"""Twin of twinlog.local.cluster: real brokers start, die, come back, and leave nothing behind."""

import pytest
from confluent_kafka.admin import AdminClient

from twinlog.local import probe
from twinlog.local.cluster import LocalCluster

pytestmark = pytest.mark.broker


def test_one_broker_serves(any_kafka: LocalCluster) -> None:
    """An outside client finds the one broker, the cluster id, and the version's own features."""
    metadata = AdminClient({"bootstrap.servers": any_kafka.bootstrap_servers}).list_topics(
        timeout=10
    )
    assert sorted(metadata.brokers) == [1]
    assert metadata.cluster_id == any_kafka.cluster_id


def test_three_brokers_serve(trio: LocalCluster) -> None:
    """Every broker lists all three, so a client may ask any of them."""
    for broker in trio.brokers:
        assert probe.live_brokers(broker.port) == {1, 2, 3}
