"""When nothing is written to the source any more: the step SILENCE of a switchover."""

from collections.abc import Mapping
from typing import NamedTuple

from twinlog.kafka.types import TopicPartition
from twinlog.text import few


class SourceEnd(NamedTuple):
    """A partition's log end offset and last stable offset on the source."""

    log_end: int
    last_stable: int


class Silence:
    """Whether log ends have not moved for some seconds, and no transaction is open."""

    def __init__(self, seconds: float) -> None:
        self.ends: Mapping[TopicPartition, int] = {}
        """The log ends at the last check."""
        self.open: list[TopicPartition] = []
        """Partitions with an open transaction, if that is what is waited for."""
        self._seconds = seconds
        self._silent_since = 0.0

    def look(self, logs: Mapping[TopicPartition, SourceEnd], now: float) -> str:
        """Check at time `now`; return what is still waited for, empty when it is silent."""
        ends = {partition: log.log_end for partition, log in logs.items()}
        self.open = []
        if ends != self.ends:
            grown = [p for p in ends if ends[p] != self.ends.get(p, ends[p])]
            self.ends, self._silent_since = ends, now
            return f"written to: {few(grown)}" if grown else "first check"
        if open_partitions := [p for p, log in logs.items() if log.last_stable < log.log_end]:
            self.open = open_partitions
            return f"with an open transaction: {few(open_partitions)}"
        elapsed = now - self._silent_since
        return "" if elapsed >= self._seconds else f"no writes for {elapsed:.0f} s so far"
