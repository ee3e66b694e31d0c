"""The verdict on a mirror, from its facts; with brokers: tests/end_to_end/test_life.py."""

from dataclasses import replace

import pytest

from twinlog.interfaces.cli.readiness import _sentence
from twinlog.kafka.groups.offsets import Committed
from twinlog.kafka.types import TopicPartition
from twinlog.mirror.states import State
from twinlog.operations.readiness.facts import (
    AclFacts,
    GroupFacts,
    MirrorFacts,
    PartitionFacts,
    Skip,
    SourceLog,
    SourceTopic,
    Standing,
    TopicFacts,
)
from twinlog.operations.readiness.group_survey import offset_facts
from twinlog.operations.readiness.reasons import BEYOND_LAG, WEIGHTS, Finding, Reason, Verdict
from twinlog.operations.readiness.verdict import Readiness, judge
from twinlog.sync.group_readings import Log

GOOD = PartitionFacts(
    partition=0, state=State.MIRRORING, source=SourceLog(0, 100, 100, 100), destination_end=100
)
TOPIC = TopicFacts(topic="t", on_source=SourceTopic.SAME, source_partitions=1, partitions=(GOOD,))
MIRROR = MirrorFacts(mirror="m", topics=(TOPIC,))
GROUP = GroupFacts(group="g")


def of_topic(topic: TopicFacts) -> Readiness:
    return judge(replace(MIRROR, topics=(topic,)))


def of_partition(partition: PartitionFacts) -> Readiness:
    return of_topic(replace(TOPIC, partitions=(partition,)))


def of_log(start: int | None, end: int, stable: int, destination: int) -> Readiness:
    log = SourceLog(start, end, stable, end)
    return of_partition(replace(GOOD, source=log, destination_end=destination))


def reasons(found: Readiness) -> dict[Reason, str]:
    return {finding.reason: finding.text for finding in found.all_findings()}


def test_a_mirror_without_lag_is_ready() -> None:
    found = judge(MIRROR)
    assert (found.verdict, found.lag, reasons(found)) == (Verdict.READY, 0, {})
    assert (found.topics[0].verdict, found.topics[0].lag_ms) == (Verdict.READY, 0)


def test_every_reason_has_a_weight() -> None:
    """No reason has the weight READY: it would be no reason."""
    assert WEIGHTS.keys() == set(Reason)
    assert Verdict.READY not in WEIGHTS.values()


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (replace(MIRROR, node_runs=False), Reason.NO_NODE),
        (replace(MIRROR, source_trouble="dead"), Reason.SOURCE_UNREACHABLE),
        (
            replace(MIRROR, unknown=(Finding(Reason.GROUP_UNREADABLE, "x"),)),
            Reason.GROUP_UNREADABLE,
        ),
        (replace(MIRROR, synced=(Finding(Reason.ACL, "x"),)), Reason.ACL),
        (replace(MIRROR, not_mirrored={"u": "occupied"}), Reason.NOT_MIRRORED),
    ],
)
def test_a_finding_of_the_mirror_counts_for_its_topics(facts: MirrorFacts, reason: Reason) -> None:
    found = judge(facts)
    assert [finding.reason for finding in found.findings] == [reason]
    assert found.verdict is found.topics[0].verdict is WEIGHTS[reason]


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (State.UNKNOWN, Reason.NOT_MIRRORING),
        (State.PREPARING, Reason.NOT_MIRRORING),
        (State.MIRRORING, None),
        (State.PAUSING, Reason.PAUSED),
        (State.PAUSED, Reason.PAUSED),
        (State.STOPPING, Reason.NOT_MIRRORING),
        (State.STOPPED, Reason.NOT_MIRRORING),
        (State.FAILED, Reason.NOT_MIRRORING),
    ],
)
def test_each_state_gives_the_expected_reason(state: State, reason: Reason | None) -> None:
    found = of_partition(replace(GOOD, state=state))
    assert list(reasons(found)) == ([] if reason is None else [reason])


def test_the_reason_of_failed_partitions_is_given_once() -> None:
    failed = [
        replace(GOOD, partition=at, state=State.FAILED, reason="the logs differ") for at in (0, 3)
    ]
    found = of_topic(replace(TOPIC, partitions=tuple(failed)))
    assert reasons(found) == {
        Reason.NOT_MIRRORING: "t: FAILED (2 partitions: 0, 3): the logs differ"
    }
    assert found.verdict is Verdict.NOT_READY


@pytest.mark.parametrize(
    ("log", "lag", "undecided", "named"),
    [
        ((0, 100, 100, 100), 0, 0, []),
        ((0, 100, 100, 90), 10, 0, [Reason.LAG]),
        ((0, 100, 95, 90), 10, 5, [Reason.LAG, Reason.OPEN_TRANSACTION]),
        ((0, 100, 80, 90), 10, 10, [Reason.LAG, Reason.OPEN_TRANSACTION]),
        ((95, 100, 100, 90), 5, 0, [Reason.LAG, Reason.PURGED]),
        ((100, 100, 100, 90), 0, 0, [Reason.PURGED]),
        ((0, 100, 100, 101), 0, 0, [Reason.DIVERGED]),
        ((None, 100, 100, 90), 10, 0, [Reason.LAG]),
    ],
)
def test_the_lag_is_what_the_source_has_and_the_destination_lacks(
    log: tuple[int | None, int, int, int], lag: int, undecided: int, named: list[Reason]
) -> None:
    """The loss is what the source still has and the destination does not have."""
    found = of_log(*log)
    assert (found.lag, found.topics[0].undecided, list(reasons(found))) == (lag, undecided, named)
    assert found.verdict is (Verdict.WARNING if named else Verdict.READY)


@pytest.mark.parametrize("source", [SourceLog(0, 102, 102, 103), None])
def test_the_lag_of_heartbeats_is_shown_and_is_no_finding(source: SourceLog | None) -> None:
    """Goal: one is written each second, so a flow that copies them would never be ready.

    What is wrong with the partition is a finding as in other topics.
    """
    behind = replace(GOOD, source=source)
    heartbeats = replace(TOPIC, topic="heartbeats", partitions=(behind,), holds_heartbeats=True)
    found = judge(replace(MIRROR, topics=(TOPIC, heartbeats)))
    assert found.lag == (None if source is None else 0)
    assert found.topics[1].lag == (None if source is None else 3)
    assert list(reasons(found)) == ([Reason.SOURCE_UNREADABLE] if source is None else [])
    assert (found.verdict is Verdict.READY, found.lag_is_all) == (source is not None,) * 2
    failed = replace(heartbeats, partitions=(replace(behind, state=State.FAILED),))
    assert Reason.NOT_MIRRORING in reasons(judge(replace(MIRROR, topics=(TOPIC, failed))))
    far_behind = replace(heartbeats, partitions=(replace(GOOD, source=SourceLog(0, *[161] * 3)),))
    found = judge(replace(MIRROR, topics=(TOPIC, far_behind)))
    assert (found.lag, found.verdict, found.lag_is_all) == (61, Verdict.WARNING, True)
    assert list(reasons(found)) == [Reason.LAG]
    both = judge(replace(MIRROR, topics=(replace(TOPIC, partitions=(behind,)), heartbeats)))
    assert both.lag == (None if source is None else 3)


def test_a_later_log_start_of_the_destination_is_a_warning() -> None:
    """Both logs end at the same offset: no lag counts what was deleted."""
    found = of_partition(replace(GOOD, lacks=(10, 30)))
    assert (found.verdict, found.lag, found.lag_is_all) == (Verdict.WARNING, 0, False)
    assert "the destination has deleted offsets [10, 30)" in reasons(found)[Reason.BEGINS_LATER]


def test_copies_without_a_recorded_place_may_be_deleted() -> None:
    found = of_partition(replace(GOOD, may_lack=(10, 30)))
    assert (found.verdict, found.lag, found.lag_is_all) == (Verdict.WARNING, 0, False)
    assert "has deleted copies of offsets [10, 30)" in reasons(found)[Reason.NOT_COMPARED]


def test_holders_of_open_transactions_are_named_once() -> None:
    """Each holder is named once, and only for partitions that its transaction holds up."""
    log = SourceLog(0, 100, 95, 100)
    some = [
        replace(GOOD, partition=at, source=log, destination_end=95, held_by=("a", "b"))
        for at in (0, 1)
    ]
    whole = replace(GOOD, partition=2, held_by=("c",))
    found = of_topic(replace(TOPIC, partitions=(*some, whole)))
    assert reasons(found)[Reason.OPEN_TRANSACTION].endswith("(2 partitions: 0, 1), of a, b")


def test_different_acls_are_a_warning() -> None:
    """The names go with the findings; tests/operations/readiness/test_sync_survey.py has both."""
    acls = AclFacts(to_make=tuple("abcdefg"), to_remove=("z",))
    findings = (Finding(Reason.ACL, "7"), Finding(Reason.ACL, "1"))
    found = judge(replace(MIRROR, acls=acls, synced=findings))
    assert found.findings == findings
    assert (found.verdict, found.acls) == (Verdict.WARNING, acls)


def test_an_old_source_end_is_not_reported_as_divergence() -> None:
    """The destination's end is current; the source's is as old as its last contact."""
    ahead = replace(GOOD, source=SourceLog(None, 90, 90), reported_end=100)
    facts = replace(
        MIRROR,
        topics=(replace(TOPIC, on_source=SourceTopic.UNKNOWN, partitions=(ahead,)),),
        source_trouble="dead",
        known_until_ms=12_345,
    )
    found = judge(facts)
    assert (found.lag, found.verdict) == (0, Verdict.WARNING)
    assert reasons(found) == {
        Reason.SOURCE_UNREACHABLE: "dead; last contact 12 s ago; later records, and those "
        "that are not replicated, are unknown",
    }
    assert not found.lag_is_all
    assert found.source_age_ms == 12_345


def dead(**change: object) -> Readiness:
    """Return the readiness of a source that does not answer, with one partition."""
    partition = replace(GOOD, source=SourceLog(None, 100, 100), reported_end=100)
    changed = replace(partition, **change)  # type: ignore[arg-type]
    topic = replace(TOPIC, on_source=SourceTopic.UNKNOWN, partitions=(changed,))
    return judge(replace(MIRROR, topics=(topic,), source_trouble="dead"))


@pytest.mark.parametrize(
    ("change", "lag", "named"),
    [
        ({}, 0, []),
        ({"destination_end": 103}, 0, [Reason.FOREIGN_RECORDS]),
        ({"reported_end": None}, 0, [Reason.NOT_COMPARED]),
        ({"source": None}, None, [Reason.SOURCE_UNREADABLE]),
        (
            {"source": None, "state": State.PAUSED, "reported_end": None},
            None,
            [Reason.PAUSED, Reason.SOURCE_UNREADABLE, Reason.NOT_COMPARED],
        ),
    ],
)
def test_unreported_values_of_a_dead_source_are_unknown(
    change: dict[str, object], lag: int | None, named: list[Reason]
) -> None:
    """What fresh statuses do not report is unknown, and never 0."""
    found = dead(**change)
    assert found.lag == lag
    assert list(reasons(found)) == [Reason.SOURCE_UNREACHABLE, *named]
    assert not found.lag_is_all


def test_foreign_records_in_a_paused_partition_are_reported() -> None:
    """Foreign records are found also while the source is reachable and its log end is higher."""
    log = SourceLog(0, 200, 200, 200)
    partition = replace(GOOD, state=State.PAUSED, source=log, destination_end=103, reported_end=100)
    assert list(reasons(of_partition(partition))) == [
        Reason.PAUSED,
        Reason.LAG,
        Reason.FOREIGN_RECORDS,
    ]


@pytest.mark.parametrize(
    ("log_end", "destination", "lag", "named"),
    [
        (100, 100, 0, []),
        (107, 100, 7, [Reason.UNREPLICATED, Reason.LAG]),
        (107, 90, 17, [Reason.UNREPLICATED, Reason.LAG]),
        (107, 107, 0, [Reason.DIVERGED]),
        (None, 100, 0, [Reason.LOG_END_UNREADABLE]),
    ],
)
def test_records_above_the_high_watermark_count_as_lag(
    log_end: int | None, destination: int, lag: int, named: list[Reason]
) -> None:
    """Producers with acks=1 have had them acknowledged, so they count as lag."""
    log = SourceLog(0, 100, 100, log_end)
    found = of_partition(replace(GOOD, source=log, destination_end=destination))
    assert (found.lag, list(reasons(found))) == (lag, named)
    assert found.lag_is_all is (log_end is not None and destination <= 100)


@pytest.mark.parametrize("reason", Reason)
def test_the_summary_claims_no_loss_only_without_doubtful_findings(reason: Reason) -> None:
    """The last sentence claims nothing that a finding puts in doubt."""
    found = judge(replace(MIRROR, unknown=(Finding(reason, "x"),)))
    said = _sentence(found)
    assert "nothing would be lost" not in said
    assert ("no record would be lost" in said) is (
        WEIGHTS[reason] is Verdict.WARNING and reason not in BEYOND_LAG
    )


def test_the_summary_gives_the_age_of_its_data() -> None:
    found = judge(replace(MIRROR, age_ms=2_100, status_age_ms=3_400))
    assert _sentence(found) == (
        "Mirror m can be failed over: nothing would be lost (destination read 2.1 s ago, last "
        "contact with the source 2.1 s ago, statuses up to 3.4 s old)"
    )
    behind = replace(TOPIC, partitions=(replace(GOOD, destination_end=90),))
    lost = judge(replace(MIRROR, topics=(behind,), source_trouble="dead"))
    assert "at least 10 offsets would be lost (" in _sentence(lost)
    assert "last contact with the source unknown time ago" in _sentence(lost)


def test_an_unknown_lag_is_not_0() -> None:
    found = of_partition(replace(GOOD, source=None))
    assert (found.lag, list(reasons(found))) == (None, [Reason.SOURCE_UNREADABLE])
    found = of_partition(replace(GOOD, destination_end=None))
    assert (found.lag, found.verdict) == (None, Verdict.NOT_READY)
    late = replace(GOOD, destination_end=90)
    assert of_partition(late).topics[0].lag_ms is None
    assert of_partition(replace(late, lag_ms=7)).topics[0].lag_ms == 7


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"on_source": SourceTopic.GONE}, Reason.TOPIC_GONE),
        ({"on_source": SourceTopic.MADE_AGAIN}, Reason.TOPIC_MADE_AGAIN),
        ({"source_partitions": 2}, Reason.NEW_PARTITIONS),
        ({"destination_partitions": 2}, Reason.EXTRA_PARTITIONS),
        ({"behind_ms": 90_000_000}, Reason.COMPACTION_MISSED),
        ({"groups": (replace(GROUP, due=1, behind=3),)}, Reason.GROUP_BEHIND),
        ({"groups": (replace(GROUP, due=1),)}, Reason.GROUP_BEHIND),
        ({"groups": (replace(GROUP, ahead=3),)}, Reason.GROUP_AHEAD),
        ({"synced": (Finding(Reason.CONFIGURATION, "x"),)}, Reason.CONFIGURATION),
    ],
)
def test_each_topic_difference_gives_a_warning(change: dict[str, object], reason: Reason) -> None:
    found = of_topic(replace(TOPIC, **change))  # type: ignore[arg-type]
    assert (list(reasons(found)), found.verdict) == ([reason], Verdict.WARNING)


def test_unread_records_of_a_group_are_no_finding() -> None:
    assert of_topic(replace(TOPIC, groups=(replace(GROUP, unread=9),))).verdict is Verdict.READY


def test_the_verdict_is_that_of_the_worst_topic() -> None:
    other = replace(TOPIC, topic="u", synced=(Finding(Reason.CONFIGURATION, "x"),))
    found = judge(replace(MIRROR, topics=(TOPIC, other)))
    assert [topic.verdict for topic in found.topics] == [Verdict.READY, Verdict.WARNING]
    assert found.verdict is Verdict.WARNING


def test_group_offsets_behind_ahead_and_unread_are_counted() -> None:
    """The facts count offsets behind the destination, ahead of it, and unread on the source."""
    zero, one, two = (TopicPartition("t", at) for at in range(3))
    logs = dict.fromkeys((zero, one, two), SourceLog(0, 100, 100))
    bounds = {zero: Log(0, 100), one: Log(20, 40), two: Log(0, 100)}
    on_source = {zero: Committed(90), one: Committed(50), TopicPartition("x", 0): Committed(1)}
    on_destination = {zero: Committed(60)}
    found = offset_facts("g", logs, bounds, on_source, on_destination)
    assert found == {
        "t": GroupFacts(
            group="g",
            due=2,
            behind=30 + 20,
            missing=1,
            ahead=10,
            unread=10 + 50,
            unread_from=(Standing(zero, 90), Standing(one, 50)),
        ),
    }
    done = {zero: Committed(95), one: Committed(40), two: Committed(3)}
    assert offset_facts("g", logs, bounds, on_source, done)["t"].due == 0


def test_offsets_deleted_on_the_source_are_reported() -> None:
    """The mirror copies no deletion; an offset that the group committed itself is its own."""
    zero, one, two = (TopicPartition("t", at) for at in range(3))
    logs = dict.fromkeys((zero, one, two), SourceLog(0, 100, 100))
    bounds = {zero: Log(0, 100), one: Log(0, 100), two: Log(50, 100)}
    destination = {zero: Committed(60), one: Committed(70), two: Committed(50)}
    facts = offset_facts("g", logs, bounds, {}, destination, own={zero, two})["t"]
    assert facts == GroupFacts(group="g", deleted=(Standing(zero, 60),))
    found = reasons(of_topic(replace(TOPIC, groups=(facts,))))
    assert found.keys() == {Reason.GROUP_DELETED}
    assert "t-0 (60)" in found[Reason.GROUP_DELETED]


def test_a_rewound_group_that_would_skip_is_reported() -> None:
    """The finding has both offsets; an offset that the mirror committed follows the source."""
    zero, one = TopicPartition("t", 0), TopicPartition("t", 1)
    logs = dict.fromkeys((zero, one), SourceLog(0, 100, 100))
    bounds = dict.fromkeys((zero, one), Log(0, 100))
    source = {zero: Committed(10), one: Committed(20)}
    destination = {zero: Committed(90), one: Committed(80)}
    facts = offset_facts("g", logs, bounds, source, destination, own={zero})["t"]
    assert facts.skips == (
        Skip(zero, 10, 90, follows=True),
        Skip(one, 20, 80, follows=False),
    )
    assert (facts.due, facts.behind, facts.pending) == (0, 0, True)
    found = reasons(of_topic(replace(TOPIC, groups=(facts,))))
    assert found.keys() == {Reason.GROUP_REWOUND, Reason.GROUP_SKIPS}
    assert "t-0 (source 10, destination 90)" in found[Reason.GROUP_REWOUND]
    assert "or the destination has lost what it had read" in found[Reason.GROUP_REWOUND]
    assert "t-1 (source 20, destination 80)" in found[Reason.GROUP_SKIPS]


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (GroupFacts(group="g", due=1, behind=5, missing=1), ["mirror.groups.include", "5 offsets"]),
        (GroupFacts(group="g", kind="streams", due=1, behind=5), ["streams groups are not"]),
        (
            GroupFacts(group="g", skips=(Skip(TopicPartition("t", 0), 10, 90, follows=True),)),
            ["t-0 (source 10, destination 90)"],
        ),
    ],
)
def test_a_group_that_is_not_copied_is_a_finding(facts: GroupFacts, words: list[str]) -> None:
    """It is a finding only if the group would read records again or skip some."""
    found = reasons(of_topic(replace(TOPIC, groups=(replace(facts, followed=False),))))
    assert list(found) == [Reason.GROUP_NOT_COPIED]
    assert all(word in found[Reason.GROUP_NOT_COPIED] for word in words)
    assert not replace(facts, followed=False).pending
    equal = GroupFacts(group="g", followed=False)
    assert not reasons(of_topic(replace(TOPIC, groups=(equal,))))


def test_unread_records_of_a_share_group_are_reported() -> None:
    share = GroupFacts(group="g", kind="share", unread=7)
    found = reasons(of_topic(replace(TOPIC, groups=(share,))))
    assert "7 offsets" in found[Reason.GROUP_NOT_COPIED]
    assert not reasons(of_topic(replace(TOPIC, groups=(replace(share, unread=0),))))
