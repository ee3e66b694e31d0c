"""Parts of a flow's lane, each with a planted bug that the simulation has to find."""

from collections.abc import Mapping
from typing import Final

from model.ports import ModelSource
from simulation.flow_lanes import FlowVariant
from simulation.variants import Resending, Unleased
from twinlog.engines.exact.ports import FetchResult
from twinlog.engines.translated.sequence import PartitionSequence
from twinlog.engines.translated.writers import FlowWriters
from twinlog.kafka.types import FetchPosition, TopicPartition
from twinlog.mirror.placement import MirrorPartition


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


class Aborted(ModelSource):
    """Does not see which transactions were aborted."""

    async def fetch(
        self, node: int, wanted: Mapping[TopicPartition, FetchPosition], **how: int
    ) -> FetchResult:
        """Fetch, and drop the list of aborted transactions."""
        found = await super().fetch(node, wanted, **how)  # type: ignore[arg-type]
        parts = {key: one._replace(aborted=()) for key, one in found.partitions.items()}
        return found._replace(partitions=parts)


FLOW_VARIANTS: Final[Mapping[str, FlowVariant]] = {
    "none": FlowVariant(),
    "resending": FlowVariant(Resending),
    "unleased": FlowVariant(Unleased),
    "unplanned": FlowVariant(writers=Unplanned),
    "aborted": FlowVariant(source=Aborted),
}
