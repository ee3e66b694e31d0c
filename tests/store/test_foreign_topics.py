"""What a writer to a source's control topics, or a false broker, can make a node hold."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from batch_builders import batch, record

from twinlog.kafka.client.configuration import ClusterConfig, parse_config, parse_source
from twinlog.kafka.client.metadata import Leader
from twinlog.kafka.client.references import NOTHING
from twinlog.kafka.errors import UserError
from twinlog.kafka.log.compression import Codec
from twinlog.kafka.requests.partitions import ListedOffset, OffsetSpec
from twinlog.kafka.types import TopicPartition
from twinlog.store import topic_reader
from twinlog.store.topic_reader import MAX_DECODED, ControlRecord, read_whole

TOPIC = "__mirror_config"
BASE = {"bootstrap.servers": "source:1"}
SOURCE = parse_source(BASE, NOTHING).config
OWN = parse_config(BASE, {}).config


class Cluster:
    """One partition of a control topic, which ends at `end` and always answers with `log`."""

    def __init__(self, config: ClusterConfig, log: bytes, end: int) -> None:
        self.config, self.log, self.end = config, log, end
        self.name = "source"
        self.rng: Any = None
        self.metadata = SimpleNamespace(topics={TOPIC: SimpleNamespace(error=0, partitions=[0])})
        self.asked = 0

    async def leaders(self, partitions: Any) -> dict[TopicPartition, Leader]:
        return dict.fromkeys(partitions, Leader(1, 0))

    async def persist(self, action: Any) -> Any:
        return await action()

    def borrow_lane(self) -> str:
        return "borrowed 0"

    async def return_lane(self, _lane: str) -> None:
        """Do nothing: the lane has no other user."""

    async def connection(self, _node: int, _lane: str) -> "Cluster":
        return self

    async def call(self, request: Any, **_: Any) -> Any:
        self.asked += 1
        assert self.asked < 1000, "it is read on and on"
        (asked,) = request.topics[0].partitions
        at = asked.fetch_offset.to_bytes(8, "big")
        part = SimpleNamespace(
            partition_index=0,
            error_code=0,
            records=at + self.log[8:],
            aborted_transactions=(),
            diverging_epoch=None,
        )
        return SimpleNamespace(responses=[SimpleNamespace(partitions=[part])])


def read(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> list[ControlRecord]:
    async def list_offsets(_: Any, partitions: Any, spec: Any, **__: Any) -> Any:
        latest = spec == OffsetSpec.LATEST
        return {p: ListedOffset(cluster.end if latest else 0, -1, -1) for p in partitions}

    monkeypatch.setattr(topic_reader, "list_offsets", list_offsets)
    one: Any = cluster
    return asyncio.run(read_whole(one, TOPIC))


@pytest.mark.parametrize("config", [SOURCE, OWN])
def test_a_batch_that_decompresses_beyond_the_limit_is_refused(
    config: ClusterConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a batch of some kilobytes never becomes gigabytes; it is an error at once."""
    bomb = batch([record(0, value=bytes(MAX_DECODED))], Codec.ZSTD)
    assert len(bomb) < 10_000
    cluster = Cluster(config, bomb, 1)
    with pytest.raises(UserError, match=f"{TOPIC}: cannot read the control topic: a batch of"):
        read(cluster, monkeypatch)
    assert cluster.asked == 1
    assert len(read(Cluster(config, batch([record(0)], Codec.ZSTD), 1), monkeypatch)) == 1


def test_the_size_of_a_control_topic_of_the_source_is_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: its size, real or claimed, is bounded; a destination's own topic is read."""
    monkeypatch.setattr(topic_reader, "MAX_FOREIGN", 100_000)
    log = batch([record(at, value=b"v") for at in range(50)])
    with pytest.raises(UserError, match="its records exceed 100000 bytes"):
        read(Cluster(SOURCE, log, 1 << 60), monkeypatch)
    assert len(read(Cluster(SOURCE, log, 200), monkeypatch)) == 200
    assert len(read(Cluster(OWN, log, 10_000), monkeypatch)) == 10_000
