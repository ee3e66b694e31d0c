"""Group offsets follow: on groups in memory, with the test's clock; then on real brokers."""

import asyncio
import itertools
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from twinlog.kafka.errors import Refusal, Retriable, UserError
from twinlog.kafka.groups.offsets import Committed, Group
from twinlog.kafka.requests.topics import KnownTopic
from twinlog.kafka.types import Offset, TopicPartition
from twinlog.mirror.offset_runs import Ends, OffsetRuns, Run
from twinlog.mirror.translation import SAME, Translation
from twinlog.store.group_log import Remembered
from twinlog.store.group_records import (
    NO_OFFSET,
    GroupMemory,
    LastCheck,
    PartitionMemory,
    decode,
    encode,
)
from twinlog.sync import group_offsets as group_sync
from twinlog.sync import group_readings, topic_identity, unlisted_groups
from twinlog.sync.group_offsets import GroupSync
from twinlog.sync.group_readings import Bounds, Log
from twinlog.sync.group_selection import named_groups
from twinlog.sync.repeated_commits import DEFAULT_REPEAT_S, MAX_REPEAT_S, repeat_interval
from twinlog.sync.unlisted_groups import FORGET_S

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
REMOTE = TopicPartition("s.t", 0)
TOPIC_ID = UUID(int=7)
QUIET_S = 300.0
ALL = named_groups([re.compile(".*", re.DOTALL)])


class Cluster:
    """The groups of one cluster: an object for the patched functions below."""

    def __init__(self) -> None:
        self.groups: dict[str, dict[TopicPartition, Committed]] = {}
        self.kinds: dict[str, str] = {}
        self.members: set[str] = set()
        self.hidden: set[str] = set()
        self.silent: set[str] = set()
        self.topic_ids = {TOPIC_ID}
        """As its brokers show them."""
        self.commits: list[dict[TopicPartition, Committed]] = []
        self.lose_answers = False
        self.omits: set[TopicPartition] = set()
        """Partitions that answers leave out, and that are not committed."""
        self.meanwhile: Iterator[Any] = iter(())
        """Actions before the next commits, one each."""
        self.log: dict[bytes, bytes] = {}
        self.requests: list[str] = []
        """What it was asked for: topics, or the offsets of a group."""
        self.knows_topics = True
        self.log_refuses: Exception | None = None
        self.log_unread: Exception | None = None
        self.undecoded: set[str | None] = set()

    def commit(
        self, group: str, offset: int, partition: TopicPartition = A, epoch: int = 4
    ) -> None:
        """Commit as a consumer does."""
        self.groups.setdefault(group, {})[partition] = Committed(offset, "", epoch)

    def offset(self, group: str, partition: TopicPartition = A) -> int | None:
        found = self.groups.get(group, {}).get(partition)
        return None if found is None else found.offset

    async def known_topics(self, names: Collection[str]) -> dict[str, KnownTopic]:
        self.requests.append("topics")
        if not self.knows_topics:
            raise Retriable("a broker does not answer")
        topic = KnownTopic(frozenset(self.topic_ids), 2, internal=False)
        return dict.fromkeys(names, topic)


class World:
    """A source, a destination, a node, and a clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.source, self.destination = Cluster(), Cluster()
        self.end = 1000
        self.start_there = 0
        self.refused: dict[TopicPartition, Refusal] = {}
        self.now = 1_000_000.0
        self.wanted: Collection[str] = {"t"}
        self.is_ours: Callable[[], bool] = lambda: True
        self.node = self.new_node()
        for name, function in {
            "list_groups": self._list,
            "commit_offsets": self._commit,
            "set_start_offsets": self._commit,
            "log_bounds": self._bounds,
            "read_groups": self._read,
            "write_groups": self._write,
            "create_groups_topic": self._nothing,
        }.items():
            monkeypatch.setattr(group_sync, name, function)
        monkeypatch.setattr(topic_identity, "known_topics", Cluster.known_topics)
        for module in (unlisted_groups, group_readings):
            monkeypatch.setattr(module, "group_offsets", self._offsets)
        monkeypatch.setattr(GroupSync, "_repeat_interval", self._repeat)

    def new_node(self) -> GroupSync:
        """Replace the node by one that knows only the stored records."""
        self.node = GroupSync(self.destination, clock=lambda: self.now)  # type: ignore[arg-type]
        return self.node

    def check(self, *, quiet_s: float = QUIET_S, after_s: float = 30.0, **settings: Any) -> int:
        """Run a check by the node, `after_s` after the last one; return how many groups failed."""
        self.now += after_s
        return asyncio.run(
            self.node.sync(
                self.source,  # type: ignore[arg-type]
                "m",
                settings.get("include", ALL),
                {A: TOPIC_ID, B: TOPIC_ID},
                quiet_s=quiet_s,
                wanted=lambda: self.wanted,
                is_ours=self.is_ours,
                translation=settings.get("translation", SAME),
            )
        )

    @property
    def written(self) -> dict[str, GroupMemory]:
        records = [decode(key, value) for key, value in self.destination.log.items()]
        return {record.group: record for record in records if isinstance(record, GroupMemory)}

    @property
    def last_check(self) -> LastCheck:
        [found] = [
            one
            for key, value in self.destination.log.items()
            if isinstance(one := decode(key, value), LastCheck)
        ]
        return found

    async def _list(self, cluster: Cluster) -> dict[str, Group]:
        return {
            name: Group(
                name,
                "Stable" if name in cluster.members else "Empty",
                cluster.kinds.get(name, "classic"),
            )
            for name in cluster.groups.keys() | cluster.members
            if name not in cluster.hidden
        }

    async def _offsets(
        self, cluster: Cluster, group: Group, *, stable: bool = False
    ) -> dict[TopicPartition, Committed]:
        assert not stable
        cluster.requests.append(group.name)
        if group.name in cluster.silent:
            raise Retriable("no coordinator")
        return dict(cluster.groups.get(group.name, {}))

    async def _commit(
        self, cluster: Cluster, group: str, offsets: Mapping[TopicPartition, Committed]
    ) -> dict[TopicPartition, Refusal | None]:
        next(cluster.meanwhile, None)
        if group in cluster.members:
            return dict.fromkeys(offsets, Refusal(25))
        cluster.commits.append(dict(offsets))
        done = {one: at for one, at in offsets.items() if one not in cluster.omits}
        cluster.groups.setdefault(group, {}).update(done)
        if cluster.lose_answers:
            raise Retriable("lost")
        return dict.fromkeys(done)

    async def _bounds(self, _: Cluster, partitions: Collection[TopicPartition], _same: Any) -> Any:
        known = [partition for partition in partitions if partition not in self.refused]
        log = Log(0, self.end, start_there=self.start_there)
        return Bounds(dict.fromkeys(known, log), self.refused)

    async def _read(self, cluster: Cluster, _mirror: str) -> Remembered:
        if cluster.log_unread:
            raise cluster.log_unread
        kept = {name: one for name, one in self.written.items() if name not in cluster.undecoded}
        return Remembered(groups=kept, undecoded=frozenset(cluster.undecoded))

    async def _write(
        self,
        cluster: Cluster,
        _mirror: str,
        records: Sequence[GroupMemory | LastCheck],
        forgotten: Collection[str] = (),
    ) -> None:
        if cluster.log_refuses:
            raise cluster.log_refuses
        cluster.log.update(map(encode, records))
        for name in forgotten:
            del cluster.log[encode(GroupMemory(mirror="m", group=name, kind=""))[0]]

    async def _nothing(self, _: Cluster) -> None:
        pass

    async def _repeat(self) -> float:
        return DEFAULT_REPEAT_S


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_offsets_follow_a_rewound_group(world: World) -> None:
    """A rewound group is followed, also by a node started since: copied offsets are stored."""
    world.source.commit("g", 90)
    world.check()
    assert world.destination.offset("g") == 90
    world.new_node()
    world.source.commit("g", 20)
    world.check()
    assert world.destination.offset("g") == 20


def test_offsets_committed_by_the_group_are_not_lowered(world: World) -> None:
    """KIP-545. An equal offset, committed by a consumer, is the consumer's own, too."""
    world.source.commit("g", 90)
    world.check()
    for own in (95, 90, 60):
        world.destination.commit("g", own)
        world.source.commit("g", 20)
        for _ in range(20):
            world.check()
        assert world.destination.offset("g") == own


def crash(world: World) -> Iterator[None]:
    """Nothing that the node writes lands after this."""
    world.destination.log_refuses = Retriable("gone")
    yield


def test_a_crash_after_a_commit_leaves_an_offset_of_the_mirror(world: World) -> None:
    """Goal: what was going to be committed is stored before, so the next node lowers it."""
    world.source.commit("g", 70)
    assert world.check() == 0
    world.source.commit("g", 90)
    world.destination.meanwhile = crash(world)
    assert world.check() == 1
    assert world.destination.offset("g") == 90
    world.destination.log_refuses = None
    world.new_node()
    world.source.commit("g", 20)
    assert world.check() == 0
    assert world.destination.offset("g") == 20
    memory = world.written["g"].partitions[A]
    assert (memory.copied, memory.sent) == (20, -1)


def test_a_crash_before_a_commit_leaves_the_former_offset_of_the_mirror(world: World) -> None:
    """Goal: both what was committed and what was not are known; a consumer's offset is its own."""
    world.source.commit("g", 70)
    assert world.check() == 0
    world.source.commit("g", 90)
    world.destination.omits = {A}
    world.destination.meanwhile = crash(world)
    assert world.check() == 1
    world.destination.log_refuses, world.destination.omits = None, set()
    world.new_node()
    world.source.commit("g", 20)
    assert world.check() == 0
    assert world.destination.offset("g") == 20
    world.destination.commit("g", 90)
    for _ in range(20):
        world.check()
    assert world.destination.offset("g") == 90


def test_offsets_are_not_lowered_after_a_crash_without_a_record(world: World) -> None:
    """The destination's offset is not known to be the mirror's: keeping it is the safe side."""
    world.source.commit("g", 90)
    world.destination.log_refuses = Retriable("gone")
    assert world.check() == 1
    assert world.destination.offset("g") == 90
    world.destination.log_refuses = None
    world.new_node()
    world.source.commit("g", 20)
    for _ in range(20):
        world.check()
    assert world.destination.offset("g") == 90
    world.source.commit("g", 95)
    world.check()
    world.source.commit("g", 30)
    world.check()
    assert world.destination.offset("g") == 30, "the next copy is the mirror's own again"


def test_a_commit_with_a_lost_answer_counts_as_copied(world: World) -> None:
    """The commit has landed or not: the group is followed in both cases."""
    world.source.commit("g", 90)
    world.destination.lose_answers = True
    assert world.check() == 1
    world.destination.lose_answers = False
    world.source.commit("g", 20)
    assert world.check() == 0
    assert world.destination.offset("g") == 20


def test_a_partition_missing_from_a_response_is_not_copied(world: World) -> None:
    """Goal: the destination's offset stays the mirror's own, and follows the source back."""
    world.source.commit("g", 80)
    assert world.check() == 0
    world.destination.omits = {A}
    world.source.commit("g", 90)
    world.check()
    assert world.destination.offset("g") == 80
    world.destination.omits = set()
    world.source.commit("g", 20)
    assert world.check() == 0
    assert world.destination.offset("g") == 20


def test_groups_are_copied_without_access_to_the_groups_topic(world: World) -> None:
    """Only a new node does not know which offsets are the mirror's own."""
    world.destination.log_refuses = UserError("no right", code=29)
    for offset in (90, 20, 95):
        world.source.commit("g", offset)
        assert world.check() == 1
        assert world.destination.offset("g") == offset


def test_unreadable_group_records_are_not_overwritten(world: World) -> None:
    """The check fails and writes nothing; the next one knows the mirror's own offsets."""
    world.source.commit("g", 90)
    world.check()
    before = dict(world.destination.log)
    world.new_node()
    world.destination.log_unread = UserError("no right", code=29)
    world.source.commit("g", 20)
    world.source.commit("h", 70)
    assert world.check() == 1
    assert world.destination.log == before
    assert [world.destination.offset(name) for name in ("g", "h")] == [90, 70]
    world.destination.log_unread = None
    assert world.check() == 0
    assert world.destination.offset("g") == 20
    assert world.written.keys() == {"g", "h"}


def test_a_group_record_of_a_later_version_is_kept(world: World) -> None:
    """It is neither overwritten nor removed; the check reports that it cannot read the group."""
    for name in ("g", "h"):
        world.source.commit(name, 90)
    world.check()
    before = world.written["g"]
    world.new_node()
    world.destination.undecoded = {"g"}
    for name in ("g", "h"):
        world.source.commit(name, 95)
    assert world.check() == 1
    assert world.last_check.failed == ("g",)
    assert world.written["g"] == before
    assert world.written["h"].partitions[A].source == 95
    world.check(include=named_groups([re.compile("h")]))
    assert world.written["g"] == before
    check = world.last_check
    world.new_node()
    world.destination.undecoded = {None}
    assert world.check() == 1
    assert world.last_check == check


def test_a_group_that_becomes_active_meanwhile_is_not_disturbed(world: World) -> None:
    """The broker refuses the commit; the group is left alone until it was quiet for a while."""
    world.source.commit("g", 90)
    world.check()
    world.source.commit("g", 20)
    world.destination.meanwhile = map(world.destination.members.add, ["g"])
    assert world.check() == 0
    assert world.destination.offset("g") == 90
    world.destination.members.clear()
    world.check()
    assert world.destination.offset("g") == 90
    world.check(after_s=QUIET_S)
    assert world.destination.offset("g") == 20


def test_an_offset_is_read_again_before_it_is_lowered(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group that commits between the first read and the commit keeps its offset."""
    world.source.commit("g", 90)
    world.check()
    world.source.commit("g", 20)
    asked = itertools.count()

    async def offsets(
        cluster: Cluster, group: Group, *, stable: bool = False
    ) -> dict[TopicPartition, Committed]:
        assert not stable
        if cluster is world.destination and next(asked) == 1:
            cluster.commit("g", 93)
        return dict(cluster.groups.get(group.name, {}))

    for module in (unlisted_groups, group_readings):
        monkeypatch.setattr(module, "group_offsets", offsets)
    world.check()
    assert world.destination.offset("g") == 93


@pytest.mark.parametrize("copied", [True, False])
def test_a_later_offset_copied_meanwhile_is_kept(
    world: World, monkeypatch: pytest.MonkeyPatch, copied: bool
) -> None:
    """A switchover copies offsets, too; an earlier one would make the group read records again."""
    if copied:
        world.source.commit("g", 80)
        world.check()
    world.source.commit("g", 90)
    asked = itertools.count()

    async def offsets(
        cluster: Cluster, group: Group, *, stable: bool = False
    ) -> dict[TopicPartition, Committed]:
        assert not stable
        if cluster is world.destination and next(asked) == 1:
            cluster.commit("g", 100, epoch=-1)
        return dict(cluster.groups.get(group.name, {}))

    for module in (unlisted_groups, group_readings):
        monkeypatch.setattr(module, "group_offsets", offsets)
    world.check()
    assert world.destination.offset("g") == 100


def test_a_rolling_restart_of_destination_consumers_skips_nothing(world: World) -> None:
    """Its consumers read on the destination, far behind; for a moment the group has no member."""
    world.source.commit("g", 900)
    world.destination.members.add("g")
    for offset in range(0, 100, 10):
        world.destination.commit("g", offset)
        world.check()
    world.destination.members.clear()
    world.check()
    world.new_node()
    world.check()
    assert world.destination.offset("g") == 90, "nothing is skipped"
    world.check(after_s=QUIET_S)
    assert world.destination.offset("g") == 900, "it does not read there any more"


def test_a_consumer_without_membership_is_detected_by_its_commits(world: World) -> None:
    """assign() and commit(): the group never has a member."""
    world.source.commit("g", 900)
    for offset in range(0, 200, 10):
        world.destination.commit("g", offset, epoch=-1)
        world.check()
        assert world.destination.offset("g") == offset


def test_old_offsets_are_raised_after_a_quiet_time(world: World) -> None:
    """An old offset of the group on the new destination is raised, after a quiet time."""
    world.destination.commit("g", 100)
    world.source.commit("g", 500)
    world.check()
    assert world.destination.offset("g") == 100
    world.check(after_s=QUIET_S)
    assert world.destination.offset("g") == 500
    world.destination.commit("h", 100)
    world.source.commit("h", 500)
    world.check(quiet_s=0)
    assert world.destination.offset("h") == 500, "a switchover does not wait"


def test_a_stale_check_after_a_removal_commits_nothing(world: World) -> None:
    """The desired state is checked when the commit is sent, not when the check begins."""
    world.source.commit("g", 90)
    world.wanted = set()
    world.check()
    assert world.destination.offset("g") is None


@pytest.mark.parametrize("former", [set(), {TOPIC_ID}], ids=["known", "one broker is behind"])
def test_offsets_of_a_recreated_topic_are_not_copied(world: World, former: set[UUID]) -> None:
    """Each broker of the source has to show the topic that was copied."""
    world.source.commit("g", 90)
    world.source.topic_ids = {UUID(int=8)} | former
    world.check()
    assert world.destination.offset("g") is None


def test_the_source_is_asked_once_for_its_topics(world: World) -> None:
    """Goal: one answer vouches for all groups, as it is newer than each of their offsets."""
    names = ["a", "b", "c"]
    for name in names:
        world.source.commit(name, 90)
    world.check()
    assert [world.destination.offset(name) for name in names] == [90, 90, 90]
    assert sorted(world.source.requests[:3]) == names
    assert world.source.requests[3:] == ["topics"]
    world.source.requests.clear()
    world.check()
    assert sorted(world.source.requests) == names, "nothing is due"


def test_no_offset_is_copied_while_the_topics_of_the_source_are_unknown(world: World) -> None:
    """Goal: each group counts as failed, and nothing is left announced."""
    for name in "ab":
        world.source.commit(name, 90)
    world.source.knows_topics = False
    assert world.check() == 2
    assert world.source.requests.count("topics") == 1
    assert not world.destination.commits
    assert {one.partitions[A].sent for one in world.written.values()} == {NO_OFFSET}
    world.source.knows_topics = True
    assert world.check() == 0
    assert [world.destination.offset(name) for name in "ab"] == [90, 90]


def test_a_quiet_partition_is_committed_again(world: World) -> None:
    """It is committed before the brokers expire it, and only if it is the mirror's own."""
    world.source.commit("g", 90)
    world.source.commit("g", 40, B)
    world.check()
    world.destination.commit("g", 45, B)
    world.check(after_s=DEFAULT_REPEAT_S / 2)
    world.check(after_s=QUIET_S)
    assert len(world.destination.commits) == 1
    world.new_node()
    world.check(after_s=DEFAULT_REPEAT_S / 2)
    assert world.destination.commits[1:] == [{A: Committed(90)}]
    world.check()
    assert len(world.destination.commits) == 2
    world.check(after_s=DEFAULT_REPEAT_S)
    assert len(world.destination.commits) == 3
    del world.source.groups["g"]
    world.check(after_s=DEFAULT_REPEAT_S)
    assert len(world.destination.commits) == 3, "the source has expired it, too"


@pytest.mark.parametrize(
    ("minutes", "seconds"),
    [
        ([], DEFAULT_REPEAT_S),
        ([None], DEFAULT_REPEAT_S),
        (["10080"], MAX_REPEAT_S),
        (["10080", "60"], 900.0),
        (["4"], 60.0),
    ],
)
def test_the_repeat_interval_follows_the_retention(
    minutes: list[str | None], seconds: float
) -> None:
    assert repeat_interval(minutes) == seconds


def test_the_source_offsets_of_the_last_check_are_stored(world: World) -> None:
    """Readiness needs it when the source is dead; an unchanged record is not written."""
    world.end = 50
    world.source.commit("g", 90)
    world.check()
    first = world.last_check
    assert first.time_ms == int(world.now * 1000)
    assert world.written["g"].partitions[A].source == 90
    assert world.written["g"].partitions[A].copied == 50
    before = dict(world.destination.log)
    world.check()
    changed = [key for key, value in world.destination.log.items() if before.get(key) != value]
    assert [decode(key, world.destination.log[key]) for key in changed] == [world.last_check]
    assert world.last_check.time_ms > first.time_ms


def test_failed_groups_are_named(world: World) -> None:
    world.source.commit("g", 90)
    world.source.commit("h", 90)
    world.destination.lose_answers = True
    assert world.check() == 2
    assert world.last_check.failed == ("g", "h")


def test_unknown_log_bounds_make_the_check_incomplete(world: World) -> None:
    """Nothing is concluded of that partition; the group's other offsets are copied."""
    world.source.commit("g", 90, A)
    world.source.commit("g", 80, B)
    world.source.commit("h", 70, A)
    world.refused = {B: Refusal(6)}
    assert world.check() == 1
    assert world.last_check.failed == ("g",)
    offsets = [world.destination.offset(*place) for place in (("g", A), ("g", B), ("h", A))]
    assert offsets == [90, None, 70]
    world.refused = {}
    assert world.check() == 0
    assert world.destination.offset("g", B) == 80


def test_a_group_deleted_for_long_is_forgotten(world: World) -> None:
    """One list without the group proves nothing; a group that is excluded is forgotten.

    While its offsets are left on the destination, they are known to be the mirror's own: the group
    would go on from them, which readiness has to report (GROUP_DELETED).
    """
    world.source.commit("g", 90)
    world.check()
    world.source.hidden.add("g")
    world.check()
    for _ in range(3):
        world.check(after_s=FORGET_S + 1)
        assert world.written["g"].partitions[A].copied == 90
    del world.destination.groups["g"]
    world.check(after_s=FORGET_S / 2)
    assert "g" in world.written, "it is not asked for each time"
    world.check(after_s=FORGET_S)
    assert "g" not in world.written
    world.source.hidden.clear()
    world.check()
    assert "g" in world.written
    world.check(include=named_groups([re.compile("other")]))
    assert "g" not in world.written


def test_offsets_deleted_on_the_source_are_recorded(world: World) -> None:
    """A dead source makes it necessary. Groups missing from the list are asked for until known."""
    for group in ("g", "h"):
        world.source.commit(group, 90)
        world.source.commit(group, 80, B)
    world.check()
    del world.source.groups["g"]
    del world.source.groups["h"][B]
    world.source.silent.add("g")
    world.check()
    assert world.written["g"].partitions[A] == PartitionMemory(90, 90), "nothing was answered"
    assert world.written["h"].partitions[A] == PartitionMemory(90, 90)
    assert world.written["h"].partitions[B] == PartitionMemory(-1, 80, deleted=1)
    world.source.silent.clear()
    world.check()
    assert world.written["g"].partitions[A] == PartitionMemory(-1, 90, deleted=1)
    assert world.written["g"].partitions[B] == PartitionMemory(-1, 80, deleted=1)
    world.source.silent.add("g")
    world.source.commit("g", 95)
    world.source.hidden.add("g")
    world.check()
    assert world.written["g"].partitions[A].deleted, "it is not asked for again"
    world.source.silent.clear()
    world.source.hidden.clear()
    world.check()
    assert world.written["g"].partitions[A] == PartitionMemory(95, 95)


def test_an_offset_that_cannot_be_translated_is_not_recorded_as_deleted(world: World) -> None:
    """Goal: `readiness` would report a group whose offsets were deleted on the source."""
    world.source.commit("g", 90)
    world.check()
    world.source.commit("g", 40)
    world.check(translation=Translation(begins={A: 50}))
    assert world.written["g"].partitions == {A: PartitionMemory(90, 0)}, "it was rewound"


def test_an_unlisted_group_with_offsets_is_kept(world: World) -> None:
    world.source.commit("g", 90)
    world.check()
    world.source.hidden.add("g")
    world.check()
    assert world.written["g"].partitions[A] == PartitionMemory(90, 90)


@pytest.mark.parametrize("own", [True, False])
def test_a_group_that_commits_on_the_destination_is_forgotten(world: World, own: bool) -> None:
    """Its offsets are its own then; not where the destination does not answer."""
    world.source.commit("g", 90)
    world.check()
    world.source.hidden.add("g")
    world.check()
    if own:
        world.destination.commit("g", 95)
    else:
        world.destination.silent.add("g")
    world.check(after_s=FORGET_S + 1)
    assert ("g" in world.written) is not own


def test_offsets_are_committed_in_parts(world: World) -> None:
    """Offsets no longer wanted when their part is due are not committed; the rest is remembered."""
    many = [TopicPartition(f"{'t' * 200}-{number}", 0) for number in range(5000)]
    world.source.groups["g"] = dict.fromkeys(many, Committed(5))
    world.now += 1
    wanted = {one.topic for one in many}
    partitions = dict.fromkeys(many, TOPIC_ID)
    copying = world.node.sync(
        world.source,  # type: ignore[arg-type]
        "m",
        ALL,
        partitions,
        wanted=lambda: wanted,
    )
    assert asyncio.run(copying) == 0
    sizes = [len(part) for part in world.destination.commits]
    assert len(sizes) > 5
    assert sum(sizes) == 5000
    assert max(sizes) * 300 < 300_000


def test_a_refused_commit_does_not_count_as_copied(world: World) -> None:
    """Goal: an equal offset that the group commits itself afterwards is its own, and stays."""
    world.source.commit("g", 90)
    world.check()
    world.source.commit("g", 100)
    world.destination.meanwhile = map(world.destination.members.add, ["g"])
    assert world.check() == 0, "refused: UNKNOWN_MEMBER_ID"
    assert world.destination.offset("g") == 90
    world.destination.commit("g", 100, epoch=-1)
    world.check()
    world.destination.members.clear()
    world.source.commit("g", 20)
    for _ in range(30):
        world.check()
    assert world.destination.offset("g") == 100


@pytest.fixture
def unread(world: World, monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The readings of the destination, counted from 0, that fail."""
    fails: set[int] = set()
    asked = itertools.count()

    async def offsets(
        cluster: Cluster, group: Group, *, stable: bool = False
    ) -> dict[TopicPartition, Committed]:
        assert not stable
        if cluster is world.destination and next(asked) in fails:
            raise Retriable("no coordinator")
        return dict(cluster.groups.get(group.name, {}))

    for module in (unlisted_groups, group_readings):
        monkeypatch.setattr(module, "group_offsets", offsets)
    return fails


def test_what_was_not_sent_after_a_read_error_is_not_the_mirrors(
    world: World, unread: set[int]
) -> None:
    """Goal: an equal offset that the group commits itself afterwards is its own, and stays."""
    world.source.commit("g", 90)
    assert world.check() == 0
    world.source.commit("g", 100)
    unread.add(3)
    assert world.check() == 1, "the second reading before the commit"
    memory = world.written["g"].partitions[A]
    assert (memory.copied, memory.sent) == (90, -1)
    assert len(world.destination.commits) == 1
    world.destination.commit("g", 100, epoch=-1)
    world.source.commit("g", 20)
    for _ in range(30):
        world.check()
    assert world.destination.offset("g") == 100


def test_a_read_error_does_not_end_what_was_sent_before(world: World, unread: set[int]) -> None:
    """Goal: the commit of an earlier check may land late, and is then the mirror's to lower."""
    world.source.commit("g", 90)
    world.destination.omits, world.destination.lose_answers = {A}, True
    assert world.check() == 1, "sent, and nothing was answered"
    world.destination.omits, world.destination.lose_answers = set(), False
    world.source.commit("g", 100)
    unread.add(3)
    assert world.check() == 1, "100 is announced, and not sent"
    world.destination.commit("g", 90, epoch=-1)
    world.source.commit("g", 20)
    assert world.check() == 0
    assert world.destination.offset("g") == 20


def test_what_is_not_wanted_any_more_does_not_stay_announced(world: World) -> None:
    """Goal: a topic that was removed meanwhile is not committed, and no intent is left."""
    world.source.commit("g", 90)
    world.check()
    world.source.commit("g", 100)
    world.wanted = ()
    world.check()
    memory = world.written["g"].partitions[A]
    assert (memory.copied, memory.sent) == (90, -1)


@pytest.mark.parametrize("writes", [0, 1], ids=["before it is announced", "before the commit"])
def test_nothing_is_written_behind_the_next_owner(
    world: World, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    """Goal: a check that the mirror has moved away from leaves what the next owner has written."""
    world.source.commit("g", 90)
    world.check()
    world.source.commit("g", 100)
    written = list[object]()

    async def note(*args: Any) -> None:
        written.append(args)
        await world._write(*args)

    monkeypatch.setattr(group_sync, "write_groups", note)
    world.is_ours = lambda: len(written) < writes
    with pytest.raises(Retriable, match="another node"):
        world.check()
    assert len(written) == writes
    assert world.destination.offset("g") == 90


def flow(*runs: tuple[int, int, int]) -> Translation:
    """A flow of one partition, of which these runs are copied."""
    offsets = OffsetRuns(Ends(Offset(0), Offset(0)))
    for source, destination, length in runs:
        offsets.append(Run(Offset(source), Offset(destination), length))
    return Translation({A: REMOTE}, {A: offsets})


def test_a_group_that_reads_records_of_others_on_the_destination_keeps_its_offset(
    world: World,
) -> None:
    """Goal: behind the map, all offsets are one of the source; they are not the mirror's for that.

    The group commits as clients without leader epochs do, and stops for long.
    """
    copied = flow((0, 0, 1000))
    world.source.commit("g", 1000)
    world.check(translation=copied)
    assert world.destination.commits == [{REMOTE: Committed(1000)}]
    world.destination.commit("g", 5000, REMOTE, epoch=-1)
    world.check(translation=copied)
    world.check(translation=copied, after_s=QUIET_S)
    world.check(translation=copied, after_s=2 * DEFAULT_REPEAT_S)
    world.source.commit("g", 200)
    world.new_node()
    for _ in range(3):
        world.check(translation=copied, after_s=QUIET_S)
    assert world.destination.offset("g", REMOTE) == 5000
    assert len(world.destination.commits) == 1


def test_a_group_that_reads_between_copied_records_is_active(world: World) -> None:
    """Goal: it is not moved on while it commits there, also where it has no members."""
    copied = flow((0, 0, 1000), (1000, 5000, 500))
    world.end = 1500
    world.source.commit("g", 1400)
    for offset in range(1000, 5000, 200):
        world.destination.commit("g", offset, REMOTE, epoch=-1)
        world.check(translation=copied)
        assert world.destination.offset("g", REMOTE) == offset
    world.check(translation=copied, after_s=QUIET_S)
    assert world.destination.offset("g", REMOTE) == 5400


def test_an_offset_is_committed_again_where_it_is(world: World) -> None:
    """Goal: records of others behind it, and then copied ones, do not move a quiet group."""
    world.source.commit("g", 1000)
    world.check(translation=flow((0, 0, 1000)))
    grown, world.end = flow((0, 0, 1000), (1000, 5000, 500)), 1500
    world.check(translation=grown, after_s=2 * DEFAULT_REPEAT_S)
    assert world.destination.commits == [{REMOTE: Committed(1000)}] * 2
    world.source.commit("g", 1001)
    world.check(translation=grown)
    world.source.commit("g", 900)
    world.check(translation=grown)
    assert world.destination.commits[2:] == [{REMOTE: Committed(5001)}, {REMOTE: Committed(900)}]


def test_a_flow_copies_no_metadata(world: World) -> None:
    """Goal: a group does not skip what others have in the place of what it has finished.

    Confluent's Parallel Consumer commits which records behind its offset it has finished, by their
    distance. Here a record is missing behind the offset: each one behind that is another one.
    """
    world.source.groups["g"] = {A: Committed(100, "101 to 310 are finished")}
    world.check(translation=flow((0, 0, 300), (301, 300, 300)))
    assert world.destination.commits == [{REMOTE: Committed(100)}]


def test_nothing_is_committed_where_copies_are_lost(world: World) -> None:
    """Goal: the map names places at which the target may have other records now."""
    copied = flow((0, 0, 1000))
    world.source.commit("g", 900)
    world.check(translation=replace(copied, lost=frozenset({A})))
    assert not world.destination.commits
    world.check(translation=copied)
    assert world.destination.commits == [{REMOTE: Committed(900)}]


def test_offsets_are_set_back_where_the_flow_goes_on_without_lost_copies(world: World) -> None:
    """Goal: a group at the end of the map skips nothing that is copied there after the loss."""
    world.source.commit("g", 120)
    world.check(translation=flow((0, 0, 120)))
    cut = replace(flow((0, 0, 100)), passed=frozenset({A}))
    world.check(translation=cut)
    world.check(translation=cut, after_s=2 * DEFAULT_REPEAT_S)
    grown = replace(flow((0, 0, 100), (120, 101, 5)), passed=frozenset({A}))
    world.source.commit("g", 125)
    world.check(translation=grown)
    world.check(translation=grown)
    places = [120, 100, 100, 106]
    assert world.destination.commits == [{REMOTE: Committed(at)} for at in places]
    world.destination.commit("g", 300, REMOTE)  # by the group
    world.check(translation=grown, after_s=QUIET_S)
    world.check(translation=grown, after_s=QUIET_S)
    assert world.destination.offset("g", REMOTE) == 300


@pytest.mark.parametrize(("before", "after"), [(990, 951), (900, 900)])
def test_offsets_are_set_back_to_a_map_that_begins_anew(
    world: World, before: int, after: int
) -> None:
    """Goal: the log was cut to 950, and 1000 is copied to 951; what is left below is not known."""
    world.source.commit("g", before)
    world.check(translation=flow((0, 0, 1000)))
    offsets = OffsetRuns(Ends(Offset(1000), Offset(951)))
    offsets.append(Run(Offset(1000), Offset(951), 39))
    anew = Translation({A: REMOTE}, {A: offsets}, begins={A: 1000}, passed=frozenset({A}))
    world.check(translation=replace(anew, lost=frozenset({A})))
    assert world.destination.offset("g", REMOTE) == before
    world.new_node()
    for _ in range(2):
        world.check(translation=anew)
        assert world.destination.offset("g", REMOTE) == after
    assert len(world.destination.commits) == (1 if before == after else 2)
    world.source.commit("g", 1010)
    world.end = 1039
    world.check(translation=anew)
    assert world.destination.offset("g", REMOTE) == 961
    world.destination.commit("g", 980, REMOTE)  # by the group
    world.source.commit("g", 990)
    world.check(translation=anew, after_s=QUIET_S)
    world.check(translation=anew, after_s=QUIET_S)
    assert world.destination.offset("g", REMOTE) == 980


WHOLE = flow((100, 0, 9900))
"""Of the source's offsets 100 to 9999."""


def from_7000(*, passed: bool) -> Translation:
    """The rest of that map.

    Its first parts were dropped (`passed`), or MirrorMaker 2 has copied what is below.
    """
    offsets = OffsetRuns(Ends(Offset(7000), Offset(6900)))
    offsets.append(Run(Offset(7000), Offset(6900), 3000))
    gone = frozenset({A} if passed else ())
    return Translation({A: REMOTE}, {A: offsets}, begins={A: 7000}, passed=gone)


@pytest.fixture(params=[True, False], ids=["map that was trimmed", "map of a takeover"])
def short_map(request: pytest.FixtureRequest, world: World) -> Translation:
    """A map that begins behind the remote log, which begins at 40."""
    world.end, world.start_there = 10_000, 40
    return from_7000(passed=request.param)


def test_a_group_that_is_rewound_below_the_map_goes_to_the_start_of_the_log(
    world: World, short_map: Translation
) -> None:
    """Goal: it skips none of the copies that it is to read again, wherever these are."""
    world.source.commit("g", 10_000)
    world.check(translation=WHOLE)
    world.source.commit("g", 5000)
    world.new_node()
    for _ in range(2):
        world.check(translation=short_map)
    assert world.destination.commits == [{REMOTE: Committed(9900)}, {REMOTE: Committed(40)}]
    world.source.commit("g", 6000)
    world.check(translation=short_map)
    assert world.destination.offset("g", REMOTE) == 40
    world.source.commit("g", 8000)
    world.check(translation=short_map)
    world.source.commit("g", 6999)
    world.check(translation=short_map)
    places = [9900, 40, 7900, 40]
    assert world.destination.commits == [{REMOTE: Committed(at)} for at in places]


def test_an_offset_that_is_not_translated_is_not_in_front_of_the_log(
    world: World, short_map: Translation
) -> None:
    """Goal: a consumer that moves there begins at the first copy that is left.

    In front of it, `auto.offset.reset=latest` would skip all.
    """
    world.source.commit("g", 6000)
    world.check(translation=WHOLE)
    for start, place in [(40, 5900), (5901, 5901), (6000, 6000)]:
        world.start_there = start
        world.check(translation=short_map)
        assert world.destination.offset("g", REMOTE) == place


def test_a_group_below_the_map_that_was_not_rewound_keeps_its_offset(
    world: World, short_map: Translation
) -> None:
    """Goal: it reads nothing again that it has read, and skips nothing."""
    world.source.commit("g", 6000)
    world.check(translation=WHOLE)
    for offset in (6000, 6500, 6200):
        world.source.commit("g", offset)
        world.new_node()
        world.check(translation=short_map)
    assert world.destination.commits == [{REMOTE: Committed(5900)}]
    world.source.commit("g", 5999)
    world.check(translation=short_map)
    assert world.destination.offset("g", REMOTE) == 40


def test_a_group_that_begins_anew_below_the_map_goes_to_the_start_of_the_log(
    world: World, short_map: Translation
) -> None:
    """Goal: its offset was deleted on the source, so nothing tells that it was not rewound."""
    world.source.commit("g", 10_000)
    world.check(translation=WHOLE)
    del world.source.groups["g"][A]
    world.check(translation=short_map)
    assert world.destination.offset("g", REMOTE) == 9900
    world.source.commit("g", 5000)
    world.check(translation=short_map)
    assert world.destination.offset("g", REMOTE) == 40


def test_only_the_mirrors_own_offset_goes_to_the_start_of_the_log(
    world: World, short_map: Translation
) -> None:
    """Goal: what a group or an operator has committed on the target stays (KIP-545)."""
    world.source.commit("g", 10_000)
    world.check(translation=WHOLE)
    world.source.commit("g", 5000)
    for offset, epoch in [(9900, 4), (9800, -1)]:
        world.destination.commit("g", offset, REMOTE, epoch)
        for _ in range(3):
            world.check(translation=short_map, after_s=QUIET_S)
        assert world.destination.offset("g", REMOTE) == offset
    assert len(world.destination.commits) == 1


def test_a_group_with_members_is_not_set_back_to_the_start_of_the_log(
    world: World, short_map: Translation
) -> None:
    """Goal: it has been quiet on the target before."""
    world.source.commit("g", 10_000)
    world.check(translation=WHOLE)
    world.source.commit("g", 5000)
    world.destination.members.add("g")
    world.check(translation=short_map)
    world.destination.members.clear()
    world.check(translation=short_map)
    assert world.destination.offset("g", REMOTE) == 9900
    world.check(translation=short_map, after_s=QUIET_S)
    assert world.destination.offset("g", REMOTE) == 40


@pytest.mark.parametrize("field", ["lost", "unknown"])
def test_a_rewound_group_stays_where_the_map_says_nothing(
    world: World, short_map: Translation, field: str
) -> None:
    """Goal: a map that is lost, or cannot be read now, is no evidence; the next one is."""
    world.source.commit("g", 10_000)
    world.check(translation=WHOLE)
    world.source.commit("g", 5000)
    world.check(translation=replace(short_map, **{field: frozenset({A})}))  # type: ignore[arg-type]
    assert world.destination.offset("g", REMOTE) == 9900
    world.check(translation=short_map)
    assert world.destination.offset("g", REMOTE) == 40


def test_an_offset_that_is_not_translated_does_not_expire(
    world: World, short_map: Translation
) -> None:
    """Goal: it is committed again while the source has one, and only if it is the mirror's own."""
    world.source.commit("g", 6000)
    world.check(translation=WHOLE)
    for _ in range(2):
        world.check(translation=short_map, after_s=DEFAULT_REPEAT_S)
        world.check(translation=short_map)
    assert world.destination.commits == [{REMOTE: Committed(5900)}] * 3
    world.destination.commit("g", 5900, REMOTE)  # by the group
    world.check(translation=short_map, after_s=DEFAULT_REPEAT_S)
    assert len(world.destination.commits) == 3


def test_an_offset_that_the_source_has_no_more_may_expire_below_the_map(
    world: World, short_map: Translation
) -> None:
    """Goal: it expires as that of other groups does."""
    world.source.commit("g", 6000)
    world.check(translation=WHOLE)
    del world.source.groups["g"][A]
    world.check(translation=short_map, after_s=2 * DEFAULT_REPEAT_S)
    assert len(world.destination.commits) == 1


def test_a_flows_record_of_a_former_version_proves_nothing(world: World) -> None:
    """Goal: it has offsets of the source; an equal one of the destination may be the group's."""
    rows = {A: PartitionMemory(source=1000, copied=1000, other=NO_OFFSET, sent=1000)}
    former = GroupMemory(mirror="m", group="g", kind="classic", partitions=rows, copied_ms=1)
    world.destination.log.update([encode(former)])
    world.destination.commit("g", 1000, REMOTE, epoch=-1)
    world.source.commit("g", 200)
    copied = flow((0, 52, 1000))
    for _ in range(3):
        world.check(translation=copied, after_s=QUIET_S)
    assert not world.destination.commits
    assert world.written["g"].partitions[A] == PartitionMemory(200, -1, other=1000, translated=1)
    world.source.commit("g", 990)
    world.check(translation=copied)
    assert world.destination.commits == [{REMOTE: Committed(1042)}]
    assert world.written["g"].partitions[A].is_own(1042, 0)
