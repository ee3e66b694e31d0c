"""The exact engine's partitions that wait for records although the source has offsets.

They are read alone (source/absences.py). Records are taken like those of any answer, so a partition
that never comes first in a broker's answers makes progress. The rest of a compacted log becomes a
gap, which is filled.
"""

import asyncio
from typing import Final

from twinlog.engines.exact.append import Phase
from twinlog.engines.exact.events import Diverged, Failure, HeldBack, LeadersDoubted, Queued
from twinlog.engines.exact.fetcher import Fetcher
from twinlog.engines.exact.partition import ExactPartition
from twinlog.engines.exact.plane import Plane
from twinlog.engines.source.absences import Absences, WaitingPlace
from twinlog.kafka.log_reader import ReadAlone
from twinlog.kafka.protocol.fetch import Fetched
from twinlog.kafka.types import EpochEnd, Offset
from twinlog.mirror.plan import Gap

_LOOK_S: Final = 0.1
"""Seconds between two checks of what is due."""


class ExactSuspects:
    """What a data plane does about its suspects (`Suspects`)."""

    def __init__(self, plane: Plane, fetcher: Fetcher) -> None:
        self._plane = plane
        self._fetcher = fetcher

    def now(self) -> float:
        """The loop's clock, in seconds."""
        return self._plane.now()

    def place(self, partition: ExactPartition) -> WaitingPlace | None:
        """The end of its plan; None while its position is read again, or if it is gone."""
        if partition.gone or partition.append.phase is not Phase.APPENDING:
            return None
        return WaitingPlace(partition.append.planned_end)

    def compacted(self, partition: ExactPartition) -> bool:
        """Whether the destination's topic compacts."""
        return partition.spec.compacted

    def unreadable(self, partition: ExactPartition) -> None:
        """Nothing is known of a replica that cannot be read."""

    async def read_alone(self, partition: ExactPartition, offset: Offset) -> ReadAlone | None:
        """Read it, if the buffer and the rate allow; an answer for a former position is dropped."""
        if not self._fetcher.may_read_alone(partition):
            return None
        clock = self._fetcher.clock
        answer = await self._plane.source.read_alone(
            partition.key,
            offset,
            max_wait_ms=self._plane.settings.fetch_max_wait_ms,
            partition_max_bytes=self._plane.settings.partition_fetch_bytes,
            # A leader that names a replica to a session does not compare epochs there.
            last_epoch=partition.source_epochs.before(offset),
        )
        return None if partition.touched > clock else answer

    async def take(self, partition: ExactPartition, fetched: Fetched) -> str:
        """Queue the records."""
        await self._fetcher.take_alone(partition, fetched, self._fetcher.clock)
        return "the source answers with less than one batch"

    def doubt_leaders(self, partition: ExactPartition) -> None:
        """Ask for the leaders again."""
        self._plane.emit(partition, LeadersDoubted())

    def diverged(self, partition: ExactPartition, source: EpochEnd) -> None:
        """Let the machine decide what a source means that has lost its end."""
        self._plane.emit(partition, Diverged(source))

    def pass_over(self, partition: ExactPartition, gap: Gap) -> None:
        """Fill the gap."""
        self._plane.emit(partition, Queued([gap], touch=True))

    def fail(self, partition: ExactPartition, reason: str) -> None:
        """Stop it; it is tried again later."""
        self._plane.emit(partition, Failure(reason, transient=True))

    def explain(self, partition: ExactPartition, reason: str | None) -> None:
        """Report why it waits."""
        self._plane.emit(partition, HeldBack(reason or ""))


class AbsenceReader:
    """Reads the suspects of a data plane alone, as long as there are any."""

    def __init__(self, plane: Plane, fetcher: Fetcher) -> None:
        self._plane = plane
        self._absences = Absences[ExactPartition](ExactSuspects(plane, fetcher))
        self._running = False

    def suspect(self, partition: ExactPartition) -> None:
        """Add a partition whose source has offsets above its plan, but answers without records."""
        self._absences.suspect(partition)
        if self._absences.has_suspects and not self._running:
            self._running = True
            self._plane.start(self._run())

    def forget(self, partition: ExactPartition) -> None:
        """Remove a partition that has records, or is not read any more."""
        self._absences.forget(partition)

    async def _run(self) -> None:
        while self._absences.has_suspects:
            for partition in self._absences.due():
                self._plane.start(self._absences.read(partition), about=[partition])
            await asyncio.sleep(_LOOK_S)
        self._running = False
