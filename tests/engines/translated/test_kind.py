"""Twin of twinlog.engines.translated.kind."""

import asyncio
from typing import cast
from uuid import UUID

import pytest

from twinlog.engines.translated import kind
from twinlog.engines.translated.kind import TranslatedKind
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.types import Offset, TopicPartition
from twinlog.mirror.offset_runs import Ends, OffsetRuns
from twinlog.mirror.recorded_map import RecordedMap
from twinlog.store.config_records import MirrorTopic

A = TopicPartition("orders", 0)


def test_what_a_former_flow_has_not_mapped_is_not_translated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: a group is not moved to the map's start, in front of which MirrorMaker 2 has copied.

    A flow that was deleted and created again goes on with the map of the former one, and may be
    told a lower begin.
    """

    async def read(*_: object) -> dict[TopicPartition, RecordedMap]:
        runs = OffsetRuns(Ends(Offset(5000), Offset(900)))
        recorded = RecordedMap(runs, Offset(5010), pending=False)
        return {TopicPartition("orders", at): recorded for at in (0, 1)}

    monkeypatch.setattr(kind, "read_maps", read)
    topic = MirrorTopic(
        mirror="flow",
        topic="orders",
        topic_id=UUID(int=1),
        partitions=3,
        destination_topic="a.orders",
        begins=(4001, 6000, 70),
    )
    found = asyncio.run(TranslatedKind().translation(cast("KafkaCluster", None), [topic], {}))
    assert {key.partition: begin for key, begin in found.begins.items()} == {
        0: 5000,
        1: 6000,
        2: 70,
    }
    assert not found.translates(A, 4200)
    assert found.translates(A, 5000)


def test_what_a_lost_part_of_a_map_had_is_not_translated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a group is not moved over records that were copied, and whose place is not known."""

    async def read(*_: object) -> dict[TopicPartition, RecordedMap]:
        runs = OffsetRuns(Ends(Offset(5000), Offset(900)))
        return {A: RecordedMap(runs, Offset(5000), pending=False, lacks_start=True)}

    monkeypatch.setattr(kind, "read_maps", read)
    topic = MirrorTopic(mirror="flow", topic="orders", topic_id=UUID(int=1), partitions=1)
    found = asyncio.run(TranslatedKind().translation(cast("KafkaCluster", None), [topic], {}))
    assert not found.translates(A, 4999)
    assert found.translates(A, 5000)
    assert not found.lost


def test_a_copy_that_has_lost_records_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    async def read(*_: object) -> dict[TopicPartition, RecordedMap]:
        runs = OffsetRuns(Ends(Offset(0), Offset(0)))
        keys = {TopicPartition("orders", at): at == 0 for at in (0, 1)}
        return {
            key: RecordedMap(
                runs,
                Offset(0),
                pending=False,
                lost=lost,
                lost_places=() if lost else ((Offset(3), Offset(5)),),
            )
            for key, lost in keys.items()
        }

    monkeypatch.setattr(kind, "read_maps", read)
    topic = MirrorTopic(mirror="flow", topic="orders", topic_id=UUID(int=1), partitions=2)
    found = asyncio.run(TranslatedKind().translation(cast("KafkaCluster", None), [topic], {}))
    assert found.lost == {A}
    assert found.passed == {TopicPartition("orders", 1)}
