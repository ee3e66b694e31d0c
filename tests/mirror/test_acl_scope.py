"""Which of the source's ACLs are copied: possible attacks by a source administrator."""

import pytest

from twinlog.kafka.acls import (
    EVERYBODY,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    guard,
    nodes_among,
)
from twinlog.kafka.errors import UserError
from twinlog.mirror import acl_scope
from twinlog.mirror.acl_scope import AclScope, Choice, choose, choose_all, missed
from twinlog.mirror.settings import ACLS, parse_settings

LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
ALLOW, DENY = Permission.ALLOW, Permission.DENY
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
IDS, CLUSTER = ResourceType.TRANSACTIONAL_ID, ResourceType.CLUSTER

SCOPE = AclScope(
    topics=frozenset({"orders", "customers"}),
    inactive_topics=frozenset({"orders-removed", "clicks"}),
    groups={
        "billing": frozenset({"orders"}),
        "both": frozenset({"orders", "clicks"}),
        "twinlog": frozenset({"orders"}),
    },
    nodes=frozenset({"User:node"}),
)


def acl(
    kind: ResourceType,
    name: str,
    pattern: PatternType = LITERAL,
    principal: str = "User:alice",
    permission: Permission = ALLOW,
) -> Acl:
    return Acl(kind, name, pattern, principal, "*", Operation.ALL, permission)


def chosen(one: Acl, rules: str = "*", scope: AclScope = SCOPE) -> Choice:
    return choose(one, parse_settings({ACLS: rules}).acl_include, scope)


@pytest.mark.parametrize(
    ("one", "choice"),
    [
        (acl(TOPIC, "orders"), Choice.COPIED),
        (acl(TOPIC, "cust", PREFIXED), Choice.COPIED),
        (acl(TOPIC, "c", PREFIXED), Choice.LEFT),  # clicks was removed
        (acl(TOPIC, "orders", PREFIXED), Choice.LEFT),
        (acl(TOPIC, "clicks"), Choice.LEFT),
        (acl(TOPIC, "other"), Choice.BEYOND),
        (acl(TOPIC, "oth", PREFIXED), Choice.BEYOND),
        (acl(GROUP, "billing"), Choice.COPIED),
        (acl(GROUP, "bill", PREFIXED), Choice.COPIED),
        (acl(GROUP, "both"), Choice.LEFT),
        (acl(GROUP, "b", PREFIXED), Choice.LEFT),
        (acl(GROUP, "unknown"), Choice.LEFT),
        (acl(TOPIC, "__mirror_state"), Choice.LEFT),
        (acl(TOPIC, "__mirror", PREFIXED), Choice.LEFT),
        (acl(TOPIC, "*"), Choice.LEFT),
        (acl(CLUSTER, "kafka-cluster"), Choice.LEFT),
        (acl(TOPIC, "orders", permission=DENY), Choice.COPIED),
        (acl(TOPIC, "orders", principal=EVERYBODY, permission=DENY), Choice.DENYING),
        (acl(TOPIC, "orders", principal="User:node", permission=DENY), Choice.DENYING),
        (acl(TOPIC, "*", permission=DENY), Choice.DENYING),
        (acl(TOPIC, "_", PREFIXED, permission=DENY), Choice.DENYING),
        (acl(GROUP, "t", PREFIXED, permission=DENY), Choice.DENYING),
        (acl(IDS, "twinlog.", PREFIXED, permission=DENY), Choice.DENYING),
        (acl(CLUSTER, "kafka-cluster", permission=DENY), Choice.DENYING),
    ],
    ids=str,
)
def test_acls_of_removed_topics_do_not_follow(one: Acl, choice: Choice) -> None:
    """An ACL that covers a removed topic does not follow the source any more."""
    assert chosen(one) is choice


WHOLE = AclScope(topics=SCOPE.topics, groups={"billing": SCOPE.topics, "twinlog": SCOPE.topics})
BEYOND = [
    acl(CLUSTER, "kafka-cluster"),
    acl(TOPIC, "*"),
    acl(TOPIC, "__", PREFIXED),
    acl(TOPIC, "_", PREFIXED),
    acl(TOPIC, "__consumer_offsets"),
    acl(GROUP, "*"),
    acl(GROUP, "t", PREFIXED),
    acl(GROUP, "twinlog"),
    acl(GROUP, "local-group"),
    acl(IDS, "*"),
    acl(IDS, "twinlog.", PREFIXED),
    acl(IDS, "app"),
    acl(ResourceType.USER, "alice"),
    acl(ResourceType.DELEGATION_TOKEN, "token"),
]


@pytest.mark.parametrize("one", BEYOND, ids=str)
def test_acls_beyond_the_mirrored_topics_need_an_explicit_rule(one: Acl) -> None:
    """A rule with a kind and a name is needed; a rule that matches everything names nothing."""
    kind = one.resource_type.name
    for rules in ("*", f"{kind}", f"{kind};.*", "*;.*;*;*;User:alice", "*;alice|.*"):
        assert chosen(one, rules, WHOLE) is Choice.BEYOND, rules
    name = one.resource_name.replace("*", r"\*")
    assert chosen(one, f"{kind};{name}", WHOLE) is Choice.COPIED
    assert chosen(one, "TOPIC;orders", WHOLE) is Choice.REMOVED


def test_acls_of_control_topics_are_never_copied() -> None:
    assert chosen(acl(TOPIC, "__mirror_state"), "TOPIC;__mirror_state", WHOLE) is Choice.LEFT


def test_acls_of_unknown_groups_are_left() -> None:
    unknown = AclScope(topics=SCOPE.topics, groups=None)
    assert chosen(acl(GROUP, "billing"), scope=unknown) is Choice.LEFT


def test_acls_that_applications_may_miss_are_reported() -> None:
    """Rights of nodes and read-only rights are not reported."""
    names = {(TOPIC, "*"), (GROUP, "*"), (GROUP, "t"), (IDS, "*"), (IDS, "app")}
    needed = {one for one in BEYOND if (one.resource_type, one.resource_name) in names}
    assert missed(BEYOND, WHOLE) == needed
    describe = acl(TOPIC, "*")._replace(operation=Operation.DESCRIBE)
    assert missed([describe, acl(TOPIC, "*", principal="User:node")], SCOPE) == frozenset()


def chosen_together(
    *acls: Acl, existing: tuple[Acl, ...] = (), created: tuple[Acl, ...] = (), rules: str = "*"
) -> list[str]:
    """Return the choice for each of the source's ACLs, in their order."""
    parsed = parse_settings({ACLS: rules}).acl_include
    choices = choose_all(acls, existing, created, parsed, SCOPE)
    return [choices[acl].name for acl in acls]


def test_a_denial_is_copied_with_the_allow_that_it_limits() -> None:
    """Otherwise a prefix would allow what the source denies, on a topic that is not mirrored."""
    prefix = acl(TOPIC, "cust", PREFIXED)
    secret = acl(TOPIC, "customers-secret", permission=DENY)
    assert chosen_together(secret) == ["BEYOND"]
    assert chosen_together(prefix, secret) == ["COPIED", "COPIED"]
    assert chosen_together(secret, prefix) == ["COPIED", "COPIED"]
    others = acl(TOPIC, "customers-secret", principal="User:bob", permission=DENY)
    assert chosen_together(prefix, others) == ["COPIED", "BEYOND"]
    group = acl(GROUP, "customers-secret", permission=DENY)
    assert chosen_together(prefix, group) == ["COPIED", "LEFT"]


@pytest.mark.parametrize(
    "denial",
    [
        acl(TOPIC, "customers", principal=EVERYBODY, permission=DENY),
        acl(TOPIC, "*", permission=DENY),
        acl(TOPIC, "c", PREFIXED, permission=DENY),  # clicks was removed
        acl(TOPIC, "elsewhere", PatternType(9), permission=DENY),
        acl(TOPIC, "customers")._replace(permission=Permission(9)),
        acl(TOPIC, "customers", permission=DENY)._replace(operation=Operation(99)),
    ],
    ids=str,
)
def test_an_allow_is_withheld_if_its_limiting_denial_is_not_copied(denial: Acl) -> None:
    """An exception is a denial that exists on the destination, or that a rule leaves out."""
    one = acl(TOPIC, "customers")
    assert chosen_together(one, denial)[0] == "WITHHELD"
    assert chosen_together(one, denial, existing=(denial,))[0] == "COPIED"
    if chosen_together(denial) == ["DENYING"]:
        removed = chosen_together(one, denial, existing=(denial,), created=(denial,))
        assert removed[0] == "WITHHELD", "an earlier version has made it, and it goes"
    assert chosen_together(one, denial, rules="TOPIC;customers;*;ALLOW")[0] == "COPIED"
    bobs = acl(TOPIC, "customers", principal="User:bob")
    expected = "WITHHELD" if denial.principal == EVERYBODY else "COPIED"
    assert chosen_together(bobs, denial)[0] == expected
    everybodys = acl(TOPIC, "customers", principal=EVERYBODY)
    assert chosen_together(everybodys, denial)[0] == "WITHHELD"


def test_a_revoked_acl_is_removed_rather_than_withheld() -> None:
    """The source revoked it, then denied `User:*`: the copy has to be removed."""
    rules = parse_settings({ACLS: "*"}).acl_include
    revoked = acl(TOPIC, "customers")
    denial = acl(TOPIC, "customers", principal=EVERYBODY, permission=DENY)
    choices = choose_all([denial], [revoked], [revoked], rules, SCOPE)
    assert choices[revoked] is Choice.COPIED, "not among the source's, so it is removed"
    narrower = acl(TOPIC, "customers-secret", permission=DENY)
    prefix = acl(TOPIC, "cust", PREFIXED)
    assert chosen_together(prefix, denial, narrower) == ["WITHHELD", "DENYING", "BEYOND"]


def test_unknown_acl_operations_are_reported_and_not_copied() -> None:
    """It is not copied, and that is reported."""
    unknown = acl(TOPIC, "orders")._replace(operation=Operation(99))
    assert str(unknown) == "ALLOW User:alice UNKNOWN_99 on TOPIC orders"
    assert chosen(unknown, "TOPIC;orders", WHOLE) is Choice.BEYOND
    assert missed([unknown], WHOLE) == {unknown}
    denial = unknown._replace(permission=DENY)
    assert chosen(denial, "TOPIC;orders", WHOLE) is Choice.DENYING
    assert chosen(acl(ResourceType(42), "x"), "*", WHOLE) is Choice.BEYOND


def test_the_number_of_compared_acls_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: many rights and denials of one principal cost no hours; then nothing is allowed."""
    monkeypatch.setattr(acl_scope, "MAX_PAIRS", 100)
    hosts = [f"10.0.0.{number}" for number in range(11)]
    one, deny = acl(TOPIC, "customers"), acl(TOPIC, "customers", permission=DENY)
    allowed = [one._replace(host=host) for host in hosts[:10]]
    denied = [deny._replace(host=host) for host in hosts]
    assert set(chosen_together(*allowed, *denied[:10])) == {"COPIED"}
    with pytest.raises(
        UserError,
        match="21 ACLs are too many to determine which denials limit the ACLs of User:ali",
    ):
        chosen_together(*allowed, *denied)
    others = [one._replace(principal="User:bob") for one in denied]
    assert chosen_together(*allowed, *others)[0] == "COPIED", "of another principal"


STATES = "__mirror_state"


def test_a_copied_acl_does_not_make_a_principal_a_node() -> None:
    """ALLOW on `*` is copied without the DENY that limits it on the source."""
    node = acl(TOPIC, "__mirror", PREFIXED, "User:node")
    everywhere = acl(TOPIC, "*", principal="User:mallory")
    denied = acl(TOPIC, "__mirror", PREFIXED, "User:mallory", DENY)
    existing = [node, everywhere, acl(TOPIC, "*", principal="User:node")]
    assert nodes_among(existing, STATES) == (
        frozenset({"User:node", "User:mallory"}),
        frozenset({"User:node"}),
    )
    assert nodes_among(existing, STATES, [everywhere]) == (frozenset({"User:node"}),) * 2
    assert nodes_among([*existing, denied], STATES) == (frozenset({"User:node"}),) * 2
    for acls, copied in (([*existing, denied], []), (existing, [everywhere])):
        found = guard(acls, ["orders"], STATES, copied_acls=copied)
        assert {denial.principal for denial in found.denials} == {"User:mallory"}
        assert Operation.WRITE in {denial.operation for denial in found.denials}
        assert found.wildcard_principals == frozenset()


def test_a_denial_from_a_single_host_does_not_exclude_a_node() -> None:
    node = acl(TOPIC, STATES, principal="User:node")
    denied = node._replace(permission=DENY, host="10.0.0.1")
    assert nodes_among([node, denied], STATES) == (frozenset({"User:node"}),) * 2


def test_alter_configs_is_denied_together_with_write() -> None:
    """ALL on a prefix set LogAppendTime; an administrator who may not write is not denied."""
    app = acl(TOPIC, "ord", PREFIXED, "User:app")
    both = [
        acl(TOPIC, "orders", principal="User:both")._replace(operation=one)
        for one in (Operation.WRITE, Operation.ALTER_CONFIGS)
    ]
    admin = acl(TOPIC, "orders", principal="User:admin")
    admin = admin._replace(operation=Operation.ALTER_CONFIGS)
    denials = guard([app, *both, admin], ["orders"], STATES).denials
    assert {
        denial.principal for denial in denials if denial.operation is Operation.ALTER_CONFIGS
    } == {
        "User:app",
        "User:both",
    }
    assert "User:admin" not in {denial.principal for denial in denials}
