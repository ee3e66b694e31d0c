"""A mirror between two real clusters without lanes: tests write the lanes' records by hand."""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace

import librdkafka_tools
from clients import client, make_topic, put, write_state
from confluent_kafka import Consumer, KafkaError, KafkaException
from readiness_check import find_readiness
from waiting import until

from conftest import Pair
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.lifecycle.creation import add_topics, create_mirror
from twinlog.mirror.placement import MirrorPartition, state_partition
from twinlog.mirror.states import State
from twinlog.operations.readiness.reasons import Reason
from twinlog.operations.readiness.verdict import Readiness
from twinlog.store.config_records import Mirror, MirrorTopic
from twinlog.store.control_topics import LANES_GROUP, ControlTopics, partition_count, status_entry
from twinlog.store.mirrors import MirrorStore
from twinlog.store.status_records import PartitionStatus, Status
from twinlog.store.topic_writer import Entry

RECORDS = 20
"""The records of each partition of a topic that is completely mirrored."""
STATE_PARTITIONS = 5
"""The state partitions of a destination whose first mirror is a scene's: readiness reads all."""
NOWHERE = "127.0.0.1:1"


class Scene:
    """A mirror of the source, and hand-written lane records for its topics."""

    def __init__(self, pair: Pair, source: KafkaCluster, destination: KafkaCluster, name: str):
        self.source, self.destination, self.mirror = source, destination, name
        self.servers = pair.source.bootstrap_servers, pair.destination.bootstrap_servers
        self.store = MirrorStore(destination)
        self.user = {"bootstrap.servers": self.servers[1]}
        """The client properties of the user that asks for the readiness."""
        self._rows: defaultdict[int, dict[MirrorPartition, PartitionStatus]] = defaultdict(dict)
        self._fresh: set[int] = set()
        """The state partitions whose last report was of its own time."""

    async def topic(self, name: str) -> MirrorTopic | None:
        """Return the stored record of a topic of the mirror."""
        topics = (await self.store.snapshot()).topics
        found = [topic for topic in topics if (topic.mirror, topic.topic) == (self.mirror, name)]
        return found[0] if found else None

    async def mirrored(self, name: str, partitions: int = 1) -> MirrorTopic:
        """Create a topic with the same records in both clusters."""
        await make_topic(self.source, name, partitions)
        for index in range(partitions):
            librdkafka_tools.write_same(self.servers[0], name, index, 0, RECORDS)
        await add_topics(self.destination, self.mirror, name)
        for index in range(partitions):
            librdkafka_tools.write_same(self.servers[1], name, index, 0, RECORDS)
        topic = await self.topic(name)
        assert topic is not None
        return topic

    async def report(
        self, topic: MirrorTopic, state: State, *, age_s: float = 0.0, end: int = RECORDS
    ) -> None:
        """Write state and status of its partitions, as their owners would."""
        await write_state(self.destination, topic, state)
        count = await partition_count(self.destination) or 0
        time_ms = int((time.time() - age_s) * 1000)
        written = set()
        for name in topic.mirror_partitions:
            number = state_partition(self.mirror, topic.topic_id, name.partition, count)
            written.add(number)
            self._rows[number][name] = PartitionStatus(
                partition=name,
                state=State.MIRRORING,
                source_end=RECORDS,
                source_last_stable=RECORDS,
                destination_end=end,
                source_time_ms=time_ms,
            )
        self._fresh = self._fresh - written | (set() if age_s else written)
        await write(self.destination, *(self._status(number, time_ms) for number in written))

    async def _report_again(self) -> None:
        """Write recent reports again: they grow old on a machine that stands still."""
        time_ms = int(time.time() * 1000)
        for number in self._fresh:
            self._rows[number] = {
                name: replace(row, source_time_ms=time_ms)
                for name, row in self._rows[number].items()
            }
        if self._fresh:
            await write(self.destination, *(self._status(at, time_ms) for at in self._fresh))

    def _status(self, number: int, time_ms: int) -> Entry:
        """Build a lane's status of a state partition, with all topics of the mirror in it."""
        rows = tuple(self._rows[number].values())
        status = Status(
            state_partition=number, lane="lane", node="node", time_ms=time_ms, partitions=rows
        )
        return status_entry(status)

    async def forget_statuses(self) -> None:
        """Remove the reported statuses: readiness waits for stale ones to be written again."""
        stale = [self._status(number, 0)._replace(value=None) for number in self._rows]
        await write(self.destination, *stale)
        self._rows.clear()
        self._fresh.clear()

    async def asked_while_reported(self, topic: MirrorTopic, end: int) -> Readiness:
        """Return the readiness while a lane continues to report this log end offset."""
        asking = asyncio.create_task(self.readiness())
        while not asking.done():
            await asyncio.sleep(1)
            await self.report(topic, State.MIRRORING, end=end)
        return asking.result()

    async def source_dies(self) -> None:
        """Make the source unreachable from now on."""
        await self.store.change(lambda now: [dead(now.mirrors[self.mirror])])

    async def readiness(self, topic: str = ".*") -> Readiness:
        await self._report_again()
        return await find_readiness(self.user, self.mirror, topic)


def dead(mirror: Mirror) -> Mirror:
    return replace(mirror, source={**mirror.source, "bootstrap.servers": NOWHERE})


async def write(destination: KafkaCluster, *entries: Entry) -> None:
    await put(destination, entries)


@asynccontextmanager
async def scene(
    pair: Pair,
    name: str,
    properties: Mapping[str, str] | None = None,
    *,
    replication_factor: int | None = None,
) -> AsyncIterator[Scene]:
    """Create a mirror without topics; `properties` add to, or replace, the usual ones."""
    usual = {
        "bootstrap.servers": pair.source.bootstrap_servers,
        "mirror.metadata.refresh.interval.ms": "1000",
    }
    async with client(pair.source) as source, client(pair.destination) as destination:
        await create_mirror(
            destination,
            name,
            {**usual, **(properties or {})},
            replication_factor=replication_factor,
            topics=ControlTopics(state_partitions=STATE_PARTITIONS),
        )
        scene = Scene(pair, source, destination, name)
        yield scene
        await scene.forget_statuses()


@contextmanager
def foreign_member(scene: Scene, topic: str, protocol: str = "classic") -> Iterator[None]:
    """Run a consumer of a destination topic with the lanes' group.id."""
    consumer = Consumer(
        {
            "bootstrap.servers": scene.servers[1],
            "group.id": LANES_GROUP,
            "group.protocol": protocol,
        }
    )
    consumer.subscribe([topic])
    try:
        until(lambda: (consumer.poll(0.1), consumer.assignment())[1], what="membership")
        yield
    finally:
        consumer.close()
        delete_lanes_group(scene.servers[1])


def delete_lanes_group(servers: str) -> None:
    """Delete the lanes' group once it has no member: an empty group shows that no node runs."""
    groups = librdkafka_tools.admin(servers)

    def deleted() -> bool:
        try:
            groups.delete_consumer_groups([LANES_GROUP])[LANES_GROUP].result(
                librdkafka_tools.SECONDS
            )
        except KafkaException as error:
            return error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND
        return True

    until(deleted, what="no lanes' group")


def reasons(found: Readiness) -> dict[Reason, str]:
    return {finding.reason: finding.text for finding in found.all_findings()}
