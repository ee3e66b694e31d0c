"""From the batches of the source to those of a transaction, by a transform of DataFrames.

One micro-batch has the records of one transaction, of all its partitions. A record is told by its
index, which each row of the result names. So rows may be in any order, and come from any join:
those of a destination partition are written in the order of the source's records.

What is written is always the result of exactly the records whose positions are committed with it: a
query may count or group, so that a row may depend on any of them. A partition with a record that
cannot be transformed is cut before that record, and the query is run again for what is left:

    query ──► result ──► every row can be written ──► done
      ▲  │       └─ a row cannot ──► cut its partition before its record ─┐
      │  └─ it fails ──► try each partition alone, and cut it before the  │
      │                  first record with which it fails, by halving ────┤
      └───────────────────────────────────────────────────────────────────┘

The cut partition is FAILED at that record once what is before it is committed.

A micro-batch may have a million records, so all that is done for each of them is done in steps.
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from twinlog.engines.dataframes import DataFrames, QueryFailed, ResultRows, SourceRow
from twinlog.engines.loop_steps import Steps
from twinlog.engines.transactional.outputs import (
    BATCH_BYTES,
    GrowingBatches,
    Outputs,
    RecordFailure,
)
from twinlog.kafka.errors import CorruptBatch, Retriable
from twinlog.kafka.log.compression import Codec
from twinlog.kafka.log.record_parts import AT_ONCE, CutRecord, cut_records
from twinlog.kafka.log.records import Headers, decode_headers, encode_headers
from twinlog.kafka.types import Offset, TopicPartition
from twinlog.mirror.dataframe_transform import ROUTES, DataFrameTransform
from twinlog.mirror.plan import Data
from twinlog.mirror.record_converters import TransformError
from twinlog.mirror.transform_chain import check_routed_topic

_MAX_PARTITION: Final = (1 << 31) - 1
_NOTHING: Final = Outputs({})


class SourceRecord(NamedTuple):
    """A record of a micro-batch, with the remote partition of its own and its batch's codec."""

    remote: TopicPartition
    cut: CutRecord
    headers: Headers
    codec: Codec

    @property
    def offset(self) -> int:
        """The source's offset."""
        return self.cut[0]


async def source_records(
    remote: TopicPartition, batches: Iterable[Data], steps: Steps
) -> list[SourceRecord]:
    """The records of one partition, in order.

    Raises:
        CorruptBatch: a batch cannot be read.
    """
    found: list[SourceRecord] = []
    for batch in batches:
        codec = batch.header.codec
        for records in cut_records(batch.header, batch.records):
            found += [
                SourceRecord(remote, cut, decode_headers(memoryview(cut[4]), cut[0]), codec)
                for cut in records
            ]
            await steps.pause()
    return found


async def frame_outputs(
    frames: DataFrames,
    transform: DataFrameTransform,
    batches: Mapping[TopicPartition, Sequence[Data]],
    max_bytes: int = BATCH_BYTES,
    *,
    is_mapped: bool = False,
) -> Mapping[TopicPartition, Outputs | CorruptBatch]:
    """What is to be written for these batches, by the remote partition.

    Args:
        frames: applies the transform.
        transform: what is done to the records.
        batches: by remote partition, in order.
        max_bytes: of a batch that is written, uncompressed.
        is_mapped: whether the source offset of each row is wanted (`Outputs.sources`); a record
            may have one row then. The transform routes none.

    Raises:
        QueryUnusable: the transform cannot be applied to any record.
        Retriable: not now.
    """
    steps = Steps()
    corrupt: dict[TopicPartition, CorruptBatch] = {}
    parts: dict[TopicPartition, list[SourceRecord]] = {}
    for remote, data in batches.items():
        try:
            parts[remote] = await source_records(remote, data, steps)
        except CorruptBatch as error:
            corrupt[remote] = error
    query = _Query(frames, transform, max_bytes, is_mapped)
    failures: dict[TopicPartition, RecordFailure] = {}
    tried_alone = False
    while True:
        try:
            results, failed = await query.run(
                [record for part in parts.values() for record in part]
            )
        except QueryFailed as error:
            failed = {} if tried_alone else await query.failures_alone(parts)
            if tried_alone:  # each alone passes, but not all together: one goes on
                others = [remote for remote, part in parts.items() if part][1:]
                failed = {remote: _failure(parts[remote][0], str(error)) for remote in others}
                if not failed:  # what has passed alone does not pass again
                    raise Retriable(str(error)) from error
            tried_alone = True
        else:
            if not failed:
                break
        for remote, failure in failed.items():
            failures[remote] = failure
            parts[remote] = [one for one in parts[remote] if one.offset < failure.offset]
    outputs = {
        remote: results.get(remote, _NOTHING)._replace(failure=failures.get(remote))
        for remote in parts
    }
    return {**outputs, **corrupt}


_Results = Mapping[TopicPartition, Outputs]
_Failures = Mapping[TopicPartition, RecordFailure]


@dataclass(frozen=True, slots=True)
class _Query:
    """A transform, and what applies it."""

    frames: DataFrames
    transform: DataFrameTransform
    max_bytes: int
    is_mapped: bool

    async def run(self, records: Sequence[SourceRecord]) -> tuple[_Results, _Failures]:
        """What is to be written by the partitions that it comes from, and rows that fail.

        Raises:
            QueryFailed: the query fails for these records.
        """
        if not records:
            return {}, {}
        rows = await _rows(records)
        result = await self.frames.run(self.transform, rows)
        return await self._assembled(records, result)

    async def _assembled(
        self, records: Sequence[SourceRecord], result: ResultRows
    ) -> tuple[_Results, _Failures]:
        """What is to be written of a result, by the remote partition of the records it comes from.

        Returns:
            That, and for each partition the first record with a row that cannot be written.

        Raises:
            QueryFailed: a row does not name a record.
        """
        steps = Steps()
        growing: dict[TopicPartition, GrowingBatches] = {}
        failures: dict[TopicPartition, RecordFailure] = {}
        before = -1
        async for index, row in _in_order(result.rows, len(records), steps):
            source = records[index]
            if source.remote in failures:
                continue
            try:
                to, written = _written(source, dict(zip(result.columns, row, strict=True)))
                self._check_row(source, to, is_first=index != before)
            except TransformError as error:
                failures[source.remote] = _failure(source, str(error))
                continue
            before = index
            if source.remote not in growing:
                mapped = source.remote if self.is_mapped else None
                growing[source.remote] = GrowingBatches(self.max_bytes, mapped=mapped)
            growing[source.remote].add(to, [written], source.codec)
        built = {
            remote: Outputs(await each.finished(), sources=each.sources)
            for remote, each in growing.items()
        }
        return built, failures

    def _check_row(self, source: SourceRecord, to: TopicPartition, *, is_first: bool) -> None:
        """Check that a row may go there, and that the flow's map can have it.

        Raises:
            TransformError: it may not, or the map cannot.
        """
        if to != source.remote and not self.transform.routes:
            raise TransformError(
                f"its row is for another topic or partition, which {ROUTES}=false excludes"
            )
        if self.is_mapped and not is_first:
            raise TransformError("it has several rows, and a map of offsets can have one")

    async def failures_alone(
        self, parts: Mapping[TopicPartition, Sequence[SourceRecord]]
    ) -> _Failures:
        """The first record of each partition with which the query fails for it alone."""
        found = {remote: await self._first_failure(part) for remote, part in parts.items()}
        return {remote: failure for remote, failure in found.items() if failure is not None}

    async def _first_failure(self, records: Sequence[SourceRecord]) -> RecordFailure | None:
        good, bad = 0, len(records) + 1
        length = len(records)
        while bad - good > 1:
            try:
                await self.run(records[:length])
            except QueryFailed:
                bad = length
            else:
                good = length
            # A partition that goes on at a bad record meets it first.
            length = 1 if good == 0 and bad == len(records) else (good + bad) // 2
        if good == len(records):
            return None
        try:  # a worker of Spark that is killed fails a query, too
            await self.run(records[:bad])
        except QueryFailed as error:
            return _failure(records[good], str(error))
        return None


async def _rows(records: Sequence[SourceRecord]) -> list[SourceRow]:
    steps, rows = Steps(), list[SourceRow]()
    for start in range(0, len(records), AT_ONCE):
        some = records[start : start + AT_ONCE]
        rows += [_row(index, record) for index, record in enumerate(some, start)]
        await steps.pause()
    return rows


def _row(index: int, record: SourceRecord) -> SourceRow:
    offset, timestamp, key, value, _ = record.cut
    topic, partition = record.remote
    return SourceRow(index, topic, partition, offset, timestamp, key, value, record.headers)


async def _in_order(
    rows: Sequence[tuple[object, ...]], count: int, steps: Steps
) -> AsyncIterator[tuple[int, tuple[object, ...]]]:
    """The rows in the order of their records; those of one record in the order of the result."""
    numbered: defaultdict[int, list[tuple[object, ...]]] = defaultdict(list)
    for number, row in enumerate(rows):
        index = row[0]
        if not isinstance(index, int) or not 0 <= index < count:
            raise QueryFailed("column record of the result has a value that names no record")
        numbered[index].append(row)
        if number % AT_ONCE == 0:
            await steps.pause()
    for index in range(count):
        for row in numbered.get(index, ()):
            yield index, row
        if index % AT_ONCE == 0:
            await steps.pause()


def _failure(source: SourceRecord, reason: str) -> RecordFailure:
    reason = f"the record at offset {source.offset} cannot be transformed: {reason}"
    return RecordFailure(Offset(source.offset), reason)


def _written(source: SourceRecord, row: Mapping[str, object]) -> tuple[TopicPartition, CutRecord]:
    """Where a row is written, and what.

    Raises:
        TransformError: a column has a value that no record can have.
    """
    offset, timestamp_before, key, value, headers = source.cut
    topic = row.get("topic", source.remote.topic)
    if not isinstance(topic, str):
        raise TransformError("column topic of the result is null")
    if topic != source.remote.topic:
        check_routed_topic(topic)
    partition = row.get("partition", source.remote.partition)
    if not isinstance(partition, int) or not 0 <= partition <= _MAX_PARTITION:
        raise TransformError(f"column partition of the result is {partition}")
    timestamp = row.get("timestamp", timestamp_before)
    if not isinstance(timestamp, int):
        raise TransformError("column timestamp of the result is null")
    if "headers" in row:
        _check_names(source.headers)
        headers = encode_headers(_headers(row["headers"]))
    key, value = _bytes(row.get("key", key)), _bytes(row.get("value", value))
    return TopicPartition(topic, partition), (offset, timestamp, key, value, headers)


def _bytes(value: object) -> bytes | None:
    if value is None:
        return None
    assert isinstance(value, bytes | bytearray), "the worker hands on bytes"
    return bytes(value)


def _check_names(headers: Headers) -> None:
    """Refuse names of headers that a STRING of Spark cannot hold, and would alter."""
    for name, _ in headers:
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise TransformError("the name of a header is not in UTF-8") from error


def _headers(headers: object) -> Headers:
    if headers is None:
        return ()
    assert isinstance(headers, list | tuple)
    found = []
    for header in headers:
        name, value = header if header is not None else (None, None)
        if name is None:
            raise TransformError("column headers of the result has a header without a name")
        found.append((name, _bytes(value)))
    return tuple(found)
