"""The writer to one broker, without a broker."""

import asyncio
import gc
from types import SimpleNamespace
from typing import Any, cast

from twinlog.cluster.client import KafkaCluster
from twinlog.cluster.topic_keys import TopicKeys
from twinlog.core.errors import Fenced
from twinlog.pipeline.node_writer import NodeWriter


class _Unreachable(SimpleNamespace):
    """A cluster whose brokers refuse every connection."""

    name = "destination"
    config = SimpleNamespace(request_timeout=1.0)

    def connected(self, _node: int, _lane: str) -> None:
        return None

    async def connection(self, _node: int, _lane: str) -> None:
        raise Fenced("the lease has ended")


def test_a_refusal_that_nobody_waits_for_is_not_logged() -> None:
    """An engine that ends drops its answers; asyncio has nothing to say about that."""
    logged: list[dict[str, Any]] = []

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))
        cluster = cast(KafkaCluster, _Unreachable())
        writer = NodeWriter(cluster, 1, TopicKeys(), lambda: None)
        answer = writer.send([])
        await asyncio.wait([answer])
        assert answer.done()
        del answer
        await asyncio.sleep(0)
        gc.collect()

    asyncio.run(run())
    assert logged == []
