"""The state table against the KIP's own sentences, over all pairs."""

import itertools

import pytest
from checkout import DOCS

from twinlog.kafka.errors import ProtocolError
from twinlog.mirror.states import TRANSITIONS, State, may_follow, mermaid, state_of

KIP_VALID_FROM = {
    State.PREPARING: {State.UNKNOWN, State.MIRRORING, State.STOPPED},
    State.MIRRORING: {State.PREPARING, State.PAUSED},
    State.PAUSING: {State.MIRRORING},
    State.PAUSED: {State.PAUSING},
    State.STOPPING: {State.MIRRORING, State.PAUSED},
    State.STOPPED: {State.STOPPING},
    State.FAILED: set(State),
}
"""As KIP-1279 says it, by target: "Valid from: ..."."""

OURS = {
    (State.FAILED, State.STOPPING),  # the KIP's own way out, which its list leaves out
    (State.FAILED, State.PREPARING),  # twinlog's retry
    (State.FAILED, State.MIRRORING),
    (State.PREPARING, State.PREPARING),  # when it is known that it is wanted again
    (State.STOPPING, State.STOPPING),  # with what holds it up
}


@pytest.mark.parametrize(("old", "new"), list(itertools.product(State, State)))
def test_allowed_transitions_are_those_of_the_kip(old: State, new: State) -> None:
    """The table, inverted, is the KIP's list plus the named differences."""
    wanted = old in KIP_VALID_FROM.get(new, set()) or (old, new) in OURS
    assert may_follow(old, new) is wanted


def test_state_numbers_follow_the_order_of_the_kip() -> None:
    """They are stored, so they never change."""
    assert [state.name for state in sorted(State)] == [
        "UNKNOWN",
        "PREPARING",
        "MIRRORING",
        "PAUSING",
        "PAUSED",
        "STOPPING",
        "STOPPED",
        "FAILED",
    ]
    assert [int(state) for state in State] == list(range(8))


def test_any_number_gives_a_state_or_a_protocol_error() -> None:
    """Any int8 gives a state or the documented error."""
    for number in range(-128, 128):
        if 0 <= number < 8:
            assert state_of(number).value == number
        else:
            with pytest.raises(ProtocolError, match=str(number)):
                state_of(number)


def test_the_diagram_is_drawn_from_the_table() -> None:
    """Every transition between two states has its arrow, and there is no other arrow."""
    lines = mermaid().splitlines()
    assert lines[:2] == ["stateDiagram-v2", "    [*] --> UNKNOWN"]
    arrows = {tuple(line.split(" --> ")) for line in (line.strip() for line in lines[2:])}
    assert arrows == {
        (old.name, new.name) for old, all_new in TRANSITIONS.items() for new in all_new - {old}
    }


def test_the_documentation_has_the_diagram() -> None:
    """docs/operations/monitoring.md shows the table as it is."""
    page = (DOCS / "operations" / "monitoring.md").read_text()
    assert f"```mermaid\n{mermaid()}```" in page
