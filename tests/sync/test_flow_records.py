"""What checkpoints and offset syncs of a flow say, without brokers."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Refusal, Retriable, TwinlogError
from twinlog.kafka.groups.offsets import Committed, Group
from twinlog.kafka.requests.partitions import ListedOffset, OffsetSpec
from twinlog.kafka.requests.topics import KnownTopic, NewTopic
from twinlog.kafka.types import Offset, TopicPartition
from twinlog.lifecycle.flow_creation import stored_properties
from twinlog.mirror.mm2_records import Checkpoint, Mm2Record
from twinlog.mirror.offset_runs import Ends, OffsetRuns, Run
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.settings import REFRESH
from twinlog.mirror.shared_partitions import Feeder, JoinedPartition
from twinlog.mirror.states import State
from twinlog.mirror.translation import Translation
from twinlog.store import shared_remotes
from twinlog.store.config_records import ConfigRecord, Mirror, MirrorTopic, Wanted, encode
from twinlog.store.group_log import Remembered
from twinlog.store.group_records import JOINED, NO_OFFSET, PartitionMemory
from twinlog.store.snapshot import Snapshot, StoredRecord
from twinlog.sync import (
    bookkeeping_topics,
    flow_records,
    group_offsets,
    group_readings,
    shared_translation,
    topic_identity,
    unlisted_groups,
)
from twinlog.sync.base import SyncContext, run_sync
from twinlog.sync.flow_records import Checkpoints, Positions
from twinlog.sync.group_check import GroupDifference
from twinlog.sync.group_offsets import GroupSync
from twinlog.sync.shared_checkpoints import shared_checkpoints
from twinlog.sync.stored_checkpoints import StoredCheckpoints

GROUP = "readers"
T, U = TopicPartition("t", 0), TopicPartition("u", 0)
FAR = 1 << 40
TARGET: Any = object()
ALL = TopicPartition("all", 0)
SHARED = {"t": "all", "u": "all", "v": "a.v"}


def runs(*parts: tuple[int, int, int], start: tuple[int, int] = (0, 0)) -> OffsetRuns:
    """The map of a partition: source, destination and length of its runs."""
    offsets = OffsetRuns(Ends(Offset(start[0]), Offset(start[1])))
    for source, destination, length in parts:
        offsets.append(Run(Offset(source), Offset(destination), length))
    return offsets


class Flow:
    """A flow a->b of topics with one partition each, and a group on its source."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, names: Mapping[str, str]) -> None:
        self.names = names
        self.maps_were_read = False
        self.maps: dict[TopicPartition, OffsetRuns] = {}
        self.committed: dict[TopicPartition, Committed] = {}
        self.wanted: dict[str, Wanted] = {}
        self.ends: dict[TopicPartition, int | Refusal] = {}
        """The ends of remote logs, by the source's partition; otherwise they are far."""
        self.lost: frozenset[TopicPartition] = frozenset()
        self.passed: frozenset[TopicPartition] = frozenset()
        self.begins: dict[TopicPartition, int] = {}
        self.starts: dict[TopicPartition, int] = {}
        """The beginnings of remote logs, by their names."""
        self.stored: dict[tuple[str, TopicPartition], Checkpoint] = {}
        self.unreadable: TwinlogError | None = None
        self.settled: frozenset[TopicPartition] = frozenset()
        self.later: Mapping[str, str] | None = None
        """The topics after the maps were read, if they are others."""
        self.own_policy = True
        """Whether the policy is none of Kafka's, which give no two topics one name."""
        self.control_reads: list[str] = []
        self.repeat_s = 1e6
        self.settings = {"enabled": "true", "sync.group.offsets.enabled": "true"}
        self.unread = ""
        """Since when `__mirror_config` has a topic that cannot be read: `before` or `meanwhile`."""
        self.states: dict[str, State] = {}
        self.refused_start: Refusal | None = None
        """Why no remote log's start can be read."""
        self.unread_states: set[str] = set()
        """Topics of which a state cannot be read."""
        self.recreated: Collection[str] = ()
        self.begun: bool | None = False
        """Up to where it has copied, by the source's partition."""
        self.without_last: Collection[str] = ()
        """Topics of which a state is stored, and nothing more."""
        self.known_before: Collection[str] = ()
        self.whole: Collection[str] = ()
        self.remote_ids: dict[str, UUID] = {}
        """Ids of remote topics, by the source's topic."""
        self.copies: dict[TopicPartition, Committed] = {}
        """What the group has committed on the target."""
        self.commits: list[dict[TopicPartition, int]] = []
        kind = SimpleNamespace(translation=self._translation)
        monkeypatch.setattr(shared_translation, "kind_named", lambda _: kind)
        monkeypatch.setattr(shared_translation, "list_offsets", self._listed_before)
        monkeypatch.setattr(shared_remotes, "has_properties_of_its_own", lambda _: self.own_policy)
        for module in (flow_records, group_offsets):
            monkeypatch.setattr(module, "list_groups", self._groups)
        monkeypatch.setattr(flow_records, "committed_offsets", self._committed)
        monkeypatch.setattr(flow_records, "list_offsets", self._listed)
        monkeypatch.setattr(group_readings, "list_offsets", self._listed)
        monkeypatch.setattr(topic_identity, "known_topics", self._known)
        for module in (unlisted_groups, group_readings):
            monkeypatch.setattr(module, "group_offsets", self._group_offsets)
        monkeypatch.setattr(group_offsets, "commit_offsets", self._commit)
        monkeypatch.setattr(GroupSync, "_repeat_interval", self._repeat)
        monkeypatch.setattr(flow_records, "read_checkpoints", self.read_checkpoints)
        self.sync = Checkpoints()
        self.now = 1000.0
        self.node = GroupSync(TARGET, clock=lambda: self.now)
        monkeypatch.setattr(self.sync._topics, "write", self._write)
        monkeypatch.setattr(group_offsets, "read_groups", self._remembered)
        for name in ("create_groups_topic", "write_groups"):
            monkeypatch.setattr(group_offsets, name, self._nothing)

    @property
    def context(self) -> SyncContext:
        topics = self._topics(self.names)
        source: Any = SimpleNamespace()
        store: Any = SimpleNamespace(states=self._states, snapshot=self._snapshot)
        snapshot = self._snapshot_of(topics)
        if self.unread == "before":
            snapshot = self._with_unread(snapshot)
        settings: Any = SimpleNamespace(refresh_interval=1.0)
        return SyncContext(
            destination=TARGET,
            store=store,
            name="flow",
            snapshot=snapshot,
            source=source,
            settings=settings,
            topics=topics,
            same=[topic for topic in topics if topic.wanted is Wanted.MIRRORING],
            there={},
            here={},
            latest=lambda: snapshot,
        )

    def _topics(self, names: Mapping[str, str]) -> list[MirrorTopic]:
        return [
            MirrorTopic(
                mirror="flow",
                topic=topic,
                topic_id=UUID(int=index),
                partitions=1,
                destination_topic=remote,
                wanted=self.wanted.get(topic, Wanted.MIRRORING),
                destination_topic_id=self.remote_ids.get(topic),
                known_before=topic in self.known_before,
                whole=topic in self.whole,
            )
            for index, (topic, remote) in enumerate(names.items(), 1)
        ]

    def _snapshot_of(self, topics: Collection[MirrorTopic]) -> Snapshot:
        source = stored_properties({"bootstrap.servers": "a:1"}, self.settings, "a", "b")
        mirror = Mirror(name="flow", source=source, source_cluster_id="a")
        records: list[ConfigRecord] = [mirror, *topics]
        return Snapshot().after(StoredRecord(0, at, *encode(one)) for at, one in enumerate(records))

    def _with_unread(self, snapshot: Snapshot) -> Snapshot:
        """The same, with a topic's record that cannot be read."""
        key, _ = encode(next(iter(self._topics({"w": "all"}))))
        return snapshot.after([StoredRecord(0, 99, key, b"of a later version")])

    async def _snapshot(self) -> Snapshot:
        assert self.maps_were_read, "a topic that was added before would not be known"
        self.control_reads.append("topics")
        names = self.names if self.later is None else self.later
        snapshot = self._snapshot_of(self._topics(names))
        return self._with_unread(snapshot) if self.unread else snapshot

    async def _known(self, _: object, names: Collection[str]) -> dict[str, KnownTopic]:
        ids = {topic.topic: topic.topic_id for topic in self._topics(self.names)}
        ids |= dict.fromkeys(self.recreated, UUID(int=99))
        return {name: KnownTopic(frozenset({ids[name]}), 1, internal=False) for name in names}

    def check(self) -> dict[TopicPartition, int]:
        """Let the node check its groups; return what it commits."""
        self.commits.clear()
        self.maps_were_read = False
        self.now += 30.0
        context = self.context
        assert asyncio.run(self.node.apply(context, self.compared(context))) == 0
        return {p: offset for commit in self.commits for p, offset in commit.items()}

    def memory(self) -> Mapping[TopicPartition, PartitionMemory]:
        """What the node remembers of the group."""
        return self.node._memories["flow"].groups[GROUP].partitions

    def compared(self, context: SyncContext) -> GroupDifference:
        """What the node compares."""
        return asyncio.run(self.node.compare(context))

    def positions(self) -> Positions:
        """What is to be written."""
        self.maps_were_read = False
        found = asyncio.run(self.sync.compare(self.context))
        assert found is not None
        return found

    def refresh(self) -> dict[TopicPartition, tuple[int, int]]:
        """Write; return the group's stored checkpoints, as `checkpoints` does."""
        asyncio.run(self.sync.apply(self.context, self.positions()))
        return {
            one.partition: (one.upstream_offset, one.downstream_offset)
            for one in self.stored.values()
        }

    def checkpoints(self) -> dict[TopicPartition, tuple[int, int]]:
        """The offsets of the group on both sides, by the remote partition."""
        found: Collection[Checkpoint] = self.positions().checkpoints
        assert {one.group for one in found} <= {GROUP}
        return {one.partition: (one.upstream_offset, one.downstream_offset) for one in found}

    async def _translation(
        self, _: object, topics: Collection[MirrorTopic], _properties: object
    ) -> Translation:
        names = {
            name.source: topic.on_destination(name)
            for topic in topics
            for name in topic.mirror_partitions
        }
        maps = {key: self.maps[key] for key in names.keys() & self.maps.keys()}
        self.maps_were_read = True
        unknown = frozenset(names.keys() - maps.keys())
        return Translation(
            *(names, maps, unknown, self.begins, self.lost, self.passed),
            settled=self.settled,
        )

    async def _listed_before(
        self, _: object, partitions: Collection[TopicPartition], spec: OffsetSpec
    ) -> dict[TopicPartition, ListedOffset | Refusal]:
        assert spec is OffsetSpec.LATEST
        assert not self.maps_were_read, "a map that was read before may lack what is below"
        return self._ends(partitions)

    async def _listed(
        self, _: object, partitions: Collection[TopicPartition], spec: OffsetSpec
    ) -> dict[TopicPartition, ListedOffset | Refusal]:
        if spec is OffsetSpec.EARLIEST:
            return {
                name: self.refused_start or ListedOffset(self.starts.get(name, 0), -1, -1)
                for name in partitions
            }
        assert self.maps_were_read, "a log that has grown since would hide what the maps lack"
        return self._ends(partitions)

    def _ends(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, ListedOffset | Refusal]:
        ends = {
            TopicPartition(self.names[key.topic], key.partition): end
            for key, end in self.ends.items()
        }
        return {
            name: end
            if isinstance(end := ends.get(name, FAR), Refusal)
            else ListedOffset(end, -1, -1)
            for name in partitions
        }

    async def read_checkpoints(self, *_: object) -> StoredCheckpoints:
        if self.unreadable is not None:
            raise self.unreadable
        return StoredCheckpoints(list(self.stored.values()))

    async def _write(self, _: object, topic: str, __: int, records: Collection[Mm2Record]) -> None:
        for record in records:
            assert isinstance(record, Checkpoint) == (topic == "a.checkpoints.internal")
            if isinstance(record, Checkpoint):
                self.stored[record.group, record.partition] = record

    async def _groups(self, _: object) -> dict[str, Group]:
        return {GROUP: Group(GROUP, "Empty", "classic")}

    async def _committed(self, *_: object) -> dict[TopicPartition, Committed]:
        return self.committed

    async def _group_offsets(
        self, cluster: object, *_: object, **__: object
    ) -> dict[TopicPartition, Committed]:
        return dict(self.copies if cluster is TARGET else self.committed)

    async def _commit(
        self, _: object, group: str, offsets: Mapping[TopicPartition, Committed]
    ) -> dict[TopicPartition, None]:
        assert group == GROUP
        self.copies |= offsets
        self.commits.append({p: at.offset for p, at in offsets.items()})
        return dict.fromkeys(offsets)

    async def _repeat(self, *_: object) -> float:
        return self.repeat_s

    async def _states(self) -> object:
        self.control_reads.append("states" if self.maps_were_read else "states before the maps")
        last = SimpleNamespace(begun=self.begun)
        epochs = {
            name: last
            for topic in self._topics(self.names)
            for name in topic.mirror_partitions
            if topic.topic not in self.without_last
        }
        return SimpleNamespace(
            state=lambda name: self.states.get(name.topic, State.MIRRORING),
            unread=lambda name: "a later version" if name.topic in self.unread_states else "",
            epochs=epochs,
            states=[MirrorPartition("flow", topic, 0) for topic in self.without_last],
        )

    async def _nothing(self, *_: object) -> None:
        pass

    async def _remembered(self, *_: object) -> Remembered:
        return Remembered()


def shared_flow(monkeypatch: pytest.MonkeyPatch) -> Flow:
    """A flow of t, u and v: `all` has t at 0-9 and u at 10-19."""
    flow, v = Flow(monkeypatch, SHARED), TopicPartition("v", 0)
    flow.maps = {T: runs((0, 0, 10)), U: runs((0, 10, 10)), v: runs((0, 0, 10))}
    flow.settled = frozenset({T, U, v})
    flow.ends = {T: 20, U: 20, v: 10}
    return flow


@pytest.mark.parametrize("wanted", [Wanted.MIRRORING, Wanted.PAUSED, Wanted.STOPPED])
def test_a_group_has_the_lowest_place_in_a_shared_topic(
    monkeypatch: pytest.MonkeyPatch, wanted: Wanted
) -> None:
    """Goal: a group is not put behind records of one topic by what it has read of the other.

    Also not if the other one is paused, or was removed from the flow: its records are still there.
    """
    flow, v = shared_flow(monkeypatch), TopicPartition("v", 0)
    flow.wanted = {"u": wanted}
    for t, u, upstream, place in ((2, 9, 2, 2), (10, 3, 3, 13), (10, 10, 10, 20)):
        flow.committed = {T: Committed(t, "of t"), U: Committed(u), v: Committed(4)}
        assert flow.checkpoints() == {ALL: (upstream, place), TopicPartition("a.v", 0): (4, 4)}
        assert flow.check()[ALL] == place
        assert flow.copies[ALL] == Committed(place)
    synced = {sync.partition for sync in flow.positions().offset_syncs}
    both = wanted is Wanted.MIRRORING
    assert synced == ({T, U, v} if both else {T, v}), "each names one topic of the source"


def test_an_active_group_is_raised_after_five_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: by the interval of its own sync, and not longer than five minutes.

    It does not depend on what else the flow does, and how often.
    """
    for interval, quiet_s in ((60, 300.0), (6, 60.0), (600, 300.0)):
        flow = Flow(monkeypatch, {"t": "a.t"})
        flow.settings["sync.group.offsets.interval.seconds"] = str(interval)
        flow.maps, flow.settled, flow.ends = {T: runs((0, 0, 10))}, frozenset({T}), {T: 10}
        flow.committed = {T: Committed(9)}
        remote = TopicPartition("a.t", 0)
        flow.copies = {remote: Committed(2, "", 3)}
        begin = flow.now
        while not flow.check():
            assert flow.now - begin < 1000
        assert flow.now - begin == 30 + quiet_s
        assert flow.copies[remote].offset == 9


def test_a_group_without_an_offset_in_one_of_them_has_none(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: it may have read nothing of the other one; the log says so once."""
    caplog.set_level("INFO")
    flow = shared_flow(monkeypatch)
    flow.committed = {T: Committed(10)}
    assert flow.checkpoints() == {}
    assert flow.check() == flow.check() == {}
    text = "share one: readers in all-0: it has no offset of u-0"
    assert caplog.text.count(text) == 1
    del flow.maps[U]
    assert flow.checkpoints() == {ALL: (10, 10)}, "nothing was copied of it"
    assert flow.check() == {ALL: 10}
    flow.begun = True
    flow.committed = {T: Committed(5)}
    assert flow.checkpoints() == {}, "it has begun, so its map is lost"


def test_a_topic_that_is_added_meanwhile_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: its records may be in front of the place in the other one."""
    flow = Flow(monkeypatch, {"t": "all"})
    flow.maps, flow.settled, flow.ends = {T: runs((0, 0, 5), (5, 9, 1))}, frozenset({T}), {T: 10}
    flow.committed = {T: Committed(6)}
    flow.later = {"t": "all", "u": "all"}
    assert flow.check() == {}
    assert flow.checkpoints() == {}
    flow.later = None
    assert flow.check() == {ALL: 10}
    assert flow.checkpoints() == {ALL: (6, 10)}


@pytest.mark.parametrize("added", ["s", "u"])
def test_a_topic_of_any_name_may_be_added_meanwhile(
    monkeypatch: pytest.MonkeyPatch, added: str
) -> None:
    """Goal: the groups of the other topics are served, also if it is the first one by name."""
    flow, v = Flow(monkeypatch, {"t": "all", "v": "a.v"}), TopicPartition("v", 0)
    flow.maps = {T: runs((0, 0, 10)), v: runs((0, 0, 10))}
    flow.settled, flow.ends = frozenset({T, v}), {T: 10, v: 10}
    flow.committed = {T: Committed(6), v: Committed(4)}
    flow.later = {**flow.names, added: "all"}
    assert flow.check() == {TopicPartition("a.v", 0): 4}
    assert flow.checkpoints() == {TopicPartition("a.v", 0): (4, 4)}


UNREAD = pytest.mark.parametrize("since", ["before", "meanwhile"])


@UNREAD
def test_a_topic_that_cannot_be_read_may_share_a_partition(
    monkeypatch: pytest.MonkeyPatch, since: str
) -> None:
    """Goal: a group is not raised over the records of one that a later version has added."""
    flow = shared_flow(monkeypatch)
    flow.committed = {T: Committed(10), U: Committed(10)}
    flow.unread = since
    assert (flow.check(), flow.checkpoints()) == ({}, {})
    flow.unread = ""
    assert flow.check() == {ALL: 20}


def flow_of_one(monkeypatch: pytest.MonkeyPatch) -> Flow:
    """A flow whose topic t alone is known to be copied to `all`, at 0-9; the log ends at 20."""
    flow = Flow(monkeypatch, {"t": "all"})
    flow.maps, flow.settled, flow.ends = {T: runs((0, 0, 10))}, frozenset({T}), {T: 20}
    return flow


@UNREAD
def test_a_topic_that_cannot_be_read_may_share_a_partition_of_one_topic(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, since: str
) -> None:
    """Goal: where one topic alone can be read, its place is not the group's; the log says why."""
    caplog.set_level("INFO")
    flow = flow_of_one(monkeypatch)
    flow.committed = {T: Committed(4)}
    assert (flow.check(), flow.refresh()) == ({ALL: 4}, {ALL: (4, 4)})
    flow.unread = since
    flow.committed = {T: Committed(9)}
    for _ in range(2):
        assert (flow.check(), flow.refresh()) == ({}, {ALL: (4, 4)}), "neither is raised"
    text = "readers in all-0: topics of the flow that cannot be read may be copied there, too: w"
    assert caplog.text.count(text) == 1
    flow.unread = ""
    assert (flow.check(), flow.refresh()) == ({ALL: 9}, {ALL: (9, 9)})


@pytest.mark.parametrize("make", [flow_of_one, shared_flow])
def test_a_group_is_rewound_while_a_topic_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[pytest.MonkeyPatch], Flow]
) -> None:
    """Goal: it does not skip what it is to read again, and what is copied does not expire."""
    flow = make(monkeypatch)
    flow.committed = {T: Committed(9), U: Committed(10)}
    assert (flow.check(), flow.refresh()) == ({ALL: 9}, {ALL: (9, 9)})
    flow.unread = "before"
    flow.committed[T] = Committed(2)
    assert (flow.check(), flow.refresh()) == ({ALL: 2}, {ALL: (2, 2)})
    flow.committed[T] = Committed(5)
    assert (flow.check(), flow.refresh()) == ({}, {ALL: (2, 2)})
    flow.repeat_s = 20.0
    assert flow.check() == {ALL: 2}, "as it is, before the brokers expire it"


def test_no_topic_shares_a_partition_by_a_policy_of_kafkas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: there, a topic that cannot be read concerns no other one."""
    flow = flow_of_one(monkeypatch)
    flow.own_policy, flow.unread = False, "before"
    flow.committed = {T: Committed(9)}
    assert (flow.check(), flow.checkpoints()) == ({ALL: 9}, {ALL: (9, 9)})


@pytest.mark.parametrize("copy", [None, Committed(25, "", 3)])
def test_a_group_does_not_pass_records_of_others(
    monkeypatch: pytest.MonkeyPatch, copy: Committed | None
) -> None:
    """Goal: the flow has copied up to 19, others have written up to 199, and the group reads on."""
    flow = shared_flow(monkeypatch)
    flow.ends = {T: 200, U: 200}
    flow.copies = {} if copy is None else {ALL: copy}
    flow.committed = {T: Committed(10), U: Committed(10)}
    flow.check()
    flow.now += 600.0
    flow.check()
    assert flow.copies == {ALL: Committed(20) if copy is None else copy}
    assert flow.checkpoints() == {ALL: (10, 20)}


def test_an_offset_that_is_not_raised_is_committed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the brokers do not expire it while a place is missing, or a topic was recreated."""
    flow = shared_flow(monkeypatch)
    flow.committed = {T: Committed(5), U: Committed(10)}
    assert flow.check() == {ALL: 5}
    flow.committed = {T: Committed(10)}
    assert flow.check() == {}
    flow.repeat_s = 100.0
    flow.now += 100.0
    assert flow.check() == {ALL: 5}, "as it is"
    assert flow.check() == {}
    flow.committed = {T: Committed(10), U: Committed(10)}
    flow.recreated = ["u"]
    flow.now += 100.0
    assert flow.check() == {ALL: 5}
    assert flow.check() == {}


def test_what_was_not_sent_is_repeated_by_the_next_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a repeat that was left out does not count as one."""
    flow = Flow(monkeypatch, {"t": "a.t"})
    flow.maps, flow.ends = {T: runs((0, 0, 10))}, {T: 10}
    flow.committed = {T: Committed(5)}
    remote = TopicPartition("a.t", 0)
    assert flow.check() == {remote: 5}
    flow.repeat_s, flow.recreated = 100.0, ["t"]
    flow.now += 100.0
    assert flow.check() == {}
    flow.recreated = []
    assert flow.check() == {remote: 5}
    assert flow.check() == {}


@pytest.mark.parametrize("offset", [None, 2, 10])
def test_a_group_is_not_set_back_by_an_offset_of_a_recreated_topic(
    monkeypatch: pytest.MonkeyPatch, offset: int | None
) -> None:
    """Goal: it is about other records than the map, and nobody has rewound the group."""
    flow = shared_flow(monkeypatch)
    flow.committed = {T: Committed(10), U: Committed(10)}
    assert flow.check() == {ALL: 20}
    flow.refresh()
    flow.recreated = ["t"]
    flow.committed = {U: Committed(10)}
    if offset is not None:
        flow.committed[T] = Committed(offset)
    assert flow.check() == {}
    assert flow.refresh() == {ALL: (10, 20)}
    flow.committed[U] = Committed(7)
    assert flow.check() == {ALL: 17}, "it was rewound in the other one"
    assert flow.refresh() == {ALL: (7, 17)}


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("said", ["known_before", "whole"])
def test_a_topic_that_was_recreated_is_not_empty(
    monkeypatch: pytest.MonkeyPatch, said: str, mapped: bool
) -> None:
    """Goal: the group skips no record of the former one that only the target still has.

    It is added again, and nothing of the new one was copied yet.
    """
    flow = shared_flow(monkeypatch)
    flow.committed = {T: Committed(3), U: Committed(10)}
    assert flow.check() == {ALL: 3}
    flow.refresh()
    setattr(flow, said, ["t"])
    del flow.maps[T]
    if mapped:
        flow.maps[T] = runs(start=(0, 20))
    flow.committed = {U: Committed(10)}
    assert flow.check() == {}
    assert flow.refresh() == {ALL: (3, 3)}
    flow.committed[T] = Committed(0)
    assert flow.check() == {ALL: 20}, "the group reads the new one"
    assert flow.refresh()[ALL][1] == 20


def test_a_map_that_is_lost_is_no_evidence_that_nothing_was_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: an earlier version has stored a state, and not whether the partition has begun."""
    flow = shared_flow(monkeypatch)
    flow.committed = {T: Committed(10)}
    del flow.maps[U]
    flow.without_last = ["u"]
    assert (flow.check(), flow.checkpoints()) == ({}, {})
    flow.without_last = ["v"]
    assert flow.check() == {ALL: 10}


def test_nothing_is_written_of_two_remote_topics_of_one_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: a map of the former remote topic does not lead past what is copied to the new one."""
    flow = shared_flow(monkeypatch)
    flow.committed = {T: Committed(10), U: Committed(10)}
    flow.remote_ids = {"t": UUID(int=7), "u": UUID(int=8)}
    assert (flow.check(), flow.checkpoints()) == ({}, {})
    for other in (None, UUID(int=7)):
        flow.remote_ids = {"t": UUID(int=7)} | ({} if other is None else {"u": other})
        assert flow.checkpoints() == {ALL: (10, 20)}
    assert flow.check() == {ALL: 20}


def test_a_checkpoint_is_not_lowered_to_an_end_that_may_be_old(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: one of a group that lacks an offset would stay there."""
    flow = shared_flow(monkeypatch)
    flow.committed = {T: Committed(10), U: Committed(10)}
    assert flow.refresh() == {ALL: (10, 20)}
    flow.committed = {U: Committed(8)}
    flow.ends = {T: 15, U: 15}
    assert flow.refresh() == {ALL: (10, 20)}
    flow.ends = {T: 20, U: 20}
    assert flow.refresh() == {ALL: (8, 18)}
    feeders = {T: Feeder(offsets=flow.maps[T]), U: Feeder(offsets=flow.maps[U])}
    one = JoinedPartition(remote=ALL, feeders=feeders, end=20)
    for end, found in ((15, []), (18, [18])):  # read after the maps
        floors = shared_checkpoints({GROUP: flow.committed}, [one], {ALL: (0, end)}).floors
        assert [floor.downstream_offset for floor in floors] == found


def test_a_group_is_rewound_while_a_topic_is_recreated_or_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: a topic that is gone for good does not let the group skip what it reads again."""
    flow = shared_flow(monkeypatch)
    flow.committed = {T: Committed(10), U: Committed(10)}
    assert flow.check() == {ALL: 20}
    flow.refresh()
    flow.recreated = ["u"]
    flow.committed = {T: Committed(4), U: Committed(10)}
    assert flow.check() == {ALL: 4}
    assert flow.refresh() == {ALL: (4, 4)}
    flow.committed = {T: Committed(2)}
    assert flow.check() == {ALL: 2}
    assert flow.refresh() == {ALL: (2, 2)}
    flow.committed = {T: Committed(9), U: Committed(10)}
    assert flow.check() == {}, "it is not raised"
    assert flow.refresh() == {ALL: (2, 2)}


def test_only_flows_that_may_share_a_topic_read_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the groups of an ordinary flow cost no more than before."""
    flow = Flow(monkeypatch, {"t": "a.t"})
    flow.maps, flow.ends, flow.committed = {T: runs((0, 0, 10))}, {T: 10}, {T: Committed(5)}
    flow.own_policy = False
    flow.checkpoints()
    flow.check()
    assert flow.control_reads == ["states", "states before the maps"], "FAILED ones; MIRRORING ones"
    flow = shared_flow(monkeypatch)
    flow.own_policy = False
    flow.checkpoints()
    assert flow.control_reads == ["topics", "states"]
    flow.control_reads.clear()
    del flow.maps[U]
    flow.checkpoints()
    assert flow.control_reads == ["topics", "states", "states"]


def test_a_place_that_is_missing_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: when the source is dead, no offset of before counts as one of the shared partition."""
    flow = Flow(monkeypatch, {"t": "all"})
    flow.maps, flow.settled, flow.ends = {T: runs((0, 3, 10))}, frozenset({T}), {T: 13}
    flow.committed = {T: Committed(6)}
    assert flow.check() == {ALL: 9}
    ((t, before),) = flow.memory().items()
    assert (t, before.source, before.translated) == (T, 6, 1)
    flow.names = {"t": "all", "u": "all"}
    flow.maps[U] = runs((0, 20, 1))
    assert flow.check() == {}
    ((t, entry),) = flow.memory().items()
    assert (t, entry) == (T, before._replace(source=NO_OFFSET, translated=JOINED))
    flow.committed[U] = Committed(0)
    assert flow.check() == {}
    assert flow.memory()[T].source == 9
    alone = Flow(monkeypatch, {"t": "all", "u": "all"})
    alone.maps, alone.committed = {T: runs((0, 0, 10)), U: runs((0, 10, 1))}, {T: Committed(6)}
    assert alone.check() == {}
    assert alone.memory() == {T: PartitionMemory(translated=JOINED)}


def test_a_group_is_rewound_in_a_shared_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: also if its place in another one is not known any more, and only what is its own."""
    flow = shared_flow(monkeypatch)
    flow.committed = {T: Committed(10), U: Committed(10)}
    assert flow.check() == {ALL: 20}
    flow.refresh()
    flow.committed = {T: Committed(7), U: Committed(10)}
    assert flow.check() == {ALL: 7}
    assert flow.refresh() == {ALL: (7, 7)}
    flow.committed = {T: Committed(4)}
    assert flow.check() == {ALL: 4}
    assert flow.refresh() == {ALL: (4, 4)}
    flow.committed = {T: Committed(9)}
    assert flow.check() == {}
    assert flow.refresh() == {ALL: (4, 4)}, "it is raised only if all places are known"
    flow.copies[ALL] = Committed(8, "", 3)
    flow.committed = {T: Committed(1), U: Committed(10)}
    flow.check()
    flow.now += 600.0
    assert flow.check() == {}, "the group has committed it itself"


def test_what_was_committed_before_a_topic_was_shared_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: a topic with a lower name is added, and a group that was rewound follows at once."""
    flow = Flow(monkeypatch, {"u": "all"})
    flow.maps, flow.settled, flow.ends = {U: runs((0, 0, 10))}, frozenset({U}), {U: 10}
    flow.committed = {U: Committed(10)}
    assert flow.check() == {ALL: 10}
    flow.names = {"u": "all", "t": "all"}
    flow.committed = {U: Committed(6)}
    assert flow.check() == {ALL: 6}


@pytest.mark.parametrize("topic", ["t", "u"])
def test_no_offset_is_committed_while_one_of_them_was_recreated(
    monkeypatch: pytest.MonkeyPatch, topic: str
) -> None:
    """Goal: its offsets are about other records."""
    flow = shared_flow(monkeypatch)
    flow.committed = {T: Committed(10), U: Committed(10)}
    flow.recreated = [topic]
    assert flow.check() == {}
    assert flow.checkpoints() == {}
    flow.recreated = []
    assert flow.check() == {ALL: 20}
    assert flow.checkpoints() == {ALL: (10, 20)}


def test_a_checkpoint_is_about_the_records_that_were_copied(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: none is written by what a group has read of other records, or may have.

    The source was truncated to 100 and has grown again, or its topic was recreated.
    """
    flow = Flow(monkeypatch, {"t": "a.t", "u": "a.u"})
    flow.maps, flow.committed = {T: runs((0, 0, 120)), U: runs((0, 0, 9))}, {T: Committed(100)}
    copy, other = TopicPartition("a.t", 0), TopicPartition("a.u", 0)
    assert flow.refresh() == {copy: (100, 100)}
    flow.committed = {T: Committed(110), U: Committed(5)}
    flow.states = {"t": State.FAILED}
    assert flow.refresh() == {copy: (100, 100), other: (5, 5)}, "what was written stays"
    flow.states, flow.unread_states = {}, {"t"}
    assert flow.checkpoints() == {other: (5, 5)}, "it may be FAILED"
    flow.unread_states, flow.recreated = set(), ["t"]
    assert flow.checkpoints() == {other: (5, 5)}
    flow.recreated = []
    assert flow.checkpoints() == {copy: (110, 110), other: (5, 5)}

    async def silent(*_: object) -> None:
        raise Retriable("broker 2 does not answer")

    monkeypatch.setattr(topic_identity, "known_topics", silent)
    positions = flow.positions()
    assert (list(positions.checkpoints), positions.failed) == ([], 1)
    assert len(positions.offset_syncs) == 2, "these are about the copies only"
    assert "no checkpoints: cannot read its topics: broker 2 does not answer" in caplog.text


def test_a_checkpoint_has_no_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: an application that keeps what it has finished there does not skip what it has not."""
    flow = Flow(monkeypatch, {"t": "a.t"})
    flow.maps = {T: runs((0, 0, 150))}
    for offset, end in ((140, 150), (150, 150), (200, 150), (140, 130)):
        flow.ends, flow.committed = {T: end}, {T: Committed(offset, "done")}
        (found,) = flow.positions().checkpoints
        assert (found.downstream_offset, found.metadata) == (min(offset, end, 150), "")


def test_a_shared_partition_follows_while_one_of_its_topics_is_mirrored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: one that is FAILED does not hold the group up; none is copied after a failover."""
    flow = shared_flow(monkeypatch)
    flow.committed = {T: Committed(10), U: Committed(10)}
    flow.states = {"t": State.FAILED, "u": State.FAILED}
    assert flow.check() == {}
    del flow.states["u"]
    assert flow.check() == {ALL: 20}


def test_no_checkpoint_is_behind_the_end_of_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a log that has lost its end. Consumers could not begin where its records were."""
    flow, copy = Flow(monkeypatch, {"t": "a.t"}), TopicPartition("a.t", 0)
    flow.maps, flow.ends = {T: runs((0, 0, 5000))}, {T: 4000}
    for offset, place in ((3999, 3999), (4000, 4000), (4001, 4000), (5000, 4000)):
        flow.committed = {T: Committed(offset)}
        assert flow.checkpoints() == {copy: (offset, place)}
    assert not flow.positions().offset_syncs
    flow.ends = {T: 5000}
    assert flow.checkpoints() == {copy: (5000, 5000)}
    (sync,) = flow.positions().offset_syncs
    assert (sync.upstream_offset, sync.downstream_offset) == (4999, 4999)


def test_nothing_is_written_of_a_log_that_is_lost_or_unreadable(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: other records may be at the offsets of those that were lost; a refusal is a failure."""
    flow = Flow(monkeypatch, {"t": "a.t", "u": "a.u"})
    flow.maps = {T: runs((0, 0, 10)), U: runs((0, 0, 10))}
    flow.committed = {T: Committed(2), U: Committed(3)}
    flow.lost = frozenset({T})
    assert flow.checkpoints() == {TopicPartition("a.u", 0): (3, 3)}
    assert [sync.partition for sync in flow.positions().offset_syncs] == [U]
    assert flow.positions().failed == 0
    flow.lost, flow.ends = frozenset(), {T: Refusal(ErrorCode.LEADER_NOT_AVAILABLE)}
    assert flow.checkpoints() == {TopicPartition("a.u", 0): (3, 3)}
    assert flow.positions().failed == 1
    assert "no checkpoints of a.t-0: " in caplog.text
    flow.ends, flow.refused_start = {}, Refusal(ErrorCode.LEADER_NOT_AVAILABLE)
    positions = flow.positions()
    assert (list(positions.checkpoints), positions.failed) == ([], 2), "their starts count, too"


def test_a_map_that_has_lost_all_copies_lowers_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: what was written before the loss is behind the log's end; nothing is synced of it."""
    flow, copy = Flow(monkeypatch, {"t": "a.t"}), TopicPartition("a.t", 0)
    flow.maps, flow.committed = {T: runs((0, 0, 120))}, {T: Committed(120)}
    assert flow.refresh() == {copy: (120, 120)}
    flow.maps, flow.ends, flow.passed = {T: runs()}, {T: 1}, frozenset({T})
    assert flow.refresh() == {copy: (120, 0)}
    assert not flow.positions().offset_syncs


def test_a_map_that_begins_anew_lowers_checkpoints_to_its_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: the log was cut to 950, and 1000 is copied to 951; what is left below is not known."""
    flow, copy = Flow(monkeypatch, {"t": "a.t"}), TopicPartition("a.t", 0)
    flow.begins, flow.passed = {T: 1000}, frozenset({T})
    flow.maps = {T: runs((1000, 951, 100), start=(1000, 951))}
    flow.committed = {T: Committed(990)}
    for stored, expected in (((900, 900), (900, 900)), ((990, 990), (990, 951))):
        stored_by_mirror_maker(flow, *stored)
        flow.sync.forget(lambda _: True)
        assert flow.refresh() == {copy: expected}
    flow.committed = {T: Committed(980)}
    assert flow.refresh() == {copy: (980, 0)}, "the group has gone back"


def test_a_checkpoint_that_may_have_landed_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a group that is rewound to where it was before a write without an answer."""
    flow, copy = Flow(monkeypatch, {"t": "a.t"}), TopicPartition("a.t", 0)
    flow.maps = {T: runs((0, 0, 100))}

    async def without_answer(*call: Any) -> None:
        await flow._write(*call)
        raise Retriable("no answer")

    for offset, write in ((20, flow._write), (80, without_answer), (20, flow._write)):
        monkeypatch.setattr(flow.sync._topics, "write", write)
        flow.committed = {T: Committed(offset)}
        assert flow.refresh() == {copy: (offset, offset)}


def stored_by_mirror_maker(flow: Flow, upstream: int, downstream: int) -> None:
    """Let MirrorMaker 2 have written a checkpoint of the group."""
    copy = TopicPartition("a.t", 0)
    flow.stored[GROUP, copy] = Checkpoint(
        group=GROUP, partition=copy, upstream_offset=upstream, downstream_offset=downstream
    )


def test_a_group_that_goes_back_below_the_map_has_no_later_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: clients of MirrorMaker 2 skip nothing; where the records are is not known.

    MirrorMaker 2 has copied [0, 1000) to somewhere below 1100.
    """
    flow, copy = Flow(monkeypatch, {"t": "a.t"}), TopicPartition("a.t", 0)
    flow.maps, flow.begins = {T: runs((1000, 1100, 100), start=(1000, 1100))}, {T: 1000}
    flow.committed = {T: Committed(1050)}
    assert flow.refresh() == {copy: (1050, 1150)}
    flow.committed, flow.starts = {T: Committed(400)}, {copy: 7}
    assert flow.refresh() == {copy: (400, 7)}
    flow.committed = {T: Committed(900)}
    assert flow.refresh() == {copy: (400, 7)}, "it is not above the group"
    flow.starts = {copy: 30}
    assert flow.refresh() == {copy: (900, 30)}, "the log begins later"
    flow.committed = {T: Committed(1001)}
    assert flow.refresh() == {copy: (1001, 1101)}


def test_a_checkpoint_of_mirror_maker_that_is_lower_still_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: it is better than the beginning; also where nothing was copied since.

    One that is not there is not written.
    """
    flow, copy = Flow(monkeypatch, {"t": "a.t"}), TopicPartition("a.t", 0)
    flow.begins = {T: 1000}
    flow.committed = {T: Committed(900)}
    assert flow.refresh() == {}
    stored_by_mirror_maker(flow, 850, 840)
    flow.sync.forget(lambda _: True)
    assert flow.refresh() == {copy: (850, 840)}
    flow.committed = {T: Committed(800)}
    assert flow.refresh() == {copy: (800, 0)}


def test_stored_checkpoints_that_cannot_be_read_are_a_failure(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: the others are written; the check says that one may be too high."""
    flow, copy = Flow(monkeypatch, {"t": "a.t", "u": "a.u"}), TopicPartition("a.u", 0)
    flow.maps, flow.begins = {U: runs((0, 0, 10))}, {T: 1000}
    flow.committed = {T: Committed(900), U: Committed(3)}
    flow.unreadable = Retriable("no leader")
    assert flow.refresh() == {copy: (3, 3)}
    assert flow.positions().failed == 1
    assert "flow flow: cannot compare its checkpoints: no leader" in caplog.text


class Broker:
    """A cluster that has some topics, creates those of requests, and may refuse that."""

    def __init__(self, cluster_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cluster_id = cluster_id
        self.topics: dict[str, Any] = {}
        self.requests: list[str] = []
        self.refusal: Refusal | None = None
        monkeypatch.setattr(bookkeeping_topics, "create_topics", Broker.create)
        monkeypatch.setattr(bookkeeping_topics, "append", self._append)

    async def refresh(self, names: Collection[str]) -> Any:
        self.requests += names
        return SimpleNamespace(topics={n: self.topics[n] for n in names if n in self.topics})

    async def create(self, topics: Collection[NewTopic]) -> Mapping[str, object]:
        for topic in topics:
            if self.refusal is None:
                self.topics[topic.name] = SimpleNamespace(error=0, new=topic)
        return {topic.name: self.refusal or UUID(int=1) for topic in topics}

    async def _append(self, *_: object, **__: object) -> None:
        raise AssertionError("nothing is to be written")


CHECKPOINTS, SYNCS = "a.checkpoints.internal", "mm2-offset-syncs.b.internal"


def bookkeeping(
    monkeypatch: pytest.MonkeyPatch, names: Mapping[str, str], **settings: str
) -> tuple[Broker, Broker, Callable[[], int]]:
    """The source and the target of a flow whose group has committed nothing, and its refresh."""
    flow = Flow(monkeypatch, names)
    flow.settings |= {name.replace("_", "."): value for name, value in settings.items()}
    source, target, sync = Broker("a", monkeypatch), Broker("b", monkeypatch), Checkpoints()

    def refresh() -> int:
        context = replace(flow.context, source=cast(Any, source), destination=cast(Any, target))
        return asyncio.run(run_sync(sync, context))

    return source, target, refresh


@pytest.mark.parametrize("names", [{}, {"t": "a.t"}])
def test_bookkeeping_topics_are_created_without_records(
    monkeypatch: pytest.MonkeyPatch, names: Mapping[str, str]
) -> None:
    """Goal: MirrorMaker 2's clients find an empty topic, also of a flow without topics; once."""
    source, target, refresh = bookkeeping(monkeypatch, names)
    assert refresh() == 0
    for broker, name in ((source, SYNCS), (target, CHECKPOINTS)):
        assert broker.topics[name].new == NewTopic(
            name=name, partitions=1, replication_factor=3, configs={"cleanup.policy": "compact"}
        )
    assert refresh() == 0
    assert (source.requests, target.requests) == ([SYNCS], [CHECKPOINTS]), "one look each"


@pytest.mark.parametrize(
    "settings",
    [
        {"emit_offset-syncs_enabled": "false"},
        {"sync_group_offsets_enabled": "false", "transaction_producer": "true"},
    ],
)
def test_no_bookkeeping_topic_is_created_for_a_flow_that_writes_none(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, str]
) -> None:
    source, target, refresh = bookkeeping(monkeypatch, {}, **settings)
    assert refresh() == 0
    assert not source.topics | target.topics
    assert not source.requests + target.requests


@pytest.mark.parametrize(
    "settings",
    [{"emit_checkpoints_enabled": "false"}, {"emit_checkpoints_interval_seconds": "-1"}],
)
def test_offset_syncs_are_written_without_checkpoints(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, str]
) -> None:
    """Goal: they have a switch of their own; groups are not asked for, and have no topic."""
    source, target, refresh = bookkeeping(monkeypatch, {}, **settings)
    assert refresh() == 0
    assert ({*source.topics}, [*target.requests]) == ({SYNCS}, [])
    flow = Flow(monkeypatch, {"t": "a.t"})
    flow.settings |= {name.replace("_", "."): value for name, value in settings.items()}
    flow.maps, flow.committed = {T: runs((0, 0, 10))}, {T: Committed(5)}
    monkeypatch.setattr(flow_records, "list_groups", None)
    positions = flow.positions()
    assert (list(positions.checkpoints), positions.failed) == ([], 0)
    (sync,) = positions.offset_syncs
    assert (sync.partition, sync.upstream_offset, sync.downstream_offset) == (T, 9, 9)
    mirror = flow.context.mirror
    assert (flow.sync.interval_s(mirror), mirror.source[REFRESH]) == (60, "60000")


def test_a_bookkeeping_topic_that_cannot_be_created_is_reported_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: a missing right on one cluster does not stop the other; it is tried again."""
    source, target, refresh = bookkeeping(monkeypatch, {})
    target.refusal = Refusal(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    target.topics[CHECKPOINTS] = SimpleNamespace(error=int(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    assert [refresh(), refresh()] == [1, 1]
    assert source.topics.keys() == {SYNCS}
    assert caplog.text.count(f"flow flow: cannot write to {CHECKPOINTS}: ") == 1
    assert SYNCS not in caplog.text
    target.refusal = None
    assert refresh() == 0
    assert target.topics[CHECKPOINTS].error == 0
    assert source.requests == [SYNCS]
