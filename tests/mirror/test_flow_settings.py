"""Twin of flow_settings.py; test_mirror_maker_java.py compares the defaults with Java's."""

import ast
import inspect
from dataclasses import fields

import pytest
from checkout import DOCS, ROOT

from twinlog.mirror.flow_settings import (
    IDENTITY_POLICY,
    SETTINGS,
    FlowSettings,
    field_name,
)
from twinlog.mirror.flow_settings_parser import parse_flow_settings
from twinlog.mirror.mirror_maker_names import FORMER_NAMES
from twinlog.mirror.replication_policy import IdentityReplicationPolicy, policy_of
from twinlog.mirror.setting_values import FlowSetting
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


def test_a_group_with_positions_of_a_flow_is_not_selected() -> None:
    """They are offsets of that flow's source, and would be translated as if of this one."""
    assert parsed().selects_group("app")
    assert not parsed(groups=".*", groups_exclude="").selects_group("twinlog.flow.C-to-A")


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


def test_heartbeats_and_checkpoints_may_have_an_interval_of_zero() -> None:
    """Goal: they are on, as in MirrorMaker 2, whose tasks write them without a pause."""
    zero = parsed(
        enabled="true",
        emit_heartbeats_interval_seconds="0",
        emit_checkpoints_interval_seconds="0",
    )
    assert zero.emits_heartbeats
    assert zero.emits_checkpoints
    assert zero.emit_heartbeats_interval_seconds == zero.emit_checkpoints_interval_seconds == 1


@pytest.mark.parametrize(
    ("setting", "name"),
    [
        ("refresh_topics", "refreshes_topics"),
        ("sync_topic_configs", "syncs_topic_configs"),
        ("sync_topic_acls", "syncs_topic_acls"),
        ("emit_heartbeats", "emits_heartbeats"),
    ],
)
def test_what_is_on_by_default_can_be_off_in_two_ways(setting: str, name: str) -> None:
    """Goal: a negative interval means never, as for MirrorMaker 2's `Scheduler`."""
    assert getattr(parsed(), name)
    assert not getattr(parsed(**{f"{setting}_enabled": "false"}), name)
    assert not getattr(parsed(**{f"{setting}_interval_seconds": "-1"}), name)


REPORTS = {
    "flow_settings.py",
    "checkpoint_lines.py",
    "mirror_maker_report.py",
    "mirror_maker_lines.py",
}
"""Modules in which a setting may be read without any effect on a flow."""


def attributes(tree: ast.AST) -> set[str]:
    """The names of all attributes that are read."""
    loads = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    return {node.attr for node in loads if isinstance(node.ctx, ast.Load)}


def read_fields() -> set[str]:
    """The fields of `FlowSettings` that other modules read, also by way of its methods."""
    modules = [path for path in (ROOT / "src").rglob("*.py") if path.name not in REPORTS]
    read = set().union(*(attributes(ast.parse(path.read_text())) for path in modules))
    own = ast.parse(inspect.getsource(FlowSettings)).body[0]
    assert isinstance(own, ast.ClassDef)
    methods = {one.name: attributes(one) for one in own.body if isinstance(one, ast.FunctionDef)}
    pending = [name for name in methods if name in read]
    while pending:
        more = methods.pop(pending.pop(), set())
        read |= more
        pending += [name for name in methods if name in more]
    return read


def test_what_is_reported_as_used_is_read() -> None:
    """Goal: no line of a file is reported as used, and has no effect."""
    read = read_fields()
    unread = {
        name
        for name, setting in SETTINGS.items()
        if not setting.differs and field_name(name) not in read
    }
    classes = {name for name in unread if "only the default is supported" in SETTINGS[name].meaning}
    values = {
        "replication.policy.class": IDENTITY_POLICY,
        "replication.policy.separator": "-",
        "replication.policy.internal.topic.separator.enabled": "false",
    }
    assert unread - classes == values.keys(), "the policy takes these from the properties"
    policy = policy_of(values)
    assert isinstance(policy, IdentityReplicationPolicy)
    assert (policy.separator, policy.internal_topic_separator_enabled) == ("-", False)


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
