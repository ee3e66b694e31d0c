"""How long brokers remember a producer, by which the append's comparison stands.

Since Kafka 3.4 that is `producer.id.expiration.ms` (KIP-854); before, a broker forgets a producer
after `transactional.id.expiration.ms`.
"""

import logging
from collections.abc import Iterable, Mapping
from typing import Final, Protocol

from twinlog.cluster import admin
from twinlog.cluster.client import KafkaCluster
from twinlog.core.errors import Refusal, TwinlogError

log = logging.getLogger(__name__)

PRODUCER: Final = "producer.id.expiration.ms"
TRANSACTIONAL: Final = "transactional.id.expiration.ms"


class Entry(Protocol):
    """A configuration's value, as a broker tells it."""

    @property
    def value(self) -> str | None:
        """None where it is not told."""
        ...


async def producer_expiration_ms(cluster: KafkaCluster) -> int | None:
    """The shortest of all brokers, in ms; None where none tells.

    A broker that does not answer is asked again by the caller, later.
    """
    resources = [
        admin.Resource(admin.ResourceType.BROKER, str(n)) for n in cluster.metadata.brokers
    ]
    try:
        answers = await admin.describe_configs(cluster, resources, [PRODUCER, TRANSACTIONAL])
    except TwinlogError as error:
        log.info("%s is not known: %s", PRODUCER, error)
        return None
    return shortest(entries for entries in answers.values() if not isinstance(entries, Refusal))


def shortest(brokers: Iterable[Mapping[str, Entry]]) -> int | None:
    """The shortest expiration of brokers, in ms, from their configurations; None: none tells."""
    told = []
    for entries in brokers:
        entry = entries.get(PRODUCER) or entries.get(TRANSACTIONAL)
        if entry is not None and entry.value is not None:
            told.append(int(entry.value))
    return min(told, default=None)
