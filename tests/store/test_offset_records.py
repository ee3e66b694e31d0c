"""Twin of twinlog.store.offset_records."""

import json
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from twinlog.kafka.errors import ControlTopicLost, ProtocolError
from twinlog.kafka.types import Offset, ProducerEpoch, ProducerId, Sequence, TopicPartition
from twinlog.mirror import offset_runs
from twinlog.mirror.offset_runs import Ends, Run
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.sequence_plan import NOTHING, SequencePlan, Taken
from twinlog.store.map_chunks import MapChunk
from twinlog.store.offset_log import StoredOffsets, fold_offsets, whole_map
from twinlog.store.offset_records import (
    BegunPartition,
    DroppedChunk,
    DroppedHead,
    DroppedPart,
    LostCopies,
    MapHead,
    MapPart,
    MapTail,
    OffsetRecord,
    OffsetsOwner,
    OffsetsProducer,
    Route,
    SharedPartition,
    StoredPlan,
    decode,
    decode_chunk,
    encode,
    is_of_chunk,
    is_of_map_with_head,
    is_of_transactions,
    map_of,
    mirror_of,
)
from twinlog.store.topic_reader import ControlRecord

NAME = MirrorPartition("flow", "orders", 3)
ENDS = Ends(Offset(10), Offset(50))
PLAN = SequencePlan(
    ProducerId(7),
    ProducerEpoch(2),
    Sequence(5),
    ((Offset(10), Offset(12)), (Offset(12), Offset(13)), (Offset(20), Offset(21))),
    ENDS,
)
ROUTE = Route(UUID(int=1), "a.orders", UUID(int=2), 1)
LOST = LostCopies(Offset(1), Offset(4), Offset(5), Offset(9))
CHUNK = MapChunk(NAME, 4, ENDS, (Run(Offset(11), Offset(50), 3), Run(Offset(15), Offset(60), 1)))

HEAD = MapHead(NAME, ROUTE, Offset(70), 3, 4, Ends(Offset(60), Offset(66)))


@pytest.mark.parametrize(
    "stored",
    [
        OffsetsOwner("a-0"),
        StoredPlan(NAME, PLAN, ROUTE),
        StoredPlan(NAME, PLAN, ROUTE._replace(topic_id=None)),
        StoredPlan(NAME, PLAN, ROUTE, taken=Taken(NOTHING, Offset(60))),
        StoredPlan(NAME, PLAN, ROUTE, tail=MapTail(ProducerId(7), ProducerEpoch(1), Sequence(4))),
        StoredPlan(NAME, PLAN, ROUTE, lost="the record at offset 4 is another one"),
        StoredPlan(NAME, PLAN, ROUTE, behind_another=True),
        StoredPlan(NAME, PLAN, ROUTE, losses=(LOST,) * 2),
        OffsetsProducer(7),
        BegunPartition(NAME, ROUTE),
        BegunPartition(NAME, ROUTE, Offset(0)),
        SharedPartition(TopicPartition("a.orders", 3)),
        CHUNK,
        MapChunk(NAME, 0, ENDS, ()),
        MapPart(CHUNK),
        HEAD,
        replace(HEAD, tail="7,1,2,3", lacks_start=True, lost=True),
        replace(HEAD, lacks_start=True, unproven_end=Offset(50)),
        replace(HEAD, lost_to=Offset(63)),
    ],
)
def test_a_record_survives_its_encoding(stored: OffsetRecord) -> None:
    assert decode(*encode(stored)) == stored


def test_a_head_that_no_loss_concerns_is_stored_as_before() -> None:
    _, value = encode(HEAD)
    assert "lost_to" not in json.loads(value or b"")


def test_a_chunk_ends_behind_its_last_run() -> None:
    assert CHUNK.end == (16, 61)
    assert MapChunk(NAME, 0, ENDS, ()).end == ENDS


@pytest.mark.parametrize("stored", [CHUNK, MapChunk(NAME, 0, ENDS, ())])
def test_a_chunk_is_read_without_its_runs(stored: MapChunk) -> None:
    """Goal: where a part ends is known by what is recorded; earlier versions do not record it."""
    _, value = encode(MapPart(stored))
    assert value is not None
    for end in (stored.end, None):
        fields = {**json.loads(value), "end": end}
        kept = {name: field for name, field in fields.items() if field is not None}
        found = decode_chunk(NAME, stored.number, json.dumps(kept).encode())
        assert found == stored.encoded()
        assert found.runs.end == stored.end
        assert found.decoded() == stored


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"end": [16]}, "end is .*two offsets"),
        ({"end": [16, "61"]}, "end is .*two offsets"),
        ({"end": [16, 50]}, r"begin at \(10, 50\) and to end at \(16, 50\)"),
        ({"end": [9, 61]}, "to end at"),
        ({"runs": ""}, "0 bytes of runs"),
        ({"runs": "AAI", "end": None}, "expected base64"),
        ({"runs": "AAA=", "end": None}, "cut off"),
    ],
)
def test_a_chunk_that_cannot_be_is_refused(change: dict[str, Any], problem: str) -> None:
    """Goal: no reader builds a map on ends that no runs can have."""
    _, value = encode(MapPart(CHUNK))
    assert value is not None
    fields = {**json.loads(value), **change}
    kept = {name: field for name, field in fields.items() if field is not None}
    with pytest.raises(ProtocolError, match=problem):
        decode_chunk(NAME, 4, json.dumps(kept).encode())


def test_a_chunk_whose_runs_end_elsewhere_is_not_decoded() -> None:
    _, value = encode(MapPart(CHUNK))
    assert value is not None
    found = decode_chunk(NAME, 4, json.dumps({**json.loads(value), "end": [17, 61]}).encode())
    with pytest.raises(ProtocolError, match=r"end at \(16, 61\).*recorded to end at \(17, 61\)"):
        found.decoded()
    start = MapChunk(NAME, 3, Ends(Offset(2), Offset(2)), (Run(Offset(2), Offset(2), 5),))
    damaged = whole_map([found._replace(number=0)])
    with pytest.raises(ProtocolError, match=r"__mirror_offsets: the map of .*orders.* is damaged"):
        damaged.to_destination(11)
    with pytest.raises(ValueError, match="a part begins at"):
        whole_map([start.encoded(), found])


def test_maps_are_folded_by_the_ends_of_their_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a part that is missing or older is noticed, and no run is decoded for it."""
    first = MapChunk(NAME, 0, Ends(Offset(0), Offset(0)), (Run(Offset(2), Offset(2), 5),))
    longer = replace(first, runs=(*first.runs, Run(Offset(9), Offset(8), 2)))
    second = MapChunk(NAME, 1, longer.end, (Run(Offset(20), Offset(20), 1),))

    def refuse(*_: object) -> list[Run]:
        raise AssertionError

    def fold(*chunks: MapChunk) -> StoredOffsets:
        return fold_offsets(ControlRecord(0, 0, 0, *encode(one)) for one in chunks)

    with monkeypatch.context() as patch:
        patch.setattr(offset_runs, "decode_runs", refuse)
        stored = fold(first, longer, second)
        with pytest.raises(ControlTopicLost, match="lacks a part of the map"):
            fold(longer, second, first)
        assert stored.map(NAME).end == second.end
    assert stored.map(NAME).runs() == [*longer.runs, *second.runs]
    assert stored.chunks[NAME][0].decoded() == longer


def test_tombstones_and_newer_kinds_are_left_alone() -> None:
    assert decode(encode(CHUNK)[0], None) is None
    assert encode(DroppedChunk(NAME, 4)) == (encode(CHUNK)[0], None)
    assert decode(b'["newer","flow"]', b"{}") is None


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("version", 2, "version is 2, expected 1"),
        ("runs", [10], "increasing offsets in pairs"),
        ("runs", [9, 12], "increasing offsets in pairs"),
        ("runs", [10, 10], "increasing offsets in pairs"),
        ("runs", [10, 12, 11, 13], "increasing offsets in pairs"),
        ("runs", [10, "12"], "increasing offsets in pairs"),
        ("recorded", [10], "two offsets"),
        ("recorded", [-1, 0], "two offsets"),
        ("epoch", None, "a whole number"),
        ("taken", [1], "a sequence number and an offset"),
        ("tail", [7, 1], "a producer id, an epoch and a sequence number"),
        ("tail", [7, 1, "4"], "a producer id, an epoch and a sequence number"),
        ("route", {"source_topic_id": "?"}, "invalid topic id"),
        ("route", {"source_topic_id": "A" * 22}, "topic is"),
    ],
)
def test_a_damaged_plan_is_refused(field: str, value: object, reason: str) -> None:
    key, data = encode(StoredPlan(NAME, PLAN, ROUTE))
    assert data is not None
    with pytest.raises(ProtocolError, match=reason):
        decode(key, json.dumps({**json.loads(data), field: value}).encode())


@pytest.mark.parametrize(
    ("runs", "reason"), [("?", "base64"), ("gA==", "cut off"), ("AAAA", "have no record")]
)
def test_a_damaged_map_is_refused(runs: str, reason: str) -> None:
    key, data = encode(CHUNK)
    assert data is not None
    with pytest.raises(ProtocolError, match=reason):
        decode(key, json.dumps({**json.loads(data), "runs": runs}).encode())


def test_the_mirror_of_a_record_is_known_by_its_key() -> None:
    """Goal: what a mirror has recorded is found, and nothing else: tombstones delete it."""
    of_mirror: list[OffsetRecord] = [
        StoredPlan(NAME, PLAN, ROUTE),
        BegunPartition(NAME, ROUTE),
        CHUNK,
    ]
    assert {mirror_of(encode(one)[0]) for one in of_mirror} == {"flow"}
    assert mirror_of(encode(OffsetsOwner("a-0"))[0]) is None
    assert mirror_of(encode(OffsetsProducer(7))[0]) is None
    assert mirror_of(b'["later", "flow", "orders", 3]') is None
    # It stays as long as records of a deleted flow may be in another one's remote topic.
    assert mirror_of(encode(SharedPartition(TopicPartition("a.orders", 3)))[0]) is None
    with pytest.raises(ProtocolError):
        mirror_of(None)


@pytest.mark.parametrize(
    ("stored", "key"),
    [
        (HEAD, (NAME, None)),
        (DroppedHead(NAME), (NAME, None)),
        (MapPart(CHUNK), (NAME, 4)),
        (DroppedPart(NAME, 9), (NAME, 9)),
        (CHUNK, (NAME, 4)),
        (DroppedChunk(NAME, 4), (NAME, 4)),
        (BegunPartition(NAME, ROUTE), None),
        (SharedPartition(TopicPartition("a.orders", 3)), None),
    ],
)
def test_what_is_of_a_map(
    stored: OffsetRecord, key: tuple[MirrorPartition, int | None] | None
) -> None:
    """Goal: it is forgotten with its flow, and is no trace of a flow without transactions."""
    encoded, value = encode(stored)
    assert map_of(encoded) == key
    of_chunk = isinstance(stored, MapChunk | DroppedChunk)
    assert is_of_chunk(encoded) == of_chunk
    assert is_of_map_with_head(encoded) == (key is not None and not of_chunk)
    assert is_of_transactions(encoded) != of_chunk
    if key is not None:
        assert mirror_of(encoded) == NAME.mirror
    if isinstance(stored, DroppedHead | DroppedPart | DroppedChunk):
        assert value is None
        assert decode(encoded, value) is None


@pytest.mark.parametrize("parts", [[1], [1, -1], [1, "2"], [1, 2, 3]])
def test_the_parts_of_a_head_are_two_numbers(parts: list[object]) -> None:
    key, value = encode(HEAD)
    body = json.loads(value or b"")
    with pytest.raises(ProtocolError, match="parts"):
        decode(key, json.dumps({**body, "parts": parts}).encode())
