"""Who gets which partitions: the consumer protocol's bytes, and the leader's part of a rebalance.

The coordinator only carries bytes. Each member sends a *subscription* (the topic, the partitions
that it owns, the generation in which it got them); the member that the coordinator names leader
computes an *assignment* for each, with kafka-python's cooperative sticky assignor (KIP-429). Of a
partition that moves, the first round takes it from its owner and gives it to nobody; the owner
revokes it and rejoins, and the second round gives it to the new one. So no partition ever has two.

The generation (subscription version 2, KIP-792) is for a member that comes back with partitions of
an old generation. kafka-python's assignor takes such a claim for ownership, and would give the
partition away under the member that has it now (test_the_newest_generation_is_believed). So claims
are settled before it sees them: the newest one counts, and where two of one generation claim the
same, which no correct group does, nobody gets the partition in this round.

The assignor deals partitions out in turn, and a member that has none gets the last ones of another.
A mirror's partitions stand in `__mirror_state` one after the other (core/placement.py), so that the
last ones may be all that there is to do. So it sees the partitions in another order (`_order`), in
which both what goes in turn and what stands together is spread.
"""

from collections.abc import Iterable, Mapping
from itertools import zip_longest
from typing import Any, Final, NamedTuple

from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.protocol.consumer.metadata import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)

from twinlog.core.errors import ProtocolError

PROTOCOL_TYPE: Final = "consumer"
PROTOCOL_NAME: Final = CooperativeStickyAssignor.name

_SUBSCRIPTION_VERSION: Final = 2
_ASSIGNMENT_VERSION: Final = 1
_GOLDEN: Final = 0x61C88647
"""2^32 less the golden ratio's part of it: multiples of it, in 32 bits, are spread evenly."""
_MASK: Final = (1 << 32) - 1


class _Member(NamedTuple):
    """A member as the assignor wants it."""

    member_id: str
    metadata: Any


class _Topics:
    """The metadata that the assignor asks for."""

    def __init__(self, topic: str, count: int) -> None:
        self._partitions = {topic: set(range(count))}

    def topics(self) -> set[str]:
        return set(self._partitions)

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return self._partitions.get(topic)


def encode_subscription(topic: str, owned: Iterable[int], generation: int) -> bytes:
    """What a member tells the leader: the topic, what it owns, and since which generation."""
    item = ConsumerProtocolSubscription.TopicPartition
    partitions = sorted(owned)
    subscription = ConsumerProtocolSubscription(
        topics=[topic],
        user_data=b"",
        owned_partitions=[item(topic=topic, partitions=partitions)] if partitions else [],
        generation_id=generation,
    )
    return bytes(subscription.encode(version=_SUBSCRIPTION_VERSION))


def encode_assignment(topic: str, partitions: Iterable[int]) -> bytes:
    """What the leader gives a member."""
    item = ConsumerProtocolAssignment.TopicPartition
    assignment = ConsumerProtocolAssignment(
        assigned_partitions=[item(topic=topic, partitions=sorted(partitions))], user_data=b""
    )
    return bytes(assignment.encode(version=_ASSIGNMENT_VERSION))


def decode_assignment(topic: str, data: bytes) -> frozenset[int]:
    """The partitions of `topic` in an assignment; no bytes are none.

    Raises:
        ProtocolError: the bytes are no assignment.
    """
    if not data:
        return frozenset()
    try:
        assignment = ConsumerProtocolAssignment.decode(data)
        return frozenset(
            p for t in assignment.assigned_partitions if t.topic == topic for p in t.partitions
        )
    except Exception as error:  # any bytes may come; which exceptions they cause is unspecified
        raise ProtocolError(f"a group's assignment cannot be read: {error!r}") from error


def assign(topic: str, count: int, subscriptions: Mapping[str, bytes]) -> dict[str, bytes]:
    """The leader's part: an assignment for each member id, of partitions 0 to `count` - 1.

    Raises:
        ProtocolError: a member's bytes are no subscription.
    """
    try:
        members = [
            _Member(member_id, ConsumerProtocolSubscription.decode(data))
            for member_id, data in sorted(subscriptions.items())
        ]
        disputed = _settle_claims(topic, members)
    except Exception as error:  # any bytes may come; which exceptions they cause is unspecified
        raise ProtocolError(f"a group member's subscription cannot be read: {error!r}") from error
    order = _order(count)
    given = CooperativeStickyAssignor().assign(
        _Topics(topic, count), [_ordered(member, topic, order) for member in members]
    )
    return {
        member_id: encode_assignment(
            topic,
            (
                order[place]
                for name, places in decided.assigned_partitions
                for place in places
                if name == topic and order[place] not in disputed
            ),
        )
        for member_id, decided in given.items()
    }


def _order(count: int) -> list[int]:
    """The partitions as the assignor sees them: even ones and odd ones in turn, each spread."""
    halves = (
        sorted(range(first, count, 2), key=lambda p: (p >> 1) * _GOLDEN & _MASK) for first in (0, 1)
    )
    return [p for pair in zip_longest(*halves) for p in pair if p is not None]


def _ordered(member: _Member, topic: str, order: list[int]) -> _Member:
    """A member with the places of what it owns, instead of the partitions."""
    place = {partition: index for index, partition in enumerate(order)}
    for owned in member.metadata.owned_partitions or ():
        if owned.topic == topic:
            owned.partitions = sorted(place[p] for p in owned.partitions if p in place)
    return member


def _settle_claims(topic: str, members: list[_Member]) -> set[int]:
    """Leave each claim only to the newest generation's member; what two of one generation claim."""
    claims: dict[int, list[tuple[int, str]]] = {}
    for member_id, metadata in members:
        for owned in metadata.owned_partitions or ():
            if owned.topic == topic:
                for partition in owned.partitions:
                    claims.setdefault(partition, []).append((metadata.generation_id, member_id))
    newest = {partition: max(claimants) for partition, claimants in claims.items()}
    item = ConsumerProtocolSubscription.TopicPartition
    for member_id, metadata in members:
        kept = sorted(p for p, (_, owner) in newest.items() if owner == member_id)
        metadata.owned_partitions = [item(topic=topic, partitions=kept)] if kept else []
    return {
        partition
        for partition, claimants in claims.items()
        if sum(generation == newest[partition][0] for generation, _ in claimants) > 1
    }
