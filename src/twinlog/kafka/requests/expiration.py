"""How long brokers remember producers and transactional ids.

By the first, `producer.id.expiration.ms` (KIP-854, Kafka 3.4), the append's comparison stands;
earlier brokers forget a producer after `transactional.id.expiration.ms`. After that, too, a
coordinator forgets a transactional id that was not used: it has another producer id then, and no
epoch of it fences what the former one has sent.
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


class Entry(Protocol):
    """A configuration's value, as a broker tells it."""

    @property
    def value(self) -> str | None:
        """None where it is not told."""
        ...


class Expirations(NamedTuple):
    """The shortest of all brokers, in ms; None where none tells."""

    producer_ms: int | None = None
    transactional_ms: int | None = None


async def expirations(cluster: KafkaCluster) -> Expirations:
    """What the brokers tell; those that do not answer are asked again by the caller, later."""
    resources = [
        admin.Resource(admin.ResourceType.BROKER, str(n)) for n in cluster.metadata.brokers
    ]
    try:
        answers = await admin.describe_configs(cluster, resources, [PRODUCER, TRANSACTIONAL])
    except TwinlogError as error:
        log.info("%s is not known: %s", PRODUCER, error)
        return Expirations()
    return shortest(entries for entries in answers.values() if not isinstance(entries, Refusal))


def shortest(brokers: Iterable[Mapping[str, Entry]]) -> Expirations:
    """The shortest expirations of brokers, from their configurations."""
    producers, ids = list[int](), list[int]()
    for entries in brokers:
        for names, told in (((PRODUCER, TRANSACTIONAL), producers), ((TRANSACTIONAL,), ids)):
            entry = next((entries[name] for name in names if name in entries), None)
            if entry is not None and entry.value is not None:
                told.append(int(entry.value))
    return Expirations(min(producers, default=None), min(ids, default=None))
