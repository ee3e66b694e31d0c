"""Sources that answer in unusual but legal ways (KAFKA_FACTS.md): helpers to set them up."""

import asyncio
import random
import secrets
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from clients import client
from confluent_kafka import Producer
from kafka.protocol.admin import AlterClientQuotasRequest
from waiting import until

from twinlog.kafka.errors import check
from twinlog.local.artifacts import kafka_jars, tiered_storage_jars
from twinlog.local.cluster import LocalCluster

CLIENT_ID: Final = "twinlog"
"""The client id of lanes and commands, if a mirror's properties name no other."""
MEGABYTE: Final = 1_000_000
LARGEST: Final = {"max.message.bytes": str(8 << 20)}


class Chance:
    """A test's random choices, from a seed that is printed with a failure."""

    def __init__(self, seed: str) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        sys.stdout.write(f"seed {seed}\n")

    def __repr__(self) -> str:
        return f"Chance({self.seed!r})"


def chance(config: pytest.Config, index: int) -> Chance:
    """Take seed and repetitions from --scenario-seed and --scenario-times, else a random seed."""
    seed = config.getoption("--scenario-seed") or secrets.token_hex(4)
    return Chance(f"{seed}/{index}" if config.getoption("--scenario-times") > 1 else seed)


def set_quota(cluster: LocalCluster, limits: dict[str, float], client_id: str = CLIENT_ID) -> None:
    """Set a client id's quotas; a limit of 0 removes the quota."""
    entry = AlterClientQuotasRequest.EntryData
    asked = entry(
        entity=[entry.EntityData(entity_type="client-id", entity_name=client_id)],
        ops=[
            entry.OpData(key=key, value=float(round(value)), remove=not value)
            for key, value in limits.items()
        ],
    )

    async def alter() -> None:
        async with client(cluster) as kafka:
            request = AlterClientQuotasRequest(entries=[asked], validate_only=False)
            response = await kafka.call(request)
        check(response.entries[0].error_code, "alter quotas", response.entries[0].error_message)

    asyncio.run(alter())


def tiered(folder: Path, version: str, **more: str) -> dict[str, str]:
    """Return broker properties for tiered storage in a folder: Kafka's LocalTieredStorage."""
    storage = "org.apache.kafka.server.log.remote.storage.LocalTieredStorage"
    rlmm = "rlmm.config.remote.log.metadata.topic"
    return {
        "remote.log.storage.system.enable": "true",
        "remote.log.storage.manager.class.name": storage,
        "remote.log.storage.manager.class.path": ":".join(map(str, tiered_storage_jars(version))),
        "remote.log.storage.manager.impl.prefix": "rsm.config.",
        "rsm.config.dir": str(folder),
        "remote.log.metadata.manager.listener.name": "PLAINTEXT",
        f"{rlmm}.replication.factor": "1",
        f"{rlmm}.num.partitions": "2",
        "remote.log.manager.task.interval.ms": "500",
        "log.retention.check.interval.ms": "500",
        **{name.replace("_", "."): value for name, value in more.items()},
    }


TIERED_TOPIC: Final = {
    "remote.storage.enable": "true",
    "local.retention.ms": "1000",
    "segment.bytes": str(1 << 20),
}


SELECTOR: Final = """
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.replica.ClientMetadata;
import org.apache.kafka.common.replica.PartitionView;
import org.apache.kafka.common.replica.ReplicaSelector;
import org.apache.kafka.common.replica.ReplicaView;

public class FollowerSelector implements ReplicaSelector {
    public Optional<ReplicaView> select(TopicPartition one, ClientMetadata by, PartitionView all) {
        return all.replicas().stream().filter(each -> !each.equals(all.leader())).findFirst();
    }
}
"""
"""Kafka's own selector prefers a replica only for clients that name their rack."""


def compile_selector(folder: Path, version: str) -> Path:
    """Compile a replica selector that prefers a follower for all clients; return the class path."""
    compiler = shutil.which("javac")
    if compiler is None:
        pytest.skip("a replica selector is to be compiled, and there is no javac")
    source = folder / "FollowerSelector.java"
    source.write_text(SELECTOR)
    jars = f"{kafka_jars(version)}/*"
    command = [compiler, "--release", "17", "-cp", jars, "-d", str(folder), str(source)]
    subprocess.run(command, check=True)
    return folder


def await_tiered(cluster: LocalCluster, topic: str) -> None:
    """Wait until the local log of partition 0 begins above offset 0."""
    (broker,) = cluster.brokers
    log = broker.log.parent / "data" / f"{topic}-0"

    def begins_above() -> bool:
        return min(int(one.stem) for one in log.glob("*.log")) > 0

    until(begins_above, 240, f"remote segments of {topic}")


def empty_last_segment(cluster: LocalCluster, topic: str) -> None:
    """Remove the last segment's records of a stopped broker, as a power cut does.

    The log then ends where this segment begins, with offsets missing at its end that compaction had
    removed. The cleaner begins at the log's start again: its second pass removes a tombstone.
    """
    (broker,) = cluster.brokers
    log = broker.log.parent / "data" / f"{topic}-0"
    last = max(log.glob("*.log"))
    for file in log.glob(f"{last.stem}.*"):
        if file != last:
            file.unlink()
    last.write_bytes(b"")
    for name in (".kafka_cleanshutdown", "cleaner-offset-checkpoint"):
        (log.parent / name).unlink(missing_ok=True)


def write_sizes(
    servers: str, topic: str, sizes: list[tuple[int, int]], seed: str, **settings: str
) -> None:
    """Write records of these (partition, bytes), with random content, and wait for all."""
    chosen = {name.replace("_", "."): value for name, value in settings.items()}
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "enable.idempotence": True,
            "message.max.bytes": 8 << 20,
            "queue.buffering.max.kbytes": 64 << 10,
            **chosen,
        }
    )
    content = random.Random(f"{seed}/{topic}")
    failures: list[str] = []
    for partition, size in sizes:
        while True:
            try:
                producer.produce(
                    topic,
                    partition=partition,
                    value=content.randbytes(size),
                    on_delivery=lambda error, _: failures.append(str(error)) if error else None,
                )
            except BufferError:
                producer.poll(0.1)
            else:
                break
        producer.poll(0)
    assert producer.flush(120) == 0
    assert not failures, failures[0]
