"""How long brokers remember producers and transactional ids.

`producer.id.expiration.ms` (KIP-854, Kafka 3.4) is how long the append's comparison works; earlier
brokers forget a producer after `transactional.id.expiration.ms`. After the latter, a coordinator
also forgets an unused transactional id. The id then gets another producer id, and none of its
epochs fences what the former producer id has sent.
"""

import logging
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, Protocol

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import Refusal, TwinlogError
from twinlog.kafka.requests import topics as admin

log = logging.getLogger(__name__)

PRODUCER: Final = "producer.id.expiration.ms"
TRANSACTIONAL: Final = "transactional.id.expiration.ms"


class ConfigValue(Protocol):
    """A configuration's value, as a broker reports it."""

    @property
    def value(self) -> str | None:
        """None if the broker does not report it."""
        ...


class Expirations(NamedTuple):
    """The shortest expirations of all brokers, in ms; None if no broker reports one."""

    producer_ms: int | None = None
    transactional_ms: int | None = None


async def expirations(cluster: KafkaCluster) -> Expirations:
    """The expirations that brokers report; the caller retries later if one does not answer."""
    resources = [
        admin.Resource(admin.ConfigResourceType.BROKER, str(n)) for n in cluster.metadata.brokers
    ]
    try:
        answers = await admin.describe_configs(cluster, resources, [PRODUCER, TRANSACTIONAL])
    except TwinlogError as error:
        log.info("%s of the brokers is unknown: %s", PRODUCER, error)
        return Expirations()
    return shortest(entries for entries in answers.values() if not isinstance(entries, Refusal))


def shortest(brokers: Iterable[Mapping[str, ConfigValue]]) -> Expirations:
    """The shortest expirations of brokers, from their configurations."""
    producers, ids = list[int](), list[int]()
    for entries in brokers:
        for names, values in (((PRODUCER, TRANSACTIONAL), producers), ((TRANSACTIONAL,), ids)):
            entry = next((entries[name] for name in names if name in entries), None)
            if entry is not None and entry.value is not None:
                values.append(int(entry.value))
    return Expirations(min(producers, default=None), min(ids, default=None))
