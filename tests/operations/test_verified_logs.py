"""The logs that `verify` compares, on real brokers, without lanes and Spark."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import librdkafka_tools
import pytest
from clients import client, make_topic
from waiting import until_async

from conftest import Pair
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import UserError
from twinlog.kafka.requests.partitions import delete_records
from twinlog.kafka.types import TopicPartition
from twinlog.lifecycle.creation import add_topics, create_mirror
from twinlog.local.cluster import LocalCluster
from twinlog.operations import verification
from twinlog.operations.mirror_admin import MirrorAdmin
from twinlog.operations.verification import VerifyConfig
from twinlog.operations.verification_report import DIFFERS, NOT_SEEN, SAME, Verification
from twinlog.runtime.job_progress import JobProgress
from twinlog.store.config_records import Mirror
from twinlog.store.mirrors import MirrorStore
from twinlog.verify.job import Compared, VerifyTask, verify_task

pytestmark = pytest.mark.broker

BetweenPlanAndTasks = Callable[[list[VerifyTask]], None]


class Mirrored(NamedTuple):
    """A topic with 100 records on both clusters, as a mirror leaves it."""

    mirror: str
    topic: str
    source: KafkaCluster
    destination: KafkaCluster
    servers: tuple[str, str]

    async def make_again(self, cluster: KafkaCluster, records: int) -> None:
        """Delete it on one cluster, and recreate it with this number of records."""
        servers = self.servers[cluster is self.destination]
        librdkafka_tools.delete_topic(servers, self.topic)

        async def gone() -> bool:
            return self.topic not in (await cluster.refresh([self.topic])).topics

        await until_async(gone)
        await make_topic(cluster, self.topic)
        librdkafka_tools.write_same(servers, self.topic, 0, 0, records)

    async def verify(self, patience_s: float = 60.0) -> Verification:
        """Return the result of `verify`; what is never seen is waited for as long as this."""
        async with MirrorAdmin({"bootstrap.servers": self.servers[1]}) as admin:
            topic = re.compile(re.escape(self.topic))
            return await admin.verify(self.mirror, topic, patience_s=patience_s)


@asynccontextmanager
async def mirrored(pair: Pair, topic: str) -> AsyncIterator[Mirrored]:
    servers = pair.source.bootstrap_servers, pair.destination.bootstrap_servers
    async with client(pair.source) as source, client(pair.destination) as destination:
        setup = Mirrored(f"mirror.{topic}", topic, source, destination, servers)
        await create_mirror(destination, setup.mirror, {"bootstrap.servers": servers[0]})
        await make_topic(source, topic)
        librdkafka_tools.write_same(servers[0], topic, 0, 0, 100)
        await add_topics(destination, setup.mirror, topic)
        librdkafka_tools.write_same(servers[1], topic, 0, 0, 100)
        yield setup


@pytest.fixture
def tasks_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[BetweenPlanAndTasks], None]:
    """Run the tasks in this process, without Spark, after the test's change."""

    def set_up(between: BetweenPlanAndTasks) -> None:
        def compare(
            _config: VerifyConfig, tasks: list[VerifyTask], _progress: Callable[[JobProgress], None]
        ) -> list[Compared]:
            between(tasks)
            return [each for task in tasks for each in verify_task(task)]

        monkeypatch.setattr(verification, "_compare", compare)

    set_up(lambda _: None)
    return set_up


def test_equal_logs_are_verified_as_the_same(pair: Pair, topic: str, tasks_after: object) -> None:
    """The logs are the same: the base case of the other tests."""
    del tasks_after

    async def run() -> None:
        async with mirrored(pair, topic) as setup:
            found = await setup.verify()
            assert found.verdict == SAME
            assert found.counts.compared == found.counts.length == 100

    asyncio.run(run())


def test_an_address_of_another_cluster_is_refused(
    pair: Pair, topic: str, tasks_after: object
) -> None:
    """Otherwise the destination would be compared with itself."""
    del tasks_after

    async def run() -> None:
        async with mirrored(pair, topic) as setup:
            store = MirrorStore(setup.destination)
            mirror = (await store.snapshot()).mirrors[setup.mirror]
            moved = Mirror(
                name=mirror.name,
                source={"bootstrap.servers": setup.servers[1]},
                source_cluster_id=mirror.source_cluster_id,
            )
            await store.change(lambda _: [moved])
            with pytest.raises(UserError, match="of the source lead to cluster"):
                await setup.verify()

    asyncio.run(run())


def test_offsets_of_a_task_that_reaches_another_cluster_are_not_seen(
    pair: Pair, topic: str, tasks_after: Callable[[BetweenPlanAndTasks], None]
) -> None:
    """An executor may resolve the name differently: its offsets are then not seen."""

    async def run() -> None:
        async with mirrored(pair, topic) as setup:

            def elsewhere(tasks: list[VerifyTask]) -> None:
                for task in tasks:
                    object.__setattr__(task, "source", task.destination)

            tasks_after(elsewhere)
            found = await setup.verify(patience_s=3.0)
            assert found.verdict == NOT_SEEN
            assert found.counts.not_seen == found.counts.length == 100
            assert "bootstrap.servers of the source lead to cluster" in found.unseen[0].reason

    asyncio.run(run())


@pytest.mark.parametrize("side", ["source", "destination"])
def test_a_recreated_topic_differs(pair: Pair, topic: str, side: str, tasks_after: object) -> None:
    """It differs even if nothing is left to compare: an empty destination, or a later log start."""
    del tasks_after

    async def run() -> None:
        async with mirrored(pair, topic) as setup:
            if side == "source":
                await setup.make_again(setup.source, 200)
                await delete_records(setup.source, {TopicPartition(topic, 0): 150})
            else:
                await setup.make_again(setup.destination, 0)
            found = await setup.verify()
            assert found.verdict == DIFFERS
            assert found.differences[0].reason == f"{side}: the topic was deleted and recreated"
            assert found.counts.differs == found.counts.length

    asyncio.run(run())


@pytest.mark.parametrize("side", ["source", "destination"])
def test_a_topic_recreated_during_the_verification_is_not_seen(
    pair: Pair, topic: str, side: str, tasks_after: Callable[[BetweenPlanAndTasks], None]
) -> None:
    """It is recreated between reading the bounds and the tasks, even with the same records."""

    async def run() -> None:
        async with mirrored(pair, topic) as setup:

            def again(_: list[VerifyTask]) -> None:
                asyncio.run(recreate_on_another_thread(pair, setup, side))

            tasks_after(again)
            found = await setup.verify(patience_s=3.0)
            assert found.verdict == NOT_SEEN
            assert found.counts.not_seen == 100

    asyncio.run(run())


async def recreate_on_another_thread(pair: Pair, setup: Mirrored, side: str) -> None:
    """Run `make_again` on another thread, whose loop needs a client of its own."""
    cluster: LocalCluster = getattr(pair, side)
    async with client(cluster) as own:
        changed: dict[str, Any] = {side: own}
        on_thread = setup._replace(**changed)
        await on_thread.make_again(own, 100)
