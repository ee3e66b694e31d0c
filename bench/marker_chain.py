"""How many small transactions any mirror can write that waits for each answer: a bare loop.

    .venv/bin/python bench/marker_chain.py [--seconds 10] [--replication 1 3] [--partitions 8]
        [--lanes 1 2] [--round 0 ...] [--ahead 8]

A mirror that keeps offsets writes each transaction as a batch, and its marker behind it. The marker
may be sent only when the batch is acknowledged, and the next batch only when the marker is, each
with acks=all (docs/decisions/0012-shared-marker-requests.md). This loop does nothing else: for each
destination broker one Produce with a batch of each of its partitions, then one WriteTxnMarkers with
a marker for each, and so on. The batches (10 records of 100 bytes) are built before; there is no
source, no plan, no state, no Spark. So its rate is the limit of this way on these brokers, and its
CPU is what the client library costs. With several lanes each is a process of its own, and the
partitions are divided among them: a request then holds fewer of them. Each run is stored in
bench/results/marker_chain.json.

`--ahead` shows what it would save to send the next batch as soon as its marker is in the leader's
log, and not yet replicated. The log end offset tells that; it is asked until it has moved. A broker
answers the next request of a connection only when the markers of the one before are replicated, so
they take turns on so many connections. These runs are printed beside the others, and not stored.
"""

import argparse
import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack
from functools import partial
from multiprocessing import get_context

import results
from harness import Properties, client, connect, make_topic, plain, start_cluster
from transactions import RECORDS, VALUE_BYTES
from twinlog.engines.kafka_ports import KafkaDestination
from twinlog.engines.ports import Batch, MarkerRequest, Markers, ProducerIdentity
from twinlog.kafka import types
from twinlog.kafka.log.batch import patched_header
from twinlog.kafka.log.compression import Codec
from twinlog.kafka.log.records import RawRecord, build, encode_tail
from twinlog.kafka.types import ProducerEpoch, ProducerId, TopicPartition
from twinlog.local.cluster import LocalCluster

TOPIC = "marker-chain"
WARM_S = 5.0
_Run = tuple[int, float, float]
"""Transactions, seconds, CPU seconds."""
KEY = ("replication", "partitions", "lanes", "round")


async def main() -> None:
    """Measure each replication factor, print a line for each run, store it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--replication", type=int, nargs="*", default=[1, 3])
    parser.add_argument("--partitions", type=int, nargs="*", default=[1, 8])
    parser.add_argument("--lanes", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--round", action="append", type=int, help="only these; default: 0, 1, 2")
    parser.add_argument("--ahead", type=int, default=0, help="connections for markers; 0: wait")
    options = parser.parse_args()
    for replication in options.replication:
        with start_cluster(replication) as local:
            # Not stored: it warms up the brokers.
            await measure(local, 8, replication, 1, WARM_S)
            for number in options.round or range(3):
                for partitions in options.partitions:
                    for lanes in options.lanes:
                        rate, cpu = await measure(
                            local, partitions, replication, lanes, options.seconds
                        )
                        run_name = (
                            f"replication factor {replication}, {partitions} partitions, "
                            f"{lanes} lanes"
                        )
                        _tell(run_name, rate, cpu)
                        run: results.Run = {
                            "replication": replication,
                            "partitions": partitions,
                            "lanes": lanes,
                            "round": number,
                            "transactions_per_second": rate,
                            "cpu_us_per_transaction": cpu * 1e6,
                        }
                        results.put("marker_chain", run, KEY)
                        if options.ahead:
                            found = await measure(
                                local,
                                partitions,
                                replication,
                                lanes,
                                options.seconds,
                                ahead=options.ahead,
                            )
                            _tell(f"{run_name}, ahead", *found)


def _tell(run_name: str, rate: float, cpu: float) -> None:
    text = f"{run_name}: {rate:,.0f} transactions/s, CPU {cpu * 1e6:.0f} us/transaction"
    print(text, flush=True)


async def measure(
    local: LocalCluster,
    partitions: int,
    replication: int,
    lanes: int,
    seconds: float,
    *,
    ahead: int = 0,
) -> tuple[float, float]:
    """Write to a new topic; return transactions per second, and CPU seconds of each."""
    topic = f"{TOPIC}-{partitions}-{time.time_ns()}"
    async with client(local) as cluster:
        await make_topic(cluster, topic, partitions, replication)
    loop = asyncio.get_running_loop()
    with ProcessPoolExecutor(lanes, get_context("spawn")) as processes:
        names = [
            [TopicPartition(topic, index) for index in range(lane, partitions, lanes)]
            for lane in range(lanes)
        ]
        runs = [
            loop.run_in_executor(processes, partial(_lane, plain(local), its, seconds, ahead))
            for its in names
        ]
        done = await asyncio.gather(*runs)
    written = sum(run[0] for run in done)
    return sum(run[0] / run[1] for run in done), sum(run[2] for run in done) / written


def _lane(
    properties: Properties, partitions: Sequence[TopicPartition], seconds: float, ahead: int
) -> _Run:
    return asyncio.run(_write(properties, partitions, seconds, ahead))


async def _write(
    properties: Properties, partitions: Sequence[TopicPartition], seconds: float, ahead: int
) -> _Run:
    """Write to these partitions."""
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(connect(properties))
        others = [await stack.enter_async_context(connect(properties)) for _ in range(ahead)]
        marker_ports = [KafkaDestination(other, lambda: True) for other in others]
        topic = partitions[0].topic
        port = KafkaDestination(cluster, lambda: True)
        leaders = await port.leaders([topic])
        for other in marker_ports:
            await other.leaders([topic])
        by_node: defaultdict[int, list[TopicPartition]] = defaultdict(list)
        for partition in partitions:
            by_node[leaders[partition].node].append(partition)
        prefix = f"{topic}-{partitions[0].partition}"
        data = await port.init_producer(f"{prefix}-data")
        producers = data, await port.init_producer(f"{prefix}-marker")
        started, cpu = time.perf_counter(), time.process_time()
        written = await asyncio.gather(
            *(
                _chain(
                    port,
                    node,
                    its_partitions,
                    producers,
                    started + seconds,
                    marker_ports=marker_ports,
                )
                for node, its_partitions in by_node.items()
            )
        )
        return sum(written), time.perf_counter() - started, time.process_time() - cpu


async def _chain(
    port: KafkaDestination,
    node: int,
    partitions: Sequence[TopicPartition],
    producers: tuple[ProducerIdentity, ProducerIdentity],
    until: float,
    *,
    marker_ports: Sequence[KafkaDestination],
) -> int:
    """Write to these partitions of one broker; return the number of transactions."""
    unanswered: deque[asyncio.Task[Mapping[TopicPartition, int]]] = deque()
    data, markers = producers
    written = 0
    now_ms = time.time_ns() // 1_000_000
    tail = memoryview(encode_tail(b"k", bytes(VALUE_BYTES)))
    built = build([RawRecord(index, now_ms, 0, tail) for index in range(RECORDS)], Codec.NONE)
    wanted = [MarkerRequest(markers, dict.fromkeys(partitions, Markers(1)))]
    while time.perf_counter() < until:
        first = written // len(partitions) * (RECORDS + 1)
        header = patched_header(
            built.header,
            built.records,
            ProducerId(data.producer_id),
            ProducerEpoch(data.epoch),
            types.Sequence(written // len(partitions) * RECORDS),
        )
        batches = [Batch(partition, header, built.records) for partition in partitions]
        answers = await port.produce(node, batches)
        assert all((a.error, a.base_offset) == (0, first) for a in answers.values()), answers
        written += len(partitions)
        if not marker_ports:
            codes = await port.write_markers(wanted, node=node)
            assert not any(codes.values()), codes
            continue
        if len(unanswered) == len(marker_ports):
            codes = await unanswered.popleft()
            assert not any(codes.values()), codes
        turn = marker_ports[written // len(partitions) % len(marker_ports)]
        unanswered.append(asyncio.create_task(turn.write_markers(wanted, node=node)))
        waiting = list(partitions)
        while waiting:
            ends = await port.log_ends(waiting)
            waiting = [p for p in waiting if ends[p].log_end <= first + RECORDS]
    await asyncio.gather(*unanswered)
    return written


if __name__ == "__main__":
    asyncio.run(main())
