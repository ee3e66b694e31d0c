"""Twin of twinlog.kafka.requests.topics, for answers that real brokers seldom give."""

import asyncio
from types import SimpleNamespace
from typing import Any

from twinlog.kafka.errors import LEFT_OUT
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
    topic_resource,
)


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
