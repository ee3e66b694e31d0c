"""Where a partition goes on: the committed offset of the flow's group on the target (KIP-656).

The group has no members. Its offset for a partition of the *remote* topic is the source's offset
from which on nothing was copied. KIP-656 names the source's topic there, but brokers refuse offsets
of topics that they do not have. The metadata names both topics' ids, and where another program had
copied to before the flow began; an operator's offset (`kafka-consumer-groups --reset-offsets`) has
none, and counts as it is.

A broker forgets offsets (`offsets.retention.minutes`). That is told from a partition that has not
begun by a record in `__mirror_offsets`, written in the same transaction as the first offset:

| offset | of these topics | begun | the partition |
| --- | --- | --- | --- |
| there | yes, or not said | | goes on at it |
| there | yes | | begins, if another program has copied on since (`MirrorTopic.begins`) |
| there | no | | begins: a topic was recreated |
| missing | | no | begins |
| missing | | yes | is FAILED |
| missing | | the topic was recreated since a former owner | is FAILED |
"""

from typing import Final

from twinlog.kafka.groups.offsets import Committed
from twinlog.kafka.types import Offset, TopicPartition
from twinlog.store.config_records import topic_id_text
from twinlog.store.offset_records import Route

_TOPIC_ID: Final = "source-topic-id="


class PositionLost(Exception):
    """It is not known how far a partition was copied."""


def position_group(prefix: str, mirror: str) -> str:
    """The group of a flow."""
    return f"{prefix}.flow.{mirror}"


def position_metadata(route: Route, copied_to: Offset | None) -> str:
    """The metadata of a committed position.

    Args:
        route: between which topics the partition is copied.
        copied_to: where another program had copied to when the flow began; None: nothing.
    """
    topic_id = topic_id_text(route.topic_id) if route.topic_id else ""
    begin = "" if copied_to is None else copied_to
    return f"{_TOPIC_ID}{topic_id_text(route.source_topic_id)};topic-id={topic_id};begin={begin}"


def found_position(
    committed: Committed | None,
    begun: Route | None,
    wanted: Route,
    group: str,
    partition: int,
    *,
    copied_to: Offset | None = None,
    recreated: bool = False,
) -> Committed | None:
    """Where a partition goes on; None: it has not begun.

    Args:
        committed: the group's offset.
        begun: between which topics it has begun, as recorded.
        wanted: between which topics it is copied.
        group: the group's name.
        partition: the partition's number.
        copied_to: where another program has copied to, as it was taken over; None: nothing.
        recreated: whether `__mirror_offsets` was recreated since the partition has a former owner.

    Raises:
        PositionLost: it has begun, or may have, and its offset is missing.
    """
    if committed is not None:
        return committed if _counts(committed, wanted, copied_to) else None
    has_begun = recreated if begun is None else _same(begun, wanted)
    if not has_begun:
        return None
    raise PositionLost(
        f"the position is lost: group {group} has no offset of "
        f"{TopicPartition(wanted.topic, partition)} any more (offsets.retention.minutes); "
        "commit the source's offset to go on at for this group on the target"
    )


def _counts(committed: Committed, wanted: Route, copied_to: Offset | None) -> bool:
    """Whether a committed position is of these topics, and nothing was copied behind it since."""
    if not committed.metadata.startswith(_TOPIC_ID):
        return True
    theirs, ours = _fields(committed.metadata), _fields(position_metadata(wanted, copied_to))
    targets = {theirs.get("topic-id", ""), ours["topic-id"]} - {""}
    behind = theirs.get("begin") != ours["begin"] and committed.offset < (copied_to or 0)
    same_source = theirs["source-topic-id"] == ours["source-topic-id"]
    return same_source and len(targets) < 2 and not behind


def _fields(metadata: str) -> dict[str, str]:
    return dict(part.partition("=")[::2] for part in metadata.split(";"))


def _same(begun: Route, wanted: Route) -> bool:
    """Whether neither topic was recreated or replaced since."""
    ids = {begun.topic_id, wanted.topic_id} - {None}
    return (
        begun.source_topic_id == wanted.source_topic_id
        and begun.topic == wanted.topic
        and len(ids) < 2
    )
