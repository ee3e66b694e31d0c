"""ACLs follow the source's (KIP-1279, "ACL Synchronization"), by their difference (kafka/acls.py).

    rules of mirror.acl.include     the source's ACLs that are copied, within the mirror's scope
                                    (mirror/acl_scope.py)
    except                          those on control topics, which belong to one cluster; those
                                    that a switchover has made on the source (denials.py); those
                                    that keep the source's own mirror topics read-only; and those
                                    that the source has copied from the destination
    left alone, on both sides       those that cover topics that are in this mirror and paused or
                                    removed, or groups that read one

Two clusters may mirror different topics from each other. Then a copied denial that keeps a topic
read-only on one cluster would lock producers out on the other, where the topic is written. And an
ACL that is removed on one would come back from its copy on the other.

Each component that makes ACLs remembers them before, and forgets them when no broker has them any
more. So the remembered ACLs are read before the source's ACLs and after.

**An ACL that one answer does not list is not gone**: absent_acls.py decides when a copy is removed.
The same holds for the destination: an ACL that only some of its brokers list exists. If it counted
as missing, an administrator's ACL would be created again, remembered as a copy, and removed later.

If one of the clusters has no authorizer, there is nothing to copy, or no place to copy it to; that
is logged once. created_acls.py remembers the ACLs that are made and removed.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final, Literal, NamedTuple

from twinlog.kafka.acls import (
    ANY_NAME,
    Acl,
    AclChanges,
    PatternType,
    ResourceType,
    acl_changes,
    nodes_among,
)
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import TwinlogError, UnsupportedVersion
from twinlog.kafka.groups.offsets import list_groups
from twinlog.kafka.requests.acls import acls_of_any_broker, describe_acls
from twinlog.mirror.acl_scope import AclScope, Choice, choose_all, missed
from twinlog.mirror.settings import MirrorSettings
from twinlog.store.config_records import MadeFor, MirrorTopic, Wanted
from twinlog.store.control_topics import STATE_TOPIC
from twinlog.store.mirrors import MirrorStore
from twinlog.store.snapshot import Snapshot
from twinlog.sync.absent_acls import AbsentAcls, MirrorTexts
from twinlog.sync.base import Host, Moved, Remark, ReportedSync, SyncContext
from twinlog.sync.created_acls import carry_out
from twinlog.sync.group_readings import group_offsets
from twinlog.sync.group_selection import named_groups
from twinlog.sync.read_only import ReadOnly
from twinlog.text import few

log = logging.getLogger(__name__)

_TELL_OF_ACLS: Final = frozenset({"mirror", "acl", "source-acl"})
"""Kinds of keys of `__mirror_config` whose records tell which ACLs were made."""
_NONE: Final[frozenset[Acl]] = frozenset()


class AclDifference(NamedTuple):
    """How the destination's ACLs differ from the source's."""

    changes: AclChanges
    """What has to be changed."""
    ours: frozenset[Acl]
    """The destination's ACLs."""
    absent: frozenset[Acl]
    """The ACLs of `changes.remove` that this answer of the source does not list."""
    denying: frozenset[Acl]
    """The source's denials that are not copied, since they would stop nodes."""
    missed: frozenset[Acl]
    """The source's ACLs that are not copied, that the destination does not have either, and that
    applications may need after a failover."""
    withheld: frozenset[Acl]
    """The source's ACLs that are not copied, or whose copies stay as they were, since a denial that
    limits them is not copied."""
    stopping: frozenset[Acl]
    """The destination's denials that stop nodes, which an earlier version has copied."""


class NoAuthorizer(NamedTuple):
    """One of the clusters has no authorizer, so that no ACLs are compared."""

    side: Literal["source", "destination"]


async def _scope(
    source: KafkaCluster,
    snapshot: Snapshot,
    mirror: str,
    settings: MirrorSettings,
    *,
    about: Collection[Acl],
    destination_acls: Collection[Acl],
) -> AclScope:
    """The scope of the ACLs in `about`; `destination_acls` are the destination's ACLs."""
    topics = snapshot.topics_of(mirror)
    mirrored = frozenset(t.topic for t in topics if t.wanted is Wanted.MIRRORING)
    nodes, _ = nodes_among(destination_acls, STATE_TOPIC, snapshot.copied_acls)
    every = frozenset(topic.topic for topic in topics).union(snapshot.unread_topics(mirror))
    return AclScope(
        topics=mirrored,
        inactive_topics=every - mirrored,
        groups=await _groups(source, settings, about, every),
        nodes=nodes,
    )


async def _groups(
    source: KafkaCluster, settings: MirrorSettings, acls: Collection[Acl], topics: frozenset[str]
) -> Mapping[str, frozenset[str]] | None:
    """Groups that the ACLs concern and whose offsets follow, with their topics; see AclScope.

    A group's offsets are read only if an ACL names the group, or a prefix of its name.
    """
    about = [
        acl
        for acl in acls
        if acl.resource_type is ResourceType.GROUP and acl.resource_name != ANY_NAME
    ]
    if not about or not topics:
        return {}
    names = {acl.resource_name for acl in about if acl.pattern_type is PatternType.LITERAL}
    prefixes = tuple(acl.resource_name for acl in about if acl.pattern_type is PatternType.PREFIXED)
    topics_by_group: dict[str, frozenset[str]] = {}
    try:
        groups = (await list_groups(source)).values()
        for group in filter(named_groups(settings.groups_include), groups):
            if group.name in names or group.name.startswith(prefixes):
                committed = await group_offsets(source, group)
                if group_topics := frozenset(partition.topic for partition in committed) & topics:
                    topics_by_group[group.name] = group_topics
    except TwinlogError as error:
        log.warning(
            "ACLs of groups are not updated, because the source's groups are unknown: %s", error
        )
        return None
    return topics_by_group


async def _not_its_own(
    source: KafkaCluster, destination: KafkaCluster, store: MirrorStore
) -> frozenset[Acl]:
    """The source's ACLs that mirrors have made there: the source's own and the destination's.

    Raises:
        UnsupportedVersion: a record of made ACLs cannot be read.
    """
    destination_snapshot, source_snapshot = (
        await store.snapshot(),
        await MirrorStore(source).snapshot(),
    )
    check_acls_known(destination_snapshot)
    check_acls_known(source_snapshot)
    return frozenset[Acl]().union(
        destination_snapshot.made_of(source.cluster_id, MadeFor.SWITCHOVER),
        source_snapshot.made_of(destination.cluster_id, MadeFor.SOURCE),
        *(
            source_snapshot.made_acls(mirror, MadeFor.READ_ONLY)
            for mirror in source_snapshot.mirrors
        ),
    )


def check_acls_known(snapshot: Snapshot) -> None:
    """Check that the snapshot has all ACLs that mirrors have made.

    Raises:
        UnsupportedVersion: a record of made ACLs cannot be read.
    """
    for key, why in snapshot.unread.items():
        if key[0] in _TELL_OF_ACLS:
            raise UnsupportedVersion(
                f"cannot determine which ACLs were created by mirrors: {why}",
                hint="use a version of twinlog that can read it",
            )


class AclSync(ReportedSync[AclDifference | NoAuthorizer]):
    """Copies the ACLs of the mirrors' sources to one destination."""

    name = "ACLs"
    metric = "AclSyncError"

    def __init__(
        self,
        destination: KafkaCluster,
        store: MirrorStore,
        read_only: ReadOnly,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._destination = destination
        self._store = store
        self._read_only = read_only
        self._texts = MirrorTexts()
        self._absent = AbsentAcls(self._texts, clock)

    @classmethod
    def create(cls, host: Host) -> "AclSync":
        """The sync of one node, with its guard of read-only topics."""
        return cls(host.destination, host.store, host.sync(ReadOnly))

    def forget(self, moved: Moved) -> None:
        """Begin anew to look for missing ACLs: another node may have seen them meanwhile."""
        self._absent.forget(moved)

    def concerns(self, settings: MirrorSettings, topics: Collection[MirrorTopic]) -> bool:
        """Whether ACLs follow: without any rule nothing is read, and existing copies stay."""
        return bool(settings.acl_include) and any(
            topic.wanted is Wanted.MIRRORING for topic in topics
        )

    async def compare(self, context: SyncContext) -> AclDifference | NoAuthorizer:
        """Compare the destination's ACLs with the source's that are copied; change nothing.

        Raises:
            UserError: the right to describe ACLs, or to read the source's mirrors, is missing.
            Retriable: a cluster is unreachable.
        """
        source, destination, store = context.source, context.destination, context.store
        mirror, settings = context.name, context.settings
        not_its_own = await _not_its_own(source, destination, store)
        source_acls, destination_acls = (
            await describe_acls(source),
            await acls_of_any_broker(destination),
        )
        if source_acls is None:
            return NoAuthorizer("source")
        if destination_acls is None:
            return NoAuthorizer("destination")
        not_its_own |= await _not_its_own(source, destination, store)
        snapshot = await store.snapshot()
        recorded = snapshot.made_acls(mirror, MadeFor.SOURCE)
        scope = await _scope(
            source,
            snapshot,
            mirror,
            settings,
            about=source_acls | recorded,
            destination_acls=destination_acls,
        )
        candidates = source_acls - not_its_own
        # In a thread: with ten thousand ACLs it takes a second or two.
        rules = settings.acl_include
        choices = await asyncio.to_thread(
            choose_all, candidates, destination_acls, recorded, rules, scope
        )
        by_choice = {
            choice: frozenset(acl for acl, decision in choices.items() if decision is choice)
            for choice in Choice
        }
        copies = candidates & by_choice[Choice.COPIED]
        leftovers = candidates & recorded & by_choice[Choice.BEYOND]
        exempt = by_choice[Choice.LEFT] | by_choice[Choice.WITHHELD]
        changes = acl_changes(copies | leftovers, destination_acls, recorded - exempt)
        # Copies by an earlier version are kept, and not created again.
        beyond = by_choice[Choice.BEYOND]
        changes = changes._replace(remember=changes.remember - beyond, make=changes.make - beyond)
        # A read-only denial that the source has as well is also remembered as a copy, and so stays.
        also = copies & snapshot.made_acls(mirror, MadeFor.READ_ONLY)
        return AclDifference(
            changes._replace(remember=changes.remember | also),
            destination_acls,
            absent=changes.remove - source_acls,
            denying=candidates & by_choice[Choice.DENYING],
            missed=missed(candidates & beyond, scope) - destination_acls,
            withheld=by_choice[Choice.WITHHELD],
            stopping=by_choice[Choice.DENYING] & changes.remove & destination_acls,
        )

    async def apply(self, context: SyncContext, difference: AclDifference | NoAuthorizer) -> int:
        """Make the destination's ACLs what the source's are; return how many could not be changed.

        Raises:
            UserError: the right to describe the source's ACLs is missing.
            Retriable: a cluster is unreachable.
        """
        mirror = context.name
        if isinstance(difference, NoAuthorizer):
            text = f"ACLs are not copied: the {difference.side} has no authorizer"
            self._texts.tell(mirror, "none", text)
            return 0
        self._report(mirror, difference)
        cluster, store = self._destination, self._store
        if stopping := difference.stopping:
            # While these denials exist, a node may be unable to remember other changes, and is not
            # recognised as a node. So they are removed first, and the next check does the rest.
            first = AclChanges(remember=_NONE, make=_NONE, remove=stopping, forget=_NONE)
            return await self._read_only.exclusively(
                lambda: carry_out(cluster, store, mirror, first, MadeFor.SOURCE)
            )
        vanished = await self._absent.gone(
            context.source,
            mirror,
            difference.absent,
            advice="set mirror.acl.empty.source.trusted=true",
            empty_trusted=context.settings.acl_empty_source_trusted,
        )
        stays = difference.absent - vanished
        changes = difference.changes._replace(
            remove=difference.changes.remove - stays, forget=difference.changes.forget - stays
        )
        return await self._read_only.allow(
            mirror,
            difference.ours,
            changes.make,
            lambda: carry_out(cluster, store, mirror, changes, MadeFor.SOURCE),
        )

    def describe(self, difference: AclDifference | NoAuthorizer) -> Iterator[Remark]:
        """What is left to do, and which of the source's ACLs are not copied."""
        if isinstance(difference, NoAuthorizer):
            return
        acl_difference = difference
        for acls, verb in (
            (acl_difference.changes.make, "created"),
            (acl_difference.changes.remove, "removed"),
        ):
            if acls:
                yield Remark(f"{len(acls)} ACL(s) are not {verb} yet: {_few(acls)}")
        if denying := acl_difference.denying:
            yield Remark(
                f"{len(denying)} denial(s) of the source are not copied, because they would stop "
                f"nodes or cover control topics: {_few(denying)}"
            )
        if beyond := acl_difference.missed:
            yield Remark(
                f"{len(beyond)} ACL(s) of the source that applications may need are not copied, "
                f"because they reach beyond the mirror's topics and groups: {_few(beyond)}"
            )
        if withheld := acl_difference.withheld:
            yield Remark(
                f"{len(withheld)} ACL(s) of the source are not copied or not updated, because a "
                f"denial that limits them on the source is not copied: {_few(withheld)}"
            )

    async def follows(self, destination: KafkaCluster) -> bool:
        """Whether the destination has an authorizer; assumed if its ACLs may not be described."""
        try:
            return await describe_acls(destination) is not None
        except TwinlogError:
            return True

    def _report(self, mirror: str, difference: AclDifference) -> None:
        report_denials(self._texts, mirror, difference.denying, difference.withheld)
        if difference.missed:
            self._texts.tell(
                mirror,
                "missed",
                f"{len(difference.missed)} ACL(s) of the source are not copied, because they reach "
                "beyond the mirror's topics and groups; applications may need them after a "
                "failover (add a rule to mirror.acl.include): "
                f"{few(sorted(difference.missed), '; ')}",
            )


def report_denials(
    texts: MirrorTexts, mirror: str, denying: Collection[Acl], withheld: Collection[Acl]
) -> None:
    """Log which denials of the source are not copied, and which ACLs therefore are not either."""
    if denying:
        texts.tell(
            mirror,
            "denying",
            f"{len(denying)} denial(s) of the source are not copied, because they would "
            f"stop nodes or cover control topics: {few(sorted(denying), '; ')}",
        )
    if withheld:
        texts.tell(
            mirror,
            "withheld",
            f"{len(withheld)} ACL(s) of the source are not copied or not updated, "
            "because a denial that limits them on the source is not copied: "
            f"{few(sorted(withheld), '; ')}",
        )


def _few(acls: Iterable[Acl]) -> str:
    return few([str(acl) for acl in sorted(acls)])
