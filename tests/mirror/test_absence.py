"""Twin of twinlog.mirror.absence: an end is empty only if nothing else explains the answers.

The decision table: every combination of what a reading may report, in either of two readings.
"""

import itertools
from dataclasses import replace
from typing import Any

import pytest

from twinlog.kafka.types import LeaderEpoch, Offset
from twinlog.mirror.absence import LOOK_INTERVAL_S, Absent, Impossible, Reading, Unproven, judge

FIRST = Reading(
    at=100.0,
    offset=Offset(10),
    last_stable=Offset(30),
    throttle_ms=0,
    preferred_replica=-1,
    leader_epoch=LeaderEpoch(4),
    local_start=10,
    compacts=True,
)
SECOND = replace(FIRST, at=FIRST.at + LOOK_INTERVAL_S)

DOUBTS: dict[str, dict[str, Any]] = {
    "throttle": {"throttle_ms": 1},
    "preferred": {"preferred_replica": 0},
    "remote": {"local_start": 11},
    "local start unknown": {"local_start": -1},
    "nothing missing": {"last_stable": Offset(10)},
    "policy unknown": {"compacts": None},
}


def test_two_clean_readings_of_a_compacted_log_prove_absence() -> None:
    """Goal: offsets that both readings report as decided are absent, up to the lower of the two."""
    assert judge(FIRST, SECOND) == Absent(Offset(30))
    assert judge(FIRST, replace(SECOND, last_stable=Offset(40))) == Absent(Offset(30))
    assert judge(replace(FIRST, last_stable=Offset(50)), SECOND) == Absent(Offset(30))


@pytest.mark.parametrize(
    "doubts",
    [c for n in (1, 2) for c in itertools.combinations(sorted(DOUBTS), n)],
    ids=" and ".join,
)
@pytest.mark.parametrize("which", ["first", "second", "both"])
@pytest.mark.parametrize("compacts", [True, False])
def test_any_doubt_in_a_reading_proves_nothing(
    doubts: tuple[str, ...], which: str, compacts: bool
) -> None:
    """Goal: no combination of explanations leads to a gap, or to FAILED."""
    changes: dict[str, Any] = {"compacts": compacts}
    for doubt in doubts:
        changes |= DOUBTS[doubt]
    first = replace(FIRST, **changes) if which != "second" else FIRST
    second = replace(SECOND, **changes) if which != "first" else SECOND
    assert isinstance(judge(first, second), Unproven)


@pytest.mark.parametrize(
    "change",
    [
        {"at": FIRST.at + LOOK_INTERVAL_S - 0.01},
        {"leader_epoch": LeaderEpoch(5)},
        {"offset": Offset(11), "local_start": 0},
    ],
)
def test_unrelated_readings_prove_nothing(change: dict[str, object]) -> None:
    """Goal: the second is too soon, of another leader, or of another position."""
    assert isinstance(judge(FIRST, replace(SECOND, **change)), Unproven)  # type: ignore[arg-type]


def test_a_policy_that_changes_between_two_readings_proves_nothing() -> None:
    """Goal: lost records are not filled because `compact` was set between the readings."""
    assert not isinstance(judge(replace(FIRST, compacts=False), SECOND), Absent)
    assert not isinstance(judge(FIRST, replace(SECOND, compacts=False)), Absent)


def test_absence_without_compaction_is_impossible() -> None:
    """Goal: the reason names the offsets, and that nothing was filled."""
    verdict = judge(replace(FIRST, compacts=False), replace(SECOND, compacts=False))
    assert isinstance(verdict, Impossible)
    assert "from offset 10 up to its last stable offset 30" in verdict.reason
    assert "nothing was filled" in verdict.reason
