"""The parts of recorded maps of offsets (offset_records.py): with their runs, and as stored.

    part 0                  part 1                  part 2, the last one: it grows
    start ├─ runs ─┤ end    start ├─ runs ─┤ end    start ├─ runs ─┤ end
                       =                       =

Each begins where the one before it ends. So a part that is missing, or is older than the one behind
it, is known by the ends alone, and the runs need not be decoded for that.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from twinlog.mirror.offset_runs import EncodedRuns, Ends, OffsetRuns, Run, encoded_runs, end_of
from twinlog.mirror.placement import MirrorPartition

CHUNK_RUNS: Final = 1000
"""Runs of a part of a map: a full one takes 4 to 8 KB, and is not written again."""
PART_RUNS: Final = 100
"""Of the last part, of a flow that writes in transactions: each of these writes it again."""


@dataclass(frozen=True, slots=True)
class MapChunk:
    """A part of a partition's map. `start` is where the part before it ends."""

    name: MirrorPartition
    number: int
    start: Ends
    runs: tuple[Run, ...]

    @property
    def end(self) -> Ends:
        """Where the next part begins."""
        return end_of(self.start, self.runs)

    def encoded(self) -> "EncodedChunk":
        """The same, as it is stored."""
        return EncodedChunk(self.name, self.number, encoded_runs(self.start, self.runs))


class EncodedChunk(NamedTuple):
    """A part of a partition's map as it is stored. Most readers need its ends only."""

    name: MirrorPartition
    number: int
    runs: EncodedRuns

    def decoded(self) -> MapChunk:
        """The part with its runs.

        Raises:
            ProtocolError: they are not what is recorded of them.
        """
        return MapChunk(self.name, self.number, self.runs.start, tuple(self.runs.decoded()))


def extended(chunk: MapChunk, runs: Iterable[Run], most: int = CHUNK_RUNS) -> list[MapChunk]:
    """The last part of a map with more runs; of a full part, also the next one.

    Args:
        chunk: the last part.
        runs: behind it.
        most: runs of a part.

    Returns:
        What is to be stored, in order.
    """
    last = chunk.runs[-1:]  # may become longer
    grown = OffsetRuns(Ends(last[0].source, last[0].destination) if last else chunk.start)
    for run in (*last, *runs):
        grown.append(run)
    all_runs = (*chunk.runs[:-1], *grown.runs())
    parts: list[MapChunk] = []
    start, number = chunk.start, chunk.number
    for first in range(0, max(len(all_runs), 1), most):
        part = MapChunk(chunk.name, number, start, all_runs[first : first + most])
        parts.append(part)
        start, number = part.end, number + 1
    return parts
