"""The store on real brokers: concurrent commands, unknown outcomes, a follower."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from uuid import uuid4

import pytest
from clients import client, put, write_state
from waiting import until_async

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import Disconnected, UserError
from twinlog.kafka.requests.topics import describe_configs, topic_resource
from twinlog.kafka.types import LeaderEpoch, Offset
from twinlog.lifecycle.changes import pause_topics
from twinlog.local.cluster import LocalCluster
from twinlog.mirror.errors import MirrorError, MirrorRefused
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.settings import TRANSACTIONAL, TRANSLATED
from twinlog.mirror.states import State
from twinlog.store import control_topics
from twinlog.store import mirrors as store_module
from twinlog.store.config_records import Mirror, MirrorTopic, Wanted
from twinlog.store.control_topics import (
    CONFIG_TOPIC,
    STATE_TOPIC,
    STATUS_TOPIC,
    ControlTopics,
    create_control_topics,
    epoch_entry,
    forget_entry,
    partition_count,
    state_entry,
    status_entry,
)
from twinlog.store.mirrors import MirrorStore
from twinlog.store.snapshot import Snapshot
from twinlog.store.state_records import LastMirrored, PartitionState, state_key
from twinlog.store.status_records import PartitionStatus, Status
from twinlog.store.topic_reader import ControlRecord, Tail
from twinlog.store.topic_writer import ALL, Entry, TransactionalWriter, append

pytestmark = pytest.mark.broker

CHANGES = 100


def mirror(name: str) -> Mirror:
    return Mirror(name=name, source={"bootstrap.servers": "h:1"}, source_cluster_id="c")


def topic_of(mirror: str, topic: str) -> MirrorTopic:
    return MirrorTopic(mirror=mirror, topic=topic, topic_id=uuid4(), partitions=2)


@asynccontextmanager
async def two_stores(
    kafka: LocalCluster,
) -> AsyncIterator[tuple[MirrorStore, MirrorStore, KafkaCluster]]:
    async with client(kafka) as one, client(kafka) as other:
        yield MirrorStore(one), MirrorStore(other), one


@pytest.fixture
def name(fresh_name: Callable[[str], str]) -> str:
    return fresh_name("m")


def kinds(outcomes: list[BaseException | None]) -> list[MirrorError | None]:
    """Return None for success, or the kind of the refusal."""
    found: list[MirrorError | None] = []
    for outcome in outcomes:
        if outcome is None:
            found.append(None)
        else:
            assert isinstance(outcome, MirrorRefused), repr(outcome)
            found.append(outcome.kind)
    return found


def test_concurrent_creations_create_one_mirror(any_kafka: LocalCluster, name: str) -> None:
    """Five commands create one mirror at once, on a cluster that may not have the topics yet."""

    async def run() -> None:
        async with client(any_kafka) as cluster:
            stores = [MirrorStore(cluster) for _ in range(5)]
            outcomes = await asyncio.gather(
                *(store.create_mirror(mirror(name)) for store in stores), return_exceptions=True
            )
            found = kinds(list(outcomes))
            assert found.count(None) == 1
            assert found.count(MirrorError.MIRROR_ALREADY_EXISTS) == 4
            assert (await stores[0].snapshot()).mirrors[name] == mirror(name)

    asyncio.run(run())


def test_one_of_two_conflicting_adds_succeeds(kafka: LocalCluster, name: str) -> None:
    """Two mirrors want overlapping topics: one gets all of its own, the other none."""

    async def run() -> None:
        async with two_stores(kafka) as (one, other, _):
            a, b = f"{name}.a", f"{name}.b"
            await one.create_mirror(mirror(a))
            await one.create_mirror(mirror(b))
            shared = f"{name}.shared"
            outcomes = await asyncio.gather(
                one.add_topics(a, [topic_of(a, shared), topic_of(a, f"{name}.1")]),
                other.add_topics(b, [topic_of(b, shared), topic_of(b, f"{name}.2")]),
                return_exceptions=True,
            )
            found = kinds(list(outcomes))
            assert set(found) == {None, MirrorError.TOPIC_ALREADY_IN_MIRROR}
            snapshot = await one.snapshot()
            winner = (a, b)[found.index(None)]
            mine = [topic for topic in snapshot.topics if topic.mirror in {a, b}]
            assert {topic.mirror for topic in mine} == {winner}
            assert len(mine) == 2
            owner = snapshot.mirror_of(shared)
            assert owner is not None
            assert owner.mirror == winner

    asyncio.run(run())


def test_many_concurrent_commands_all_succeed(kafka: LocalCluster, name: str) -> None:
    """Eight independent commands fence each other, and all succeed."""

    async def run() -> None:
        async with client(kafka) as cluster:
            stores = [MirrorStore(cluster) for _ in range(8)]
            await asyncio.gather(
                *(s.create_mirror(mirror(f"{name}.{i}")) for i, s in enumerate(stores))
            )
            names = (await stores[0].snapshot()).mirrors
            assert [one for one in names if one.startswith(name)] == [
                f"{name}.{i}" for i in range(8)
            ]

    asyncio.run(run())


def test_concurrent_changes_of_one_process_are_serialised(
    kafka: LocalCluster, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred changes at once do not fence each other, and each reads only new records."""
    fences, records = 0, 0
    fence, taken = TransactionalWriter.fence, Tail._taken

    async def counted(self: TransactionalWriter) -> None:
        nonlocal fences
        fences += 1
        await fence(self)

    def counted_records(self: Tail, part: object) -> Iterator[ControlRecord]:
        nonlocal records
        for record in taken(self, part):
            records += 1
            yield record

    async def run() -> None:
        async with client(kafka) as cluster:
            store, other = MirrorStore(cluster, background=True), MirrorStore(cluster)
            await store.create_mirror(mirror(name))
            before = await store.snapshot()
            monkeypatch.setattr(TransactionalWriter, "fence", counted)
            monkeypatch.setattr(Tail, "_taken", counted_records)
            stores = [store] * (CHANGES - 1) + [other]
            await asyncio.gather(
                *(
                    one.add_topics(name, [topic_of(name, f"{name}.{number}")])
                    for number, one in enumerate(stores)
                )
            )
            assert fences == CHANGES
            monkeypatch.undo()
            new = (await store.snapshot()).records.keys() - before.records.keys()
            assert len(new) == CHANGES
        # Each store read the changes' records once; `other` read the records from before.
        # (More than its last values: other tests have changed some, and removed others.)
        assert records <= 2 * CHANGES + sum(before.ends.values())

    asyncio.run(run())


def test_a_command_is_not_starved_by_a_node(kafka: LocalCluster, name: str) -> None:
    """While a node makes a hundred changes, a command's change comes after few of them."""

    async def run() -> None:
        async with two_stores(kafka) as (_, command, cluster):
            node = MirrorStore(cluster, background=True)
            await command.create_mirror(mirror(name))
            done = 0

            async def change(number: int) -> None:
                nonlocal done
                await node.add_topics(name, [topic_of(name, f"{name}.{number}")])
                done += 1

            changes = [asyncio.create_task(change(number)) for number in range(CHANGES)]
            try:
                await until_async(lambda: _is(done >= 3), what="the node's first changes")
                before = done
                await command.add_topics(name, [topic_of(name, f"{name}.command")])
                assert done - before <= CHANGES // 4
                await asyncio.gather(*changes)
            finally:
                for task in changes:
                    task.cancel()
                await asyncio.gather(*changes, return_exceptions=True)

    asyncio.run(run())


async def _is(fact: bool) -> bool:
    return fact


def test_topics_are_added_only_to_an_existing_matching_mirror(
    kafka: LocalCluster, name: str
) -> None:
    async def run() -> None:
        async with client(kafka) as cluster:
            store = MirrorStore(cluster)
            await store.create_mirror(mirror(name))
            with pytest.raises(
                MirrorRefused, match=f"UNKNOWN_MIRROR: mirror no{name} does not exist"
            ):
                await store.add_topics(f"no{name}", [topic_of(f"no{name}", "t")])
            topic = topic_of(name, f"{name}.t")
            await store.add_topics(name, [topic])
            paused = MirrorTopic(
                mirror=name,
                topic=topic.topic,
                topic_id=topic.topic_id,
                partitions=5,
                wanted=Wanted.PAUSED,
            )
            await store.change(lambda _: [paused])
            assert (await store.snapshot()).mirror_of(topic.topic) == paused

    asyncio.run(run())


@pytest.mark.parametrize("kind", [TRANSACTIONAL, TRANSLATED])
def test_two_commands_do_not_add_two_topics_with_one_position(
    kafka: LocalCluster, name: str, kind: str
) -> None:
    """Goal: both have seen neither topic; the one that is stored later is refused."""

    async def run() -> None:
        async with two_stores(kafka) as (one, other, _):
            properties = {**mirror(name).source, "mirror.kind": kind}
            await one.create_mirror(replace(mirror(name), source=properties))
            remote = f"{name}.remote"
            topics = [
                replace(topic_of(name, f"{name}.{which}"), destination_topic=remote)
                for which in "xy"
            ]
            outcomes = await asyncio.gather(
                *(
                    store.add_topics(name, [topic])
                    for store, topic in zip((one, other), topics, strict=True)
                ),
                return_exceptions=True,
            )
            stored = (await one.snapshot()).topics_of(name)
            if kind == TRANSLATED:
                assert (outcomes, len(stored)) == ([None, None], 2)
                return
            [refusal] = [outcome for outcome in outcomes if outcome is not None]
            assert isinstance(refusal, UserError)
            assert f"would both be copied to {remote}" in str(refusal)
            assert len(stored) == 1

    asyncio.run(run())


@pytest.mark.parametrize("landed", [True, False])
def test_a_commit_with_an_unknown_outcome_is_read_back(
    kafka: LocalCluster, name: str, monkeypatch: pytest.MonkeyPatch, landed: bool
) -> None:
    """The answer to the commit is lost: in either case, the mirror exists once."""
    write, lost = TransactionalWriter.write, iter([True])

    async def lossy(self: TransactionalWriter, entries: list[Entry]) -> object:
        if not next(lost, False):
            return await write(self, entries)
        if landed:
            await write(self, entries)
        raise Disconnected("the answer was lost")

    async def run() -> None:
        async with client(kafka) as cluster:
            store = MirrorStore(cluster)
            await create_control_topics(cluster, ControlTopics())
            monkeypatch.setattr(TransactionalWriter, "write", lossy)
            await store.create_mirror(mirror(name))
            assert (await store.snapshot()).mirrors[name] == mirror(name)

    asyncio.run(run())


def test_a_failed_deletion_deletes_no_records(
    kafka: LocalCluster, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """States without their topic's record, or the other way round, would be stopped once more."""

    async def refused(*_: object) -> object:
        raise UserError("no right", code=29)

    async def run() -> None:
        async with client(kafka) as cluster:
            store = MirrorStore(cluster)
            await store.create_mirror(mirror(name))
            topic = replace(topic_of(name, f"{name}.t"), wanted=Wanted.STOPPED)
            await store.add_topics(name, [topic])
            await write_state(cluster, topic, State.STOPPED)
            before = (await store.states()).states
            assert topic.mirror_partitions[1] in before
            with monkeypatch.context() as patch:
                patch.setattr(TransactionalWriter, "write", refused)
                with pytest.raises(MirrorRefused, match="MIRROR_AUTHORIZATION_FAILED"):
                    await store.delete_mirror(name, lambda *_: None)
            assert (await store.states()).states == before
            await store.delete_mirror(name, lambda *_: None)
            after = (await store.states()).states
            assert before.keys() - after.keys() == set(topic.mirror_partitions)
            assert name not in (await store.snapshot()).mirrors

    asyncio.run(run())


def test_a_recreated_destination_topic_has_no_last_mirrored_end(
    kafka: LocalCluster, name: str
) -> None:
    """Its states stay: the same state partition owns it, and a STOPPED partition starts again."""

    async def run() -> None:
        async with client(kafka) as cluster:
            store = MirrorStore(cluster)
            await store.create_mirror(mirror(name))
            former = replace(
                topic_of(name, f"{name}.t"), wanted=Wanted.STOPPED, destination_topic_id=uuid4()
            )
            first, second = former.mirror_partitions
            last = LastMirrored(LeaderEpoch(3), Offset(1000))
            await store.add_topics(name, [former])
            await write_state(cluster, former, State.STOPPED, {0: last, 1: last})
            stopped = replace(former, set_back=None)
            again = replace(stopped, wanted=Wanted.MIRRORING)
            await store.add_topics(name, [again])
            assert (await store.states()).epochs[first] == last
            await store.change(lambda _: [stopped])
            await store.add_topics(name, [replace(again, destination_topic_id=uuid4())])
            states = await store.states()
            assert not {first, second} & states.epochs.keys()
            assert states.state(first) is states.state(second) is State.STOPPED

    asyncio.run(run())


def test_a_broker_lost_before_the_write_is_reported_as_not_written(
    kafka: LocalCluster, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lost(_: TransactionalWriter) -> None:
        raise Disconnected("the broker is gone")

    async def run() -> None:
        async with client(kafka) as cluster:
            await create_control_topics(cluster, ControlTopics())
            monkeypatch.setattr(TransactionalWriter, "fence", lost)
            with pytest.raises(Disconnected, match="the broker is gone"):
                await MirrorStore(cluster).create_mirror(mirror(name))

    asyncio.run(run())


def test_an_ended_topic_pattern_adds_no_topics(kafka: LocalCluster, name: str) -> None:
    """It ends with a failover, while a node may be about to add a topic by it."""

    async def run() -> None:
        async with client(kafka) as cluster:
            store = MirrorStore(cluster)
            await store.create_mirror(replace(mirror(name), topic_patterns=("a.*",)))
            await store.add_topics(name, [topic_of(name, f"{name}.a")], while_matching="a.*")
            with pytest.raises(MirrorRefused, match="is no longer a topic pattern of mirror"):
                await store.add_topics(name, [topic_of(name, f"{name}.b")], while_matching="b.*")
            assert (await store.snapshot()).mirror_of(f"{name}.b") is None

    asyncio.run(run())


def test_a_mirror_that_is_paused_gets_paused_topics(kafka: LocalCluster, name: str) -> None:
    """Goal: also if it was paused after a node had decided to add the topic."""

    async def run() -> None:
        async with client(kafka) as cluster:
            store = MirrorStore(cluster)
            await store.create_mirror(mirror(name))
            await store.change(lambda _: [replace(mirror(name), paused=True)])
            await store.add_topics(name, [topic_of(name, f"{name}.a")])
            await store.change(lambda _: [mirror(name)])
            await store.add_topics(name, [topic_of(name, f"{name}.b")])
            wanted = {one.topic: one.wanted for one in (await store.snapshot()).topics_of(name)}
            assert [*wanted.values()] == [Wanted.PAUSED, Wanted.MIRRORING]

    asyncio.run(run())


def test_a_follower_receives_changes_within_milliseconds(kafka: LocalCluster, name: str) -> None:
    """A follower gets the snapshot, then each change, soon after its command was answered.

    A busy machine delays one or another: most of some changes in a row have to arrive so soon.
    """

    async def run() -> None:
        async with two_stores(kafka) as (writing, reading, _):
            await writing.create_mirror(mirror(f"{name}.0"))
            async with aclosing(reading.follow()) as snapshots:
                assert f"{name}.0" in (await anext(snapshots)).mirrors
                numbers = itertools.count(1)

                async def delay() -> float:
                    following = f"{name}.{next(numbers)}"
                    async with asyncio.TaskGroup() as tasks:
                        arrival = tasks.create_task(until_mirror(snapshots, following))
                        await asyncio.sleep(0.1)
                        await writing.create_mirror(mirror(following))
                        written = time.monotonic()
                    return arrival.result() - written

                async def soon() -> bool:
                    return sorted([await delay() for _ in range(5)])[2] < 0.5

                await until_async(soon, 240, "changes within 0.5 s")

    asyncio.run(run())


async def until_mirror(snapshots: AsyncIterator[Snapshot], name: str) -> float:
    async for snapshot in snapshots:
        if name in snapshot.mirrors:
            return time.monotonic()
    raise AssertionError("the follower has ended")


def test_a_foreign_record_does_not_hide_others(kafka: LocalCluster, name: str) -> None:
    """A foreign record in `__mirror_config` is named, and all other records hold."""

    async def run() -> None:
        async with client(kafka) as cluster:
            store = MirrorStore(cluster)
            await store.create_mirror(mirror(name))
            nonsense = Entry(CONFIG_TOPIC, 0, b'["mirror","nonsense"]', b"{")
            await put(cluster, [nonsense])
            snapshot = await store.snapshot()
            assert name in snapshot.mirrors
            assert any("is not valid JSON" in why for why in snapshot.unreadable.values())
            await put(cluster, [nonsense._replace(value=None)])
            assert not (await store.snapshot()).unreadable

    asyncio.run(run())


def test_the_last_state_and_status_of_a_partition_are_read(kafka: LocalCluster, name: str) -> None:
    """They are written as by lanes: states in a transaction, a status without; the last holds."""

    async def run() -> None:
        async with client(kafka) as cluster:
            store = MirrorStore(cluster)
            await create_control_topics(cluster, ControlTopics())
            first, second = (MirrorPartition(name, "t", index) for index in range(2))
            writer = TransactionalWriter(cluster, f"{name}.7")
            await writer.fence()
            await writer.write(
                [
                    state_entry(PartitionState(first, State.PREPARING), 7),
                    state_entry(PartitionState(second, State.PREPARING), 7),
                    epoch_entry(first, LastMirrored(LeaderEpoch(3), Offset(9)), 7),
                ]
            )
            failed = PartitionState(second, State.FAILED, "the logs differ at 12")
            await writer.write([state_entry(failed, 7)])
            states = await store.states()
            assert states.states[first] == PartitionState(first, State.PREPARING)
            assert states.states[second] == failed
            assert states.epochs[first] == LastMirrored(LeaderEpoch(3), Offset(9))
            for number in range(3):
                row = PartitionStatus(partition=first, state=State.MIRRORING, records=number)
                status = Status(
                    state_partition=7, lane="l", node="n", time_ms=number, partitions=(row,)
                )
                await put(cluster, [status_entry(status)])
            statuses, unreadable = await store.statuses()
            assert (statuses[7], unreadable) == (status, ())

    asyncio.run(run())


def test_control_topics_are_created_with_partitions_and_compaction(any_kafka: LocalCluster) -> None:
    """They have partitions and compaction; a second call changes nothing."""

    async def run() -> None:
        async with client(any_kafka) as cluster:
            await create_control_topics(cluster, ControlTopics())
            await create_control_topics(cluster, ControlTopics(state_partitions=3))
            counts = [await partition_count(cluster, t) for t in control_topics.CONTROL_TOPICS]
            assert counts == [8, 50, 50]
            resources = [topic_resource(topic) for topic in control_topics.CONTROL_TOPICS]
            configs = await describe_configs(cluster, resources, ["cleanup.policy"])
            for resource in resources:
                entries = configs[resource]
                assert isinstance(entries, dict)
                assert entries["cleanup.policy"].value == "compact"

    asyncio.run(run())


@pytest.mark.parametrize("hours", [48, -48])
def test_control_topics_accept_records_of_a_wrong_clock(
    any_kafka: LocalCluster, name: str, hours: int
) -> None:
    """Control topics accept its records: elsewhere brokers refuse timestamps in the future."""

    def wrong() -> float:
        return time.time() + hours * 3600

    async def run() -> None:
        async with client(any_kafka) as cluster:
            await create_control_topics(cluster, ControlTopics())
            writer = TransactionalWriter(cluster, f"{name}.8", clock=wrong)
            await writer.fence()
            state = PartitionState(MirrorPartition(name, "t", 0), State.PREPARING)
            await writer.write([state_entry(state, 8)])
            status = Status(state_partition=8, lane="l", node="n", time_ms=1, partitions=())
            answers = await append(cluster, [status_entry(status)], acks=ALL, clock=wrong)
            assert all(isinstance(answer, int) for answer in answers.values()), answers
            statuses, _ = await MirrorStore(cluster).statuses()
            assert statuses[8] == status
            assert (await MirrorStore(cluster).states()).states[state.partition] == state
            await writer.fence()
            await writer.write([forget_entry(state_entry(state, 8).key, 8)])

    asyncio.run(run())


def test_reading_a_new_destination_creates_no_control_topics(
    kafka: LocalCluster, monkeypatch: pytest.MonkeyPatch, fresh_name: Callable[[str], str]
) -> None:
    """A destination without control topics has no mirrors; reading does not create them."""
    for constant in ("CONFIG_TOPIC", "STATE_TOPIC", "STATUS_TOPIC"):
        monkeypatch.setattr(control_topics, constant, fresh_name(constant))
    monkeypatch.setattr(store_module, "CONFIG_TOPIC", control_topics.CONFIG_TOPIC)

    async def run() -> None:
        async with client(kafka) as cluster:
            store = MirrorStore(cluster)
            assert await store.snapshot() == Snapshot()
            assert (await store.states()).states == {}
            assert await store.statuses() == ({}, ())
            with pytest.raises(MirrorRefused, match="UNKNOWN_MIRROR"):
                await pause_topics(cluster, "m", ".*")
            assert control_topics.CONFIG_TOPIC not in (await cluster.refresh(None)).topics

    asyncio.run(run())


def test_control_topics_have_the_documented_names() -> None:
    """The names are part of the documented interface."""
    assert (CONFIG_TOPIC, STATE_TOPIC, STATUS_TOPIC) == (
        "__mirror_config",
        "__mirror_state",
        "__mirror_status",
    )


def test_tombstones_in_another_state_partition_delete_no_states(
    kafka: LocalCluster, name: str
) -> None:
    """A recreated topic has another state partition, and its states have the same keys."""

    async def run() -> None:
        async with two_stores(kafka) as (store, _, cluster):
            await store.create_mirror(mirror(name))
            count = await partition_count(cluster) or 0
            names = {place: MirrorPartition(name, f"{name}.{place}", 0) for place in (0, count - 1)}
            entries = [
                forget_entry(state_key(one), other)
                for place, one in names.items()
                for other in range(count)
                if other != place
            ]
            await put(cluster, entries)
            entries = [
                state_entry(PartitionState(one, State.STOPPED), place)
                for place, one in names.items()
            ]
            await put(cluster, entries)
            states = await store.states()
            assert {states.state(name) for name in names.values()} == {State.STOPPED}

    asyncio.run(run())
