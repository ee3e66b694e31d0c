"""Confirms that the lane still owned partitions when their absent offsets had been planned.

The source may compact its log, or delete from it, between the reads of two owners whose times
overlap. The new owner has read records and sent them; the former owner, within its lease, finds
these offsets absent. If it filled them, the new owner's batch would land behind them, since the
sequence goes on behind a gap as if the gap were not there. So offsets are filled without bytes that
prove them absent only if the lane owned the partition after it had read this: whoever owns it later
reads later, and finds them absent, too.
"""

from twinlog.engines.exact.append import plan_of
from twinlog.engines.exact.events import Confirmed
from twinlog.engines.exact.partition import ExactPartition
from twinlog.engines.exact.plane import Plane


class Confirmations:
    """The partitions whose plans wait to be confirmed; one request confirms all of them."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._partitions: set[ExactPartition] = set()
        self._running = False

    def want(self, partition: ExactPartition) -> None:
        """Confirm what is planned for it now."""
        self._partitions.add(partition)
        if not self._running:
            self._running = True
            self._plane.start(self._confirm())

    def forget(self, partition: ExactPartition) -> None:
        """Do not confirm what is planned for it."""
        self._partitions.discard(partition)

    async def _confirm(self) -> None:
        try:
            while self._partitions:
                plans = [(p, plan_of(p.append)) for p in self._partitions if p.append.unconfirmed]
                self._partitions.clear()
                if plans:
                    await self._plane.confirm_ownership()
                for partition, plan in plans:
                    self._plane.emit(partition, Confirmed(plan))
        finally:
            self._running = False
