"""Twin of twinlog.mirror.flow."""

import pytest

from twinlog.kafka.errors import UserError
from twinlog.mirror.flow import flow_of, flow_properties
from twinlog.mirror.settings import kind_of, parse_settings


def test_a_flow_survives_being_stored() -> None:
    properties = flow_properties({"topics": "orders", "replication.factor": "1"}, "a", "b")
    parse_settings(properties)
    assert kind_of(properties) == "translated"
    settings, policy = flow_of(properties)
    assert (settings.source_cluster_alias, settings.target_cluster_alias) == ("a", "b")
    assert settings.replication_factor == 1
    assert policy.format_remote_topic("a", "orders") == "a.orders"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"mirror.flow.source.cluster.alias": " "}, "source.cluster.alias is missing"),
        ({"mirror.flow.topic": "x"}, "mirror.flow.topic is not a setting of a flow"),
        ({"mirror.flow.topics": "("}, "mirror.flow.topics is '\\(': expected regular"),
        ({"mirror.flow.replication.policy.class": "Own"}, "replication.policy.class is 'Own'"),
    ],
)
def test_malformed_properties_are_refused(change: dict[str, str], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        flow_of(flow_properties({}, "a", "b") | change)
