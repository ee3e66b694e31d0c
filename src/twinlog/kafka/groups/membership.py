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
heartbeats extend it. A coordinator that is loading the group answers 0 to any heartbeat, of any
member and generation. So an answer of 0 counts only together with one to a SyncGroup, which that
coordinator refuses. A stable group answers it at once.

The lease is safe only if the coordinator is the one that the other brokers know. A coordinator that
is cut off from the other brokers, but not from its clients, would answer 0 forever, while the new
coordinator gives the partitions away. So another broker is asked which broker coordinates the
group, `WITNESSES` times in a session timeout.

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

CONFIRM_PAUSE_S: Final = 0.02
"""The shortest time between two heartbeats that `confirm` asks for."""
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
        self._protocol = ""  # as the last JoinGroup's answer names it
        self._synced = False  # whether this generation's assignment has been received
        self._partition_count = 0  # partitions of the topic at the last assignment as leader
        self._loss: MembershipLostError | None = None
        self._wake = asyncio.Event()
        self._member = asyncio.Event()  # set while there is a generation to heartbeat in
        self._confirm_requests = asyncio.Event()  # set while `confirm` waits
        self._heartbeats = asyncio.Condition()  # notified after each one's answer
        self._stop = asyncio.Event()
        self._ended = asyncio.Event()
        self._started = False
        self._leave: bool | None = None
        self._foreign_members: frozenset[str] = frozenset()  # members that were warned about

    @property
    def lease_until(self) -> float:
        """Time of the member's clock until which no other member can own its partitions."""
        return self._lease.until

    @property
    def holds_lease(self) -> bool:
        """Whether no other member can own its partitions now. Check before writing."""
        return self._lease.holds

    async def confirm(self) -> None:
        """Return when the coordinator has confirmed that no other member owned the partitions.

        It has then answered a request that was sent after this call. The coordinator gives the
        partitions to another member only in a later generation, or under a new member id of the
        same instance; both end the answers to this one. Callers at the same time share a heartbeat.
        This waits as long as there is no such answer.
        """
        asked_at = self._clock()
        async with self._heartbeats:
            while self._lease.confirmed_at <= asked_at:
                self._confirm_requests.set()
                await self._heartbeats.wait()

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
        live_task, beat_task = create(self._live()), create(self._beat())
        doubt_task, stop_task = create(self._doubt()), create(self._stop.wait())
        tasks = (live_task, beat_task, doubt_task)
        try:
            await asyncio.wait({*tasks, stop_task}, return_when=asyncio.FIRST_COMPLETED)
            await _cancel(live_task, stop_task)
            done_tasks = [t for t in tasks if t.done() and not t.cancelled()]
            if done_tasks:
                await self._lose(ErrorCode.UNKNOWN_MEMBER_ID)
                done_tasks[0].result()
            await self._release()
        finally:
            await _cancel(*tasks, stop_task)
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
            self._loss = None
            self._wake.clear()
            try:
                needs_round = await self._round()
                failures = 0
                if not needs_round:
                    await self._wake.wait()
                if self._loss is not None:
                    raise self._loss
            except RejoinError as error:
                failures += 1
                log.debug("group %s: %s", self.config.group_id, error)
                await asyncio.sleep(self._backoff.delay(failures, self._cluster.rng.random()))
            except MembershipLostError as loss:
                await self._lose(loss.code)

    async def _round(self) -> bool:
        """Join, sync, apply. Return whether another round has to follow at once."""
        join_response = await self._join()
        assigned_partitions = await self._sync(join_response)
        return await self._apply(assigned_partitions)

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

    async def _enter(self, identity: MemberIdentity) -> None:
        """Enter a new generation; if one was missed, drop what is owned first."""
        if self.owned and identity.generation != self.identity.generation + 1:
            await self._lose(ErrorCode.ILLEGAL_GENERATION)
        self.identity = identity
        self._synced = False
        self.rounds += 1
        self._requests.has_joined = True
        self._member.set()

    async def _sync(self, join_response: Any) -> frozenset[int]:
        is_leader = (
            join_response.leader == self.identity.member_id and not join_response.skip_assignment
        )
        assignments = await self._assignments(join_response) if is_leader else []
        sent_at = self._clock()
        assignment_bytes = await self._requests.sync(
            self.identity, join_response.protocol_name, assignments
        )
        self._protocol = join_response.protocol_name
        self._synced = True
        self._lease.settle(sent_at)
        return assignment.decode_assignment(self.config.topic, assignment_bytes)

    async def _assignments(self, join_response: Any) -> list[Any]:
        """Compute the assignments as leader. The topic's partitions are counted again."""
        topic = self.config.topic
        try:
            topic_metadata = (await self._cluster.refresh([topic])).topics.get(topic)
        except (Retriable, ProtocolError, UserError) as error:
            raise RejoinError(str(error)) from error
        if topic_metadata is None or not topic_metadata.partitions:
            raise RejoinError(f"topic {topic} does not exist or has no partitions")
        self._partition_count = len(topic_metadata.partitions)
        subscriptions = {m.member_id: bytes(m.metadata) for m in join_response.members}
        result = assignment.assign(topic, self._partition_count, subscriptions)
        self._report_foreign(result.foreign)
        item = SyncGroupRequest.SyncGroupRequestAssignment
        return [item(member_id=m, assignment=data) for m, data in result.assignments.items()]

    def _report_foreign(self, foreign: Mapping[str, str]) -> None:
        """Warn of each foreign member once; only the leader sees subscriptions."""
        for member, reason in foreign.items():
            if member not in self._foreign_members:
                log.warning(
                    "group %s: member %s is not a twinlog lane and gets no partitions: %s; "
                    "stop it, or give it another group.id",
                    *(self.config.group_id, member, reason),
                )
        self._foreign_members = frozenset(foreign)

    async def _apply(self, partitions: frozenset[int]) -> bool:
        """Revoke what was taken, then add what was given. Return whether anything was revoked."""
        revoked, added = self.owned - partitions, partitions - self.owned
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
        lost_partitions, self.owned = self.owned, frozenset()
        if lost_partitions:
            log.warning("group %s: lost %s", self.config.group_id, sorted(lost_partitions))
            await self._callbacks.on_lost(set(lost_partitions))

    async def _release(self) -> None:
        """End in order: revoke all while heartbeats continue, then leave the group."""
        if self.owned:
            try:
                await self._revoke(self.owned)
            except MembershipLostError as loss:
                await self._lose(loss.code)
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
            self._confirm_requests.clear()
            sent_at, identity = self._clock(), self.identity
            try:
                self._heard(await self._heartbeat(identity), identity, sent_at)
            except RejoinError as error:
                failures += 1
                log.debug("group %s: heartbeat failed: %s", self.config.group_id, error)
                pause = self._backoff.delay(failures, self._cluster.rng.random())
                await asyncio.sleep(min(pause, self.config.heartbeat_interval))
                continue
            failures = 0
            async with self._heartbeats:
                self._heartbeats.notify_all()
            await asyncio.sleep(CONFIRM_PAUSE_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(
                    sent_at + self.config.heartbeat_interval - self._clock()
                ):
                    await self._confirm_requests.wait()

    async def _heartbeat(self, identity: MemberIdentity) -> int:
        """Send a heartbeat; return the answer's error code, which is 0 only if it is not blind."""
        code = await self._requests.heartbeat(identity)
        if code == 0 and self._synced and identity == self.identity:
            try:
                await self._requests.sync_again(identity, self._protocol)
            except MembershipLostError as loss:
                return loss.code
        return code

    async def _doubt(self) -> None:
        """Check that heartbeats go to the coordinator that other brokers know (see the module)."""
        pause = self.config.session_timeout / WITNESSES
        while True:
            await asyncio.sleep(pause)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._cluster.coordinators.doubt(Coordinator.GROUP, self.config.group_id)

    def _heard(self, code: int, identity: MemberIdentity, sent_at: float) -> None:
        """Act on a heartbeat's answer, unless it is about an earlier generation.

        While a JoinGroup is in flight, its own answer decides: the coordinator may be in the next
        generation already (22), and the JoinGroup's answer may be about to arrive.
        """
        if identity != self.identity:
            return
        if code == 0 and not self._synced:
            # The coordinator expels a member that does not sync within the rebalance timeout, and
            # answers 0 until then. It may be loading the group (see the module).
            self._lease.keep(sent_at)
        elif code == 0:
            self._lease.settle(sent_at)
            if self._partition_count not in (0, self._count_now()):
                self._wake.set()
        elif code == ErrorCode.REBALANCE_IN_PROGRESS:
            self._lease.extend(sent_at)
            if not self._joining:
                self._wake.set()
        elif code not in (ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID):
            self._requests.check(code, "send a heartbeat to the group")
        elif not self._joining:
            self._lease.end()
            self._loss = MembershipLostError(code)
            self._wake.set()

    def _count_now(self) -> int:
        topic = self._cluster.metadata.topics.get(self.config.topic)
        return self._partition_count if topic is None else len(topic.partitions)


async def _cancel(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
