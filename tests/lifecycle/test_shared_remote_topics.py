"""Several topics of a flow with one remote topic: how many partitions it needs.

With brokers: tests/end_to_end/test_aggregation.py.
"""

from types import SimpleNamespace
from typing import Any

from twinlog.lifecycle.flow_topics import lacking_partitions


def topic(partitions: int) -> Any:
    return SimpleNamespace(partitions=range(partitions))


def test_a_shared_remote_topic_gets_the_partitions_of_its_largest_source() -> None:
    """Goal: whatever the order is; what would have no partition there could never be copied."""
    topics = {"orders": topic(5), "paid": topic(4), "small": topic(2), "own": topic(3)}
    names = dict.fromkeys(topics, "common") | {"own": "a.own", "new": "a.new"}
    existing = {"common": topic(3), "a.own": topic(1)}
    for order in (topics, dict(reversed(topics.items()))):
        assert lacking_partitions(order, names, existing) == {"common": 5, "a.own": 3}
    assert lacking_partitions({"small": topic(2)}, names, existing) == {}
    assert lacking_partitions({"new": topic(2)}, names, existing) == {}
