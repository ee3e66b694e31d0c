"""The kind `translated`: topics may have another name, and records have other offsets."""

from collections.abc import Collection, Mapping

from twinlog.engines.base import EnginesOfKind, LaneContext
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.mirror.translation import Translation
from twinlog.store.config_records import MirrorTopic
from twinlog.store.recorded_maps import read_maps, recorded_translation


class TranslatedKind:
    """Flows (`MirrorKind`)."""

    def in_lane(self, lane: LaneContext) -> EnginesOfKind:
        """The engines of a lane's flows."""
        # Commands know kinds, too, and would take longer to start with the engine.
        from twinlog.engines.translated.engine import FlowEngines  # noqa: PLC0415

        return FlowEngines(lane)

    async def translation(
        self,
        destination: KafkaCluster,
        topics: Collection[MirrorTopic],
        properties: Mapping[str, str],
    ) -> Translation:
        """The names of the topics, and the maps as they are recorded now.

        Raises:
            TwinlogError: they cannot be read now.
        """
        del properties
        return recorded_translation(topics, await read_maps(destination, topics))
