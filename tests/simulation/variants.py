"""Ports and parts of a lane, each with a planted bug that the simulation has to find."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from model.cluster import Cluster
from model.network import Network
from model.ports import ModelDestination, ModelSource
from model.producers import INVALID_PRODUCER_EPOCH
from model.states import ModelStates
from simulation.lanes import DestinationMaker, Lane, OwnedMaker, SourceMaker, owned_by
from twinlog.engines.base import Engine, Sealed, Sealing
from twinlog.engines.exact.engine import ExactEngine, ExactWriters
from twinlog.engines.exact.fetcher import Fetcher
from twinlog.engines.exact.followers import LeaderQuestions
from twinlog.engines.exact.foreign import Foreign
from twinlog.engines.exact.marker_epochs import LastMarker
from twinlog.engines.exact.marker_writer import MarkerWriter, Prepared
from twinlog.engines.exact.partition import ExactPartition
from twinlog.engines.ports import (
    Appended,
    Batch,
    FetchResult,
    LogEnd,
    MarkerRequest,
    ProducerIdentity,
)
from twinlog.engines.settings import LaneSettings
from twinlog.kafka.errors import Disconnected
from twinlog.kafka.log.batch import batches, patched_header
from twinlog.kafka.log_reader import ReadAlone
from twinlog.kafka.types import (
    UNKNOWN_EPOCH,
    FetchPosition,
    Offset,
    ProducerEpoch,
    ProducerId,
    TopicPartition,
    advance,
)
from twinlog.kafka.types import Sequence as SequenceNumber
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.states import State
from twinlog.runtime.ownership import OwnedStatePartition
from twinlog.runtime.reported_states import ReportedStates
from twinlog.store.config_records import MirrorTopic
from twinlog.store.state_records import LastMirrored


class Resending(ModelDestination):
    """Sends an unanswered batch again from memory, under the sequence that is next at that time."""

    def produce(
        self, node: int, batches: Sequence[Batch]
    ) -> Awaitable[Mapping[TopicPartition, Appended]]:
        """Produce; if no answer comes, produce again."""
        first = super().produce(node, batches)
        return asyncio.ensure_future(self._insist(first, node, batches))

    async def _insist(
        self,
        first: Awaitable[Mapping[TopicPartition, Appended]],
        node: int,
        made: Sequence[Batch],
    ) -> Mapping[TopicPartition, Appended]:
        try:
            return await first
        except Disconnected:
            known = await self.producers([batch.partition for batch in made])
            return await super().produce(node, [_next(batch, known) for batch in made])


def _next(batch: Batch, known: Mapping[TopicPartition, object]) -> Batch:
    header = next(batches(memoryview(batch.header + bytes(batch.records))))
    sequence = SequenceNumber(header.base_sequence)
    for state in known[batch.partition].active:  # type: ignore[attr-defined]
        if state.producer_id == header.producer_id:
            sequence = advance(SequenceNumber(state.last_sequence), 1)
    return batch._replace(
        header=patched_header(
            header,
            batch.records,
            ProducerId(header.producer_id),
            ProducerEpoch(header.producer_epoch),
            sequence,
        )
    )


class Refilling(ModelDestination):
    """Writes markers again if no answer came."""

    async def write_markers(
        self, requests: Sequence[MarkerRequest], *, committed: bool = False, node: int | None = None
    ) -> Mapping[TopicPartition, int]:
        """Write markers; if no answer comes, write them again."""
        try:
            return await super().write_markers(requests, committed=committed, node=node)
        except Disconnected:
            return await super().write_markers(requests, committed=committed, node=node)


class Reusing(MarkerWriter):
    """Writes all markers in one epoch, even after lost requests."""

    def lost(self, request: MarkerRequest) -> None:
        """Keep the epoch."""
        super().lost(request)
        self._identity = request.producer

    def answered(self, request: MarkerRequest, codes: Mapping[TopicPartition, int]) -> None:
        """Keep the epoch, unless another owner has taken a newer one."""
        super().answered(request, codes)
        if INVALID_PRODUCER_EPOCH not in codes.values():
            self._identity = request.producer

    async def _find_lasts(
        self, partitions: Collection[TopicPartition], identity: ProducerIdentity
    ) -> tuple[dict[TopicPartition, LastMarker], dict[TopicPartition, LogEnd]]:
        return dict.fromkeys(partitions, LastMarker(identity.epoch, 0)), {}


class Computing(MarkerWriter):
    """Computes the log end offset from the number of markers sent."""

    def must_read(
        self, partition: TopicPartition, code: int, prepared: Prepared, *, seen: bool
    ) -> bool:
        """Read only those that were refused."""
        return bool(code) and super().must_read(partition, code, prepared, seen=seen)


class Unfenced(MarkerWriter):
    """Does not fence written markers at a stop."""

    async def fence(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Do nothing."""
        return dict.fromkeys(partitions, 0)


def with_markers(made: type[MarkerWriter]) -> OwnedMaker:
    """Make an owner whose shards write markers with this class."""

    def owned(
        writers: ExactWriters,
        states: ModelStates,
        may_write: Callable[[], bool],
        settings: LaneSettings,
    ) -> OwnedStatePartition:
        shard = writers.shard
        name, at_once = f"twinlog.{shard.number}.marker", shard.settings.markers_at_once
        shard.markers = made(name, shard._destination, at_once)
        return owned_by(writers, states, may_write, settings)

    return owned


class Shortsighted(ModelDestination):
    """Takes the high watermark for the log end offset."""

    async def log_ends(self, partitions: object) -> Mapping[TopicPartition, LogEnd]:
        """Ask for the end as a consumer does."""
        found = await self.bounds(partitions)  # type: ignore[arg-type]
        return {key: LogEnd(b.error, b.high_watermark, 0) for key, b in found.items()}


class Unleased(ModelDestination):
    """Continues to write after its lease has ended."""

    def __init__(
        self, cluster: Cluster, network: Network, name: str, may_write: Callable[[], bool]
    ) -> None:
        del may_write
        super().__init__(cluster, network, name)


class Forgetful(ModelSource):
    """Does not tell the source the leader epoch of the last batch that it has read."""

    async def fetch(
        self, node: int, wanted: Mapping[TopicPartition, FetchPosition], **how: int
    ) -> FetchResult:
        """Fetch by offset alone."""
        bare = {key: position._replace(last_epoch=-1) for key, position in wanted.items()}
        return await super().fetch(node, bare, **how)


class Credulous(ModelSource):
    """Takes any empty answer for an empty log, as if every other reason were excluded."""

    async def read_alone(self, partition: TopicPartition, offset: int, **how: int) -> ReadAlone:
        """Read alone, and report the last stable offset even where a quota hides it."""
        found = await super().read_alone(partition, offset, **how)  # type: ignore[arg-type]
        if found.fetched.error or len(found.fetched.records):
            return found
        fetched = found.fetched._replace(
            preferred_replica=-1, last_stable=self.cluster.log(partition).stable_end
        )
        return found._replace(fetched=fetched, throttle_ms=0, local_start=0, compacts=True)


class Hasty(OwnedStatePartition):
    """Stores STOPPED before the fence is written."""

    async def stop(
        self,
        names: Collection[MirrorPartition],
        topics: Collection[MirrorTopic] = (),
        *,
        jitter: float = 0.5,
    ) -> None:
        """Store the state, then fence."""
        del jitter
        topic_ids = {topic.topic: topic.destination_topic_id for topic in topics}
        (writers,) = self.writers.values()
        assert isinstance(writers, ExactWriters)
        keys = {name.source: name for name in names}
        bounds = await writers.shard._destination.bounds(keys)
        for key, name in keys.items():
            end = Offset(bounds[key].high_watermark)
            self.reported._mirrored_said[name] = LastMirrored(UNKNOWN_EPOCH, end)
        await self.enter(dict.fromkeys(names, State.STOPPED))
        await writers.shard.fence(keys, {t: one for t, one in topic_ids.items() if one})


class Boastful(ExactWriters):
    """Reports everything before its fence as mirrored, foreign records too."""

    def _sealed(self, fence: Offset, foreign: Foreign | None, known: Sealing) -> Sealed:
        del foreign
        return super()._sealed(fence, None, known)


class _PresumingStates(ReportedStates):
    """Takes a removed topic without a state for one that failed."""

    def state(self, name: MirrorPartition) -> State:
        """Return FAILED for UNKNOWN, so that it is stopped like all others."""
        found = super().state(name)
        return State.FAILED if found is State.UNKNOWN else found


class Presuming(OwnedStatePartition):
    """Fences a removed topic without a state, as if the mirror had written it."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.reported = _PresumingStates()


class _TrustfulFetcher(Fetcher):
    """Takes what a follower answers for what the leader says."""

    def answered_at(self, partition: ExactPartition) -> float | None:
        """Count answers of followers too."""
        replica, partition.source_replica = partition.source_replica, -1
        try:
            return super().answered_at(partition)
        finally:
            partition.source_replica = replica


class _NoQuestions(LeaderQuestions):
    """Leaders are not asked while followers are read."""

    async def run(self) -> None:
        """Do nothing."""


class Trustful(Lane):
    """Counts a follower's answers as contact with the source."""

    def _new_engine(self) -> Engine:
        engine = super()._new_engine()
        assert isinstance(engine, ExactEngine)
        engine.plane.fetcher.__class__ = _TrustfulFetcher
        engine.plane.leader_questions.__class__ = _NoQuestions
        return engine


class Variant(NamedTuple):
    """The ports that a simulation uses, and the parts of a lane that know the states."""

    destination: DestinationMaker = ModelDestination
    source: SourceMaker = ModelSource
    owned: OwnedMaker = owned_by
    lane: type[Lane] = Lane


VARIANTS: dict[str, Variant] = {
    "none": Variant(),
    "resending": Variant(Resending),
    "refilling": Variant(Refilling),
    "shortsighted": Variant(Shortsighted),
    "unleased": Variant(Unleased),
    "forgetful": Variant(source=Forgetful),
    "credulous": Variant(source=Credulous),
    "reusing": Variant(owned=with_markers(Reusing)),
    "computing": Variant(owned=with_markers(Computing)),
    "unfenced": Variant(owned=with_markers(Unfenced)),
    "hasty": Variant(owned=partial(owned_by, made=Hasty)),
    "boastful": Variant(owned=lambda writers, *rest: owned_by(Boastful(writers.shard), *rest)),
    "presuming": Variant(owned=partial(owned_by, made=Presuming)),
    "trustful": Variant(lane=Trustful),
}
