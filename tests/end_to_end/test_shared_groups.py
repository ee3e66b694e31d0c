"""Groups go on in a topic that several topics of a flow are copied to, on real clusters.

orders ─┐
clicks ─┼─► common, by a policy of the user
silent ─┘   (no record)
"""

import asyncio
import itertools
import json
import os
import random
import sys
from collections.abc import Iterator
from typing import Any

import librdkafka_tools
import pytest
from common_name import COMMON, POLICY, TOPICS, install
from remote_topics import records, text_of
from waiting import SECONDS, until

from twinlog import RemoteClusterUtils
from twinlog.kafka.errors import UserError
from twinlog.kafka.types import TopicPartition
from twinlog.local.stage import Stage

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(1200)]

START_SECONDS = 400.0
"""Until a node's lanes copy, on a busy machine."""
GROUPS = 12
ROUNDS = 30
SETTINGS = {
    "replication.factor": "1",
    "refresh.topics.interval.seconds": "1",
    "emit.checkpoints.interval.seconds": "1",
    "sync.group.offsets.enabled": "true",
    "sync.group.offsets.interval.seconds": "1",
    "emit.heartbeats.enabled": "false",
    "checkpoints.topic.replication.factor": "1",
    "offset-syncs.topic.replication.factor": "1",
    "replication.policy.class": POLICY,
    TOPICS: "orders,clicks,silent",
}


@pytest.fixture
def stage(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Stage]:
    """Two clusters, three topics, a flow that copies them to one, and a node."""
    policy = tmp_path_factory.mktemp("policy")
    install(policy)
    monkeypatch.setenv("PYTHONPATH", str(policy), prepend=os.pathsep)
    with Stage(tmp_path_factory.mktemp("shared-groups")) as stage:
        stage.start_source()
        stage.start_destination()
        for topic in ("orders", "clicks", "silent"):
            librdkafka_tools.make_topic(stage.source.bootstrap_servers, topic)
        control = stage.directory / "command.properties"
        control.write_text("mirror.topic.num.partitions=5\n")
        settings = [part for item in SETTINGS.items() for part in ("--config", "=".join(item))]
        created = librdkafka_tools.twinlog(
            *("flows", "create", "--bootstrap-server", stage.destination.bootstrap_servers),
            *("--command-config", str(control), "--source", "a", "--target", "b"),
            *("--source-bootstrap-server", stage.source.bootstrap_servers),
            *("--topics", "orders,clicks,silent", *settings),
        )
        assert created.status == 0, created
        stage.start_node("node")
        yield stage


def readiness(stage: Stage) -> dict[str, Any]:
    servers = stage.destination.bootstrap_servers
    done = librdkafka_tools.twinlog(
        *("readiness", "--bootstrap-server", servers, "--mirror", "a-to-b", "--json")
    )
    assert done.status in {0, 3, 4}, done
    report: dict[str, Any] = json.loads(done.output)
    return report


def read_on(servers: str, group: str, count: int) -> list[str]:
    """What a consumer of the group reads from where it goes on: at least this many records."""
    values: list[str] = []
    with librdkafka_tools.consumer(servers, group) as client:
        client.subscribe([COMMON])

        def enough() -> bool:
            message = client.poll(0.2)
            if message is not None and message.error() is None:
                values.append(text_of(message.value()))
            return len(values) >= count

        until(enough, SECONDS, f"{count} records for {group}", pause=0.0)
    return values


class Groups:
    """Records of both topics that are mixed in the common one, and groups at random places."""

    def __init__(self, stage: Stage, chance: random.Random) -> None:
        self.stage, self._chance = stage, chance
        self.written: dict[str, list[str]] = {"orders": [], "clicks": []}
        self.copied: list[tuple[int, str]] = []
        self.places: dict[str, dict[str, int]] = {}
        """What each group has committed on the source, by topic."""

    def write(self, topic: str) -> None:
        """Write some records to a topic."""
        at = len(self.written[topic])
        values = [f"{topic}-{n}" for n in range(at, at + self._chance.randint(1, 5))]
        records = [(0, None, value, None) for value in values]
        librdkafka_tools.write(self.stage.source.bootstrap_servers, topic, records)
        self.written[topic] += values

    def await_copies(self) -> None:
        """Wait until all that was written is in the common topic."""
        total = sum(map(len, self.written.values()))
        self.copied = until(
            lambda: records(self.stage.destination, COMMON),
            START_SECONDS,
            f"{total} records",
            good=lambda found: len(found) == total,
            pause=1.0,
        )

    def commit(self, group: str, **offsets: int) -> None:
        """Let a group commit on the source."""
        self.places.setdefault(group, {}).update(offsets)
        for topic, offset in offsets.items():
            servers = self.stage.source.bootstrap_servers
            librdkafka_tools.commit(servers, group, topic, {0: offset})

    def commit_anywhere(self) -> None:
        """Let groups commit: the first one has read all."""
        for number in range(GROUPS):
            offsets = {t: self._chance.randint(0, len(v)) for t, v in self.written.items()}
            if not number:
                offsets = {t: len(v) for t, v in self.written.items()}
            self.commit(f"g{number}", **offsets)

    def unread(self, group: str) -> set[str]:
        """The records that a group has not read."""
        places = self.places[group].items()
        return {value for topic, offset in places for value in self.written[topic][offset:]}

    def first(self, group: str) -> int:
        """Where the first of them is, or behind the last record."""
        unread = self.unread(group)
        behind = self.copied[-1][0] + 1
        return min((at for at, value in self.copied if value in unread), default=behind)

    def goes_on(self, group: str) -> int:
        """What is committed for a group on the target; -1: nothing."""
        servers = self.stage.destination.bootstrap_servers
        return librdkafka_tools.committed(servers, group, COMMON).get(0, -1)

    def translated(self, group: str) -> int | None:
        """Where a client of MirrorMaker 2 sends a group; None: nowhere."""
        properties = {"bootstrap.servers": self.stage.destination.bootstrap_servers}
        try:
            found = asyncio.run(RemoteClusterUtils.translate_offsets(properties, "a", group))
        except UserError:
            return None  # the first checkpoint creates the topic
        assert found.keys() <= {TopicPartition(COMMON, 0)}
        return found[TopicPartition(COMMON, 0)].offset if found else None

    def await_places(self) -> None:
        """Wait until each group goes on at its first unread record, by offset and by checkpoint."""
        for group in self.places:
            first = self.first(group)
            for look in (self.goes_on, self.translated):
                until(
                    lambda look=look, group=group: look(group),
                    SECONDS,
                    f"{group} at {first}",
                    good=lambda at, first=first: at == first,
                )


@pytest.mark.long
def test_groups_skip_nothing_in_a_common_topic(stage: Stage) -> None:
    """Goal: issue 19, 4: each unread record of each topic is behind where the group goes on."""
    seed = random.SystemRandom().randrange(1 << 32)
    sys.stdout.write(f"seed {seed}\n")
    chance = random.Random(seed)
    groups = Groups(stage, chance)
    groups.write("orders")
    groups.write("clicks")
    groups.await_copies()
    for number in range(4):  # so that they are mixed, however late the flow copies
        groups.write(("orders", "clicks")[number % 2])
        groups.await_copies()
    for _ in range(ROUNDS):  # each is copied before the next one is written, mostly
        groups.write(chance.choice([*groups.written]))
    groups.await_copies()
    topics = [value.partition("-")[0] for _, value in groups.copied]
    assert sum(one != other for one, other in itertools.pairwise(topics)) > 2, "not mixed"
    # No group has read what others write to the common topic.
    others = [(0, None, f"other-{n}", None) for n in range(10)]
    librdkafka_tools.write(stage.destination.bootstrap_servers, COMMON, others)
    groups.commit_anywhere()
    librdkafka_tools.commit(stage.source.bootstrap_servers, "alone", "orders", {0: 1})
    groups.await_places()
    assert (groups.goes_on("alone"), groups.translated("alone")) == (-1, None)

    report = readiness(stage)
    texts = [finding["text"] for finding in report["findings"]]
    alone = f"group alone: no offset is copied to {COMMON}-0, which several source partitions share"
    assert [f"{alone}: it has no offset of clicks-0" in text for text in texts].count(True) == 1
    shown = {one["group"]: one for row in report["topics"] for one in row["groups"]}
    assert shown.keys() == groups.places.keys()
    assert all((one["due"], one["skips"], one["ahead"]) == (0, [], 0) for one in shown.values())

    groups.commit("g0", orders=0)
    groups.await_places()
    for group in groups.places:
        behind = [value for at, value in groups.copied if at >= groups.first(group)]
        assert groups.unread(group) <= {*behind}
        if group in {"g0", "g1", "g2"}:
            assert read_on(stage.destination.bootstrap_servers, group, len(behind)) == behind
