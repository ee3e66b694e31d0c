"""Which groups' offsets are copied, without brokers."""

import re

import pytest

from twinlog.kafka.groups.offsets import Group
from twinlog.lifecycle.flow_creation import stored_properties
from twinlog.mirror.flow import flow_settings_of
from twinlog.mirror.settings import GROUPS, parse_settings
from twinlog.store.config_records import Mirror
from twinlog.sync.group_selection import copied_groups, flow_groups, named_groups

SYNC = {"enabled": "true", "sync.group.offsets.enabled": "true"}


def flow(**settings: str) -> Mirror:
    """A flow as it is stored; `_` in the name of a setting is a period."""
    values = SYNC | {name.replace("_", "."): text for name, text in settings.items()}
    source = stored_properties({"bootstrap.servers": "a:1"}, values, "a", "b")
    return Mirror(name="a-to-b", source=source, source_cluster_id="a")


def selects(mirror: Mirror, group: Group) -> bool:
    """Whether its offsets are committed; checkpoints have the same rule."""
    answer = copied_groups(mirror, parse_settings(mirror.source))(group)
    assert answer == flow_groups(flow_settings_of(mirror.source))(group)
    return answer


@pytest.mark.parametrize(
    ("groups", "exclude", "name", "selected"),
    [
        (".*", "(?i)test.*", "Testing", False),
        (".*", "(?i)test.*", "orders", True),
        ("(?i)app-.*", "no", "APP-1", True),
        (r"(foo|bar)-\1", "(a|b)-x", "foo-foo", True),
        (r"(foo|bar)-\1", "(a|b)-x", "foo-bar", False),
        (".*", r"\w+-dev", "größe-dev", True),
        (r"\w+", "no", "größe", False),
        (".*", "no", "two\nlines", False),
        ("app-.*", "app-old", "app-old", False),
        (".*", "no", "twinlog.flow.a-to-b", False),
    ],
)
def test_a_flow_has_the_groups_that_its_settings_select(
    groups: str, exclude: str, name: str, selected: bool
) -> None:
    r"""Goal: as Java's `DefaultGroupFilter`: two lists of expressions, each for itself.

    One expression that was made of both refused flags, moved the numbers of groups, and had
    Python's meaning of `.` and `\w`.
    """
    stored = flow(groups=groups, groups_exclude=exclude)
    assert selects(stored, Group(name, "Empty", "classic")) is selected


@pytest.mark.parametrize(
    ("kind", "protocol", "in_flow", "in_mirror"),
    [
        ("classic", "consumer", True, True),
        ("classic", "", True, True),
        ("classic", "connect", False, True),
        ("consumer", "consumer", True, True),
        ("share", "share", False, True),
        ("streams", "streams", False, False),
    ],
)
def test_a_flow_has_the_kinds_of_groups_that_mirror_maker_lists(
    kind: str, protocol: str, in_flow: bool, in_mirror: bool
) -> None:
    """Goal: `ListGroupsOptions.forConsumerGroups()`; an exact mirror also has share groups."""
    group = Group("app", "Empty", kind, protocol)
    assert selects(flow(), group) is in_flow
    assert named_groups([re.compile(".*")])(group) is in_mirror


def test_groups_with_the_positions_of_flows_are_not_copied() -> None:
    """Their offsets are another cluster's; clamped to this log, they would count as positions."""
    everything = named_groups([re.compile(".*")])
    assert everything(Group("app", "Empty", "classic"))
    assert not everything(Group("twinlog.flow.a-to-b", "Empty", "classic"))


def test_a_flow_without_group_offsets_has_no_group() -> None:
    """Goal: it may write checkpoints all the same."""
    stored = flow(sync_group_offsets_enabled="false")
    group = Group("app", "Empty", "classic")
    assert not copied_groups(stored, parse_settings(stored.source))(group)
    assert flow_groups(flow_settings_of(stored.source))(group)


def test_what_an_earlier_version_has_derived_has_no_effect() -> None:
    """Goal: a flow that is stored with an expression stays readable, and goes by its settings.

    A new one is stored without: a node of an earlier version beside copies no offsets of groups,
    where it would copy those of all groups by the property's default.
    """
    stored = flow(groups="app-.*")
    assert stored.source[GROUPS] == ""
    former = {**stored.source, GROUPS: r"(?!(?:console-.*)\Z)(?:other-.*)"}
    mirror = Mirror(name="a-to-b", source=former, source_cluster_id="a")
    assert selects(mirror, Group("app-1", "Empty", "classic"))
    assert not selects(mirror, Group("other-1", "Empty", "classic"))


def test_an_exact_mirror_goes_by_its_own_property() -> None:
    """Goal: whole names; `.` matches any character of a name."""
    mirror = Mirror(name="m", source={GROUPS: "app.*,x"}, source_cluster_id="a")
    copied = copied_groups(mirror, parse_settings(mirror.source))
    for name, expected in {"app\n1": True, "x": True, "xy": False, "my-app": False}.items():
        assert copied(Group(name, "Empty", "classic")) is expected
