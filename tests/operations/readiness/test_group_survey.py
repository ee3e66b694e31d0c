"""What readiness finds out about groups; with brokers: test_groups_on_brokers.py."""

import asyncio
import re
from dataclasses import replace
from typing import Any, cast

import pytest
from clients import ClusterConfig

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.configuration import Address
from twinlog.kafka.errors import Refusal, Retriable, UserError
from twinlog.kafka.groups.offsets import Committed, Group
from twinlog.kafka.types import Offset, TopicPartition
from twinlog.mirror.offset_runs import Ends, OffsetRuns, Run
from twinlog.mirror.translation import SAME, Translation
from twinlog.operations.readiness import group_survey
from twinlog.operations.readiness.facts import SourceLog, Standing
from twinlog.operations.readiness.group_survey import ByTopic, group_facts, remembered_facts
from twinlog.operations.readiness.reasons import Finding, Reason
from twinlog.store.group_log import Remembered
from twinlog.store.group_records import JOINED, NO_OFFSET, GroupMemory, LastCheck, PartitionMemory
from twinlog.sync import group_readings
from twinlog.sync.group_readings import Bounds, Log
from twinlog.sync.group_selection import named_groups

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
EMPTY = SourceLog(0, 0, 0)
CONFIG = ClusterConfig(bootstrap_servers=(Address("h", 1),))
SOURCE, DESTINATION = KafkaCluster(CONFIG, name="source"), KafkaCluster(CONFIG, name="destination")


class World:
    """The answers of both clusters."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.offsets: dict[KafkaCluster, dict[str, int]] = {SOURCE: {}, DESTINATION: {}}
        self.hidden: set[str] = set()
        self.broken: set[str] = set()
        self.refused: dict[TopicPartition, Refusal] = {}
        self.lists_all = True
        self.remembered: Remembered | Exception = Remembered()
        for name in ("list_groups", "lists_all_groups", "log_bounds"):
            monkeypatch.setattr(group_survey, name, getattr(self, name))
        monkeypatch.setattr(group_readings, "group_offsets", self.group_offsets)
        monkeypatch.setattr(group_survey, "read_groups", self.read_groups)

    async def list_groups(self, cluster: KafkaCluster) -> dict[str, Group]:
        names = self.offsets[cluster].keys() - self.hidden
        return {name: Group(name, "Empty", "classic") for name in names}

    async def lists_all_groups(self, cluster: KafkaCluster) -> bool:
        assert cluster is SOURCE
        return self.lists_all

    async def group_offsets(
        self, cluster: KafkaCluster, group: Group, *, stable: bool = False
    ) -> dict[TopicPartition, Committed]:
        del stable
        if group.name in self.broken:
            raise Retriable("no coordinator")
        found = self.offsets[cluster].get(group.name)
        return {} if found is None else {A: Committed(found)}

    async def log_bounds(self, _: KafkaCluster, partitions: Any, _same: Translation) -> Bounds:
        known = [partition for partition in partitions if partition not in self.refused]
        return Bounds(dict.fromkeys(known, Log(0, 100)), self.refused)

    async def read_groups(self, _: KafkaCluster, _mirror: str) -> Remembered:
        if isinstance(self.remembered, Exception):
            raise self.remembered
        return self.remembered

    def live(
        self, *, stable: bool = False, include: str = ".*", translation: Translation = SAME
    ) -> tuple[ByTopic, list[str]]:
        logs = {
            partition: log
            for partition, log in {A: SourceLog(0, 100, 100), B: EMPTY}.items()
            if partition not in translation.unknown
        }
        facts = group_facts(
            *(SOURCE, DESTINATION, "m", named_groups([re.compile(include)]), logs),
            stable=stable,
            translation=translation,
        )
        return _texts(asyncio.run(facts))

    def dead(self, now_ms: int = 0, translation: Translation = SAME) -> tuple[ByTopic, list[str]]:
        facts = remembered_facts(DESTINATION, "m", [A], now_ms, translation)
        return _texts(asyncio.run(facts))


def _texts(found: tuple[ByTopic, tuple[Finding, ...]]) -> tuple[ByTopic, list[str]]:
    by_topic, findings = found
    reasons = {Reason.GROUP_UNREADABLE, Reason.GROUP_NOT_COPIED}
    assert all(finding.reason in reasons for finding in findings)
    return by_topic, [finding.text for finding in findings]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def group_memory(group: str, source: int, copied: int) -> dict[str, GroupMemory]:
    rows = {A: PartitionMemory(source, copied)}
    return {group: GroupMemory(mirror="m", group=group, kind="classic", partitions=rows)}


def test_an_incomplete_list_of_groups_is_reported(world: World) -> None:
    """Brokers leave groups without DESCRIBE out of their lists without an error."""
    assert world.live() == ({}, [])
    world.lists_all = False
    _, [text] = world.live()
    assert "User:ANONYMOUS DESCRIBE on the cluster" in text


def test_a_remembered_group_missing_from_the_list_is_requested(world: World) -> None:
    """The node has seen the group: its coordinator may be unreachable; it would repeat records."""
    world.remembered = Remembered(groups=group_memory("g", 90, 20))
    world.offsets[SOURCE]["g"], world.offsets[DESTINATION]["g"] = 90, 20
    world.hidden.add("g")
    by_topic, findings = world.live()
    assert [(one.group, one.behind) for one in by_topic["t"]] == [("g", 70)]
    assert not by_topic["t"][0].idle_on_source, "it is there: no list has its state"
    assert not findings
    world.broken.add("g")
    by_topic, [text] = world.live()
    assert not by_topic
    assert "offsets of g: no coordinator" in text


@pytest.mark.parametrize(
    ("remembered", "why"),
    [
        (UserError("no right"), "no right"),
        (Remembered(unreadable=("record 7",)), "record 7"),
        (Remembered(), ""),
    ],
)
def test_unreadable_group_records_are_reported(world: World, remembered: object, why: str) -> None:
    """An unreadable memory counts with a reachable source, too: only it knows deleted groups."""
    world.remembered = cast("Remembered | Exception", remembered)
    world.offsets[SOURCE]["g"] = world.offsets[DESTINATION]["g"] = 90
    by_topic, findings = world.live()
    assert [one.group for one in by_topic["t"]] == ["g"]
    assert [why in text and "no longer exist on the source" in text for text in findings] == [
        True
    ] * bool(why)


def test_an_unreadable_group_does_not_hide_others(world: World) -> None:
    """One unreadable group is a finding; where all offsets have to be final, it is an error."""
    world.offsets[SOURCE] |= {"g": 90, "h": 90}
    world.broken.add("g")
    by_topic, [text] = world.live()
    assert [one.group for one in by_topic["t"]] == ["h"]
    assert "offsets of g" in text
    with pytest.raises(Retriable):
        world.live(stable=True)


def test_unknown_log_bounds_of_a_group_are_reported(world: World) -> None:
    """Without the log bounds a group's place is unknown, so a switchover waits."""
    world.offsets[SOURCE] |= {"g": 90, "none": 0}
    world.offsets[DESTINATION] |= {"g": 90}
    world.remembered = Remembered(
        check=LastCheck(mirror="m", time_ms=0), groups=group_memory("g", 90, 90)
    )
    world.refused = {A: Refusal(6)}
    by_topic, findings = world.live()
    assert not by_topic
    assert ["cannot read the log bounds of t-0 on the destination" in text for text in findings]
    with pytest.raises(Retriable, match="cannot read the log bounds of t-0"):
        world.live(stable=True)
    by_topic, [_, unknown] = world.dead()
    assert not by_topic
    assert "offsets of g: cannot read the log bounds of t-0 on the destination" in unknown


@pytest.mark.parametrize(
    ("translation", "why"),
    [
        (Translation(begins={A: 50}), "the flow began at a later offset"),
        (Translation(unknown=frozenset({A})), "no offset is translated there yet"),
        (Translation(unknown=frozenset({A, B})), "no offset is translated there yet"),
        (Translation(lost=frozenset({A})), "the target has lost records that were copied"),
    ],
)
def test_offsets_that_cannot_be_translated_are_named(
    world: World, translation: Translation, why: str
) -> None:
    """Goal: they are not taken for offsets that the group does not have, nor for deleted ones."""
    world.offsets[SOURCE], world.offsets[DESTINATION] = {"g": 40}, {"g": 60}
    world.remembered = Remembered(groups=group_memory("g", 60, 60))
    expected = [f"groups: offsets of g: not compared, as {why}: t-0"]
    assert world.live(translation=translation) == ({}, expected)
    assert world.live(translation=translation, include="other") == ({}, [])
    with pytest.raises(Retriable, match=f"group g: offsets of g: not compared, as {why}"):
        world.live(translation=translation, stable=True)


def test_an_offset_that_is_lacking_for_a_shared_partition_is_named(world: World) -> None:
    """Goal: a group that goes on nowhere in it is no group without offsets of the topic."""
    remote = TopicPartition("all", 0)
    names, offsets = dict.fromkeys((A, B), remote), OffsetRuns(Ends(Offset(0), Offset(0)))
    offsets.append(Run(Offset(0), Offset(0), 60))
    plain = Translation(names, dict.fromkeys(names, offsets))
    translation = plain.with_shared({remote: 120}, names, ()).joined()
    world.offsets[SOURCE] = {"g": 40}
    text = (
        "group g: no offset is copied to all-0, which several source partitions share: it has no "
        "offset of t-1"
    )
    assert world.live(translation=translation) == ({}, [text])
    assert world.live(translation=translation, include="other") == ({}, [])
    alone = Translation({A: remote}, {A: offsets})
    translation = alone.with_shared({remote: 60}, {A: remote}, (), unread={"w"}).joined()
    text = (
        "group g: no offset is copied to all-0, which several source partitions may share: topics "
        "of the flow that cannot be read may be copied there, too: w"
    )
    assert world.live(translation=translation) == ({}, [text])


def test_a_dead_source_shows_who_had_no_place_in_a_shared_partition(world: World) -> None:
    """Goal: issue 19: a group without an offset there is named when a failover is decided.

    What was stored before the topics shared one is no offset of the remote log.
    """
    remote = TopicPartition("all", 0)
    names = dict.fromkeys((A, B), remote)
    translation = Translation(names).with_shared({remote: 90}, names, ()).joined()
    text = (
        "group {}: no offset is copied to all-0, which several source partitions share: at the "
        "last check not all of its offsets were known"
    )
    rows = {
        "joined": {A: PartitionMemory(90, 20, translated=JOINED)},
        "lacks": {A: PartitionMemory(translated=JOINED)},
        "before": {B: PartitionMemory(90, 20, translated=1)},
        "deleted": {A: PartitionMemory(NO_OFFSET, 20, deleted=1, translated=JOINED)},
        "elsewhere": {TopicPartition("w", 0): PartitionMemory(90, 20, translated=1)},
    }
    world.remembered = Remembered(
        check=LastCheck(mirror="m", time_ms=0),
        groups={
            name: GroupMemory(mirror="m", group=name, kind="classic", partitions=row)
            for name, row in rows.items()
        },
    )
    by_topic, [_, *texts] = world.dead(translation=translation)
    assert [(one.group, one.missing) for one in by_topic["t"]] == [("joined", 1)]
    assert texts == [text.format("before"), text.format("lacks")]


@pytest.mark.parametrize("place", [NO_OFFSET, 20])
def test_a_dead_source_shows_who_had_no_offset_while_the_partition_counted_as_shared(
    world: World, place: int
) -> None:
    """Goal: a group is named whose offset on the source was not stored.

    While a topic of the flow could not be read, each partition counted as shared. It can be read
    now, so the place that was stored, or none, is no offset of the source.
    """
    remote, offsets = TopicPartition("s.t", 0), OffsetRuns(Ends(Offset(0), Offset(0)))
    offsets.append(Run(Offset(0), Offset(0), 60))
    rows = {
        "deleted": {A: PartitionMemory(NO_OFFSET, 20, deleted=1, translated=JOINED)},
        "elsewhere": {TopicPartition("w", 0): PartitionMemory(translated=JOINED)},
        "g": {A: PartitionMemory(place, 20, translated=JOINED)},
        "translated": {A: PartitionMemory(20, 20, translated=1)},
    }
    world.remembered = Remembered(
        check=LastCheck(mirror="m", time_ms=0),
        groups={
            name: GroupMemory(mirror="m", group=name, kind="classic", partitions=row)
            for name, row in rows.items()
        },
    )
    world.offsets[DESTINATION]["g"] = 20
    by_topic, [_, *texts] = world.dead(translation=Translation({A: remote}, {A: offsets}))
    assert [one.group for one in by_topic["t"]] == ["translated"]
    why = "the last check has stored no source offset"
    assert texts == [f"groups: offsets of g: not compared, as {why}: t-0"]


def test_a_group_behind_lost_copies_would_skip_records(world: World) -> None:
    """Goal: the log was cut to 60, where the group's own offset of before would seem equal."""
    offsets = OffsetRuns(Ends(Offset(0), Offset(0)))
    offsets.append(Run(Offset(0), Offset(0), 60))
    world.offsets[SOURCE], world.offsets[DESTINATION] = {"g": 90}, {"g": 90}
    [(name, memory)] = group_memory("g", 60, 90).items()
    rows = {A: memory.partitions[A]._replace(translated=1)}
    world.remembered = Remembered(groups={name: replace(memory, partitions=rows)})
    for passed in (frozenset[TopicPartition](), frozenset({A})):
        by_topic, _ = world.live(translation=Translation(maps={A: offsets}, passed=passed))
        [found] = by_topic["t"]
        assert [(skip.partition, skip.follows) for skip in found.skips] == [(A, True)] * len(passed)


def test_offsets_of_the_last_check_are_used_for_a_dead_source(world: World) -> None:
    """The source offsets of the last check are compared with the destination's present ones."""
    world.remembered = Remembered(
        check=LastCheck(mirror="m", time_ms=1000, failed=("h",)),
        groups=group_memory("g", 90, 20),
        unreadable=("record 7",),
    )
    world.offsets[DESTINATION]["g"] = 20
    by_topic, [age, failed, unreadable] = world.dead(43_000)
    assert [(one.group, one.behind) for one in by_topic["t"]] == [("g", 70)]
    assert "1 were last checked on the source 42 s ago" in age
    _, [age, *_] = world.dead(0)
    assert "on the source 1 s ahead of this machine's clock" in age, "a node's clock is ahead"
    assert failed.endswith(": h")
    assert unreadable.endswith(": record 7")


@pytest.mark.parametrize("here", [20, 25])
def test_a_group_deleted_before_the_source_died_resumes_from_copies(
    world: World, here: int
) -> None:
    """The group resumes from copied offsets; an offset it has committed itself is no finding."""
    rows = {A: PartitionMemory(NO_OFFSET, 20, deleted=1)}
    groups = {"g": GroupMemory(mirror="m", group="g", kind="classic", partitions=rows)}
    world.remembered = Remembered(groups=groups, check=LastCheck(mirror="m", time_ms=0))
    world.offsets[DESTINATION]["g"] = here
    by_topic, _ = world.dead()
    found = [standing for one in by_topic.get("t", ()) for standing in one.deleted]
    assert found == ([Standing(A, 20)] if here == 20 else [])


def test_a_partition_without_source_offset_is_no_deleted_group(world: World) -> None:
    """A paused partition is in no check, and is remembered without a source offset."""
    check = LastCheck(mirror="m", time_ms=0)
    world.remembered = Remembered(groups=group_memory("g", NO_OFFSET, 20), check=check)
    world.offsets[DESTINATION]["g"] = 20
    by_topic, _ = world.dead()
    assert not by_topic


@pytest.mark.parametrize(
    "remembered",
    [Remembered(), Remembered(groups=group_memory("g", 90, 20)), UserError("no right")],
)
def test_without_a_complete_check_the_offsets_of_a_dead_source_are_unknown(
    world: World, remembered: object
) -> None:
    """Without a complete check, remembered groups prove nothing about the others."""
    world.remembered = cast("Remembered | Exception", remembered)
    by_topic, [text] = world.dead()
    assert not by_topic
    assert "source offsets are unknown: " in text
