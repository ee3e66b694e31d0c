"""Twin of flow_settings_parser.py; test_flow_settings.py has what the settings mean."""

from twinlog.mirror.flow_settings import FlowSettings
from twinlog.mirror.flow_settings_parser import BadValue, parse_flow_settings


def test_all_errors_are_returned() -> None:
    values = {"tasks.max": "0", "topics": "(", "enabled": "maybe", "replication.factor": "3"}
    errors = parse_flow_settings(values, "A", "B")
    assert isinstance(errors, tuple)
    assert [error.name for error in errors] == ["enabled", "topics", "tasks.max"]
    assert errors[0] == BadValue("enabled", "true or false")


def test_aliases_are_those_of_the_flow_unless_they_are_set() -> None:
    settings = parse_flow_settings({"source.cluster.alias": " eu ", "other": "x"}, "A", "B")
    assert isinstance(settings, FlowSettings)
    assert (settings.source_cluster_alias, settings.target_cluster_alias) == ("eu", "B")
