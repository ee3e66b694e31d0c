"""Twin of twinlog.engines.exact.proof: an empty or short answer proves nothing, and is repeated."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from batch_builders import ABORT, COMMIT, altered, batch, holed, marker, record

from twinlog.engines.exact.proof import Claim, Differs, Proven, Result, Unread, prove
from twinlog.engines.ports import DestinationPort, SourcePort
from twinlog.kafka.log.batch import LOG_APPEND_TIME, TRANSACTIONAL, batches
from twinlog.kafka.log.compression import MAX_DECOMPRESSED, Codec
from twinlog.kafka.log_reader import ReadAlone
from twinlog.kafka.protocol.fetch import Fetched
from twinlog.kafka.requests.fetch_requests import failed
from twinlog.kafka.types import UNKNOWN_EPOCH, Offset, TopicPartition
from twinlog.mirror.plan import MAX_PIECES

KEY = TopicPartition("t", 0)
LOG = b"".join(batch([record(at, value=b"%d" % at)]) for at in range(10))


@dataclass
class Scripted:
    """A cluster with one log; its fields decide what it answers."""

    log: bytes = LOG
    crowded: bool = False  # an answer to many partitions has no room for this one
    silent: bool = False  # an answer to this partition alone has no records either
    batches: int = 100  # in one answer
    throttle_ms: int = 0
    emptied: bool = False  # by a quota: the answer names no partition
    alone: list[int] = field(default_factory=list)

    def answer(self, offset: int) -> Fetched:
        found = [h for h in batches(memoryview(self.log)) if h.next_offset > offset]
        data = b"".join(self.log[h.position : h.end] for h in found[: self.batches])
        return Fetched(0, 10, 10, 0, (), memoryview(b"" if self.silent else data))

    async def read(
        self, partitions: Mapping[TopicPartition, int], *, partition_max_bytes: int
    ) -> Mapping[TopicPartition, Fetched]:
        del partition_max_bytes
        if self.emptied:
            return {}
        first, self.crowded = not self.crowded, False
        nothing = memoryview(b"")
        found = {p: self.answer(offset) for p, offset in partitions.items()}
        return found if first else {p: f._replace(records=nothing) for p, f in found.items()}

    async def read_alone(self, partition: TopicPartition, offset: int, **_: int) -> ReadAlone:
        assert partition == KEY
        self.alone.append(offset)
        if self.emptied:
            return ReadAlone(failed(0), self.throttle_ms, 0, 0, True)
        return ReadAlone(self.answer(offset), self.throttle_ms, 0, 0, True)


def proven(
    source: Scripted,
    destination: Scripted,
    *,
    compacted: bool = False,
    source_start: int = 0,
    log_end: int = 10,
    max_bytes: int = MAX_DECOMPRESSED,
    source_compacts: bool | None = False,
) -> Result:
    claim = Claim(Offset(log_end), Offset(0), Offset(source_start), compacted, UNKNOWN_EPOCH)
    ports = cast("SourcePort", source), cast("DestinationPort", destination)
    return asyncio.run(prove(*ports, {KEY: claim}, max_bytes, lambda _: source_compacts))[KEY]


def test_equal_logs_are_proven() -> None:
    assert proven(Scripted(), Scripted()) == Proven(fresh=False, compared=True)


def test_a_deleted_source_offset_is_fetched_to_prove_its_deletion() -> None:
    """Goal: an answer that a quota has emptied is no proof that the topic is still the same."""
    deleted = proven(Scripted(), Scripted(), source_start=10)
    assert deleted == Proven(fresh=False, compared=False)
    throttled = Scripted(emptied=True, throttle_ms=500)
    assert isinstance(proven(throttled, Scripted(), source_start=10), Unread)
    assert throttled.alone == [10]


def test_a_different_record_differs() -> None:
    other = LOG[: -len(batch([record(9)]))] + batch([record(9, value=b"x")])
    result = proven(Scripted(), Scripted(other))
    assert isinstance(result, Differs)
    assert "at offset 9" in result.reason


def test_partitions_without_room_in_an_answer_are_fetched_alone() -> None:
    """Goal: a partition behind other partitions' bytes is compared like any other (A7)."""
    other = LOG[: -len(batch([record(9)]))] + batch([record(9, value=b"x")])
    assert isinstance(proven(Scripted(crowded=True), Scripted(other, crowded=True)), Differs)
    source = Scripted(crowded=True)
    assert proven(source, Scripted(crowded=True)) == Proven(fresh=False, compared=True)
    assert source.alone == [9]


def test_a_merged_batch_is_compared_to_its_end() -> None:
    """Goal: where the source has smaller batches, it is read until the batch is covered."""
    good = batch([record(at, value=b"%d" % at) for at in range(10)])
    bad = batch([*(record(at, value=b"%d" % at) for at in range(9)), record(9, value=b"x")])
    source = Scripted(batches=3)
    assert proven(source, Scripted(good)) == Proven(fresh=False, compared=True)
    assert source.alone == [3, 6, 9]
    assert isinstance(proven(Scripted(batches=3), Scripted(bad)), Differs)


def test_an_empty_answer_proves_nothing() -> None:
    """Goal: an empty answer proves nothing, from the source or from the destination."""
    assert isinstance(proven(Scripted(silent=True), Scripted()), Unread)
    assert isinstance(proven(Scripted(), Scripted(silent=True)), Unread)


def test_an_empty_answer_counts_as_compaction_without_a_throttle_only() -> None:
    """Goal: an empty answer counts as compaction only when no quota explains it."""
    shorter = Scripted(LOG[: -len(batch([record(9)]))])
    assert proven(shorter, Scripted(), compacted=True) == Proven(fresh=False, compared=False)
    shorter.throttle_ms = 5
    assert isinstance(proven(shorter, Scripted(), compacted=True), Unread)


def test_a_foreign_record_at_a_compacted_offset_is_not_proven() -> None:
    """Goal: another producer's record is not taken for one that the source has compacted."""
    size = len(batch([record(9)]))
    source = LOG[: -2 * size] + batch([record(9, value=b"9")])
    other = LOG[: -2 * size] + batch([record(8, value=b"x")]) + marker(9, 1, COMMIT)
    skips = proven(Scripted(source[:-size]), Scripted(other), compacted=True)
    assert skips == Proven(fresh=False, compared=False)
    mirrored = LOG[: -3 * size] + batch([record(7, value=b"7")]) + marker(8, 1, COMMIT)
    both = mirrored + batch([record(9, value=b"9")])
    assert proven(Scripted(source), Scripted(both), compacted=True) == Proven(
        fresh=False, compared=True
    )


@pytest.mark.parametrize("markers", [1, 9])
def test_a_foreign_record_after_small_batches_is_not_proven(markers: int) -> None:
    """Goal: small batches are planned as one piece; that its first ones are equal is not enough."""
    source = LOG + batch([record(11 + markers)])
    destination_log = LOG + batch([record(10, value=b"foreign")])
    destination_log += b"".join(marker(11 + at, 1, COMMIT) for at in range(markers))
    ports = Scripted(source), Scripted(destination_log)
    found = proven(*ports, compacted=True, log_end=11 + markers, source_compacts=True)
    assert found == Proven(fresh=False, compared=False)


@pytest.mark.parametrize("compacted", [True, False])
def test_only_source_compaction_explains_a_skipped_offset(compacted: bool) -> None:
    """Goal: only compaction on the source explains it, whatever the destination's policy is."""
    size = len(batch([record(9)]))
    source = LOG[: -3 * size] + LOG[-size:]
    destination_log = LOG[: -3 * size] + batch([record(at, value=b"%d" % at) for at in (7, 8, 9)])
    how = {"compacted": compacted}
    assert proven(
        Scripted(source), Scripted(destination_log), source_compacts=True, **how
    ) == Proven(fresh=False, compared=True)
    found = proven(Scripted(source), Scripted(destination_log), source_compacts=False, **how)
    assert isinstance(found, Differs)
    assert (found.lasting, "at offset 7" in found.reason) == (False, True)
    unknown = proven(Scripted(source), Scripted(destination_log), source_compacts=None, **how)
    assert isinstance(unknown, Unread)


def test_an_earlier_batch_is_compared_if_the_end_was_compacted() -> None:
    """Goal: an earlier batch is compared."""
    size = len(batch([record(9)]))
    shorter = LOG[: -2 * size]
    assert proven(Scripted(), Scripted(shorter), compacted=True) == Proven(
        fresh=False, compared=True
    )
    bad = LOG[: -3 * size] + batch([record(7, value=b"x")])
    assert isinstance(proven(Scripted(), Scripted(bad), compacted=True), Differs)
    assert isinstance(proven(Scripted(), Scripted(shorter)), Unread)


def test_the_batch_before_a_marker_is_compared() -> None:
    """Goal: a foreign transaction before it is found, even if a source's transaction ends there."""
    size = len(batch([record(9)]))
    source, other = LOG[: -2 * size], LOG[: -2 * size]
    source += batch([record(8, value=b"8")]) + marker(9, 1, COMMIT)
    other += batch([record(8, value=b"x")], attributes=TRANSACTIONAL, producer_id=5)
    other += marker(9, 5, COMMIT)
    assert proven(Scripted(source), Scripted(source)) == Proven(fresh=False, compared=True)
    found = proven(Scripted(source), Scripted(other))
    assert isinstance(found, Differs)
    assert "at offset 8" in found.reason


def test_an_undecodable_batch_before_a_marker_is_retried() -> None:
    """Goal: it is retried; an error here would also stop the mirror's other partitions."""
    size = len(batch([record(9)]))
    source = LOG[: -2 * size] + batch([record(8, value=b"8")]) + marker(9, 1, COMMIT)
    bad = batch([record(8)], Codec.ZSTD, attributes=LOG_APPEND_TIME)
    destination_log = LOG[: -2 * size] + altered(bad, body=b"no zstd frame") + marker(9, 5, COMMIT)
    found = proven(Scripted(source), Scripted(destination_log))
    assert isinstance(found, Unread)
    assert "zstd" in found.reason


def test_aborted_data_before_a_marker_is_no_data() -> None:
    """Goal: an old source's own aborted transaction, a gap in the other cluster, is no data."""
    size = len(batch([record(9)]))
    source = LOG[: -2 * size] + marker(8, 1, ABORT) + marker(9, 1, ABORT)
    destination_log = LOG[: -2 * size] + batch([record(8)], attributes=TRANSACTIONAL, producer_id=5)
    destination_log += marker(9, 5, ABORT)
    assert proven(Scripted(source), Scripted(destination_log)) == Proven(fresh=False, compared=True)
    lost = LOG[: -2 * size] + batch([record(8)]) + marker(9, 1, COMMIT)
    assert isinstance(proven(Scripted(lost), Scripted(destination_log)), Differs)


def test_a_log_with_only_markers_is_proven_without_comparison() -> None:
    """Goal: such a log was filled, and has nothing else to compare."""
    filled = b"".join(marker(at, 1, ABORT) for at in range(10))
    result = proven(Scripted(filled), Scripted(filled, batches=2))
    assert result == Proven(fresh=False, compared=False)


def test_records_appended_after_the_end_was_read_prove_nothing() -> None:
    """Goal: foreign records are found, although the log has grown since its end was read.

    The new records are a foreign producer's, or a late batch of a former owner.
    """
    size = len(batch([record(9)]))
    source = LOG + batch([record(10, value=b"10")])
    other = LOG[:-size] + batch([record(9, value=b"x")])
    late = batch([record(10, value=b"10")])
    foreign = batch([record(9, value=b"x")], attributes=TRANSACTIONAL, producer_id=5)
    for grown in (
        other + late,
        LOG[: -2 * size] + batch([record(8, value=b"x")]) + marker(9, 5, COMMIT) + late,
        LOG[:-size] + foreign + marker(10, 5, COMMIT),
        LOG[:-size] + foreign + marker(10, 5, COMMIT) + batch([record(11)]),
    ):
        found = proven(Scripted(source), Scripted(grown))
        assert isinstance(found, Differs), grown
    assert proven(Scripted(source), Scripted(source)) == Proven(fresh=False, compared=True)


def test_a_last_batch_with_many_holes_is_compared_to_its_end() -> None:
    """Goal: what the destination's cleaner has left of a long batch is compared to its end."""
    end = 3 * MAX_PIECES
    every = [(at, at) for at in range(end)]
    left = every[::2]
    source = Scripted(holed(0, end - 1, every) + marker(end, 1, COMMIT))
    cleaned = Scripted(holed(0, end - 1, left) + marker(end, 5, COMMIT))
    other = Scripted(holed(0, end - 1, [*left[:-1], (end - 2, 0)]) + marker(end, 5, COMMIT))
    known: dict[str, Any] = {"compacted": True, "log_end": end + 1}
    assert proven(source, cleaned, **known) == Proven(fresh=False, compared=True)
    assert isinstance(proven(source, other, **known), Differs)


def test_a_batch_that_decompresses_beyond_the_limit_is_not_held() -> None:
    """Goal: a lane that takes over holds no more of a source in memory than one that mirrors.

    This covers a batch that is decoded for the comparison, and answers that are longer than the
    requested size.
    """
    large = bytes(4 << 20)
    bomb = batch([record(0, value=large), *map(record, range(1, 10))], Codec.ZSTD)
    limit = 1 << 20
    for destination in (LOG, _merged(9)):  # of the latter all of it is compared
        result = proven(Scripted(bomb), Scripted(destination), max_bytes=limit)
        assert isinstance(result, Unread)
        assert f"decompresses to more than {limit}" in result.reason
    assert isinstance(proven(Scripted(bomb), Scripted()), Differs)
    endless = b"".join(batch([record(at, value=bytes(40_000))]) for at in range(9))
    answers = Scripted(endless, batches=1)
    result = proven(answers, Scripted(_merged(9)), max_bytes=100_000)
    assert isinstance(result, Unread)
    assert "the source answers with more than" in result.reason
    assert len(answers.alone) < 4


def _merged(last: int) -> bytes:
    return batch([record(at, value=b"%d" % at) for at in range(last + 1)])


@pytest.mark.parametrize("decoded", ["for the plan", "for the comparison"])
def test_other_tasks_run_while_a_large_batch_is_decoded(decoded: str) -> None:
    """Goal: heartbeats go on, whatever a producer of the source puts into a batch."""
    many = [record(at, value=None) for at in range(20_000)]
    last = many[-1:] if decoded == "for the plan" else many
    source, destination = batch(many, Codec.ZSTD), batch(last)
    claim = Claim(Offset(len(many)), Offset(0), Offset(0), False, UNKNOWN_EPOCH)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async def run() -> Result:
        other = asyncio.create_task(count())
        ports = cast("SourcePort", Scripted(source)), cast("DestinationPort", Scripted(destination))
        try:
            return (await prove(*ports, {KEY: claim}, MAX_DECOMPRESSED, lambda _: False))[KEY]
        finally:
            other.cancel()

    assert asyncio.run(run()) == Proven(fresh=False, compared=True)
    assert turns >= 4


@dataclass
class Sized:
    """A cluster of one broker, whose answers have the sizes of a real broker's (KIP-74).

    It answers each partition with a limited number of bytes, cut within a batch. A first batch that
    is longer comes whole if nothing is before it in the answer; otherwise none of it comes.
    """

    logs: Mapping[TopicPartition, bytes]
    answered: int = 0  # bytes

    def answer(self, partition: TopicPartition, offset: int, size: int) -> Fetched:
        log = self.logs[partition]
        begins = next(h for h in batches(memoryview(log)) if h.next_offset > offset)
        length = begins.end - begins.position
        if length > size:
            size = 0 if self.answered else length
        data = memoryview(log[begins.position : begins.position + size])
        self.answered += len(data)
        return Fetched(0, 10, 10, 0, (), data)

    async def read(
        self, partitions: Mapping[TopicPartition, int], *, partition_max_bytes: int
    ) -> Mapping[TopicPartition, Fetched]:
        self.answered = 0
        return {p: self.answer(p, at, partition_max_bytes) for p, at in partitions.items()}

    async def read_alone(
        self, partition: TopicPartition, offset: int, *, max_wait_ms: int, partition_max_bytes: int
    ) -> ReadAlone:
        del max_wait_ms
        found = await self.read({partition: offset}, partition_max_bytes=partition_max_bytes)
        return ReadAlone(found[partition], 0, 0, 0, True)


KEYS = [TopicPartition("t", index) for index in range(3)]
LARGE = b"x" * (3 << 19)


def ending(*batches_of: Sequence[bytes]) -> bytes:
    """Build a log that ends with these batches of values at offset 10, behind small ones."""
    start = 10 - sum(map(len, batches_of))
    log = b"".join(batch([record(at, value=b"%d" % at)]) for at in range(start))
    for values in batches_of:
        log += batch([record(start + at, value=value) for at, value in enumerate(values)])
        start += len(values)
    return log


@pytest.mark.parametrize("place", range(len(KEYS)))
@pytest.mark.parametrize(
    "source_log",
    [ending([LARGE, LARGE]), ending([LARGE], [LARGE])],
    ids=["one batch", "two batches on the source"],
)
def test_last_batches_above_1_mib_are_compared_to_the_end(place: int, source_log: bytes) -> None:
    """Goal: each is compared to its end, at any place in an answer to many (A7)."""
    same, other = ending([LARGE, LARGE]), ending([LARGE, LARGE[:-1] + b"y"])
    claims = dict.fromkeys(KEYS, Claim(Offset(10), Offset(0), Offset(0), False, UNKNOWN_EPOCH))

    def proved(destination_log: Mapping[TopicPartition, bytes]) -> dict[TopicPartition, Result]:
        ports = Sized(dict.fromkeys(KEYS, source_log)), Sized(destination_log)
        return asyncio.run(
            prove(
                cast("SourcePort", ports[0]),
                cast("DestinationPort", ports[1]),
                claims,
                MAX_DECOMPRESSED,
                lambda _: False,
            )
        )

    equal = dict.fromkeys(KEYS, same)
    proven_all = dict.fromkeys(KEYS, Proven(fresh=False, compared=True))
    assert proved(equal) == proven_all
    found = proved(equal | {KEYS[place]: other})
    differs = found.pop(KEYS[place])
    assert isinstance(differs, Differs)
    assert "at offset 9" in differs.reason
    del proven_all[KEYS[place]]
    assert found == proven_all
