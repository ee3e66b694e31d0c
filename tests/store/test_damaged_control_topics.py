"""Control topics whose log has lost its end, on a real broker whose files are changed."""

import asyncio

import pytest
from clients import client, make_topic
from waiting import until_async

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import ControlTopicLost, Refusal
from twinlog.kafka.log.batch import batches
from twinlog.local.cluster import LocalCluster
from twinlog.store.polling_reader import ControlReader
from twinlog.store.topic_reader import Tail
from twinlog.store.topic_writer import ALL, Entry, append

pytestmark = pytest.mark.broker


def lose_end(cluster: LocalCluster, topic: str, end: int) -> None:
    """Kill the broker, remove all records from an offset on, and start it again."""
    cluster.kill(1)
    [path] = (cluster.directory / "node-1" / "data" / f"{topic}-0").glob("*.log")
    headers = list(batches(memoryview(path.read_bytes())))
    [at] = [header.position for header in headers if header.base_offset == end]
    with path.open("r+b") as file:
        file.truncate(at)
    cluster.start_broker(1)


def test_records_read_before_a_truncation_are_not_built_upon(
    fragile: LocalCluster, topic: str
) -> None:
    """It grows beyond the read position: the records read are stale, and are not built upon."""

    async def run() -> None:
        async with client(fragile) as cluster:

            async def write(cluster: KafkaCluster, value: bytes) -> bool:
                answers = await append(cluster, [Entry(topic, 0, b"k", value)], acks=ALL)
                return not any(isinstance(answer, Refusal) for answer in answers.values())

            async def lost(_: KafkaCluster) -> None:
                raise AssertionError("the topic is there")

            await make_topic(cluster, topic)
            for value in (b"0", b"1", b"2"):
                assert await write(cluster, value)
            tail = Tail(cluster, topic)
            required = ControlReader(
                *(cluster, topic, lambda records, _: records, []), on_missing=lost
            )
            assert [one.value for one in await tail.catch_up()] == [b"0", b"1", b"2"]
            assert len(await required.read()) == 3
            await asyncio.to_thread(lose_end, fragile, topic, 1)
            for value in (b"a", b"b", b"c"):
                await until_async(lambda value=value: write(cluster, value))
            assert [one.value for one in await tail.catch_up()] == [b"0", b"a", b"b", b"c"]
            assert tail.restarts == 1
            with pytest.raises(ControlTopicLost, match="has lost records that were read"):
                await required.read()
            assert await write(cluster, b"d")
            assert [one.value for one in await tail.catch_up()] == [b"d"]
            assert tail.restarts == 1
            await tail.close()

    asyncio.run(run())
