"""Twin of twinlog.engines.source.policies: what compaction explains, and where.

The source's policy and the destination's may differ: it is not copied when it changes.
"""

import asyncio
from collections.abc import Collection, Mapping
from typing import cast

import pytest

from model.world import KEY, World, scenario
from twinlog.engines.exact.partition import ExactPartition
from twinlog.engines.ports import SourcePort
from twinlog.engines.source.policies import SourcePolicies
from twinlog.kafka.errors import Retriable
from twinlog.kafka.types import TopicPartition
from twinlog.mirror.absence import LOOK_INTERVAL_S, Absence


def set_policy(world: World, *, compact: bool) -> None:
    """Alter cleanup.policy of the source's topic."""
    world.source.topics[KEY.topic].compact = compact


def remove(world: World, value: str) -> None:
    """Remove the source's batch with this value, as compaction or a lost segment does."""
    log = world.source.log(KEY)
    log.rewrite(lambda stored: None if value.encode() in stored.data else stored.data, log.end)


def filled(world: World, reason: Absence) -> int:
    """Return how many offsets were filled for this reason."""
    return world.partition.append.filled_offsets[reason]


async def filled_for_a_skip(world: World) -> tuple[int, int]:
    """Mirror a log with a skipped offset; return how many were filled as compacted, unexplained."""
    world.write("a")
    await world.mirror(compacted=True)
    await world.arrived()
    world.write("b")
    remove(world, "b")
    world.write("c")
    await world.arrived()
    return filled(world, Absence.COMPACTED), filled(world, Absence.UNEXPLAINED)


@scenario
async def test_a_skip_is_compaction_if_the_source_compacts(world: World) -> None:
    """Goal: a compacted topic's skipped offsets are counted as compacted."""
    set_policy(world, compact=True)
    assert await filled_for_a_skip(world) == (1, 0)


@scenario
async def test_a_skip_is_unexplained_if_only_the_destination_compacts(world: World) -> None:
    """Goal: the source does not compact, so a skip is read twice, and counted as unexplained."""
    assert await filled_for_a_skip(world) == (0, 1)


@scenario
async def test_a_policy_changed_after_a_loss_does_not_explain_the_loss(world: World) -> None:
    """Goal: missing records are not taken for compacted ones because the policy was set since."""
    world.write("a")
    await world.mirror()
    await world.arrived()
    world.write("b")
    remove(world, "b")
    assert "does not contain compact" in await world.failed()
    set_policy(world, compact=True)
    await world.until(lambda: "on the source only" in world.partition.held_back)
    await asyncio.sleep(10 * LOOK_INTERVAL_S)
    assert sum(world.partition.append.filled_offsets) == 0
    await world.mirror(compacted=True)  # an operator has set it on the destination, too
    await world.until(lambda: filled(world, Absence.COMPACTED) == 1)


class Answering:
    """A source that answers about policies what it is told."""

    def __init__(self) -> None:
        self.asked: list[set[str]] = []
        self.answers: list[dict[str, bool | None] | None] = []

    async def compacts(self, topics: Collection[str]) -> Mapping[str, bool | None]:
        """Answer once for each prepared answer, then never."""
        self.asked.append(set(topics))
        if not self.answers:
            await asyncio.Event().wait()
        answer = self.answers.pop(0)
        if answer is None:
            raise Retriable("no answer")
        return answer


def test_policies_are_refreshed_after_failures_and_by_age(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: after a failure, for a new topic, and by age; topics that have left are not named."""
    monkeypatch.setattr("twinlog.engines.source.policies.MAX_AGE_S", 0.01)

    async def body() -> None:
        owned = dict.fromkeys([TopicPartition("t", 0), TopicPartition("u", 0)])
        partitions = cast("dict[TopicPartition, ExactPartition]", owned)
        policies, source = SourcePolicies(partitions, lambda _: 0.0), Answering()
        source.answers = [None, {"t": True}]
        assert policies.compacts("t") is None
        running = asyncio.ensure_future(policies.run(cast("SourcePort", source)))
        while len(source.asked) < 3:
            await asyncio.sleep(0)
        assert source.asked == [{"t"}] * 3
        assert policies.compacts("t") is True
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

        source.answers = [{"u": None}]
        assert policies.compacts("u") is None
        del owned[TopicPartition("t", 0)]
        running = asyncio.ensure_future(policies.run(cast("SourcePort", source)))
        while len(source.asked) < 5:
            await asyncio.sleep(0)
        assert source.asked[3:] == [{"u"}, {"u"}]
        assert policies.compacts("u") is None
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(body())


def test_the_policy_of_a_reassigned_topic_is_requested_again() -> None:
    """Goal: the answer about a topic that was recreated since is dropped."""

    async def body() -> None:
        partitions = cast("dict[TopicPartition, ExactPartition]", {TopicPartition("t", 0): None})
        policies, source = SourcePolicies(partitions, lambda _: 0.0), Answering()
        source.answers = [{"t": True}, {"t": False}]
        policies.ask("t")
        running = asyncio.ensure_future(policies.run(cast("SourcePort", source)))
        while policies.compacts("t") is None:
            await asyncio.sleep(0)
        policies.forget("t")
        assert policies.compacts("t") is None
        while policies.compacts("t") is None:
            await asyncio.sleep(0)
        assert policies.compacts("t") is False
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(body())


def test_a_policy_answer_in_flight_during_recreation_is_dropped() -> None:
    """Goal: an answer that was on its way when the topic was recreated does not count."""

    async def body() -> None:
        partitions = cast("dict[TopicPartition, ExactPartition]", {TopicPartition("t", 0): None})
        policies = SourcePolicies(partitions, lambda _: 0.0)
        waiting = [asyncio.get_running_loop().create_future() for _ in range(2)]
        asked: list[Collection[str]] = []

        class Slow:
            async def compacts(self, topics: Collection[str]) -> Mapping[str, bool | None]:
                asked.append(topics)
                return cast("Mapping[str, bool | None]", await waiting[len(asked) - 1])

        policies.ask("t")
        running = asyncio.ensure_future(policies.run(cast("SourcePort", Slow())))
        while not asked:
            await asyncio.sleep(0)
        policies.forget("t")
        policies.ask("t")
        waiting[0].set_result({"t": True})
        while len(asked) < 2:
            await asyncio.sleep(0)
        assert policies.compacts("t") is None
        waiting[1].set_result({"t": False})
        while policies.compacts("t") is None:
            await asyncio.sleep(0)
        assert policies.compacts("t") is False
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(body())


def test_a_policy_expires_when_the_source_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a source that does not answer any more explains nothing, as one that never did."""
    monkeypatch.setattr("twinlog.engines.source.policies.MAX_AGE_S", 0.01)

    async def body() -> None:
        partitions = cast("dict[TopicPartition, ExactPartition]", {TopicPartition("t", 0): None})
        policies, source = SourcePolicies(partitions, lambda _: 60.0), Answering()
        source.answers = [{"t": True}, None]
        policies.ask("t")
        running = asyncio.ensure_future(policies.run(cast("SourcePort", source)))
        while len(source.asked) < 2:
            await asyncio.sleep(0)
        assert source.answers == []
        assert policies.compacts("t") is None
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(body())
