"""Finds out why the source of a flow has offsets, but answers without records.

The evidence and its rules are those of the exact engine (mirror/absence.py, absence_reader.py). A
partition that stays without records for `SUSPECT_S` is asked for by requests of its own, whose
records are not taken: the session's next answer has them.

    records    the source is only slow, or names a replica to sessions that cannot be read
    diverging  the source has lost the end of its log: as in an answer of the leader to a session
    none       it is asked again after `LOOK_INTERVAL_S`; the two answers are judged
               Absent      the rest of a compacted log: nothing is copied, and the lag ends
               Unproven    the lag stays, and the partition's row has the reason
               Impossible  the partition is FAILED with the reason, and located again later
"""

import logging
from dataclasses import dataclass
from typing import Any, Final

from twinlog.engines.exact.absence_reader import (
    AT_ONCE,
    LATER_COMPACTED,
    SUSPECT_S,
    UNPROVEN_S,
    reading_of,
)
from twinlog.engines.ports import SourcePort
from twinlog.engines.translated.partitions import FlowPartition, FlowPartitions, SourceQueue
from twinlog.kafka.errors import Reaction, TwinlogError, code_of
from twinlog.kafka.types import Offset
from twinlog.mirror.absence import (
    LOOK_INTERVAL_S,
    Absence,
    Absent,
    AbsentSpan,
    Impossible,
    Reading,
    judge,
)
from twinlog.mirror.plan import Gap

log = logging.getLogger(__name__)

_ONE_BATCH: Final = 1
"""Bytes: a broker returns the first batch whole, however long it is."""

_Partition = FlowPartition[Any, Any]


@dataclass(slots=True)
class _SilentPosition:
    """A partition without records at a position."""

    queue: SourceQueue
    position: Offset
    due: float
    first: Reading | None = None
    reading: bool = False

    def applies(self, partition: _Partition) -> bool:
        """Whether the partition is still at this position."""
        return partition.sequence is self.queue and self.queue.position == self.position


class FlowAbsences:
    """The suspects of a flow.

    Args:
        flow: its partitions.
        source: what is read.
    """

    def __init__(self, flow: FlowPartitions[Any, Any], source: SourcePort) -> None:
        self._flow = flow
        self._source = source
        self._suspects: dict[_Partition, _SilentPosition] = {}

    def suspect(self, partition: _Partition, queue: SourceQueue) -> None:
        """Note that the source has offsets from the queue's position on, and returns no record."""
        known = self._suspects.get(partition)
        if known is None or not known.applies(partition):
            due = self._flow.now() + SUSPECT_S
            self._suspects[partition] = _SilentPosition(queue, queue.position, due)

    def forget(self, partition: _Partition) -> None:
        """Note that a partition has records, has all of the source, or is not read any more."""
        partition.unreadable = None
        if self._suspects.pop(partition, None) is not None:
            self._report(partition, None)

    def due(self) -> list[_Partition]:
        """The partitions that `read` is to be called for now."""
        for partition, suspect in list(self._suspects.items()):
            if not suspect.applies(partition):
                self.forget(partition)
        now = self._flow.now()
        idle = [(one.due, p) for p, one in self._suspects.items() if not one.reading]
        room = AT_ONCE - len(self._suspects) + len(idle)
        due = sorted((one for one in idle if one[0] <= now), key=lambda one: one[0])
        found = [partition for _, partition in due[: max(room, 0)]]
        for partition in found:
            self._suspects[partition].reading = True
        return found

    async def read(self, partition: _Partition) -> None:
        """Read a partition alone, and draw the conclusion."""
        suspect = self._suspects.get(partition)
        if suspect is None:
            return
        try:
            await self._read(partition, suspect)
        finally:
            suspect.reading = False

    async def _read(self, partition: _Partition, suspect: _SilentPosition) -> None:
        asked_at = self._flow.now()
        suspect.due = asked_at + UNPROVEN_S
        try:
            answer = await self._source.read_alone(
                partition.source,
                suspect.position,
                max_wait_ms=self._flow.settings.fetch_max_wait_ms,
                partition_max_bytes=_ONE_BATCH,
                # A leader that names a replica to a session does not compare epochs there.
                last_epoch=suspect.queue.epochs.before(suspect.position),
            )
        except TwinlogError as error:
            log.info("%s: a read of this partition alone failed: %s", partition.name, error)
            return
        if self._suspects.get(partition) is not suspect or not suspect.applies(partition):
            return
        fetched = answer.fetched
        if fetched.error:
            if code_of(fetched.error).reaction is Reaction.METADATA:
                self._flow.ask_leaders()
        elif fetched.diverging is not None:
            self.forget(partition)
            self._flow.diverged(partition, suspect.queue, fetched.diverging)
        elif len(fetched.records):
            suspect.first = None
            self._report(partition, partition.unreadable)
        else:
            self._judge(partition, suspect, reading_of(answer, suspect.position, asked_at))

    def _judge(self, partition: _Partition, suspect: _SilentPosition, second: Reading) -> None:
        first, suspect.first = suspect.first, second
        if first is None:
            suspect.due = second.at + LOOK_INTERVAL_S
            return
        verdict = judge(first, second)
        if isinstance(verdict, Absent) and partition.assignment.compacted:
            self._pass(partition, suspect, verdict.end)
        elif isinstance(verdict, Absent):
            # The policy may have been set after records were lost: an operator decides.
            self._report(partition, LATER_COMPACTED.reason)
        elif isinstance(verdict, Impossible):
            self.forget(partition)
            self._flow.fail(partition, verdict.reason)
        else:
            known = partition.unreadable if second.preferred_replica >= 0 else None
            self._report(partition, known or verdict.reason)

    def _pass(self, partition: _Partition, suspect: _SilentPosition, end: Offset) -> None:
        """Pass over the rest of a compacted log."""
        gap = Gap(suspect.position, end, seen=False, spans=(AbsentSpan(Absence.COMPACTED, end),))
        log.info("%s: compaction has removed the source's last records: %s", partition.name, gap)
        suspect.queue.offer([gap])
        partition.pass_over(gap)
        partition.note_lag(self._flow.now())
        self.forget(partition)
        self._flow.changed.set()

    def _report(self, partition: _Partition, silence: str | None) -> None:
        if partition.silence == silence:
            return
        partition.silence = silence
        if silence is not None:
            log.warning("%s waits for records of the source: %s", partition.name, silence)
        self._flow.news.add(partition.assignment.state_partition)
