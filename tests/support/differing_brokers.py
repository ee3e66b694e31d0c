"""A source whose brokers report different configurations of its topics."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from twinlog.kafka.errors import Refusal, Retriable
from twinlog.kafka.requests.topics import ConfigEntry, ConfigSource
from twinlog.lifecycle import source_configs

Values = dict[str, str]

DEFAULTS = {
    "cleanup.policy": "delete",
    "retention.ms": "604800000",
    "retention.bytes": "-1",
    "delete.retention.ms": "86400000",
    "min.compaction.lag.ms": "0",
}


def entries(
    explicit: Values, defaults: Values, source_of_defaults: int = ConfigSource.STATIC_BROKER
) -> dict[str, ConfigEntry]:
    """The answer about a topic that sets some configurations itself."""
    return {
        name: ConfigEntry(value, source, read_only=False, sensitive=False)
        for source, values in (
            (source_of_defaults, defaults),
            (ConfigSource.TOPIC, explicit),
        )
        for name, value in values.items()
    }


class DifferingBrokers:
    """A source with a topic `t`.

    Args:
        monkeypatch: replaces the requests about the source's configurations.
        topics: for each broker what it takes for the topic's own configurations.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *topics: Values) -> None:
        self.topics = list(topics)
        self.defaults = [dict(DEFAULTS) for _ in topics]
        self.default_sources = [int(ConfigSource.STATIC_BROKER) for _ in topics]
        self.silent: set[int] = set()
        """Brokers that do not answer."""
        self.unknown: set[int] = set()
        """Brokers that do not know the topic."""
        self.first = 0
        """The broker that answers if any may."""
        self.asked: list[int | None] = []
        monkeypatch.setattr(source_configs, "describe_configs", self._describe)

    async def refresh(self, _: object) -> Any:
        return SimpleNamespace(brokers=range(len(self.topics)))

    async def _describe(
        self, _: object, resources: Sequence[Any], _names: object = None, *, node: int | None = None
    ) -> Any:
        self.asked.append(node)
        broker = self.first if node is None else node
        if broker in self.silent:
            raise Retriable("the broker does not answer")
        if broker in self.unknown:
            return dict.fromkeys(resources, Refusal(3))
        found = (
            entries(self.topics[broker], self.defaults[broker], self.default_sources[broker])
            if self.topics
            else {}
        )
        return dict.fromkeys(resources, found)
