"""Which of the source's ACLs are copied: those that concern a mirror, and harm no node.

An administrator of the source must not become one of the destination. So an ACL is copied by
default only if it concerns a topic or a synchronised group of the mirror; whatever reaches beyond
them has to be named by a rule of `mirror.acl.include`. The first line that fits decides:

    an ACL of the source                                                   what becomes of it
    ---------------------------------------------------------------------  -----------------
    no rule matches                                                        REMOVED
    a control topic (`__mirror...`), by its name or a prefix of it         LEFT
    a DENY that covers a node, everybody, or what nodes work with; or of
    which this version does not know what it denies                        DENYING
    covers a topic of the mirror that is paused or removed, or a group
    that reads one (other kinds: any such topic)                           LEFT
    an ALLOW of a kind that this version does not know                     BEYOND
    a rule names it: by kind and name, both of which are not `*`           COPIED
    covers a topic or a synchronised group of the mirror, and nothing
    that nodes work with                                                   COPIED
    all else                                                               BEYOND

    COPIED    made, and removed when the source has it no more
    LEFT      neither made nor removed: a failover has taken it from the source
    REMOVED   not made, and removed if this mirror has made it
    DENYING   the same, and reported: with it, nodes could not carry out a failover
    BEYOND    not made; one that an earlier version has made stays while the source has it

Nor does an ALLOW stand without the denials that limit it on the source (`choose_all`):

    a DENY that is BEYOND, and limits an ALLOW that is copied                COPIED
    an ALLOW that is limited by a DENY that a rule matches, and that is
    neither copied nor stands on the destination                             WITHHELD

    WITHHELD  neither made nor removed, and reported

What nodes work with: topics `__...`, groups and transactional ids `twinlog...`, and whatever covers
them: `*`, a prefix such as `_` or `t`; and everything that is neither a topic nor a group nor a
transactional id.
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
"""How the names of control topics begin."""
_RESERVED: Final = {
    ResourceType.TOPIC: "__",
    ResourceType.GROUP: "twinlog",
    ResourceType.TRANSACTIONAL_ID: "twinlog",
}
"""How the names begin of what nodes work with."""
_ALL_NAMES: Final = frozenset({".*", ".+"})
"""Expressions that name nothing, since they match everything."""
_NEEDED: Final = frozenset({Operation.ALL, Operation.READ, Operation.WRITE})
MAX_PAIRS: Final = 50_000_000
"""Rights that are compared with denials of the same principal: less than a minute, in a thread."""


class Choice(Enum):
    """What becomes of an ACL; see the module's table."""

    COPIED = auto()
    LEFT = auto()
    REMOVED = auto()
    DENYING = auto()
    BEYOND = auto()
    WITHHELD = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class AclScope:
    """What a mirror's ACLs may concern."""

    topics: frozenset[str] = frozenset()
    """The topics that are mirrored."""
    left: frozenset[str] = frozenset()
    """The mirror's topics that are paused or removed."""
    groups: Mapping[str, frozenset[str]] | None = field(default_factory=dict)
    """The groups whose offsets are copied, and which of the mirror's topics each has committed
    offsets of. None: not known, so that ACLs of groups are left as they are."""
    nodes: frozenset[str] = frozenset()
    """Principals that are nodes on the destination."""


def choose_all(
    source: Collection[Acl],
    there: Collection[Acl],
    made: Collection[Acl],
    rules: Collection[AclRule],
    scope: AclScope,
) -> dict[Acl, Choice]:
    """What becomes of the source's ACLs, with what limits them, and of what the mirror has made.

    Args:
        source: what is in force on the source.
        there: what the destination has.
        made: what the mirror has made; an ALLOW that the source has no more is not withheld.
        rules: of `mirror.acl.include`.
        scope: the mirror's.

    Raises:
        UserError: the source has too many ACLs of one principal, or of everybody, to compare them.
    """
    choices = {acl: choose(acl, rules, scope) for acl in {*source, *made}}
    # What an earlier version has copied of the denials that stop nodes is about to be removed.
    stays = {one for one in there if choices.get(one) is not Choice.DENYING or one not in made}
    limiting = defaultdict(list)
    for acl in source:
        if acl.permission is not Permission.ALLOW and choices[acl] is not Choice.REMOVED:
            limiting[acl.principal].append(acl)
    everyone = [acl for some in limiting.values() for acl in some]
    copied = (Choice.COPIED, Choice.BEYOND)
    needed: set[Acl] = set()
    pairs = 0
    for acl in source:
        if acl.permission is not Permission.ALLOW or choices[acl] is not Choice.COPIED:
            continue
        own = [*limiting[acl.principal], *limiting[EVERYBODY]]
        against = everyone if acl.principal == EVERYBODY else own
        pairs += len(against)
        if pairs > MAX_PAIRS:
            raise UserError(
                f"the source's ACLs are not copied: {len(source)} are too many to see which "
                f"denials limit what {acl.principal} is allowed",
                hint="use prefixes there, or rules of mirror.acl.include that match fewer",
            )
        limits = [one for one in against if one.limits(acl)]
        if all(choices[one] in copied or one in stays for one in limits):
            needed |= {one for one in limits if choices[one] is Choice.BEYOND}
        else:
            choices[acl] = Choice.WITHHELD
    return choices | dict.fromkeys(needed, Choice.COPIED)


def choose(acl: Acl, rules: Collection[AclRule], scope: AclScope) -> Choice:
    """What becomes of an ACL of the source by itself; see the module's first table."""
    matching = [rule for rule in rules if rule.matches(acl)]
    if not matching:
        return Choice.REMOVED
    if acl.resource_type is ResourceType.TOPIC and acl.resource_name.startswith(CONTROL):
        return Choice.LEFT
    if acl.permission is not Permission.ALLOW and (
        acl.principal in scope.nodes | {EVERYBODY} or _covers_reserved(acl) or not acl.is_known
    ):
        return Choice.DENYING
    if _is_left(acl, scope):
        return Choice.LEFT
    if acl.is_known and (any(_names(rule) for rule in matching) or _concerns(acl, scope)):
        return Choice.COPIED
    return Choice.BEYOND


def _names(rule: AclRule) -> bool:
    """Whether a rule names what it matches, and does not only match everything."""
    return (
        rule.resource_type is not None
        and rule.resource_name is not None
        and rule.resource_name.pattern not in _ALL_NAMES
    )


def _covers_reserved(acl: Acl) -> bool:
    """Whether something is covered that nodes work with."""
    reserved = _RESERVED.get(acl.resource_type)
    if reserved is None or acl.resource_name == ANY_NAME:
        return True
    name = acl.resource_name
    begins = name.startswith(reserved)
    return begins or (acl.pattern_type is PatternType.PREFIXED and reserved.startswith(name))


def _is_left(acl: Acl, scope: AclScope) -> bool:
    """Whether a failover, or a pause, has taken it from the source."""
    match acl.resource_type:
        case ResourceType.TOPIC:
            return bool(acl.covered(scope.left))
        case ResourceType.GROUP:
            if scope.groups is None:
                return True
            readers = acl.covered(scope.groups)
            reads_left = any(scope.groups[name] & scope.left for name in readers)
            return reads_left or (bool(scope.left) and not readers)
        case _:
            return bool(scope.left)


def _concerns(acl: Acl, scope: AclScope) -> bool:
    """Whether it is about the mirror's topics or groups, and nothing that nodes work with."""
    names: Collection[str] = ()
    if acl.resource_type is ResourceType.TOPIC:
        names = scope.topics
    elif acl.resource_type is ResourceType.GROUP:
        names = scope.groups or ()
    if acl.resource_type is ResourceType.TOPIC and acl.pattern_type is PatternType.LITERAL:
        return acl.resource_name in names
    return not _covers_reserved(acl) and bool(acl.covered(names))


def missed(acls: Iterable[Acl], scope: AclScope) -> frozenset[Acl]:
    """Those that are BEYOND and that applications may miss after a failover.

    They allow somebody to read or to write, and cover what the mirror has: `*`, short prefixes,
    and transactional ids, of which is not known whose they are; or nobody knows what they allow.
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
