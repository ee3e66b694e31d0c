"""What is stored of a partition that was located, before anything of it is sent."""

from dataclasses import replace
from typing import NamedTuple

from twinlog.engines.translated.location import Landing, ToLocate
from twinlog.engines.translated.sequence import PartitionSequence
from twinlog.engines.translated.surviving_copies import with_loss
from twinlog.kafka.client.metadata import NO_TOPIC_ID
from twinlog.kafka.types import Offset, ProducerEpoch, ProducerId
from twinlog.kafka.types import Sequence as SequenceNumber
from twinlog.mirror.offset_runs import Ends
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.sequence_plan import NOTHING, SequencePlan, Taken
from twinlog.store.map_chunks import MapChunk
from twinlog.store.offset_records import DroppedChunk, OffsetRecord, Route, StoredPlan


class LocatedPartition(NamedTuple):
    """A partition's sequence, and the records that are stored before it is used."""

    sequence: PartitionSequence
    records: list[OffsetRecord]


def located_partition(
    name: MirrorPartition,
    wanted: ToLocate,
    landing: Landing,
    former: tuple[StoredPlan | None, MapChunk | None],
    epoch: tuple[ProducerId, ProducerEpoch],
    *,
    slot: int,
    log_end: Offset,
) -> LocatedPartition:
    """The plan of a new epoch, with the parts of the map, and the sequence that follows it.

    Args:
        name: the partition.
        wanted: what was asked for.
        landing: what was found.
        former: the plan and the last part of the map that were stored.
        epoch: the producer id and the epoch of its fence.
        slot: which producer id it is written under.
        log_end: where the destination's log ended, the fence included.
    """
    (stored, last), passed = former, landing.passed
    chunks = landing.chunks
    # What has landed and is gone again is in no map, and is not to be copied again.
    recorded = Ends(landing.position, chunks[-1].end.destination)
    plan = SequencePlan(*epoch, SequenceNumber(0), (), recorded)
    follows = stored is not None and wanted.goes_on(stored.route)
    goes_on = passed is not None or (last is not None and chunks[0].start == last.start)
    behind_another = wanted.copied_to > 0
    # Also where the map begins anew: offsets that it gave before a loss are too high all the same.
    losses = stored.losses if stored is not None and follows else ()
    if landing.lost is not None:
        producer_id, number = epoch
        losses = with_loss(losses, landing.lost._replace(producer_id=producer_id, epoch=number))
    records: list[OffsetRecord] = []
    if passed is not None:
        records += [DroppedChunk(name, number) for number in passed.dropped]
    if stored is not None and follows:
        behind_another = stored.behind_another or (behind_another and not goes_on)
        behind_another |= passed is not None and passed.is_lost
    if stored is not None and follows and goes_on:
        route, epochs = stored.route, stored.epochs
        if wanted.outlives(route):
            route = route._replace(topic_id=wanted.topic_id)
    else:
        # Also the parts that `chunks` begin anew: a tombstone goes before each.
        count = 0 if last is None else last.number
        records += [DroppedChunk(name, number) for number in range(1, count + 1)]
        source_id = wanted.source_topic_id or NO_TOPIC_ID
        route, epochs = Route(source_id, wanted.destination.topic, wanted.topic_id, slot), ()
    sequence = PartitionSequence(epoch, recorded, landing.position, epochs, has_begun=follows)
    taken = Taken(NOTHING, log_end)
    begun = StoredPlan(name, plan, route, sequence.epochs.runs, taken, landing.tail)
    begun = replace(begun, behind_another=behind_another, losses=losses)
    return LocatedPartition(sequence, [*records, *chunks, begun])
