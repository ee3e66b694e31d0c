"""Parts of a flow's lane, each with a planted bug that the simulation has to find."""

import asyncio
from collections.abc import Awaitable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from model.ports import ModelDestination, ModelSource
from simulation.flow_lanes import FlowVariant
from simulation.variants import Resending, Unleased
from twinlog.engines.base import Beginnings
from twinlog.engines.ports import (
    Appended,
    Batch,
    FetchResult,
    ProducerIdentity,
)
from twinlog.engines.translated.last_numbers import LastNumbers, ask_last_numbers
from twinlog.engines.translated.location import ToLocate
from twinlog.engines.translated.reader import Asked, FlowReader
from twinlog.engines.translated.sequence import PartitionSequence
from twinlog.engines.translated.writers import FlowWriters
from twinlog.kafka.types import FetchPosition, Offset, TopicPartition
from twinlog.mirror.placement import MirrorPartition
from twinlog.store.offset_records import OffsetRecord, StoredPlan


class Unplanned(FlowWriters):
    """Stores where batches have landed, and no plan of the next ones."""

    async def record(self, sequences: Mapping[MirrorPartition, PartitionSequence]) -> None:
        """Store plans without runs."""
        kept = {name: list(sequence._unrecorded) for name, sequence in sequences.items()}
        for sequence in sequences.values():
            sequence._unrecorded.clear()
        try:
            await super().record(sequences)
        finally:
            for name, sequence in sequences.items():
                sequence._unrecorded.extend(kept[name])


class Trusting(FlowWriters):
    """Does not know which record it has copied last: another one may be in its place."""

    async def _write(self, records: Sequence[OffsetRecord]) -> None:
        await super()._write(
            [replace(one, tail=None) if isinstance(one, StoredPlan) else one for one in records]
        )


class Credulous(FlowWriters):
    """Takes a former owner whose plan is missing for one that has stored none."""

    def _is_lost(self, name: MirrorPartition, wanted: ToLocate) -> bool:
        del name, wanted
        return False


class Forgetting(FlowWriters):
    """Does not store what a broker remembers before it fences."""

    async def _last_numbers(self, stored: Mapping[TopicPartition, StoredPlan]) -> LastNumbers:
        return await ask_last_numbers(self._port, {key: one.plan for key, one in stored.items()})


class Unfenced(FlowWriters):
    """Takes the end of the log for a fence."""

    async def open(self, beginnings: Beginnings) -> None:
        """Replace the fences."""
        await super().open(beginnings)

        async def put(
            identity: ProducerIdentity, after: Mapping[TopicPartition, int]
        ) -> tuple[dict[TopicPartition, Offset], dict[TopicPartition, int], ProducerIdentity]:
            return {key: Offset(end) for key, end in after.items()}, {}, identity

        for data in self._data.values():
            data.put_fences = put  # type: ignore[method-assign]


class Stale(FlowWriters):
    """Stores plans of former sequences: of partitions that were located again since."""

    async def record(self, sequences: Mapping[MirrorPartition, PartitionSequence]) -> None:
        """Take any sequence for the current one."""
        self._current |= sequences
        await super().record(sequences)


class Misplaced(ModelDestination):
    """Takes a batch to be one offset off its place, now and then."""

    def produce(
        self, node: int, batches: Sequence[Batch]
    ) -> Awaitable[Mapping[TopicPartition, Appended]]:
        """Produce, and alter the answer."""
        return asyncio.ensure_future(self._alter(super().produce(node, batches)))

    async def _alter(
        self, request: Awaitable[Mapping[TopicPartition, Appended]]
    ) -> Mapping[TopicPartition, Appended]:
        answers = await request
        return {
            key: answer._replace(base_offset=answer.base_offset + 1)
            if not answer.error and answer.base_offset % 16 == 0
            else answer
            for key, answer in answers.items()
        }


class Aborted(ModelSource):
    """Does not see which transactions were aborted."""

    async def fetch(
        self, node: int, wanted: Mapping[TopicPartition, FetchPosition], **how: int
    ) -> FetchResult:
        """Fetch, and drop the list of aborted transactions."""
        found = await super().fetch(node, wanted, **how)
        parts = {key: one._replace(aborted=()) for key, one in found.partitions.items()}
        return found._replace(partitions=parts)


class Trustful(FlowReader):
    """Takes what a follower answers for what the leader says."""

    def _heard(self, asked: Asked, others: Collection[TopicPartition], asked_at: float) -> None:
        """Count answers of followers too."""
        followers = {key for key, (partition, _, _) in asked.items() if partition.follows}
        super()._heard(asked, set(others) - followers, asked_at)


FLOW_VARIANTS: Final[Mapping[str, FlowVariant]] = {
    "none": FlowVariant(),
    "resending": FlowVariant(Resending),
    "unleased": FlowVariant(Unleased),
    "unplanned": FlowVariant(writers=Unplanned),
    "aborted": FlowVariant(source=Aborted),
    "trusting": FlowVariant(writers=Trusting),
    "forgetting": FlowVariant(writers=Forgetting),
    "fenceless": FlowVariant(writers=Unfenced),
    "stale": FlowVariant(writers=Stale),
    "misplaced": FlowVariant(Misplaced),
    "credulous": FlowVariant(writers=Credulous),
    "hurried": FlowVariant(waits=False),
    "trustful": FlowVariant(reader=Trustful),
}
