"""Reads the batches of a remote log from an offset on: at least one, or the evidence of none.

An answer without records proves nothing (docs/architecture/absence.md). The records may be in
remote storage, for which a broker waits only as long as the request does, or a quota has emptied
the answer. It is asked again for a while. That a log has no batch from an offset on is believed
of a compacted topic only, from two readings that exclude every other reason (mirror/absence.py):
compaction has removed the end of the log, and nothing was appended since.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from twinlog.engines.ports import DestinationPort
from twinlog.engines.source.absences import reading_of
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Refusal, Retriable
from twinlog.kafka.log.batch import Header, batches
from twinlog.kafka.types import Offset, TopicPartition
from twinlog.mirror.absence import LOOK_INTERVAL_S, Absent, Reading, judge

_READ_BYTES: Final = 1 << 16
"""A broker returns the first batch whole, however long it is."""
WAIT_MS: Final = 500
"""As long as a broker waits for remote storage by default (`remote.fetch.max.wait.ms`); before
Kafka 3.8 it waits as long as the request allows."""
_PAUSE_S: Final = 0.25
_INTERVAL_S: Final = LOOK_INTERVAL_S
"""Between the two readings that may show that a log has no batch."""


class RemoteBatches(NamedTuple):
    """The batches of a log from an offset on; without any, there is none below `replicated`."""

    start: Offset
    """What was read: the offset that was asked for, or the log start offset above it."""
    headers: Sequence[Header]
    records: memoryview
    """The buffer of the headers."""
    replicated: int
    """The high watermark, up to which a broker returns records."""


async def read_batches(
    port: DestinationPort, key: TopicPartition, position: Offset
) -> RemoteBatches:
    """Read the batches from an offset on, that with the offset included.

    Raises:
        Retriable: the broker refuses, or does not show what it has there.
        CorruptBatch: what it returns cannot be read.
    """
    now = asyncio.get_running_loop().time
    deadline = now() + _INTERVAL_S + 2 * (_PAUSE_S + WAIT_MS / 1000)
    first: Reading | None = None
    while True:
        asked_at = now()
        # What is not replicated yet is not waited for: reads of other partitions would wait, too.
        wait_ms = 0 if first is None else WAIT_MS
        answer = await port.read_alone(
            key, position, max_wait_ms=wait_ms, partition_max_bytes=_READ_BYTES
        )
        fetched = answer.fetched
        if fetched.error == ErrorCode.OFFSET_OUT_OF_RANGE:
            bounds = (await port.bounds([key]))[key]
            if not bounds.error and bounds.start > position:
                position = Offset(bounds.start)
                continue
        if fetched.error:
            refusal = Refusal(fetched.error)
            raise Retriable(f"cannot read {key} at {position}: {refusal}", code=fetched.error)
        found = [one for one in batches(fetched.records) if one.next_offset > position]
        if found or 0 <= fetched.high_watermark <= position:
            return RemoteBatches(position, found, fetched.records, fetched.high_watermark)
        reading = replace(
            reading_of(answer, position, asked_at),
            last_stable=Offset(fetched.high_watermark),  # read_uncommitted ends there
        )
        if first is None or first.offset != position:  # the log start offset has moved
            first = reading
        if isinstance(judge(first, reading, _INTERVAL_S), Absent):
            return RemoteBatches(position, (), fetched.records, fetched.high_watermark)
        if now() > deadline:
            raise Retriable(
                f"cannot read {key} at {position}: the broker answers without records, and nothing "
                "shows that it has none there"
            )
        await asyncio.sleep(_PAUSE_S)
