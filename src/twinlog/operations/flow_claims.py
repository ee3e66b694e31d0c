"""What a flow claims about its partitions, as `twinlog verify` compares it with the logs.

    kind             how far it has copied    its map of offsets
    ---------------  -----------------------  ------------------------------------------------
    `translated`     where its map ends       always recorded; the flow begins where it begins
    `transactional`  the committed offset     on request (`records_map`), with a beginning and
                                              a position of its own

Positions are read before maps: a map reaches the position that is committed with it, so a partition
that has a position has a map, if the flow records one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from twinlog.engines.transactional.positions import position_group
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import TwinlogError
from twinlog.kafka.groups.offsets import committed_offsets
from twinlog.kafka.types import Offset, TopicPartition
from twinlog.mirror.flow import begins_at_end, flow_of, records_map
from twinlog.mirror.offset_runs import Ends, encode_runs
from twinlog.mirror.recorded_map import RecordedMap
from twinlog.mirror.settings import TRANSACTIONAL
from twinlog.store.config_records import Mirror, MirrorTopic, topic_id_text
from twinlog.store.control_topics import LANES_GROUP
from twinlog.store.recorded_maps import read_headed_maps, read_maps
from twinlog.verify.flow_job import BEGIN_UNKNOWN
from twinlog.verify.flow_task import FlowClaim
from twinlog.verify.job import Sides
from twinlog.verify.map_check import MapClaim

BEGAN_AT_END: Final = "the flow began at the source's end, and where that was is not recorded"
BEGIN_UNREAD: Final = "where the flow began cannot be read"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowClaims:
    """What a flow claims, by the source's partition."""

    of: Mapping[TopicPartition, FlowClaim] = field(default_factory=dict)
    """Those of which a map, or a position, is recorded."""
    is_mapped: bool = True
    """Whether each of them is to have a map."""
    trouble: str | None = None
    """Why the maps could not be read."""

    def lacks(self, partition: TopicPartition, claim: FlowClaim) -> bool:
        """Whether something has to be recorded of a partition that the flow has copied, and is not.

        Of one that another program has copied before, the flow may have copied nothing.
        """
        if claim.taken_over and claim.end <= claim.begin.source:
            return False
        return partition not in self.of or (self.is_mapped and claim.map is None)


async def read_claims(
    destination: KafkaCluster, mirror: Mirror, topics: Sequence[MirrorTopic]
) -> FlowClaims:
    """What a flow claims now.

    Args:
        destination: the flow's target.
        mirror: the flow.
        topics: those of its topics that are asked for.

    Raises:
        TwinlogError: the committed offsets of a flow in transactions cannot be read.
    """
    if mirror.kind != TRANSACTIONAL:
        return await _recorded(destination, topics)
    claims = await _committed(destination, mirror, topics)
    if not records_map(mirror.source):
        return FlowClaims(of=claims, is_mapped=False)
    try:
        maps = {
            partition: _headed_map(recorded)
            for partition, recorded in (await read_headed_maps(destination, topics)).items()
        }
    except TwinlogError as error:
        return FlowClaims(of=claims, trouble=f"it cannot be read: {error}")
    return FlowClaims(
        of={
            partition: replace(claim, map=maps.get(partition))
            for partition, claim in claims.items()
        }
    )


def unclaimed(
    mirror: Mirror, topic: MirrorTopic, partition: int, trouble: str | None = None
) -> FlowClaim:
    """What counts as the claim of a partition of whose begin nothing is recorded.

    A flow without transactions may have begun anywhere if its maps could not be read. Any flow may
    have begun since its claims were read: with `latest` at the source's end.

    Args:
        mirror: the flow.
        topic: the partition's topic.
        partition: its number.
        trouble: why the maps could not be read.
    """
    claim, begin = FlowClaim(), topic.begin(partition)
    if begin is not None:
        claim = FlowClaim(
            begin=Ends(Offset(begin), Offset(0)),
            end=begin,
            taken_over=True,
            lacks=Sides(BEGIN_UNKNOWN, ""),
        )
    if trouble and mirror.kind != TRANSACTIONAL:  # whose positions were read
        return replace(claim, lacks=Sides(claim.lacks.source or BEGIN_UNREAD, BEGIN_UNREAD))
    # One that is followed from its first record on was there whole.
    if begins_at_end(flow_of(mirror.source).settings) and topic.follows_from(partition) != 0:
        return replace(claim, lacks=Sides(claim.lacks.source, BEGAN_AT_END))
    return claim


async def _recorded(destination: KafkaCluster, topics: Sequence[MirrorTopic]) -> FlowClaims:
    """The maps of a flow without transactions."""
    try:
        maps = {
            partition: _map_claim(recorded)
            for partition, recorded in (await read_maps(destination, topics)).items()
        }
    except TwinlogError as error:
        return FlowClaims(trouble=f"it cannot be read: {error}")
    taken_over = {
        name.source
        for topic in topics
        for name in topic.mirror_partitions
        if topic.begin(name.partition) is not None
    }
    return FlowClaims(
        of={
            partition: FlowClaim(
                begin=recorded.start,
                end=recorded.position,
                map=recorded,
                taken_over=partition in taken_over,
            )
            for partition, recorded in maps.items()
        }
    )


async def _committed(
    destination: KafkaCluster, mirror: Mirror, topics: Sequence[MirrorTopic]
) -> dict[TopicPartition, FlowClaim]:
    """The positions of a flow that writes in transactions: committed offsets."""
    group = position_group(LANES_GROUP, mirror.name)
    committed = await committed_offsets(destination, group)
    claims: dict[TopicPartition, FlowClaim] = {}
    for topic in topics:
        for name in topic.mirror_partitions:
            position = committed.get(topic.on_destination(name))
            # An offset that an operator has set names no topic.
            if position is None or (
                position.metadata and topic_id_text(topic.topic_id) not in position.metadata
            ):
                continue
            claim = unclaimed(mirror, topic, name.partition)
            claims[name.source] = replace(claim, end=position.offset)
    return claims


def _map_claim(recorded: RecordedMap) -> MapClaim:
    """A recorded map, as a task gets it."""
    start, runs = recorded.runs.start, recorded.runs.runs()
    return MapClaim(start=start, position=recorded.position, runs=encode_runs(start, runs))


def _headed_map(recorded: RecordedMap) -> MapClaim:
    """That of a flow in transactions: it may begin anew, also where records are copied again."""
    return replace(
        _map_claim(recorded),
        lacks_start=recorded.lacks_start,
        is_lost=recorded.lost,
        may_repeat=True,
    )
