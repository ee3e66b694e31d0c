"""Which of the source's ACLs are copied: those that concern a mirror, and harm no node.

An administrator of the source must not become an administrator of the destination. So by default an
ACL is copied only if it concerns a topic or a synchronised group of the mirror. A wider ACL is
copied only if a rule of `mirror.acl.include` names it. The first matching line decides:

    an ACL of the source                                                   decision
    ---------------------------------------------------------------------  -----------------
    no rule matches                                                        REMOVED
    control topics: its name or prefix begins with `__mirror`              LEFT
    a DENY that covers a node, every principal, or a resource of nodes;
    or a DENY of a kind that this version does not know                    DENYING
    covers a topic of the mirror that is paused or removed, or a group
    that reads one (other kinds: any such topic)                           LEFT
    an ALLOW of a kind that this version does not know                     BEYOND
    a rule names it: by kind and name, both of which are not `*`           COPIED
    covers a topic or a synchronised group of the mirror, and no
    resource of nodes                                                      COPIED
    any other                                                              BEYOND

    COPIED    created, and deleted when the source no longer has it
    LEFT      neither created nor deleted: a failover has detached it from the source
    REMOVED   not created, and deleted if this mirror has created it
    DENYING   the same, and reported: with it, nodes could not carry out a failover
    BEYOND    not created; one that an earlier version has created stays while the source has it

An ALLOW is not copied without the DENY ACLs that limit it on the source (`choose_all`):

    a DENY that is BEYOND, and limits an ALLOW that is copied                COPIED
    an ALLOW that is limited by a DENY that a rule matches, and that is
    neither copied nor present on the destination                            WITHHELD

    WITHHELD  neither created nor deleted, and reported

Resources of nodes are:

- topics `__...`, groups and transactional ids `twinlog...`;
- names that cover them: `*`, a prefix such as `_` or `t`;
- all resources other than topics, groups and transactional ids.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from twinlog.kafka.acls import (
    ANY_NAME,
    EVERYBODY,
    Acl,
    AclRule,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from twinlog.kafka.errors import UserError

CONTROL: Final = "__mirror"
"""The prefix of the control topics' names."""
_RESERVED: Final = {
    ResourceType.TOPIC: "__",
    ResourceType.GROUP: "twinlog",
    ResourceType.TRANSACTIONAL_ID: "twinlog",
}
"""The prefixes of the names of nodes' resources."""
_ALL_NAMES: Final = frozenset({".*", ".+"})
"""Expressions that match everything, so they do not name a resource."""
_NEEDED: Final = frozenset({Operation.ALL, Operation.READ, Operation.WRITE})
MAX_PAIRS: Final = 50_000_000
"""Most pairs of an ALLOW and a DENY to compare: less than a minute, in a thread."""


class Choice(Enum):
    """The decision about an ACL; see the module's table."""

    COPIED = auto()
    LEFT = auto()
    REMOVED = auto()
    DENYING = auto()
    BEYOND = auto()
    WITHHELD = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class AclScope:
    """The topics, groups and nodes that decide which ACLs are copied."""

    topics: frozenset[str] = frozenset()
    """The topics that are mirrored."""
    inactive_topics: frozenset[str] = frozenset()
    """The mirror's topics that are paused or removed."""
    groups: Mapping[str, frozenset[str]] | None = field(default_factory=dict)
    """The groups whose offsets are copied, each with the mirror's topics for which it has committed
    offsets. None: not known, so that ACLs of groups are left as they are."""
    nodes: frozenset[str] = frozenset()
    """Principals that are nodes on the destination."""


def choose_all(
    source: Collection[Acl],
    destination_acls: Collection[Acl],
    created_acls: Collection[Acl],
    rules: Collection[AclRule],
    scope: AclScope,
) -> dict[Acl, Choice]:
    """The decisions about the source's ACLs, including limiting ones, and about the mirror's.

    Args:
        source: the ACLs of the source.
        destination_acls: the ACLs of the destination.
        created_acls: the ACLs that the mirror has created; an ALLOW that the source no longer has
            is not withheld.
        rules: the rules of `mirror.acl.include`.
        scope: the mirror's scope.

    Raises:
        UserError: the source has too many ACLs of one principal, or of all principals, to compare.
    """
    choices = {acl: choose(acl, rules, scope) for acl in {*source, *created_acls}}
    # A DENYING copy, made by an earlier version, is about to be deleted.
    remaining_acls = {
        acl
        for acl in destination_acls
        if choices.get(acl) is not Choice.DENYING or acl not in created_acls
    }
    denials_by_principal = defaultdict(list)
    for acl in source:
        if acl.permission is not Permission.ALLOW and choices[acl] is not Choice.REMOVED:
            denials_by_principal[acl.principal].append(acl)
    all_denials = [acl for acls in denials_by_principal.values() for acl in acls]
    copied_choices = (Choice.COPIED, Choice.BEYOND)
    needed_denials: set[Acl] = set()
    pairs = 0
    for acl in source:
        if acl.permission is not Permission.ALLOW or choices[acl] is not Choice.COPIED:
            continue
        principal_denials = [*denials_by_principal[acl.principal], *denials_by_principal[EVERYBODY]]
        candidates = all_denials if acl.principal == EVERYBODY else principal_denials
        pairs += len(candidates)
        if pairs > MAX_PAIRS:
            raise UserError(
                f"the source's ACLs are not copied: {len(source)} ACLs are too many to determine "
                f"which denials limit the ACLs of {acl.principal}",
                hint="use prefixed ACLs on the source, or narrow mirror.acl.include",
            )
        limits = [denial for denial in candidates if denial.limits(acl)]
        if all(choices[denial] in copied_choices or denial in remaining_acls for denial in limits):
            needed_denials |= {denial for denial in limits if choices[denial] is Choice.BEYOND}
        else:
            choices[acl] = Choice.WITHHELD
    return choices | dict.fromkeys(needed_denials, Choice.COPIED)


def choose(acl: Acl, rules: Collection[AclRule], scope: AclScope) -> Choice:
    """The decision about an ACL of the source by itself; see the module's first table."""
    matching_rules = [rule for rule in rules if rule.matches(acl)]
    if not matching_rules:
        return Choice.REMOVED
    if acl.resource_type is ResourceType.TOPIC and acl.resource_name.startswith(CONTROL):
        return Choice.LEFT
    if acl.permission is not Permission.ALLOW and (
        acl.principal in scope.nodes | {EVERYBODY} or _covers_reserved(acl) or not acl.is_known
    ):
        return Choice.DENYING
    if _is_left(acl, scope):
        return Choice.LEFT
    if acl.is_known and (any(_names(rule) for rule in matching_rules) or _concerns(acl, scope)):
        return Choice.COPIED
    return Choice.BEYOND


def _names(rule: AclRule) -> bool:
    """Whether a rule names a kind and a name, rather than matching everything."""
    return (
        rule.resource_type is not None
        and rule.resource_name is not None
        and rule.resource_name.pattern not in _ALL_NAMES
    )


def _covers_reserved(acl: Acl) -> bool:
    """Whether an ACL covers a resource of nodes."""
    reserved = _RESERVED.get(acl.resource_type)
    if reserved is None or acl.resource_name == ANY_NAME:
        return True
    name = acl.resource_name
    begins = name.startswith(reserved)
    return begins or (acl.pattern_type is PatternType.PREFIXED and reserved.startswith(name))


def _is_left(acl: Acl, scope: AclScope) -> bool:
    """Whether a failover, or a pause, has detached an ACL from the source."""
    match acl.resource_type:
        case ResourceType.TOPIC:
            return bool(acl.covered(scope.inactive_topics))
        case ResourceType.GROUP:
            if scope.groups is None:
                return True
            readers = acl.covered(scope.groups)
            reads_left = any(scope.groups[name] & scope.inactive_topics for name in readers)
            return reads_left or (bool(scope.inactive_topics) and not readers)
        case _:
            return bool(scope.inactive_topics)


def _concerns(acl: Acl, scope: AclScope) -> bool:
    """Whether an ACL covers the mirror's topics or groups, and no resource of nodes."""
    names: Collection[str] = ()
    if acl.resource_type is ResourceType.TOPIC:
        names = scope.topics
    elif acl.resource_type is ResourceType.GROUP:
        names = scope.groups or ()
    if acl.resource_type is ResourceType.TOPIC and acl.pattern_type is PatternType.LITERAL:
        return acl.resource_name in names
    return not _covers_reserved(acl) and bool(acl.covered(names))


def missed(acls: Iterable[Acl], scope: AclScope) -> frozenset[Acl]:
    """The ACLs, of those that are BEYOND, which applications may miss after a failover.

    They allow a principal to read or to write, and cover the mirror's topics and groups: `*` and
    short prefixes. Transactional ids count too, as their applications are not known; and so does an
    ACL of an unknown kind.
    """
    return frozenset(
        acl
        for acl in acls
        if acl.permission is Permission.ALLOW
        and acl.principal not in scope.nodes
        and (not acl.is_known or (acl.operation in _NEEDED and _may_be_needed(acl, scope)))
    )


def _may_be_needed(acl: Acl, scope: AclScope) -> bool:
    reserved = _RESERVED.get(acl.resource_type)
    if reserved is not None and acl.resource_name.startswith(reserved):
        return False
    match acl.resource_type:
        case ResourceType.TOPIC:
            return bool(acl.covered(scope.topics))
        case ResourceType.GROUP:
            return bool(acl.covered(scope.groups or ())) or acl.resource_name == ANY_NAME
        case ResourceType.TRANSACTIONAL_ID:
            return True
        case _:
            return False
