"""One simulation from its seed: two clusters, a history, faults for a while, then peace.

    0                        FAULT_SECONDS                              deadline
    │ history is written, lanes │ sources stop, all faults end, one last  │
    │ run, faults of all kinds  │ lane owns all shards: all has to arrive │

Nothing may be missing at the deadline. The checker checks every single append, during the faults
and after them.
"""

import asyncio
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from model.cluster import Cluster, Timings
from model.loop import VirtualLoop, run
from model.network import Faults, Network
from model.ports import ModelDestination
from model.states import StateTopic
from model.unusual import Unusual
from simulation.checker import Checker, Violation
from simulation.history import Profile, Writer, draw_profile
from simulation.lags import LagChecks, Reported
from simulation.lanes import LATE_SECONDS, MIRROR, Group, Lane, World
from simulation.life import Life
from simulation.variants import VARIANTS
from twinlog.engines.base import Assignment
from twinlog.engines.exact.fetch_loops import DISTANT_S
from twinlog.engines.settings import LaneSettings
from twinlog.kafka.types import TopicPartition
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.throttle import ALL, Throttle
from twinlog.store.config_records import MirrorTopic, Wanted

FAULT_SECONDS: Final = 30.0
PEACE_SECONDS: Final = 240.0
"""After so long without any change, whatever has not arrived is stuck."""
LONGEST: Final = 3600.0
"""The limit for partitions that keep changing, and are never complete."""
SHARDS: Final = 2
REMOVED_SHARE: Final = 0.08
"""The share of commands that remove a topic."""
_DISTANT_SHARE: Final = 0.3
"""The share of seeds whose source is distant from some time on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hazards:
    """Faults that run only on request, so that they do not hide all other faults.

    The theory does not cover these (yet):

    * `again`: the port retries the steps of a transaction in the same epoch, and the first copy
      arrives after the transaction's end.
    * `expiry`: the broker forgets a producer's entry, of old records, while a request of another
      producer, or of unknown outcome, may still arrive.
    * `markers`: the coordinator writes a marker a second time that was stored before the leader
      changed.
    * `unclean`: a log that has gaps loses its end while a filler is in flight, which then lands too
      early.
    * `lossy`: the source loses its log's end in an unclean election; other records follow there.

    These are other conditions:

    * `commands`: topics are added, paused, resumed and removed; the destination loses no end.
    * `calm`: there are no other faults.
    * `foreign`: foreign producers write to a removed topic before it is fenced.
    * `forgotten`: `__mirror_state` is lost while all lanes are dead and have no requests in flight.
    * `followers`: the source's followers answer consumers, too, and may be cut off (KIP-392).
    """

    again: bool = False

    expiry: bool = False
    markers: bool = False
    unclean: bool = False
    lossy: bool = False
    commands: bool = False
    calm: bool = False
    foreign: bool = False
    forgotten: bool = False
    followers: bool = False


NO_HAZARDS: Final = Hazards()
HAZARDS: Final = tuple(field.name for field in fields(Hazards))


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a simulation."""

    seed: int
    steps: int
    appended: int
    fillers: int
    broken: int
    seconds: float
    source_end: int
    stopped: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Dangers:
    """The mean seconds between faults of each kind, drawn from the seed; 0: never."""

    takeover: float
    freeze: float
    kill: float
    cut: float
    source_leader: float
    destination_leader: float
    unclean: float
    lossy: float
    lag: float
    command: float
    forgotten: float


NO_DANGERS: Final = Dangers(
    takeover=0.0,
    freeze=0.0,
    kill=0.0,
    cut=0.0,
    source_leader=0.0,
    destination_leader=0.0,
    unclean=0.0,
    lossy=0.0,
    lag=0.0,
    command=0.0,
    forgotten=0.0,
)


def draw_dangers(rng: random.Random) -> Dangers:
    """Draw the dangers; some seeds omit some kinds, so that each danger also occurs alone."""

    def some(mean: float) -> float:
        return rng.choice((0.0, mean, mean, 3 * mean))

    return Dangers(
        takeover=some(12.0),
        freeze=some(10.0),
        kill=some(12.0),
        cut=some(15.0),
        source_leader=some(10.0),
        destination_leader=some(10.0),
        unclean=rng.choice((0.0, 0.0, 0.0, 25.0)),
        lossy=0.0,
        lag=some(6.0),
        command=0.0,
        forgotten=0.0,
    )


class Simulation:
    """One simulation: both clusters, the networks, the lanes and both oracles."""

    def __init__(self, loop: VirtualLoop, seed: int, variant: str, hazards: Hazards) -> None:
        self.loop = loop
        self.rng = rng = random.Random(seed)
        self.seed = seed
        self._hazards = hazards
        self.dangers = draw_dangers(rng)
        if hazards.lossy:
            self.dangers = replace(self.dangers, lossy=8.0)
        if hazards.calm:
            self.dangers = NO_DANGERS
        if hazards.commands:
            self.dangers = replace(self.dangers, unclean=0.0, command=rng.choice((1.0, 4.0)))
        if hazards.forgotten:
            self.dangers = replace(self.dangers, forgotten=10.0)
        self.source = Cluster(loop, rng)
        self.destination = Cluster(
            loop, rng, timings=_timings(rng, hazards), markers_allowed=rng.random() < 0.5
        )
        self.destination.markers_written_twice = hazards.markers
        # A separate generator, as below: other draws of the seed stay the same.
        unusual = random.Random(f"unusual {seed}")
        self.source.unusual = Unusual(loop, unusual)
        self.source.unusual.quiet = hazards.calm or unusual.random() < 0.3
        self.source.followers_answer = hazards.followers
        self.destination.markers_cut = rng.choice((0.0, 0.2))
        self.destination.coordinator.first_epoch = rng.choice((0, 0, 0, 32_760))
        faults = Faults(late_seconds=0.0) if hazards.calm else _faults(rng)
        if self.dangers.unclean or hazards.expiry or hazards.forgotten:
            # A partition that lost its producer state accepts whatever arrives first; a partition
            # that is STOPPED without a fence accepts every held request.
            faults = replace(faults, held_share=0.0)
        if faults.held_share:
            # No fence excludes requests of a producer id whose epochs are used up
            # (docs/architecture/residual-risks.md).
            self.destination.coordinator.first_epoch = 0
        self.networks = (Network(loop, rng, faults), Network(loop, rng, faults))
        self.networks[1].on_write = self._check_lease
        self.checker = Checker(self.source, self.destination)
        self.settings = LaneSettings(
            lease_s=6.0,
            producer_expiration_ms=int(self.destination.timings.producer_id_expiration * 1000),
            fetch_max_bytes=rng.choice((2_000, 100_000)),
            partition_fetch_bytes=rng.choice((500, 20_000)),
            partition_queue_bytes=rng.choice((3_000, 100_000)),
            fillers=rng.choice((1, 4)),
            fetchers_per_broker=rng.choice((1, 2)),
            backoff_max_s=5.0,
        )
        self.group = Group()
        self.lanes: list[Lane] = []
        self.writers: list[Writer] = []
        self.specs: dict[int, list[Assignment]] = {shard: [] for shard in range(SHARDS)}
        # Separate generators: everything else that a seed does stays the same.
        self._throttles = random.Random(f"throttle {seed}")
        self._rights = random.Random(f"rights {seed}")
        distances = random.Random(f"distance {seed}")
        if distances.random() < _DISTANT_SHARE:
            loop.later(distances.uniform(0.0, 20.0), self._source_is_distant)
        self._throttle = Throttle()
        self._variant = VARIANTS[variant]
        self._peace = False
        self._lost = False  # whether `__mirror_state` is being lost; no lane is alive meanwhile
        late_s = self.settings.lease_s + (faults.held_seconds if faults.held_share else 0.0)
        late_s = 0.0 if hazards.calm else late_s
        self.life = Life(self.destination, self.checker, rng, late_s)
        self._to_add: list[MirrorTopic] = []
        self._world = World(
            loop=loop,
            group=self.group,
            clusters=(self.source, self.destination),
            networks=self.networks,
            states=StateTopic(SHARDS, self.life.written),
            specs=self.specs,
            settings=self.settings,
            make_source=self._variant.source,
            make_destination=self._make_destination,
            make_owned=self._variant.owned,
        )

    def _source_is_distant(self) -> None:
        self.source.round_trip_s = DISTANT_S

    # --- start ------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Create topics, write their history, start the first lanes."""
        rng = self.rng
        for index in range(rng.randint(1, 3)):
            profile = draw_profile(rng)
            if self._hazards.lossy or (self.dangers.unclean and not self._hazards.unclean):
                profile = profile.without_gaps()
            self._create(f"topic{index}", rng.randint(1, 3), profile)
        for _ in range(2):
            self._start_lane()
        for shard in range(SHARDS):
            self.group.owners[shard] = rng.choice(self.lanes).name

    def _create(self, name: str, partitions: int, profile: Profile) -> None:
        compact, delete = profile.compacted, not profile.compacted
        topic = self.source.create_topic(name, partitions, compact=compact, delete=delete)
        mirror = self.destination.create_topic(
            name, partitions, on_append=self.life.watch, compact=compact, delete=delete
        )
        for index in range(partitions):
            key = TopicPartition(name, index)
            writer = Writer(self.source, key, self.checker, profile, self.rng)
            writer.prepare(self.rng.choice((0, 5, 60)))
            writer.start()
            self.writers.append(writer)
            spec = Assignment(
                name=MirrorPartition(MIRROR, *key),
                source=key,
                destination=key,
                source_topic_id=topic.topic_id,
                state_partition=self.rng.randrange(SHARDS),
                compacted=profile.compacted,
                destination_topic_id=mirror.topic_id,
            )
            self.specs[spec.state_partition].append(spec)
            self.life.shards[key] = spec.state_partition
        mirrored = MirrorTopic(
            mirror=MIRROR,
            topic=name,
            topic_id=topic.topic_id,
            partitions=partitions,
            destination_topic_id=mirror.topic_id,
        )
        if self.dangers.command and self.rng.random() < 0.3:
            self._to_add.append(mirrored)
        else:
            self._want(mirrored)

    # --- commands ---------------------------------------------------------------------------

    def _want(self, topic: MirrorTopic) -> None:
        """Write a command; lanes learn of it with their next heartbeats."""
        self.group.want(topic)
        self.life.command(topic)

    def _command(self) -> None:
        """Add, pause, resume or remove a topic, often just after another command."""
        rng = self.rng
        if self._to_add and rng.random() < 0.3:
            self._want(self._to_add.pop())
        other = {Wanted.MIRRORING: Wanted.PAUSED, Wanted.PAUSED: Wanted.MIRRORING}
        able = [topic for topic in self.group.commands.topics.values() if topic.wanted in other]
        if able:
            topic = rng.choice(able)
            removed = rng.random() < REMOVED_SHARE
            self._want(replace(topic, wanted=Wanted.STOPPED if removed else other[topic.wanted]))
            if removed and self._hazards.foreign:
                self.life.intrude(topic.topic)
        if rng.random() < 0.3:
            self.loop.later(rng.uniform(0.0, 1.0), lambda: None if self._peace else self._command())

    def _end_commands(self) -> None:
        """Add the topics that are still missing, so that all arrives in the end."""
        while self._to_add:
            self._want(self._to_add.pop())

    def _resume(self) -> None:
        for topic in list(self.group.commands.topics.values()):
            if topic.wanted is Wanted.PAUSED:
                self._want(replace(topic, wanted=Wanted.MIRRORING))

    def _make_destination(
        self, cluster: Cluster, network: Network, name: str, may_write: Callable[[], bool]
    ) -> ModelDestination:
        made = self._variant.destination(cluster, network, name, may_write)
        made.sends_transactions_again = self._hazards.again
        return made

    def _start_lane(self) -> Lane:
        lane = self._new_lane(f"lane{len(self.lanes)}", self.rng.getrandbits(32))
        self.lanes.append(lane)
        lane.throttle(self._throttle)
        lane.start()
        return lane

    def _new_lane(self, name: str, seed: int) -> Lane:
        return self._variant.lane(name, self._world, seed)

    def _check_lease(self, client: str) -> None:
        """Fail the simulation if a lane without a lease sends a request that writes."""
        lease = self.group.leases.get(client, 0.0)
        if self.loop.time() >= lease:
            self.loop.broken = Violation(
                f"{client} writes at {self.loop.time():.3f}, its lease ended at {lease:.3f}"
            )

    # --- what lanes report ------------------------------------------------------------------

    def _ends(self) -> list[tuple[TopicPartition, int]]:
        return [(key, self._end(key)) for key in self.checker.truth]

    def _end(self, key: TopicPartition) -> int:
        return self.source.log(key).high_watermark

    def _reported(self) -> Iterator[Reported]:
        for lane in self.lanes:
            if not lane.process.killed:
                yield from lane.reported()

    # --- faults -----------------------------------------------------------------------------

    def trouble(self) -> None:
        """Schedule each danger."""
        dangers = self.dangers
        for mean, action in (
            (dangers.takeover, self._take_over),
            (dangers.freeze, self._freeze),
            (dangers.kill, self._kill),
            (dangers.cut, self._cut),
            (dangers.source_leader, self._move_source_leader),
            (dangers.destination_leader, self._move_destination_leader),
            (dangers.unclean, self._unclean),
            (dangers.lossy, self._lose_source_end),
            (dangers.lag, self._lag),
            (dangers.command, self._command),
            (dangers.forgotten, self._forget),
        ):
            if mean:
                self._again(mean, action)
        if self.source.followers_answer:
            LagChecks(loop=self.loop, ends=self._ends, reported=self._reported).start()
        if self._throttles.random() < 0.5:
            self._change_throttle()
        held = self.networks[1].faults.held_share
        if not self._hazards.commands and not held and self._rights.random() < 0.3:
            # Without the right, no fence excludes a marker that arrives later than a lease, at a
            # stop or in a gap, once the right is given back (docs/architecture/residual-risks.md).
            self._change_rights()

    def _change_rights(self) -> None:
        """Grant or revoke the right to write markers, now and at random times."""
        self.destination.markers_allowed = not self.destination.markers_allowed
        self.loop.later(self._rights.expovariate(1 / 8.0), self._change_rights)

    def _change_throttle(self) -> None:
        """Set another rate, for other topics, or none, until there is peace."""
        draw = self._throttles
        topics = draw.choice((None, {"topic0": frozenset({ALL})}, {"topic1": frozenset({0, 2})}))
        throttles = (Throttle(), Throttle(1_000, topics), Throttle(20_000, topics))
        self._throttle = draw.choice(throttles)
        for lane in self.lanes:
            lane.throttle(self._throttle)
        self.loop.later(draw.expovariate(1 / 4.0), self._change_throttle_again)

    def _change_throttle_again(self) -> None:
        if not self._peace:
            self._change_throttle()

    def _again(self, mean: float, action: Callable[[], None]) -> None:
        def act() -> None:
            if not self._peace:
                if not self._lost:
                    action()
                self._again(mean, action)

        self.loop.later(self.rng.expovariate(1 / mean), act)

    def _alive(self) -> list[Lane]:
        alive = [lane for lane in self.lanes if not lane.process.killed]
        return alive or [self._start_lane()]

    def _give(self, shard: int) -> None:
        """Give a shard to a new or an existing lane; the former owner may not be told."""
        if self._peace or self._lost:
            return
        former = self.group.owners[shard]
        if self.rng.random() < 0.3:
            self.group.cut.add(former)
        others = [lane for lane in self._alive() if lane.name not in {former, *self.group.cut}]
        lane = self.rng.choice(others) if others and self.rng.random() < 0.5 else self._start_lane()
        self.group.owners[shard] = lane.name

    def _take_over(self) -> None:
        self._give(self.rng.randrange(SHARDS))

    def _freeze(self) -> None:
        lane = self.rng.choice(self._alive())
        if lane.process.frozen:
            return
        lane.process.freeze()
        self.loop.later(self.rng.choice((0.3, 3.0, 20.0)), lambda: lane.process.thaw(self.loop))
        for shard, owner in self.group.owners.items():
            if owner == lane.name and self.rng.random() < 0.6:
                self.loop.later(self.rng.uniform(0.0, 5.0), lambda shard=shard: self._give(shard))  # type: ignore[misc]

    def _kill(self) -> None:
        """Kill a lane soon, between two of its steps; other lanes take its shards over."""
        lane = self.rng.choice(self._alive())
        lane.process.kill_after = lane.process.steps + self.rng.randint(0, 2000)

        def replace() -> None:
            for shard, owner in self.group.owners.items():
                if owner == lane.name:
                    self._give(shard)

        self.loop.later(self.rng.uniform(0.5, 8.0), replace)

    def _forget(self) -> None:
        """Kill all lanes, lose `__mirror_state`, and start new lanes."""
        self._lost = True
        for lane in self.lanes:
            lane.process.kill()

        def lose() -> None:
            for shard in range(SHARDS):
                self.life.lose(self._world.states.lose(shard))
            self._lost = False
            for shard in self.group.owners:
                self._give(shard)

        self.loop.later(LATE_SECONDS + self.rng.uniform(0.5, 8.0), lose)

    def _cut(self) -> None:
        lane = self.rng.choice(self._alive())
        network = self.rng.choice(self.networks)
        network.cut(lane.name, self.rng.choice((1, 2, 3)))
        self.loop.later(self.rng.uniform(0.5, 6.0), network.heal)

    def _some(self) -> TopicPartition:
        return self.rng.choice(sorted(self.checker.truth))

    def _move_source_leader(self) -> None:
        key = self._some()
        log = self.source.log(key)
        if log.high_watermark == log.end:  # else the oracle would have to forget records
            self.source.move_leader(key)

    def _move_destination_leader(self) -> None:
        self.destination.move_leader(self._some(), snapshot=self.rng.random() < 0.5)

    def _unclean(self) -> None:
        """Lose the log's end, but not all batches: the broker would forget the mirror's producer.

        The mirror's next batch would then land at any log end offset
        (docs/architecture/residual-risks.md).
        """
        key, most = self._some(), self.rng.choice((1, 5, 50))
        log = self.destination.log(key)
        kept = next((b.header.next_offset for b in log.batches if not b.header.is_control), 0)
        self.destination.move_leader(key, lose=min(most, max(log.high_watermark - kept, 0)))

    def _lose_source_end(self) -> None:
        writer = self.rng.choice(self.writers)
        if self.source.partition(writer.key).leader >= 0:
            writer.lose_end(self.rng.choice((1, 3, 20)))

    def _lag(self) -> None:
        cluster = self.rng.choice((self.source, self.destination))
        cluster.lag(self._some(), self.rng.uniform(0.1, 4.0))

    # --- peace ------------------------------------------------------------------------------

    async def make_peace(self) -> None:
        """End all faults; then everything has to arrive."""
        while self._lost:
            await asyncio.sleep(0.5)
        self._peace = True
        self.source.unusual.quiet = True
        self.group.cut.clear()
        for network in self.networks:
            network.quiet = True
            network.heal()
        for lane in self._alive():
            lane.process.kill_after = None
            if lane.process.frozen:
                lane.process.thaw(self.loop)
        self._throttle = Throttle()  # a partition that was paused for long has much to copy
        for lane in self.lanes:
            lane.throttle(self._throttle)
        last = self._start_lane()
        for shard in self.group.owners:
            self.group.owners[shard] = last.name
        self._end_commands()
        await asyncio.sleep(2.0)
        await self._wait(lambda: self._unwilling(last), last)
        self._resume()
        for writer in self.writers:
            writer.stop()
        await asyncio.sleep(1.0)
        await self._wait(lambda: self._not_settled(last), last)
        # Held requests still arrive, and must change nothing.
        await asyncio.sleep(max(network.held_until for network in self.networks) - self.loop.time())
        await self._wait(lambda: self._not_settled(last), last)
        self.life.quiet = True
        self.checker.final()

    async def _wait(self, waiting: Callable[[], dict[TopicPartition, object]], last: Lane) -> None:
        began, deadline, before = self.loop.time(), 0.0, dict[TopicPartition, object]()
        while waits := waiting():
            if waits != before:
                # Empty transactions fill some thousand offsets one by one: slow is not stuck.
                before, deadline = waits, min(self.loop.time(), began + LONGEST) + PEACE_SECONDS
            if self.loop.time() > deadline:
                told = {str(k): last.stages.get(k) for k in waits}
                raise Violation(f"did not arrive: {waits}, the last lane says {told}")
            await asyncio.sleep(0.5)

    def _unwilling(self, last: Lane) -> dict[TopicPartition, object]:
        """Return the partitions that are not in their desired state, nor FAILED if divergent."""
        waits = self.life.disagreeing()
        for key in self.checker.truth:
            if self.checker.diverged(key):
                waits.pop(key, None)
                if not last.stages.get(key, "").startswith("FAILED"):
                    waits[key] = "it holds what the source has lost"
        return waits

    def _not_settled(self, last: Lane) -> dict[TopicPartition, object]:
        """Return those of `_unwilling`, and the partitions that are not complete."""
        return self._unwilling(last) | self.checker.behind()


def _timings(rng: random.Random, hazards: Hazards) -> Timings:
    expiration, check = rng.choice((86_400.0, 86_400.0, 20.0)), rng.choice((0.5, 5.0))
    return Timings(
        producer_id_expiration=expiration,
        producer_id_expiration_check=check if hazards.expiry else 10_000.0,
        transaction_timeout=rng.choice((60.0, 5.0)),
    )


def _faults(rng: random.Random) -> Faults:
    return Faults(
        break_share=rng.choice((0.0, 0.002, 0.01, 0.05)),
        late_seconds=LATE_SECONDS,
        slow_share=rng.choice((0.0, 0.01)),
        request_timeout_s=3.0,
        held_share=rng.choice((0.0, 0.0, 0.002, 0.01)),
        holds_data=True,
    )


def simulate(seed: int, variant: str = "none", hazards: Hazards = NO_HAZARDS) -> Outcome:
    """Run one simulation.

    Args:
        seed: decides everything that happens.
        variant: a planted bug, or none.
        hazards: the additional faults.

    Raises:
        Violation, Stuck: a bug of the engine (or of the theory).
    """
    return play(
        seed,
        lambda loop: Simulation(loop, seed, variant, hazards),
        lambda simulation: len(simulation.life.stopped),
    )


def play(seed: int, begin: Callable[[VirtualLoop], Any], ended: Callable[[Any], int]) -> Outcome:
    """Run a simulation through its faults to its end.

    Args:
        seed: decides everything that happens.
        begin: creates the simulation.
        ended: how many of its partitions do not go on.
    """

    async def main(loop: VirtualLoop) -> Outcome:
        simulation = begin(loop)
        simulation.prepare()
        simulation.trouble()
        await asyncio.sleep(FAULT_SECONDS)
        await simulation.make_peace()
        return Outcome(
            seed,
            loop.steps,
            simulation.checker.appended,
            simulation.checker.fillers,
            sum(network.broken for network in simulation.networks),
            loop.time(),
            sum(simulation.source.log(key).end for key in simulation.checker.truth),
            ended(simulation),
        )

    return run(main)
