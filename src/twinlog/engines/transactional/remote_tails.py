"""Whether the target has lost records or positions that a transactional flow has committed.

An unclean election may take the end of a remote log. The positions are in `__consumer_offsets`, and
stay. So each position has the *tail* of its remote partition in its metadata: the end of the last
batch that was written there, and its producer id, epoch and last number. Both are committed in one
transaction. When a partition is located, its log is compared:

    the log ends before the tail                       records are lost
    the log ends with the tail                         its transaction has no marker, or not yet
    the batch before the tail's end is another one     records are lost, others are in their place
    a later batch follows, or the log starts later     nothing is known: compacted, or deleted
    the broker shows no batch there                    nothing is known yet: read again

An election may take nothing but the marker behind the tail. Its transaction is open again then, and
the next one of the producer in this log decides both. So where the batch of the tail is there, the
first marker behind it of its producer is examined, whoever else has written in between:

    tail │ marker that commits       it is the tail's own, or a later one that has committed both
    tail │ marker that aborts        records are lost: no reader sees them
    tail │ no marker to the log end  it is not written yet, or lost: nothing is written behind it

As a rule it is in the answer with the tail. Else a read_committed answer tells: it ends in front of
open transactions, and lists those that are aborted. Compaction keeps a marker longer than any batch
of its transaction.

An election may take the end of `__consumer_offsets` instead, or its coordinator may be cut off: the
position is an older one then, with the tail of its time. What the flow has committed to the remote
partition since is behind that tail:

    tail │ marker │ own batch │ marker that commits it    the position is older than the copy
    tail │ marker │ own batch │ marker that aborts it     a former owner's last transaction
    tail │ marker │ own batch │                           not decided yet: nothing is known
    tail │ marker │ batches of other producers            nothing is known to be missing

A batch is *own* by its producer id, which all partitions and flows of a state partition share. So
it counts only if nobody else writes to the remote partition under that id: transforms may route
records of others there. Each who does so first records it, in the transaction that does it
(`SharedPartition`). A tail names the `__mirror_offsets` in which that is recorded since: if it is
another one by now, nothing is known.
"""

import asyncio
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple
from uuid import UUID

from twinlog.engines.ports import DestinationPort, LogEnd
from twinlog.engines.transactional.remote_reader import WAIT_MS, RemoteBatches, read_batches
from twinlog.engines.translated.remote_log import LostEnd, check_tail
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Refusal, Retriable, TwinlogError
from twinlog.kafka.log.batch import Header, batches
from twinlog.kafka.log.markers import aborts, commits
from twinlog.kafka.types import (
    Offset,
    ProducerEpoch,
    ProducerId,
    Sequence,
    TopicPartition,
    advance,
)
from twinlog.store.offset_records import MapTail

_READS: Final = 64
"""Requests behind a tail: 4 MB, if batches are small."""
_ONE_BATCH: Final = 1
"""Bytes of an answer, of which a broker returns the first batch whole."""
_LOGS: Final = 100
"""That are read at the same time: an answer has a batch of up to 512 KB."""
_NONE: Final[Mapping[TopicPartition, Collection[int]]] = MappingProxyType({})


class RemoteTail(NamedTuple):
    """The last batch that was committed to a remote partition."""

    end: Offset
    """The offset behind it."""
    last: MapTail
    """Its last record."""
    recorded_in: UUID | None = None
    """The id of the `__mirror_offsets` that names those who have written to the partition since,
    besides its own source partition; None if it is not known."""

    def text(self) -> str:
        """As metadata of a position."""
        return ",".join(map(str, (self.end, *self.last)))


class LandedBatches(NamedTuple):
    """What a transaction has appended to a partition."""

    start: Offset
    """Of the first batch."""
    tail: RemoteTail
    """The last batch."""
    batches: tuple[tuple[Offset, int], ...] = ()
    """Where each batch begins, and how many records it has."""


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


class OlderPosition(Exception):
    """The flow has committed records behind the tail, so a later position, too."""


TailProblem = LostEnd | OlderPosition | TwinlogError
"""What a comparison finds: lost records, an older position, or that a log cannot be read now."""


async def compare_tails(
    port: DestinationPort,
    tails: Mapping[TopicPartition, RemoteTail],
    own_ids: Mapping[TopicPartition, Collection[int]] = _NONE,
) -> Mapping[TopicPartition, TailProblem]:
    """Compare remote logs with their tails.

    Args:
        port: the target.
        tails: by remote partition; no transaction of this flow is open there.
        own_ids: producer ids under which one source partition alone has written to this remote
            partition since its tail. What is behind the tails of others is not looked at.

    Returns:
        Those that have lost records, those with an older position, and those that cannot be read
        now.
    """
    problems = await compare_each(port, list(tails.items()), own_ids)
    return {key: problem for (key, _), problem in problems.items()}


async def compare_each(
    port: DestinationPort,
    pairs: Collection[tuple[TopicPartition, RemoteTail]],
    own_ids: Mapping[TopicPartition, Collection[int]] = _NONE,
) -> Mapping[tuple[TopicPartition, RemoteTail], TailProblem]:
    """Compare logs with tails, of which a log may have several; see `compare_tails`."""
    if not pairs:
        return {}
    ends = await port.log_ends(list(dict.fromkeys(key for key, _ in pairs)))
    problems: dict[tuple[TopicPartition, RemoteTail], TailProblem] = {}
    turns = asyncio.Semaphore(_LOGS)

    async def compare(key: TopicPartition, tail: RemoteTail) -> None:
        try:
            async with turns:
                await _compare(port, key, tail, ends.get(key), own_ids.get(key, ()))
        except (LostEnd, OlderPosition, TwinlogError) as error:
            problems[key, tail] = error

    await asyncio.gather(*(compare(key, tail) for key, tail in pairs))
    return problems


async def _compare(
    port: DestinationPort,
    key: TopicPartition,
    tail: RemoteTail,
    end: LogEnd | None,
    own_ids: Collection[int],
) -> None:
    """Compare the end of a log, the batch before the tail's end, and what is behind it.

    Raises:
        LostEnd: the log ends before it, it is another one, or its transaction is aborted.
        OlderPosition: a batch of one of these producer ids is committed behind it.
        TwinlogError: it cannot be read now, or a marker is missing.
    """
    end = known_end(key, end)
    if end.log_end < tail.end:
        raise ShorterLog(
            f"the destination has lost records: {key} ends at {end.log_end}, and records were "
            f"copied up to {tail.end}",
            start=Offset(end.log_end),
            end=tail.end,
        )
    if end.log_end == tail.end:
        raise _no_marker(key, Offset(end.log_end), tail)
    read = await read_batches(port, key, Offset(tail.end - 1))
    if not read.headers and read.replicated < tail.end:
        raise Retriable(f"{key} is replicated up to {read.replicated} only")
    is_there = bool(read.headers) and read.headers[0].base_offset < tail.end
    if is_there:
        check_tail(tail.last, read.headers[0], tail.end)
    if is_there or own_ids:
        behind = _BatchesBehind(key, tail, own_ids, is_decided=not is_there)
        await behind.search(port, read, Offset(end.log_end))


def known_end(key: TopicPartition, end: LogEnd | None) -> LogEnd:
    """The log end that a broker has answered.

    Raises:
        Retriable: it has not answered, or has refused.
    """
    if end is None or end.error:
        refusal = Refusal(ErrorCode.LEADER_NOT_AVAILABLE if end is None else end.error)
        raise Retriable(f"cannot read the log end of {key}: {refusal}")
    return end


def _no_marker(key: TopicPartition, end: Offset, tail: RemoteTail) -> Retriable:
    """A later transaction that is aborted would abort the records of the tail's, too."""
    return Retriable(
        f"{key} ends at {end}, without the marker of the last transaction, which wrote up to "
        f"{tail.end}"
    )


class _BatchesBehind:
    """The search of what is behind a tail: the marker of its transaction, and own batches.

    What other producers have written behind the tail may be long: only its beginning is searched,
    where an older position is followed by the flow's own batches.

    Args:
        key: the log.
        tail: its tail.
        own_ids: see `compare_tails`.
        is_decided: whether the marker of the tail's transaction is of no interest.
    """

    def __init__(
        self, key: TopicPartition, tail: RemoteTail, own_ids: Collection[int], *, is_decided: bool
    ) -> None:
        self._key = key
        self._tail = tail
        self._own_ids = own_ids
        self._is_decided = is_decided
        self._open: dict[int, Offset] = {}  # by own producer id, the first batch without a marker

    async def search(self, port: DestinationPort, read: RemoteBatches, end: Offset) -> None:
        """Search from what was read at the tail up to the log end.

        Raises:
            LostEnd: the tail's transaction is aborted.
            OlderPosition: own committed batches follow.
            TwinlogError: it cannot be read now, or the tail's transaction has no marker.
        """
        for number in range(_READS):
            for header in read.headers:
                if header.base_offset >= self._tail.end:
                    self._take(header, read.records)
            if not self._is_decided and not number:
                await self._ask(port)
            if self._is_decided and not self._own_ids:
                return
            # Without a batch there is none below the high watermark.
            at = read.headers[-1].next_offset if read.headers else max(read.start, read.replicated)
            if at >= end:
                break
            if not read.headers:
                raise Retriable(f"{self._key} is replicated up to {read.replicated} only")
            read = await read_batches(port, self._key, Offset(at))
        else:
            return
        if not self._is_decided:
            raise _no_marker(self._key, end, self._tail)

    def _take(self, header: Header, records: memoryview) -> None:
        """Note the next batch behind the tail."""
        if header.is_control and header.producer_id == self._tail.last.producer_id:
            # While the transaction is open nothing behind its beginning is compacted.
            if not self._is_decided and aborts(header, records):
                raise self._aborted()
            self._is_decided = True
        if header.producer_id not in self._own_ids:
            return
        if not header.is_control:
            self._open.setdefault(header.producer_id, Offset(header.base_offset))
            return
        first = self._open.pop(header.producer_id, None)
        if first is not None and commits(header, records):
            raise OlderPosition(
                f"the position is older than the copy: the flow has committed records at "
                f"offset {first} of {self._key} and behind it, and the position is of when it had "
                f"written up to {self._tail.end}"
            )

    async def _ask(self, port: DestinationPort) -> None:
        """Note whether the transaction is decided, if a read_committed answer shows the tail.

        It does not if it ends in front of the tail: a transaction is open there, the tail's or one
        of another producer. If it ends behind and is empty, it shows nothing (remote_reader.py).
        The list has a transaction of which the tail is the end, wherever its marker is (contract:
        test_log).
        """
        last = Offset(self._tail.end - 1)
        for wait_ms in (0, WAIT_MS):
            answer = await port.read_alone(
                self._key, last, max_wait_ms=wait_ms, partition_max_bytes=_ONE_BATCH, committed=True
            )
            fetched = answer.fetched
            if fetched.error:
                refusal = Refusal(fetched.error)
                raise Retriable(f"cannot read {self._key} at {last}: {refusal}", code=fetched.error)
            if any(one.base_offset <= last < one.next_offset for one in batches(fetched.records)):
                break
            if fetched.last_stable <= last:
                return
        else:
            raise Retriable(f"cannot read {self._key} at {last}: the broker shows no batch there")
        if any(
            one.producer_id == self._tail.last.producer_id and one.first_offset <= last
            for one in fetched.aborted
        ):
            raise self._aborted()
        self._is_decided = True

    def _aborted(self) -> LostEnd:
        return LostEnd(
            f"the destination has lost records: {self._key} has lost the marker that committed the "
            f"records up to {self._tail.end}, and the next one has aborted them",
            end=self._tail.end,
        )
