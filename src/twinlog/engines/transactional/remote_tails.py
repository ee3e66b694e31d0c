"""Whether the target has lost records that a transactional flow has committed.

An unclean election may take the end of a remote log. The positions are in `__consumer_offsets`, and
stay. So each position has the *tail* of its remote partition in its metadata: the end of the last
batch that was written there, and its producer id, epoch and last number. Both are committed in one
transaction. When a partition is located, its log is compared:

    the log ends before the tail                       records are lost
    the log ends with the tail                         its transaction has no marker, or not yet
    the batch before the tail's end is another one     records are lost, others are in their place
    a later batch follows, or the log starts later     nothing is known: compacted, or deleted
    the broker shows no batch there                    nothing is known yet: read again
"""

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

from twinlog.engines.exact.ports import DestinationPort, LogEnd
from twinlog.engines.transactional.remote_reader import read_batches
from twinlog.engines.translated.remote_log import LostEnd, check_tail
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Refusal, Retriable, TwinlogError
from twinlog.kafka.types import (
    Offset,
    ProducerEpoch,
    ProducerId,
    Sequence,
    TopicPartition,
    advance,
)
from twinlog.store.offset_records import MapTail


class RemoteTail(NamedTuple):
    """The last batch that was committed to a remote partition."""

    end: Offset
    """The offset behind it."""
    last: MapTail
    """Its last record."""

    def text(self) -> str:
        """As metadata of a position."""
        return ",".join(map(str, (self.end, *self.last)))


def tail_of_batch(base: int, count: int, producer: tuple[int, int], number: Sequence) -> RemoteTail:
    """The tail that a batch is.

    Args:
        base: its base offset.
        count: of its records.
        producer: its producer's id and epoch.
        number: its first sequence number.
    """
    producer_id, epoch = producer
    last = advance(number, count - 1)
    return RemoteTail(
        Offset(base + count), MapTail(ProducerId(producer_id), ProducerEpoch(epoch), last)
    )


def parse_tail(text: str) -> RemoteTail | None:
    """A tail as `RemoteTail.text` writes it; None if it is none."""
    parts = text.split(",")
    if len(parts) != 4 or not all(part.isascii() and part.isdigit() for part in parts):
        return None
    end, producer_id, epoch, number = map(int, parts)
    last = MapTail(ProducerId(producer_id), ProducerEpoch(epoch), Sequence(number))
    return RemoteTail(Offset(end), last) if end else None


class ShorterLog(LostEnd):
    """The log ends before its tail. A broker that is cut off, and led it once, may answer so."""


async def compare_tails(
    port: DestinationPort, tails: Mapping[TopicPartition, RemoteTail]
) -> Mapping[TopicPartition, LostEnd | TwinlogError]:
    """Compare remote logs with their tails.

    Args:
        port: the target.
        tails: by remote partition; no transaction of this flow is open there.

    Returns:
        Those that have lost records, and those that cannot be read now.
    """
    if not tails:
        return {}
    ends = await port.log_ends(list(tails))
    problems: dict[TopicPartition, LostEnd | TwinlogError] = {}

    async def compare(key: TopicPartition, tail: RemoteTail) -> None:
        try:
            await _compare(port, key, tail, ends.get(key))
        except (LostEnd, TwinlogError) as error:
            problems[key] = error

    await asyncio.gather(*(compare(key, tail) for key, tail in tails.items()))
    return problems


async def _compare(
    port: DestinationPort, key: TopicPartition, tail: RemoteTail, end: LogEnd | None
) -> None:
    """Compare the end of a log, and the batch before the tail's end.

    Raises:
        LostEnd: the log ends before it, or it is another one.
        TwinlogError: it cannot be read now, or a marker is missing.
    """
    if end is None or end.error:
        refusal = Refusal(ErrorCode.LEADER_NOT_AVAILABLE if end is None else end.error)
        raise Retriable(f"cannot read the log end of {key}: {refusal}")
    if end.log_end < tail.end:
        raise ShorterLog(
            f"the destination has lost records: {key} ends at {end.log_end}, and records were "
            f"copied up to {tail.end}"
        )
    if end.log_end == tail.end:
        # A later transaction that is aborted would abort these records, too.
        raise Retriable(f"{key} ends at {tail.end}, without the marker of the last transaction")
    read = await read_batches(port, key, Offset(tail.end - 1))
    if not read.headers and read.replicated < tail.end:
        raise Retriable(f"{key} is replicated up to {read.replicated} only")
    if read.headers and read.headers[0].base_offset < tail.end:
        check_tail(tail.last, read.headers[0], tail.end)
