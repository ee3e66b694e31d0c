"""Twin of twinlog.operations.readiness.source_topics, and of what `verify` asks brokers for."""

import asyncio
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from twinlog.kafka.client.metadata import Partition, Topic
from twinlog.kafka.errors import Retriable
from twinlog.kafka.requests.topics import KnownTopic
from twinlog.kafka.types import TopicPartition
from twinlog.operations import verified_topics
from twinlog.operations.readiness import source_topics
from twinlog.operations.readiness.reasons import Reason
from twinlog.operations.readiness.source_topics import SourceTopics, all_source_topics
from twinlog.store.config_records import MirrorTopic

ID = UUID(int=1)
SHOWN = Topic("shown", ID, internal=False, partitions={0: Partition(1, 0, (1,), (1,))})
KNOWN = {
    "shown": KnownTopic(frozenset({ID}), 3, internal=False),
    "hidden": KnownTopic(frozenset({UUID(int=2)}), 1, internal=False, everywhere=False),
}


class Source:
    """A source; the broker that answers first is behind the other one."""

    async def refresh(self, names: object) -> Any:
        assert names is None
        return SimpleNamespace(topics={"shown": SHOWN})


def found(part_s: float | None) -> SourceTopics:
    source: Any = Source()
    return asyncio.run(all_source_topics(source, part_s))


def test_what_one_broker_knows_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a topic or partition that the first broker does not list is not overlooked."""

    async def known(_: object) -> dict[str, KnownTopic]:
        return KNOWN

    monkeypatch.setattr(source_topics, "known_topics", known)
    topics, counts, findings = found(1.0)
    assert topics["shown"] is SHOWN
    assert (topics["hidden"].topic_id, topics["hidden"].internal) == (UUID(int=2), False)
    assert counts == {"shown": 3, "hidden": 1}
    assert findings == ()


@pytest.mark.parametrize("slow", [False, True])
def test_a_broker_that_does_not_answer_is_a_finding(
    monkeypatch: pytest.MonkeyPatch, slow: bool
) -> None:
    """Goal: what only that one knows is unknown; a switchover does not go on."""

    async def known(_: object) -> None:
        await asyncio.sleep(60 if slow else 0)
        raise Retriable("a broker does not answer")

    monkeypatch.setattr(source_topics, "known_topics", known)
    topics, counts, (finding,) = found(0.01)
    assert (topics, counts) == ({"shown": SHOWN}, {})
    assert finding.reason is Reason.SOURCE_UNREADABLE
    assert "unknown whether the source has others" in finding.text
    if not slow:
        with pytest.raises(Retriable):
            found(None)


def test_partitions_that_one_broker_knows_are_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: `verify` does not leave out what the broker that answers does not know yet."""
    topic = MirrorTopic(
        mirror="m", topic="t", topic_id=ID, partitions=1, destination_topic="a.t", whole=True
    )

    async def known(cluster: str, names: Collection[str]) -> dict[str, KnownTopic]:
        counts = {"source": {"t": 3}, "destination": {"a.t": 4}}[cluster]
        assert set(names) == counts.keys()
        ids = frozenset({ID})
        return {name: KnownTopic(ids, count, internal=False) for name, count in counts.items()}

    monkeypatch.setattr(verified_topics, "known_topics", known)
    source: Any = "source"
    destination: Any = "destination"
    partitions = asyncio.run(verified_topics.partitions_of(source, destination, [topic]))
    assert partitions == [TopicPartition("t", index) for index in range(4)]
