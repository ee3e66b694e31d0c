"""ACLs follow the source's (KIP-1279, "ACL Synchronization"), by their difference (kafka/acls.py).

    rules of mirror.acl.include     which of the source's ACLs are copied, within the mirror's scope
                                    (mirror/acl_scope.py)
    less                            those on control topics of ours, which are another cluster's
                                    own; those that a switchover has made there (denials.py); those
                                    that keep the source's own mirror topics read-only; and those
                                    that it has from us
    left alone, on both sides       those that cover topics that are in this mirror and paused or
                                    removed, or groups that read one

Where two clusters mirror different topics from each other, a denial that keeps a topic read-only in
one would else lock producers out of it in the other, where it lives; and what is removed in one
would come back from its copy in the other.

Who makes ACLs remembers them before, and forgets them when no broker has them any more. So what is
remembered is read before the source's ACLs and after.

**An ACL that one answer does not list is not gone.** A broker that has just started, or a cluster
whose ACLs were lost or are being restored, lists too few. A copy is removed only if

1. two looks, `ABSENT_S` apart, do not list the ACL, and
2. no broker of the source lists it, and each of them lists some ACL: its authorizer has answered
   (or `mirror.acl.empty.source.trusted`).

Where one of the clusters has no authorizer there is nothing to copy, or nowhere to; that is said
once. What is made, and removed again, is remembered: created_acls.py.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping
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
from twinlog.kafka.requests.acls import describe_acls
from twinlog.mirror.acl_scope import AclScope, Choice, choose_all, missed
from twinlog.mirror.settings import MirrorSettings
from twinlog.store.config_records import MadeFor, Wanted
from twinlog.store.control_topics import STATE_TOPIC
from twinlog.store.mirrors import MirrorStore
from twinlog.store.snapshot import Snapshot
from twinlog.sync.created_acls import carry_out
from twinlog.sync.group_rules import group_offsets, served
from twinlog.sync.read_only import ReadOnly
from twinlog.text import few

log = logging.getLogger(__name__)

ABSENT_S: Final = 10.0
"""How long the source has not listed an ACL before its copy is removed."""
_TELL_OF_ACLS: Final = frozenset({"mirror", "acl", "source-acl"})
"""Kinds of keys of `__mirror_config`."""
_NONE: Final[frozenset[Acl]] = frozenset()


class Compared(NamedTuple):
    """What of the destination's ACLs is not as the source's are."""

    changes: AclChanges
    """What has to be done."""
    ours: frozenset[Acl]
    """The destination's."""
    absent: frozenset[Acl]
    """What of `changes.remove` this answer of the source does not list."""
    denying: frozenset[Acl]
    """The source's denials that are not copied, since they would stop nodes."""
    missed: frozenset[Acl]
    """The source's that are not copied, that the destination does not have either, and that
    applications may miss after a failover."""
    withheld: frozenset[Acl]
    """The source's that would be copied, or were, but for a denial beside them that is not."""
    stopping: frozenset[Acl]
    """The destination's denials that stop nodes, which an earlier version has copied."""


async def compare_acls(
    source: KafkaCluster,
    destination: KafkaCluster,
    store: MirrorStore,
    mirror: str,
    settings: MirrorSettings,
) -> Compared | Literal["source", "destination"]:
    """How the destination's ACLs differ from the source's that are copied; nothing is done.

    Args:
        source: the mirror's source.
        destination: the mirror's cluster.
        store: what mirrors there are, and have made.
        mirror: its name.
        settings: which ACLs are copied, and which groups' offsets.

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
    made = snapshot.made_acls(mirror, MadeFor.SOURCE)
    scope = await _scope(source, snapshot, mirror, settings, about=theirs | made, ours=ours)
    candidates = theirs - not_its_own
    # In a thread: with ten thousand ACLs it takes a second or two.
    rules = settings.acl_include
    choices = await asyncio.to_thread(choose_all, candidates, ours, made, rules, scope)
    by_choice = {
        choice: frozenset(acl for acl, chosen in choices.items() if chosen is choice)
        for choice in Choice
    }
    wanted = candidates & by_choice[Choice.COPIED]
    kept = candidates & made & by_choice[Choice.BEYOND]
    left = by_choice[Choice.LEFT] | by_choice[Choice.WITHHELD]
    changes = acl_changes(wanted | kept, ours, made - left)
    # What an earlier version has copied is not made again.
    beyond = by_choice[Choice.BEYOND]
    changes = changes._replace(remember=changes.remember - beyond, make=changes.make - beyond)
    # What was made so that others cannot write, and is the source's as well, stays with it.
    also = wanted & snapshot.made_acls(mirror, MadeFor.READ_ONLY)
    return Compared(
        changes._replace(remember=changes.remember | also),
        ours,
        absent=changes.remove - theirs,
        denying=candidates & by_choice[Choice.DENYING],
        missed=missed(candidates & beyond, scope) - ours,
        withheld=by_choice[Choice.WITHHELD],
        stopping=by_choice[Choice.DENYING] & changes.remove & ours,
    )


async def _scope(
    source: KafkaCluster,
    snapshot: Snapshot,
    mirror: str,
    settings: MirrorSettings,
    *,
    about: Collection[Acl],
    ours: Collection[Acl],
) -> AclScope:
    """What ACLs may concern: those of `about`. `ours` are the destination's."""
    topics = snapshot.topics_of(mirror)
    mirrored = frozenset(t.topic for t in topics if t.wanted is Wanted.MIRRORING)
    nodes, _ = nodes_among(ours, STATE_TOPIC, snapshot.copied_acls)
    every = frozenset(topic.topic for topic in topics).union(snapshot.unread_topics(mirror))
    return AclScope(
        topics=mirrored,
        left=every - mirrored,
        groups=await _groups(source, settings, about, every),
        nodes=nodes,
    )


async def _groups(
    source: KafkaCluster, settings: MirrorSettings, acls: Collection[Acl], topics: frozenset[str]
) -> Mapping[str, frozenset[str]] | None:
    """Groups that ACLs are about, whose offsets follow, and of which of these topics; see AclScope.

    A group is asked for its offsets only if an ACL names it, or the beginning of its name.
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
    found: dict[str, frozenset[str]] = {}
    try:
        for group in served((await list_groups(source)).values(), settings.groups_include):
            if group.name in names or group.name.startswith(prefixes):
                committed = await group_offsets(source, group)
                if read := frozenset(one.topic for one in committed) & topics:
                    found[group.name] = read
    except TwinlogError as error:
        log.warning("ACLs of groups stay as they are: the source's groups are not known: %s", error)
        return None
    return found


async def _not_its_own(
    source: KafkaCluster, destination: KafkaCluster, store: MirrorStore
) -> frozenset[Acl]:
    """What of the source's ACLs mirrors have made there, its own or ours.

    Raises:
        UnsupportedVersion: a record that says so cannot be read.
    """
    here, there = await store.snapshot(), await MirrorStore(source).snapshot()
    for key, why in (*here.unread.items(), *there.unread.items()):
        if key[0] in _TELL_OF_ACLS:
            raise UnsupportedVersion(
                f"which ACLs mirrors have made is not known: {why}",
                hint="use a twinlog that can read it",
            )
    return frozenset[Acl]().union(
        here.made_of(source.cluster_id, MadeFor.SWITCHOVER),
        there.made_of(destination.cluster_id, MadeFor.SOURCE),
        *(there.made_acls(mirror, MadeFor.READ_ONLY) for mirror in there.mirrors),
    )


class AclSync:
    """Copies the ACLs of mirrors' sources to one destination."""

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
        self._clock = clock
        self._told: dict[tuple[str, str], str] = {}  # last, by mirror and what it is about
        self._absent_since: dict[str, dict[Acl, float]] = {}

    async def sync(self, source: KafkaCluster, mirror: str, settings: MirrorSettings) -> int:
        """Make the destination's ACLs what the source's are; how many could not be.

        Without any rule nothing is looked at, and what was made stays.

        Raises:
            UserError: a right is missing, to see ACLs.
            Retriable: a cluster does not answer.
        """
        if not settings.acl_include:
            return 0
        found = await compare_acls(source, self._destination, self._store, mirror, settings)
        if not isinstance(found, Compared):
            self._tell(mirror, "none", f"ACLs do not follow, as the {found} has no authorizer")
            return 0
        self._report(mirror, found)
        cluster, store = self._destination, self._store
        if stopping := found.stopping:
            # While they stand, a node may not even write down what else it is about to do, and is
            # not seen to be one. So they go first, and the next look does the rest.
            first = AclChanges(remember=_NONE, make=_NONE, remove=stopping, forget=_NONE)
            return await self._read_only.exclusively(
                lambda: carry_out(cluster, store, mirror, first, MadeFor.SOURCE)
            )
        gone = await self._gone(source, mirror, found.absent, settings)
        stays = found.absent - gone
        changes = found.changes._replace(
            remove=found.changes.remove - stays, forget=found.changes.forget - stays
        )
        return await self._read_only.allow(
            mirror,
            found.ours,
            changes.make,
            lambda: carry_out(cluster, store, mirror, changes, MadeFor.SOURCE),
        )

    async def _gone(
        self,
        source: KafkaCluster,
        mirror: str,
        absent: frozenset[Acl],
        settings: MirrorSettings,
    ) -> frozenset[Acl]:
        """Which of these the source does not have any more; see the module.

        Raises:
            Retriable, UserError: a broker of the source does not answer, or refuses.
        """
        now, before = self._clock(), self._absent_since.get(mirror, {})
        since = {acl: before.get(acl, now) for acl in absent}
        self._absent_since[mirror] = since
        due = frozenset(acl for acl in absent if acl in before and now - since[acl] >= ABSENT_S)
        if not due:
            return _NONE
        brokers = list((await source.refresh([])).brokers)
        answers = await asyncio.gather(*(describe_acls(source, node) for node in brokers))
        silent = [str(node) for node, one in zip(brokers, answers, strict=True) if not one]
        disabled = any(one is None for one in answers)
        if not brokers or disabled or (silent and not settings.acl_empty_source_trusted):
            self._tell(
                mirror,
                "empty",
                f"broker(s) {', '.join(silent)} of the source list no ACL at all: {len(due)} "
                "copied ACL(s) are kept; if the source has none on purpose, set "
                "mirror.acl.empty.source.trusted=true",
            )
            return _NONE
        return due.difference(*(one or _NONE for one in answers))

    def _report(self, mirror: str, found: Compared) -> None:
        if found.denying:
            self._tell(
                mirror,
                "denying",
                f"{len(found.denying)} denial(s) of the source are not copied, since they would "
                f"stop nodes or cover control topics: {few(sorted(found.denying), '; ')}",
            )
        if found.missed:
            self._tell(
                mirror,
                "missed",
                f"{len(found.missed)} ACL(s) of the source are not copied, since they reach beyond "
                "the mirror's topics and groups; applications may need them after a failover: "
                f"{few(sorted(found.missed), '; ')} (a rule of mirror.acl.include may name them)",
            )
        if found.withheld:
            self._tell(
                mirror,
                "withheld",
                f"{len(found.withheld)} ACL(s) of the source are not copied, or stay as they were, "
                "since a denial that limits them there is not copied: "
                f"{few(sorted(found.withheld), '; ')}",
            )

    def _tell(self, mirror: str, about: str, text: str) -> None:
        """Log it, unless it was the last that was logged about this.

        What was logged before is not kept: the source decides how often it is something else.
        """
        if self._told.get((mirror, about)) != text:
            self._told[mirror, about] = text
            log.warning("mirror %s: %s", mirror, text)
