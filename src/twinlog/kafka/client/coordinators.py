"""Coordinators of groups and transactional ids: found once, cached, and found again if they move.

Any broker can answer which broker coordinates a group or an id. A coordinator that is not one any
more refuses requests (reaction COORDINATOR), or does not answer them; then the cached one is
dropped, and the next try asks again.
"""

import random
from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum
from typing import Any

from kafka.protocol.metadata import FindCoordinatorRequest

from twinlog.kafka.client.brokers import Brokers
from twinlog.kafka.client.pool import CONTROL, Lane
from twinlog.kafka.client.retries import BeforeSend, Retries, nothing
from twinlog.kafka.errors import (
    Disconnected,
    ProtocolError,
    Reaction,
    Retriable,
    TwinlogError,
    check,
    code_of,
)


class Coordinator(IntEnum):
    """Types of coordinators, with FindCoordinator's numbers."""

    GROUP = 0
    TRANSACTION = 1


class Coordinators:
    """Coordinators of one cluster, by type and by group or transactional id."""

    def __init__(self, brokers: Brokers, retries: Retries, rng: random.Random) -> None:
        self._brokers = brokers
        self._retries = retries
        self._rng = rng
        self._node_ids: dict[tuple[Coordinator, str], int] = {}

    async def find(self, kind: Coordinator, key: str, *, timeout: float | None = None) -> int:
        """Find the broker that coordinates a group or a transactional id (cached).

        Args:
            kind: whether `key` is a group or a transactional id.
            key: the group, or the id.
            timeout: in seconds (default: default.api.timeout.ms).

        Raises:
            Retriable: there is none within `timeout`.
            UserError: no right to the group or the id.
        """
        cached_node = self._node_ids.get((kind, key))
        if cached_node is not None:
            return cached_node
        return await self._retries.persist(lambda: self._ask(kind, key), timeout)

    def forget(self, kind: Coordinator, key: str) -> None:
        """Drop the cached coordinator: it has moved, or does not answer."""
        self._node_ids.pop((kind, key), None)

    async def doubt(self, kind: Coordinator, key: str) -> None:
        """Ask another broker than the cached coordinator, and trust it if it names another one.

        A broker that is cut off from all but its clients continues to answer as coordinator. If no
        other broker answers, nothing changes.
        """
        cached_node = self._node_ids.get((kind, key))
        other_nodes = [node for node in self._brokers.metadata.brokers if node != cached_node]
        if cached_node is not None and other_nodes:
            with suppress(TwinlogError):
                await self._ask(kind, key, self._rng.choice(other_nodes))

    async def call(
        self,
        kind: Coordinator,
        key: str,
        request: Any,
        *,
        code: Callable[[Any], int] | None = None,
        timeout: float | None = None,
        request_timeout: float | None = None,
        lane: Lane = CONTROL,
        before_send: BeforeSend = nothing,
        resend: bool = True,
    ) -> Any:
        """Send a request to a coordinator, even if it moves, until it answers.

        Args:
            kind: whether `key` is a group or a transactional id.
            key: the group, or the id.
            request: what is sent; its class determines the response's.
            code: extracts the error code of a response that does not have it at its top.
            timeout: in seconds, of all tries together (default: default.api.timeout.ms).
            request_timeout: in seconds, of one try (default: request.timeout.ms).
            lane: of the connection.
            before_send: called before each send; an exception from it ends the call.
            resend: False for what must not arrive twice: after a lost answer there is no next try.

        Raises:
            Retriable: no success within `timeout`.
            Disconnected: without `resend`, the answer was lost.
        """
        loss: Disconnected | None = None

        async def attempt() -> Any:
            node = await self.find(kind, key)
            try:
                connection = await self._brokers.connection(node, lane)
                await connection.ready()
                before_send()
                response = await connection.call(request, timeout=request_timeout)
            except (Retriable, ProtocolError) as error:
                self.forget(kind, key)
                if resend or not isinstance(error, Disconnected):
                    raise
                nonlocal loss
                loss = error
                return None
            number = response.error_code if code is None else code(response)
            if code_of(number).reaction is Reaction.COORDINATOR:
                self.forget(kind, key)
                check(number, f"call the coordinator of {key}")
            await self._brokers.check(number)
            return response

        response = await self._retries.persist(attempt, timeout)
        if loss is not None:
            raise loss
        return response

    async def _ask(self, kind: Coordinator, key: str, node: int | None = None) -> int:
        request = FindCoordinatorRequest(key=key, key_type=int(kind), coordinator_keys=[key])
        connection = await self._brokers.connection(self._brokers.select(node))
        response = await connection.call(request)
        coordinator = response.coordinators[0] if response.coordinators else response
        action = f"find the coordinator of {kind.name.lower()} {key}"
        check(coordinator.error_code, action, coordinator.error_message)
        self._node_ids[kind, key] = coordinator.node_id
        return int(coordinator.node_id)
