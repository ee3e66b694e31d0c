"""Twin of twinlog.engines.transactional.settled, with the target in memory."""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast
from uuid import UUID

import pytest
from batch_builders import ABORT, COMMIT, batch, marker, record
from remote_logs import RemoteLog

from twinlog.engines.ports import LeaderReport, LogEnd
from twinlog.engines.transactional import positions, settled
from twinlog.engines.transactional.positions import (
    SettledPosition,
    position_metadata,
    settled_positions,
)
from twinlog.engines.transactional.remote_tails import (
    OlderPosition,
    ShorterLog,
    TailProblem,
    tail_of_batch,
)
from twinlog.engines.transactional.routed_tails import RoutedLoss, RoutedTail
from twinlog.engines.translated.remote_log import LostEnd
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import Retriable
from twinlog.kafka.groups.offsets import Committed
from twinlog.kafka.log.batch import TRANSACTIONAL
from twinlog.kafka.log.compression import Codec
from twinlog.kafka.log.records import build, whole
from twinlog.kafka.log_reader import ReadAlone
from twinlog.kafka.types import LogBounds, Sequence, TopicPartition
from twinlog.mirror.placement import MirrorPartition
from twinlog.store.config_records import MirrorTopic
from twinlog.store.offset_log import StoredOffsets
from twinlog.store.offset_records import BegunPartition, Route

TOPIC = MirrorTopic(
    mirror="flow",
    topic="orders",
    topic_id=UUID(int=1),
    partitions=1,
    destination_topic="a.orders",
    destination_topic_id=UUID(int=2),
)
NAME = MirrorPartition("flow", "orders", 0)
OTHER = MirrorPartition("flow", "other", 0)
REMOTE, LOG = TopicPartition("a.orders", 0), TopicPartition("routed", 0)
ROUTE = Route(UUID(int=1), "a.orders", UUID(int=2))
OFFSETS_ID, ROUTED_ID = UUID(int=7), UUID(int=8)
TAIL = tail_of_batch(50, 3, (7, 4), Sequence(10))
"""The batch of the offsets 50 to 52."""
LED = LeaderReport(1, 5, ROUTED_ID)


def own(kind: int = COMMIT) -> bytes:
    """The batch of `TAIL`, and the marker that ends its transaction."""
    built = build([record(at) for at in range(50, 53)], Codec.NONE)
    one = whole(built, attributes=TRANSACTIONAL, producer_id=7, epoch=4, sequence=10)
    return (50).to_bytes(8, "big") + one[8:] + marker(53, 7, kind)


MARKER = marker(53, 7, COMMIT)
FOREIGN = batch([record(53)], producer_id=8)
LATER = batch([record(54)], attributes=TRANSACTIONAL, producer_id=7) + marker(55, 7, COMMIT)


@dataclass
class Target:
    """Logs, and what brokers report of their topics."""

    logs: Mapping[TopicPartition, RemoteLog]
    reports: Mapping[TopicPartition, LeaderReport] = field(default_factory=dict)
    absent_topics: Collection[str] | None = ()
    """By every broker; None: one does not answer."""

    async def leaders(self, topics: Collection[str]) -> Mapping[TopicPartition, LeaderReport]:
        return {key: one for key, one in self.reports.items() if key.topic in topics}

    async def absent(self, topics: Collection[str]) -> Collection[str]:
        if self.absent_topics is None:
            raise Retriable("a broker does not answer")
        return [topic for topic in topics if topic in self.absent_topics]

    async def log_ends(self, keys: Iterable[TopicPartition]) -> Mapping[TopicPartition, LogEnd]:
        return {key: (await self.logs[key].log_ends([key]))[key] for key in keys}

    async def bounds(self, keys: Iterable[TopicPartition]) -> Mapping[TopicPartition, LogBounds]:
        return {key: (await self.logs[key].bounds([key]))[key] for key in keys}

    async def read_alone(self, partition: TopicPartition, offset: int, **what: Any) -> ReadAlone:
        return await self.logs[partition].read_alone(partition, offset, **what)


def compared(
    monkeypatch: pytest.MonkeyPatch, target: Target, *found: SettledPosition
) -> Mapping[MirrorPartition, TailProblem]:
    def port(_: object, may_write: Any) -> Target:
        assert not may_write()
        return target

    monkeypatch.setattr(settled, "KafkaDestination", port)
    names = dict(zip((NAME, OTHER), found, strict=False))
    return asyncio.run(settled.compare_settled(cast("KafkaCluster", None), names))


def at(own_ids: Collection[int] = (), routed: tuple[RoutedTail, ...] = ()) -> SettledPosition:
    metadata = position_metadata(ROUTE, None, TAIL, routed=routed)
    return SettledPosition(Committed(80, metadata), REMOTE, own_ids)


@pytest.mark.parametrize(
    ("log", "own_ids", "problem"),
    [
        (RemoteLog(own(), 54), (), None),
        (RemoteLog(own(), 54), (7,), None),
        (RemoteLog(own(), 90, start=90), (7,), None),
        (RemoteLog(b"", 52), (), ShorterLog),
        (RemoteLog(own() + LATER, 56), (7,), OlderPosition),
        (RemoteLog(own() + LATER, 56), (), None),
        (RemoteLog(own(), 53), (), Retriable),
        (RemoteLog(own(ABORT), 54), (), LostEnd),
        (RemoteLog(own()[: -len(MARKER)] + FOREIGN, 54), (), Retriable),
        (RemoteLog(own(), 54, replicated=50), (), Retriable),
    ],
)
def test_the_remote_log_is_compared_with_the_tail(
    monkeypatch: pytest.MonkeyPatch,
    log: RemoteLog,
    own_ids: Collection[int],
    problem: type[Exception] | None,
) -> None:
    """Goal: as when a partition is located; what cannot be read now is a problem."""
    found = compared(monkeypatch, Target({REMOTE: log}), at(own_ids))
    assert [type(one) for one in found.values()] == ([] if problem is None else [problem])


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        (Target({LOG: RemoteLog(own(), 54)}, {LOG: LED}), None),
        (Target({LOG: RemoteLog(b"", 40)}, {LOG: LED}), RoutedLoss),
        (Target({}, {LOG: LED._replace(topic_id=UUID(int=9))}), RoutedLoss),
        (Target({}, absent_topics=("routed",)), RoutedLoss),
        (Target({}, absent_topics=()), Retriable),
        (Target({}, absent_topics=None), Retriable),
        (Target({}, {LOG: LED._replace(node=-1)}), Retriable),
    ],
)
def test_logs_that_records_were_routed_to_are_compared(
    monkeypatch: pytest.MonkeyPatch, target: Target, problem: type[Exception] | None
) -> None:
    """Goal: a topic that was deleted is a loss; one that is not known, or offline, a problem."""
    target = replace(target, logs={**target.logs, REMOTE: RemoteLog(own(), 54)})
    routed = (RoutedTail(LOG, ROUTED_ID, TAIL),)
    found = compared(monkeypatch, target, at(routed=routed))
    assert [type(one) for one in found.values()] == ([] if problem is None else [problem])


def test_a_position_without_tails_asks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: so has one that an operator has committed; each partition has its own result."""
    nothing = SettledPosition(Committed(5, ""), TopicPartition("a.other", 0), (7,))
    assert compared(monkeypatch, Target({})) == {}
    found = compared(monkeypatch, Target({REMOTE: RemoteLog(b"", 40)}), at(), nothing)
    assert [*found] == [NAME]


@pytest.mark.parametrize(
    ("recorded_in", "shared", "ids"),
    [
        (OFFSETS_ID, (), {7}),
        (OFFSETS_ID, (REMOTE,), set[int]()),
        (UUID(int=9), (), set[int]()),
        (None, (), set[int]()),
    ],
)
def test_own_ids_are_known_where_nobody_else_has_written(
    monkeypatch: pytest.MonkeyPatch,
    recorded_in: UUID | None,
    shared: Collection[TopicPartition],
    ids: set[int],
) -> None:
    """Goal: as when it is located, by what `__mirror_offsets` records since the tail."""
    committed = Committed(
        80, position_metadata(ROUTE, None, TAIL._replace(recorded_in=recorded_in))
    )
    ids_now = [OFFSETS_ID]

    async def answered(answer: object) -> object:
        return answer

    begun = {NAME: BegunPartition(NAME, ROUTE)}
    stored = {0: StoredOffsets(begun=begun, shared=shared)}
    for name, answer in (
        ("committed_offsets", {REMOTE: committed}),
        ("known_partition_count", 1),
        ("read_offsets", stored),
    ):
        monkeypatch.setattr(positions, name, lambda *_, answer=answer, **__: answered(answer))
    monkeypatch.setattr(positions, "offsets_topic_id", lambda _: answered(ids_now.pop(0)))

    def found() -> Mapping[MirrorPartition, SettledPosition]:
        return asyncio.run(settled_positions(cast("KafkaCluster", None), "group", [TOPIC]))

    ids_now[:] = [OFFSETS_ID, OFFSETS_ID]
    assert found() == {NAME: SettledPosition(committed, REMOTE, ids or ())}
    ids_now[:] = [OFFSETS_ID, UUID(int=9)]
    with pytest.raises(Retriable, match="recreated while it was read"):
        found()
