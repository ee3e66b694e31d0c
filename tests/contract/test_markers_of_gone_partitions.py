"""WriteTxnMarkers for a producer id none of whose partitions the broker has.

The broker skips such an entry without an answer. If it is the last one, and the others are done,
nobody answers the request. So the mirror puts the entry with the most partitions last, and leaves
out what the metadata gives to another broker.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from contract.bench import Bench, ends_at
from contract.kafka_bench import KafkaBench, run_on_kafka
from contract.model_bench import run_on_model
from twinlog.engines.kafka_ports import MAX_MARKERS
from twinlog.engines.ports import MarkerRequest, Markers
from twinlog.kafka.client.metadata import Metadata
from twinlog.kafka.protocol.markers import Marker
from twinlog.kafka.requests import transactions
from twinlog.kafka.requests.transactions import write_txn_markers
from twinlog.kafka.types import TopicPartition
from twinlog.local.cluster import LocalCluster
from twinlog.local.processes import SHORT_LIVED

GONE = TopicPartition("never-made", 0)


@pytest.fixture(scope="module", params=["4.3.1", pytest.param("3.9.1", marks=pytest.mark.long)])
def local(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalCluster]:
    """Start a cluster of one broker."""
    folder = tmp_path_factory.mktemp("kafka")
    with LocalCluster.start(
        1, version=request.param, directory=folder, jvm_flags=SHORT_LIVED
    ) as cluster:
        yield cluster


@pytest.mark.broker
@pytest.mark.parametrize("gone_last", [True, False])
def test_a_marker_entry_without_partitions_of_the_broker_is_answered(
    local: LocalCluster, gone_last: bool
) -> None:
    """Goal: the broker answers only if it is not the last one; the marker is written anyway."""

    async def body(bench: KafkaBench) -> None:
        [partition] = await bench.topic()
        ids = [await bench.destination.init_producer(bench.name("marker")) for _ in range(2)]
        entries = [
            Marker(ids[0].producer_id, 0, [partition]),
            Marker(ids[1].producer_id, 0, [GONE]),
        ]
        cluster = bench.destination._cluster
        sent = write_txn_markers(cluster, 1, [entries if gone_last else entries[::-1]])
        if gone_last:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(sent, 3.0)
        else:
            found = await asyncio.wait_for(sent, 120.0)
            assert found == [{ids[0].producer_id: {partition: 0}, ids[1].producer_id: {GONE: 3}}]
        await ends_at(bench, partition, 1)

    run_on_kafka(local, body)


@pytest.mark.parametrize("gone_last", [True, False])
def test_the_model_answers_a_marker_entry_without_partitions(gone_last: bool) -> None:
    """Goal: the simulation meets this, too; the model's port knows no metadata that is newer."""

    async def body(bench: Bench) -> None:
        [partition] = await bench.topic()
        ids = [await bench.destination.init_producer(bench.name("marker")) for _ in range(2)]
        entries = [
            MarkerRequest(ids[0], {partition: Markers(1, 16, 16)}),
            MarkerRequest(ids[1], {GONE: Markers(1, 16, 16)}),
        ]
        sent = bench.destination.write_markers(entries if gone_last else entries[::-1], node=1)
        if gone_last:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(sent, 3.0)
        else:
            assert await asyncio.wait_for(sent, 20.0) == {partition: 0, GONE: 3}
        assert (await bench.destination.log_ends([partition]))[partition].log_end == 1

    run_on_model(body)


@pytest.mark.broker
def test_markers_for_a_missing_topic_are_not_sent(local: LocalCluster) -> None:
    """Goal: a topic that is known to be gone holds up no other partition."""

    async def body(bench: KafkaBench) -> None:
        [partition] = await bench.topic()
        ids = [await bench.destination.init_producer(bench.name("marker")) for _ in range(2)]
        requests = [
            MarkerRequest(ids[0], {partition: Markers(1, 16, 16)}),
            MarkerRequest(ids[1], {GONE: Markers(1, 16, 16)}),
        ]
        async with asyncio.timeout(120):
            found = await bench.destination.write_markers(requests, node=1)
        assert found == {partition: 0, GONE: 6}

    run_on_kafka(local, body)


@pytest.mark.broker
def test_the_entry_with_most_partitions_is_last(
    local: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: of one producer id, too: partitions that need more markers are an entry of their own.

    The topic is gone, and the metadata has not shown it yet.
    """

    async def body(bench: KafkaBench) -> None:
        partitions = await bench.topic(2)
        producer = await bench.destination.init_producer(bench.name("marker"))
        wanted = dict.fromkeys(partitions, Markers(2, 16, 32)) | {GONE: Markers(1, 16, 32)}
        monkeypatch.setattr(Metadata, "leads", lambda *_: True)
        async with asyncio.timeout(120):
            found = await bench.destination.write_markers([MarkerRequest(producer, wanted)], node=1)
        assert found == dict.fromkeys(partitions, 0) | {GONE: 3}
        ends = await bench.destination.log_ends(partitions)
        assert {end.log_end for end in ends.values()} == {2}

    run_on_kafka(local, body)


@pytest.mark.broker
def test_few_and_many_markers_are_sent_together(
    local: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: gaps that need many markers cost the others no round trip."""
    calls: list[int] = []

    async def counted(cluster: Any, node: int, requests: Any, **how: Any) -> Any:
        calls.append(len(requests))
        return await write_txn_markers(cluster, node, requests, **how)

    async def body(bench: KafkaBench) -> None:
        one, three, many, most = partitions = await bench.topic(4)
        producer = await bench.destination.init_producer(bench.name("marker"))
        numbers = {one: 1, three: 3, many: 500, most: MAX_MARKERS}
        wanted = {p: Markers(number, 0, 16) for p, number in numbers.items()}
        monkeypatch.setattr(transactions, "write_txn_markers", counted)
        found = await bench.destination.write_markers([MarkerRequest(producer, wanted)], node=1)
        assert found == dict.fromkeys(partitions, 0)
        ends = await bench.destination.log_ends(partitions)
        assert {p: end.log_end for p, end in ends.items()} == numbers
        assert calls == [4, 1], "three of one marker each with the first of many, then the rest"

    run_on_kafka(local, body)
