"""Where a partition goes on: the committed offset of the flow's group on the target (KIP-656).

The group has no members. Its offset for a partition of the *remote* topic is the source's offset
from which on nothing was copied. KIP-656 names the source's topic there, but brokers refuse offsets
of topics that they do not have. The metadata names the source topic's id; an operator's offset
(`kafka-consumer-groups --reset-offsets`) has none, and counts as it is.

A broker forgets offsets (`offsets.retention.minutes`). That is told from a partition that has not
begun by a record in `__mirror_offsets`, written in the same transaction as the first offset:

| offset | of this source topic | begun | the partition |
| --- | --- | --- | --- |
| there | yes, or not said | | goes on at it |
| there | no | | begins: the source topic was recreated |
| missing | | no | begins |
| missing | | yes | is FAILED |
"""

from typing import Final
from uuid import UUID

from twinlog.kafka.groups.offsets import Committed
from twinlog.kafka.types import TopicPartition
from twinlog.store.config_records import topic_id_text
from twinlog.store.offset_records import Route

_TOPIC_ID: Final = "source-topic-id="


class PositionLost(Exception):
    """It is not known how far a partition was copied."""


def position_group(prefix: str, mirror: str) -> str:
    """The group of a flow."""
    return f"{prefix}.flow.{mirror}"


def position_metadata(source_topic_id: UUID) -> str:
    """The metadata of a committed position."""
    return f"{_TOPIC_ID}{topic_id_text(source_topic_id)}"


def found_position(
    committed: Committed | None, begun: Route | None, wanted: Route, group: str, partition: int
) -> Committed | None:
    """Where a partition goes on; None: it has not begun.

    Args:
        committed: the group's offset.
        begun: between which topics it has begun, as recorded.
        wanted: between which topics it is copied.
        group: the group's name.
        partition: the partition's number.

    Raises:
        PositionLost: it has begun, and its offset is missing.
    """
    if committed is not None:
        other = committed.metadata.startswith(_TOPIC_ID) and (
            committed.metadata != position_metadata(wanted.source_topic_id)
        )
        return None if other else committed
    if begun is None or not _same(begun, wanted):
        return None
    raise PositionLost(
        f"the position is lost: group {group} has no offset of "
        f"{TopicPartition(wanted.topic, partition)} any more (offsets.retention.minutes); "
        "commit the source's offset to go on at for this group on the target"
    )


def _same(begun: Route, wanted: Route) -> bool:
    """Whether neither topic was recreated or replaced since."""
    ids = {begun.topic_id, wanted.topic_id} - {None}
    return (
        begun.source_topic_id == wanted.source_topic_id
        and begun.topic == wanted.topic
        and len(ids) < 2
    )
