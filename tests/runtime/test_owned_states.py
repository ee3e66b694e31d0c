"""What an owner writes after lost answers and takeovers, on a model of the state log."""

import asyncio
import dataclasses
import random
import uuid
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any

import pytest
from sole_owner import owned_for_good

from model.cluster import Cluster
from model.log import Marker, StoredBatch
from model.loop import VirtualLoop, run
from model.network import Faults, Network
from model.ports import ModelDestination
from model.states import Epochs, ModelStates, StateTopic
from twinlog.engines.base import Assignment, PartitionProgress
from twinlog.engines.exact.append import PartitionAppend, position_of
from twinlog.engines.exact.engine import ExactEngine, ExactWriters, _spec
from twinlog.engines.exact.foreign import NEAR
from twinlog.engines.exact.partition import ExactPartition
from twinlog.engines.exact.shard import Shard
from twinlog.engines.exact.spec import PartitionSpec, PartitionStage
from twinlog.engines.settings import LaneSettings
from twinlog.kafka.errors import Disconnected, Fenced, Refusal, Retriable
from twinlog.kafka.log.compression import Codec
from twinlog.kafka.log.records import RawRecord, build, encode_tail, whole
from twinlog.kafka.types import LeaderEpoch, Offset, ProducerId, TopicPartition
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.plan import Gap
from twinlog.mirror.settings import EXACT, TRANSLATED
from twinlog.mirror.states import State
from twinlog.runtime.ownership import OwnedStatePartition, _sealing
from twinlog.runtime.reconciler import Mirrored, Ways
from twinlog.runtime.reported_states import ReportedStates
from twinlog.store.config_records import MirrorTopic, Wanted
from twinlog.store.control_topics import States
from twinlog.store.state_records import LastMirrored, PartitionState, epochs_key, state_key

KEY = TopicPartition("topic", 0)
NAME = MirrorPartition("mirror", *KEY)
LEASE_S = 10.0


class Deaf(ModelStates):
    """States whose next answer to a write is lost, after the write was carried out."""

    loses = False
    refuses = 0
    """How many writes from now on are refused before anything is written."""

    async def write(self, states: Sequence[PartitionState], epochs: Epochs) -> None:
        if self.refuses:
            self.refuses -= 1
            raise Retriable("NOT_ENOUGH_REPLICAS")
        await super().write(states, epochs)
        if self.loses:
            self.loses = False
            raise Disconnected("the answer was lost")


class Bench:
    """A topic of one partition, its state partition, and owners of it."""

    def __init__(self, loop: VirtualLoop) -> None:
        rng = random.Random(1)
        self.loop = loop
        # If markers may not be written, a fence is one control record.
        self.cluster = Cluster(loop, rng, markers_allowed=False)
        self.cluster.create_topic(KEY.topic)
        self.network = Network(loop, rng, Faults())
        self.written: list[State] = []
        self.ends: dict[MirrorPartition, LastMirrored] = {}
        self.topic = StateTopic(1, self._note)
        self.lease = True
        self.states: Deaf

    def _note(self, states: Sequence[PartitionState], epochs: Epochs) -> None:
        self.written += [state.state for state in states]
        self.ends.update(epochs)

    @property
    def end(self) -> int:
        return self.cluster.log(KEY).end

    def user_writes(self) -> None:
        """Append a user's record."""
        record = RawRecord(0, self.cluster.now_ms, 0, memoryview(encode_tail(b"user", b"user")))
        data = whole(build([record], Codec.NONE), producer_id=-1, epoch=-1, sequence=-1)
        partition = self.cluster.partition(KEY)
        partition.log.append(data)
        self.cluster._replicate(partition)

    async def owner(self, name: str = "owner") -> OwnedStatePartition:
        shard = Shard(
            0, "twinlog", ModelDestination(self.cluster, self.network, name), LaneSettings()
        )
        self.states = Deaf(self.topic, self.network, name, 0, lambda: True)
        owned = OwnedStatePartition(
            0,
            writers={EXACT: ExactWriters(shard)},
            kind_of=lambda _: EXACT,
            states=self.states,
            may_write=lambda: self.lease,
            settings=LaneSettings(lease_s=LEASE_S),
        )
        await owned.open()
        return owned


def shard_of(owned: OwnedStatePartition) -> Shard:
    """Return its producers."""
    (writers,) = owned.writers.values()
    assert isinstance(writers, ExactWriters)
    return writers.shard


class Heard:
    """The desired state as an owner knows it, the commands since, and what the owner began."""

    def __init__(self, owned: OwnedStatePartition) -> None:
        self.changed = asyncio.Event()
        self.wanted: list[Mirrored] = []
        self.news: list[Mirrored] = []
        self.deaf = False
        self.begun: list[MirrorPartition] = []
        self.topics: list[MirrorTopic] = []
        self.ways = Ways(
            {0: owned},
            targets=lambda: {0: self.wanted},
            catch_up=self._catch_up,
            disown=self._disown,
            run=self._run,
            on_change=self.changed.set,
            random=random.Random(1),
        )

    async def _catch_up(self) -> None:
        if self.deaf:
            raise Retriable("the brokers do not answer")
        self.wanted = self.news

    async def go_on(self) -> None:
        """Run all due transitions, whenever there are any."""
        while True:
            await self.ways.go()
            await self.changed.wait()
            self.changed.clear()

    async def _disown(self, keep: object) -> None:
        pass

    async def _run(self, _: OwnedStatePartition, some: Sequence[Mirrored]) -> None:
        self.begun += [name for name, _ in some]
        self.topics += [topic for _, topic in some]


def with_desired_state(what: Wanted, name: MirrorPartition = NAME) -> list[Mirrored]:
    """Return a partition and its topic's desired state."""
    topic = MirrorTopic(
        mirror=name.mirror, topic=name.topic, topic_id=uuid.UUID(int=1), partitions=1, wanted=what
    )
    return [(name, topic)]


def on_bench(
    test: Callable[[Bench], Coroutine[Any, Any, None]],
) -> Callable[[], None]:
    """Run a test under virtual time."""

    def wrapped() -> None:
        async def main(loop: VirtualLoop) -> None:
            await test(Bench(loop))

        run(main)

    wrapped.__name__, wrapped.__doc__ = test.__name__, test.__doc__
    return wrapped


async def removed(owned: OwnedStatePartition, *names: MirrorPartition) -> None:
    """Bring partitions to STOPPING."""
    for state in (State.PREPARING, State.MIRRORING, State.STOPPING):
        await owned.enter(dict.fromkeys(names or (NAME,), state))


@on_bench
async def test_stopped_is_neither_written_nor_fenced_twice(bench: Bench) -> None:
    """The answer was lost, users write already: a second fence would land among their records."""
    owned = await bench.owner()
    await removed(owned)
    bench.states.loses = True
    with pytest.raises(Disconnected):
        await owned.stop([NAME])
    assert owned.reported.state(NAME) is State.STOPPED
    await owned.stop([NAME])  # the caller does not know that it is STOPPED
    await owned.write_states()
    assert bench.end == 1
    assert bench.written.count(State.STOPPED) == 1


@on_bench
async def test_an_idle_owner_detects_that_it_is_fenced(bench: Bench) -> None:
    """A former owner had taken the state partition back within its lease, and written PREPARING.

    Found by the simulation (seed 7): the partition was MIRRORING, and its state PREPARING for ever.
    """
    next_owner = await bench.owner("next")
    await next_owner.enter({NAME: State.PREPARING})
    await next_owner.enter({NAME: State.MIRRORING})
    former = await bench.owner("former")
    await former.enter({NAME: State.PREPARING})
    await next_owner.write_states()
    await asyncio.sleep(LEASE_S)
    with pytest.raises(Fenced):
        await next_owner.write_states()


@on_bench
async def test_states_of_another_owner_are_not_overwritten(bench: Bench) -> None:
    """A write failed, and another owner wrote first: its states are not overwritten."""
    former = await bench.owner("former")
    await removed(former)
    next_owner = await bench.owner("next")
    former.reported.changed(NAME, State.FAILED, "the source does not have this partition")
    await next_owner.stop([NAME])
    with pytest.raises(Fenced):
        await former.write_states()
    with pytest.raises(Fenced):  # it does not take the state partition back by itself
        await former.write_states()
    assert bench.written[-1] is State.STOPPED


@on_bench
async def test_states_reported_before_a_takeover_are_not_written_after_it(bench: Bench) -> None:
    """The state of an owner that was cut off is outdated: another one stopped the partition."""
    former = await bench.owner("former")
    await former.enter({NAME: State.PREPARING})
    await former.enter({NAME: State.MIRRORING})
    bench.states.loses = True
    former.reported.changed(NAME._replace(partition=1), State.PREPARING, None)
    with pytest.raises(Disconnected):
        await former.write_states()
    next_owner = await bench.owner("next")
    await next_owner.enter({NAME: State.STOPPING})
    await next_owner.stop([NAME])
    written = list(bench.written)
    for _ in range(2):
        with pytest.raises(Fenced):
            await former.enter({NAME: State.STOPPING})
    with pytest.raises(Fenced):
        await former.write_states()
    assert bench.written == written
    assert bench.end == 1


@on_bench
async def test_no_state_is_written_after_the_lease(bench: Bench) -> None:
    owned = await bench.owner()
    owned.reported.changed(NAME, State.PREPARING, None)
    bench.lease = False
    with pytest.raises(Fenced):
        await owned.write_states()
    assert not bench.written


@on_bench
async def test_a_closed_owner_writes_no_states(bench: Bench) -> None:
    """A closed owner's takeover was in flight, arrived late, and fenced the next owner.

    STOPPED would have let users write to a log that the next owner is about to fence.
    """
    former = await bench.owner("former")
    await removed(former)
    states = bench.states
    states.refuses = 1
    with pytest.raises(Retriable):
        await former.stop([NAME])  # fenced; STOPPED is decided, and not stored
    held = asyncio.Event()

    async def take_over() -> States:
        await held.wait()
        states._epoch, found = bench.topic.fence(0)
        return found

    states.take_over = take_over  # type: ignore[method-assign]
    report = asyncio.create_task(former.write_states())
    await asyncio.sleep(0)
    await former.close()
    await bench.owner("next")
    held.set()
    with pytest.raises(Fenced):
        await report
    assert bench.written[-1] is State.STOPPING


@on_bench
async def test_closing_an_owner_ends_its_writes(bench: Bench) -> None:
    """Retries end too: the next request is not sent."""
    owned = await bench.owner()
    owned.reported.changed(NAME, State.PREPARING, None)
    await owned.close()
    for ask in (bench.states.take_over(), bench.states.write([], {})):
        with pytest.raises(Fenced):
            await ask
    await owned.write_states()
    assert not bench.written


@on_bench
async def test_a_resumed_and_paused_partition_passes_through_mirroring(bench: Bench) -> None:
    """It was MIRRORING for a moment, and that was not stored yet."""
    owned = await bench.owner()
    await removed(owned)
    bench.written.clear()
    name = NAME._replace(partition=1)
    for state in (State.PREPARING, State.MIRRORING, State.PAUSING, State.PAUSED):
        await owned.enter({name: state})
    owned.reported.changed(name, State.MIRRORING, None)
    await owned.enter({name: State.PAUSING})
    assert bench.written[-2:] == [State.MIRRORING, State.PAUSING]


@on_bench
async def test_a_restarted_partition_is_fenced_at_its_stop(bench: Bench) -> None:
    """The write of PREPARING was refused, and the state partition was read again."""
    owned = await bench.owner()
    await removed(owned)
    await owned.stop([NAME])
    bench.user_writes()
    await owned.begin_again([NAME])
    bench.states.refuses = 1
    with pytest.raises(Retriable):
        await owned.begin([NAME])
    assert owned.reported.to_begin_again([NAME]) == {NAME}  # the desired state is read again first
    await owned.begin_again([NAME])
    await owned.begin([NAME])
    assert not owned.reported.to_begin_again([NAME])
    await owned.enter({NAME: State.MIRRORING})
    await owned.enter({NAME: State.STOPPING})
    await owned.stop([NAME])
    assert bench.end == 3  # the first fence, the user's record, the fence of the new beginning


@on_bench
async def test_another_producer_id_ends_the_owner(bench: Bench) -> None:
    """The epochs are used up, or the id has expired: a fence ends nothing of the former id."""
    owned = await bench.owner()
    await owned.enter({NAME: State.PREPARING})
    bench.cluster.coordinator._ids.clear()
    with pytest.raises(Retriable, match="another producer id"):
        await shard_of(owned).fence_data({KEY: Gap(Offset(0), Offset(1), seen=False)})
    assert bench.end == 0
    with pytest.raises(Fenced, match="another producer id"):
        await owned.write_states()


@on_bench
async def test_an_owner_knows_that_another_producer_id_may_have_written(bench: Bench) -> None:
    """The former owner had another producer id, and has stored that."""
    owned = await bench.owner()
    await owned.prepare([NAME])
    assert not of_several_ids(owned)
    bench.cluster.coordinator._ids.clear()
    following = await bench.owner("next")
    await following.prepare([NAME])
    assert of_several_ids(following)


def of_several_ids(owned: OwnedStatePartition) -> bool:
    """Whether data of several producers may be in the log, as far as this owner knows."""
    one = Assignment(
        name=NAME,
        source=KEY,
        destination=KEY,
        state_partition=0,
        source_topic_id=uuid.uuid4(),
        destination_topic_id=None,
        compacted=False,
    )
    return _spec(owned._with_former(one), shard_of(owned).data_producer).of_several_ids


@pytest.mark.parametrize(
    "news", [with_desired_state(Wanted.STOPPED), []], ids=["removed again", "its mirror deleted"]
)
def test_a_removed_topic_is_not_restarted(news: list[Mirrored]) -> None:
    """The topic was added again and removed while its lane was frozen: only STOPPED was visible.

    The topic is its users', or another mirror's: nothing may be appended, not even a fence.
    """

    @on_bench
    async def story(bench: Bench) -> None:
        owned = await bench.owner()
        await removed(owned)
        await owned.stop([NAME])
        bench.user_writes()
        heard = Heard(owned)
        heard.wanted = heard.news = with_desired_state(Wanted.STOPPED)
        await heard.ways.go()
        heard.wanted, heard.news, heard.deaf = with_desired_state(Wanted.MIRRORING), news, True
        for _ in range(2):  # a failed question is asked again
            with pytest.raises(Retriable):
                await heard.ways.go()
        assert bench.written[-1] is State.PREPARING  # so that commands can see it
        heard.deaf = False
        await heard.ways.go()
        await heard.ways.go()
        if owned.stopping is not None:
            await owned.stopping
        assert not heard.begun
        assert bench.end == 2  # the fence and the user's record
        assert bench.written[-1] is (State.STOPPED if news else State.PREPARING)

    story()


@on_bench
async def test_the_next_owner_does_not_fence_a_topic_that_was_not_restarted(bench: Bench) -> None:
    """Goal: that the desired state is unknown outlives the owner that began again."""
    owned = await bench.owner()
    await removed(owned)
    await owned.stop([NAME])
    bench.user_writes()
    heard = Heard(owned)
    heard.wanted = heard.news = with_desired_state(Wanted.STOPPED)
    await heard.ways.go()
    heard.wanted, heard.news, heard.deaf = (
        with_desired_state(Wanted.MIRRORING),
        with_desired_state(Wanted.STOPPED),
        True,
    )
    with pytest.raises(Retriable):
        await heard.ways.go()
    assert bench.written[-1:] == [State.PREPARING]
    await owned.close()
    after = await bench.owner("next")
    heard = Heard(after)
    heard.wanted = heard.news = with_desired_state(Wanted.STOPPED)
    await heard.ways.go()
    if after.stopping is not None:
        await after.stopping
    assert bench.written[-1] is State.STOPPED
    assert bench.end == 2  # the fence and the user's record


@on_bench
async def test_a_topic_that_was_added_again_is_restarted(bench: Bench) -> None:
    owned = await bench.owner()
    await removed(owned)
    await owned.stop([NAME])
    bench.user_writes()
    heard = Heard(owned)
    heard.wanted = heard.news = with_desired_state(Wanted.MIRRORING)
    await heard.ways.go()
    assert heard.begun == [NAME]
    assert bench.written[-1:] == [State.PREPARING]
    heard.wanted = heard.news = with_desired_state(Wanted.STOPPED)
    await heard.ways.go()
    assert owned.stopping is not None
    await owned.stopping
    assert bench.end == 3  # the new beginning is fenced
    assert bench.written[-1] is State.STOPPED


@on_bench
async def test_a_topic_that_was_recreated_meanwhile_is_run_as_it_is_now(bench: Bench) -> None:
    """Goal: no partition that begins again is FAILED for a topic that was replaced just then."""
    owned = await bench.owner()
    await removed(owned)
    await owned.stop([NAME])
    bench.user_writes()
    owned.informed = True
    heard = Heard(owned)
    heard.wanted = with_desired_state(Wanted.MIRRORING)
    ((name, topic),) = heard.wanted
    heard.news = [(name, dataclasses.replace(topic, topic_id=uuid.UUID(int=2)))]
    await heard.ways.go()
    assert [topic.topic_id for topic in heard.topics] == [uuid.UUID(int=2)]


@pytest.mark.parametrize("heard", [True, False])
def test_the_last_mirrored_end_of_a_recreated_mirror_is_written_again(heard: bool) -> None:
    """The mirror was deleted with its states, and recreated: the former end is gone."""

    @on_bench
    async def story(bench: Bench) -> None:
        owned = await bench.owner()
        owned.informed = True
        for _ in range(2):
            await removed(owned)
            await owned.stop([NAME])
            assert bench.ends.pop(NAME).end == 0
            if heard:
                owned.forget({(NAME.mirror, NAME.topic)})
                assert owned.reported.state(NAME) is State.UNKNOWN
        assert bench.written.count(State.STOPPED) == 2

    story()


def delete_mirror(bench: Bench) -> None:
    """Remove what is stored of the partition, as the command that deletes its mirror does."""
    log = bench.topic._logs[0]
    del log.states[NAME], log.epochs[NAME]


@on_bench
async def test_states_that_are_deleted_before_an_owner_is_informed_are_forgotten(
    bench: Bench,
) -> None:
    """Goal: a mirror that is created again begins without the states of the former one.

    The owner has read these already, and does not know the desired state yet.
    """
    former = await bench.owner()
    await removed(former)
    await former.stop([NAME])
    await former.close()
    owned = await bench.owner("next")
    heard = Heard(owned)
    heard.deaf = True
    with pytest.raises(Retriable):
        await heard.ways.go()
    delete_mirror(bench)
    owned.forget(set())
    owned.forget({NAME[:2]})
    heard.deaf = False
    await heard.ways.go()
    assert owned.reported.state(NAME) is State.UNKNOWN
    assert owned.reported.last(NAME) == LastMirrored(LeaderEpoch(-1), Offset(-1))
    bench.written.clear()
    heard.wanted = with_desired_state(Wanted.STOPPED)
    await heard.ways.go()
    assert bench.topic.last()[NAME].state is State.STOPPED, "not only in memory"


@on_bench
async def test_states_that_are_deleted_while_they_are_read_again_are_forgotten(
    bench: Bench,
) -> None:
    """Goal: a deletion that an owner hears of at any time before it is informed counts."""
    former = await bench.owner()
    await removed(former)
    await former.stop([NAME])
    await former.close()
    owned = await bench.owner("next")
    take_over, calls = bench.states.take_over, 0

    async def and_then_delete() -> States:
        nonlocal calls
        states, calls = await take_over(), calls + 1
        if calls == 1:
            delete_mirror(bench)
            owned.forget({NAME[:2]})
        return states

    bench.states.take_over = and_then_delete  # type: ignore[method-assign]
    owned.forget({("another", "topic")})
    await Heard(owned).ways.go()
    assert calls == 2
    assert owned.reported.state(NAME) is State.UNKNOWN


@on_bench
async def test_news_from_before_a_takeover_forgets_no_states(bench: Bench) -> None:
    """Goal: a lane that was suspended hears late that a mirror was deleted, which is back since."""
    former = await bench.owner()
    await former.enter({NAME: State.PREPARING})
    await know(former, 3)
    await former.close()
    owned = await bench.owner("next")
    owned.forget({NAME[:2]}, {NAME[:2]})
    await Heard(owned).ways.go()
    assert owned.informed
    assert owned.reported.state(NAME) is State.PREPARING
    assert owned.reported.last(NAME).end == 3


@pytest.mark.parametrize("key", [state_key(NAME), epochs_key(NAME)])
@pytest.mark.parametrize("what", Wanted)
def test_a_partition_with_an_unreadable_state_is_left_unchanged(what: Wanted, key: bytes) -> None:
    """It had an owner: it neither begins as a new partition, nor is given up without a fence."""

    @on_bench
    async def story(bench: Bench) -> None:
        bench.topic.unreadable[0, key] = "a newer version"
        owned = await bench.owner()
        heard = Heard(owned)
        heard.wanted = heard.news = with_desired_state(what)
        await heard.ways.go()
        assert (heard.begun, bench.written, bench.ends) == ([], [], {})
        other = MirrorPartition(NAME.mirror, "other", 0)
        heard.wanted = heard.news = with_desired_state(Wanted.MIRRORING, other)
        await heard.ways.go()
        assert heard.begun == [other]

    story()


@on_bench
async def test_an_unreadable_state_of_another_owner_fences_the_owner(bench: Bench) -> None:
    owned = await bench.owner()
    bench.states.loses = True
    with pytest.raises(Disconnected):
        await owned.enter({NAME: State.PREPARING})
    bench.topic.unreadable[0, state_key(NAME)] = "a newer version"
    with pytest.raises(Fenced):
        await owned.write_states()


@on_bench
async def test_a_partition_without_write_right_stays_stopping(bench: Bench) -> None:
    """The others are STOPPED without it. It reports why, is retried ever more rarely, then done."""
    other = MirrorPartition(NAME.mirror, "other", 0)
    bench.cluster.create_topic(other.topic)
    bench.cluster.read_only.add(KEY.topic)
    owned = await bench.owner()
    await removed(owned, NAME, other)
    fence, tried = shard_of(owned).fence, 0

    async def counted(
        keys: Collection[TopicPartition],
        topic_ids: Mapping[str, uuid.UUID],
        begun: Collection[TopicPartition],
    ) -> dict[TopicPartition, Offset | Refusal]:
        nonlocal tried
        tried += 1
        return await fence(keys, topic_ids, begun)

    shard_of(owned).fence = counted  # type: ignore[assignment]
    heard = Heard(owned)
    heard.wanted = heard.news = with_desired_state(Wanted.STOPPED) + with_desired_state(
        Wanted.STOPPED, other
    )
    going = asyncio.ensure_future(heard.go_on())
    await asyncio.sleep(LEASE_S + 1.0)
    assert (owned.reported.state(other), bench.end) == (State.STOPPED, 0)
    written = owned.reported._stored_states[NAME]
    assert written.state is State.STOPPING
    assert "TOPIC_AUTHORIZATION_FAILED (29)" in (written.reason or "")
    await asyncio.sleep(600.0)
    assert owned.reported.state(NAME) is State.STOPPING
    assert 20 < tried < 60
    bench.cluster.read_only.clear()
    await asyncio.sleep(1.5 * LaneSettings().backoff_max_s + 1.0)
    assert owned.reported._stored_states[NAME] == PartitionState(NAME, State.STOPPED)
    assert bench.end == 1
    assert bench.written.count(State.STOPPED) == 2
    going.cancel()


# ---- where mirroring ended, when foreign producers have written before the fence ----


def append(bench: Bench, producer_id: int, count: int = 1) -> None:
    """Append one batch of `count` records."""
    tail = memoryview(encode_tail(b"key", b"value"))
    records = [RawRecord(at, bench.cluster.now_ms, 0, tail) for at in range(count)]
    headers = [
        b.header for b in bench.cluster.log(KEY).batches if b.header.producer_id == producer_id
    ]
    epoch, sequence = (
        (-1, -1) if producer_id < 0 else (0, sum(header.num_records for header in headers))
    )
    data = whole(
        build(records, Codec.NONE), producer_id=producer_id, epoch=epoch, sequence=sequence
    )
    partition = bench.cluster.partition(KEY)
    partition.log.append(data)
    bench.cluster._replicate(partition)


def fences(bench: Bench) -> list[StoredBatch]:
    return [batch for batch in bench.cluster.log(KEY).batches if batch.header.is_control]


async def know(owned: OwnedStatePartition, end: int) -> None:
    """Store the offset up to which it is known to be mirrored."""
    owned.reported._mirrored_said[NAME] = LastMirrored(LeaderEpoch(0), Offset(end))
    await owned.write_states()


async def stopped(bench: Bench, owned: OwnedStatePartition) -> tuple[int, str | None]:
    """Stop it; return its last mirrored end, and the reason stored with STOPPED."""
    await owned.stop([NAME])
    state = bench.topic.last()[NAME]
    assert state.state is State.STOPPED
    return bench.ends[NAME].end, state.reason


@on_bench
async def test_the_last_mirrored_end_is_the_fence_without_foreign_records(bench: Bench) -> None:
    owned = await bench.owner()
    await removed(owned)
    append(bench, shard_of(owned).data_producer, 10)
    assert await stopped(bench, owned) == (10, None)


@on_bench
async def test_foreign_records_before_the_fence_are_not_mirrored(bench: Bench) -> None:
    """As in a failback that diverged: ten records are mirrored, five foreign ones are not."""
    owned = await bench.owner()
    await removed(owned)
    append(bench, shard_of(owned).data_producer, 10)
    for _ in range(5):
        append(bench, -1)
    end, reason = await stopped(bench, owned)
    assert end == 10
    assert "5 record(s) at offsets 10 to 14" in (reason or "")
    assert fences(bench)[-1].header.base_offset == 15


@on_bench
async def test_a_new_owner_finds_the_same_last_mirrored_end(bench: Bench) -> None:
    """The node died before the stop, and once more between the fence and STOPPED."""
    owned = await bench.owner()
    await removed(owned)
    append(bench, shard_of(owned).data_producer, 10)
    append(bench, 999, 3)
    await shard_of(owned).fence([KEY])
    await owned.close()
    other = await bench.owner("other")
    end, reason = await stopped(bench, other)
    assert end == 10
    assert "producer id 999" in (reason or "")
    assert fences(bench)[0].header.base_offset == 13


async def fill_first_offset(owned: OwnedStatePartition) -> None:
    """Fill a gap of one offset that begins with a fence of the data; no record follows."""
    gap = Gap(Offset(0), Offset(1), seen=False)
    assert (await shard_of(owned).fence_data({KEY: gap}))[KEY].log_end == 1


@on_bench
async def test_a_gap_at_the_end_is_mirrored_at_its_owners_stop(bench: Bench) -> None:
    """Goal: the marker at which a gap begins is not taken for the fence of a former owner's stop.

    Neither by the owner that filled the gap, nor by the next one, which finds it MIRRORING.
    """
    owned = await bench.owner()
    await owned.enter({NAME: State.PREPARING})
    await owned.enter({NAME: State.MIRRORING})
    await fill_first_offset(owned)
    following = await bench.owner("next")
    await following.enter({NAME: State.STOPPING})
    assert NAME in following.reported.begun_stops
    assert await stopped(bench, following) == (1, None)


@on_bench
async def test_a_marker_counts_as_a_fence_if_a_former_owner_may_have_stopped(bench: Bench) -> None:
    """Goal: where the log does not tell, the stored end is not above the mirrored one."""
    owned = await bench.owner()
    await owned.enter({NAME: State.PREPARING})
    await owned.enter({NAME: State.MIRRORING})
    await fill_first_offset(owned)
    await owned.enter({NAME: State.STOPPING})
    following = await bench.owner("next")
    assert NAME not in following.reported.begun_stops
    assert await stopped(bench, following) == (0, None)


@on_bench
async def test_an_owner_has_begun_a_stop_only_if_it_knows_so(bench: Bench) -> None:
    """Goal: not if the partition was never placed, nor if the outcome of STOPPING is unknown."""
    owned = await bench.owner()
    await owned.enter({NAME: State.PREPARING})
    await owned.enter({NAME: State.STOPPING})
    assert NAME not in owned.reported.begun_stops
    await owned.stop([NAME])
    await owned.begin_again([NAME])
    await owned.begin([NAME])
    await owned.enter({NAME: State.MIRRORING})
    bench.states.loses = True
    with pytest.raises(Disconnected):
        await owned.enter({NAME: State.STOPPING})
    assert NAME in owned.reported.begun_stops
    owned.reported.say(PartitionState(NAME, State.STOPPING, "why"))
    await owned.write_states()
    assert bench.topic.last()[NAME].state is State.STOPPING
    assert NAME not in owned.reported.begun_stops, "another owner may have written the same"


@on_bench
async def test_records_misplaced_after_foreign_records_are_not_mirrored(bench: Bench) -> None:
    owned = await bench.owner()
    await removed(owned)
    producer = shard_of(owned).data_producer
    for _ in range(NEAR + 100):
        append(bench, producer)
    append(bench, -1)
    for _ in range(5):
        append(bench, producer)
    assert (await stopped(bench, owned))[0] == NEAR + 100


@on_bench
async def test_a_long_foreign_tail_is_searched_to_its_start(bench: Bench) -> None:
    owned = await bench.owner()
    await removed(owned)
    for _ in range(20):
        append(bench, shard_of(owned).data_producer, 10)
    for _ in range(3 * NEAR):
        append(bench, -1)
    assert (await stopped(bench, owned))[0] == 200


@on_bench
async def test_records_below_the_proven_end_are_not_foreign(bench: Bench) -> None:
    """Users of an earlier failover wrote it, and the source has mirrored it since."""
    owned = await bench.owner()
    await removed(owned)
    for _ in range(50):
        append(bench, -1)
    await know(owned, 50)
    assert await stopped(bench, owned) == (50, None)


def placed_partition(end: int, *, compared: bool = True) -> ExactPartition:
    """Build the partition as an engine has it, placed at the log's end."""
    append = PartitionAppend(0.0)
    append.place(position_of(Offset(end), (), ProducerId(1)), 0.0, compared=compared)
    spec = PartitionSpec(partition=KEY, source_topic_id=uuid.UUID(int=1), shard=0, compacted=False)
    return ExactPartition(spec=spec, append=append)


def row(partition: ExactPartition) -> PartitionProgress:
    """Return what its engine reports of a partition."""
    nothing: Any = None
    engine = ExactEngine(
        NAME.mirror,
        lambda *_: None,
        source=nothing,
        destination=nothing,
        settings=LaneSettings(),
        random=random.Random(1),
        brokers_time_ms=lambda: 0,
        confirm_ownership=owned_for_good,
    )
    return engine._row(partition, engine.plane.now())


@pytest.mark.parametrize(("compared", "mirrored"), [(False, 10), (True, 14)])
def test_a_position_proves_only_compared_offsets(compared: bool, mirrored: int) -> None:
    """Goal: a foreign record in place of one that the source no longer has is found at the stop.

    The former owner has proven offsets up to 5.
    """

    async def story(bench: Bench) -> None:
        owned = await bench.owner()
        await owned.enter({NAME: State.PREPARING})
        await know(owned, 5)
        append(bench, shard_of(owned).data_producer, 10)
        for _ in range(4):
            append(bench, -1)
        owned.reported.mirrored(row(placed_partition(14, compared=compared)))
        await owned.enter({NAME: State.STOPPING})
        assert (await stopped(bench, owned))[0] == mirrored

    on_bench(story)()


@pytest.mark.parametrize("taken_over", [False, True])
@pytest.mark.parametrize(("differs", "mirrored"), [(True, 10), (False, 14)])
def test_records_after_a_difference_are_not_mirrored(
    differs: bool, mirrored: int, taken_over: bool
) -> None:
    """A marker of a foreign transaction shifts the mirror's data, which has the mirror's id anyway.

    Another owner that stops the partition has no engine that could show that. Where the source was
    refused there is no difference, and the marker is the mirror's.
    """

    async def story(bench: Bench) -> None:
        owned = await bench.owner()
        await owned.enter({NAME: State.PREPARING})
        append(bench, shard_of(owned).data_producer, 10)
        partition = placed_partition(10)
        owned.reported.mirrored(row(partition))
        partition_there = bench.cluster.partition(KEY)
        partition_there.log.append_marker(Marker(999, 0, committed=True), bench.cluster.now_ms)
        append(bench, shard_of(owned).data_producer, 3)
        partition.append.fail()
        partition.stage, partition.differs = PartitionStage.FAILED, differs
        owned.reported.observe(row(partition))
        if taken_over:
            await owned.write_states()
            await owned.close()
            owned = await bench.owner("next")
        await owned.enter({NAME: State.STOPPING})
        assert await stopped(bench, owned) == (mirrored, None)
        assert not bench.ends[NAME].differs

    on_bench(story)()


@on_bench
async def test_a_recreated_topic_discards_the_former_mirrored_end(bench: Bench) -> None:
    owned = await bench.owner()
    await know(owned, 3)
    for _ in range(5):
        append(bench, -1)
    del bench.topic._logs[0].epochs[NAME]  # the command that added the recreated topic
    owned.reported.forget_ends({(NAME.mirror, NAME.topic)})
    await removed(owned)
    assert (await stopped(bench, owned))[0] == 0


@on_bench
async def test_records_of_a_former_producer_id_count_as_mirrored(bench: Bench) -> None:
    """Its epochs were used up, or it had expired at its coordinator, before this takeover."""
    owned = await bench.owner()
    former = shard_of(owned).data_producer
    await owned.prepare([NAME])
    append(bench, former, 10)
    await owned.close()
    del bench.cluster.coordinator._ids["twinlog.0"]
    other = await bench.owner("other")
    assert shard_of(other).data_producer != former
    for state in (State.MIRRORING, State.STOPPING):
        await other.enter({NAME: state})
    assert await stopped(bench, other) == (10, None)


@on_bench
async def test_a_partition_that_never_started_gets_no_marker(bench: Bench) -> None:
    """Its state is UNKNOWN, since it was never stored or was lost: users may write to it."""
    bench.user_writes()
    owned = await bench.owner()
    await owned.enter({NAME: State.STOPPED})
    assert bench.topic.last()[NAME].state is State.STOPPED
    assert "not" in (bench.topic.last()[NAME].reason or "")
    assert NAME not in bench.ends
    assert not fences(bench)


@on_bench
async def test_a_due_fence_lands_before_a_partition_without_a_state_is_stopped(
    bench: Bench,
) -> None:
    """Goal: after the state was lost, no marker of a former owner lands among users' records."""
    coordinator = bench.cluster.coordinator
    _, producer_id, epoch = coordinator.init("twinlog.0")
    coordinator.add_partitions("twinlog.0", producer_id, epoch, [KEY])  # and it is killed
    owned = await bench.owner()
    await owned.enter({NAME: State.STOPPED})
    before = fences(bench)
    bench.user_writes()
    await asyncio.sleep(2 * bench.cluster.timings.transaction_timeout)
    assert len(before) == 1
    assert fences(bench) == before


@pytest.mark.parametrize("known", [-1, 7])
def test_a_known_end_beyond_the_log_is_ignored(known: int) -> None:
    """A rebuilt log may be shorter than the known end of the former one."""

    async def story(bench: Bench) -> None:
        owned = await bench.owner()
        await removed(owned)
        append(bench, shard_of(owned).data_producer, 2)
        append(bench, -1)
        await know(owned, known)
        assert (await stopped(bench, owned))[0] == 2

    on_bench(story)()


class FlowBench(Bench):
    """Owners of a flow's partition, whose writers are those of the exact engine."""

    async def owner(self, name: str = "owner") -> OwnedStatePartition:
        shard = Shard(
            0, "twinlog", ModelDestination(self.cluster, self.network, name), LaneSettings()
        )
        self.states = Deaf(self.topic, self.network, name, 0, lambda: True)
        owned = OwnedStatePartition(
            0,
            writers={TRANSLATED: ExactWriters(shard)},
            kind_of=lambda _: TRANSLATED,
            states=self.states,
            may_write=lambda: self.lease,
            settings=LaneSettings(lease_s=LEASE_S),
        )
        await owned.open()
        return owned


@on_bench
async def test_what_an_owner_has_begun_is_known_to_later_ones(bench: Bench) -> None:
    """Goal: a later owner knows what may have been written, whatever else was lost."""
    bench = FlowBench(bench.loop)
    owned = await bench.owner()
    await owned.prepare([NAME])
    later = await bench.owner("later")
    assert later._beginnings.has_begun(NAME) is False
    await later._beginnings.store([NAME])
    assert bench.ends[NAME].begun
    written = len(bench.topic._logs[0].epochs)
    bench.states.refuses = 1  # nothing has to be written for a partition that has begun
    await later._beginnings.store([NAME])
    assert len(bench.topic._logs[0].epochs) == written
    bench.states.refuses = 0
    await later.enter({NAME: State.MIRRORING})
    last = await bench.owner("last")
    assert last._beginnings.has_begun(NAME)
    await last.prepare([NAME])
    assert last._beginnings.has_begun(NAME)
    with pytest.raises(Fenced):
        await later._beginnings.store([NAME._replace(partition=1)])


@on_bench
async def test_whether_a_partition_of_an_earlier_version_has_begun_is_not_known(
    bench: Bench,
) -> None:
    """Goal: nothing is taken for not begun that an owner may have written to."""
    bench = FlowBench(bench.loop)
    owned = await bench.owner()
    await owned.enter({NAME: State.PREPARING})  # as an earlier version does
    await owned.prepare([NAME])
    assert owned._beginnings.has_begun(NAME) is None
    assert bench.ends[NAME].begun is None


@on_bench
async def test_a_beginning_is_stored_before_anything_else_is_done(bench: Bench) -> None:
    """Goal: an owner that cannot store it, or does not know that it is stored, writes no data."""
    bench = FlowBench(bench.loop)
    owned = await bench.owner()
    await owned.prepare([NAME])
    bench.states.refuses = 1
    with pytest.raises(Retriable):
        await owned._beginnings.store([NAME])
    assert not bench.ends[NAME].begun
    bench.states.loses = True
    with pytest.raises(Disconnected):
        await owned._beginnings.store([NAME])
    await owned._beginnings.store([NAME])
    owned.reported.forget({NAME[:2]})
    assert owned._beginnings.has_begun(NAME) is None
    await owned.close()
    with pytest.raises(Retriable, match="not stored"):
        await owned._beginnings.store([NAME])


def test_a_partition_is_sealed_with_the_id_of_the_topic_that_records_it() -> None:
    """Goal: a flow's writers tell lost records from a partition that has copied nothing."""
    topic = MirrorTopic(
        mirror=NAME.mirror,
        topic=NAME.topic,
        topic_id=uuid.UUID(int=1),
        partitions=1,
        offsets_topic_id=uuid.UUID(int=3),
        lost_topic_ids=(uuid.UUID(int=4),),
    )
    assert _sealing(NAME, topic, ReportedStates()).offsets_topic_id == uuid.UUID(int=3)
    assert _sealing(NAME, None, ReportedStates()).offsets_topic_id is None
    assert _sealing(NAME, topic, ReportedStates()).lost_topic_ids == (uuid.UUID(int=4),)
