"""The plan against what a real consumer of the same log got, and against each odd batch."""

import random
from collections.abc import Iterator, Sequence
from typing import Any

import cramjam
import pytest
from batch_builders import (
    ABORT,
    BIG,
    COMMIT,
    THEN,
    altered,
    batch,
    captures,
    holed,
    joined,
    marker,
    record,
    runs,
)
from captures import NAMES, Capture, as_seen, capture, check_cover, records_of
from hypothesis import given
from hypothesis import strategies as st

from twinlog.kafka.errors import CorruptBatch
from twinlog.kafka.log.batch import (
    CONTROL,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    batches,
)
from twinlog.kafka.log.compression import Codec
from twinlog.kafka.log.merge import MERGED_BYTES, MERGED_DECOMPRESSED
from twinlog.kafka.log.records import decode, encode_tail, raw_records
from twinlog.kafka.types import AbortedTransaction, Offset
from twinlog.mirror.aborted import aborted_within
from twinlog.mirror.absence import Absence, AbsentSpan
from twinlog.mirror.plan import (
    MAX_PIECES,
    MAX_RUN,
    MAX_SPANS,
    MERGE_MAX_BYTES,
    MERGE_MAX_COUNT,
    MERGE_MAX_TRANSACTIONAL,
    MERGE_MIN_RUN,
    STEP_RECORDS,
    Data,
    Gap,
    Piece,
    finished,
    plan,
    plan_with_epoch,
    planning,
    planning_sound,
)

# ---- real logs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_plan_has_exactly_the_records_of_a_read_committed_consumer(name: str) -> None:
    """Goal: exactly the consumer's records, at their offsets, and no hole between pieces."""
    log = capture(name)
    pieces = plan(log.buffer, Offset(0), log.aborted.get(0, ()))
    assert check_cover(pieces, 0) == log.end
    assert records_of(pieces) == list(log.seen)


@pytest.mark.parametrize("name", ["transactions", "compacted", "append-time"])
def test_a_plan_from_any_offset_has_the_remaining_records(name: str) -> None:
    """Goal: with what a real Fetch from there lists, also at a marker and within a batch."""
    log = capture(name)
    for position in range(log.end):
        pieces = plan(log.answer(position), Offset(position), log.aborted.get(position, ()))
        assert check_cover(pieces, position) == log.end
        assert records_of(pieces) == [seen for seen in log.seen if seen.offset >= position]


@given(captures, st.data())
def test_a_plan_of_a_truncated_answer_continues_without_loss(
    log: Capture, data: st.DataObject
) -> None:
    """Goal: from any offset, cut anywhere; exactly the rest is fetched next."""
    position = data.draw(st.integers(0, log.end - 1))
    buffer = log.answer(position)
    cut = data.draw(st.integers(0, len(buffer)))
    first = plan(buffer[:cut], Offset(position), log.aborted.get(position, ()))
    middle = check_cover(first, position)
    rest: list[Piece] = []
    if middle < log.end:
        rest = plan(log.answer(middle), Offset(middle), log.aborted.get(middle, ()))
        assert check_cover(rest, middle) == log.end
    wanted = [seen for seen in log.seen if seen.offset >= position]
    assert records_of(first + rest) == wanted


@given(captures, st.data())
def test_batches_before_the_position_are_skipped(log: Capture, data: st.DataObject) -> None:
    """Goal: an answer may begin long before the requested offset."""
    position = data.draw(st.integers(0, log.end - 1))
    pieces = plan(log.buffer, Offset(position), log.aborted.get(0, ()))
    assert check_cover(pieces, position) == log.end
    assert records_of(pieces) == [seen for seen in log.seen if seen.offset >= position]


def test_large_real_batches_are_forwarded_unchanged() -> None:
    """Goal: forwarded batches are the source's own bytes."""
    log = capture("client-zstd")
    for piece in plan(log.buffer, Offset(0)):
        assert isinstance(piece, Data)
        if piece.header.num_records > MERGE_MAX_COUNT:
            header = piece.header
            assert piece.records == log.buffer[header.position + 61 : header.end]
            assert piece.size == 61 + len(piece.records)


# ---- synthetic logs ----------------------------------------------------------------------------


def planned(*batches: bytes, position: int = 0) -> list[Piece]:
    pieces = plan(memoryview(b"".join(batches)), Offset(position))
    if pieces:
        check_cover(pieces, position)
    return pieces


@given(runs(), st.data())
def test_merged_runs_contain_all_records(data: bytes, more: st.DataObject) -> None:
    """Goal: of whatever kinds and sizes the batches are, from any offset among them."""
    buffer = memoryview(data)
    headers = list(batches(buffer))
    base, end = headers[0].base_offset, headers[-1].next_offset
    position = more.draw(st.integers(max(base - 3, 0), end))
    wanted = [
        as_seen(decode(raw))
        for header in headers
        for raw in raw_records(header, header.records(buffer))
        if raw.offset >= position
    ]
    pieces = plan(buffer, Offset(position))
    assert check_cover(pieces, position) == end
    assert records_of(pieces) == wanted


@given(runs(), st.data())
def test_the_leader_epoch_is_that_of_the_last_complete_batch(
    data: bytes, more: st.DataObject
) -> None:
    """Goal: the epoch is that of the last complete one: forwarded, merged, or stamped anew."""
    headers, buffer = joined(data)
    cut = more.draw(st.integers(0, len(buffer)))
    start = Offset(headers[0].base_offset)
    planned = plan_with_epoch(buffer[:cut], start)
    whole = [header for header in headers if header.end <= cut]
    assert planned.leader_epoch == (whole[-1].leader_epoch if whole else -1)
    assert check_cover(planned.pieces, start) == (whole[-1].next_offset if whole else start)


def test_an_answer_without_a_complete_batch_has_no_pieces() -> None:
    """Goal: no batch, or none whole, is no piece; nor is one before the position."""
    one = batch([record(0), record(1)])
    assert planned() == planned(one[:-1]) == planned(one[:20]) == []
    assert planned(one, position=2) == planned(one, position=7) == []


@pytest.mark.parametrize("count", [1, MERGE_MIN_RUN - 1, MERGE_MIN_RUN, 15, 16, 50])
@pytest.mark.parametrize("codec", Codec)
def test_many_small_batches_are_merged(count: int, codec: Codec) -> None:
    """Goal: few are forwarded, which costs nothing; many are one Produce, not many."""
    pieces = planned(*(batch([record(at)], codec) for at in range(count)))
    assert len(pieces) == (count if count < MERGE_MIN_RUN else 1)


def test_large_batches_are_not_merged() -> None:
    """Goal: batches with many records or bytes are forwarded."""
    many = [record(at) for at in range(MERGE_MAX_COUNT + 1)]
    large = [record(9, value=bytes(MERGE_MAX_BYTES))]
    small = [batch([record(10 + at)]) for at in range(5)]
    pieces = planned(batch(many), batch(large), *small)
    assert [(p.start, p.end) for p in pieces] == [(0, 9), (9, 10), (10, 15)]


def test_a_merged_run_ends_where_the_codec_changes() -> None:
    """Goal: a run ends where the codec changes; a change of timestamp type does not matter."""
    made = []
    for at in range(40):
        codec = Codec.ZSTD if at >= 20 else Codec.NONE
        stamped = LOG_APPEND_TIME if at % 10 >= 5 else 0
        made.append(batch([record(at, THEN + at)], codec, attributes=stamped))
    pieces = planned(*made)
    assert [(p.start, p.end) for p in pieces] == [(0, 20), (20, 40)]
    assert [r.timestamp for r in records_of(pieces)] == [THEN + at for at in range(40)]


def test_merged_bytes_are_bounded() -> None:
    """Goal: a merged batch stays below every usual max.message.bytes."""
    pieces = planned(
        *(batch([record(2 * at), record(2 * at + 1, value=bytes(9000))]) for at in range(100))
    )
    assert len(pieces) > 2
    assert all(isinstance(p, Data) and p.size < 2 * MERGED_BYTES for p in pieces)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
@pytest.mark.parametrize("built_bytes", [2048, 10_000, 100_000])
def test_batches_that_are_built_are_bounded_as_told(codec: Codec, built_bytes: int) -> None:
    """Goal: a topic whose limit is below the usual size accepts merged and divided batches."""
    lone = [batch([record(at, value=bytes(90))], codec) for at in range(900)]
    pairs = [
        batch([record(at, value=bytes(300)), record(at + 1)], codec) for at in range(900, 1100, 2)
    ]
    stamped = [
        batch([record(at + n, THEN + n) for n in range(300)], codec, attributes=LOG_APPEND_TIME)
        for at in range(1100, 2000, 300)
    ]
    sources = [*lone, *pairs, *stamped]
    buffer = memoryview(b"".join(sources))
    whole = planned(*sources)
    parts = finished(planning_sound(buffer, Offset(0), built_bytes=built_bytes)).pieces
    assert records_of(parts) == records_of(whole)
    longest = max(map(len, sources))
    sizes = [piece.size for piece in parts if isinstance(piece, Data)]
    assert max(sizes) <= max(built_bytes, longest) + HEADER_SIZE
    assert len(sizes) < len(lone), "small ones are merged all the same"
    if codec is Codec.NONE:
        assert len(sizes) > len(whole)


def test_holes_are_gaps_without_evidence() -> None:
    """Goal: before, within and behind a batch; a run of remaining records is a batch."""
    kept = [(12, THEN + 2), (13, THEN), (17, -1)]
    pieces = planned(holed(10, 19, kept, Codec.LZ4), batch([record(25)]))
    assert [(type(p), p.start, p.end) for p in pieces] == [
        (Gap, 0, 12),
        (Data, 12, 14),
        (Gap, 14, 17),
        (Data, 17, 18),
        (Gap, 18, 25),
        (Data, 25, 26),
    ]
    assert not any(p.seen for p in pieces if isinstance(p, Gap))
    assert [r.timestamp for r in records_of(pieces)] == [THEN + 2, THEN, -1, THEN]


def test_a_batch_that_is_built_has_the_leader_epoch_of_its_records() -> None:
    """Goal: a reader that goes on behind any piece notices a source that loses its end (KIP-320).

    One batch has holes, and one is stamped and split, as it compresses worse.
    """
    first = altered(holed(10, 19, [(12, THEN), (13, THEN), (17, THEN)]), leader_epoch=4)
    noise = random.Random(1).randbytes(5000)
    plain = batch([record(at, value=noise) for at in range(20, 40)], Codec.GZIP)
    second = altered(plain, attributes=LOG_APPEND_TIME | Codec.GZIP, leader_epoch=5)
    pieces = finished(planning(memoryview(first + second), Offset(10), built_bytes=1000)).pieces
    epochs = [(p.end, p.header.leader_epoch) for p in pieces if isinstance(p, Data)]
    assert epochs[:2] == [(14, 4), (18, 4)]
    assert {epoch for _, epoch in epochs[2:]} == {5}
    assert epochs[-1][0] == 40


def test_an_empty_batch_is_a_gap() -> None:
    """Goal: the empty rest of a producer's last batch, after compaction, uses up its offsets."""
    assert planned(batch([record(0)]), holed(1, 7, [])) == [
        *planned(batch([record(0)])),
        Gap(Offset(1), Offset(8), seen=False),
    ]


def txn(offset: int, producer_id: int, count: int = 2) -> bytes:
    return batch(
        [record(offset + at) for at in range(count)],
        attributes=TRANSACTIONAL,
        producer_id=producer_id,
    )


def seen_offsets(data: bytes, aborted: Sequence[tuple[int, int]], position: int = 0) -> list[int]:
    listed = [AbortedTransaction(*one) for one in aborted]
    pieces = plan(memoryview(data), Offset(position), listed)
    check_cover(pieces, position)
    return [r.offset for r in records_of(pieces)]


def test_batches_of_a_transaction_are_merged() -> None:
    """Goal: a marker waits for one batch, not for several; longer batches stay as they are."""
    one, another = MERGE_MAX_TRANSACTIONAL, MERGE_MAX_TRANSACTIONAL + 1
    data = txn(0, 7, 1) + txn(1, 8, one) + marker(one + 1, 8, COMMIT)
    data += txn(one + 2, 7, another) + txn(one + 2 + another, 7, 1)
    pieces = plan(memoryview(data), Offset(0))
    ends = [one + 1, one + 2, one + 2 + another, one + 3 + another]
    assert [piece.end for piece in pieces] == ends
    assert [record.offset for record in records_of(pieces)] == [
        *range(one + 1),
        *range(one + 2, one + 3 + another),
    ]


def test_an_aborted_transaction_ends_at_its_marker() -> None:
    """Goal: the marker ends the abort, in one answer and in whatever order it lists them."""
    data = txn(0, 7) + marker(2, 7, ABORT) + txn(3, 7) + marker(5, 7, COMMIT)
    data += txn(6, 7) + marker(8, 7, ABORT) + txn(9, 7)
    for aborted in ([(7, 0), (7, 6)], [(7, 6), (7, 0)]):
        assert seen_offsets(data, aborted) == [3, 4, 9, 10]


def test_aborted_transactions_are_derived_from_the_markers() -> None:
    """Goal: as an answer lists them, from the markers alone; an open transaction is not aborted."""
    data = txn(0, 7) + marker(2, 7, ABORT) + txn(3, 7) + marker(5, 7, COMMIT)
    data += marker(6, 8, ABORT) + txn(7, 7) + txn(9, 9)
    found = aborted_within(memoryview(data))
    assert found == [AbortedTransaction(7, 0)]
    assert seen_offsets(data, found) == [3, 4, 7, 8, 9, 10]


def test_an_answer_that_starts_at_an_abort_marker_keeps_later_records() -> None:
    """Goal: its transaction, which the answer still lists, does not include the next one."""
    data = marker(2, 7, ABORT) + txn(3, 7) + marker(5, 7, COMMIT)
    assert seen_offsets(data, [(7, 0)], position=2) == [3, 4]


def test_interleaved_transactions_are_separated_by_producer() -> None:
    """Goal: each producer's own; the list is in order of first offset, the markers are not."""
    data = txn(0, 1) + txn(2, 2) + txn(4, 1) + marker(6, 2, COMMIT) + txn(7, 2)
    data += marker(9, 1, ABORT) + txn(10, 1) + marker(12, 2, ABORT) + marker(13, 1, COMMIT)
    assert seen_offsets(data, [(1, 0), (2, 7)]) == [2, 3, 10, 11]


def test_non_transactional_batches_are_never_aborted() -> None:
    """Goal: only transactional batches can be aborted."""
    plain = batch([record(2)], producer_id=7)
    assert seen_offsets(txn(0, 7) + plain + marker(3, 7, ABORT), [(7, 0)]) == [2]


def test_unknown_control_record_types_are_gaps_and_end_no_transaction() -> None:
    """Goal: a type that no version writes into a topic today is a gap, and ends no transaction."""
    data = txn(0, 7) + marker(2, 7, 5) + marker(3, 7, -1) + txn(4, 7) + marker(6, 7, ABORT)
    assert seen_offsets(data + txn(7, 7), [(7, 0)]) == [7, 8]


def test_a_marker_without_its_key_is_corrupt() -> None:
    """Goal: a key is needed where it matters; an empty marker, left by compaction, is no error."""
    bits = CONTROL | TRANSACTIONAL
    nameless = batch([record(2, key=b"\0\0")], attributes=bits, producer_id=7)
    with pytest.raises(CorruptBatch, match="no type"):
        seen_offsets(txn(0, 7) + nameless, [(7, 0)])
    assert seen_offsets(txn(0, 8) + nameless, []) == [0, 1]
    empty = altered(holed(2, 2, []), attributes=bits, producer_id=7)
    assert seen_offsets(txn(0, 7) + empty + txn(3, 7), [(7, 0)]) == []


def test_gaps_of_markers_and_aborted_data_have_evidence() -> None:
    """Goal: no readable record was ever there; one unseen offset changes that."""
    data = txn(0, 7) + marker(2, 7, ABORT)
    listed = [AbortedTransaction(7, 0)]
    assert plan(memoryview(data), Offset(0), listed) == [Gap(Offset(0), Offset(3), seen=True)]
    data += marker(5, 7, COMMIT)
    assert plan(memoryview(data), Offset(0), listed) == [Gap(Offset(0), Offset(6), seen=False)]


@pytest.mark.parametrize("base", [(1 << 31) - 2, (1 << 53) - 1, 1 << 62])
def test_offsets_beyond_53_bits_are_kept(base: int) -> None:
    """Goal: a lone run, a merged run and a rebuilt batch beyond 31 and 53 bits."""
    made = [batch([record(base + at)]) for at in range(20)]
    made += [batch([record(base + 20 + 2 * at), record(base + 21 + 2 * at)]) for at in range(5)]
    made.append(holed(base + 30, base + 39, [(base + 33, THEN)]))
    pieces = planned(*made, position=base)
    wanted = [*range(base, base + 30), base + 33]
    assert [r.offset for r in records_of(pieces)] == wanted
    assert pieces[-1].end == base + 40


def test_timestamps_at_the_limits_of_64_bits_are_kept() -> None:
    """Goal: records that are 65 bits apart keep their timestamps when they are merged."""
    times = [-1, BIG, 0, BIG - 1, -1]
    for codec in (Codec.NONE, Codec.GZIP):
        pieces = planned(*(batch([record(at, t)], codec) for at, t in enumerate(times)))
        assert len(pieces) == 1
        assert [r.timestamp for r in records_of(pieces)] == times
    pieces = planned(holed(0, 9, [(2, -1), (3, -5)]))
    assert [r.timestamp for r in records_of(pieces)] == [-1, -5]


@pytest.mark.parametrize("attributes", [0, LOG_APPEND_TIME])
def test_a_batch_that_recompresses_worse_is_split(attributes: int) -> None:
    """Goal: recompressed data is not longer than what the source's broker has accepted.

    librdkafka's snappy sees 64 KB at a time, the framing that all clients read 32 KB: only the
    first finds the noise that is repeated after 40 KB.
    """
    noise = random.Random(1)
    values = [b"".join(noise.randbytes(12) + bytes(20) for _ in range(250)) for _ in range(5)]
    plain = batch([record(at, value=values[at % 5]) for at in range(100)])
    data = bytes(cramjam.snappy.compress_raw(plain[61:]))
    made = altered(plain, body=data, attributes=attributes | Codec.SNAPPY)
    position = 0 if attributes else 1
    pieces = planned(made, position=position)
    assert len(pieces) > 1
    assert all(isinstance(p, Data) and p.size < max(len(made), MERGED_BYTES) for p in pieces)
    assert [r.offset for r in records_of(pieces)] == list(range(position, 100))


@pytest.mark.parametrize(
    "data",
    [
        batch([record(5)]) + batch([record(4)]),
        b"".join(batch([record(at)]) for at in range(20)) + batch([record(19)]),
        b"".join(batch([record(at)]) for at in range(20)) + b"\0" * 16 + b"\x07" + b"\0" * 50,
    ],
    ids=["offsets that go back", "also behind a lone run", "an unknown format"],
)
def test_inconsistent_batches_are_reported_as_corrupt(data: bytes) -> None:
    """Goal: it does not give a plan that leaves records out."""
    with pytest.raises(CorruptBatch):
        plan(memoryview(data), Offset(0))


@given(captures, st.data())
def test_batches_before_a_corrupt_batch_are_planned(log: Capture, data: st.DataObject) -> None:
    """Goal: the plan is the same as if the log ended there; none follows."""
    bad = data.draw(st.sampled_from(log.headers))
    broken = bytearray(log.data)
    broken[bad.end - 1] ^= 1
    position = Offset(data.draw(st.integers(0, bad.base_offset)))
    if any(h.next_offset > position for h in log.headers if h.end <= bad.position):
        aborted = log.aborted.get(0, ())
        expected = plan_with_epoch(log.buffer[: bad.position], position, aborted)
        assert finished(planning_sound(memoryview(broken), position, aborted)) == expected
    else:
        with pytest.raises(CorruptBatch):
            finished(planning_sound(memoryview(broken), position))


def test_record_tails_are_kept_byte_for_byte() -> None:
    """Goal: even where the source's producer wrote numbers longer than needed."""
    tail = encode_tail(b"k", b"v")[:-1] + b"\x80\x00"
    odd = [record(at)._replace(tail=memoryview(tail)) for at in range(3)]
    [piece] = planned(*(batch([one]) for one in odd), batch([record(3)]))
    assert isinstance(piece, Data)
    assert bytes(raw_records(piece.header, piece.records)[2].tail) == tail


# ---- bounds ------------------------------------------------------------------------------------


def sparse(count: int, codec: Codec = Codec.NONE) -> bytes:
    """Return a batch without every second record."""
    return holed(0, 2 * count - 1, [(2 * at, THEN) for at in range(count)], codec=codec)


def test_the_number_of_pieces_is_bounded_and_the_rest_follows() -> None:
    """Goal: whatever a batch contains, a plan is bounded; the rest is planned next."""
    data = memoryview(sparse(5 * MAX_PIECES))
    position, pieces = 0, []
    while position < 10 * MAX_PIECES:
        some = plan(data, Offset(position))
        assert 0 < len(some) <= MAX_PIECES + 2
        assert check_cover(some, position) > position
        position = some[-1].end
        pieces += some
    assert [r.offset for r in records_of(pieces)] == list(range(0, 10 * MAX_PIECES, 2))


@pytest.mark.parametrize("attributes", [0, LOG_APPEND_TIME])
def test_a_plan_yields_while_it_decodes(attributes: int) -> None:
    """Goal: no step decodes more than `STEP_RECORDS`, or builds more than a run, at once."""
    count = 6 * MAX_RUN
    data = batch([record(at) for at in range(count)], attributes=attributes)
    steps = planning(memoryview(data), Offset(0 if attributes else 1))
    yielded = 0
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            pieces = stop.value.pieces
            break
        yielded += 1
    assert yielded >= count // STEP_RECORDS - 1
    assert all(piece.header.num_records <= MAX_RUN for piece in pieces)
    assert len(records_of(pieces)) == count - (0 if attributes else 1)


def moved(data: bytes, offset: int) -> bytes:
    """The same batch at another offset, which its checksum does not cover."""
    return offset.to_bytes(8, "big") + data[8:]


def aborted_pairs(count: int) -> memoryview:
    """Transactions of one record each, with their markers; all are aborted."""
    one, end = txn(0, 7, 1), marker(1, 7, ABORT)
    return memoryview(
        b"".join(moved(one, at) + moved(end, at + 1) for at in range(0, 2 * count, 2))
    )


def stepped(
    buffer: memoryview, aborted: list[AbortedTransaction], position: int = 0
) -> tuple[list[Piece], int]:
    """A plan, and how often it has yielded."""
    steps, count = planning_sound(buffer, Offset(position), aborted), 0
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return stop.value.pieces, count
        count += 1


def test_aborted_transactions_are_planned_in_linear_time_and_bounded_memory() -> None:
    """Goal: 8 MB of the smallest aborted transactions: in steps, a bounded number of spans each.

    Copying the spans of the gap for each batch would be 10^10 copies.
    """
    count = 60_000
    buffer = aborted_pairs(count)
    aborted = [AbortedTransaction(7, Offset(at)) for at in range(0, 2 * count, 2)]
    pair = len(buffer) // count
    position = 0
    while position < 2 * count:
        rest = buffer[position // 2 * pair :]
        pieces, steps = stepped(rest, aborted[position // 2 :], position)
        [gap] = pieces
        assert isinstance(gap, Gap)
        assert gap.seen
        assert len(gap.spans) == min(MAX_SPANS, 2 * count - position)
        assert gap.spans[:3] == (
            (Absence.ABORTED, position + 1),
            (Absence.MARKER, position + 2),
            (Absence.ABORTED, position + 3),
        )
        assert steps >= 4 * len(gap.spans) // STEP_RECORDS
        position = gap.end
    assert position == 2 * count


@pytest.mark.parametrize(
    "one",
    [
        batch([record(0, value=bytes(9000))], Codec.NONE, attributes=TRANSACTIONAL),
        txn(0, 7, MERGE_MAX_TRANSACTIONAL + 1),
        marker(0, 7, COMMIT),
        holed(0, 0, []),
    ],
    ids=["merged", "forwarded", "markers", "empty"],
)
def test_a_plan_yields_by_the_number_of_batches(one: bytes) -> None:
    """Goal: batches whose records are not decoded are work, too."""
    extent = int.from_bytes(one[23:27], "big") + 1
    buffer = memoryview(b"".join(moved(one, at * extent) for at in range(2000)))
    pieces, steps = stepped(buffer, [])
    assert check_cover(pieces, 0) == 2000 * extent
    assert steps >= 2000 * 4 // STEP_RECORDS


def test_a_plan_yields_between_long_runs() -> None:
    """Goal: a run of lone records is a step; so is each batch that compressed ones become."""
    lone = [moved(batch([record(0, value=bytes(100))]), at) for at in range(10_000)]
    pieces, steps = stepped(memoryview(b"".join(lone)), [])
    assert 1 < len(pieces) <= steps
    large = batch([record(0, value=bytes(MERGED_DECOMPRESSED // 2))], Codec.ZSTD)
    pieces, steps = stepped(memoryview(b"".join(moved(large, at) for at in range(8))), [])
    assert (len(pieces), steps) == (8, 7)


def test_the_search_for_a_corrupt_batch_yields() -> None:
    """Goal: as many batches as there are before a corrupt one, they are not read at once."""
    count = 4 * STEP_RECORDS
    one = marker(0, 7, COMMIT)
    sound = b"".join(moved(one, at) for at in range(count))
    _, usual = stepped(memoryview(sound), [])
    pieces, steps = stepped(memoryview(sound + moved(one[:-1] + b"!", count)), [])
    assert pieces[-1].end == count
    assert steps >= 2 * usual + count // STEP_RECORDS


def test_a_batch_that_decompresses_beyond_the_limit_is_refused() -> None:
    """Goal: it is refused with its size, whichever way it would be decoded (B8)."""
    data = memoryview(sparse(1000, Codec.ZSTD))
    with pytest.raises(CorruptBatch, match="decompresses to more than 1000"):
        finished(planning(data, Offset(0), (), 1000))
    stamped = batch([record(at) for at in range(100)], codec=Codec.ZSTD, attributes=LOG_APPEND_TIME)
    with pytest.raises(CorruptBatch, match="decompresses to more than 100"):
        finished(planning(memoryview(stamped), Offset(0), (), 100))
    bound = 2 * MERGED_DECOMPRESSED
    small = [record(at, value=b"") for at in range(MERGE_MIN_RUN)]
    small[0] = record(0, value=bytes(bound))
    many = b"".join(batch([one], Codec.ZSTD, attributes=LOG_APPEND_TIME) for one in small)
    assert len(many) < MERGE_MAX_BYTES
    with pytest.raises(CorruptBatch, match=f"decompresses to more than {bound}"):
        finished(planning(memoryview(many), Offset(0), (), bound))


def test_a_gap_gives_the_reason_of_each_offset() -> None:
    """Goal: the evidence of each offset, merged where equal, in order."""
    made = (marker(0, 7, 1), marker(1, 7, 1), batch([record(4)]), marker(5, 7, 1), holed(6, 7, []))
    gaps = [piece for piece in planned(*made) if isinstance(piece, Gap)]
    assert [list(gap.reasons(gap.end)) for gap in gaps] == [
        [(Absence.MARKER, 2), (Absence.COMPACTED, 2)],
        [(Absence.MARKER, 1), (Absence.COMPACTED, 2)],
    ]
    assert list(gaps[0].reasons(Offset(3))) == [(Absence.MARKER, 2), (Absence.COMPACTED, 1)]
    rest = gaps[0].after(Offset(3))
    assert (rest.start, rest.end, list(rest.reasons(rest.end))) == (3, 4, [(Absence.COMPACTED, 1)])


class CountedSpans(tuple[AbsentSpan, ...]):
    """Spans that count how often one is read."""

    __slots__ = ()
    reads = 0

    def __getitem__(self, at: Any) -> Any:
        CountedSpans.reads += 1
        return super().__getitem__(at)

    def __iter__(self) -> Iterator[AbsentSpan]:
        raise AssertionError("all spans are read")


def test_a_gap_that_is_filled_in_rounds_reads_each_span_once() -> None:
    """Goal: nothing is copied or read again for each round, however many spans a gap has."""
    count = 4000
    spans = tuple(
        AbsentSpan(Absence.MARKER if at % 2 else Absence.COMPACTED, Offset(3 * at + 3))
        for at in range(count)
    )
    gap = Gap(Offset(0), Offset(3 * count), seen=False, spans=CountedSpans(spans))
    wanted = [reason for reason, _ in spans for _ in range(3)]
    reasons: list[Absence] = []
    CountedSpans.reads = 0
    while gap.start < gap.end:
        until = Offset(min(gap.start + 2, gap.end))
        assert gap.reason_at(gap.start) is wanted[gap.start]
        for reason, offsets in gap.reasons(until):
            reasons += [reason] * offsets
        gap = gap.after(until)
    assert reasons == wanted
    assert gap.reason_at(gap.end) is None
    assert CountedSpans.reads < 3 * count * 2 * count.bit_length()
