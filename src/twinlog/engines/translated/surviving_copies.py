"""What is left of a partition's copies in a remote log that has lost records.

The log's end was lost, and others may have written since. An election, or a lost disk, takes a log
from some offset on, the *cut*: what is below is as it was. The cut itself is in no log. But each
batch of data lands at most once, so one that is recorded in the map is still where it landed:

    map     │ copies ........................ │ recorded end
    log     │ copies ...... │ others │ planned │ others │ fence
                            └ the last batch that the map has: all below it is as it was

- A batch is the partition's own by its producer id, which no other source partition has there.
- An own batch is in the map unless the stored plan names its number. Batches of the plan have
  landed behind the recorded end, so those that are left in the log have landed behind the cut.
- No own batch follows that one in the log. So what the map names behind it is lost.
- A log that was lost may come back, when its broker is elected once more. Then the map has other
  copies at its offsets: its batches are of an earlier epoch than the first plan behind that loss.
  The map does not tell what is left, and the partition stays FAILED.

A topic that was recreated has lost all copies. No batch of the map is in its log, whatever offset
it has; but what was under way may have landed there, as requests to older brokers name a topic and
not its id. Batches of the plan are found as above. A batch of an earlier epoch is one that the
plan does not name: it may hold records that are to be copied next, so the partition stays FAILED.

The search begins near the log's end, and goes back until it finds such a batch. If there is none,
the map is lost: copies of former producer ids may be left that are not known. Only where nobody
else has written between, and nothing was compacted or deleted, nothing at all is left.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from twinlog.engines.ports import DestinationPort
from twinlog.engines.translated.remote_log import LostEnd, read_headers
from twinlog.kafka.errors import Retriable
from twinlog.kafka.log.batch import Header
from twinlog.kafka.types import (
    SEQUENCE_MODULUS,
    Offset,
    ProducerEpoch,
    ProducerId,
    TopicPartition,
    advance,
)
from twinlog.kafka.types import Sequence as SequenceNumber
from twinlog.mirror.offset_runs import Ends, OffsetRuns
from twinlog.mirror.record_losses import RecordLoss
from twinlog.mirror.sequence_plan import Contradiction, Landed, LostBatches, resolve
from twinlog.store.map_chunks import MapChunk, extended
from twinlog.store.offset_records import LostCopies, MapTail, StoredPlan

log = logging.getLogger(__name__)

_PAUSE_S: Final = 0.02
_FIRST_OFFSETS: Final = 1000
_GROWTH: Final = 10
"""The search goes back by so many offsets first, then by so many times more."""
_NO_HOLE: Final = Offset(0)
_LOSSES: Final = 20
"""Of a plan; with more, the first ones become one."""


class MapWithoutLoss(NamedTuple):
    """How a partition goes on without copies that are lost."""

    chunks: Sequence[MapChunk]
    """The parts of the map that are stored again."""
    dropped: Sequence[int]
    """The numbers of the parts that follow these no more."""
    position: Offset
    tail: MapTail | None
    lost: LostCopies
    loss: RecordLoss
    is_lost: bool
    """Whether nothing of the former map is known to be left."""


@dataclass(slots=True)
class _Search:
    """The end of a log, as far as it was read: from `position` of a window up to the fence."""

    stored: StoredPlan
    runs: OffsetRuns
    kept: Header | None = None
    """The last batch that the map has."""
    landed: list[Landed] = field(default_factory=list)
    """Batches of the plan."""
    whole_from: Offset = _NO_HOLE
    """The end of the last hole; 0: there is none."""
    others: bool = False
    """Whether others have written where the map has copies. Of another log: whether copies landed
    there that the map has at offsets of the lost one."""
    is_another: bool = False
    """Whether the topic was recreated: the map's copies are in another log."""

    def skip(self, offset: Offset) -> None:
        """Note that the log has nothing before this offset, down to what was read before it."""
        self.whole_from = max(self.whole_from, offset)

    def take(self, header: Header) -> None:
        """Note a batch of data.

        Raises:
            Contradiction: it is neither in the map nor in the plan.
        """
        plan, tail, begin = self.stored.plan, self.stored.tail, self.runs.start.destination
        if header.producer_id != plan.producer_id and (
            tail is None or header.producer_id != tail.producer_id
        ):
            in_map = begin <= header.base_offset < plan.recorded.destination
            self.others |= in_map and not self.is_another
            return
        last = advance(SequenceNumber(header.base_sequence), header.last_offset_delta)
        if header.producer_id == plan.producer_id and header.producer_epoch > plan.epoch:
            raise Contradiction(
                f"the batch at offset {header.base_offset} is of epoch {header.producer_epoch}, "
                f"the stored plan of {plan.epoch}"
            )
        ahead = (last - plan.sequence) % SEQUENCE_MODULUS
        is_current = (header.producer_id, header.producer_epoch) == (plan.producer_id, plan.epoch)
        if is_current and ahead < SEQUENCE_MODULUS // 2:
            count = header.last_offset_delta + 1
            first = SequenceNumber(header.base_sequence)
            self.landed.append(Landed(first, count, Offset(header.base_offset)))
            return
        if self.is_another:
            if not is_current:
                raise Contradiction(
                    f"the batch at offset {header.base_offset} is of epoch "
                    f"{header.producer_epoch}, before the stored plan's {plan.epoch}: it has "
                    "landed after the topic was recreated, and what it holds is not known"
                )
            self.others = True
            return
        if header.base_offset < begin:
            return  # of a former map
        if self.landed:
            raise Contradiction(
                f"the batch at offset {header.base_offset} is in the map, and a batch of the plan "
                f"is before it, at {self.landed[-1].offset}"
            )
        if self._is_of_lost_log(header):
            raise Contradiction(
                f"the batch at offset {header.base_offset} is of a log that was lost before, and "
                "that is back: which of the copies behind it are there is not known"
            )
        if not _covers(self.runs, header):
            raise Contradiction(
                f"the batch at offset {header.base_offset} is neither in the map nor in the plan"
            )
        self.kept, self.others, self.whole_from = header, False, _NO_HOLE

    def _is_of_lost_log(self, header: Header) -> bool:
        """Whether an own batch was there before a loss that was passed, and is behind it."""
        current = self.stored.plan.producer_id
        for loss in self.stored.losses:
            if header.base_offset >= loss.destination_start:
                if header.producer_id == loss.producer_id:
                    is_later = header.producer_epoch >= loss.epoch
                else:
                    is_later = header.producer_id == current
                if not is_later:
                    return True
        return False

    def put_before(self, lower: "_Search") -> None:
        """Add what a lower window has shown."""
        if lower.landed and self.kept is not None:
            raise Contradiction("a batch of the plan is before one that is in the map")
        self.kept = self.kept or lower.kept
        self.landed = [*lower.landed, *self.landed]
        self.whole_from = self.whole_from or lower.whole_from
        self.others |= lower.others


def _covers(runs: OffsetRuns, header: Header) -> bool:
    """Whether the map has records at all offsets of a batch."""
    at = header.base_offset
    while at < header.next_offset:
        run = runs.at_destination(at)
        if run is None or run.destination > at:
            return False
        at = run.destination_end
    return True


class DamagedLog(NamedTuple):
    """A remote log that is known to have lost records of a map."""

    port: DestinationPort
    key: TopicPartition
    fence: Offset
    """The offset of the marker behind which nothing of the plan can be."""
    deadline_s: float
    """How long to try to read on without any progress, in seconds."""
    is_another: bool = False
    """Whether its topic was recreated: the map's copies were in another log."""


async def without_loss(
    damaged: DamagedLog, stored: StoredPlan, chunks: Sequence[MapChunk], loss: LostEnd | LostBatches
) -> MapWithoutLoss:
    """Find out what of a map is left, and where the partition goes on.

    Args:
        damaged: the log.
        stored: the partition's last plan.
        chunks: its whole map.
        loss: how the loss was found. Batches of the plan that are not behind the recorded end may
            be in front of it: that may be lost with all behind it, such as the fence of a partition
            of which nothing was copied.

    Raises:
        Retriable: the log cannot be read now.
        LostEnd: it is not known what of the plan has landed.
    """
    try:
        passed = await _without_loss(damaged, stored, chunks)
    except Contradiction as error:
        reason = str(loss) if str(error) in str(loss) else f"{loss}; {error}"
        start, end = (loss.start, loss.end) if isinstance(loss, LostEnd) else (None, None)
        raise LostEnd(reason, start=start, end=end) from error
    if isinstance(loss, LostBatches) and not passed.loss.offsets:
        # All that the map names is there. How much of the plan had landed is not known.
        passed = passed._replace(loss=RecordLoss(damaged.key, None, None))
    log.error(
        "%s: %s: %s; going on at source offset %d without the copies of [%d, %d)",
        stored.name,
        loss,
        passed.loss.text,
        passed.position,
        passed.lost.source_start,
        passed.lost.source_end,
    )
    return passed


async def _without_loss(
    damaged: DamagedLog, stored: StoredPlan, chunks: Sequence[MapChunk]
) -> MapWithoutLoss:
    fence = damaged.fence
    runs = OffsetRuns(chunks[0].start)
    for chunk in chunks:
        for run in chunk.runs:
            runs.append(run)
    search = await _search(damaged, stored, runs)
    plan, start = stored.plan, runs.start
    if search.kept is not None:
        kept = _up_to(chunks, Offset(search.kept.next_offset))
        tail: MapTail | None = _tail(search.kept)
    elif not search.others and (
        damaged.is_another or (not search.whole_from and not search.landed)
    ):
        # Nothing is left of any copy, whoever wrote it.
        at = search.landed[0].offset if search.landed else fence
        begin = Ends(start.source, min(start.destination, at))
        kept, tail = [MapChunk(stored.name, chunks[0].number, begin, ())], None
    else:
        kept, tail = [], None
    # What the broker had taken before is of the log that is lost.
    at = Offset(0) if search.kept is None else kept[-1].end.destination
    plan = plan._replace(recorded=Ends(plan.recorded.source, at))
    # No batch is taken for one that has landed and was removed: it may be of the log that is lost.
    found = resolve(plan, search.landed, whole_from=at, taken=None)
    shown_to = at
    if search.landed:
        shown_to = Offset(search.landed[-1].offset + search.landed[-1].records)
    if search.whole_from > shown_to and plan.runs and found.position < plan.runs[-1][1]:
        raise Contradiction(
            f"whether records from source offset {found.position} on were copied is not known: the "
            f"log lacks offsets between {shown_to} and {search.whole_from}"
        )
    position = max(found.position, runs.end.source)
    is_lost = not kept
    if is_lost:
        begin_at = search.landed[0].offset if search.landed else Offset(fence + 1)
        kept = [MapChunk(stored.name, 0, Ends(plan.recorded.source, begin_at), ())]
    first = kept[-1].end
    if search.landed:
        last = search.landed[-1]
        number = advance(last.sequence, last.records - 1)
        tail = MapTail(plan.producer_id, plan.epoch, number)
    parts = extended(kept[-1], found.runs)
    behind = search.landed[0].offset if search.landed else Offset(fence + 1)
    # Brokers delete groups' offsets with a topic: none is of the log of a former one.
    former_end = Offset(0) if damaged.is_another else former_positions_end(stored, runs.end)
    lost = LostCopies(
        start.source if is_lost else first.source,
        max(stored.plan.recorded.source, runs.end.source),
        min(start.destination, behind) if is_lost else first.destination,
        max(behind, former_end),
    )
    numbers = {chunk.number for chunk in chunks} - {part.number for part in parts}
    dropped = sorted(number for number in numbers if number > parts[-1].number or is_lost)
    since = None if is_lost else first.destination
    if damaged.is_another:
        since = start.destination
    loss = RecordLoss(damaged.key, since, stored.plan.recorded.destination)
    return MapWithoutLoss(parts, dropped, position, tail, lost, loss, is_lost)


def former_positions_end(stored: StoredPlan, end: Ends) -> Offset:
    """Behind the last position that a reader of the partition's copies may have had in a lost log.

    What was sent and is not recorded may have been there, as may the fence of the last owner.

    Args:
        stored: the partition's last plan.
        end: where its map ends.
    """
    plan, taken = stored.plan, stored.taken
    log_end = Offset(0) if taken is None else taken.log_end
    sent = sum(last - first for first, last in plan.runs)
    return Offset(max(plan.recorded.destination, end.destination, log_end) + sent + 1)


def with_loss(losses: Sequence[LostCopies], loss: LostCopies) -> tuple[LostCopies, ...]:
    """The losses of a plan, and one more; the first ones become one where they are many."""
    kept = [*losses, loss]
    while len(kept) > _LOSSES:
        first, second, *rest = kept
        kept = [
            LostCopies(
                min(first.source_start, second.source_start),
                max(first.source_end, second.source_end),
                min(first.destination_start, second.destination_start),
                max(first.destination_end, second.destination_end),
                second.producer_id,
                second.epoch,
            ),
            *rest,
        ]
    return tuple(kept)


def _up_to(chunks: Iterable[MapChunk], end: Offset) -> list[MapChunk]:
    """The parts of a map up to an offset of the destination; the last one may be cut."""
    kept: list[MapChunk] = []
    for chunk in chunks:
        if kept and chunk.start.destination >= end:
            break
        runs = [
            run._replace(length=min(run.length, end - run.destination))
            for run in chunk.runs
            if run.destination < end
        ]
        kept.append(MapChunk(chunk.name, chunk.number, chunk.start, tuple(runs)))
    return kept


def _tail(header: Header) -> MapTail:
    last = advance(SequenceNumber(header.base_sequence), header.last_offset_delta)
    return MapTail(ProducerId(header.producer_id), ProducerEpoch(header.producer_epoch), last)


async def _search(damaged: DamagedLog, stored: StoredPlan, runs: OffsetRuns) -> _Search:
    """Read a log backwards, in windows, until a batch of the map is found, or the map's start.

    The log may have been cut below the map's start, and batches of the plan may have landed there.
    """
    fence = damaged.fence
    whole = bool(stored.plan.runs) or damaged.is_another
    lowest = Offset(0) if whole else min(runs.start.destination, fence)
    size = _FIRST_OFFSETS
    start = max(lowest, Offset(min(stored.plan.recorded.destination, fence) - size))
    search = _Search(stored, runs, is_another=damaged.is_another)
    await _read(damaged, search, (start, fence))
    while search.kept is None and start > lowest:
        size *= _GROWTH
        end, start = start, max(lowest, Offset(start - size))
        lower = _Search(stored, runs, is_another=damaged.is_another)
        await _read(damaged, lower, (start, end))
        search.put_before(lower)
    return search


async def _read(damaged: DamagedLog, search: _Search, window: tuple[Offset, Offset]) -> None:
    """Read the batches that begin in a window; one that begins before it is of the lower one.

    It goes on for as long as something is read: a search that began anew would not end earlier.

    Raises:
        Retriable: it cannot be read now.
        Contradiction: see `_Search.take`.
    """
    start, end = window
    position = start
    now = asyncio.get_running_loop().time
    deadline = now() + damaged.deadline_s
    while position < end:
        if now() > deadline:
            raise Retriable(
                f"cannot read {damaged.key} from {start} up to {end}: read to {position}"
            )
        before = position
        headers, position = await read_headers(damaged.port, damaged.key, position)
        if position > before:  # the log starts there
            search.skip(position)
        for header in headers:
            at = min(Offset(header.base_offset), end)
            if at > position:
                search.skip(at)
            if at == end:
                return
            if at >= start and not header.is_control:
                search.take(header)
            position = Offset(header.next_offset)
        if position == before:
            await asyncio.sleep(_PAUSE_S)
        else:
            deadline = now() + damaged.deadline_s
