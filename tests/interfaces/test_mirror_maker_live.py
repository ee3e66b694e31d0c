"""A running MirrorMaker 2: its own topics are what twinlog's client and console take them for."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner
from clients import client, commit, make_topic, put
from waiting import until_async

from conftest import Pair
from twinlog import MirrorClient, TwinlogError
from twinlog.interfaces.cli.main import main
from twinlog.kafka.groups.offsets import Committed
from twinlog.kafka.types import TopicPartition
from twinlog.local.artifacts import mirror_maker_jars
from twinlog.local.cluster import DEFAULT_VERSION, LocalCluster
from twinlog.local.processes import SHORT_LIVED, JavaProgram, ProcessGroup
from twinlog.store.topic_writer import Entry

pytestmark = [pytest.mark.broker, pytest.mark.timeout(1200)]

START_S: Final = 400.0
"""Seconds that MirrorMaker 2 may take to start on a busy machine; 30 on an idle one."""
RECORDS: Final = 60
COMMITTED: Final = 40
ORDERS: Final = TopicPartition("orders", 1)
REMOTE: Final = TopicPartition("us.orders", 1)


@pytest.fixture(scope="module")
def mirrored(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Pair, Path]]:
    """A topic and a group that has read a part of it, copied by MirrorMaker 2 from us to eu.

    And the file that MirrorMaker 2 logs to.
    """
    asyncio.run(_write(pair.source))
    folder = tmp_path_factory.mktemp("mirror-maker")
    file = folder / "mm2.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in _properties(pair).items()))
    with ProcessGroup() as group:
        group.start(
            JavaProgram(
                jars=mirror_maker_jars(DEFAULT_VERSION),
                main="org.apache.kafka.connect.mirror.MirrorMaker",
                arguments=[str(file)],
                flags=SHORT_LIVED,
                log=folder / "mm2.log",
            )
        )
        yield pair, folder / "mm2.log"


def _properties(pair: Pair) -> dict[str, str]:
    internal = ("checkpoints.topic", "heartbeats.topic", "offset-syncs.topic")
    storage = ("offset.storage", "status.storage", "config.storage")
    return {
        "clusters": "us, eu",
        "us.bootstrap.servers": pair.source.bootstrap_servers,
        "eu.bootstrap.servers": pair.destination.bootstrap_servers,
        "us->eu.enabled": "true",
        "us->eu.topics": ORDERS.topic,
        "us->eu.groups": "billing",
        "emit.checkpoints.interval.seconds": "1",
        "emit.heartbeats.interval.seconds": "1",
        "refresh.groups.interval.seconds": "1",
        "offset.lag.max": "0",
        "replication.factor": "1",
        "dedicated.mode.enable.internal.rest": "false",
        "sync.topic.acls.enabled": "false",
        **{f"{name}.replication.factor": "1" for name in (*internal, *storage)},
    }


async def _write(source: LocalCluster) -> None:
    async with client(source) as cluster:
        await make_topic(cluster, ORDERS.topic, 2)
        # The other flow creates this one, and if that is after the first look at the source's
        # topics, the next one follows ten minutes later.
        await make_topic(cluster, "heartbeats", configs={"cleanup.policy": "compact"})
        # Records without a key, which no control topic has.
        entries = [Entry(*ORDERS, None, b"%d" % at) for at in range(RECORDS)]  # type: ignore[arg-type]
        await put(cluster, entries)
        offsets = {ORDERS: Committed(COMMITTED, "by hand")}
        await commit(cluster, "billing", offsets)


def _printed(cluster: LocalCluster, topic: str, formatter: str) -> list[dict[str, Any]]:
    """The records of a topic, as `twinlog console --json` prints them."""
    arguments = ["console", "--bootstrap-server", cluster.bootstrap_servers, "--topic", topic]
    more = ["--formatter", formatter, "--from-beginning", "--timeout-ms", "0", "--json"]
    done = CliRunner().invoke(main, [*arguments, *more])
    assert done.exit_code == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_its_topics_are_understood(mirrored: tuple[Pair, Path]) -> None:
    """Goal: offsets, hops and names as MirrorMaker 2 has written them, and each record decodes."""
    pair, log = mirrored
    properties = {"bootstrap.servers": pair.destination.bootstrap_servers}

    async def run() -> Committed:
        async with MirrorClient(properties) as mirror:

            async def heard() -> bool:
                return await mirror.replication_hops("us") == 1

            async def translated() -> Committed | None:
                try:
                    offsets = await mirror.remote_consumer_offsets("billing", "us")
                except TwinlogError:  # the topic does not exist yet
                    return None
                return offsets.get(REMOTE)

            await until_async(heard, START_S, "heartbeats")
            found = await until_async(translated, START_S, "checkpoints")
            assert found is not None

            async def both() -> bool:
                return await mirror.heartbeat_topics() == {"heartbeats", "us.heartbeats"}

            await until_async(both, START_S, "eu's own heartbeats, too")
            assert await mirror.checkpoint_topics() == {"us.checkpoints.internal"}
            assert await mirror.upstream_clusters() == {"us"}
            assert await mirror.remote_topics("us") == {REMOTE.topic, "us.heartbeats"}
            return found

    try:
        found = asyncio.run(run())
    except BaseException as error:
        error.add_note("\n".join(log.read_text(errors="replace").splitlines()[-60:]))
        raise
    assert 0 < found.offset <= COMMITTED  # it translates to the last sync before, or further back
    checkpoints = _printed(pair.destination, "us.checkpoints.internal", "CheckpointFormatter")
    assert {
        "key": {"group": "billing", **REMOTE._asdict()},
        "value": {
            "upstream_offset": COMMITTED,
            "downstream_offset": found.offset,
            "metadata": found.metadata,
        },
    } in [{"key": record["key"], "value": record["value"]} for record in checkpoints]
    heartbeats = _printed(pair.destination, "us.heartbeats", "HeartbeatFormatter")
    flow = {"source_cluster_alias": "eu", "target_cluster_alias": "us"}
    assert [record["key"] for record in heartbeats] == [flow] * len(heartbeats)
    syncs = _printed(pair.source, "mm2-offset-syncs.eu.internal", "OffsetSyncFormatter")
    same = [record["value"] for record in syncs if record["key"] == ORDERS._asdict()]
    assert same
    assert all(sync["upstream_offset"] == sync["downstream_offset"] for sync in same)
