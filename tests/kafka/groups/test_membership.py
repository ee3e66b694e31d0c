"""Membership on real brokers: which member has which partitions, and for how long."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from confluent_kafka import Consumer
from stalls import run_without_stall
from waiting import until_async

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.configuration import parse_config
from twinlog.kafka.client.coordinators import Coordinator
from twinlog.kafka.errors import Fenced, Refusal, UserError
from twinlog.kafka.groups.group_config import GroupConfig
from twinlog.kafka.groups.lease import LEASE
from twinlog.kafka.groups.member_requests import MemberIdentity, RejoinError
from twinlog.kafka.groups.membership import GroupMember
from twinlog.kafka.requests.topics import NewTopic, create_topics
from twinlog.local.cluster import LocalCluster
from twinlog.local.processes import SHORT_LIVED

pytestmark = pytest.mark.broker
PARTITIONS = 50
SESSION = 6.0
LONG_SESSION = 60.0
"""Where a session must not end: brokers accept up to half an hour."""
Fresh = Callable[[str], str]


class Owner:
    """A member with callbacks that record events, on a cluster client of its own."""

    started: ClassVar[list["Owner"]] = []

    def __init__(self, local: LocalCluster, config: GroupConfig) -> None:
        servers = {"bootstrap.servers": local.bootstrap_servers, "retry.backoff.ms": "20"}
        self.cluster = KafkaCluster(parse_config(servers, {}).config)
        self.member = GroupMember(self.cluster, config, self)
        self.events: list[tuple[str, int]] = []
        self.mine: set[int] = set()
        self.revoking: Callable[[], Awaitable[None]] | None = None
        self.task: asyncio.Task[None] | None = None

    async def on_assigned(self, partitions: set[int]) -> None:
        assert not partitions & self.mine
        assert self.member.lease_until > time.monotonic()
        self.mine |= partitions
        self.events.append(("assigned", len(partitions)))

    async def on_revoked(self, partitions: set[int]) -> None:
        assert partitions <= self.mine
        if self.revoking is not None:
            await self.revoking()
        self.mine -= partitions
        self.events.append(("revoked", len(partitions)))

    async def on_lost(self, partitions: set[int]) -> None:
        assert partitions <= self.mine
        assert self.member.lease_until < time.monotonic()
        self.mine -= partitions
        self.events.append(("lost", len(partitions)))

    async def start(self) -> None:
        await self.cluster.start()
        self.task = asyncio.create_task(self.member.run())
        self.started.append(self)

    async def close(self, **options: bool) -> None:
        await self.member.close(**options)
        await self.cluster.close()
        assert self.task is not None
        await self.task

    async def die(self) -> None:
        """End as kill -9 does: without any message."""
        assert self.task is not None
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.cluster.close()

    async def owns(self, count: int) -> None:
        async def enough() -> bool:
            assert self.task is not None
            if self.task.done():
                self.task.result()
            return len(self.mine) == count

        await until_async(enough, what=f"{count} partitions, not {len(self.mine)}")


async def _topic(local: LocalCluster, name: str, partitions: int = PARTITIONS) -> None:
    servers = {"bootstrap.servers": local.bootstrap_servers}
    async with KafkaCluster(parse_config(servers, {}).config) as cluster:
        created = (await create_topics(cluster, [NewTopic(name=name, partitions=partitions)]))[name]
        # It is there already if the machine has stalled, and the test is run again.
        assert not isinstance(created, Refusal) or created.name == "TOPIC_ALREADY_EXISTS", created


def _run(local: LocalCluster, test: Callable[[], Awaitable[None]]) -> None:
    servers = {"bootstrap.servers": local.bootstrap_servers}

    async def leaving_nothing() -> None:
        Owner.started.clear()
        try:
            await test()
        except BaseException:
            for owner in Owner.started:
                await owner.die()
            raise

    watched = parse_config(servers, {}).config
    run_without_stall(lambda: KafkaCluster(watched), SESSION / 3, leaving_nothing)


def _config(group: str, topic: str, instance: str | None = None, **times: float) -> GroupConfig:
    session = times.get("session_timeout", SESSION)
    defaults = {"heartbeat_interval": 0.2, "rebalance_timeout": max(session, 20.0)}
    times = {"session_timeout": session, **defaults, **times}
    return GroupConfig(group_id=group, topic=topic, instance_id=instance, **times)


def test_two_members_share_partitions_and_the_survivor_takes_over(
    any_kafka: LocalCluster, fresh_name: Fresh, topic: str
) -> None:
    """One move takes only what must move; after the other's death it has all, after the session."""

    async def run() -> None:
        await _topic(any_kafka, topic)
        group = fresh_name("group")
        config = _config(group, topic, rebalance_timeout=200.0)
        first, second = Owner(any_kafka, config), Owner(any_kafka, config)
        await first.start()
        await first.owns(PARTITIONS)
        await second.start()
        await second.owns(PARTITIONS // 2)
        await first.owns(PARTITIONS // 2)
        assert first.events == [("assigned", 50), ("revoked", 25)]
        assert second.events == [("assigned", 25)]
        assert first.mine | second.mine == set(range(PARTITIONS))
        kept = set(first.mine)
        await second.die()
        died = time.monotonic()
        await first.owns(PARTITIONS)
        assert SESSION - 1 < time.monotonic() - died < SESSION + 60, "no time of a rebalance"
        assert first.events[2:] == [("assigned", 25)]
        assert kept <= first.mine
        await first.close()
        assert first.mine == set()

    _run(any_kafka, run)


@pytest.mark.parametrize("subscribed", ["other", "same"])
def test_a_foreign_consumer_gets_no_partitions(
    kafka: LocalCluster,
    fresh_name: Fresh,
    topic: str,
    subscribed: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Librdkafka with twinlog's group.id, of any topic: lanes keep all partitions."""

    async def run() -> None:
        await _topic(kafka, topic)
        await _topic(kafka, f"{topic}-other", 1)
        group = fresh_name("group")
        lane = Owner(kafka, _config(group, topic))
        await lane.start()
        await lane.owns(PARTITIONS)
        foreign = Consumer(
            {
                "bootstrap.servers": kafka.bootstrap_servers,
                "group.id": group,
                "partition.assignment.strategy": "cooperative-sticky",
            }
        )
        foreign.subscribe([f"{topic}-other", *([topic] if subscribed == "same" else [])])
        try:
            before = lane.member.rounds

            async def joined() -> bool:
                await asyncio.to_thread(foreign.poll, 0.1)
                return lane.member.rounds > before and "not a twinlog lane" in caplog.text

            await until_async(joined, what="a rebalance with the foreign member")
            await lane.owns(PARTITIONS)
            assert lane.events == [("assigned", PARTITIONS)]
            assert foreign.assignment() == []
        finally:
            await asyncio.to_thread(foreign.close)
        await lane.close()

    _run(kafka, run)


def test_partitions_of_a_leaving_member_move_at_once(
    any_kafka: LocalCluster, fresh_name: Fresh, topic: str
) -> None:
    async def run() -> None:
        await _topic(any_kafka, topic)
        group = fresh_name("group")
        config = _config(group, topic, session_timeout=LONG_SESSION)
        owners = [Owner(any_kafka, config) for _ in range(3)]
        for owner in owners:
            await owner.start()
        for owner in owners:
            await until_async(lambda o=owner: _about_a_third(o), what="a third each")
        await owners[0].close()
        began = time.monotonic()
        await owners[1].owns(25)
        await owners[2].owns(25)
        assert time.monotonic() - began < LONG_SESSION / 2
        await asyncio.gather(owners[1].close(), owners[2].close())

    _run(any_kafka, run)


async def _about_a_third(owner: Owner) -> bool:
    return len(owner.mine) in (16, 17)


def test_a_static_member_restarts_without_a_rebalance(
    any_kafka: LocalCluster, fresh_name: Fresh, topic: str
) -> None:
    """It gets the same partitions back at once; the other, leader or not, has no rebalance."""

    async def run() -> None:
        await _topic(any_kafka, topic)
        group = fresh_name("group")
        times = {"session_timeout": LONG_SESSION}
        a = Owner(any_kafka, _config(group, topic, "a", **times))
        b = Owner(any_kafka, _config(group, topic, "b", **times))
        await a.start()
        await a.owns(PARTITIONS)
        await b.start()
        await b.owns(25)
        await a.owns(25)
        for name in ("b", "a"):  # a is the group's leader
            left, stays = (b, a) if name == "b" else (a, b)
            had, rounds, events = set(left.mine), stays.member.rounds, list(stays.events)
            await left.close()
            again = Owner(any_kafka, _config(group, topic, name, **times))
            began = time.monotonic()
            await again.start()
            await again.owns(25)
            assert time.monotonic() - began < LONG_SESSION / 2
            assert again.mine == had
            await asyncio.sleep(1)
            assert (stays.member.rounds, stays.events) == (rounds, events)
            a, b = (a, again) if name == "b" else (again, b)
        await asyncio.gather(a.close(leave=True), b.close(leave=True))

    _run(any_kafka, run)


def test_a_second_process_with_the_instance_id_fences_the_first(
    any_kafka: LocalCluster, fresh_name: Fresh, topic: str
) -> None:
    async def run() -> None:
        await _topic(any_kafka, topic)
        group = fresh_name("group")
        first = Owner(any_kafka, _config(group, topic, "same"))
        second = Owner(any_kafka, _config(group, topic, "same"))
        await first.start()
        await first.owns(PARTITIONS)
        await second.start()
        await second.owns(PARTITIONS)
        assert first.task is not None
        with pytest.raises(Fenced):
            await asyncio.wait_for(first.task, 120)
        assert first.events[-1] == ("lost", PARTITIONS)
        assert first.member.lease_until < time.monotonic()
        await first.cluster.close()
        await second.close(leave=True)

    _run(any_kafka, run)


def test_the_lease_of_a_hung_member_ends_before_its_partitions_move(
    kafka: LocalCluster, fresh_name: Fresh, topic: str
) -> None:
    """A hung member is out of the group, and its own clock tells it before others may act."""

    async def run() -> None:
        await _topic(kafka, topic)
        group = fresh_name("group")
        hung = Owner(kafka, _config(group, topic))
        await hung.start()
        await hung.owns(PARTITIONS)
        lease = hung.member.lease_until
        assert lease - time.monotonic() <= LEASE * SESSION
        other = Owner(kafka, _config(group, topic))
        # Both share this process's loop, so only the first one's heartbeats are held back.
        held = asyncio.Event()
        requests = hung.member._requests
        requests._send = _held(requests._send, held)  # type: ignore[assignment]
        await asyncio.sleep(0.5)
        lease = hung.member.lease_until
        await other.start()
        await other.owns(PARTITIONS)
        assert time.monotonic() > lease == hung.member.lease_until
        held.set()
        await until_async(lambda: _has_lost(hung), what="the loss is noticed")
        await asyncio.gather(hung.close(), other.close())

    _run(kafka, run)


def test_ownership_is_confirmed_until_another_member_gets_the_partitions(
    any_kafka: LocalCluster, fresh_name: Fresh, topic: str
) -> None:
    """Goal: a question is answered at once, or by no answer that came before it.

    The group has another generation before the other member gets its partitions, and refuses the
    heartbeats of the one before. So one that is cut off, within its lease, gets no confirmation.
    """

    async def run() -> None:
        await _topic(any_kafka, topic)
        config = _config(fresh_name("group"), topic, heartbeat_interval=2.0)
        cut, other = Owner(any_kafka, config), Owner(any_kafka, config)
        await cut.start()
        await cut.owns(PARTITIONS)

        async def confirms_soon() -> bool:
            asked = time.monotonic()
            await asyncio.gather(*(cut.member.confirm() for _ in range(100)))
            for _ in range(5):
                await cut.member.confirm()
            return time.monotonic() - asked < 2.0

        await until_async(confirms_soon, what="answers without the next heartbeat")
        held = asyncio.Event()
        requests = cut.member._requests
        heartbeat, identity = requests.heartbeat, cut.member.identity
        requests.heartbeat = _held(heartbeat, held)  # type: ignore[assignment]
        confirmed = asyncio.create_task(cut.member.confirm())
        await other.start()
        await other.owns(PARTITIONS)
        assert await heartbeat(identity) in (22, 25)
        assert not confirmed.done()
        held.set()
        await until_async(lambda: _has_lost(cut), what="the loss is noticed")
        await asyncio.wait_for(confirmed, 120)
        await cut.owns(25)
        await asyncio.gather(cut.close(), other.close())

    _run(any_kafka, run)


def _held(ask: Callable[..., Awaitable[Any]], held: asyncio.Event) -> Callable[..., Awaitable[Any]]:
    async def wait(*arguments: Any) -> Any:
        await held.wait()
        return await ask(*arguments)

    return wait


async def _has_lost(owner: Owner) -> bool:
    return ("lost", PARTITIONS) in owner.events


def test_the_lease_holds_until_partitions_are_revoked(
    kafka: LocalCluster, fresh_name: Fresh, topic: str
) -> None:
    """The other gets nothing before `on_revoked` has returned; the lease holds meanwhile."""

    async def run() -> None:
        await _topic(kafka, topic)
        group = fresh_name("group")
        first = Owner(kafka, _config(group, topic))
        second = Owner(kafka, _config(group, topic))
        leases: list[float] = []

        async def slowly() -> None:
            for _ in range(int(1.5 * SESSION / 0.1)):
                await asyncio.sleep(0.1)
                assert not second.mine & first.mine
                leases.append(first.member.lease_until - time.monotonic())

        first.revoking = slowly
        await first.start()
        await first.owns(PARTITIONS)
        await second.start()
        await second.owns(25)
        assert min(leases) > LEASE * SESSION - 2
        first.revoking = None
        await asyncio.gather(first.close(), second.close())

    _run(kafka, run)


def test_partitions_revoked_too_slowly_are_lost(
    kafka: LocalCluster, fresh_name: Fresh, topic: str
) -> None:
    async def run() -> None:
        await _topic(kafka, topic)
        group = fresh_name("group")
        config = _config(group, topic, rebalance_timeout=SESSION)
        first, second = Owner(kafka, config), Owner(kafka, config)
        first.revoking = asyncio.Event().wait  # type: ignore[assignment]
        await first.start()
        await first.owns(PARTITIONS)
        await second.start()
        await until_async(lambda: _has_lost(first), what="the loss")
        first.revoking = None
        await second.owns(25)
        await first.owns(25)
        await asyncio.gather(first.close(), second.close())

    _run(kafka, run)


@pytest.mark.long
def test_a_restart_of_the_coordinator_loses_no_partitions(
    tmp_path_factory: pytest.TempPathFactory, fresh_name: Fresh, topic: str
) -> None:
    """No callback runs and nothing is lost; the lease expires meanwhile and is restored."""

    async def run(local: LocalCluster) -> None:
        await _topic(local, topic)
        # A broker that has just started, on a busy machine, may be found late.
        owner = Owner(local, _config(fresh_name("group"), topic, session_timeout=20.0))
        await owner.start()
        await owner.owns(PARTITIONS)
        (node,) = local.node_ids
        local.kill(node)
        await until_async(lambda: _lease_is_over(owner), what="the lease ends")
        await asyncio.to_thread(local.start_broker, node)
        await until_async(lambda: _lease_holds(owner), what="the lease is back")
        assert owner.events == [("assigned", PARTITIONS)]
        await owner.close()

    with LocalCluster.start(
        1, directory=tmp_path_factory.mktemp("coordinator"), jvm_flags=SHORT_LIVED
    ) as local:
        asyncio.run(run(local))


async def _lease_is_over(owner: Owner) -> bool:
    return owner.member.lease_until < time.monotonic()


async def _lease_holds(owner: Owner) -> bool:
    return owner.member.lease_until > time.monotonic()


def test_an_unreachable_coordinator_is_looked_up_repeatedly() -> None:
    """It is doubted also if the other broker does not answer."""

    class Hanging:
        config = SimpleNamespace(retry_backoff=0.1, retry_backoff_max=1.0)
        asked = 0

        @property
        def coordinators(self) -> "Hanging":
            return self

        async def doubt(self, kind: Coordinator, key: str) -> None:
            assert (kind, key) == (Coordinator.GROUP, "g")
            self.asked += 1
            await asyncio.Event().wait()

    async def run() -> None:
        cluster = Hanging()
        config = GroupConfig(group_id="g", topic="t", session_timeout=0.1, heartbeat_interval=0.03)
        member = GroupMember(cluster, config, None)  # type: ignore[arg-type]
        doubting = asyncio.create_task(member._doubt())
        await until_async(lambda: _asked(cluster), what="it was asked twice")
        doubting.cancel()

    async def _asked(cluster: Hanging) -> bool:
        return cluster.asked > 1

    asyncio.run(run())


@pytest.mark.parametrize("synced", [True, False])
def test_a_heartbeat_during_group_loading_revives_no_lease(*, synced: bool) -> None:
    """Goal: it answers 0 to any heartbeat, which proves nothing to a member that was away."""

    class Loading:
        loaded = False
        asked = 0

        async def heartbeat(self, identity: MemberIdentity) -> int:
            del identity
            self.asked += 1
            return 0

        async def sync_again(self, identity: MemberIdentity, protocol: str) -> None:
            assert (identity.member_id, protocol) == ("m", "p")
            if not self.loaded:
                raise RejoinError("REBALANCE_IN_PROGRESS")

    async def run() -> None:
        now = 0.0
        cluster = SimpleNamespace(
            config=SimpleNamespace(retry_backoff=0.001, retry_backoff_max=0.001),
            rng=random.Random(0),
            metadata=SimpleNamespace(topics={}),
        )
        config = GroupConfig(group_id="g", topic="t")
        member = GroupMember(cluster, config, None, clock=lambda: now)  # type: ignore[arg-type]
        member._requests = requests = Loading()  # type: ignore[assignment]
        member.identity, member._protocol = MemberIdentity("m", 1), "p"
        member._synced = synced
        member._lease.settle(0.0)
        now = config.session_timeout
        member._member.set()
        beating = asyncio.create_task(member._beat())
        confirmed = asyncio.create_task(member.confirm())
        await asyncio.sleep(0)
        now += 1.0

        async def asked() -> bool:
            return requests.asked > 2

        await until_async(asked, what="it was asked again and again")
        assert (member.holds_lease, confirmed.done()) == (False, False)
        requests.loaded = member._synced = True
        await asyncio.wait_for(confirmed, 120)
        assert member.holds_lease
        beating.cancel()

    asyncio.run(run())


def test_a_heartbeat_interval_above_a_third_of_the_session_is_refused() -> None:
    with pytest.raises(UserError, match="at most a third"):
        GroupConfig(group_id="g", topic="t", session_timeout=1, heartbeat_interval=0.5)


def test_a_session_timeout_refused_by_the_broker_is_a_user_error(
    kafka: LocalCluster, fresh_name: Fresh, topic: str
) -> None:
    async def run() -> None:
        await _topic(kafka, topic)
        owner = Owner(kafka, _config(fresh_name("group"), topic, session_timeout=1.0))
        await owner.start()
        assert owner.task is not None
        with pytest.raises(UserError, match="INVALID_SESSION_TIMEOUT"):
            await owner.task
        await owner.cluster.close()

    asyncio.run(run())
