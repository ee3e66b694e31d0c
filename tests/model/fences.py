"""Requests that arrive late where data was fenced, and that no broker can exclude.

`Shard.fence_data` begins a gap with a marker of the data's producer id. Former owners may have sent
data for that offset, or a written marker, which bears another id. Two cases remain, where the
partition is FAILED in the end (docs/NEXT.md). The model lets no such request arrive:

* data or a written marker between the reading of the log's end and our marker, which then stands
  behind it;
* as many written markers as the gap has offsets, until our own one fences them behind the data's:
  one too many. Where the gap has a single offset there is no room for that, and it is at any time.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

from twinlog.kafka.types import TopicPartition
from twinlog.mirror.plan import Gap


class DataFences:
    """The fences of one destination. Times are the loop's, in seconds."""

    def __init__(self) -> None:
        self._began: dict[TopicPartition, float] = {}  # of those under way; a killed lane's stays
        self._begun: set[tuple[TopicPartition, int]] = set()

    @contextmanager
    def fencing(self, gaps: Mapping[TopicPartition, Gap], now: float) -> Iterator[None]:
        """Data is being fenced at the beginning of these gaps."""
        self._begun |= {(p, gap.start) for p, gap in gaps.items()}
        self._began |= dict.fromkeys(gaps, now)
        try:
            yield
        finally:
            for partition in gaps:
                if self._began.get(partition) == now:
                    del self._began[partition]

    def meet(self, partitions: Collection[TopicPartition], sent: float) -> bool:
        """Whether a request that was sent then, and arrives now, meets a fence of later on."""
        return any(sent < self._began.get(partition, sent) for partition in partitions)

    def have_begun(self, ends: Mapping[TopicPartition, int]) -> bool:
        """Whether a fence begins a gap at one of these offsets, for which markers were sent."""
        return not self._begun.isdisjoint(ends.items())
