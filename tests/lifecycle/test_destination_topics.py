"""Topics on a destination that caps `max.message.bytes`."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast
from uuid import UUID

import pytest
from clients import client, make_topic, topic_configs

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import Refusal, UserError
from twinlog.kafka.requests.topics import NewTopic, create_topics
from twinlog.kafka.types import LeaderEpoch, Offset, TopicPartition
from twinlog.lifecycle import destination_topics
from twinlog.lifecycle.creation import add_topics, create_mirror
from twinlog.lifecycle.destination_topics import DestinationTopic, fitted, still_here
from twinlog.local.cluster import LocalCluster
from twinlog.mirror.topic_configs import GENEROUS_BATCH, MAX_MESSAGE_BYTES
from twinlog.store.state_records import LastMirrored

DESTINATION = cast(KafkaCluster, None)
MIB = 1 << 20
POLICY_VIOLATION = 44


def topic(name: str, source_limit: int) -> DestinationTopic:
    configs = {MAX_MESSAGE_BYTES: str(max(GENEROUS_BATCH, source_limit)), "retention.ms": "1"}
    return DestinationTopic(
        name=name,
        topic_id=None,
        partitions=1,
        configs=configs,
        there=0,
        set_back=(),
        source_batch_limit=source_limit,
    )


def test_a_topic_that_is_made_anew_has_no_end_that_was_mirrored() -> None:
    """All of its logs are a tail already: `--save-tail` writes a partition's records once."""
    ends = {TopicPartition("t", at): LastMirrored(LeaderEpoch(9), Offset(1)) for at in range(3)}
    here = replace(topic("t", MIB), there=2)
    assert still_here(ends, [here]).keys() == {TopicPartition("t", 0), TopicPartition("t", 1)}
    assert not still_here(ends, [replace(here, anew=True)])


class Service:
    """A destination that refuses values above its cap, or every value."""

    def __init__(self, cap: int, code: int) -> None:
        self.cap = cap
        self.code = code
        self.tries = 0

    async def create(
        self, _: KafkaCluster, topics: Sequence[NewTopic], **options: Any
    ) -> dict[str, UUID | Refusal]:
        assert options == {"validate_only": True}
        self.tries += 1
        return {
            topic.name: UUID(int=1)
            if int(topic.configs[MAX_MESSAGE_BYTES] or 0) <= self.cap
            else Refusal(self.code, f"{MAX_MESSAGE_BYTES} is above {self.cap}")
            for topic in topics
        }


def limits(service: Service, patch: pytest.MonkeyPatch, *source: int) -> list[int]:
    patch.setattr(destination_topics, "create_topics", service.create)
    wanted = [topic(f"t{at}", limit) for at, limit in enumerate(source)]
    found = asyncio.run(fitted(DESTINATION, wanted, 3))
    assert all(one.configs["retention.ms"] == "1" for one in found)
    return [int(one.configs[MAX_MESSAGE_BYTES]) for one in found]


@pytest.mark.parametrize("code", [40, 44])
@pytest.mark.parametrize(
    ("cap", "source", "accepted"),
    [
        (1 << 40, [MIB, 100 * MIB], [64 * MIB, 100 * MIB]),
        (20 * MIB, [MIB, 2 * MIB], [16 * MIB, 16 * MIB]),
        (8 * MIB, [MIB], [8 * MIB]),
        (8 * MIB, [6 * MIB, MIB], [8 * MIB, 8 * MIB]),
        (7 * MIB, [6 * MIB, MIB], [6 * MIB, 4 * MIB]),
        (MIB, [MIB, 1000], [MIB, 1000]),
    ],
)
def test_the_largest_accepted_max_message_bytes_is_used(
    monkeypatch: pytest.MonkeyPatch, code: int, cap: int, source: list[int], accepted: list[int]
) -> None:
    """The limit is at least the source's own; without a cap, the first try succeeds."""
    service = Service(cap, code)
    assert limits(service, monkeypatch, *source) == accepted
    assert (service.tries == 1) == (cap > 64 * MIB)


def test_max_message_bytes_is_not_set_below_that_of_the_source(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first refusal is the error, as for a refusal for another reason."""
    with pytest.raises(UserError, match="POLICY_VIOLATION"):
        limits(Service(MIB, POLICY_VIOLATION), monkeypatch, 2 * MIB)
    service = Service(0, 38)
    with pytest.raises(UserError, match="INVALID_REPLICATION_FACTOR"):
        limits(service, monkeypatch, MIB)
    assert service.tries == 1


@pytest.mark.broker
def test_topics_are_added_within_the_destinations_cap(
    kafka: LocalCluster,
    kafka_391: LocalCluster,
    fresh_name: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: --add tries what the destination accepts before it creates a topic (B4)."""
    name, mirror = fresh_name("topic"), fresh_name("mirror")

    async def capped(
        cluster: KafkaCluster, topics: Sequence[NewTopic], **options: Any
    ) -> dict[str, UUID | Refusal]:
        if any(int(topic.configs[MAX_MESSAGE_BYTES] or 0) > 20 * MIB for topic in topics):
            return dict.fromkeys([topic.name for topic in topics], Refusal(POLICY_VIOLATION))
        return dict(await create_topics(cluster, topics, **options))

    monkeypatch.setattr(destination_topics, "create_topics", capped)

    async def run() -> None:
        async with client(kafka_391) as source, client(kafka) as destination:
            await make_topic(source, name)
            properties = {"bootstrap.servers": kafka_391.bootstrap_servers}
            await create_mirror(destination, mirror, properties)
            assert await add_topics(destination, mirror, name) == [name]
            configs = await topic_configs(destination, name)
            assert configs[MAX_MESSAGE_BYTES].value == str(16 * MIB)

    asyncio.run(run())
