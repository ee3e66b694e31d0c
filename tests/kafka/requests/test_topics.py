"""Twin of twinlog.kafka.requests.topics, for answers that real brokers seldom give."""

import asyncio
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from twinlog.kafka.client.metadata import Partition, Topic
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import LEFT_OUT, Retriable
from twinlog.kafka.requests.topics import (
    Alteration,
    AlterOperation,
    ConfigResourceType,
    KnownTopic,
    NewTopic,
    create_partitions,
    create_topics,
    delete_topics,
    describe_configs,
    incremental_alter_configs,
    known_topics,
    require_all_shown,
    topic_names,
    topic_resource,
)


class Brokers:
    """Brokers by id with the topics that each knows; None: it does not answer.

    `internal` begins the names of Kafka's internal topics, `?` those that do not exist. A name may
    be followed by the topic's id and partition count (`t:1:3`). With `dies` a broker that does not
    answer is not in the metadata any more.
    """

    name = "destination"

    def __init__(self, *, dies: bool = True, **known: list[str] | None) -> None:
        self.known = known
        self.dies = dies

    async def refresh(self, topics: object) -> Any:
        assert topics == ()
        return SimpleNamespace(brokers=dict(self.known))

    async def persist(self, attempt: Any) -> Any:
        try:
            return await attempt()
        except Retriable:
            return await attempt()

    async def call(self, request: Any, *, node: str, once: bool) -> Any:
        assert once
        known = self.known[node]
        asked = None if request.topics is None else {topic.name for topic in request.topics}
        if known is None:
            if self.dies:
                del self.known[node]
            raise Retriable("it does not answer")
        topics = [_answer(text) for text in known]
        return SimpleNamespace(topics=[t for t in topics if asked is None or t.name in asked])


def _answer(text: str) -> Any:
    name, topic_id, count = [*text.split(":"), "0", "1"][:3]
    return SimpleNamespace(
        name=name.lstrip("?"),
        topic_id=UUID(int=int(topic_id)),
        is_internal=name.startswith("internal"),
        error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if name.startswith("?") else 0,
        partitions=range(int(count)),
    )


def test_topics_are_those_that_some_broker_knows() -> None:
    """Goal: a broker that has just started, and knows few topics, hides none."""
    brokers: Any = Brokers(a=["t", "?v"], b=[], c=["u", "internal-x", "?w"])
    assert asyncio.run(topic_names(brokers)) == {"t", "u"}


def test_what_brokers_know_of_a_topic_is_taken_together() -> None:
    """Goal: one that has not learned of a new partition, or of a recreated topic, hides neither."""
    brokers: Any = Brokers(a=["t:1:3", "u:4:1"], b=["t:1:6"], c=["t:2:1", "?u"])
    known = asyncio.run(known_topics(brokers))
    assert known["t"] == KnownTopic(frozenset({UUID(int=1), UUID(int=2)}), 6, internal=False)
    unseen_by_c = KnownTopic(frozenset({UUID(int=4)}), 1, internal=False, everywhere=False)
    assert known["u"] == unseen_by_c
    assert asyncio.run(known_topics(brokers, ["u"])).keys() == {"u"}


def test_all_partitions_are_shown_only_if_no_broker_knows_more() -> None:
    """Goal: the answer of a broker that is cut off does not count as the whole topic."""

    def shown(name: str, partitions: int) -> Topic:
        partition = Partition(1, 0, (1,), (1,))
        return Topic(name, UUID(int=1), False, dict.fromkeys(range(partitions), partition))

    brokers: Any = Brokers(a=["t:1:2", "u:1:4"], b=["t:1:3", "u:1:4"])
    topics = {"t": shown("t", 3), "u": shown("u", 4)}
    asyncio.run(require_all_shown(brokers, topics))
    topics["t"] = shown("t", 2)
    with pytest.raises(Retriable, match="shows 2 partitions, and another one 3"):
        asyncio.run(require_all_shown(brokers, topics))
    silent: Any = Brokers(a=["t:1:2"], b=None, dies=False)
    with pytest.raises(Retriable, match="does not answer"):
        asyncio.run(require_all_shown(silent, {"t": shown("t", 2)}))
    asyncio.run(require_all_shown(silent, {}))
    recreated: Any = Brokers(a=["t:1:2"], b=["t:2:2"])
    with pytest.raises(Retriable, match="several ids"):
        asyncio.run(require_all_shown(recreated, {"t": shown("t", 2)}))


def test_topics_are_not_concluded_without_the_answer_of_a_broker() -> None:
    """Goal: all brokers are asked again, without the one that has died meanwhile."""
    brokers: Any = Brokers(a=["t"], b=None)
    assert asyncio.run(topic_names(brokers)) == {"t"}
    assert brokers.known.keys() == {"a"}
    hanging: Any = Brokers(a=["t"], b=None, dies=False)
    with pytest.raises(Retriable, match="does not answer"):
        asyncio.run(topic_names(hanging))
    nobody: Any = Brokers()
    with pytest.raises(Retriable, match="no broker"):
        asyncio.run(topic_names(nobody))


def test_a_resource_missing_from_a_response_is_refused() -> None:
    """Goal: it is refused, not absent: its configurations are unknown."""

    async def call(_request: object, **_how: object) -> Any:
        kind = int(ConfigResourceType.TOPIC)
        answered = SimpleNamespace(
            resource_type=kind, resource_name="t", error_code=0, error_message=None, configs=[]
        )
        return SimpleNamespace(results=[answered])

    cluster: Any = SimpleNamespace(call=call)
    resources = [topic_resource("t"), topic_resource("u")]
    found = asyncio.run(describe_configs(cluster, resources))
    assert found == {resources[0]: {}, resources[1]: LEFT_OUT}


def test_a_change_missing_from_a_response_is_refused() -> None:
    """Goal: it is refused, not done: whether it was is unknown."""

    async def call(_request: object, **_how: object) -> Any:
        return SimpleNamespace(responses=[], results=[], topics=[])

    cluster: Any = SimpleNamespace(call=call, config=SimpleNamespace(request_timeout=1.0))
    resource = topic_resource("t")
    changes = {resource: [Alteration("retention.ms", AlterOperation.SET, "1")]}
    assert asyncio.run(incremental_alter_configs(cluster, changes)) == {resource: LEFT_OUT}
    assert asyncio.run(create_topics(cluster, [NewTopic(name="t")])) == {"t": LEFT_OUT}
    assert asyncio.run(create_partitions(cluster, {"t": 2})) == {"t": LEFT_OUT}
    assert asyncio.run(delete_topics(cluster, ["t"])) == {"t": LEFT_OUT}
