"""Source offsets that Kafka Connect stores for MirrorMaker 2's source connector.

They are in the topic `offset.storage.topic` of the Connect worker, `mm2-offsets.SOURCE.internal` on
the target in MirrorMaker 2's dedicated mode. It is compacted, so each record replaces the one
before it with the same key. Keys and values are JSON:

    key    ["MirrorSourceConnector",{"cluster":"A","partition":0,"topic":"orders"}]
    value  {"offset":41}

The offset is that of the last record that was copied, so MirrorMaker 2 goes on at 42 (`MirrorUtils`
and `MirrorSourceTask.initializeConsumer`). A record is stored after the target has acknowledged all
records up to it (KIP-618): every `offset.flush.interval.ms`, 60 s by default.

The topic has the offsets of other connectors, too. Those of MirrorMaker 2's own other connectors
have other fields: a group, or two aliases.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from twinlog.kafka.errors import ProtocolError
from twinlog.kafka.types import TopicPartition

CONNECTOR: Final = "MirrorSourceConnector"
"""Its name in the dedicated mode."""
_PARTITION_FIELDS: Final = frozenset({"cluster", "partition", "topic"})
_OFFSET_FIELD: Final = "offset"
_MAX_OFFSET: Final = (1 << 63) - 1
_MAX_PARTITION: Final = (1 << 31) - 1
_SHOWN: Final = 120


class ConnectOffset(NamedTuple):
    """A record: up to which offset a connector has copied a partition."""

    connector: str
    cluster: str
    """The source's alias."""
    partition: TopicPartition
    """Of the source."""
    offset: int | None
    """Of the last record that was copied; None if it was removed."""


def encode(record: ConnectOffset) -> tuple[bytes, bytes | None]:
    """Key and value, byte for byte as Connect writes them."""
    topic, partition = record.partition
    place = {"cluster": record.cluster, "partition": partition, "topic": topic}
    key = _json([record.connector, place])
    return key, None if record.offset is None else _json({_OFFSET_FIELD: record.offset})


def decode(key: bytes | None, value: bytes | None) -> ConnectOffset | None:
    """Decode a record; None if it is of another connector.

    Raises:
        ProtocolError: the bytes are not in Connect's format, or not in MirrorMaker 2's.
    """
    match _parsed(key, "key"):
        case [str(connector), dict(place)]:
            if place.keys() != _PARTITION_FIELDS:
                return None
        case _:
            raise ProtocolError(f"the key of a Connect offset is {key!r:.{_SHOWN}}")
    cluster, topic, partition = (place[name] for name in ("cluster", "topic", "partition"))
    texts = isinstance(cluster, str) and isinstance(topic, str)
    if not texts or not _is_number(partition, _MAX_PARTITION):
        raise ProtocolError(f"the key of a Connect offset is {key!r:.{_SHOWN}}")
    offset = None
    if value is not None:
        stored = _parsed(value, "value")
        offset = stored.get(_OFFSET_FIELD) if isinstance(stored, dict) else None
        if not _is_number(offset, _MAX_OFFSET):
            raise ProtocolError(
                f"the Connect offset of {topic}-{partition} is {value!r:.{_SHOWN}}, expected "
                '{"offset":N}'
            )
    return ConnectOffset(connector, cluster, TopicPartition(topic, partition), offset)


def last_copied(
    records: Iterable[tuple[bytes | None, bytes | None]], cluster: str
) -> dict[TopicPartition, Mapping[str, int]]:
    """The last copied offset of each partition of a source, by connector.

    Up to the lowest one all was copied, whichever connector is the present one. Up to the highest
    one it may have been.

    Args:
        records: keys and values of the whole topic, those of the same key in order.
        cluster: the source's alias.

    Raises:
        ProtocolError: see `decode`.
    """
    offsets: dict[TopicPartition, dict[str, int]] = {}
    for key, value in records:
        record = decode(key, value)
        if record is None or record.cluster != cluster:
            continue
        by_connector = offsets.setdefault(record.partition, {})
        if record.offset is None:
            by_connector.pop(record.connector, None)
        else:
            by_connector[record.connector] = record.offset
    return {partition: found for partition, found in offsets.items() if found}


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def _parsed(data: bytes | None, what: str) -> Any:
    try:
        return json.loads(data or b"")
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"the {what} of a Connect offset is not JSON: {error}") from error


def _is_number(value: object, maximum: int) -> bool:
    return type(value) is int and 0 <= value <= maximum
