"""Requests that arrive late where data was fenced, and that no broker can exclude.

`Shard.fence_data` begins a gap with a marker of the data's producer id. Former owners may have sent
data for that offset, or a written marker, which bears another id. Two cases remain, where the
partition is FAILED in the end (docs/NEXT.md). The model lets no such request arrive:

* data or a written marker between the reading of the log's end and our marker, which then stands
  behind it;
* a written marker at any later time, where the gap has a single offset: there is no room for a
  marker that fences these, too.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

from twinlog.core.plan import Gap
from twinlog.core.types import TopicPartition


class DataFences:
    """The fences of one destination."""

    def __init__(self) -> None:
        self._under_way: Counter[TopicPartition] = Counter()
        self._single: set[tuple[TopicPartition, int]] = set()

    @contextmanager
    def fencing(self, gaps: Mapping[TopicPartition, Gap]) -> Iterator[None]:
        """Data is being fenced at the beginning of these gaps."""
        self._single |= {(p, gap.start) for p, gap in gaps.items() if gap.end == gap.start + 1}
        self._under_way.update(gaps.keys())
        try:
            yield
        finally:
            self._under_way.subtract(gaps.keys())

    def meet(self, partitions: Collection[TopicPartition]) -> bool:
        """Whether a request that arrives now meets a fence that is under way."""
        return any(self._under_way[partition] for partition in partitions)

    def have_filled(self, ends: Mapping[TopicPartition, int]) -> bool:
        """Whether one of these offsets, for which markers were sent, was all of a fenced gap."""
        return not self._single.isdisjoint(ends.items())
