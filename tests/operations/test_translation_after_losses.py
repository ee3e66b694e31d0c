"""Offsets of groups back to the source, where a flow in transactions has lost copies."""

from dataclasses import replace
from uuid import UUID

import pytest

from twinlog.engines.transactional.position_maps import KnownMap, grown_map, lost_map, new_map
from twinlog.engines.transactional.remote_tails import LandedBatches, tail_of_batch
from twinlog.engines.transactional.source_position import Copies, SourcePosition
from twinlog.kafka.types import LeaderEpoch, Offset, Sequence, TopicPartition
from twinlog.mirror.offset_runs import Ends, Run
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.recorded_map import MapAnswer
from twinlog.operations.offset_translation import FlowOffsets, TargetLog
from twinlog.store.config_records import MirrorTopic
from twinlog.store.map_chunks import MapChunk
from twinlog.store.offset_log import fold_offsets
from twinlog.store.offset_records import MapHead, Route, encode
from twinlog.store.recorded_maps import _decoded
from twinlog.store.topic_reader import ControlRecord

SOURCE, REMOTE = TopicPartition("orders", 0), TopicPartition("A.orders", 0)
NAME = MirrorPartition("A-to-B", *SOURCE)
ROUTE = Route(UUID(int=1), REMOTE.topic, UUID(int=2))
TOPIC = MirrorTopic(
    mirror=NAME.mirror,
    topic=SOURCE.topic,
    topic_id=ROUTE.source_topic_id,
    partitions=1,
    destination_topic=REMOTE.topic,
    destination_topic_id=ROUTE.topic_id,
)


def position(offset: int) -> SourcePosition:
    return SourcePosition(REMOTE, ROUTE, Offset(offset), LeaderEpoch(0), None, 1)


def after_loss() -> FlowOffsets:
    """Source 0 to 999 was copied to 0 to 999, and a marker to 1000. The log was cut at 900.

    Others have written 900 to 919 when the flow goes on, at source offset 1000, and 920 to 979
    when the next copies land: source 1000 to 1099, at 980 to 1079.
    """
    former = MapChunk(NAME, 0, Ends(Offset(0), Offset(0)), (Run(Offset(0), Offset(0), 1000),))
    head = MapHead(NAME, ROUTE, Offset(1000), 0, 0, former.end, tail="1000,7,0,999")
    lost = lost_map(KnownMap(head, former, None, (0, 0)), Offset(1000))
    assert lost is not None
    start = Ends(Offset(1000), Offset(920))
    begun = new_map(NAME, lost.known, position(1000), start, lacks_start=True, is_anew=True)
    tail = tail_of_batch(980, 100, (7, 1), Sequence(0))
    copies = Copies(Offset(1000), [(Offset(1000), Offset(1100))], 0, 1)
    written = replace(position(1100), tail=tail, copies=copies)
    landed = LandedBatches(Offset(980), tail, ((Offset(980), 100),))
    grown = grown_map(NAME, begun.known, written, landed)
    stored = [encode(one) for one in (*lost.records, *begun.records, *grown.records)]
    records = [ControlRecord(0, at, 0, *pair) for at, pair in enumerate(stored)]
    headed = fold_offsets(records).headed[NAME]
    return FlowOffsets(
        names={SOURCE: REMOTE},
        maps=_decoded([(headed, NAME, TOPIC)]),
        bounds={REMOTE: TargetLog(0, 1081)},
        gone={},
    )


@pytest.mark.parametrize(
    ("offset", "answer", "place"),
    [
        (910, MapAnswer.BEFORE_START, None),
        (950, MapAnswer.LOST, None),  # it has read source 0 to 949 and not 950 to 999
        (990, MapAnswer.LOST, None),
        (1000, MapAnswer.LOST, None),  # behind all copies
        (1001, MapAnswer.LOST, None),  # and behind the marker
        (1002, MapAnswer.RECORD, 1022),
        (1080, MapAnswer.END, 1100),
    ],
)
def test_a_position_of_before_a_loss_is_not_one_of_later_copies(
    offset: int, answer: MapAnswer, place: int | None
) -> None:
    """Goal: a group that goes back to the source skips nothing that it has not read."""
    (back,) = after_loss().to_source(REMOTE, offset, of_group=True)
    assert (back.answer, back.source_offset) == (answer, place)


def test_an_offset_of_the_log_is_the_record_that_is_there_now() -> None:
    answers = [after_loss().to_source(REMOTE, offset)[0] for offset in (950, 990)]
    assert [one.answer for one in answers] == [MapAnswer.LOST, MapAnswer.RECORD]
    assert [one.source_offset for one in answers] == [None, 1010]
