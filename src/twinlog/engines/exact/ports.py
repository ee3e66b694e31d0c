"""What a lane needs of the two clusters: the boundary between the engine and the network.

The engine (`engine.py`) is written against the first two protocols, `ownership.py` against the
third. `kafka_ports.py` and `state_log.py` implement them on real brokers; the tests' model of a
broker implements them too, so that the contract suite can hold the model to the truth, and the
simulation can run the very engine that runs in production.

Common to all methods: a partition's trouble is that partition's result (an error code, 0 for
none), never an exception for all. An exception is for the whole request:

* `errors.Disconnected`: no answer came. Whether the request was carried out is not known.
* `errors.Fenced`: somebody else has taken over what the request was made in the name of.
* `errors.Retriable`: it was not carried out; try again.
"""

from collections.abc import Awaitable, Collection, Mapping, Sequence
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from twinlog.kafka.protocol.fetch import Fetched
from twinlog.kafka.types import FetchPosition, ProducerState, TopicPartition
from twinlog.mirror.placement import MirrorPartition
from twinlog.store.control_topics import States
from twinlog.store.state_records import LastMirrored, PartitionState

WHOLE_TOPIC: Final = -1
"""Stands for a partition where a topic is refused and its partitions are not told."""


class Leader(NamedTuple):
    """Who leads a partition. `node` is -1 where nobody does; then `error` may say why."""

    node: int
    epoch: int
    topic_id: UUID
    error: int = 0


class LogEnd(NamedTuple):
    """A log's end: of the leader's own log, which may lie above the high watermark."""

    error: int
    log_end: int
    leader_epoch: int


class Bounds(NamedTuple):
    """A partition's offsets as its readers see them: first, high watermark, last stable."""

    error: int
    start: int
    high_watermark: int
    last_stable: int


class Producers(NamedTuple):
    """The producers that a partition's leader remembers."""

    error: int
    active: tuple[ProducerState, ...]


class Batch(NamedTuple):
    """A batch to produce: its 61 bytes of header, patched, and its records as they are."""

    partition: TopicPartition
    header: bytes
    records: memoryview


class Appended(NamedTuple):
    """A partition's part of a Produce answer: where its batch landed.

    `stamped_ms` is the time that the broker has put on its records instead of their own; the newest
    timestamp of a batch that it had already; else -1.
    """

    error: int
    base_offset: int
    log_start: int
    message: str = ""
    stamped_ms: int = -1


class ProducerIdentity(NamedTuple):
    """A transactional id with the producer id and epoch that InitProducerId gave."""

    transactional_id: str
    producer_id: int
    epoch: int


class Markers(NamedTuple):
    """Control records to write on one partition, and the coordinator epochs that they carry.

    `last` is the coordinator epoch of the last one, `before` that of all others. A partition
    refuses a marker whose producer epoch or coordinator epoch is below that of the producer's last
    marker there (engines/exact/marker_epochs.py).
    """

    number: int
    before: int = 0
    last: int = 0


class FetchResult(NamedTuple):
    """A Fetch answer: what has changed, how many bytes it was, and whether a quota held it back.

    `partitions` lists only those with news: an incremental fetch session leaves the others out.
    `throttle_ms` above 0: records may be left out because of a quota.
    """

    partitions: Mapping[TopicPartition, Fetched]
    size: int
    throttle_ms: int = 0


class ReadAlone(NamedTuple):
    """What one request for one partition alone was answered, and what explains an empty answer.

    `local_start` and `compacts` are asked for only where there is neither an error nor a record
    (`mirror/absence.py`, `Reading`).
    """

    fetched: Fetched
    throttle_ms: int
    leader_epoch: int
    local_start: int = -1
    compacts: bool | None = None


class SourcePort(Protocol):
    """The source, read only."""

    async def leaders(self, topics: Collection[str]) -> Mapping[TopicPartition, Leader]:
        """All partitions of these topics, asked anew; `WHOLE_TOPIC` of one that is refused."""
        ...

    async def fetch(
        self,
        node: int,
        wanted: Mapping[TopicPartition, FetchPosition],
        *,
        max_wait_ms: int,
        max_bytes: int,
        partition_max_bytes: int,
        fetcher: int = 0,
    ) -> FetchResult:
        """Read each wanted partition on, up to its last stable offset.

        One call at a time for each node and fetcher. The port keeps a fetch session for each
        such pair, on a connection of its own, so that only what changes in `wanted` from one call
        to the next goes over the wire. Answers as soon as there is data, or after `max_wait_ms`.
        """
        ...

    async def read(
        self, partitions: Mapping[TopicPartition, int], *, partition_max_bytes: int
    ) -> Mapping[TopicPartition, Fetched]:
        """What stands at these offsets now, without a session (read_committed, no waiting).

        An answer without records proves nothing: another partition's may have used up its size.
        """
        ...

    async def read_alone(
        self,
        partition: TopicPartition,
        offset: int,
        *,
        max_wait_ms: int,
        partition_max_bytes: int,
    ) -> ReadAlone:
        """What the leader answers to a request for nothing but this (read_committed).

        Raises:
            Retriable: it could not be asked.
        """
        ...

    async def bounds(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Bounds]:
        """First, high watermark and last stable offsets, asked anew."""
        ...


class DestinationPort(Protocol):
    """The destination: appended to, and asked for positions."""

    async def leaders(self, topics: Collection[str]) -> Mapping[TopicPartition, Leader]:
        """All partitions of these topics, asked anew; `WHOLE_TOPIC` of one that is refused."""
        ...

    def produce(
        self, node: int, batches: Sequence[Batch]
    ) -> Awaitable[Mapping[TopicPartition, Appended]]:
        """Append one batch to each of these partitions, all led by `node`, with acks=all.

        The request is on its way when the call returns: requests of one node arrive in the order
        of the calls.
        """
        ...

    async def log_ends(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, LogEnd]:
        """Log end offsets (ListOffsets as replica -2, of the leaders)."""
        ...

    async def bounds(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Bounds]:
        """First, high watermark and last stable offsets."""
        ...

    async def producers(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Producers]:
        """DescribeProducers."""
        ...

    async def read(
        self, partitions: Mapping[TopicPartition, int], *, partition_max_bytes: int
    ) -> Mapping[TopicPartition, Fetched]:
        """What stands at these offsets now, aborted data included (read_uncommitted)."""
        ...

    async def init_producer(self, transactional_id: str) -> ProducerIdentity:
        """InitProducerId: a new epoch, in which nothing of the former one is under way any more.

        When it returns, a transaction of the former epoch has been ended and its markers stand.
        """
        ...

    async def empty_transaction(
        self, producer: ProducerIdentity, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        """One control record on each of these partitions, some time after the answer.

        Returns:
            An error code for each. A partition that is refused gets none, the others do.

        Raises:
            Fenced: the id has a newer epoch.
        """
        ...

    async def write_markers(
        self,
        partitions: Mapping[TopicPartition, Markers],
        producer: ProducerIdentity,
        *,
        committed: bool = False,
    ) -> Mapping[TopicPartition, int]:
        """That many control records on each of these partitions, now; an error code for each.

        Needs the right CLUSTER_ACTION (31 CLUSTER_AUTHORIZATION_FAILED else) and brokers that have
        the API (35 UNSUPPORTED_VERSION else). Refused, per
        partition: a producer epoch below the last one there (47), a coordinator epoch below the
        last one there (52). Of several markers for one partition the broker may report 0 although
        some are missing: the log end shows how many landed.
        """
        ...

    async def delete_records(
        self, before: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, int]:
        """Move log starts up to these offsets; an error code for each."""
        ...


class StatePort(Protocol):
    """One partition of `__mirror_state`, which one owner at a time writes."""

    async def take_over(self) -> States:
        """Fence former owners; then all that was ever written.

        Raises:
            Fenced: we may not write any more.
            Retriable: not now.
        """
        ...

    async def write(
        self,
        states: Sequence[PartitionState],
        epochs: Mapping[MirrorPartition, LastMirrored],
    ) -> None:
        """Write all or nothing. After whatever error `take_over` has to come before the next.

        Raises:
            Fenced: another owner has taken it over, or we may not write any more.
            Disconnected: whether it was written is not known.
            Retriable: nothing was written.
        """
        ...

    def close(self) -> None:
        """From now on all is Fenced, also the next request of what is under way."""
        ...
