"""Checks, at any moment, that every record of the source is at its offset on the destination.

The oracle knows only what a mirror promises, and reads with librdkafka alone (read_committed):

- Below the destination's log end offset there is every record of the source, with the same key,
  value, headers and timestamp, and nothing else. This has to hold at any moment, whatever is
  killed, so `look` may be called at any moment; each call continues where the last one ended.
- A claim is compared with what was true before it was made. If a mirror is READY, has a lag of 0,
  or passes `verify` with status 0, the destination has at least what the source held *before* the
  command began.

Records that the source itself has deleted or compacted are no loss. The evidence for that is a
second read of the source, after the read that found the difference.

Where topics are compacted on both sides, records differ at any moment, so only
`look_at_the_end` compares them. There, a record that only one side has needs a later record of its
key on the other side, and both sides end with the same record of each key.
"""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from twinlog.local.check import ConsumedRecord, ConsumerView, Pair, Partition, _Comparison

READ_SECONDS: Final = 300.0
MOST_PROBLEMS: Final = 50


@dataclass(slots=True)
class Counts:
    """What was checked; a record counts each time that it is compared."""

    looks: int = 0
    records: int = 0
    deleted: int = 0
    """Records that the source no longer had at the second read."""
    claims: int = 0
    withheld: int = 0
    """Checks of claims that claimed nothing: not READY, a lag, DIFFERS or not seen."""
    problems: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return the counts for a summary."""
        return asdict(self)


class Oracle:
    """See the module. `source` and `destination`: bootstrap servers without a proxy in front.

    expiring: topics whose retention runs in each cluster at its own time.
    """

    def __init__(self, source: str, destination: str, expiring: Collection[str] = ()) -> None:
        self._servers = source, destination
        self.source, self.destination = ConsumerView(source), ConsumerView(destination)
        self.expiring = set(expiring)
        self.counts = Counts()
        self._looked: dict[Partition, int] = {}
        self._compacted: dict[str, bool] = {}

    def reconnect(self) -> None:
        """Create new clients: after a broker's restart librdkafka keeps an old leader epoch."""
        self.source, self.destination = (ConsumerView(servers) for servers in self._servers)

    def problem(self, what: str) -> None:
        """Note a violation."""
        if len(self.counts.problems) < MOST_PROBLEMS and what not in self.counts.problems:
            self.counts.problems.append(what)

    def ends(self, topics: Collection[str]) -> dict[Partition, int]:
        """Return the source's last stable offsets now, which later claims have to cover."""
        return self.source.stable(self.source.partitions(sorted(topics)))

    def claim(self, who: str, before: Mapping[Partition, int]) -> None:
        """Compare a claim with what the source held before it, without what has expired."""
        self.counts.claims += 1
        ends = self.destination.ends(list(before))
        source = self.source.extents(list(before))
        for (topic, partition), end in before.items():
            if max(ends[topic, partition], source[topic, partition].start) < end:
                self.problem(
                    f"{who} claims that all is there: {topic}-{partition} ends at "
                    f"{ends[topic, partition]}, the source at {end}"
                )
        self.look({topic for topic, _ in before})

    def look(self, topics: Collection[str], *, again: bool = False) -> None:
        """Compare what has arrived since the last call; `again`: compare everything."""
        self.counts.looks += 1
        plain = [topic for topic in sorted(topics) if not self._is_compacted(topic)]
        partitions = self.source.partitions(plain)
        destination = self.destination.extents(partitions)
        source = self.source.extents(partitions)
        ranges = {}
        for one in partitions:
            start = max(source[one].start, destination[one].start)
            start = start if again else max(start, self._looked.get(one, 0))
            ranges[one] = (start, max(start, min(source[one].stable, destination[one].end)))
            self._check_start(one, source[one].start, destination[one].start)
        deadline = time.monotonic() + READ_SECONDS
        found = self.destination.read(ranges, deadline)
        expected = self.source.read(ranges, deadline)
        for one, (_, end) in ranges.items():
            self.counts.records += len(expected[one])
            if found[one] != expected[one]:
                self._explain(one, _by_offset(expected[one]), _by_offset(found[one]))
            self._looked[one] = end

    def _is_compacted(self, topic: str) -> bool:
        if topic not in self._compacted:
            self._compacted[topic] = self.source.is_compacted(topic)
        return self._compacted[topic]

    def _check_start(self, one: Partition, source: int, destination: int) -> None:
        """Check the destination's log start: it may be higher only by its own retention."""
        if destination <= source or one[0] in self.expiring:
            return
        if destination > self.source.extents([one])[one].start:
            self.problem(
                f"{one[0]}-{one[1]} begins at {destination} on the destination, "
                f"at {source} on the source"
            )

    def _explain(
        self,
        one: Partition,
        expected: Mapping[int, ConsumedRecord],
        found: Mapping[int, ConsumedRecord],
    ) -> None:
        """Note the differences that a second read of both logs confirms."""
        offsets = [at for at in expected.keys() | found.keys() if expected.get(at) != found.get(at)]
        low, high = min(offsets), max(offsets) + 1
        starts = {log: log.extents([one])[one].start for log in (self.source, self.destination)}
        deadline = time.monotonic() + READ_SECONDS
        now = {
            log: _by_offset(log.read({one: (max(low, start), high)}, deadline)[one])
            for log, start in starts.items()
        }
        for at in sorted(offsets):
            source, destination = now[self.source].get(at), now[self.destination].get(at)
            if at < max(starts.values()):
                self.counts.deleted += 1
                continue
            if source != destination:
                self.problem(f"{one[0]}-{one[1]} offset {at}: {_difference(source, destination)}")

    def look_at_the_end(self, topics: Collection[str]) -> None:
        """Compare everything, compacted topics too, once the source is idle and nothing lags."""
        self.look(topics, again=True)
        partitions = self.source.partitions(sorted(topics))
        source, destination = (log.extents(partitions) for log in (self.source, self.destination))
        for topic, partition in partitions:
            one = (topic, partition)
            if not source[one].stable <= destination[one].end <= source[one].end:
                self.problem(
                    f"{topic}-{partition} ends at {destination[one].end}, the source at "
                    f"{source[one].stable} (stable) and {source[one].end}"
                )
            if self._is_compacted(topic):
                self._compare_compacted(one, Pair(source[one], destination[one]))

    def _compare_compacted(self, one: Partition, pair: Pair) -> None:
        """Compare with check.py's rules for two logs that are compacted independently."""
        deadline = time.monotonic() + READ_SECONDS
        source = self.source.read({one: pair.common}, deadline)[one]
        destination = self.destination.read({one: pair.mirrored}, deadline)[one]
        comparison = _Comparison(one, compacted=True, numbered=False, written=None)
        report = comparison.run(pair, source, destination)
        self.counts.records += report.records
        for problem in report.problems:
            self.problem(problem)


def _by_offset(records: Sequence[ConsumedRecord]) -> dict[int, ConsumedRecord]:
    return {record.offset: record for record in records}


def _difference(source: ConsumedRecord | None, destination: ConsumedRecord | None) -> str:
    if destination is None:
        return "lost: the source has a record, the destination has none"
    if source is None:
        return "extra: the destination has a record, the source has none"
    fields = [
        name
        for name in ConsumedRecord._fields
        if getattr(source, name) != getattr(destination, name)
    ]
    return f"differs in {', '.join(fields)}"
