"""Late requests that arrive where data was fenced, and that no broker can exclude.

`Shard.fence_data` begins a gap with a marker of the data's producer id. Former owners may have sent
data for that offset, or a written marker, which carries another producer id. Two cases remain in
which the partition is FAILED at the end (docs/architecture/residual-risks.md); the model delivers
no such request:

* Data or a written marker arrives between the reading of the log end offset and the fence marker,
  which then lands behind it.
* As many written markers arrive as the gap has offsets, before the owner's own written marker
  fences them behind the data's fence marker: one marker too many. A gap of a single offset has no
  room for that second marker, so there the case can occur at any time.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

from twinlog.kafka.types import TopicPartition
from twinlog.mirror.plan import Gap


class DataFences:
    """The fences of one destination. Times are the loop's, in seconds."""

    def __init__(self) -> None:
        self._began: dict[TopicPartition, float] = {}  # fences in progress; a killed lane's stays
        self._begun: set[tuple[TopicPartition, int]] = set()

    @contextmanager
    def fencing(self, gaps: Mapping[TopicPartition, Gap], now: float) -> Iterator[None]:
        """Note that data is being fenced at the start of these gaps."""
        self._begun |= {(p, gap.start) for p, gap in gaps.items()}
        self._began |= dict.fromkeys(gaps, now)
        try:
            yield
        finally:
            for partition in gaps:
                if self._began.get(partition) == now:
                    del self._began[partition]

    def meet(self, partitions: Collection[TopicPartition], sent: float) -> bool:
        """Return whether a request that arrives now meets a fence that began after `sent`."""
        return any(sent < self._began.get(partition, sent) for partition in partitions)

    def have_begun(self, ends: Mapping[TopicPartition, int]) -> bool:
        """Return whether a fence began a gap at one of the offsets that markers were sent for."""
        return not self._begun.isdisjoint(ends.items())
