"""What was read of one partition, until a transaction with it is committed.

queued ──take()──► in a transaction ──committed()──► done
                          └──────── released() ────► queued again
"""

from collections import deque
from collections.abc import Iterable

from twinlog.engines.transactional.remote_tails import RemoteTail
from twinlog.engines.transactional.routed_tails import RoutedTails
from twinlog.kafka.log.leader_epochs import SourceEpochs
from twinlog.kafka.types import UNKNOWN_OFFSET, LeaderEpoch, Offset
from twinlog.mirror.plan import Data, Piece


class TransactionalQueue:
    """The queue of one partition (`SourceQueue`).

    Args:
        position: the source's offset at which it goes on; it is committed.
        epoch: the source's leader epoch of the record before; -1 if it is not known.
        fence: the number of the fence behind which `position` was read.
        has_begun: whether a position was found: the partition does not begin there.
        tail: of the remote partition, as committed with the position.
        routed: of other logs, in the same way.
    """

    def __init__(
        self,
        position: Offset,
        epoch: LeaderEpoch,
        *,
        fence: int = 0,
        has_begun: bool = False,
        tail: RemoteTail | None = None,
        routed: RoutedTails = (),
    ) -> None:
        self.fence = fence
        self.tail = tail
        self.routed = routed
        self.has_begun = has_begun
        self.epochs = SourceEpochs()
        """The leader epochs of what was read (KIP-320)."""
        self.epochs.place(position, epoch)
        self.position = position
        """The source's offset from which the next piece is wanted."""
        self.mirrored_end = position
        """The source's offset up to which everything is committed, or has no record."""
        self.recorded = position
        """The committed position."""
        self.queued_bytes = 0
        self.taken_bytes = 0
        """Of `queued_bytes`, those in a transaction."""
        self._pieces: deque[Piece] = deque()
        self._taken = 0  # the first pieces, which are in a transaction

    @property
    def destination_end(self) -> int:
        """Unknown: records of a partition may go to several."""
        return UNKNOWN_OFFSET

    @property
    def idle(self) -> bool:
        """Whether nothing is queued or in a transaction."""
        return not self._pieces

    @property
    def has_data(self) -> bool:
        """Whether there are records for a transaction."""
        return not self._taken and bool(self._pieces)

    def offer(self, pieces: Iterable[Piece]) -> None:
        """Queue pieces that follow each other from `position` on."""
        for piece in pieces:
            assert piece.start == self.position
            self._pieces.append(piece)
            self.position = piece.end
            if isinstance(piece, Data):
                self.queued_bytes += piece.held
        self._skip_gaps()

    def take(self, max_bytes: int) -> tuple[list[Data], Offset]:
        """The next batches for a transaction, at least one, and the position behind them.

        Gaps before, between and behind them pass with them.
        """
        assert not self._taken
        taken: list[Data] = []
        end, size = self.mirrored_end, 0
        for piece in self._pieces:
            if isinstance(piece, Data):
                if taken and size + piece.held > max_bytes:
                    break
                taken.append(piece)
                size += piece.held
            end = piece.end
            self._taken += 1
        self.taken_bytes = size
        return taken, end

    def released(self) -> None:
        """Note that the transaction was aborted: its batches are next again."""
        self._taken = self.taken_bytes = 0
        self._skip_gaps()

    def committed(self, end: Offset) -> None:
        """Note that the transaction is committed, with this position."""
        for _ in range(self._taken):
            piece = self._pieces.popleft()
            if isinstance(piece, Data):
                self.queued_bytes -= piece.held
        self._taken = self.taken_bytes = 0
        self.recorded = end
        # A gap may have been passed meanwhile, if nothing but a position was in the transaction.
        self.mirrored_end = max(self.mirrored_end, end)
        self._skip_gaps()

    def _skip_gaps(self) -> None:
        """Pass over offsets without a record, if nothing is before them."""
        while not self._taken and self._pieces and not isinstance(self._pieces[0], Data):
            self.mirrored_end = self._pieces.popleft().end
