"""Compares the recorded map of a flow's partition with the pairs that its records show.

The map (`__mirror_offsets`, mirror/offset_runs.py) names the remote offset of each copied record.
It is not trusted here: pairs come from the records' contents (flow_job.py), and each offset of the
source is reported once, in order, with what is known of its copy:

    copied     its copy is at this remote offset
    no copy    it is proven that it has none: a marker, an aborted record, a missing copy
    behind     the flow does not claim to have copied it, and has not
    unknown    it was not compared

    the offset        the map has                 verdict
    ----------------  --------------------------  ----------------------------------------------
    copied            the same remote offset      agrees
    copied            another one                 wrong
    copied            none, and it ends in front  agrees: not recorded yet; not seen if the flow
                                                  has committed it: the map was read later
    copied            none, and it begins later   wrong, unless another program has copied there;
                                                  not seen if the map says that its start is lacking
    copied            none                        wrong
    no copy, behind   one                         wrong
    unknown           one                         not seen

In a flow that writes in transactions, a record may have two copies: an operator has set the
position back, and the map has begun anew there. It has the second copy, and the pair is the first:

    source   a0  a1  a2  a3                     pairs      a1 at 1, a2 at 2, a3 at 5
    remote   a0' a1' a2' a1'' a2'' a3'          the map    a1 at 3, a2 at 4, a3 at 5

So what such a map has besides the pairs is wrong only if its remote offset is *settled*: the copy
of another record, a marker or an aborted record is there, or the log ends in front. Any other place
may have a copy (a record without a pair), or may have had one (deleted, compacted, not read): then
it is not seen.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from twinlog.kafka.types import Offset
from twinlog.mirror.offset_runs import Ends, Run, decode_runs
from twinlog.verify.verdict import Range, Tally

MAX_PLACES: Final = 1_000_000
"""Ranges of settled offsets: 16 MB. Gaps between them are records without a pair, or compacted."""
MAX_ENTRIES: Final = 1_000_000
"""Entries of a map that are decided on at the end: 150 MB. A map in transactions has 100,000 runs,
and so many only if it is wrong as a whole."""
TOO_MANY_ENTRIES: Final = "recorded map: too many entries are wrong, or of second copies"
LOST_COPIES: Final = "recorded map: the target has lost records that it has"
_NO_END: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MapClaim:
    """A recorded map, as a task gets it."""

    start: Ends
    """Where it begins, on both sides."""
    position: int
    """The source's offset up to which each copied record is in it."""
    runs: bytes = b""
    """`encode_runs`, from `start` on."""
    lacks_start: bool = False
    """Whether it says nothing of what is in front of it; else nothing was copied there."""
    is_lost: bool = False
    """Whether the target is known to have lost records of it: others may be where it has these."""
    may_repeat: bool = False
    """Whether it may have the second copy of a record."""


NO_MAP: Final = MapClaim(start=Ends(Offset(0), Offset(0)), position=0)


class _MapEntry(NamedTuple):
    """The source's offsets `[start, end)`, which the map has elsewhere than the pairs."""

    start: int
    end: int
    remote: int
    """Where the map has the first of them; the others follow."""
    copy: int | None
    """Where its copy is; the others follow. None: they have none."""

    @property
    def reason(self) -> str:
        """Why the entry is wrong."""
        real = "and there is no copy" if self.copy is None else f"the copy is at {self.copy}"
        return f"recorded map: it has remote offset {self.remote}, {real}"

    def follows(self, other: "_MapEntry") -> bool:
        """Whether this entry goes on where another one ends."""
        length = other.end - other.start
        copy = None if other.copy is None else other.copy + length
        return self[:1] + self[2:] == (other.end, other.remote + length, copy)


class MapCheck:
    """See the module. The ranges of `tally` are offsets of the source.

    Args:
        claim: the map.
        own_begin: the source's offset below which another program has copied.
        committed: the source's offset up to which the flow had copied before the map was read.
    """

    def __init__(self, claim: MapClaim, own_begin: int = 0, committed: int = 0) -> None:
        self.tally = Tally()
        self._claim = claim
        self._runs = iter(decode_runs(claim.start, claim.runs))
        self._run = next(self._runs, None)
        self._own_begin = own_begin
        self._committed = committed
        self._places = SettledPlaces()
        self._doubts: list[_MapEntry] = []
        self._first_in_front: int | None = None
        self._in_front = 0

    def copied(self, source: int, remote: int, count: int) -> None:
        """Records from `source` on have their copies from `remote` on."""
        at, end = source, source + count
        while at < end:
            run = self._from(at)
            upto = end if run is None else min(end, max(run.source, at))
            if run is None or upto > at:
                self._missing(at, upto, remote + at - source)
                at = upto
                continue
            upto = min(end, run.source_end)
            recorded, real = run.destination + at - run.source, remote + at - source
            if recorded == real:
                self.tally.compared += upto - at
            else:
                self._doubt(_MapEntry(at, upto, recorded, real))
            at = upto

    def no_copy(self, start: int, end: int, *, is_record: bool) -> None:
        """Offsets `[start, end)` of the source have no copy; those of no record never had one."""
        for first, last, remote in self._overlaps(start, end):
            entry = _MapEntry(first, last, remote, None)
            if is_record:
                self._doubt(entry)
            else:
                self.tally.differ(first, last, entry.reason)

    def behind(self, start: int, end: int) -> None:
        """Offsets `[start, end)` of the source have no copy, and the flow does not claim any."""
        self.no_copy(start, end, is_record=True)
        position = min(end, self._claim.position)
        if start < position:
            reason = f"recorded map: it reaches source offset {position}, the copies only {start}"
            self.tally.see_not(start, position, reason)

    def unknown(self, start: int, end: int) -> None:
        """Offsets `[start, end)` of the source were not compared."""
        self.tally.not_seen += sum(last - first for first, last, _ in self._overlaps(start, end))

    def settled(self, start: int, end: int) -> None:
        """At remote offsets `[start, end)`, reported in order, there is no unknown copy."""
        if self._claim.may_repeat:
            self._places.add(start, end)

    def finish(
        self, end: int, *, remote_end: int | None = None, foreign: Iterable[int] = ()
    ) -> Tally:
        """The result.

        Args:
            end: nothing is on the source from here on.
            remote_end: nothing is in the remote log from here on; None: something may be.
            foreign: remote offsets of records that are certainly no copies.
        """
        while (run := self._from(end)) is not None:
            reason = "recorded map: it has offsets that are behind the source's end"
            self.tally.differ(max(run.source, end), run.source_end, reason)
            end = run.source_end
        if self._doubts:
            self._decide(self._places.with_more(foreign, remote_end))
        if self._first_in_front is not None:
            begin = self._claim.start.source
            reason = f"recorded map: it begins at source offset {begin}, behind these copies"
            self.tally.not_seen += self._in_front
            self.tally.unseen.append(Range(self._first_in_front, begin, reason))
        return self.tally

    def _missing(self, start: int, end: int, remote: int) -> None:
        """Copied records that no run has."""
        moved = remote - start
        start = max(start, self._own_begin)
        behind = max(start, self._claim.position), min(end, self._committed)
        if behind[0] < behind[1]:
            reason = f"recorded map: it ends at source offset {self._claim.position}, in front"
            self.tally.see_not(*behind, f"{reason} of these copies")
        end = min(end, self._claim.position)  # what follows is not recorded yet
        begin = min(end, self._claim.start.source)
        if self._claim.lacks_start and start < begin:
            if self._first_in_front is None:
                self._first_in_front = start
            self._in_front += begin - start
            start = begin
        if start < end:
            place = start + moved
            reason = f"recorded map: it lacks this record, whose copy is at remote offset {place}"
            self.tally.differ(start, end, reason)

    def _doubt(self, entry: _MapEntry) -> None:
        """An entry is wrong, unless the map may have another copy."""
        if not self._claim.may_repeat:
            self.tally.differ(entry.start, entry.end, entry.reason)
        elif self._doubts and entry.follows(last := self._doubts[-1]):
            self._doubts[-1] = last._replace(end=entry.end)
        elif len(self._doubts) < MAX_ENTRIES:
            self._doubts.append(entry)
        else:
            self.tally.see_not(entry.start, entry.end, TOO_MANY_ENTRIES)

    def _decide(self, places: "SettledPlaces") -> None:
        """Decide on entries, by what is at the remote offsets that the map has."""
        for entry in self._doubts:
            remote, moved = entry.remote, entry.start - entry.remote
            for start, end, is_settled in places.parts(remote, remote + entry.end - entry.start):
                if is_settled:
                    self.tally.differ(start + moved, end + moved, entry.reason)
                else:
                    reason = f"{entry.reason}; another copy may be there"
                    self.tally.see_not(start + moved, end + moved, reason)
        self.tally.differences.sort()

    def _overlaps(self, start: int, end: int) -> Iterable[tuple[int, int, int]]:
        """The recorded parts of `[start, end)`, each with the remote offset of its first one."""
        at = start
        while at < end and (run := self._from(at)) is not None and run.source < end:
            first, last = max(run.source, at), min(run.source_end, end)
            yield first, last, run.destination + first - run.source
            at = last

    def _from(self, at: int) -> Run | None:
        """The first run that reaches beyond an offset."""
        while self._run is not None and self._run.source_end <= at:
            self._run = next(self._runs, None)
        return self._run


class SettledPlaces:
    """Remote offsets where no copy is but those that are known; ranges in order."""

    def __init__(self) -> None:
        self._bounds = array("q")  # start, end, start, end, ...

    def add(self, start: int, end: int) -> None:
        """Add offsets behind all others. What is not, or is too much, stays unsettled."""
        last = self._bounds[-1] if self._bounds else -1
        if start == last:
            self._bounds[-1] = end
        elif start > last and len(self._bounds) < 2 * MAX_PLACES:
            self._bounds.extend((start, end))

    def with_more(self, offsets: Iterable[int], end: int | None) -> "SettledPlaces":
        """These, single offsets, and all from an offset on."""
        ranges = list(pairwise(self._bounds))[::2]
        ranges += ((offset, offset + 1) for offset in offsets)
        if end is not None:
            ranges.append((end, _NO_END))
        places = SettledPlaces()
        for start, upto in sorted(ranges):
            places.add(start, upto)
        return places

    def parts(self, start: int, end: int) -> Iterator[tuple[int, int, bool]]:
        """The parts of a range, each with whether it is settled."""
        while start < end:
            index = bisect_right(self._bounds, start)
            upto = min(end, self._bounds[index]) if index < len(self._bounds) else end
            yield start, upto, index % 2 == 1
            start = upto


def not_judged(claim: MapClaim) -> Tally:
    """The result for a map whose records the target has lost."""
    count = sum(run.length for run in decode_runs(claim.start, claim.runs))
    unseen = Range(claim.start.source, claim.position, LOST_COPIES)
    return Tally(not_seen=count, unseen=[unseen])
