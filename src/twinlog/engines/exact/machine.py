"""The state machine of a mirror partition in the exact engine.

Whatever changes a partition's condition is in this file. `step` takes an event that a part of the
data plane reports, and returns what is to be done (events.py). It uses no network, no task and no
clock. Batches and gaps are the append machine's (append.py), which it contains.

The condition follows from the fields, the first that holds:

    GONE       the lane does not own it any more
    FILLING    a filler is in flight: neither read the position nor send
    WAITING    a backoff has not ended
    FAILED     the two logs differ, or a failure waits for its retry
    DRAINING   the position is not known, and answers are outstanding
    LOCATING   the position is to be read
    APPENDING  batches are sent and gaps filled from a known position

                   Located                 RoundBegan
      LOCATING ──────────────► APPENDING ◄────────────► FILLING
        ▲  ▲                   │  │   ▲     RoundEnded
        │  │ last answer       │  │   │ Queued, Read, BatchAnswered
        │  └─── DRAINING ◄─────┘  └───┘
        │          │   BatchLost, BatchNotSent, a refusal, a new leader epoch
        │          ▼
        └────── WAITING       Trouble: a backoff, then as before; after `attempts` of them FAILED
                   ▲
                   │ RetryDue (transient only)
                 FAILED       Failure, from any condition; FORGET ends all that waits

An answer may arrive late: what was read from a position that is not known any more changes nothing,
nor does a position that was read for an earlier condition. tests/engines/exact/test_machine.py has
the table over all pairs of a condition and an event.
"""

import logging
from typing import Final

from twinlog.engines.exact.append import Phase
from twinlog.engines.exact.bulk import empty_records
from twinlog.engines.exact.events import (
    LOOK,
    Action,
    After,
    Ahead,
    At,
    BatchAnswered,
    BatchLost,
    BatchNotSent,
    Confirmed,
    CorruptRead,
    DataFenced,
    DestinationLed,
    Diverged,
    Do,
    Event,
    Failure,
    FetchRefused,
    Gone,
    HeldBack,
    LeadersDoubted,
    Located,
    Look,
    MarkersLost,
    Moment,
    NotAhead,
    Note,
    Queued,
    Read,
    RetryDue,
    RoundBegan,
    RoundEnded,
    SourceBounds,
    SourceLed,
    Trouble,
    Unsettled,
)
from twinlog.engines.exact.partition import ExactPartition
from twinlog.engines.exact.spec import PartitionStage
from twinlog.engines.ports import Appended, LeaderReport, LogEnd
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Reaction, Refusal, code_of
from twinlog.kafka.types import EpochEnd, LeaderEpoch, Offset
from twinlog.mirror.absence import Absence, AbsentSpan
from twinlog.mirror.plan import Gap

_OTHER_WRITER: Final = (
    "another producer writes to this topic, or a request of this mirror arrived late; "
    "the producer ids of the records before this offset show which"
)
_REFUSED_FETCHES: Final = 3
"""Refusals in a row that a new leader does not explain any more."""
_NOT_RETRIED_SOON: Final = (Reaction.USER, Reaction.PARTITION, Reaction.PEER, Reaction.FENCED)


_FROM_FETCHES: Final = (SourceBounds, Queued, Read, CorruptRead, Diverged, FetchRefused)
"""Events that are about a position: where it is not known any more, they are out of date."""


def step(  # noqa: C901, PLR0911, PLR0912 - the one table of all events
    partition: ExactPartition, event: Event, moment: Moment
) -> list[Action]:
    """Take an event; return what is to be done, in this order."""
    appending = partition.append.phase is Phase.APPENDING and not partition.gone
    if not appending and isinstance(event, _FROM_FETCHES):
        return []
    match event:
        # The first three are those of each small transaction.
        case BatchAnswered():
            return _answered(partition, event.answer, moment)
        case RoundBegan():
            partition.filling = True
            partition.gap_begins(moment.now)
            return []
        case RoundEnded():
            partition.filling = False
            partition.gap_ends(moment.now)
            return _round_ended(partition, event.end, moment)
        case Look():
            return _look(partition, moment)
        case SourceBounds():
            return _bounded(partition, event, moment.now)
        case Queued(pieces, touch):
            partition.append.offer(pieces)
            return [Do.TOUCH, *_look(partition, moment)] if touch else []
        case Read():
            return _read(partition, event, moment)
        case BatchLost() | BatchNotSent():
            return _not_answered(partition, event, moment)
        case MarkersLost(why):
            return _markers_lost(partition, why, moment)
        case DataFenced():
            partition.append.data_fenced()
            return _look(partition, moment)
        case Confirmed(plan):
            partition.append.confirm(plan)
            return _look(partition, moment)
        case Located():
            return _located(partition, event, moment)
        case Unsettled():
            return _unsettled(partition, moment)
        case Ahead():
            return _ahead(partition, event, moment)
        case NotAhead():
            partition.ahead_since = 0.0
            return []
        case SourceLed(leader):
            return _source_led(partition, leader, moment)
        case DestinationLed(leader):
            return _destination_led(partition, leader, moment)
        case LeadersDoubted():
            return [Do.REFRESH]
        case HeldBack(reason):
            return _held_back(partition, reason, moment)
        case CorruptRead(error):
            return _corrupt(partition, error, moment)
        case Diverged(source):
            return _diverged(partition, source, moment)
        case FetchRefused(code):
            return _fetch_refused(partition, code, moment)
        case Trouble():
            return _trouble(partition, event, moment)
        case Failure():
            return _fail(partition, event, moment)
        case RetryDue():
            return _retry(partition, moment)
        case Gone():
            partition.gone = True
            partition.held_back = ""
            partition.append.replace()
            return [Do.FORGET]


# ---- what is next --------------------------------------------------------------------------


def _look(partition: ExactPartition, moment: Moment) -> list[Action]:
    """Decide what is to be done next."""
    if partition.gone:
        return []
    append = partition.append
    if partition.filling:
        # Otherwise its last position is fetched again.
        return [Do.FETCH] if append.phase is Phase.APPENDING else []
    if partition.retry_at > moment.now:
        return [At(partition.retry_at, LOOK), Do.LEAVE]
    if append.phase is Phase.PLACING:
        return [Do.LEAVE, Do.LOCATE]
    if append.phase is not Phase.APPENDING:
        return [Do.LEAVE]
    actions: list[Action] = []
    if append.planned_end < partition.bulk_until:
        actions += _prepare(partition)
    if append.unconfirmed:
        actions.append(Do.CONFIRM)
    if append.gap_to_fill is not None:
        actions.append(Do.FILL)
    elif append.waits_for_lease:
        actions.append(_after_lease(partition, moment.now))
    elif not append.idle:
        actions.append(Do.SEND)
    actions.append(Do.FETCH)
    return actions


def _prepare(partition: ExactPartition) -> list[Action]:
    """Use up the offsets below the source's log start offset, where nothing can be read."""
    append = partition.append
    if append.queued_bytes == 0:
        append.offer([empty_records(append.planned_end, partition.bulk_until)])
    return _set_stage(partition, PartitionStage.PREPARING)


def _after_lease(partition: ExactPartition, now: float) -> Action:
    """Read the position again when no other sender can be active any more."""
    if now < partition.append.unguarded_from:
        return At(partition.append.unguarded_from, LOOK)
    partition.append.replace()
    return Do.LOOK_SOON


def _set_stage(partition: ExactPartition, stage: PartitionStage, reason: str = "") -> list[Action]:
    if (partition.stage, partition.reason) == (stage, reason):
        return []
    partition.stage, partition.reason = stage, reason
    if stage is PartitionStage.FAILED:
        return [Note(logging.ERROR, f"{partition} is FAILED: {reason}"), Do.REPORT]
    return [Do.REPORT]


# ---- failures ------------------------------------------------------------------------------


def _trouble(partition: ExactPartition, trouble: Trouble, moment: Moment) -> list[Action]:
    """Retry after a backoff, by reading the position again; or fail."""
    if partition.gone:
        return []
    text, code = trouble
    reaction = code_of(code).reaction if code else Reaction.RETRY
    refresh: list[Action] = [Do.REFRESH] if reaction is Reaction.METADATA else []
    text = f"{text}: {Refusal(code)}" if code else text
    if reaction in _NOT_RETRIED_SOON or partition.attempts >= moment.settings.attempts:
        return refresh + _fail(partition, Failure(text, transient=True), moment)
    partition.attempts += 1
    partition.retry_at = moment.now + moment.backoff(partition.attempts)
    partition.append.replace()
    note = Note(logging.INFO, f"{partition}: {text}; trying again", partition.attempts)
    return [*refresh, note, *_look(partition, moment)]


def _fail(partition: ExactPartition, failure: Failure, moment: Moment) -> list[Action]:
    """Stop this partition only. A transient failure is retried later."""
    was_failed = partition.append.phase is Phase.FAILED
    for_good = was_failed and not partition.transient
    partition.append.fail()
    if partition.gone:
        return [] if was_failed else [Note(logging.ERROR, f"{partition}: {failure.reason}")]
    partition.held_back = ""
    # A partition that is FAILED for good stays so, whatever fails afterwards, and says why.
    stands = for_good and (failure.transient or partition.differs)
    partition.transient = failure.transient and not for_good
    partition.differs |= failure.differs
    reason = partition.reason if stands else failure.reason
    actions = [*_set_stage(partition, PartitionStage.FAILED, reason), Do.FORGET]
    if failure.transient and not was_failed:
        actions.append(_retry_later(partition, moment))
    return actions


def _retry_later(partition: ExactPartition, moment: Moment) -> Action:
    partition.attempts += 1
    return After(max(moment.backoff(partition.attempts), 1.0), RetryDue())


def _retry(partition: ExactPartition, moment: Moment) -> list[Action]:
    """Leave a transient failure, unless the destination's topic is still lost."""
    if partition.gone or partition.append.phase is not Phase.FAILED or not partition.transient:
        return []
    if partition.topic_lost:
        # A position that is read before the leaders are known may be another topic's.
        return [Do.REFRESH, _retry_later(partition, moment)]
    partition.append.retry()
    return [Do.REFRESH, *_look(partition, moment)]


# ---- the position --------------------------------------------------------------------------


def _located(partition: ExactPartition, located: Located, moment: Moment) -> list[Action]:
    """Place the append machine; schedule the offsets below the source's log start offset."""
    position, source, append = located.position, located.source, partition.append
    if partition.gone or append.phase is not Phase.PLACING:
        return []
    append.place(position, located.read_at, compared=located.compared)
    partition.source_epochs.place(position.log_end, located.epoch)
    partition.unsettled = 0
    partition.gap_since = 0.0
    partition.source_high_watermark = Offset(source.high_watermark)
    partition.source_ends.seen(source.high_watermark, moment.now)
    partition.source_stable = Offset(source.last_stable)
    actions = _source_starts_at(partition, source.start, moment.now)
    start = Offset(source.start)
    if position.log_end < start and located.takes_bulk:
        # The partition stays PREPARING until the last bulk batch is appended.
        partition.bulk_until = start
    elif position.log_end < start:
        spans = (AbsentSpan(Absence.LOG_START, start),)
        append.offer([Gap(position.log_end, start, seen=False, spans=spans)])
        message = (
            f"{partition}: the source has deleted records before they were mirrored: its log "
            f"starts at offset {start}, the destination's ends at {position.log_end}"
        )
        actions.append(Note(logging.WARNING, message))
    actions.append(Do.TOUCH)
    if append.log_end >= partition.bulk_until:
        actions += _set_stage(partition, PartitionStage.MIRRORING)
    return [*actions, *_look(partition, moment), Do.PUMP]


def _unsettled(partition: ExactPartition, moment: Moment) -> list[Action]:
    """Read the position again soon."""
    partition.unsettled += 1
    pause = moment.settings.position_pause_s
    partition.retry_at = moment.now + pause * min(partition.unsettled, 50)
    return _look(partition, moment)


def _ahead(partition: ExactPartition, ahead: Ahead, moment: Moment) -> list[Action]:
    """Wait for a source that may catch up.

    It is behind for a moment after a clean failover, until its high watermark has caught up. If
    it stays so, it has lost records that the mirror has.
    """
    partition.ahead_since = partition.ahead_since or moment.now
    if moment.now - partition.ahead_since <= moment.settings.ahead_patience_s:
        return _unsettled(partition, moment)
    reason = (
        f"the destination's log ends at {ahead.log_end}, above the source's last stable offset "
        f"{ahead.last_stable}: the source has lost records, or its log is another one"
    )
    return _fail(partition, Failure(reason, transient=True), moment)


# ---- the source's answers ------------------------------------------------------------------


def _bounded(partition: ExactPartition, bounds: SourceBounds, now: float) -> list[Action]:
    high_watermark, stable, start, at_least = bounds
    if at_least:
        high_watermark = max(high_watermark, partition.source_high_watermark)
        stable = max(stable, partition.source_stable)
    actions = [] if at_least else _source_starts_at(partition, start, now)
    partition.source_high_watermark = high_watermark
    partition.source_ends.seen(high_watermark, now)
    partition.source_stable = stable
    return actions


def _source_starts_at(partition: ExactPartition, start: int, now: float) -> list[Action]:
    """Note the source's log start offset, which the destination's has to follow."""
    if start > partition.source_start:
        partition.source_start = Offset(start)
    if start <= partition.destination_start or partition.spec.compacted:
        return []
    partition.log_starts.seen(start, now)
    return [Do.TRIM]


def _read(partition: ExactPartition, answer: Read, moment: Moment) -> list[Action]:
    if answer.sound:
        partition.corrupt_reads = 0
    actions: list[Action] = []
    if partition.refused_fetches:
        partition.refused_fetches, partition.held_back = 0, ""
    if answer.explained:
        partition.held_back = ""
        actions.append(Do.CLEAR)
    elif answer.behind:
        actions.append(Do.SUSPECT)
    if partition.append.idle:
        partition.attempts = 0  # all that was planned is appended, so nothing is left to retry
    return actions + _look(partition, moment)


def _held_back(partition: ExactPartition, reason: str, moment: Moment) -> list[Action]:
    if reason and partition.append.phase is not Phase.APPENDING:
        return []
    if partition.held_back == reason or partition.gone:
        return []
    partition.held_back = reason
    if not reason:
        return []
    note = Note(logging.WARNING, f"{partition} waits for records of the source: {reason}")
    return [note, *_look(partition, moment)]


def _corrupt(partition: ExactPartition, error: str, moment: Moment) -> list[Action]:
    """Read again, in case the network corrupted the batch; fail if it stays corrupt."""
    partition.corrupt_reads += 1
    if partition.corrupt_reads < moment.settings.corrupt_reads:
        return _trouble(
            partition, Trouble(f"corrupt batch in a fetch from the source: {error}"), moment
        )
    reason = f"the source's log holds a corrupt batch: {error}"
    return _fail(partition, Failure(reason, transient=True), moment)


def _diverged(partition: ExactPartition, source: EpochEnd, moment: Moment) -> list[Action]:
    """Handle a source that has lost the end of its log since it was read.

    If only queued or in-flight records may be lost, the position is read again: the records
    that have landed may still be the source's.
    """
    append = partition.append
    if not append.idle and append.log_end <= source.end_offset:
        cause = f"the source has lost records from offset {source.end_offset} on"
        return _trouble(partition, Trouble(cause), moment)
    reason = (
        f"the source has lost records that were mirrored: mirrored up to offset "
        f"{append.log_end} of leader epoch {partition.fetch_position.last_epoch}; on the source, "
        f"epoch {source.leader_epoch} ends at offset {source.end_offset}, before later epochs"
    )
    return _fail(partition, Failure(reason, differs=True), moment)


def _fetch_refused(partition: ExactPartition, code: int, moment: Moment) -> list[Action]:
    if partition.follows:
        return [Do.LEADER, *_look(partition, moment)]
    if code_of(code).reaction is Reaction.METADATA:
        partition.source_node = -1
        partition.refused_fetches += 1
        if partition.refused_fetches >= _REFUSED_FETCHES:
            partition.held_back = f"the source's leader refuses fetches: {Refusal(code)}"
        return [Do.LEAVE, Do.REFRESH]
    # This includes OFFSET_OUT_OF_RANGE: the placer finds out which end was passed.
    return _trouble(partition, Trouble("the source refused a fetch", code), moment)


# ---- the destination's answers -------------------------------------------------------------


def _answered(partition: ExactPartition, answer: Appended, moment: Moment) -> list[Action]:
    append = partition.append
    appending = append.phase is Phase.APPENDING
    if answer.error:
        append.refused()
        text = f"an append was refused{': ' if answer.message else ''}{answer.message}"
        return _not_appended(partition, appending, Trouble(text, answer.error), moment)
    data = append.oldest_in_flight
    misplaced = append.answered(answer.base_offset)
    if misplaced is not None:
        reason = (
            f"the batch of offset {misplaced.expected} landed at {misplaced.found} on the "
            f"destination: {_OTHER_WRITER}"
        )
        return _fail(partition, Failure(reason, differs=True), moment)
    if not appending:
        return _look(partition, moment)
    # For a duplicate the broker answers with the newest timestamp of the batch that it has
    # (4.3.1, 3.9.1). If that is another batch, the comparison at the retry finds it.
    if answer.stamped_ms not in {-1, data.header.max_timestamp}:
        reason = (
            f"the destination's broker has changed the timestamps of records from offset "
            f"{answer.base_offset} on; message.timestamp.type of its topic has to be CreateTime"
        )
        return _fail(partition, Failure(reason, transient=True), moment)
    partition.attempts = 0
    actions: list[Action] = []
    if partition.stage is PartitionStage.PREPARING and data.end >= partition.bulk_until:
        actions += _set_stage(partition, PartitionStage.MIRRORING)
    if data.end <= partition.bulk_until:
        append.filled_offsets[Absence.LOG_START] += data.header.num_records
    partition.records_moved += data.header.num_records
    partition.bytes_moved += data.size
    if partition.log_starts:
        actions.append(Do.TRIM)
    return actions + _look(partition, moment)


def _not_answered(
    partition: ExactPartition, event: BatchLost | BatchNotSent, moment: Moment
) -> list[Action]:
    appending = partition.append.phase is Phase.APPENDING
    if isinstance(event, BatchLost):
        partition.append.lost(moment.now + moment.settings.lease_s)
    else:
        partition.append.refused()
    return _not_appended(partition, appending, Trouble(event.what), moment)


def _not_appended(
    partition: ExactPartition, appending: bool, trouble: Trouble, moment: Moment
) -> list[Action]:
    """Handle a batch that did not land, or may not have; only the first one is reported."""
    if appending and not partition.gone:
        return _trouble(partition, trouble, moment)
    return _look(partition, moment)


def _round_ended(partition: ExactPartition, end: LogEnd | None, moment: Moment) -> list[Action]:
    if end is None or partition.gone:
        return _look(partition, moment)
    if end.error == ErrorCode.NETWORK_EXCEPTION:
        return _markers_lost(partition, "the connection was lost", moment)
    if end.error:
        return _trouble(partition, Trouble("a gap cannot be filled", end.error), moment)
    misplaced = partition.append.filled(Offset(end.log_end))
    if misplaced is not None:
        reason = (
            f"the destination's log ends at {misplaced.found}, expected {misplaced.expected}: "
            + _OTHER_WRITER
        )
        return _fail(partition, Failure(reason, differs=True), moment)
    if partition.append.phase is Phase.APPENDING:
        partition.attempts = 0
    return _look(partition, moment)


def _markers_lost(partition: ExactPartition, why: str, moment: Moment) -> list[Action]:
    if partition.gone:
        return []
    partition.append.unguarded_from = moment.now + moment.settings.lease_s
    return _trouble(
        partition, Trouble(f"no answer to a request for control records: {why}"), moment
    )


# ---- leaders -------------------------------------------------------------------------------


def _source_led(
    partition: ExactPartition, leader: LeaderReport | None, moment: Moment
) -> list[Action]:
    if leader is None or leader.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        reason = "the source does not have this partition"
        return _fail(partition, Failure(reason, transient=True), moment)
    if leader.error == 0 and leader.topic_id != partition.spec.source_topic_id:
        reason = (
            f"the source's topic was deleted and recreated: it has the id {leader.topic_id}, "
            f"the mirror was made for {partition.spec.source_topic_id}"
        )
        return _fail(partition, Failure(reason), moment)
    if leader.error and not code_of(leader.error).reaction.retriable:
        reason = f"the source refuses: {Refusal(leader.error)}"
        return _fail(partition, Failure(reason, transient=True), moment)
    actions: list[Action] = []
    if partition.source_node != leader.node:
        partition.source_node = leader.node
        actions = [Do.LEADER, Do.LEAVE]
    partition.source_leader_epoch = LeaderEpoch(leader.epoch)
    return actions + _led(partition, moment)


def _destination_led(
    partition: ExactPartition, leader: LeaderReport | None, moment: Moment
) -> list[Action]:
    loss = partition.spec.topic_loss(leader)
    was_lost, partition.topic_lost = partition.topic_lost, bool(loss)
    if leader is None or loss:
        return _fail(partition, Failure(loss, transient=True), moment)
    actions = _retry(partition, moment) if was_lost else []
    if leader.error and not code_of(leader.error).reaction.retriable:
        reason = f"the destination refuses: {Refusal(leader.error)}"
        return actions + _fail(partition, Failure(reason, transient=True), moment)
    if partition.destination_node != leader.node:
        actions.append(Do.UNSEND)
        partition.destination_node = leader.node
        if partition.append.in_flight:
            # Answers of two brokers have no order: an answer of this one would be taken for that
            # of a batch at the former one. Stale metadata may name it with a lower epoch.
            partition.append.replace()
    if 0 <= partition.destination_epoch < leader.epoch:
        # The new leader may not remember the producer. With nothing in flight, no answer would
        # show it, and up to five batches would be sent that the sequence does not guard.
        partition.append.replace()
    if leader.epoch >= 0:
        partition.destination_epoch = LeaderEpoch(leader.epoch)
    return actions + _led(partition, moment)


def _led(partition: ExactPartition, moment: Moment) -> list[Action]:
    if partition.source_node < 0 or partition.destination_node < 0:
        return [After(moment.backoff(2), LeadersDoubted())]
    return _look(partition, moment)
