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
    wanted: frozenset[Acl], there: frozenset[Acl], made: frozenset[Acl]
) -> None:
    """All wanted ACLs exist, foreign ones stay, and a second sync does nothing."""
    changes = acl_changes(wanted, there, made)
    after = (there | changes.make) - changes.remove
    memory = (made | changes.remember) - changes.forget
    assert wanted <= after
    assert after - wanted == there - wanted - made
    assert changes.remove <= made
    assert changes.forget <= changes.remove, "a broker that lags does not list what is there"
    assert changes.remember.isdisjoint(there)
    assert memory <= wanted
    again = acl_changes(wanted, after, memory)
    assert not any(again)


@given(sets, sets, sets, st.integers(0, 3), st.data())
def test_after_a_crash_foreign_acls_are_never_removed(
    wanted: frozenset[Acl],
    there: frozenset[Acl],
    foreign: frozenset[Acl],
    steps: int,
    data: st.DataObject,
) -> None:
    """After any prefix of the steps, an ACL that was never absent is never removed."""
    made = there - foreign
    there |= foreign
    changes = acl_changes(wanted, there, made)
    memory = made | changes.remember
    some = st.frozensets
    if steps > 0:
        there |= data.draw(some(st.sampled_from(sorted(changes.make)))) if changes.make else set()
    if steps > 1:
        there |= changes.make
        there -= (
            data.draw(some(st.sampled_from(sorted(changes.remove)))) if changes.remove else set()
        )
    if steps > 2:
        there = (there | changes.make) - changes.remove
        memory -= changes.forget
    later = acl_changes(data.draw(sets), there, memory)
    assert later.remove.isdisjoint(foreign)


def chosen(rules: str, from_these: Iterable[Acl]) -> list[str]:
    found = included(from_these, parse_settings({ACLS: rules}).acl_include)
    return sorted(str(one) for one in found)


def test_rules() -> None:
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


def test_a_prefix_and_a_host_are_reported() -> None:
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


def found(acls: Iterable[Acl], topic: str) -> set[Acl]:
    """Return the ACLs that a broker finds for a topic."""
    return {
        one
        for one in acls
        if one.resource_type is ResourceType.TOPIC
        and (
            one.resource_name in {topic, "*"}
            if one.pattern_type is PatternType.LITERAL
            else topic.startswith(one.resource_name)
        )
    }


def may(acls: Iterable[Acl], principal: str, operation: Operation, topic: str) -> bool:
    """Return what StandardAuthorizer answers to a principal at 10.0.0.1."""
    suits = {
        one.permission
        for one in found(acls, topic)
        if one.principal in {principal, EVERYBODY} and one.operation in {operation, Operation.ALL}
    }
    return Permission.ALLOW in suits and Permission.DENY not in suits


@given(topic_acls, st.frozensets(st.sampled_from(["a", "ab", "b"])))
def test_which_topics_an_acl_is_about(one: Acl, topics: frozenset[str]) -> None:
    """The topics are those for which a broker finds it."""
    assert set(one.covered(topics)) == {topic for topic in topics if found([one], topic)}


@given(st.frozensets(topic_acls, max_size=7), st.frozensets(st.sampled_from(["a", "ab", "b"])))
def test_a_guard_keeps_out_all_but_nodes(there: frozenset[Acl], topics: frozenset[str]) -> None:
    """A writer of states keeps all rights; others cannot change topics; all else is as before."""
    denials, open_to, _ = guard(there, topics, STATES)
    after = there | denials
    anybody = EVERYBODY in open_to or EVERYBODY in {
        one.principal
        for one in found(there, STATES)
        if one.permission is Permission.ALLOW and one.operation in {Operation.ALL, Operation.WRITE}
    }
    for principal in PRINCIPALS[:-1]:
        node = may(there, principal, Operation.WRITE, STATES)
        for topic in ("a", "ab", "b", "c", STATES):
            for operation in Operation:
                before = may(there, principal, operation, topic)
                changing = operation in {
                    *(Operation.WRITE, Operation.DELETE, Operation.ALTER, Operation.ALTER_CONFIGS)
                }
                now = may(after, principal, operation, topic)
                if node or topic not in topics or not changing:
                    assert now is before, (principal, operation, topic)
                elif now:
                    assert before
                    assert anybody or may_write_states(there, principal)
    for one in denials:
        assert found(there, one.resource_name), "a topic without ACLs stays one without"


def may_write_states(acls: Iterable[Acl], principal: str) -> bool:
    """Return whether some ALLOW lets the principal write states, whatever denies it."""
    return any(
        one.permission is Permission.ALLOW
        and one.principal == principal
        and one.operation in {Operation.ALL, Operation.WRITE}
        for one in found(acls, STATES)
    )


def test_guards() -> None:
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
    assert open_guard == (frozenset(), {EVERYBODY}, frozenset())


def test_a_principal_that_may_write_everywhere_is_not_surely_a_node() -> None:
    """It gets no denial, since it may be a node, and is named."""
    anywhere = acl("*", "User:any", Operation.WRITE)
    beginning = acl("__mirror", "User:node", Operation.WRITE)
    beginning = beginning._replace(pattern_type=PatternType.PREFIXED)
    node = acl("orders", "User:node", Operation.WRITE)
    found = guard([anywhere, beginning, node], ["orders"], "__mirror_state")
    assert found == (frozenset(), frozenset(), {"User:any"})


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
def test_what_a_denial_limits(denied: dict[str, Any], limits: bool) -> None:
    """Goal: of an ALLOW to WRITE on a prefix, all that a broker would refuse because of it."""
    kind, pattern = ResourceType.TOPIC, PatternType.PREFIXED
    write, allow = Operation.WRITE, Permission.ALLOW
    allowing = Acl(kind, "orders", pattern, "User:alice", "*", write, allow)
    literal, deny = PatternType.LITERAL, Permission.DENY
    denial = Acl(kind, "orders", literal, "User:alice", "*", write, deny)._replace(**denied)
    assert denial.limits(allowing) is limits
