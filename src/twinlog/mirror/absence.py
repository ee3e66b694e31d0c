"""The evidence that a log holds no record at an offset.

On the destination, a control record fills an absent offset of the source, and cannot be taken back:
a record that did exist would be lost. So absence is concluded from evidence, never from an answer
without bytes. The kinds of evidence are, in the order in which the mirror meets them:

    MARKER      a control batch has this offset
    ABORTED     a batch of an aborted transaction has it
    COMPACTED   a later batch, or the batch around it, skips it, and the topic's policy compacts
    LOG_START   it is below the source's log start offset
    UNEXPLAINED a later batch skips it twice, although the topic's policy does not compact

One case leaves no bytes: compaction has removed the last records of a log, and no later batch
exists. `judge` decides it from two readings of the partition. A broker also answers without an
error and without bytes for many other reasons (quota, size of the answer, slow or limited remote
storage, a preferred replica, see docs/architecture/absence.md). Both readings have to exclude each
of these reasons:

    in each reading   one partition in the request; no throttle time; no preferred replica; the
                      position at or above the local log start; the last stable offset above it
    between the two   the same position, the same leader epoch, `interval_s` or more apart
    the topic         its cleanup.policy contains `compact`: otherwise the gap is impossible

Up to the last stable offset a broker returns control batches and aborted batches as bytes. So in a
log that was never compacted, each offset is covered by bytes or is below the log start offset.
"""

import enum
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from twinlog.kafka.types import LeaderEpoch, Offset

LOOK_INTERVAL_S: Final = 3.0
"""Seconds between two readings: longer than the windows of a broker's quotas (1 s), and than
remote reads wait before they give up (`remote.fetch.max.wait.ms`, 0.5 s)."""


class Absence(enum.IntEnum):
    """Why an offset holds no record for a reader (see the module). The numbers are stored."""

    MARKER = 0
    ABORTED = 1
    COMPACTED = 2
    LOG_START = 3
    UNEXPLAINED = 4


class AbsentSpan(NamedTuple):
    """The offsets up to `end` are absent for this reason."""

    reason: Absence
    end: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """An answer without error and records to a request for one partition alone.

    Attributes:
        at: when the request was sent, in seconds of a monotonic clock.
        offset: the offset that was requested.
        last_stable: the partition's last stable offset in the answer.
        throttle_ms: the answer's throttle time.
        preferred_replica: the broker to read from instead, or -1.
        leader_epoch: the epoch in the request; a leader of another epoch refuses it.
        local_start: the first offset on the leader's own disk, -1 if it is not known.
        compacts: whether the topic's cleanup.policy contains `compact`; None if it is not known.
    """

    at: float
    offset: Offset
    last_stable: Offset
    throttle_ms: int
    preferred_replica: int
    leader_epoch: LeaderEpoch
    local_start: int
    compacts: bool | None


class Absent(NamedTuple):
    """The log holds no record from the position up to `end`."""

    end: Offset


class Unproven(NamedTuple):
    """The log may hold records there; the mirror waits for them."""

    reason: str


class Impossible(NamedTuple):
    """The log holds no batch there, although it has to."""

    reason: str


Verdict: TypeAlias = Absent | Unproven | Impossible


def judge(first: Reading, second: Reading, interval_s: float = LOOK_INTERVAL_S) -> Verdict:
    """Whether a log is empty from a position up to its last stable offset.

    Args:
        first: an earlier reading of the partition, without records.
        second: a later one.
        interval_s: the least time between the readings, in seconds.
    """
    for reading in (first, second):
        if doubt := _doubt(reading):
            return Unproven(doubt)
    if first.offset != second.offset or first.leader_epoch != second.leader_epoch:
        return Unproven("the source's leader changed between two reads")
    if second.at - first.at < interval_s:
        return Unproven("only one response without records from the source so far")
    end = Offset(min(first.last_stable, second.last_stable))
    if first.compacts and second.compacts:
        return Absent(end)
    return Impossible(
        f"the source has no batch from offset {second.offset} up to its last stable offset {end}, "
        "although the topic's cleanup.policy does not contain compact: records of the source are "
        "missing or unreadable; nothing was filled"
    )


def _doubt(reading: Reading) -> str:
    """Why this reading proves nothing; empty if it may count."""
    offset, local_start = reading.offset, reading.local_start
    doubts = {
        f"the source throttles fetches (quota; {reading.throttle_ms} ms)": reading.throttle_ms > 0,
        f"the source's leader redirects fetches to broker {reading.preferred_replica} "
        "(replica.selector.class)": reading.preferred_replica >= 0,
        "the source's local log start offset is unknown": local_start < 0,
        f"offset {offset} is in the source's remote storage (local log start offset "
        f"{local_start}), which is slow or limited": offset < local_start,
        "the source's last stable offset moved backwards": reading.last_stable <= offset,
        "the topic's cleanup.policy on the source is unknown": reading.compacts is None,
    }
    return next((reason for reason, holds in doubts.items() if holds), "")
