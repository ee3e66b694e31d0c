"""The order in which brokers are asked what any broker can answer.

A broker that is unreachable, or does not answer requests that are in flight, comes last. Brokers
that are alike are in random order, so that clients do not all ask the same one.
"""

import random
from collections.abc import Iterable
from typing import Final

from twinlog.kafka.client.pool import CONTROL, Key, Pool

SILENT: Final = 1.0
"""Seconds without an answer after which other brokers are preferred."""


class BrokerOrder:
    """Sorts the ids of brokers by what the pool knows about their connections."""

    def __init__(self, pool: Pool, rng: random.Random) -> None:
        self._pool = pool
        self._rng = rng

    def connected_first(self, brokers: Iterable[int]) -> list[int]:
        """All of `brokers`; of those that are likely to answer, first those with a connection."""
        return sorted(
            self._shuffled(brokers),
            key=lambda n: (self._reluctance(n), self._pool.peek(Key(n, CONTROL)) is None),
        )

    def varied(self, brokers: Iterable[int]) -> list[int]:
        """All of `brokers`; of those that are likely to answer, another one first each time."""
        return sorted(self._shuffled(brokers), key=self._reluctance)

    def _shuffled(self, brokers: Iterable[int]) -> list[int]:
        order = list(brokers)
        self._rng.shuffle(order)
        return order

    def _reluctance(self, node_id: int) -> tuple[int, bool]:
        """Sort key: brokers that are unreachable or do not answer come last."""
        key = Key(node_id, CONTROL)
        return self._pool.failures(key), self._pool.hangs(key, SILENT)
