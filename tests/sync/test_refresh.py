"""The refresh of a mirror's topics, on real brokers, without lanes."""

import asyncio
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import librdkafka_tools
import pytest
from clients import client, commit, make_topic, topic_configs, write_state
from prometheus_client.parser import text_string_to_metric_families
from readiness_check import find_readiness
from shifted_engine import KIND, registered
from sync_contexts import sync_context
from waiting import until_async

from conftest import Pair
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import UserError
from twinlog.kafka.groups.offsets import Committed, committed_offsets
from twinlog.kafka.requests.partitions import delete_records
from twinlog.kafka.requests.topics import (
    Alteration,
    AlterOperation,
    create_partitions,
    delete_topics,
    incremental_alter_configs,
    topic_resource,
)
from twinlog.kafka.types import TopicPartition
from twinlog.lifecycle.changes import alter_mirror, pause_topics, remove_topics
from twinlog.lifecycle.creation import add_topics, create_mirror
from twinlog.local.cluster import LocalCluster
from twinlog.local.processes import SHORT_LIVED
from twinlog.mirror.errors import MirrorRefused
from twinlog.mirror.states import State
from twinlog.node.metrics import exposition
from twinlog.node.observation import Observed
from twinlog.operations.readiness.reasons import Reason
from twinlog.operations.readiness.verdict import Readiness
from twinlog.store.config_records import MirrorTopic, Wanted
from twinlog.store.mirrors import MirrorStore
from twinlog.store.snapshot import Snapshot
from twinlog.sync.base import METADATA, run_sync
from twinlog.sync.compaction import Compaction, topic_behind_ms
from twinlog.sync.group_offsets import GroupSync
from twinlog.sync.group_selection import named_groups
from twinlog.sync.refresh import Refresher

pytestmark = pytest.mark.broker


@asynccontextmanager
async def refreshing(
    destination: KafkaCluster, latest: Callable[[], Snapshot] | None = None
) -> AsyncIterator[Refresher]:
    """Run a refresher that owns all mirrors, or those that `latest` gives."""
    store = MirrorStore(destination)
    snapshot = await store.snapshot()
    refresher = Refresher(destination, store, latest or (lambda: snapshot))
    await refresher.on_assigned(set(range(8)))
    task = asyncio.create_task(refresher.run())
    try:
        yield refresher
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def topics_of(destination: KafkaCluster, mirror: str) -> dict[str, MirrorTopic]:
    snapshot = await MirrorStore(destination).snapshot()
    return {topic.topic: topic for topic in snapshot.topics if topic.mirror == mirror}


def test_a_refresh_adds_grows_and_stops_topics(
    pair: Pair, fresh_name: Callable[[str], str]
) -> None:
    """Matching topics are added while the expression exists; deleted source topics are stopped."""
    mirror, prefix = fresh_name("mirror"), fresh_name("topic")
    a, b, c, taken = (f"{prefix}-{letter}" for letter in ("a", "b", "c", "taken"))
    pattern = f"{prefix}-.*"

    async def run() -> None:
        async with client(pair.source) as source, client(pair.destination) as destination:
            await make_topic(source, a)
            properties = {
                "bootstrap.servers": pair.source.bootstrap_servers,
                "mirror.metadata.refresh.interval.ms": "1000",
            }
            await create_mirror(destination, mirror, properties)
            assert await add_topics(destination, mirror, pattern) == [a]
            async with refreshing(destination) as refresher:
                # A topic that cannot be added holds up no other topic, and is counted.
                await make_topic(destination, taken, 3)
                await make_topic(source, taken, 2)
                await make_topic(source, b, 2)

                async def added() -> bool:
                    return b in await topics_of(destination, mirror)

                await until_async(added, what=f"{b} in the mirror")

                async def counted() -> bool:
                    return refresher.errors[mirror, METADATA] > 0

                await until_async(counted, what="an error that is counted")
                await create_partitions(source, {b: 4})
                await delete_topics(source, [a])

                async def followed() -> bool:
                    now = await topics_of(destination, mirror)
                    return now[a].wanted is Wanted.STOPPED and now[b].partitions == 4

                await until_async(followed, what="one topic stopped, one grown")
                now = await topics_of(destination, mirror)
                assert now[b].wanted is Wanted.MIRRORING
                assert taken not in now
                await remove_topics(destination, mirror, pattern)
                await make_topic(source, c)
                await asyncio.sleep(3)
                assert c not in await topics_of(destination, mirror)
            metadata = await destination.refresh([a, b])
            assert metadata.topics.keys() >= {a, b}, "they stay on the destination"
            for name in (a, b):
                assert now[name].destination_topic_id == metadata.topics[name].topic_id

    asyncio.run(run())


def test_partitions_added_by_another_client_are_counted(
    pair: Pair, fresh_name: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    """They are counted at each refresh; a growing source uses them, if they never had records."""
    mirror, prefix = fresh_name("mirror"), fresh_name("topic")
    empty, emptied = f"{prefix}-empty", f"{prefix}-emptied"

    async def run() -> None:
        async with client(pair.source) as source, client(pair.destination) as destination:
            for name in (empty, emptied):
                await make_topic(source, name)
            properties = {
                "bootstrap.servers": pair.source.bootstrap_servers,
                "mirror.metadata.refresh.interval.ms": "1000",
            }
            await create_mirror(destination, mirror, properties)
            await add_topics(destination, mirror, f"{prefix}-.*")
            servers = pair.destination.bootstrap_servers
            for name in (empty, emptied):
                await asyncio.to_thread(librdkafka_tools.grow_topic, servers, name, 3)
            extra = TopicPartition(emptied, 1)
            await asyncio.to_thread(
                librdkafka_tools.write, servers, emptied, librdkafka_tools.simple(5, 1)
            )
            assert (await delete_records(destination, {extra: 5}))[extra] == 5
            async with refreshing(destination) as refresher:

                async def counted() -> bool:
                    return refresher.errors[mirror, METADATA] >= 4

                await until_async(counted, what="both topics, twice")
                for name in (empty, emptied):
                    assert f"{name} has 3 partitions, 1 are mirrored" in caplog.text
                await create_partitions(source, {empty: 2, emptied: 2})

                async def grown() -> bool:
                    return (await topics_of(destination, mirror))[empty].partitions == 2

                await until_async(grown, what="one that has grown")

                async def refused() -> bool:
                    return "held records up to offset 5" in caplog.text

                await until_async(refused, what="one that cannot grow")
                assert (await topics_of(destination, mirror))[emptied].partitions == 1

    asyncio.run(run())


def test_a_topic_with_a_refused_configuration_is_reported(
    pair: Pair, kafka_391: LocalCluster, fresh_name: Callable[[str], str]
) -> None:
    """Goal: D3: it is not mirrored, which readiness and a metric report, with the reason.

    Brokers before 4.0 accept smaller segments than those of 4.x (KIP-1030).
    """
    mirror, prefix = fresh_name("mirror"), fresh_name("topic")
    good, small = f"{prefix}-good", f"{prefix}-small"
    servers = pair.destination.bootstrap_servers

    async def readiness() -> Readiness:
        return await find_readiness({"bootstrap.servers": servers}, mirror, ".*")

    async def run() -> None:
        async with client(kafka_391) as source, client(pair.destination) as destination:
            await make_topic(source, good)
            properties = {
                "bootstrap.servers": kafka_391.bootstrap_servers,
                "mirror.metadata.refresh.interval.ms": "1000",
            }
            await create_mirror(destination, mirror, properties)
            await add_topics(destination, mirror, f"{prefix}-.*")
            assert await not_mirrored_metric(destination, mirror) == 0
            await make_topic(source, small, configs={"segment.bytes": "100000"})
            with pytest.raises(UserError, match="INVALID_CONFIG"):
                await add_topics(destination, mirror, small)
            async with refreshing(destination):

                async def counted() -> bool:
                    return await not_mirrored_metric(destination, mirror) == 1

                await until_async(counted, what="the topic in the metric")
            found = await readiness()
            assert found.not_mirrored.keys() == {small}
            assert "INVALID_CONFIG" in found.not_mirrored[small]
            assert "segment.bytes" in found.not_mirrored[small]
            texts = [
                finding.text for finding in found.findings if finding.reason is Reason.NOT_MIRRORED
            ]
            assert texts == [
                f"1 source topic(s) are not mirrored: {small} ({found.not_mirrored[small]})"
            ]
            assert not found.lag_is_all, "its records are counted by no lag"
            await alter_mirror(
                destination, mirror, {"mirror.topic.properties.exclude": "segment.bytes"}
            )
            async with refreshing(destination):

                async def added() -> bool:
                    return await not_mirrored_metric(destination, mirror) == 0

                await until_async(added, what="the topic without the configuration")
            assert small in await topics_of(destination, mirror)
            assert not (await readiness()).not_mirrored

    asyncio.run(run())


def test_a_topic_no_longer_compacted_misses_no_further_tombstones(pair: Pair, topic: str) -> None:
    """Goal: E2: its source keeps tombstones from now on, so no further ones are missed.

    Tombstones missed before stay missed, however long ago that was.
    """
    day_ms = 24 * 3600 * 1000
    both = {"never": f"{topic}-never", "once": f"{topic}-once"}
    mirror = f"mirror.{topic}"

    async def run() -> None:
        async with client(pair.source) as source, client(pair.destination) as destination:
            store = MirrorStore(destination)
            await create_mirror(
                destination, mirror, {"bootstrap.servers": pair.source.bootstrap_servers}
            )
            for name in both.values():
                await make_topic(source, name, configs={"cleanup.policy": "compact"})
                await add_topics(destination, mirror, name)
            now_ms = time.time_ns() // 1_000_000

            async def check(after_ms: int, *names: str) -> dict[str, int | None]:
                """Return for how long they were behind, after a check by a newly started node."""
                compaction = Compaction(lambda: now_ms + after_ms)
                snapshot = await store.snapshot()
                topics = {topic.topic: topic for topic in snapshot.topics if topic.mirror == mirror}
                checked = [topics[name] for name in names]
                context = sync_context(
                    *(source, destination, store, mirror), snapshot=snapshot, topics=checked
                )
                assert await run_sync(compaction, context) == 0
                snapshot = await store.snapshot()
                return {
                    key: topic_behind_ms(snapshot, topics[name], now_ms + after_ms)
                    for key, name in both.items()
                }

            assert await check(-3 * day_ms, *both.values()) == {"never": 0, "once": 0}
            found = await check(-day_ms, both["once"])
            assert found["once"] is not None
            assert day_ms < found["once"] <= 2 * day_ms
            missed = found["once"]
            changes = {
                topic_resource(name): [Alteration("cleanup.policy", AlterOperation.SET, "delete")]
                for name in both.values()
            }
            assert not any((await incremental_alter_configs(source, changes)).values())
            for name in both.values():

                async def shown(name: str = name) -> bool:
                    return (await topic_configs(source, name))["cleanup.policy"].value == "delete"

                await until_async(shown, what=f"the policy of {name}")
            for after_ms in (0, 5 * day_ms):
                found = await check(after_ms, *both.values())
                assert not found["never"]
                assert found["once"] == missed

    asyncio.run(run())


def test_a_compacted_topic_paused_at_once_is_behind(pair: Pair, topic: str) -> None:
    """Goal: E2: a topic that no check has seen before its pause is behind from then on.

    Without it, the first check after the pause was the baseline, and missed tombstones were not
    reported.
    """
    mirror = f"mirror.{topic}"

    async def run() -> None:
        async with client(pair.source) as source, client(pair.destination) as destination:
            store = MirrorStore(destination)
            properties = {
                "bootstrap.servers": pair.source.bootstrap_servers,
                "mirror.metadata.refresh.interval.ms": "1000",
            }
            await create_mirror(destination, mirror, properties)
            await make_topic(source, topic, configs={"cleanup.policy": "compact"})
            await add_topics(destination, mirror, topic)
            await pause_topics(destination, mirror, topic)
            async with refreshing(destination):

                async def tracked() -> bool:
                    return (await store.snapshot()).followed(mirror, topic) is not None

                await until_async(tracked, what="a baseline")

    asyncio.run(run())


def test_no_topic_is_created_for_an_unknown_mirror_kind(
    pair: Pair, topic: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: no topic of the same name is made for it: its engine may give topics other names."""
    mirror = f"mirror.{topic}"

    async def run() -> None:
        async with client(pair.source) as source, client(pair.destination) as destination:
            store = MirrorStore(destination)
            properties = {
                "bootstrap.servers": pair.source.bootstrap_servers,
                "mirror.metadata.refresh.interval.ms": "1000",
                "mirror.kind": KIND,
            }
            with registered(monkeypatch):
                made = await create_mirror(destination, mirror, properties)
            await store.change(lambda _: [replace(made, topic_patterns=(re.escape(topic),))])
            await make_topic(source, topic)
            async with refreshing(destination) as refresher:

                async def counted() -> bool:
                    return refresher.errors[mirror, METADATA] > 1

                await until_async(counted, what="errors of two refreshes")
            assert topic not in (await destination.refresh([topic])).topics
            assert f"this version of twinlog has no engine for mirror.kind={KIND}" in caplog.text

    asyncio.run(run())


async def not_mirrored_metric(destination: KafkaCluster, mirror: str) -> float | None:
    """Return the metric that a node exports of a mirror, computed from the stored records."""
    observed = Observed(destination, "lanes", frozenset(), Counter())
    observed.take(frozenset(), await MirrorStore(destination).snapshot(), {})
    text = exposition(observed).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    samples = families["twinlog_topics_not_mirrored"].samples
    return next((sample.value for sample in samples if sample.labels == {"mirror": mirror}), None)


def test_a_shortened_refresh_interval_applies_at_once(
    pair: Pair, fresh_name: Callable[[str], str]
) -> None:
    """The next refresh does not wait for the end of the former interval."""
    mirror, prefix = fresh_name("mirror"), fresh_name("topic")
    first, before, after = (f"{prefix}-{name}" for name in ("first", "before", "after"))
    interval = "mirror.metadata.refresh.interval.ms"

    async def run() -> None:
        async with client(pair.source) as source, client(pair.destination) as destination:
            properties = {"bootstrap.servers": pair.source.bootstrap_servers, interval: "3600000"}
            await create_mirror(destination, mirror, properties)
            await make_topic(source, first)
            await add_topics(destination, mirror, f"{prefix}-.*")
            await make_topic(source, before)
            snapshot = await MirrorStore(destination).snapshot()
            async with refreshing(destination, lambda: snapshot):
                await until_async(partial(is_there, destination, before), what="a first look")
                await make_topic(source, after)
                await alter_mirror(destination, mirror, {interval: "1000"})
                snapshot = await MirrorStore(destination).snapshot()
                await until_async(partial(is_there, destination, after), what="a second look")

    async def is_there(destination: KafkaCluster, topic: str) -> bool:
        return topic in await topics_of(destination, mirror)

    asyncio.run(run())


def test_offsets_of_a_recreated_topic_are_not_copied(
    pair: Pair, fresh_name: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    """They belong to other records, whether it was recreated before or during a refresh."""
    mirror, prefix = fresh_name("mirror"), fresh_name("topic")
    early, late = fresh_name("group"), fresh_name("group")
    again, same = TopicPartition(f"{prefix}-again", 0), TopicPartition(f"{prefix}-same", 0)
    both = {again: Committed(5), same: Committed(5)}

    async def run() -> None:
        async with client(pair.source) as source, client(pair.destination) as destination:
            properties = {
                "bootstrap.servers": pair.source.bootstrap_servers,
                "mirror.metadata.refresh.interval.ms": "1000",
            }
            await create_mirror(destination, mirror, properties)
            for topic, _ in both:
                await make_topic(source, topic)
                await add_topics(destination, mirror, topic)
            mirrored = await topics_of(destination, mirror)
            for one in mirrored.values():
                await write_state(destination, one, State.MIRRORING)
            await delete_topics(source, [again.topic])

            async def gone() -> bool:
                return again.topic not in (await source.refresh([again.topic])).topics

            await until_async(gone, what="a broker without the former topic")
            await make_topic(source, again.topic)

            await commit(source, early, both)
            before = {partition: mirrored[partition.topic].topic_id for partition in both}
            include = named_groups([re.compile(re.escape(early))])
            assert await GroupSync(destination).sync(source, mirror, include, before) == 0
            assert (await committed_offsets(destination, early)).keys() == {same}
            assert f"{again.topic} may have been recreated on the source" in caplog.text

            caplog.clear()
            await commit(source, late, both)
            async with refreshing(destination):

                async def followed() -> bool:
                    return same in await committed_offsets(destination, late)

                await until_async(followed, what=f"the offset of {same}")
            assert (await committed_offsets(destination, late)).keys() == {same}
            assert "recreated" not in caplog.text, "its groups were not even asked for"

    asyncio.run(run())


def test_a_mirror_that_closes_a_loop_of_three_clusters_is_refused(
    pair: Pair, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    """The mirror that would close the loop refuses it, in whatever order the others began."""
    outwards, inwards = fresh_name("topic"), fresh_name("topic")
    mirror = fresh_name("mirror")

    async def run(third: LocalCluster) -> None:
        async with (
            client(pair.source) as a,
            client(pair.destination) as b,
            client(third) as c,
        ):
            for cluster, source in ((b, pair.source), (c, pair.destination), (a, third)):
                properties = {
                    "bootstrap.servers": source.bootstrap_servers,
                    "mirror.metadata.refresh.interval.ms": "1000",
                }
                await create_mirror(cluster, mirror, properties)
            await make_topic(a, outwards)
            await add_topics(b, mirror, outwards)
            await add_topics(c, mirror, outwards)
            with pytest.raises(MirrorRefused, match=f"MIRROR_LOOP.*through cluster {b.cluster_id}"):
                await add_topics(a, mirror, outwards)

            await make_topic(c, inwards)
            await make_topic(b, inwards)
            await add_topics(a, mirror, inwards)
            await add_topics(c, mirror, inwards)
            async with refreshing(a):

                async def followed() -> bool:
                    origins = (await topics_of(a, mirror))[inwards].origins
                    return origins == (b.cluster_id,)

                await until_async(followed, what="the source's own source written down")
                way = f"MIRROR_LOOP.*through cluster {c.cluster_id}"
                with pytest.raises(MirrorRefused, match=way):
                    await add_topics(b, mirror, inwards)
                await remove_topics(c, mirror, inwards)

                async def forgotten() -> bool:
                    return not (await topics_of(a, mirror))[inwards].origins

                await until_async(forgotten, what="the source's own source forgotten")

    with LocalCluster.start(1, directory=tmp_path, jvm_flags=SHORT_LIVED) as third:
        asyncio.run(run(third))
