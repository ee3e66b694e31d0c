"""The source's leader epochs of the offsets that a mirror holds, as far as it has seen them.

Each batch of a log carries the epoch of the leader that appended it. A Fetch request carries the
epoch of the record before its offset (KIP-320): a leader in whose log that epoch ends earlier
reports it, and sends no records. Without this, a source that has lost its end (an unclean election,
a lost disk) and has then grown past the mirror's position would be read as if nothing had happened:

    mirrored   | epoch 4: 0-79 | epoch 5: 80-99 |
    source     | epoch 4: 0-79 | epoch 6: 80-119          |   read at 100, after epoch 5:
                                                              "epoch 4 ends at 80"

An epoch must be sent for its own offsets only: one that is too old or too new looks like a
divergent tail that does not exist. So an epoch that was not seen is not guessed. Offsets in holes
that compaction has left, and messages of the formats v0 and v1, have no known epoch, unless both
sides of them have the same one: along a log, epochs only grow.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from twinlog.kafka.log.batch import LegacyBatch, batches
from twinlog.kafka.types import UNKNOWN_EPOCH, LeaderEpoch, Offset

MAX_RUNS: Final = 8
"""Runs that are kept; the epochs of earlier offsets are requested from the source."""


class EpochRun(NamedTuple):
    """Offsets `[start, end)` of one epoch."""

    start: Offset
    end: Offset
    epoch: LeaderEpoch


class SourceEpochs:
    """The epochs of one partition's last offsets.

    `runs` are in order: those that were known before.
    """

    __slots__ = ("_runs",)

    def __init__(self, runs: Iterable[EpochRun] = ()) -> None:
        self._runs = list(runs)

    @property
    def runs(self) -> tuple[EpochRun, ...]:
        """What is known."""
        return tuple(self._runs)

    def before(self, offset: Offset) -> LeaderEpoch:
        """The epoch of the record before `offset`; -1 if it is not known."""
        for start, end, epoch in reversed(self._runs):
            if start < offset:
                return epoch if offset <= end else UNKNOWN_EPOCH
        return UNKNOWN_EPOCH

    def learn(self, end: Offset, epoch: LeaderEpoch) -> None:
        """Record that the source was read up to `end`, further than before, and the last epoch.

        Args:
            end: the offset after the last that was read.
            epoch: of the last record; -1 if it has none.
        """
        if epoch == UNKNOWN_EPOCH:
            return
        runs = self._runs
        if runs and runs[-1].epoch == epoch:
            runs[-1] = EpochRun(runs[-1].start, end, epoch)
        else:
            runs.append(EpochRun(Offset(end - 1), end, epoch))
            del runs[:-MAX_RUNS]

    def place(self, end: Offset, source_epoch: LeaderEpoch) -> None:
        """Continue at another position; what was read beyond it is dropped.

        Args:
            end: the position.
            source_epoch: the epoch that the source has before it now, used if none is known; or -1.
        """
        self._runs = [run._replace(end=min(run.end, end)) for run in self._runs if run.start < end]
        if self.before(end) == UNKNOWN_EPOCH:
            self.learn(end, source_epoch)


def epoch_at(records: memoryview, offset: int) -> LeaderEpoch:
    """The leader epoch of the batch that holds `offset`; -1 if none of these does, or it has none.

    Raises:
        CorruptBatch: see `batch.batches`.
    """
    try:
        for header in batches(records):
            if offset < header.next_offset:
                in_batch = offset >= header.base_offset
                return LeaderEpoch(header.leader_epoch) if in_batch else UNKNOWN_EPOCH
    except LegacyBatch:
        pass  # these messages have no epoch, and brokers cannot write them any more
    return UNKNOWN_EPOCH
