"""The kind `exact`: topics have the same name, and records the same offset, on both sides."""

from collections.abc import Collection, Mapping

from twinlog.engines.base import EnginesOfKind, LaneContext
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.mirror.translation import SAME, Translation
from twinlog.store.config_records import MirrorTopic


class ExactKind:
    """Exact mirroring (`MirrorKind`)."""

    def in_lane(self, lane: LaneContext) -> EnginesOfKind:
        """The exact engines of a lane."""
        # Commands know kinds, too, and would take a third longer to start with the engine.
        from twinlog.engines.exact.engine import ExactEngines  # noqa: PLC0415

        return ExactEngines(lane)

    async def translation(
        self,
        destination: KafkaCluster,
        topics: Collection[MirrorTopic],
        properties: Mapping[str, str],
    ) -> Translation:
        """Nothing is translated."""
        del destination, topics, properties
        return SAME
