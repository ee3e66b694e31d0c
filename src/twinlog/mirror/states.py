"""The states of a mirror partition (KIP-1279), one table of transitions, and its diagram.

Each mirror partition is a unit of its own: it has one state, and fails alone. The states and the
transitions are the KIP's, with three differences, numbered below.

    state      what happens in it
    ---------  ------------------------------------------------------------------------------
    UNKNOWN    no state is stored yet
    PREPARING  the destination is prepared, so that mirroring can continue
    MIRRORING  records are copied
    PAUSING    requests in flight end
    PAUSED     nothing is copied, the topic stays read-only
    STOPPING   requests in flight end, former owners are fenced, the epoch is stored
    STOPPED    the topic may be written to
    FAILED     the reason names the error; the other partitions go on

1. FAILED may be entered from every state. The operator leaves it by removing the topic and adding
   it again: FAILED to STOPPING. The KIP lists STOPPING as valid from MIRRORING and PAUSED only, but
   describes this recovery in the next paragraph; twinlog follows that paragraph.
2. A failed partition is retried with backoff if a retry can help: FAILED to PREPARING, or to
   MIRRORING if nothing has to be prepared. The KIP leaves this to a follow-up.
3. STOPPING may be written again, with the reason for the delay.

A state is written as an int8. The KIP gives the type but no numbers. twinlog uses the order of the
KIP's list, which matches the KIP's dump of a real log (a new partition writes 0, then 1).
"""

import enum
from collections.abc import Mapping
from typing import Final

from twinlog.kafka.errors import ProtocolError


class State(enum.IntEnum):
    """A mirror partition's state, numbered as it is written in `__mirror_state`."""

    UNKNOWN = 0
    PREPARING = 1
    MIRRORING = 2
    PAUSING = 3
    PAUSED = 4
    STOPPING = 5
    STOPPED = 6
    FAILED = 7


TRANSITIONS: Final[Mapping[State, frozenset[State]]] = {
    State.UNKNOWN: frozenset({State.PREPARING, State.FAILED}),
    State.PREPARING: frozenset({State.PREPARING, State.MIRRORING, State.FAILED}),
    State.MIRRORING: frozenset({State.PREPARING, State.PAUSING, State.STOPPING, State.FAILED}),
    State.PAUSING: frozenset({State.PAUSED, State.FAILED}),
    State.PAUSED: frozenset({State.MIRRORING, State.STOPPING, State.FAILED}),
    State.STOPPING: frozenset({State.STOPPING, State.STOPPED, State.FAILED}),
    State.STOPPED: frozenset({State.PREPARING, State.FAILED}),
    State.FAILED: frozenset({State.PREPARING, State.MIRRORING, State.STOPPING, State.FAILED}),
}
"""The next states of each state. The same state again: with a new reason."""


def may_follow(state: State, successor: State) -> bool:
    """Whether a partition in `state` may go to the state `successor`."""
    return successor in TRANSITIONS[state]


def state_of(number: int) -> State:
    """The state with this number.

    Raises:
        ProtocolError: no state has this number.
    """
    try:
        return State(number)
    except ValueError as error:
        raise ProtocolError(f"unknown state {number} of a mirror partition") from error


def mermaid() -> str:
    """The table as a Mermaid state diagram, for the documentation."""
    lines = ["stateDiagram-v2", f"    [*] --> {State.UNKNOWN.name}"]
    lines += [
        f"    {state.name} --> {successor.name}"
        for state, successors in TRANSITIONS.items()
        for successor in sorted(successors)
        if state is not successor
    ]
    return "\n".join(lines) + "\n"
