"""How long no other member can own a member's partitions, from what the coordinator answered."""

from twinlog.kafka.groups.group_config import GroupConfig
from twinlog.kafka.groups.lease import LEASE, Lease

SESSION, REBALANCE = 10.0, 60.0
CONFIG = GroupConfig(group_id="g", topic="t", session_timeout=SESSION, rebalance_timeout=REBALANCE)


class _Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def _holds(lease: Lease) -> bool:
    return lease.holds


def test_a_lease_starts_when_the_request_was_sent() -> None:
    """Goal: the answer's way does not count; nothing was answered, so nothing is held."""
    clock = _Clock()
    lease = Lease(CONFIG, clock)
    assert not _holds(lease)
    lease.settle(1000.0)
    assert lease.until == 1000.0 + LEASE * SESSION
    clock.now = lease.until - 0.001
    assert _holds(lease)
    clock.now = lease.until
    assert not _holds(lease)


def test_an_earlier_answer_does_not_shorten_the_lease() -> None:
    lease = Lease(CONFIG, _Clock())
    lease.settle(1005.0)
    lease.settle(1000.0)
    lease.extend(1000.0)
    assert lease.until == 1005.0 + LEASE * SESSION


def test_a_rebalance_limits_the_lease() -> None:
    """Goal: a member that does not rejoin within the rebalance timeout has no lease then."""
    lease = Lease(CONFIG, _Clock())
    lease.extend(1000.0)
    assert not lease.holds
    lease.settle(1000.0)
    for sent in range(1001, 1100):
        lease.extend(float(sent))
    assert lease.until == 1000.0 + LEASE * REBALANCE


def test_after_lost_membership_a_lease_needs_a_settled_generation() -> None:
    lease = Lease(CONFIG, _Clock())
    lease.settle(1000.0)
    lease.end()
    assert not _holds(lease)
    lease.extend(1000.0)
    assert _holds(lease)
    lease.reset()
    lease.extend(1000.0)
    assert not _holds(lease)


def test_a_successful_heartbeat_confirms_the_ownership() -> None:
    """Goal: the ownership is confirmed for when the request was sent, until the member is lost."""
    lease = Lease(CONFIG, _Clock())
    lease.settle(1000.0)
    lease.extend(1002.0)
    lease.extend(1001.0)
    assert lease.confirmed_at == 1002.0
    lease.end()
    assert lease.confirmed_at == 1002.0
    lease.reset()
    assert lease.confirmed_at < 0


def test_a_heartbeat_during_group_loading_only_keeps_a_lease() -> None:
    """Goal: it neither revives a lease that has ended, nor confirms anything."""
    clock = _Clock()
    lease = Lease(CONFIG, clock)
    lease.settle(1000.0)
    clock.now = 1002.0
    lease.keep(1001.0)
    assert lease.until == 1001.0 + LEASE * SESSION
    clock.now = lease.until
    lease.keep(clock.now)
    assert not lease.holds
    assert lease.confirmed_at == 1000.0
