"""The kind `transactional`: records are transformed, or written in transactions (KIP-656)."""

from collections.abc import Collection, Mapping

from twinlog.engines.base import EnginesOfKind, LaneContext
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.types import TopicPartition
from twinlog.mirror.flow import records_map
from twinlog.mirror.recorded_map import RecordedMap
from twinlog.mirror.settings import KIND, TRANSACTIONAL
from twinlog.mirror.translation import Translation
from twinlog.store.config_records import MirrorTopic
from twinlog.store.recorded_maps import (
    read_headed_maps,
    read_maps,
    recorded_translation,
    remote_names,
)


class TransactionalKind:
    """Flows whose positions are committed offsets (`MirrorKind`)."""

    def in_lane(self, lane: LaneContext) -> EnginesOfKind:
        """The engines of a lane's transactional flows."""
        # Commands know kinds, too, and would take longer to start with the engine.
        from twinlog.engines.transactional.engine import TransactionalEngines  # noqa: PLC0415

        return TransactionalEngines(lane)

    async def translation(
        self,
        destination: KafkaCluster,
        topics: Collection[MirrorTopic],
        properties: Mapping[str, str],
    ) -> Translation:
        """The names of the topics, and the maps as they are recorded now, if the flow has any.

        Raises:
            TwinlogError: they cannot be read now.
        """
        if not records_map(properties):
            names = remote_names(topics)
            return Translation(names, {}, frozenset(names))
        return recorded_translation(topics, await read_flow_maps(destination, topics, properties))


async def read_flow_maps(
    destination: KafkaCluster, topics: Collection[MirrorTopic], properties: Mapping[str, str]
) -> dict[TopicPartition, RecordedMap]:
    """The maps of topics of a flow, of either kind; none if it does not record them.

    Args:
        destination: the flow's cluster.
        topics: topics of the flow.
        properties: the flow's.

    Raises:
        TwinlogError: they cannot be read now.
    """
    if properties[KIND] != TRANSACTIONAL:
        return await read_maps(destination, topics)
    if not records_map(properties):
        return {}
    return await read_headed_maps(destination, topics)
