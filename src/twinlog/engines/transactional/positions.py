"""Where a partition goes on: the committed offset of the flow's group on the target (KIP-656).

The group has no members. Its offset for a partition of the *remote* topic is the source's offset
from which on nothing was copied. KIP-656 names the source's topic there, but brokers refuse offsets
of topics that they do not have. The metadata names both topics' ids, and where another program had
copied to before the flow began: it is *dated*. An operator's offset is not. It is committed again
with this metadata when it is first read, since later it would count for whatever is copied by then.
The same data is in the record that the partition has begun, below, and dates an offset that no lane
has read in time.

What another flow reports to this cluster, as its source, is no position
(mirror/reported_positions.py).

A broker forgets offsets (`offsets.retention.minutes`). That is told from a partition that has not
begun by a record in `__mirror_offsets`, written in the same transaction as the first offset:

| offset | of these topics | begun | the partition |
| --- | --- | --- | --- |
| there | yes | | goes on at it, if the target has lost nothing (remote_tails.py, routed_tails.py) |
| there | yes | | begins, if another program has copied on since (`MirrorTopic.begins`) |
| there | no | | begins: a topic was recreated |
| there | not dated | between these topics, or never | goes on at it |
| there | not dated | between former topics | is FAILED |
| there | not dated | before another program has copied on, or never; behind it | goes on at it |
| there | not dated | before another program has copied on, or never | is FAILED |
| missing | | no | begins |
| missing | | yes | is FAILED |
| missing | | `__mirror_offsets` was recreated since a former owner | is FAILED |

A record of former topics may be in another partition of `__mirror_offsets`: the source topic's id
is in the hash.

A running flow that goes on in a recreated remote topic may have written there: recreated_logs.py.
"""

from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Final, NamedTuple
from uuid import UUID

from twinlog.engines.transactional.own_writes import own_ids
from twinlog.engines.transactional.remote_tails import RemoteTail, parse_tail
from twinlog.engines.transactional.routed_tails import RoutedTails, parse_routed, routed_text
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import ProtocolError, Retriable
from twinlog.kafka.groups.offsets import Committed, committed_offsets
from twinlog.kafka.types import Offset, TopicPartition
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.reported_positions import is_reported
from twinlog.store.config_records import MirrorTopic, topic_id_of, topic_id_text
from twinlog.store.offset_log import OFFSETS_TOPIC, StoredOffsets, offsets_topic_id, read_offsets
from twinlog.store.offset_records import BegunPartition, Route
from twinlog.store.partition_counts import known_partition_count
from twinlog.store.snapshot import owners

_TOPIC_ID: Final = "source-topic-id="


class PositionLost(Exception):
    """It is not known how far a partition was copied."""


class SettledPosition(NamedTuple):
    """The position of a partition that is STOPPED."""

    committed: Committed
    remote: TopicPartition
    own_ids: Collection[int] = ()
    """See `compare_tails`; none if nothing is known."""


def position_group(prefix: str, mirror: str) -> str:
    """The group of a flow."""
    return f"{prefix}.flow.{mirror}"


def position_metadata(
    route: Route,
    copied_to: Offset | None,
    tail: RemoteTail | None = None,
    *,
    routed: RoutedTails = (),
    lost: TopicPartition | None = None,
) -> str:
    """The metadata of a committed position.

    Args:
        route: between which topics the partition is copied.
        copied_to: where another program had copied to when the flow began; None: nothing.
        tail: of the remote partition; None: nothing was copied, or it is not known.
        routed: the tails of other logs that have records of it.
        lost: where the target is known to have lost records. Compaction may remove what shows it.
    """
    topic_id = topic_id_text(route.topic_id) if route.topic_id else ""
    begin = "" if copied_to is None else copied_to
    text = f"{_TOPIC_ID}{topic_id_text(route.source_topic_id)};topic-id={topic_id};begin={begin}"
    if tail:
        recorded_in = topic_id_text(tail.recorded_in) if tail.recorded_in else ""
        text += f";tail={tail.text()};recorded-in={recorded_in}"
    if routed:
        text += f";routed={routed_text(routed)}"
    return text if lost is None else f"{text};lost={lost}"


def tail_of(committed: Committed) -> RemoteTail | None:
    """The tail of the remote partition, if a position has one."""
    if not is_dated(committed):
        return None
    fields = _fields(committed.metadata)
    tail = parse_tail(fields.get("tail", ""))
    with suppress(ProtocolError):  # as of another program
        if tail and (recorded_in := fields.get("recorded-in")):
            return tail._replace(recorded_in=topic_id_of(recorded_in))
    return tail


def routed_of(committed: Committed) -> RoutedTails:
    """The routed tails that a position has."""
    if not is_dated(committed):
        return ()
    return parse_routed(_fields(committed.metadata).get("routed", ""))


def lost_of(committed: Committed, remote: TopicPartition) -> TopicPartition | None:
    """Where a position says that the target has lost records; None: it does not.

    Args:
        committed: the position.
        remote: its remote partition: earlier versions have stored 1.
    """
    text = _fields(committed.metadata).get("lost") if is_dated(committed) else None
    if not text:
        return None
    topic, _, number = text.rpartition("-")
    is_log = topic and number.isascii() and number.isdigit()
    return TopicPartition(topic, int(number)) if is_log else remote


def source_of(committed: Committed) -> UUID | None:
    """The id of the source topic that a position is of; None: it is not known."""
    with suppress(ProtocolError):  # as of another program
        if is_dated(committed):
            return topic_id_of(_fields(committed.metadata)[_TOPIC_ID.rstrip("=")])
    return None


def loss(reason: str, position: int, group: str) -> str:
    """Why a partition with a position is FAILED, and what decides how it goes on."""
    return f"{reason}; position {position} of group {group}; commit the source's offset to go on at"


def is_dated(committed: Committed) -> bool:
    """Whether an offset says between which topics a partition was copied when it was committed."""
    return committed.metadata.startswith(_TOPIC_ID)


def found_position(
    committed: Committed | None,
    begun: BegunPartition | None,
    wanted: Route,
    group: str,
    partition: int,
    *,
    copied_to: Offset | None = None,
    begun_before: bool = False,
    passes_lost: bool = False,
) -> Committed | None:
    """Where a partition goes on; None: it has not begun.

    Args:
        committed: the group's offset.
        begun: the record that it has begun; or else one of former topics of these names.
        wanted: between which topics it is copied.
        group: the group's name.
        partition: the partition's number.
        copied_to: where another program has copied to, as it was taken over; None: nothing.
        begun_before: whether it has begun, or may have, where no record of it was found: as
            `__mirror_state` has it, or as `__mirror_offsets` was recreated since.
        passes_lost: whether it goes on where the target is known to have lost records.

    Raises:
        PositionLost: it has begun, or may have, and its offset is missing; or it is not dated, and
            may be from before a topic was recreated, or before another program has copied on; or
            the target is known to have lost records.
    """
    remote = TopicPartition(wanted.topic, partition)
    if committed is not None and not is_reported(committed.metadata):
        if is_dated(committed):
            if not _counts(committed, wanted, copied_to):
                return None
            if (lost := lost_of(committed, remote)) and not passes_lost:
                reason = f"the destination has lost records of {lost}"
                raise PositionLost(loss(reason, committed.offset, group))
            return committed
        if doubt := _doubt(committed, begun, wanted, copied_to):
            raise PositionLost(
                f"the position is not known: offset {committed.offset} of {remote}, which an "
                f"operator has committed for group {group}, may be from before {doubt}"
            )
        return committed
    has_begun = begun_before if begun is None else is_same_route(begun.route, wanted)
    if not has_begun:
        return None
    raise PositionLost(
        f"the position is lost: group {group} has no offset of {remote} any more "
        "(offsets.retention.minutes, or its topic was deleted); commit the source's offset to go "
        "on at for this group on the target"
    )


def _doubt(
    committed: Committed, begun: BegunPartition | None, wanted: Route, copied_to: Offset | None
) -> str | None:
    """Since when an offset that is not dated may not count any more, and what to do; None: it does.

    Once the partition has begun it is dated, so what is not has been committed since.
    """
    if begun is not None and not is_same_route(begun.route, wanted):
        return (
            "a topic was recreated; to begin, delete this offset on the target "
            "(kafka-consumer-groups --delete-offsets)"
        )
    if copied_to is None or committed.offset >= copied_to:
        return None
    if begun is not None and begun.copied_to == copied_to:
        return None
    return (
        f"another program has copied all up to {copied_to}; commit {copied_to} for this group on "
        "the target"
    )


def _counts(committed: Committed, wanted: Route, copied_to: Offset | None) -> bool:
    """Whether a dated position is of these topics, and nothing was copied behind it since."""
    theirs, ours = _fields(committed.metadata), _fields(position_metadata(wanted, copied_to))
    targets = {theirs.get("topic-id", ""), ours["topic-id"]} - {""}
    behind = theirs.get("begin") != ours["begin"] and committed.offset < (copied_to or 0)
    same_source = theirs["source-topic-id"] == ours["source-topic-id"]
    return same_source and len(targets) < 2 and not behind


def _fields(metadata: str) -> dict[str, str]:
    return dict(part.partition("=")[::2] for part in metadata.split(";"))


def is_same_route(begun: Route, wanted: Route) -> bool:
    """Whether neither topic was recreated or replaced since."""
    return begun.source_topic_id == wanted.source_topic_id and is_same_log(begun, wanted)


def is_same_log(begun: Route, wanted: Route) -> bool:
    """Whether the remote topic was not recreated or replaced since."""
    ids = {begun.topic_id, wanted.topic_id} - {None}
    return begun.topic == wanted.topic and len(ids) < 2


async def committed_positions(
    destination: KafkaCluster, group: str, topics: Collection[MirrorTopic]
) -> dict[TopicPartition, int]:
    """The positions of a flow as they are committed now, by the source's partition.

    Args:
        destination: the target.
        group: the flow's.
        topics: topics of the flow.

    Returns:
        A partition without a position, or with one that may be of former topics, or from before
        another program has copied on, is left out.

    Raises:
        Retriable: the coordinator does not answer.
        UserError: a right is missing.
    """
    committed = await _committed(destination, group, topics, stable=False)
    positions: dict[TopicPartition, int] = {}
    for topic in topics:
        for name in topic.mirror_partitions:
            with suppress(PositionLost):
                if (at := _position_of(topic, name, group, committed)) is not None:
                    positions[name.source] = at.offset
    return positions


async def settled_positions(
    destination: KafkaCluster, group: str, topics: Collection[MirrorTopic]
) -> dict[MirrorPartition, SettledPosition]:
    """The positions of partitions that are STOPPED.

    They are fenced: what was not committed before is aborted.

    Args:
        destination: the target.
        group: the flow's.
        topics: topics of the flow, of which all partitions are STOPPED.

    Returns:
        A partition that has not begun is left out.

    Raises:
        PositionLost: it is not known how far a partition was copied.
        Retriable: not now.
        UserError: a right is missing, or `__mirror_offsets` was deleted.
        ProtocolError, ControlTopicLost: `__mirror_offsets` cannot be read.
    """
    committed = await _committed(destination, group, topics, stable=True)
    count = await known_partition_count(destination, OFFSETS_TOPIC)
    recorded_in = await offsets_topic_id(destination)
    stored = await read_offsets(destination)
    if recorded_in != await offsets_topic_id(destination):
        raise Retriable("the topic was recreated while it was read", topic=OFFSETS_TOPIC)
    all_begun = {name: one for each in stored.values() for name, one in each.begun.items()}
    positions: dict[MirrorPartition, SettledPosition] = {}
    for number, partitions in owners(topics, count).items():
        own = stored.get(number, StoredOffsets())
        found: dict[MirrorPartition, SettledPosition] = {}
        for name, topic in partitions:
            begun = own.begun.get(name) or all_begun.get(name)
            at = _position_of(topic, name, group, committed, begun)
            if at is not None:
                found[name] = SettledPosition(at, topic.on_destination(name))
        positions |= _with_own_ids(found, own, recorded_in)
    return positions


def _with_own_ids(
    positions: Mapping[MirrorPartition, SettledPosition],
    stored: StoredOffsets,
    recorded_in: UUID | None,
) -> dict[MirrorPartition, SettledPosition]:
    """Positions of a state partition, with what `__mirror_offsets` shows of who has written."""
    tails = {
        one.remote: tail
        for one in positions.values()
        if (tail := tail_of(one.committed)) is not None
    }
    ids = own_ids(tails, (), begun=stored.begun, shared=stored.shared, recorded_in=recorded_in)
    return {name: one._replace(own_ids=ids.get(one.remote, ())) for name, one in positions.items()}


async def _committed(
    destination: KafkaCluster, group: str, topics: Collection[MirrorTopic], *, stable: bool
) -> dict[TopicPartition, Committed]:
    remotes = [topic.on_destination(name) for topic in topics for name in topic.mirror_partitions]
    if not remotes:
        return {}
    return await committed_offsets(destination, group, stable=stable, partitions=remotes)


def _position_of(
    topic: MirrorTopic,
    name: MirrorPartition,
    group: str,
    committed: Mapping[TopicPartition, Committed],
    begun: BegunPartition | None = None,
) -> Committed | None:
    """See `found_position`."""
    begin = topic.begin(name.partition)
    return found_position(
        committed.get(topic.on_destination(name)),
        begun,
        Route(topic.topic_id, topic.destination_name, topic.destination_topic_id),
        group,
        name.partition,
        copied_to=None if begin is None else Offset(begin),
    )
