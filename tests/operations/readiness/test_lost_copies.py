"""Twin of twinlog.operations.readiness.lost_copies."""

import pytest

from twinlog.kafka.types import Offset
from twinlog.mirror.offset_runs import Ends, OffsetRuns, Run
from twinlog.mirror.recorded_map import RecordedMap
from twinlog.mirror.states import State
from twinlog.operations.readiness.facts import (
    MirrorFacts,
    PartitionFacts,
    SourceLog,
    SourceTopic,
    TopicFacts,
)
from twinlog.operations.readiness.lost_copies import lost_copies
from twinlog.operations.readiness.reasons import Finding, Reason, Verdict
from twinlog.operations.readiness.verdict import judge


def passed(*losses: tuple[int, int], unproven_end: int = 0) -> RecordedMap:
    """A map of source 0 to 19, and these losses that the flow has gone on behind."""
    runs = OffsetRuns(Ends(Offset(0), Offset(0)))
    runs.append(Run(Offset(0), Offset(0), 20))
    sources = tuple((Offset(start), Offset(end)) for start, end in losses)
    return RecordedMap(
        runs, Offset(20), pending=False, lost_sources=sources, unproven_end=Offset(unproven_end)
    )


def partition(start: int | None) -> PartitionFacts:
    log = SourceLog(start, 20, 20, 20)
    return PartitionFacts(
        partition=0, state=State.MIRRORING, source=log, destination_end=20, lag_ms=0
    )


def found(recorded: RecordedMap, start: int | None = 0, copied_from: int = 0) -> list[Finding]:
    return list(lost_copies(partition(start), recorded, copied_from))


def test_copies_that_are_lost_are_a_finding_beyond_the_lag() -> None:
    """Goal: the lag is 0, and the source has records that the target lacks."""
    [finding] = found(passed((4, 10)))
    assert finding.reason is Reason.COPIES_LOST
    assert "copies of offsets [4, 10), which the source keeps" in finding.text
    topic = TopicFacts(
        topic="t",
        on_source=SourceTopic.SAME,
        source_partitions=1,
        partitions=(partition(0),),
        synced=(finding,),
    )
    readiness = judge(MirrorFacts(mirror="a-to-b", topics=(topic,)))
    assert (readiness.verdict, readiness.lag) == (Verdict.WARNING, 0)
    assert not readiness.lag_is_all


@pytest.mark.parametrize(
    ("start", "copied_from", "ranges"),
    [
        (0, 0, "[2, 4), [6, 10)"),
        (3, 0, "[3, 4), [6, 10)"),
        (4, 0, "[6, 10)"),
        (9, 0, "[9, 10)"),
        (10, 0, None),
        (15, 0, None),
        (0, 8, "[8, 10)"),
        (None, 0, "[2, 4), [6, 10)"),
    ],
)
def test_what_the_source_has_deleted_since_is_no_loss(
    start: int | None, copied_from: int, ranges: str | None
) -> None:
    """Goal: as for other losses; where it is not known what it has deleted, all counts."""
    findings = found(passed((2, 4), (6, 10)), start, copied_from)
    assert [one.reason for one in findings] == ([Reason.COPIES_LOST] if ranges else [])
    for one in findings:
        keeps = "may still have" if start is None else "keeps"
        assert f"of offsets {ranges}, which the source {keeps};" in one.text


def test_a_loss_of_no_record_is_none() -> None:
    """Goal: nothing of the partition was copied before its log was cut."""
    assert not found(passed((4, 4)))
    assert not found(passed())


@pytest.mark.parametrize(
    ("start", "copied_from", "first"),
    [(0, 0, 0), (5, 0, 5), (0, 7, 7), (10, 0, None), (12, 0, None), (None, 0, 0)],
)
def test_what_is_in_front_of_a_map_that_began_anew_is_not_known(
    start: int | None, copied_from: int, first: int | None
) -> None:
    findings = found(passed(unproven_end=10), start, copied_from)
    assert [one.reason for one in findings] == ([] if first is None else [Reason.NOT_COMPARED])
    assert all(f"has all copies of offsets [{first}, 10)" in one.text for one in findings)
