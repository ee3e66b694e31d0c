"""Membership of a group that shares out the partitions of one topic: Kafka's classic protocol.

twinlog has its own member because a consumer library heartbeats from a separate thread: a process
whose event loop hangs stays a member, and its partitions make no progress. This member heartbeats
from the event loop that moves the data. A member that hangs loses its partitions to other members
within the session timeout.

               ┌───────────────────────────────────────────────────────────────────┐
               ▼                                                                   │
    out ──► joining ── JoinGroup ──► syncing ── SyncGroup ──► member ── 27 ────────┤ keeps all
     ▲         │ 79: with the id given  │ 27: again, keeps all  │                  │
     │         │                        │                       └─ some revoked ───┘ (KIP-429)
     └─ lost ◄─┴──────── 25, 22 ────────┴───────────────────────┘
                         82: Fenced, the end

Rebalances are incremental: a member keeps its partitions while the group rebalances. Partitions
that an assignment takes away are revoked (`on_revoked` is awaited, and bounded by the rebalance
timeout). Only then does the member rejoin, so that they can go to another member. A static member
(`instance_id`, KIP-345) that restarts within the session timeout gets its partitions back without a
rebalance.

Every member takes part in each generation. A member that finds that it has missed one has lost what
it owned, even where it is assigned the same partitions again: another member may have acted on
them.

**The lease** (`lease.py`) is the time for which no other member can own the partitions; answered
heartbeats extend it. It is safe only if the coordinator is the one that the other brokers know. A
coordinator that is cut off from the other brokers, but not from its clients, would answer 0
forever, while the new coordinator gives the partitions away. So another broker is asked which
broker coordinates the group, `WITNESSES` times in a session timeout.

The clock continues while the machine is suspended (`AwakeClock`).
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, Protocol

from kafka.protocol.consumer import SyncGroupRequest

from twinlog.kafka.backoff import Backoff
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.coordinators import Coordinator
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import ProtocolError, Retriable, UserError
from twinlog.kafka.groups import assignor as assignment
from twinlog.kafka.groups.awake_clock import AwakeClock
from twinlog.kafka.groups.group_config import GroupConfig
from twinlog.kafka.groups.lease import Lease
from twinlog.kafka.groups.member_requests import (
    MemberIdentity,
    MemberRequests,
    MembershipLostError,
    RejoinError,
)

log = logging.getLogger(__name__)

WITNESSES: Final = 4
"""How often in a session timeout another broker is asked which broker coordinates the group."""


class Callbacks(Protocol):
    """What a member does with its partitions. All are awaited, one at a time.

    An exception from a callback ends the membership. `close` may cancel a callback that is running;
    `on_revoked` is then called again, with all partitions.
    """

    async def on_assigned(self, partitions: set[int]) -> None:
        """Start work on these partitions. Return soon: no rebalance is handled meanwhile."""
        ...

    async def on_revoked(self, partitions: set[int]) -> None:
        """Stop writing to these partitions; they are given away when this returns."""
        ...

    async def on_lost(self, partitions: set[int]) -> None:
        """Drop these partitions and write nothing: another member may own them already."""
        ...


class GroupMember:
    """A member of a group: `run` it in its own task, and `close` it."""

    def __init__(
        self,
        cluster: KafkaCluster,
        config: GroupConfig,
        callbacks: Callbacks,
        *,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.config = config
        self.identity = MemberIdentity()
        self.owned: frozenset[int] = frozenset()
        """The partitions that this member owns, from `on_assigned` to `on_revoked` or `on_lost`."""
        self.rounds = 0
        """Rebalances that this member took part in."""
        self._cluster = cluster
        self._callbacks = callbacks
        self._clock = clock or AwakeClock()
        self._backoff = Backoff(cluster.config.retry_backoff, cluster.config.retry_backoff_max)
        self._requests = MemberRequests(cluster, config)
        self._lease = Lease(config, self._clock)
        self._joining = False
        self._synced = False  # whether this generation's assignment has been received
        self._counted = 0  # partitions of the topic at the last assignment as leader
        self._lost: MembershipLostError | None = None
        self._wake = asyncio.Event()
        self._member = asyncio.Event()  # set while there is a generation to heartbeat in
        self._stop = asyncio.Event()
        self._ended = asyncio.Event()
        self._started = False
        self._leave: bool | None = None
        self._foreign: frozenset[str] = frozenset()  # members that were warned about

    @property
    def lease_until(self) -> float:
        """Time of the member's clock until which no other member can own its partitions."""
        return self._lease.until

    @property
    def holds_lease(self) -> bool:
        """Whether no other member can own its partitions now. Check before writing."""
        return self._lease.holds

    async def run(self) -> None:
        """Be a member until `close`.

        After it has joined once, the member retries whatever fails: credentials and rights that
        were withdrawn may be restored. Without heartbeats its lease ends by itself.

        Raises:
            Fenced: another process has the same instance id.
            UserError: before the first join, a right to the group is missing, or the broker does
                not accept a value.
        """
        assert not self._started, "a group member runs only once"
        self._started = True
        create = asyncio.get_running_loop().create_task
        living, beating = create(self._live()), create(self._beat())
        doubting, stopping = create(self._doubt()), create(self._stop.wait())
        tasks = (living, beating, doubting)
        try:
            await asyncio.wait({*tasks, stopping}, return_when=asyncio.FIRST_COMPLETED)
            await _cancel(living, stopping)
            failed = [t for t in tasks if t.done() and not t.cancelled()]
            if failed:
                await self._lose(ErrorCode.UNKNOWN_MEMBER_ID)
                failed[0].result()
            await self._release()
        finally:
            await _cancel(*tasks, stopping)
            self._lease.end()
            self._ended.set()
            await self._requests.close()

    async def close(self, *, leave: bool | None = None) -> None:
        """Give back what is owned (`on_revoked`), and end `run`.

        With `leave` the coordinator is told at once, so that other members need not wait for the
        session timeout. By default dynamic members leave, and static members do not (KIP-345: they
        are expected to return).
        """
        self._leave = leave
        self._stop.set()
        if self._started:
            await self._ended.wait()

    # The main loop: rounds, and waiting until another round is needed

    async def _live(self) -> None:
        failures = 0
        while True:
            self._lost = None
            self._wake.clear()
            try:
                again = await self._round()
                failures = 0
                if not again:
                    await self._wake.wait()
                if self._lost is not None:
                    raise self._lost
            except RejoinError as error:
                failures += 1
                log.debug("group %s: %s", self.config.group_id, error)
                await asyncio.sleep(self._backoff.delay(failures, self._cluster.rng.random()))
            except MembershipLostError as lost:
                await self._lose(lost.code)

    async def _round(self) -> bool:
        """Join, sync, apply. Return whether another round has to follow at once."""
        joined = await self._join()
        given = await self._sync(joined)
        return await self._apply(given)

    async def _join(self) -> Any:
        for _ in range(2):
            self._joining = True
            try:
                response = await self._requests.join(self.identity, self.owned)
                if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                    self.identity = MemberIdentity(response.member_id)
                    continue
                self._requests.check(response.error_code, "join the group")
                await self._enter(MemberIdentity(response.member_id, response.generation_id))
                return response
            finally:
                self._joining = False
        raise RejoinError("the coordinator keeps refusing the member id with MEMBER_ID_REQUIRED")

    async def _enter(self, new: MemberIdentity) -> None:
        """Enter a new generation; if one was missed, drop what is owned first."""
        if self.owned and new.generation != self.identity.generation + 1:
            await self._lose(ErrorCode.ILLEGAL_GENERATION)
        self.identity = new
        self._synced = False
        self.rounds += 1
        self._requests.has_joined = True
        self._member.set()

    async def _sync(self, joined: Any) -> frozenset[int]:
        leads = joined.leader == self.identity.member_id and not joined.skip_assignment
        assignments = await self._assignments(joined) if leads else []
        sent = self._clock()
        given = await self._requests.sync(self.identity, joined.protocol_name, assignments)
        self._synced = True
        self._lease.settle(sent)
        return assignment.decode_assignment(self.config.topic, given)

    async def _assignments(self, joined: Any) -> list[Any]:
        """Compute the assignments as leader. The topic's partitions are counted again."""
        topic = self.config.topic
        try:
            found = (await self._cluster.refresh([topic])).topics.get(topic)
        except (Retriable, ProtocolError, UserError) as error:
            raise RejoinError(str(error)) from error
        if found is None or not found.partitions:
            raise RejoinError(f"topic {topic} does not exist or has no partitions")
        self._counted = len(found.partitions)
        subscriptions = {m.member_id: bytes(m.metadata) for m in joined.members}
        given = assignment.assign(topic, self._counted, subscriptions)
        self._report_foreign(given.foreign)
        item = SyncGroupRequest.SyncGroupRequestAssignment
        return [item(member_id=m, assignment=data) for m, data in given.assignments.items()]

    def _report_foreign(self, foreign: Mapping[str, str]) -> None:
        """Warn of each foreign member once; only the leader sees subscriptions."""
        for member, reason in foreign.items():
            if member not in self._foreign:
                log.warning(
                    "group %s: member %s is not a twinlog lane and gets no partitions: %s; "
                    "stop it, or give it another group.id",
                    *(self.config.group_id, member, reason),
                )
        self._foreign = frozenset(foreign)

    async def _apply(self, given: frozenset[int]) -> bool:
        """Revoke what was taken, then add what was given. Return whether anything was revoked."""
        revoked, added = self.owned - given, given - self.owned
        if revoked:
            await self._revoke(revoked)
        if added:
            log.info("group %s: assigned %s", self.config.group_id, sorted(added))
            self.owned |= added
            await self._callbacks.on_assigned(set(added))
        return bool(revoked)

    async def _revoke(self, partitions: frozenset[int]) -> None:
        log.info("group %s: revoked %s", self.config.group_id, sorted(partitions))
        try:
            async with asyncio.timeout(self.config.rebalance_timeout):
                await self._callbacks.on_revoked(set(partitions))
        except TimeoutError as error:
            log.warning(
                "group %s: revoking partitions exceeded the rebalance timeout", self.config.group_id
            )
            raise MembershipLostError(ErrorCode.ILLEGAL_GENERATION) from error
        self.owned -= partitions

    async def _lose(self, code: int) -> None:
        """Drop all that is owned; keep the member id unless the coordinator has forgotten it."""
        self._lease.reset()
        self._member.clear()
        self.identity = MemberIdentity(
            "" if code == ErrorCode.UNKNOWN_MEMBER_ID else self.identity.member_id
        )
        lost, self.owned = self.owned, frozenset()
        if lost:
            log.warning("group %s: lost %s", self.config.group_id, sorted(lost))
            await self._callbacks.on_lost(set(lost))

    async def _release(self) -> None:
        """End in order: revoke all while heartbeats continue, then leave the group."""
        if self.owned:
            try:
                await self._revoke(self.owned)
            except MembershipLostError as lost:
                await self._lose(lost.code)
        leave = self.config.instance_id is None if self._leave is None else self._leave
        if not leave or not self.identity.member_id:
            return
        try:
            await self._requests.leave(self.identity)
        except RejoinError as error:
            log.info(
                "group %s: LeaveGroup failed, the session timeout removes this member: %s",
                self.config.group_id,
                error,
            )

    # Heartbeats

    async def _beat(self) -> None:
        """Send heartbeats while there is a generation, whatever the main loop does."""
        failures = 0
        while True:
            await self._member.wait()
            sent, identity = self._clock(), self.identity
            try:
                code = await self._requests.heartbeat(identity)
                self._heard(code, identity, sent)
            except RejoinError as error:
                failures += 1
                log.debug("group %s: heartbeat failed: %s", self.config.group_id, error)
                pause = self._backoff.delay(failures, self._cluster.rng.random())
            else:
                failures = 0
                pause = sent + self.config.heartbeat_interval - self._clock()
            await asyncio.sleep(min(max(pause, 0), self.config.heartbeat_interval))

    async def _doubt(self) -> None:
        """Check that heartbeats go to the coordinator that other brokers know (see the module)."""
        pause = self.config.session_timeout / WITNESSES
        while True:
            await asyncio.sleep(pause)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._cluster.coordinators.doubt(Coordinator.GROUP, self.config.group_id)

    def _heard(self, code: int, identity: MemberIdentity, sent: float) -> None:
        """Act on a heartbeat's answer, unless it is about an earlier generation.

        While a JoinGroup is in flight, its own answer decides: the coordinator may be in the next
        generation already (22), and the JoinGroup's answer may be about to arrive.
        """
        if identity != self.identity:
            return
        if code == 0 and not self._synced:
            # The coordinator expels a member that does not sync within the rebalance timeout, and
            # answers 0 until then.
            self._lease.extend(sent)
        elif code == 0:
            self._lease.settle(sent)
            if self._counted not in (0, self._count_now()):
                self._wake.set()
        elif code == ErrorCode.REBALANCE_IN_PROGRESS:
            self._lease.extend(sent)
            if not self._joining:
                self._wake.set()
        elif code not in (ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID):
            self._requests.check(code, "send a heartbeat to the group")
        elif not self._joining:
            self._lease.end()
            self._lost = MembershipLostError(code)
            self._wake.set()

    def _count_now(self) -> int:
        topic = self._cluster.metadata.topics.get(self.config.topic)
        return self._counted if topic is None else len(topic.partitions)


async def _cancel(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
