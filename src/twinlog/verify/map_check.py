"""Compares the recorded map of a flow's partition with the pairs that its records show.

The map (`__mirror_offsets`, mirror/offset_runs.py) names the remote offset of each copied record.
It is not trusted here: pairs come from the records' contents (flow_job.py), and each offset of the
source is reported once, in order, with what is known of its copy:

    copied     its copy is at this remote offset
    no copy    it is proven that it has none: a marker, an aborted record, a missing copy
    unknown    it was not compared

    the offset        the map has                 verdict
    ----------------  --------------------------  ----------------------------------------------
    copied            the same remote offset      agrees
    copied            another one                 wrong
    copied            none, and it ends in front  agrees: not recorded yet
    copied            none, and it begins later   wrong, unless another program has copied there
    copied            none                        wrong
    no copy           one                         wrong
    unknown           one                         not seen
"""

from collections.abc import Iterable

from twinlog.mirror.offset_runs import Run
from twinlog.verify.verdict import Tally


class MapCheck:
    """See the module. The ranges of `tally` are offsets of the source.

    Args:
        runs: of the map, in order.
        begin: the source's offset at which the map begins.
        end: the source's offset up to which each copied record is in the map.
        taken_over: whether another program has copied what is below `begin`.
    """

    def __init__(self, runs: Iterable[Run], begin: int, end: int, *, taken_over: bool) -> None:
        self.tally = Tally()
        self._runs = iter(runs)
        self._run = next(self._runs, None)
        self._begin = begin
        self._end = end
        self._taken_over = taken_over

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
                reason = f"recorded map: it has remote offset {recorded}, the copy is at {real}"
                self.tally.differ(at, upto, reason)
            at = upto

    def no_copy(self, start: int, end: int) -> None:
        """Offsets `[start, end)` of the source have no copy."""
        for first, last, remote in self._overlaps(start, end):
            reason = f"recorded map: it has remote offset {remote}, and there is no copy"
            self.tally.differ(first, last, reason)

    def unknown(self, start: int, end: int) -> None:
        """Offsets `[start, end)` of the source were not compared."""
        self.tally.not_seen += sum(last - first for first, last, _ in self._overlaps(start, end))

    def finish(self, end: int) -> Tally:
        """The result; nothing is on the source from `end` on."""
        while (run := self._from(end)) is not None:
            reason = "recorded map: it has offsets that are behind the source's end"
            self.tally.differ(max(run.source, end), run.source_end, reason)
            end = run.source_end
        return self.tally

    def _missing(self, start: int, end: int, remote: int) -> None:
        """Copied records that no run has."""
        end = min(end, self._end)  # what follows is not recorded yet
        if self._taken_over:
            start = max(start, self._begin)
        if start < end:
            reason = f"recorded map: it lacks this record, whose copy is at remote offset {remote}"
            self.tally.differ(start, end, reason)

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
