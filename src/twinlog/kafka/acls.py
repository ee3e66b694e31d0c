"""Access control lists: their meaning, which are copied, and what has to change (KIP-1279).

The destination's ACLs follow the source's by their difference, as in KIP-1279, with one exception:
only ACLs that this mirror has created are ever removed. An ACL has no name and no owner, and the
same ACL created twice is one. So created ACLs are remembered (store/config_records.py), *before*
they are created and only if they did not exist. A crash in between leaves an entry for an ACL that
does not exist; the next check drops it.

    source, by the rules   destination   made   action
    ---------------------  ------------  -----  ---------------------------------------
    yes                    no            any    remember, create
    yes                    yes           any    nothing; its creator does not matter
    no                     yes           yes    remove, forget
    no                     yes           no     nothing: it is not the mirror's
    no                     no            yes    forget
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import IntEnum
from re import Pattern
from typing import Final, NamedTuple, Self

from twinlog.kafka.errors import UserError

EVERYBODY: Final = "User:*"
ANY_NAME: Final = "*"


class _Kind(IntEnum):
    """A number of the protocol; one that is unknown to this version is `UNKNOWN_<number>`."""

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        if not isinstance(value, int):
            return None
        unknown = int.__new__(cls, value)
        unknown._name_, unknown._value_ = f"UNKNOWN_{value}", value
        return unknown


class ResourceType(_Kind):
    """The type of a resource; the numbers are the protocol's, here and below."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(_Kind):
    """Whether a resource name is a whole name (`*`: all) or a prefix (KIP-290)."""

    LITERAL = 3
    PREFIXED = 4


class Operation(_Kind):
    """An operation that is allowed or denied."""

    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


_IMPLIED: Final = frozenset({Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS})
"""Operations that READ, WRITE, ALTER and so on imply, and that may be denied separately."""


class Permission(_Kind):
    """A permission. DENY wins over any ALLOW of the same."""

    DENY = 2
    ALLOW = 3


class Acl(NamedTuple):
    """One access control entry and its resource. All fields together are its identity."""

    resource_type: ResourceType
    resource_name: str
    pattern_type: PatternType
    principal: str
    host: str
    operation: Operation
    permission: Permission

    @property
    def is_known(self) -> bool:
        """Whether this version knows all of its values."""
        kinds = (self.resource_type, self.pattern_type, self.operation, self.permission)
        return all(kind.name in type(kind).__members__ for kind in kinds)

    def covers(self, name: str) -> bool:
        """Whether it applies to the resource of this name."""
        if self.pattern_type is PatternType.PREFIXED:
            return name.startswith(self.resource_name)
        return self.resource_name in {name, ANY_NAME}

    def covered(self, names: Collection[str]) -> list[str]:
        """The names that it applies to; by set lookup where possible, as there are thousands."""
        if self.pattern_type is PatternType.PREFIXED or self.resource_name == ANY_NAME:
            return [name for name in names if self.covers(name)]
        return [self.resource_name] if self.resource_name in names else []

    def limits(self, allowing: "Acl") -> bool:
        """Whether this is a denial, or may be one, of something that `allowing` allows."""
        return (
            self.permission is not Permission.ALLOW
            and self.resource_type == allowing.resource_type
            and (
                self.principal == allowing.principal
                or EVERYBODY in {self.principal, allowing.principal}
            )
            and (self.host == allowing.host or ANY_NAME in {self.host, allowing.host})
            and _same_operation(self.operation, allowing.operation)
            and _same_names(self, allowing)
        )

    def __str__(self) -> str:
        where = "" if self.host == "*" else f" from {self.host}"
        end = "*" if self.pattern_type is PatternType.PREFIXED else ""
        return (
            f"{self.permission.name} {self.principal} {self.operation.name}{where} on "
            f"{self.resource_type.name} {self.resource_name}{end}"
        )


MAX_PAIRS: Final = 2_000_000
"""Pairs of ACLs that are compared in the event loop: about a second."""


def limited(allowing: Collection[Acl], denials: Collection[Acl]) -> set[Acl]:
    """The ACLs of `allowing` that a denial limits; all if there are too many pairs to compare."""
    if len(allowing) * len(denials) > MAX_PAIRS:
        return set(allowing)
    return {acl for acl in allowing if any(denial.limits(acl) for denial in denials)}


def limiting(denials: Collection[Acl], allowing: Collection[Acl]) -> set[Acl]:
    """The denials that limit an ACL of `allowing`; all if there are too many pairs to compare."""
    if len(allowing) * len(denials) > MAX_PAIRS:
        return set(denials)
    return {denial for denial in denials if any(denial.limits(acl) for acl in allowing)}


def _same_operation(denied: Operation, allowed: Operation) -> bool:
    """Whether a denial of one may limit the other; an unknown operation may be any."""
    if Operation.ALL in {denied, allowed} or denied == allowed:
        return True
    return denied in _IMPLIED or denied.name not in Operation.__members__


def _same_names(one: Acl, other: Acl) -> bool:
    """Whether there may be a resource that both apply to."""
    known = {PatternType.LITERAL, PatternType.PREFIXED}
    return (
        not known.issuperset({one.pattern_type, other.pattern_type})
        or one.covers(other.resource_name)
        or other.covers(one.resource_name)
    )


@dataclass(frozen=True, slots=True)
class AclRule:
    """A rule for the ACLs that are copied; None matches all."""

    resource_type: ResourceType | None = None
    resource_name: Pattern[str] | None = None
    operation: Operation | None = None
    permission: Permission | None = None
    principal: Pattern[str] | None = None

    def matches(self, acl: Acl) -> bool:
        """Whether an ACL is copied by this rule; expressions match in full."""
        return (
            self.resource_type in {None, acl.resource_type}
            and (
                self.resource_name is None or bool(self.resource_name.fullmatch(acl.resource_name))
            )
            and self.operation in {None, acl.operation}
            and self.permission in {None, acl.permission}
            and (self.principal is None or bool(self.principal.fullmatch(acl.principal)))
        )


class AclChanges(NamedTuple):
    """The changes, in this order: remember, create, remove, forget."""

    remember: frozenset[Acl]
    make: frozenset[Acl]
    remove: frozenset[Acl]
    forget: frozenset[Acl]


def included(acls: Iterable[Acl], rules: Collection[AclRule]) -> frozenset[Acl]:
    """The ACLs that match one of the rules."""
    return frozenset(acl for acl in acls if any(rule.matches(acl) for rule in rules))


def acl_changes(
    wanted: Collection[Acl], there: Collection[Acl], made: Collection[Acl]
) -> AclChanges:
    """The changes after which the destination has the wanted ACLs; see the module's table.

    Args:
        wanted: the source's ACLs that are copied.
        there: all ACLs of the destination.
        made: the ACLs that are remembered as created.
    """
    wanted, there, made = frozenset(wanted), frozenset(there), frozenset(made)
    return AclChanges(
        remember=wanted - there - made,
        make=wanted - there,
        remove=made - wanted,
        forget=made - wanted,
    )


_CHANGING: Final = (
    Operation.WRITE,
    Operation.DELETE,
    Operation.ALTER,
    Operation.ALTER_CONFIGS,
)
"""What changes a topic: its records, its existence and their deletion, its partitions, and its
configurations. ALTER_CONFIGS is denied only to principals that are denied WRITE as well. An
application with ALL could set `message.timestamp.type` or `retention.ms`, and no partition survives
that. An administrator that may not write sets the destination's own configurations
(`min.insync.replicas`)."""


def nodes_among(
    there: Iterable[Acl], states: str, copied: Collection[Acl] = ()
) -> tuple[frozenset[str], frozenset[str]]:
    """The principals that may write to the topic of states, and so are nodes.

    A denial (for all hosts) wins over any permission, so a principal with one is no node. A
    principal that is allowed only by an ACL copied from a source is no node either: the source
    decides which principals get that ACL, while a node has its rights from the destination's
    administrator.

    Args:
        there: all ACLs of the cluster.
        states: the topic that only nodes write to.
        copied: the ACLs that mirrors have copied from their sources, or are about to copy.

    Returns:
        All nodes, and those of them that are allowed by something other than `*`.
    """
    writing = [
        acl
        for acl in there
        if acl.resource_type is ResourceType.TOPIC
        and acl.operation in {Operation.ALL, Operation.WRITE}
        and acl.covers(states)
    ]
    denied = {
        acl.principal
        for acl in writing
        if acl.permission is Permission.DENY and acl.host == ANY_NAME
    }
    allowing = [
        acl
        for acl in writing
        if acl.permission is Permission.ALLOW
        and acl not in copied
        and denied.isdisjoint({acl.principal, EVERYBODY})
    ]
    everyone = frozenset(acl.principal for acl in allowing)
    named = frozenset(acl.principal for acl in allowing if acl.resource_name != ANY_NAME)
    return everyone, named


MAX_DENIALS: Final = 500_000
"""Denials that guard a mirror's topics: 1000 topics, 125 principals with ALL. Their number is the
product of topics and rights, and a source determines both."""


class Guard(NamedTuple):
    """The denials that keep topics read-only, and the principals that they cannot keep out."""

    denials: frozenset[Acl]
    open_to: frozenset[str]
    """Principals that are allowed, and cannot be distinguished from nodes."""
    everywhere: frozenset[str]
    """Principals that are allowed, and are nodes only by an ACL for every topic (`*`)."""


def guard(
    there: Iterable[Acl],
    topics: Collection[str],
    states: str,
    operations: Collection[Operation] = _CHANGING,
    copied: Collection[Acl] = (),
) -> Guard:
    """The denials that keep all but nodes from changing topics.

    See docs/decisions/0006-read-only-topics.md. Only principals that were allowed are denied, so
    that a topic without ACLs remains without ACLs.

    Args:
        there: all ACLs of the topics' cluster.
        topics: the topics that are to be read-only.
        states: the topic that only nodes write to; a principal that may write to it is a node.
        operations: the operations to deny, WRITE among them.
        copied: ACLs that mirrors have copied from their sources: they make no principal a node.

    Raises:
        UserError: more than `MAX_DENIALS` are needed.
    """
    there, topics = list(there), frozenset(topics)
    nodes, named = nodes_among(there, states, copied)
    allowed = [
        acl
        for acl in there
        if acl.resource_type is ResourceType.TOPIC
        and acl.permission is Permission.ALLOW
        and acl.operation in {Operation.ALL, *operations}
    ]
    denials: set[Acl] = set()
    open_to: set[str] = set()
    everywhere: set[str] = set()
    for acl in allowed:
        names = acl.covered(topics)
        if names and EVERYBODY in {acl.principal, *nodes}:
            # A denial for `User:*` would deny the nodes as well.
            open_to.add(acl.principal)
        elif acl.principal not in nodes:
            denied = operations if acl.operation is Operation.ALL else (acl.operation,)
            denials |= {_denial(name, acl.principal, one) for name in names for one in denied}
            if len(denials) > MAX_DENIALS:
                raise UserError(
                    f"more than {MAX_DENIALS} ACLs are needed to keep {len(topics)} topics "
                    f"read-only: {len(allowed)} ACLs allow principals to change topics",
                    hint="narrow mirror.acl.include, so that fewer of the source's ACLs are copied",
                )
        elif names and acl.principal not in named:
            everywhere.add(acl.principal)
    writers = {
        (one.resource_name, one.principal) for one in denials if one.operation is Operation.WRITE
    }
    denials -= {
        one
        for one in denials
        if one.operation is Operation.ALTER_CONFIGS
        and (one.resource_name, one.principal) not in writers
    }
    return Guard(frozenset(denials), frozenset(open_to), frozenset(everywhere))


def _denial(topic: str, principal: str, operation: Operation) -> Acl:
    kind, pattern = ResourceType.TOPIC, PatternType.LITERAL
    return Acl(kind, topic, pattern, principal, ANY_NAME, operation, Permission.DENY)
