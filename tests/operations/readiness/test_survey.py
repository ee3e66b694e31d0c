"""The survey of readiness, on real brokers; records that lanes would write are written by hand."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import librdkafka_tools
import pytest
from clients import client, describe_quorum, make_topic
from scene import RECORDS, Scene, foreign_member, reasons, scene, write
from waiting import until_async

from conftest import Pair
from twinlog.interfaces.cli.readiness import _sentence
from twinlog.kafka.errors import UserError
from twinlog.kafka.requests.partitions import delete_records
from twinlog.kafka.requests.topics import (
    Alteration,
    AlterOperation,
    delete_topics,
    incremental_alter_configs,
    topic_resource,
)
from twinlog.kafka.types import TopicPartition
from twinlog.lifecycle.creation import add_topics
from twinlog.local.cluster import LocalCluster
from twinlog.mirror.placement import config_partition
from twinlog.mirror.states import State
from twinlog.operations.mirror_admin import MirrorAdmin
from twinlog.operations.readiness.reasons import Reason, Verdict
from twinlog.operations.readiness.survey import source_logs
from twinlog.store import statuses
from twinlog.store.config_records import Wanted, encode_key
from twinlog.store.control_topics import (
    CONFIG_TOPIC,
    LANES_GROUP,
    ControlTopics,
    create_control_topics,
)
from twinlog.store.topic_writer import Entry
from twinlog.sync.base import METADATA
from twinlog.sync.refresh import Refresher

pytestmark = pytest.mark.broker


@asynccontextmanager
async def refreshing(setup: Scene) -> AsyncIterator[Refresher]:
    """Run a refresher of a node that owns the mirror."""
    snapshot = await setup.store.snapshot()
    only = replace(snapshot, records={("mirror", setup.mirror): snapshot.mirrors[setup.mirror]})
    refresher = Refresher(setup.destination, setup.store, lambda: only)
    await refresher.on_assigned(set(range(8)))
    task = asyncio.create_task(refresher.run())
    try:
        yield refresher
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_unmirrored_source_topics_are_reported_with_the_reason(
    pair: Pair, fresh_name: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    """Each has its reason in readiness (also of a dead source), in --describe, and is counted."""
    prefix = fresh_name("topic")
    good, taken, again, new = (f"{prefix}-{name}" for name in ("good", "taken", "again", "new"))

    async def run() -> None:
        async with scene(pair, fresh_name("mirror")) as setup:
            await make_topic(setup.source, good)
            await make_topic(setup.source, again)
            await add_topics(setup.destination, setup.mirror, f"{prefix}-.*")
            await make_topic(setup.destination, taken, 3)
            await make_topic(setup.source, taken, 2)
            assert "not discovered yet" in (await setup.readiness()).not_mirrored[taken]
            async with refreshing(setup) as refresher:
                await delete_topics(setup.source, [again])

                async def stopped() -> bool:
                    found = await setup.topic(again)
                    return found is not None and found.wanted is Wanted.STOPPED

                await until_async(stopped, what="the deleted topic's end")
                await make_topic(setup.source, again)

                async def stored() -> bool:
                    found = (await setup.store.snapshot()).not_mirrored(setup.mirror)
                    return dict(found.topics).keys() == {taken, again}

                await until_async(stored, what="both topics named")
                before = refresher.errors[setup.mirror, METADATA]

                async def counted() -> bool:
                    return refresher.errors[setup.mirror, METADATA] >= before + 4

                await until_async(counted, what="both topics, counted at each refresh")
            for name in (taken, again):
                logged = [r for r in caplog.messages if f"{name} is not mirrored: " in r]
                assert len(logged) == 1, "named once"
            await make_topic(setup.source, new)
            found = await setup.readiness()
            assert found.verdict is not Verdict.READY
            assert not found.lag_is_all
            assert "3 source topic(s) are not mirrored" in reasons(found)[Reason.NOT_MIRRORED]
            assert "TOPIC_ALREADY_EXISTS" in found.not_mirrored[taken]
            assert "deleted and recreated" in found.not_mirrored[again]
            assert "not discovered yet" in found.not_mirrored[new]
            only = await setup.readiness(good)
            assert Reason.NOT_MIRRORED not in reasons(only), "not what was asked for"
            async with MirrorAdmin({"bootstrap.servers": setup.servers[1]}) as admin:
                (described,) = (await admin.describe_mirrors([setup.mirror])).mirrors
            assert dict(described.not_mirrored.topics).keys() == {taken, again}
            await setup.source_dies()
            found = await setup.readiness()
            assert found.not_mirrored.keys() == {taken, again}, "as the last refresh has stored"

    asyncio.run(run())


def test_partitions_without_a_fresh_status_are_not_mirrored(pair: Pair, topic: str) -> None:
    """Neither a stored state nor an old status with lag 0 shows that a lane runs."""

    async def run() -> None:
        async with scene(pair, f"mirror.{topic}") as setup:
            mirrored = await setup.mirrored(topic)
            await setup.report(mirrored, State.MIRRORING)
            assert Reason.NOT_MIRRORING not in reasons(await setup.readiness())
            for age_s in (60.0, -60.0):
                await setup.report(mirrored, State.MIRRORING, age_s=age_s)
                found = await setup.readiness()
                assert found.verdict is Verdict.NOT_READY
                assert "the last stored state is MIRRORING" in reasons(found)[Reason.NOT_MIRRORING]
                async with MirrorAdmin({"bootstrap.servers": setup.servers[1]}) as admin:
                    (described,) = (await admin.describe_mirrors([setup.mirror])).mirrors
                shown = described.topics[0].partitions[0]
                assert (shown.state, shown.lag, shown.fresh) == (State.UNKNOWN, -1, False)

    asyncio.run(run())


def test_a_changing_status_is_fresh_despite_a_wrong_lane_clock(
    pair: Pair, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A status that seems an hour old is fresh if it is seen to change."""
    monkeypatch.setattr(statuses, "WATCH_S", 60.0)  # for writes on a busy machine

    async def run() -> None:
        async with scene(pair, f"mirror.{topic}") as setup:
            mirrored = await setup.mirrored(topic)
            await setup.report(mirrored, State.MIRRORING, age_s=3600)
            with foreign_member(setup, topic):
                asking = asyncio.create_task(setup.readiness())
                while not asking.done():
                    await asyncio.sleep(1)
                    await setup.report(mirrored, State.MIRRORING, age_s=3600)
                found = asking.result()
            assert Reason.NOT_MIRRORING not in reasons(found), reasons(found)
            # The time of the last contact with the source is known, too.
            await setup.source_dies()
            with foreign_member(setup, topic):
                asking = asyncio.create_task(setup.readiness())
                while not asking.done():
                    await asyncio.sleep(1)
                    await setup.report(mirrored, State.MIRRORING, age_s=3600)
                found = asking.result()
            assert found.source_age_ms is not None
            assert found.source_age_ms < 60_000

    asyncio.run(run())


def test_a_foreign_member_of_the_lanes_group_is_named(pair: Pair, topic: str) -> None:
    """A foreign member is named, with its host and its subscription."""

    async def run() -> None:
        async with scene(pair, f"mirror.{topic}") as setup:
            await setup.report(await setup.mirrored(topic), State.MIRRORING)
            with foreign_member(setup, topic):

                async def named() -> str:
                    return reasons(await setup.readiness()).get(Reason.FOREIGN_MEMBER, "")

                text = await until_async(named, what="the member")
            assert f"group {LANES_GROUP}: member " in text
            assert f"it subscribes to {topic}, expected __mirror_state" in text

    asyncio.run(run())


def test_the_lag_of_a_paused_topic_of_a_dead_source_is_unknown(pair: Pair, topic: str) -> None:
    """The loss is unknown: a status written at the pause does not show the source's present end."""

    async def run() -> None:
        async with scene(pair, f"mirror.{topic}") as setup:
            await setup.report(await setup.mirrored(topic), State.PAUSED)
            librdkafka_tools.write(setup.servers[0], topic, librdkafka_tools.simple(7))
            found = await setup.readiness()
            assert (found.lag, found.lag_is_all) == (7, True), "asked while it is there"
            await setup.source_dies()
            found = await setup.readiness()
            assert found.lag is None
            assert reasons(found).keys() >= {
                Reason.SOURCE_UNREACHABLE,
                Reason.SOURCE_UNREADABLE,
                Reason.PAUSED,
            }
            assert "unknown what would be lost" in _sentence(
                replace(found, verdict=Verdict.WARNING)
            )

    asyncio.run(run())


def test_foreign_records_are_reported_for_a_dead_source(pair: Pair, topic: str) -> None:
    """With a dead source, a log longer than its owner reports has foreign records."""

    async def run() -> None:
        async with scene(pair, f"mirror.{topic}") as setup:
            mirrored = await setup.mirrored(topic)
            await setup.report(mirrored, State.MIRRORING)
            await setup.source_dies()
            assert Reason.FOREIGN_RECORDS not in reasons(await setup.readiness())
            librdkafka_tools.write(
                setup.servers[1], topic, librdkafka_tools.simple(3, text="foreign")
            )
            found = await setup.asked_while_reported(mirrored, RECORDS)
            assert f"ends at {RECORDS + 3}" in reasons(found)[Reason.FOREIGN_RECORDS]
            assert f"reports {RECORDS}" in reasons(found)[Reason.FOREIGN_RECORDS]
            # The mirror itself may have written them, after the first read of the status.
            await setup.report(mirrored, State.MIRRORING)
            found = await setup.asked_while_reported(mirrored, RECORDS + 3)
            assert Reason.FOREIGN_RECORDS not in reasons(found)
            assert Reason.NOT_COMPARED not in reasons(found)
            # Nothing is concluded where a lane has died meanwhile.
            await setup.report(mirrored, State.MIRRORING)
            found = await setup.readiness()
            assert Reason.FOREIGN_RECORDS not in reasons(found)
            assert Reason.NOT_MIRRORING in reasons(found)

    asyncio.run(run())


def test_foreign_records_in_a_paused_topic_are_reported(pair: Pair, topic: str) -> None:
    """Foreign records are also found while the source is reachable."""

    async def run() -> None:
        async with scene(pair, f"mirror.{topic}") as setup:
            await setup.report(await setup.mirrored(topic), State.PAUSED)
            assert Reason.FOREIGN_RECORDS not in reasons(await setup.readiness())
            librdkafka_tools.write(
                setup.servers[1], topic, librdkafka_tools.simple(3, text="foreign")
            )
            assert Reason.FOREIGN_RECORDS in reasons(await setup.readiness())

    asyncio.run(run())


def test_a_recreated_destination_topic_is_reported(pair: Pair, topic: str) -> None:
    """The name is the same, but the log is not the mirror's, whatever the last status reports."""

    async def run() -> None:
        async with scene(pair, f"mirror.{topic}") as setup:
            mirrored = await setup.mirrored(topic)
            await delete_topics(setup.destination, [topic])

            async def gone() -> bool:
                return topic not in (await setup.destination.refresh([topic])).topics

            await until_async(gone)
            await make_topic(setup.destination, topic)
            librdkafka_tools.write_same(setup.servers[1], topic, 0, 0, RECORDS)
            await setup.report(mirrored, State.MIRRORING)
            found = await setup.readiness()
            assert found.verdict is Verdict.NOT_READY
            assert Reason.DESTINATION_RECREATED in reasons(found)

    asyncio.run(run())


def test_unreadable_control_records_are_reported(pair: Pair, topic: str) -> None:
    """A configuration record of a later version may hide a topic."""

    async def run() -> None:
        async with scene(pair, f"mirror.{topic}") as setup:
            await setup.report(await setup.mirrored(topic), State.MIRRORING)
            key = f'["topic","{setup.mirror}","{topic}-other"]'.encode()
            place = config_partition(setup.mirror, 8)
            await write(setup.destination, Entry(CONFIG_TOPIC, place, key, b'{"version":99}'))
            found = await setup.readiness()
            assert f"{CONFIG_TOPIC}-{place}, offset " in reasons(found)[Reason.CONTROL_UNREADABLE]
            assert not found.lag_is_all
            await write(setup.destination, Entry(CONFIG_TOPIC, place, key, None))

    asyncio.run(run())


def test_a_topic_that_the_source_may_mirror_back_is_named(pair: Pair, topic: str) -> None:
    """The source's record of one is unreadable: the topic is not added, and named."""
    good, other = f"{topic}-good", f"{topic}-other"
    entry = Entry(CONFIG_TOPIC, 0, encode_key(("topic", topic, other)), b'{"version":99}')

    async def run() -> None:
        async with scene(pair, f"mirror.{topic}") as setup:
            await make_topic(setup.source, good)
            await add_topics(setup.destination, setup.mirror, f"{topic}-.*")
            await create_control_topics(setup.source, ControlTopics())
            await write(setup.source, entry)
            await make_topic(setup.source, other)
            with pytest.raises(UserError, match="whether the source mirrors"):
                await add_topics(setup.destination, setup.mirror, other)
            assert "expected 1" in (await setup.readiness()).not_mirrored[other]
            async with refreshing(setup):

                async def stored() -> bool:
                    found = (await setup.store.snapshot()).not_mirrored(setup.mirror)
                    return "expected 1" in dict(found.topics).get(other, "")

                await until_async(stored, what="the topic named")
                await write(setup.source, entry._replace(value=None))

                async def added() -> bool:
                    return await setup.topic(other) is not None

                await until_async(added, what="the topic, whose record is gone")

    asyncio.run(run())


def test_records_deleted_on_the_destination_are_reported(pair: Pair, topic: str) -> None:
    """Mirroring goes on, without lag, when a changed retention deletes records there.

    Records that the source's own retention may delete at any moment are not counted.
    """
    partition = TopicPartition(topic, 0)

    async def run() -> None:
        async with scene(pair, f"mirror.{topic}") as setup:
            mirrored = await setup.mirrored(topic)
            await setup.report(mirrored, State.MIRRORING)
            assert Reason.BEGINS_LATER not in reasons(await setup.readiness())
            assert await delete_records(setup.destination, {partition: 7}) == {partition: 7}
            await setup.report(mirrored, State.MIRRORING)
            found = await setup.readiness()
            assert "deleted offsets [0, 7)" in reasons(found)[Reason.BEGINS_LATER]
            assert (found.lag, found.lag_is_all) == (0, False)
            assert await delete_records(setup.source, {partition: 5}) == {partition: 5}
            assert "deleted offsets [5, 7)" in reasons(await setup.readiness())[Reason.BEGINS_LATER]
            short = Alteration("retention.ms", AlterOperation.SET, "1000")
            refused = await incremental_alter_configs(
                setup.source, {topic_resource(topic): [short]}
            )
            assert not any(refused.values())

            async def expired() -> bool:
                return Reason.BEGINS_LATER not in reasons(await setup.readiness())

            await until_async(expired, what="records that have expired on the source")

    asyncio.run(run())


def test_a_compacted_topic_behind_its_tombstones_is_reported(pair: Pair, topic: str) -> None:
    """A node stores that it was behind for longer than tombstones are kept; the finding stays."""

    async def run() -> None:
        async with scene(pair, f"mirror.{topic}") as setup:
            configs = {"cleanup.policy": "compact", "delete.retention.ms": "2000"}
            await make_topic(setup.source, topic, configs=configs)
            await add_topics(setup.destination, setup.mirror, topic)
            async with refreshing(setup):

                async def missed() -> bool:
                    found = (await setup.store.snapshot()).followed(setup.mirror, topic)
                    return found is not None and found.behind_ms > 0

                await until_async(missed, what="a topic that was behind")
            found = await setup.readiness()
            assert "longer than the source's" in reasons(found)[Reason.COMPACTION_MISSED]
            assert not found.lag_is_all

    asyncio.run(run())


def test_acknowledged_records_above_the_high_watermark_are_counted(
    trio: LocalCluster, topic: str
) -> None:
    """With acks=1 they are above the high watermark; the leader's log end offset counts them."""

    async def run() -> None:
        partition = TopicPartition(topic, 0)
        async with client(trio) as source:
            # Even if the paused broker is no longer in sync, the high watermark waits for it.
            configs = {"min.insync.replicas": "3"}
            await make_topic(source, topic, replication_factor=3, configs=configs)
            librdkafka_tools.write(
                trio.bootstrap_servers, topic, librdkafka_tools.simple(5), acks="all"
            )
            leader = (await source.leaders([partition]))[partition].node_id  # type: ignore[union-attr]
            controller = (await describe_quorum(trio)).leader
            follower = next(n for n in trio.node_ids if n not in (leader, controller))
            trio.pause(follower)
            try:
                late = librdkafka_tools.simple(3, text="late")
                await asyncio.to_thread(
                    librdkafka_tools.write,
                    *(trio.bootstrap_servers, topic, late),
                    acks="1",
                    enable_idempotence=False,
                )
                log = (await source_logs(source, [partition]))[partition]
            finally:
                trio.resume(follower)
            assert (log.high_watermark, log.log_end, log.end) == (5, 8, 8)

    asyncio.run(run())
