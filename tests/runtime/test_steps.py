"""From every state a partition reaches its desired state, by allowed transitions only."""

from itertools import pairwise

import pytest

from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.states import State, may_follow
from twinlog.runtime.steps import PartitionStep, next_step, way
from twinlog.store.config_records import Wanted
from twinlog.store.state_records import PartitionState

PARTITION = MirrorPartition("m", "t", 0)
RESTS = {
    Wanted.MIRRORING: {State.MIRRORING},
    Wanted.PAUSED: {State.PAUSED, State.UNKNOWN, State.FAILED, State.STOPPED},
    Wanted.STOPPED: {State.STOPPED},
}
"""The final states. A partition that never began, or is FAILED, has nothing to pause."""


def states_written(wanted: Wanted, state: State) -> list[State]:
    """Return the states that a lane writes from this one on, until there are no more."""
    states = [state]

    def enter(new: State) -> None:
        if new is not states[-1]:
            old = PartitionState(PARTITION, states[-1])
            states.extend(one.state for one in way(old, PartitionState(PARTITION, new)))

    for _ in range(4):
        match next_step(wanted, states[-1]):
            case PartitionStep.RUN:
                if states[-1] not in {State.PAUSED, State.PAUSING}:
                    enter(State.PREPARING)
                enter(State.MIRRORING)
                if wanted is Wanted.MIRRORING:
                    break
            case PartitionStep.PAUSE:
                enter(State.PAUSING)
                enter(State.PAUSED)
            case PartitionStep.STOP:
                enter(State.STOPPING)
                enter(State.STOPPED)
            case PartitionStep.FORGO:
                enter(State.STOPPED)
            case PartitionStep.REST:
                break
    return states


@pytest.mark.parametrize("wanted", Wanted)
@pytest.mark.parametrize("state", State)
def test_every_state_leads_to_the_desired_state(wanted: Wanted, state: State) -> None:
    states = states_written(wanted, state)
    assert states[-1] in RESTS[wanted]
    for old, new in pairwise(states):
        assert may_follow(old, new), [state.name for state in states]


def test_a_topic_removed_while_preparing_gives_the_reason() -> None:
    """It is FAILED for a moment, so that the log contains the reason."""
    preparing, stopping = (
        PartitionState(PARTITION, state) for state in (State.PREPARING, State.STOPPING)
    )
    first, last = way(preparing, stopping)
    assert (first.state, last.state) == (State.FAILED, State.STOPPING)
    assert "removed" in (first.reason or "")


@pytest.mark.parametrize("old", State)
@pytest.mark.parametrize("new", State)
def test_only_allowed_transitions_are_written(old: State, new: State) -> None:
    """For any stored state and any reported state: allowed transitions, or none."""
    states = [
        one.state for one in way(PartitionState(PARTITION, old), PartitionState(PARTITION, new))
    ]
    assert not states or states[-1] is new
    for before, after in pairwise([old, *states]):
        assert may_follow(before, after), (before, after)


def test_only_a_changed_reason_is_written_again() -> None:
    failed = PartitionState(PARTITION, State.FAILED, "one")
    assert way(failed, failed) == []
    other = PartitionState(PARTITION, State.FAILED, "another")
    assert way(failed, other) == [other]


def test_a_partition_without_a_state_is_never_fenced() -> None:
    """Mirroring never began, or its state was lost and its topic is its users'."""
    assert next_step(Wanted.STOPPED, State.UNKNOWN) is PartitionStep.FORGO
    written = way(None, PartitionState(PARTITION, State.STOPPED))
    assert [one.state for one in written] == [State.FAILED, State.STOPPING, State.STOPPED]
