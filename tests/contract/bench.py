"""The test bench of a behaviour: the model's cluster or a real one, behind one interface.

A behaviour is a coroutine function of a `Bench`; `@behaviour` makes it a test that runs on each of
the fixture `bench_runner`'s clusters (see conftest.py), on the matching kind of event loop.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Protocol, TypeVar

from twinlog.engines.ports import (
    ActiveProducers,
    Appended,
    Batch,
    DestinationPort,
    LogEnd,
    SourcePort,
)
from twinlog.kafka.errors import Retriable
from twinlog.kafka.log.batch import CONTROL, Header, batches, new_header, patched_header
from twinlog.kafka.log.compression import Codec
from twinlog.kafka.log.records import RawRecord, build, encode_tail
from twinlog.kafka.protocol.fetch import Fetched
from twinlog.kafka.types import FetchPosition, ProducerEpoch, ProducerId, TopicPartition
from twinlog.kafka.types import Sequence as SequenceNumber

T = TypeVar("T")

WAIT_SECONDS = 120.0
POLL_SECONDS = 0.02
FETCH_BYTES = 64 * 1024 * 1024


class Bench(Protocol):
    """A cluster under test."""

    @property
    def source(self) -> SourcePort:
        """The cluster as a source."""
        ...

    @property
    def destination(self) -> DestinationPort:
        """The cluster as a destination."""
        ...

    def now_ms(self) -> int:
        """Return the cluster's wall clock in milliseconds."""
        ...

    def name(self, stem: str) -> str:
        """Return a name that is unique on the cluster."""
        ...

    async def topic(
        self, partitions: int = 1, *, policy: str = "delete", config: dict[str, str] | None = None
    ) -> list[TopicPartition]:
        """Create a topic and return its partitions."""
        ...

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic."""
        ...

    async def create_again(self, topic: str) -> None:
        """Recreate a deleted topic, with one partition."""
        ...

    async def transact(
        self, transactional_id: str, key: TopicPartition, values: Sequence[bytes], end: str
    ) -> None:
        """Write a transaction as a producer does; `end` is commit, abort or open."""
        ...


Behaviour = Callable[[Bench], Awaitable[None]]


class BenchRunner(Protocol):
    """Runs a behaviour on one cluster."""

    def __call__(self, behaviour: Behaviour, /) -> None:
        """Run it until it ends."""
        ...


def behaviour(function: Behaviour) -> Callable[[BenchRunner], None]:
    """Make a test of a behaviour."""

    def test(bench_runner: BenchRunner) -> None:
        bench_runner(function)

    test.__name__ = function.__name__
    test.__doc__ = function.__doc__
    test.__module__ = function.__module__
    return test


async def until(
    condition: Callable[[], Awaitable[T]], what: str, seconds: float = WAIT_SECONDS
) -> T:
    """Poll until the answer is true; the deadline uses the loop's own clock, real or virtual.

    What a user would try again is tried again.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while True:
        last: object
        try:
            if result := await condition():
                return result
            last = result
        except Retriable as error:
            last = error
        assert loop.time() < deadline, f"{what}: not within {seconds:g} s (last: {last!r})"
        await asyncio.sleep(POLL_SECONDS)


def batch(
    key: TopicPartition,
    values: Sequence[bytes],
    *,
    producer_id: int,
    epoch: int = 0,
    sequence: int = 0,
    timestamp: int,
    codec: Codec = Codec.NONE,
    record_key: bytes | None = b"k",
) -> Batch:
    """Build a batch as the engine produces it."""
    records = [
        RawRecord(at, timestamp, 0, memoryview(encode_tail(record_key, value)))
        for at, value in enumerate(values)
    ]
    built = build(records, codec)
    header = patched_header(
        built.header,
        built.records,
        ProducerId(producer_id),
        ProducerEpoch(epoch),
        SequenceNumber(sequence),
    )
    return Batch(key, header, built.records)


def spoiled(good: Batch, *, control: bool = False, last_offset_delta: int | None = None) -> Batch:
    """Build the same batch with a header that a broker refuses, and a correct checksum."""
    header = header_of(good)
    return good._replace(
        header=new_header(
            length=header.length,
            attributes=header.attributes | (CONTROL if control else 0),
            last_offset_delta=header.last_offset_delta
            if last_offset_delta is None
            else last_offset_delta,
            base_timestamp=header.base_timestamp,
            max_timestamp=header.max_timestamp,
            producer_id=header.producer_id,
            epoch=header.producer_epoch,
            sequence=header.base_sequence,
            count=header.num_records,
            records=good.records,
        )
    )


def header_of(made: Batch) -> Header:
    """Parse a batch's header."""
    return next(batches(memoryview(made.header + bytes(made.records))))


async def send(bench: Bench, *made: Batch) -> list[Appended]:
    """Produce batches of one partition to its leader, without waiting between them."""
    key = made[0].partition
    node = await leader_of(bench, key)
    requests = [bench.destination.produce(node, [one]) for one in made]
    return [(await request)[key] for request in requests]


async def leader_of(bench: Bench, key: TopicPartition) -> int:
    """Return the partition's leader, once it has one that answers for it.

    A broker may learn that it leads a partition after another broker reports it.
    """

    async def ask() -> int:
        leader = (await bench.destination.leaders([key.topic])).get(key)
        if leader is None or leader.error:
            return 0
        return 0 if (await bench.destination.log_ends([key]))[key].error else leader.node

    return await until(ask, f"a leader of {key}")


async def log_end(bench: Bench, key: TopicPartition) -> int:
    """Return the leader's log end offset."""
    found: LogEnd

    async def ask() -> bool:
        nonlocal found
        found = (await bench.destination.log_ends([key]))[key]
        return not found.error

    await until(ask, f"the log end of {key}")
    return found.log_end


async def ends_at(bench: Bench, key: TopicPartition, expected: int) -> None:
    """Wait until the log end offset is `expected`."""

    async def ask() -> bool:
        return await log_end(bench, key) >= expected

    await until(ask, f"{key} to end at {expected}")
    assert await log_end(bench, key) == expected


async def last_sequence(
    bench: Bench, key: TopicPartition, producer_id: int
) -> tuple[int, int] | None:
    """Return a producer's epoch and last sequence from the partition's leader; None if unknown."""
    found: ActiveProducers

    async def ask() -> bool:
        nonlocal found
        found = (await bench.destination.producers([key]))[key]
        return not found.error

    await until(ask, f"the producers of {key}")
    for known in found.active:
        if known.producer_id == producer_id:
            return known.epoch, known.last_sequence
    return None


async def content(bench: Bench, key: TopicPartition, offset: int = 0) -> list[Header]:
    """Return the headers of the destination's log from an offset on."""
    found = (await bench.destination.read({key: offset}, partition_max_bytes=FETCH_BYTES))[key]
    assert found.error == 0
    return list(batches(found.records))


async def committed(bench: Bench, key: TopicPartition, offset: int = 0) -> Fetched:
    """Return the source's answer to a read_committed fetch."""
    found = await bench.source.read({key: offset}, partition_max_bytes=FETCH_BYTES)
    return found[key]


async def fetched(
    bench: Bench, node: int, key: TopicPartition, position: FetchPosition, wait_ms: int = 100
) -> Fetched:
    """Return the source's answer to a Fetch from there, within its session; it must have news."""
    result = await bench.source.fetch(
        node, {key: position}, max_wait_ms=wait_ms, max_bytes=10**6, partition_max_bytes=10**6
    )
    return result.partitions[key]


async def empty_transactions(
    bench: Bench, transactional_id: str, keys: Collection[TopicPartition], count: int
) -> None:
    """Use up offsets: write that many markers on each partition."""
    producer = await bench.destination.init_producer(transactional_id)
    for _ in range(count):
        await bench.destination.empty_transaction(producer, keys)


def values(count: int, size: int = 10) -> list[bytes]:
    """Return some record values."""
    return [f"{at}".encode().ljust(size, b".") for at in range(count)]
