"""Destinations that lack an API."""

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from clients import client
from twinlog.cluster.client import KafkaCluster
from twinlog.cluster.connection import Connection
from twinlog.control.required_apis import REQUIRED, check_apis
from twinlog.core.errors import UserError
from twinlog.local.cluster import LocalCluster


class _Broker(SimpleNamespace):
    """A connection to a broker that has all but some APIs."""

    address = "broker:9092"
    negotiate = Connection.negotiate

    async def any_connection(self) -> "_Broker":
        return self


@pytest.mark.parametrize("api", REQUIRED, ids=lambda api: api.name)
def test_what_is_missing_is_named(api: tuple[int, int, int, str, str]) -> None:
    """With what it is for, and Kafka's name of the error."""
    versions = {one.key: (one.lowest, one.highest) for one in REQUIRED if one != api}
    destination = cast(KafkaCluster, _Broker(versions=versions))
    with pytest.raises(UserError) as caught:
        asyncio.run(check_apis(destination))
    assert str(caught.value).startswith(
        f"UNSUPPORTED_VERSION: the destination's broker broker:9092 does not have {api[3]} "
        f"(API {api[0]}) to {api[4]}"
    )
    assert caught.value.code == 35


@pytest.mark.broker
def test_kafka_has_all(any_kafka: LocalCluster) -> None:
    """Of the oldest and the newest version."""

    async def run() -> None:
        async with client(any_kafka) as cluster:
            await check_apis(cluster)

    asyncio.run(run())
