"""The kind `transactional`: records are transformed, or written in transactions (KIP-656)."""

from collections.abc import Collection

from twinlog.engines.base import EnginesOfKind, LaneContext
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.mirror.translation import Translation
from twinlog.store.config_records import MirrorTopic


class TransactionalKind:
    """Flows whose positions are committed offsets (`MirrorKind`)."""

    def in_lane(self, lane: LaneContext) -> EnginesOfKind:
        """The engines of a lane's transactional flows."""
        # Commands know kinds, too, and would take longer to start with the engine.
        from twinlog.engines.transactional.engine import TransactionalEngines  # noqa: PLC0415

        return TransactionalEngines(lane)

    async def translation(
        self, destination: KafkaCluster, topics: Collection[MirrorTopic]
    ) -> Translation:
        """The names of the topics; offsets are not translated: records may be dropped or routed."""
        del destination
        names = {
            name.source: topic.on_destination(name)
            for topic in topics
            for name in topic.mirror_partitions
        }
        return Translation(names, {}, frozenset(names))
