"""Findings of docs/readiness.md, caused on real brokers.

Each test starts with a fully mirrored topic without findings, changes one thing on the clusters,
and reads the output of `twinlog readiness --json`. Records that lanes would write are written by
hand (scene.py). The source has two brokers, so that one may stop, and is reached through a proxy,
so that one request may be lost; both clusters have an authorizer.
"""

import asyncio
import struct
import time
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import librdkafka_tools
import pytest
from clients import make_topic, write_state
from rights import granted
from scene import RECORDS, Scene, delete_lanes_group, foreign_member, scene
from secured_clusters import LISTENERS, PASSWORDS, PLAIN, Secured, sasl
from tcp_proxy import LIST_OFFSETS, PROXIED, PROXIED_LISTENER, Faults, Proxies
from waiting import SECONDS, until_async

from conftest import Pair
from twinlog.kafka.acls import Acl, Operation, ResourceType
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.requests.partitions import CONSUMER, DEBUGGING, delete_records
from twinlog.kafka.requests.topics import (
    Alteration,
    AlterOperation,
    delete_topics,
    incremental_alter_configs,
    topic_resource,
)
from twinlog.kafka.types import TopicPartition
from twinlog.local.cluster import LocalCluster
from twinlog.local.processes import SHORT_LIVED
from twinlog.mirror.states import State
from twinlog.operations.readiness.reasons import WEIGHTS, Reason, Verdict
from twinlog.operations.serialise import json_data
from twinlog.store.config_records import MirrorTopic
from twinlog.store.control_topics import LANES_GROUP

pytestmark = pytest.mark.broker

NO_ACLS = {"mirror.acl.include": ""}
"""The rights that a test grants are ACLs of the mirror's topics, too."""
NONE: frozenset[Reason] = frozenset()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """Start two brokers, each behind a proxy."""
    with _cluster(tmp_path_factory, "source", 2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def destination(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with _cluster(tmp_path_factory, "destination", 1) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def clusters(source: Secured, destination: Secured) -> Pair:
    return Pair(source.local, destination.local)


@contextmanager
def _cluster(factory: pytest.TempPathFactory, name: str, brokers: int) -> Iterator[Secured]:
    directory = factory.mktemp(name)
    users = " ".join(f'user_{user}="{password}"' for user, password in PASSWORDS.items())
    config = {
        # No partition moves away from a broker of two because the machine stands still.
        "broker.session.timeout.ms": "20000",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "listener.name.word.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.word.plain.sasl.jaas.config": f"{PLAIN} {users};",
    }
    with LocalCluster.start(
        brokers,
        directory=directory,
        config=config,
        listeners={"WORD": LISTENERS["WORD"], **PROXIED_LISTENER},
        proxied=[PROXIED],
        jvm_flags=SHORT_LIVED,
    ) as local:
        yield Secured(directory, local)


# ---- helpers -----------------------------------------------------------------------------------


def findings(found: Mapping[str, Any]) -> dict[Reason, str]:
    """Return the findings of a printed readiness result, with their texts."""
    every = [
        *found["findings"],
        *(finding for topic in found["topics"] for finding in topic["findings"]),
    ]
    return {Reason[finding["reason"]]: finding["text"] for finding in every}


async def await_findings(
    setup: Scene,
    expected: Collection[Reason],
    *topics: MirrorTopic,
    state: State = State.MIRRORING,
) -> dict[str, Any]:
    """Wait for exactly these findings, while lanes report these topics; return the readiness."""

    async def found() -> dict[str, Any]:
        for topic in topics:
            await setup.report(topic, state)
        as_object: Any = json_data(await setup.readiness())
        return as_object

    deadline = time.monotonic() + SECONDS
    while findings(last := await found()).keys() != set(expected):
        assert time.monotonic() < deadline, findings(last)
    worst = max((WEIGHTS[reason] for reason in expected), default=Verdict.READY)
    assert last["readiness"] == worst.name
    return last


def of_topic(found: Mapping[str, Any], name: str) -> dict[Reason, str]:
    """Return the findings of one topic."""
    return findings({"findings": [], "topics": [t for t in found["topics"] if t["topic"] == name]})


# ---- logs --------------------------------------------------------------------------------------


def test_purged_names_offsets_deleted_before_they_were_mirrored(clusters: Pair, topic: str) -> None:
    """Goal: PURGED names the offsets; the lag counts the records that are left."""

    async def run() -> None:
        async with scene(clusters, f"mirror.{topic}") as setup:
            mirrored = await setup.mirrored(topic)
            await await_findings(setup, NONE, mirrored)
            librdkafka_tools.write_same(setup.servers[0], topic, 0, RECORDS, RECORDS + 10)
            found = await await_findings(setup, {Reason.LAG}, mirrored)
            assert (found["lag"], found["lag_is_all"]) == (10, True)
            partition = TopicPartition(topic, 0)
            answer = await delete_records(setup.source, {partition: RECORDS + 4})
            assert answer == {partition: RECORDS + 4}
            found = await await_findings(setup, {Reason.LAG, Reason.PURGED}, mirrored)
            assert f"[{RECORDS}, {RECORDS + 4})" in findings(found)[Reason.PURGED]
            assert (found["lag"], found["lag_is_all"]) == (6, False)

    asyncio.run(run())


def test_diverged_names_both_log_end_offsets(clusters: Pair, topic: str) -> None:
    """Goal: DIVERGED is reported of a reachable source, with both log end offsets."""

    async def run() -> None:
        async with scene(clusters, f"mirror.{topic}") as setup:
            mirrored = await setup.mirrored(topic)
            await await_findings(setup, NONE, mirrored)
            librdkafka_tools.write(
                setup.servers[1], topic, librdkafka_tools.simple(3, text="foreign")
            )
            found = await await_findings(setup, {Reason.DIVERGED}, mirrored)
            text = findings(found)[Reason.DIVERGED]
            assert f"the destination ends at {RECORDS + 3}, the source at {RECORDS}" in text
            assert (found["lag"], found["lag_is_all"]) == (0, False)

    asyncio.run(run())


def _lists_offsets_as(replica_id: int, request: bytes) -> bool:
    """Return whether a request is ListOffsets with this replica id."""
    _, api, version, _, client_id = struct.unpack_from(">ihhih", request)
    body = 14 + max(client_id, 0) + (1 if version >= 6 else 0)  # from 6 on the header has tags
    return api == LIST_OFFSETS and struct.unpack_from(">i", request, body) == (replica_id,)


def test_the_lag_without_log_end_offsets_uses_the_high_watermark(
    source: Secured, destination: Secured, clusters: Pair, topic: str
) -> None:
    """Goal: without the log end offset the high watermark counts; without that the lag is unknown.

    ACLs that the source's own mirrors have made are then unknown, too; that blocks nothing.
    """
    back = Pair(destination.local, source.local)

    async def run(proxies: Proxies) -> None:
        servers = {"bootstrap.servers": proxies.bootstrap_servers}
        async with (
            scene(clusters, f"mirror.{topic}", servers) as setup,
            scene(back, f"mirror.{topic}.back", replication_factor=1),
        ):
            mirrored = await setup.mirrored(topic)
            for replica_id, reason, lag, beside in (
                (DEBUGGING, Reason.LOG_END_UNREADABLE, 0, NONE),
                (CONSUMER, Reason.SOURCE_UNREADABLE, None, {Reason.ACL_UNREADABLE}),
            ):
                await await_findings(setup, NONE, mirrored)
                proxies.set(Faults(cut_at=partial(_lists_offsets_as, replica_id)))
                found = await await_findings(setup, {reason, *beside}, mirrored)
                assert "partition 0" in findings(found)[reason]
                assert (found["lag"], found["lag_is_all"]) == (lag, False)
                proxies.clear()

    with Proxies.of(source.local) as proxies:
        asyncio.run(run(proxies))


def test_leaderless_partitions_are_reported_as_unreadable(
    source: Secured, destination: Secured, clusters: Pair, topic: str
) -> None:
    """Goal: SOURCE_UNREADABLE and DESTINATION_UNREADABLE name only the leaderless partitions.

    Two mirrors, one in each direction, have partitions on a broker that stops.
    """
    back, name = Pair(destination.local, source.local), f"mirror.{topic}"
    outbound, inbound = f"{topic}-there", f"{topic}-here"

    async def run() -> None:
        async with (
            scene(clusters, name) as setup,
            scene(back, f"{name}.back", replication_factor=1) as other,
        ):
            mirrored = await setup.mirrored(outbound, 2)
            mirrored_back = await other.mirrored(inbound, 2)
            await await_findings(setup, NONE, mirrored)
            await await_findings(other, NONE, mirrored_back)
            leaders = [
                await setup.source.leaders([TopicPartition(name, at) for at in (0, 1)])
                for name in (outbound, inbound)
            ]
            [lost, lost_back] = [
                [at.partition for at, leader in some.items() if leader.node_id == 2]  # type: ignore[union-attr]
                for some in leaders
            ]
            source.local.shut_down(2)
            try:
                found = await await_findings(setup, {Reason.SOURCE_UNREADABLE}, mirrored)
                assert f"(partition {lost[0]})" in findings(found)[Reason.SOURCE_UNREADABLE]
                assert (len(lost), found["lag"]) == (1, None)
                unreadable = {Reason.DESTINATION_UNREADABLE}
                found = await await_findings(other, unreadable, mirrored_back)
                [text] = findings(found).values()
                assert f"(partition {lost_back[0]})" in text
                assert (len(lost_back), found["lag"]) == (1, None)
            finally:
                source.local.start_broker(2)
            await await_findings(setup, NONE, mirrored)
            await await_findings(other, NONE, mirrored_back)

    asyncio.run(run())


# ---- topics ------------------------------------------------------------------------------------


async def delete_and_await(cluster: KafkaCluster, topic: str) -> None:
    """Delete a topic, and wait until all brokers report it as deleted."""
    await delete_topics(cluster, [topic])

    async def gone() -> bool:
        return topic not in (await cluster.refresh([topic])).topics

    await until_async(gone)


def test_a_deleted_and_recreated_source_topic_is_reported(clusters: Pair, topic: str) -> None:
    """Goal: TOPIC_GONE, then TOPIC_MADE_AGAIN, without a lag computed from the new log."""

    async def run() -> None:
        async with scene(clusters, f"mirror.{topic}") as setup:
            mirrored = await setup.mirrored(topic)
            await await_findings(setup, NONE, mirrored)
            await delete_and_await(setup.source, topic)
            found = await await_findings(setup, {Reason.TOPIC_GONE}, mirrored)
            assert (found["lag"], found["lag_is_all"]) == (None, False)
            await make_topic(setup.source, topic)
            librdkafka_tools.write_same(setup.servers[0], topic, 0, 0, RECORDS)
            found = await await_findings(setup, {Reason.TOPIC_MADE_AGAIN}, mirrored)
            assert (found["lag"], found["lag_is_all"]) == (None, False)

    asyncio.run(run())


def test_new_source_partitions_are_reported(clusters: Pair, topic: str) -> None:
    """Goal: NEW_PARTITIONS has both counts, and the lag is not complete."""

    async def run() -> None:
        async with scene(clusters, f"mirror.{topic}") as setup:
            mirrored = await setup.mirrored(topic)
            await await_findings(setup, NONE, mirrored)
            librdkafka_tools.grow_topic(setup.servers[0], topic, 3)
            found = await await_findings(setup, {Reason.NEW_PARTITIONS}, mirrored)
            text = findings(found)[Reason.NEW_PARTITIONS]
            assert "the source has 3 partitions, 1 are mirrored" in text
            assert (found["lag"], found["lag_is_all"]) == (0, False)

    asyncio.run(run())


async def _retain(cluster: KafkaCluster, topic: str, milliseconds: int) -> None:
    set_it = Alteration("retention.ms", AlterOperation.SET, str(milliseconds))
    answers = await incremental_alter_configs(cluster, {topic_resource(topic): [set_it]})
    assert set(answers.values()) == {None}


def test_different_configurations_are_reported(clusters: Pair, topic: str) -> None:
    """Goal: CONFIGURATION names what changed on either side, until both sides are equal."""

    async def run() -> None:
        async with scene(clusters, f"mirror.{topic}") as setup:
            mirrored = await setup.mirrored(topic)
            await await_findings(setup, NONE, mirrored)
            await _retain(setup.source, topic, 7_200_000)
            found = await await_findings(setup, {Reason.CONFIGURATION}, mirrored)
            assert findings(found)[Reason.CONFIGURATION].endswith(": retention.ms")
            await _retain(setup.destination, topic, 7_200_000)
            await await_findings(setup, NONE, mirrored)
            await _retain(setup.destination, topic, 3_600_000)
            found = await await_findings(setup, {Reason.CONFIGURATION}, mirrored)
            assert found["topics"][0]["configurations"] == ["retention.ms"]

    asyncio.run(run())


def test_comparisons_skipped_because_the_source_is_dead_are_reported(
    clusters: Pair, topic: str
) -> None:
    """Goal: configurations and ACLs that an unreachable source leaves uncompared are named."""

    async def run() -> None:
        async with scene(clusters, f"mirror.{topic}") as setup:
            mirrored = await setup.mirrored(topic)
            await await_findings(setup, NONE, mirrored)
            await setup.source_dies()
            unreadable = {
                Reason.SOURCE_UNREACHABLE,
                Reason.GROUP_UNREADABLE,
                Reason.CONFIGURATION_UNREADABLE,
                Reason.ACL_UNREADABLE,
            }
            await await_findings(setup, unreadable, mirrored)

    asyncio.run(run())


# ---- groups, nodes -----------------------------------------------------------------------------


def test_a_group_ahead_of_the_mirror_is_reported(clusters: Pair, topic: str) -> None:
    """Goal: GROUP_AHEAD counts the records that it has read and the destination lacks."""

    async def run() -> None:
        async with scene(clusters, f"mirror.{topic}") as setup:
            mirrored = await setup.mirrored(topic)
            for servers in setup.servers:
                librdkafka_tools.commit(servers, f"group.{topic}", topic, {0: RECORDS})
            await await_findings(setup, NONE, mirrored)
            librdkafka_tools.write_same(setup.servers[0], topic, 0, RECORDS, RECORDS + 10)
            librdkafka_tools.commit(setup.servers[0], f"group.{topic}", topic, {0: RECORDS + 7})
            found = await await_findings(setup, {Reason.LAG, Reason.GROUP_AHEAD}, mirrored)
            text = findings(found)[Reason.GROUP_AHEAD]
            assert text == f"group group.{topic} has read 7 offsets that are not mirrored yet"
            assert [group["ahead"] for group in found["topics"][0]["groups"]] == [7]

    asyncio.run(run())


def test_no_node_is_reported_without_fresh_status_or_members(clusters: Pair, topic: str) -> None:
    """Goal: NO_NODE where no status is fresh, and where the lanes' group has no member."""

    async def run() -> None:
        async with scene(clusters, f"mirror.{topic}") as setup:
            mirrored = await setup.mirrored(topic)
            paused = {Reason.PAUSED}
            await await_findings(setup, paused, mirrored, state=State.PAUSED)
            await setup.report(mirrored, State.PAUSED, age_s=3600)
            found = await await_findings(setup, paused | {Reason.NO_NODE})
            assert "no node is running" in findings(found)[Reason.NO_NODE]
            await await_findings(setup, paused, mirrored, state=State.PAUSED)
            librdkafka_tools.commit(setup.servers[1], LANES_GROUP, topic, {0: 1})
            try:
                expected = paused | {Reason.NO_NODE}
                await await_findings(setup, expected, mirrored, state=State.PAUSED)
            finally:
                delete_lanes_group(setup.servers[1])
            await await_findings(setup, paused, mirrored, state=State.PAUSED)

    asyncio.run(run())


def test_no_node_is_reported_if_the_only_member_is_foreign(clusters: Pair, topic: str) -> None:
    """Goal: NO_NODE although the lanes' group has a member: a foreign one runs no failover."""

    async def run() -> None:
        async with scene(clusters, f"mirror.{topic}") as setup:
            await write_state(setup.destination, await setup.mirrored(topic), State.PAUSED)
            expected = {Reason.PAUSED, Reason.FOREIGN_MEMBER, Reason.NO_NODE}
            for protocol in ("classic", "consumer"):
                with foreign_member(setup, topic, protocol):
                    await await_findings(setup, expected)

    asyncio.run(run())


# ---- rights ------------------------------------------------------------------------------------


def rights(principal: str, where: str, *topics: str) -> frozenset[Acl]:
    """Return the ACLs that docs/security.md grants, for these topics."""
    return frozenset(
        acl._replace(resource_name=topic) if acl.resource_name == "orders" else acl
        for acl in granted(principal, where)
        for topic in topics
    )


@asynccontextmanager
async def granted_acls(cluster: Secured, acls: frozenset[Acl]) -> AsyncIterator[None]:
    """Grant rights for the duration of a test."""
    await cluster.give(acls)
    try:
        yield
    finally:
        await cluster.take(acls)


def user(cluster: Secured, name: str) -> dict[str, str]:
    """Return a user's client properties."""
    return cluster.properties("WORD", sasl("PLAIN", name, PASSWORDS[name]))


async def topics_with_rights(
    setup: Scene, cluster: Secured, acls: Collection[Acl], closed: str, opened: str, *found: Reason
) -> None:
    """Yield two topics without findings, then revoke the rights on one of them."""
    mirrored = [await setup.mirrored(name) for name in (closed, opened)]
    before = await await_findings(setup, NONE, *mirrored)
    assert before["lag"] == 0
    await cluster.take([acl for acl in acls if acl.resource_name == closed])
    after = await await_findings(setup, found, *mirrored)
    assert of_topic(after, closed).keys() == set(found)
    assert {topic["topic"]: topic["lag"] for topic in after["topics"]} == {closed: None, opened: 0}


def test_a_source_topic_without_read_right_is_reported(
    source: Secured, clusters: Pair, topic: str
) -> None:
    """Goal: SOURCE_UNREADABLE names the topic on which the mirror's principal has no right."""
    names = f"{topic}-closed", f"{topic}-open"
    acls = rights("User:mirror", "source", *names)
    properties = {**user(source, "mirror"), **NO_ACLS}

    async def run() -> None:
        async with (
            granted_acls(source, acls),
            scene(clusters, f"mirror.{topic}", properties) as setup,
        ):
            await topics_with_rights(setup, source, acls, *names, Reason.SOURCE_UNREADABLE)

    asyncio.run(run())


def test_a_destination_topic_without_read_right_is_reported(
    destination: Secured, clusters: Pair, topic: str
) -> None:
    """Goal: DESTINATION_UNREADABLE names the topic on which the user has no right."""
    names = f"{topic}-closed", f"{topic}-open"
    acls = rights("User:switchover", "destination", *names)

    async def run() -> None:
        async with (
            granted_acls(destination, acls),
            scene(clusters, f"mirror.{topic}", NO_ACLS) as setup,
        ):
            setup.user = user(destination, "switchover")
            found = (Reason.DESTINATION_UNREADABLE, Reason.CONFIGURATION_UNREADABLE)
            await topics_with_rights(setup, destination, acls, *names, *found)

    asyncio.run(run())


@pytest.mark.parametrize("side", ["source", "destination"])
def test_acls_without_describe_right_are_reported_as_unreadable(
    source: Secured, destination: Secured, clusters: Pair, topic: str, side: str
) -> None:
    """Goal: ACL_UNREADABLE, and no claim of equal ACLs, without DESCRIBE on a cluster.

    The source's rights are ACLs that are not copied yet, as no node runs. Without DESCRIBE on the
    source the list of its groups may be incomplete, too.
    """
    cluster, name = {
        "source": (source, "mirror"),
        "destination": (destination, "switchover"),
    }[side]
    acls = rights(f"User:{name}", side, topic)
    see = [
        acl
        for acl in acls
        if (acl.resource_type, acl.operation) == (ResourceType.CLUSTER, Operation.DESCRIBE)
    ]
    properties = user(source, "mirror") if side == "source" else {}
    before = {Reason.ACL} if side == "source" else NONE
    after = {Reason.ACL_UNREADABLE} | ({Reason.GROUP_UNREADABLE} if side == "source" else NONE)

    async def run() -> None:
        async with (
            granted_acls(cluster, acls),
            scene(clusters, f"mirror.{topic}", properties) as setup,
        ):
            if side == "destination":
                setup.user = user(destination, "switchover")
            mirrored = await setup.mirrored(topic)
            await await_findings(setup, before, mirrored)
            await cluster.take(see)
            found = await await_findings(setup, after, mirrored)
            text = findings(found)[Reason.ACL_UNREADABLE]
            assert "CLUSTER_AUTHORIZATION_FAILED" in text
            assert not any(found["acls"].values())

    asyncio.run(run())
