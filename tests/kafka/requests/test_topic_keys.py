"""Twin of twinlog.kafka.requests.topic_keys: how topics are named on the wire."""

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from twinlog.kafka.client.metadata import EMPTY, NO_TOPIC_ID, merge
from twinlog.kafka.requests.topic_keys import TopicKeys

BY_ID = 13
TOPIC_AUTHORIZATION_FAILED = 29


def topic(name: str, topic_id: UUID, error: int = 0) -> SimpleNamespace:
    return SimpleNamespace(
        name=name, topic_id=topic_id, error_code=error, is_internal=False, partitions=[]
    )


@pytest.mark.parametrize(
    ("other", "version"),
    [
        (topic("other", UUID(int=8)), 18),
        (topic("other", NO_TOPIC_ID, TOPIC_AUTHORIZATION_FAILED), 18),
        (topic("other", NO_TOPIC_ID), BY_ID - 1),
    ],
    ids=["with an id", "denied", "a broker before 2.8"],
)
def test_topics_are_named_by_ids_unless_the_broker_has_none(
    other: SimpleNamespace, version: int
) -> None:
    """Goal: one topic without DESCRIBE does not make all others go by their names."""
    topics = [topic("seen", UUID(int=7)), other]
    response: Any = SimpleNamespace(cluster_id="c", controller_id=1, brokers=[], topics=topics)
    keys = TopicKeys()
    keys.learn(merge(EMPTY, response, all_topics=False))
    connection: Any = SimpleNamespace(negotiate=lambda _, lowest, highest: (lowest, highest)[1])
    assert keys.version(connection, 1, 4, 18, BY_ID) == version
