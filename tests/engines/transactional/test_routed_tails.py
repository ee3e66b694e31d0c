"""Twin of twinlog.engines.transactional.routed_tails, with logs in memory."""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, cast
from uuid import UUID

import pytest
from batch_builders import ABORT, COMMIT, batch, marker, record
from hypothesis import given
from hypothesis import strategies as st
from remote_logs import RemoteLog

from twinlog.engines.ports import WHOLE_TOPIC, DestinationPort, LeaderReport, LogEnd
from twinlog.engines.transactional.remote_tails import (
    LandedBatches,
    RemoteTail,
    TailProblem,
    tail_of_batch,
)
from twinlog.engines.transactional.routed_tails import (
    Doubt,
    RoutedLoss,
    RoutedTail,
    RoutedTails,
    bounded,
    compare_routed,
    in_doubt,
    parse_routed,
    routed_behind,
    routed_text,
    to_compare_again,
)
from twinlog.kafka.client.metadata import NO_TOPIC_ID, Metadata, Partition, Topic
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Retriable
from twinlog.kafka.log.batch import TRANSACTIONAL
from twinlog.kafka.log.compression import Codec
from twinlog.kafka.log.records import build, whole
from twinlog.kafka.log_reader import ReadAlone
from twinlog.kafka.types import LeaderEpoch, LogBounds, Offset, Sequence, TopicPartition
from twinlog.mirror.placement import MirrorPartition

ID, OTHER_ID = UUID(int=5), UUID(int=6)
LOG, SECOND = TopicPartition("x.orders", 0), TopicPartition("x.late", 3)
TAIL = tail_of_batch(50, 3, (7, 4), Sequence(10))
"""The batch of the offsets 50 to 52."""
NEXT = tail_of_batch(60, 2, (7, 5), Sequence(0))
ROUTED = RoutedTail(LOG, ID, TAIL)
DOUBT = Doubt("nobody leads it", is_missing=False)
NAME, ANOTHER = (MirrorPartition("flow", topic, 0) for topic in ("orders", "late"))
LED = LeaderReport(1, 8, ID)


def tails(count: int) -> RoutedTails:
    return tuple(RoutedTail(TopicPartition(f"x.{at}", at), ID, TAIL) for at in range(count))


LOGS = st.builds(
    TopicPartition, st.text("aZ9._-", min_size=1, max_size=249), st.integers(0, (1 << 31) - 1)
)
TAILS = st.builds(
    tail_of_batch,
    st.integers(0, 1 << 62),
    st.integers(1, 4096),
    st.tuples(st.integers(0, 1 << 62), st.integers(0, 32767)),
    st.integers(0, (1 << 31) - 1).map(Sequence),
)


@given(st.lists(st.tuples(LOGS, st.none() | st.uuids(), TAILS)))
def test_routed_tails_survive_their_text(
    parts: list[tuple[TopicPartition, UUID | None, RemoteTail]],
) -> None:
    given_tails = tuple(RoutedTail(*one) for one in parts)
    assert parse_routed(routed_text(given_tails)) == given_tails


def test_text_that_is_no_routed_tail_is_omitted() -> None:
    """Goal: the metadata of another program harms nothing, and what is right beside it counts."""
    text = routed_text((ROUTED,))
    for other in ("", "x", "x/0", "x/0//1,2,3", "x/-1//1,2,3,4", "x/²//1,2,3,4", "x/0/?/1,2,3,4"):
        assert parse_routed(other) == ()
        assert parse_routed(f"{other}|{text}") == (ROUTED,)


def metadata(topic_id: UUID = ID, epoch: int = 9) -> Metadata:
    partition = Partition(1, epoch, (1,), (1,))
    topic = Topic(LOG.topic, topic_id, False, {0: partition})
    return Metadata(topics=MappingProxyType({LOG.topic: topic}))


def landed(start: int, tail: RemoteTail = NEXT) -> Mapping[TopicPartition, LandedBatches]:
    return {LOG: LandedBatches(Offset(start), tail)}


def test_what_was_written_to_is_the_last_one() -> None:
    """Goal: the topic's id and the leader are of before the transaction, so no loss is missed."""
    other = RoutedTail(SECOND, OTHER_ID, TAIL)
    new = RoutedTail(LOG, ID, NEXT, LeaderEpoch(9))
    assert routed_behind((), landed(58), metadata()) == (new,)
    compared = ROUTED._replace(leader_epoch=LeaderEpoch(2))
    after = new._replace(leader_epoch=LeaderEpoch(2))
    assert routed_behind((compared, other), landed(53), metadata()) == (other, after)
    assert routed_behind((compared, other), {}, metadata()) == (compared, other)
    unknown = RoutedTail(LOG, None, NEXT)
    assert routed_behind((), landed(58), Metadata()) == (unknown,)
    assert routed_behind((), landed(58), metadata(NO_TOPIC_ID, -1)) == (unknown,)
    assert routed_behind((compared,), landed(58), metadata(NO_TOPIC_ID)) == (after,)


@pytest.mark.parametrize(("start", "topic_id"), [(52, ID), (0, NO_TOPIC_ID), (53, OTHER_ID)])
def test_a_batch_in_the_place_of_lost_records_is_not_committed(start: int, topic_id: UUID) -> None:
    with pytest.raises(Retriable, match=rf"landed at {start} of x\.orders-0.* up to 53"):
        routed_behind((ROUTED,), landed(start), metadata(topic_id))


def test_those_that_were_written_to_longest_ago_have_no_room() -> None:
    """Goal: neither the metadata of a position nor all of a transaction is too large."""
    many = tails(1000)
    kept = bounded(many, 1)
    assert kept == many[-len(kept) :]
    assert 500 < len(routed_text(kept)) <= 1000
    for positions in (0, 300, 1000, 5000, 1_000_000):
        one = bounded(many, positions)
        assert one == many[len(many) - len(one) :]
        assert len(routed_text(one)) * positions <= 300_000
    assert bounded(many[:3], 1) == many[:3]
    assert bounded((), 1) == ()


def test_nothing_is_routed_to_what_is_in_doubt() -> None:
    doubted = ROUTED._replace(doubt=DOUBT)
    assert in_doubt((doubted,), {SECOND: 1}) is None
    assert in_doubt((ROUTED,), {LOG: 1}) is None
    assert in_doubt((ROUTED._replace(log=SECOND), doubted), [LOG, SECOND]) == DOUBT


@pytest.mark.parametrize(
    ("one", "report", "reason"),
    [
        (ROUTED, LED, None),
        (ROUTED._replace(leader_epoch=LeaderEpoch(8)), LED, None),
        (ROUTED._replace(leader_epoch=LeaderEpoch(7)), LED, "has another leader"),
        (ROUTED, LED._replace(topic_id=OTHER_ID), "was recreated"),
        (ROUTED._replace(topic_id=None), LED._replace(topic_id=OTHER_ID), None),
        (ROUTED, LED._replace(topic_id=NO_TOPIC_ID), None),
        (ROUTED._replace(doubt=DOUBT), LED, "can be compared"),
        (ROUTED._replace(doubt=DOUBT), None, None),
        (ROUTED._replace(doubt=DOUBT), LeaderReport(-1, -1, ID, 5), None),
        (ROUTED._replace(leader_epoch=LeaderEpoch(7)), LeaderReport(-1, -1, ID), None),
    ],
)
def test_what_is_compared_again(
    one: RoutedTail, report: LeaderReport | None, reason: str | None
) -> None:
    """Goal: what has changed since; without an answer, nothing is done."""
    leaders = {} if report is None else {LOG: report}
    again = to_compare_again((one,), leaders)
    assert (again is None) if reason is None else (reason in str(again))


@dataclass
class Logs:
    """The target: logs in memory, and what it reports of their leaders."""

    logs: Mapping[TopicPartition, RemoteLog]
    reports: Mapping[TopicPartition, LeaderReport]
    asked: list[TopicPartition] = field(default_factory=list)
    absent_topics: Collection[str] | None = ()
    """By every broker; None: one does not answer."""

    async def absent(self, topics: Collection[str]) -> Collection[str]:
        if self.absent_topics is None:
            raise Retriable("a broker does not answer")
        return [topic for topic in topics if topic in self.absent_topics]

    async def leaders(self, topics: Collection[str]) -> Mapping[TopicPartition, LeaderReport]:
        return {key: one for key, one in self.reports.items() if key.topic in topics}

    async def log_ends(self, keys: Iterable[TopicPartition]) -> Mapping[TopicPartition, LogEnd]:
        ends = {key: await self.logs[key].log_ends([key]) for key in keys}
        return {key: one[key] for key, one in ends.items()}

    async def bounds(self, keys: Iterable[TopicPartition]) -> Mapping[TopicPartition, LogBounds]:
        bounds = {key: await self.logs[key].bounds([key]) for key in keys}
        return {key: one[key] for key, one in bounds.items()}

    async def read_alone(self, partition: TopicPartition, offset: int, **how: Any) -> ReadAlone:
        self.asked.append(partition)
        return await self.logs[partition].read_alone(partition, offset, **how)


def own(sequence: int = 10, kind: int = COMMIT) -> bytes:
    built = build([record(at) for at in range(50, 53)], Codec.NONE)
    whole_batch = whole(built, attributes=TRANSACTIONAL, producer_id=7, epoch=4, sequence=sequence)
    return (50).to_bytes(8, "big") + whole_batch[8:] + marker(53, 7, kind)


def result(
    logs: Logs, routed: Mapping[MirrorPartition, RoutedTails]
) -> Mapping[MirrorPartition, RoutedTails | TailProblem]:
    return asyncio.run(compare_routed(cast("DestinationPort", logs), routed))


def of_one(log: RemoteLog, report: LeaderReport | None = LED) -> RoutedTails | TailProblem:
    reports = {} if report is None else {LOG: report}
    return result(Logs({LOG: log}, reports), {NAME: (ROUTED,)})[NAME]


def test_what_is_there_is_no_loss() -> None:
    """Goal: it is known since which leader; compaction and retention are no loss."""
    expected = (ROUTED._replace(leader_epoch=LeaderEpoch(8)),)
    assert of_one(RemoteLog(own(), 54)) == expected
    assert of_one(RemoteLog(marker(53, 7, COMMIT), 54)) == expected
    assert of_one(RemoteLog(b"", 90, start=90)) == expected
    assert result(cast("Logs", None), {NAME: ()}) == {NAME: ()}


def test_a_loss_is_found_and_named() -> None:
    """Goal: only what the log itself shows is proved: a broker that is cut off may say the rest."""
    foreign = batch([record(50), record(51), record(52)]) + marker(53, 7, COMMIT)
    for found, report, proved, text in (
        (RemoteLog(foreign, 54), LED, True, "the record at offset 52 is not the one"),
        (RemoteLog(own(11), 54), LED, True, "the record at offset 52 is not the one"),
        (RemoteLog(own(kind=ABORT), 54), LED, True, "x.orders-0 has lost the marker"),
        (RemoteLog(b"", 20), LED, False, "x.orders-0 ends at 20"),
        (RemoteLog(own(), 54), LED._replace(topic_id=OTHER_ID), False, "deleted and recreated"),
    ):
        problem = of_one(found, report)
        assert isinstance(problem, RoutedLoss)
        assert (problem.log, problem.proved) == (LOG, proved)
        assert text in str(problem)
        assert "x.orders-0, to which records were routed: " in str(problem)


@pytest.mark.parametrize(
    ("report", "is_missing", "text"),
    [
        (None, True, "does not have x.orders-0"),
        (LeaderReport(-1, -1, ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), True, "does not have"),
        (LeaderReport(-1, -1, ID, ErrorCode.LEADER_NOT_AVAILABLE), False, "no leader of x.ord"),
        (LeaderReport(-1, -1, NO_TOPIC_ID), False, "no leader of x.orders-0, to which"),
    ],
)
def test_what_cannot_be_compared_is_in_doubt(
    report: LeaderReport | None, is_missing: bool, text: str
) -> None:
    """Goal: an old topic that was deleted, or is offline, holds up nobody, and proves nothing."""
    logs = Logs({}, {} if report is None else {LOG: report})
    [one] = cast("RoutedTails", result(logs, {NAME: (ROUTED,)})[NAME])
    assert one.doubt is not None
    assert one.doubt.is_missing is is_missing
    assert text in one.doubt.reason
    assert "up to 53" in one.doubt.reason
    assert one._replace(doubt=None, leader_epoch=ROUTED.leader_epoch) == ROUTED
    assert not logs.asked


def test_a_topic_that_may_not_be_described_is_in_doubt() -> None:
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    whole_topic = {TopicPartition(LOG.topic, WHOLE_TOPIC): LeaderReport(-1, -1, NO_TOPIC_ID, code)}
    [one] = cast("RoutedTails", result(Logs({}, whole_topic), {NAME: (ROUTED,)})[NAME])
    assert one.doubt is not None
    assert "TOPIC_AUTHORIZATION_FAILED" in one.doubt.reason
    assert not one.doubt.is_missing


def test_without_the_right_to_read_the_end_is_compared(caplog: pytest.LogCaptureFixture) -> None:
    """Goal: flows whose principals may only write to routed topics go on after an upgrade."""
    denied = DeniedLog(own(), 54)
    assert of_one(denied) == (ROUTED._replace(leader_epoch=LeaderEpoch(8)),)
    assert "losses in the middle of x.orders-0 are not detected" in caplog.text
    assert isinstance(of_one(DeniedLog(b"", 20)), RoutedLoss)


class DeniedLog(RemoteLog):
    """A log whose principal may describe it, and not read it."""

    async def read_alone(self, partition: TopicPartition, offset: int, **how: Any) -> ReadAlone:
        answer = await super().read_alone(partition, offset, **how)
        code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return answer._replace(fetched=answer.fetched._replace(error=code, records=memoryview(b"")))


def test_a_log_that_cannot_be_read_hides_no_loss_and_no_partition() -> None:
    """Goal: each partition has its own result, and a loss is the worst of them."""
    lost, unread = RemoteLog(b"", 20), RemoteLog(b"", 54, replicated=20)
    logs = Logs({LOG: lost, SECOND: unread}, {LOG: LED, SECOND: LED})
    second = RoutedTail(SECOND, ID, TAIL)
    results = result(logs, {NAME: (second, ROUTED), ANOTHER: (second,)})
    assert isinstance(results[NAME], RoutedLoss)
    assert isinstance(results[ANOTHER], Retriable)


def test_all_losses_of_a_position_are_found_and_a_proved_one_comes_first() -> None:
    """Goal: they can be passed at once; what is stored is what the log itself shows."""
    logs = Logs({LOG: RemoteLog(b"", 20), SECOND: RemoteLog(own(11), 54)}, {LOG: LED, SECOND: LED})
    problem = result(logs, {NAME: (ROUTED, RoutedTail(SECOND, ID, TAIL))})[NAME]
    assert isinstance(problem, RoutedLoss)
    assert [(one.log, one.proved) for one in problem.all] == [(SECOND, True), (LOG, False)]


def test_two_partitions_have_tails_of_their_own_in_one_log() -> None:
    """Goal: the one whose records are there goes on, the other one does not."""
    logs = Logs({LOG: RemoteLog(own(), 54)}, {LOG: LED})
    later = RoutedTail(LOG, ID, NEXT)
    results = result(logs, {NAME: (ROUTED,), ANOTHER: (later,)})
    assert results[NAME] == (ROUTED._replace(leader_epoch=LeaderEpoch(8)),)
    assert isinstance(results[ANOTHER], RoutedLoss)


@pytest.mark.parametrize("absent", [None, (), (SECOND.topic,), (LOG.topic,)])
def test_a_deletion_is_a_loss_if_every_broker_says_so(absent: Collection[str] | None) -> None:
    """Goal: silence is no evidence; a topic that one broker shows is not asked for."""
    logs = Logs({SECOND: RemoteLog(own(), 54)}, {SECOND: LED}, absent_topics=absent)
    routed = {NAME: (ROUTED,), ANOTHER: (RoutedTail(SECOND, ID, TAIL),)}
    port = cast("DestinationPort", logs)
    for deletion_is_loss in (True, False):
        found = asyncio.run(compare_routed(port, routed, deletion_is_loss=deletion_is_loss))
        assert isinstance(found[ANOTHER], tuple)
        if deletion_is_loss and absent == (LOG.topic,):
            assert "the topic was deleted, and records were copied up to 53" in str(found[NAME])
            assert isinstance(found[NAME], RoutedLoss)
        else:
            [one] = cast("RoutedTails", found[NAME])
            assert one.doubt is not None
