"""What an owner knows of its mirror partitions: the stored and the reported states, and the ends.

**Reported and stored states.** The next step follows from the state that was last reported
(*said*), even if it is not stored yet. Only the transitions of mirror/states.py are written,
starting from the stored state (`way`): a partition that is removed while PREPARING becomes FAILED
on its way to STOPPING.

After a write of unknown outcome, all states are read again before the next write. A stored STOPPED
is not written twice, since users may write to the topic from then on. If a stored state is neither
the former one nor the one that was written, another owner has written it, and the reported states
are void.

**Begun stops.** A stop that this owner has begun with a partition that was MIRRORING or paused has
no fence of another owner: STOPPING is stored before the first one, and the state before it says
that none was left (`begun_stops`). Otherwise a former owner may have begun it.

**Last mirrored ends.** What an earlier owner has proven counts as far as the log reaches. Where the
destination's log differs for good, the proven end counts, not the log's; that it differs is stored
with the end.

It uses no network and no clock: ownership.py reads and writes.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

from twinlog.engines.base import PartitionProgress, Sealed
from twinlog.kafka.errors import Fenced
from twinlog.kafka.types import UNKNOWN_EPOCH, UNKNOWN_OFFSET, Offset
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.states import State
from twinlog.runtime.steps import way
from twinlog.store.control_topics import States
from twinlog.store.state_records import UNCONFIRMED_TEXT, LastMirrored, PartitionState

MOST_PRODUCERS: Final = 64
"""How many ids of data producers are kept for a partition: the latest ones."""
_PLACED: Final = frozenset({State.MIRRORING, State.PAUSING, State.PAUSED})
"""States in which all that the destination's log had at first is known to be the source's."""
_NOT_BEGUN: Final = frozenset({State.PREPARING, State.STOPPING})
"""States of partitions that are `unsure`."""


class Unwritten(NamedTuple):
    """What is to be written, and the reports that it stands for."""

    records: list[PartitionState]
    """Each with all transitions on the way from the stored state."""
    ends: dict[MirrorPartition, LastMirrored]
    said: dict[MirrorPartition, PartitionState]
    ends_said: dict[MirrorPartition, LastMirrored]


class ReportedStates:
    """The states of the partitions of one owned state partition."""

    def __init__(self) -> None:
        self.unsure: set[MirrorPartition] = set()
        """Partitions that were STOPPED and are PREPARING, but may not be wanted any more."""
        self.certain = False
        """Whether the stored states are known; not after a write of unknown outcome."""
        self._takeover_states = States({}, {})  # the states as read at the last takeover
        self._stored_states: dict[MirrorPartition, PartitionState] = {}
        self._mirrored: dict[MirrorPartition, LastMirrored] = {}
        self._reports: dict[MirrorPartition, PartitionState] = {}  # reported, and not written yet
        self._mirrored_said: dict[MirrorPartition, LastMirrored] = {}
        # The end up to which this owner has proven the log.
        self._proved: dict[MirrorPartition, Offset] = {}
        self.begun_stops: set[MirrorPartition] = set()
        """Whose stop this owner has begun, and which had been placed before."""
        # States in writes of unknown outcome.
        self._in_doubt: dict[MirrorPartition, set[State]] = {}

    # ---- what is stored ------------------------------------------------------------------------

    def adopt(self, states: States) -> None:
        """Take the states that a takeover has read."""
        self._stored_states, self._mirrored = dict(states.states), dict(states.epochs)
        self.unsure |= {n for n, state in states.states.items() if state.unconfirmed}
        self._takeover_states = states
        self.certain = True

    def adopt_again(self, states: States) -> None:
        """Take the states that a repeated takeover has read.

        Raises:
            Fenced: another owner has written meanwhile.
        """
        for name, current in states.states.items():
            previous = self._stored_states.get(name)
            if current != previous and current.state not in self._in_doubt.get(name, ()):
                raise Fenced(f"another owner has written {current.state.name} of {name}")
            if current != previous:
                self.begun_stops.discard(name)  # another owner may have written the same
        if states.unreadable != self._takeover_states.unreadable:
            raise Fenced("another owner has written a record that cannot be read")
        self.unsure &= states.states.keys()  # the state of a deleted mirror is gone
        self.adopt(states)

    @property
    def anything_to_write(self) -> bool:
        """Whether something was reported that may not be stored."""
        return bool(self._reports or self._mirrored_said)

    def unwritten(self) -> Unwritten:
        """What is to be written."""
        reports, ends_said = dict(self._reports), dict(self._mirrored_said)
        records = [
            record
            for name, change in reports.items()
            for record in way(self._stored_states.get(name), change)
        ]
        ends = {
            name: last_mirrored
            for name, last_mirrored in ends_said.items()
            if self._mirrored.get(name) != last_mirrored
        }
        return Unwritten(records, ends, reports, ends_said)

    def writing(self, unwritten: Unwritten) -> None:
        """Note that a write begins: until `wrote`, the stored states are not certain."""
        self.certain = False
        for record in unwritten.records:
            self._in_doubt.setdefault(record.partition, set()).add(record.state)

    def wrote(self) -> None:
        """Note that the write was acknowledged."""
        self.certain = True
        self._in_doubt.clear()

    def settle(self, unwritten: Unwritten) -> None:
        """Remove what is stored now from the reports, unless they have changed meanwhile."""
        self._stored_states.update((record.partition, record) for record in unwritten.records)
        self._mirrored |= unwritten.ends
        for name, change in unwritten.said.items():
            if self._reports.get(name) is change:
                del self._reports[name]
        for name, last_mirrored in unwritten.ends_said.items():
            if self._mirrored_said.get(name) is last_mirrored:
                del self._mirrored_said[name]

    def unread(self, name: MirrorPartition) -> bool:
        """Whether a record of this partition cannot be read."""
        return bool(self._takeover_states.unread(name))

    def never_owned(self, names: Iterable[MirrorPartition]) -> set[MirrorPartition]:
        """Those of these that have no stored state: no lane has ever begun with them."""
        return {name for name in names if name not in self._stored_states}

    def forget(self, topics: Collection[tuple[str, str]]) -> None:
        """Forget these (mirror, topic): the mirror was deleted since, and the states with it."""
        self.unsure = {name for name in self.unsure if name[:2] not in topics}
        _drop((self._stored_states, self._reports), topics)
        self.forget_ends(topics)

    def forget_ends(self, topics: Collection[tuple[str, str]]) -> None:
        """Forget the mirrored ends of these: the destination's topic was recreated since."""
        _drop((self._mirrored, self._mirrored_said, self._proved), topics)

    # ---- states --------------------------------------------------------------------------------

    def state(self, name: MirrorPartition) -> State:
        """The state that was last reported; UNKNOWN if there is none."""
        change = self._reports.get(name) or self._stored_states.get(name)
        return State.UNKNOWN if change is None else change.state

    def stopping(self) -> list[PartitionState]:
        """The partitions that are STOPPING."""
        states = {**self._stored_states, **self._reports}.values()
        return [state for state in states if state.state is State.STOPPING]

    def to_begin_again(self, names: Collection[MirrorPartition]) -> set[MirrorPartition]:
        """The partitions of these that are STOPPED, or `unsure`."""
        return {n for n in names if n in self.unsure or self.state(n) is State.STOPPED}

    def say(self, change: PartitionState) -> None:
        """Report a state; the next write includes it, unless it is stored already."""
        if self._stored_states.get(change.partition) == change and self.certain:
            self._reports.pop(change.partition, None)
        else:
            self._reports[change.partition] = change

    def enter(self, states: Mapping[MirrorPartition, State]) -> None:
        """Report these states, where they are other ones."""
        for name, state in states.items():
            if self.state(name) is not state:
                if state is State.STOPPING and self.state(name) in _PLACED:
                    self.begun_stops.add(name)
                else:
                    self.begun_stops.discard(name)
                unconfirmed = name in self.unsure and state in _NOT_BEGUN
                reason = UNCONFIRMED_TEXT if unconfirmed else None
                self.say(PartitionState(name, state, reason, unconfirmed))

    def changed(self, name: MirrorPartition, state: State, reason: str | None) -> None:
        """Report another state of a partition; one that is resumed goes to MIRRORING directly."""
        if state is State.PREPARING and self.state(name) in {State.PAUSED, State.PAUSING}:
            return
        self.say(PartitionState(name, state, reason))

    def observe(self, row: PartitionProgress) -> None:
        """Take what an engine reports of one of its partitions."""
        self.mirrored(row)
        if row.state is not self.state(row.name):
            self._mirrored_said[row.name] = self.last(row.name)
        self.changed(row.name, row.state, row.reason)

    # ---- last mirrored ends --------------------------------------------------------------------

    def mirrored(self, row: PartitionProgress) -> None:
        """Take up to where a partition is mirrored, and the source's leader epoch of its end.

        A new epoch is written at the next write: a failover without the source could not ask for it
        any more. So is that the logs differ: only the engine that has seen it knows that, and
        another owner may have to stop the partition. The end is written when the state changes.
        """
        name = row.name
        if row.destination_end >= 0:
            # What an earlier owner has proven counts as far as the log reaches.
            mirrored_end = min(self.last(name).end, row.destination_end)
            self._proved[name] = Offset(max(row.proved_end, mirrored_end))
        last_mirrored = self.last(name)
        epoch = last_mirrored.epoch if row.epoch == UNKNOWN_EPOCH else row.epoch
        # An engine without a position has shown nothing.
        differs = row.differs or (last_mirrored.differs and row.destination_end < 0)
        if (epoch, differs) != (last_mirrored.epoch, last_mirrored.differs):
            self._mirrored_said[name] = last_mirrored._replace(epoch=epoch, differs=differs)

    def note_writers(
        self, writers: int, names: Iterable[MirrorPartition], *, may_begin: bool = False
    ) -> None:
        """Report the id of the partitions' writers, before anything is appended under it.

        `may_begin`: also that those have not begun that have never had an owner (`Beginnings`).

        A transactional id has another producer id when its epochs are used up, and when it has
        expired at its coordinator (transactional.id.expiration.ms, a week by default).
        """
        for name in names:
            last_mirrored = self.last(name)
            if writers not in last_mirrored.producers:
                producers = (*last_mirrored.producers, writers)[-MOST_PRODUCERS:]
                last_mirrored = last_mirrored._replace(producers=producers)
            if may_begin and last_mirrored.begun is None and name not in self._stored_states:
                last_mirrored = last_mirrored._replace(begun=False)
            if last_mirrored != self.last(name):
                self._mirrored_said[name] = last_mirrored

    def note_begun(self, names: Iterable[MirrorPartition]) -> bool:
        """Report that these have begun; return whether that is stored already."""
        unstored = [n for n in names if n not in self._mirrored or not self._mirrored[n].begun]
        for name in unstored:
            self._mirrored_said[name] = self.last(name)._replace(begun=True)
        return not unstored

    def last(self, name: MirrorPartition) -> LastMirrored:
        """What is known of a partition's last mirrored end."""
        unknown = LastMirrored(UNKNOWN_EPOCH, UNKNOWN_OFFSET)
        last_mirrored = self._mirrored_said.get(name) or self._mirrored.get(name, unknown)
        return last_mirrored._replace(end=self._proved.get(name, last_mirrored.end))

    def sealed(self, name: MirrorPartition, sealed: Sealed) -> None:
        """Take the last mirrored end of a sealed partition."""
        self._proved.pop(name, None)
        self._mirrored_said[name] = self.last(name)._replace(end=sealed.end, differs=False)
        # Written even if unchanged: the stored end may be deleted with an earlier mirror's states.
        self._mirrored.pop(name, None)
        if sealed.reason is not None:
            self.say(PartitionState(name, State.STOPPED, sealed.reason))


def _drop(
    tables: Iterable[dict[MirrorPartition, Any]], topics: Collection[tuple[str, str]]
) -> None:
    for table in tables:
        for name in [name for name in table if name[:2] in topics]:
            del table[name]
