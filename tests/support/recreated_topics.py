"""Remote topics of stored flows that are deleted on the target, and recreated."""

import asyncio
from typing import Any

import librdkafka_tools
from clients import client
from lost_logs import failed, values
from sync_contexts import sync_context
from transformed_flows import PARTITIONS
from waiting import SECONDS, until_async

from conftest import Pair
from twinlog.store.mirrors import MirrorStore
from twinlog.sync.base import run_sync
from twinlog.sync.recreated_remotes import AGREED_S, RecreatedRemotes


def delete(pair: Pair, topic: str, *, recreated: bool) -> None:
    """Delete the remote topic of a flow of `new_flow`, and create it, or leave that to `go_on`."""
    servers = pair.destination.bootstrap_servers
    librdkafka_tools.delete_topic(servers, f"a.{topic}")
    if recreated:
        librdkafka_tools.make_topic(servers, f"a.{topic}", PARTITIONS)


def delete_seen(pair: Pair, mirror: str, topic: str, case: str) -> None:
    """Delete the remote topic, and wait until the running lane has noticed, which copies nothing.

    The cases: it is `deleted` only; it is recreated, with a lane `running`, or with that `killed`.
    """
    delete(pair, topic, recreated=case != "deleted")
    if case == "killed":
        return
    deleted = "the destination does not have this partition"
    recreated = "deleted and recreated; the flow goes on"
    failed(pair, mirror, deleted if case == "deleted" else recreated)
    assert values(pair, topic, 0) == []


def go_on(pair: Pair, mirror: str, topic: str) -> None:
    """Create the topic, if it was not recreated, and store its id, as a node does."""
    clock = [0.0]
    sync = RecreatedRemotes(lambda: clock[0])

    async def body() -> None:
        async with client(pair.destination) as target, client(pair.source) as source:
            store = MirrorStore(target)

            async def is_stored() -> bool:
                snapshot = await store.snapshot()
                topics = snapshot.topics_of(mirror)
                there = (await source.refresh([topic])).topics
                here = (await target.refresh([f"a.{topic}"])).topics
                both: dict[str, Any] = {"topics": topics, "there": there, "here": here}
                context = sync_context(source, target, store, mirror, snapshot=snapshot, **both)
                await run_sync(sync, context)
                clock[0] += AGREED_S
                [known] = (await store.snapshot()).topics_of(mirror)
                remote = here.get(f"a.{topic}")
                is_new = remote is not None and known.destination_topic_id == remote.topic_id
                return is_new and bool(known.lost_topic_ids)

            await until_async(is_stored, SECONDS, "the new id")

    asyncio.run(body())
