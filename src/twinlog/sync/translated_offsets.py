"""Offsets of the destination, in the names and offsets of a mirror's source."""

from collections.abc import Collection

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import Refusal
from twinlog.kafka.requests.partitions import OffsetSpec, list_offsets
from twinlog.kafka.types import TopicPartition
from twinlog.mirror.translation import Translation


async def list_translated_offsets(
    destination: KafkaCluster,
    partitions: Collection[TopicPartition],
    spec: OffsetSpec,
    translation: Translation,
) -> dict[TopicPartition, int | Refusal]:
    """An offset of each partition's log as a consumer sees it (`list_offsets`).

    Args:
        destination: the mirror's cluster.
        partitions: of the source.
        spec: which offset.
        translation: where the partitions and offsets are on the destination.
    """
    names = [translation.name(partition) for partition in partitions]
    answers = translation.by_source(partitions, await list_offsets(destination, names, spec))
    return {
        p: at if isinstance(at, Refusal) else translation.offsets(p).to_source(at.offset)
        for p, at in answers.items()
    }
