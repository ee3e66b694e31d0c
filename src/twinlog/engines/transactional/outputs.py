"""From the batches of the source to those of a transaction.

Records keep their order within each partition that they go to. Their timestamps stay, and a batch
is compressed as the source's. No more is done than the transforms need:

| transforms | batches | records |
| --- | --- | --- |
| none, or of the topic's name only | forwarded as they are, if neither small nor large | - |
| the same headers for all records | decompressed, cut, packed, compressed | get these bytes |
| any other | the same | transformed one by one |
"""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from traceback import extract_tb
from typing import Final, NamedTuple

from twinlog.engines.loop_steps import Steps
from twinlog.kafka.log.compression import Codec
from twinlog.kafka.log.record_parts import (
    NO_HEADERS,
    BatchBody,
    CutRecord,
    cut_records,
    with_headers,
)
from twinlog.kafka.log.records import (
    Encoded,
    Headers,
    Record,
    decode_headers,
    decode_varint,
    encode_headers,
    encoded,
)
from twinlog.kafka.types import Offset, TopicPartition
from twinlog.mirror.plan import Data
from twinlog.mirror.record_converters import TransformError
from twinlog.mirror.sequence_plan import SourceRun
from twinlog.mirror.transform_chain import TransformChain

BATCH_BYTES: Final = 512 * 1024
"""Uncompressed; half of the default of `max.message.bytes`. A longer record is alone."""
_BATCH_RECORDS: Final = 4096
_FORWARDED_BYTES: Final = 64 * 1024
"""As compressed. Smaller batches are merged: a Produce request takes one of each partition."""
_NO_BASE: Final = 0
"""Of a batch that the target's broker places."""
_EMPTY: Final[CutRecord] = (0, 0, None, None, NO_HEADERS)


@dataclass(slots=True)
class _Growing:
    """The batches of one destination partition, and the records of the next one."""

    codec: Codec
    max_bytes: int
    built: list[Encoded] = field(default_factory=list)
    body: BatchBody = field(init=False)

    def __post_init__(self) -> None:
        self.body = BatchBody(self.max_bytes, _BATCH_RECORDS)

    def add(self, records: list[CutRecord], codec: Codec) -> None:
        if codec is not self.codec:
            self.flush()
            self.codec = codec
        added = self.body.add(records, 0)
        while added < len(records):
            self.flush()
            added = self.body.add(records, added)

    def forward(self, batch: Encoded) -> None:
        self.flush()
        self.built.append(batch)

    def flush(self) -> None:
        body = self.body
        if body.count:
            batch = encoded(
                body.encoded(),
                self.codec,
                base_offset=_NO_BASE,
                count=body.count,
                base_timestamp=body.base_timestamp,
                max_timestamp=body.max_timestamp,
            )
            self.built.append(batch)
            self.body = BatchBody(self.max_bytes, _BATCH_RECORDS)


class GrowingBatches:
    """The batches of all destination partitions that records of one partition go to.

    Args:
        max_bytes: of one of them, uncompressed.
        mapped: a destination partition of whose records `sources` is wanted; None: of none.
    """

    def __init__(
        self, max_bytes: int = BATCH_BYTES, *, mapped: TopicPartition | None = None
    ) -> None:
        self._max_bytes = max_bytes
        self._mapped = mapped
        self._growing: dict[TopicPartition, _Growing] = {}
        self.sources: list[SourceRun] = []
        """The source offsets of the records that go to `mapped`, one for each, in order."""

    def add(self, to: TopicPartition, records: list[CutRecord], codec: Codec) -> None:
        """Append records to a partition, to be compressed as their batch of the source is."""
        if records:
            self._of(to, codec).add(records, codec)
            if to == self._mapped:
                for record in records:
                    self._note(Offset(record[0]), Offset(record[0] + 1))

    def forward(self, to: TopicPartition, batch: Data) -> None:
        """Append a batch as it is."""
        self._of(to, batch.header.codec).forward(Encoded(batch.header, batch.records))
        if to == self._mapped:
            self._note(batch.start, batch.end)

    def _note(self, start: Offset, end: Offset) -> None:
        if self.sources and self.sources[-1][1] == start:
            self.sources[-1] = (self.sources[-1][0], end)
        else:
            self.sources.append((start, end))

    def _of(self, to: TopicPartition, codec: Codec) -> _Growing:
        if to not in self._growing:
            self._growing[to] = _Growing(codec, self._max_bytes)
        return self._growing[to]

    async def finished(self) -> Mapping[TopicPartition, Sequence[Encoded]]:
        """All batches; the last ones are built in steps."""
        steps = Steps()
        for each in self._growing.values():
            each.flush()
            await steps.pause()
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
    sources: Sequence[SourceRun] = ()
    """The source offsets of the records for the mapped partition, one for each, if wanted."""


async def transformed(
    chain: TransformChain,
    batches: Sequence[Data],
    remote: TopicPartition,
    max_bytes: int = BATCH_BYTES,
    *,
    mapped: TopicPartition | None = None,
) -> Outputs:
    """The batches to write for these of the source.

    Args:
        chain: the transforms.
        batches: of one partition, in order.
        remote: the partition's remote one as transforms see it, which they may change.
        max_bytes: of a batch that is not forwarded as it is, uncompressed.
        mapped: the destination partition of whose records `Outputs.sources` is wanted; None: of
            none.

    Raises:
        CorruptBatch: a batch cannot be read.
    """
    growing = GrowingBatches(max_bytes, mapped=mapped)
    transform = _transform_alike if chain.is_uniform else _transform_each
    failure = await transform(chain, batches, remote, growing)
    return Outputs(await growing.finished(), failure, growing.sources)


async def _transform_alike(
    chain: TransformChain, batches: Sequence[Data], remote: TopicPartition, growing: GrowingBatches
) -> RecordFailure | None:
    """All records get the same topic and more headers: those that an empty record gets.

    Returns:
        The first record, if none can be transformed.
    """
    if not batches:
        return None
    try:
        change = _applied(chain, _EMPTY, remote)
    except TransformError as error:
        return _failure(batches[0].start, error)
    if change is None:
        return None
    to, (_, _, _, _, headers) = change
    count, at = decode_varint(memoryview(headers), 0)
    added = headers[at:]
    for batch in batches:
        if not added and _FORWARDED_BYTES <= len(batch.records) <= BATCH_BYTES:
            growing.forward(to, batch)
            continue
        for records in cut_records(batch.header, batch.records):
            changed = with_headers(records, count, added)
            growing.add(to, changed, batch.header.codec)
            await asyncio.sleep(0)  # the lane's other tasks have their turn, after 1 ms or so
    return None


async def _transform_each(
    chain: TransformChain, batches: Sequence[Data], remote: TopicPartition, growing: GrowingBatches
) -> RecordFailure | None:
    """Transform record by record.

    Returns:
        The first record that cannot be transformed; those before it are in `growing`.
    """
    for batch in batches:
        for records in cut_records(batch.header, batch.records):
            failure = None
            runs: defaultdict[TopicPartition, list[CutRecord]] = defaultdict(list)
            for record in records:
                try:
                    result = _applied(chain, record, remote)
                except TransformError as error:
                    failure = _failure(record[0], error)
                    break
                if result is not None:
                    to, changed = result
                    runs[to].append(changed)
            for to, run in runs.items():
                growing.add(to, run, batch.header.codec)
            if failure is not None:
                return failure
            await asyncio.sleep(0)
    return None


def _failure(offset: int, error: TransformError) -> RecordFailure:
    reason = f"the record at offset {offset} cannot be transformed: {error}"
    return RecordFailure(Offset(offset), reason)


def _applied(
    chain: TransformChain, record: CutRecord, remote: TopicPartition
) -> tuple[TopicPartition, CutRecord] | None:
    """What is written of a record, and where.

    Raises:
        TransformError: a transform cannot be applied, whatever it raises.
        CorruptBatch: the record's headers cannot be read.
    """
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
    return to, (offset, result.timestamp, result.key, result.value, encoded_headers)


def _defect(error: Exception) -> str:
    """Which exception was raised, and where; its own text may hold a part of a record."""
    frame = extract_tb(error.__traceback__)[-1]
    place = f"{Path(frame.filename).name}, line {frame.lineno}"
    return f"{type(error).__name__} in {place}: report this defect of twinlog"
