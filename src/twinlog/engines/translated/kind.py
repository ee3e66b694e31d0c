"""The kind `translated`: topics may have another name, and records have other offsets."""

from collections.abc import Collection

from twinlog.engines.base import EnginesOfKind, LaneContext
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.mirror.translation import Translation
from twinlog.store.config_records import MirrorTopic
from twinlog.store.recorded_maps import read_maps


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
        recorded = await read_maps(destination, topics)
        maps = {partition: one.runs for partition, one in recorded.items()}
        names = {
            name.source: topic.on_destination(name)
            for topic in topics
            for name in topic.mirror_partitions
        }
        # The map of a former flow goes on where it has ended, so it may begin above a later begin.
        begins = {
            name.source: max(begin, maps[name.source].start.source)
            if name.source in maps
            else begin
            for topic in topics
            for name in topic.mirror_partitions
            if (begin := topic.begin(name.partition)) is not None
        }
        lacking = {name: one.runs.start.source for name, one in recorded.items() if one.lacks_start}
        unknown = frozenset(names.keys() - maps.keys())
        lost = frozenset(name for name, one in recorded.items() if one.lost)
        positions = {name: one.position for name, one in recorded.items()}
        passed = frozenset(name for name, one in recorded.items() if one.lost_places)
        settled = frozenset(name for name, one in recorded.items() if not one.pending)
        begins |= lacking
        return Translation(names, maps, unknown, begins, lost, passed, positions, settled)
