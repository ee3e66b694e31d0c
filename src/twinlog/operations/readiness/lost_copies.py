"""What a flow has copied, and its target has lost, or may have lost, while the flow went on. Pure.

With `twinlog.data.loss=continue` a flow goes on behind copies that its target has lost. Then there
is no lag, and the remote log ends where the map does. A failover loses these records for good, if
the source still has them:

    source       | log start ...  | lost copies | ...           | log end
    remote log   | copies ......................| later copies  | log end
    reported                      |<----------->|

What the source has deleted since is no loss of a failover, as elsewhere (begins_later.py).

A flow without transactions stores which copies are lost. One with transactions only stores that its
map has begun anew, which has other reasons, too: an operator has committed its position, or it has
recorded no map for a while. What is in front of such a map is not known to be there.
"""

from collections.abc import Iterator

from twinlog.mirror.recorded_map import RecordedMap
from twinlog.operations.readiness.facts import PartitionFacts
from twinlog.operations.readiness.reasons import Finding, Reason
from twinlog.text import few


def lost_copies(
    partition: PartitionFacts, recorded: RecordedMap, copied_from: int
) -> Iterator[Finding]:
    """Findings about what a partition's copy lacks, as the flow has recorded.

    Args:
        partition: the partition, whose topic is still the one that was copied.
        recorded: its map.
        copied_from: the source's offset below which nothing was to be copied.
    """
    source = partition.source
    start = None if source is None else source.start
    keeps = "may still have" if start is None else "keeps"
    first = max(start or 0, copied_from)
    ranges = [
        f"[{max(begin, first)}, {end})"
        for begin, end in recorded.lost_sources
        if max(begin, first) < end
    ]
    if ranges:
        yield Finding(
            Reason.COPIES_LOST,
            f"partition {partition.partition}: the flow has gone on without lost copies of offsets "
            f"{few(ranges)}, which the source {keeps}; groups that have not read them would skip "
            "them",
        )
    if first < recorded.unproven_end:
        yield Finding(
            Reason.NOT_COMPARED,
            f"partition {partition.partition}: unknown whether the remote log has all copies of "
            f"offsets [{first}, {recorded.unproven_end}), which the source {keeps}: the map of "
            "offsets has begun anew behind them, as after a loss of the target",
        )
