"""The maps of offsets that transactional flows record beside their positions (decision 0015).

A map tells where each copy in the *remote* partition of a source partition is (decision 0014). It
is recorded in `__mirror_offsets`, in the transaction that writes the copies and their position:

    Produce copies ─► they landed at 52, 53, ... ─► Produce map ─► position ─► EndTxn
                                                     part 7: ... 10 at 52, 11 at 53
                                                     head: complete up to source offset 12

So all three are committed or aborted together, and the map always reaches the position. The *head*
names the position, its tail, and the parts that hold, with the end of the last one: a loss of what
`__mirror_offsets` ends with may leave an older one. A map goes on only at exactly this position:

    | the head's              | goes on | else                                                    |
    | ----------------------- | ------- | ------------------------------------------------------- |
    | position                | equal   | an operator, or an owner that records no map, moved it  |
    | tail                    | equal   | the same, or the flow has passed over lost records      |
    | topics                  | equal   | one was recreated                                       |
    | `lost`                  | no      | the target has lost records that the map names          |
    | last part               | equal   | `__mirror_offsets` has lost it, or it cannot be read    |

The last part has up to 100 runs, since each transaction writes it again; those before it have
1,000. Beyond 5,000 parts a map loses the oldest ones: groups are near the end, or read again.

Otherwise it begins anew at the position, at the high watermark of the remote log, under new numbers
of parts. What is below is not translated then (`lacks_start`): its copies are somewhere, and where
is not known. What was not recorded is never guessed. Unless the flow itself has copied nothing yet,
they may be lost, too, which the head keeps (`unproven_end`).

A reader of copies that are lost may have committed a position behind that beginning. The copies
that land there next are others. So the head has where such positions end (`lost_to`): up to there,
what a group has committed is not translated back.

A flow has no map if what is in a record may route it (`mirror.flow.records_map`): records of
others may be between two copies of a partition then. If only the topic's name routes, the remote
topic is where the records go (mirror/routed_names.py).
Where it has no map any more, heads are dropped with the next transaction or location, before a
later map could go on behind such records: all of the flow in the state partition, also of what is
paused.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from twinlog.engines.ports import DestinationPort
from twinlog.engines.transactional.positions import is_same_log, is_same_route
from twinlog.engines.transactional.remote_tails import LandedBatches
from twinlog.engines.transactional.routed_tails import RoutedLoss
from twinlog.engines.transactional.source_position import SourcePosition
from twinlog.engines.translated.remote_log import LostEnd
from twinlog.kafka.errors import ProtocolError
from twinlog.kafka.log.compression import Codec
from twinlog.kafka.log.records import Encoded, RawRecord, build, encode_tail
from twinlog.kafka.types import Offset
from twinlog.mirror.offset_runs import Ends, Run, landed_runs
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.recorded_map import NONE_UNPROVEN
from twinlog.store.map_chunks import CHUNK_RUNS, PART_RUNS, EncodedChunk, MapChunk, extended
from twinlog.store.offset_log import HeadedMap, StoredOffsets
from twinlog.store.offset_records import (
    DroppedHead,
    DroppedPart,
    MapHead,
    MapPart,
    OffsetRecord,
    encode,
)

log = logging.getLogger(__name__)

MOST_PARTS: Final = 5_000
"""Of a map: 5 million runs. They are 23 MB in `__mirror_offsets`, which all readers of the state
partition, and takeovers, read: with 0.15 s of CPU. A reader of the map takes 0.4 s, and 19 MB."""
_DROPPED: Final = 10_000
"""Parts of a former map that one transaction removes. Others stay, and no head names them."""
_BATCH_BYTES: Final = 500_000
"""Of records for `__mirror_offsets`, below the default of `max.message.bytes`."""
_RECORD_BYTES: Final = 30
"""Of a record besides its key and value, at most."""
_BEHIND_COPIES: Final = 2
"""Positions of a reader that has read all copies: at their end, and behind the marker there."""


@dataclass(frozen=True, slots=True)
class KnownMap:
    """What an owner knows of the map of a partition."""

    head: MapHead | None = None
    """None: there is none, or it does not hold."""
    last: MapChunk | None = None
    """The last part, which grows; None as `head`."""
    before: EncodedChunk | None = None
    """The part before it; None: there is none, or it does not hold."""
    numbers: tuple[int, int] = (0, -1)
    """See `HeadedMap`."""
    reason: str = ""
    """Why it does not hold."""


NO_MAP: Final = KnownMap()


class MapChange(NamedTuple):
    """Records of a transaction, and what is known once it is committed."""

    records: Sequence[OffsetRecord]
    known: KnownMap


def known_maps(stored: StoredOffsets) -> dict[MirrorPartition, KnownMap]:
    """The maps that are stored in a state partition; only the last part of each is decoded."""
    return {name: _known(one.end()) for name, one in stored.headed.items()}


def _known(end: HeadedMap) -> KnownMap:
    if end.head is None:
        return KnownMap(numbers=end.numbers, reason=end.reason)
    *before, last = end.parts
    try:
        chunk = last.decoded()
    except ProtocolError as error:
        return KnownMap(numbers=end.numbers, reason=str(error))
    return KnownMap(end.head, chunk, before[0] if before else None, end.numbers)


def breach(known: KnownMap, position: SourcePosition) -> str | None:
    """Why a map does not go on at a position that was found; None: it does."""
    head = known.head
    if head is None:
        return known.reason or "none is recorded"
    if head.lost:
        return "the target has lost records that it names"
    if not is_same_route(head.route, position.route):
        return "it is of other topics"
    if head.position != position.offset:
        return f"it reaches source offset {head.position}"
    if head.tail != _tail(position):
        return "the position is not the one that was committed with it"
    return None


def holds(known: KnownMap, position: SourcePosition, *, is_mapped: bool) -> bool:
    """Whether what is recorded of a map can stay, at a position that was found."""
    return breach(known, position) is None if is_mapped else known.head is None


def new_map(
    name: MirrorPartition,
    known: KnownMap,
    position: SourcePosition,
    start: Ends,
    *,
    lacks_start: bool,
    is_anew: bool,
) -> MapChange:
    """Begin a map.

    Args:
        name: the partition.
        known: its former map.
        position: the position that is committed with it.
        start: where the map begins; no later copy lands below.
        lacks_start: whether something may have been copied before.
        is_anew: whether the flow itself may have copied it, so that a loss may be why it begins.
    """
    number, dropped, lowest = known.numbers[1] + 1, *_dropped_parts(name, known)
    part = MapChunk(name, number, start, ())
    head = MapHead(
        name,
        position.route,
        position.offset,
        number,
        number,
        start,
        tail=_tail(position),
        lacks_start=lacks_start,
        unproven_end=start.source if is_anew else NONE_UNPROVEN,
        lost_to=_lost_to(known.head, position, start),
    )
    return MapChange(
        [*dropped, MapPart(part), head], KnownMap(head, part, numbers=(lowest, number))
    )


def _lost_to(former: MapHead | None, position: SourcePosition, start: Ends) -> Offset:
    """Up to where positions behind the start of a new map may be of before a loss; 0: nowhere.

    The log of a remote topic that was recreated is another one: brokers delete groups' offsets with
    a topic.
    """
    if former is None or not is_same_log(former.route, position.route):
        return Offset(0)
    end = former.lost_to
    if start.destination <= former.end.destination:
        end = max(end, _behind(former.end.destination))
    return end if start.destination < end else Offset(0)


def _behind(end: Offset) -> Offset:
    return Offset(end + _BEHIND_COPIES)


def _dropped_parts(name: MirrorPartition, known: KnownMap) -> tuple[Sequence[DroppedPart], int]:
    """Tombstones for what is stored of a map, and the lowest number that is left, or follows."""
    lowest, highest = known.numbers
    left = min(highest + 1, lowest + _DROPPED)
    return [DroppedPart(name, one) for one in range(lowest, left)], left


def grown_map(
    name: MirrorPartition,
    known: KnownMap,
    position: SourcePosition,
    landed: LandedBatches | None,
) -> MapChange:
    """A map with what has landed of a transaction, up to the position behind it.

    Args:
        name: the partition.
        known: its map, which goes on at `position.copies.start`.
        position: the position that is committed with it.
        landed: in its remote partition, also of others; None: nothing.
    """
    copies, head, last = position.copies, known.head, known.last
    assert copies is not None
    assert head is not None
    assert last is not None
    batches = () if landed is None else landed.batches
    own = batches[copies.first : copies.first + copies.batches]
    runs = landed_runs(copies.sources, own)
    before: Sequence[OffsetRecord] = ()
    if runs and runs[0].destination < last.end.destination:
        # The log is shorter than it was, and no tail has shown it: copies are lost.
        start = Ends(copies.start, runs[0].destination)
        before, known = new_map(name, known, position, start, lacks_start=True, is_anew=True)
        head, last = known.head, known.last
        assert head is not None
        assert last is not None
    parts = _grown_parts(last, known.before, runs)
    before_last = parts[-2].encoded() if len(parts) > 1 else known.before
    number = parts[-1].number
    first = max(head.first, number - MOST_PARTS + 1)
    oldest = [DroppedPart(name, one) for one in range(head.first, first)]
    lowest = known.numbers[0] if known.numbers[0] < head.first else first
    head = replace(
        head,
        route=position.route,
        position=position.offset,
        first=first,
        last=number,
        end=parts[-1].end,
        tail=_tail(position),
        lacks_start=head.lacks_start or bool(oldest),
    )
    records: list[OffsetRecord] = [*before, *oldest, *map(MapPart, parts if runs else ()), head]
    return MapChange(records, KnownMap(head, parts[-1], before_last, (lowest, number)))


def _grown_parts(
    last: MapChunk, before: EncodedChunk | None, runs: Sequence[Run]
) -> list[MapChunk]:
    """The parts that change when runs are added, in order.

    When the last part is full, its runs go to the part before it, or become one: all readers pass
    over the keys of a map, so it has few.
    """
    (grown, *more) = extended(last, runs, PART_RUNS)
    if not more:
        return [grown]
    moved = [run for part in (grown, *more) for run in part.runs]
    base = MapChunk(last.name, last.number, last.start, ())
    if before is not None:
        with suppress(ProtocolError):  # readers report it
            decoded = before.decoded()
            if len(decoded.runs) < CHUNK_RUNS:
                base = decoded
    parts = extended(base, moved, CHUNK_RUNS)
    return [*parts, MapChunk(last.name, parts[-1].number + 1, parts[-1].end, ())]


def lost_map(known: KnownMap, end: Offset | None) -> MapChange | None:
    """Note that the target has lost records; None: nothing is to be noted.

    Args:
        known: the map.
        end: up to where records were copied; None: not known. What the map has may be older, where
            `__mirror_offsets` has lost its end, too.
    """
    if known.head is None or known.head.lost:
        return None
    head = known.head
    copied_to = max(head.end.destination, end or Offset(0))
    head = replace(head, lost=True, lost_to=max(head.lost_to, _behind(copied_to)))
    return MapChange([head], replace(known, head=head))


def dropped_map(known: KnownMap) -> MapChange | None:
    """Note that a map is not recorded any more; None: there is none."""
    if known.head is None:
        return None
    name, reason = known.head.name, "it was not recorded meanwhile"
    dropped, lowest = _dropped_parts(name, known)
    numbers = (lowest, known.numbers[1])
    return MapChange([*dropped, DroppedHead(name)], KnownMap(numbers=numbers, reason=reason))


async def changed_maps(
    port: DestinationPort,
    mirror: str,
    maps: Mapping[MirrorPartition, KnownMap],
    positions: Mapping[MirrorPartition, SourcePosition],
    compared: Mapping[MirrorPartition, object],
    *,
    begin: Collection[MirrorPartition],
    is_mapped: bool,
) -> tuple[dict[MirrorPartition, MapChange], dict[MirrorPartition, str]]:
    """What becomes of the maps of partitions that are located, and of others that are to have none.

    Args:
        port: the target.
        mirror: the flow.
        maps: what is known of all maps in the state partition.
        positions: the positions that are to be committed.
        compared: what was found of the logs; a `LostEnd` where records are lost.
        begin: partitions of which nothing was found.
        is_mapped: whether the flow records a map.

    Returns:
        The changes, and why a map cannot begin now.

    Raises:
        Retriable: the target is unreachable.
    """
    changes: dict[MirrorPartition, MapChange | None] = {}
    if not is_mapped:
        changes = {name: dropped_map(one) for name, one in maps.items() if name.mirror == mirror}
    anew: dict[MirrorPartition, str] = {}
    for name, position in positions.items():
        known, problem = maps.get(name, NO_MAP), compared[name]
        if isinstance(problem, LostEnd):
            if not isinstance(problem, RoutedLoss):
                changes[name] = lost_map(known, problem.end)
        elif is_mapped and (why := breach(known, position)):
            anew[name] = why
    # What is above a high watermark may be lost, and copies land there.
    bounds = await port.bounds([positions[name].remote for name in anew]) if anew else {}
    unknown: dict[MirrorPartition, str] = {}
    for name, why in anew.items():
        position, log_bounds = positions[name], bounds.get(positions[name].remote)
        if log_bounds is None or log_bounds.error:
            unknown[name] = f"cannot read the bounds of {position.remote}, where its map begins"
            continue
        is_anew = name not in begin
        has_copied = is_anew or bool(position.copied_to)
        if has_copied:
            log.warning(
                "%s: its map of offsets begins anew at source offset %d, and lower offsets are not "
                "translated: %s",
                *(name, position.offset, why),
            )
        start = Ends(position.offset, Offset(log_bounds.high_watermark))
        changes[name] = new_map(
            *(name, maps.get(name, NO_MAP), position, start),
            lacks_start=has_copied,
            is_anew=is_anew,
        )
    return {name: one for name, one in changes.items() if one is not None}, unknown


def record_batches(records: Sequence[OffsetRecord], now_ms: int) -> list[Encoded]:
    """Batches with these records for `__mirror_offsets`, in order."""
    batches: list[Encoded] = []
    raw: list[RawRecord] = []
    size = 0
    for record in records:
        key, value = encode(record)
        added = len(key) + len(value or b"") + _RECORD_BYTES
        if raw and size + added > _BATCH_BYTES:
            batches.append(build(raw, Codec.NONE))
            raw, size = [], 0
        raw.append(RawRecord(len(raw), now_ms, 0, memoryview(encode_tail(key, value))))
        size += added
    return [*batches, build(raw, Codec.NONE)] if raw else batches


def _tail(position: SourcePosition) -> str:
    return position.tail.text() if position.tail else ""
