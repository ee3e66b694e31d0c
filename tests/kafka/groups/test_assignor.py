"""The leader's part of a rebalance, without a broker: two rounds, and never two owners."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer.metadata import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)

from twinlog.kafka.errors import ProtocolError
from twinlog.kafka.groups.assignor import (
    assign,
    decode_assignment,
    encode_assignment,
    encode_subscription,
    foreign_reason,
)

TOPIC = "t"
COUNT = 50
ROUNDS = 4
MEMBERS = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=8, unique=True)


def _round(
    owned: dict[str, frozenset[int]], generations: dict[str, int] | None = None
) -> dict[str, frozenset[int]]:
    """Return each member's assignment, if each reports the partitions that it owns."""
    subscriptions = {
        member: encode_subscription(TOPIC, partitions, (generations or {}).get(member, 1))
        for member, partitions in owned.items()
    }
    given = assign(TOPIC, COUNT, subscriptions).assignments
    return {member: decode_assignment(TOPIC, data) for member, data in given.items()}


def _settle(owned: dict[str, frozenset[int]]) -> dict[str, frozenset[int]]:
    for _ in range(ROUNDS):
        given = _round(owned)
        for member, partitions in given.items():
            others = [o for m, o in owned.items() if m != member]
            assert not any(partitions & other for other in others), "given while another owns it"
        if given == owned:
            return owned
        owned = given
    raise AssertionError(f"no end after {ROUNDS} rounds")


@given(before=MEMBERS, after=MEMBERS)
def test_partitions_stay_balanced_when_members_join_and_leave(
    before: list[str], after: list[str]
) -> None:
    """Each partition has one owner, evenly, within few rounds; remaining members keep most."""
    first = _settle(dict.fromkeys(before, frozenset()))
    second = _settle({member: first.get(member, frozenset()) for member in after})
    for owned in (first, second):
        assert sorted(p for partitions in owned.values() for p in partitions) == list(range(COUNT))
        sizes = {len(partitions) for partitions in owned.values()}
        assert max(sizes) - min(sizes) <= 1
    for member in set(before) & set(after):
        kept = len(first[member] & second[member])
        assert kept == min(len(first[member]), len(second[member]))


def _largest_share(owned: dict[str, frozenset[int]], run: int) -> int:
    """Return the largest number of partitions among `run` neighbours that one member has."""
    runs = [{(first + at) % COUNT for at in range(run)} for first in range(COUNT)]
    return max(len(partitions & run) for partitions in owned.values() for run in runs)


def test_the_partitions_of_a_topic_are_spread_over_members() -> None:
    """A topic's partitions are neighbours: of eight, two members have four each.

    This holds if one had all when the other joined, and if both joined at the same time.
    """
    both = _settle({"a": frozenset(), "b": frozenset()})
    assert _largest_share(both, 8) == 4
    again = _settle({"a": frozenset(range(COUNT)), "b": frozenset()})
    assert _largest_share(again, 8) == 4
    assert _largest_share(again, 13) <= 7
    for two in (both, again):
        three = _settle({**two, "c": frozenset()})
        assert _largest_share(three, 8) <= 4
        assert _largest_share(three, 13) <= 6
    left = _settle({"a": three["a"], "b": three["b"]})
    assert _largest_share(left, 8) <= 5


@given(history=st.lists(MEMBERS, min_size=1, max_size=8))
def test_shares_stay_nearly_even_through_any_history(history: list[list[str]]) -> None:
    """Nearly even: a remaining member does not give up all partitions that exact shares need."""
    owned: dict[str, frozenset[int]] = {}
    for members in history:
        owned = _settle({member: owned.get(member, frozenset()) for member in members})
        sizes = {len(partitions) for partitions in owned.values()}
        assert sum(map(len, owned.values())) == COUNT
        assert max(sizes) - min(sizes) <= 2


def test_the_claim_of_the_newest_generation_wins() -> None:
    """A member that rejoins with partitions of an old generation does not get them (KIP-792)."""
    everything = frozenset(range(COUNT))
    given = _round({"old": everything, "new": everything}, {"old": 3, "new": 7})
    assert given["old"] == frozenset()
    assert len(given["new"]) == COUNT // 2


def test_a_partition_claimed_twice_in_one_generation_is_not_assigned() -> None:
    """Neither claim is believed: both give it up first, and the next round assigns it to one."""
    given = _round({"a": frozenset(range(10)), "b": frozenset(range(5, 15)), "c": frozenset()})
    assert not any(set(range(5, 10)) & partitions for partitions in given.values())
    owned = _settle({"a": given["a"], "b": given["b"], "c": given["c"]})
    assert sorted(p for partitions in owned.values() for p in partitions) == list(range(COUNT))


@given(
    claims=st.dictionaries(
        st.sampled_from("abcde"),
        st.tuples(st.frozensets(st.integers(0, COUNT - 1)), st.integers(-1, 5)),
        min_size=1,
    )
)
def test_a_partition_of_a_newer_owner_is_never_assigned_to_another_member(
    claims: dict[str, tuple[frozenset[int], int]],
) -> None:
    """The one property that the append depends on, over all histories of a group."""
    given = _round({m: c[0] for m, c in claims.items()}, {m: c[1] for m, c in claims.items()})
    seen: set[int] = set()
    for member, partitions in given.items():
        assert not partitions & seen
        seen |= partitions
        for partition in partitions:
            owners = {m: c[1] for m, c in claims.items() if partition in c[0]}
            assert not owners or owners.get(member) == max(owners.values())


@given(st.frozensets(st.integers(0, 2**31 - 1), max_size=20))
def test_an_assignment_survives_encoding_and_decoding(partitions: frozenset[int]) -> None:
    assert decode_assignment(TOPIC, encode_assignment(TOPIC, partitions)) == partitions
    assert decode_assignment("other", encode_assignment(TOPIC, partitions)) == frozenset()


def test_an_empty_assignment_has_no_partitions() -> None:
    assert decode_assignment(TOPIC, b"") == frozenset()


@given(st.binary(min_size=1, max_size=40))
def test_any_bytes_give_an_assignment_or_a_protocol_error(data: bytes) -> None:
    try:
        decode_assignment(TOPIC, data)
    except ProtocolError:
        return


def _subscription(topics: list[str], user_data: bytes | None = b"", version: int = 1) -> bytes:
    """Return the subscription that another application sends."""
    subscription = ConsumerProtocolSubscription(topics=topics, user_data=user_data)
    return bytes(subscription.encode(version=version))


@pytest.mark.parametrize(
    ("foreign", "reason"),
    [
        (_subscription(["orders"]), "it subscribes to orders, expected t"),
        (_subscription([]), "it subscribes to no topic, expected t"),
        (_subscription([TOPIC, "orders"]), "it subscribes to t, orders, expected t"),
        (_subscription([TOPIC], b"\0\0\0\1"), "it subscribes to t, but is another application"),
        (_subscription([TOPIC], version=1), "it subscribes to t, but is another application"),
        # librdkafka's first subscription
        (_subscription([TOPIC], None, version=3), "it subscribes to t, but is another application"),
        (b"", "cannot decode its subscription: "),
        (b"\0", "cannot decode its subscription: "),
    ],
)
def test_a_foreign_member_gets_no_partitions(foreign: bytes, reason: str) -> None:
    """Lanes share all partitions, whatever else is in the group; a foreign member is named."""
    lane_subscriptions = {
        "a": encode_subscription(TOPIC, (), 1),
        "z": encode_subscription(TOPIC, (), 1),
    }
    given = assign(TOPIC, COUNT, {**lane_subscriptions, "m": foreign})
    assert {member: why.startswith(reason) for member, why in given.foreign.items()} == {"m": True}
    got = {member: decode_assignment(TOPIC, data) for member, data in given.assignments.items()}
    assert got["m"] == frozenset()
    assert got["a"] | got["z"] == set(range(COUNT))
    assert not got["a"] & got["z"]
    # Java's consumer treats fewer than two bytes as an error of the leader's.
    assert ConsumerProtocolAssignment.decode(given.assignments["m"]).assigned_partitions == []
    assert foreign_reason(TOPIC, foreign).startswith(reason)
    assert foreign_reason(TOPIC, lane_subscriptions["a"]) == ""


def test_a_group_of_only_foreign_members_gets_no_partitions() -> None:
    given = assign(TOPIC, COUNT, {"m": b""})
    assert given.assignments.keys() == given.foreign.keys() == {"m"}


def test_claims_of_a_foreign_member_are_ignored() -> None:
    """The partition goes to a lane at once, whatever generation the claim has."""
    item = ConsumerProtocolSubscription.TopicPartition
    claim = ConsumerProtocolSubscription(
        topics=[TOPIC, "orders"],
        user_data=b"",
        owned_partitions=[item(topic=TOPIC, partitions=list(range(COUNT)))],
        generation_id=9,
    )
    given = assign(
        TOPIC, COUNT, {"a": encode_subscription(TOPIC, (), 1), "m": bytes(claim.encode(version=2))}
    )
    assert decode_assignment(TOPIC, given.assignments["a"]) == frozenset(range(COUNT))


def test_lanes_of_an_older_version_are_not_foreign() -> None:
    """Before the mark, user data was empty: both versions share partitions in a rolling upgrade."""
    old = ConsumerProtocolSubscription(
        topics=[TOPIC], user_data=b"", owned_partitions=[], generation_id=1
    )
    given = assign(
        TOPIC,
        COUNT,
        {"new": encode_subscription(TOPIC, (), 1), "old": bytes(old.encode(version=2))},
    )
    assert not given.foreign
    sizes = [len(decode_assignment(TOPIC, data)) for data in given.assignments.values()]
    assert sizes == [COUNT // 2] * 2
