"""A topic that the node may not write to at the destination, among others of its state partition.

There is only one state partition, so all topics share its transactions. The node may not write
markers, so gaps are filled by transactions, too (docs/decisions/0001-written-markers.md). The
missing right is reported for that one topic, and does not affect any other.
"""

import asyncio
from collections.abc import Iterator
from typing import Any, NamedTuple

import javaproperties
import librdkafka_tools
import pytest
from rights import granted
from secured_clusters import LISTENERS, PASSWORDS, Secured, sasl
from waiting import until

from twinlog.kafka.acls import Acl, Operation, PatternType, Permission, ResourceType
from twinlog.local.check import ConsumerView
from twinlog.local.stage import Stage

pytestmark = [pytest.mark.broker, pytest.mark.spark]

PREFIX = "orders"
"""The prefix of the topics that docs/security.md grants."""
REFUSED = "TOPIC_AUTHORIZATION_FAILED"
ALICE = Acl(
    *(ResourceType.TOPIC, PREFIX, PatternType.PREFIXED, "User:alice", "*"),
    *(Operation.WRITE, Permission.ALLOW),
)


class Place(NamedTuple):
    """A source, a destination with an authorizer, and a node."""

    stage: Stage
    source: Secured
    destination: Secured

    def deny(self, topic: str) -> Acl:
        """Deny the node WRITE on a topic."""
        kind, literal = ResourceType.TOPIC, PatternType.LITERAL
        denial = Acl(kind, topic, literal, "User:twinlog", "*", Operation.WRITE, Permission.DENY)
        asyncio.run(self.destination.give([denial]))
        return denial

    def allow(self, denial: Acl) -> None:
        """Remove the denial."""
        asyncio.run(self.destination.take([denial]))

    def begin(self, mirror: str, *topics: str) -> None:
        """Create a mirror of these topics."""
        refresh = ["mirror.metadata.refresh.interval.ms=1000"]
        self.stage.create_mirror(mirror, refresh, state_partitions=1)
        self.stage.add("|".join(topics), mirror)

    def start_node(self) -> None:
        node = self.stage.directory / "node.properties"
        protocol = {"security.protocol": LISTENERS["WORD"]}
        node.write_text(
            javaproperties.dumps(protocol | sasl("PLAIN", "twinlog", PASSWORDS["twinlog"]))
        )
        at = ("--bootstrap-server", self.destination.servers("WORD"))
        often = ("--lanes", "1", "--lane-property", "retry.backoff.max.ms=3000")
        self.stage.start_node("node", *at, "--command-config", str(node), *often)

    def remove_all(self, mirror: str) -> None:
        removed = self.stage.mirrors("--remove", "--topic", ".*", "--mirror", mirror)
        assert removed.status == 0, removed.errors

    def await_reason(self, topic: str, state: str) -> dict[str, Any]:
        """Wait until a topic's first partition is in a state for lack of the right."""
        return until(
            lambda: librdkafka_tools.described(self.stage, topic)[0],
            what=f"{topic} {state}: {REFUSED}",
            good=lambda row: row["state"] == state and REFUSED in (row["reason"] or ""),
        )


@pytest.fixture(scope="module")
def place(
    tmp_path_factory: pytest.TempPathFactory, secured_pair: tuple[Secured, Secured]
) -> Iterator[Place]:
    """Grant the documented rights, without those to write markers: 4.3.1 accepts ALTER, too."""
    source, destination = secured_pair
    rights = [
        one
        for one in granted("User:twinlog")
        if one.resource_type is not ResourceType.CLUSTER
        or one.operation not in {Operation.CLUSTER_ACTION, Operation.ALTER}
    ]
    asyncio.run(destination.give([*rights, ALICE]))
    with Stage(tmp_path_factory.mktemp("denied-topic") / "stage") as stage:
        stage.source, stage.destination = source.local, destination.local
        yield Place(stage, source, destination)


def ends(place: Place, topic: str) -> list[int]:
    """Return the destination's log end offsets."""
    found = ConsumerView(place.destination.local.bootstrap_servers).ends([(topic, 0), (topic, 1)])
    return list(found.values())


@pytest.fixture(scope="module")
def node(place: Place) -> Place:
    """Return the place with its node, which needs a mirror to start."""
    servers = place.source.local.bootstrap_servers
    librdkafka_tools.make_topic(servers, f"{PREFIX}-first")
    place.begin("first", f"{PREFIX}-first")
    place.start_node()
    librdkafka_tools.await_state(place.stage, f"{PREFIX}-first", 0, "MIRRORING")
    return place


@pytest.mark.long
def test_a_denied_topic_does_not_delay_the_failover_of_other_topics(node: Place) -> None:
    """`--remove '.*'`: all others are STOPPED at once, and are their users'; it is later."""
    topics = one, two, denied = [f"{PREFIX}-{name}" for name in ("one", "two", "denied")]
    servers, mirror = node.source.local.bootstrap_servers, "all"
    for topic in topics:
        librdkafka_tools.make_topic(servers, topic, 2)
        for partition in (0, 1):
            librdkafka_tools.write(servers, topic, librdkafka_tools.simple(100, partition))
    node.begin(mirror, *topics)
    node.stage.await_no_lag(topics)
    for topic in topics:
        librdkafka_tools.await_state(node.stage, topic, 0, "MIRRORING")
    denial = node.deny(denied)
    node.remove_all(mirror)
    for topic in (one, two):
        for partition in (0, 1):
            row = librdkafka_tools.await_state(node.stage, topic, partition, "STOPPED")
            assert row["last_mirrored_end"] == 100
    librdkafka_tools.until_written(one, node.destination.as_alice())
    node.await_reason(denied, "STOPPING")
    refused = f"{mirror}/{denied}-1 is STOPPING: the destination refuses its fence"

    def is_told() -> bool:
        told = node.stage.mirrors("--describe", "--mirror", mirror)
        return refused in told.output + told.errors

    until(is_told, what=refused)
    assert ends(node, denied) == [100, 100]
    assert node.stage.nodes["node"].log.read_text().count(f"{denied}-0 stays STOPPING") == 1
    node.allow(denial)
    for partition in (0, 1):
        row = librdkafka_tools.await_state(node.stage, denied, partition, "STOPPED")
        assert (row["last_mirrored_end"], row["reason"]) == (100, None)
    assert set(ends(node, denied)) <= {101, 102}, "one marker or two fence each partition"
    librdkafka_tools.until_written(denied, node.destination.as_alice())


@pytest.mark.long
def test_a_denied_topic_does_not_delay_the_gaps_of_other_topics(node: Place) -> None:
    """It is FAILED, for a gap that may not be filled; gaps of the others are filled anyway."""
    topics = one, two, denied = [f"{PREFIX}-gaps-{name}" for name in ("one", "two", "denied")]
    servers, mirror = node.source.local.bootstrap_servers, "gaps"
    for topic in topics:
        librdkafka_tools.make_topic(servers, topic, 2)
    librdkafka_tools.transaction(servers, denied, "False", commit=False)
    denial = node.deny(denied)
    node.begin(mirror, *topics)
    row = node.await_reason(denied, "FAILED")
    assert "a gap cannot be filled" in row["reason"]
    for _ in range(3):
        for topic in (one, two):
            librdkafka_tools.transaction(servers, topic, "True", commit=True)
            librdkafka_tools.transaction(servers, topic, "False", commit=False)
        node.stage.await_no_lag((one, two))
    report = node.stage.check((one, two), numbered=False)
    assert report.good, report.problems
    log = node.stage.nodes["node"].log.read_text()
    for topic in (one, two):
        assert f"{topic}-0 is FAILED" not in log
    node.allow(denial)
    node.stage.await_no_lag(topics)
    librdkafka_tools.await_state(node.stage, denied, 0, "MIRRORING")
