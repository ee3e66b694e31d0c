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
        self._since = 0.0

    def look(self, logs: Mapping[TopicPartition, SourceEnd], now: float) -> str:
        """Check at time `now`; return what is still waited for, empty when it is silent."""
        ends = {partition: log.log_end for partition, log in logs.items()}
        self.open = []
        if ends != self.ends:
            moved = [one for one in ends if ends[one] != self.ends.get(one, ends[one])]
            self.ends, self._since = ends, now
            return f"written to: {few(moved)}" if moved else "first check"
        if found := [one for one, log in logs.items() if log.last_stable < log.log_end]:
            self.open = found
            return f"with an open transaction: {few(found)}"
        passed = now - self._since
        return "" if passed >= self._seconds else f"no writes for {passed:.0f} s so far"
