"""Reads a partition alone if the source has offsets, but answers without records.

Such an answer proves nothing (`mirror/absence.py`): another partition may have used up its size, a
quota may delay it, a remote read may be slow. A partition that stays without records for
`SUSPECT_S` is read by requests of its own:

    records    the source is only slow, or names a replica to sessions that cannot be read
    diverging  the source has lost the end of its log: as in an answer of the leader to a session
    none       it is read again after `LOOK_INTERVAL_S`; the two readings are judged
               Absent      the rest of a compacted log: its offsets are a gap
               Unproven    the lag stays, and the partition's status has the reason
               Impossible  the partition is FAILED with the reason, and tried again later

`Absences` decides when a partition is read, and what the readings prove. What follows is the
engine's, behind `Suspects`: the exact engine fills a gap, a flow copies nothing for it.

An engine calls `due` several times a second, and `read` for each partition that it returns.
"""

import logging
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from twinlog.kafka.errors import Reaction, TwinlogError, code_of
from twinlog.kafka.log_reader import ReadAlone
from twinlog.kafka.protocol.fetch import Fetched
from twinlog.kafka.types import EpochEnd, LeaderEpoch, Offset
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

P = TypeVar("P")
P_contra = TypeVar("P_contra", contravariant=True)


class WaitingPlace(NamedTuple):
    """Where a partition waits for records.

    Attributes:
        offset: the source's offset of the next record that is wanted.
        queue: what wants it, by its identity: an answer for another queue is not taken.
    """

    offset: Offset
    queue: object = None


class Suspects(Protocol[P_contra]):
    """What an engine knows of its partitions, and what it does when one was read alone.

    `Absences` calls the methods that have no result only while the partition is at the place that
    was read.
    """

    def now(self) -> float:
        """The loop's clock, in seconds."""
        ...

    def place(self, partition: P_contra) -> WaitingPlace | None:
        """Where a partition waits for records; None while its position is not known."""
        ...

    def compacted(self, partition: P_contra) -> bool:
        """Whether the destination's topic compacts."""
        ...

    def unreadable(self, partition: P_contra) -> str | None:
        """Why a replica cannot be read that the leader names (KIP-392); None: unknown, or it can.

        Without it, the reason is that the leader names one.
        """
        ...

    async def read_alone(self, partition: P_contra, offset: Offset) -> ReadAlone | None:
        """Read a partition by a request of its own, from the leader (read_committed).

        Returns:
            The answer; None if there is no room for it now, or if it came too late.

        Raises:
            TwinlogError: no answer arrived.
        """
        ...

    async def take(self, partition: P_contra, fetched: Fetched) -> str | None:
        """Take the records of an answer.

        Returns:
            Why the partition still waits, if it is at the same place afterwards; None: it is not
            known to wait.
        """
        ...

    def doubt_leaders(self, partition: P_contra) -> None:
        """Ask for the leaders again: the broker that was asked does not lead the partition."""
        ...

    def diverged(self, partition: P_contra, source: EpochEnd) -> None:
        """Handle a source that has lost the end of its log since it was read."""
        ...

    def pass_over(self, partition: P_contra, gap: Gap) -> None:
        """Go on behind a gap: compaction has removed these records."""
        ...

    def fail(self, partition: P_contra, reason: str) -> None:
        """Report a partition as FAILED, and try it again later."""
        ...

    def explain(self, partition: P_contra, reason: str | None) -> None:
        """Report why a partition waits for records; None: it does not, as far as is known.

        None is also given for a partition that has moved on, or is gone.
        """
        ...


@dataclass(slots=True)
class _Suspect:
    """A partition without records at a place."""

    place: WaitingPlace
    due: float
    first: Reading | None = None
    reading: bool = False


class Absences(Generic[P]):
    """The suspects of an engine, and the readings of them.

    Args:
        engine: knows the partitions, and acts.
    """

    def __init__(self, engine: Suspects[P]) -> None:
        self._engine = engine
        self._suspects: dict[P, _Suspect] = {}

    @property
    def has_suspects(self) -> bool:
        """Whether there are suspects, for which `due` has to be called."""
        return bool(self._suspects)

    def suspect(self, partition: P) -> None:
        """Note that the source has offsets behind the partition's place, and returns no record."""
        place = self._engine.place(partition)
        suspect = self._suspects.get(partition)
        if place is not None and not (suspect and _same(suspect.place, place)):
            self._suspects[partition] = _Suspect(place, self._engine.now() + SUSPECT_S)

    def forget(self, partition: P) -> None:
        """Note that a partition has records, has all of the source, or is not read any more."""
        if self._suspects.pop(partition, None) is not None:
            self._engine.explain(partition, None)

    def due(self) -> list[P]:
        """The partitions that `read` is to be called for now.

        Those that wait at another place are suspects no more. One whose position is not known just
        now may come back to the same place, and is not forgotten before it is due.
        """
        for partition, suspect in list(self._suspects.items()):
            place = self._engine.place(partition)
            if place is not None and not _same(suspect.place, place):
                self.forget(partition)
        now = self._engine.now()
        idle = [(suspect.due, p) for p, suspect in self._suspects.items() if not suspect.reading]
        room = AT_ONCE - len(self._suspects) + len(idle)
        by_time = sorted((entry for entry in idle if entry[0] <= now), key=lambda entry: entry[0])
        due = [partition for _, partition in by_time[: max(room, 0)]]
        for partition in due:
            self._suspects[partition].reading = True
        return due

    async def read(self, partition: P) -> None:
        """Read a partition alone, and draw the conclusion."""
        suspect = self._suspects.get(partition)
        if suspect is None:
            return
        try:
            await self._read(partition, suspect)
        finally:
            suspect.reading = False

    def _is_current(self, partition: P, suspect: _Suspect) -> bool:
        """Whether what was read of this suspect still applies to the partition."""
        place = self._engine.place(partition)
        return (
            self._suspects.get(partition) is suspect
            and place is not None
            and _same(suspect.place, place)
        )

    async def _read(self, partition: P, suspect: _Suspect) -> None:
        if not self._is_current(partition, suspect):
            self.forget(partition)
            return
        asked_at = self._engine.now()
        suspect.due = asked_at + UNPROVEN_S
        try:
            answer = await self._engine.read_alone(partition, suspect.place.offset)
        except TwinlogError as error:
            log.info("%s: a read of this partition alone failed: %s", partition, error)
            return
        if answer is None or not self._is_current(partition, suspect):
            return
        fetched = answer.fetched
        if fetched.error:
            if code_of(fetched.error).reaction is Reaction.METADATA:
                self._engine.doubt_leaders(partition)
        elif fetched.diverging is not None:
            self._engine.diverged(partition, fetched.diverging)
        elif len(fetched.records):
            # An answer without records has another reason than that there are none.
            suspect.first = None
            reason = await self._engine.take(partition, fetched)
            if self._is_current(partition, suspect):
                self._engine.explain(partition, reason)
        else:
            self._judge(partition, suspect, reading_of(answer, suspect.place.offset, asked_at))

    def _judge(self, partition: P, suspect: _Suspect, second: Reading) -> None:
        first, suspect.first = suspect.first, second
        if first is None:
            suspect.due = second.at + LOOK_INTERVAL_S
            return
        verdict = judge(first, second)
        if isinstance(verdict, Absent) and not self._engine.compacted(partition):
            # The policy may have been set after records were lost: an operator decides.
            self._engine.explain(partition, LATER_COMPACTED.reason)
        elif isinstance(verdict, Absent):
            spans = (AbsentSpan(Absence.COMPACTED, verdict.end),)
            gap = Gap(second.offset, verdict.end, seen=False, spans=spans)
            log.info("%s: compaction has removed the source's last records: %s", partition, gap)
            self.forget(partition)
            self._engine.pass_over(partition, gap)
        elif isinstance(verdict, Impossible):
            self.forget(partition)
            self._engine.fail(partition, verdict.reason)
        else:
            redirected = second.preferred_replica >= 0
            known = self._engine.unreadable(partition) if redirected else None
            self._engine.explain(partition, known or verdict.reason)


def _same(place: WaitingPlace, other: WaitingPlace) -> bool:
    return place.offset == other.offset and place.queue is other.queue


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
