"""The kind `translated`: topics may have another name, and records have other offsets."""

from collections.abc import Collection

from twinlog.engines.base import EnginesOfKind, LaneContext
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.metadata import NO_TOPIC_ID, is_another
from twinlog.mirror.translation import Translation
from twinlog.store.config_records import MirrorTopic
from twinlog.store.control_topics import partition_count
from twinlog.store.offset_log import OFFSETS_TOPIC, read_offsets
from twinlog.store.snapshot import owners


class TranslatedKind:
    """Flows (`MirrorKind`)."""

    def in_lane(self, lane: LaneContext) -> EnginesOfKind:
        """The engines of a lane's flows."""
        # Commands know kinds, too, and would take longer to start with the engine.
        from twinlog.engines.translated.engine import FlowEngines  # noqa: PLC0415

        return FlowEngines(lane)

    async def translation(
        self, destination: KafkaCluster, topics: Collection[MirrorTopic]
    ) -> Translation:
        """The names of the topics, and the maps as they are recorded now.

        Raises:
            TwinlogError: they cannot be read now.
        """
        count = await partition_count(destination, OFFSETS_TOPIC)
        owned = {} if count is None else owners(topics, count)
        stored = await read_offsets(destination, sorted(owned)) if owned else {}
        maps = {
            name.source: offsets.map(name)
            for place, offsets in stored.items()
            for name, topic in owned[place]
            if (plan := offsets.plans.get(name)) is not None
            and plan.route.source_topic_id == topic.topic_id
            and plan.route.topic == topic.destination_name
            and not is_another(plan.route.topic_id, topic.destination_topic_id or NO_TOPIC_ID)
        }
        names = {
            name.source: topic.on_destination(name)
            for topic in topics
            for name in topic.mirror_partitions
        }
        return Translation(names, maps, frozenset(names.keys() - maps.keys()))
