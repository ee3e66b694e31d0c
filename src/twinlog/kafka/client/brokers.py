"""The brokers that the metadata names: which one gets a request, and a connection to it."""

import random
from enum import Enum
from typing import Final

from twinlog.kafka.client.broker_order import BrokerOrder
from twinlog.kafka.client.configuration import Address
from twinlog.kafka.client.connection import Connection
from twinlog.kafka.client.metadata import Metadata
from twinlog.kafka.client.pool import CONTROL, Key, Lane, Pool
from twinlog.kafka.client.refresher import MetadataRefresher
from twinlog.kafka.errors import Reaction, Retriable, check, code_of


class Role(Enum):
    """A broker identified by its role."""

    CONTROLLER = "controller"


CONTROLLER: Final = Role.CONTROLLER


class Brokers:
    """Brokers of one cluster, whose `name` errors contain."""

    def __init__(
        self, pool: Pool, refresher: MetadataRefresher, *, name: str | None, rng: random.Random
    ) -> None:
        self._pool = pool
        self._refresher = refresher
        self._order = BrokerOrder(pool, rng)
        self._name = name

    @property
    def metadata(self) -> Metadata:
        """The last snapshot of the metadata."""
        return self._refresher.metadata

    def select(self, node: int | Role | None) -> int:
        """The id of a broker by id or role; None: one that is likely to answer soon.

        Raises:
            Retriable: the metadata contains no broker.
        """
        if isinstance(node, int):
            return node
        if node is CONTROLLER and self.metadata.controller_id in self.metadata.brokers:
            return self.metadata.controller_id
        if not self.metadata.brokers:
            raise Retriable("the metadata contains no broker", cluster=self._name)
        return self._order.connected_first(self.metadata.brokers)[0]

    async def connection(self, node_id: int, lane: Lane = CONTROL) -> Connection:
        """Return an open connection to a broker, separate for each lane.

        Raises:
            Retriable: the broker is unreachable, or not in the metadata.
            UserError, ProtocolError: see `Connection.open`.
        """
        if node_id not in self.metadata.brokers:
            await self._refresher.refresh(())
        broker = self.metadata.brokers.get(node_id)
        if broker is None:
            raise Retriable(
                "no broker with this id in the metadata", cluster=self._name, node=node_id
            )
        return await self._pool.get(Key(node_id, lane), Address(broker.host, broker.port))

    async def check(self, code: int) -> None:
        """Raise if the whole request should be retried, after a refresh of what is stale."""
        reaction = code_of(code).reaction
        if reaction is Reaction.METADATA:
            await self._refresher.refresh(())
        if reaction in (Reaction.METADATA, Reaction.RETRY, Reaction.COORDINATOR):
            check(code, "call the broker")
