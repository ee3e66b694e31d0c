"""What a lane needs of the two clusters: the interface between the engine and the network.

The data plane (`data_plane.py`) uses these protocols, and `kafka_ports.py` implements them on real
brokers. The tests' model of a broker implements them too: the contract suite compares the model
with real brokers, and the simulation runs the production engine on the model.

Common to all methods: an error of a partition is that partition's result (an error code, 0 for
none), never an exception. An exception is about the whole request:

* `errors.Disconnected`: no answer arrived. Whether the request was carried out is unknown.
* `errors.Fenced`: another owner has taken over the id or state partition of the request.
* `errors.Retriable`: it was not carried out; retry.
"""

from collections.abc import Awaitable, Collection, Mapping, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias
from uuid import UUID

from twinlog.kafka.log_reader import ReadAlone
from twinlog.kafka.protocol.fetch import Fetched
from twinlog.kafka.protocol.produce import ProducedPartition
from twinlog.kafka.types import (
    UNKNOWN_EPOCH,
    FetchPosition,
    LeaderEpoch,
    LogBounds,
    ProducerState,
    TopicPartition,
)

WHOLE_TOPIC: Final = -1
"""The index that stands for the whole topic if it is refused and its partitions are unknown."""


class LeaderReport(NamedTuple):
    """The leader of a partition. `node` is -1 if there is none; then `error` may be the reason."""

    node: int
    epoch: int
    topic_id: UUID
    error: int = 0


class LogEnd(NamedTuple):
    """The log end offset of the leader, which may lie above the high watermark."""

    error: int
    log_end: int
    leader_epoch: int


class ActiveProducers(NamedTuple):
    """The producers that a partition's leader remembers."""

    error: int
    active: tuple[ProducerState, ...]


class Batch(NamedTuple):
    """A batch to produce: its patched header of 61 bytes, and its unchanged records."""

    partition: TopicPartition
    header: bytes
    records: memoryview


Appended: TypeAlias = ProducedPartition
"""A partition's part of a Produce answer, as the protocol has it: where its batch landed."""


class ProducerIdentity(NamedTuple):
    """A transactional id with the producer id and epoch that InitProducerId gave."""

    transactional_id: str
    producer_id: int
    epoch: int


ANSWERED_EACH: Final = 3
"""Markers of one partition in a call of `write_markers` that are answered one by one."""


class Markers(NamedTuple):
    """Control records to write on one partition, and the coordinator epochs that they carry.

    `last` is the coordinator epoch of the last one, `before` that of all others. A partition
    refuses a marker whose producer epoch or coordinator epoch is below that of the producer's last
    marker in it (engines/exact/marker_epochs.py).
    """

    number: int
    before: int = 0
    last: int = 0


class MarkerRequest(NamedTuple):
    """Control records of one producer id, for some partitions."""

    producer: ProducerIdentity
    partitions: Mapping[TopicPartition, Markers]


class FetchResult(NamedTuple):
    """A Fetch answer: what has changed, its size in bytes, and whether a quota delayed it.

    `partitions` lists only those with news: an incremental fetch session omits the others.
    `throttle_ms` above 0: records may be left out because of a quota.
    """

    partitions: Mapping[TopicPartition, Fetched]
    size: int
    throttle_ms: int = 0


class SourcePort(Protocol):
    """The source, which is only read."""

    async def leaders(self, topics: Collection[str]) -> Mapping[TopicPartition, LeaderReport]:
        """Refresh the leaders of these topics' partitions; `WHOLE_TOPIC` of a refused topic."""
        ...

    async def fetch(
        self,
        node: int,
        positions: Mapping[TopicPartition, FetchPosition],
        *,
        max_wait_ms: int,
        max_bytes: int,
        partition_max_bytes: int,
        fetcher: int = 0,
    ) -> FetchResult:
        """Read each wanted partition from its position, up to its last stable offset.

        There is one call at a time for each node and fetcher. The port keeps a fetch session for
        each such pair, on a connection of its own, so that only changes of `positions` between
        calls are sent. It returns as soon as there is data, or after `max_wait_ms`.
        """
        ...

    def round_trip_s(self, node: int) -> float:
        """Seconds of a round trip to this broker; 0 if none is known."""
        ...

    async def read(
        self, partitions: Mapping[TopicPartition, int], *, partition_max_bytes: int
    ) -> Mapping[TopicPartition, Fetched]:
        """Read at these offsets, without a session (read_committed, no waiting).

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
        last_epoch: LeaderEpoch = UNKNOWN_EPOCH,
    ) -> ReadAlone:
        """Read this partition by a request of its own, from the leader (read_committed).

        With the leader epoch of what was read before `offset`, a leader whose log has lost the end
        of that epoch answers with `diverging`, as to `fetch`.

        Raises:
            Retriable: no answer arrived.
        """
        ...

    async def compacts(self, topics: Collection[str]) -> Mapping[str, bool | None]:
        """Whether each topic's cleanup.policy contains `compact`; None where it cannot be read.

        Raises:
            Retriable: no answer arrived.
        """
        ...

    async def bounds(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, LogBounds]:
        """Read log start offsets, high watermarks and last stable offsets."""
        ...


class DestinationPort(Protocol):
    """The destination: appends, and reads of positions."""

    async def leaders(self, topics: Collection[str]) -> Mapping[TopicPartition, LeaderReport]:
        """Refresh the leaders of these topics' partitions; `WHOLE_TOPIC` of a refused topic."""
        ...

    def appends_to(self, topic: str, topic_id: UUID | None) -> bool:
        """Whether batches go to the topic with this id, as far as is known.

        The port is shared: the last answer of `leaders` may be that of another flow.
        """
        ...

    def produce(
        self, node: int, batches: Sequence[Batch]
    ) -> Awaitable[Mapping[TopicPartition, Appended]]:
        """Append one batch to each of these partitions, all led by `node`, with acks=all.

        The request is queued or sent when the call returns: requests to one node arrive in the
        order of the calls.
        """
        ...

    async def log_ends(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, LogEnd]:
        """Log end offsets (ListOffsets as replica -2, of the leaders)."""
        ...

    async def bounds(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, LogBounds]:
        """Read log start offsets, high watermarks and last stable offsets."""
        ...

    async def producers(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, ActiveProducers]:
        """Read the producers that the leaders remember (DescribeProducers)."""
        ...

    async def read(
        self, partitions: Mapping[TopicPartition, int], *, partition_max_bytes: int
    ) -> Mapping[TopicPartition, Fetched]:
        """Read at these offsets, aborted data included (read_uncommitted)."""
        ...

    async def read_alone(
        self,
        partition: TopicPartition,
        offset: int,
        *,
        max_wait_ms: int,
        partition_max_bytes: int,
        committed: bool = False,
    ) -> ReadAlone:
        """Read this partition by a request of its own, from the leader.

        `committed`: up to the last stable offset, with the list of aborted transactions
        (read_committed); else up to the high watermark.

        Raises:
            Retriable: no answer arrived.
        """
        ...

    async def absent(self, topics: Collection[str]) -> Collection[str]:
        """The topics that, by the metadata of every broker, do not exist.

        Raises:
            Retriable: a broker does not answer; nothing is known of any topic then.
        """
        ...

    async def lacking_replicas(
        self, partitions: Collection[TopicPartition]
    ) -> Collection[TopicPartition]:
        """Those that have fewer in-sync replicas than min.insync.replicas, as far as is known.

        Such a partition refuses data (19 NOT_ENOUGH_REPLICAS). The marker of a transaction is
        written later, and until then its transactional id gets no other epoch.
        """
        ...

    async def init_producer(self, transactional_id: str) -> ProducerIdentity:
        """Run InitProducerId: a new epoch; nothing of the former one is in flight any more.

        When it returns, the transaction of the former epoch is ended and its markers are written.
        """
        ...

    async def empty_transaction(
        self, producer: ProducerIdentity, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        """Write one control record to each of these partitions, some time after the answer.

        Returns:
            An error code for each. A refused partition gets no record, the others do.

        Raises:
            Fenced: the id has a newer epoch.
        """
        ...

    async def write_markers(
        self,
        requests: Sequence[MarkerRequest],
        *,
        committed: bool = False,
        node: int | None = None,
    ) -> Mapping[TopicPartition, int]:
        """Write control records of several producer ids at once; return error codes.

        With `node`, the leader of all these partitions as far as the caller knows, one request is
        sent to that broker. What it does not lead is refused (6), by the port or the broker.

        Each partition is in one of `requests`, and each producer id as well. This needs the right
        CLUSTER_ACTION (else 31 CLUSTER_AUTHORIZATION_FAILED) and brokers that have the API (else 35
        UNSUPPORTED_VERSION). A partition refuses a producer epoch below that of the producer's last
        marker in it (47), and a coordinator epoch below that one's (52). For more than
        `ANSWERED_EACH` markers on one partition the broker may answer 0 although some are missing:
        the log end offset shows how many landed. For as many or fewer, 0 means that all have
        landed.
        """
        ...

    async def delete_records(
        self, before: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, int]:
        """Move log start offsets up to these; return error codes."""
        ...
