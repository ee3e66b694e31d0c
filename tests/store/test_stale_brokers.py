"""A broker that does not know an existing control topic: it has just started, or is cut off."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pytest

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.configuration import parse_config
from twinlog.kafka.client.metadata import Broker, Metadata, Topic
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Retriable
from twinlog.store import mirrors
from twinlog.store.config_records import MirrorTopic
from twinlog.store.control_topics import (
    CONTROL_TOPICS,
    ConfigLog,
    States,
    read_config,
    read_states,
)
from twinlog.store.mirrors import MirrorStore
from twinlog.store.snapshot import Snapshot
from twinlog.sync import refresh

BROKERS = MappingProxyType({node: Broker(node, "localhost", 9092) for node in (1, 2)})


class StaleOnce:
    """Two brokers. The one that is asked first knows no topic; the other one knows those given."""

    name = "destination"

    def __init__(self, known: Collection[str]) -> None:
        self.metadata = Metadata(brokers=BROKERS)
        self._known = frozenset(known)
        self._asked = False

    async def refresh(self, topics: Collection[str]) -> Metadata:
        names = self._known & {*topics} if self._asked else ()
        self._asked = True
        found = {name: Topic(name, uuid4(), False, {}) for name in names}
        self.metadata = Metadata(brokers=BROKERS, topics=MappingProxyType(found))
        return self.metadata

    async def call(self, request: Any, *, node: int) -> Any:
        gone = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return SimpleNamespace(
            topics=[
                SimpleNamespace(
                    name=topic.name,
                    error_code=0 if node == 2 and topic.name in self._known else gone,
                )
                for topic in request.topics
            ]
        )


@pytest.mark.parametrize("known", [CONTROL_TOPICS, ()])
@pytest.mark.parametrize(
    "read",
    [
        read_config,
        read_states,
        lambda cluster: MirrorStore(cluster).snapshot(),
        lambda cluster: MirrorStore(cluster).states(),
    ],
)
def test_only_what_no_broker_knows_is_empty(
    known: Collection[str], read: Callable[[KafkaCluster], Awaitable[object]]
) -> None:
    """Otherwise a lane would take STOPPED partitions over as new ones, without their ends."""

    async def run() -> None:
        cluster = cast("KafkaCluster", StaleOnce(known))
        if known:
            with pytest.raises(Retriable, match="not yet known to every broker"):
                await read(cluster)
        else:
            assert await read(cluster) in [Snapshot(), States({}, {})]

    asyncio.run(run())


def test_an_unknown_partition_count_is_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    """States would be forgotten in another state partition, and two nodes refresh one mirror."""

    async def unknown(*_: object) -> None:
        return None

    monkeypatch.setattr(refresh, "partition_count", unknown)
    cluster = cast("KafkaCluster", StaleOnce(CONTROL_TOPICS))
    store = MirrorStore(cluster)
    topic = MirrorTopic(mirror="m", topic="t", topic_id=uuid4(), partitions=1)
    with pytest.raises(Retriable, match="does not know the topic yet"):
        asyncio.run(store._without_states([topic], States({}, {})))
    node = refresh.Refresher(cluster, store, Snapshot)
    asyncio.run(node.on_assigned({0}))
    assert not asyncio.run(node._is_ours("m"))


def test_a_change_waits_for_brokers_that_do_not_know_the_topic_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first mirror of a cluster with several brokers is created, and no error is shown."""
    told: list[Retriable | ConfigLog] = [Retriable("not yet known to every broker"), ConfigLog()]
    answers = iter(told)
    asked = []

    class Fence:
        def __init__(self, *_: object) -> None: ...

        async def fence(self) -> None: ...

    async def read() -> ConfigLog:
        answer = next(answers)
        if isinstance(answer, Retriable):
            raise answer
        return answer

    async def no_topic(*_: object) -> None:
        return None

    def decide(snapshot: Snapshot) -> tuple[()]:
        asked.append(snapshot)
        return ()

    monkeypatch.setattr(mirrors, "TransactionalWriter", Fence)
    monkeypatch.setattr(mirrors, "partition_count", no_topic)
    monkeypatch.setattr(mirrors, "check_state_partitions", no_topic)
    store = MirrorStore(KafkaCluster(parse_config({"bootstrap.servers": "127.0.0.1:1"}).config))
    monkeypatch.setattr(store._config, "read", read)
    asyncio.run(store.change(decide))
    assert asked == [Snapshot(), Snapshot()]  # before the fence, and after the second read
