"""A source that answers legally, yet without what a reader hopes for.

Everything here is what brokers of 4.3.1 do (KAFKA_FACTS): a quota holds back whole answers; records
are left out because others have used up the answer's size, because they lie in slow or limited
remote storage, or because another replica is preferred; an answer is cut at any byte. A mood lasts
for seconds, so that two readings in a row meet the same one.
"""

import random
from dataclasses import dataclass
from typing import Final

from model.log import Log
from model.loop import VirtualLoop
from twinlog.kafka.protocol.fetch import Fetched
from twinlog.kafka.types import TopicPartition

NOTHING: Final = memoryview(b"")
PREFERRED: Final = 2


@dataclass(frozen=True, slots=True)
class _Mood:
    """What a partition's answers are like until then."""

    until: float
    kind: str
    local_start: float = 0.0
    """Of the log's offsets, the share that lies in remote storage."""


class Unusual:
    """The moods of a cluster's partitions; none while `quiet`."""

    def __init__(self, loop: VirtualLoop, rng: random.Random) -> None:
        self._loop = loop
        self._rng = rng
        self._moods: dict[TopicPartition | None, _Mood] = {}
        self.quiet = True

    def _mood(self, key: TopicPartition | None, kinds: tuple[str, ...]) -> _Mood:
        now = self._loop.time()
        mood = self._moods.get(key)
        if mood is None or mood.until <= now:
            rng = self._rng
            kind = rng.choice(kinds)
            until = now + rng.choice((0.2, 2.0, 10.0))
            mood = self._moods[key] = _Mood(until, kind, rng.random())
        return mood

    def throttle_ms(self) -> int:
        """Above 0 while a quota holds back all answers."""
        if self.quiet:
            return 0
        mood = self._mood(None, ("", "", "", "quota"))
        return 0 if not mood.kind else max(1, int((mood.until - self._loop.time()) * 500))

    def local_start(self, key: TopicPartition, log: Log) -> int:
        """The first offset that is not in remote storage alone."""
        mood = None if self.quiet else self._kind(key)
        if mood is None or mood.kind != "remote":
            return log.start
        return log.start + int((log.end - log.start) * mood.local_start)

    def _kind(self, key: TopicPartition) -> _Mood:
        return self._mood(key, ("", "", "crowded", "remote", "preferred", "cut"))

    def alter(
        self, key: TopicPartition, offset: int, log: Log, fetched: Fetched, *, alone: bool = False
    ) -> Fetched:
        """An answer as the partition's mood has it."""
        if self.quiet or fetched.error or fetched.diverging:
            return fetched
        mood = self._kind(key)
        if mood.kind == "crowded" and not alone:
            return fetched._replace(records=NOTHING)
        if mood.kind == "remote" and offset < self.local_start(key, log):
            return fetched._replace(records=NOTHING)
        if mood.kind == "preferred":
            return fetched._replace(records=NOTHING, preferred_replica=PREFERRED)
        if mood.kind == "cut" and not alone:
            cut = self._rng.randint(0, len(fetched.records))
            return fetched._replace(records=fetched.records[:cut])
        return fetched
