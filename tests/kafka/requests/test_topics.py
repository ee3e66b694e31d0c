"""Twin of twinlog.kafka.requests.topics, for answers that real brokers seldom give."""

import asyncio
from types import SimpleNamespace
from typing import Any

from twinlog.kafka.errors import LEFT_OUT
from twinlog.kafka.requests.topics import ConfigResourceType, describe_configs, topic_resource


def test_a_resource_that_an_answer_leaves_out() -> None:
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
