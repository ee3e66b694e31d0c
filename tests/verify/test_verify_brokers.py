"""`verify` on real brokers: errors that a mirror may make, written by hand, have to be found."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import librdkafka_tools
import pytest
from clients import client, make_topic, write_markers
from confluent_kafka import Producer
from kafka.protocol.admin import AlterClientQuotasRequest
from waiting import until_async

from conftest import Pair
from twinlog.kafka.client.brokers import CONTROLLER
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.requests.partitions import delete_records
from twinlog.kafka.types import TopicPartition
from twinlog.operations.verification import verification
from twinlog.operations.verification_report import NOT_SEEN, SAME, Verification
from twinlog.verify.job import Comparison, Extent, Sides, Stretch, extent
from twinlog.verify.log_facts import AskedFacts
from twinlog.verify.log_reader import BelowLogStart, Bytes, LogReader, Nothing, read_bounds
from twinlog.verify.verdict import LOG_START, DifferenceKind

pytestmark = [pytest.mark.broker]

BEGAN_MS = 1_700_000_000_000


class Logs:
    """One partition of each cluster, written by hand."""

    def __init__(self, pair: Pair, source: KafkaCluster, destination: KafkaCluster, topic: str):
        self.source, self.destination, self.topic = source, destination, topic
        self.partition = TopicPartition(topic, 0)
        self.servers = pair.source.bootstrap_servers, pair.destination.bootstrap_servers

    async def make(self, **configs: str) -> None:
        """Create the topic on both clusters."""
        named = {name.replace("_", "."): value for name, value in configs.items()}
        for cluster in (self.source, self.destination):
            await make_topic(cluster, self.topic, configs=named)

    async def extent(self) -> Extent:
        """Return the bounds, as `verify_mirrors` reads them."""
        found = [await read_bounds(each, [self.partition]) for each in self.clusters]
        return extent(self.partition, found[1][self.partition], found[0][self.partition])

    @property
    def clusters(self) -> tuple[KafkaCluster, KafkaCluster]:
        """Return the clusters in the order in which bounds are read."""
        return self.destination, self.source

    async def verify(
        self, known: Extent | None = None, *, compacted: bool = False, patience: float = 60.0
    ) -> Verification:
        """Verify as the command does, without Spark."""
        known = known or await self.extent()
        comparison = Comparison(self.source, self.destination, patience=patience)
        stretch = Stretch(self.partition, known.start, known.end, compacted)
        found = verification([known], [await comparison.compare(stretch)])
        assert found.counts.length == known.length, found.counts
        return found

    async def markers(self, count: int) -> None:
        """Write control records on the destination, as a mirror fills gaps."""
        await write_markers(self.destination, self.topic, count)

    async def quota(self, rate: float | None) -> None:
        """Set `consumer_byte_rate` of the source for twinlog's client id."""
        entry = AlterClientQuotasRequest.EntryData
        op = entry.OpData(key="consumer_byte_rate", value=rate or 0.0, remove=rate is None)
        entity = entry.EntityData(entity_type="client-id", entity_name="twinlog")
        request = AlterClientQuotasRequest(
            entries=[entry(entity=[entity], ops=[op])], validate_only=False
        )
        response = await self.source.call(request, node=CONTROLLER)
        assert response.entries[0].error_code == 0

    def write_both(self, start: int, end: int, size: int = 1) -> None:
        """Write the same records at the same offsets on both."""
        for servers in self.servers:
            librdkafka_tools.write(
                servers,
                self.topic,
                [(0, f"k{at}", f"{at:0{size}d}", None) for at in range(start, end)],
                message_max_bytes=8_000_000,
            )


@asynccontextmanager
async def logs(pair: Pair, topic: str, **configs: str) -> AsyncIterator[Logs]:
    # A client's timestamps differ between the two writes, so that brokers' are compared: none.
    async with client(pair.source) as source, client(pair.destination) as destination:
        both_logs = Logs(pair, source, destination, topic)
        await both_logs.make(max_message_bytes="8000000", **configs)
        yield both_logs


def same_but_for_times(found: Verification) -> bool:
    """Return whether only timestamps differ: two producers wrote these logs."""
    return {difference.reason for difference in found.differences} <= {"the timestamp differs"}


def test_control_records_in_place_of_data_differ(pair: Pair, topic: str) -> None:
    """Goal: A1: five lost records, with a control record at each offset, are a difference."""

    async def run() -> None:
        async with logs(pair, topic) as both_logs:
            for servers in both_logs.servers:
                librdkafka_tools.write_same(servers, topic, 0, 0, 10)
            librdkafka_tools.write_same(both_logs.servers[0], topic, 0, 10, 15)
            await both_logs.markers(5)
            for servers in both_logs.servers:
                librdkafka_tools.write_same(servers, topic, 0, 15, 20)
            found = await both_logs.verify()
            assert [difference[1:] for difference in found.differences] == [
                (10, 15, DifferenceKind.LOST)
            ]
            assert (found.counts.compared, found.counts.differs) == (15, 5)

    asyncio.run(run())


def test_reads_wait_for_a_quota_and_deleted_records_are_absent(pair: Pair, topic: str) -> None:
    """Goal: A1, E3: slow reads are waited for, and records deleted meanwhile are absent."""

    async def run() -> None:
        async with logs(pair, topic) as both_logs:
            for servers in both_logs.servers:
                for at in range(12):
                    librdkafka_tools.write_same(servers, topic, 0, at, at + 1)
            both_logs.write_both(12, 18, 1_500_000)
            await both_logs.quota(3_000_000)
            try:
                known = await both_logs.extent()
                for cluster in both_logs.clusters:
                    await delete_records(cluster, {both_logs.partition: 7})
                found = await both_logs.verify(known)
            finally:
                await both_logs.quota(None)
            assert same_but_for_times(found), found.differences
            assert found.counts.not_seen == 0
            assert found.counts.absent == {LOG_START: 7}
            assert found.counts.compared + found.counts.differs == 11

    asyncio.run(run())


def test_offsets_that_time_out_are_not_reported_as_equal(pair: Pair, topic: str) -> None:
    """Goal: a source throttles longer than the timeout: the rest is not seen, with the reason."""

    async def run() -> None:
        async with logs(pair, topic) as both_logs:
            for servers in both_logs.servers:
                librdkafka_tools.write_same(servers, topic, 0, 0, 5)
            await both_logs.quota(1.0)
            try:
                known = await both_logs.extent()

                async def throttled() -> bool:
                    reader = LogReader(both_logs.source, both_logs.partition, patience=0.5)
                    return isinstance(await reader.chunk(0), Nothing)

                await until_async(throttled, what="the quota's effect")
                found = await both_logs.verify(known, patience=0.5)
            finally:
                await both_logs.quota(None)
            assert found.verdict == NOT_SEEN
            assert found.counts.not_seen == 5
            assert "source: " in found.unseen[0].reason
            assert "throttle" in found.unseen[0].reason

    asyncio.run(run())


def test_records_deleted_only_on_the_destination_differ(pair: Pair, topic: str) -> None:
    """Goal: records that the source still has and the destination lacks are a difference."""

    async def run() -> None:
        async with logs(pair, topic) as both_logs:
            for servers in both_logs.servers:
                librdkafka_tools.write_same(servers, topic, 0, 0, 9)
            known = await both_logs.extent()
            await delete_records(both_logs.destination, {both_logs.partition: 4})
            assert await LogReader(both_logs.destination, both_logs.partition).chunk(
                1
            ) == BelowLogStart(4)
            found = await both_logs.verify(known)
            assert [difference[1:3] for difference in found.differences] == [(0, 4)]
            assert found.counts.compared == 5
            await delete_records(both_logs.source, {both_logs.partition: 4})
            found = await both_logs.verify(known)
            assert (found.verdict, found.counts.absent) == (SAME, {LOG_START: 4})

    asyncio.run(run())


COMPACTED: Mapping[str, str] = {
    "cleanup_policy": "compact",
    "delete_retention_ms": "0",
    "min_cleanable_dirty_ratio": "0.01",
    "segment_ms": "100",
    "max_compaction_lag_ms": "100",
    "file_delete_delay_ms": "100",
}


def test_a_key_whose_tombstone_was_compacted_differs(pair: Pair, topic: str) -> None:
    """Goal: E2: the source deleted a key and its tombstone is gone; the destination has the key."""

    async def run() -> None:
        async with logs(pair, topic, **COMPACTED) as both_logs:
            source, destination = both_logs.servers
            librdkafka_tools.write(source, topic, [(0, "k1", "old", None)])
            librdkafka_tools.write(source, topic, [(0, "k1", None, None)])
            librdkafka_tools.write(destination, topic, [(0, "k1", "old", None)])
            await both_logs.markers(1)
            reader = LogReader(both_logs.source, both_logs.partition)

            async def cleaned() -> bool:
                end = (await read_bounds(both_logs.source, [both_logs.partition]))[
                    both_logs.partition
                ]
                librdkafka_tools.write_same(source, topic, 0, 0, 0)
                librdkafka_tools.write(source, topic, [(0, "last", f"{end.high_watermark}", None)])
                span = await reader.span(0, 1)
                fresh = await LogReader(both_logs.source, both_logs.partition).span(0, 1)
                assert span.start == 0
                return isinstance(await reader.chunk(0), Bytes) and fresh.record(0) is None

            await until_async(cleaned, 300, "the cleaner")
            known = await both_logs.extent()
            found = await both_logs.verify(known, compacted=True)
            assert (0, 1, DifferenceKind.LATEST) in [
                difference[1:] for difference in found.differences
            ]

    asyncio.run(run())


def test_a_policy_of_either_topic_explains_holes(pair: Pair, topic: str) -> None:
    async def run() -> None:
        async with logs(pair, topic) as plain:
            sides = Sides(plain.source, plain.destination)
            facts = AskedFacts(sides, Sides(plain.partition, plain.partition), 1.0)
            assert await facts.is_compacted() is False
            other = TopicPartition(f"{topic}-compacted", 0)
            await make_topic(plain.destination, other.topic, configs={"cleanup.policy": "compact"})
            assert await AskedFacts(sides, Sides(plain.partition, other), 1.0).is_compacted()
            # A topic that does not exist has no hole.
            absent = AskedFacts(sides, Sides(other, plain.partition), 1.0)
            assert await absent.is_compacted() is False

    asyncio.run(run())


def test_a_transaction_that_stays_open_is_told_from_one_that_ends(pair: Pair, topic: str) -> None:
    async def run() -> None:
        async with logs(pair, topic) as both:
            producer = Producer(
                {"bootstrap.servers": both.servers[1], "transactional.id": f"{topic}-other"}
            )
            await asyncio.to_thread(producer.init_transactions, 60)
            producer.begin_transaction()
            producer.produce(topic, b"a", partition=0)
            await asyncio.to_thread(producer.flush, 60)
            sides = Sides(both.source, both.destination)
            partitions = Sides(both.partition, both.partition)
            assert not await AskedFacts(sides, partitions, 1.0).moves_on(0)
            waiting = asyncio.ensure_future(AskedFacts(sides, partitions, 60.0).moves_on(0))
            await asyncio.to_thread(producer.commit_transaction, 60)
            assert await waiting

    asyncio.run(run())
