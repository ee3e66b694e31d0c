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
from clients import make_topic
from scene import Scene, reasons, scene
from shifted_engine import KIND, PREFIX, SHIFT, registered
from waiting import until_async

from conftest import Pair
from twinlog.engines.kinds import kind_named
from twinlog.engines.settings import LaneSettings
from twinlog.kafka.errors import UserError
from twinlog.kafka.groups.offsets import Committed, commit_offsets, committed_offsets
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
from twinlog.verify.job import Sides, Stretch, VerifyTask, verify_task
from twinlog.verify.translated_reader import destination_bounds

pytestmark = pytest.mark.broker

RECORDS = 20
SECONDS = 60.0


@asynccontextmanager
async def lane_of(one: Scene) -> AsyncIterator[None]:
    """Run a lane that owns all state partitions."""
    config = LaneConfig(
        node="shifted-node",
        index=0,
        lanes=1,
        destination={"bootstrap.servers": one.servers[1]},
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


async def added(one: Scene, name: str) -> MirrorTopic:
    """Add a topic under another name; commands of this kind come with its engine."""
    await make_topic(one.source, name)
    await make_topic(one.destination, PREFIX + name)
    topics = [
        (await cluster.refresh([its])).topics[its]
        for cluster, its in ((one.source, name), (one.destination, PREFIX + name))
    ]
    topic = MirrorTopic(
        mirror=one.mirror,
        topic=name,
        topic_id=topics[0].topic_id,
        partitions=1,
        destination_topic=PREFIX + name,
        destination_topic_id=topics[1].topic_id,
    )
    await one.store.change(lambda _: [topic])
    return topic


async def described(one: Scene) -> PartitionDescription:
    async with MirrorAdmin(one.user) as admin:
        (mirror,) = (await admin.describe_mirrors([one.mirror])).mirrors
    (topic,) = mirror.topics
    (partition,) = topic.partitions
    return partition


async def caught_up(one: Scene, records: int) -> None:
    async def all_is_there() -> bool:
        found = await described(one)
        return found.state is State.MIRRORING and found.source_offset == records and not found.lag

    await until_async(all_is_there, SECONDS, f"{records} records to be mirrored")


def test_another_kind_of_mirror(
    pair: Pair, fresh_name: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lane, ownership, statuses, describe, readiness, verify, groups, removal."""
    name, group = fresh_name("orders"), fresh_name("group")
    key = TopicPartition(name, 0)
    servers = pair.source.bootstrap_servers

    async def run() -> None:
        async with scene(pair, fresh_name("mirror"), {"mirror.kind": KIND}) as one:
            topic = await added(one, name)
            librdkafka_tools.write(servers, name, librdkafka_tools.simple(RECORDS))
            before = await one.readiness(name)
            assert before.lag == RECORDS, "the destination is empty"
            async with lane_of(one):
                await caught_up(one, RECORDS)
                found = await described(one)
                assert found.destination_offset == RECORDS + SHIFT
                assert found.mirrored_offset == RECORDS
                after = await one.readiness(name)
                assert after.lag == 0
                assert (
                    not {Reason.DIVERGED, Reason.LAG, Reason.BEGINS_LATER} & reasons(after).keys()
                )

                await commit_offsets(one.source, group, {key: Committed(7)})
                mirror = (await one.store.snapshot()).mirrors[one.mirror]
                translation = await kind_named(mirror.kind).translation(one.destination, [topic])
                sync = GroupSync(one.destination)
                include = [re.compile(re.escape(group))]
                asked = (one.source, one.mirror, include, {key: topic.topic_id})
                assert await sync.sync(*asked, translation=translation) == 0
                copied = await committed_offsets(one.destination, group)
                assert copied == {TopicPartition(PREFIX + name, 0): Committed(7 + SHIFT)}
                assert await sync.sync(*asked, translation=translation) == 0
                assert await committed_offsets(one.destination, group) == copied

                bounds = (await destination_bounds(one.destination, [key], translation))[key]
                assert (bounds.start, bounds.last_stable) == (0, RECORDS)
                task = VerifyTask(
                    source={"bootstrap.servers": servers},
                    destination={"bootstrap.servers": one.servers[1]},
                    cluster_ids=Sides(one.source.cluster_id, one.destination.cluster_id),
                    topic_ids=Sides(topic.topic_id, topic.destination_topic_id or topic.topic_id),
                    stretches=[Stretch(key, 0, RECORDS, compacted=False)],
                    translation=translation,
                )
                (compared,) = await asyncio.to_thread(verify_task, task)
                assert not compared.unseen
                # The copies have times of their own, and nothing else that differs.
                assert compared.tally.compared + compared.tally.differs == RECORDS
                assert {one.reason for one in compared.differences} == {"the timestamp differs"}

                await remove_topics(one.destination, one.mirror, name)

                async def stopped() -> bool:
                    return (await described(one)).state is State.STOPPED

                await until_async(stopped, SECONDS, "STOPPED")
                assert (await described(one)).last_mirrored_end == RECORDS + SHIFT
                librdkafka_tools.write(servers, name, librdkafka_tools.simple(1))
                await asyncio.sleep(1)
                assert await one_end(one, PREFIX + name) == RECORDS + SHIFT

    with registered(monkeypatch):
        asyncio.run(run())


async def one_end(one: Scene, topic: str) -> int:
    key = TopicPartition(topic, 0)
    return (await list_offsets(one.destination, [key]))[key].offset  # type: ignore[union-attr]


def test_a_kind_that_this_version_does_not_have(
    pair: Pair, fresh_name: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newer version has made the mirror: its partitions are FAILED and say why; no command."""
    name = fresh_name("orders")

    async def run() -> None:
        with registered(monkeypatch):
            async with scene(pair, fresh_name("mirror"), {"mirror.kind": KIND}) as one:
                await added(one, name)
                with pytest.raises(UserError, match="cannot be altered"):
                    await alter_mirror(one.destination, one.mirror, {"mirror.kind": "exact"})
                monkeypatch.setattr("twinlog.engines.kinds.KINDS", {"exact": kind_named("exact")})
                monkeypatch.setattr(
                    "twinlog.runtime.mirror_engines.KINDS", {"exact": kind_named("exact")}
                )
                async with lane_of(one):

                    async def failed() -> bool:
                        return (await described(one)).state is State.FAILED

                    await until_async(failed, SECONDS, "FAILED")
                    reason = (await described(one)).reason
                    assert reason == f"this version of twinlog has no engine for mirror.kind={KIND}"
                with pytest.raises(UserError, match=f"no engine for mirror.kind={KIND}"):
                    await one.readiness(name)

    asyncio.run(run())
