"""From which leader epochs of the source a mirror has what it holds, as far as it has seen them.

Each batch of a log bears the epoch of the leader that appended it. Whoever reads on tells the epoch
of the record before (KIP-320): a leader in whose log that epoch ends earlier says so, and sends
nothing. Without, a source that has lost its end (an unclean election, a lost disk) and has then
grown past the mirror's position would be read on as if nothing had happened:

    mirrored   | epoch 4: 0-79 | epoch 5: 80-99 |
    source     | epoch 4: 0-79 | epoch 6: 80-119          |   read on at 100, after epoch 5:
                                                              "epoch 4 ends at 80"

An epoch must be told for its own offsets only: one that is too old or too new is taken for a
divergence that is none. So what was not seen is not guessed. Holes that compaction has left, and
messages of the formats v0 and v1, have no epoch that we could know, unless the same one stands on
both sides: along a log, epochs only grow.
"""

from typing import Final, NamedTuple

from twinlog.kafka.log.batch import LegacyBatch, batches
from twinlog.kafka.types import UNKNOWN_EPOCH, LeaderEpoch, Offset

MAX_RUNS: Final = 8
"""Runs that are kept; what lies further back is known to nobody here, and asked of the source."""


class _Run(NamedTuple):
    """Offsets `[start, end)` that are of one epoch."""

    start: Offset
    end: Offset
    epoch: LeaderEpoch


class SourceEpochs:
    """The epochs of one partition's last offsets."""

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        self._runs: list[_Run] = []

    def before(self, offset: Offset) -> LeaderEpoch:
        """The epoch of the record before `offset`; -1 where it is not known."""
        for start, end, epoch in reversed(self._runs):
            if start < offset:
                return epoch if offset <= end else UNKNOWN_EPOCH
        return UNKNOWN_EPOCH

    def learn(self, end: Offset, epoch: LeaderEpoch) -> None:
        """The source was read up to `end`, which is further than before; the last record's epoch.

        Args:
            end: the offset after the last that was read.
            epoch: -1 if it has none.
        """
        if epoch == UNKNOWN_EPOCH:
            return
        runs = self._runs
        if runs and runs[-1].epoch == epoch:
            runs[-1] = _Run(runs[-1].start, end, epoch)
        else:
            runs.append(_Run(Offset(end - 1), end, epoch))
            del runs[:-MAX_RUNS]

    def place(self, end: Offset, told: LeaderEpoch) -> None:
        """Go on from another position: what was read behind it counts no more.

        Args:
            end: the position.
            told: the epoch that the source has before it now, for where we know none; or -1.
        """
        self._runs = [run._replace(end=min(run.end, end)) for run in self._runs if run.start < end]
        if self.before(end) == UNKNOWN_EPOCH:
            self.learn(end, told)


def epoch_at(records: memoryview, offset: int) -> LeaderEpoch:
    """The leader epoch of the batch that holds `offset`; -1 if none of these does, or it has none.

    Raises:
        CorruptBatch: see `batch.batches`.
    """
    try:
        for header in batches(records):
            if offset < header.next_offset:
                known = offset >= header.base_offset
                return LeaderEpoch(header.leader_epoch) if known else UNKNOWN_EPOCH
    except LegacyBatch:
        pass  # these messages have none, and nobody writes them any more
    return UNKNOWN_EPOCH
