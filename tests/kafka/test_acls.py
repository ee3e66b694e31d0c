"""Which ACLs are copied, and what happens to the destination's."""

import re
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinlog.kafka.acls import (
    EVERYBODY,
    Acl,
    AclRule,
    Guard,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    acl_changes,
    guard,
    included,
)
from twinlog.mirror.settings import ACLS, parse_settings

acls = st.builds(
    Acl,
    st.sampled_from([ResourceType.TOPIC, ResourceType.GROUP]),
    st.sampled_from(["a", "b", "*"]),
    st.sampled_from(PatternType),
    st.sampled_from(["User:p", "User:*"]),
    st.just("*"),
    st.sampled_from([Operation.READ, Operation.WRITE]),
    st.sampled_from(Permission),
)
sets = st.frozensets(acls, max_size=6)


def acl(name: str, principal: str = "User:alice", operation: Operation = Operation.READ) -> Acl:
    kind, pattern = ResourceType.TOPIC, PatternType.LITERAL
    return Acl(kind, name, pattern, principal, "*", operation, Permission.ALLOW)


@given(sets, sets, sets)
def test_the_destination_gets_the_sources_acls_and_keeps_foreign_ones(
    wanted: frozenset[Acl], existing: frozenset[Acl], created: frozenset[Acl]
) -> None:
    """All wanted ACLs exist, foreign ones stay, and a second sync does nothing."""
    changes = acl_changes(wanted, existing, created)
    after = (existing | changes.make) - changes.remove
    memory = (created | changes.remember) - changes.forget
    assert wanted <= after
    assert after - wanted == existing - wanted - created
    assert changes.remove <= created
    assert changes.forget <= changes.remove, "a broker that lags does not list what is there"
    assert changes.remember.isdisjoint(existing)
    assert memory <= wanted
    again = acl_changes(wanted, after, memory)
    assert not any(again)


@given(sets, sets, sets, st.integers(0, 3), st.data())
def test_after_a_crash_foreign_acls_are_never_removed(
    wanted: frozenset[Acl],
    existing: frozenset[Acl],
    foreign: frozenset[Acl],
    steps: int,
    data: st.DataObject,
) -> None:
    """After any prefix of the steps, an ACL that was never absent is never removed."""
    created = existing - foreign
    existing |= foreign
    changes = acl_changes(wanted, existing, created)
    memory = created | changes.remember
    some = st.frozensets
    if steps > 0:
        existing |= (
            data.draw(some(st.sampled_from(sorted(changes.make)))) if changes.make else set()
        )
    if steps > 1:
        existing |= changes.make
        existing -= (
            data.draw(some(st.sampled_from(sorted(changes.remove)))) if changes.remove else set()
        )
    if steps > 2:
        existing = (existing | changes.make) - changes.remove
        memory -= changes.forget
    later = acl_changes(data.draw(sets), existing, memory)
    assert later.remove.isdisjoint(foreign)


def chosen(rules: str, from_these: Iterable[Acl]) -> list[str]:
    found = included(from_these, parse_settings({ACLS: rules}).acl_include)
    return sorted(str(one) for one in found)


def test_acl_rules_match_each_field_in_full() -> None:
    """By default all match; each field has to match in full, by any of the rules."""
    some = [acl("orders-1"), acl("orders-1", "User:bob"), acl("x", operation=Operation.WRITE)]
    assert len(chosen("*", some)) == 3
    assert chosen("TOPIC;orders.*;READ;ALLOW;User:b.*", some) == [
        "ALLOW User:bob READ on TOPIC orders-1"
    ]
    assert chosen("TOPIC;orders", some) == []
    assert len(chosen("GROUP,*;*;WRITE,*;*;*;*;User:bob", some)) == 2
    assert included([acl("x")], [AclRule(permission=Permission.DENY)]) == frozenset()
    assert included([acl("x")], [AclRule(resource_name=re.compile("x"))]) == {acl("x")}


def test_the_text_of_an_acl_has_prefix_and_host() -> None:
    prefixed = acl("orders-")._replace(pattern_type=PatternType.PREFIXED, host="10.0.0.1")
    assert str(prefixed) == "ALLOW User:alice READ from 10.0.0.1 on TOPIC orders-*"


STATES = "states"
PRINCIPALS = ("User:p", "User:q", "User:node", EVERYBODY)
topic_acls = st.builds(
    Acl,
    st.just(ResourceType.TOPIC),
    st.sampled_from(["a", "ab", "b", "*", "s", STATES]),
    st.sampled_from(PatternType),
    st.sampled_from(PRINCIPALS),
    st.sampled_from(["*", "10.0.0.1"]),
    st.sampled_from([Operation.ALL, Operation.READ, Operation.WRITE, Operation.DELETE]),
    st.sampled_from(Permission),
)


def matching_acls(acls: Iterable[Acl], topic: str) -> set[Acl]:
    """Return the ACLs that a broker finds for a topic."""
    return {
        acl
        for acl in acls
        if acl.resource_type is ResourceType.TOPIC
        and (
            acl.resource_name in {topic, "*"}
            if acl.pattern_type is PatternType.LITERAL
            else topic.startswith(acl.resource_name)
        )
    }


def may(acls: Iterable[Acl], principal: str, operation: Operation, topic: str) -> bool:
    """Return what StandardAuthorizer answers to a principal at 10.0.0.1."""
    suits = {
        one.permission
        for one in matching_acls(acls, topic)
        if one.principal in {principal, EVERYBODY} and one.operation in {operation, Operation.ALL}
    }
    return Permission.ALLOW in suits and Permission.DENY not in suits


@given(topic_acls, st.frozensets(st.sampled_from(["a", "ab", "b"])))
def test_an_acl_covers_the_topics_that_a_broker_matches(one: Acl, topics: frozenset[str]) -> None:
    """The topics are those for which a broker finds it."""
    assert set(one.covered(topics)) == {topic for topic in topics if matching_acls([one], topic)}


@given(st.frozensets(topic_acls, max_size=7), st.frozensets(st.sampled_from(["a", "ab", "b"])))
def test_a_guard_denies_writes_to_all_principals_except_nodes(
    existing: frozenset[Acl], topics: frozenset[str]
) -> None:
    """A writer of states keeps all rights; others cannot change topics; all else is as before."""
    denials, open_to, _ = guard(existing, topics, STATES)
    after = existing | denials
    anybody = EVERYBODY in open_to or EVERYBODY in {
        one.principal
        for one in matching_acls(existing, STATES)
        if one.permission is Permission.ALLOW and one.operation in {Operation.ALL, Operation.WRITE}
    }
    for principal in PRINCIPALS[:-1]:
        node = may(existing, principal, Operation.WRITE, STATES)
        for topic in ("a", "ab", "b", "c", STATES):
            for operation in Operation:
                before = may(existing, principal, operation, topic)
                changing = operation in {
                    *(Operation.WRITE, Operation.DELETE, Operation.ALTER, Operation.ALTER_CONFIGS)
                }
                now = may(after, principal, operation, topic)
                if node or topic not in topics or not changing:
                    assert now is before, (principal, operation, topic)
                elif now:
                    assert before
                    assert anybody or may_write_states(existing, principal)
    for one in denials:
        assert matching_acls(existing, one.resource_name), "a topic without ACLs stays one without"


def may_write_states(acls: Iterable[Acl], principal: str) -> bool:
    """Return whether some ALLOW lets the principal write states, whatever denies it."""
    return any(
        one.permission is Permission.ALLOW
        and one.principal == principal
        and one.operation in {Operation.ALL, Operation.WRITE}
        for one in matching_acls(acls, STATES)
    )


def test_a_guard_has_one_denial_per_allowed_operation() -> None:
    """One denial for each allowed operation; prefixes, nodes, `User:*`."""
    node = acl(STATES, "User:node", Operation.WRITE)
    writer = acl("orders", "User:app", Operation.WRITE)
    prefixed = acl("ord", "User:all", Operation.ALL)._replace(pattern_type=PatternType.PREFIXED)
    reader = acl("orders", "User:reader")
    both = acl("*", "User:node", Operation.ALL)
    those = [node, writer, prefixed, reader, both]
    denials, open_to, everywhere = guard(those, ["orders", "x"], STATES)
    assert sorted(map(str, denials)) == [
        "DENY User:all ALTER on TOPIC orders",
        "DENY User:all ALTER_CONFIGS on TOPIC orders",
        "DENY User:all DELETE on TOPIC orders",
        "DENY User:all WRITE on TOPIC orders",
        "DENY User:app WRITE on TOPIC orders",
    ]
    assert (open_to, everywhere) == (frozenset(), frozenset())
    writing = guard(those, ["orders"], STATES, (Operation.WRITE,))
    assert sorted(map(str, writing.denials)) == [
        "DENY User:all WRITE on TOPIC orders",
        "DENY User:app WRITE on TOPIC orders",
    ]
    open_guard = guard([node, acl("orders", EVERYBODY, Operation.WRITE)], ["orders"], STATES)
    assert open_guard == Guard(frozenset(), frozenset({EVERYBODY}), frozenset())


def test_a_principal_that_may_write_everywhere_is_named_and_not_denied() -> None:
    """It gets no denial, since it may be a node, and is named."""
    anywhere = acl("*", "User:any", Operation.WRITE)
    beginning = acl("__mirror", "User:node", Operation.WRITE)
    beginning = beginning._replace(pattern_type=PatternType.PREFIXED)
    node = acl("orders", "User:node", Operation.WRITE)
    found = guard([anywhere, beginning, node], ["orders"], "__mirror_state")
    assert found == Guard(frozenset(), frozenset(), frozenset({"User:any"}))


@pytest.mark.parametrize(
    ("denied", "limits"),
    [
        ({}, True),
        ({"resource_type": ResourceType.GROUP}, False),
        ({"principal": "User:bob"}, False),
        ({"principal": "User:*"}, True),
        ({"host": "10.0.0.1"}, True),
        ({"operation": Operation.READ}, False),
        ({"operation": Operation.ALL}, True),
        ({"operation": Operation.DESCRIBE}, True),
        ({"resource_name": "orders-eu"}, True),
        ({"resource_name": "order"}, False),
        ({"resource_name": "order", "pattern_type": PatternType.PREFIXED}, True),
        ({"resource_name": "orders-eu", "pattern_type": PatternType.PREFIXED}, True),
        ({"resource_name": "other", "pattern_type": PatternType.PREFIXED}, False),
        ({"resource_name": "*"}, True),
        ({"resource_name": "other", "pattern_type": PatternType(9)}, True),
        ({"permission": Permission.ALLOW}, False),
    ],
)
def test_a_denial_limits_the_overlapping_part_of_an_allow(
    denied: dict[str, Any], limits: bool
) -> None:
    """Goal: of an ALLOW to WRITE on a prefix, all that a broker would refuse because of it."""
    kind, pattern = ResourceType.TOPIC, PatternType.PREFIXED
    write, allow = Operation.WRITE, Permission.ALLOW
    allowing = Acl(kind, "orders", pattern, "User:alice", "*", write, allow)
    literal, deny = PatternType.LITERAL, Permission.DENY
    denial = Acl(kind, "orders", literal, "User:alice", "*", write, deny)._replace(**denied)
    assert denial.limits(allowing) is limits
