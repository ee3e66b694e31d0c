"""How much of the source a transaction has, so that it is committed well before its timeout.

The coordinator rolls back a transaction that is open for longer than `transaction.timeout.ms`. How
long one takes is known afterwards only: a Produce request takes one batch of a partition, the next
one waits for its answer, and batches may be as small as the source's. So the bound follows from how
long transactions have taken:

| a transaction took | it was committed | it was not |
| --- | --- | --- |
| less than a twelfth of the timeout | twice as much from now on, up to the usual bound | the same |
| up to a third | the same | the same |
| more | half as much as it had | a quarter |

The least is one batch of one partition.
"""

from collections.abc import Collection, Sequence
from typing import Final, TypeVar

_T = TypeVar("_T")

LEAST_BYTES: Final = 64 * 1024
"""Of each partition in a transaction with many."""


class TransactionSize:
    """The bound of one transactional id.

    Args:
        max_bytes: the usual bound, of what batches of the source take in memory (`Data.held`).
        timeout_s: the transaction's timeout, in seconds.
    """

    def __init__(self, max_bytes: int, timeout_s: float) -> None:
        self.bytes = max_bytes
        """The present bound; at least one batch is taken in any case."""
        self._timeout_s = timeout_s
        self._max_bytes = max_bytes
        self._turns = 0
        self._last_turns: dict[object, int] = {}  # by partition, also of other flows

    def chosen(self, waiting: Sequence[_T]) -> tuple[Collection[_T], int]:
        """Which of the partitions that have records have a share of a transaction, and its bytes.

        All of them, until the bound is too small for it. Then they take turns.
        """
        self._turns += 1
        count, share = len(waiting), min(self.bytes, LEAST_BYTES)
        if not count:
            return (), share
        if self.bytes < self._max_bytes:
            count = min(count, max(self.bytes // LEAST_BYTES, 1))
        in_turn = sorted(waiting, key=lambda one: self._last_turns.get(one, 0))[:count]
        self._last_turns |= dict.fromkeys(in_turn, self._turns)
        return in_turn, max(self.bytes // count, share)

    def is_late(self, seconds: float) -> bool:
        """Whether a transaction that is open for so long is ended, as the next one is smaller.

        The rest of the timeout is for what is in flight.
        """
        return self.bytes > LEAST_BYTES and seconds > self._timeout_s * 2 / 3

    def ended(self, size: int, seconds: float, *, committed: bool) -> None:
        """Note how long a transaction with so many bytes took."""
        if not size:
            return
        if seconds > self._timeout_s / 3:
            self.bytes = max(min(self.bytes, size) // (2 if committed else 4), 1)
        elif committed and seconds < self._timeout_s / 12:
            self.bytes = min(max(self.bytes, size) * 2, self._max_bytes)
