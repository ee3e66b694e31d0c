"""Walks over two logs in step, and finds the pairs of equal records (flow_job.py has the rules).

    source    a b c d e        remote    a X c d e
              │   └ the nearest pair behind a difference: c, with b in front of it, and X
              └ a pair

A record is known by a digest of its content and its timestamp. The search for the nearest pair
looks at few records first, then at more, then reads the rest of both logs with readers of its own:
what was in memory stays there, and the walk goes on to the pair that was found.
"""

import hashlib
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from twinlog.kafka.log.records import RawRecord
from twinlog.verify.job import Sides
from twinlog.verify.log_cursor import LogCursor, SpanSource
from twinlog.verify.log_view import Span
from twinlog.verify.verdict import DifferenceKind

WINDOWS: Final = (64, 1024, 16384)
"""Records of each side among which the next pair is searched before the rest of both logs is."""
MAX_KEYS: Final = 500_000
"""Records of each side among which a pair is searched in the rest of both logs; of what follows on
one side, pairs are found with these."""
_DIGEST: Final = 16

Key = bytes
Target = tuple[int, int, str, str]
"""Offsets of the next pair, and why each log may lack records in front of it."""


class WalkReport(Protocol):
    """What a walk reports, in order of offset on each side."""

    def pair(self, source: int, remote: int, count: int) -> None:
        """Equal records follow each other on both sides."""
        ...

    def altered(self, source: RawRecord, remote: RawRecord, reason: str) -> None:
        """A record's copy is not equal to it."""
        ...

    def missing(self, record: RawRecord, lack: str) -> None:
        """A record of the source has no copy; `lack`: why the remote log may lack it."""
        ...

    def surplus(self, record: RawRecord, lack: str) -> None:
        """A remote record has no original; `lack`: why the source may lack it."""
        ...

    def behind(self, start: int, end: int, lack: str) -> None:
        """Offsets of the source that are not claimed to be copied were not read.

        None of their records is in the remote log, unless it may lack records: `lack` has why.
        """
        ...


class FlowWalk:
    """A walk over one part of both logs.

    Args:
        source: a place in the source's log.
        remote: a place in the remote log.
        sighted: receives what is found.
        readers: gives readers of both logs, new ones at each call.
        claimed: the source's offset up to which each record has a copy, as the flow claims.
        otherwise: why a record without a pair is not seen, if none is a difference.
        at_end: why the remote log may lack records behind its end; empty: it lacks none.
        foreign: why a remote record without a pair may be right; empty: it is not.
    """

    def __init__(
        self,
        source: LogCursor,
        remote: LogCursor,
        sighted: WalkReport,
        readers: Callable[[], Sides[SpanSource]],
        *,
        claimed: int,
        otherwise: str,
        at_end: str,
        foreign: str = "",
    ) -> None:
        self._source = source
        self._remote = remote
        self._sighted = sighted
        self._readers = readers
        self._claimed = claimed
        self._otherwise = otherwise
        self._at_end = at_end
        self._foreign = foreign

    async def run(self) -> None:
        """Walk to the end of both."""
        source, remote = self._source, self._remote
        lacks = Sides("", "")
        while True:
            await source.ready()
            await remote.ready()
            if source.ended or remote.ended:
                break
            if self._pair_batches() or self._pair_records():
                continue
            if source.next() is None or remote.next() is None:
                continue  # a batch that was decoded just now begins with a hole
            target = await self._next_pair()
            if isinstance(target, Sides):
                lacks = target
                break
            await self._pass_to(target)
        source_lack = source.lack or lacks.source or self._otherwise or self._foreign
        remote_lack = remote.lack or lacks.destination or self._otherwise or self._at_end
        claimed = min(max(self._claimed, source.position), source.end)
        await source.drain(claimed, lambda record: self._sighted.missing(record, remote_lack))
        if source.position < source.end:
            self._sighted.behind(source.position, source.end, remote_lack)
        await remote.drain(remote.end, lambda record: self._sighted.surplus(record, source_lack))

    def _pair_batches(self) -> bool:
        """Pass the next batches of both if they are the same."""
        original, copy = self._source.batch(), self._remote.batch()
        if original is None or copy is None or not same_batch(original, copy):
            return False
        start, remote = self._source.position, self._remote.position
        self._source.take_batch()
        self._remote.take_batch()
        self._sighted.pair(start, remote, self._source.position - start)
        self._source.lack = self._remote.lack = ""
        return True

    def _pair_records(self) -> bool:
        """Pass the next records that are equal, of those in memory."""
        source, remote = self._source, self._remote
        first, count, passed = (0, 0), 0, False
        while (original := source.next()) is not None and (copy := remote.next()) is not None:
            same = bytes(original.tail) == bytes(copy.tail)
            if not same or (original.timestamp != copy.timestamp and not remote.stamped):
                break
            place = (original.offset, copy.offset)
            follows = place == (first[0] + count, first[1] + count)
            if count and not (follows and original.timestamp == copy.timestamp):
                self._sighted.pair(*first, count)
                count = 0
            if original.timestamp != copy.timestamp:
                self._sighted.altered(original, copy, DifferenceKind.TIMESTAMP)
            else:
                first = first if count else place
                count += 1
            source.pop()
            remote.pop()
            passed = True
        if count:
            self._sighted.pair(*first, count)
        if passed:
            source.lack = remote.lack = ""
        return passed

    async def _next_pair(self) -> Target | Sides[str]:
        """The next equal records of both; if there are none, why each log may lack records."""
        timed = not self._remote.stamped
        for window in WINDOWS:
            records = await self._source.look(window), await self._remote.look(window)
            if (target := self._near_pair(records, timed=timed)) is not None:
                return target
        # More may be in memory than was looked at, and what follows is searched by another reader.
        everything = self._source.held(), self._remote.held()
        target = self._near_pair(everything, timed=timed)
        return await self._far_pair(timed=timed) if target is None else target

    def _near_pair(
        self, records: tuple[list[RawRecord], list[RawRecord]], *, timed: bool
    ) -> Target | None:
        keys = [[key_of(record, timed=timed) for record in side] for side in records]
        if (places := nearest(*keys)) is None:
            return None
        source, remote = (side[at].offset for side, at in zip(records, places, strict=True))
        return source, remote, self._source.lack_until(source), self._remote.lack_until(remote)

    async def _far_pair(self, *, timed: bool) -> Target | Sides[str]:
        """Search the rest of both logs, in turn, for the first record that the other side has.

        So no pair is passed over: whichever log is read further meets the nearest one first.
        """
        sides = self._source, self._remote
        known: list[dict[Key, int]] = [
            {key_of(record, timed=timed): record.offset for record in reversed(cursor.held())}
            for cursor in sides
        ]
        far = [
            LogCursor(reader, cursor.read_to, cursor.end, lack=cursor.lack_until(cursor.read_to))
            for reader, cursor in zip(self._readers(), sides, strict=True)
        ]
        going = {0, 1}
        while going:
            for side in sorted(going):
                other = 1 - side
                records = await far[side].scan()
                if not records:
                    going.discard(side)
                for record in records:
                    key = key_of(record, timed=timed)
                    at = known[other].get(key)
                    if at is None:
                        if len(known[side]) < MAX_KEYS:
                            known[side].setdefault(key, record.offset)
                        continue
                    in_memory = at < sides[other].read_to
                    lack = far[side].lack
                    other_lack = sides[other].lack_until(at) if in_memory else far[other].lack
                    if side == 0:
                        return record.offset, at, lack, other_lack
                    return at, record.offset, other_lack, lack
        return Sides(*(cursor.lack for cursor in far))

    async def _pass_to(self, target: Target) -> None:
        """Pass what is in front of the next pair, on both sides."""
        source_offset, remote_offset, source_lack, remote_lack = target
        altered = await self._altered(source_offset, remote_offset)
        if altered is not None:
            for original, copy in altered:
                self._sighted.altered(original, copy, difference(original, copy))
            await self._source.drain(source_offset, lambda _: None)
            await self._remote.drain(remote_offset, lambda _: None)
            return
        source_lack = source_lack or self._otherwise or self._foreign
        remote_lack = remote_lack or self._otherwise
        await self._source.drain(source_offset, lambda r: self._sighted.missing(r, remote_lack))
        await self._remote.drain(remote_offset, lambda r: self._sighted.surplus(r, source_lack))

    async def _altered(
        self, source_offset: int, remote_offset: int
    ) -> list[tuple[RawRecord, RawRecord]] | None:
        """The records in front of the next pair, if each is a copy that was altered.

        They are as many on both sides, have equal timestamps or contents, and neither log may lack
        records among them.
        """
        if self._otherwise or self._foreign:
            return None
        sides = []
        for cursor, target in ((self._source, source_offset), (self._remote, remote_offset)):
            records = await cursor.look(WINDOWS[0] + 1)
            if cursor.lack_until(target) or all(record.offset < target for record in records):
                return None  # not all that are in front of the pair are known
            sides.append([record for record in records if record.offset < target])
        if len(sides[0]) != len(sides[1]):
            return None
        pairs = list(zip(*sides, strict=True))
        return pairs if all(_same_origin(*pair) for pair in pairs) else None


def _same_origin(original: RawRecord, copy: RawRecord) -> bool:
    """Whether a record seems to be an altered copy: with the same content or timestamp."""
    if bytes(original.tail) == bytes(copy.tail):
        return True
    return original.timestamp == copy.timestamp


def difference(original: RawRecord, copy: RawRecord) -> DifferenceKind:
    """How a copy differs."""
    equal = bytes(original.tail) == bytes(copy.tail)
    return DifferenceKind.TIMESTAMP if equal else DifferenceKind.CONTENT


def key_of(record: RawRecord, *, timed: bool) -> Key:
    """What a record is known by: its content, and its timestamp."""
    content = hashlib.blake2b(record.tail, digest_size=_DIGEST)
    if timed:
        content.update(record.timestamp.to_bytes(9, "big", signed=True))
    return content.digest()


def nearest(source: Iterable[Key], remote: Iterable[Key]) -> tuple[int, int] | None:
    """Places of equal records with the fewest records in front of them, of both sides together."""
    first: dict[Key, int] = {}
    for at, key in enumerate(source):
        first.setdefault(key, at)
    best: tuple[int, int] | None = None
    for at, key in enumerate(remote):
        if best is not None and at >= sum(best):
            break
        place = first.get(key)
        if place is not None and (best is None or place + at < sum(best)):
            best = place, at
    return best


def same_batch(original: Span, copy: Span) -> bool:
    """Whether two dense batches hold the same records, at whatever offsets."""
    assert original.batch is not None
    assert copy.batch is not None
    first, second = original.batch.header, copy.batch.header
    return (
        first is not None
        and second is not None
        and first.num_records == second.num_records
        and first.codec is second.codec
        and first.is_log_append_time == second.is_log_append_time
        and first.base_timestamp == second.base_timestamp
        and first.max_timestamp == second.max_timestamp
        # Comparing views takes three times as long.
        and bytes(original.batch.records) == bytes(copy.batch.records)
    )
