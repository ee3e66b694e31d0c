"""Reads a partition alone if the source has offsets, but answers without records.

Such an answer proves nothing (`mirror/absence.py`): another partition may have used up its size, a
quota may delay it, a remote read may be slow. A partition that stays without records for
`SUSPECT_S` is read by requests of its own:

    records    they are taken like those of any answer, so a partition that never comes first in a
               broker's answers makes progress
    diverging  the source has lost the end of its log: as in an answer of the leader to a session
    none       it is read again after `LOOK_INTERVAL_S`; the two readings are judged
               Absent      the rest of a compacted log: its offsets are a gap
               Unproven    the lag stays, and the partition's status has the reason
               Impossible  the partition is FAILED with the reason; nothing was filled
"""

import asyncio
import logging
from dataclasses import dataclass
from typing import Final

from twinlog.engines.exact.append import Phase
from twinlog.engines.exact.events import Diverged, Failure, HeldBack, LeadersDoubted, Queued
from twinlog.engines.exact.fetcher import Fetcher
from twinlog.engines.exact.partition import ExactPartition
from twinlog.engines.exact.plane import Plane
from twinlog.kafka.errors import Reaction, TwinlogError, code_of
from twinlog.kafka.log_reader import ReadAlone
from twinlog.kafka.types import LeaderEpoch, Offset
from twinlog.mirror.absence import (
    LOOK_INTERVAL_S,
    Absence,
    Absent,
    AbsentSpan,
    Impossible,
    Reading,
    Unproven,
    judge,
)
from twinlog.mirror.plan import Gap

log = logging.getLogger(__name__)

SUSPECT_S: Final = 1.0
"""Seconds without records before a partition is read alone: other partitions may come first."""
UNPROVEN_S: Final = 5.0
"""Seconds between readings that prove nothing."""
AT_ONCE: Final = 4
"""Partitions that are read at the same time, each by a request of its own."""


LATER_COMPACTED: Final = Unproven(
    "the source has no batch up to its last stable offset, and cleanup.policy contains compact on "
    "the source only: if compaction has removed these records, add compact to the cleanup.policy "
    "of the destination's topic, then pause and resume the topic"
)


@dataclass(slots=True)
class _Suspect:
    """A partition without records at a position."""

    position: Offset
    due: float
    first: Reading | None = None
    reading: bool = False


class Absences:
    """The suspects of an engine."""

    def __init__(self, plane: Plane, fetcher: Fetcher) -> None:
        self._plane = plane
        self._fetcher = fetcher
        self._suspects: dict[ExactPartition, _Suspect] = {}
        self._wake = asyncio.Event()
        self._running = False

    def suspect(self, partition: ExactPartition) -> None:
        """Add a partition whose source has offsets above its plan, but answers without records."""
        position = partition.append.planned_end
        entry = self._suspects.get(partition)
        if entry is None or entry.position != position:
            self._suspects[partition] = _Suspect(position, self._plane.now() + SUSPECT_S)
            if not self._running:
                self._running = True
                self._plane.start(self._run())
            self._wake.set()

    def forget(self, partition: ExactPartition) -> None:
        """Remove a partition that has records, or is not read any more."""
        self._suspects.pop(partition, None)

    def _clear(self, partition: ExactPartition) -> None:
        self.forget(partition)
        self._plane.emit(partition, HeldBack(""))

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            now = self._plane.now()
            reading = sum(suspect.reading for suspect in self._suspects.values())
            candidates = [(s.due, p) for p, s in self._suspects.items() if not s.reading]
            for _, partition in sorted(
                ((due, p) for due, p in candidates if due <= now), key=lambda pair: pair[0]
            )[: AT_ONCE - reading]:
                self._suspects[partition].reading = True
                self._plane.start(
                    self._read(partition, self._suspects[partition]), about=[partition]
                )
            due_times = [due for due, p in candidates if due > now]
            pause = min(due_times) - now if due_times else None
            try:
                async with asyncio.timeout(pause):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def _is_current(self, partition: ExactPartition, suspect: _Suspect) -> bool:
        append = partition.append
        return (
            self._suspects.get(partition) is suspect
            and not partition.gone
            and append.phase is Phase.APPENDING
            and append.planned_end == suspect.position
        )

    async def _read(self, partition: ExactPartition, suspect: _Suspect) -> None:
        try:
            await self._read_once(partition, suspect)
        finally:
            suspect.reading = False
            self._wake.set()

    async def _read_once(self, partition: ExactPartition, suspect: _Suspect) -> None:
        if not self._is_current(partition, suspect):
            if self._suspects.get(partition) is suspect:
                self._clear(partition)
            return
        suspect.due = self._plane.now() + UNPROVEN_S
        if not self._fetcher.may_read_alone(partition):
            return
        clock, asked_at = self._fetcher.clock, self._plane.now()
        try:
            answer = await self._plane.source.read_alone(
                partition.key,
                suspect.position,
                max_wait_ms=self._plane.settings.fetch_max_wait_ms,
                partition_max_bytes=self._plane.settings.partition_fetch_bytes,
                # A leader that names a replica to a session does not compare epochs there.
                last_epoch=partition.source_epochs.before(suspect.position),
            )
        except TwinlogError as error:
            log.info("%s: a read of this partition alone failed: %s", partition, error)
            return
        if not self._is_current(partition, suspect) or partition.touched > clock:
            return
        fetched = answer.fetched
        if fetched.error:
            if code_of(fetched.error).reaction is Reaction.METADATA:
                self._plane.emit(partition, LeadersDoubted())
        elif fetched.diverging is not None:
            self._plane.emit(partition, Diverged(fetched.diverging))
        elif len(fetched.records):
            await self._fetcher.take_alone(partition, fetched, clock)
            if self._is_current(partition, suspect):
                self._explain(partition, Unproven("the source answers with less than one batch"))
        else:
            self._judge(partition, suspect, reading_of(answer, suspect.position, asked_at))

    def _judge(self, partition: ExactPartition, suspect: _Suspect, second: Reading) -> None:
        first, suspect.first = suspect.first, second
        if first is None:
            suspect.due = second.at + LOOK_INTERVAL_S
            return
        verdict = judge(first, second)
        if isinstance(verdict, Absent) and not partition.spec.compacted:
            # The policy may have been set after records were lost: an operator decides.
            self._explain(partition, LATER_COMPACTED)
        elif isinstance(verdict, Absent):
            gap = Gap(
                second.offset,
                verdict.end,
                seen=False,
                spans=(AbsentSpan(Absence.COMPACTED, verdict.end),),
            )
            self._clear(partition)
            log.info("%s: compaction has removed the source's last records: %s", partition, gap)
            self._plane.emit(partition, Queued([gap], touch=True))
        elif isinstance(verdict, Impossible):
            self._clear(partition)
            self._plane.emit(partition, Failure(verdict.reason, transient=True))
        else:
            self._explain(partition, verdict)

    def _explain(self, partition: ExactPartition, verdict: Unproven) -> None:
        self._plane.emit(partition, HeldBack(verdict.reason))


def reading_of(answer: ReadAlone, offset: Offset, asked_at: float) -> Reading:
    """The evidence in an answer to a request for one partition alone (read_committed)."""
    return Reading(
        at=asked_at,
        offset=offset,
        last_stable=Offset(answer.fetched.last_stable),
        throttle_ms=answer.throttle_ms,
        preferred_replica=answer.fetched.preferred_replica,
        leader_epoch=LeaderEpoch(answer.leader_epoch),
        local_start=answer.local_start,
        compacts=answer.compacts,
    )
