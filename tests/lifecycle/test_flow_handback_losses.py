"""Flows that are handed back after a cluster has lost the end of a log: its files are changed.

What is refused, and what is recorded then, with records in memory: test_flow_handback.py.
"""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest
from clients import client
from lane_processes import Lanes, lanes
from lost_logs import copy_four, lose, write
from stored_flows import states
from transformed_flows import commit_position, flow_properties, new_flow
from waiting import SECONDS, until

from conftest import Pair
from twinlog import MirrorAdmin
from twinlog.kafka.errors import UserError
from twinlog.kafka.types import TopicPartition
from twinlog.lifecycle.flow_handback import HandedBack, hand_back
from twinlog.local.cluster import LocalCluster
from twinlog.local.processes import SHORT_LIVED
from twinlog.mirror.connect_offsets import decode
from twinlog.mirror.connect_worker import default_worker
from twinlog.store.topic_reader import read_whole

pytestmark = [pytest.mark.broker]

TRANSACTIONS = {"transaction.producer": "true"}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Two clusters that are killed: the controller lets them register again after 4 s."""
    with ExitStack() as clusters:
        source, destination = (
            clusters.enter_context(
                LocalCluster.start(directory=tmp_path_factory.mktemp(name), jvm_flags=SHORT_LIVED)
            )
            for name in ("source", "destination")
        )
        yield Pair(source, destination)


def stop(pair: Pair, mirror: str, topic: str, nodes: Lanes) -> None:
    """Remove the topic from the flow, whose lane has been killed; all is STOPPED without a reason.

    The lane that does it has never located the partitions.
    """

    async def remove() -> None:
        async with MirrorAdmin({"bootstrap.servers": pair.destination.bootstrap_servers}) as admin:
            await admin.remove_topics_from_mirror(mirror, [topic])

    asyncio.run(remove())
    nodes.start("last")
    until(
        lambda: {state for state, _ in states(pair, mirror).values()} == {"STOPPED"},
        SECONDS,
        "STOPPED",
    )
    assert states(pair, mirror)[0] == ("STOPPED", None)
    nodes.end()


def handed_back(pair: Pair, mirror: str, settings: Mapping[str, str]) -> list[HandedBack]:
    async def run() -> list[HandedBack]:
        async with client(pair.destination) as cluster:
            return await hand_back(cluster, mirror, flow_properties(pair, settings))

    return asyncio.run(run())


def recorded(pair: Pair, topic: str) -> dict[int, int | None]:
    """What Connect's topic has of a topic's partitions."""

    async def read() -> dict[int, int | None]:
        async with client(pair.destination) as cluster:
            name = default_worker("a").offsets_topic
            if name not in (await cluster.refresh([name])).topics:
                return {}
            offsets = [decode(one.key, one.value) for one in await read_whole(cluster, name)]
        return {
            one.partition.partition: one.offset
            for one in offsets
            if one is not None and one.partition.topic == topic
        }

    return asyncio.run(read())


def copy_and_kill(pair: Pair, topic: str, nodes: Lanes) -> None:
    nodes.start("node")
    copy_four(pair, topic)
    nodes.kill("node")


@pytest.mark.long
def test_a_flow_whose_target_has_lost_records_is_not_handed_back(
    pair: Pair, tmp_path: Path
) -> None:
    """Goal: what MirrorMaker 2 would never copy is refused, whoever fills the log again.

    The operator commits an offset that is still copied, and it is handed back there.
    """
    mirror, topic = new_flow(pair, TRANSACTIONS)
    target, remote = pair.destination.bootstrap_servers, f"a.{topic}"
    with lanes(target, tmp_path) as nodes:
        copy_and_kill(pair, topic, nodes)
        lose(pair.destination, TopicPartition(remote, 0), 2)
        stop(pair, mirror, topic, nodes)
    with pytest.raises(UserError, match=rf"has lost records: {remote}-0 ends at 4, and records"):
        handed_back(pair, mirror, TRANSACTIONS)
    write(target, remote, *("foreign" for _ in range(6)))
    with pytest.raises(UserError, match="others were written in their place; position 4 of group"):
        handed_back(pair, mirror, TRANSACTIONS)
    assert recorded(pair, topic) == {}
    commit_position(pair, mirror, remote, 2)
    assert handed_back(pair, mirror, TRANSACTIONS) == [HandedBack(TopicPartition(topic, 0), 1)]
    assert recorded(pair, topic) == {0: 1}


@pytest.mark.parametrize("settings", [{}, TRANSACTIONS])
def test_a_flow_whose_source_has_lost_records_is_not_handed_back(
    pair: Pair, tmp_path: Path, settings: Mapping[str, str]
) -> None:
    """Goal: what MirrorMaker 2 would skip of a source that has grown again is refused."""
    mirror, topic = new_flow(pair, settings)
    source, target = pair.source.bootstrap_servers, pair.destination.bootstrap_servers
    with lanes(target, tmp_path) as nodes:
        copy_and_kill(pair, topic, nodes)
        lose(pair.source, TopicPartition(topic, 0), 2)
        stop(pair, mirror, topic, nodes)
    lost = f"the source has lost records that were copied: {topic}-0 was copied up to offset 4"
    with pytest.raises(UserError, match=f"{lost}; on the source, the log ends at 2"):
        handed_back(pair, mirror, settings)
    write(source, topic, *("other" for _ in range(6)))
    with pytest.raises(UserError, match=rf"{lost} of leader epoch (\d+); .* ends at offset 2, "):
        handed_back(pair, mirror, settings)
    assert recorded(pair, topic) == {}
    if settings:
        commit_position(pair, mirror, f"a.{topic}", 2)
        assert handed_back(pair, mirror, settings) == [HandedBack(TopicPartition(topic, 0), 1)]
        assert recorded(pair, topic) == {0: 1}
