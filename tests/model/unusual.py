"""A source whose answers are legal, but inconvenient for a reader.

Brokers of 4.3.1 do all of this (KAFKA_FACTS):

* a quota delays whole answers
* an answer has no records because other partitions have used up its size, because the records are
  in slow or limited remote storage, or because another replica is preferred
* an answer is cut at any byte
* a follower that is read (KIP-392) is cut off from the leader, and has no news

A mood lasts for seconds, so that two reads in a row meet the same mood.
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
_CUT_OFF_SHARE: Final = 0.5
_ALONE_SHARE: Final = 0.5


@dataclass(frozen=True, slots=True)
class _Mood:
    """The kind of a partition's answers, until a time."""

    until: float
    kind: str
    local_start: float = 0.0
    """The share of the log's offsets that is in remote storage."""

    @property
    def cut_off(self) -> bool:
        """Whether followers get nothing from the leader."""
        return self.local_start < _CUT_OFF_SHARE

    @property
    def answers_alone(self) -> bool:
        """Whether a leader that names a replica answers requests for one partition alone."""
        return self.local_start < _ALONE_SHARE


class Unusual:
    """The moods of a cluster's partitions; none while `quiet`."""

    def __init__(self, loop: VirtualLoop, rng: random.Random) -> None:
        self._loop = loop
        self._rng = rng
        self._moods: dict[TopicPartition | None, _Mood] = {}
        self._followers: dict[TopicPartition, tuple[float, int]] = {}
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
        """Return more than 0 while a quota delays all answers."""
        if self.quiet:
            return 0
        mood = self._mood(None, ("", "", "", "quota"))
        return 0 if not mood.kind else max(1, int((mood.until - self._loop.time()) * 500))

    def local_start(self, key: TopicPartition, log: Log) -> int:
        """Return the first offset that is in local storage."""
        mood = None if self.quiet else self._kind(key)
        if mood is None or mood.kind != "remote":
            return log.start
        return log.start + int((log.end - log.start) * mood.local_start)

    def follower_end(self, key: TopicPartition, log: Log) -> int:
        """Return the high watermark of a follower; one that is cut off keeps it."""
        mood = None if self.quiet else self._kind(key)
        if mood is None or not mood.cut_off:
            return log.high_watermark
        since, end = self._followers.get(key, (0.0, 0))
        if since != mood.until:
            end = log.high_watermark
            self._followers[key] = mood.until, end
        return min(end, log.high_watermark)

    def cannot_describe(self) -> bool:
        """Return whether a broker cannot tell a topic's configuration now."""
        return not self.quiet and self._rng.random() < 0.2

    def _kind(self, key: TopicPartition) -> _Mood:
        return self._mood(key, ("", "", "crowded", "remote", "preferred", "cut"))

    def alter(
        self, key: TopicPartition, offset: int, log: Log, fetched: Fetched, *, alone: bool = False
    ) -> Fetched:
        """Change an answer according to the partition's mood.

        A selector may depend on the client, so that a leader that names a replica to a session
        may answer a request for one partition alone itself. Where it names one, it reads nothing,
        and compares no leader epochs.
        """
        if self.quiet or fetched.error:
            return fetched
        mood = self._kind(key)
        if mood.kind == "preferred" and not (alone and mood.answers_alone):
            return fetched._replace(records=NOTHING, diverging=None, preferred_replica=PREFERRED)
        if fetched.diverging:
            return fetched
        crowded = mood.kind == "crowded" and not alone
        if crowded or (mood.kind == "remote" and offset < self.local_start(key, log)):
            return fetched._replace(records=NOTHING)
        if mood.kind == "cut" and not alone:
            cut = self._rng.randint(0, len(fetched.records))
            return fetched._replace(records=fetched.records[:cut])
        return fetched
