"""What a deleted flow has recorded is deleted with it, on real brokers.

With nodes that go on, or are killed: tests/end_to_end/test_flows_command.py.
"""

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from uuid import UUID

import librdkafka_tools
import pytest
from clients import client, commit, put, write_state
from stored_flows import store_flow
from waiting import until

from conftest import Pair
from twinlog.engines.transactional.positions import position_group
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import UserError
from twinlog.kafka.groups.deletion import delete_group
from twinlog.kafka.groups.offsets import Committed, committed_offsets
from twinlog.kafka.types import Offset, ProducerEpoch, ProducerId, Sequence, TopicPartition
from twinlog.lifecycle.changes import delete_mirror, remove_topics
from twinlog.lifecycle.flow_creation import stored_properties
from twinlog.lifecycle.flow_forgetting import forget_flow
from twinlog.mirror.errors import MirrorRefused
from twinlog.mirror.offset_runs import Ends
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.sequence_plan import SequencePlan
from twinlog.mirror.states import State
from twinlog.store.control_topics import LANES_GROUP
from twinlog.store.map_chunks import MapChunk
from twinlog.store.mirrors import MirrorStore
from twinlog.store.offset_log import OFFSETS_TOPIC, forgetting_entries, read_offsets
from twinlog.store.offset_records import BegunPartition, OffsetRecord, Route, StoredPlan, encode
from twinlog.store.topic_writer import Entry

pytestmark = pytest.mark.broker

PARTS = 12_000
"""Parts of a map: their tombstones do not fit into one batch of max.message.bytes."""
ROUTE = Route(UUID(int=1), "a.t", UUID(int=2))


async def recorded(
    cluster: KafkaCluster, records: Iterable[OffsetRecord], partition: int = 0
) -> None:
    """Have records in `__mirror_offsets`."""
    entries = [Entry(OFFSETS_TOPIC, partition, *encode(record)) for record in records]
    for first in range(0, len(entries), 1000):
        await put(cluster, entries[first : first + 1000])


def plan(name: MirrorPartition) -> StoredPlan:
    ends = Ends(Offset(10), Offset(50))
    return StoredPlan(
        name, SequencePlan(ProducerId(7), ProducerEpoch(2), Sequence(0), (), ends), ROUTE
    )


async def stopped(cluster: KafkaCluster, flow: str, topic: str) -> None:
    """Remove a flow's topic, as a command and a lane do."""
    await remove_topics(cluster, flow, [topic])
    (record,) = (await MirrorStore(cluster).snapshot()).topics_of(flow)
    await write_state(cluster, record, State.STOPPED)


def stored_as(pair: Pair, transactions: str = "true") -> dict[str, str]:
    """The properties of a flow, by default of one that writes in transactions."""
    connection = {"bootstrap.servers": pair.source.bootstrap_servers}
    return stored_properties(
        connection, {"enabled": "true", "transaction.producer": transactions}, "a", "b"
    )


@pytest.mark.parametrize("transactions", ["true", "false"])
def test_what_a_flow_has_recorded_is_deleted_with_it(
    pair: Pair, fresh_name: Callable[[str], str], transactions: str
) -> None:
    """Goal: all of it, also of former topics and however much; and nothing of other flows.

    A flow without transactions may have had some before, under the same name.
    """
    topic, flow = fresh_name("topic"), fresh_name("flow")
    other = f"{flow}2"
    group, remote = position_group(LANES_GROUP, flow), TopicPartition(f"a.{topic}", 0)

    async def body() -> None:
        await store_flow(pair, flow, stored_as(pair, transactions), (topic, f"a.{topic}"), 1)
        async with client(pair.destination) as cluster:
            name, former = MirrorPartition(flow, topic, 0), MirrorPartition(flow, "former", 1)
            others = MirrorPartition(other, topic, 0)
            kept: list[OffsetRecord] = [plan(others), BegunPartition(others, ROUTE)]
            start = Ends(Offset(0), Offset(0))
            await recorded(cluster, kept)
            await recorded(cluster, [plan(name), BegunPartition(name, ROUTE)])
            await recorded(cluster, (MapChunk(name, at, start, ()) for at in range(PARTS)))
            await recorded(cluster, [plan(former), MapChunk(former, 0, start, ())], partition=3)
            await commit(cluster, group, {remote: Committed(5)})
            forget = partial(forget_flow, cluster, tell=pytest.fail)
            with pytest.raises(MirrorRefused, match="MIRROR_NOT_EMPTY"):
                await delete_mirror(cluster, flow, forget=forget)
            assert len(await forgetting_entries(cluster, flow)) == PARTS + 4
            assert await committed_offsets(cluster, group), "nothing is half done"

            await stopped(cluster, flow, topic)
            await delete_mirror(cluster, flow, forget=forget)
            assert await forgetting_entries(cluster, flow) == []
            assert await committed_offsets(cluster, group) == {}
            stored = await read_offsets(cluster)
            plans = {name.mirror for found in stored.values() for name in found.plans}
            begun = {name.mirror for found in stored.values() for name in found.begun}
            assert plans & {flow, other} == begun & {flow, other} == {other}
            assert flow not in (await MirrorStore(cluster).snapshot()).mirrors
            await delete_group(cluster, group)  # it does not exist: nothing is left to do

    asyncio.run(body())


def test_positions_that_a_group_with_members_has_are_not_deleted(
    pair: Pair, fresh_name: Callable[[str], str]
) -> None:
    """Goal: another program that uses the flow's group is named, and the flow stays."""
    topic, flow = fresh_name("topic"), fresh_name("flow")
    servers, group = pair.destination.bootstrap_servers, position_group(LANES_GROUP, flow)

    async def body() -> None:
        await store_flow(pair, flow, stored_as(pair), (topic, f"a.{topic}"), 1)
        async with client(pair.destination) as cluster:
            await stopped(cluster, flow, topic)
            with librdkafka_tools.consumer(servers, group) as member:
                member.subscribe([f"a.{topic}"])
                until(lambda: member.poll(0.5) is None and member.assignment(), what="a member")
                forget = partial(forget_flow, cluster, tell=pytest.fail)
                with pytest.raises(UserError, match="NON_EMPTY_GROUP"):
                    await delete_mirror(cluster, flow, forget=forget)
            assert flow in (await MirrorStore(cluster).snapshot()).mirrors

    asyncio.run(body())
