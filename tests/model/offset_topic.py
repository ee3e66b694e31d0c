"""`__mirror_offsets` on the model: the production code of its owner, over the model's network.

Only three requests are replaced: InitProducerId, Produce, and the reading of the whole partition.
They are sent again as often as the production code sends them (kafka/requests/partitions.py).
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Final, cast
from uuid import UUID

from model.cluster import Cluster
from model.ports import ModelDestination
from twinlog.engines.ports import Batch
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Disconnected, Reaction, Refusal, Retriable
from twinlog.kafka.log.batch import HEADER_SIZE, batches
from twinlog.kafka.log.records import decode, raw_records
from twinlog.kafka.requests.transactions import ProducerId
from twinlog.kafka.types import TopicPartition
from twinlog.store.offset_log import OFFSETS_TOPIC, OffsetLog
from twinlog.store.topic_reader import ControlRecord
from twinlog.store.topic_writer import WRITE_TRIES, EpochWriter

READ_SECONDS: Final = 60.0
PAUSE_SECONDS: Final = 0.1
_BYTES: Final = 1 << 20


class ModelClient:
    """The little that flows use of a `KafkaCluster` beside their ports."""

    name = "destination"

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    @property
    def brokers_time(self) -> "ModelClient":
        """The brokers' clock."""
        return self

    def now_ms(self) -> int:
        """Return the time in milliseconds."""
        return self._cluster.now_ms

    @staticmethod
    def needing(*_: str) -> AbstractContextManager[None]:
        """Name no rights."""
        return nullcontext()


def client_of(cluster: Cluster) -> KafkaCluster:
    """Return a client of the model's cluster, for the parts of flows that get one."""
    return cast("KafkaCluster", ModelClient(cluster))


class _ModelWriter(EpochWriter):
    """`EpochWriter` on the model."""

    def __init__(self, port: ModelDestination, name: str, permit: Callable[[], None]) -> None:
        super().__init__(
            client_of(port.cluster),
            name,
            clock=lambda: port.cluster.now_ms / 1000,
            before_send=permit,
        )
        self._port = port

    async def _next_epoch(self) -> ProducerId:
        identity = await self._port.init_producer(self._id)
        return ProducerId(identity.producer_id, identity.epoch)

    async def _append(self, partition: TopicPartition, data: bytes) -> int | Refusal:
        answer: int | Refusal = Refusal(ErrorCode.LEADER_NOT_AVAILABLE)
        for _ in range(WRITE_TRIES):
            self._before_send()
            answer = await self._send(partition, data)
            if not isinstance(answer, Refusal) or not _again(answer):
                break
            await asyncio.sleep(PAUSE_SECONDS)
        return answer

    async def _send(self, key: TopicPartition, data: bytes) -> int | Refusal:
        cluster, network = self._port.cluster, self._port.network
        if key.topic not in cluster.topics:
            return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        node = cluster.partition(key).leader
        if node < 0:
            return Refusal(ErrorCode.LEADER_NOT_AVAILABLE)
        batch = Batch(key, data[:HEADER_SIZE], memoryview(data)[HEADER_SIZE:])
        try:
            answers = await network.send_alone(
                self._port.name,
                node,
                partial(cluster.produce, node, [batch], {}),
                risk=4.0,
                writes=True,
            )
        except Disconnected as error:
            return Refusal(ErrorCode.NETWORK_EXCEPTION, str(error))
        answer = answers[key]
        return Refusal(answer.error) if answer.error else int(answer.base_offset)


def _again(answer: Refusal) -> bool:
    retried = {Reaction.METADATA, Reaction.RETRY}
    return answer.code == ErrorCode.NETWORK_EXCEPTION or answer.reaction in retried


class ModelOffsetLog(OffsetLog):
    """`OffsetLog` on the model."""

    def __init__(
        self,
        port: ModelDestination,
        number: int,
        prefix: str,
        *,
        lease_s: float,
        may_write: Callable[[], bool],
    ) -> None:
        client = client_of(port.cluster)
        super().__init__(client, number, prefix, lease_s=lease_s, may_write=may_write)
        self._port = port
        self._writer = _ModelWriter(port, f"{prefix}.{number}.offsets", self._permit)

    async def _topic_id(self) -> UUID | None:
        topic = self._port.cluster.topics.get(OFFSETS_TOPIC)
        if topic is None:
            raise Retriable("a broker does not know the topic", topic=OFFSETS_TOPIC)
        return topic.topic_id

    async def _read(self) -> Sequence[ControlRecord]:
        key = TopicPartition(OFFSETS_TOPIC, self._number)
        now = asyncio.get_running_loop().time
        deadline = now() + READ_SECONDS
        records: list[ControlRecord] = []
        position, end = 0, -1
        while end < 0 or position < end:
            if now() > deadline:
                raise Retriable(f"cannot read {key} to its end")
            if end < 0:
                bounds = (await self._port.bounds([key]))[key]
                end = -1 if bounds.error else bounds.high_watermark
                position = max(position, bounds.start)
            found = (await self._port.read({key: position}, partition_max_bytes=_BYTES))[key]
            for header in [] if found.error else batches(found.records):
                position = header.next_offset
                for record in raw_records(header, header.records(found.records)):
                    plain = decode(record)
                    records.append(
                        ControlRecord(
                            self._number, record.offset, record.timestamp, plain.key, plain.value
                        )
                    )
            if position < end or end < 0:
                await asyncio.sleep(PAUSE_SECONDS / 10)
        return records
