"""Whether a translated position leaves the records to read that its original leaves.

The answer is derived from the records alone, as consumers with read_committed read them on both
sides. Values are unique, so a record of the source has its rank, and so has each copy:

    source    offset   4      5  6  (7: marker)  8         committed 7: the next record has rank 3
              rank     0      1  2               3
    target    offset   9     10 11 (12: fence)  13         translated to 12 or 13: exact
              rank     0      1  2               3         to 11: one record is read again
                                                           to 14: one record is skipped

Neither maps, nor offset syncs, nor checkpoints are looked at.
"""

import statistics
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Place(NamedTuple):
    """A record as a consumer has read it."""

    offset: int
    value: bytes


class Verdict(NamedTuple):
    """One translated position.

    distance: records that are read again (above 0), or skipped (below 0); None: no translation.
    """

    distance: int | None


class Pair:
    """A partition of the source and its copy.

    Args:
        source: its records, in order.
        target: the copies, in order; each value is one of the source's.
        target_end: the log end offset.
    """

    def __init__(self, source: Sequence[Place], target: Sequence[Place], target_end: int) -> None:
        ranks = {place.value: rank for rank, place in enumerate(source)}
        assert len(ranks) == len(source), "values are not unique"
        self.records = len(source)
        self._source = [place.offset for place in source]
        self._target = [place.offset for place in target]
        self._ranks = [ranks[place.value] for place in target]
        self._end = target_end

    def judge(self, committed: int, translated: int | None) -> Verdict:
        """Judge a translation.

        Args:
            committed: an offset of the source.
            translated: the offset on the target; None if there is no translation.
        """
        if translated is None:
            return Verdict(None)
        expected = bisect_left(self._source, committed)
        following = bisect_left(self._target, translated)
        if following < len(self._target):
            return Verdict(expected - self._ranks[following])
        # Behind the log's end it would skip what is copied next.
        return Verdict(expected - self.records - max(0, translated - self._end))


def summary(verdicts: Iterable[Verdict]) -> dict[str, float]:
    """Count verdicts: exact, behind (records are read again), ahead (skipped), and none."""
    distances = [verdict.distance for verdict in verdicts]
    kinds = Counter(map(_kind, distances))
    behind = [one for one in distances if one is not None and one > 0]
    ahead = [-one for one in distances if one is not None and one < 0]
    return {
        "positions": len(distances),
        **{kind: kinds[kind] for kind in ("exact", "behind", "ahead", "none")},
        "median_behind": statistics.median(behind) if behind else 0,
        "most_behind": max(behind, default=0),
        "most_ahead": max(ahead, default=0),
    }


def _kind(distance: int | None) -> str:
    if distance is None:
        return "none"
    if distance == 0:
        return "exact"
    return "behind" if distance > 0 else "ahead"
