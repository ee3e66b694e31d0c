"""What a survey of a flow says where it does not know something, without brokers."""

import asyncio
import re
import time
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from twinlog.engines.transactional import positions
from twinlog.engines.transactional.positions import position_metadata
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Refusal
from twinlog.kafka.groups.offsets import Committed, Group
from twinlog.kafka.requests.partitions import ListedOffset
from twinlog.kafka.types import Offset, TopicPartition
from twinlog.lifecycle.flow_creation import stored_properties
from twinlog.mirror.mm2_records import Checkpoint, Heartbeat
from twinlog.mirror.mm2_records import encode as encode_mm2
from twinlog.mirror.offset_runs import Ends, OffsetRuns, Run
from twinlog.mirror.recorded_map import RecordedMap
from twinlog.mirror.reported_positions import report_mark
from twinlog.mirror.settings import TRANSACTIONAL, TRANSLATED
from twinlog.mirror.states import State
from twinlog.mirror.translation import Translation
from twinlog.operations.readiness import flow_survey, group_findings, group_survey
from twinlog.operations.readiness.begins_later import Front
from twinlog.operations.readiness.facts import (
    GroupFacts,
    MirrorFacts,
    PartitionFacts,
    Skip,
    SourceLog,
    SourceTopic,
    TopicFacts,
)
from twinlog.operations.readiness.flow_survey import FlowSurvey
from twinlog.operations.readiness.group_survey import ByTopic
from twinlog.operations.readiness.reasons import Finding, Reason
from twinlog.store.config_records import MirrorTopic
from twinlog.store.offset_records import Route
from twinlog.sync.group_readings import Bounds, Log
from twinlog.sync.stored_checkpoints import StoredCheckpoints

FIRST, SECOND = TopicPartition("t", 0), TopicPartition("t", 1)
ALL = TopicPartition("all", 0)
GROUP = "readers"


def survey(
    recorded: Mapping[TopicPartition, RecordedMap] = MappingProxyType({}),
    *,
    syncs: bool = False,
    shared: bool = False,
    **translation: Any,
) -> FlowSurvey:
    """A flow of a topic with two partitions, of which 10 offsets each are copied.

    `shared`: both to one remote partition, whose log ends at 20.
    """
    properties = {"enabled": "true", "sync.group.offsets.enabled": str(syncs).lower()}
    names = {one: TopicPartition("a.t", one.partition) for one in (FIRST, SECOND)}
    names = dict.fromkeys(names, ALL) if shared else names
    maps = {partition: one.runs for partition, one in recorded.items()}
    read = Translation(names, maps, **translation).with_shared({ALL: 20}, names, ())
    subject = SimpleNamespace(
        mirror=SimpleNamespace(
            name="a-to-b",
            kind=TRANSLATED,
            source=stored_properties({"bootstrap.servers": "a:1"}, properties, "a", "b"),
        ),
        topics=[MirrorTopic(mirror="a-to-b", topic="t", topic_id=UUID(int=1), partitions=2)],
        described=SimpleNamespace(topics=[]),
        settings=SimpleNamespace(groups_include=()),
        partitions=[FIRST, SECOND],
        translation=read,
        of_groups=read.joined(),
        by_selected_topic=lambda by_topic: by_topic,
    )
    ends = {FIRST: 10, SECOND: 10}
    return FlowSurvey(cast(Any, None), cast(Any, subject), recorded, ends, ends)


def groups(
    monkeypatch: pytest.MonkeyPatch,
    committed: Mapping[TopicPartition, Committed],
    *,
    refused: Mapping[TopicPartition, Refusal] | None = None,
    lists_all: bool = True,
    log_start: int = 0,
    checkpoint: int | None = None,
    **flow_settings: Any,
) -> tuple[ByTopic, tuple[Finding, ...]]:
    """What is found of one group, whose checkpoints are what it has committed.

    `checkpoint`: the one in the shared partition instead.
    """
    flow, refusals = survey(**flow_settings), refused or {}

    async def listed(_: object) -> dict[str, Group]:
        return {GROUP: Group(GROUP, "Empty", "classic")}

    async def offsets(*_: object) -> Mapping[TopicPartition, Committed]:
        return committed

    async def bounds(*_: object) -> Bounds:
        end = 10 if checkpoint is None else 20
        logs = {one: Log(0, end) for one in (FIRST, SECOND) if one not in refusals}
        return Bounds(logs, refusals)

    async def complete(_: object) -> bool:
        return lists_all

    async def checkpoints(_: object) -> object:
        stored = [
            Checkpoint(
                group=GROUP,
                partition=TopicPartition("a.t", one.partition),
                upstream_offset=at.offset,
                downstream_offset=at.offset,
            )
            for one, at in committed.items()
            if not at.metadata and checkpoint is None
        ]
        if checkpoint is not None:
            stored.append(
                Checkpoint(
                    group=GROUP, partition=ALL, upstream_offset=0, downstream_offset=checkpoint
                )
            )
        return SimpleNamespace(checkpoints=stored, unreadable=())

    async def compared(*_: object, **__: object) -> tuple[ByTopic, tuple[Finding, ...]]:
        return {"t": (GroupFacts(group=GROUP, unread=10),)}, ()

    monkeypatch.setattr(flow_survey, "group_facts", compared)
    monkeypatch.setattr(flow_survey, "group_offsets", offsets)
    monkeypatch.setattr(flow_survey, "list_groups", listed)
    monkeypatch.setattr(flow_survey, "committed_offsets", offsets)
    monkeypatch.setattr(flow_survey, "log_bounds", bounds)
    monkeypatch.setattr(group_survey, "lists_all_groups", complete)
    monkeypatch.setattr(FlowSurvey, "_read_checkpoints", checkpoints)
    source = SimpleNamespace(config=SimpleNamespace(security=SimpleNamespace(principal="User:n")))
    logs = {one: SourceLog(log_start, 10, 10) for one in (FIRST, SECOND)}
    return asyncio.run(flow.groups(cast(Any, source), logs))


def test_a_group_whose_offsets_are_known_is_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    by_topic, findings = groups(monkeypatch, {FIRST: Committed(4), SECOND: Committed(5)})
    assert not findings
    ((found,),) = by_topic.values()
    assert (found.due, found.missing, found.unread) == (0, 0, 6 + 5)


@pytest.mark.parametrize(
    ("checkpoint", "due", "behind", "skips"),
    [(14, 0, 0, ()), (9, 1, 5, ()), (15, 0, 0, (Skip(FIRST, 14, 15, follows=True),))],
)
def test_a_shared_partition_counts_in_its_own_offsets(
    monkeypatch: pytest.MonkeyPatch,
    checkpoint: int,
    due: int,
    behind: int,
    skips: tuple[Skip, ...],
) -> None:
    """Goal: the lowest place of both is compared, and what is committed beyond the copy is named.

    The first one is read beyond the 10 offsets that are copied, the second one up to 4.
    """
    maps = {
        FIRST: OffsetRuns(Ends(Offset(0), Offset(0))),
        SECOND: OffsetRuns(Ends(Offset(0), Offset(0))),
    }
    maps[FIRST].append(Run(Offset(0), Offset(0), 10))
    maps[SECOND].append(Run(Offset(0), Offset(10), 10))
    by_topic, findings = groups(
        monkeypatch,
        {FIRST: Committed(12), SECOND: Committed(4)},
        recorded={one: RecordedMap(runs, Offset(10), pending=False) for one, runs in maps.items()},
        shared=True,
        checkpoint=checkpoint,
        settled=frozenset(maps),
    )
    assert not findings
    ((found,),) = by_topic.values()
    assert (found.due, found.behind, found.missing, found.skips) == (due, behind, 0, skips)
    assert (found.ahead, found.unread) == (2, 6)


def test_a_group_without_one_offset_for_a_shared_partition_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: an operator sees which offset it lacks."""
    by_topic, (finding,) = groups(monkeypatch, {SECOND: Committed(4)}, shared=True, checkpoint=3)
    assert not by_topic
    assert finding.reason is Reason.GROUP_NOT_COPIED
    assert finding.text == (
        f"group {GROUP}: no offset is copied to all-0, which several source partitions share: it "
        "has no offset of t-0; its offset of t-1 is not translated"
    )


def test_a_list_that_may_lack_groups_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    _, findings = groups(monkeypatch, {}, lists_all=False)
    assert [bool(re.search("may be incomplete: .*User:n", one.text)) for one in findings] == [True]


def test_offsets_that_cannot_be_compared_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: an offset in front of the flow's begin, and a remote log that cannot be read."""
    committed = {FIRST: Committed(4), SECOND: Committed(5)}
    _, findings = groups(monkeypatch, committed, begins={SECOND: 6})
    expected = f"groups: offsets of {GROUP}: not compared, as the flow began at a later offset: t-1"
    assert [one.text for one in findings] == [expected]
    _, findings = groups(monkeypatch, committed, unknown=frozenset({FIRST}))
    expected = (
        f"groups: offsets of {GROUP}: not compared, as no offset is translated there yet: t-0"
    )
    assert [one.text for one in findings] == [expected]
    refused = {SECOND: Refusal(ErrorCode.LEADER_NOT_AVAILABLE)}
    _, findings = groups(monkeypatch, committed, refused=refused)
    assert [f"cannot read the log bounds of {SECOND}" in one.text for one in findings] == [True]


@pytest.mark.parametrize("syncs", [False, True], ids=["checkpoints", "commits"])
def test_a_group_in_front_of_where_the_flow_began_is_named(
    monkeypatch: pytest.MonkeyPatch, *, syncs: bool
) -> None:
    """Goal: its offset is translated to the flow's beginning; what is in between would be skipped.

    What the source has deleted since is lost to the group anyway, so an offset in front of that is
    none in front of the flow.
    """
    runs = OffsetRuns(Ends(Offset(6), Offset(6)))
    runs.append(Run(Offset(6), Offset(6), 4))
    recorded = {SECOND: RecordedMap(runs, Offset(10), pending=False)}
    committed = {FIRST: Committed(4), SECOND: Committed(3)}

    def of_group(log_start: int, **translation: Any) -> GroupFacts:
        by_topic, _ = groups(
            monkeypatch,
            committed,
            log_start=log_start,
            recorded=recorded,
            syncs=syncs,
            **translation,
        )
        ((found,),) = by_topic.values()
        return found

    found = of_group(2)
    assert found.left_out == (Skip(SECOND, 3, 6, follows=False),)
    assert found.unread == 10 + 3
    [finding] = group_findings.of_group(found)
    assert finding.reason is Reason.GROUP_SKIPS
    assert "t-1 (source 3, destination 6)" in finding.text
    assert of_group(5).left_out == (Skip(SECOND, 5, 6, follows=False),)
    assert not of_group(6).left_out
    assert not of_group(2, begins={SECOND: 6}).left_out, "not translated, and named for it"
    committed[SECOND] = Committed(6)
    assert not of_group(2).left_out


@pytest.mark.parametrize("syncs", [False, True], ids=["checkpoints", "commits"])
@pytest.mark.parametrize(
    ("committed", "log_start", "skipped"),
    [(2, 0, (4, 8)), (5, 0, (5, 8)), (2, 6, (6, 8)), (2, 8, None), (8, 0, None)],
)
def test_a_group_that_has_not_read_lost_copies_is_named(
    monkeypatch: pytest.MonkeyPatch,
    committed: int,
    log_start: int,
    skipped: tuple[int, int] | None,
    *,
    syncs: bool,
) -> None:
    """Goal: on the target it goes on behind them. What the source has deleted, it has not either.

    The map has source 0 to 3 and 8 to 9; the copies of 4 to 7 are lost.
    """
    runs = OffsetRuns(Ends(Offset(0), Offset(0)))
    runs.append(Run(Offset(0), Offset(0), 4))
    runs.append(Run(Offset(8), Offset(5), 2))
    lost = ((Offset(4), Offset(8)),)
    recorded = RecordedMap(runs, Offset(10), pending=False, lost_sources=lost, lost_places=lost)
    by_topic, _ = groups(
        monkeypatch,
        {FIRST: Committed(committed)},
        log_start=log_start,
        recorded={FIRST: recorded},
        syncs=syncs,
        passed=frozenset({FIRST}),
    )
    ((found,),) = by_topic.values()
    assert found.left_out == ((Skip(FIRST, *skipped, follows=False),) if skipped else ())
    assert found.unread == (10 if syncs else 10 - min(committed, 4)), "not counted twice"
    named = [one.text for one in group_findings.of_group(found) if "lost copies" in one.text]
    assert len(named) == bool(skipped)


def test_reported_positions_are_no_offsets_of_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: they have no checkpoints, and never will."""
    reported = Committed(12, report_mark("a-to-b", "target"))
    by_topic, findings = groups(monkeypatch, {FIRST: reported})
    assert (by_topic, findings) == ({}, ())


def test_a_log_start_that_is_refused_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: 0 would say that the remote log has everything."""

    async def listed(*_: object) -> dict[TopicPartition, ListedOffset | Refusal]:
        return {
            TopicPartition("a.t", 0): ListedOffset(0, -1, -1),
            TopicPartition("a.t", 1): Refusal(ErrorCode.LEADER_NOT_AVAILABLE),
        }

    monkeypatch.setattr(flow_survey, "list_offsets", listed)
    assert asyncio.run(survey().log_starts()) == ({FIRST: 0}, {})


@pytest.mark.parametrize(
    ("start", "change", "expected"),
    [
        (300, {}, (0, Front(TopicPartition("a.t", 0), 300, 0, 10))),
        (500, {}, (0, Front(TopicPartition("a.t", 0), 500, 0, 10))),
        (502, {}, (12, None)),
        (0, {}, (0, None)),
        (300, {"lacks_start": False}, (0, None)),
        (300, {"unproven_end": Offset(7)}, (0, Front(TopicPartition("a.t", 0), 300, 7, 10))),
        (300, {"unproven_end": Offset(10)}, (0, None)),
        (
            300,
            {"lost_sources": ((Offset(6), Offset(10)),)},
            (0, Front(TopicPartition("a.t", 0), 300, 0, 6)),
        ),
    ],
)
def test_a_log_that_begins_in_front_of_a_map_shows_not_what_it_lacks(
    monkeypatch: pytest.MonkeyPatch,
    start: int,
    change: dict[str, Any],
    expected: tuple[int, Front | None],
) -> None:
    """Goal: source 0 to 9 were copied in front of the map, which begins at (10, 500)."""

    async def listed(*_: object) -> dict[TopicPartition, ListedOffset | Refusal]:
        return {TopicPartition("a.t", 0): ListedOffset(start, -1, -1)}

    monkeypatch.setattr(flow_survey, "list_offsets", listed)
    runs = OffsetRuns(Ends(Offset(10), Offset(500)))
    runs.append(Run(Offset(10), Offset(500), 10))
    recorded = RecordedMap(runs, Offset(20), pending=False, lacks_start=True)
    starts, fronts = asyncio.run(survey({FIRST: replace(recorded, **change)}).log_starts())
    assert (starts[FIRST], fronts.get(FIRST)) == expected


@pytest.mark.parametrize(
    ("on_source", "reasons"),
    [
        (SourceTopic.SAME, [Reason.COPIES_LOST]),
        (SourceTopic.UNKNOWN, [Reason.COPIES_LOST]),
        (SourceTopic.GONE, []),
        (SourceTopic.MADE_AGAIN, []),
    ],
)
def test_lost_copies_are_a_finding_of_their_topic(
    monkeypatch: pytest.MonkeyPatch, on_source: SourceTopic, reasons: list[Reason]
) -> None:
    """Goal: of the topic that was copied; one that was recreated has other records."""

    async def none(*_: object, **__: object) -> tuple[None, list[Finding]]:
        return None, []

    monkeypatch.setattr(FlowSurvey, "_heartbeat", none)
    monkeypatch.setattr(FlowSurvey, "_last_checkpoint", none)
    monkeypatch.setattr(flow_survey, "unselected_topics", lambda *_: [])
    monkeypatch.setattr(flow_survey, "other_copies", lambda *_, **__: [])
    lost = ((Offset(4), Offset(10)),)
    runs = OffsetRuns(Ends(Offset(0), Offset(0)))
    runs.append(Run(Offset(0), Offset(0), 4))
    passed = RecordedMap(runs, Offset(10), pending=False, lost_sources=lost)
    flow = survey({FIRST: passed, SECOND: replace(passed, lost_sources=())})
    flow._subject.snapshot = cast(Any, None)  # type: ignore[misc]
    partitions = tuple(
        PartitionFacts(
            partition=one.partition,
            state=State.MIRRORING,
            source=SourceLog(0, 10, 10),
            destination_end=10,
        )
        for one in (FIRST, SECOND)
    )
    topic = TopicFacts(topic="t", on_source=on_source, partitions=partitions)
    completed = asyncio.run(flow.completed(MirrorFacts(mirror="a-to-b", topics=(topic,))))
    assert [one.reason for one in completed.topics[0].synced] == reasons
    assert not completed.unknown


def test_a_position_of_a_former_topic_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the lane begins anew there, so all of the log is lag; an operator's position counts."""
    topic = MirrorTopic(
        mirror="a-to-b", topic="t", topic_id=UUID(int=1), partitions=3, destination_topic="a.t"
    )
    keys = [name.source for name in topic.mirror_partitions]
    names = {key: TopicPartition("a.t", key.partition) for key in keys}
    subject = SimpleNamespace(
        mirror=SimpleNamespace(
            name="a-to-b",
            kind=TRANSACTIONAL,
            source=stored_properties(
                {"bootstrap.servers": "a:1"},
                {"enabled": "true", "transaction.producer": "true"},
                *("a", "b"),
            ),
        ),
        topics=[topic],
        described=SimpleNamespace(topics=[]),
        partitions=keys,
        translation=Translation(names=names),
    )
    former, present = (position_metadata(Route(UUID(int=n), "a.t", None), None) for n in (9, 1))

    async def committed(*_: object, **__: object) -> dict[TopicPartition, Committed]:
        metadata = (former, present, "")
        return {names[key]: Committed(20, text) for key, text in zip(keys, metadata, strict=True)}

    async def ends(*_: object) -> dict[TopicPartition, ListedOffset]:
        return dict.fromkeys(names.values(), ListedOffset(50, -1, -1))

    monkeypatch.setattr(positions, "committed_offsets", committed)
    monkeypatch.setattr(flow_survey, "list_offsets", ends)
    found = asyncio.run(FlowSurvey.of(cast(Any, None), cast(Any, subject)))
    assert [found.ends[key] for key in keys] == [0, 20, 20]


@pytest.mark.parametrize(
    ("ahead_s", "age_s"),
    [
        ((-7,), 7),
        ((5,), 0),
        ((3600,), None),
        ((3600, -4000), 4000),
    ],
)
def test_times_of_a_clock_that_is_ahead_do_not_make_anything_recent(
    monkeypatch: pytest.MonkeyPatch, ahead_s: tuple[int, ...], age_s: int | None
) -> None:
    """Goal: what a dead node has written does not count as new until its time has come."""
    now_ms = 1_700_000_000_000
    monkeypatch.setattr(time, "time_ns", lambda: now_ms * 1_000_000)
    times_ms = [now_ms + seconds * 1000 for seconds in ahead_s]

    async def refresh(names: list[str]) -> object:
        return SimpleNamespace(topics=dict.fromkeys(names))

    async def stored(_: object) -> StoredCheckpoints:
        return StoredCheckpoints(times_ms=times_ms)

    beats = []
    for at in times_ms:
        beat = Heartbeat(source_cluster_alias="a", target_cluster_alias="b", timestamp=at)
        key, value = encode_mm2(beat)
        beats.append(SimpleNamespace(key=key, value=value))
    monkeypatch.setattr(flow_survey, "Tail", lambda *_: HeartbeatsTail(beats))
    monkeypatch.setattr(FlowSurvey, "_read_checkpoints", stored)
    flow = survey()
    flow._destination = cast(Any, SimpleNamespace(refresh=refresh))
    flow._subject.settings = cast(Any, SimpleNamespace(refresh_interval=30.0))  # type: ignore[misc]

    async def ages() -> list[tuple[int | None, list[Finding]]]:
        return [await flow._heartbeat(), await flow._last_checkpoint(expected=True)]

    for age, findings in asyncio.run(ages()):
        assert age == (None if age_s is None else age_s * 1000)
        ahead = [one.text for one in findings if "ahead of this machine's clock" in one.text]
        assert bool(ahead) is (age_s is None)
        assert bool(findings) is (age_s is None or age_s > 3600)
    settings = replace(flow._flow.settings, emit_checkpoints_interval_seconds=1800)
    flow._flow = flow._flow._replace(settings=settings)
    _, findings = asyncio.run(flow._last_checkpoint(expected=True))
    assert bool(findings) is (age_s is None), "at the flow's interval for checkpoints"


class HeartbeatsTail:
    """The end of a heartbeats topic."""

    def __init__(self, records: list[SimpleNamespace]) -> None:
        self.positions: dict[int, int] = {}
        self._records = records

    async def ends(self) -> dict[int, int]:
        return {0: len(self._records)}

    async def starts(self) -> dict[int, int]:
        return {0: 0}

    async def catch_up(self) -> list[SimpleNamespace]:
        return self._records

    async def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("kind", "lost", "expected"),
    [
        (TRANSLATED, (UUID(int=2),), (12, 40)),
        (TRANSACTIONAL, (UUID(int=2),), (10, 0)),
        (TRANSACTIONAL, (), (12, 40)),
    ],
)
def test_what_a_lane_has_reported_of_a_deleted_topic_is_not_copied(
    kind: str, lost: tuple[UUID, ...], expected: tuple[int, int]
) -> None:
    """Goal: a flow in transactions that copies a topic again is not READY before.

    Until a lane has noticed, its report is of the former topic. Maps are not deleted with it.
    """
    row = SimpleNamespace(partition=1, mirrored_offset=40, fresh=True, state=State.MIRRORING)
    first = SimpleNamespace(partition=0, mirrored_offset=12, fresh=True, state=State.MIRRORING)
    subject = survey()._subject
    topics = [SimpleNamespace(topic="t", partitions=[first, row])]
    changed: Any = SimpleNamespace(
        **{**vars(subject), "described": SimpleNamespace(topics=topics)},
    )
    changed.mirror = SimpleNamespace(**{**vars(subject.mirror), "kind": kind})
    [topic] = subject.topics
    changed.topics = [replace(topic, lost_topic_ids=lost, begins=(7, 7))]
    found = FlowSurvey(cast(Any, None), changed, {}, {FIRST: 10}, {FIRST: 10, SECOND: 10})
    assert found.ends == dict(zip((FIRST, SECOND), expected, strict=True))
