"""Lanes of a flow whose remote topic is deleted and recreated: brokers of both versions.

Brokers before 4.1 know no topic ids in Produce. What creates a topic, and stores the new id, is run
by the test.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from clients import client
from lane_processes import lanes
from lost_logs import copied, write
from recreated_topics import delete_seen, go_on
from stored_flows import losses, states
from transformed_flows import new_flow
from waiting import SECONDS, until

from conftest import OLD_VERSION, Pair
from twinlog.kafka.types import TopicPartition
from twinlog.local.cluster import DEFAULT_VERSION, LocalCluster
from twinlog.local.processes import SHORT_LIVED
from twinlog.store.mirrors import MirrorStore
from twinlog.store.recorded_maps import read_ends

pytestmark = [pytest.mark.broker, pytest.mark.timeout(900)]


@pytest.fixture(
    scope="module", params=[DEFAULT_VERSION, pytest.param(OLD_VERSION, marks=pytest.mark.long)]
)
def target(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalCluster]:
    """A cluster of its own: its lanes would take over the mirrors of other tests."""
    folder = tmp_path_factory.mktemp("target")
    with LocalCluster.start(
        directory=folder, version=request.param, jvm_flags=SHORT_LIVED
    ) as cluster:
        yield cluster


def is_recorded(pair: Pair, mirror: str, topic: str, end: int) -> bool:
    async def body() -> bool:
        async with client(pair.destination) as target:
            topics = (await MirrorStore(target).snapshot()).topics_of(mirror)
            ends = await read_ends(target, topics)
        return ends.get(TopicPartition(topic, 0)) == end

    return asyncio.run(body())


@pytest.mark.parametrize(
    "case",
    ["killed", *(pytest.param(case, marks=pytest.mark.long) for case in ("running", "deleted"))],
)
def test_lanes_go_on_in_recreated_remote_topics(
    target: LocalCluster,
    kafka: LocalCluster,
    kafka_391: LocalCluster,
    tmp_path: Path,
    case: str,
) -> None:
    """Goal: nothing is copied twice or left out, also after a takeover, and a second time.

    A node recreates a topic that is only deleted.
    """
    running = case != "killed"
    pair = Pair(kafka_391 if target.version == DEFAULT_VERSION else kafka, target)
    mirror, topic = new_flow(pair, {"twinlog.data.loss": "continue"})
    source = pair.source.bootstrap_servers
    quick = {"metadata.max.age.ms": "2000"}
    with lanes(target.bootstrap_servers, tmp_path, quick) as nodes:
        nodes.start("0")
        last: str | None = None
        for turn in range(2):
            first = 3 * turn
            written = [str(number) for number in range(first, first + 3)]
            write(source, topic, *written)
            copied(pair, topic, 0, *written)
            until(lambda: is_recorded(pair, mirror, topic, first + 3), SECONDS, "the map")  # noqa: B023
            if not running:
                nodes.kill(str(turn))
            delete_seen(pair, mirror, topic, case)
            if running:
                assert losses(pair, mirror)[0].last == last, "not before it goes on"
            go_on(pair, mirror, topic)
            if not running:
                nodes.start(str(turn + 1))
            former = last
            found = until(
                lambda: losses(pair, mirror)[0],
                SECONDS,
                "the loss",
                good=lambda one: one.times == 1 and one.last != former,  # noqa: B023
            )
            last = found.last
            assert f"a.{topic}-0, offsets [0, " in str(last)
        write(source, topic, "6", "7")
        write(source, topic, "other", partition=1)
        copied(pair, topic, 0, "6", "7")
        copied(pair, topic, 1, "other")
        nodes.end()
        nodes.start("last")
        write(source, topic, "8")
        copied(pair, topic, 0, "6", "7", "8")
        until(
            lambda: {state for state, _ in states(pair, mirror).values()} == {"MIRRORING"},
            SECONDS,
            "MIRRORING, which is stored after the first copies",
        )
        # The former owner's status stays until this one has written its own.
        until(lambda: losses(pair, mirror)[0].times == 0, SECONDS, "another owner's count")
