"""Twin of twinlog.engines.exact.machine: the table over all pairs of a condition and an event."""

import logging
from collections.abc import Callable
from typing import Final, get_args
from uuid import UUID

from checkout import ROOT
from positions import START

from twinlog.engines.exact.append import PartitionAppend, Plan, plan_of
from twinlog.engines.exact.bulk import empty_records
from twinlog.engines.exact.events import (
    LOOK,
    Action,
    Ahead,
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
from twinlog.engines.exact.machine import step
from twinlog.engines.exact.partition import Condition, ExactPartition
from twinlog.engines.exact.spec import PartitionSpec, PartitionStage
from twinlog.engines.ports import Appended, LeaderReport, LogEnd
from twinlog.engines.settings import LaneSettings
from twinlog.kafka.types import (
    EpochEnd,
    LeaderEpoch,
    LogBounds,
    Offset,
    TopicPartition,
)
from twinlog.mirror.absence import Absence
from twinlog.mirror.plan import Gap, Piece

NOW: Final = 100.0
TOPIC: Final = UUID(int=1)
GAP: Final = Gap(Offset(5), Offset(7), seen=True)


def moment(now: float = NOW) -> Moment:
    settings = LaneSettings()
    return Moment(now, settings, settings.backoff.delay)


def located(start: int = 0, *, takes_bulk: bool = False) -> Located:
    return Located(START, NOW, LogBounds(0, start, 9, 9), takes_bulk, True, LeaderEpoch(3))


def partition_after(*events: Event) -> ExactPartition:
    """A partition that has leaders, with a batch of five records in flight and a gap behind it."""
    spec = PartitionSpec(
        partition=TopicPartition("t", 0), source_topic_id=TOPIC, shard=0, compacted=False
    )
    partition = ExactPartition(spec=spec, append=PartitionAppend(0.0))
    partition.source_node = partition.destination_node = 1
    partition.destination_epoch, partition.destination_start = LeaderEpoch(4), Offset(0)
    for event in events:
        if isinstance(event, RoundBegan):
            step(partition, BatchAnswered(Appended(0, 0, 0)), moment())
        step(partition, event, moment())
        if isinstance(event, Queued):
            assert partition.append.take(0) is not None
    return partition


def led(epoch: int) -> DestinationLed:
    return DestinationLed(LeaderReport(1, epoch, TOPIC))


def queued() -> Queued:
    return Queued([empty_records(Offset(0), Offset(5)), GAP])


CONDITIONS: Final[dict[Condition, Callable[[], ExactPartition]]] = {
    Condition.GONE: lambda: partition_after(located(), queued(), Gone()),
    Condition.FILLING: lambda: partition_after(located(), queued(), RoundBegan()),
    Condition.WAITING: lambda: partition_after(located(), queued(), Trouble("a test")),
    Condition.FAILED: lambda: partition_after(located(), queued(), Failure("a test", True)),
    Condition.DRAINING: lambda: partition_after(
        located(), queued(), *(led(epoch) for epoch in (4, 5))
    ),
    Condition.LOCATING: partition_after,
    Condition.APPENDING: lambda: partition_after(located(), queued()),
}

EVENTS: Final[dict[str, Event]] = {
    "look": LOOK,
    "trouble": Trouble("it failed"),
    "trouble with the right": Trouble("it failed", 29),
    "transient failure": Failure("it failed", transient=True),
    "lasting failure": Failure("it failed"),
    "retry due": RetryDue(),
    "gone": Gone(),
    "located": located(),
    "unsettled": Unsettled(),
    "ahead": Ahead(Offset(9), Offset(5)),
    "not ahead": NotAhead(),
    "source bounds": SourceBounds(Offset(9), Offset(9), 0, at_least=False),
    "queued": Queued([Gap(Offset(7), Offset(8), seen=True)]),
    "read": Read(sound=True, explained=True, behind=True),
    "read nothing": Read(sound=False, explained=False, behind=True),
    "held back": HeldBack("it is silent"),
    "corrupt read": CorruptRead("a checksum"),
    "diverged": Diverged(EpochEnd(1, 3)),
    "diverged below": Diverged(EpochEnd(1, -1)),
    "fetch refused": FetchRefused(6),
    "batch answered": BatchAnswered(Appended(0, 0, 0)),
    "batch misplaced": BatchAnswered(Appended(0, 8, 0)),
    "batch refused": BatchAnswered(Appended(19, -1, -1)),
    "batch lost": BatchLost("no answer"),
    "batch not sent": BatchNotSent("no connection"),
    "round began": RoundBegan(),
    "gap filled": RoundEnded(LogEnd(0, 7, 0)),
    "gap misplaced": RoundEnded(LogEnd(0, 9, 0)),
    "gap not answered": RoundEnded(None),
    "markers lost": MarkersLost("no answer"),
    "data fenced": DataFenced(),
    "confirmed": Confirmed(Plan(START, Offset(7))),
    "source led": SourceLed(LeaderReport(1, 4, TOPIC)),
    "source recreated": SourceLed(LeaderReport(1, 4, UUID(int=2))),
    "destination led": led(4),
    "destination led anew": led(5),
    "destination not led": DestinationLed(None),
    "leaders doubted": LeadersDoubted(),
}


def outcome(condition: Condition, event: Event) -> str:
    """Step once: the next condition if it changes, the actions; `!`: the event cannot happen."""
    partition = CONDITIONS[condition]()
    assert partition.condition(NOW) is condition
    try:
        actions = step(partition, event, moment())
    except (AssertionError, IndexError):
        return "!"
    then = partition.condition(NOW)
    changed = [] if then is condition else [f"→{then.name}"]
    return " ".join([*changed, *map(name_of, actions)]) or "·"


def name_of(action: Action) -> str:
    return action.name if isinstance(action, Do) else type(action).__name__


def table() -> dict[tuple[str, str], str]:
    """Read the expected outcomes: an event, and below it a line for each condition."""
    found: dict[tuple[str, str], str] = {}
    event = ""
    for line in (ROOT / "tests" / "scenarios" / "partition_machine.txt").read_text().splitlines():
        if line and not line.startswith((" ", "#")):
            event = line
        elif line.startswith(" "):
            condition, expected = line.split(maxsplit=1)
            found[event, condition] = expected
    return found


def test_the_table_gives_the_outcome_of_each_event_and_condition() -> None:
    """Goal: the table has each pair, and each pair does what the table says."""
    pairs = {
        (name, one.name): outcome(one, event) for name, event in EVENTS.items() for one in Condition
    }
    assert pairs == table()


def test_every_event_type_is_in_the_table() -> None:
    """Goal: a new kind of event needs a row."""
    assert {type(event) for event in EVENTS.values()} == set(get_args(Event))


def test_offsets_below_the_log_start_of_the_source_are_filled() -> None:
    """Goal: they are a gap, or used up in bulk; then the partition is PREPARING until the end."""
    partition = partition_after()
    actions = step(partition, located(4), moment())
    assert partition.append.planned_end == 4
    assert [action.level for action in actions if isinstance(action, Note)] == [logging.WARNING]
    assert partition.stage is PartitionStage.MIRRORING
    partition = partition_after()
    step(partition, located(4, takes_bulk=True), moment())
    state = (partition.append.planned_end, partition.bulk_until, partition.stage)
    assert state == (4, 4, PartitionStage.PREPARING)
    assert partition.append.take(0) is not None
    step(partition, BatchAnswered(Appended(0, 0, 0)), moment())
    assert partition.stage is PartitionStage.MIRRORING
    assert partition.append.filled_offsets[Absence.LOG_START] == 4


def test_a_gap_without_evidence_is_confirmed_before_filling() -> None:
    """Goal: another owner may have read records there, and may have sent them."""
    partition = partition_after(located())
    step(partition, Queued([Gap(Offset(0), Offset(3), seen=False)]), moment())
    assert step(partition, LOOK, moment()) == [Do.CONFIRM, Do.SEND, Do.FETCH]
    plan = plan_of(partition.append)
    step(partition, Queued([Gap(Offset(3), Offset(4), seen=False)]), moment())
    assert step(partition, Confirmed(plan), moment()) == [Do.CONFIRM, Do.FILL, Do.FETCH]
    actions = step(partition, Confirmed(plan_of(partition.append)), moment())
    assert actions == [Do.FILL, Do.FETCH]


def test_a_partition_is_failed_after_the_maximum_number_of_attempts() -> None:
    """Goal: the backoff grows, and the attempts are bounded; a success begins anew."""
    settings, waits = LaneSettings(), list[float]()
    partition = partition_after()
    for _ in range(settings.attempts):
        step(partition, Trouble("it failed"), moment())
        waits.append(partition.retry_at - NOW)
    assert waits == sorted(waits)
    assert partition.stage is PartitionStage.PREPARING
    step(partition, Trouble("it failed"), moment())
    assert (partition.stage, partition.transient) == (PartitionStage.FAILED, True)
    partition = partition_after(located(), queued())
    partition.attempts = settings.attempts
    step(partition, BatchAnswered(Appended(0, 0, 0)), moment())
    assert partition.attempts == 0


def test_a_permanent_failure_is_not_retried() -> None:
    """Goal: a later transient failure does not let a diverged partition be retried."""
    partition = partition_after(Failure("it differs"), Failure("no right", transient=True))
    assert (partition.transient, partition.reason) == (False, "it differs")
    assert step(partition, RetryDue(), moment()) == []


def test_that_the_logs_differ_is_not_hidden_by_a_later_failure() -> None:
    """Goal: the reason stays, and so does what a stop has to know."""
    partition = partition_after(Failure("it differs", differs=True), Failure("no source"))
    assert (partition.differs, partition.reason) == (True, "it differs")
    partition = partition_after(Failure("no source"), Failure("another cluster"))
    assert (partition.differs, partition.reason) == (False, "another cluster")


def test_the_wait_for_a_source_that_is_behind_is_bounded() -> None:
    """Goal: the wait for a source that may catch up is bounded, and begins anew when it has."""
    patience = LaneSettings().ahead_patience_s
    ahead = Ahead(Offset(9), Offset(5))
    partition = partition_after(ahead)
    step(partition, ahead, moment(NOW + patience))
    assert partition.stage is PartitionStage.PREPARING
    step(partition, NotAhead(), moment(NOW + patience))
    step(partition, ahead, moment(NOW + patience + 1))
    assert partition.stage is PartitionStage.PREPARING
    step(partition, ahead, moment(NOW + 2 * patience + 2))
    assert (partition.stage, partition.transient) == (PartitionStage.FAILED, True)


def test_a_lost_destination_topic_is_retried_after_its_leader_is_known() -> None:
    """Goal: a position that is read meanwhile may be another topic's."""
    partition = partition_after(DestinationLed(None))
    actions = step(partition, RetryDue(), moment())
    assert [name_of(action) for action in actions] == ["REFRESH", "After"]
    assert partition.condition(NOW) is Condition.FAILED
    step(partition, led(4), moment())
    assert partition.condition(NOW) is Condition.LOCATING


def test_answers_of_two_leaders_are_never_mixed() -> None:
    """Goal: what the former leader has not answered comes before anything is sent to another one.

    Stale metadata named no leader, and then a former one, which refuses at once.
    """
    batches: list[Piece] = [empty_records(Offset(at), Offset(at + 5)) for at in (0, 5, 10, 15)]
    partition = partition_after(located(), Queued(batches))
    step(partition, BatchAnswered(Appended(0, 0, 0)), moment())
    assert partition.append.take(-1) is not None
    assert partition.append.take(-1) is not None
    for report in (LeaderReport(-1, -1, TOPIC, 5), LeaderReport(2, 3, TOPIC)):
        step(partition, DestinationLed(report), moment())
    assert partition.destination_node == 2
    if partition.append.take(-1) is not None:
        step(partition, BatchAnswered(Appended(6, -1, -1)), moment())
    assert partition.condition(NOW) is Condition.DRAINING
    for base_offset in (5, 10):
        step(partition, BatchAnswered(Appended(0, base_offset, 0)), moment())
    assert partition.condition(NOW) is Condition.LOCATING
