"""A mirror's settings: the KIP's defaults, and errors that name the invalid value."""

from contextlib import suppress

import pytest
from checkout import DOCS
from hypothesis import given
from hypothesis import strategies as st

from twinlog.kafka.acls import AclRule, Operation, Permission, ResourceType
from twinlog.kafka.errors import UserError
from twinlog.mirror.settings import (
    ACLS,
    EXCLUDE,
    GROUPS,
    RATE,
    REFRESH,
    REPLICAS,
    SETTINGS,
    check_settings,
    parse_settings,
    split_settings,
)
from twinlog.mirror.throttle import ALL, Throttle


def test_defaults_are_those_of_the_kip() -> None:
    settings = parse_settings({})
    assert [p.pattern for p in settings.topic_properties_exclude] == [
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.replicas",
        "message.timestamp.difference.max.ms",
        "log.message.timestamp.before.max.ms",
        "log.message.timestamp.after.max.ms",
        "message.timestamp.type",
        "unclean.leader.election.enable",
        "min.insync.replicas",
        "mirror.name",
    ]
    assert [p.pattern for p in settings.groups_include] == [".*"]
    assert settings.acl_include == (AclRule(),)
    assert settings.refresh_interval == 30.0
    assert not settings.throttle.limits


def test_throttled_replicas_are_parsed() -> None:
    throttle = parse_settings({RATE: "1000000", REPLICAS: "a:0, a:7,b:*"}).throttle
    assert throttle == Throttle(1_000_000, {"a": frozenset({0, 7}), "b": frozenset({ALL})})
    assert parse_settings({RATE: "5"}).throttle == Throttle(5, None)
    assert not parse_settings({RATE: "5", REPLICAS: ""}).throttle.limits


def test_acl_rules_of_the_kip_are_parsed() -> None:
    """Every example of KIP-1279."""
    rules = parse_settings(
        {ACLS: "TOPIC;orders.*,*;*;*;*;User:alice,TOPIC;*;READ;ALLOW,GROUP;c-.*;READ;ALLOW;User:b"}
    ).acl_include
    assert [
        (
            rule.resource_type,
            rule.resource_name and rule.resource_name.pattern,
            rule.operation,
            rule.permission,
            rule.principal and rule.principal.pattern,
        )
        for rule in rules
    ] == [
        (ResourceType.TOPIC, "orders.*", None, None, None),
        (None, None, None, None, "User:alice"),
        (ResourceType.TOPIC, None, Operation.READ, Permission.ALLOW, None),
        (ResourceType.GROUP, "c-.*", Operation.READ, Permission.ALLOW, "User:b"),
    ]


@pytest.mark.parametrize(
    ("key", "value", "trouble"),
    [
        (EXCLUDE, "a,*b", "a regular expression"),
        (GROUPS, "(", "a regular expression"),
        (GROUPS, "a{99999999999999999999}", "a regular expression"),
        (ACLS, "TABLE;x", "one of TOPIC, GROUP"),
        (ACLS, "TOPIC;x;LOOK", "one of ALL, READ"),
        (ACLS, "TOPIC;x;READ;MAYBE", "one of DENY, ALLOW"),
        (ACLS, "TOPIC;x;READ;ALLOW;User:a;more", "up to five fields"),
        (ACLS, "TOPIC;[", "a regular expression"),
        (REFRESH, "30s", "a whole number from 1000"),
        (REFRESH, "1", "a whole number from 1000"),
        (REFRESH, "-1", "a whole number from 1000"),
        (RATE, "0", "a whole number from 1"),
        (RATE, "1MB", "a whole number from 1"),
        (RATE, "9223372036854775808", "a whole number from 1"),
        (REPLICAS, "orders", "topic:partition"),
        (REPLICAS, ":1", "topic:partition"),
        (REPLICAS, "a:-1", "topic:partition"),
        (REPLICAS, "a:0,*", "topic:partition"),
    ],
)
def test_a_malformed_value_is_named(key: str, value: str, trouble: str) -> None:
    """The error has the setting's name, and what is allowed."""
    with pytest.raises(UserError, match=trouble) as caught:
        parse_settings({key: value})
    assert caught.value.message.startswith(f"{key} is ")


@pytest.mark.parametrize(
    "value",
    [r"app-\d{1,3}", "a{1,2}|b", "a{,3}", r"ok,x\d{2,}", "3}", "{", r"a\\{1,3}"],
)
@pytest.mark.parametrize("key", [GROUPS, EXCLUDE])
def test_an_expression_split_by_a_comma_is_refused(key: str, value: str) -> None:
    """The halves are valid expressions that match nothing. A stored one is still read."""
    parse_settings({key: value})
    with pytest.raises(UserError, match="unbalanced") as caught:
        check_settings({key: value})
    assert caught.value.message.startswith(f"{key} has the expression ")


@pytest.mark.parametrize(
    "value",
    [
        *("", ".*", "a,b", r"app-\d{3}", r"app-\d\d?\d?", "(a|b)+,c", "[)}]x", "[]}]", "[^]}]"),
        *(r"a\{1,3\}", r"x\x2cy", r"(a{2}(b)){3}", r"\[", r"[\]{]", "follower.*"),
    ],
)
@pytest.mark.parametrize("key", [GROUPS, EXCLUDE])
def test_an_expression_with_closed_brackets_is_accepted(key: str, value: str) -> None:
    check_settings({key: value})


def test_an_acl_rule_split_by_a_comma_is_refused() -> None:
    check_settings({ACLS: r"GROUP;app-\d{3};READ,TOPIC;[a{]"})
    with pytest.raises(UserError):
        check_settings({ACLS: r"GROUP;app-\d{1,3};READ"})


def test_the_default_group_pattern_matches_any_group_id() -> None:
    """A group's name is any text."""
    [pattern] = parse_settings({}).groups_include
    assert pattern.fullmatch("two\nlines\n")


def test_an_unknown_setting_is_named() -> None:
    with pytest.raises(UserError, match=r"mirror\.group\.include is not a setting") as caught:
        parse_settings({"mirror.group.include": ".*"})
    assert "mirror.groups.include" in caught.value.message


def test_mirror_settings_and_connection_properties_are_separated() -> None:
    assert split_settings({"mirror.x": "1", "bootstrap.servers": "h:1"}) == (
        {"mirror.x": "1"},
        {"bootstrap.servers": "h:1"},
    )


@given(st.sampled_from(list(SETTINGS)), st.text(max_size=30))
def test_any_text_gives_settings_or_a_user_error(key: str, value: str) -> None:
    """Any text gives settings, or UserError."""
    with suppress(UserError):
        parse_settings({key: value})


def test_the_documentation_has_every_setting() -> None:
    """docs/operations/settings.md has the name and the default of each setting."""
    page = (DOCS / "operations" / "settings.md").read_text()
    for key, setting in SETTINGS.items():
        assert f"`{key}`" in page
        for part in setting.default.split(","):
            assert f"`{part}`" in page
