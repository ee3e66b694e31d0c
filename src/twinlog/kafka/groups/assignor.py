"""The assignment of partitions to members: the consumer protocol's bytes, and the leader's part.

The coordinator only carries bytes. Each member sends a *subscription* (the topic, the partitions
that it owns, the generation in which it got them). The member that the coordinator names leader
computes an *assignment* for each member, by the rules of the cooperative protocol (KIP-429). A
partition that moves is first assigned to no member; its owner revokes it and rejoins; the second
round assigns it to the new owner. So no partition ever has two owners.

The generation (subscription version 2, KIP-792) is for a member that rejoins with partitions of an
old generation. If several members claim a partition, the newest generation wins. If two members of
the same generation claim it, which no correct group does, no member gets it in this round.

Kafka's sticky assignors make the members' *numbers* of partitions equal, whichever partitions these
are. But a topic's partitions are stored in consecutive partitions of `__mirror_state`
(mirror/placement.py): of a topic of eight, two lanes had six and two where one had joined before
the other, and mirroring took as long as the six did. So `shared` balances every run of partitions
(docs/decisions/0008).

**Foreign members.** Any consumer with the same `group.id` joins the group: the coordinator compares
protocol names only. A member gets partitions only if its subscription is a lane's; other members
are left out, get an empty assignment, and are reported:

    subscription                                        member
    --------------------------------------------------  ---------------------------------------
    topics == [topic], user data == MARK                a lane of this version
    topics == [topic], user data empty, version 2       a lane of an older version
    anything else, or bytes that are no subscription    foreign

The version distinguishes an older lane from librdkafka, whose first subscription has no user data
either, but version 3. Java's assignor always sends user data.

The mark is in the user data, and the protocol keeps its name: while old and new nodes share the
group (a rolling upgrade, or a rollback), the coordinator needs a protocol that all members know. An
additional protocol name would exclude nothing, as the coordinator falls back to the common one.

A foreign member may become the leader and assign by its own rules: those give the topic's
partitions only to subscribers of the topic, or to no member. A partition without an owner has no
fresh status, which `twinlog readiness` reports (tests/kafka/groups/test_membership.py).
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
"""User data of a lane's subscription."""

_SUBSCRIPTION_VERSION: Final = 2
_ASSIGNMENT_VERSION: Final = 1


class _Claims(NamedTuple):
    """The partitions that a member reports as owned, and the generation in which it got them."""

    partitions: frozenset[int]
    generation: int


class Assigned(NamedTuple):
    """What the leader computes.

    Attributes:
        assignments: bytes for each member id of the group.
        foreign: member ids that get nothing because they are foreign, each with the reason.
    """

    assignments: dict[str, bytes]
    foreign: dict[str, str]


def encode_subscription(topic: str, owned: Iterable[int], generation: int) -> bytes:
    """A member's subscription: the topic, what it owns, and the generation in which it got them."""
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
    """A member's assignment."""
    item = ConsumerProtocolAssignment.TopicPartition
    indexes = sorted(partitions)
    assignment = ConsumerProtocolAssignment(
        assigned_partitions=[item(topic=topic, partitions=indexes)] if indexes else [],
        user_data=b"",
    )
    return bytes(assignment.encode(version=_ASSIGNMENT_VERSION))


def decode_assignment(topic: str, data: bytes) -> frozenset[int]:
    """The partitions of `topic` in an assignment; none if there are no bytes.

    Raises:
        ProtocolError: the bytes are no assignment.
    """
    return frozenset(
        partition.partition for partition in decode_partitions(data) if partition.topic == topic
    )


def decode_partitions(data: bytes) -> frozenset[TopicPartition]:
    """All partitions of an assignment; none if there are no bytes.

    Raises:
        ProtocolError: the bytes are no assignment.
    """
    if not data:
        return frozenset()
    try:
        assignment = ConsumerProtocolAssignment.decode(data)
        return frozenset(
            TopicPartition(entry.topic, index)
            for entry in assignment.assigned_partitions
            for index in entry.partitions
        )
    except Exception as error:  # any bytes may arrive; the exceptions they cause are unspecified
        raise ProtocolError(f"cannot decode the group assignment: {error!r}") from error


def assign(topic: str, count: int, subscriptions: Mapping[str, bytes]) -> Assigned:
    """Compute the leader's assignment for each member id, of partitions 0 to `count` - 1.

    Foreign members (see the module) get an empty one. If all are foreign, nothing is assigned.
    """
    claims: dict[str, _Claims] = {}
    foreign: dict[str, str] = {}
    for member, data in sorted(subscriptions.items()):
        try:
            claims[member] = _claims(topic, data)
        except ProtocolError as error:
            foreign[member] = error.message
    indexes_by_member: dict[str, list[int]] = {member: [] for member in subscriptions}
    if claims:
        for index, owner in enumerate(_owners(count, claims)):
            if owner is not None:
                indexes_by_member[owner].append(index)
    return Assigned(
        {
            member: encode_assignment(topic, indexes)
            for member, indexes in indexes_by_member.items()
        },
        foreign,
    )


def _owners(count: int, claims: Mapping[str, _Claims]) -> list[str | None]:
    """The new owner of each partition; None while a partition that moves has its former owner."""
    claimants = [
        [
            (claim.generation, member)
            for member, claim in claims.items()
            if index in claim.partitions
        ]
        for index in range(count)
    ]
    owners = [
        max(partition_claims)[1] if partition_claims else None for partition_claims in claimants
    ]
    return [
        member if owner in (None, member) and not _disputed(partition_claims) else None
        for member, owner, partition_claims in zip(
            shared(owners, list(claims)), owners, claimants, strict=True
        )
    ]


def shared(owners: Sequence[str | None], members: Sequence[str]) -> list[str]:
    """The member that each partition should go to, so that each run of partitions is balanced.

    Along the partitions, each member's deficit grows by an equal part of each partition,
    and shrinks by a whole one for each partition that it gets. An unowned partition goes to the
    member with the largest deficit; ties go to the member that owns fewest.

    An owner keeps a partition, unless another member's deficit exceeds its own by a whole partition
    and that member owns none yet (it has just joined), or by two partitions (this corrects what
    many moves have left uneven). Applied to its own result, the function changes nothing.

    Args:
        owners: of partitions 0, 1, ...; None: unowned. An owner that is no member counts as None.
        members: at least one.
    """
    unit = len(members)  # one partition in units in which each member's equal part of it is 1
    deficits = dict.fromkeys(members, 0)
    owned_counts = Counter(owners)
    result = []
    for owner in owners:
        for member in members:
            deficits[member] += 1
        neediest = max(members, key=lambda member: (deficits[member], -owned_counts[member]))
        margin = 2 * unit if owned_counts[neediest] else unit
        keeps = owner in deficits and deficits[neediest] - deficits[owner] < margin
        result.append(owner if owner is not None and keeps else neediest)
        deficits[result[-1]] -= unit
    return result


def foreign_reason(topic: str, data: bytes) -> str:
    """Why a member with this subscription is foreign (see the module); empty if it is a lane."""
    try:
        _claims(topic, data)
    except ProtocolError as error:
        return error.message
    return ""


def _claims(topic: str, data: bytes) -> _Claims:
    """What a lane claims.

    Raises:
        ProtocolError: the member is foreign.
    """
    try:
        subscription = ConsumerProtocolSubscription.decode(data)
        version = int.from_bytes(data[:2], "big")
        topics, mark = list(subscription.topics), bytes(subscription.user_data or b"")
        owned_lists = [
            t.partitions for t in subscription.owned_partitions or () if t.topic == topic
        ]
        claims = _Claims(
            frozenset(p for indexes in owned_lists for p in indexes), subscription.generation_id
        )
    except Exception as error:  # any bytes may arrive; the exceptions they cause are unspecified
        raise ProtocolError(f"cannot decode its subscription: {error!r}") from error
    if topics != [topic]:
        raise ProtocolError(f"it subscribes to {few(topics) or 'no topic'}, expected {topic}")
    older_lane = not mark and version == _SUBSCRIPTION_VERSION
    if mark != MARK and not older_lane:
        raise ProtocolError(f"it subscribes to {topic}, but is another application")
    return claims


def _disputed(claimants: Sequence[tuple[int, str]]) -> bool:
    """Whether two members claim a partition in its newest generation."""
    newest = max(claimants, default=(0, ""))[0]
    return sum(generation == newest for generation, _ in claimants) > 1
