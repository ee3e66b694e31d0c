"""Checks every state that is written, and what is appended to a log in each state.

This is an independent oracle: it knows the commands and sees what is written and appended, never
the state inside the lanes.

    written    only transitions of mirror/states.py; at the end each partition is in its desired
               state
    PAUSED     nothing is appended until it is resumed, except what was in flight before: that has
               arrived after one lease, or at once if there are no faults (`late_s` is 0)
    STOPPED    the log contains a fence; the stored end of what was mirrored is the offset of the
               first fence; from then on only users write to the topic, and neither that end nor
               the state is stored differently any more
    lost       a partition that becomes STOPPED after its state was lost has no end, and no fence
               but that of an owner before: its users may have been writing to it for long
"""

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import takewhile
from typing import Final, NamedTuple

from model.cluster import Cluster
from model.coordinator import State as TransactionState
from model.log import StoredBatch
from model.states import Epochs
from simulation.checker import Checker, Violation
from simulation.lanes import MIRROR
from twinlog.kafka.log.compression import Codec
from twinlog.kafka.log.records import RawRecord, build, encode_tail, whole
from twinlog.kafka.types import TopicPartition
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.states import State, may_follow
from twinlog.store.config_records import MirrorTopic, Wanted
from twinlog.store.state_records import PartitionState

USER_SECONDS: Final = 0.5
"""Mean time between the records that a user writes to a STOPPED topic."""
RESTS: Final[Mapping[Wanted, frozenset[State]]] = {
    Wanted.MIRRORING: frozenset({State.MIRRORING}),
    Wanted.PAUSED: frozenset({State.PAUSED, State.UNKNOWN, State.FAILED}),
    Wanted.STOPPED: frozenset({State.STOPPED}),
}
"""The final states. A partition that never began, or is FAILED, has nothing to pause."""


class _Ids(NamedTuple):
    """The producer ids of a shard; each transactional id may have had several."""

    data: set[int]
    markers: set[int]


def _is_by(stored: StoredBatch, ids: Collection[int]) -> bool:
    return stored.header.is_control and stored.header.producer_id in ids


class Life:
    """See the module. `late_s`: how long after PAUSED a request may still arrive."""

    def __init__(
        self, destination: Cluster, checker: Checker, rng: random.Random, late_s: float
    ) -> None:
        self.states: dict[MirrorPartition, State] = {}
        self.topics: dict[str, MirrorTopic] = {}
        self.shards: dict[TopicPartition, int] = {}
        self.quiet = False
        self.stopped: dict[TopicPartition, int] = {}
        self._destination = destination
        self._checker = checker
        self._rng = rng
        self._late_s = late_s
        self._ends: dict[MirrorPartition, int] = {}
        self._paused: dict[MirrorPartition, float] = {}
        self._ids: dict[TopicPartition, _Ids] = {}
        self._user = False
        self._begun: set[MirrorPartition] = set()
        self._lost: set[MirrorPartition] = (
            set()
        )  # the state was lost, and mirroring has not begun since
        # Partitions that were being fenced when their state was lost: the coordinator completes it.
        self._fencing: set[TopicPartition] = set()
        self.foreign: dict[TopicPartition, int] = {}  # offset of the first foreign record

    # ---- commands ------------------------------------------------------------------------------

    def command(self, topic: MirrorTopic) -> None:
        """Note a topic's new desired state."""
        self.topics[topic.topic] = topic
        if topic.wanted is not Wanted.PAUSED:
            for name in [name for name in self._paused if name.topic == topic.topic]:
                del self._paused[name]

    def disagreeing(self) -> dict[TopicPartition, object]:
        """Return the partitions that are not in a final state of their desired state."""
        found: dict[TopicPartition, object] = {}
        for key in self.shards:
            topic = self.topics.get(key.topic)
            state = self.states.get(MirrorPartition(MIRROR, *key), State.UNKNOWN)
            if topic is not None and state not in RESTS[topic.wanted]:
                found[key] = f"{state.name}, wanted is {topic.wanted.name}"
        return found

    def lose(self, names: Collection[MirrorPartition]) -> None:
        """Forget the stored states of these partitions."""
        for name in names:
            if self.states.pop(name, None) is State.STOPPING and self._fence_is_due(name.source):
                self._fencing.add(name.source)
            self._ends.pop(name, None)
            self._paused.pop(name, None)
        self._begun -= set(names)
        self._lost |= set(names)

    def _fence_is_due(self, key: TopicPartition) -> bool:
        """Return whether the coordinator has still to write a marker of the data id."""
        data = self._destination.coordinator._ids.get(f"twinlog.{self.shards[key]}")
        ongoing = {TransactionState.ONGOING, TransactionState.ENDING}
        return data is not None and data.state in ongoing and key in data.partitions

    # ---- stored states -------------------------------------------------------------------------

    def written(self, states: Sequence[PartitionState], epochs: Epochs) -> None:
        """Check what is being written to `__mirror_state`."""
        for name, last in epochs.items():
            known = self.stopped.get(name.source)
            if known not in {None, last.end}:
                raise Violation(f"{name}: it ended at {known}, and now at {last.end}")
            self._ends[name] = last.end
        for change in states:
            self._enter(change)

    def _enter(self, change: PartitionState) -> None:
        name, old = change.partition, self.states.get(change.partition, State.UNKNOWN)
        if not may_follow(old, change.state):
            raise Violation(f"{name} goes from {old.name} to {change.state.name}")
        self.states[name] = change.state
        self._paused.pop(name, None)
        if change.state is State.PREPARING:
            self._begun.add(name)
            self._lost.discard(name)
        if change.state is State.PAUSED and self.topics[name.topic].wanted is Wanted.PAUSED:
            self._paused[name] = self._destination.loop.time()
        if change.state is State.STOPPED:
            self._stop(name)

    def _stop(self, name: MirrorPartition) -> None:
        key = name.source
        if name in self._lost:
            if self._ends.get(name, -1) >= 0:
                raise Violation(f"{key}: its state was lost, and it is said to end somewhere")
            if key not in self.stopped:
                self.stopped[key] = -1
                # A former owner may have fenced it already: the mirrored data ends there.
                end = self._destination.log(key).end
                self._checker.ended[key] = min(end, self._checker.ended.get(key, end))
                self._later(key)
            return
        if name not in self._begun:
            self.stopped[key] = -1  # the mirror never wrote to it
            self._checker.ended[key] = 0
            self._later(key)
            return
        firsts = self._fences(key, self._destination.log(key).batches)
        said = self._ends.get(name)
        if not firsts:
            raise Violation(f"{key} is STOPPED and not fenced")
        ends = self._foreign_in_log(key)[:1] or firsts
        if said is None or said not in ends:
            raise Violation(f"{key} is STOPPED, mirrored up to {ends}, and said to end at {said}")
        self.stopped[key] = said
        self._later(key)

    def _foreign_in_log(self, key: TopicPartition) -> list[int]:
        """Return the offsets of the foreign records that the log still contains.

        Foreign records below the log start offset shifted no offsets: each took the place of a
        filler.
        """
        first = self.foreign.get(key)
        return [
            stored.header.base_offset
            for stored in self._destination.log(key).batches
            if first is not None
            and stored.header.base_offset >= first
            and stored.header.producer_id < 0
        ]

    def _fences(self, key: TopicPartition, batches: Sequence[StoredBatch]) -> list[int]:
        """Return where fences begin in the control records that end a log, the first fence first.

        There are several if written markers have landed between the fences of two owners.
        """
        ids = self._ids[key]
        own_ids = {*ids.data, *ids.markers}
        tail = list(takewhile(lambda b: _is_by(b, own_ids), reversed(batches)))[::-1]
        return [
            stored.header.base_offset
            for at, stored in enumerate(tail)
            if _is_by(stored, ids.data) and not (at and _is_by(tail[at - 1], ids.data))
        ]

    # ---- appends -------------------------------------------------------------------------------

    def watch(self, key: TopicPartition) -> Callable[[StoredBatch], None]:
        """Return a callback to call at each append to this destination partition."""
        look = self._checker.watch(key)

        def appended(stored: StoredBatch) -> None:
            self._note_ids(key)
            if self._may_stand(key, stored):
                look(stored)

        return appended

    def _note_ids(self, key: TopicPartition) -> None:
        """Note the shard's data producer ids (their markers are fences) and marker producer ids."""
        name, known = f"twinlog.{self.shards[key]}", self._destination.coordinator._ids
        for found, transactional in zip(
            self._ids.setdefault(key, _Ids(set(), set())),
            (known.get(name), known.get(f"{name}.marker")),
            strict=True,
        ):
            if transactional is not None:
                found.add(transactional.producer_id)

    def _may_stand(self, key: TopicPartition, stored: StoredBatch) -> bool:
        """Return whether the batch belongs to the mirrored prefix, which `checker.py` checks."""
        if self._user:
            return False
        if key in self.foreign and key not in self.stopped:
            return False  # the log differs from the source's, until it is fenced
        offset = stored.header.base_offset
        if key in self.stopped:
            raise Violation(f"{key}: something is appended at {offset}, behind STOPPED")
        batches, ids = self._destination.log(key).batches, self._ids[key]
        stopping = self.states.get(MirrorPartition(MIRROR, *key)) is State.STOPPING
        stopping |= key in self._fencing
        if _is_by(stored, ids.data) and stopping:
            self._checker.ended[key] = self._fences(key, batches)[0]
            return False
        if key in self._checker.ended and self._fences(key, batches[:-1]):
            if _is_by(stored, ids.markers):
                return False
            raise Violation(f"{key}: something is appended at {offset}, behind a fence")
        self._checker.ended.pop(key, None)  # an unreplicated fence may be lost; it is written again
        since = self._paused.get(MirrorPartition(MIRROR, *key))
        late = 0.0 if since is None else self._destination.loop.time() - since
        # A lost request may leave a filler transaction open. Its gap then ends with a marker when
        # the next owner or the coordinator aborts the transaction.
        if since is not None and late >= self._late_s and not stored.header.is_control:
            raise Violation(f"{key}: something is appended at {offset}, {late:.1f} s after PAUSED")
        return True

    # ---- users ---------------------------------------------------------------------------------

    def _later(self, key: TopicPartition) -> None:
        delay = self._rng.expovariate(1 / USER_SECONDS)
        self._destination.loop.later(delay, lambda: self._write(key))

    def intrude(self, topic: str) -> None:
        """Let a foreign producer write to a removed topic before it is fenced."""
        for key in [key for key in self.shards if key.topic == topic]:
            led = self._destination.partition(key).leader >= 0
            batches = self._destination.log(key).batches
            fenced = key in self._ids and self._fences(key, batches)
            if led and MirrorPartition(MIRROR, *key) in self.states and not fenced:
                for _ in range(self._rng.randrange(4)):
                    self.foreign.setdefault(key, self._destination.log(key).end)
                    self._append(key)
                if key in self.foreign:
                    self._checker.ended[key] = self.foreign[key]

    def _write(self, key: TopicPartition) -> None:
        """Append a user's record to a STOPPED topic, again and again."""
        if self.quiet:
            return
        self._append(key)
        self._later(key)

    def _append(self, key: TopicPartition) -> None:
        partition = self._destination.partition(key)
        if partition.leader >= 0:
            tail = memoryview(encode_tail(b"user", b"user"))
            record = RawRecord(0, self._destination.now_ms, 0, tail)
            self._user = True
            partition.log.append(
                whole(build([record], Codec.NONE), producer_id=-1, epoch=-1, sequence=-1)
            )
            self._user = False
            if not partition.lagging:
                self._destination._replicate(partition)
