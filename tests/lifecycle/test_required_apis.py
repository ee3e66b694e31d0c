"""Destinations that lack an API."""

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest
from batch_builders import batch, record
from clients import client
from small_cluster import CLUSTER_ID, small_cluster

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.configuration import parse_config
from twinlog.kafka.client.connection import Connection
from twinlog.kafka.errors import UserError
from twinlog.lifecycle.creation import add_topics, create_mirror
from twinlog.lifecycle.required_apis import REQUIRED, check_apis
from twinlog.local.cluster import LocalCluster
from twinlog.store.config_records import Mirror, encode
from twinlog.store.control_topics import CONFIG_TOPIC

DESCRIBE_PRODUCERS = 61


class _Broker(SimpleNamespace):
    """A connection to a broker that lacks some APIs."""

    address = "broker:9092"
    negotiate = Connection.negotiate

    async def any_connection(self) -> "_Broker":
        return self


@pytest.mark.parametrize("api", REQUIRED, ids=lambda api: api.name)
def test_error_for_a_missing_api_names_api_and_purpose(api: tuple[int, int, int, str, str]) -> None:
    """The error names the API, its purpose, and Kafka's name of the error."""
    versions = {one.key: (one.lowest, one.highest) for one in REQUIRED if one != api}
    destination = cast(KafkaCluster, _Broker(versions=versions))
    with pytest.raises(UserError) as caught:
        asyncio.run(check_apis(destination))
    assert str(caught.value).startswith(
        f"UNSUPPORTED_VERSION: the destination's broker broker:9092 does not support {api[3]} "
        f"(API {api[0]}) to {api[4]}"
    )
    assert caught.value.code == 35


@pytest.mark.broker
def test_supported_kafka_versions_have_all_required_apis(any_kafka: LocalCluster) -> None:
    """The oldest and the newest version have all APIs."""

    async def run() -> None:
        async with client(any_kafka) as cluster:
            await check_apis(cluster)

    asyncio.run(run())


def test_required_apis_are_checked_before_create_and_add() -> None:
    """Goal: the first command names what the destination lacks, before a partition fails (B4)."""

    async def run() -> None:
        async with small_cluster({"t": b""}) as source:
            properties = {"bootstrap.servers": source.servers}
            mirror = Mirror(name="m", source=properties, source_cluster_id=CLUSTER_ID)
            key, value = encode(mirror)
            config = {CONFIG_TOPIC: batch([record(0, value=value, key=key)])}
            lacks = r"does not support DescribeProducers \(API 61\)"
            async with small_cluster(config, lacking=[DESCRIBE_PRODUCERS]) as small:
                parsed = parse_config({"bootstrap.servers": small.servers})
                async with KafkaCluster(parsed.config) as destination:
                    with pytest.raises(UserError, match=lacks):
                        await create_mirror(destination, "another", properties)
                    with pytest.raises(UserError, match=lacks):
                        await add_topics(destination, "m", "t")

    asyncio.run(run())
