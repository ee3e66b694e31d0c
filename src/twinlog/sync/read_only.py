"""A mirror's topics are read-only on the destination, if it has an authorizer.

Every principal that is allowed to change such a topic is denied it, except nodes (kafka/acls.py,
`guard`). These denials are removed when all partitions of the topic are STOPPED: then the topic's
ACLs are what they were. Before that its configurations are set back (configs.py). None of this
needs the source.

    when                                        what
    ------------------------------------------  -----------------------------------------------
    this node becomes a mirror's owner, or the  its topics are guarded
    mirror's topics change
    LOOK_S have passed, ACLs are copied         the same: another principal may be allowed by now
    a topic is removed                          its states are polled each POLL_S, until all are
                                                STOPPED; it is set back, and not guarded any
                                                more. If it was not guarded, no producer waits:
                                                it is polled each SET_BACK_S

The broker answers a denied writer with TOPIC_AUTHORIZATION_FAILED (29). Without an authorizer, and
for super users, nothing is denied: a foreign record is then detected by its offset, and the
partition is FAILED.

While a topic is guarded, a denial is removed only if no broker lists an ACL that needs it.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import aclosing, suppress
from typing import Final

from twinlog.kafka.acls import Acl, AclChanges, acl_changes, guard
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import Retriable, TwinlogError, UserError
from twinlog.kafka.requests.acls import describe_acls, describe_acls_everywhere
from twinlog.store.config_records import MadeFor, MirrorTopic, Wanted
from twinlog.store.control_topics import STATE_TOPIC
from twinlog.store.mirrors import MirrorStore
from twinlog.store.snapshot import Snapshot
from twinlog.sync.base import Host, MirrorContext, Sync
from twinlog.sync.configs import ConfigSync, set_configs_back
from twinlog.sync.created_acls import carry_out

log = logging.getLogger(__name__)

LOOK_S: Final = 30.0
"""Seconds between two checks of all ACLs."""
TICK_S: Final = 1.0
"""Seconds between two checks of which mirrors this node owns."""
POLL_S: Final = 0.1
"""Seconds between two checks of whether removed topics are STOPPED."""
PATIENCE_S: Final = 5.0
"""Seconds for the lists of all brokers."""
MIRRORS_AT_ONCE: Final = 8
"""Mirrors that are checked concurrently."""
NO_CHANGES: Final = AclChanges(frozenset(), frozenset(), frozenset(), frozenset())
SET_BACK_S: Final = 2.0
"""The same if no producer waits: each check reads all states, which must not slow down a failover.
"""


class ReadOnly(Sync[AclChanges]):
    """Guards the topics of the mirrors that this node owns.

    Its difference are the denials to make and to remove. It has its own loop, `run`: it needs no
    source.

    Args:
        destination: the cluster that holds the mirrored topics.
        store: its mirror configuration.
        is_ours: whether this node owns a mirror.
        report_failures: receives how many ACLs of a mirror could not be made or removed.
        set_back: sets configurations of a mirror's topics back; returns those that failed.
    """

    name = "read-only topics"
    metric = "AclSyncError"
    needs_source = False

    def __init__(
        self,
        destination: KafkaCluster,
        store: MirrorStore,
        is_ours: Callable[[str], Awaitable[bool]],
        report_failures: Callable[[str, int], None],
        set_back: Callable[[str, Collection[str]], Awaitable[Collection[str]]],
    ) -> None:
        self._destination = destination
        self._store = store
        self._is_ours = is_ours
        self._report_failures = report_failures
        self._set_back = set_back
        self._snapshot = Snapshot()
        self._change = asyncio.Event()
        self._guarded_topics: dict[str, frozenset[str]] = {}
        self._due_at = 0.0
        self._set_back_at: dict[str, float] = {}
        self._refusals: set[tuple[str, str]] = set()  # could not be set back; cleared each LOOK_S
        self._keeping = asyncio.Lock()  # no changes between reading ACLs and acting on them
        self._looks: dict[str, asyncio.Task[bool]] = {}
        self._slots = asyncio.Semaphore(MIRRORS_AT_ONCE)
        self._reported: set[tuple[str, frozenset[str]]] = set()

    @classmethod
    def create(cls, host: Host) -> "ReadOnly":
        """The guard of one node."""
        destination, store = host.destination, host.store

        def report_failures(mirror: str, count: int) -> None:
            host.failed(mirror, cls.metric, count)

        async def set_back(mirror: str, topics: Collection[str]) -> Collection[str]:
            try:
                failures = await set_configs_back(destination, store, mirror, topics)
            except UserError as error:
                log.warning("mirror %s: cannot reset configurations: %s", mirror, error)
                failures = set(topics)
            host.failed(mirror, ConfigSync.metric, len(failures))
            return failures

        return cls(destination, store, host.is_ours, report_failures, set_back)

    async def run(self) -> None:
        """Guard until cancelled."""
        following = asyncio.create_task(self._follow())
        try:
            while True:
                if following.done():
                    following.result()
                pause = await self._look()
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._change.wait()
                self._change.clear()
        finally:
            for task in (following, *self._looks.values()):
                task.cancel()
            await asyncio.gather(following, *self._looks.values(), return_exceptions=True)

    async def _follow(self) -> None:
        while True:
            try:
                async with aclosing(self._store.follow()) as snapshots:
                    async for snapshot in snapshots:
                        self._snapshot = snapshot
                        self._change.set()
            except TwinlogError as error:
                log.warning(
                    "cannot follow __mirror_config, read-only topics are not updated: %s", error
                )
                await asyncio.sleep(TICK_S)

    async def _look(self) -> float:
        """Bring the guard of each owned mirror up to date; return seconds until the next check."""
        now = time.monotonic()
        if now >= self._due_at:
            self._due_at = now + LOOK_S
            self._guarded_topics.clear()
            self._refusals.clear()
        for name, mirror in self._snapshot.mirrors.items():
            if self.serves(mirror.kind) and name not in self._looks:
                look = self._look_alone(self._snapshot, name)
                self._looks[name] = asyncio.create_task(look)
        if not self._looks:
            return TICK_S
        # A slow check continues by itself; its mirror is checked again after it.
        done, _ = await asyncio.wait(self._looks.values(), timeout=POLL_S)
        self._looks = {name: look for name, look in self._looks.items() if look not in done}
        return POLL_S if any(look.result() for look in done) else TICK_S

    async def _look_alone(self, snapshot: Snapshot, name: str) -> bool:
        """Bring the guard of a mirror up to date, if this node owns it; contain its errors."""
        async with self._slots:
            try:
                if await self._is_ours(name):
                    return await self._look_at(snapshot, name)
                self._guarded_topics.pop(name, None)
            except TwinlogError as error:
                self._report_failures(name, 1)
                log.warning("mirror %s, read-only topics: %s", name, error)
            except Exception:
                # A bug here must not end the lanes, which move the data.
                self._report_failures(name, 1)
                log.exception("mirror %s, read-only topics", name)
            return False

    async def _look_at(self, snapshot: Snapshot, mirror: str) -> bool:
        """Bring a mirror's guard up to date; return whether removed topics are not STOPPED yet."""
        guarded, leaving = await self._guarded(snapshot, mirror)
        denied_topics = {acl.resource_name for acl in snapshot.made_acls(mirror, MadeFor.READ_ONLY)}
        await self._set_back_those_of(snapshot, mirror, denied_topics, guarded)
        if denied_topics <= guarded and guarded == self._guarded_topics.get(mirror):
            return leaving
        self._guarded_topics[mirror] = guarded
        try:
            async with self._keeping:
                context = self._context(snapshot, mirror)
                difference = await self._compare(context, guarded)
                self._report_failures(mirror, await self.apply(context, difference))
        except Retriable:
            # Retry at the next check. A missing right waits until LOOK_S have passed.
            self._guarded_topics.pop(mirror, None)
            raise
        return leaving

    async def _set_back_those_of(
        self,
        snapshot: Snapshot,
        mirror: str,
        denied_topics: Collection[str],
        guarded: Collection[str],
    ) -> None:
        """Set STOPPED topics back; those that fail are retried after LOOK_S."""
        pending = [
            topic
            for topic in _removed(snapshot, mirror)
            if topic.set_back is not None and (mirror, topic.topic) not in self._refusals
        ]
        names = {topic.topic for topic in pending if topic.topic in denied_topics} - {*guarded}
        names |= await self._stopped_by_now(
            mirror, [t for t in pending if t.topic not in denied_topics]
        )
        if names:
            failures = await self._set_back(mirror, names)
            self._refusals |= {(mirror, name) for name in failures}

    async def _stopped_by_now(self, mirror: str, topics: Collection[MirrorTopic]) -> set[str]:
        """Those of these topics that are STOPPED, checked each SET_BACK_S; none in between."""
        if not topics:
            self._set_back_at.pop(mirror, None)
            return set()
        now = time.monotonic()
        if now < self._set_back_at.setdefault(mirror, now + SET_BACK_S):
            return set()
        self._set_back_at[mirror] = now + SET_BACK_S
        return {topic.topic for topic in topics} - await self._not_stopped(topics)

    async def _guarded(self, snapshot: Snapshot, mirror: str) -> tuple[frozenset[str], bool]:
        """The topics that are to be read-only, and whether some of them are being removed."""
        topics = snapshot.topics_of(mirror)
        mirrored = {topic.topic for topic in topics if topic.wanted is not Wanted.STOPPED}
        denied_topics = {acl.resource_name for acl in snapshot.made_acls(mirror, MadeFor.READ_ONLY)}
        removed_topics = [
            topic for topic in _removed(snapshot, mirror) if topic.topic in denied_topics
        ]
        leaving = await self._not_stopped(removed_topics) if removed_topics else set()
        # The desired state of topics with an unreadable record is unknown: their denials stay.
        unread_topics = denied_topics.intersection(snapshot.unread_topics(mirror))
        return frozenset(mirrored | leaving | unread_topics), bool(leaving)

    async def _not_stopped(self, topics: Collection[MirrorTopic]) -> set[str]:
        states = await self._store.states()
        return {topic.topic for topic in topics if not states.stopped(topic.mirror_partitions)}

    async def allow(
        self,
        mirror: str,
        current: frozenset[Acl],
        acls: frozenset[Acl],
        action: Callable[[], Awaitable[int]],
    ) -> int:
        """Run an action that makes ACLs, once a mirror's topics are guarded against them.

        It is not run where a denial may be missing; the next check retries.

        Args:
            mirror: the mirror's name.
            current: the destination's ACLs.
            acls: those that `action` makes.
            action: makes them; returns how many could not be made.

        Returns:
            How many ACLs could not be made or removed.

        Raises:
            UserError: a right is missing.
            Retriable: the destination is unreachable.
        """
        async with self._keeping:
            snapshot = self._snapshot
            guarded, _ = await self._guarded(snapshot, mirror)
            context = self._context(snapshot, mirror)
            denials = await self._needed(context, guarded, current, current | acls)
            failures = await self.apply(context, denials)
            if failures and denials.make:
                log.warning(
                    "mirror %s: ACLs are not copied, because denials that keep its topics "
                    "read-only cannot be created",
                    mirror,
                )
                return failures
            failures += await action()
        if acls:
            # Topics that were added meanwhile are not guarded against these ACLs.
            self._guarded_topics.pop(mirror, None)
            self._change.set()
        return failures

    async def exclusively(self, action: Callable[[], Awaitable[int]]) -> int:
        """Run an action that removes ACLs by which nodes are recognised, while no guard runs."""
        async with self._keeping:
            return await action()

    def _context(self, snapshot: Snapshot, mirror: str) -> MirrorContext:
        return MirrorContext(
            destination=self._destination, store=self._store, name=mirror, snapshot=snapshot
        )

    async def compare(self, context: MirrorContext) -> AclChanges:
        """The denials to make and to remove; none if the destination has no authorizer.

        Raises:
            UserError: the right to describe ACLs is missing.
            Retriable: the destination is unreachable.
        """
        guarded, _ = await self._guarded(context.snapshot, context.name)
        return await self._compare(context, guarded)

    async def _compare(self, context: MirrorContext, topics: Collection[str]) -> AclChanges:
        acls = await describe_acls(context.destination)
        return NO_CHANGES if acls is None else await self._needed(context, topics, acls, acls)

    async def _needed(
        self,
        context: MirrorContext,
        topics: Collection[str],
        current: frozenset[Acl],
        future: frozenset[Acl],
    ) -> AclChanges:
        """As `_changes`, without the removals that the list of another broker speaks against.

        One broker's list may lack the ACL that makes a denial necessary: it is behind, or cut off.
        Denials on topics that are not guarded any more are removed in any case.
        """
        changes = self._changes(context, topics, current, future)
        unsure = frozenset(acl for acl in changes.remove if acl.resource_name in topics)
        if not unsure:
            return changes
        lists: Mapping[int, frozenset[Acl] | None] = {}
        try:
            async with asyncio.timeout(PATIENCE_S):
                lists = await describe_acls_everywhere(self._destination)
        except (Retriable, TimeoutError) as error:
            log.info("mirror %s: denials are kept for now: %s", context.name, error or "no answer")
        kept = unsure
        if lists:  # metadata without brokers proves nothing, either
            union = current.union(*(acls or frozenset() for acls in lists.values()))
            kept -= self._changes(context, topics, union, future | union).remove
        return changes._replace(remove=changes.remove - kept, forget=changes.forget - kept)

    async def apply(self, context: MirrorContext, difference: AclChanges) -> int:
        """Make and remove these denials; return how many could not be made or removed."""
        return await carry_out(
            context.destination, context.store, context.name, difference, MadeFor.READ_ONLY
        )

    def _changes(
        self,
        context: MirrorContext,
        topics: Collection[str],
        current: frozenset[Acl],
        future: frozenset[Acl],
    ) -> AclChanges:
        """What to make and remove so that these topics are guarded, and no others.

        Args:
            context: the mirror.
            topics: those to guard.
            current: the destination's ACLs.
            future: its ACLs after those are made that are about to be copied.
        """
        mirror, snapshot = context.name, context.snapshot
        # ACLs that were copied from a source make no principal a node.
        copies = (future - current) | snapshot.copied_acls
        denials, open_to, _ = guard(future, topics, STATE_TOPIC, copied_acls=copies)
        if open_to and (mirror, open_to) not in self._reported:
            self._reported.add((mirror, open_to))
            log.warning(
                "mirror %s: these principals can still write to its topics, because ACLs cannot "
                "distinguish them from nodes: %s",
                *(mirror, ", ".join(sorted(open_to))),
            )
        recorded = snapshot.made_acls(mirror, MadeFor.READ_ONLY)
        return acl_changes(denials, current, recorded)


def _removed(snapshot: Snapshot, mirror: str) -> list[MirrorTopic]:
    """A mirror's topics that are removed, or being removed."""
    return [
        topic
        for topic in snapshot.topics
        if (topic.mirror, topic.wanted) == (mirror, Wanted.STOPPED)
    ]
