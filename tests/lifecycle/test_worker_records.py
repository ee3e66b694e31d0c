"""What MirrorMaker 2 has recorded as copied, by several connectors and in several topics."""

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from twinlog.kafka.errors import UserError
from twinlog.kafka.types import TopicPartition
from twinlog.lifecycle import worker_records
from twinlog.lifecycle.flow_takeover import FlowTakeover
from twinlog.mirror.connect_offsets import CONNECTOR, ConnectOffset, encode
from twinlog.mirror.flow import connect_worker_of, flow_of, flow_properties

ORDERS = TopicPartition("orders", 0)
OWN, USUAL = "own", "mm2-offsets.a.internal"


@pytest.fixture
def takeover(monkeypatch: pytest.MonkeyPatch) -> "Takeover":
    return Takeover(monkeypatch)


class Takeover:
    """A takeover that finds these offsets, by topic and connector; None: there is no topic."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.recorded: dict[str, dict[str, int]] = {}
        self.connector = CONNECTOR
        self.mode = "compare"
        monkeypatch.setattr(worker_records, "_exists", self._exists)
        monkeypatch.setattr(worker_records, "read_whole", self._read)
        monkeypatch.setattr(worker_records, "member_clients", self._members)

    async def _exists(self, _: object, topic: str) -> bool:
        return topic in self.recorded

    async def _members(self, *_: object) -> tuple[str, ...]:
        return ()

    async def _read(self, _: object, topic: str) -> list[Any]:
        offsets = self.recorded[topic].items()
        pairs = [encode(ConnectOffset(one, "a", ORDERS, offset)) for one, offset in offsets]
        return [SimpleNamespace(key=key, value=value) for key, value in pairs]

    def _flow(self) -> FlowTakeover:
        nobody = cast("Any", None)
        values = {
            "enabled": "true",
            "connect.offsets.storage.topic": OWN,
            "twinlog.takeover.connector": self.connector,
            "twinlog.takeover": self.mode,
        }
        properties = flow_properties(values, "a", "b")
        flow, worker = flow_of(properties), connect_worker_of(properties)
        return FlowTakeover(nobody, nobody, flow, worker, routes=False, splits=False)

    def check(self, end: int) -> None:
        asyncio.run(self._flow().check_copied({ORDERS: end}))

    def only_by_others(self) -> bool:
        return asyncio.run(self._flow()._left.only_by_others(ORDERS))

    def copied(self) -> Mapping[TopicPartition, int] | None:
        return asyncio.run(self._flow()._left.copied())


@pytest.mark.parametrize(
    "recorded",
    [
        {USUAL: {CONNECTOR: 9000}},
        {USUAL: {CONNECTOR: 9000, "former": 999}},
        {USUAL: {CONNECTOR: 9000}, OWN: {CONNECTOR: 999}},
    ],
)
def test_nothing_hides_what_mirror_maker_has_copied_since(
    takeover: Takeover, recorded: dict[str, dict[str, int]]
) -> None:
    """Goal: neither a lower offset of another connector, nor one of another topic."""
    takeover.recorded = recorded
    with pytest.raises(UserError, match="has recorded offset 9000, and the flow has copied up to"):
        takeover.check(1000)
    takeover.check(9001)


def test_only_the_connector_that_is_named_counts(takeover: Takeover) -> None:
    """Goal: in a Connect cluster of one's own, others may copy the same source elsewhere."""
    takeover.connector = "a->b.MirrorSourceConnector"
    takeover.recorded = {USUAL: {CONNECTOR: 9000, takeover.connector: 41}}
    assert takeover.copied() == {ORDERS: 41}
    takeover.check(42)
    with pytest.raises(UserError, match="has recorded offset 41"):
        takeover.check(41)
    takeover.recorded = {USUAL: {CONNECTOR: 9000}}
    assert takeover.copied() == {}
    assert not takeover.only_by_others()
    takeover.mode = "refuse"
    assert takeover.copied() == {ORDERS: 9000}, "whoever has copied it"


def test_an_offset_of_another_connector_alone_is_told_apart(takeover: Takeover) -> None:
    """Goal: it may copy to another topic, so an offset sync of MirrorMaker 2 goes before it."""
    assert not takeover.only_by_others()
    takeover.recorded = {USUAL: {"x": 500}}
    assert takeover.only_by_others()
    takeover.recorded[OWN] = {CONNECTOR: 30}
    assert not takeover.only_by_others()


def test_a_flow_begins_at_the_lowest_offset_of_the_topic_that_counts(takeover: Takeover) -> None:
    """Goal: all below it was copied, whichever connector is the present one."""
    assert takeover.copied() is None
    takeover.check(0)
    takeover.recorded = {USUAL: {CONNECTOR: 41, "former": 12}}
    assert takeover.copied() == {ORDERS: 12}
    takeover.recorded[OWN] = {CONNECTOR: 30}
    assert takeover.copied() == {ORDERS: 30}


def test_a_topic_in_which_only_other_connectors_have_recorded_hides_no_offset(
    takeover: Takeover,
) -> None:
    """Goal: Connect looks for each connector's own key, first in its own topic of offsets.

    An offset that another connector has there would leave out what is between.
    """
    takeover.recorded = {USUAL: {CONNECTOR: 41, "former": 12}, OWN: {"x": 9000}}
    assert takeover.copied() == {ORDERS: 12}
    assert not takeover.only_by_others()
    takeover.recorded = {USUAL: {"x": 41}, OWN: {"y": 9000}}
    assert takeover.copied() == {ORDERS: 9000}
    assert takeover.only_by_others()
    takeover.recorded = {USUAL: {"x": 41}, OWN: {CONNECTOR: 30}}
    assert takeover.copied() == {ORDERS: 30}
