"""A simulation of flows: the engine `translated` under the faults of scenario.py.

What is different from the exact engine's simulation:

    names       remote topics have other names, and some have the records of several source topics
    foreign     producers write to the remote topics, some in transactions that are aborted
    cleaning    remote topics are compacted or lose their start, as the source's topics do
    replicas    a partition of the destination has fewer in-sync replicas than it needs, for a while
    followers   partitions are read from followers, which may be cut off; a lane that reports no lag
                has copied what the leader had when the lane last heard of the source
    oracle      records are known by numbers (flow_checker.py): offsets differ
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Final

from model.cluster import Cluster
from model.log import Marker
from model.loop import VirtualLoop
from model.network import Network
from model.ports import ModelDestination
from simulation.flow_checker import NUMBER, FlowChecker, Origin
from simulation.flow_lanes import FlowLane, FlowVariant
from simulation.history import Profile, Writer, cleaned, records_of
from simulation.lags import Reported
from simulation.lanes import MIRROR, Lane
from simulation.scenario import (
    SHARDS,
    Hazards,
    Outcome,
    Simulation,
    play,
)
from twinlog.engines.base import Assignment
from twinlog.kafka.log.batch import TRANSACTIONAL
from twinlog.kafka.log.compression import Codec
from twinlog.kafka.log.records import RawRecord, build, decode, encode_tail, whole
from twinlog.kafka.types import TopicPartition
from twinlog.mirror.placement import MirrorPartition
from twinlog.store.config_records import MirrorTopic
from twinlog.store.offset_log import OFFSETS_TOPIC

SHARED_TOPIC: Final = "A.shared"
"""A remote topic that several source topics are copied to."""
FOREIGN_PRODUCER: Final = 1_000_000
"""The lowest producer id of foreign producers on the destination."""
SMALL_BUFFER: Final = {"buffer_bytes": 4_000, "fetch_max_bytes": 1_000}
"""Limits of some seeds' lanes, for which many partitions lack replicas at a time: they have to drop
what they hold."""
SMALL_SHARE: Final = 0.3
UNCLEANED_SECONDS: Final = 5.0
"""The age from which records are compacted: a cleaner leaves the active segment alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowHazards:
    """Conditions that run only on request.

    * `unclean`: the destination loses replicated records of a partition, and foreign producers
      write on. The partition is FAILED then, or no copy was lost; or it goes on without those that
      were, if the flow passes losses.
    * `renamed`: epochs of transactional ids end, so that they get other producer ids.
    * `forgotten`: `__mirror_offsets` is deleted and created again while lanes run. A partition is
      FAILED then, or it is complete, and its map is right as far as it is there.
    * `cut`: partitions of `__mirror_offsets` lose their end, or all records, under the same topic
      id. A partition is FAILED then, or it is complete.
    """

    unclean: bool = False
    renamed: bool = False
    forgotten: bool = False
    cut: bool = False


NO_FLOW_HAZARDS: Final = FlowHazards()
FLOW_HAZARDS: Final = tuple(field.name for field in fields(FlowHazards))


class FlowWriter(Writer):
    """The writers of a source partition, whose records carry numbers."""

    def __init__(
        self,
        cluster: Cluster,
        key: TopicPartition,
        checker: FlowChecker,
        profile: Profile,
        rng: random.Random,
    ) -> None:
        # Only a loss of the source's end needs what a FlowChecker lacks.
        super().__init__(cluster, key, checker, profile, rng)  # type: ignore[arg-type]
        self._origins = checker.origins

    def _headers(self, position: int, count: int) -> Sequence[tuple[str, bytes]]:
        number = len(self._origins) + 1
        self._origins[number] = Origin(self.key, self._log.end + position)
        return [*super()._headers(position, count), (NUMBER, number.to_bytes(4))]


class Foreign:
    """The producers that write to a remote partition beside the flow, and its cleaner."""

    def __init__(
        self, cluster: Cluster, key: TopicPartition, rng: random.Random, *, compacted: bool
    ) -> None:
        self._cluster = cluster
        self._key = key
        self._rng = rng
        self._compacted = compacted
        self._mean_s = rng.choice((0.2, 1.0, 5.0))
        self._transactions = rng.choice((0.0, 0.3))
        self._retains = not compacted and rng.random() < 0.2
        self._open: list[int] = []
        self._next = FOREIGN_PRODUCER + 10_000 * key.partition
        self._old_ends: list[tuple[float, int]] = []
        self.stopped = False
        self._later()

    def _later(self) -> None:
        self._cluster.loop.later(self._rng.expovariate(1 / self._mean_s), self._act)

    def _act(self) -> None:
        if self.stopped:
            return
        partition = self._cluster.partition(self._key)
        if partition.leader >= 0 and not partition.short:
            draw = self._rng.random()
            if draw < 0.15:
                self._clean()
            elif draw < 0.15 + self._transactions:
                self._transact()
            else:
                self._append(-1)
            self._replicate()
        self._later()

    def stop(self) -> None:
        """Stop writing; end the open transactions."""
        self.stopped = True
        # Also those whose marker was lost with the log's end.
        for producer in [p for p in self._cluster.log(self._key)._open if p > FOREIGN_PRODUCER]:
            self._end(producer)
        self._replicate()

    def _replicate(self) -> None:
        partition = self._cluster.partition(self._key)
        if not partition.lagging:
            self._cluster._replicate(partition)

    def _transact(self) -> None:
        if self._open and self._rng.random() < 0.6:
            self._end(self._open.pop())
        else:
            self._next += 1
            self._open.append(self._next)
            self._append(self._next)

    def _end(self, producer: int) -> None:
        log = self._cluster.log(self._key)
        if log.is_open(producer):  # its only batch may have been lost
            committed = self._rng.random() < 0.5
            log.append_marker(Marker(producer, 0, committed), self._cluster.now_ms)

    def _append(self, producer: int) -> None:
        rng, cluster = self._rng, self._cluster
        records = [
            RawRecord(at, cluster.now_ms, 0, memoryview(encode_tail(b"key %d" % at, b"foreign")))
            for at in range(rng.choice((1, 1, 4)))
        ]
        data = whole(
            build(records, Codec.NONE),
            attributes=TRANSACTIONAL if producer >= 0 else 0,
            producer_id=producer,
            epoch=0 if producer >= 0 else -1,
            sequence=0 if producer >= 0 else -1,
        )
        cluster.log(self._key).append(data)

    def _clean(self) -> None:
        """Compact, or delete the start of, what is older than `UNCLEANED_SECONDS`."""
        log, now = self._cluster.log(self._key), self._cluster.loop.time()
        self._old_ends.append((now + UNCLEANED_SECONDS, log.stable_end))
        limit = max([end for due, end in self._old_ends if due <= now], default=0)
        limit = min(limit, log.stable_end)
        if self._compacted and limit:
            latest: dict[bytes | None, int] = {}
            for stored in log.batches:
                if not stored.header.is_control and stored.header.next_offset <= limit:
                    for record in records_of(stored):
                        latest[decode(record).key] = record.offset
            keep = set(latest.values())
            log.rewrite(partial(cleaned, keep, self._rng), limit)
        elif self._retains and limit > log.start:
            log.delete_before(self._rng.randint(log.start, limit))


class FlowSimulation(Simulation):
    """One simulation of flows."""

    checker: FlowChecker  # type: ignore[assignment]

    def __init__(
        self, loop: VirtualLoop, seed: int, variant: FlowVariant, hazards: FlowHazards
    ) -> None:
        super().__init__(loop, seed, "none", Hazards())
        draw = self._draw = random.Random(f"flows {seed}")
        self._flow_hazards = hazards
        self.dangers = replace(self.dangers, unclean=0.0)
        self.destination.coordinator.first_epoch = 32_760 if hazards.renamed else 0
        self.destination.timings = replace(
            self.destination.timings, producer_id_expiration_check=10_000.0
        )
        if hazards.unclean or hazards.renamed:
            # A broker that has forgotten a producer takes whatever of it arrives first. And a write
            # that is held for longer than a lease is not excluded by one of another producer id.
            for network in self.networks:
                network.faults = replace(network.faults, held_share=0.0)
        self.checker = FlowChecker(self.source, self.destination)
        self._flow_variant = variant
        self._passes_lost = self.checker.passes_lost = draw.random() < 0.7
        self._foreign: list[Foreign] = []
        self.source.followers_answer = True
        # A separate generator: other draws of the seed stay the same.
        buffers = random.Random(f"buffers {seed}")
        self.settings = replace(self.settings, leaders_max_age_s=buffers.choice((3.0, 30.0)))
        small = buffers.random() < SMALL_SHARE
        if small:
            self.settings = replace(self.settings, **SMALL_BUFFER)
        self._lacks_many = small
        self._world = replace(
            self._world,
            settings=self.settings,
            make_source=variant.source,
            make_destination=self._make_flow_destination,
        )

    def _make_flow_destination(
        self, cluster: Cluster, network: Network, name: str, may_write: Callable[[], bool]
    ) -> ModelDestination:
        return self._flow_variant.destination(cluster, network, name, may_write)

    # ---- start ---------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Create topics, write their history, start the first lanes."""
        self._create_offsets()
        if self._draw.random() < 0.5:
            self._create_remote(SHARED_TOPIC, 3, compacted=False)
        super().prepare()

    def _create_offsets(self) -> None:
        self.destination.create_topic(
            OFFSETS_TOPIC, SHARDS, compact=True, delete=False, on_append=self.checker.watch_offsets
        )

    def _create_remote(self, name: str, partitions: int, *, compacted: bool) -> None:
        self.destination.create_topic(
            name,
            partitions,
            on_append=self.checker.watch,
            compact=compacted,
            delete=not compacted,
        )
        for index in range(partitions):
            if self._draw.random() < 0.7:
                key = TopicPartition(name, index)
                self._foreign.append(
                    Foreign(self.destination, key, self._draw, compacted=compacted)
                )

    def _create(self, name: str, partitions: int, profile: Profile) -> None:
        if not self._passes_lost:
            profile = replace(profile, retain=0.0)
        compacted = profile.compacted
        topic = self.source.create_topic(name, partitions, compact=compacted, delete=not compacted)
        shared = not compacted and SHARED_TOPIC in self.destination.topics
        remote = SHARED_TOPIC if shared and self._draw.random() < 0.8 else f"A.{name}"
        if remote not in self.destination.topics:
            self._create_remote(remote, partitions, compacted=compacted)
        topic_id = self.destination.topics[remote].topic_id
        for index in range(partitions):
            key = TopicPartition(name, index)
            self.checker.add(key, TopicPartition(remote, index))
            writer = FlowWriter(self.source, key, self.checker, profile, self.rng)
            writer.prepare(self.rng.choice((0, 5, 60)))
            writer.start()
            self.writers.append(writer)
            spec = Assignment(
                name=MirrorPartition(MIRROR, *key),
                source=key,
                destination=TopicPartition(remote, index),
                source_topic_id=topic.topic_id,
                state_partition=self.rng.randrange(SHARDS),
                compacted=compacted,
                destination_topic_id=topic_id,
                offsets_topic_id=self.destination.topics[OFFSETS_TOPIC].topic_id,
            )
            self.specs[spec.state_partition].append(spec)
            self.life.shards[key] = spec.state_partition
        self._want(
            MirrorTopic(
                mirror=MIRROR,
                topic=name,
                topic_id=topic.topic_id,
                partitions=partitions,
                destination_topic=remote,
                destination_topic_id=topic_id,
            )
        )

    def _new_lane(self, name: str, seed: int) -> Lane:
        variant = self._flow_variant
        return FlowLane(name, self._world, seed, variant, passes_lost=self._passes_lost)

    # ---- what lanes report ---------------------------------------------------------------------

    def _end(self, key: TopicPartition) -> int:
        return self.source.log(key).stable_end

    def _reported(self) -> Iterator[Reported]:
        now = self.loop.time()
        for lane in self.lanes:
            assert isinstance(lane, FlowLane)
            if not lane.process.killed:
                for partition in lane.partitions():
                    row = partition.row(now)
                    yield Reported(lane.name, partition.source, partition.heard_at, row)

    # ---- faults --------------------------------------------------------------------------------

    def trouble(self) -> None:
        """Schedule each danger; some seeds omit some."""
        super().trouble()
        for mean, action in (
            (self._draw.choice((0.0, 8.0)), self._lack_replicas),
            (6.0 if self._flow_hazards.unclean else 0.0, self._lose_replicated),
            (12.0 if self._flow_hazards.forgotten else 0.0, self._lose_offsets),
            (4.0 if self._flow_hazards.cut else 0.0, self._cut_offsets),
        ):
            if mean:
                self._again(mean, action)

    def _some_remote(self) -> TopicPartition:
        exists = OFFSETS_TOPIC in self.destination.topics
        offsets = [TopicPartition(OFFSETS_TOPIC, number) for number in range(SHARDS * exists)]
        return self._draw.choice([*sorted(set(self.checker.remote.values())), *offsets])

    def _move_destination_leader(self) -> None:
        self.destination.move_leader(self._some_remote(), snapshot=self._draw.random() < 0.5)

    def _lag(self) -> None:
        if self._draw.random() < 0.5:
            self.source.lag(self._some(), self._draw.uniform(0.1, 4.0))
        else:
            self.destination.lag(self._some_remote(), self._draw.uniform(0.1, 4.0))

    def _lack_replicas(self) -> None:
        key, seconds = self._some_remote(), self._draw.choice((0.5, 4.0, 15.0))
        many = sorted(set(self.checker.remote.values())) if self._lacks_many else []
        for each in sorted({key, *many}):
            self.destination.lack_replicas(each, seconds)

    def _lose_replicated(self) -> None:
        """Lose the end of a remote log; foreign producers fill it again."""
        key = self._draw.choice(sorted(set(self.checker.remote.values())))
        partition = self.destination.partition(key)
        if partition.leader < 0:
            return
        lost = self._draw.choice((1, 5, 50, 1000))
        before = partition.log.high_watermark
        self.destination.move_leader(key, lose=lost)
        self.checker.note_lost(key, partition.log.end, before)

    def _lose_offsets(self) -> None:
        """Delete `__mirror_offsets`, and create it again, at once or a little later."""
        if OFFSETS_TOPIC in self.destination.topics:
            self.destination.delete_topic(OFFSETS_TOPIC)
            self.checker.lose_offsets()
            self.loop.later(self._draw.choice((0.0, 0.5, 4.0)), self._create_offsets)

    def _cut_offsets(self) -> None:
        """Lose the end of a partition of `__mirror_offsets`, or all of it."""
        key = TopicPartition(OFFSETS_TOPIC, self._draw.randrange(SHARDS))
        if self.destination.partition(key).leader >= 0:
            self.destination.move_leader(key, lose=self._draw.choice((1, 5, 50, 100_000)))
            self.checker.lose_offsets(cut=True)

    # ---- peace ---------------------------------------------------------------------------------

    def _unwilling(self, last: Lane) -> dict[TopicPartition, object]:
        """Return the partitions that are not MIRRORING; FAILED is right if something was lost."""
        waits = self.life.disagreeing()
        for key in self._failed(last):
            waits.pop(key, None)
        return waits

    def _not_settled(self, last: Lane) -> dict[TopicPartition, object]:
        self.checker.failed = self._failed(last)
        return self._unwilling(last) | self.checker.behind()

    def _failed(self, last: Lane) -> set[TopicPartition]:
        return {
            key
            for key, remote in self.checker.remote.items()
            if (remote in self.checker.lost or self.checker.forgotten)
            and last.stages.get(key, "").startswith("FAILED")
        }

    async def make_peace(self) -> None:
        """End all faults; then everything has to arrive."""
        self.destination.end_lacks()
        for foreign in self._foreign:
            foreign.stop()
        await super().make_peace()


def simulate_flows(
    seed: int, variant: str = "none", hazards: FlowHazards = NO_FLOW_HAZARDS
) -> Outcome:
    """Run one simulation of flows; see `scenario.simulate`."""
    from simulation.flow_variants import FLOW_VARIANTS  # noqa: PLC0415

    return play(
        seed,
        lambda loop: FlowSimulation(loop, seed, FLOW_VARIANTS[variant], hazards),
        lambda simulation: len(simulation.checker.failed),
    )
