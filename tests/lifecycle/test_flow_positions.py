"""Flows that begin where the group of another program has committed, on real brokers (KIP-656)."""

import asyncio
import json
import secrets
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import confluent_kafka
import librdkafka_tools
import lost_logs
import pytest
from clients import client, commit
from confluent_kafka import Consumer
from lane_processes import lanes
from remote_topics import records
from waiting import until

from conftest import Pair
from twinlog.engines.transactional.positions import position_group
from twinlog.kafka.errors import TwinlogError, UserError
from twinlog.kafka.groups.offsets import Committed
from twinlog.kafka.types import TopicPartition
from twinlog.lifecycle.flow_creation import create_flow, stored_properties
from twinlog.lifecycle.flow_positions import GroupSide, ImportedPosition, import_positions
from twinlog.local.cluster import LocalCluster
from twinlog.local.load import delete_before
from twinlog.store.config_records import MirrorTopic
from twinlog.store.control_topics import ControlTopics
from twinlog.store.mirrors import MirrorStore
from twinlog.sync.flow_begins import grown

pytestmark = [pytest.mark.broker]

PARTITIONS, COUNT, SECONDS = 2, 20, 240.0
SOURCE, TARGET = GroupSide.SOURCE, GroupSide.TARGET
KINDS = pytest.mark.parametrize("transactions", ["false", "true"])


class Begun:
    """A flow that was created and not started, of a topic with records, and a group."""

    def __init__(self, pair: Pair, topic: str, transactions: str, **more: str) -> None:
        self.pair, self.topic = pair, topic
        self.source = pair.source.bootstrap_servers
        self.target = pair.destination.bootstrap_servers
        self.alias = f"a{secrets.token_hex(4)}"
        self.flow, self.group = f"{self.alias}-to-b", f"connect-{topic}"
        self.remote = f"{self.alias}.{topic}"
        settings = {
            "enabled": "true",
            "topics": topic,
            "replication.factor": "1",
            "heartbeats.replication.enabled": "false",
            "transaction.producer": transactions,
            **more,
        }
        connection = {"bootstrap.servers": self.source}
        self._properties = stored_properties(connection, settings, self.alias, "b")
        librdkafka_tools.make_topic(self.source, topic, PARTITIONS)
        for partition in range(PARTITIONS):
            librdkafka_tools.write(
                self.source, topic, librdkafka_tools.simple(COUNT, partition, "v")
            )
        asyncio.run(self._create())

    async def _create(self) -> None:
        async with client(self.pair.destination) as target:
            topics = ControlTopics(state_partitions=5)
            await create_flow(target, self.alias, "b", self._properties, topics)

    def commit(self, offsets: Mapping[int, int], topic: str | None = None) -> None:
        """Commit for the group on the source; with a topic, of that on the target."""
        servers = self.source if topic is None else self.target
        librdkafka_tools.commit(servers, self.group, topic or self.topic, dict(offsets))

    def positions(
        self, side: GroupSide = SOURCE, *, replaces: bool = False, dry_run: bool = False
    ) -> dict[int, int]:
        """Import; where partitions begin."""
        found = self.imported(side, replaces=replaces, dry_run=dry_run)
        return {one.source.partition: one.position for one in found}

    def imported(
        self, side: GroupSide = SOURCE, *, replaces: bool = False, dry_run: bool = False
    ) -> list[ImportedPosition]:
        async def run() -> list[ImportedPosition]:
            async with client(self.pair.destination) as target:
                return await import_positions(
                    target, self.flow, self.group, side, replaces=replaces, dry_run=dry_run
                )

        return asyncio.run(run())

    def topics(self) -> list[MirrorTopic]:
        """The topics that the flow has."""

        async def run() -> list[MirrorTopic]:
            async with client(self.pair.destination) as target:
                return [*(await MirrorStore(target).snapshot()).topics_of(self.flow)]

        return asyncio.run(run())

    def grow(self, partitions: int) -> None:
        """Give the topic more partitions on both sides, and in the flow, as a node does."""
        librdkafka_tools.grow_topic(self.source, self.topic, partitions)
        librdkafka_tools.grow_topic(self.target, self.remote, partitions)

        async def run() -> None:
            async with client(self.pair.destination) as target:
                await MirrorStore(target).change(
                    lambda now: [
                        replace(
                            topic, partitions=partitions, followed_from=grown(topic, partitions)
                        )
                        for topic in now.topics_of(self.flow)
                    ]
                )

        asyncio.run(run())

    def refused(self, side: GroupSide = SOURCE, *, replaces: bool = False) -> str:
        """The error, also of a dry run; nothing is written."""
        texts = []
        for dry_run in (True, False):
            with pytest.raises(TwinlogError) as caught:
                self.imported(side, replaces=replaces, dry_run=dry_run)
            assert "\n" not in str(caught.value)
            texts.append(str(caught.value))
        assert texts[0] == texts[1]
        assert self.topics() == []
        return texts[0]

    def copies(self, partition: int, start: int) -> bool:
        """Whether exactly the records from an offset on were copied."""
        found = [v for _, v in records_of(self.pair, self.remote, partition)]
        expected = [f"v{at}" for at in range(start, COUNT)]
        assert found == expected[: len(found)], (partition, start, found)
        return found == expected


def records_of(pair: Pair, remote: str, partition: int) -> list[tuple[int, str]]:
    names = librdkafka_tools.admin(pair.destination.bootstrap_servers).list_topics(timeout=120)
    return records(pair.destination, remote, partition) if remote in names.topics else []


@KINDS
@pytest.mark.parametrize("side", [SOURCE, TARGET])
def test_a_flow_begins_where_a_group_has_committed(
    pair: Pair, topic: str, tmp_path: Path, transactions: str, side: GroupSide
) -> None:
    """Goal: no record twice and none missing, though its owner is killed; others begin as usual."""
    begun = Begun(pair, topic, transactions)
    if side is TARGET:
        librdkafka_tools.make_topic(begun.target, begun.remote, PARTITIONS)
        begun.commit({0: 13}, begun.remote)
    else:
        begun.commit({0: 13})
    assert begun.positions(side, dry_run=True) == {0: 13}
    assert begun.topics() == [], "a dry run writes nothing"
    assert begun.positions(side) == {0: 13}
    (stored,) = begun.topics()
    assert stored.begins == (13,)
    with lanes(begun.target, tmp_path) as running:
        running.start("first")
        until(lambda: begun.copies(0, 13), SECONDS, "the records from 13 on")
        running.kill("first")
        running.start("second")
        until(lambda: begun.copies(1, 0), SECONDS, "the other partition")
        assert begun.copies(0, 13)


@KINDS
def test_what_is_written_after_an_import_is_copied(
    pair: Pair, topic: str, tmp_path: Path, transactions: str
) -> None:
    """Goal: a flow that begins at the end begins at the import, not when a node first looks.

    That is so for a partition without a position, and for one that the topic gets later.
    """
    begun = Begun(pair, topic, transactions, **{"consumer.auto.offset.reset": "latest"})
    begun.commit({0: 13})
    assert begun.positions() == {0: 13}
    librdkafka_tools.write(begun.source, topic, librdkafka_tools.simple(5, 1, "w"))
    begun.grow(3)
    librdkafka_tools.write(begun.source, topic, librdkafka_tools.simple(5, 2, "w"))
    with lanes(begun.target, tmp_path) as running:
        running.start("node")
        until(lambda: begun.copies(0, 13), SECONDS, "the records from 13 on")
        for partition in (1, 2):
            until(
                lambda at=partition: [v for _, v in records_of(pair, begun.remote, at)],
                SECONDS,
                f"the records of partition {partition}",
                good=lambda found: found == [f"w{at}" for at in range(5)],
            )


def test_an_offset_of_the_target_s_own_topic_is_no_position(pair: Pair, topic: str) -> None:
    """Goal: the sink of the other direction has the same group by default, and reads that topic."""
    begun = Begun(pair, topic, "true")
    for name in (topic, begun.remote):
        librdkafka_tools.make_topic(begun.target, name, PARTITIONS)
    begun.commit({0: 5}, topic)
    begun.commit({1: 6}, begun.remote)
    assert f"the flow's topic is {begun.remote}: it may be an offset" in begun.refused(TARGET)
    begun.commit({0: 7}, begun.remote)
    assert begun.positions(TARGET, dry_run=True) == {0: 7, 1: 6}


@KINDS
def test_what_cannot_be_imported_is_refused(pair: Pair, topic: str, transactions: str) -> None:
    """Goal: one line that says what to do, and nothing half done."""
    begun = Begun(pair, topic, transactions)
    assert f"group {begun.group} has committed no offset of a topic" in begun.refused()
    begun.commit({0: COUNT + 1})
    assert f"has offset 21 of {topic}-0, and the source's log ends at 20" in begun.refused()
    consumer = Consumer({"bootstrap.servers": begun.source, "group.id": begun.group})
    consumer.subscribe([topic])
    try:
        until(lambda: consumer.poll(0.2) is None and consumer.assignment(), what="the member")
        assert "has members on the source" in begun.refused()
    finally:
        consumer.close()
    begun.commit({0: 3})
    delete_before(begun.source, [(topic, 0, 5)])
    assert [(one.position, one.lost) for one in begun.imported()] == [(3, 2)]
    with pytest.raises(UserError, match=f"has the topic {topic} already, and its positions"):
        begun.imported()


def test_an_offset_behind_records_that_the_source_has_lost_is_refused(
    pair: Pair, fragile: LocalCluster, topic: str
) -> None:
    """Goal: what came in place of lost records is copied; a consumer's commit has its epoch."""
    begun = Begun(Pair(fragile, pair.destination), topic, "false")
    lost_logs.write(begun.source, topic, *map(str, range(5)))
    with librdkafka_tools.consumer(begun.source, begun.group) as reader:
        reader.assign([confluent_kafka.TopicPartition(topic, 0, COUNT)])
        read = [reader.poll(120) for _ in range(5)]
        assert read[-1] is not None
        assert read[-1].offset() == COUNT + 4
        last = read[-1]
        librdkafka_tools.of_coordinator(lambda: reader.commit(message=last, asynchronous=False))
    assert begun.positions(dry_run=True) == {0: COUNT + 5}
    lost_logs.lose(fragile, TopicPartition(topic, 0), 3)
    lost_logs.write(begun.source, topic, *map(str, range(10)))
    assert f"ends at offset {COUNT + 2}: it has lost records" in begun.refused()
    begun.commit({0: COUNT + 2})
    assert begun.positions() == {0: COUNT + 2}


def test_positions_of_a_former_flow_are_replaced_only_on_request(
    pair: Pair, topic: str, tmp_path: Path
) -> None:
    """Goal: they would count: records would be copied twice, or be missing, without a word."""
    begun = Begun(pair, topic, "true")
    librdkafka_tools.make_topic(begun.target, begun.remote, PARTITIONS)

    async def former() -> None:
        async with client(pair.destination) as target:
            key = TopicPartition(begun.remote, 0)
            group = position_group("twinlog", begun.flow)
            await commit(target, group, {key: Committed(17)})

    asyncio.run(former())
    begun.commit({0: 9, 1: 4})
    assert f"has the position 17 of {topic}-0 from a former start" in begun.refused()
    found = begun.imported(replaces=True)
    assert [(one.position, one.former) for one in found] == [(9, 17), (4, None)]
    with lanes(begun.target, tmp_path) as running:
        running.start("node")
        until(lambda: begun.copies(0, 9) and begun.copies(1, 4), SECONDS, "the records")


def test_the_command_looks_and_imports(pair: Pair, topic: str) -> None:
    """Goal: the words, the table and the JSON of docs/cli.md."""
    begun = Begun(pair, topic, "false")
    begun.commit({0: 9})
    words: tuple[str, ...] = ("flows", "import-positions", "--bootstrap-server", begun.target)
    words += ("--flow", begun.flow.replace("-to-", "->"), "--group", begun.group, "--on", "source")
    looked = librdkafka_tools.twinlog(*words, "--dry-run", "--json")
    assert looked.status == 0, looked
    assert json.loads(looked.output) == {
        "flow": begun.flow,
        "group": begun.group,
        "on": "source",
        "dry_run": True,
        "positions": [
            {
                "topic": topic,
                "partition": 0,
                "target_topic": begun.remote,
                "position": 9,
                "former": None,
                "lost": 0,
            }
        ],
    }
    assert begun.topics() == []
    done = librdkafka_tools.twinlog(*words)
    assert done.status == 0, done
    header, row, last = done.output.splitlines()
    assert header.split() == ["SOURCE", "BEGINS-AT", "TARGET", "FORMER", "DELETED-ON-SOURCE"]
    assert row.split() == [f"{topic}-0", "9", f"{begun.remote}-0", "-", "0"]
    assert last == f"Flow {begun.flow} begins at 1 position(s) of group {begun.group}"
    again = librdkafka_tools.twinlog(*words)
    assert (again.status, again.output) == (1, "")
    assert f"has the topic {topic} already" in again.errors
