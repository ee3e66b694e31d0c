"""When a source is silent, and what stands against a switchover.

With brokers: tests/end_to_end/test_switchover.py.
"""

import pytest

from twinlog.control.readiness import WEIGHTS, Finding, Readiness, Reason, Verdict
from twinlog.control.switchover import (
    HARMLESS,
    PASSING,
    DenialsStay,
    Silence,
    SourceEnd,
    Step,
    SwitchoverFailed,
    harmless,
    standing_against,
)
from twinlog.core.types import TopicPartition

ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)


def test_silent_for_some_seconds() -> None:
    """Counted from the last look that has seen a log's end move."""
    silence = Silence(5.0)
    logs = {ZERO: SourceEnd(10, 10), ONE: SourceEnd(20, 20)}
    assert silence.look(logs, 100.0) == "looked at for the first time"
    assert silence.look(logs, 104.0) == "silent for 4 s"
    moved = {**logs, ONE: SourceEnd(21, 21)}
    assert silence.look(moved, 106.0) == "written to: t-1"
    assert silence.look(moved, 110.9) == "silent for 5 s"
    assert silence.look(moved, 111.0) == ""
    assert silence.ends == {ZERO: 10, ONE: 21}


def test_an_open_transaction_is_no_silence() -> None:
    """Nor is what followers do not have yet: the last stable offset lies below the log's end."""
    silence = Silence(5.0)
    logs = {ZERO: SourceEnd(10, 8)}
    silence.look(logs, 0.0)
    assert silence.look(logs, 60.0) == "with an open transaction: t-0"
    assert silence.open == [ZERO]
    # Its marker moves the end, and the seconds begin anew.
    ended = {ZERO: SourceEnd(11, 11)}
    assert silence.look(ended, 61.0) == "written to: t-0"
    assert silence.open == []
    assert silence.look(ended, 66.0) == ""


@pytest.mark.parametrize("reason", Reason)
def test_what_stands_against_it(reason: Reason) -> None:
    """All but what ends while one waits, and what loses nothing."""
    finding = Finding(reason, "")
    found = Readiness(mirror="m", verdict=finding.verdict, findings=(finding,), topics=())
    assert bool(standing_against(found)) is (reason not in PASSING)
    assert HARMLESS < PASSING
    assert harmless(found) == ([finding] if reason in HARMLESS else [])
    if WEIGHTS[reason] is Verdict.NOT_READY:
        assert standing_against(found)


@pytest.mark.parametrize("step", Step)
def test_each_step_says_whether_one_can_go_back(step: Step) -> None:
    assert step.can_go_back is (step is not Step.FAILOVER)
    back = str(SwitchoverFailed(step, "why", gone_back=True))
    what = "nothing was changed" if step is Step.READINESS else "all is as it was"
    assert back.startswith(f"{step.name}: why; {what}")
    assert "stay so" in str(SwitchoverFailed(step, "why", gone_back=False))


def test_what_is_still_denied_is_said() -> None:
    """With the command that takes it back; and that all is as it was is not."""
    error = DenialsStay(Step.SILENCE, "why")
    assert not error.gone_back
    assert "twinlog switchover --allow-producers" in str(error)
    assert "as it was" not in str(error)
