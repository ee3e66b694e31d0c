"""The records of `__mirror_state` and `__mirror_config`, read by librdkafka, and their checks.

Every record of `__mirror_state` is checked, in each partition's order: tests end before the log
cleaner removes any.
"""

from itertools import pairwise
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from waiting import until

from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.states import State, may_follow
from twinlog.store.config_records import Wanted
from twinlog.store.snapshot import Snapshot, StoredRecord
from twinlog.store.state_records import (
    MIRROR_PARTITION_STATE,
    Forgotten,
    PartitionState,
    decode,
)

SECONDS = 120.0
RESTS = {
    Wanted.MIRRORING: {State.MIRRORING},
    Wanted.PAUSED: {State.PAUSED, State.UNKNOWN, State.FAILED},
    Wanted.STOPPED: {State.STOPPED},
}
"""The final states. A partition that was removed before it had an owner may have no state."""


class Book(NamedTuple):
    """All that was written: each partition's states in order, and the current desired states."""

    ways: dict[MirrorPartition, list[State]]
    wanted: Snapshot

    @property
    def steps(self) -> int:
        """The number of transitions."""
        return sum(len(states) - 1 for states in self.ways.values())

    def forbidden(self) -> list[str]:
        """Return the transitions that mirror/states.py does not allow."""
        return [
            f"{name} went from {old.name} to {new.name}"
            for name, states in self.ways.items()
            for old, new in pairwise(states)
            if not may_follow(old, new)
        ]

    def disagreeing(self) -> list[str]:
        """Return the partitions whose last state does not match the desired state."""
        found = []
        for topic in self.wanted.topics:
            for index in range(topic.partitions):
                name = MirrorPartition(topic.mirror, topic.topic, index)
                state = self.ways.get(name, [State.UNKNOWN])[-1]
                if state not in RESTS[topic.wanted]:
                    found.append(f"{name} is {state.name}, wanted is {topic.wanted.name}")
        return found


def read(servers: str) -> Book:
    """Read all records of both topics."""
    ways: dict[MirrorPartition, list[State]] = {}
    for record in _records(servers, "__mirror_state"):
        said = decode(record.key, record.value)
        if isinstance(said, PartitionState):
            ways.setdefault(said.partition, [State.UNKNOWN]).append(said.state)
        elif isinstance(said, Forgotten) and said.record_type == MIRROR_PARTITION_STATE:
            assert said.partition is not None
            ways.pop(said.partition, None)
    return Book(ways, Snapshot().after(_records(servers, "__mirror_config")))


def _records(servers: str, topic: str) -> list[StoredRecord]:
    """Read every record of a topic, in each partition's order."""
    client = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "book",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    found: list[StoredRecord] = []
    try:
        count = len(client.list_topics(topic, SECONDS).topics[topic].partitions)
        client.assign([TopicPartition(topic, index, 0) for index in range(count)])
        left = set(range(count))

        def read_on() -> bool:
            for message in client.consume(1000, 1.0):
                index, offset = message.partition(), message.offset()
                assert index is not None
                if (error := message.error()) is not None:
                    if error.code() != KafkaError._PARTITION_EOF:
                        raise KafkaException(error)
                    left.discard(index)
                else:
                    assert offset is not None
                    found.append(StoredRecord(index, offset, message.key(), message.value()))
            return not left

        until(read_on, SECONDS, f"the end of {topic}")
    finally:
        client.close()
    return found
