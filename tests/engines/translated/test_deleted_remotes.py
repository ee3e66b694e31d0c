"""Twin of twinlog.engines.translated.deleted_remotes, and the writers that use it."""

import asyncio
import secrets
from collections.abc import Collection, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from clients import client
from confluent_kafka import Producer
from lane_processes import lanes
from librdkafka_tools import delete_topic
from stored_flows import states, store_flow
from waiting import SECONDS, until

from conftest import Pair
from twinlog import MirrorAdmin
from twinlog.engines.base import Sealed, Sealing
from twinlog.engines.ports import DestinationPort, LogEnd
from twinlog.engines.settings import LaneSettings
from twinlog.engines.transactional.positions import position_group
from twinlog.engines.transactional.writers import TransactionalWriters
from twinlog.engines.translated.deleted_remotes import DeletedRemotes
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Retriable
from twinlog.kafka.groups.offsets import committed_offsets
from twinlog.kafka.types import LeaderEpoch, Offset, TopicPartition
from twinlog.lifecycle.flow_creation import stored_properties
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.settings import TRANSACTIONAL, TRANSLATED
from twinlog.store.offset_log import read_offsets
from twinlog.store.state_records import LastMirrored

SETTINGS = LaneSettings(lease_s=0.05)
GONE, THERE = (MirrorPartition("m", topic, 0) for topic in ("gone", "there"))
REMOTES = {name: TopicPartition(f"a.{name.topic}", 0) for name in (GONE, THERE)}


class Target:
    """`DestinationPort` of two topics, of which one is deleted by the answers of these calls."""

    def __init__(self, *answers: bool | Retriable) -> None:
        self._answers = answers
        self.calls = 0

    async def absent(self, topics: Collection[str]) -> Collection[str]:
        answer = self._answers[min(self.calls, len(self._answers) - 1)]
        self.calls += 1
        if isinstance(answer, Retriable):
            raise answer
        return {"a.gone"}.intersection(topics) if answer else set()

    async def log_ends(self, keys: Collection[TopicPartition]) -> Mapping[TopicPartition, LogEnd]:
        missing = LogEnd(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)
        return {key: missing if key.topic == "a.gone" else LogEnd(0, 7, 0) for key in keys}


def asked(*answers: bool | Retriable, pause_s: float = 0.03) -> list[Collection[MirrorPartition]]:
    """What is sealed at each of these calls."""

    async def body() -> list[Collection[MirrorPartition]]:
        deleted = DeletedRemotes(cast("DestinationPort", Target(*answers)), SETTINGS)
        found: list[Collection[MirrorPartition]] = []
        for _ in answers:
            found.append((await deleted.sealed(REMOTES)).keys())
            await asyncio.sleep(pause_s)
        return found

    return asyncio.run(body())


def test_a_topic_is_deleted_when_all_brokers_have_agreed_for_a_lease() -> None:
    """Goal: what a former owner has sent is not under way any more."""
    first, *later = asked(*[True] * 5)
    assert not first
    assert {name for one in later for name in one} == {GONE}


def test_a_broker_that_knows_the_topic_or_does_not_answer_excludes_it() -> None:
    for other in (False, Retriable("no answer")):
        assert not any(asked(True, other, True, other, True, other, True, other))


def test_nothing_is_asked_where_all_are_fenced() -> None:
    target = Target(True)
    deleted = DeletedRemotes(cast("DestinationPort", target), SETTINGS)
    assert asyncio.run(deleted.sealed({})) == {}
    assert target.calls == 0


def test_a_transactional_partition_without_a_topic_is_sealed() -> None:
    """Goal: a flow whose remote topic was deleted becomes STOPPED."""
    lane: Any = SimpleNamespace(
        destination=SimpleNamespace(name="destination"), id_prefix="lanes", settings=SETTINGS
    )
    owner = TransactionalWriters(0, lane, cast("DestinationPort", Target(True)))

    class Transactions:
        async def fence(self) -> int:
            return 7

    fake: Any = Transactions()
    owner._transactions = fake
    last = LastMirrored(LeaderEpoch(-1), Offset(-1))
    sealing = {name: Sealing(remote, None, last) for name, remote in REMOTES.items()}

    async def body() -> None:
        assert await owner.seal(sealing) == {THERE: Sealed(Offset(7))}
        for _ in range(3):
            await asyncio.sleep(0.03)
            found = await owner.seal(sealing)
            if GONE in found:
                break
        sealed = found[GONE]
        assert isinstance(sealed, Sealed)
        assert sealed.end == -1
        assert "a.gone was deleted" in (sealed.reason or "")

    asyncio.run(body())


@pytest.mark.long
@pytest.mark.broker
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", [TRANSLATED, TRANSACTIONAL])
def test_a_flow_whose_remote_topic_was_deleted_is_deleted(
    pair: Pair, tmp_path: Path, kind: str
) -> None:
    """Goal: what it has recorded is forgotten as well, and its partitions are STOPPED."""
    mirror, topic = (f"{name}-{secrets.token_hex(4)}" for name in ("flow", "t"))
    servers = pair.destination.bootstrap_servers
    settings = {"enabled": "true", "topics": "x", "replication.factor": "-1"}
    if kind == TRANSACTIONAL:
        settings["transaction.producer"] = "true"
    connection = {"bootstrap.servers": pair.source.bootstrap_servers}
    properties = stored_properties(connection, settings, "a", "b")
    asyncio.run(store_flow(pair, mirror, properties, (topic, f"a.{topic}"), 2))

    async def recorded() -> bool:
        async with client(pair.destination) as cluster:
            stored = (await read_offsets(cluster)).values()
            names = {name for one in stored for name in (*one.plans, *one.begun)}
            group = position_group("twinlog", mirror)
            offsets = await committed_offsets(cluster, group)
            return bool(offsets) or any(name.mirror == mirror for name in names)

    async def delete() -> None:
        async with MirrorAdmin({"bootstrap.servers": servers}) as admin:
            await admin.flows.delete(mirror, forgets_offsets=True, timeout_s=SECONDS)

    with lanes(servers, tmp_path) as nodes:
        nodes.start("node")
        producer = Producer({"bootstrap.servers": pair.source.bootstrap_servers})
        producer.produce(topic, b"1", partition=0)
        assert producer.flush(120) == 0
        until(
            lambda: {state for state, _ in states(pair, mirror).values()} == {"MIRRORING"},
            SECONDS,
            "MIRRORING",
        )
        until(lambda: asyncio.run(recorded()), SECONDS, "what the flow has recorded")
        delete_topic(servers, f"a.{topic}")
        asyncio.run(delete())
    assert not asyncio.run(recorded())
