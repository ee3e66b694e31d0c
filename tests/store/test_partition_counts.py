"""Control topics whose partition count is not known, or has changed.

If partitions are added, mirror partitions would change their owners.
"""

import asyncio
import re
import time
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import cast
from uuid import uuid4

import librdkafka_tools
import pytest
from clients import client

from twinlog.engines.settings import LaneSettings
from twinlog.engines.transactional.positions import settled_positions
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import Retriable, UnsupportedVersion, UserError
from twinlog.local.cluster import LocalCluster
from twinlog.local.processes import SHORT_LIVED
from twinlog.runtime.lane import Lane, LaneConfig
from twinlog.store import control_topics, partition_counts
from twinlog.store.config_records import STATE_COUNT, Feature, Mirror, MirrorTopic, encode_key
from twinlog.store.control_topics import (
    STATE_PARTITIONS,
    STATE_TOPIC,
    check_state_partitions,
)
from twinlog.store.mirrors import MirrorStore
from twinlog.store.offset_log import OFFSETS_TOPIC, create_offsets_topic
from twinlog.store.partition_counts import known_partition_count
from twinlog.store.recorded_maps import read_ends
from twinlog.store.snapshot import Snapshot, StoredRecord

REFUSED = "INVALID_PARTITIONS: {} has {} partitions, expected {}"


def mirror(name: str) -> Mirror:
    return Mirror(name=name, source={"bootstrap.servers": "h:1"}, source_cluster_id="c")


def check(
    monkeypatch: pytest.MonkeyPatch, stored: dict[str, int], found: int | None
) -> list[Feature]:
    async def count(_: KafkaCluster) -> int | None:
        return found

    monkeypatch.setattr(control_topics, "partition_count", count)
    records = {("feature", name): Feature(name=name, level=n) for name, n in stored.items()}
    return asyncio.run(check_state_partitions(None, Snapshot(records)))  # type: ignore[arg-type]


def test_a_missing_partition_count_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: mirrors of an older version are accepted as they are; the count is stored next."""
    assert check(monkeypatch, {}, 50) == [Feature(name=STATE_COUNT, level=50)]
    assert not check(monkeypatch, {STATE_COUNT: 50}, 50)
    assert not check(monkeypatch, {STATE_COUNT: 50}, None)


def test_a_changed_partition_count_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: it is refused, with both counts and the topic's name."""
    with pytest.raises(UserError, match=REFUSED.format(STATE_TOPIC, 60, 50)):
        check(monkeypatch, {STATE_COUNT: 50}, 60)


def test_an_unreadable_partition_count_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: an unreadable count is not treated as one that was never stored."""
    check(monkeypatch, {}, 50)
    snapshot = Snapshot().after([StoredRecord(0, 0, encode_key(("feature", STATE_COUNT)), b"{")])
    with pytest.raises(UnsupportedVersion, match="__mirror_config-0, offset 0"):
        asyncio.run(check_state_partitions(cast(KafkaCluster, None), snapshot))


LOST = (
    "cluster destination: the control topic __mirror_offsets does not exist; it was deleted and is "
    'not recreated automatically: see "A lost control topic" in docs/operations/control-topics.md'
)


@pytest.mark.parametrize(
    ("counts", "absent", "outcome"),
    [
        ([50], [], 50),
        ([None, 50], [True], 50),
        ([None], [False], Retriable("a broker does not know the topic yet", topic=OFFSETS_TOPIC)),
        ([None] * 3, [True] * 3, LOST),
    ],
)
def test_a_count_that_is_not_known_is_tried_again_unless_no_broker_has_the_topic(
    monkeypatch: pytest.MonkeyPatch,
    counts: list[int | None],
    absent: list[bool],
    outcome: int | str | Retriable,
) -> None:
    """Goal: a deleted topic is reported with what to do, and not waited for."""

    async def count(_: KafkaCluster, topic: str) -> int | None:
        assert topic == OFFSETS_TOPIC
        return counts.pop(0)

    async def absent_topics(_: KafkaCluster, topics: list[str]) -> set[str]:
        return set(topics) if absent.pop(0) else set()

    monkeypatch.setattr(partition_counts, "partition_count", count)
    monkeypatch.setattr(partition_counts, "absent_everywhere", absent_topics)
    monkeypatch.setattr(partition_counts, "_LOOK_S", 0.0)
    cluster = cast("KafkaCluster", SimpleNamespace(name="destination"))
    if isinstance(outcome, int):
        assert asyncio.run(known_partition_count(cluster, OFFSETS_TOPIC)) == outcome
    else:
        kind = UserError if isinstance(outcome, str) else Retriable
        with pytest.raises(kind, match=f"^{re.escape(str(outcome))}$"):
            asyncio.run(known_partition_count(cluster, OFFSETS_TOPIC))
    assert counts == absent == []


@pytest.fixture(scope="module")
def own_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Start one broker whose control topics are changed."""
    directory = tmp_path_factory.mktemp("own")
    with LocalCluster.start(1, directory=directory, jvm_flags=SHORT_LIVED) as cluster:
        yield cluster


@pytest.mark.broker
def test_a_deleted_topic_of_positions_is_reported_at_once(own_kafka: LocalCluster) -> None:
    """Goal: a command says what to do, as no broker has the topic and nothing creates it again."""

    async def story() -> None:
        async with client(own_kafka, api_timeout=400.0) as cluster:
            topic = MirrorTopic(mirror="flow", topic="t", topic_id=uuid4(), partitions=1)
            began = time.monotonic()
            with pytest.raises(UserError, match=f"{OFFSETS_TOPIC} does not exist; it was deleted"):
                await read_ends(cluster, [topic])
            with pytest.raises(UserError, match=f"{OFFSETS_TOPIC} does not exist; it was deleted"):
                await settled_positions(cluster, "group", [topic])
            assert time.monotonic() - began < cluster.config.api_timeout / 4
            await create_offsets_topic(cluster, 5)
            assert await cluster.persist(partial(read_ends, cluster, [topic])) == {}

    asyncio.run(story())


@pytest.mark.broker
def test_partitions_added_to_a_control_topic_block_commands_and_lanes(
    own_kafka: LocalCluster,
) -> None:
    """Goal: commands change nothing any more and lanes do not start, before and after."""

    async def story() -> None:
        async with client(own_kafka) as cluster:
            store = MirrorStore(cluster)
            await store.create_mirror(mirror("first"))
            counts = await store.snapshot()
            assert counts.count(STATE_COUNT) == STATE_PARTITIONS
            await store.create_mirror(mirror("second"))
            await asyncio.to_thread(
                librdkafka_tools.grow_topic,
                own_kafka.bootstrap_servers,
                STATE_TOPIC,
                STATE_PARTITIONS + 10,
            )
            refused = REFUSED.format(STATE_TOPIC, STATE_PARTITIONS + 10, STATE_PARTITIONS)
            with pytest.raises(UserError, match=refused):
                await store.create_mirror(mirror("third"))
            config = LaneConfig(
                node="node",
                index=0,
                lanes=1,
                destination={"bootstrap.servers": own_kafka.bootstrap_servers},
                settings=LaneSettings(),
                group_id="twinlog",
                session_timeout_s=10.0,
            )
            with pytest.raises(UserError, match=refused):
                await Lane(config).run()

    asyncio.run(story())
