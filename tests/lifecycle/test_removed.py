"""A removed topic is added again, on real brokers; records of lanes are written by hand."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import librdkafka_tools
import pytest
from clients import client, make_topic, write_markers, write_state
from sync_contexts import sync_context
from waiting import until_async

from conftest import Pair
from twinlog import Rebuild
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import TwinlogError
from twinlog.kafka.log.batch import batches
from twinlog.kafka.requests.partitions import delete_records
from twinlog.kafka.requests.topics import delete_topics
from twinlog.kafka.types import LeaderEpoch, Offset, TopicPartition
from twinlog.lifecycle import creation
from twinlog.lifecycle.changes import remove_topics
from twinlog.lifecycle.creation import add_topics, create_mirror
from twinlog.lifecycle.rebuild import DivergentTail
from twinlog.lifecycle.removed import where_logs_part
from twinlog.local.check import ConsumerView
from twinlog.mirror.errors import MirrorRefused
from twinlog.mirror.states import State
from twinlog.store.config_records import Mirror, MirrorTopic, Wanted, key_of
from twinlog.store.mirrors import MirrorStore
from twinlog.store.snapshot import Snapshot
from twinlog.store.state_records import LastMirrored
from twinlog.sync.base import run_sync
from twinlog.sync.topics import NewTopics
from twinlog.verify.job import Compared, Comparison, Stretch

pytestmark = pytest.mark.broker


class Again:
    """A topic that a mirror of the destination had, and that is added again."""

    def __init__(self, pair: Pair, source: KafkaCluster, destination: KafkaCluster, topic: str):
        self.source, self.destination, self.topic = source, destination, topic
        self.mirror = f"mirror.{topic}"
        self._from, self._to = (
            pair.source.bootstrap_servers,
            pair.destination.bootstrap_servers,
        )
        self.store = MirrorStore(destination)

    async def begin(self, *records: int) -> None:
        """Create the topic on the source, and add it to the mirror."""
        await create_mirror(self.destination, self.mirror, {"bootstrap.servers": self._from})
        await self.make(*records)
        await add_topics(self.destination, self.mirror, self.topic)

    async def make(self, *records: int) -> None:
        """Create the topic on the source, with this number of records in each partition."""
        await make_topic(self.source, self.topic, len(records))
        for partition, count in enumerate(records):
            librdkafka_tools.write_same(self._from, self.topic, partition, 0, count)

    async def make_again(self, *records: int) -> None:
        """Delete it on the source, and create it again."""
        await self.delete()
        await self.make(*records)

    async def delete(self) -> None:
        """Delete it on the source."""
        await delete_topics(self.source, [self.topic])

        async def gone() -> bool:
            return self.topic not in (await self.source.refresh([self.topic])).topics

        await until_async(gone)

    def mirrored(self, partition: int, start: int, end: int) -> None:
        """Write the source's records at these offsets to the destination."""
        librdkafka_tools.write_same(self._to, self.topic, partition, start, end)

    def foreign(self, partition: int) -> None:
        """Write a foreign record to the destination; it may stand for a marker."""
        librdkafka_tools.write(
            self._to, self.topic, librdkafka_tools.simple(1, partition, "foreign")
        )

    async def stop(self, ends: Mapping[int, int]) -> None:
        """Remove it from the mirror, STOPPED with these last mirrored ends."""
        await remove_topics(self.destination, self.mirror, self.topic)
        last = {at: LastMirrored(LeaderEpoch(7), Offset(end)) for at, end in ends.items()}
        await write_state(self.destination, await self.known(), State.STOPPED, last)

    async def known(self, mirror: str | None = None) -> MirrorTopic:
        """Return what a mirror stores about it."""
        topics = (await self.store.snapshot()).topics
        (setup,) = [t for t in topics if (t.mirror, t.topic) == (mirror or self.mirror, self.topic)]
        return setup

    async def refused(self, mirror: str | None = None) -> str:
        """Return the error of its addition."""
        with pytest.raises(MirrorRefused) as caught:
            await add_topics(self.destination, mirror or self.mirror, self.topic)
        return str(caught.value)

    def ends(self, partitions: int) -> list[int]:
        """Return the destination's log end offsets."""
        asked = [(self.topic, index) for index in range(partitions)]
        found = ConsumerView(self._to).ends(asked)
        return [found[partition] for partition in asked]


@asynccontextmanager
async def removed_topic(pair: Pair, topic: str) -> AsyncIterator[Again]:
    async with client(pair.source) as source, client(pair.destination) as destination:
        yield Again(pair, source, destination, topic)


def test_a_divergent_tail_is_named_saved_and_rebuilt(
    pair: Pair, topic: str, tmp_path: Path
) -> None:
    """All from the foreign record on, which lies before the marker; a refresh deletes nothing."""

    async def run() -> None:
        async with removed_topic(pair, topic) as setup:
            await setup.begin(100, 50)
            setup.mirrored(0, 0, 60)
            setup.foreign(0)
            setup.mirrored(0, 60, 65)  # was in flight
            setup.foreign(0)
            setup.mirrored(1, 0, 50)
            setup.foreign(1)
            await setup.stop({0: 66, 1: 50})
            said = await setup.refused()
            assert said.startswith("MIRROR_TOPIC_DIVERGED: "), said
            assert f"{topic}-0 from offset 60 to 66; {topic}-1 from offset 50 to 50" in said
            assert "--rebuild" in said
            await refresh_adds_nothing(setup)
            assert setup.ends(2) == [67, 51]
            rebuild = Rebuild(tmp_path)
            assert await add_topics(setup.destination, setup.mirror, topic, rebuild=rebuild) == [
                topic
            ]
            for partition, start, end in ((0, 60, 67), (1, 50, 51)):
                segment = tmp_path / f"{topic}-{partition}" / f"{start:020d}.log"
                saved = list(batches(memoryview(segment.read_bytes())))
                assert (saved[0].base_offset, saved[-1].next_offset) == (start, end)
            assert setup.ends(2) == [0, 0]
            assert (await setup.known()).wanted is Wanted.MIRRORING

    asyncio.run(run())


def test_a_difference_far_before_the_end_is_saved(pair: Pair, topic: str, tmp_path: Path) -> None:
    """A foreign record lies in a gap of the source, before more equal records than one step."""

    async def run() -> None:
        async with removed_topic(pair, topic) as setup:
            await setup.begin(100)
            await write_markers(setup.source, topic, 1)
            librdkafka_tools.write_same(setup._from, topic, 0, 101, 2200)
            setup.mirrored(0, 0, 100)
            setup.foreign(0)  # at 100
            setup.mirrored(0, 101, 2100)
            setup.foreign(0)  # at 2100, where the partition is FAILED
            await setup.stop({0: 2101})
            setup.foreign(0)  # stands for the marker
            told: list[str] = []
            rebuild = Rebuild(tmp_path, told.append)
            await add_topics(setup.destination, setup.mirror, topic, rebuild=rebuild)
            assert setup.ends(1) == [0]
            assert saved(tmp_path) == {(0, 100): (100, 2102)}
            assert f"{topic}-0: equal up to offset 100, the rest is saved" in told

    asyncio.run(run())


def test_equal_markers_do_not_prove_equal_logs(pair: Pair, topic: str) -> None:
    """Where a whole step has only markers, the records before it are compared as well."""

    async def run() -> None:
        async with removed_topic(pair, topic) as setup:
            await setup.begin(10)
            setup.mirrored(0, 0, 5)
            setup.foreign(0)
            setup.mirrored(0, 6, 10)
            for cluster in (setup.source, setup.destination):
                await write_markers(cluster, topic, 1_100)
            setup.foreign(0)
            await setup.stop({0: 1_110})
            assert f"{topic}-0 from offset 5 to 1110" in await setup.refused()

    asyncio.run(run())


def test_records_deleted_by_source_retention_prove_nothing(
    pair: Pair, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention moves the log start offset between the request for it and the comparison."""

    async def run() -> None:
        async with removed_topic(pair, topic) as setup:
            await setup.begin(100)
            setup.mirrored(0, 0, 60)
            setup.foreign(0)
            await setup.stop({0: 61})
            setup.foreign(0)  # stands for the marker
            compare = Comparison.compare

            async def later(self: Comparison, stretch: Stretch) -> Compared:
                await delete_records(setup.source, {TopicPartition(topic, 0): 90})
                return await compare(self, stretch)

            monkeypatch.setattr(Comparison, "compare", later)
            await add_topics(setup.destination, setup.mirror, topic, rebuild=Rebuild(tmp_path))
            assert setup.ends(1) == [0]
            assert saved(tmp_path) == {(0, 0): (0, 62)}

    asyncio.run(run())


def test_the_whole_log_is_saved_if_the_source_topic_is_deleted_meanwhile(
    pair: Pair, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The destination then has the only copy."""

    async def run() -> None:
        async with removed_topic(pair, topic) as setup:
            await setup.begin(100)
            setup.mirrored(0, 0, 60)
            await setup.stop({0: 60})
            setup.foreign(0)
            look = where_logs_part

            async def later(*seen: Any) -> list[DivergentTail]:
                await setup.delete()
                return await look(*seen)

            monkeypatch.setattr(creation, "where_logs_part", later)
            with suppress(TwinlogError):
                await add_topics(setup.destination, setup.mirror, topic, rebuild=Rebuild(tmp_path))
            assert saved(tmp_path) == {(0, 0): (0, 61)}

    asyncio.run(run())


def saved(folder: Path) -> dict[tuple[int, int], tuple[int, int]]:
    """Return the files' partitions and base offsets, with the first and the end offset of each."""
    found: dict[tuple[int, int], tuple[int, int]] = {}
    for path in folder.rglob("*.log"):
        stored = list(batches(memoryview(path.read_bytes())))
        partition = int(path.parent.name.rpartition("-")[2])
        found[partition, int(path.stem)] = (stored[0].base_offset, stored[-1].next_offset)
    return found


async def refresh_adds_nothing(setup: Again) -> None:
    """A refresh adds nothing, even if it does not know that the topic was in a mirror."""
    mirror = Mirror(
        name=setup.mirror,
        source={},
        source_cluster_id=setup.source.cluster_id,
        topic_patterns=(setup.topic,),
    )
    known = (await setup.store.snapshot()).records
    for records, missed in ((known, 0), ({}, 1)):
        snapshot = Snapshot({**records, key_of(mirror): mirror})
        context = sync_context(
            *(setup.source, setup.destination, setup.store, setup.mirror), snapshot=snapshot
        )
        assert await run_sync(NewTopics(), context) == missed
    assert (await setup.known()).wanted is Wanted.STOPPED


def test_a_log_without_a_last_mirrored_end_is_all_divergent(pair: Pair, topic: str) -> None:
    """It was never mirrored, or its last mirrored end is unknown: all of it is the tail."""

    async def run() -> None:
        async with removed_topic(pair, topic) as setup:
            await setup.begin(100)
            setup.mirrored(0, 0, 10)
            await setup.stop({0: -1})
            assert f"{topic}-0 from offset 0 to 9;" in await setup.refused()
            await add_topics(setup.destination, setup.mirror, topic, rebuild=Rebuild(None))
            assert setup.ends(1) == [0]

    asyncio.run(run())


def test_a_topic_recreated_on_the_source_is_all_divergent(pair: Pair, topic: str) -> None:
    """The mirrored log does not exist any more: all of it is the tail."""

    async def run() -> None:
        async with removed_topic(pair, topic) as setup:
            await setup.begin(100, 100)
            setup.mirrored(0, 0, 100)
            await setup.stop({0: 100, 1: 0})
            former = await setup.known()
            await setup.make_again(5)
            assert (
                f"only on the destination: {topic}-0 from offset 0 to 99;" in await setup.refused()
            )
            await add_topics(setup.destination, setup.mirror, topic, rebuild=Rebuild(None))
            known = await setup.known()
            assert known.topic_id != former.topic_id
            assert known.partitions == 1
            assert setup.ends(1) == [0]
            assert len((await setup.destination.refresh([topic])).topics[topic].partitions) == 1

    asyncio.run(run())


def test_the_tail_is_reported_if_the_source_has_no_records_to_compare(
    pair: Pair, topic: str
) -> None:
    """Retention has deleted the records that could show the offset of the foreign record."""

    async def run() -> None:
        async with removed_topic(pair, topic) as setup:
            await setup.begin(100)
            setup.mirrored(0, 0, 60)
            setup.foreign(0)
            setup.foreign(0)
            await setup.stop({0: 61})
            assert f"{topic}-0 from offset 60 to 61;" in await setup.refused()
            await delete_records(setup.source, {TopicPartition(topic, 0): 90})
            assert f"{topic}-0 from offset 0 to 61;" in await setup.refused()

    asyncio.run(run())


def test_an_empty_log_is_accepted_and_a_log_of_another_source_refused(
    pair: Pair, fresh_name: Callable[[str], str], topic: str
) -> None:
    """An empty log is always taken; another mirror of the same source may have had it, too."""

    async def run() -> None:
        async with removed_topic(pair, topic) as setup:
            await setup.begin(10)
            await setup.stop({0: -1})
            assert await add_topics(setup.destination, setup.mirror, topic) == [topic]
            setup.mirrored(0, 0, 10)
            setup.foreign(0)
            await setup.stop({0: 10})
            other = fresh_name("other")
            properties = {"bootstrap.servers": pair.source.bootstrap_servers}
            await create_mirror(setup.destination, other, properties)
            assert f"{topic}-0 from offset 10 to 10;" in await setup.refused(other)
            mirror = (await setup.store.snapshot()).mirrors[setup.mirror]
            elsewhere = Mirror(name=mirror.name, source=mirror.source, source_cluster_id="another")
            await setup.store.change(lambda _: [elsewhere])
            assert (await setup.refused(other)).startswith("TOPIC_ALREADY_EXISTS: ")

    asyncio.run(run())
