"""Whole switchovers on real brokers, without Spark: the test plays the lane.

The lane reports its partitions as MIRRORING, and as STOPPED once that is the desired state. Each
test defines what the lane mirrors after the last check of the source, and what other clients write.
With lanes: tests/end_to_end/test_switchover.py.
"""

import asyncio
import re
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager

import librdkafka_tools
import pytest
from clients import client, commit, make_topic, put, write_state
from streams_group import make_streams_group
from sync_contexts import sync_context

from conftest import Pair
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.groups.offsets import Committed, committed_offsets
from twinlog.kafka.types import LeaderEpoch, Offset, TopicPartition
from twinlog.lifecycle.creation import add_topics, create_mirror
from twinlog.mirror.placement import state_partition
from twinlog.mirror.states import State
from twinlog.operations.switchover.records import (
    LeftBehind,
    Producers,
    Progress,
    Step,
    SwitchedOver,
)
from twinlog.operations.switchover.switchover import switch_over
from twinlog.store.config_records import MirrorTopic, Wanted
from twinlog.store.control_topics import partition_count, status_entry
from twinlog.store.mirrors import MirrorStore
from twinlog.store.state_records import LastMirrored
from twinlog.store.status_records import PartitionStatus, Status
from twinlog.sync.base import run_sync
from twinlog.sync.topics import NewTopics

pytestmark = pytest.mark.broker

RECORDS = 20
REPORT_S = 0.5


class Switch:
    """A mirror between both clusters, the reports of its lane, and those of a switchover."""

    def __init__(
        self, pair: Pair, source: KafkaCluster, destination: KafkaCluster, mirror: str
    ) -> None:
        self.source, self.destination, self.mirror = source, destination, mirror
        self.servers = pair.source.bootstrap_servers, pair.destination.bootstrap_servers
        self.store = MirrorStore(destination)
        self.mirrored: dict[str, int] = {}
        """The last mirrored end of each topic's partition 0 when it was STOPPED."""
        self.told: list[Progress] = []

    async def make(self, *topics: str) -> None:
        """Create topics with the same records in both clusters; they are in no mirror yet."""
        for topic in topics:
            await make_topic(self.source, topic)
            librdkafka_tools.write_same(self.servers[0], topic, 0, 0, RECORDS)
            self.mirrored[topic] = RECORDS

    async def add(self, wanted: str) -> None:
        """Add topics to the mirror, and mirror their records."""
        for topic in await add_topics(self.destination, self.mirror, wanted):
            librdkafka_tools.write_same(self.servers[1], topic, 0, 0, RECORDS)

    async def switch_over(
        self, topics: str, late: Callable[[], None] = lambda: None
    ) -> SwitchedOver:
        """Switch over; `late` is called between the last check of the source and the removal."""

        def tell(progress: Progress) -> None:
            if progress.step is Step.FAILOVER and not self.has_told(Step.FAILOVER):
                late()
            self.told.append(progress)

        async with self._lane():
            return await switch_over(
                *(self.destination, self.mirror, topics),
                producers=Producers(stopped=True),
                silence_s=0.5,
                timeout_s=240,
                tell=tell,
            )

    def has_told(self, step: Step) -> bool:
        return any(report.step is step for report in self.told)

    @asynccontextmanager
    async def _lane(self) -> AsyncIterator[None]:
        """Play the lane; on entry all partitions have been reported once."""
        reported = asyncio.Event()
        task = asyncio.create_task(self._report(reported))
        waiting = asyncio.create_task(reported.wait())
        try:
            async with asyncio.timeout(120):
                await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
            yield
        finally:
            for pending in (task, waiting):
                pending.cancel()
            await asyncio.gather(task, waiting, return_exceptions=True)

    async def _report(self, reported: asyncio.Event) -> None:
        stopped: set[str] = set()
        while True:
            mirroring: list[MirrorTopic] = []
            for topic in (await self.store.snapshot()).topics:
                if topic.mirror != self.mirror or topic.topic in stopped:
                    continue
                if topic.wanted is Wanted.STOPPED:
                    stopped.add(topic.topic)
                    last = LastMirrored(LeaderEpoch(0), Offset(self.mirrored[topic.topic]))
                    await write_state(self.destination, topic, State.STOPPED, {0: last})
                else:
                    await write_state(self.destination, topic, State.MIRRORING)
                    mirroring.append(topic)
            await self._write_statuses(mirroring)
            reported.set()
            await asyncio.sleep(REPORT_S)

    async def _write_statuses(self, topics: Collection[MirrorTopic]) -> None:
        now_ms = int(time.time() * 1000)
        count = await partition_count(self.destination) or 0
        rows: defaultdict[int, list[PartitionStatus]] = defaultdict(list)
        for topic in topics:
            row = PartitionStatus(
                partition=topic.mirror_partitions[0],
                state=State.MIRRORING,
                source_end=RECORDS,
                source_last_stable=RECORDS,
                destination_end=RECORDS,
                source_time_ms=now_ms,
            )
            rows[state_partition(self.mirror, topic.topic_id, 0, count)].append(row)
        entries = [
            status_entry(
                Status(
                    state_partition=number,
                    lane="lane",
                    node="node",
                    time_ms=now_ms,
                    partitions=tuple(some),
                )
            )
            for number, some in rows.items()
        ]
        await put(self.destination, entries)


@asynccontextmanager
async def switch(
    pair: Pair, mirror: str, properties: Mapping[str, str] | None = None
) -> AsyncIterator[Switch]:
    async with client(pair.source) as source, client(pair.destination) as destination:
        servers = {"bootstrap.servers": pair.source.bootstrap_servers}
        await create_mirror(destination, mirror, {**servers, **(properties or {})})
        yield Switch(pair, source, destination, mirror)


def test_a_failover_ends_the_topic_pattern_of_the_topics(
    pair: Pair, fresh_name: Callable[[str], str]
) -> None:
    """Goal: D14: no refresh adds a topic to a mirror whose topics of that name were failed over.

    Another topic stays in the mirror: removing the last one ends all expressions anyway.
    """
    stem, kept = fresh_name("topic"), fresh_name("kept")
    first, late, expression = f"{stem}-1", f"{stem}-2", f"{stem}-.*"

    async def run() -> None:
        async with switch(pair, fresh_name("mirror")) as setup:
            await setup.make(first, kept)
            await setup.add(expression)
            await setup.add(f"(?:{kept})")
            before = await setup.store.snapshot()
            assert before.mirrors[setup.mirror].topic_patterns == (expression, f"(?:{kept})")
            found = await setup.switch_over(expression)
            assert found.topics == (first,)
            await setup.make(late)
            snapshot = await setup.store.snapshot()
            mirror = snapshot.mirrors[setup.mirror]
            context = sync_context(
                *(setup.source, setup.destination, setup.store, setup.mirror), snapshot=snapshot
            )
            await run_sync(NewTopics(), context)
            topics = {t.topic: t for t in (await setup.store.snapshot()).topics}
            assert late not in topics
            assert topics[kept].wanted is Wanted.MIRRORING
            assert mirror.topic_patterns == (f"(?:{kept})",), "the other one goes on"

    asyncio.run(run())


def test_groups_that_are_not_copied_are_named(
    pair: Pair, topic: str, fresh_name: Callable[[str], str]
) -> None:
    """Goal: D6: streams groups and excluded groups are named before any principal is denied."""
    mirror = fresh_name("mirror")
    outside_, streams, followed = (f"{mirror}-{name}" for name in ("out", "streams", "in"))
    partition = TopicPartition(topic, 0)

    async def run() -> None:
        async with switch(
            pair, mirror, {"mirror.groups.include": f"{mirror}-(in|streams)"}
        ) as setup:
            await setup.make(topic)
            await setup.add(topic)
            await asyncio.to_thread(make_streams_group, pair.source, streams, {partition: 5})
            await commit(setup.source, outside_, {partition: Committed(16)})
            await commit(setup.source, followed, {partition: Committed(18)})
            await setup.switch_over(topic)
            ready = [told.text for told in setup.told if told.step is Step.READINESS]
            assert not setup.told[len(ready)].done, "all of it is told before the next step begins"
            aside = [text for text in ready if text.startswith(f"passed over: {topic}: group ")]
            assert len(aside) == 2, ready
            assert any(
                re.search(rf"{outside_}: .* not copied \(see mirror\.groups\.include\).* 16 ", text)
                for text in aside
            )
            assert any(
                re.search(rf"{streams}: .* not copied \(streams groups are not\).* 5 ", text)
                for text in aside
            )
            for group, copied in ((followed, {partition: Committed(18)}), (outside_, {})):
                assert await committed_offsets(setup.destination, group) == copied
            groups = [told.text for told in setup.told if told.step is Step.GROUPS and told.done]
            assert groups == [f"1 group(s): [{followed}]"]

    asyncio.run(run())


def test_unmirrored_records_start_where_mirroring_ended(
    pair: Pair, fresh_name: Callable[[str], str]
) -> None:
    """Goal: D1: the rest starts where mirroring ended, whatever else the destination holds.

    One topic was mirrored beyond the last check of the source. In the other topic, a foreign record
    has the offset of the source's next record.
    """
    stem = fresh_name("topic")
    further, foreign = f"{stem}-further", f"{stem}-foreign"

    async def run() -> None:
        async with switch(pair, fresh_name("mirror")) as setup:
            await setup.make(further, foreign)
            await setup.add(f"{stem}-.*")

            def late() -> None:
                for topic in (further, foreign):
                    librdkafka_tools.write_same(setup.servers[0], topic, 0, RECORDS, RECORDS + 3)
                librdkafka_tools.write_same(setup.servers[1], further, 0, RECORDS, RECORDS + 1)
                setup.mirrored[further] += 1
                librdkafka_tools.write(
                    setup.servers[1], foreign, librdkafka_tools.simple(2, 0, "foreign")
                )

            found = await setup.switch_over(f"{stem}-.*", late)
            assert found.left_behind is not None
            assert sorted(found.left_behind) == [
                LeftBehind(TopicPartition(foreign, 0), RECORDS, RECORDS + 3),
                LeftBehind(TopicPartition(further, 0), RECORDS + 1, RECORDS + 3),
            ]

    asyncio.run(run())
