"""Reads a range of a partition's log, from any offset on; without session and state.

    read()        many partitions, one request to each leader: fast, and no evidence
    read_alone()  one partition in a request, with what may explain an answer without records
    answers()     one partition at one offset, requested again until the caller is satisfied

Each answer, each range and each wait is bounded. An error of a partition is a code in its answer,
and an exception is about the whole request.

**An answer without records proves nothing**: a quota, another partition's records, remote storage
or a preferred replica may explain it (docs/architecture/absence.md). Only its caller knows what it
costs to be wrong, so what a caller concludes from such answers is a rule of the caller, not of this
module.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from typing import Final, NamedTuple

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.metadata import Metadata
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Reaction, Refusal, Retriable, check
from twinlog.kafka.protocol.fetch import NO_SESSION, Fetched
from twinlog.kafka.requests import topics as admin
from twinlog.kafka.requests.fetch_requests import FetchRequests, Limits, failed
from twinlog.kafka.requests.partitions import (
    PATIENCE,
    Answers,
    Asked,
    Isolation,
    ListedOffset,
    OffsetSpec,
    by_leader,
    list_offsets,
)
from twinlog.kafka.types import (
    UNKNOWN_EPOCH,
    FetchPosition,
    LeaderEpoch,
    LogBounds,
    Offset,
    TopicPartition,
)

MAX_READ: Final = 64 << 20
"""Bytes of one answer."""
READ_BYTES: Final = 4 * 1024 * 1024
"""Bytes of an answer to `answers`; a broker returns at least one whole batch."""
READ_TRIES: Final = 50
"""Requests of `answers`."""

_LANE: Final = "read"
_LIST_OFFSETS: Final = 2
_LOCAL_START_VERSION: Final = 8
_MIN_INSYNC: Final = "min.insync.replicas"
_CLEANUP_POLICY: Final = "cleanup.policy"


class ReadAlone(NamedTuple):
    """The answer to a request for one partition alone, and what may explain an empty one.

    `local_start` and `compacts` are read only if there is neither an error nor a record, nor a
    diverging epoch (`mirror/absence.py`, `Reading`).
    """

    fetched: Fetched
    throttle_ms: int
    leader_epoch: int
    local_start: int = -1
    compacts: bool | None = None


class ClusterLogs:
    """The logs of a cluster that has been started.

    Args:
        cluster: the cluster.
        requests: its requests, with the topic ids that count. By default these are pinned: a topic
            that is recreated after `refresh` is not read.
        isolation: READ_COMMITTED reads up to the last stable offset, and lists aborted
            transactions; READ_UNCOMMITTED reads up to the high watermark.
    """

    def __init__(
        self,
        cluster: KafkaCluster,
        requests: FetchRequests | None = None,
        isolation: Isolation = Isolation.READ_COMMITTED,
    ) -> None:
        self._cluster = cluster
        self._requests = requests or FetchRequests(cluster, pinned=True)
        self._isolation = isolation

    async def refresh(self, topics: Collection[str]) -> Metadata:
        """Refresh the leaders and ids of these topics; call it before the first read.

        Raises:
            Retriable: no broker answers.
        """
        return await self._requests.refresh(topics)

    async def bounds(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, LogBounds]:
        """Read log start offsets, high watermarks and last stable offsets."""
        partition_list = list(partitions)  # a mapping would be taken for one of timestamps
        start, high_watermark, last_stable = await asyncio.gather(
            list_offsets(self._cluster, partition_list, OffsetSpec.EARLIEST, patience=PATIENCE),
            list_offsets(self._cluster, partition_list, OffsetSpec.LATEST, patience=PATIENCE),
            list_offsets(
                *(self._cluster, partition_list, OffsetSpec.LATEST),
                isolation=Isolation.READ_COMMITTED,
                patience=PATIENCE,
            ),
        )
        return {p: _bounds(start[p], high_watermark[p], last_stable[p]) for p in partitions}

    async def read(
        self, offsets: Mapping[TopicPartition, int], *, partition_max_bytes: int
    ) -> Mapping[TopicPartition, Fetched]:
        """Read at these offsets from each leader, without waiting for records."""
        limits = Limits(self._isolation, 0, MAX_READ, partition_max_bytes)

        async def ask(node: int, questions: Asked[int]) -> Answers[Fetched]:
            connection = await self._cluster.connection(node, _LANE)
            await connection.ready()
            self._requests.learn()
            positions = {
                p: FetchPosition(offset, leader_epoch=leader.epoch)
                for p, (leader, offset) in questions.items()
            }
            response, _ = await self._requests.exchange(
                connection, positions, (), (0, NO_SESSION), limits
            )
            check(response.error, "read")
            return {
                p: Refusal(part.error) if part.error else part
                for p, part in response.partitions.items()
            }

        answers = await by_leader(self._cluster, offsets, ask, patience=PATIENCE)
        return {
            p: failed(answer.code) if isinstance(answer, Refusal) else answer
            for p, answer in answers.items()
        }

    async def read_alone(
        self,
        partition: TopicPartition,
        offset: int,
        *,
        max_wait_ms: int,
        partition_max_bytes: int,
        last_epoch: LeaderEpoch = UNKNOWN_EPOCH,
    ) -> ReadAlone:
        """Read this partition by a request of its own, from the leader.

        Args:
            partition: what is read.
            offset: where.
            max_wait_ms: how long the leader may wait for records.
            partition_max_bytes: the size of the answer; a broker returns at least one batch.
            last_epoch: the leader epoch of what was read before `offset`. With it, a leader whose
                log has lost the end of that epoch answers with `diverging`, without records
                (KIP-320); otherwise it returns what its log has there instead.

        Raises:
            Retriable: no answer arrived.
        """
        limits = Limits(self._isolation, max_wait_ms, MAX_READ, partition_max_bytes)
        result = await self._alone(partition, (Offset(offset), last_epoch), limits)
        fetched = result.fetched
        if fetched.error or fetched.diverging is not None or len(fetched.records):
            return result
        topic = partition.topic
        local_start, compacts = await asyncio.gather(
            self._local_start(partition), self.compacts([topic])
        )
        return result._replace(local_start=local_start, compacts=compacts[topic])

    async def _alone(
        self, partition: TopicPartition, place: tuple[Offset, LeaderEpoch], limits: Limits
    ) -> ReadAlone:
        leader = (await self._cluster.leaders([partition]))[partition]
        if isinstance(leader, Refusal):
            return ReadAlone(failed(leader.code), 0, UNKNOWN_EPOCH)
        connection = await self._cluster.connection(leader.node_id, _LANE)
        await connection.ready()
        self._requests.learn()
        if partition.topic not in self._requests:
            failure = failed(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            return ReadAlone(failure, 0, UNKNOWN_EPOCH)
        positions = {partition: FetchPosition(*place, leader.epoch)}
        response, _ = await self._requests.exchange(
            connection, positions, (), (0, NO_SESSION), limits
        )
        check(response.error, "read")
        fetched = response.partitions.get(partition)
        if fetched is None:
            # An answer that a quota has emptied lists no partition, and no offsets.
            fetched = failed(0)
        return ReadAlone(fetched, response.throttle_ms, leader.epoch)

    async def answers(self, partition: TopicPartition, start: int) -> AsyncIterator[Fetched]:
        """Answers without an error at this offset, a bounded number of times.

        Some may have no records. The caller ends the iteration when it is satisfied.

        Args:
            partition: the partition to read, after `refresh` of its topic.
            start: the offset.

        Raises:
            UserError: a right is missing.
            Retriable: no answer satisfied the caller.
        """
        for attempt in range(READ_TRIES):
            try:
                answers = await self.read({partition: start}, partition_max_bytes=READ_BYTES)
            except Retriable:
                answers = {}
            answer = answers.get(partition)
            if answer is not None and not answer.error:
                yield answer
            elif answer is not None and Refusal(answer.error).reaction is Reaction.USER:
                Refusal(answer.error).fail("read the log", topic=partition.topic)
            elif attempt:  # not after the first try: the caller has refreshed the leaders
                await self.refresh({partition.topic})
            await asyncio.sleep(min(0.05 * attempt, 1.0))
        raise Retriable(
            f"cannot read the log at offset {start}",
            topic=partition.topic,
            partition=partition.partition,
        )

    async def _local_start(self, partition: TopicPartition) -> int:
        """The first offset on the leader's own disk; -1 if unknown.

        A broker without ListOffsets version 8 has no remote storage: its log start offset.
        """
        leader = (await self._cluster.leaders([partition]))[partition]
        if isinstance(leader, Refusal):
            return -1
        connection = await self._cluster.connection(leader.node_id)
        await connection.ready()
        _, newest = connection.versions.get(_LIST_OFFSETS, (0, 0))
        tiered = newest >= _LOCAL_START_VERSION
        spec = OffsetSpec.EARLIEST_LOCAL if tiered else OffsetSpec.EARLIEST
        answer = (await list_offsets(self._cluster, [partition], spec))[partition]
        return -1 if isinstance(answer, Refusal) else answer.offset

    async def compacts(self, topics: Collection[str]) -> Mapping[str, bool | None]:
        """Whether each topic's cleanup.policy contains `compact`; None where it cannot be read.

        Raises:
            Retriable: no answer arrived.
        """
        values = await self._values(topics, _CLEANUP_POLICY)
        return {t: None if value is None else "compact" in value for t, value in values.items()}

    async def min_insync_replicas(self, topics: Collection[str]) -> Mapping[str, int | None]:
        """Each topic's min.insync.replicas; None where it cannot be read.

        Raises:
            Retriable: no answer arrived.
        """
        values = await self._values(topics, _MIN_INSYNC)
        return {t: int(value) if value and value.isdigit() else None for t, value in values.items()}

    async def _values(self, topics: Collection[str], name: str) -> Mapping[str, str | None]:
        """The value of one configuration of each topic."""
        resources = {topic: admin.topic_resource(topic) for topic in topics}
        answers = await admin.describe_configs(self._cluster, list(resources.values()), [name])
        return {topic: _value(answers.get(one), name) for topic, one in resources.items()}


def _value(entries: Mapping[str, admin.ConfigEntry] | Refusal | None, name: str) -> str | None:
    if entries is None or isinstance(entries, Refusal) or name not in entries:
        return None
    return entries[name].value


def _bounds(*answers: ListedOffset | Refusal) -> LogBounds:
    listed: list[ListedOffset] = []
    for answer in answers:
        if isinstance(answer, Refusal):
            return LogBounds(answer.code, -1, -1, -1)
        listed.append(answer)
    # With the earliest offset, a broker returns the epoch of the record there.
    leader_epoch = min(answer.leader_epoch for answer in listed[1:])
    offsets = (answer.offset for answer in listed)
    return LogBounds(0, *offsets)._replace(leader_epoch=leader_epoch)
