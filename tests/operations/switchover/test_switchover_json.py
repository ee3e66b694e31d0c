"""`twinlog switchover --json`: each report serialises itself."""

import json

import pytest

from twinlog.kafka.acls import Acl, Operation, PatternType, Permission, ResourceType
from twinlog.kafka.types import TopicPartition
from twinlog.operations.serialise import json_data
from twinlog.operations.switchover.records import (
    AS_IT_WAS,
    STILL_DENIED,
    Allowed,
    DenialsStay,
    ForgottenDenials,
    LeftBehind,
    Progress,
    Step,
    SwitchedOver,
    SwitchoverFailed,
    SwitchoverInterrupted,
)


def denial(topic: str) -> Acl:
    resource = ResourceType.TOPIC, topic, PatternType.LITERAL
    return Acl(*resource, "User:p", "*", Operation.WRITE, Permission.DENY)


TWO = frozenset({denial("b"), denial("a")})
TEXTS = sorted(map(str, TWO))
LATE = LeftBehind(TopicPartition("t", 1), 6, 8)
RESULT = {
    "result": "UNFINISHED",
    "mirror": "m",
    "topics": ["t", "u"],
    "left_behind": [{"topic": "t", "partition": 1, "start": 6, "end": 8}],
    "denied": TEXTS,
    "not_denied": "",
    "groups_behind": "g",
}


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        (
            Progress(Step.LAG, False, "waiting", True),
            {"step": "LAG", "done": False, "text": "waiting", "can_go_back": True},
        ),
        (
            Progress(Step.FAILOVER, True, "done"),
            {"step": "FAILOVER", "done": True, "text": "done", "can_go_back": False},
        ),
        (
            SwitchoverFailed(Step.LAG, "why", gone_back=True),
            {"result": "GONE_BACK", "step": "LAG", "error": "LAG: why"},
        ),
        (
            DenialsStay(Step.LAG, "why"),
            {"result": "UNFINISHED", "step": "LAG", "error": "LAG: why"},
        ),
        (SwitchoverInterrupted(), {"result": "GONE_BACK", "error": AS_IT_WAS}),
        (SwitchoverInterrupted(True, True), {"result": "UNFINISHED", "error": STILL_DENIED}),
        (
            SwitchedOver(
                mirror="m", topics=("t", "u"), left_behind=(LATE,), denied=TWO, groups_behind="g"
            ),
            RESULT,
        ),
        (
            SwitchedOver(mirror="m", topics=("t", "u"), left_behind=None),
            {**RESULT, "left_behind": None, "denied": [], "groups_behind": ""},
        ),
        (
            SwitchedOver(mirror="m", topics=(), left_behind=()),
            {
                **RESULT,
                "result": "SWITCHED_OVER",
                "topics": [],
                "left_behind": [],
                "denied": [],
                "groups_behind": "",
            },
        ),
        (Allowed(TWO, frozenset()), {"allowed": TEXTS, "left": []}),
        (ForgottenDenials(TWO), {"forgotten": TEXTS}),
    ],
)
def test_the_json_form_is_stable(report: object, expected: object) -> None:
    """Goal: names, order and form of the JSON stay as they are."""
    assert json.dumps(json_data(report)) == json.dumps(expected)


def test_an_interruption_after_the_failover_started_is_not_undone() -> None:
    """Goal: nobody is told that all is as it was."""
    found = SwitchoverInterrupted(can_go_back=False)
    assert not found.gone_back
    assert "may have been failed over" in str(found)
