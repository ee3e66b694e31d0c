"""A state partition on real brokers: what an owner reads at its takeover."""

import asyncio
from collections.abc import Callable

import pytest
from clients import client

from twinlog.kafka.errors import Fenced, Retriable
from twinlog.local.cluster import LocalCluster
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.states import State
from twinlog.runtime import state_log
from twinlog.runtime.state_log import StateLog
from twinlog.store.control_topics import (
    CONFIG_WRITER,
    ControlTopics,
    create_control_topics,
    forget_entry,
)
from twinlog.store.state_records import PartitionState, state_key
from twinlog.store.topic_writer import TransactionalWriter

pytestmark = pytest.mark.broker


def test_states_behind_an_open_transaction_are_not_taken_for_absent(
    kafka: LocalCluster, fresh_name: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command died before it ended its transaction; an owner's later records are behind it.

    A takeover that did not see them would find no state, and stop the partition without a fence.
    """
    name = MirrorPartition(fresh_name("mirror"), "topic", 0)

    async def story() -> None:
        async with client(kafka) as cluster:
            await create_control_topics(cluster, ControlTopics())
            group = fresh_name("group")
            former = StateLog(cluster, 0, group, lambda: True)
            await former.take_over()
            command = TransactionalWriter(cluster, CONFIG_WRITER, timeout_ms=800_000)
            await command.fence()
            assert command._id._producer is not None
            gone = forget_entry(state_key(name._replace(mirror=fresh_name("another"))), 0)
            await command._prepare(command._id._producer, [gone])
            await former.write([PartitionState(name, State.MIRRORING)], {})
            successor = StateLog(cluster, 0, group, lambda: True)
            with monkeypatch.context() as patch:
                patch.setattr(state_log, "UNDECIDED", 0.5)
                with pytest.raises(Retriable, match="a transaction that begins there seems to be"):
                    await successor.take_over()
            await command.fence()  # as the coordinator does, later
            found = await successor.take_over()
            assert found.state(name) is State.MIRRORING

    asyncio.run(story())


def test_a_closed_state_log_sends_nothing(
    kafka: LocalCluster, fresh_name: Callable[[str], str]
) -> None:
    """The remaining requests of a write in flight would be written in the next owner's place."""
    name = MirrorPartition(fresh_name("mirror"), "topic", 0)

    async def story() -> None:
        async with client(kafka) as cluster:
            await create_control_topics(cluster, ControlTopics())
            states = StateLog(cluster, 0, fresh_name("group"), lambda: True)
            await states.take_over()
            states.close()
            with pytest.raises(Fenced):
                await states.write([PartitionState(name, State.MIRRORING)], {})
            with pytest.raises(Fenced):
                await states.take_over()

    asyncio.run(story())
