"""Transactions whose entries do not fit into one batch of max.message.bytes."""

from twinlog.kafka.types import TopicPartition
from twinlog.store.topic_writer import PART_BYTES, Entry, _parts

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def entries(partition: TopicPartition, count: int, size: int) -> list[Entry]:
    """Entries with so many bytes each, by number."""
    return [Entry(*partition, b"%06d" % number, b"v" * (size - 6)) for number in range(count)]


def test_entries_stay_in_order_in_parts_that_brokers_accept() -> None:
    """Goal: each entry once, in order within its partition, however many there are."""
    groups = {A: entries(A, 20_000, 100), B: entries(B, 3, 100)}
    parts = list(_parts(groups))
    assert len(parts) == 4
    assert [B in part for part in parts] == [True] + [False] * 3
    assert [one for part in parts for one in part.get(A, [])] == groups[A]
    assert [one for part in parts for one in part.get(B, [])] == groups[B]
    sizes = [sum(len(one.key) + len(one.value or b"") for one in part[A]) for part in parts]
    assert max(sizes) <= PART_BYTES


def test_an_entry_that_is_longer_than_a_part_is_one_of_its_own() -> None:
    groups = {A: entries(A, 3, PART_BYTES + 1)}
    assert [len(part[A]) for part in _parts(groups)] == [1, 1, 1]
    assert list(_parts({})) == []
