"""A flow of one topic, as a test stores, copies, verifies and surveys it."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping

import librdkafka_tools
from clients import client, make_topic, patient, put
from readiness_check import find_readiness
from stored_flows import store_flow
from waiting import SECONDS, until

from conftest import Pair
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.lifecycle.flow_creation import stored_properties
from twinlog.operations.mirror_admin import MirrorAdmin
from twinlog.operations.readiness.verdict import Readiness
from twinlog.operations.verification_report import Verification
from twinlog.store.config_records import MirrorTopic
from twinlog.store.mirrors import MirrorStore
from twinlog.store.offset_log import OFFSETS_TOPIC, StoredOffsets, read_offsets
from twinlog.store.offset_records import OffsetRecord, encode
from twinlog.store.topic_writer import Entry


class CopiedTopic:
    """A flow of one topic, with one partition unless more are wanted."""

    def __init__(
        self,
        pair: Pair,
        settings: Mapping[str, str] | None = None,
        *,
        alias: str = "a",
        partitions: int = 1,
        suffix: str = "",
        **more: str,
    ) -> None:
        settings = {**(settings or {}), **more}
        self.pair = pair
        self._in_transactions = settings.get("transaction_producer") == "true"
        self.topic = f"t-{secrets.token_hex(4)}{suffix}"
        self.remote, self.flow = f"{alias}.{self.topic}", f"flow-{self.topic}"
        self.source, self.target = (
            pair.source.bootstrap_servers,
            pair.destination.bootstrap_servers,
        )
        values = {
            "enabled": "true",
            "topics": self.topic,
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
        properties = stored_properties({"bootstrap.servers": self.source}, values, alias, "b")
        asyncio.run(store_flow(pair, self.flow, properties, (self.topic, self.remote), partitions))

    def add_topic(self, partitions: int = 1) -> tuple[str, str]:
        """Add another topic to the flow; return its names on both sides."""
        name = f"t-{secrets.token_hex(4)}"
        remote = f"{self.remote.partition('.')[0]}.{name}"

        async def run() -> None:
            async with client(self.pair.source) as source, client(self.pair.destination) as target:
                ids = []
                for cluster, topic in ((source, name), (target, remote)):
                    await make_topic(cluster, topic, partitions)
                    ids.append((await cluster.refresh([topic])).topics[topic].topic_id)
                record = MirrorTopic(
                    mirror=self.flow,
                    topic=name,
                    topic_id=ids[0],
                    partitions=partitions,
                    destination_topic=remote,
                    destination_topic_id=ids[1],
                )
                await MirrorStore(target).change(lambda _: [record])

        asyncio.run(run())
        return name, remote

    def on_target(self, body: Callable[[KafkaCluster], Awaitable[object]]) -> None:
        """Run something with a client of the target."""

        async def run() -> None:
            async with client(self.pair.destination) as cluster:
                await body(cluster)

        asyncio.run(run())

    def verify(self, flow: str | None = "") -> Verification:
        """As the command does; None: of all mirrors."""

        async def run() -> Verification:
            async with MirrorAdmin(patient(self.target)) as admin:
                return await admin.verify(self.flow if flow == "" else flow, patience_s=60.0)

        return asyncio.run(run())

    def readiness(self) -> Readiness:
        """As the command does."""
        return asyncio.run(find_readiness(patient(self.target), self.flow, ".*"))

    def await_copied(self, count: int) -> Verification:
        """Wait until so many records are copied, and recorded in the map; return the result."""

        def complete() -> Verification | None:
            result = self.verify()
            (log,) = result.logs
            assert log.remote is not None
            recorded = log.remote.recorded_map
            done = log.counts.compared == count and log.counts.behind == 0
            mapped = self._in_transactions if recorded is None else recorded.compared == count
            return result if done and mapped else None

        return until(complete, SECONDS, f"{count} records copied")

    def written(self, value: str) -> None:
        """Append a record to the remote topic, as a foreign producer does."""
        librdkafka_tools.write(self.target, self.remote, [(0, None, value, None)])

    def change_offsets(self, change: Callable[[StoredOffsets], OffsetRecord]) -> None:
        """Change what is stored of the partition in `__mirror_offsets`, as no lane would."""

        async def write(cluster: KafkaCluster) -> None:
            for place, stored in (await read_offsets(cluster)).items():
                if any(name.mirror == self.flow for name in (*stored.plans, *stored.headed)):
                    entry = Entry(OFFSETS_TOPIC, place, *encode(change(stored)))
                    await put(cluster, [entry])

        self.on_target(write)
