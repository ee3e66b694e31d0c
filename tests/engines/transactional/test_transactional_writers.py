"""Which transactions are written at all: after fences of one's own, and after doubtful answers."""

import asyncio
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from stored_beginnings import MemoryBeginnings

from model.loop import run
from twinlog.engines.settings import LaneSettings
from twinlog.engines.transactional import kept_positions, transactions
from twinlog.engines.transactional import writers as writers_module
from twinlog.engines.transactional.losses import SettledLosses
from twinlog.engines.transactional.positions import position_metadata, routed_of, tail_of
from twinlog.engines.transactional.queue import TransactionalQueue
from twinlog.engines.transactional.remote_tails import (
    LandedBatches,
    OlderPosition,
    RemoteTail,
    ShorterLog,
    TailProblem,
    tail_of_batch,
)
from twinlog.engines.transactional.routed_tails import Doubt, RoutedLoss, RoutedTail, RoutedTails
from twinlog.engines.transactional.source_position import Copies, SourcePosition, ToBegin
from twinlog.engines.transactional.transactions import (
    GroupOffsets,
    TargetTransactions,
    TransactionContent,
)
from twinlog.engines.transactional.writers import Outdated, TransactionalWriters
from twinlog.engines.translated.location import NotLocated
from twinlog.engines.translated.remote_log import LostEnd
from twinlog.kafka.client.metadata import EMPTY
from twinlog.kafka.errors import Retriable, TwinlogError
from twinlog.kafka.groups.offsets import Committed
from twinlog.kafka.log.compression import Codec
from twinlog.kafka.log.records import Encoded, RawRecord, build, encode_tail, raw_records
from twinlog.kafka.log.records import decode as decode_record
from twinlog.kafka.requests.transactions import ProducerId
from twinlog.kafka.types import (
    UNKNOWN_EPOCH,
    LeaderEpoch,
    LogBounds,
    Offset,
    Sequence,
    TopicPartition,
)
from twinlog.kafka.types import ProducerId as ProducerIdNumber
from twinlog.lifecycle.flow_topics import FlowClusters
from twinlog.mirror.offset_runs import Run
from twinlog.mirror.placement import MirrorPartition
from twinlog.store.config_records import MirrorTopic
from twinlog.store.offset_records import (
    BegunPartition,
    MapHead,
    MapPart,
    OffsetRecord,
    Route,
    SharedPartition,
    decode,
    encode,
    mirror_of,
)
from twinlog.store.topic_reader import ControlRecord

REMOTE = TopicPartition("A.t", 0)
NAME = MirrorPartition("m", "t", 0)


async def _no_leaders(_: object) -> Mapping[TopicPartition, object]:
    return {}


CLUSTER: Any = SimpleNamespace(
    name="destination",
    leaders=_no_leaders,
    metadata=EMPTY,
    brokers_time=SimpleNamespace(now_ms=lambda: 0),
)


class Transactions:
    """A transactional id that is always fenced at once."""

    def __init__(self) -> None:
        self.ready = False
        self.written: list[TransactionContent] = []
        self.landed: dict[TopicPartition, LandedBatches] = {}
        self.behind: GroupOffsets = {}
        self.mapped: list[Collection[Encoded]] = []
        """Batches for `__mirror_offsets`."""
        self.refuses = False
        self.pending: Callable[[], None] | None = None
        """Called when the offsets are pending."""

    async def fence(self) -> int:
        self.ready = True
        return 7

    async def write(self, content: TransactionContent) -> None:
        if self.refuses:
            raise Retriable("a partition refuses it")
        if self.pending is not None:
            self.pending()
            await content.before_commit()
        self.written.append(content)
        self.mapped = list(content.batches_behind(self.landed).values())
        self.behind = content.offsets_behind(self.landed)


ROUTE = Route(UUID(int=1), REMOTE.topic, UUID(int=2))
FORMER = Route(UUID(int=9), REMOTE.topic, UUID(int=2))


def position(fence: int) -> SourcePosition:
    return SourcePosition(REMOTE, ROUTE, Offset(5), LeaderEpoch(UNKNOWN_EPOCH), None, fence)


class Located:
    """Writers of one partition, and the target: its records of beginnings, and its offset."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.committed: Committed | None = None
        self.begun: list[BegunPartition] = []
        self.elsewhere: list[BegunPartition] = []
        """In other partitions of `__mirror_offsets`."""
        self.copied_to: Offset | None = None
        self.problem: TailProblem | None = None
        self.routed: RoutedTails | TailProblem | None = None
        """What the comparison of routed tails finds; None: that they are as they were."""
        self.shared: list[SharedPartition] = []
        self.mapped: list[OffsetRecord] = []
        """What is recorded of its map."""
        self.high_watermark: int | None = 60
        self.deletion_is_loss = False
        self.own_ids: dict[TopicPartition, Collection[int]] = {}
        """What was last asked of the log behind the tail."""
        self.beginnings = MemoryBeginnings()
        self.begun_in: UUID | None = None
        self.meanwhile: Committed | None = None
        """What an operator commits while a partition is located."""
        for name in ("committed_offsets", "read_whole", "offsets_topic_id", "read_begun"):
            patch.setattr(writers_module, name, getattr(self, name))
        for name in ("compare_tails", "compare_routed"):
            patch.setattr(writers_module, name, getattr(self, name))

    def __call__(
        self, *, passes_lost: bool = False, is_mapped: bool = False
    ) -> TransactionalQueue | NotLocated:
        """Locate the partition, as a new owner."""
        owner, fake = self.owner()
        to_begin = ToBegin(ROUTE, self.copied_to or Offset(0), self.copied_to, self.begun_in)
        locating = owner.locate("m", {NAME: to_begin}, passes_lost=passes_lost, is_mapped=is_mapped)
        result = asyncio.run(locating)[NAME]
        for content in fake.written:
            (offset,) = content.offsets["lanes.flow.m"].values()
            self.committed = Committed(offset.offset, offset.metadata, offset.leader_epoch)
            self.begun = [BegunPartition(NAME, ROUTE, self.copied_to)]
            self.keep(content.batches.get(TopicPartition("__mirror_offsets", 0), ()))
        return result

    def keep(self, batches: Collection[Encoded]) -> None:
        """Add what was written of the map."""
        for batch in batches:
            for raw in raw_records(batch.header, batch.records):
                one = decode_record(raw)
                assert one.key is not None
                found = decode(one.key, one.value)
                if isinstance(found, MapHead | MapPart):
                    self.mapped.append(found)
                elif one.value is None and mirror_of(one.key):
                    keys = [encode(known)[0] for known in self.mapped]
                    pairs = zip(keys, self.mapped, strict=True)
                    self.mapped = [known for key, known in pairs if key != one.key]

    def head(self) -> MapHead:
        """The last one that was written."""
        return [one for one in self.mapped if isinstance(one, MapHead)][-1]

    async def bounds(self, keys: Collection[TopicPartition]) -> dict[TopicPartition, LogBounds]:
        assert list(keys) == [REMOTE]
        if self.high_watermark is None:
            return {}
        return {REMOTE: LogBounds(0, 0, self.high_watermark, self.high_watermark)}

    def owner(self) -> tuple[TransactionalWriters, Transactions]:
        """A new owner, and its transactions."""
        lane: Any = SimpleNamespace(destination=CLUSTER, id_prefix="lanes", settings=LaneSettings())
        port: Any = SimpleNamespace(bounds=self.bounds)
        owner = TransactionalWriters(0, lane, port)
        fake: Any = Transactions()
        owner._transactions = fake
        owner._beginnings = self.beginnings
        return owner, fake

    async def committed_offsets(self, *_: object, **__: object) -> dict[TopicPartition, Committed]:
        found, self.committed = self.committed, self.meanwhile or self.committed
        return {} if found is None else {REMOTE: found}

    async def compare_tails(
        self,
        _: object,
        tails: Mapping[TopicPartition, RemoteTail],
        own_ids: Mapping[TopicPartition, Collection[int]],
    ) -> dict[TopicPartition, TailProblem]:
        assert own_ids.keys() <= tails.keys() <= {REMOTE}
        self.own_ids = dict(own_ids)
        return dict.fromkeys(tails, self.problem) if self.problem is not None else {}

    async def compare_routed(
        self,
        _: object,
        routed: Mapping[MirrorPartition, RoutedTails],
        *,
        deletion_is_loss: bool,
    ) -> dict[MirrorPartition, RoutedTails | TailProblem]:
        self.deletion_is_loss = deletion_is_loss
        return {n: one if self.routed is None else self.routed for n, one in routed.items()}

    async def read_whole(self, *_: object) -> list[ControlRecord]:
        records = map(encode, [*self.begun, *self.shared, *self.mapped])
        return [ControlRecord(0, at, 0, *record) for at, record in enumerate(records)]

    async def offsets_topic_id(self, _: object) -> UUID:
        return UUID(int=7)

    async def read_begun(self, _: object) -> dict[MirrorPartition, BegunPartition]:
        return {one.name: one for one in (*self.elsewhere, *self.begun)}


@pytest.fixture
def located(monkeypatch: pytest.MonkeyPatch) -> Located:
    return Located(monkeypatch)


def _start(result: TransactionalQueue | NotLocated) -> int:
    assert isinstance(result, TransactionalQueue)
    return result.position


@pytest.mark.parametrize("routes", [True, False])
def test_what_was_routed_from_another_remote_topic_does_not_begin_anew(
    located: Located, *, routes: bool
) -> None:
    """Goal: nothing is written that would hide it; without a router other names begin anew."""
    former = ROUTE._replace(topic="eu-t")
    located.begun = [BegunPartition(NAME, former)]

    owner, fake = located.owner()
    locating = owner.locate("m", {NAME: ToBegin(ROUTE, Offset(0))}, has_routed=routes)
    result = asyncio.run(locating)[NAME]
    if not routes:
        assert _start(result) == 0
        return
    assert isinstance(result, NotLocated)
    assert "t-0 was copied to eu-t before" in result.reason
    assert "--forget-offsets" in result.reason
    assert not result.transient
    assert not fake.written


def test_a_map_is_read_again_with_its_position(located: Located) -> None:
    """Goal: a new owner goes on with the map where its position is, and else begins anew there."""
    assert _start(located(is_mapped=True)) == 0
    assert (located.head().position, located.head().lacks_start) == (0, False)
    start = located.head()
    assert _start(located(is_mapped=True)) == 0
    assert located.head() == start, "nothing was copied since"
    owner, fake = located.owner()
    behind = replace(
        position(0),
        offset=Offset(5),
        copies=Copies(Offset(0), [(Offset(1), Offset(3))], 0, 1),
    )

    async def write() -> None:
        (queue,) = (
            await owner.locate("m", {NAME: ToBegin(ROUTE, Offset(0))}, is_mapped=True)
        ).values()
        assert isinstance(queue, TransactionalQueue)
        fake.landed = {REMOTE: LandedBatches(Offset(61), TAIL, ((Offset(61), 2),))}
        await owner.write({REMOTE: []}, {NAME: replace(behind, fence=queue.fence)})
        # Without a map at the position before, nothing is written.
        later = replace(behind, fence=queue.fence)
        with pytest.raises(Outdated, match="the map of offsets of"):
            await owner.write({REMOTE: []}, {NAME: later})

    asyncio.run(write())
    located.keep([batch for batches in fake.mapped for batch in batches])
    (offset,) = fake.behind["lanes.flow.m"].values()
    located.committed = Committed(offset.offset, offset.metadata, offset.leader_epoch)
    assert (located.head().position, located.head().tail) == (5, "53,7,4,12")
    assert _start(located(is_mapped=True)) == 5
    parts = [one.chunk for one in located.mapped if isinstance(one, MapPart)]
    assert parts[-1].runs == (Run(Offset(1), Offset(61), 2),)
    # An operator moves the position.
    located.committed = Committed(3, "")
    located.high_watermark = None
    result = located(is_mapped=True)
    assert isinstance(result, NotLocated)
    assert "cannot read the bounds of A.t-0" in result.reason
    located.high_watermark = 70
    assert _start(located(is_mapped=True)) == 3
    assert (located.head().position, located.head().lacks_start) == (3, True)
    assert [one.chunk.start for one in located.mapped if isinstance(one, MapPart)] == [(3, 70)]


def test_a_map_is_refused_where_records_are_lost(located: Located) -> None:
    """Goal: others may be at their offsets. Passed over, the map begins anew behind them."""
    located(is_mapped=True)
    assert located.committed is not None
    metadata = position_metadata(ROUTE, None, TAIL)
    located.committed = Committed(5, metadata)
    located(is_mapped=True)
    assert not located.head().lost
    located.problem = LostEnd("the last record is another one")
    assert isinstance(located(is_mapped=True), NotLocated)
    assert located.head().lost
    located.problem, position_of = None, located.head().position
    assert isinstance(located(is_mapped=True), NotLocated), "the position says that it is lost"
    assert _start(located(is_mapped=True, passes_lost=True)) == 5
    assert (located.head().lost, located.head().lacks_start) == (False, True)
    assert located.head().unproven_end == 5
    assert located.head().position == position_of == 5


def test_a_map_that_is_not_wanted_any_more_is_dropped(located: Located) -> None:
    """Goal: no reader takes it for one that reaches the position."""
    located(is_mapped=True)
    assert located.head()
    owner, fake = located.owner()

    async def write() -> None:
        await owner.locate("m", {NAME: ToBegin(ROUTE, Offset(0))}, is_mapped=True)
        at = replace(position(1), fence=owner._fences)
        await owner.write({}, {NAME: at})
        assert fake.mapped
        dropped = fake.mapped
        await owner.write({}, {NAME: at})
        assert not fake.mapped
        assert fake.written[-1].partitions_behind == []
        fake.mapped = dropped

    asyncio.run(write())
    located.keep([batch for batches in fake.mapped for batch in batches])
    assert not any(isinstance(one, MapHead) for one in located.mapped)


def test_a_map_that_is_not_wanted_is_dropped_though_nothing_is_copied(located: Located) -> None:
    """Goal: a map that is off and on again does not go on: others may have written meanwhile."""
    located(is_mapped=True)
    assert located.head()
    assert _start(located()) == 0
    assert not any(isinstance(one, MapHead) for one in located.mapped)
    owner, fake = located.owner()
    asyncio.run(owner.locate("m", {NAME: ToBegin(ROUTE, Offset(0))}))
    assert not fake.written, "nothing is written for it again"


def test_maps_of_what_is_paused_are_dropped_with_others(located: Located) -> None:
    """Goal: its map does not go on behind what others have written since (limits.md)."""
    located(is_mapped=True)
    other = MirrorPartition(NAME.mirror, "u", 0)
    foreign = MirrorPartition("another", "t", 0)
    head = located.head()
    owner, fake = located.owner()

    async def locate(*, is_mapped: bool) -> None:
        await owner.locate("m", {NAME: ToBegin(ROUTE, Offset(0))}, is_mapped=is_mapped)

    asyncio.run(locate(is_mapped=True))
    assert not fake.written, "nothing has changed"
    owner._maps[other] = replace(owner._maps[NAME], head=replace(head, name=other))
    owner._maps[foreign] = replace(owner._maps[NAME], head=replace(head, name=foreign))
    asyncio.run(locate(is_mapped=False))
    assert {name for name, one in owner._maps.items() if one.head is not None} == {foreign}


def test_an_offset_of_an_operator_is_dated_when_it_is_first_read(located: Located) -> None:
    """Goal: it does not count behind what another program has copied since."""
    assert _start(located()) == 0
    located.committed = Committed(1235, "")
    assert _start(located()) == 1235
    assert located.committed == Committed(1235, position_metadata(ROUTE, None), UNKNOWN_EPOCH)
    # Handed back; MirrorMaker 2 has copied on; taken over.
    located.copied_to = Offset(5000)
    assert _start(located()) == 5000
    located.committed = Committed(1235, "")
    assert _start(located()) == 1235, "an operator may go back"


def test_an_offset_that_no_lane_has_dated_does_not_count_behind_another_program(
    located: Located,
) -> None:
    """Goal: 1235 to 4999 are not copied twice."""
    assert _start(located()) == 0
    located.committed, located.copied_to = Committed(1235, ""), Offset(5000)
    result = located()
    assert isinstance(result, NotLocated)
    assert "another program has copied all up to 5000" in result.reason
    located.committed = Committed(5000, "")
    assert _start(located()) == 5000
    assert located.committed == Committed(
        5000, position_metadata(ROUTE, Offset(5000)), UNKNOWN_EPOCH
    )


def test_an_offset_that_is_committed_during_a_location_is_not_written_over(
    located: Located,
) -> None:
    """Goal: an operator who corrects an offset has the last word."""
    assert _start(located()) == 0
    located.committed, located.meanwhile = Committed(1235, ""), Committed(1300, "")
    result = located()
    assert isinstance(result, NotLocated)
    assert result.transient
    assert located.committed == Committed(1300, "")
    assert _start(located()) == 1300


@pytest.mark.parametrize("begins", [True, False])
def test_an_offset_that_is_committed_while_a_position_is_pending_is_not_written_over(
    located: Located, monkeypatch: pytest.MonkeyPatch, begins: bool
) -> None:
    """Goal: an operator who corrects an offset has the last word, however close it is."""
    monkeypatch.setattr(kept_positions, "_FIRST_KEEP_S", 0.0)
    located.committed = Committed(5, "" if begins else position_metadata(ROUTE, None, TAIL), 3)
    located.begun = [BegunPartition(NAME, ROUTE, None)]
    operators = Committed(1300, "")

    def commit() -> None:
        located.committed = operators

    async def story() -> None:
        owner, fake = located.owner()
        fake.pending = commit
        to_begin = {NAME: ToBegin(ROUTE, Offset(0), None)}
        if begins:
            with pytest.raises(Retriable, match="has changed meanwhile"):
                await owner.locate("m", to_begin)
        else:
            await owner.locate("m", to_begin)  # others are located nevertheless
        assert fake.written == []
        assert located.committed == operators

    asyncio.run(story())


@pytest.mark.parametrize("problem", [OlderPosition("older"), Retriable("no leader")])
def test_a_position_that_the_logs_do_not_confirm_is_not_committed_again(
    located: Located, monkeypatch: pytest.MonkeyPatch, problem: OlderPosition | TwinlogError
) -> None:
    """Goal: a former one, of a coordinator that is cut off, does not replace the real one."""
    monkeypatch.setattr(kept_positions, "_FIRST_KEEP_S", 0.0)
    located.problem = problem
    located.committed = Committed(5, position_metadata(ROUTE, None, TAIL), 3)
    located.begun = [BegunPartition(NAME, ROUTE, None)]
    owner, fake = located.owner()
    for _ in range(2):
        asyncio.run(owner.locate("m", {NAME: ToBegin(ROUTE, Offset(0), None)}))
    assert fake.written == []


def test_the_position_is_kept_while_a_loss_lasts_that_the_log_does_not_prove(
    located: Located, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: what a broker that is cut off may claim is not stored; the position does not expire."""
    monkeypatch.setattr(kept_positions, "_FIRST_KEEP_S", 0.0)
    metadata = position_metadata(ROUTE, None, TAIL)
    located.committed = Committed(5, metadata, 3)
    located.begun = [BegunPartition(NAME, ROUTE, None)]
    located.problem = ShorterLog("shorter")

    async def story() -> None:
        owner, fake = located.owner()
        owner._settled = SettledLosses(LaneSettings(lease_s=0.2))
        to_begin = {NAME: ToBegin(ROUTE, Offset(0), None)}
        for kept in ([], [{"lanes.flow.m": {REMOTE: (5, 3, metadata)}}]):
            assert isinstance((await owner.locate("m", to_begin))[NAME], NotLocated)
            assert [one.offsets for one in fake.written] == kept
            await asyncio.sleep(0.3)

    run(lambda _: story())


@pytest.mark.parametrize("lost", [None, REMOTE])
def test_the_position_of_a_failed_partition_is_kept(
    located: Located, monkeypatch: pytest.MonkeyPatch, lost: TopicPartition | None
) -> None:
    """Goal: brokers do not forget it, however long it is located in vain; it stays as it is."""
    monkeypatch.setattr(kept_positions, "_FIRST_KEEP_S", 0.2)
    metadata = position_metadata(ROUTE, None, TAIL, lost=lost)
    found = located.committed = Committed(5, metadata, 3)
    located.begun = [BegunPartition(NAME, ROUTE, None)]

    async def story() -> None:
        owner, fake = located.owner()
        to_begin = {NAME: ToBegin(ROUTE, Offset(0), None)}

        async def commits() -> int:
            before = len(fake.written)
            await owner.locate("m", to_begin)
            return len(fake.written) - before

        assert await commits() == 0, "most partitions are located once"
        await asyncio.sleep(0.2)
        assert await commits() == 1
        assert fake.written[-1].offsets == {"lanes.flow.m": {REMOTE: (5, 3, metadata)}}
        assert not fake.written[-1].batches
        assert await commits() == 0, "not at each location"
        monkeypatch.setattr(kept_positions, "KEEP_S", 0.0)
        owner._kept.note("lanes.flow.m", REMOTE)
        located.meanwhile = Committed(1300, "")  # by an operator, while it is located
        assert await commits() == 0
        located.committed, located.meanwhile = found, None
        assert await commits() == 1
        fake.refuses = True
        await owner.locate("m", to_begin)  # others are located nevertheless

    asyncio.run(story())


def test_what_is_committed_by_a_transaction_is_not_committed_again(
    located: Located, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: only positions that nothing else commits cost a transaction of their own."""
    monkeypatch.setattr(kept_positions, "_FIRST_KEEP_S", 0.0)
    located.committed = Committed(5, position_metadata(ROUTE, None), 3)
    located.begun = [BegunPartition(NAME, ROUTE, None)]

    async def story() -> None:
        owner, fake = located.owner()
        owner._fences, fake.ready = 1, True
        await owner.write({}, {NAME: position(1)})
        fake.written.clear()
        await owner.locate("m", {NAME: ToBegin(ROUTE, Offset(0), None)})
        assert not fake.written

    asyncio.run(story())


@pytest.mark.parametrize("same_partition", [True, False])
def test_an_offset_that_no_lane_has_dated_is_not_of_a_topic_that_was_recreated(
    located: Located, same_partition: bool
) -> None:
    """Goal: the first 1235 records of the new topic are not left out.

    The record of the former topic is mostly in another partition of `__mirror_offsets`.
    """
    record = BegunPartition(NAME, FORMER)
    located.begun, located.elsewhere = ([record], []) if same_partition else ([], [record])
    located.committed = Committed(1235, "")
    result = located()
    assert isinstance(result, NotLocated)
    assert "before a topic was recreated; to begin, delete this offset" in result.reason
    located.committed = None
    assert _start(located()) == 0
    located.committed = Committed(1235, "")
    assert _start(located()) == 1235


def test_a_partition_whose_records_are_all_lost_does_not_begin_anew(located: Located) -> None:
    """Goal: `__mirror_offsets` has lost its end under the same id, and the group its offset.

    An operator's offset decides where it goes on.
    """
    assert _start(located()) == 0
    assert located.beginnings.known == {NAME: True}
    located.committed, located.begun = None, []
    for _ in range(2):
        result = located()
        assert isinstance(result, NotLocated)
        assert "the position is lost" in result.reason
    located.committed = Committed(7, "")
    assert _start(located()) == 7


def test_a_partition_of_which_nothing_was_written_begins(located: Located) -> None:
    """Goal: it is not FAILED because `__mirror_offsets` was recreated before it has begun.

    Of what an earlier version has begun with, this is not known.
    """
    located.begun_in = UUID(int=8)
    assert isinstance(located(), NotLocated)
    located.beginnings.known = {NAME: False}
    assert _start(located()) == 0


def test_positions_from_before_a_fence_are_not_written() -> None:
    """Goal: who takes the id back does not write what another owner may have written meanwhile."""
    lane: Any = SimpleNamespace(destination=CLUSTER, id_prefix="lanes", settings=LaneSettings())
    port: Any = SimpleNamespace()
    owner = TransactionalWriters(0, lane, port)
    fake: Any = Transactions()
    owner._transactions = fake

    async def run() -> None:
        await owner.open(MemoryBeginnings())
        await owner.write({}, {NAME: position(1)})
        await owner.open(MemoryBeginnings())
        with pytest.raises(Outdated):
            await owner.write({}, {NAME: position(1)})
        await owner.write({}, {NAME: position(2)})
        fake.ready = False  # an error, as of another flow of this state partition
        with pytest.raises(Outdated):
            await owner.write({}, {NAME: position(2)})

    asyncio.run(run())
    assert len(fake.written) == 2


TAIL = tail_of_batch(50, 3, (7, 4), Sequence(10))
NEXT = tail_of_batch(60, 2, (7, 5), Sequence(0))


def test_a_target_that_has_lost_records_is_failed_until_an_operator_decides(
    located: Located,
) -> None:
    """Goal: also when compaction or retention has removed what showed it."""
    assert _start(located()) == 0
    committed = Committed(5, position_metadata(ROUTE, None, TAIL))
    located.committed = committed
    result = located()
    assert isinstance(result, TransactionalQueue)
    assert (result.position, result.tail, located.committed) == (5, TAIL, committed)
    located.problem = Retriable("no leader")
    assert located() == NotLocated("no leader", transient=True)
    decision = "position 5 of group lanes.flow.m; commit the source's offset to go on at"
    for problem in (ShorterLog("shorter"), LostEnd("another batch")):
        located.problem = problem
        committed = located.committed
        assert located() == NotLocated(f"{problem}; {decision}", transient=False)
        is_shorter = isinstance(problem, ShorterLog)
        # A broker that is cut off may have answered: it is compared again.
        assert (located.committed == committed) is is_shorter
    located.problem = None
    result = located()
    assert isinstance(result, NotLocated)
    assert not result.transient
    assert result.reason == f"the destination has lost records of A.t-0; {decision}"
    located.committed = Committed(3)
    assert _start(located()) == 3
    assert located.committed == Committed(3, position_metadata(ROUTE, None), UNKNOWN_EPOCH)


def test_a_position_has_the_tail_of_its_own_transaction() -> None:
    """Goal: what was committed last is what is compared; a batch below it commits nothing."""
    lane: Any = SimpleNamespace(destination=CLUSTER, id_prefix="lanes", settings=LaneSettings())
    owner = TransactionalWriters(0, lane, lane)
    fake: Any = Transactions()
    owner._transactions = fake
    position_of = replace(position(1), tail=TAIL)

    async def run() -> None:
        await owner.open(MemoryBeginnings())
        for start, tail in ((None, TAIL), (53, NEXT)):
            fake.landed = {} if start is None else {REMOTE: LandedBatches(Offset(start), tail)}
            written = await owner.write({}, {NAME: position_of})
            assert written[NAME].tail == tail
            metadata = fake.behind["lanes.flow.m"][REMOTE].metadata
            assert tail_of(Committed(5, metadata)) == tail
        fake.landed = {REMOTE: LandedBatches(Offset(52), NEXT)}
        with pytest.raises(Retriable, match=r"landed at 52 of A\.t-0, which"):
            await owner.write({}, {NAME: position_of})

    asyncio.run(run())


ROUTED_LOG = TopicPartition("x.t", 0)
ROUTED = RoutedTail(ROUTED_LOG, UUID(int=3), TAIL)


def test_a_loss_in_a_routed_topic_is_failed_until_an_operator_decides(located: Located) -> None:
    """Goal: what the log proves is stored; what a broker that is cut off may say is not."""
    assert _start(located()) == 0
    committed = Committed(5, position_metadata(ROUTE, None, TAIL, routed=(ROUTED,)))
    located.committed = committed
    doubted = (ROUTED._replace(doubt=Doubt("no leader", is_missing=False)),)
    for routed in (None, doubted):
        located.routed = routed
        result = located()
        assert isinstance(result, TransactionalQueue)
        assert (result.position, result.tail, located.committed) == (5, TAIL, committed)
        assert result.routed == (routed or (ROUTED,))
    located.routed = Retriable("not replicated")
    assert located() == NotLocated("not replicated", transient=True)
    decision = "position 5 of group lanes.flow.m; commit the source's offset to go on at"
    for proved in (False, True):
        located.routed = loss = RoutedLoss(ROUTED_LOG, "shorter", proved=proved)
        assert located() == NotLocated(f"{loss}; {decision}", transient=False)
        assert (located.committed != committed) is proved
    located.routed = None
    result = located()
    assert isinstance(result, NotLocated)
    assert result.reason == f"the destination has lost records of x.t-0; {decision}"
    located.committed = Committed(5)
    result = located()
    assert isinstance(result, TransactionalQueue)
    assert (result.position, result.routed) == (5, ()), "the operator has decided"


def test_a_flow_that_passes_losses_goes_on_without_the_tail(
    located: Located, caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: each loss is reported once, and the position stays; an older position is no loss."""
    assert _start(located()) == 0
    both = position_metadata(ROUTE, None, TAIL, routed=(ROUTED,))
    located.committed = Committed(5, both, UNKNOWN_EPOCH)
    located.routed = RoutedLoss(ROUTED_LOG, "shorter", proved=True)
    result = located(passes_lost=True)
    assert isinstance(result, NotLocated)
    assert result.transient
    assert located.deletion_is_loss
    assert located.committed == Committed(5, position_metadata(ROUTE, None, TAIL), UNKNOWN_EPOCH)
    located.routed, located.problem = None, LostEnd("the destination has lost records")
    assert isinstance(located(passes_lost=True), NotLocated)
    assert located.committed == Committed(5, position_metadata(ROUTE, None), UNKNOWN_EPOCH)
    assert [one.levelname for one in caplog.records] == ["ERROR", "ERROR"]
    assert "x.t-0, to which records were routed: shorter; going on at position 5" in caplog.text
    located.problem = None
    assert _start(located(passes_lost=True)) == 5
    located.committed = Committed(5, position_metadata(ROUTE, None, TAIL), UNKNOWN_EPOCH)
    located.problem = OlderPosition("older")
    result = located(passes_lost=True)
    assert isinstance(result, NotLocated)
    assert not result.transient
    located.problem = None
    # What was stored as lost while it was not to be passed over.
    located.committed = Committed(5, position_metadata(ROUTE, None, TAIL, lost=REMOTE))
    assert isinstance(located(), NotLocated)
    assert _start(located(passes_lost=True)) == 5
    assert located.committed == Committed(5, position_metadata(ROUTE, None, TAIL), UNKNOWN_EPOCH)


@pytest.mark.parametrize("lost", ["x.t-0", str(REMOTE)])
def test_a_stored_loss_is_reported_beside_one_that_the_logs_show(
    located: Located, caplog: pytest.LogCaptureFixture, lost: str
) -> None:
    """Goal: the position is stored without either; each is counted once."""
    assert _start(located()) == 0
    metadata = position_metadata(ROUTE, None, TAIL)
    located.committed = Committed(5, f"{metadata};lost={lost}", UNKNOWN_EPOCH)
    located.problem = LostEnd("the destination has lost records")
    owner, fake = located.owner()
    to_begin = {NAME: ToBegin(ROUTE, Offset(0), None)}
    assert isinstance(asyncio.run(owner.locate("m", to_begin, passes_lost=True))[NAME], NotLocated)
    logs = [str(loss.log) for loss in owner.losses.take(NAME, located=False)]
    assert sorted(logs) == sorted({str(REMOTE), lost})
    assert (f"lost records of {lost}; going on" in caplog.text) == (lost != str(REMOTE))
    (offset,) = fake.written[-1].offsets["lanes.flow.m"].values()
    assert offset.metadata == position_metadata(ROUTE, None)


@pytest.mark.parametrize("lost", ["x.t-0", "x-7.t-12", "1", "other"])
@pytest.mark.parametrize("seen_before", [False, True])
def test_a_stored_loss_that_is_passed_is_counted_once(
    located: Located, caplog: pytest.LogCaptureFixture, lost: str, seen_before: bool
) -> None:
    """Goal: also if compaction has removed what showed it, and in the log that it names."""
    assert _start(located()) == 0
    metadata = position_metadata(ROUTE, None, TAIL)
    marked = located.committed = Committed(5, f"{metadata};lost={lost}", UNKNOWN_EPOCH)
    owner, fake = located.owner()
    to_begin = {NAME: ToBegin(ROUTE, Offset(0), None)}

    async def story() -> None:
        if seen_before:
            assert isinstance((await owner.locate("m", to_begin))[NAME], NotLocated)
        located.committed = marked
        assert _start((await owner.locate("m", to_begin, passes_lost=True))[NAME]) == 5

    asyncio.run(story())
    expected = lost if lost.startswith("x") else str(REMOTE)
    [loss] = owner.losses.take(NAME, located=True)
    assert (str(loss.log), loss.start, loss.end) == (expected, None, None)
    assert f"lost records of {expected}; going on at position 5" in caplog.text
    (offset,) = fake.written[-1].offsets["lanes.flow.m"].values()
    assert offset.metadata == metadata


def test_a_flow_that_passes_losses_passes_all_of_a_position_at_once(
    located: Located, caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: dated topics that were deleted together are no reason to be FAILED.

    One that is not settled yet holds up no other one.
    """
    assert _start(located()) == 0
    logs = [TopicPartition(f"x.{year}", 0) for year in range(2010, 2023)]
    tails = tuple(RoutedTail(log, UUID(int=3), TAIL) for log in logs)
    committed = position_metadata(ROUTE, None, TAIL, routed=tails)
    located.committed = Committed(5, committed, UNKNOWN_EPOCH)
    worst, *others = (RoutedLoss(log, "deleted", proved=True) for log in logs[:11])
    worst.others = (*others, RoutedLoss(logs[11], "shorter", proved=False))
    located.routed = worst
    result = located(passes_lost=True)
    assert isinstance(result, NotLocated)
    assert result.transient
    kept = position_metadata(ROUTE, None, TAIL, routed=tails[11:])
    assert located.committed == Committed(5, kept, UNKNOWN_EPOCH)
    assert [one.levelname for one in caplog.records] == ["ERROR"] * 11


@pytest.mark.parametrize("routed", [False, True])
def test_a_loss_that_one_broker_may_claim_is_passed_after_a_lease(
    located: Located, caplog: pytest.LogCaptureFixture, routed: bool
) -> None:
    """Goal: a broker that is cut off does not remove the tail, and no loss is reported.

    Each comparison of a lease has to find it; one that does not begins it anew.
    """
    assert _start(located()) == 0
    metadata = position_metadata(ROUTE, None, TAIL, routed=(ROUTED,))
    located.committed = Committed(5, metadata, UNKNOWN_EPOCH)
    located.begun = [BegunPartition(NAME, ROUTE, None)]

    async def story() -> None:
        owner, fake = located.owner()
        owner._settled = SettledLosses(LaneSettings(lease_s=0.2))
        to_begin = {NAME: ToBegin(ROUTE, Offset(0), None)}

        async def compared(*, shorter: bool) -> TransactionalQueue | NotLocated:
            located.problem = ShorterLog("shorter") if shorter and not routed else None
            loss = RoutedLoss(ROUTED_LOG, "shorter", proved=False)
            located.routed = loss if shorter and routed else None
            return (await owner.locate("m", to_begin, passes_lost=True))[NAME]

        for shorter in (True, False, True, True):
            result = await compared(shorter=shorter)
            if shorter:
                assert isinstance(result, NotLocated)
                assert result.transient
                assert "it is compared again" in result.reason
            else:
                assert isinstance(result, TransactionalQueue)
                await asyncio.sleep(0.2)
        assert not fake.written
        assert not caplog.records
        await asyncio.sleep(0.2)
        await compared(shorter=True)
        (offset,) = fake.written[-1].offsets["lanes.flow.m"].values()
        at = Committed(offset.offset, offset.metadata)
        kept = (TAIL, ()) if routed else (None, (ROUTED,))
        assert (tail_of(at), routed_of(at)) == kept
        assert [one.levelname for one in caplog.records] == ["ERROR"]

    run(lambda _: story())


def test_a_position_of_an_earlier_version_that_is_lost_stays_lost(located: Located) -> None:
    """Goal: an upgrade copies nothing behind lost records; it has named no log."""
    assert _start(located()) == 0
    located.committed = Committed(5, position_metadata(ROUTE, None, TAIL) + ";lost=1")
    result = located()
    assert isinstance(result, NotLocated)
    assert result.reason.startswith("the destination has lost records of A.t-0; position 5")


def test_a_position_has_the_routed_tails_of_its_own_transaction() -> None:
    """Goal: of each partition, those of the logs that got records of it, in one commit."""
    second, other = MirrorPartition("m", "u", 0), TopicPartition("x.u", 0)
    lane: Any = SimpleNamespace(destination=CLUSTER, id_prefix="lanes", settings=LaneSettings())
    owner = TransactionalWriters(0, lane, lane)
    fake: Any = Transactions()
    owner._transactions = fake
    positions = {
        NAME: replace(position(1), routed=(ROUTED,), routed_to={ROUTED_LOG, other}),
        second: replace(position(1), remote=TopicPartition("A.u", 0), routed_to={other}),
    }

    async def run() -> None:
        await owner.open(MemoryBeginnings())
        fake.landed = {
            REMOTE: LandedBatches(Offset(7), TAIL),
            other: LandedBatches(Offset(0), NEXT),
        }
        written = await owner.write({}, positions)
        to_other = RoutedTail(other, None, NEXT)
        assert written[NAME].routed == (ROUTED, to_other)
        assert written[second].routed == (to_other,)
        for name, remote in ((NAME, REMOTE), (second, TopicPartition("A.u", 0))):
            metadata = fake.behind["lanes.flow.m"][remote].metadata
            assert routed_of(Committed(5, metadata)) == written[name].routed
        fake.landed = {ROUTED_LOG: LandedBatches(Offset(52), NEXT)}
        with pytest.raises(Retriable, match=r"landed at 52 of x\.t-0"):
            await owner.write({}, positions)

    asyncio.run(run())


OFFSETS_ID = UUID(int=7)
"""Of the `__mirror_offsets` that `Located` has."""


def test_what_is_behind_the_tail_counts_where_nobody_else_has_written(located: Located) -> None:
    """Goal: records that others route there under the same producer id stop no healthy flow.

    Who does so records it. Where that may be lost, or was not done yet, nothing is concluded.
    """
    assert _start(located()) == 0
    tail = TAIL._replace(last=TAIL.last._replace(producer_id=ProducerIdNumber(3)))
    for recorded_in, ids in ((OFFSETS_ID, {3, 7}), (UUID(int=8), None), (None, None)):
        metadata = position_metadata(ROUTE, None, tail._replace(recorded_in=recorded_in))
        located.committed = Committed(5, metadata)
        result = located()
        assert isinstance(result, TransactionalQueue)
        assert result.tail == tail._replace(recorded_in=recorded_in)
        assert located.own_ids == ({} if ids is None else {REMOTE: ids})
    located.committed = Committed(
        5, position_metadata(ROUTE, None, tail._replace(recorded_in=OFFSETS_ID))
    )
    located.shared = [SharedPartition(TopicPartition("A.t", 1))]
    assert _start(located()) == 5
    assert located.own_ids
    of_another_flow = BegunPartition(MirrorPartition("other", "t", 0), ROUTE, None)
    located.begun.append(of_another_flow)
    assert _start(located()) == 5
    assert not located.own_ids, "both have begun under an earlier version, which recorded no more"
    located.begun.remove(of_another_flow)
    located.shared.append(SharedPartition(REMOTE))
    assert _start(located()) == 5
    assert not located.own_ids


def test_an_older_position_is_failed_and_stays_as_it_is(located: Located) -> None:
    """Goal: a coordinator that is cut off may give it: the real one is not written over."""
    assert _start(located()) == 0
    committed = Committed(5, position_metadata(ROUTE, None, TAIL))
    located.committed, located.problem = committed, OlderPosition("older")
    assert located() == NotLocated(
        "older; position 5 of group lanes.flow.m; commit the source's offset to go on at",
        transient=False,
    )
    assert located.committed == committed
    located.problem = None
    assert _start(located()) == 5
    located.committed = Committed(9)  # an operator's, who has no tail
    assert _start(located()) == 9


def _recorded(content: TransactionContent) -> list[object]:
    """What a transaction writes to `__mirror_offsets`."""
    batches = content.batches.get(TopicPartition("__mirror_offsets", 0), ())
    raw = [one for batch in batches for one in raw_records(batch.header, batch.records)]
    return [decode(record.key, record.value) for record in map(decode_record, raw)]


def test_who_writes_to_another_ones_remote_partition_records_it_first() -> None:
    """Goal: it is stored with the first such records, in their transaction, and once."""
    routed, other = (TopicPartition(topic, 0) for topic in ("elsewhere", "A.u"))
    second = MirrorPartition("m", "u", 0)
    lane: Any = SimpleNamespace(destination=CLUSTER, id_prefix="lanes", settings=LaneSettings())
    owner = TransactionalWriters(0, lane, lane)
    fake: Any = Transactions()
    owner._transactions = fake

    async def run() -> None:
        await owner.open(MemoryBeginnings())
        owner._begun, owner._begun_id = {}, OFFSETS_ID
        of_other = replace(position(1), remote=other, route=ROUTE._replace(topic="A.u"))
        await owner._begin({NAME: position(1), second: of_other}, {}, "g", {})
        positions = {NAME: position(1)}
        await owner.write({REMOTE: [], routed: []}, positions)
        fake.landed = {REMOTE: LandedBatches(Offset(53), NEXT)}
        written = await owner.write({other: [], REMOTE: []}, positions)
        assert written[NAME].tail == NEXT._replace(recorded_in=OFFSETS_ID)
        await owner.write({other: []}, positions)
        await owner.write({REMOTE: [], other: []}, {NAME: position(1), second: of_other})

    asyncio.run(run())
    recorded = [_recorded(content) for content in fake.written]
    shared = SharedPartition(other)
    begun = [
        BegunPartition(NAME, ROUTE),
        BegunPartition(second, ROUTE._replace(topic="A.u")),
    ]
    assert recorded == [begun, [], [shared], [], []]


def test_two_partitions_that_are_copied_to_one_are_recorded() -> None:
    """Goal: a batch of a flow that was deleted is not taken for that of another one."""
    lane: Any = SimpleNamespace(destination=CLUSTER, id_prefix="lanes", settings=LaneSettings())
    owner = TransactionalWriters(0, lane, lane)
    fake: Any = Transactions()
    owner._transactions = fake
    later = NAME._replace(mirror="later")

    async def run() -> None:
        await owner.open(MemoryBeginnings())
        await owner._begin({NAME: position(1)}, {}, "g", {})
        await owner._begin({later: position(1)}, {}, "g", {})
        await owner._begin({NAME: position(1)}, {}, "g", {})

    asyncio.run(run())
    recorded = [_recorded(content) for content in fake.written]
    begun = [BegunPartition(name, ROUTE) for name in (NAME, later)]
    assert recorded == [[begun[0]], [begun[1], SharedPartition(REMOTE)], [begun[0]]]


def test_a_transaction_that_fails_is_ended_by_a_newer_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: what the network still holds of it is refused: markers of EndTxn would let it in."""
    ended: list[str] = []

    async def refuse(*_: object, **__: object) -> None:
        raise Retriable("no answer")

    async def init_producer_id(_: object, transactional_id: str, **__: object) -> ProducerId:
        ended.append(transactional_id)
        return ProducerId(1, 1)

    monkeypatch.setattr(transactions, "send_offsets_to_txn", refuse)
    monkeypatch.setattr(transactions, "init_producer_id", init_producer_id)
    writer = TargetTransactions(CLUSTER, "id", lambda: None)
    writer._id._producer = ProducerId(1, 0)
    with pytest.raises(TwinlogError, match="no answer"):
        asyncio.run(writer.write(TransactionContent(offsets={"g": {}})))
    assert ended == ["id"]
    assert not writer.ready


@pytest.mark.parametrize(("second", "is_lost"), [(103, False), (110, False), (102, True)])
def test_a_log_that_becomes_shorter_within_a_transaction_ends_it(
    monkeypatch: pytest.MonkeyPatch, second: int, *, is_lost: bool
) -> None:
    """Goal: records of its first batches are not left out, and no position is behind them."""
    places, committed = [100, second], list[object]()

    async def add(_: object, __: object, ___: object, keys: Collection[Any], **____: object) -> Any:
        return dict.fromkeys(keys)

    async def send(
        _: object, data: Mapping[TopicPartition, object], *__: object, **___: Any
    ) -> Any:
        return dict.fromkeys(data, places.pop(0))

    async def init_producer_id(*_: object, **__: object) -> ProducerId:
        return ProducerId(1, 1)

    async def commit(_: object) -> None:
        committed.append(True)

    monkeypatch.setattr(transactions, "add_partitions_to_txn", add)
    monkeypatch.setattr(transactions, "send_batches", send)
    monkeypatch.setattr(transactions, "init_producer_id", init_producer_id)
    writer = TargetTransactions(CLUSTER, "id", lambda: None)
    writer._id._producer = ProducerId(1, 0)
    monkeypatch.setattr(writer._id, "commit", commit)
    records = [RawRecord(at, 0, 0, memoryview(encode_tail(None, b"v"))) for at in range(3)]
    content = TransactionContent(batches={REMOTE: [build(records, Codec.NONE)] * 2})
    if is_lost:
        with pytest.raises(Retriable, match="a batch landed at 102 of"):
            asyncio.run(writer.write(content))
    else:
        asyncio.run(writer.write(content))
    assert committed == ([] if is_lost else [True])


def test_two_topics_do_not_share_one_position(caplog: pytest.LogCaptureFixture) -> None:
    """Goal: a policy of one's own that gives two topics one name is refused for such a flow.

    For others it is a warning, as groups read some records again there.
    """
    topic = MirrorTopic(
        mirror="m", topic="x.t", topic_id=UUID(int=1), partitions=1, destination_topic="t"
    )
    clusters: Any = SimpleNamespace(mirror=SimpleNamespace(kind="transactional", name="m"))
    check = FlowClusters._check_positions
    check(clusters, [topic], {"x.t": "t", "x.u": "u"})
    with pytest.raises(TwinlogError, match=r"x\.t and y\.t would both be copied to t"):
        check(clusters, [topic], {"y.t": "t"})
    with pytest.raises(TwinlogError, match="would both be copied to t"):
        check(clusters, [], {"x.t": "t", "y.t": "t"})
    clusters.mirror.kind = "translated"
    check(clusters, [topic], {"x.t": "t", "z.t": "z"})
    assert not caplog.messages
    check(clusters, [topic], {"y.t": "t"})
    assert "flow m: x.t and y.t are copied to one topic, t: " in caplog.text


def test_what_was_forgotten_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: an owner that goes on does not miss the position of a flow that was deleted."""
    begun = {NAME: position(1).route}
    reads: list[int] = []

    async def read_whole(_: object, __: object, numbers: list[int]) -> list[object]:
        reads.extend(numbers)
        if len(reads) == 2:
            raise Retriable("no answer")
        return []

    async def topic_id(_: object) -> UUID:
        return UUID(int=9)

    monkeypatch.setattr(writers_module, "read_whole", read_whole)
    monkeypatch.setattr(writers_module, "offsets_topic_id", topic_id)

    def fold_offsets(_: object) -> object:
        assert threading.current_thread() is not threading.main_thread(), "it may take a while"
        return SimpleNamespace(begun=dict(begun), shared=(), headed={})

    monkeypatch.setattr(writers_module, "fold_offsets", fold_offsets)
    lane: Any = SimpleNamespace(destination=CLUSTER, id_prefix="lanes", settings=LaneSettings())
    writers = TransactionalWriters(3, lane, port=SimpleNamespace())
    fake: Any = Transactions()
    writers._transactions = fake

    async def run() -> None:
        assert NAME in await writers._take_over()
        writers.forget({("m", "other")})
        await writers._take_over()
        assert len(reads) == 1
        begun.clear()
        writers.forget({("m", "t")})
        writers.forget(set())
        with pytest.raises(Retriable):
            await writers._take_over()
        assert writers._begun, "writes of other partitions go on, and need what was known"
        assert await writers._take_over() == {}, "also after a reading that failed"
        assert reads == [3, 3, 3]

    asyncio.run(run())
