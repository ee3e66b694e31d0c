"""A mirror's topics are guarded on a real broker, even if the guarding node ends.

Without lanes: states are written by hand. With lanes: tests/end_to_end/test_secured.py.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

import pytest
from clients import none_refused, write_state
from secured_clusters import Secured
from waiting import until_async

from twinlog.kafka.acls import Acl, Operation, PatternType, Permission, ResourceType
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.requests.acls import create_acls, describe_acls
from twinlog.lifecycle.changes import delete_mirror, pause_topics, remove_topics
from twinlog.mirror.errors import MirrorRefused
from twinlog.mirror.states import State
from twinlog.store import mirrors as store_module
from twinlog.store.config_records import Mirror, MirrorTopic
from twinlog.store.mirrors import MirrorStore
from twinlog.sync.read_only import ReadOnly

pytestmark = pytest.mark.broker


async def owned(_mirror: str) -> bool:
    return True


@asynccontextmanager
async def guarding(cluster: KafkaCluster) -> AsyncIterator[None]:
    """Guard all topics while the block runs; then stop at once, without cleaning up."""
    counted: list[int] = []
    guard = ReadOnly(
        cluster,
        MirrorStore(cluster),
        owned,
        lambda _mirror, count: counted.append(count),
        none_refused,
    )
    task = asyncio.create_task(guard.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert not any(counted)


def test_topics_are_guarded_until_stopped(
    secured_pair: tuple[Secured, Secured], topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are two topics; another node than the one that set it removes the second's guard."""
    names = [f"{topic}-1", f"{topic}-2"]
    kind, literal, prefixed = ResourceType.TOPIC, PatternType.LITERAL, PatternType.PREFIXED
    given = {
        Acl(kind, topic, prefixed, "User:app", "*", Operation.WRITE, Permission.ALLOW),
        Acl(kind, names[0], literal, "User:boss", "*", Operation.ALL, Permission.ALLOW),
        # This foreign denial exists before the test, and has to exist afterwards.
        Acl(kind, names[0], literal, "User:boss", "*", Operation.DELETE, Permission.DENY),
    }

    def denial(name: str, who: str, what: Operation) -> Acl:
        return Acl(kind, name, literal, who, "*", what, Permission.DENY)

    first = {
        denial(names[0], "User:app", Operation.WRITE),
        *(
            denial(names[0], "User:boss", what)
            for what in (Operation.WRITE, Operation.ALTER, Operation.ALTER_CONFIGS)
        ),
    }
    second = {denial(names[1], "User:app", Operation.WRITE)}

    async def run() -> None:
        async with secured_pair[1].root() as cluster:
            store = MirrorStore(cluster)
            await create_acls(cluster, given)

            async def become(wanted: set[Acl]) -> None:
                async def there() -> bool:
                    found = await describe_acls(cluster) or frozenset()
                    return {
                        existing for existing in found if existing.resource_name.startswith(topic)
                    } == wanted

                await until_async(there, what=f"{len(wanted)} ACLs")

            async def stop(name: str) -> None:
                topics = (await store.snapshot()).topics
                found = next(topic for topic in topics if topic.topic == name)
                await write_state(cluster, found, State.STOPPED)

            await store.create_mirror(Mirror(name=topic, source={}, source_cluster_id="s"))
            async with guarding(cluster):
                await store.add_topics(
                    topic,
                    [
                        MirrorTopic(mirror=topic, topic=name, topic_id=uuid4(), partitions=1)
                        for name in names
                    ],
                )
                await become(given | first | second)
                await pause_topics(cluster, topic, ".*")
                await remove_topics(cluster, topic, names[0])
                await stop(names[0])
                await become(given | second)
            await remove_topics(cluster, topic, names[1])
            await stop(names[1])
            with monkeypatch.context() as patch:
                patch.setattr(store_module, "SETTLED_S", 0.5)
                with pytest.raises(MirrorRefused, match="read-only"):
                    await delete_mirror(cluster, topic)
            await become(given | second)
            async with guarding(cluster):
                await become(given)
                await delete_mirror(cluster, topic)

    asyncio.run(run())
