"""Twin of twinlog.engines.source.absences, with an engine that notes what it is told.

What each engine does about it: test_suspects.py of both.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, cast

import pytest

from twinlog.engines.source.absences import (
    AT_ONCE,
    LATER_COMPACTED,
    SUSPECT_S,
    UNPROVEN_S,
    Absences,
    WaitingPlace,
)
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Retriable
from twinlog.kafka.log_reader import ReadAlone
from twinlog.kafka.protocol.fetch import Fetched
from twinlog.kafka.types import EpochEnd, Offset
from twinlog.mirror.absence import LOOK_INTERVAL_S, Absence, AbsentSpan
from twinlog.mirror.plan import Gap

AT, END = Offset(10), Offset(20)
GAP = Gap(AT, END, seen=False, spans=(AbsentSpan(Absence.COMPACTED, END),))


def fetched(records: bytes = b"", **more: object) -> Fetched:
    """An answer of a source whose last stable offset is `END`."""
    return Fetched(0, END, END, 0, (), memoryview(records))._replace(**cast("Any", more))


SILENT = ReadAlone(fetched(), 0, 5, local_start=0, compacts=True)
"""What only compaction explains."""


class Engine:
    """An engine (`Suspects`) whose partitions are named by letters."""

    def __init__(self) -> None:
        self.time = 100.0
        self.places: dict[str, WaitingPlace | None] = {}
        self.answer: ReadAlone | Retriable | None = SILENT
        self.moves_to: WaitingPlace | None = None
        self.compacts = True
        self.replica_failure: str | None = None
        self.asked: list[tuple[str, int]] = []
        self.events: list[tuple[object, ...]] = []
        self.absences = Absences[str](self)

    def now(self) -> float:
        return self.time

    def place(self, partition: str) -> WaitingPlace | None:
        return self.places[partition]

    def compacted(self, partition: str) -> bool:
        del partition
        return self.compacts

    def unreadable(self, partition: str) -> str | None:
        del partition
        return self.replica_failure

    async def read_alone(self, partition: str, offset: Offset) -> ReadAlone | None:
        self.asked.append((partition, offset))
        if self.moves_to is not None:
            self.places[partition] = self.moves_to
        if isinstance(self.answer, Retriable):
            raise self.answer
        return self.answer

    async def take(self, partition: str, records: Fetched) -> str | None:
        self.events.append(("take", partition, bytes(records.records)))
        return "part of a batch"

    def doubt_leaders(self, partition: str) -> None:
        self.events.append(("doubt leaders", partition))

    def diverged(self, partition: str, source: EpochEnd) -> None:
        self.events.append(("diverged", partition, source))

    def pass_over(self, partition: str, gap: Gap) -> None:
        self.events.append(("pass over", partition, gap))

    def fail(self, partition: str, reason: str) -> None:
        self.events.append(("fail", partition, reason))

    def explain(self, partition: str, reason: str | None) -> None:
        self.events.append(("explain", partition, reason))

    def suspect(self, *partitions: str) -> None:
        """Make them suspects, at offset 10."""
        for partition in partitions:
            self.places[partition] = WaitingPlace(AT)
            self.absences.suspect(partition)

    async def pass_time(self, seconds: float) -> None:
        """Let time pass, and read what is due then."""
        self.time += seconds
        for partition in self.absences.due():
            await self.absences.read(partition)


def run(body: Coroutine[object, object, None]) -> None:
    asyncio.run(body)


MISSING = (
    "the source has no batch from offset 10 up to its last stable offset 20, although the topic's "
    "cleanup.policy does not contain compact: records of the source are missing or unreadable; "
    "nothing was filled"
)
REDIRECTED = SILENT._replace(fetched=fetched(preferred_replica=2))


@pytest.mark.parametrize(
    ("answer", "compacted", "unreadable", "events"),
    [
        (SILENT, True, "it fails", [("explain", "a", None), ("pass over", "a", GAP)]),
        (SILENT, False, None, [("explain", "a", LATER_COMPACTED.reason)]),
        (
            SILENT._replace(compacts=False),
            True,
            None,
            [("explain", "a", None), ("fail", "a", MISSING)],
        ),
        (
            SILENT._replace(throttle_ms=40),
            True,
            "it fails",
            [("explain", "a", "the source throttles fetches (quota; 40 ms)")],
        ),
        (
            REDIRECTED,
            True,
            None,
            [
                (
                    "explain",
                    "a",
                    "the source's leader redirects fetches to broker 2 (replica.selector.class)",
                )
            ],
        ),
        (REDIRECTED, True, "it fails", [("explain", "a", "it fails")]),
    ],
)
def test_a_second_reading_is_judged(
    answer: ReadAlone, compacted: bool, unreadable: str | None, events: list[tuple[object, ...]]
) -> None:
    """Goal: no gap unless both readings exclude every other reason, and both sides compact."""

    async def body() -> None:
        engine = Engine()
        engine.answer, engine.compacts, engine.replica_failure = answer, compacted, unreadable
        engine.suspect("a")
        await engine.pass_time(SUSPECT_S)
        await engine.pass_time(LOOK_INTERVAL_S - 0.1)
        assert engine.events == []
        await engine.pass_time(0.1)
        assert engine.events == events
        assert engine.asked == [("a", AT)] * 2
        explained = len(events) == 1
        assert engine.absences.has_suspects == explained
        await engine.pass_time(UNPROVEN_S)
        assert len(engine.asked) == 2 + explained

    run(body())


def test_records_between_two_readings_prove_that_there_are_some() -> None:
    """Goal: no gap where part of a batch was read, however empty the answers around it."""

    async def body() -> None:
        engine = Engine()
        engine.suspect("a")
        await engine.pass_time(SUSPECT_S)
        engine.answer = SILENT._replace(fetched=fetched(b"part"))
        await engine.pass_time(LOOK_INTERVAL_S)
        taken = [("take", "a", b"part"), ("explain", "a", "part of a batch")]
        assert engine.events == taken
        engine.answer = SILENT
        await engine.pass_time(UNPROVEN_S)
        assert engine.events == taken
        await engine.pass_time(LOOK_INTERVAL_S)
        assert engine.events[2:] == [("explain", "a", None), ("pass over", "a", GAP)]

    run(body())


@pytest.mark.parametrize(
    ("answer", "events"),
    [
        (Retriable("unreachable"), []),
        (None, []),
        (
            SILENT._replace(fetched=fetched(error=ErrorCode.NOT_LEADER_OR_FOLLOWER)),
            [("doubt leaders", "a")],
        ),
        (SILENT._replace(fetched=fetched(error=ErrorCode.TOPIC_AUTHORIZATION_FAILED)), []),
        (
            SILENT._replace(fetched=fetched(diverging=EpochEnd(4, 8))),
            [("diverged", "a", EpochEnd(4, 8))],
        ),
    ],
)
def test_an_answer_that_is_no_reading_is_followed_by_another_one(
    answer: ReadAlone | Retriable | None, events: list[tuple[object, ...]]
) -> None:
    async def body() -> None:
        engine = Engine()
        engine.answer = answer
        engine.suspect("a")
        await engine.pass_time(SUSPECT_S)
        assert engine.events == events
        await engine.pass_time(UNPROVEN_S - 0.1)
        assert len(engine.asked) == 1
        await engine.pass_time(0.1)
        assert len(engine.asked) == 2

    run(body())


def test_few_partitions_are_read_at_once() -> None:
    """Goal: reads of single partitions do not overload a source that has no records for many."""

    async def body() -> None:
        engine = Engine()
        names = "abcdef"
        assert len(names) == AT_ONCE + 2
        engine.suspect(*names)
        assert engine.absences.due() == []
        engine.time += SUSPECT_S
        first = engine.absences.due()
        assert first == list("abcd")
        assert engine.absences.due() == []
        await engine.absences.read("b")
        assert engine.absences.due() == ["e"]
        for partition in "acde":
            await engine.absences.read(partition)
        assert engine.absences.due() == ["f"]

    run(body())


def test_a_partition_that_waits_elsewhere_is_no_suspect_any_more() -> None:
    """Goal: the readings of one place prove nothing of another one, or of another queue."""

    async def body() -> None:
        for moved in (WaitingPlace(Offset(11)), WaitingPlace(AT, object())):
            engine = Engine()
            engine.suspect("a")
            await engine.pass_time(SUSPECT_S)
            engine.places["a"] = moved
            assert engine.absences.due() == []
            assert not engine.absences.has_suspects
            assert engine.events == [("explain", "a", None)]
            engine.absences.suspect("a")
            await engine.pass_time(LOOK_INTERVAL_S)
            assert len(engine.events) == 1, "a first reading again"

    run(body())


def test_a_place_that_is_not_known_for_a_while_ends_no_suspicion() -> None:
    """Goal: what comes back to a place is judged, though a session has no news of it any more."""

    async def body() -> None:
        engine = Engine()
        engine.suspect("a")
        await engine.pass_time(SUSPECT_S)
        engine.places["a"] = None
        await engine.pass_time(LOOK_INTERVAL_S - 0.1)
        engine.absences.suspect("a")
        assert engine.absences.has_suspects
        engine.places["a"] = WaitingPlace(AT)
        engine.absences.suspect("a")
        await engine.pass_time(0.1)
        assert engine.events[-1] == ("pass over", "a", GAP)

    run(body())


def test_a_place_that_is_not_known_when_it_is_to_be_read_ends_the_suspicion() -> None:
    async def body() -> None:
        engine = Engine()
        engine.suspect("a")
        engine.places["a"] = None
        await engine.pass_time(SUSPECT_S)
        assert engine.asked == []
        assert engine.events == [("explain", "a", None)]
        assert not engine.absences.has_suspects

    run(body())


@pytest.mark.parametrize("answer", [SILENT, SILENT._replace(fetched=fetched(b"part"))])
def test_an_answer_for_a_former_place_is_not_used(answer: ReadAlone) -> None:
    """Goal: no record and no gap of a position that was read again meanwhile."""

    async def body() -> None:
        engine = Engine()
        engine.suspect("a")
        await engine.pass_time(SUSPECT_S)
        engine.answer, engine.moves_to = answer, WaitingPlace(Offset(9))
        await engine.pass_time(LOOK_INTERVAL_S)
        assert engine.asked == [("a", AT)] * 2
        assert engine.events == []

    run(body())
