"""Records of `__mirror_status`: the progress of each mirror partition, as its lane sees it.

There is one record for each state partition. It is overwritten each second in which something has
changed, and every few seconds otherwise:

    key     the state partition's number, decimal
    value   zstd of JSON: version, lane, node, time_ms,
            partitions (a row for each mirror partition),
            fetchers, throttles (rows of the lane itself, in one of its records)

A row is a list, in the order of its class's fields: names would be most of its bytes. Later
versions may append to a row. `decode` returns the fields that it knows, and refuses a shorter row.
Records of older versions have no fetchers.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, NamedTuple

from twinlog.kafka.errors import CorruptBatch, ProtocolError
from twinlog.kafka.log.compression import Codec, compress, decompress
from twinlog.kafka.types import UNKNOWN_OFFSET
from twinlog.mirror.absence import Absence
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.record_losses import NO_LOSSES, RecordLosses
from twinlog.mirror.states import State, state_of
from twinlog.store.json_fields import JsonObject, decode_json, encode_json
from twinlog.store.state_records import MAX_REASON

NOTHING_FILLED: Final = (0,) * len(Absence)

MAX_STATUS: Final = 64 * 1024 * 1024
"""Bytes of JSON: some 400,000 mirror partitions in one state partition."""

_VERSION: Final = 1
_WHAT: Final = "a record of __mirror_status"
_ROW: Final = (str, str, int, int, int, int, int, int, int)
_FETCHER: Final = (str, int, int, int, int)
_THROTTLE: Final = (str, int, int, bool)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """The progress of one mirror partition. Offsets that are not known are -1."""

    partition: MirrorPartition
    state: State
    source_end: int = UNKNOWN_OFFSET
    """The source's high watermark."""
    source_last_stable: int = UNKNOWN_OFFSET
    """The source's last stable offset: only offsets below it can be mirrored."""
    destination_end: int = UNKNOWN_OFFSET
    """The destination's log end offset."""
    mirrored_end: int | None = None
    """The source's offset up to which the destination has everything; None: `destination_end`."""
    records: int = 0
    """Records appended since this owner has the partition."""
    bytes: int = 0
    """Bytes of the batches appended since this owner has the partition."""
    reason: str | None = None
    """Why it is FAILED; or why the source answers without records although it has offsets."""
    lag_ms: int | None = None
    """Age of the oldest record below `source_end` that is not mirrored yet, in milliseconds.

    It counts from when the partition's owner first saw the record on the source, and is too high by
    at most a quarter of its value (mirror/lag.py); a new owner starts again. (A record's own
    timestamp may have any value.) 0 if the destination holds everything that the source was last
    seen to have. None if that is not known, or the source has not answered for 10 s and may have
    more by now.
    """
    source_time_ms: int | None = field(default=None, compare=False)
    """Time of the last contact with the source, and of its offsets. None: not known. Two rows that
    differ only in it are equal, as nothing has happened between them."""
    filled: tuple[int, ...] = NOTHING_FILLED
    """Offsets filled since this owner has the partition, by `Absence`."""
    gap_ms: int = 0
    """Milliseconds for which this owner has waited for an answer that a gap needs."""
    losses: RecordLosses = NO_LOSSES
    """What the destination has lost of a flow's records since this owner has the partition."""
    source_losses: RecordLosses = NO_LOSSES
    """What the source has lost of a flow's records before they were copied, since then."""

    @property
    def lag(self) -> int:
        """Offsets that the destination is behind the source; -1 if it is not known."""
        if UNKNOWN_OFFSET in {self.source_end, self.mirrored}:
            return UNKNOWN_OFFSET
        return max(self.source_end - self.mirrored, 0)

    @property
    def mirrored(self) -> int:
        """The source's offset up to which the destination has everything; -1: unknown."""
        return self.destination_end if self.mirrored_end is None else self.mirrored_end


class FetcherStatus(NamedTuple):
    """A lane's Fetch counters for one source broker and one mirror, since it connected.

    `bytes`: of batches in the answers. `errors`: requests without an answer, or with an error code.
    """

    mirror: str
    broker: int
    requests: int
    bytes: int
    errors: int


class ThrottleStatus(NamedTuple):
    """A lane's Fetch counters for a mirror's throttled partitions.

    `bytes` counts since the lane connected. `byte_rate` is the recent rate in bytes per second.
    `held_back` is whether the lane would have fetched more without the throttle.
    """

    mirror: str
    bytes: int
    byte_rate: int
    held_back: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The report of a state partition's owner about its mirror partitions and about itself.

    `fetchers` and `throttles` cover the whole lane, and are in only one of its records.
    """

    state_partition: int
    lane: str
    node: str
    time_ms: int
    partitions: tuple[PartitionStatus, ...]
    fetchers: tuple[FetcherStatus, ...] = ()
    throttles: tuple[ThrottleStatus, ...] = ()


def status_key(state_partition: int) -> bytes:
    """The key of a state partition's status."""
    return str(state_partition).encode()


def encode(status: Status) -> tuple[bytes, bytes]:
    """Key and value."""
    body: dict[str, object] = {
        "version": _VERSION,
        "lane": status.lane,
        "node": status.node,
        "time_ms": status.time_ms,
        "partitions": [_row(partition_status) for partition_status in status.partitions],
        "fetchers": status.fetchers,
        "throttles": status.throttles,
    }
    return status_key(status.state_partition), bytes(compress(Codec.ZSTD, encode_json(body)))


def _row(partition_status: PartitionStatus) -> list[Any]:
    return [
        *partition_status.partition,
        int(partition_status.state),
        partition_status.source_end,
        partition_status.source_last_stable,
        partition_status.destination_end,
        partition_status.records,
        partition_status.bytes,
        partition_status.reason and partition_status.reason[:MAX_REASON],
        partition_status.lag_ms,
        partition_status.source_time_ms,
        partition_status.filled,
        *_later_fields(partition_status),
    ]


def _later_fields(partition_status: PartitionStatus) -> list[int | str | None]:
    """What later versions have added, as far as the row has it."""
    losses = partition_status.losses, partition_status.source_losses
    if losses != (NO_LOSSES, NO_LOSSES):
        fields = [number for one in losses for number in one]
        return [partition_status.mirrored_end, partition_status.gap_ms, *fields]
    if partition_status.gap_ms:
        return [partition_status.mirrored_end, partition_status.gap_ms]
    return [] if partition_status.mirrored_end is None else [partition_status.mirrored_end]


@lru_cache(maxsize=128)  # a node reads all statuses each second, and few are new
def decode(key: bytes | None, value: bytes | None) -> Status | None:
    """Decode a record of `__mirror_status`; None for a tombstone.

    Raises:
        ProtocolError: the bytes do not have this module's format.
    """
    number = _number(key)
    if value is None:
        return None
    try:
        data = decompress(Codec.ZSTD, memoryview(value))
    except CorruptBatch as error:
        raise ProtocolError(f"{_WHAT}: {error}") from error
    if len(data) > MAX_STATUS:
        raise ProtocolError(f"{_WHAT} has {len(data)} bytes, expected at most {MAX_STATUS}")
    body = JsonObject(decode_json(bytes(data), _WHAT), f"{_WHAT}, {number}")
    if body.number("version") != _VERSION:
        raise body.error("version", str(_VERSION))
    return Status(
        state_partition=number,
        lane=body.text("lane"),
        node=body.text("node"),
        time_ms=body.number("time_ms"),
        partitions=tuple(_partition(row, body) for row in body.list("partitions")),
        fetchers=tuple(FetcherStatus(*row) for row in _rows(body, "fetchers", _FETCHER)),
        throttles=tuple(ThrottleStatus(*row) for row in _rows(body, "throttles", _THROTTLE)),
    )


def _number(key: bytes | None) -> int:
    if key is None or not key.isdigit() or len(key) > 10:
        raise ProtocolError(
            f"the key of {_WHAT} is {(key or b'')[:20]!r}, expected the number of a partition"
        )
    return int(key)


def _rows(body: JsonObject, name: str, kinds: tuple[type, ...]) -> list[list[Any]]:
    """The known fields of a lane's rows; empty if the record has no such field."""
    rows = body.list(name) if body.has(name) else []
    for row in rows:
        if (
            not isinstance(row, list)
            or len(row) < len(kinds)
            or not all(type(cell) is kind for cell, kind in zip(row, kinds, strict=False))
        ):
            raise body.error(name, "rows of names and numbers")
    return [row[: len(kinds)] for row in rows]


def _partition(row: Any, body: JsonObject) -> PartitionStatus:
    if not isinstance(row, list) or len(row) < len(_ROW) + 2:
        raise body.error("partitions", "a list of rows")
    tail = row[len(_ROW) :]
    reason, lag_ms, source_time_ms, filled, mirrored, gap_ms, *losses = _filled_up(tail)
    if (
        not all(type(cell) is kind for cell, kind in zip(row, _ROW, strict=False))
        or not (reason is None or isinstance(reason, str))
        or not (lag_ms is None or type(lag_ms) is int)
        or not (source_time_ms is None or type(source_time_ms) is int)
        or not (mirrored is None or type(mirrored) is int)
        or type(gap_ms) is not int
        or not all(type(number) is int for number in (*losses[:2], *losses[3:5]))
        or not all(last is None or isinstance(last, str) for last in losses[2::3])
    ):
        raise body.error("partitions", "rows of names and numbers")
    mirror, topic, partition, state, source, stable, destination, records, size = row[: len(_ROW)]
    return PartitionStatus(
        partition=MirrorPartition(mirror, topic, partition),
        state=state_of(state),
        source_end=source,
        source_last_stable=stable,
        destination_end=destination,
        records=records,
        bytes=size,
        reason=reason,
        lag_ms=lag_ms,
        source_time_ms=source_time_ms,
        filled=_filled(filled, body),
        mirrored_end=mirrored,
        gap_ms=gap_ms,
        losses=RecordLosses(*losses[:3]),
        source_losses=RecordLosses(*losses[3:]),
    )


def _filled_up(tail: list[Any]) -> list[Any]:
    """The fields that later versions have added; those of an older row are absent."""
    defaults = (None, None, None, (), None, 0, *NO_LOSSES, *NO_LOSSES)
    return [*tail, *defaults[len(tail) :]][: len(defaults)]


def _filled(counts: Any, body: JsonObject) -> tuple[int, ...]:
    """Counts by reason, for the reasons that this version knows; missing counts are 0."""
    if not isinstance(counts, list | tuple) or not all(type(count) is int for count in counts):
        raise body.error("partitions", "rows whose counts of filled offsets are numbers")
    return (*counts, *NOTHING_FILLED)[: len(Absence)] if counts else NOTHING_FILLED
