"""Topics on a destination that caps `max.message.bytes`; a source whose brokers differ."""

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from clients import client, make_topic

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import LEFT_OUT, Refusal, Retriable, UserError
from twinlog.kafka.requests.topics import (
    ConfigEntry,
    ConfigSource,
    NewTopic,
    create_topics,
    describe_configs,
    topic_resource,
)
from twinlog.lifecycle import destination_topics
from twinlog.lifecycle.creation import add_topics, create_mirror
from twinlog.lifecycle.destination_topics import DestinationTopic, fitted, source_configs
from twinlog.local.cluster import LocalCluster
from twinlog.mirror.topic_configs import GENEROUS_BATCH, MAX_MESSAGE_BYTES, SourceConfig

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
            resource = topic_resource(name)
            entries = (await describe_configs(destination, [resource]))[resource]
            assert not isinstance(entries, Refusal)
            assert entries[MAX_MESSAGE_BYTES].value == str(16 * MIB)

    asyncio.run(run())


Defaults = dict[str, str]


def configs_of(
    monkeypatch: pytest.MonkeyPatch, explicit: Defaults, *brokers: Defaults
) -> dict[str, SourceConfig] | Refusal:
    """The configurations of a topic that sets these itself, of brokers with these defaults."""

    async def describe(
        _: object, resources: Sequence[Any], _names: object = None, *, node: int | None = None
    ) -> Any:
        entries = {
            name: ConfigEntry(value, source, read_only=False, sensitive=False)
            for source, values in (
                (ConfigSource.STATIC_BROKER, brokers[node or 0] if brokers else {}),
                (ConfigSource.TOPIC, explicit),
            )
            for name, value in values.items()
        }
        return dict.fromkeys(resources, entries)

    async def refresh(_: object) -> Any:
        return SimpleNamespace(brokers=range(len(brokers)))

    monkeypatch.setattr(destination_topics, "describe_configs", describe)
    source: Any = SimpleNamespace(refresh=refresh)
    return asyncio.run(source_configs(source, ["t"]))["t"]


SHORT = {
    "cleanup.policy": "delete",
    "retention.ms": "1000",
    "retention.bytes": "500",
    "delete.retention.ms": "10",
}
LONG = {**SHORT, "retention.ms": "9000", "retention.bytes": "-1", "delete.retention.ms": "70"}


@pytest.mark.parametrize("brokers", [(SHORT, LONG), (LONG, SHORT)])
def test_the_longest_of_the_brokers_retentions_counts(
    monkeypatch: pytest.MonkeyPatch, brokers: tuple[Defaults, Defaults]
) -> None:
    """Goal: the destination removes no record that a leader of the source still keeps."""
    found = configs_of(monkeypatch, {"retention.ms": "7"}, *brokers)
    assert not isinstance(found, Refusal)
    assert {name: config.value for name, config in found.items()} == {
        "cleanup.policy": "delete",
        "retention.ms": "7",
        "retention.bytes": "-1",
        "delete.retention.ms": "10",
    }


def test_brokers_that_do_not_agree_leave_a_topic_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a policy is not guessed, nor what a broker leaves out; no broker is no answer."""
    found = configs_of(monkeypatch, {}, SHORT, {**SHORT, "cleanup.policy": "compact"})
    assert isinstance(found, Refusal)
    assert "the source's brokers have different defaults: compact, delete" in found.message
    assert configs_of(monkeypatch, {}, SHORT, {"cleanup.policy": "delete"}) == LEFT_OUT
    assert not isinstance(configs_of(monkeypatch, SHORT, SHORT, {}), Refusal), "all are the topic's"
    with pytest.raises(Retriable, match="names no broker"):
        configs_of(monkeypatch, {})
