"""How often an offset is committed again that has not changed, so that brokers do not expire it."""

import logging
from collections.abc import Iterable
from typing import Final

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import Refusal, TwinlogError
from twinlog.kafka.requests import topics as admin

log = logging.getLogger(__name__)

MAX_REPEAT_S: Final = 24 * 3600.0
DEFAULT_REPEAT_S: Final = 6 * 3600.0
"""Seconds between two commits of the same offset: a quarter of offsets.retention.minutes, a day at
most; if the brokers do not report it, a quarter of the default before Kafka 2.0."""

_RETENTION: Final = "offsets.retention.minutes"


async def read_repeat_interval(cluster: KafkaCluster) -> float | None:
    """Seconds between two commits of the same offset; None: the brokers do not tell now."""
    nodes = [
        admin.Resource(admin.ConfigResourceType.BROKER, str(node))
        for node in cluster.metadata.brokers
    ]
    try:
        answers = await admin.describe_configs(cluster, nodes, [_RETENTION])
    except TwinlogError as error:
        log.info("%s of the brokers is unknown: %s", _RETENTION, error)
        return None
    return repeat_interval(
        entries[_RETENTION].value
        for entries in answers.values()
        if not isinstance(entries, Refusal) and _RETENTION in entries
    )


def repeat_interval(minutes: Iterable[str | None]) -> float:
    """Seconds between two commits of the same offset, by the brokers' offsets.retention.minutes."""
    periods = [int(m) * 60 / 4 for m in minutes if m and m.isascii() and m.isdecimal()]
    return min([*periods, MAX_REPEAT_S]) if periods else DEFAULT_REPEAT_S
