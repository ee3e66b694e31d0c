"""Twin of twinlog.kafka.requests.topics, for answers that real brokers seldom give."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import LEFT_OUT, Retriable
from twinlog.kafka.requests.topics import (
    Alteration,
    AlterOperation,
    ConfigResourceType,
    NewTopic,
    create_partitions,
    create_topics,
    delete_topics,
    describe_configs,
    incremental_alter_configs,
    topic_names,
    topic_resource,
)


class Brokers:
    """Brokers by id with the topics that each knows; None: it does not answer.

    `internal` begins the names of Kafka's internal topics, `?` those that do not exist. With `dies`
    a broker that does not answer is not in the metadata any more.
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
        assert request.topics is None
        known = self.known[node]
        if known is None:
            if self.dies:
                del self.known[node]
            raise Retriable("it does not answer")
        gone = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return SimpleNamespace(
            topics=[
                SimpleNamespace(
                    name=name.lstrip("?"),
                    is_internal=name.startswith("internal"),
                    error_code=gone if name.startswith("?") else 0,
                )
                for name in known
            ]
        )


def test_topics_are_those_that_some_broker_knows() -> None:
    """Goal: a broker that has just started, and knows few topics, hides none."""
    brokers: Any = Brokers(a=["t", "?v"], b=[], c=["u", "internal-x", "?w"])
    assert asyncio.run(topic_names(brokers)) == {"t", "u"}


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
