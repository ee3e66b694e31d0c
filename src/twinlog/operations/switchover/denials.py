"""A switchover denies WRITE to the source's producers, if the source has an authorizer.

The denials are those that keep a mirror's topics read-only on the destination (kafka/acls.py,
docs/decisions/0006-read-only-topics.md), of WRITE alone: principal by principal. Nodes of the
source's own mirrors are not denied, because a failback needs them.

Each denial is remembered before it is made, in the *destination's* `__mirror_config`
(created_acls.py):

    deny      remember    make      until every broker of the source applies it
    allow     remove      until no broker does      forget

So the next switchover continues with what a killed one has left, or `allow_producers` removes it,
and no ACL is ever removed that no switchover of this mirror has made. A switchover that ends before
its failover removes only what it has made itself: what it found may be another running
switchover's. After the failover the denials stay: the old source must take no writes.

Who may write is what any broker of the source lists, and a denial exists if all of them list it:
one that is behind, or cut off, knows too few ACLs.

An open transaction can be ended by its producer, whose right to the transactional id stays.
"""

from collections.abc import Collection, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Final

from twinlog.kafka.acls import Acl, AclChanges, Guard, Operation, acl_changes, guard
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.references import EVERYTHING, Grants
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Retriable, UserError
from twinlog.kafka.requests.acls import describe_acls_everywhere, may_alter_acls
from twinlog.lifecycle.creation import compiled, connected_source
from twinlog.lifecycle.failback import read_their_mirrors
from twinlog.operations.switchover.records import Allowed, ForgottenDenials
from twinlog.store.config_records import MadeFor, Mirror
from twinlog.store.control_topics import STATE_TOPIC
from twinlog.store.mirrors import MirrorStore, unknown_mirror
from twinlog.store.snapshot import Snapshot
from twinlog.sync.created_acls import carry_out
from twinlog.text import few

NO_AUTHORIZER: Final = "the source has no authorizer"
_NONE: Final[frozenset[Acl]] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What denials would do, before any is made."""

    denials: frozenset[Acl] = frozenset()
    beyond: str = ""
    """The principals that would not be kept out, as text: the operator has to stop them. Empty:
    ACLs name none."""
    forbidden: bool = False
    """Whether that is all of them, for lack of a right."""
    open_to: frozenset[str] = frozenset()
    """Principals that may write and cannot be denied it."""
    unguarded: frozenset[str] = frozenset()
    """Topics for which there is no principal to be denied."""


def outlook_of(assessment: Guard, topics: Collection[str]) -> Outlook:
    """What a guard of WRITE on these topics would do."""
    guarded = {acl.resource_name for acl in assessment.denials}
    return _outlook(
        assessment.denials,
        assessment.open_to | assessment.wildcard_principals,
        frozenset(topics).difference(guarded),
    )


def _outlook(
    denials: frozenset[Acl], open_to: frozenset[str], unguarded: frozenset[str]
) -> Outlook:
    parts = []
    if open_to:
        parts.append(
            "these principals keep WRITE because a deny ACL cannot exclude them: "
            f"{few(sorted(open_to))}"
        )
    if unguarded:
        parts.append(f"no principal is known to have WRITE: {few(sorted(unguarded))}")
    return Outlook(denials=denials, beyond="; ".join(parts), open_to=open_to, unguarded=unguarded)


def missing_of(previous: Outlook, current: Outlook, acls: frozenset[Acl]) -> Outlook:
    """Which of the made denials are missing, and which principals they do not keep out any more.

    Args:
        previous: the outlook by which the denials were made.
        current: the outlook by the present ACLs.
        acls: the present ACLs.
    """
    guarded = {acl.resource_name for acl in previous.denials & acls}
    return _outlook(
        current.denials - acls,
        current.open_to - previous.open_to,
        (current.unguarded - previous.unguarded).difference(guarded),
    )


class ProducerDenials:
    """The denials for some topics of a mirror, on its source."""

    def __init__(
        self, source: KafkaCluster, destination: KafkaCluster, mirror: str, topics: Collection[str]
    ) -> None:
        self._source = source
        self._store = MirrorStore(destination)
        self._mirror = mirror
        self._topics = frozenset(topics)
        # Those that were not remembered before this switchover.
        self._own_denials: frozenset[Acl] = _NONE

    async def outlook(self) -> Outlook:
        """Find out what denials would do; change nothing.

        Raises:
            Retriable: the source is unreachable.
        """
        try:
            acls = _any_lists(await self._each_lists())
        except UserError as error:
            if error.code != ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
                raise
            return Outlook(beyond=error.message, forbidden=True)
        if acls is None:
            return Outlook(beyond=NO_AUTHORIZER)
        if not await may_alter_acls(self._source):
            text = "no right to alter the source's ACLs (ALTER on the cluster)"
            return Outlook(beyond=text, forbidden=True)
        return outlook_of(self._guard(acls), self._topics)

    async def deny(self, denials: frozenset[Acl]) -> None:
        """Make denials; when this returns, every broker of the source applies them.

        Raises:
            MirrorRefused: the mirror does not exist any more; nothing was made.
            UserError: a right is missing.
            Retriable: a cluster is unreachable.
        """
        lists = await self._each_lists()
        changes = acl_changes(denials, _any_lists(lists) or _NONE, await self.made())
        # Denials that are not needed any more are removed later, with the rest.
        make = denials - _all_list(lists)
        changes = changes._replace(make=make, remove=_NONE, forget=_NONE)
        self._own_denials |= changes.remember
        await self._carry_out(changes, "be created on the source")
        await self._until(denials, present=True)

    async def missing(self, previous: Outlook) -> Outlook:
        """What has to be denied now and is not, and what cannot be, beyond `previous`.

        Raises:
            UserError, Retriable: as `deny`.
        """
        lists = await self._each_lists()
        acls = _any_lists(lists)
        if acls is None:
            return Outlook(denials=previous.denials, beyond=NO_AUTHORIZER)
        current = outlook_of(self._guard(acls), self._topics)
        return missing_of(previous, current, _all_list(lists))

    async def strayed(self) -> frozenset[Acl]:
        """Denials that ACL synchronisation has copied as the source's own (acls.py).

        Raises:
            UserError, Retriable: the destination is unreachable, or refuses.
        """
        snapshot = await self._store.snapshot()
        denials = self._made(snapshot)
        return frozenset(
            acl
            for mirror in snapshot.mirrors
            for acl in denials & snapshot.made_acls(mirror, MadeFor.SOURCE)
        )

    async def allow(self) -> frozenset[Acl]:
        """Remove what switchovers of the mirror have made for these topics.

        Returns:
            The denials that still existed.

        Raises:
            UserError: a right is missing; what could not be removed is still remembered.
            Retriable: a cluster is unreachable; the same.
        """
        return await self._take_back(await self.made())

    async def take_back(self) -> frozenset[Acl]:
        """Remove only what this switchover has made; return the denials that still existed.

        Raises:
            UserError, Retriable: as `allow`.
        """
        return await self._take_back(await self.made() & self._own_denials)

    async def _take_back(self, denials: frozenset[Acl]) -> frozenset[Acl]:
        if not denials:
            return _NONE
        present = _NONE.union(*(acls or _NONE for acls in (await self._each_lists()).values()))
        # A broker may not list one yet, so all are removed.
        await self._carry_out(AclChanges(_NONE, _NONE, denials, _NONE), "be removed on the source")
        await self._until(denials, present=False)
        await self._carry_out(AclChanges(_NONE, _NONE, _NONE, denials), "be forgotten")
        return denials & present

    async def _each_lists(self) -> dict[int, frozenset[Acl] | None]:
        """The ACLs that each broker of the source lists."""
        lists = await describe_acls_everywhere(self._source)
        if not lists:
            raise Retriable("the source's metadata contains no broker")
        return lists

    async def forget(self) -> frozenset[Acl]:
        """Forget the denials without removing them; return them.

        Raises:
            UserError, Retriable: the destination is unreachable, or refuses.
        """
        denials = await self.made()
        await self._carry_out(AclChanges(_NONE, _NONE, _NONE, denials), "be forgotten")
        return denials

    async def made(self) -> frozenset[Acl]:
        """The denials that are remembered for these topics.

        Raises:
            UserError, Retriable: the destination is unreachable, or refuses.
        """
        return self._made(await self._store.snapshot())

    def _made(self, snapshot: Snapshot) -> frozenset[Acl]:
        return frozenset(
            acl
            for acl in snapshot.made_acls(self._mirror, MadeFor.SWITCHOVER)
            if acl.resource_name in self._topics
        )

    def _guard(self, acls: frozenset[Acl]) -> Guard:
        return guard(acls, self._topics, STATE_TOPIC, (Operation.WRITE,))

    async def _carry_out(self, changes: AclChanges, action: str) -> None:
        made_for = MadeFor.SWITCHOVER
        failures = await carry_out(self._source, self._store, self._mirror, changes, made_for)
        if failures:
            raise UserError(
                f"{failures} denial(s) cannot {action}",
                hint="the credentials need ALTER on the source's cluster (--source-config)",
            )

    async def _until(self, acls: frozenset[Acl], *, present: bool) -> None:
        """Wait until every broker of the source lists all of these ACLs, or none of them."""
        if not acls:
            return

        async def settled() -> None:
            lagging = [
                str(node)
                for node, listing in (await self._each_lists()).items()
                if not (
                    acls <= (listing or _NONE) if present else acls.isdisjoint(listing or _NONE)
                )
            ]
            if lagging:
                raise Retriable(
                    f"broker(s) {', '.join(lagging)} of the source do not list the changed ACLs yet"
                )

        await self._source.persist(settled)


def _any_lists(lists: Mapping[int, frozenset[Acl] | None]) -> frozenset[Acl] | None:
    """The ACLs that any broker lists; None if one has no authorizer, and so refuses nobody.

    A broker authorizes by the ACLs that it knows. One that is behind lists too few of them, and a
    producer that it does not list may write on the others.
    """
    if None in lists.values():
        return None
    return _NONE.union(*(acls or _NONE for acls in lists.values()))


def _all_list(lists: Mapping[int, frozenset[Acl] | None]) -> frozenset[Acl]:
    """The ACLs that every broker lists."""
    first, *others = (acls or _NONE for acls in lists.values())
    return first.intersection(*others)


def acl_source(
    mirror: Mirror, config: Mapping[str, str] | None, grants: Grants
) -> AbstractAsyncContextManager[KafkaCluster]:
    """Connect to a mirror's source to alter its ACLs, by the mirror's properties or by others.

    Args:
        mirror: the mirror.
        config: the operator's own properties, which may read anything; None: the mirror's.
        grants: what the mirror's properties may read on this machine.

    Raises:
        Retriable: it does not answer.
        UserError: it refuses the client, or is another cluster.
    """
    if config is None:
        return connected_source(mirror, grants)
    servers = {"bootstrap.servers": mirror.source["bootstrap.servers"]}
    return connected_source(replace(mirror, source={**servers, **config}), EVERYTHING)


async def allow_producers(
    destination: KafkaCluster,
    mirror: str,
    topics: str,
    *,
    source_config: Mapping[str, str] | None = None,
) -> Allowed:
    """Remove what switchovers of a mirror have denied at its source; return the result.

    Args:
        destination: the mirror's cluster.
        mirror: the mirror's name.
        topics: a name or otherwise a regular expression.
        source_config: properties of a connection to the source that may alter its ACLs; None: the
            mirror's.

    Raises:
        MirrorRefused: UNKNOWN_MIRROR, INVALID_REGULAR_EXPRESSION.
        UserError: a right is missing, or the source mirrors such a topic from the destination, has
            to keep it read-only, and has not taken its denials over.
        Retriable: a cluster is unreachable; what could not be removed is still remembered.
    """
    snapshot, names = await _denied(destination, mirror, topics)
    if not names:
        return Allowed()
    grants = destination.config.grants
    async with acl_source(snapshot.mirrors[mirror], source_config, grants) as source:
        async with connected_source(snapshot.mirrors[mirror], grants) as readable:
            taken_over = await _taken_over(readable, destination, snapshot, mirror, names)
        leftovers = await ProducerDenials(source, destination, mirror, taken_over).forget()
        taken_back = await ProducerDenials(source, destination, mirror, names - taken_over).allow()
        return Allowed(taken_back, leftovers)


async def forget_denials(destination: KafkaCluster, mirror: str, topics: str) -> ForgottenDenials:
    """Forget what switchovers have denied at a source that is gone for good.

    Raises:
        MirrorRefused: UNKNOWN_MIRROR, INVALID_REGULAR_EXPRESSION.
        UserError, Retriable: the destination is unreachable, or refuses.
    """
    _, names = await _denied(destination, mirror, topics)
    # The source is not contacted; the destination takes its place as an argument.
    denials = ProducerDenials(destination, destination, mirror, names)
    return ForgottenDenials(await denials.forget())


async def _denied(
    destination: KafkaCluster, mirror: str, topics: str
) -> tuple[Snapshot, frozenset[str]]:
    """The snapshot, and the selected topics that have denials."""
    pattern = compiled(topics)
    snapshot = await MirrorStore(destination).snapshot()
    if mirror not in snapshot.mirrors:
        raise unknown_mirror(mirror, snapshot)
    names = {acl.resource_name for acl in snapshot.made_acls(mirror, MadeFor.SWITCHOVER)}
    if topics in names:
        return snapshot, frozenset({topics})
    return snapshot, frozenset(name for name in names if pattern.fullmatch(name))


async def _taken_over(
    source: KafkaCluster,
    destination: KafkaCluster,
    snapshot: Snapshot,
    mirror: str,
    topics: Collection[str],
) -> frozenset[str]:
    """Those of the topics that the source mirrors back, up to STOPPED, with their denials.

    Raises:
        UserError: it has not taken the denials over, or its mirrors may not be read.
        Retriable: it does not answer.
    """
    their_mirrors = await read_their_mirrors(source, destination)
    if their_mirrors.forbidden:
        raise UserError(
            "cannot determine whether the source mirrors these topics from this cluster: "
            f"{their_mirrors.unknown}",
            hint="nothing was changed; the mirror's principal needs READ on its control topics",
        )
    their_mirrors.refuse_unsure(topics, "here", "nothing was changed")
    removed_topics = [topic for name in topics for topic in their_mirrors.failed_over.get(name, ())]
    states = await MirrorStore(source).states() if removed_topics else None
    busy = {
        topic.topic
        for topic in removed_topics
        if states is not None and not states.stopped(topic.mirror_partitions)
    }
    busy |= their_mirrors.loops & frozenset(topics)
    denials = snapshot.made_acls(mirror, MadeFor.SWITCHOVER) - their_mirrors.read_only
    if not_taken := busy & {acl.resource_name for acl in denials}:
        raise UserError(
            "the source mirrors these topics from this cluster and keeps them read-only: "
            f"{few(sorted(not_taken))}",
            hint="nothing was changed; fail over to the source first",
        )
    return frozenset(busy)
