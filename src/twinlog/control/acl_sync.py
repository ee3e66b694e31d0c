"""ACLs follow the source's (KIP-1279, "ACL Synchronization"), by their difference (core/acls.py).

    rules of mirror.acl.include     which of the source's ACLs are copied
    less                            those on control topics of ours, which are another cluster's
                                    own; those that a switchover has made there (denials.py); those
                                    that keep the source's own mirror topics read-only; and those
                                    that it has from us
    left alone, on both sides       those on topics that are in this mirror and paused or removed

Where two clusters mirror different topics from each other, a denial that keeps a topic read-only in
one would else lock producers out of it in the other, where it lives; and what is removed in one
would come back from its copy in the other.

Who makes ACLs remembers them before, and forgets them when no broker has them any more. So what is
remembered is read before the source's ACLs and after.

Where one of the clusters has no authorizer there is nothing to copy, or nowhere to; that is said
once. What is made, and removed again, is remembered: made_acls.py.
"""

import logging
from collections.abc import Callable, Collection
from typing import Final, Literal, NamedTuple

from twinlog.cluster.acls import describe_acls
from twinlog.cluster.client import KafkaCluster
from twinlog.control.made_acls import carry_out
from twinlog.control.read_only import ReadOnly
from twinlog.control.store import MirrorStore
from twinlog.core.acls import (
    Acl,
    AclChanges,
    AclRule,
    PatternType,
    ResourceType,
    acl_changes,
    included,
)
from twinlog.wire.config_records import MadeFor, Wanted
from twinlog.wire.snapshot import Snapshot

log = logging.getLogger(__name__)

_CONTROL: Final = "__mirror"
"""How control topics' names begin."""


class Compared(NamedTuple):
    """What of the destination's ACLs is not as the source's are."""

    changes: AclChanges
    """What has to be done."""
    ours: frozenset[Acl]
    """The destination's."""


async def compare_acls(
    source: KafkaCluster,
    destination: KafkaCluster,
    store: MirrorStore,
    mirror: str,
    rules: Collection[AclRule],
) -> Compared | Literal["source", "destination"]:
    """How the destination's ACLs differ from the source's that are copied; nothing is done.

    Args:
        source: the mirror's source.
        destination: the mirror's cluster.
        store: what mirrors there are, and have made.
        mirror: its name.
        rules: which ACLs are copied.

    Returns:
        The difference, or which cluster has no authorizer.

    Raises:
        UserError: a right is missing, to see ACLs, or the source's mirrors.
        Retriable: a cluster does not answer.
    """
    not_its_own = await _not_its_own(source, destination, store)
    theirs, ours = await describe_acls(source), await describe_acls(destination)
    if theirs is None:
        return "source"
    if ours is None:
        return "destination"
    not_its_own |= await _not_its_own(source, destination, store)
    snapshot = await store.snapshot()
    alone = _left_alone(snapshot, mirror)
    wanted = {acl for acl in included(theirs - not_its_own, rules) if not alone(acl)}
    made = {acl for acl in snapshot.made_acls(mirror, MadeFor.SOURCE) if not alone(acl)}
    changes = acl_changes(wanted, ours, made)
    # What was made so that others cannot write, and is the source's as well, stays with it.
    also = wanted & snapshot.made_acls(mirror, MadeFor.READ_ONLY)
    return Compared(changes._replace(remember=changes.remember | also), ours)


async def _not_its_own(
    source: KafkaCluster, destination: KafkaCluster, store: MirrorStore
) -> frozenset[Acl]:
    """What of the source's ACLs mirrors have made there, its own or ours."""
    here, there = await store.snapshot(), await MirrorStore(source).snapshot()
    return frozenset[Acl]().union(
        here.made_of(source.cluster_id, MadeFor.SWITCHOVER),
        there.made_of(destination.cluster_id, MadeFor.SOURCE),
        *(there.made_acls(mirror, MadeFor.READ_ONLY) for mirror in there.mirrors),
    )


class AclSync:
    """Copies the ACLs of mirrors' sources to one destination."""

    def __init__(self, destination: KafkaCluster, store: MirrorStore, read_only: ReadOnly) -> None:
        self._destination = destination
        self._store = store
        self._read_only = read_only
        self._told: set[tuple[str, str]] = set()

    async def sync(self, source: KafkaCluster, mirror: str, rules: Collection[AclRule]) -> int:
        """Make the destination's ACLs what the source's are; how many could not be.

        Without any rule nothing is looked at, and what was made stays.

        Raises:
            UserError: a right is missing, to see ACLs.
            Retriable: a cluster does not answer.
        """
        if not rules:
            return 0
        found = await compare_acls(source, self._destination, self._store, mirror, rules)
        if not isinstance(found, Compared):
            self._tell(mirror, found)
            return 0
        changes, ours = found
        cluster, store = self._destination, self._store
        return await self._read_only.allow(
            mirror,
            ours,
            changes.make,
            lambda: carry_out(cluster, store, mirror, changes, MadeFor.SOURCE),
        )

    def _tell(self, mirror: str, side: str) -> None:
        if (mirror, side) not in self._told:
            self._told.add((mirror, side))
            log.warning("mirror %s: ACLs do not follow, as the %s has no authorizer", mirror, side)


def _left_alone(snapshot: Snapshot, mirror: str) -> Callable[[Acl], bool]:
    """Which ACLs are neither made nor removed."""
    topics = {
        topic.topic
        for topic in snapshot.topics
        if topic.mirror == mirror and topic.wanted is not Wanted.MIRRORING
    }

    def alone(acl: Acl) -> bool:
        if acl.resource_type is not ResourceType.TOPIC:
            return False
        if acl.resource_name.startswith(_CONTROL):
            return True
        return acl.pattern_type is PatternType.LITERAL and acl.resource_name in topics

    return alone
