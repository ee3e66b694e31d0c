"""Twin of twinlog.engines.source.leader_bounds, with an engine that notes what it is told.

What each engine notes: test_followers.py of both.
"""

import asyncio
from collections.abc import Collection, Mapping

import pytest

from twinlog.engines.source.leader_bounds import BOUNDS_S, FollowedPartition, LeaderBounds
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Retriable
from twinlog.kafka.types import LogBounds, TopicPartition

KEY, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)
LEADER = 3
FOLLOWED = FollowedPartition(
    source=KEY, leader=LEADER, leader_epoch=5, high_watermark=10, last_stable=8, reading=1
)
SAME = LogBounds(0, 0, 10, 8, 5)


class Engine:
    """An engine (`Followers`) whose partitions are named by strings, and a clock that is set."""

    def __init__(self) -> None:
        self.time = 100.0
        self.partitions = {"p": FOLLOWED}
        self.answers: dict[TopicPartition, LogBounds] = {KEY: SAME, OTHER: SAME}
        self.asked: list[list[TopicPartition]] = []
        self.notes: list[tuple[str, LogBounds, float]] = []
        self.unreachable = False
        self.answer_now = asyncio.Event()
        self.answer_now.set()
        self.bounds_of_leaders = LeaderBounds[str](self)

    def now(self) -> float:
        return self.time

    def followed(self) -> Mapping[str, FollowedPartition]:
        return dict(self.partitions)

    async def bounds(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, LogBounds]:
        self.asked.append(list(partitions))
        await self.answer_now.wait()
        if self.unreachable:
            raise Retriable("unreachable")
        return {key: self.answers[key] for key in partitions}

    def heard(self, partition: str, bounds: LogBounds, asked_at: float) -> None:
        self.notes.append((partition, bounds, asked_at))

    def change(self, **changes: object) -> None:
        """What the engine knows of its partition is different from now on."""
        self.partitions["p"] = self.partitions["p"]._replace(**changes)  # type: ignore[arg-type]

    async def ask(self, **meanwhile: object) -> None:
        """Ask the leader; the engine learns this before the answer arrives."""
        self.answer_now.clear()
        asking = asyncio.ensure_future(self.bounds_of_leaders.ask(LEADER))
        await asyncio.sleep(0)
        self.time += 2
        self.change(**meanwhile)
        self.answer_now.set()
        await asking


@pytest.mark.parametrize(
    ("answer", "meanwhile"),
    [
        (SAME, {}),
        (SAME._replace(high_watermark=30, last_stable=25), {}),
        (SAME._replace(leader_epoch=6), {}),
        (SAME._replace(leader_epoch=-1), {"leader_epoch": 6}),
        (SAME, {"high_watermark": 30, "last_stable": 25}),
    ],
    ids=["same", "more", "elected", "unknown epoch", "the follower had more meanwhile"],
)
def test_an_answer_with_bounds_counts_from_when_it_was_asked_for(
    answer: LogBounds, meanwhile: dict[str, object]
) -> None:
    async def body() -> None:
        engine = Engine()
        engine.answers[KEY] = answer
        await engine.ask(**meanwhile)
        assert engine.notes == [("p", answer, 100.0)]

    asyncio.run(body())


@pytest.mark.parametrize(
    ("answer", "meanwhile"),
    [
        (LogBounds(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, -1, -1), {}),
        (LogBounds(ErrorCode.OFFSET_NOT_AVAILABLE, -1, -1, -1), {}),
        (SAME._replace(leader_epoch=4), {}),
        (SAME, {"leader_epoch": 6}),
        (SAME._replace(high_watermark=9), {}),
        (SAME._replace(last_stable=7), {}),
        (SAME, {"leader": 4}),
        (SAME, {"reading": 2}),
    ],
    ids=[
        "refused",
        "no bounds yet",
        "a former leader",
        "another one was elected meanwhile",
        "less than the follower has",
        "less is stable",
        "another leader",
        "located again",
    ],
)
def test_an_answer_that_shows_no_present_end_is_no_contact(
    answer: LogBounds, meanwhile: dict[str, object]
) -> None:
    """Goal: a leader that is only reachable, or leads no more, does not end the doubt."""

    async def body() -> None:
        engine = Engine()
        engine.answers[KEY] = answer
        await engine.ask(**meanwhile)
        assert engine.asked == [[KEY]]
        assert engine.notes == []

    asyncio.run(body())


def test_an_answer_about_a_partition_that_is_read_from_its_leader_again_is_dropped() -> None:
    async def body() -> None:
        engine = Engine()
        engine.partitions["q"] = FOLLOWED._replace(source=OTHER)
        engine.answer_now.clear()
        asking = asyncio.ensure_future(engine.bounds_of_leaders.ask(LEADER))
        await asyncio.sleep(0)
        del engine.partitions["p"]
        engine.answer_now.set()
        await asking
        assert [name for name, _, _ in engine.notes] == ["q"]

    asyncio.run(body())


def test_a_leader_is_asked_again_and_again_but_not_twice_at_a_time() -> None:
    async def body() -> None:
        engine = Engine()
        leaders = engine.bounds_of_leaders
        assert leaders.due() == [], "it has just named the follower"
        engine.time += BOUNDS_S
        engine.partitions["q"] = FOLLOWED._replace(source=OTHER, leader=4)
        assert leaders.due() == [LEADER]
        engine.time += BOUNDS_S
        assert leaders.due() == [4], "the other one is being asked"
        engine.unreachable = True
        await leaders.ask(LEADER)
        assert engine.notes == []
        engine.unreachable = False
        engine.time += BOUNDS_S
        assert leaders.due() == [LEADER]
        await leaders.ask(LEADER)
        assert engine.asked == [[KEY], [KEY]]
        assert engine.notes == [("p", SAME, engine.time)]
        engine.partitions.clear()
        engine.time += BOUNDS_S
        assert leaders.due() == []
        await leaders.ask(4)
        assert len(engine.asked) == 2, "nothing is asked for"

    asyncio.run(body())
