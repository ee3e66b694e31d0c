"""Twin of twinlog.store.recorded_maps: which plans are of the topics that are copied now."""

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, cast
from uuid import UUID

import pytest

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import Retriable
from twinlog.kafka.log.leader_epochs import EpochRun
from twinlog.kafka.types import (
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    Sequence,
    TopicPartition,
)
from twinlog.mirror.offset_runs import Ends, Run
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.recorded_map import RecordedMap
from twinlog.mirror.sequence_plan import SequencePlan
from twinlog.store import recorded_maps
from twinlog.store.config_records import MirrorTopic
from twinlog.store.map_chunks import MapChunk
from twinlog.store.offset_log import HeadedRecords, StoredOffsets
from twinlog.store.offset_records import (
    LostCopies,
    MapHead,
    MapPart,
    OffsetRecord,
    Route,
    StoredPlan,
    encode,
)
from twinlog.store.recorded_maps import (
    read_ends,
    read_headed_maps,
    read_last_copied,
    read_maps,
    recorded_translation,
)
from twinlog.store.state_records import LastMirrored
from twinlog.store.topic_reader import ControlRecord

TOPIC = MirrorTopic(
    mirror="flow",
    topic="orders",
    topic_id=UUID(int=1),
    partitions=2,
    destination_topic="a.orders",
    destination_topic_id=UUID(int=2),
)
NAME = MirrorPartition("flow", "orders", 0)
ROUTE = Route(UUID(int=1), "a.orders", UUID(int=2))


def ends(
    monkeypatch: pytest.MonkeyPatch,
    route: Route,
    epochs: Iterable[EpochRun] = (),
    topic: MirrorTopic = TOPIC,
) -> dict[TopicPartition, int]:
    """What is recorded as copied, with a plan of this route."""
    at = Ends(Offset(80), Offset(30))
    plan = SequencePlan(ProducerId(7), ProducerEpoch(1), Sequence(0), (), at)

    async def partitions(*_: object) -> int:
        return 1

    async def stored(*_: object) -> dict[int, StoredOffsets]:
        return {0: StoredOffsets(plans={NAME: StoredPlan(NAME, plan, route, tuple(epochs))})}

    monkeypatch.setattr(recorded_maps, "known_partition_count", partitions)
    monkeypatch.setattr(recorded_maps, "read_offsets", stored)
    return asyncio.run(read_ends(cast("KafkaCluster", None), [topic]))


def test_what_was_copied_ends_with_the_map(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ends(monkeypatch, ROUTE) == {TopicPartition("orders", 0): 80}


@pytest.mark.parametrize(
    ("runs", "epoch"),
    [
        ([(0, 40, 2), (40, 80, 3)], 3),
        ([(0, 40, 2), (40, 90, 3)], 3),
        ([(0, 40, 2), (40, 80, 3), (80, 95, 4)], 3),
        ([(0, 40, 2)], -1),
        ([], -1),
    ],
)
def test_the_epoch_is_that_of_the_last_copied_record(
    monkeypatch: pytest.MonkeyPatch, runs: list[tuple[int, int, int]], epoch: int
) -> None:
    """Goal: an epoch that was not seen is not guessed, nor is one of a record behind the copy."""
    epochs = [EpochRun(Offset(s), Offset(e), LeaderEpoch(n)) for s, e, n in runs]
    ends(monkeypatch, ROUTE, epochs=epochs)
    last = asyncio.run(read_last_copied(cast("KafkaCluster", None), [TOPIC]))
    assert last == {TopicPartition("orders", 0): LastMirrored(LeaderEpoch(epoch), Offset(80))}


@pytest.mark.parametrize(
    "other", [{"source_topic_id": UUID(int=9)}, {"topic": "b.orders"}, {"topic_id": UUID(int=9)}]
)
def test_what_was_copied_between_former_topics_does_not_count(
    monkeypatch: pytest.MonkeyPatch, other: dict[str, object]
) -> None:
    """Goal: MirrorMaker 2 is not told that a recreated topic has what the former one had."""
    assert ends(monkeypatch, ROUTE._replace(**other)) == {}  # type: ignore[arg-type]


def test_a_flow_that_goes_on_in_a_recreated_topic_keeps_its_position_and_no_map(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: until it is located there, no group is set to an offset of the former topic."""
    going_on = replace(TOPIC, destination_topic_id=UUID(int=3), lost_topic_ids=(UUID(int=2),))
    assert ends(monkeypatch, ROUTE, topic=going_on) == {TopicPartition("orders", 0): 80}
    other = UUID(int=9)
    for route in (ROUTE._replace(topic_id=other), ROUTE._replace(source_topic_id=other)):
        assert ends(monkeypatch, route, topic=going_on) == {}
    ends(monkeypatch, ROUTE, topic=going_on)
    monkeypatch.setattr(
        recorded_maps, "partition_count", vars(recorded_maps)["known_partition_count"]
    )
    assert asyncio.run(read_maps(cast("KafkaCluster", None), [going_on])) == {}


@pytest.mark.parametrize("lost", [None, "it ends at 4"])
@pytest.mark.parametrize(
    ("first", "behind_another", "lacks_start"),
    [(0, False, False), (3, False, True), (0, True, True)],
)
def test_a_map_tells_that_more_was_copied_below_it(
    first: int,
    behind_another: bool,
    lacks_start: bool,
    lost: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: no group is moved over records that were copied, and whose place is not known.

    An owner that outlives `__mirror_offsets` goes on with a later part in a new one. And a flow
    that took over from another program may be created again without a takeover.
    """
    at = Ends(Offset(80), Offset(30))
    plan = SequencePlan(ProducerId(7), ProducerEpoch(1), Sequence(0), (), at)
    losses = (LostCopies(Offset(60), Offset(70), Offset(20), Offset(25)),)
    stored_plan = StoredPlan(
        NAME, plan, ROUTE, behind_another=behind_another, lost=lost, losses=losses
    )
    offsets = StoredOffsets(
        plans={NAME: stored_plan},
        chunks={NAME: [MapChunk(NAME, first, at, ()).encoded()]},
    )

    async def partitions(*_: object) -> int | None:
        return 1

    async def stored(*_: object) -> dict[int, StoredOffsets]:
        return {0: offsets}

    monkeypatch.setattr(recorded_maps, "partition_count", partitions)
    monkeypatch.setattr(recorded_maps, "read_offsets", stored)
    (found,) = asyncio.run(read_maps(cast("KafkaCluster", None), [TOPIC])).values()
    assert found.lacks_start is lacks_start
    assert found.lost is (lost is not None)
    assert (found.lost_sources, found.lost_places) == (((60, 70),), ((20, 25),))


def test_a_map_that_is_being_replaced_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a group whose place is in a part that is dropped first is not set to the map's end.

    One that is lost is withheld by that; it may stay so, and the flow's other maps are read.
    """
    recorded = Ends(Offset(80), Offset(30))
    plan = SequencePlan(ProducerId(7), ProducerEpoch(1), Sequence(0), (), recorded)
    first = MapChunk(*(NAME, 0, Ends(Offset(0), Offset(0))), (Run(Offset(0), Offset(0), 10),))
    last = MapChunk(NAME, 1, first.end, (Run(Offset(10), Offset(11), 19),))
    parts = [first.encoded(), last.encoded()]

    async def partitions(*_: object) -> int:
        return 1

    stored_plan = StoredPlan(NAME, plan, ROUTE)

    async def stored(*_: object) -> dict[int, StoredOffsets]:
        return {0: StoredOffsets(plans={NAME: stored_plan}, chunks={NAME: parts})}

    monkeypatch.setattr(recorded_maps, "partition_count", partitions)
    monkeypatch.setattr(recorded_maps, "read_offsets", stored)
    (found,) = asyncio.run(read_maps(cast("KafkaCluster", None), [TOPIC])).values()
    assert found.runs.end.destination == 30
    del parts[1]
    with pytest.raises(Retriable, match="is being replaced"):
        asyncio.run(read_maps(cast("KafkaCluster", None), [TOPIC]))
    stored_plan = replace(stored_plan, lost="the log ends at 5")
    (found,) = asyncio.run(read_maps(cast("KafkaCluster", None), [TOPIC])).values()
    assert found.lost


@pytest.mark.parametrize(
    ("begin", "lost_from", "behind_another", "unproven_end"),
    [
        (80, 60, True, 60),  # nothing of the flow's own was left, and it had begun at 60
        (80, 0, True, 0),  # at 0: all that was copied is known to be lost
        (60, 60, True, 60),  # the topic was recreated
        (60, 70, True, 0),  # some of it was left, and all in front of that
        (60, 60, False, 0),  # the flow has copied nothing in front of it
    ],
)
def test_a_loss_that_reaches_the_beginning_of_a_map_may_reach_further(
    monkeypatch: pytest.MonkeyPatch,
    begin: int,
    lost_from: int,
    unproven_end: int,
    *,
    behind_another: bool,
) -> None:
    """Goal: what another program has copied in front of the map may be lost with it."""
    at = Ends(Offset(begin), Offset(30))
    plan = SequencePlan(ProducerId(7), ProducerEpoch(1), Sequence(0), (), at)
    losses = (LostCopies(Offset(lost_from), Offset(80), Offset(20), Offset(25)),)
    stored_plan = StoredPlan(NAME, plan, ROUTE, behind_another=behind_another, losses=losses)
    chunks = {NAME: [MapChunk(NAME, 0, at, ()).encoded()]}

    async def partitions(*_: object) -> int:
        return 1

    async def stored(*_: object) -> dict[int, StoredOffsets]:
        return {0: StoredOffsets(plans={NAME: stored_plan}, chunks=chunks)}

    monkeypatch.setattr(recorded_maps, "partition_count", partitions)
    monkeypatch.setattr(recorded_maps, "read_offsets", stored)
    (found,) = asyncio.run(read_maps(cast("KafkaCluster", None), [TOPIC])).values()
    assert found.unproven_end == unproven_end


def test_only_what_no_broker_knows_is_no_map(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: by one broker that does not know `__mirror_offsets`, nothing counts as copied."""
    asked: list[str] = []
    known = True

    async def none(*_: object) -> None:
        return None

    async def confirm(_: object, name: str) -> None:
        asked.append(name)
        if known:
            raise Retriable("the topic is not yet known to every broker", topic=name)

    monkeypatch.setattr(recorded_maps, "partition_count", none)
    monkeypatch.setattr(recorded_maps, "confirm_absent", confirm)
    with pytest.raises(Retriable, match="not yet known"):
        asyncio.run(read_maps(cast("KafkaCluster", None), [TOPIC]))
    known = False
    assert asyncio.run(read_maps(cast("KafkaCluster", None), [TOPIC])) == {}
    assert asked == ["__mirror_offsets", "__mirror_offsets"]


def _headed(head: MapHead, *chunks: MapChunk) -> StoredOffsets:
    def record(one: OffsetRecord) -> ControlRecord:
        return ControlRecord(0, 0, 0, *encode(one))

    parts = {chunk.number: record(MapPart(chunk)) for chunk in chunks}
    return StoredOffsets(headed={NAME: HeadedRecords(record(head), parts)})


@pytest.mark.parametrize(
    ("change", "mapped"),
    [
        ({}, True),
        ({"route": ROUTE._replace(source_topic_id=UUID(int=9))}, False),
        ({"route": ROUTE._replace(topic_id=UUID(int=9))}, False),
        ({"lost": True, "lacks_start": True}, True),
        ({"lacks_start": True, "unproven_end": Offset(4)}, True),
        ({"lost_to": Offset(9), "lacks_start": True}, True),
        ({"lost_to": Offset(9), "lost": True}, True),
        ({"lost_to": Offset(1)}, True),
    ],
)
def test_a_map_with_a_head_is_of_the_topics_that_are_copied(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], *, mapped: bool
) -> None:
    """Goal: maps of former topics, and those whose parts are lost, give no translation."""
    chunk = MapChunk(NAME, 2, Ends(Offset(5), Offset(1)), (Run(Offset(6), Offset(3), 2),))
    head = replace(MapHead(NAME, ROUTE, Offset(9), 2, 2, chunk.end), **change)
    found = {0: _headed(head, chunk)}

    async def partitions(*_: object) -> int:
        return 1

    async def stored(_: object, __: object) -> dict[int, StoredOffsets]:
        return found

    monkeypatch.setattr(recorded_maps, "partition_count", partitions)
    monkeypatch.setattr(recorded_maps, "read_offsets", stored)

    def read() -> dict[TopicPartition, RecordedMap]:
        return asyncio.run(read_headed_maps(cast("KafkaCluster", None), [TOPIC]))

    maps = read()
    assert maps.keys() == ({TopicPartition("orders", 0)} if mapped else set())
    for recorded in maps.values():
        assert (recorded.position, recorded.pending) == (9, False)
        assert (recorded.lost, recorded.lacks_start) == (head.lost, head.lacks_start)
        assert recorded.unproven_end == head.unproven_end
        assert recorded.runs.start == (5, 1)
        # While the partition is FAILED nothing of it is translated, so no place is named.
        places = ((1, 9),) if head.lost_to == 9 and not head.lost else ()
        assert recorded.lost_places == places
        assert recorded.follows_another, "the map of its first parts was given up"
        assert recorded_translation([TOPIC], maps).passed == maps.keys()
        assert recorded.runs.runs() == [*chunk.runs]
    whole = replace(chunk, number=0, start=Ends(Offset(0), Offset(0)))
    first = MapHead(NAME, ROUTE, Offset(9), 0, 0, whole.end)
    found[0] = _headed(first, whole)
    assert not recorded_translation([TOPIC], read()).passed
    # A former map may have left no number, where `__mirror_offsets` was lost.
    found[0] = _headed(replace(first, lacks_start=True), whole)
    assert recorded_translation([TOPIC], read()).passed
    found[0] = _headed(head)
    assert not read()
