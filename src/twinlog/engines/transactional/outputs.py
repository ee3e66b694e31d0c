"""From the batches of the source to those of a transaction: records are decoded and transformed.

Records keep their order within each partition that they go to. Their timestamps stay, and a batch
is compressed as the source's.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from traceback import extract_tb
from typing import Final, NamedTuple

from twinlog.kafka.log.compression import Codec
from twinlog.kafka.log.record_parts import (
    NO_HEADERS,
    CutRecord,
    PackedRecord,
    cut_records,
    pack_records,
)
from twinlog.kafka.log.records import (
    Encoded,
    Headers,
    Record,
    decode_headers,
    encode_headers,
    encoded,
)
from twinlog.kafka.types import Offset, TopicPartition
from twinlog.mirror.plan import Data
from twinlog.mirror.record_converters import TransformError
from twinlog.mirror.transform_chain import TransformChain

_BATCH_BYTES: Final = 512 * 1024
"""Uncompressed; half of the default of `max.message.bytes`. A longer record is alone."""
_BATCH_RECORDS: Final = 4096
_NO_BASE: Final = 0
"""Of a batch that the target's broker places."""


@dataclass(slots=True)
class _Growing:
    """The batches of one destination partition, and the records of the next one."""

    codec: Codec
    built: list[Encoded] = field(default_factory=list)
    records: list[PackedRecord] = field(default_factory=list)
    size: int = 0

    def add(self, record: PackedRecord, codec: Codec) -> None:
        _, key, value, headers = record
        size = len(key or b"") + len(value or b"") + len(headers)
        full = self.size + size > _BATCH_BYTES or len(self.records) >= _BATCH_RECORDS
        if self.records and (full or codec is not self.codec):
            self.flush()
        self.codec = codec
        self.records.append(record)
        self.size += size

    def flush(self) -> None:
        if self.records:
            base_timestamp = self.records[0][0]
            batch = encoded(
                pack_records(self.records, base_timestamp),
                self.codec,
                base_offset=_NO_BASE,
                count=len(self.records),
                base_timestamp=base_timestamp,
                max_timestamp=max(timestamp for timestamp, _, _, _ in self.records),
            )
            self.built.append(batch)
            self.records, self.size = [], 0


class GrowingBatches:
    """The batches of all destination partitions that records of one partition go to."""

    def __init__(self) -> None:
        self._growing: dict[TopicPartition, _Growing] = {}

    def add(self, to: TopicPartition, record: PackedRecord, codec: Codec) -> None:
        """Append a record to a partition, to be compressed as its batch of the source is."""
        if to not in self._growing:
            self._growing[to] = _Growing(codec)
        self._growing[to].add(record, codec)

    def finished(self) -> Mapping[TopicPartition, Sequence[Encoded]]:
        """All batches."""
        for each in self._growing.values():
            each.flush()
        return {to: each.built for to, each in self._growing.items()}


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
    growing = GrowingBatches()
    failure = None
    try:
        for batch in batches:
            codec = batch.header.codec
            for records in cut_records(batch.header, batch.records):
                for record in records:
                    result = _applied(chain, record, remote)
                    if result is None:
                        continue
                    to, packed = result
                    growing.add(to, packed, codec)
                await asyncio.sleep(0)  # the lane's other tasks have their turn, after 1 ms or so
    except TransformError as error:
        offset = Offset(record[0])
        reason = f"the record at offset {offset} cannot be transformed: {error}"
        failure = RecordFailure(offset, reason)
    return Outputs(growing.finished(), failure)


def _applied(
    chain: TransformChain, record: CutRecord, remote: TopicPartition
) -> tuple[TopicPartition, PackedRecord] | None:
    """What is written of a record, and where.

    Raises:
        TransformError: a transform cannot be applied, whatever it raises.
        CorruptBatch: the record's headers cannot be read.
    """
    if not chain.steps:
        return remote, record[1:]
    offset, timestamp, key, value, encoded_headers = record
    headers: Headers = ()
    if encoded_headers != NO_HEADERS:
        headers = decode_headers(memoryview(encoded_headers), offset)
    try:
        result = chain.apply(Record(offset, timestamp, key, value, headers), *remote)
        if result is None:
            return None
        if result.headers is not headers:
            encoded_headers = encode_headers(result.headers)
    except TransformError:
        raise
    except Exception as error:  # a defect; it would end the flow, and name no record
        raise TransformError(_defect(error)) from error
    to = remote
    if result.topic != remote.topic or result.partition != remote.partition:
        to = TopicPartition(result.topic, result.partition)
    return to, (result.timestamp, result.key, result.value, encoded_headers)


def _defect(error: Exception) -> str:
    """Which exception was raised, and where; its own text may hold a part of a record."""
    frame = extract_tb(error.__traceback__)[-1]
    place = f"{Path(frame.filename).name}, line {frame.lineno}"
    return f"{type(error).__name__} in {place}: report this defect of twinlog"
