"""A clock that detects that its machine was suspended."""

import asyncio
import time

import pytest
from small_cluster import small_cluster
from waiting import until_async

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.configuration import parse_config
from twinlog.kafka.groups.awake_clock import TOLERANCE_S, AwakeClock
from twinlog.kafka.groups.group_config import GroupConfig
from twinlog.kafka.groups.membership import GroupMember


class Clocks:
    """The machine's clocks, which a test sets."""

    def __init__(self) -> None:
        self.monotonic = 1_000.0
        self.boot = 1_000.0
        self.wall = 1_700_000_000.0
        self.awake = AwakeClock(lambda: self.monotonic, lambda: self.boot, lambda: self.wall)

    def run(self, seconds: float) -> None:
        self.monotonic += seconds
        self.boot += seconds
        self.wall += seconds


def test_without_suspension_it_equals_the_monotonic_clock() -> None:
    """Goal: this holds even if the other clocks are always read a little later."""
    clocks = Clocks()
    for _ in range(100):
        clocks.run(0.3)
        clocks.boot += TOLERANCE_S / 200
        assert clocks.awake() == clocks.monotonic


def test_the_duration_of_a_suspension_is_counted_once() -> None:
    """Goal: the time of the suspension has passed, once and permanently."""
    clocks = Clocks()
    clocks.run(2.0)
    clocks.boot += 60.0
    clocks.wall += 60.0
    assert clocks.awake() == 1_062.0
    clocks.run(1.0)
    assert clocks.awake() == 1_063.0


def test_a_pause_is_detected_from_the_corrected_wall_clock() -> None:
    """Goal: the corrected wall clock shows the pause."""
    clocks = Clocks()
    clocks.wall += 30.0
    assert clocks.awake() == 1_030.0


def test_a_wall_clock_that_is_set_back_is_ignored() -> None:
    """Goal: the clock does not go back, and detects a later pause."""
    clocks = Clocks()
    clocks.wall -= 3_600.0
    assert clocks.awake() == 1_000.0
    clocks.wall += 30.0
    assert clocks.awake() == 1_030.0


def test_the_clocks_of_a_running_machine_do_not_diverge() -> None:
    """Goal: they do not diverge while a process runs."""
    clock = AwakeClock()
    first = clock()
    assert 0.0 <= clock() - first < 5.0


class Idle:
    """Callbacks of a member that does nothing with its partitions."""

    async def on_assigned(self, partitions: set[int]) -> None: ...

    async def on_revoked(self, partitions: set[int]) -> None: ...

    async def on_lost(self, partitions: set[int]) -> None: ...


@pytest.mark.parametrize("clock", ["clock_gettime", "time"])
def test_a_suspension_ends_the_lease_of_a_group_member(
    clock: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: after a suspend, or a pause of its machine, nothing is written before a heartbeat (A5).

    A virtual machine's wall clock is corrected after the pause; that clock alone shows it.
    """
    missed_s = 0.0
    read = getattr(time, clock)
    monkeypatch.setattr(time, clock, lambda *which: read(*which) + missed_s)

    async def run() -> None:
        nonlocal missed_s
        async with small_cluster(topic="t", given=[0]) as small:
            config = parse_config({"bootstrap.servers": small.servers}).config
            async with KafkaCluster(config) as cluster:
                member = GroupMember(
                    cluster,
                    GroupConfig(group_id="g", topic="t", heartbeat_interval=0.05),
                    Idle(),
                )
                running = asyncio.create_task(member.run())

                async def holds_lease() -> bool:
                    return bool(member.owned) and member.holds_lease

                await until_async(holds_lease, what="the lease")
                missed_s += member.config.session_timeout
                assert not member.holds_lease
                await until_async(holds_lease, what="the lease after another heartbeat")
                await member.close(leave=False)
                await running

    asyncio.run(run())
