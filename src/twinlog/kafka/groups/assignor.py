"""Who gets which partitions: the consumer protocol's bytes, and the leader's part of a rebalance.

The coordinator only carries bytes. Each member sends a *subscription* (the topic, the partitions
that it owns, the generation in which it got them); the member that the coordinator names leader
computes an *assignment* for each, by the rules of the cooperative protocol (KIP-429). Of a
partition that moves, the first round takes it from its owner and gives it to nobody; the owner
revokes it and rejoins, and the second round gives it to the new one. So no partition ever has two.

The generation (subscription version 2, KIP-792) is for a member that comes back with partitions of
an old generation: where several claim a partition the newest generation counts, and where two of
one generation do, which no correct group does, nobody gets it in this round.

Kafka's sticky assignors make the members' *numbers* of partitions equal, whichever these are. But a
topic's partitions stand in `__mirror_state` one after the other (mirror/placement.py), so that of a
topic of eight two lanes had six and two where one had joined before the other, and it took as long
as the six did. So `shared` makes them equal in every run of partitions (docs/decisions/0008).

**Foreign members.** Any consumer whose `group.id` is ours joins the group: the coordinator compares
protocol names only. A member gets partitions only if it speaks as one of ours does; the others are
left out, get an empty assignment, and are reported:

    subscription                                        member
    --------------------------------------------------  ---------------------------------------
    topics == [topic], user data == MARK                a lane of this version
    topics == [topic], user data empty, version 2       a lane of an older version
    anything else, or bytes that are no subscription    foreign

The version tells an older lane from librdkafka, whose first subscription has no user data either,
but version 3. Java's assignor always sends user data.

The mark is in the user data, and the protocol keeps its name: while old and new nodes share the
group (a rolling upgrade, or a rollback), the coordinator needs a protocol that all of them know. A
name of our own beside it would exclude nothing, as the coordinator falls back to the common one.
A foreign member may become the leader and assign by its own rules: those give the topic's
partitions to subscribers of the topic only, or to none. A partition without an owner has no fresh
status, which `twinlog readiness` reports (tests/kafka/groups/test_membership.py).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from kafka.protocol.consumer.metadata import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)

from twinlog.kafka.errors import ProtocolError
from twinlog.kafka.types import TopicPartition
from twinlog.text import few

PROTOCOL_TYPE: Final = "consumer"
PROTOCOL_NAME: Final = "cooperative-sticky"

MARK: Final = b"twinlog"
"""User data of the subscriptions of our members."""

_SUBSCRIPTION_VERSION: Final = 2
_ASSIGNMENT_VERSION: Final = 1


class _Claims(NamedTuple):
    """What a member tells that it owns, and since which generation."""

    partitions: frozenset[int]
    generation: int


class Assigned(NamedTuple):
    """What the leader computes.

    Attributes:
        assignments: bytes for each member id of the group.
        foreign: member ids that get nothing because they are not ours, each with the reason.
    """

    assignments: dict[str, bytes]
    foreign: dict[str, str]


def encode_subscription(topic: str, owned: Iterable[int], generation: int) -> bytes:
    """What a member tells the leader: the topic, what it owns, and since which generation."""
    item = ConsumerProtocolSubscription.TopicPartition
    partitions = sorted(owned)
    subscription = ConsumerProtocolSubscription(
        topics=[topic],
        user_data=MARK,
        owned_partitions=[item(topic=topic, partitions=partitions)] if partitions else [],
        generation_id=generation,
    )
    return bytes(subscription.encode(version=_SUBSCRIPTION_VERSION))


def encode_assignment(topic: str, partitions: Iterable[int]) -> bytes:
    """What the leader gives a member."""
    item = ConsumerProtocolAssignment.TopicPartition
    given = sorted(partitions)
    assignment = ConsumerProtocolAssignment(
        assigned_partitions=[item(topic=topic, partitions=given)] if given else [], user_data=b""
    )
    return bytes(assignment.encode(version=_ASSIGNMENT_VERSION))


def decode_assignment(topic: str, data: bytes) -> frozenset[int]:
    """The partitions of `topic` in an assignment; no bytes are none.

    Raises:
        ProtocolError: the bytes are no assignment.
    """
    return frozenset(one.partition for one in decode_partitions(data) if one.topic == topic)


def decode_partitions(data: bytes) -> frozenset[TopicPartition]:
    """All partitions of an assignment; no bytes are none.

    Raises:
        ProtocolError: the bytes are no assignment.
    """
    if not data:
        return frozenset()
    try:
        assignment = ConsumerProtocolAssignment.decode(data)
        return frozenset(
            TopicPartition(one.topic, index)
            for one in assignment.assigned_partitions
            for index in one.partitions
        )
    except Exception as error:  # any bytes may come; which exceptions they cause is unspecified
        raise ProtocolError(f"a group's assignment cannot be read: {error!r}") from error


def assign(topic: str, count: int, subscriptions: Mapping[str, bytes]) -> Assigned:
    """The leader's part: an assignment for each member id, of partitions 0 to `count` - 1.

    Foreign members (see the module) get an empty one. Where all are foreign, nothing is assigned.
    """
    claims: dict[str, _Claims] = {}
    foreign: dict[str, str] = {}
    for member, data in sorted(subscriptions.items()):
        try:
            claims[member] = _claims(topic, data)
        except ProtocolError as error:
            foreign[member] = error.message
    given: dict[str, list[int]] = {member: [] for member in subscriptions}
    if claims:
        for index, owner in enumerate(_owners(count, claims)):
            if owner is not None:
                given[owner].append(index)
    return Assigned(
        {member: encode_assignment(topic, indexes) for member, indexes in given.items()}, foreign
    )


def _owners(count: int, claims: Mapping[str, _Claims]) -> list[str | None]:
    """Who is given each partition. What moves is given to nobody while it has an owner."""
    claimants = [
        [(one.generation, member) for member, one in claims.items() if index in one.partitions]
        for index in range(count)
    ]
    owners = [max(some)[1] if some else None for some in claimants]
    return [
        member if owner in (None, member) and not _disputed(some) else None
        for member, owner, some in zip(shared(owners, list(claims)), owners, claimants, strict=True)
    ]


def shared(owners: Sequence[str | None], members: Sequence[str]) -> list[str]:
    """Who is to have each partition, so that each run of partitions is shared evenly.

    Along the partitions each member is due an equal part of each, and a partition that he gets is
    paid for by what he is due. What nobody has goes to whom most is due; of those, to who has
    least. An owner keeps what he has, unless another is due more than he by a whole partition and
    has none yet (he has just come), or by two (what many moves have left uneven is seen to).
    Applied to what it has given, it changes nothing.

    Args:
        owners: of partitions 0, 1, ...; None: nobody. Who is no member any more counts as nobody.
        members: at least one.
    """
    whole = len(members)  # of a partition, so that an equal part of it is 1
    due = dict.fromkeys(members, 0)
    has = Counter(owners)
    result = []
    for owner in owners:
        for member in members:
            due[member] += 1
        neediest = max(members, key=lambda member: (due[member], -has[member]))
        more = 2 * whole if has[neediest] else whole
        keeps = owner in due and due[neediest] - due[owner] < more
        result.append(owner if owner is not None and keeps else neediest)
        due[result[-1]] -= whole
    return result


def foreign_reason(topic: str, data: bytes) -> str:
    """Why a group's member with this subscription is foreign (see the module); empty: it is not."""
    try:
        _claims(topic, data)
    except ProtocolError as error:
        return error.message
    return ""


def _claims(topic: str, data: bytes) -> _Claims:
    """What a member of ours claims.

    Raises:
        ProtocolError: the member is foreign.
    """
    try:
        subscription = ConsumerProtocolSubscription.decode(data)
        version = int.from_bytes(data[:2], "big")
        topics, mark = list(subscription.topics), bytes(subscription.user_data or b"")
        owned = [t.partitions for t in subscription.owned_partitions or () if t.topic == topic]
        claims = _Claims(frozenset(p for some in owned for p in some), subscription.generation_id)
    except Exception as error:  # any bytes may come; which exceptions they cause is unspecified
        raise ProtocolError(f"its subscription cannot be read: {error!r}") from error
    if topics != [topic]:
        raise ProtocolError(f"it subscribes to {few(topics) or 'no topic'}, not to {topic}")
    older_lane = not mark and version == _SUBSCRIPTION_VERSION
    if mark != MARK and not older_lane:
        raise ProtocolError(f"it subscribes to {topic} as another application")
    return claims


def _disputed(claimants: Sequence[tuple[int, str]]) -> bool:
    """Whether two claim a partition in its newest generation."""
    newest = max(claimants, default=(0, ""))[0]
    return sum(generation == newest for generation, _ in claimants) > 1
