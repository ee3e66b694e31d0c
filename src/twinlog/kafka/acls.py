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

    def limits(self, allow_acl: "Acl") -> bool:
        """Whether this is a denial, or may be one, of something that `allow_acl` allows."""
        return (
            self.permission is not Permission.ALLOW
            and self.resource_type == allow_acl.resource_type
            and (
                self.principal == allow_acl.principal
                or EVERYBODY in {self.principal, allow_acl.principal}
            )
            and (self.host == allow_acl.host or ANY_NAME in {self.host, allow_acl.host})
            and _same_operation(self.operation, allow_acl.operation)
            and _same_names(self, allow_acl)
        )

    def __str__(self) -> str:
        host_text = "" if self.host == "*" else f" from {self.host}"
        end = "*" if self.pattern_type is PatternType.PREFIXED else ""
        return (
            f"{self.permission.name} {self.principal} {self.operation.name}{host_text} on "
            f"{self.resource_type.name} {self.resource_name}{end}"
        )


MAX_PAIRS: Final = 2_000_000
"""Pairs of ACLs that are compared in the event loop: about a second."""


def limited(allow_acls: Collection[Acl], denials: Collection[Acl]) -> set[Acl]:
    """The ACLs of `allow_acls` that a denial limits; all if there are too many pairs to compare."""
    if len(allow_acls) * len(denials) > MAX_PAIRS:
        return set(allow_acls)
    return {acl for acl in allow_acls if any(denial.limits(acl) for denial in denials)}


def limiting(denials: Collection[Acl], allow_acls: Collection[Acl]) -> set[Acl]:
    """The denials that limit an ACL of `allow_acls`; all if there are too many pairs to compare."""
    if len(allow_acls) * len(denials) > MAX_PAIRS:
        return set(denials)
    return {denial for denial in denials if any(denial.limits(acl) for acl in allow_acls)}


def _same_operation(denied: Operation, allowed: Operation) -> bool:
    """Whether a denial of one may limit the other; an unknown operation may be any."""
    if Operation.ALL in {denied, allowed} or denied == allowed:
        return True
    return denied in _IMPLIED or denied.name not in Operation.__members__


def _same_names(acl: Acl, other: Acl) -> bool:
    """Whether there may be a resource that both apply to."""
    pattern_types = {PatternType.LITERAL, PatternType.PREFIXED}
    return (
        not pattern_types.issuperset({acl.pattern_type, other.pattern_type})
        or acl.covers(other.resource_name)
        or other.covers(acl.resource_name)
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
    desired_acls: Collection[Acl], destination_acls: Collection[Acl], created_acls: Collection[Acl]
) -> AclChanges:
    """The changes after which the destination has the desired ACLs; see the module's table.

    Args:
        desired_acls: the source's ACLs that are copied.
        destination_acls: all ACLs of the destination.
        created_acls: the ACLs that are remembered as created.
    """
    desired_acls, destination_acls, created_acls = (
        frozenset(desired_acls),
        frozenset(destination_acls),
        frozenset(created_acls),
    )
    return AclChanges(
        remember=desired_acls - destination_acls - created_acls,
        make=desired_acls - destination_acls,
        remove=created_acls - desired_acls,
        forget=created_acls - desired_acls,
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
    acls: Iterable[Acl], states: str, copied_acls: Collection[Acl] = ()
) -> tuple[frozenset[str], frozenset[str]]:
    """The principals that may write to the topic of states, and so are nodes.

    A denial (for all hosts) wins over any permission, so a principal with one is no node. A
    principal that is allowed only by an ACL copied from a source is no node either: the source
    decides which principals get that ACL, while a node has its rights from the destination's
    administrator.

    Args:
        acls: all ACLs of the cluster.
        states: the topic that only nodes write to.
        copied_acls: the ACLs that mirrors have copied from their sources, or are about to copy.

    Returns:
        All nodes, and those of them that are allowed by something other than `*`.
    """
    write_acls = [
        acl
        for acl in acls
        if acl.resource_type is ResourceType.TOPIC
        and acl.operation in {Operation.ALL, Operation.WRITE}
        and acl.covers(states)
    ]
    denied_principals = {
        acl.principal
        for acl in write_acls
        if acl.permission is Permission.DENY and acl.host == ANY_NAME
    }
    allow_acls = [
        acl
        for acl in write_acls
        if acl.permission is Permission.ALLOW
        and acl not in copied_acls
        and denied_principals.isdisjoint({acl.principal, EVERYBODY})
    ]
    all_nodes = frozenset(acl.principal for acl in allow_acls)
    named_nodes = frozenset(acl.principal for acl in allow_acls if acl.resource_name != ANY_NAME)
    return all_nodes, named_nodes


MAX_DENIALS: Final = 500_000
"""Denials that guard a mirror's topics: 1000 topics, 125 principals with ALL. Their number is the
product of topics and rights, and a source determines both."""


class Guard(NamedTuple):
    """The denials that keep topics read-only, and the principals that they cannot keep out."""

    denials: frozenset[Acl]
    open_to: frozenset[str]
    """Principals that are allowed, and cannot be distinguished from nodes."""
    wildcard_principals: frozenset[str]
    """Principals that are allowed, and are nodes only by an ACL for every topic (`*`)."""


def guard(
    acls: Iterable[Acl],
    topics: Collection[str],
    states: str,
    operations: Collection[Operation] = _CHANGING,
    copied_acls: Collection[Acl] = (),
) -> Guard:
    """The denials that keep all but nodes from changing topics.

    See docs/decisions/0006-read-only-topics.md. Only principals that were allowed are denied, so
    that a topic without ACLs remains without ACLs.

    Args:
        acls: all ACLs of the topics' cluster.
        topics: the topics that are to be read-only.
        states: the topic that only nodes write to; a principal that may write to it is a node.
        operations: the operations to deny, WRITE among them.
        copied_acls: ACLs that mirrors have copied from their sources; they make no principal a
            node.

    Raises:
        UserError: more than `MAX_DENIALS` are needed.
    """
    acls, topics = list(acls), frozenset(topics)
    nodes, named_nodes = nodes_among(acls, states, copied_acls)
    allow_acls = [
        acl
        for acl in acls
        if acl.resource_type is ResourceType.TOPIC
        and acl.permission is Permission.ALLOW
        and acl.operation in {Operation.ALL, *operations}
    ]
    denials: set[Acl] = set()
    open_to: set[str] = set()
    wildcard_principals: set[str] = set()
    for acl in allow_acls:
        names = acl.covered(topics)
        if names and EVERYBODY in {acl.principal, *nodes}:
            # A denial for `User:*` would deny the nodes as well.
            open_to.add(acl.principal)
        elif acl.principal not in nodes:
            denied_operations = operations if acl.operation is Operation.ALL else (acl.operation,)
            denials |= {
                _denial(name, acl.principal, operation)
                for name in names
                for operation in denied_operations
            }
            if len(denials) > MAX_DENIALS:
                raise UserError(
                    f"more than {MAX_DENIALS} ACLs are needed to keep {len(topics)} topics "
                    f"read-only: {len(allow_acls)} ACLs allow principals to change topics",
                    hint="narrow mirror.acl.include, so that fewer of the source's ACLs are copied",
                )
        elif names and acl.principal not in named_nodes:
            wildcard_principals.add(acl.principal)
    writers = {
        (denial.resource_name, denial.principal)
        for denial in denials
        if denial.operation is Operation.WRITE
    }
    denials -= {
        denial
        for denial in denials
        if denial.operation is Operation.ALTER_CONFIGS
        and (denial.resource_name, denial.principal) not in writers
    }
    return Guard(frozenset(denials), frozenset(open_to), frozenset(wildcard_principals))


def _denial(topic: str, principal: str, operation: Operation) -> Acl:
    kind, pattern = ResourceType.TOPIC, PatternType.LITERAL
    return Acl(kind, topic, pattern, principal, ANY_NAME, operation, Permission.DENY)
