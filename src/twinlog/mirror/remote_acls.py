"""The ACLs of remote topics, from the source's (KIP-382; `syncTopicAcls` of MirrorMaker 2 4.3).

    an ACL of the source                              the ACL of the remote topic
    ------------------------------------------------  ------------------------------------------
    of a topic of the flow, by its full name:
        ALLOW WRITE                                   none: only the flow writes to a remote topic
        ALLOW ALL                                     ALLOW READ
        any other, also DENY                          the same
    a DENY by prefix or `*` that limits one of those  the same DENY, by the remote topic's full name
    any other                                         none

Where several topics are copied to one remote topic, an ALLOW is copied if the source has it for
each of them: whoever reads the remote topic reads the records of all. Denials of any of them count.

The first and the last line are MirrorMaker 2's. It has no line for denials by prefix or `*`: there
an ALLOW is copied without what limits it on the source, and a principal may read on the target what
it may not read on the source. It also takes `*` for the name of a topic: with
`IdentityReplicationPolicy`, an ACL of all topics of the source becomes one of all topics of the
target. Neither is done here.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Final

from twinlog.kafka.acls import (
    ANY_NAME,
    EVERYBODY,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from twinlog.kafka.errors import UserError

MAX_PAIRS: Final = 5_000_000
"""Most pairs of an ALLOW and a wide DENY to compare: a few seconds, in a thread."""


def remote_acls(acls: Collection[Acl], names: Mapping[str, str]) -> frozenset[Acl]:
    """The ACLs of remote topics; see the module's table.

    Args:
        acls: the ACLs of the source, of all kinds.
        names: the names of remote topics, by those of all topics that are, or were, copied there.

    Raises:
        UserError: the source has too many ACLs to determine which denials limit others.
    """
    topic_acls = [acl for acl in acls if acl.resource_type is ResourceType.TOPIC]
    # By the source's names still, so that they can be compared with denials of the source.
    named = {
        _without_writing(acl)
        for acl in topic_acls
        if acl.pattern_type is PatternType.LITERAL
        and acl.resource_name in names
        and (acl.permission, acl.operation) != (Permission.ALLOW, Operation.WRITE)
    }
    wide_denials: defaultdict[str, list[Acl]] = defaultdict(list)
    for acl in topic_acls:
        is_wide = acl.pattern_type is not PatternType.LITERAL or acl.resource_name == ANY_NAME
        if is_wide and acl.permission is not Permission.ALLOW:
            wide_denials[acl.principal].append(acl)
    all_denials = [denial for denials in wide_denials.values() for denial in denials]
    limiting, pairs = set(), 0
    for acl in named:
        if acl.permission is not Permission.ALLOW:
            continue
        own = [*wide_denials.get(acl.principal, ()), *wide_denials.get(EVERYBODY, ())]
        candidates = all_denials if acl.principal == EVERYBODY else own
        pairs += len(candidates)
        if pairs > MAX_PAIRS:
            raise UserError(
                f"the source's ACLs are not copied: {len(acls)} ACLs are too many to determine "
                f"which denials limit the ACLs of {acl.principal}",
                hint="use fewer denials by prefix on the source, or set "
                "sync.topic.acls.enabled=false",
            )
        limiting |= {
            _narrowed(denial, acl.resource_name) for denial in candidates if denial.limits(acl)
        }
    sharing = defaultdict[str, set[str]](set)
    for topic, remote in names.items():
        sharing[remote].add(topic)
    return frozenset(
        acl._replace(resource_name=names[acl.resource_name])
        for acl in named | limiting
        if acl.permission is not Permission.ALLOW
        or all(
            acl._replace(resource_name=topic) in named
            for topic in sharing[names[acl.resource_name]]
        )
    )


def _narrowed(denial: Acl, topic: str) -> Acl:
    """A denial of this topic only; one of an unknown kind remains unknown."""
    pattern_type = PatternType.LITERAL if denial.is_known else denial.pattern_type
    return denial._replace(pattern_type=pattern_type, resource_name=topic)


def _without_writing(acl: Acl) -> Acl:
    """The ACL, with READ for an ALLOW of ALL."""
    if (acl.permission, acl.operation) == (Permission.ALLOW, Operation.ALL):
        return acl._replace(operation=Operation.READ)
    return acl
