"""Proof that a partition ends on the destination as the source's log does at the same offsets.

The last batch of the destination is compared with the source's records at its offsets. Reads are
bounded, and an empty answer proves nothing: many partitions are read in one request, whose answer
may be too short for all of them. A partition that an answer leaves out is read alone. One that
cannot be read proves nothing (`Unread`, retried).

    destination  ... │ last batch [start, end) │
    source       ... │ b │ b │ b │ b │ b ...        read on until `end` is covered

In a log that the destination has compacted the last records may be gone; then the last batch of an
earlier stretch is compared. A control batch proves nothing by itself: the source may have one at
the same offset by chance, while the destination's belongs to another producer's transaction. So
the comparison begins with a data batch, if there is one near.

The source determines how large its batches are, and their decompressed size. So plans and
comparisons run in steps, between which heartbeats are sent, and within the bound that holds while
mirroring.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import takewhile
from typing import Final, NamedTuple, TypeAlias

from twinlog.engines.exact.bulk import is_bulk
from twinlog.engines.exact.compare import Mismatch, comparing
from twinlog.engines.loop_steps import Steps
from twinlog.engines.ports import DestinationPort, SourcePort
from twinlog.kafka.errors import CorruptBatch, Refusal
from twinlog.kafka.log.batch import HEADER_SIZE, Header, LegacyBatch, batches
from twinlog.kafka.log.leader_epochs import epoch_at
from twinlog.kafka.log_reader import ReadAlone
from twinlog.kafka.protocol.fetch import Fetched
from twinlog.kafka.types import UNKNOWN_EPOCH, LeaderEpoch, Offset, TopicPartition
from twinlog.mirror.aborted import aborted_within
from twinlog.mirror.plan import Data, Piece, planning_sound

TAIL_BYTES: Final = 64 * 1024
"""Bytes of each partition in an answer for many. A longer batch is read alone."""
LOOK_BACK: Final = 1_000
"""Offsets in which a data batch is searched if a log ends in control batches."""
_FIRST_LOOK: Final = 4
_FURTHER: Final = 8
_READS: Final = 64
"""Requests for one partition alone."""


class Claim(NamedTuple):
    """Where a partition ends on the destination, and what is known around it."""

    log_end: Offset
    destination_start: Offset
    source_start: Offset
    compacted: bool
    epoch: LeaderEpoch
    """The leader epoch of the source's last record when it was mirrored; -1 if unknown."""


class Proven(NamedTuple):
    """Nothing in the partition contradicts the source's log.

    `fresh`: it has no reader yet; it is empty, or contains bulk records only.
    `compared`: its last data was found on the source. False if the source no longer has records
    at these offsets (compacted, or below its log start offset), or if the log ends in control
    batches for more than `LOOK_BACK` offsets: then another producer may have written them.
    `epoch` is the source's leader epoch at its end, -1 if unknown.
    """

    fresh: bool
    compared: bool
    epoch: LeaderEpoch = UNKNOWN_EPOCH


class Differs(NamedTuple):
    """The destination's log is not the source's.

    `lasting`: another reading would show the same. A skipped offset may be read again.
    """

    reason: str
    lasting: bool = True


class Unread(NamedTuple):
    """The partition could not be compared; to be retried."""

    reason: str


Result: TypeAlias = Proven | Differs | Unread


class _Tail(NamedTuple):
    """The end of the destination's log, `[start, end)`: its last batch, or several.

    `header` is the header of the first one.
    """

    header: Header
    records: memoryview
    start: Offset
    end: Offset


async def prove(
    source: SourcePort,
    destination: DestinationPort,
    claims: Mapping[TopicPartition, Claim],
    max_bytes: int,
    compacts: Callable[[str], bool | None],
) -> dict[TopicPartition, Result]:
    """Compare the ends of these partitions.

    Args:
        source: the cluster that is mirrored.
        destination: the cluster that holds the copy.
        claims: what is to be proven.
        max_bytes: bytes of the source that may be held for one partition, and to which a batch may
            decompress. A partition with more is `Unread`.
        compacts: whether a topic of the source compacts; None if that is not known (yet).

    Raises:
        Retriable: a cluster gave no answer.
    """
    steps = Steps()
    results: dict[TopicPartition, Result] = {}
    tails: dict[TopicPartition, _Tail] = {}
    for partition, result in (await _tails(destination, claims, steps, max_bytes)).items():
        if isinstance(result, _Tail):
            tails[partition] = result
        else:
            results[partition] = result
    starts = {}
    for partition, tail in tails.items():
        claim = claims[partition]
        if tail.header.end == len(tail.records) and is_bulk(
            tail.records[HEADER_SIZE:], tail.header.num_records
        ):
            results[partition] = Proven(fresh=claim.destination_start == 0, compared=False)
        else:
            starts[partition] = max(tail.start, claim.source_start)
    sources = await source.read(starts, partition_max_bytes=TAIL_BYTES) if starts else {}
    for partition in starts:
        tail, claim, answer = tails[partition], claims[partition], sources.get(partition)
        if claim.source_start >= tail.end:
            results[partition] = await _deleted(source, partition, claim, answer)
        else:
            stretch = _stretch(
                source, partition, tail, claim, answer, steps=steps, max_bytes=max_bytes
            )
            results[partition] = await _compared(
                stretch,
                tail,
                claim,
                steps,
                max_bytes=max_bytes,
                source_compacts=partial(compacts, partition.topic),
            )
        await steps.pause()
    return results


# ---- the destination -------------------------------------------------------------------------


async def _tails(
    destination: DestinationPort,
    claims: Mapping[TopicPartition, Claim],
    steps: Steps,
    max_bytes: int,
) -> dict[TopicPartition, _Tail | Proven | Unread]:
    """The end of each log; the result of an empty log."""
    offsets = {p: c.log_end - 1 for p, c in claims.items() if c.log_end > c.destination_start}
    answers = await destination.read(offsets, partition_max_bytes=TAIL_BYTES) if offsets else {}
    results: dict[TopicPartition, _Tail | Proven | Unread] = {}
    control: dict[TopicPartition, _Tail] = {}
    for partition, claim in claims.items():
        if partition not in offsets:
            empty = claim.log_end == 0
            results[partition] = Proven(fresh=empty, compared=empty)
            continue
        tail = await _tail(destination, partition, claim, answers.get(partition))
        results[partition] = tail
        if isinstance(tail, _Tail) and tail.header.is_control:
            control[partition] = tail
    return results | await _with_data(destination, control, claims, steps, max_bytes)


async def _tail(
    destination: DestinationPort,
    partition: TopicPartition,
    claim: Claim,
    answer: Fetched | None,
) -> _Tail | Proven | Unread:
    """The last batch, from the answer for many partitions or by requests for this one alone."""
    distance = 1
    for _ in range(_READS):
        if answer is not None and answer.error:
            return Unread(f"the destination refuses the read: {Refusal(answer.error)}")
        if answer is not None and (tail := _last_batch(answer, claim.log_end)) is not None:
            return tail
        start = max(claim.log_end - distance, claim.destination_start)
        answers = await destination.read({partition: start}, partition_max_bytes=TAIL_BYTES)
        answer = answers.get(partition)
        if answer is None or answer.error or len(answer.records):
            continue
        if not claim.compacted:
            return Unread("the destination has answered without records")
        if start == claim.destination_start:
            return Proven(fresh=False, compared=False)  # the log cleaner has removed all of it
        distance *= 4
    return Unread("reads of the destination's last batch returned no records")


def _last_batch(answer: Fetched, log_end: Offset) -> _Tail | None:
    """The last whole batch of an answer that begins below the log end offset.

    The log may have grown since: batches above that offset prove nothing about those below it.
    """
    headers = _sound(answer, log_end)
    if not headers:
        return None
    header = headers[-1]
    end = Offset(min(header.next_offset, log_end))
    whole = answer.records[header.position : header.end]
    return _Tail(next(batches(whole)), whole, Offset(header.base_offset), end)


async def _with_data(
    destination: DestinationPort,
    control: Mapping[TopicPartition, _Tail],
    claims: Mapping[TopicPartition, Claim],
    steps: Steps,
    max_bytes: int,
) -> dict[TopicPartition, _Tail | Unread]:
    """Tails that are control batches, each extended back to the last data batch not aborted.

    A partition without one within `LOOK_BACK` is left out: its log was filled, or is empty.
    """
    results: dict[TopicPartition, _Tail | Unread] = {}
    pending, distance = dict(control), _FIRST_LOOK
    while pending:
        starts = {p: max(t.end - distance, claims[p].destination_start) for p, t in pending.items()}
        ends = {p: tail.end for p, tail in pending.items()}
        for partition, records in (await _whole(destination, starts, ends)).items():
            longer = (
                Unread("reads of the destination's last batches returned no records")
                if records is None
                else await _from_data(records, pending[partition].end, steps, max_bytes)
            )
            if longer is not None:
                results[partition] = longer
            elif starts[partition] > claims[partition].destination_start and distance < LOOK_BACK:
                continue
            del pending[partition]
        distance *= _FURTHER
    return results


async def _from_data(
    records: memoryview, end: Offset, steps: Steps, max_bytes: int
) -> _Tail | Unread | None:
    """These batches, from the last one with data that is not aborted; None if there is none."""
    headers = list(batches(records))
    if not headers:
        return None
    start = Offset(headers[0].base_offset)
    try:
        pieces = await _pieces(records, start, steps, max_bytes)
    except CorruptBatch as error:
        return Unread(str(error))
    data = [piece.start for piece in pieces if isinstance(piece, Data)]
    if not data:
        return None
    first = next(header for header in headers if header.next_offset > data[-1])
    tail_records = memoryview(bytes(records[first.position :]))
    return _Tail(next(batches(tail_records)), tail_records, Offset(first.base_offset), end)


async def _pieces(records: memoryview, start: Offset, steps: Steps, max_bytes: int) -> list[Piece]:
    """All pieces of these batches of the destination, from an offset on."""
    pieces: list[Piece] = []
    aborted = aborted_within(records)
    while planned := (
        await steps.finish(planning_sound(records, start, aborted, max_bytes))
    ).pieces:
        pieces += planned
        start = planned[-1].end
    return pieces


async def _whole(
    destination: DestinationPort,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, Offset],
) -> dict[TopicPartition, memoryview | None]:
    """The whole batches that hold the offsets `[starts, ends)`; None if they cannot be read."""
    results: dict[TopicPartition, memoryview | None] = dict.fromkeys(starts)
    parts: dict[TopicPartition, list[bytes]] = {partition: [] for partition in starts}
    at = dict(starts)
    for _ in range(_READS):
        answers = await destination.read(at, partition_max_bytes=TAIL_BYTES) if at else {}
        for partition, answer in answers.items():
            headers = _sound(answer, ends[partition])
            if answer.error:
                del at[partition]
            elif _is_legacy(answer):
                results[partition] = memoryview(b"")
                del at[partition]
            elif headers:
                parts[partition].append(bytes(answer.records[: headers[-1].end]))
                at[partition] = headers[-1].next_offset
            if at.get(partition, -1) >= ends[partition]:
                results[partition] = memoryview(b"".join(parts[partition]))
                del at[partition]
    return results


def _is_legacy(answer: Fetched) -> bool:
    """Whether an answer begins with messages of formats v0 or v1, which a mirror never writes."""
    try:
        next(batches(answer.records), None)
    except LegacyBatch:
        return True
    except CorruptBatch:
        pass
    return False


def _sound(answer: Fetched, end: Offset) -> list[Header]:
    """The whole batches of an answer below `end`, up to the first corrupt or legacy one."""
    headers: list[Header] = []
    with suppress(CorruptBatch, LegacyBatch):
        headers.extend(takewhile(lambda header: header.base_offset < end, batches(answer.records)))
    return headers


# ---- the source ------------------------------------------------------------------------------


class _Stretch(NamedTuple):
    """The source's records at the offsets of a tail, up to `end`; the epoch of the last offset."""

    pieces: list[Piece]
    end: Offset
    epoch: LeaderEpoch


async def _deleted(
    source: SourcePort, partition: TopicPartition, claim: Claim, answer: Fetched | None
) -> Result:
    """Confirm by topic id that the source has deleted the records that the destination ends with.

    The bounds were read by the topic's name, so a recreated topic may have them; records are read
    by its id (Kafka 3.1). An answer that a quota has emptied proves nothing about the partition or
    its high watermark.
    """
    if answer is None:
        reading = await source.read_alone(
            partition, claim.source_start, max_wait_ms=0, partition_max_bytes=TAIL_BYTES
        )
        answer = reading.fetched
    if answer.error:
        return Unread(
            f"the source refuses the read at its log start offset: {Refusal(answer.error)}"
        )
    if answer.high_watermark < claim.source_start:
        return Unread("the source has not answered about where its log starts")
    return Proven(fresh=False, compared=False)


async def _compared(
    reading: Awaitable["_Stretch | Unread"],
    tail: _Tail,
    claim: Claim,
    steps: Steps,
    *,
    max_bytes: int,
    source_compacts: Callable[[], bool | None],
) -> Result:
    """Compare the destination's tail with the source's records at its offsets.

    Compaction explains that the source skips an offset at which the destination has a record. On a
    topic of the source that does not compact, nothing does: the record may be another producer's.
    """
    start = max(tail.start, claim.source_start)
    try:
        stretch = await reading
        if isinstance(stretch, Unread):
            return stretch
        if (differs := _of_epoch(claim, tail, stretch.epoch)) is not None:
            return differs
        mirrored = await _pieces(tail.records, start, steps, max_bytes)
        end = Offset(min(tail.end, stretch.end))
        for difference in comparing(
            stretch.pieces,
            mirrored,
            start,
            end,
            compacted=claim.compacted,
            max_decoded=max_bytes,
        ):
            skipped = difference is not None and difference.reason is Mismatch.SKIPPED
            if difference is not None and not (skipped and source_compacts()):
                if skipped and source_compacts() is None:
                    return Unread("cleanup.policy of the source's topic is not known yet")
                return Differs(
                    f"the destination differs from the source at offset {difference.start}: "
                    f"{difference.reason.value}",
                    lasting=not skipped,
                )
            await steps.pause()
    except CorruptBatch as error:
        return Unread(str(error))
    epoch = stretch.epoch if tail.end == claim.log_end else UNKNOWN_EPOCH
    return Proven(False, _holds_last_data(stretch.pieces, mirrored), epoch)


def _holds_last_data(source: Iterable[Piece], destination: Sequence[Piece]) -> bool:
    """Whether the source has the destination's last record.

    A piece may be several small batches, of which only the first were compared.
    """
    last_piece = next((piece for piece in reversed(destination) if isinstance(piece, Data)), None)
    return last_piece is not None and any(
        isinstance(piece, Data) and piece.start < last_piece.end <= piece.end for piece in source
    )


async def _stretch(
    source: SourcePort,
    partition: TopicPartition,
    tail: _Tail,
    claim: Claim,
    answer: Fetched | None,
    *,
    steps: Steps,
    max_bytes: int,
) -> _Stretch | Unread:
    """Continue to read the source after the answer for many partitions, for this one alone."""
    pieces: list[Piece] = []
    read_bytes, most = 0, max_bytes + 2 * len(tail.records)
    covered, epoch = max(tail.start, claim.source_start), UNKNOWN_EPOCH
    size = max(TAIL_BYTES, 2 * len(tail.records))
    for _ in range(_READS):
        if answer is None or not (answer.error or len(answer.records)):
            reading = await source.read_alone(
                partition, covered, max_wait_ms=0, partition_max_bytes=size
            )
            answer = reading.fetched
            if not (answer.error or len(answer.records)):
                if claim.compacted and _is_gone(reading, covered, tail.end):
                    return _Stretch(pieces, covered, epoch)
                return Unread("the source has answered without records")
        if answer.error:
            return Unread(f"the source refuses the read: {Refusal(answer.error)}")
        read_bytes += len(answer.records)
        if read_bytes > most:
            return Unread(f"the source answers with more than {most} bytes")
        planning = planning_sound(answer.records, covered, answer.aborted, max_bytes)
        planned = await steps.finish(planning)
        if planned.pieces:
            pieces += planned.pieces
            covered = planned.pieces[-1].end
        epoch = epoch_at(answer.records, tail.end - 1)
        answer = None
        if covered >= tail.end:
            return _Stretch(pieces, covered, epoch)
    return Unread(f"the source does not answer up to offset {tail.end}")


def _is_gone(reading: ReadAlone, offset: Offset, end: Offset) -> bool:
    """Whether an answer without records means that compaction has removed them."""
    return (
        reading.compacts is True
        and not reading.throttle_ms
        and reading.fetched.preferred_replica < 0
        and 0 <= reading.local_start <= offset
        and reading.fetched.last_stable >= end
    )


def _of_epoch(claim: Claim, tail: _Tail, epoch: LeaderEpoch) -> Differs | None:
    """The difference, if the last record's leader epoch is not the one that was mirrored."""
    mirrored_epoch = claim.epoch if tail.end == claim.log_end else UNKNOWN_EPOCH
    if UNKNOWN_EPOCH not in (mirrored_epoch, epoch) and mirrored_epoch != epoch:
        return Differs(
            f"the source has lost records that were mirrored: offset {tail.end - 1} was of "
            f"leader epoch {mirrored_epoch}, on the source it is of epoch {epoch} now"
        )
    return None
