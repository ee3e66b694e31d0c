"""Groups and their offsets, on real brokers; how they follow: tests/end_to_end/test_groups.py."""

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any
from uuid import UUID

import librdkafka_tools
import pytest
from clients import ClusterConfig, client
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Place
from kafka.protocol.metadata import MetadataRequest
from waiting import until

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.configuration import Address
from twinlog.kafka.client.metadata import Broker, Metadata, Partition, Topic
from twinlog.kafka.errors import Retriable
from twinlog.kafka.groups import offsets
from twinlog.kafka.groups.offsets import Committed, committed_offsets, list_groups
from twinlog.kafka.types import TopicPartition
from twinlog.local.cluster import LocalCluster

OFFSETS = "__consumer_offsets"
NOBODY = -1


class Coordinators(KafkaCluster):
    """Two brokers that list one group each, and the leaders that each refresh returns."""

    def __init__(self, *leaders: tuple[int, int], error: int = 0, code: int = 0) -> None:
        settings: dict[str, Any] = {
            "retry_backoff": 0.01,
            "retry_backoff_max": 0.01,
            "api_timeout": 0.3,
        }
        super().__init__(ClusterConfig(bootstrap_servers=(Address("h", 1),), **settings))
        self._found: Iterator[tuple[int, int]] = iter(leaders)
        self._error, self._code = error, code
        self._listed = {node: Broker(node, "h", 1) for node in (1, 2)}
        self._snapshot = Metadata(brokers=self._listed)
        self.knowing: set[int] = set()
        """The brokers that know topics which the snapshot does not have."""

    @property
    def metadata(self) -> Metadata:
        return self._snapshot

    async def refresh(self, topics: Collection[str] | None = ()) -> Metadata:
        assert topics is not None
        assert OFFSETS in topics
        found = next(self._found, None)
        states = {
            index: Partition(node, node + 10, (), ()) for index, node in enumerate(found or ())
        }
        topic = Topic(OFFSETS, UUID(int=1), True, states, self._error)
        known = {} if found is None and not self._error else {OFFSETS: topic}
        self._snapshot = Metadata(brokers=self._listed, topics=MappingProxyType(known))
        return self._snapshot

    async def call(self, request: Any, *, node: Any = None, **_: Any) -> Any:
        if isinstance(request, MetadataRequest):
            code = 0 if node in self.knowing else 3
            topics = [SimpleNamespace(name=t.name, error_code=code) for t in request.topics]
            return SimpleNamespace(topics=topics)
        return SimpleNamespace(error_code=self._code, groups=[self.listed(node)])

    def listed(self, node: int) -> SimpleNamespace:
        return SimpleNamespace(
            group_id=f"g{node}", group_state="Empty", group_type="classic", protocol_type="consumer"
        )

    def lists(self, *, whole: bool = True) -> set[str]:
        async def run() -> set[str]:
            return set(await list_groups(self, whole=whole))

        return asyncio.run(run())


def test_groups_are_listed_only_if_every_coordinator_is_available(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No broker lists the groups of a partition without a leader. An election is waited for."""
    monkeypatch.setattr(offsets, "ELECTION_S", 0.3)
    both = {"g1", "g2"}
    assert Coordinators((1, 2), (1, 2)).lists() == both
    assert Coordinators((1, NOBODY), (1, 2), (1, 2)).lists() == both
    with pytest.raises(Retriable, match="__consumer_offsets-1 has no leader"):
        Coordinators(*[(1, NOBODY)] * 1000).lists()
    with pytest.raises(Retriable, match="__consumer_offsets-1 has no leader"):
        Coordinators((1, 2), (1, NOBODY)).lists()
    with pytest.raises(Retriable, match="coordinators changed"):
        Coordinators((1, 2), (2, 2)).lists()
    with pytest.raises(Retriable, match="a coordinator is not in the metadata"):
        Coordinators((1, 4), (1, 4)).lists()
    assert Coordinators((1, NOBODY)).lists(whole=False) == both


def test_groups_are_listed_without_describe_right_on_the_offsets_topic() -> None:
    """If it does not exist there are no groups; without the right to describe it, no leaders."""
    assert Coordinators().lists() == {"g1", "g2"}
    stale = Coordinators()
    stale.knowing.add(2)
    with pytest.raises(Retriable, match="__consumer_offsets"):
        stale.lists()
    assert Coordinators(error=29).lists() == {"g1", "g2"}


@pytest.mark.parametrize("states", [("Empty", "Stable"), ("Stable", "Empty")])
def test_a_group_that_two_brokers_list_counts_with_its_members(states: tuple[str, str]) -> None:
    """One of them was its coordinator, and has not heard yet that it is no more."""

    class Moved(Coordinators):
        def listed(self, node: int) -> SimpleNamespace:
            state = states[node - 1]
            return SimpleNamespace(
                group_id="g", group_state=state, group_type=None, protocol_type="consumer"
            )

    found = asyncio.run(list_groups(Moved((1, 2), (1, 2))))
    assert not found["g"].idle


def test_listing_groups_while_a_coordinator_loads_is_an_error() -> None:
    with pytest.raises(Retriable, match="COORDINATOR_LOAD_IN_PROGRESS"):
        Coordinators((1, 2), (1, 2), code=14).lists()


def answering(monkeypatch: pytest.MonkeyPatch, codes: Mapping[TopicPartition, int]) -> Coordinators:
    """A cluster whose coordinator answers for these partitions: offset 7, or an error."""
    topics = [
        SimpleNamespace(
            name=partition.topic,
            partitions=[
                SimpleNamespace(
                    partition_index=partition.partition,
                    error_code=code,
                    committed_offset=-1 if code else 7,
                    committed_leader_epoch=-1,
                    metadata="",
                )
            ],
        )
        for partition, code in codes.items()
    ]

    async def call(*_: object, **__: object) -> SimpleNamespace:
        return SimpleNamespace(error_code=0, topics=topics)

    cluster = Coordinators()
    monkeypatch.setattr(cluster, "coordinators", SimpleNamespace(call=call))
    return cluster


@pytest.mark.parametrize("code", [3, 100])
def test_a_topic_that_only_the_coordinator_does_not_know_may_have_an_offset(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Otherwise an offset of the group's own would count as none, and could be lowered."""
    cluster = answering(monkeypatch, {TopicPartition("t", 0): 0, TopicPartition("gone", 0): code})
    assert asyncio.run(committed_offsets(cluster, "g")) == {TopicPartition("t", 0): Committed(7)}
    cluster.knowing.add(2)
    with pytest.raises(Retriable, match="UNKNOWN_TOPIC"):
        asyncio.run(committed_offsets(cluster, "g"))


def test_an_answer_that_leaves_out_a_named_partition_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    named = [TopicPartition("t", 0), TopicPartition("t", 1)]
    cluster = answering(monkeypatch, {named[0]: 0})
    found = asyncio.run(committed_offsets(cluster, "g", partitions=named[:1]))
    assert found == {named[0]: Committed(7)}
    with pytest.raises(Retriable, match="leaves out t-1"):
        asyncio.run(committed_offsets(cluster, "g", partitions=named))


@pytest.mark.broker
def test_offsets_of_an_open_transaction_are_pending(
    any_kafka: LocalCluster, topic: str, fresh_name: Callable[[str], str]
) -> None:
    """They are pending: a request for stable offsets waits, another gets the earlier ones."""
    servers, group = any_kafka.bootstrap_servers, fresh_name("group")
    librdkafka_tools.make_topic(servers, topic)
    consumer = Consumer({"bootstrap.servers": servers, "group.id": group})
    librdkafka_tools.commit_as(consumer, [Place(topic, 0, 3)])
    settings = {"transactional.id": group, "transaction.timeout.ms": 600_000}
    producer = Producer({"bootstrap.servers": servers, **settings})
    producer.init_transactions(librdkafka_tools.SECONDS)

    def found(*, stable: bool, seconds: float = 60.0) -> dict[TopicPartition, Committed]:
        async def fetch() -> dict[TopicPartition, Committed]:
            cluster = client(any_kafka, api_timeout=seconds)
            await cluster.start(60)
            try:
                return await committed_offsets(cluster, group, stable=stable)
            finally:
                await cluster.close()

        return asyncio.run(fetch())

    def is_pending() -> bool:
        with pytest.raises(Retriable) as waited:
            found(stable=True, seconds=2.0)
        return "UNSTABLE_OFFSET_COMMIT" in str(waited.value)

    before = {TopicPartition(topic, 0): Committed(3)}
    assert found(stable=True) == before
    producer.begin_transaction()
    producer.send_offsets_to_transaction(
        [Place(topic, 0, 7)], consumer.consumer_group_metadata(), librdkafka_tools.SECONDS
    )
    assert found(stable=False) == before
    until(is_pending, what="an answer in time that the offset is pending")
    producer.commit_transaction(librdkafka_tools.SECONDS)
    until(lambda: found(stable=False) != before, what="the transaction's end")
    assert found(stable=True) == {TopicPartition(topic, 0): Committed(7)}
    consumer.close()
