"""Writes the source's partitions at random, as real producers, log cleaners and retention do.

Each write is passed to the checker's `Truth` at the same moment.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from model.cluster import Cluster
from model.log import Log, Marker, StoredBatch
from simulation.checker import Checker, Written
from twinlog.kafka.log.batch import (
    HEADER_SIZE,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    TRANSACTIONAL,
    new_header,
)
from twinlog.kafka.log.compression import Codec, compress
from twinlog.kafka.log.records import (
    RawRecord,
    build,
    decode,
    encode_tail,
    raw_records,
    varint,
    whole,
)
from twinlog.kafka.types import TopicPartition

DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The behaviour of a partition; all shares are shares of its actions."""

    compacted: bool
    transactions: float
    aborts: float
    large: float
    old_ms: int
    log_append_time: bool
    codec: Codec
    clean: float
    retain: float
    pause: float

    def without_gaps(self) -> "Profile":
        """Return a profile that leaves no offset without a record."""
        return replace(self, compacted=False, transactions=0.0, clean=0.0, retain=0.0)


def draw_profile(rng: random.Random) -> Profile:
    """Draw a partition's profile."""
    compacted = rng.random() < 0.35
    return Profile(
        compacted=compacted,
        transactions=rng.choice((0.0, 0.0, 0.2, 0.5)),
        aborts=rng.choice((0.1, 0.5)),
        large=rng.choice((0.0, 0.05)),
        old_ms=rng.choice((0, 0, 0, 3 * DAY_MS)),
        log_append_time=rng.random() < 0.15,
        codec=rng.choice((Codec.NONE, Codec.NONE, Codec.NONE, Codec.LZ4, Codec.ZSTD)),
        clean=0.05 if compacted else 0.0,
        retain=0.0 if compacted else rng.choice((0.0, 0.02)),
        pause=rng.choice((0.1, 0.3, 1.0)),
    )


class Writer:
    """All writers of one source partition: producers, the cleaner, retention."""

    def __init__(
        self,
        cluster: Cluster,
        key: TopicPartition,
        checker: Checker,
        profile: Profile,
        rng: random.Random,
    ) -> None:
        self._cluster = cluster
        self.key = key
        self._checker = checker
        self._truth = checker.truth[key]
        self._profile = profile
        self._rng = rng
        self._open: dict[int, list[int]] = {}  # producer id: offsets
        self._next_producer = 1
        self.stopped = False

    @property
    def _log(self) -> Log:
        return self._cluster.log(self.key)

    def start(self) -> None:
        """Write continuously until stopped."""
        self._later()

    def lose_end(self, offsets: int) -> None:
        """Elect an unclean leader: the end of the log is lost, and new records take its offsets.

        The profile must leave no gaps (`without_gaps`).
        """
        stable_end = self._log.stable_end
        self._cluster.move_leader(self.key, lose=offsets)
        self._truth = self._checker.lost_end(self.key, stable_end)

    def stop(self) -> None:
        """Stop writing; end the open transactions."""
        self.stopped = True
        for producer in list(self._open):
            self._end(producer)
        self._replicate()

    def _later(self) -> None:
        delay = self._rng.expovariate(1 / self._profile.pause)
        self._cluster.loop.later(delay, self._act)

    def _act(self) -> None:
        if self.stopped:
            return
        if self._cluster.partition(self.key).leader >= 0:
            for _ in range(self._rng.choice((1, 1, 1, 6))):
                self._one_action()
            self._replicate()
        self._later()

    def prepare(self, actions: int) -> None:
        """Write the log's past, before mirroring starts."""
        for _ in range(actions):
            self._one_action()
        log = self._log
        log.high_watermark = log.end

    def _replicate(self) -> None:
        cluster = self._cluster
        partition = cluster.partition(self.key)
        if not partition.lagging:
            cluster._replicate(partition)

    def _one_action(self) -> None:
        draw = self._rng.random()
        profile = self._profile
        if draw < profile.clean:
            self._clean()
        elif draw < profile.clean + profile.retain:
            log = self._log
            if log.stable_end > log.start:
                log.delete_before(self._rng.randint(log.start, log.stable_end))
        elif self._rng.random() < profile.transactions:
            self._transaction_step()
        else:
            self._append(-1)

    def _transaction_step(self) -> None:
        if self._open and self._rng.random() < 0.4:
            self._end(self._rng.choice(sorted(self._open)))
        elif len(self._open) < 3 and self._rng.random() < 0.5:
            self._next_producer += 1
            self._append(self._next_producer)
        elif self._open:
            self._append(self._rng.choice(sorted(self._open)))

    def _end(self, producer: int) -> None:
        offsets = self._open.pop(producer)
        committed = self._rng.random() >= self._profile.aborts
        self._truth.undecided.difference_update(offsets)
        if not committed:
            self._truth.aborted.update(offsets)
        self._log.append_marker(Marker(producer, 0, committed), self._cluster.now_ms)

    def _append(self, producer: int) -> None:
        """Append one batch; it is part of a transaction if `producer` is a producer id (not -1)."""
        rng, profile, log = self._rng, self._profile, self._log
        count = rng.choice((1, 1, 2, 3, 9)) if rng.random() >= profile.large else 60
        now = self._cluster.now_ms - profile.old_ms
        records = [
            RawRecord(at, now - rng.randint(0, 2000), 0, memoryview(self._tail(at, count)))
            for at in range(count)
        ]
        built = build(records, profile.codec)
        attributes = TRANSACTIONAL if producer >= 0 else 0
        if profile.log_append_time:
            attributes |= LOG_APPEND_TIME
            built = built._replace(header=built.header._replace(max_timestamp=now))
        known = log.producers.get(producer) if producer >= 0 else None
        sequence = -1
        if producer >= 0:
            sequence = 0 if known is None else known.last_sequence + 1
        base = log.append(
            whole(
                built,
                attributes=attributes,
                producer_id=producer,
                epoch=0 if producer >= 0 else -1,
                sequence=sequence,
            )
        )
        offsets = range(base, base + count)
        for offset, record in zip(offsets, records, strict=True):
            seen = now if profile.log_append_time else record.timestamp
            self._truth.data[offset] = Written(seen, bytes(record.tail))
        if producer >= 0:
            self._open.setdefault(producer, []).extend(offsets)
            self._truth.undecided.update(offsets)

    def _tail(self, position: int, count: int) -> bytes:
        rng = self._rng
        key = (
            b"key %d" % rng.randint(0, 40)
            if self._profile.compacted or rng.random() < 0.5
            else None
        )
        value = None if key and rng.random() < 0.1 else rng.randbytes(rng.choice((4, 20)))
        return encode_tail(key, value, self._headers(position, count))

    def _headers(self, position: int, count: int) -> Sequence[tuple[str, bytes]]:
        """The headers of a record, which is the one at this position in a batch of `count`."""
        del position
        return [("h", b"v")] if count < 5 and self._rng.random() < 0.2 else []

    def _clean(self) -> None:
        """Compact up to a random offset below the last stable offset."""
        log = self._log
        limit = self._rng.randint(log.start, log.stable_end)
        latest: dict[bytes | None, int] = {}
        for stored in log.batches:
            if not stored.header.is_control and stored.header.next_offset <= limit:
                for record in self._records(stored):
                    if record.offset not in self._truth.aborted:
                        latest[decode(record).key] = record.offset
        keep = set(latest.values())
        log.rewrite(partial(self._compacted, keep), limit)

    def _compacted(self, keep: set[int], stored: StoredBatch) -> bytes | None:
        if not stored.header.is_control:
            offsets = (record.offset for record in self._records(stored))
            self._truth.removed.update(offset for offset in offsets if offset not in keep)
        return cleaned(keep, self._rng, stored)

    @staticmethod
    def _records(stored: StoredBatch) -> list[RawRecord]:
        return records_of(stored)


def records_of(stored: StoredBatch) -> list[RawRecord]:
    """Return the records of a batch."""
    return raw_records(stored.header, memoryview(stored.data)[HEADER_SIZE:])


def cleaned(keep: set[int], rng: random.Random, stored: StoredBatch) -> bytes | None:
    """Return what a log cleaner leaves of a batch: the records at these offsets, or no batch."""
    if stored.header.is_control:
        # A broker removes a marker after its transaction's data; this model keeps markers.
        return stored.data
    records = records_of(stored)
    left = [record for record in records if record.offset in keep]
    if len(left) == len(records):
        return stored.data
    if not left:
        return None if rng.random() < 0.7 else _with(stored, [])
    return _with(stored, left)


def _with(stored: StoredBatch, left: list[RawRecord]) -> bytes:
    """Rebuild the batch with the remaining records, as the log cleaner does: offsets stay."""
    header = stored.header
    body = bytearray()
    base_timestamp = left[0].timestamp if left else header.base_timestamp
    for offset, timestamp, attributes, tail in left:
        deltas = varint(timestamp - base_timestamp) + varint(offset - header.base_offset)
        body += varint(1 + len(deltas) + len(tail)) + bytes((attributes,)) + deltas + tail
    data = memoryview(compress(header.codec, bytes(body)))
    return (
        header.base_offset.to_bytes(8)
        + new_header(
            length=HEADER_SIZE - LOG_OVERHEAD + len(data),
            attributes=header.attributes,
            last_offset_delta=header.last_offset_delta,
            base_timestamp=base_timestamp,
            max_timestamp=header.max_timestamp
            if header.is_log_append_time or not left
            else max(record.timestamp for record in left),
            producer_id=header.producer_id,
            epoch=header.producer_epoch,
            sequence=header.base_sequence,
            count=len(left),
            records=data,
        )[8:]
        + bytes(data)
    )
