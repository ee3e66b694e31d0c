"""Twin of flow_settings.py; test_mirror_maker_java.py compares the defaults with Java's."""

from dataclasses import fields

import pytest
from checkout import DOCS

from twinlog.mirror.flow_settings import (
    FORMER_NAMES,
    SETTINGS,
    BadValue,
    FlowSetting,
    FlowSettings,
    field_name,
    parse_flow_settings,
)
from twinlog.text import closest


def parsed(**values: str) -> FlowSettings:
    """Settings with these values, by the names of their fields."""
    names = {field_name(name): name for name in SETTINGS}
    result = parse_flow_settings({names[key]: value for key, value in values.items()}, "A", "B")
    assert isinstance(result, FlowSettings), result
    return result


def test_each_setting_has_a_field() -> None:
    """Goal: the table and the class say the same."""
    assert [field_name(name) for name in SETTINGS] == [f.name for f in fields(FlowSettings)]
    assert set(FORMER_NAMES.values()) <= set(SETTINGS)


def test_defaults() -> None:
    settings = parsed()
    assert not settings.enabled
    assert (settings.source_cluster_alias, settings.target_cluster_alias) == ("A", "B")
    assert settings.refresh_topics_interval_seconds == 600
    assert settings.emits_heartbeats
    assert not settings.emits_checkpoints
    assert settings.consumer_auto_offset_reset == "earliest"


@pytest.mark.parametrize(
    ("topic", "selected"),
    [("orders", True), ("mm2-offsets.A.internal", False), ("__transaction_state", False)],
)
def test_default_topics(topic: str, selected: bool) -> None:
    assert parsed().selects_topic(topic) is selected


def test_excluded_groups_are_not_selected() -> None:
    settings = parsed(groups="app-.*", groups_exclude="app-test.*")
    assert settings.selects_group("app-1")
    assert not settings.selects_group("app-test-1")
    assert not settings.selects_group("other")


@pytest.mark.parametrize(
    ("values", "checkpoints", "offsets"),
    [
        ({}, True, False),
        ({"sync_group_offsets_enabled": "true"}, True, True),
        (
            {"sync_group_offsets_enabled": "true", "sync_group_offsets_interval_seconds": "-1"},
            True,
            False,
        ),
        (
            {"sync_group_offsets_enabled": "true", "emit_checkpoints_enabled": "false"},
            False,
            False,
        ),
        ({"emit_checkpoints_interval_seconds": "-1"}, False, False),
        (
            {"sync_group_offsets_enabled": "true", "emit_offset_syncs_enabled": "false"},
            False,
            False,
        ),
        ({"enabled": "false", "sync_group_offsets_enabled": "true"}, False, False),
    ],
)
def test_checkpoints_and_group_offsets(
    values: dict[str, str], checkpoints: bool, offsets: bool
) -> None:
    """Goal: no group offsets without checkpoints (KIP-545), no checkpoints without positions."""
    settings = parsed(**{"enabled": "true", **values})
    assert (settings.emits_checkpoints, settings.syncs_group_offsets) == (checkpoints, offsets)


def test_heartbeats_can_be_off_in_two_ways() -> None:
    assert not parsed(emit_heartbeats_enabled="false").emits_heartbeats
    assert not parsed(emit_heartbeats_interval_seconds="-1").emits_heartbeats


def test_all_errors_are_returned() -> None:
    values = {"tasks.max": "0", "topics": "(", "enabled": "maybe", "replication.factor": "3"}
    errors = parse_flow_settings(values, "A", "B")
    assert isinstance(errors, tuple)
    assert [error.name for error in errors] == ["enabled", "topics", "tasks.max"]
    assert errors[0] == BadValue("enabled", "true or false")


def test_the_closest_name() -> None:
    assert closest("topcs.exclude", SETTINGS) == "topics.exclude"
    assert closest("zzz", SETTINGS) is None


def row(setting: FlowSetting) -> str:
    """The line of docs/operations/mirror-maker.md for a setting."""
    default = "(of the flow)" if setting.default is None else f"`{setting.default}`"
    notes = {"removed": "removed in Kafka 4.0", "draft": "in no MirrorMaker 2", "client": ""}
    differs = "; ".join(filter(None, (notes.get(setting.origin, ""), setting.differs)))
    level = "" if setting.everywhere else " (not without a prefix)"
    return (
        f"| `{setting.name}` | {setting.meaning}{level} | {setting.unit} | {default} | {differs} |"
    )


def test_the_page_has_the_table() -> None:
    """Goal: names, meanings, units and defaults on the page are those of the code."""
    page = (DOCS / "operations" / "mirror-maker.md").read_text()
    section = page.partition("## Settings of a flow\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    assert rows == [row(setting) for setting in SETTINGS.values()]
