"""Made the files in this folder: real batches, and what a real consumer sees of them.

    PYTHONPATH=tests/support .venv/bin/python tests/data/capture.py

    name.bin   record batches as a broker's Fetch answers them, one behind the other
    name.json  "aborted": for each offset the aborted transactions that a Fetch from there lists;
               "records": what a read_committed consumer (librdkafka) was given

A broker of Kafka 4.3.1 wrote them, from batches of librdkafka; where a topic sets
`compression.type`, the broker itself has compressed, which is the Java code of every Java client
(snappy in the framing of snappy-java, for one). What is in each is said by the functions below.
Values of more than 64 bytes stand in name.json by their SHA-256.

The files are kept, so that all tests see the same bytes; run this again to capture another version.
"""

import asyncio
import base64
import hashlib
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from clients import client
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from twinlog.engines.kafka_ports import KafkaSource
from twinlog.kafka.log.batch import DELETE_HORIZON, Header, batches
from twinlog.kafka.types import AbortedTransaction
from twinlog.kafka.types import TopicPartition as Key
from twinlog.local.cluster import LocalCluster

HERE: Final = Path(__file__).parent
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
THEN: Final = 1_700_000_000_000
SHORT: Final = 64
READ_BYTES: Final = 64 * 1024 * 1024
CLEANED_WITHIN_S: Final = 240.0
BROKER: Final = {
    "log.cleaner.backoff.ms": "100",
    "log.cleaner.delete.retention.ms": "86400000",
    "log.retention.ms": "-1",
}


class Bench:
    """One broker, and topics of one partition on it."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.servers = cluster.bootstrap_servers
        self.admin = AdminClient({"bootstrap.servers": self.servers})

    def topic(self, name: str, **config: str) -> None:
        """Create it."""
        settings = {key.replace("_", "."): value for key, value in config.items()}
        self.admin.create_topics([NewTopic(name, 1, 1, config=settings)])[name].result()

    def alter(self, name: str, **config: str) -> None:
        """Change a topic's configuration."""
        resource = ConfigResource(ConfigResource.Type.TOPIC, name)
        for key, value in config.items():
            resource.set_config(key.replace("_", "."), value)
        self.admin.alter_configs([resource])[resource].result()

    def producer(self, **config: object) -> Producer:
        """A producer that sends when it is flushed."""
        return Producer(
            {"bootstrap.servers": self.servers, "linger.ms": 1000}
            | {key.replace("_", "."): value for key, value in config.items()}
        )

    def consumed(self, name: str) -> Iterator[Message]:
        """What a read_committed consumer is given, up to the last stable offset."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": name,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "check.crcs": True,
            }
        )
        try:
            consumer.assign([TopicPartition(name, 0, 0)])
            while True:
                message = consumer.poll(30.0)
                assert message is not None
                error = message.error()
                if error is not None:
                    assert error.name() == "_PARTITION_EOF", error
                    return
                yield message
        finally:
            consumer.close()

    def raw(self, name: str) -> bytes:
        """The partition as it is fetched."""
        return asyncio.run(self._raw(name))

    async def _raw(self, name: str) -> bytes:
        async with client(self.cluster) as cluster:
            source = KafkaSource(cluster)
            await source.leaders({name})
            return (await _read(source, Key(name, 0), 0))[0]

    def aborted(self, name: str, end: int) -> dict[int, list[AbortedTransaction]]:
        """The aborted transactions that are listed from each offset on, where there are any."""
        return asyncio.run(self._aborted(name, end))

    async def _aborted(self, name: str, end: int) -> dict[int, list[AbortedTransaction]]:
        async with client(self.cluster) as cluster:
            source = KafkaSource(cluster)
            await source.leaders({name})
            found = {at: (await _read(source, Key(name, 0), at))[1] for at in range(end)}
        return {at: listed for at, listed in found.items() if listed}


async def _read(
    source: KafkaSource, key: Key, start: int
) -> tuple[bytes, list[AbortedTransaction]]:
    """All batches from an offset on, answer by answer: one never goes past a segment's end."""
    data = b""
    aborted: list[AbortedTransaction] = []
    position = start
    while True:
        found = (await source.read({key: position}, partition_max_bytes=READ_BYTES))[key]
        assert found.error == 0, found
        headers = list(batches(found.records))
        if not headers or headers[-1].next_offset <= position:
            return data, aborted
        data += bytes(found.records)
        aborted += [txn for txn in found.aborted if txn not in aborted]
        position = headers[-1].next_offset


def main() -> None:
    """Capture everything."""
    with LocalCluster.start(1, config=BROKER) as cluster:
        bench = Bench(cluster)
        for codec in CODECS:
            save(bench, many_kinds(bench, f"client-{codec}", codec, "producer"))
            save(bench, many_kinds(bench, f"broker-{codec}", "none", _broker_name(codec)))
        save(bench, small(bench))
        save(bench, transactions(bench))
        save(bench, append_time(bench))
        save(bench, compacted(bench))


def save(bench: Bench, name: str) -> None:
    """Write a topic's two files."""
    data = bench.raw(name)
    headers = list(batches(memoryview(data)))
    aborted = bench.aborted(name, headers[-1].next_offset)
    records = [_described(message) for message in bench.consumed(name)]
    (HERE / f"{name}.bin").write_bytes(data)
    (HERE / f"{name}.json").write_text(
        json.dumps({"aborted": aborted}, separators=(",", ":"))[:-1]
        + ',"records":[\n'
        + ",\n".join(json.dumps(record, separators=(",", ":")) for record in records)
        + "\n]}\n"
    )
    sys.stdout.write(f"{name}: {len(data)} bytes, {len(headers)} batches, {len(records)} records\n")


def _described(message: Message) -> list[Any]:
    timestamp = message.timestamp()[1]
    found: Any = message.headers()  # a list, as a consumer gets it
    headers = [[name, _text(value)] for name, value in found or ()]
    return [message.offset(), timestamp, _text(message.key()), _text(message.value()), headers]


def _text(data: bytes | None) -> str | None:
    if data is None or len(data) <= SHORT:
        return None if data is None else base64.b64encode(data).decode()
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _broker_name(codec: str) -> str:
    return {"none": "uncompressed"}.get(codec, codec)


# ---- what is in each ---------------------------------------------------------------------------


def many_kinds(bench: Bench, name: str, client_codec: str, broker_codec: str) -> str:
    """Null and empty keys and values, headers, large values, timestamps in no order."""
    bench.topic(name, compression_type=broker_codec)
    rng = random.Random(name)
    producer = bench.producer(compression_type=client_codec, enable_idempotence=True)
    odd: list[tuple[bytes | None, bytes | None, list[tuple[str, str | bytes | None]]]] = [
        (None, None, []),
        (b"", b"", []),
        (None, b"value only", []),
        (b"key only", None, []),
        (b"k", b"v", [("one", b"1")]),
        (
            b"k",
            b"v",
            [("same", b"1"), ("same", None), ("", b""), ("\u00fcml\u00e4ut", b"\xff\x00")],
        ),
        (b"\xff" * 70, b"\x00" * 200, [(f"h{at}", b"x" * at) for at in range(70)]),
        (b"large", b"".join(b"line %d of a large value\n" % at for at in range(1500)), []),
        (b"noise", rng.randbytes(9000), []),
    ]
    for size in (1, 2, 3, 9, 200):
        for at in range(size):
            key, value, headers = odd[at % len(odd)]
            if size > len(odd):
                key, value, headers = b"%d" % at, b"v" * 9, []
            producer.produce(
                name, value, key, headers=headers, timestamp=THEN + rng.randint(-(10**9), 10**9)
            )
        producer.flush()
    return name


def small(bench: Bench) -> str:
    """Batches of one to three records, as a producer sends them that does not wait; all codecs."""
    name = "small"
    bench.topic(name)
    rng = random.Random(name)
    for codec in ("none", "zstd", "none", "snappy", "lz4", "gzip", "none"):
        producer = bench.producer(compression_type=codec)
        for at in range(12):
            for _ in range(rng.choice((1, 1, 1, 1, 2, 3)) if codec != "none" or at % 7 else 1):
                producer.produce(
                    name,
                    b"v" * rng.choice((0, 1, 50, 57, 58, 59, 100, 300)),
                    rng.choice((None, b"", b"key")),
                    timestamp=THEN + rng.randint(-20_000, 20_000),
                    headers=[("h", b"x")] if at % 5 == 0 else [],
                )
            producer.flush()
    return name


def transactions(bench: Bench) -> str:
    """Committed and aborted, one after the other and interleaved, among data of no transaction."""
    name = "transactions"
    bench.topic(name)
    plain = bench.producer()
    one, two, three = (
        bench.producer(transactional_id=f"id-{at}", compression_type=codec)
        for at, codec in enumerate(("none", "zstd", "lz4"))
    )
    for producer in (one, two, three):
        producer.init_transactions()

    def send(producer: Producer, count: int, what: str) -> None:
        for at in range(count):
            producer.produce(name, f"{what} {at}".encode(), b"k%d" % at, timestamp=THEN + at)
        producer.flush()

    def end(producer: Producer, *, commit: bool) -> None:
        producer.commit_transaction() if commit else producer.abort_transaction()

    def alone(producer: Producer, count: int, what: str, *, commit: bool) -> None:
        producer.begin_transaction()
        send(producer, count, what)
        end(producer, commit=commit)

    send(plain, 3, "plain")
    alone(one, 2, "aborted", commit=False)
    alone(one, 2, "committed", commit=True)  # the same id, at once
    alone(one, 1, "aborted again", commit=False)
    alone(one, 1, "aborted thrice", commit=False)
    alone(one, 3, "committed again", commit=True)
    # Interleaved: two's transaction begins before three's and ends after it.
    two.begin_transaction()
    send(two, 4, "two, aborted")
    three.begin_transaction()
    send(three, 3, "three, committed")
    send(plain, 2, "plain between")
    send(two, 2, "two, aborted, later")
    end(three, commit=True)
    three.begin_transaction()
    send(three, 2, "three, aborted")
    send(one_more(bench), 1, "plain of another")
    end(two, commit=False)
    two.begin_transaction()
    send(two, 2, "two, committed")
    end(three, commit=False)
    end(two, commit=True)
    for at in range(6):
        alone(one, 1, f"many {at}", commit=at % 2 == 0)
    send(plain, 2, "the end")
    return name


def one_more(bench: Bench) -> Producer:
    """An idempotent producer without transactions."""
    return bench.producer(enable_idempotence=True)


def append_time(bench: Bench) -> str:
    """LogAppendTime, then CreateTime, then LogAppendTime: single records and batches."""
    name = "append-time"
    bench.topic(name, message_timestamp_type="LogAppendTime")
    for kind in ("LogAppendTime", "CreateTime", "LogAppendTime"):
        bench.alter(name, message_timestamp_type=kind)
        time.sleep(1.0)  # the broker takes it up soon after it has answered
        for codec in ("none", "zstd", "snappy"):
            producer = bench.producer(compression_type=codec)
            for size in (1, 1, 1, 1, 1, 1, 20):
                for at in range(size):
                    producer.produce(name, b"v%d" % at, b"k%d" % at, timestamp=THEN + at)
                producer.flush()
    return name


def compacted(bench: Bench) -> str:
    """Holes, empty batches, delete horizons, transactions of which little is left."""
    name = "compacted"
    bench.topic(
        name,
        cleanup_policy="compact",
        segment_ms="50",
        min_cleanable_dirty_ratio="0.01",
        min_compaction_lag_ms="0",
        delete_retention_ms="86400000",
    )

    def send(producer: Producer, keys: Iterator[int] | range, value: str | None) -> None:
        for key in keys:
            producer.produce(name, value and f"{value} {key}".encode(), b"k%d" % key)
        producer.flush()
        time.sleep(0.1)

    for codec in ("zstd", "none"):
        send(bench.producer(compression_type=codec, enable_idempotence=True), range(40), codec)
    gone = bench.producer(enable_idempotence=True)  # only its last, empty batch stays
    send(gone, range(3), "gone")
    lone = bench.producer()
    for key in range(30, 36):
        send(lone, range(key, key + 1), "lone")
    aborting = bench.producer(transactional_id="compacted-a", compression_type="lz4")
    aborting.init_transactions()
    for commit in (False, True, False):
        aborting.begin_transaction()
        send(aborting, range(4, 20, 3), f"commit {commit}")
        aborting.commit_transaction() if commit else aborting.abort_transaction()
    send(bench.producer(compression_type="zstd"), range(20, 26), None)
    send(bench.producer(), range(26, 28), None)
    for at in range(3):
        send(bench.producer(compression_type="gzip"), range(0, 30, 2 + at), f"last {at}")
    send(bench.producer(), range(50, 52), "head")  # rolls the segment; stays in the active one
    _wait_until_cleaned(bench, name)
    return name


def _wait_until_cleaned(bench: Bench, name: str) -> None:
    wanted: dict[str, Callable[[Header], bool]] = {
        "holes": lambda h: 0 < h.num_records <= h.last_offset_delta,
        "an empty batch": lambda h: h.num_records == 0,
        "a delete horizon": lambda h: h.attributes & DELETE_HORIZON != 0,
    }
    deadline = time.monotonic() + CLEANED_WITHIN_S
    while True:
        headers = list(batches(memoryview(bench.raw(name))))
        missing = [what for what, is_it in wanted.items() if not any(map(is_it, headers))]
        if not missing:
            return
        assert time.monotonic() < deadline, f"compaction has left no {missing}"
        time.sleep(1.0)


if __name__ == "__main__":
    main()
