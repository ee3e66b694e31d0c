"""From the batches of the source to those of a transaction: records are decoded and transformed.

Records keep their order within each partition that they go to. Their timestamps stay, and a batch
is compressed as the source's.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from twinlog.kafka.log.compression import Codec
from twinlog.kafka.log.records import (
    Encoded,
    RawRecord,
    build,
    decode,
    each_record,
    encode_tail,
)
from twinlog.kafka.types import Offset, TopicPartition
from twinlog.mirror.plan import Data
from twinlog.mirror.record_converters import TransformError
from twinlog.mirror.transform_chain import TransformChain

_BATCH_BYTES: Final = 512 * 1024
"""Uncompressed; half of the default of `max.message.bytes`. A longer record is alone."""
_BATCH_RECORDS: Final = 4096
_STEP: Final = 128
"""Records that are transformed before other tasks of the lane have their turn: a few ms."""


@dataclass(slots=True)
class _Growing:
    """The batches of one destination partition, and the records of the next one."""

    codec: Codec
    built: list[Encoded] = field(default_factory=list)
    records: list[RawRecord] = field(default_factory=list)
    size: int = 0

    def add(self, timestamp: int, tail: bytes | memoryview, codec: Codec) -> None:
        full = self.size + len(tail) > _BATCH_BYTES or len(self.records) >= _BATCH_RECORDS
        if self.records and (full or codec is not self.codec):
            self.flush()
        self.codec = codec
        self.records.append(RawRecord(len(self.records), timestamp, 0, memoryview(tail)))
        self.size += len(tail)

    def flush(self) -> None:
        if self.records:
            self.built.append(build(self.records, self.codec))
            self.records, self.size = [], 0


class RecordFailure(NamedTuple):
    """The first record that cannot be transformed, and why."""

    offset: Offset
    reason: str


class Outputs(NamedTuple):
    """What is to be written, by destination partition: nothing where all records are dropped.

    With a failure, the records before it.
    """

    batches: Mapping[TopicPartition, Sequence[Encoded]]
    failure: RecordFailure | None = None


async def transformed(
    chain: TransformChain, batches: Iterable[Data], remote: TopicPartition
) -> Outputs:
    """The batches to write for these of the source.

    Args:
        chain: the transforms.
        batches: of one partition, in order.
        remote: the partition's remote one, which transforms may change.

    Raises:
        CorruptBatch: a batch cannot be read.
    """
    growing: dict[TopicPartition, _Growing] = {}
    count, failure = 0, None
    for batch in batches:
        if failure is not None:
            break
        codec = batch.header.codec
        for raw in each_record(batch.header, batch.records):
            count += 1
            if count % _STEP == 0:
                await asyncio.sleep(0)
            to, timestamp, tail = remote, raw.timestamp, raw.tail
            if chain.steps:
                try:
                    result = chain.apply(decode(raw), *remote)
                except TransformError as error:
                    reason = f"the record at offset {raw.offset} cannot be transformed: {error}"
                    failure = RecordFailure(Offset(raw.offset), reason)
                    break
                if result is None:
                    continue
                to, timestamp = TopicPartition(result.topic, result.partition), result.timestamp
                tail = memoryview(encode_tail(result.key, result.value, result.headers))
            if to not in growing:
                growing[to] = _Growing(codec)
            growing[to].add(timestamp, tail, codec)
    for each in growing.values():
        each.flush()
    return Outputs({to: each.built for to, each in growing.items()}, failure)
