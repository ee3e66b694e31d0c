"""Which ACLs are copied, and what becomes of the destination's."""

import re
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from twinlog.core.acls import (
    Acl,
    AclRule,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    acl_changes,
    included,
)
from twinlog.core.mirror_settings import ACLS, parse_settings

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
def test_the_destination_becomes_the_source_but_for_what_is_others(
    wanted: frozenset[Acl], there: frozenset[Acl], made: frozenset[Acl]
) -> None:
    """All that is wanted is there, nothing foreign is touched, and a second look does nothing."""
    changes = acl_changes(wanted, there, made)
    after = (there | changes.make) - changes.remove
    memory = (made | changes.remember) - changes.forget
    assert wanted <= after
    assert after - wanted == there - wanted - made
    assert changes.remove <= made
    assert changes.remember.isdisjoint(there)
    assert memory <= wanted
    again = acl_changes(wanted, after, memory)
    assert not any(again)


@given(sets, sets, sets, st.integers(0, 3), st.data())
def test_a_crash_anywhere_makes_nothing_foreign_ours(
    wanted: frozenset[Acl],
    there: frozenset[Acl],
    foreign: frozenset[Acl],
    steps: int,
    data: st.DataObject,
) -> None:
    """Whatever was done of the steps, in their order, what was never absent is never removed."""
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
    """By default all; each field in full, by any of the rules."""
    some = [acl("orders-1"), acl("orders-1", "User:bob"), acl("x", operation=Operation.WRITE)]
    assert len(chosen("*", some)) == 3
    assert chosen("TOPIC;orders.*;READ;ALLOW;User:b.*", some) == [
        "ALLOW User:bob READ on TOPIC orders-1"
    ]
    assert chosen("TOPIC;orders", some) == []
    assert len(chosen("GROUP,*;*;WRITE,*;*;*;*;User:bob", some)) == 2
    assert included([acl("x")], [AclRule(permission=Permission.DENY)]) == frozenset()
    assert included([acl("x")], [AclRule(resource_name=re.compile("x"))]) == {acl("x")}


def test_a_prefix_and_a_host_are_said() -> None:
    prefixed = acl("orders-")._replace(pattern_type=PatternType.PREFIXED, host="10.0.0.1")
    assert str(prefixed) == "ALLOW User:alice READ from 10.0.0.1 on TOPIC orders-*"
