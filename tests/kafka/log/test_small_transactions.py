"""Small transactions that are read in one pass, against the plan that takes each batch by itself.

All tests run with the installed module, which is compiled if there is a C compiler, and with its
source, interpreted: both have to do the same.
"""

from collections.abc import Callable
from typing import Any

import pytest
from batch_builders import ABORT, COMMIT, altered, batch, codecs, marker, record, timestamps, values
from compiled_forms import interpreted
from hypothesis import given
from hypothesis import strategies as st

from twinlog.kafka.errors import CorruptBatch
from twinlog.kafka.log import small_transactions
from twinlog.kafka.log.batch import CONTROL, LOG_APPEND_TIME, TRANSACTIONAL
from twinlog.kafka.log.compression import Codec
from twinlog.kafka.log.small_transactions import MAX_MARKERS, Transaction
from twinlog.kafka.types import Offset
from twinlog.mirror import plan as planning
from twinlog.mirror.plan import MERGE_MAX_BYTES, Planned, plan_with_epoch

Read = Callable[[memoryview, int, int, tuple[int, int, int, int]], tuple[Transaction | None, int]]
FORMS: dict[str, Read] = {
    "installed": small_transactions.read_transaction,
    "interpreted": interpreted(small_transactions).read_transaction,
}
both = pytest.mark.parametrize("read", FORMS.values(), ids=FORMS)
LIMITS = 32, MERGE_MAX_BYTES, 2048, 256 * 1024


def never(_buffer: object, position: int, *_: object) -> tuple[None, int]:
    """Take no transaction."""
    return None, position


def plan_by(read: object, data: bytes, position: int = 0) -> Planned | None:
    """The plan with this function in place of the installed one; None if the log is corrupt."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "read_transaction", read)
        try:
            return plan_with_epoch(memoryview(data), Offset(position))
        except CorruptBatch:
            return None


def data(offset: int, count: int = 1, **fields: Any) -> bytes:
    """A batch of a transaction."""
    records = [record(offset + at) for at in range(count)]
    return altered(batch(records, attributes=TRANSACTIONAL), **fields)


@st.composite
def logs(draw: st.DrawFn) -> bytes:
    """Draw transactions that follow each other or overlap, and batches of any other kind."""
    offset = draw(st.sampled_from([0, 1, (1 << 31) - 3, (1 << 53) - 2, 1 << 60]))
    kinds = ("data", "data", "data", "marker", "marker", "plain", "hole")
    made: list[bytes] = []
    for kind in draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=20)):
        epoch = draw(st.integers(-1, 2))
        if kind == "hole":
            offset += draw(st.integers(1, 3))
        elif kind == "marker":
            one = marker(offset, draw(st.integers(7, 8)), draw(st.sampled_from([COMMIT, ABORT])))
            made.append(altered(one, leader_epoch=epoch))
            offset += 1
        else:
            times = draw(st.lists(timestamps, min_size=1, max_size=3))
            count = draw(st.sampled_from([1, 1, 2, 9, 32, 33]))
            value = draw(values)
            records = [record(offset + at, times[at % len(times)], value) for at in range(count)]
            codec = draw(st.one_of(st.just(Codec.NONE), st.just(Codec.NONE), codecs))
            stamped = draw(st.sampled_from([0, 0, 0, LOG_APPEND_TIME]))
            attributes = (TRANSACTIONAL if kind == "data" else 0) | stamped
            made.append(altered(batch(records, codec, attributes=attributes), leader_epoch=epoch))
            offset += count
    return b"".join(made)


@both
@given(log=logs().filter(bool), more=st.data())
def test_a_plan_is_the_same_as_batch_by_batch(read: Read, log: bytes, more: st.DataObject) -> None:
    """Goal: the same pieces, gaps and reasons, from any offset, wherever the answer ends."""
    cut = log[: more.draw(st.integers(0, len(log)))] if more.draw(st.booleans()) else log
    first = int.from_bytes(log[:8], "big")
    position = first + more.draw(st.sampled_from([0, 0, 0, 1, 5]))
    found, wanted = plan_by(read, cut, position), plan_by(never, cut, position)
    assert found == wanted
    assert found is not None
    assert wanted is not None
    for one, other in zip(found.pieces, wanted.pieces, strict=True):
        assert getattr(one, "spans", ()) == getattr(other, "spans", ())


@both
@given(
    log=logs().filter(bool),
    edits=st.lists(st.tuples(st.integers(0), st.integers(0, 255)), max_size=3),
)
def test_any_bytes_are_planned_as_batch_by_batch(
    read: Read, log: bytes, edits: list[tuple[int, int]]
) -> None:
    """Goal: whatever is corrupt is refused, and nothing is read beyond the end."""
    altered_log = bytearray(log)
    for at, byte in edits:
        altered_log[at % len(log)] = byte
    position = int.from_bytes(log[:8], "big")
    assert plan_by(read, bytes(altered_log), position) == plan_by(
        never, bytes(altered_log), position
    )


@both
@given(
    fields=st.dictionaries(
        st.sampled_from(["length", "magic", "attributes", "last_offset_delta", "num_records"]),
        st.one_of(st.integers(-2, 100), st.sampled_from([127, -128])),
        min_size=1,
    )
)
def test_any_header_with_a_correct_checksum_is_planned_as_batch_by_batch(
    read: Read, fields: dict[str, int]
) -> None:
    """Goal: no impossible number is taken because the checksum is correct."""
    log = data(0, 2) + data(2, 3, **fields) + marker(5, 7, COMMIT) + data(6) + marker(7, 7, COMMIT)
    assert plan_by(read, log) == plan_by(never, log)


@both
def test_a_flipped_bit_anywhere_is_found_as_batch_by_batch(read: Read) -> None:
    """Goal: the checksum of each batch is compared, and each offset."""
    log = data(0) + data(1, 2) + marker(3, 7, COMMIT) + data(4) + marker(5, 7, COMMIT)
    for at in range(len(log)):
        flipped = log[:at] + bytes([log[at] ^ 1 << at % 8]) + log[at + 1 :]
        assert plan_by(read, flipped) == plan_by(never, flipped)


@both
def test_control_records_in_one_batch_are_left_to_the_plan(read: Read) -> None:
    """Goal: no version writes several; they use up as many offsets."""
    several = batch([record(1), record(2)], attributes=CONTROL | TRANSACTIONAL)
    log = data(0) + several + marker(3, 7, COMMIT) + data(4) + marker(5, 7, COMMIT)
    assert plan_by(read, log) == plan_by(never, log)
    log = data(0) + marker(1, 7, COMMIT) + altered(several, base_offset=2) + data(4)
    assert plan_by(read, log) == plan_by(never, log)


@both
def test_what_is_one_transaction(read: Read) -> None:
    """Goal: all batches up to the markers, and all markers; nothing that no marker follows."""
    log = data(5) + data(6, 9, leader_epoch=3) + marker(15, 7, COMMIT) + marker(16, 8, COMMIT)
    found, end = read(memoryview(log + data(17) + data(18)), 0, 5, LIMITS)
    assert found is not None
    assert (end, found.markers, found.batches) == (len(log), 2, 4)
    assert (found.batch.header.base_offset, found.batch.header.num_records) == (5, 10)
    assert found.batch.header.leader_epoch == 3
    rest = memoryview(data(17) + data(18))
    assert read(rest, 0, 17, LIMITS) == (None, len(rest))
    assert read(rest, 0, 16, LIMITS) == (None, 0)
    assert read(memoryview(marker(0, 7, COMMIT)), 0, 0, LIMITS) == (None, 0)


@both
def test_one_batch_before_a_marker_stays_as_it_is(read: Read) -> None:
    """Goal: the source producer's checksum protects it up to the destination."""
    log = memoryview(data(0, 10) + marker(10, 7, COMMIT))
    found, _ = read(log, 0, 0, LIMITS)
    assert found is not None
    assert found.batch.header.crc != 0
    assert found.batch.records.obj is log.obj


@both
def test_what_is_taken_at_once_is_bounded(read: Read) -> None:
    """Goal: a step of a plan is short, and a batch is no longer than allowed."""
    few = 32, MERGE_MAX_BYTES, 3, 256 * 1024
    log = b"".join(data(at) for at in range(10)) + marker(10, 7, COMMIT)
    found, _ = read(memoryview(log), 0, 0, few)
    assert found is not None
    assert (found.batch.header.num_records, found.markers) == (4, 0)
    small = 32, MERGE_MAX_BYTES, 2048, 200
    found, _ = read(memoryview(log), 0, 0, small)
    assert found is not None
    assert found.batch.header.num_records == 200 // (len(data(0)) - 12)
    markers = b"".join(marker(1 + at, 7, COMMIT) for at in range(MAX_MARKERS + 1))
    found, end = read(memoryview(data(0) + markers), 0, 0, LIMITS)
    assert found is not None
    assert found.markers == MAX_MARKERS
    assert end == len(data(0) + markers) - len(marker(0, 7, COMMIT))
