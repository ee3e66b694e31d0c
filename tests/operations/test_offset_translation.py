"""Offsets of flows, put together from maps, names and bounds of logs; no cluster."""

import asyncio
import json
from dataclasses import replace
from typing import Any, cast
from uuid import UUID

import pytest

from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Refusal
from twinlog.kafka.requests.topics import KnownTopic
from twinlog.kafka.types import Offset, TopicPartition
from twinlog.mirror.offset_runs import Ends, OffsetRuns, Run, encoded_runs
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.recorded_map import MapAnswer, RecordedMap
from twinlog.mirror.states import State
from twinlog.operations import offset_translation
from twinlog.operations.flow_results import Direction, TranslatedOffsets
from twinlog.operations.offset_translation import FlowOffsets, NoAnswer, TargetLog
from twinlog.operations.serialise import json_data
from twinlog.store.config_records import MirrorTopic
from twinlog.store.control_topics import States
from twinlog.store.state_records import PartitionState

SOURCE, REMOTE = TopicPartition("orders", 0), TopicPartition("A.orders", 0)
OTHER = TopicPartition("orders-2", 0)
WHOLE = TargetLog(0, 100)


def offset_map(
    source: int = 0, destination: int = 50, count: int = 10, *, lost: bool = False
) -> RecordedMap:
    runs = OffsetRuns(Ends(Offset(0), Offset(40)))
    runs.append(Run(Offset(source), Offset(destination), count))
    return RecordedMap(runs, runs.end.source, pending=False, lost=lost)


def known(
    *,
    bounds: TargetLog | Refusal = WHOLE,
    gone: str = "",
    mapped: bool = True,
    lost: bool = False,
) -> FlowOffsets:
    return FlowOffsets(
        names={SOURCE: REMOTE},
        maps={SOURCE: offset_map(lost=lost)} if mapped else {},
        bounds={} if gone else {REMOTE: bounds},
        gone={REMOTE.topic: gone} if gone else {},
    )


def test_an_offset_is_found_on_the_other_side() -> None:
    forward = known().to_target(SOURCE, 4)
    assert (forward.target, forward.target_offset, forward.answer) == (REMOTE, 54, MapAnswer.RECORD)
    (back,) = known().to_source(REMOTE, 54)
    assert (back.source, back.source_offset, back.answer) == (SOURCE, 4, MapAnswer.RECORD)
    assert forward.known
    assert back.known


@pytest.mark.parametrize(
    ("offsets", "answer", "text"),
    [
        (known(mapped=False), MapAnswer.NO_MAP, "nothing of this partition was copied yet"),
        (known(gone="it was recreated"), MapAnswer.RECREATED, "it was recreated"),
        (
            known(bounds=TargetLog(0, 54)),
            MapAnswer.BEHIND_LOG,
            "it was copied to 54, and the target's log ends at 54: it has lost records",
        ),
    ],
)
def test_an_answer_that_is_not_known_is_none(
    offsets: FlowOffsets, answer: MapAnswer, text: str
) -> None:
    """Goal: no number is given that may be wrong, and the reason is named."""
    found = offsets.to_target(SOURCE, 4)
    assert (found.target_offset, found.answer, found.text) == (None, answer, text)
    assert not found.known
    (back,) = offsets.to_source(REMOTE, 55)
    assert back.source_offset is None
    assert back.answer is answer


@pytest.mark.parametrize("offset", [4, 10])
def test_nothing_is_translated_where_copies_are_lost(offset: int) -> None:
    """Goal: other producers have filled the log again; their records are not named as copies."""
    found = known(lost=True).to_target(SOURCE, offset)
    assert (found.target_offset, found.answer, found.known) == (None, MapAnswer.LOST, False)
    assert "the target has lost records that were copied" in found.text
    (back,) = known(lost=True).to_source(REMOTE, 50 + offset)
    assert (back.source_offset, back.answer, back.known) == (None, MapAnswer.LOST, False)


def test_what_is_lost_has_a_reason_where_the_flow_has_gone_on() -> None:
    """Goal: copies of source offsets 10 to 14, at 60 to 64, are lost; nothing follows them yet."""
    offset_map = replace(
        known().maps[SOURCE],
        position=Offset(15),
        lost_sources=((Offset(10), Offset(15)),),
        lost_places=((Offset(60), Offset(63)),),
    )
    offsets = replace(known(), maps={SOURCE: offset_map})
    forward = offsets.to_target(SOURCE, 12)
    assert (forward.target_offset, forward.answer) == (60, MapAnswer.END)
    assert forward.text.startswith("the target has lost the copy of this offset; ")
    (back,) = offsets.to_source(REMOTE, 62)
    assert (back.source_offset, back.answer) == (None, MapAnswer.LOST)
    assert "what a reader of this offset has read is not known" in back.text
    assert offsets.to_target(SOURCE, 4).answer is MapAnswer.RECORD


AFTER_LOSS = RecordedMap(
    OffsetRuns(
        Ends(Offset(0), Offset(40)),
        [encoded_runs(Ends(Offset(0), Offset(40)), [Run(Offset(10), Offset(50), 8)])],
    ),
    Offset(20),
    pending=False,
    lost_places=((Offset(45), Offset(56)),),
)
"""Copies were at 45 to 54, and are lost; source 10 to 17 are at 50 to 57 since."""


@pytest.mark.parametrize("offset", [45, 49, 50, 55])
def test_a_group_may_have_committed_an_offset_before_copies_there_were_lost(offset: int) -> None:
    """Goal: a group that goes back to the source skips nothing that it has not read.

    An offset of the log is that of the record which is there now.
    """
    offsets = replace(known(), maps={SOURCE: AFTER_LOSS})
    (back,) = offsets.to_source(REMOTE, offset, of_group=True)
    assert (back.source_offset, back.answer, back.known) == (None, MapAnswer.LOST, False)
    assert "the group may have committed this offset before" in back.text
    (back,) = offsets.to_source(REMOTE, offset)
    answer = (None, MapAnswer.LOST) if offset < 50 else (offset - 40, MapAnswer.RECORD)
    assert (back.source_offset, back.answer) == answer


@pytest.mark.parametrize(("offset", "place"), [(44, 10), (56, 16), (58, 20)])
def test_a_groups_offset_outside_of_a_loss_is_exact(offset: int, place: int) -> None:
    offsets = replace(known(), maps={SOURCE: AFTER_LOSS})
    assert offsets.to_source(REMOTE, offset, of_group=True) == offsets.to_source(REMOTE, offset)
    assert offsets.to_source(REMOTE, offset)[0].source_offset == place


def test_a_group_offset_that_is_none_keeps_its_reason() -> None:
    offsets = replace(known(), maps={SOURCE: AFTER_LOSS})
    (back,) = offsets.to_source(REMOTE, NoAnswer(MapAnswer.NO_RECORD, "none"), of_group=True)
    assert (back.answer, back.text) == (MapAnswer.NO_RECORD, "none")


@pytest.mark.parametrize("lost", [AFTER_LOSS, offset_map(lost=True)])
def test_what_one_topic_has_lost_concerns_all_in_the_same_log(lost: RecordedMap) -> None:
    """Goal: the other one's next copies have landed in front of where the group was."""
    shared = FlowOffsets(
        names={SOURCE: REMOTE, OTHER: REMOTE},
        maps={SOURCE: lost, OTHER: offset_map(destination=60)},
        bounds={REMOTE: WHOLE},
        gone={},
    )
    for offset, is_lost in ((55, True), (63, lost.lost)):
        answers = [one.answer for one in shared.to_source(REMOTE, offset, of_group=True)]
        assert (answers[1] is MapAnswer.LOST) == is_lost
        assert shared.to_source(REMOTE, offset)[1].answer is not MapAnswer.LOST


def test_behind_the_last_record_is_the_logs_end() -> None:
    """Goal: a group that has read everything goes on there, where no record is yet."""
    end = known(bounds=TargetLog(0, 60)).to_target(SOURCE, 10)
    assert (end.target_offset, end.answer) == (60, MapAnswer.END)


def test_offsets_behind_the_map_are_unknown() -> None:
    found = known().to_target(SOURCE, 11)
    assert found.answer is MapAnswer.NOT_COPIED
    assert "the map ends at source offset 10" in found.text
    (back,) = known().to_source(REMOTE, 101)
    assert (back.answer, back.text) == (MapAnswer.BEHIND_LOG, "the target's log ends at 100")


@pytest.mark.parametrize("offset", [60, 61, 65, 80])
def test_what_is_in_an_open_transaction_is_unknown(offset: int) -> None:
    """Goal: copies in it are in no map yet: it would seem to be all copied up to there."""
    (back,) = known(bounds=TargetLog(0, 100, open_from=60)).to_source(REMOTE, offset)
    is_end = offset == 60
    assert back.answer is (MapAnswer.END if is_end else MapAnswer.NOT_COPIED)
    assert back.source_offset == (10 if is_end else None)
    assert is_end or back.text == "a transaction is open on the target from offset 60 on"
    (back,) = known(bounds=TargetLog(0, 100, open_from=52)).to_source(REMOTE, 54)
    assert (back.source_offset, back.answer) == (4, MapAnswer.RECORD), "it has committed meanwhile"


def test_a_copy_that_was_deleted_is_named_with_its_offset() -> None:
    found = known(bounds=TargetLog(70, 100)).to_target(SOURCE, 4)
    assert found.target_offset == 54
    assert found.text == "deleted on the target, whose log starts at 70"


def test_a_log_that_cannot_be_read_leaves_the_map_to_answer() -> None:
    """Goal: a place in the map is exact; what lies behind a log's end is not known."""
    refused = Refusal(ErrorCode.LEADER_NOT_AVAILABLE)
    found = known(bounds=refused).to_target(SOURCE, 4)
    assert found.target_offset == 54
    assert "cannot be read" in found.text
    (back,) = known(bounds=refused).to_source(REMOTE, 54)
    assert (back.source_offset, back.answer) == (None, MapAnswer.UNREADABLE)


def test_partitions_of_other_topics_are_named() -> None:
    found = known().to_target(OTHER, 4)
    assert (found.source, found.source_offset, found.target) == (OTHER, 4, None)
    assert found.answer is MapAnswer.NOT_IN_FLOW
    (back,) = known().to_source(OTHER, 4)
    assert (back.source, back.target, back.target_offset) == (None, OTHER, 4)
    assert not back.known


def test_a_question_without_an_offset_keeps_its_reason() -> None:
    found = known().to_target(SOURCE, NoAnswer(MapAnswer.NO_RECORD, "no such record"))
    assert (found.source_offset, found.target_offset) == (None, None)
    assert (found.answer, found.text) == (MapAnswer.NO_RECORD, "no such record")


def test_several_partitions_of_the_source_answer_for_one_of_the_target() -> None:
    """Goal: with topics that are copied together, the record's own partition is named."""
    shared = FlowOffsets(
        names={SOURCE: REMOTE, OTHER: REMOTE},
        maps={SOURCE: offset_map(), OTHER: offset_map(destination=60)},
        bounds={REMOTE: WHOLE},
        gone={},
    )
    found = shared.to_source(REMOTE, 63)
    assert [(one.source, one.answer) for one in found] == [
        (SOURCE, MapAnswer.END),
        (OTHER, MapAnswer.RECORD),
    ]
    assert found[1].source_offset == 3


def test_the_result_serialises_itself() -> None:
    offsets = (known().to_target(SOURCE, 4), known().to_target(OTHER, 1))
    result = TranslatedOffsets(
        flow="A-to-B", direction=Direction.TO_TARGET, offsets=offsets, group="g"
    )
    data = json.loads(json.dumps(json_data(result)))
    assert data == {
        "flow": "A-to-B",
        "direction": "to_target",
        "group": "g",
        "timestamp_ms": None,
        "checkpoints": None,
        "all_known": False,
        "offsets": [
            {
                "source": {"topic": "orders", "partition": 0, "offset": 4},
                "target": {"topic": "A.orders", "partition": 0, "offset": 54},
                "answer": "RECORD",
                "known": True,
                "text": "",
                "checkpoint": None,
            },
            {
                "source": {"topic": "orders-2", "partition": 0, "offset": 1},
                "target": None,
                "answer": "NOT_IN_FLOW",
                "known": False,
                "text": "the flow does not copy this partition",
                "checkpoint": None,
            },
        ],
    }


@pytest.mark.parametrize("direction", list(Direction))
def test_nothing_is_known_of_a_source_whose_partition_is_failed(
    monkeypatch: pytest.MonkeyPatch, direction: Direction
) -> None:
    """Goal: a source that was truncated has other records at the offsets of the map."""
    failed = MirrorPartition("flow", SOURCE.topic, SOURCE.partition)
    reason = "the source has lost records that were copied"
    states = States({failed: PartitionState(failed, State.FAILED, reason)}, {})

    async def read_states(_: object) -> States:
        return states

    monkeypatch.setattr(offset_translation, "read_states", read_states)
    topic = MirrorTopic(mirror="flow", topic=SOURCE.topic, topic_id=UUID(int=1), partitions=1)
    results = [known().to_target(SOURCE, 4), known(mapped=False).to_target(SOURCE, 4)]
    if direction is Direction.TO_SOURCE:
        results[:1] = known().to_source(REMOTE, 54)
    found, without_map = asyncio.run(
        offset_translation.without_failed(cast(Any, None), [topic], results, direction)
    )
    given = (None, 54) if direction is Direction.TO_SOURCE else (4, None)
    assert (found.source_offset, found.target_offset) == given
    assert (found.answer, found.known) == (MapAnswer.UNPROVEN, False)
    assert reason in found.text
    assert "source offset 4 is target offset 54" in found.text
    assert without_map == results[1], "its own reason stays"
    monkeypatch.setattr(States, "unread", lambda *_: "a later version")
    unread, _ = asyncio.run(
        offset_translation.without_failed(cast(Any, None), [topic], results, direction)
    )
    assert unread.answer is MapAnswer.UNPROVEN
    assert "state of the partition cannot be read (a later version)" in unread.text
    monkeypatch.setattr(States, "unread", lambda *_: "")
    states.states.clear()
    unchanged = asyncio.run(
        offset_translation.without_failed(cast(Any, None), [topic], results, direction)
    )
    assert unchanged == results


@pytest.mark.parametrize(
    ("ids", "everywhere", "text"),
    [
        ({1}, True, ""),
        ({1, 2}, True, "the topic was recreated on the source"),
        ({1}, False, "some broker of the source does not know the topic"),
        (None, True, "the topic is not in the source's metadata"),
    ],
)
def test_each_broker_has_to_show_the_topic_that_was_copied(
    monkeypatch: pytest.MonkeyPatch, ids: set[int] | None, everywhere: bool, text: str
) -> None:
    """Goal: a broker whose metadata lags does not vouch for a topic that was recreated."""
    shown = (
        {}
        if ids is None
        else {
            SOURCE.topic: KnownTopic(
                frozenset(UUID(int=one) for one in ids), 1, internal=False, everywhere=everywhere
            )
        }
    )

    async def known_topics(*_: object) -> object:
        return shown

    monkeypatch.setattr(offset_translation, "known_topics", known_topics)
    topic = MirrorTopic(mirror="flow", topic=SOURCE.topic, topic_id=UUID(int=1), partitions=1)
    questions = {SOURCE: 4, OTHER: 5}
    found = asyncio.run(offset_translation.of_copied_topics(cast(Any, None), [topic], questions))
    assert found[OTHER] == 5, "not of the flow: the map says so"
    if text:
        answer = found[SOURCE]
        assert isinstance(answer, NoAnswer)
        assert (answer.answer, text in answer.text) == (MapAnswer.RECREATED, True)
    else:
        assert found[SOURCE] == 4
