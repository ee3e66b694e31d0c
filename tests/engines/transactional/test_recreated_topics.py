"""Flows in transactions whose remote topic is deleted and recreated: brokers of both versions.

What creates a topic, and stores the new id, is run by the test.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from clients import client
from lane_processes import lanes
from lost_logs import copied, values, write
from recreated_topics import delete, delete_seen, go_on
from stored_flows import losses, states
from transformed_flows import new_flow
from waiting import SECONDS, until
from whole_logs import read_whole_log

from conftest import OLD_VERSION, Pair
from twinlog.kafka.types import TopicPartition
from twinlog.local.cluster import DEFAULT_VERSION, LocalCluster
from twinlog.local.processes import SHORT_LIVED
from twinlog.operations.flow_results import Direction
from twinlog.operations.offset_translation import read_flow_offsets
from twinlog.store.mirrors import MirrorStore

pytestmark = [pytest.mark.broker, pytest.mark.timeout(900)]

MAP = {"twinlog.offset.map": "true"}
QUERY = {
    "twinlog.transform.sql": "SELECT record FROM records",
    "twinlog.transform.routes": "false",
}
SETTINGS = {"transaction.producer": "true", "twinlog.data.loss": "continue"}


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


def text(*parts: str) -> list[bytes | None]:
    return [part.encode() for part in parts]


def is_exact(pair: Pair, mirror: str, topic: str, source_offsets: int) -> bool:
    """Whether each of these offsets is translated to where its copy is, of one for each value."""
    remote = f"a.{topic}"
    found = read_whole_log(pair.destination.bootstrap_servers, remote, [0]) or {0: []}
    places = [message.offset() for message in found[0]]

    async def read() -> list[int | None]:
        async with client(pair.destination) as target:
            snapshot = await MirrorStore(target).snapshot()
            topics, properties = snapshot.topics_of(mirror), snapshot.mirrors[mirror].source
            known = await read_flow_offsets(target, topics, properties, Direction.TO_TARGET)
        offsets = range(source_offsets)
        return [known.to_target(TopicPartition(topic, 0), at).target_offset for at in offsets]

    return asyncio.run(read()) == places


@pytest.mark.parametrize(
    ("case", "settings"),
    [
        pytest.param("running", {}, marks=pytest.mark.long),
        ("killed", MAP),
        pytest.param("deleted", MAP, marks=pytest.mark.long),
        pytest.param("deleted", {**QUERY, **MAP}, marks=pytest.mark.long),
    ],
    ids=["running", "killed", "deleted", "query"],
)
def test_all_is_copied_again_to_a_recreated_topic(
    target: LocalCluster,
    kafka: LocalCluster,
    kafka_391: LocalCluster,
    tmp_path: Path,
    case: str,
    *,
    settings: dict[str, str],
) -> None:
    """Goal: each record once, also after a takeover, and a second time; the map is exact.

    A node recreates a topic that is only deleted.
    """
    running = case != "killed"
    pair = Pair(kafka_391 if target.version == DEFAULT_VERSION else kafka, target)
    mirror, topic = new_flow(pair, {**SETTINGS, **settings})
    source = pair.source.bootstrap_servers
    quick = {"metadata.max.age.ms": "2000"}
    with lanes(target.bootstrap_servers, tmp_path, quick) as nodes:
        nodes.start("0")
        written: list[str] = []
        for turn in range(2):
            written += [str(len(written) + number) for number in range(3)]
            write(source, topic, *written[-3:])
            copied(pair, topic, 0, *written)
            if not running:
                nodes.kill(str(turn))
            delete_seen(pair, mirror, topic, case)
            go_on(pair, mirror, topic)
            if not running:
                nodes.start(str(turn + 1))
            copied(pair, topic, 0, *written)
            counted = until(
                lambda: losses(pair, mirror)[0],
                SECONDS,
                "the loss",
                good=lambda one: one.times == 1,
            )
            assert f"a.{topic}-0, " in str(counted.last)
            assert ("offsets up to" in str(counted.last)) is bool(settings)
        nodes.end()
        nodes.start("last")
        write(source, topic, "6")
        write(source, topic, "other", partition=1)
        copied(pair, topic, 0, *written, "6")
        copied(pair, topic, 1, "other")
        if settings:
            until(lambda: is_exact(pair, mirror, topic, 7), SECONDS, "the map")
        until(
            lambda: {state for state, _ in states(pair, mirror).values()} == {"MIRRORING"},
            SECONDS,
            "MIRRORING, which is stored after the first copies",
        )


@pytest.mark.long
@pytest.mark.parametrize("filled", [False, True], ids=["empty", "filled"])
def test_what_lands_in_a_recreated_topic_unseen_is_not_copied_again(
    target: LocalCluster,
    kafka: LocalCluster,
    kafka_391: LocalCluster,
    tmp_path: Path,
    *,
    filled: bool,
) -> None:
    """Goal: no record is twice in the new topic, whatever lands there before the id is compared.

    A batch is committed if others have filled the log, so that it does not land in front of the
    flow's last one. Without, brokers before 4.1 take it, and it is aborted.
    """
    pair = Pair(kafka_391 if target.version == DEFAULT_VERSION else kafka, target)
    mirror, topic = new_flow(pair, SETTINGS)
    source = pair.source.bootstrap_servers
    first, later = [str(number) for number in range(3)], [str(number) for number in range(3, 6)]
    with lanes(target.bootstrap_servers, tmp_path) as nodes:
        nodes.start("0")
        write(source, topic, *first)
        copied(pair, topic, 0, *first)
        delete(pair, topic, recreated=True)
        foreign = [f"x{number}" for number in range(10)] if filled else []
        write(target.bootstrap_servers, f"a.{topic}", *foreign)
        write(source, topic, *later)
        if filled and target.version == OLD_VERSION:
            copied(pair, topic, 0, *foreign, *later)
        go_on(pair, mirror, topic)
        write(source, topic, "6")
        all_again = text(*foreign, *first, *later, "6")
        landed = text(*foreign, *later, "6")
        found = until(
            lambda: values(pair, topic, 0),
            what="each record once",
            good=lambda found: found == all_again or (filled and found == landed),
        )
        assert found == landed or not filled or target.version != OLD_VERSION
        until(lambda: losses(pair, mirror)[0].times == 1, SECONDS, "the loss")
        nodes.end()
        nodes.start("last")
        write(source, topic, "7")
        until(lambda: values(pair, topic, 0) == [*found, b"7"], what="the last record")
