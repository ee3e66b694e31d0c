"""The next step of a mirror partition, and the states on its way.

wanted      state                             the next step (`next_step`)
----------  --------------------------------  ------------------------------------------------
MIRRORING   any but STOPPING                  RUN
PAUSED      MIRRORING, PAUSING                PAUSE: nothing more is sent, then PAUSED
            PREPARING                         RUN until it is MIRRORING
            UNKNOWN, PAUSED, FAILED           REST
STOPPED     STOPPED                           REST
            UNKNOWN                           FORGO: STOPPED at once, without a fence
            any other                         STOP: nothing more is sent, then fenced by a
                                              marker in a new epoch, then STOPPED
any         STOPPING                          STOP: a stop that has begun is completed
"""

import enum
import logging
from collections.abc import Mapping
from typing import Final

from twinlog.mirror.states import State, may_follow
from twinlog.store.config_records import Wanted
from twinlog.store.state_records import PartitionState

log = logging.getLogger(__name__)

_REMOVED: Final = "removed from its mirror before it was MIRRORING"
FORGONE: Final = (
    "it has no stored state, so nothing was fenced; it was removed before a lane started it, or "
    "__mirror_state was lost"
)
"""The reason of a partition that was removed while it was UNKNOWN. It is stored with the state, and
earlier versions have stored the same text: it is not to be changed (flow_handback.py)."""
_ON_THE_WAY: Final[Mapping[tuple[State, State], State]] = {
    (State.PREPARING, State.PAUSING): State.MIRRORING,
    (State.PAUSED, State.PAUSING): State.MIRRORING,
    (State.FAILED, State.PAUSING): State.MIRRORING,
    (State.MIRRORING, State.PAUSED): State.PAUSING,
    (State.PAUSING, State.MIRRORING): State.PAUSED,
    (State.PAUSING, State.STOPPING): State.PAUSED,
    (State.PAUSING, State.PREPARING): State.FAILED,
    (State.PAUSED, State.PREPARING): State.MIRRORING,
    (State.UNKNOWN, State.MIRRORING): State.PREPARING,
    (State.UNKNOWN, State.STOPPING): State.FAILED,
    (State.PREPARING, State.STOPPING): State.FAILED,
}
"""The state between two states without a direct transition, where that path is known."""


class PartitionStep(enum.Enum):
    """The next action for a mirror partition."""

    RUN = enum.auto()
    PAUSE = enum.auto()
    STOP = enum.auto()
    FORGO = enum.auto()
    REST = enum.auto()


def next_step(wanted: Wanted, state: State) -> PartitionStep:
    """The next action, by the table at the top of this module."""
    if state is State.STOPPING:
        return PartitionStep.STOP
    if wanted is Wanted.MIRRORING:
        return PartitionStep.RUN
    if wanted is Wanted.STOPPED:
        return {State.STOPPED: PartitionStep.REST, State.UNKNOWN: PartitionStep.FORGO}.get(
            state, PartitionStep.STOP
        )
    if state in {State.MIRRORING, State.PAUSING}:
        return PartitionStep.PAUSE
    return PartitionStep.RUN if state is State.PREPARING else PartitionStep.REST


def way(previous: PartitionState | None, change: PartitionState) -> list[PartitionState]:
    """The records to write, so that a partition gets from its stored state to a new state.

    Empty if the new state is stored already, or if no path leads to it.
    """
    if previous == change:
        return []
    state = State.UNKNOWN if previous is None else previous.state
    if (state, change.state) == (State.UNKNOWN, State.STOPPED):
        # One write: if the partition were left STOPPING, the next owner would fence it.
        ways = (State.FAILED, State.STOPPING, State.STOPPED)
        return [PartitionState(change.partition, intermediate, FORGONE) for intermediate in ways]
    between = _ON_THE_WAY.get((state, change.state))
    if between is not None:
        reason = _REMOVED if change.state is State.STOPPING and between is State.FAILED else None
        return [PartitionState(change.partition, between, reason), change]
    if may_follow(state, change.state):
        return [change]
    if state is not change.state:
        log.error(
            "%s stays %s: a change to %s is not allowed",
            change.partition,
            state.name,
            change.state.name,
        )
    return []
