"""A mirror of a second kind, in a real lane on real brokers: other names, and other offsets.

Everything outside of an engine has to ask for the destination's names and offsets: a place that
takes the source's for them finds no topic, or is off by five.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import librdkafka_tools
import pytest
from clients import commit, make_topic
from scene import Scene, reasons, scene
from shifted_engine import KIND, PREFIX, SHIFT, registered
from waiting import SECONDS, until_async

from conftest import Pair
from twinlog.engines.kinds import kind_named
from twinlog.engines.settings import LaneSettings
from twinlog.kafka.errors import UserError
from twinlog.kafka.groups.offsets import Committed, committed_offsets
from twinlog.kafka.requests.partitions import list_offsets
from twinlog.kafka.types import TopicPartition
from twinlog.lifecycle.changes import alter_mirror, remove_topics
from twinlog.mirror.states import State
from twinlog.operations.describe import PartitionDescription
from twinlog.operations.mirror_admin import MirrorAdmin
from twinlog.operations.readiness.reasons import Reason
from twinlog.runtime.lane import Lane, LaneConfig
from twinlog.store.config_records import MirrorTopic
from twinlog.sync.group_offsets import GroupSync
from twinlog.sync.group_selection import named_groups
from twinlog.verify.job import Sides, Stretch, VerifyTask, verify_task
from twinlog.verify.translated_reader import destination_bounds

pytestmark = pytest.mark.broker

RECORDS = 20


@asynccontextmanager
async def lane_of(setup: Scene) -> AsyncIterator[None]:
    """Run a lane that owns all state partitions."""
    config = LaneConfig(
        node="shifted-node",
        index=0,
        lanes=1,
        destination={"bootstrap.servers": setup.servers[1]},
        settings=LaneSettings(lease_s=2.0),
        group_id="twinlog",
        session_timeout_s=6.0,
    )
    running = asyncio.create_task(Lane(config).run())
    try:
        yield
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


async def added(setup: Scene, name: str) -> MirrorTopic:
    """Add a topic under another name; commands of this kind come with its engine."""
    await make_topic(setup.source, name)
    await make_topic(setup.destination, PREFIX + name)
    topics = [
        (await cluster.refresh([topic_name])).topics[topic_name]
        for cluster, topic_name in ((setup.source, name), (setup.destination, PREFIX + name))
    ]
    topic = MirrorTopic(
        mirror=setup.mirror,
        topic=name,
        topic_id=topics[0].topic_id,
        partitions=1,
        destination_topic=PREFIX + name,
        destination_topic_id=topics[1].topic_id,
    )
    await setup.store.change(lambda _: [topic])
    return topic


async def described(setup: Scene) -> PartitionDescription:
    async with MirrorAdmin(setup.user) as admin:
        (mirror,) = (await admin.describe_mirrors([setup.mirror])).mirrors
    (topic,) = mirror.topics
    (partition,) = topic.partitions
    return partition


async def caught_up(setup: Scene, records: int) -> None:
    async def all_is_there() -> bool:
        found = await described(setup)
        return found.state is State.MIRRORING and found.source_offset == records and not found.lag

    await until_async(all_is_there, SECONDS, f"{records} records to be mirrored")


def test_a_second_mirror_kind_is_mirrored_verified_and_removed(
    pair: Pair, fresh_name: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lane, ownership, statuses, describe, readiness, verify, groups, removal."""
    name, group = fresh_name("orders"), fresh_name("group")
    key = TopicPartition(name, 0)
    servers = pair.source.bootstrap_servers

    async def run() -> None:
        async with scene(pair, fresh_name("mirror"), {"mirror.kind": KIND}) as setup:
            topic = await added(setup, name)
            librdkafka_tools.write(servers, name, librdkafka_tools.simple(RECORDS))
            before = await setup.readiness(name)
            assert before.lag == RECORDS, "the destination is empty"
            async with lane_of(setup):
                await caught_up(setup, RECORDS)
                found = await described(setup)
                assert found.destination_offset == RECORDS + SHIFT
                assert found.mirrored_offset == RECORDS
                after = await setup.readiness(name)
                assert after.lag == 0
                assert (
                    not {Reason.DIVERGED, Reason.LAG, Reason.BEGINS_LATER} & reasons(after).keys()
                )

                await commit(setup.source, group, {key: Committed(7)})
                mirror = (await setup.store.snapshot()).mirrors[setup.mirror]
                translation = await kind_named(mirror.kind).translation(
                    setup.destination, [topic], mirror.source
                )
                sync = GroupSync(setup.destination)
                include = named_groups([re.compile(re.escape(group))])
                asked = (setup.source, setup.mirror, include, {key: topic.topic_id})
                assert await sync.sync(*asked, translation=translation) == 0
                copied = await committed_offsets(setup.destination, group)
                assert copied == {TopicPartition(PREFIX + name, 0): Committed(7 + SHIFT)}
                assert await sync.sync(*asked, translation=translation) == 0
                assert await committed_offsets(setup.destination, group) == copied

                bounds = (await destination_bounds(setup.destination, [key], translation))[key]
                assert (bounds.start, bounds.last_stable) == (0, RECORDS)
                task = VerifyTask(
                    source={"bootstrap.servers": servers},
                    destination={"bootstrap.servers": setup.servers[1]},
                    cluster_ids=Sides(setup.source.cluster_id, setup.destination.cluster_id),
                    topic_ids=Sides(topic.topic_id, topic.destination_topic_id or topic.topic_id),
                    stretches=[Stretch(key, 0, RECORDS, compacted=False)],
                    translation=translation,
                )
                (compared,) = await asyncio.to_thread(verify_task, task)
                assert not compared.unseen
                # The copies have times of their own, and nothing else that differs.
                assert compared.tally.compared + compared.tally.differs == RECORDS
                assert {difference.reason for difference in compared.differences} == {
                    "the timestamp differs"
                }

                await remove_topics(setup.destination, setup.mirror, name)

                async def stopped() -> bool:
                    return (await described(setup)).state is State.STOPPED

                await until_async(stopped, SECONDS, "STOPPED")
                assert (await described(setup)).last_mirrored_end == RECORDS + SHIFT
                librdkafka_tools.write(servers, name, librdkafka_tools.simple(1))
                await asyncio.sleep(1)
                assert await one_end(setup, PREFIX + name) == RECORDS + SHIFT

    with registered(monkeypatch):
        asyncio.run(run())


async def one_end(setup: Scene, topic: str) -> int:
    key = TopicPartition(topic, 0)
    return (await list_offsets(setup.destination, [key]))[key].offset  # type: ignore[union-attr]


def test_an_unknown_mirror_kind_fails_partitions_and_commands(
    pair: Pair, fresh_name: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newer version has made the mirror: its partitions are FAILED and say why; no command."""
    name = fresh_name("orders")

    async def run() -> None:
        with registered(monkeypatch):
            async with scene(pair, fresh_name("mirror"), {"mirror.kind": KIND}) as setup:
                await added(setup, name)
                with pytest.raises(UserError, match="cannot be altered"):
                    await alter_mirror(setup.destination, setup.mirror, {"mirror.kind": "exact"})
                monkeypatch.setattr("twinlog.engines.kinds.KINDS", {"exact": kind_named("exact")})
                monkeypatch.setattr(
                    "twinlog.runtime.mirror_engines.KINDS", {"exact": kind_named("exact")}
                )
                async with lane_of(setup):

                    async def failed() -> bool:
                        return (await described(setup)).state is State.FAILED

                    await until_async(failed, SECONDS, "FAILED")
                    reason = (await described(setup)).reason
                    assert reason == f"this version of twinlog has no engine for mirror.kind={KIND}"
                with pytest.raises(UserError, match=f"no engine for mirror.kind={KIND}"):
                    await setup.readiness(name)

    asyncio.run(run())
