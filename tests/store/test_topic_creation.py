"""Twin of twinlog.store.topic_creation."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import cast

import pytest

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Refusal, TwinlogError, UserError
from twinlog.kafka.requests.topics import NewTopic
from twinlog.store import topic_creation
from twinlog.store.topic_creation import StoredTopic, create_stored

DURABLE = StoredTopic("stored", 5, {"cleanup.policy": "compact"})
LOSSY = StoredTopic("status", 4, {"min.insync.replicas": "1"}, durable=False)


class Cluster:
    """A cluster of some brokers that gives one answer to each new topic."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, brokers: int, code: int = 0) -> None:
        self.metadata = SimpleNamespace(brokers=range(brokers))
        self.created: list[NewTopic] = []
        self.needs: list[tuple[str, str]] = []
        self._answer = Refusal(code) if code else None
        monkeypatch.setattr(topic_creation, "create_topics", self._create)

    async def _create(self, _: object, topics: Sequence[NewTopic]) -> dict[str, Refusal | None]:
        self.created += topics
        return {topic.name: self._answer for topic in topics}

    @contextmanager
    def needing(self, operation: str, resource: str) -> Iterator[None]:
        """Note a right that may be missing."""
        self.needs.append((operation, resource))
        yield

    def create(self, factor: int | None = None) -> None:
        """Create both topics."""
        asyncio.run(create_stored(cast("KafkaCluster", self), [DURABLE, LOSSY], factor))


@pytest.mark.parametrize(
    ("brokers", "factor", "used", "in_sync"),
    [
        (1, None, 1, None),
        (2, None, 2, None),
        (3, None, 3, "2"),
        (5, None, 3, "2"),
        (5, 2, 2, None),
        (5, 4, 4, "2"),
    ],
)
def test_a_topic_that_must_not_be_lost_has_two_replicas_in_sync_of_three(
    monkeypatch: pytest.MonkeyPatch,
    brokers: int,
    factor: int | None,
    used: int,
    in_sync: str | None,
) -> None:
    cluster = Cluster(monkeypatch, brokers)
    cluster.create(factor)
    durable, lossy = cluster.created
    assert (durable.name, durable.partitions, durable.replication_factor) == ("stored", 5, used)
    replicas = {} if in_sync is None else {"min.insync.replicas": in_sync}
    assert durable.configs == {**DURABLE.configs, **replicas}
    assert (lossy.partitions, lossy.replication_factor, lossy.configs) == (4, used, LOSSY.configs)


def test_a_topic_that_another_one_has_created_meanwhile_is_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Cluster(monkeypatch, 1, ErrorCode.TOPIC_ALREADY_EXISTS).create()


def test_a_refusal_names_the_topic_and_the_right(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, 1, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(UserError, match="create the control topic stored"):
        cluster.create()
    assert cluster.needs == [("CREATE", "the topic stored")]
    with pytest.raises(TwinlogError, match="create the control topic stored"):
        Cluster(monkeypatch, 1, ErrorCode.INVALID_REPLICATION_FACTOR).create()
