"""What checkpoints and offset syncs of a flow say, without brokers."""

import asyncio
from collections.abc import Collection, Mapping
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Refusal, Retriable, TwinlogError
from twinlog.kafka.groups.offsets import Committed, Group
from twinlog.kafka.requests.partitions import ListedOffset, OffsetSpec
from twinlog.kafka.types import Offset, TopicPartition
from twinlog.lifecycle.flow_creation import stored_properties
from twinlog.mirror.mm2_records import Checkpoint, Mm2Record
from twinlog.mirror.offset_runs import Ends, OffsetRuns, Run
from twinlog.mirror.states import State
from twinlog.mirror.translation import Translation
from twinlog.store.config_records import Mirror, MirrorTopic, Wanted, encode
from twinlog.store.group_log import Remembered
from twinlog.store.snapshot import Snapshot, StoredRecord
from twinlog.sync import flow_records, group_offsets
from twinlog.sync.base import SyncContext
from twinlog.sync.flow_records import Checkpoints, Positions
from twinlog.sync.group_offsets import GroupSync
from twinlog.sync.stored_checkpoints import StoredCheckpoints

GROUP = "readers"
T, U = TopicPartition("t", 0), TopicPartition("u", 0)
FAR = 1 << 40
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
        kind = SimpleNamespace(translation=self._translation)
        for module in (flow_records, group_offsets):
            monkeypatch.setattr(module, "kind_named", lambda _: kind)
            monkeypatch.setattr(module, "list_groups", self._groups)
        monkeypatch.setattr(flow_records, "committed_offsets", self._committed)
        monkeypatch.setattr(flow_records, "list_offsets", self._listed)
        monkeypatch.setattr(flow_records, "read_checkpoints", self.read_checkpoints)
        self.sync = Checkpoints()
        monkeypatch.setattr(self.sync._topics, "write", self._write)
        monkeypatch.setattr(group_offsets, "read_groups", self._remembered)

    @property
    def context(self) -> SyncContext:
        source = stored_properties({"bootstrap.servers": "a:1"}, {"enabled": "true"}, "a", "b")
        mirror = Mirror(name="flow", source=source, source_cluster_id="a")
        topics = [
            MirrorTopic(
                mirror="flow",
                topic=topic,
                topic_id=UUID(int=index),
                partitions=1,
                destination_topic=remote,
                wanted=self.wanted.get(topic, Wanted.MIRRORING),
            )
            for index, (topic, remote) in enumerate(self.names.items(), 1)
        ]
        records = [StoredRecord(0, at, *encode(one)) for at, one in enumerate([mirror, *topics])]
        nothing: Any = None
        store: Any = SimpleNamespace(states=self._states)
        return SyncContext(
            destination=nothing,
            store=store,
            name="flow",
            snapshot=Snapshot().after(records),
            source=nothing,
            settings=SimpleNamespace(groups_include=[], refresh_interval=1.0),  # type: ignore[arg-type]
            topics=topics,
            same=[topic for topic in topics if topic.wanted is Wanted.MIRRORING],
            there={},
            here={},
            latest=nothing,
        )

    def positions(self) -> Positions:
        """What is to be written."""
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

    async def _translation(self, _: object, topics: Collection[MirrorTopic]) -> Translation:
        names = {
            name.source: topic.on_destination(name)
            for topic in topics
            for name in topic.mirror_partitions
        }
        maps = {key: self.maps[key] for key in names.keys() & self.maps.keys()}
        self.maps_were_read = True
        unknown = frozenset(names.keys() - maps.keys())
        return Translation(names, maps, unknown, self.begins, self.lost, self.passed)

    async def _listed(
        self, _: object, partitions: Collection[TopicPartition], spec: OffsetSpec
    ) -> dict[TopicPartition, ListedOffset | Refusal]:
        if spec is OffsetSpec.EARLIEST:
            return {name: ListedOffset(self.starts.get(name, 0), -1, -1) for name in partitions}
        assert self.maps_were_read, "a log that has grown since would hide what the maps lack"
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

    async def _states(self) -> object:
        return SimpleNamespace(state=lambda _: State.MIRRORING)

    async def _remembered(self, *_: object) -> Remembered:
        return Remembered()


@pytest.mark.parametrize("removed", [False, True])
def test_topics_that_share_a_remote_topic_have_no_offsets_of_groups(
    monkeypatch: pytest.MonkeyPatch, *, removed: bool
) -> None:
    """Goal: a group is not put behind records of one topic by what it has read of the other.

    Also not if the other one was removed from the flow: its records are still there.
    """
    flow, v = Flow(monkeypatch, SHARED), TopicPartition("v", 0)
    flow.maps = {T: runs((0, 0, 10)), U: runs((0, 10, 10)), v: runs((0, 0, 10))}
    flow.committed = {T: Committed(2), U: Committed(9), v: Committed(4)}
    if removed:
        flow.wanted = {"u": Wanted.STOPPED}
    assert flow.checkpoints() == {TopicPartition("a.v", 0): (4, 4)}
    synced = {sync.partition for sync in flow.positions().offset_syncs}
    assert synced == ({T, v} if removed else {T, U, v}), "each names one topic of the source"
    node: Any = GroupSync(None, clock=lambda: 1.0)  # type: ignore[arg-type]
    difference = asyncio.run(node.compare(flow.context))
    assert difference.check.partitions.keys() == {v}


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
