"""The ACLs of remote topics: MirrorMaker 2's rules, and what they must not open."""

import pytest

from twinlog.kafka.acls import Acl, Operation, PatternType, Permission, ResourceType
from twinlog.kafka.errors import UserError
from twinlog.mirror import remote_acls as module
from twinlog.mirror.remote_acls import remote_acls

LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
ALLOW, DENY = Permission.ALLOW, Permission.DENY
TOPIC = ResourceType.TOPIC
ALL, READ, WRITE = Operation.ALL, Operation.READ, Operation.WRITE
NAMES = {"orders": "A.orders", "clicks": "A.clicks"}


def acl(
    name: str = "orders",
    operation: Operation = READ,
    permission: Permission = ALLOW,
    *,
    kind: ResourceType = TOPIC,
    pattern: PatternType = LITERAL,
    principal: str = "User:alice",
) -> Acl:
    return Acl(kind, name, pattern, principal, "*", operation, permission)


@pytest.mark.parametrize("permission", [ALLOW, DENY])
@pytest.mark.parametrize("operation", list(Operation))
def test_acls_of_a_topic_follow_without_rights_to_write(
    operation: Operation, permission: Permission
) -> None:
    """Goal: ALLOW WRITE is left out, ALLOW ALL is READ, all others are as on the source."""
    found = remote_acls([acl("orders", operation, permission)], NAMES)
    if (permission, operation) == (ALLOW, WRITE):
        assert found == frozenset()
    elif (permission, operation) == (ALLOW, ALL):
        assert found == {acl("A.orders", READ, ALLOW)}
    else:
        assert found == {acl("A.orders", operation, permission)}


@pytest.mark.parametrize(
    "other",
    [
        acl("other"),
        acl("order", pattern=PREFIXED),
        acl("orders", pattern=PREFIXED),
        acl("orders", kind=ResourceType.GROUP),
        acl("*"),
        acl("*", permission=DENY, principal="User:bob"),
    ],
)
def test_other_acls_do_not_follow(other: Acl) -> None:
    """Goal: `*` is no topic's name: under the identity policy it would be all of the target's."""
    assert remote_acls([other], NAMES) == frozenset()
    assert remote_acls([other, acl("clicks")], NAMES) == {acl("A.clicks")}


@pytest.mark.parametrize(("name", "pattern"), [("or", PREFIXED), ("*", LITERAL)])
@pytest.mark.parametrize("operation", [READ, ALL, Operation.DESCRIBE])
def test_a_wide_denial_follows_to_the_topics_that_it_limits(
    name: str, pattern: PatternType, operation: Operation
) -> None:
    """Goal: a principal reads no more on the target than on the source."""
    denial = acl(name, operation, DENY, pattern=pattern)
    stranger = acl("clicks", principal="User:bob")
    assert remote_acls([denial, acl(), stranger], NAMES) == {
        acl("A.orders"),
        acl("A.orders", operation, DENY),
        acl("A.clicks", principal="User:bob"),
    }


def test_a_denial_for_everybody_limits_each_and_everybody_is_limited_by_each() -> None:
    everybody = "User:*"
    denial = acl("o", READ, DENY, pattern=PREFIXED, principal=everybody)
    assert acl("A.orders", READ, DENY, principal=everybody) in remote_acls([denial, acl()], NAMES)
    denial = acl("o", READ, DENY, pattern=PREFIXED)
    found = remote_acls([denial, acl(principal=everybody)], NAMES)
    assert acl("A.orders", READ, DENY) in found


def test_a_denial_to_write_limits_nothing_of_a_downgraded_acl() -> None:
    denial = acl("o", WRITE, DENY, pattern=PREFIXED)
    assert remote_acls([denial, acl(operation=ALL)], NAMES) == {acl("A.orders")}


def test_a_denial_of_an_unknown_kind_stays_unknown() -> None:
    """Goal: it is not copied as one of a kind that it may not be (mirror/acl_scope.py)."""
    denial = acl("o", READ, DENY, pattern=PatternType(9))
    (copy,) = remote_acls([denial, acl()], NAMES) - {acl("A.orders")}
    assert not copy.is_known


def test_too_many_denials_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a source cannot keep a node busy; nothing is copied without its denials."""
    monkeypatch.setattr(module, "MAX_PAIRS", 3)
    denials = [acl(f"o{n}", READ, DENY, pattern=PREFIXED) for n in range(4)]
    with pytest.raises(UserError, match=r"limit the ACLs of User:alice"):
        remote_acls([acl(), *denials], NAMES)


def test_a_topic_that_several_share_is_opened_only_to_those_who_may_read_each() -> None:
    """Goal: a copy of one topic does not open that of another one."""
    names = {"orders": "all", "wages": "all"}
    shop, both = acl(), acl(principal="User:both")
    assert remote_acls([shop], names) == frozenset()
    wages = [acl("wages", WRITE), acl("wages", operation=ALL, principal="User:both")]
    assert remote_acls([shop, both, *wages], names) == {acl("all", principal="User:both")}
    denial = acl(permission=DENY)
    assert remote_acls([denial, shop], names) == {acl("all", permission=DENY)}
