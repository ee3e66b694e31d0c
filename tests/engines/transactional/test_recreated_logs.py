"""Twin of twinlog.engines.transactional.recreated_logs, with a log in memory."""

import asyncio
from dataclasses import replace
from typing import Any, cast
from uuid import UUID

import pytest
from batch_builders import ABORT, COMMIT, marker, record
from remote_logs import RemoteLog

from twinlog.engines.ports import DestinationPort
from twinlog.engines.transactional import recreated_logs
from twinlog.engines.transactional.position_maps import NO_MAP, KnownMap
from twinlog.engines.transactional.positions import position_metadata
from twinlog.engines.transactional.recreated_logs import RecreatedLogs, lost_copies
from twinlog.engines.transactional.remote_tails import RemoteTail, tail_of_batch
from twinlog.engines.transactional.source_position import ToBegin
from twinlog.engines.translated.location import NotLocated
from twinlog.kafka.groups.offsets import Committed
from twinlog.kafka.log.batch import TRANSACTIONAL, batches
from twinlog.kafka.log.compression import Codec
from twinlog.kafka.log.records import build, whole
from twinlog.kafka.types import Offset, ProducerId, Sequence, TopicPartition
from twinlog.mirror.offset_runs import Ends
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.record_losses import RecordLoss
from twinlog.store.offset_records import BegunPartition, MapHead, Route

NAME, REMOTE = MirrorPartition("m", "t", 0), TopicPartition("A.t", 0)
PRESENT = Route(UUID(int=1), REMOTE.topic, UUID(int=2))
FORMER = PRESENT._replace(topic_id=UUID(int=3))
OWN, FOREIGN = 7, 8


def data(first: int, producer_id: int = OWN) -> bytes:
    """Two records of a transaction."""
    built = build([record(first), record(first + 1)], Codec.NONE)
    made = whole(built, attributes=TRANSACTIONAL, producer_id=producer_id, epoch=4, sequence=first)
    return first.to_bytes(8, "big") + made[8:]


def tail(first: int) -> RemoteTail:
    return tail_of_batch(first, 2, (OWN, 4), Sequence(first))


def at(position: int, of: RemoteTail | None, route: Route = FORMER) -> Committed:
    return Committed(position, position_metadata(route, None, of))


def located(
    log: RemoteLog,
    committed: Committed | None = None,
    begun: Route | None = FORMER,
    lost: tuple[UUID, ...] = (UUID(int=3),),
    logs: RecreatedLogs | None = None,
) -> Committed | NotLocated | None:
    """Where the partition goes on that has no position of the present topics."""
    wanted = ToBegin(PRESENT, Offset(0), lost_topic_ids=lost)
    record_of = None if begun is None else BegunPartition(NAME, begun)
    logs = logs or RecreatedLogs(cast("DestinationPort", log))
    positions, unknown = asyncio.run(
        logs.positions(
            {NAME: None},
            {NAME: wanted} if wanted.is_lost(record_of) else {},
            {} if committed is None else {REMOTE: committed},
            own_ids=[OWN],
        )
    )
    assert positions.keys() | unknown.keys() == {NAME}
    return unknown.get(NAME) or positions[NAME]


def of(*content: bytes, **what: Any) -> RemoteLog:
    found = b"".join(content)
    end = [*batches(memoryview(found))][-1].next_offset if content else 0
    return RemoteLog(found, end, **what)


@pytest.mark.parametrize(
    "content",
    [
        [],
        [data(0, FOREIGN), marker(2, FOREIGN, COMMIT)],
        [data(0), marker(2, OWN, ABORT)],
        [marker(0, OWN, COMMIT)],  # a fence
    ],
)
@pytest.mark.parametrize("committed", [None, at(5, tail(40)), at(5, None), Committed(5, "")])
def test_all_is_copied_again_where_nothing_of_the_flow_is(
    content: list[bytes], committed: Committed | None
) -> None:
    """Goal: also with a position of the former topic, which brokers may have left."""
    assert located(of(*content), committed) is None


def test_it_goes_on_behind_what_has_landed_unseen() -> None:
    """Goal: brokers before 4.1 take batches for a topic of the same name; nothing is twice."""
    log = of(data(0), marker(2, OWN, COMMIT), data(3), marker(5, OWN, COMMIT), data(6, FOREIGN))
    committed = at(9, tail(3))
    assert located(log, committed) == committed
    log.batches_each = 1
    assert located(log, committed) == committed


@pytest.mark.parametrize("committed", [None, at(9, tail(0)), at(9, None), Committed(9, "")])
def test_what_has_landed_without_its_position_is_failed(committed: Committed | None) -> None:
    found = located(of(data(0), marker(2, OWN, COMMIT), data(3), marker(5, OWN, COMMIT)), committed)
    assert isinstance(found, NotLocated)
    assert not found.transient
    assert "A.t-0 was recreated, and a transaction has landed there up to 5" in found.reason


def test_batches_of_a_former_producer_id_count() -> None:
    former = tail(0)
    log = of(data(0, FOREIGN), marker(2, FOREIGN, COMMIT))
    other = former._replace(last=former.last._replace(producer_id=ProducerId(FOREIGN)))
    assert located(log, at(9, other)) == at(9, other)


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (of(data(0)), "lacks the marker"),
        (of(data(0), marker(2, OWN, COMMIT), replicated=2), "lacks the marker|replicated up to 2"),
        (replace(of(data(0)), error=6), "cannot read the log end"),
    ],
)
def test_what_cannot_be_read_now_is_read_again(log: RemoteLog, reason: str) -> None:
    """Goal: silence is no evidence that nothing has landed."""
    found = located(log)
    assert isinstance(found, NotLocated)
    assert found.transient
    assert any(one in found.reason for one in reason.split("|"))


def test_a_log_is_read_once() -> None:
    """Goal: a partition that is FAILED holds up no other one each time it is located again."""
    log = of(data(0))
    logs = RecreatedLogs(cast("DestinationPort", log))
    found = located(log, logs=logs)
    assert isinstance(found, NotLocated)
    assert found.transient
    assert log.reads == 1
    log.found += marker(2, OWN, COMMIT) + data(3, FOREIGN)
    log.end = 5
    for _ in range(2):
        found = located(log, logs=logs)
        assert isinstance(found, NotLocated)
        assert "landed there up to 2" in found.reason
        assert log.reads == 2
    assert located(log, at(9, tail(0)), logs=logs) == at(9, tail(0))


def test_another_leader_is_read_anew() -> None:
    """Goal: an unclean election that takes what was read leaves nothing behind."""
    log = of(data(0))
    logs = RecreatedLogs(cast("DestinationPort", log))
    found = located(log, logs=logs)
    assert isinstance(found, NotLocated)
    log.found, log.end, log.leader_epoch = data(0, FOREIGN), 2, 1
    assert located(log, logs=logs) is None
    log.found, log.end = data(0), 2
    assert isinstance(located(log, logs=logs), NotLocated)
    log.found, log.end = b"", 0
    assert located(log, logs=logs) is None


def test_a_long_log_is_read_in_several_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: other partitions of the state partition are held up for seconds only."""
    monkeypatch.setattr(recreated_logs, "_READ_S", -1.0)
    log = of(data(0, FOREIGN), marker(2, FOREIGN, COMMIT), data(3, FOREIGN), batches_each=1)
    logs = RecreatedLogs(cast("DestinationPort", log))
    for position in (2, 3):
        found = located(log, logs=logs)
        assert isinstance(found, NotLocated)
        assert found.transient
        assert f"is read up to its end, 5, first: now at {position}" in found.reason
    assert located(log, logs=logs) is None


@pytest.mark.parametrize(("copied_to", "expected"), [(None, 3), (Offset(0), 3), (Offset(8), 8)])
def test_where_all_is_copied_again(copied_to: Offset | None, expected: int) -> None:
    """Goal: `latest` leaves out nothing that may have been copied, and no loss is made up."""
    one = ToBegin(
        PRESENT, Offset(8), copied_to, lost_topic_ids=(UUID(int=3),), source_start=Offset(3)
    )
    assert one.again().begin == expected


@pytest.mark.parametrize(
    ("begun", "lost"),
    [
        (None, (UUID(int=3),)),
        (FORMER, ()),
        (PRESENT, (UUID(int=3),)),
        (FORMER._replace(source_topic_id=UUID(int=9)), (UUID(int=3),)),
    ],
)
def test_other_logs_are_not_read(begun: Route | None, lost: tuple[UUID, ...]) -> None:
    log = of(data(0), marker(2, OWN, COMMIT))
    assert located(log, None, begun, lost) is None
    assert not log.reads


def test_a_loss_is_counted_as_far_as_it_is_known() -> None:
    end = Ends(Offset(9), Offset(12))
    head = MapHead(NAME, FORMER, Offset(9), 0, 0, end)
    assert lost_copies(REMOTE, KnownMap(head)) == RecordLoss(REMOTE, None, Offset(12))
    assert lost_copies(REMOTE, NO_MAP) == RecordLoss(REMOTE, None, None)
