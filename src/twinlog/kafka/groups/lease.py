"""The time for which no other member can own a member's partitions.

The coordinator gives a member's partitions to other members only if it has received nothing from
the member for the session timeout, counted from when the last heartbeat *arrived*. The heartbeat
arrived after it was sent, so no other member has the partitions until `sent + session timeout`. The
lease ends at a fraction of that (`LEASE`), which leaves room for clocks that run at different
rates, and for a write that was checked and is still in flight.

A member also loses its partitions if it does not rejoin within the rebalance timeout. A heartbeat
answered with 27 means that a rebalance is in progress, which began after the last heartbeat that
was answered with 0. So 27 extends the lease at most to `LEASE * rebalance timeout` after that one.

A coordinator that is loading the group answers 0 whoever asks. Such an answer keeps a lease that
has not ended when it arrives (`keep`): the coordinator before had not removed the member then, and
the new one gives every member a whole session timeout after it has loaded the group.

The lease is safe only if the coordinator is the one that the other brokers know: see
`membership.py`.
"""

from collections.abc import Callable
from typing import Final

from twinlog.kafka.groups.group_config import GroupConfig

LEASE: Final = 0.8
"""Fraction of the session timeout for which an answered heartbeat extends the lease."""

_NEVER: Final = float("-inf")


class Lease:
    """A member's lease. All times are of the member's clock, in seconds."""

    def __init__(self, config: GroupConfig, clock: Callable[[], float]) -> None:
        self._session_timeout = config.session_timeout
        self._rebalance_timeout = config.rebalance_timeout
        self._clock = clock
        self._until = _NEVER
        self._settled_at = _NEVER  # when the last request that was answered with 0 was sent
        self.confirmed_at = _NEVER
        """When the last request was sent whose answer knew the member: no other member owned its
        partitions then."""

    @property
    def until(self) -> float:
        """Time until which no other member can own the partitions."""
        return self._until

    @property
    def holds(self) -> bool:
        """Whether no other member can own the partitions now."""
        return self._clock() < self._until

    def settle(self, sent_at: float) -> None:
        """Extend the lease: no rebalance was in progress when the request of `sent_at` arrived."""
        self._settled_at = max(self._settled_at, sent_at)
        self.extend(sent_at)

    def extend(self, sent_at: float) -> None:
        """Extend the lease by any answer that knows the member, to what was sent at `sent_at`."""
        self.confirmed_at = max(self.confirmed_at, sent_at)
        self._prolong(sent_at)

    def keep(self, sent_at: float) -> None:
        """Extend the lease, unless it has ended, by an answer that may not know the member."""
        if self.holds:
            self._prolong(sent_at)

    def _prolong(self, sent_at: float) -> None:
        by_session = sent_at + LEASE * self._session_timeout
        by_rebalance = self._settled_at + LEASE * self._rebalance_timeout
        self._until = max(self._until, min(by_session, by_rebalance))

    def end(self) -> None:
        """End the lease now."""
        self._until = _NEVER

    def reset(self) -> None:
        """End the lease, and forget when no rebalance was in progress: the membership is lost."""
        self._until = self._settled_at = self.confirmed_at = _NEVER
