"""Whether the target has lost records that transforms have routed to other topics.

A position is that of a source partition, and its tail that of the remote partition (remote_tails).
Records that are routed elsewhere have no position of their own. So the position also names the
*routed tails*: for each other partition of the target, the last batch of a transaction with records
of this source partition. They are in its metadata, committed in the same transaction, and cost no
request:

    routed=TOPIC/PARTITION/TOPIC ID/END,PRODUCER ID,EPOCH,NUMBER|...    that last written to at last

A transaction is the unit: if its last batch in a partition is lost, its marker behind that is lost
as well, and so are all its records there. When a source partition is located, each is compared:

    the topic has another id              it was recreated: records are lost
    the topic or partition is unknown,    nothing is known: a broker may not know it yet, or an
    refused, or has no leader             operator has deleted it, or it is compared later
    else                                  its log is compared as a remote one (remote_tails.py);
                                          without the right to READ, the end of the log only

Where nothing is known the partition goes on: a topic of last year (`TimestampRouter`) that was
deleted, or is offline, holds up nobody. But it keeps the tail, with the *doubt*, and no record is
routed there before it was compared. So no topic is created again in the place of a deleted one.

Routed tails are bounded: those that were written to longest ago are left out. Of these, of a
position of an earlier version, and of one that an operator has committed, no loss is found.
"""

import logging
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Final, NamedTuple
from uuid import UUID

from twinlog.engines.ports import DestinationPort, LeaderReport
from twinlog.engines.transactional.remote_tails import (
    LandedBatches,
    RemoteTail,
    ShorterLog,
    TailProblem,
    compare_each,
    parse_tail,
)
from twinlog.engines.translated.leaders import leader_of
from twinlog.engines.translated.remote_log import LostEnd
from twinlog.kafka.client.metadata import NO_TOPIC_ID, Metadata, is_another
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import ProtocolError, Refusal, Retriable, TwinlogError
from twinlog.kafka.types import UNKNOWN_EPOCH, LeaderEpoch, Offset, TopicPartition
from twinlog.mirror.placement import MirrorPartition
from twinlog.store.config_records import topic_id_of, topic_id_text

log = logging.getLogger(__name__)

_POSITION_BYTES: Final = 1000
"""Of a position's metadata, for which brokers allow 4,096 bytes (`offset.metadata.max.bytes`)."""
_TRANSACTION_BYTES: Final = 300_000
"""Of all positions of a transaction: each one is committed with all of them."""


class Doubt(NamedTuple):
    """Why a log could not be compared."""

    reason: str
    is_missing: bool
    """Whether the target does not have the log. Else it may be compared soon."""


class RoutedTail(NamedTuple):
    """The last batch of a partition of the target that has records of a source partition."""

    log: TopicPartition
    topic_id: UUID | None
    """None if it is not known."""
    tail: RemoteTail
    leader_epoch: LeaderEpoch = UNKNOWN_EPOCH
    """Of the log when it was compared, or before it was written to; not stored."""
    doubt: Doubt | None = None
    """Not stored."""


RoutedTails = tuple[RoutedTail, ...]
"""One of each log; that which was written to last is the last one."""


class RoutedLoss(LostEnd):
    """Records that were routed to a log are lost.

    Args:
        log: the log.
        reason: what shows it.
        proved: whether the log itself shows it, or each broker. Another topic id, or a log that is
            shorter, may be what a broker answers that is cut off.
    """

    def __init__(
        self,
        log: TopicPartition,
        reason: object,
        *,
        proved: bool,
        start: Offset | None = None,
        end: Offset | None = None,
    ) -> None:
        text = f"{log}, to which records were routed: {reason}"
        super().__init__(text, start=start, end=end)
        self.log = log
        self.proved = proved
        self.others: tuple[RoutedLoss, ...] = ()
        """Losses of the same position in other logs, which the same comparison has found."""

    @property
    def all(self) -> "tuple[RoutedLoss, ...]":
        """It, and the others that were found with it."""
        return self, *self.others


def routed_text(routed: RoutedTails) -> str:
    """As metadata of a position."""
    return "|".join(map(_text, routed))


def _text(one: RoutedTail) -> str:
    topic_id = topic_id_text(one.topic_id) if one.topic_id else ""
    return f"{one.log.topic}/{one.log.partition}/{topic_id}/{one.tail.text()}"


def parse_routed(text: str) -> RoutedTails:
    """Routed tails as `routed_text` writes them; what is none, as of other programs, is omitted."""
    return tuple(one for one in map(_parsed, text.split("|")) if one is not None)


def _parsed(text: str) -> RoutedTail | None:
    topic, *parts = text.split("/")
    if len(parts) != 3 or not (parts[0].isascii() and parts[0].isdigit()):
        return None
    tail = parse_tail(parts[2])
    if tail is not None:
        with suppress(ProtocolError):
            topic_id = topic_id_of(parts[1]) if parts[1] else None
            return RoutedTail(TopicPartition(topic, int(parts[0])), topic_id, tail)
    return None


def routed_behind(
    routed: RoutedTails, landed: Mapping[TopicPartition, LandedBatches], metadata: Metadata
) -> RoutedTails:
    """The routed tails behind a transaction.

    Args:
        routed: those before it.
        landed: what has landed in logs that got records of this source partition.
        metadata: of the target, from before the transaction.

    Raises:
        Retriable: a log has become shorter, or its topic was recreated. Located again, the
            partition is FAILED.
    """
    former = {one.log: one for one in routed}
    written: list[RoutedTail] = []
    for key, batches in landed.items():
        topic = metadata.topics.get(key.topic)
        topic_id = None if topic is None or topic.topic_id == NO_TOPIC_ID else topic.topic_id
        state = None if topic is None else topic.partitions.get(key.partition)
        epoch = LeaderEpoch(UNKNOWN_EPOCH if state is None else state.leader_epoch)
        if before := former.get(key):
            recreated = is_another(before.topic_id, topic_id or NO_TOPIC_ID)
            if recreated or batches.start < before.tail.end:
                raise Retriable(
                    f"the destination has lost records: a batch landed at {batches.start} of "
                    f"{key}, to which records had been routed up to {before.tail.end}"
                )
            topic_id, epoch = topic_id or before.topic_id, before.leader_epoch
        written.append(RoutedTail(key, topic_id, batches.tail, epoch))
    return (*(one for one in routed if one.log not in landed), *written)


def bounded(routed: RoutedTails, positions: int) -> RoutedTails:
    """Those that have room, of one of so many positions in a transaction: the last written ones."""
    room = min(_POSITION_BYTES, _TRANSACTION_BYTES // max(positions, 1))
    kept = len(routed)
    while kept and (room := room - len(_text(routed[kept - 1])) - 1) >= 0:
        kept -= 1
    return routed[kept:]


def in_doubt(routed: RoutedTails, logs: Collection[TopicPartition]) -> Doubt | None:
    """Why nothing may be written to one of these logs; None: it may."""
    return next((one.doubt for one in routed if one.doubt is not None and one.log in logs), None)


def to_compare_again(
    routed: RoutedTails, leaders: Mapping[TopicPartition, LeaderReport]
) -> str | None:
    """Why routed tails are to be compared again, by what the target reports; None: they are not."""
    for one in routed:
        report = leader_of(leaders, one.log)
        if report is None or _doubt(one, report) is not None:
            continue
        if is_another(one.topic_id, report.topic_id):
            return f"the topic {one.log.topic} was recreated, to which records were routed"
        if one.doubt is not None:
            return f"{one.log} can be compared, to which records were routed"
        if UNKNOWN_EPOCH < one.leader_epoch < report.epoch:
            return f"{one.log} has another leader, to which records were routed"
    return None


async def compare_routed(
    port: DestinationPort,
    routed: Mapping[MirrorPartition, RoutedTails],
    *,
    deletion_is_loss: bool = False,
) -> Mapping[MirrorPartition, RoutedTails | TailProblem]:
    """Compare logs with the routed tails of positions.

    Args:
        port: the target.
        routed: by source partition; no transaction of these is open.
        deletion_is_loss: whether a topic that no broker has is a loss, and not a doubt.

    Returns:
        The routed tails with what is known of each now; or else that records are lost, or that a
        log cannot be read now.

    Raises:
        Retriable: the target is unreachable.
    """
    topics = {one.log.topic for tails in routed.values() for one in tails}
    if not topics:
        return routed
    leaders = await port.leaders(topics)
    unknown = topics - {key.topic for key in leaders}
    deleted: Collection[str] = ()
    if deletion_is_loss and unknown:
        with suppress(Retriable):  # a broker that does not answer may have the topic
            deleted = await port.absent(unknown)
    seen = {
        name: tuple(_seen(one, leaders, deleted) for one in tails) for name, tails in routed.items()
    }
    pairs = {
        (one.log, one.tail): None
        for tails in seen.values()
        for one in tails
        if isinstance(one, RoutedTail) and one.doubt is None
    }
    problems = await compare_each(port, list(pairs))
    return {name: _result(tails, problems) for name, tails in seen.items()}


def _result(
    seen: Collection[RoutedTail | RoutedLoss],
    problems: Mapping[tuple[TopicPartition, RemoteTail], TailProblem],
) -> RoutedTails | TailProblem:
    """The routed tails of one position, or its worst problem; a proved loss is worse."""
    tails = tuple(one for one in seen if isinstance(one, RoutedTail))
    losses = [one for one in seen if isinstance(one, RoutedLoss)]
    unread: list[TailProblem] = []
    for one in tails:
        problem = problems.get((one.log, one.tail))
        if one.doubt is not None:
            log.warning("%s; nothing is written there before it was compared", one.doubt.reason)
        elif isinstance(problem, LostEnd):
            proved = not isinstance(problem, ShorterLog)
            losses.append(
                RoutedLoss(one.log, problem, proved=proved, start=problem.start, end=problem.end)
            )
        elif _is_denied(problem):
            log.warning("losses in the middle of %s are not detected: %s", one.log, problem)
        elif problem is not None:
            unread.append(problem)
    # A log that cannot be read now hides no loss of another one.
    if not losses:
        return next(iter(unread), tails)
    worst, *others = sorted(losses, key=lambda loss: not loss.proved)
    worst.others = tuple(others)
    return worst


def _is_denied(problem: TailProblem | None) -> bool:
    """Whether the right to read a log is missing; its end was compared then."""
    if not isinstance(problem, TwinlogError):
        return False
    return problem.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def _seen(
    one: RoutedTail, leaders: Mapping[TopicPartition, LeaderReport], deleted: Collection[str]
) -> RoutedTail | RoutedLoss:
    """A routed tail with the present leader's epoch, or the doubt."""
    report = leader_of(leaders, one.log)
    recreated = report is not None and is_another(one.topic_id, report.topic_id)
    if recreated or one.log.topic in deleted:
        what = "deleted and recreated" if recreated else "deleted"
        reason = (
            f"the destination has lost records: the topic was {what}, and records were copied up "
            f"to {one.tail.end}"
        )
        # All brokers were asked whether it was deleted; one has answered with another id.
        return RoutedLoss(one.log, reason, proved=not recreated, end=one.tail.end)
    epoch = LeaderEpoch(UNKNOWN_EPOCH if report is None else report.epoch)
    return one._replace(leader_epoch=epoch, doubt=_doubt(one, report))


def _doubt(one: RoutedTail, report: LeaderReport | None) -> Doubt | None:
    """Why a log cannot be compared; None: it can."""
    routed = f"{one.log}, to which records were routed up to {one.tail.end}"
    if report is None or report.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        reason = f"the destination does not have {routed}: if it was deleted, they are lost"
        return Doubt(reason, is_missing=True)
    if report.node < 0:
        cause = f": {Refusal(report.error)}" if report.error else ""
        return Doubt(f"the destination has no leader of {routed}{cause}", is_missing=False)
    return None
