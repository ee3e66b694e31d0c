"""The writers of the load (load.py): the records of each writer, and their numbers.

A number counts as written when the broker has acknowledged the record; in a transaction, when the
commit was acknowledged. If the outcome of a commit is unknown (a fatal error of the producer), the
writer continues under a new name and counts from 1 again. The records of its last transaction may
be in the log or not; in both cases the numbers have neither gap nor repetition. `Numbers` has both
bounds.
"""

import itertools
import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from confluent_kafka import KafkaError, KafkaException, Message, Producer

ORDERS: Final = "orders"
CUSTOMERS: Final = "customers"
CLICKS: Final = "clicks"
ARCHIVE: Final = "archive"

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
"""The codecs of the partitions of clicks, in order."""
ORDER_WRITERS: Final = 3
PER_TRANSACTION: Final = 80
"""Records per transaction."""
TRANSACTION_SECONDS: Final = 10.0
"""How long one attempt to end a transaction may take; there may be several."""
END_SECONDS: Final = 60.0
"""How long ending a transaction is retried."""
ABSENT_SECONDS: Final = 900.0
"""How long a cluster may be unreachable: a writer retries its initialization for this time."""
FINISH_SECONDS: Final = 60.0
"""How long the last records may take to be acknowledged."""
CUSTOMERS_KNOWN: Final = 300

_CITIES: Final = ("Bergamo", "Gdansk", "Girona", "Leuven", "Malmo", "Porto", "Tartu", "Zadar")
_PAGES: Final = ("/", "/search", "/basket", "/help", "/item/1734", "/item/88", "/account")


class Writers(Protocol):
    """The writers of one topic, driven by the load's loop."""

    def write(self, count: int) -> None:
        """Write this many records."""
        ...

    def finish(self) -> None:
        """Complete what is in flight, and wait until it is acknowledged."""
        ...


@dataclass(slots=True)
class Numbers:
    """A writer's numbers in one partition: 1 to `least` are written, those up to `most` may be."""

    least: int = 0
    most: int = 0


@dataclass(slots=True)
class Totals:
    """The totals of all writers."""

    records: int = 0
    committed: int = 0
    aborted: int = 0
    aborted_records: int = 0
    numbers: dict[tuple[str, int, str], Numbers] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def of(self, topic: str, partition: int, writer: str) -> Numbers:
        """A writer's numbers in one partition."""
        return self.numbers.setdefault((topic, partition, writer), Numbers())

    def as_json(self, *, written: bool) -> dict[str, Any]:
        """The totals for the load's output; `written` adds each writer's numbers."""
        totals: dict[str, Any] = {
            "records": self.records,
            "committed": self.committed,
            "aborted": self.aborted,
            "aborted_records": self.aborted_records,
            "failures": self.failures,
        }
        if written:
            totals["written"] = [
                [*key, numbers.least, numbers.most] for key, numbers in self.numbers.items()
            ]
        return totals


Headers = list[tuple[str, str | bytes | None]]
Acknowledged = Callable[[KafkaError | None, Message], None]


class NewRecord(NamedTuple):
    """One record to write."""

    topic: str
    partition: int
    key: str | None
    value: str | None
    headers: Headers


def headers(writer: str, number: int) -> Headers:
    """The headers that every record has."""
    return [("writer", writer.encode()), ("number", str(number).encode())]


def make_producer(bootstrap_servers: str, **settings: Any) -> Producer:
    """A librdkafka producer that by default never gives up on a record."""
    return Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "enable.idempotence": True,
            "message.timeout.ms": 0,
            "linger.ms": 20,
            "reconnect.backoff.max.ms": 500,
            "log_level": 2,
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
    )


class PlainWriter:
    """One idempotent producer, whose records are numbered by partition."""

    def __init__(
        self, bootstrap_servers: str, name: str, totals: Totals, prefix: str = "", **settings: Any
    ) -> None:
        self._name = name
        self._totals = totals
        self._prefix = prefix
        self._producer = make_producer(bootstrap_servers, **settings)

    def write(
        self,
        topic: str,
        partition: int,
        key: str | None,
        value: str | None,
        extra: Sequence[tuple[str, str | bytes | None]] = (),
    ) -> None:
        """Write one record; wait while the client's queue is full."""
        topic = self._prefix + topic
        numbers = self._totals.of(topic, partition, self._name)
        numbers.most += 1
        record = NewRecord(
            topic, partition, key, value, [*headers(self._name, numbers.most), *extra]
        )
        _hand_over(self._producer, record, self._acknowledged)
        self._producer.poll(0)

    def flush(self, seconds: float) -> int:
        """Wait until all is acknowledged; return how many records are not."""
        return self._producer.flush(seconds)

    def _acknowledged(self, error: KafkaError | None, message: Message) -> None:
        topic, partition = message.topic(), message.partition()
        assert topic is not None
        assert partition is not None
        if error is not None:
            self._totals.failures.append(f"{topic}-{partition}: {error}")
            return
        self._totals.of(topic, partition, self._name).least += 1
        self._totals.records += 1


def _hand_over(producer: Producer, record: NewRecord, acknowledged: Acknowledged | None) -> None:
    """Pass a record to the client; wait while the client's queue is full."""
    while True:
        try:
            producer.produce(
                record.topic,
                partition=record.partition,
                key=record.key,
                value=record.value,
                headers=record.headers,
                on_delivery=acknowledged,
            )
        except BufferError:
            producer.poll(0.1)
        else:
            return


class TransactionalProducer:
    """One transactional producer; a fatal error replaces it by one with another writer name."""

    def __init__(self, bootstrap_servers: str, name: str, totals: Totals, prefix: str = "") -> None:
        self._bootstrap_servers = bootstrap_servers
        self._id = name
        self._totals = totals
        self._prefix = prefix
        self._lives = itertools.count()
        self._numbers: dict[tuple[str, int], int] = {}
        self._records = 0
        self._begin_life()

    def _begin_life(self) -> None:
        self._name = f"{self._id}.{next(self._lives)}"
        self._broken = False
        self._producer = make_producer(
            self._bootstrap_servers,
            transactional_id=self._id,
            transaction_timeout_ms=60_000,
            message_timeout_ms=60_000,
            linger_ms=0,
        )
        self._insist(self._producer.init_transactions, ABSENT_SECONDS)

    def begin(self) -> None:
        """Begin a transaction."""
        self._numbers.clear()
        self._records = 0
        self._producer.begin_transaction()

    def write(self, topic: str, partition: int, key: str, value: str) -> None:
        """Write one record in the transaction."""
        if self._broken:
            return
        topic = self._prefix + topic
        before = self._totals.of(topic, partition, self._name).least
        number = self._numbers.get((topic, partition), before) + 1
        self._numbers[topic, partition] = number
        self._records += 1
        record = NewRecord(topic, partition, key, value, headers(self._name, number))
        try:
            _hand_over(self._producer, record, None)
        except KafkaException:
            self._broken = True

    def flush(self) -> None:
        """Send the queued records, so that batches of other transactions come in between."""
        self._producer.flush(TRANSACTION_SECONDS)

    def end(self, *, commit: bool) -> None:
        """Commit or abort the transaction; if the cluster refuses the commit, abort it."""
        try:
            if commit and not self._broken and self._insist(self._producer.commit_transaction):
                for (topic, partition), number in self._numbers.items():
                    numbers = self._totals.of(topic, partition, self._name)
                    numbers.least = numbers.most = number
                self._totals.committed += 1
                self._totals.records += self._records
                return
            self._insist(self._producer.abort_transaction)
        except KafkaException:
            for (topic, partition), number in self._numbers.items():
                self._totals.of(topic, partition, self._name).most = number
            self._begin_life()
            return
        self._broken = False
        self._totals.aborted += 1
        self._totals.aborted_records += self._records

    @staticmethod
    def _insist(step: Callable[[float], None], seconds: float = END_SECONDS) -> bool:
        """Do a step, with retries for `seconds`; return False if the transaction must be aborted.

        Raises:
            KafkaException: the producer cannot be used any more, and the outcome is unknown.
        """
        end = time.monotonic() + seconds
        while True:
            try:
                step(TRANSACTION_SECONDS)
            except KafkaException as exception:
                error: KafkaError = exception.args[0]
                if error.txn_requires_abort():
                    return False
                if not error.retriable() or time.monotonic() > end:
                    raise
            else:
                return True


class Orders:
    """Transactions of several producers, interleaved, a third of them aborted."""

    def __init__(self, bootstrap_servers: str, seed: str, totals: Totals, prefix: str = "") -> None:
        self._random = random.Random(f"{ORDERS}{seed}")  # noqa: S311 - no secret
        self._writers = [
            TransactionalProducer(bootstrap_servers, f"{ORDERS}-{seed}-{index}", totals, prefix)
            for index in range(ORDER_WRITERS)
        ]
        self._rounds = 0
        self._orders = 0
        self._owed = 0

    def write(self, count: int) -> None:
        """Write a transaction of each producer, all open at once, when enough records are due."""
        self._owed += count
        if self._owed >= ORDER_WRITERS * PER_TRANSACTION:
            self._round(self._owed // ORDER_WRITERS)
            self._owed = 0

    def _round(self, count: int) -> None:
        self._rounds += 1
        for writer in self._writers:
            writer.begin()
        for _ in range(2):
            for writer in self._writers:
                for _ in range(count // 2):
                    writer.write(ORDERS, self._random.randrange(4), *self._order())
            for writer in self._writers:
                writer.flush()
        for index in range(ORDER_WRITERS):
            turn = (index + self._rounds) % ORDER_WRITERS
            self._writers[turn].end(commit=turn != (self._rounds // 2) % ORDER_WRITERS)

    def finish(self) -> None:
        """Do nothing: nothing is in flight between two rounds."""

    def _order(self) -> tuple[str, str]:
        self._orders += 1
        lines = [
            {
                "sku": f"s-{self._random.randrange(9999):04}",
                "quantity": self._random.randrange(1, 9),
            }
            for _ in range(self._random.randrange(1, 6))
        ]
        order = {
            "order": f"o-{self._orders:08}",
            "customer": f"c-{self._random.randrange(CUSTOMERS_KNOWN):05}",
            "lines": lines,
            "total": round(self._random.uniform(3, 400), 2),
        }
        return str(order["customer"]), json.dumps(order)


class _Plain:
    """The common part of the topics without transactions: producers that must be flushed."""

    def __init__(self, writers: Sequence[PlainWriter], totals: Totals) -> None:
        self._writers = writers
        self._totals = totals

    def finish(self) -> None:
        for writer in self._writers:
            if unsent := writer.flush(FINISH_SECONDS):
                self._totals.failures.append(f"{unsent} records were not acknowledged")


class Customers(_Plain):
    """The last state of each customer, in a compacted topic."""

    def __init__(self, bootstrap_servers: str, seed: str, totals: Totals, prefix: str = "") -> None:
        writer = PlainWriter(
            bootstrap_servers, f"{CUSTOMERS}-{seed}", totals, prefix, compression_type="lz4"
        )
        super().__init__([writer], totals)
        self._random = random.Random(f"{CUSTOMERS}{seed}")  # noqa: S311 - no secret

    def write(self, count: int) -> None:
        """Update customers; one in ten updates is a tombstone."""
        for _ in range(count):
            number = self._random.randrange(CUSTOMERS_KNOWN)
            state = {
                "city": self._random.choice(_CITIES),
                "points": self._random.randrange(5000),
                "news": self._random.random() < 0.5,
            }
            value = None if self._random.random() < 0.1 else json.dumps(state)
            self._writers[0].write(CUSTOMERS, number % 2, f"c-{number:05}", value)


class Clicks(_Plain):
    """Small records, a codec for each partition, null keys, values and header values."""

    def __init__(self, bootstrap_servers: str, seed: str, totals: Totals, prefix: str = "") -> None:
        writers = [
            PlainWriter(
                *(bootstrap_servers, f"{CLICKS}-{seed}-{codec}", totals, prefix),
                compression_type=codec,
            )
            for codec in CODECS
        ]
        super().__init__(writers, totals)
        self._random = random.Random(f"{CLICKS}{seed}")  # noqa: S311 - no secret

    def write(self, count: int) -> None:
        """Write clicks with headers, to random partitions."""
        for _ in range(count):
            partition = self._random.randrange(len(CODECS))
            session = f"{self._random.getrandbits(40):010x}"
            click = {"page": self._random.choice(_PAGES), "ms": self._random.randrange(900)}
            key = session if self._random.random() < 0.7 else None
            value = json.dumps(click) if self._random.random() < 0.9 else None
            extra = [("session", session.encode()), ("referrer", None), ("empty", b"")]
            self._writers[partition].write(CLICKS, partition, key, value, extra)


class Archive(_Plain):
    """Measurements, of which the oldest are deleted."""

    partitions = 2

    def __init__(self, bootstrap_servers: str, seed: str, totals: Totals, prefix: str = "") -> None:
        writer = PlainWriter(
            bootstrap_servers, f"{ARCHIVE}-{seed}", totals, prefix, compression_type="zstd"
        )
        super().__init__([writer], totals)
        self._count = 0
        self._random = random.Random(f"{ARCHIVE}{seed}")  # noqa: S311 - no secret

    def write(self, count: int) -> None:
        """Write measurements to the partitions in turn."""
        for _ in range(count):
            self._count += 1
            measured: Mapping[str, object] = {
                "station": f"st-{self._random.randrange(40)}",
                "celsius": round(self._random.gauss(11, 8), 1),
            }
            self._writers[0].write(
                ARCHIVE, self._count % self.partitions, None, json.dumps(measured)
            )

    def flush(self) -> None:
        """Wait until all is acknowledged."""
        self.finish()
