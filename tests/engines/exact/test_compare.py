"""Which differences between two logs are reported, and which are not."""

from collections.abc import Iterator
from typing import Any

import pytest
from batch_builders import THEN, batch, captures, holed, record
from captures import Capture
from hypothesis import given
from hypothesis import strategies as st

from twinlog.engines.exact.compare import Difference, Mismatch, comparing
from twinlog.kafka.log.batch import LOG_APPEND_TIME
from twinlog.kafka.log.compression import Codec
from twinlog.kafka.log.records import Encoded, whole
from twinlog.kafka.types import Offset
from twinlog.mirror.absence import Absence, AbsentSpan
from twinlog.mirror.plan import Data, Gap, Piece, plan


def compare(*arguments: Any, **bounds: Any) -> Iterator[Difference]:
    """Run all steps at once."""
    return (found for found in comparing(*arguments, **bounds) if found is not None)


def differences(
    source: list[Piece], destination: list[Piece], start: int, end: int, *, compacted: bool = False
) -> list[Difference]:
    return list(compare(source, destination, Offset(start), Offset(end), compacted=compacted))


def planned(*batches: bytes) -> list[Piece]:
    return plan(memoryview(b"".join(batches)), Offset(0))


def gap(start: int, end: int, *, seen: bool) -> Gap:
    return Gap(Offset(start), Offset(end), seen)


def expected_difference(start: int, end: int, reason: Mismatch) -> list[Difference]:
    return [Difference(Offset(start), Offset(end), reason)]


@given(captures, st.data())
def test_a_log_and_its_plan_do_not_differ(log: Capture, data: st.DataObject) -> None:
    """Goal: a log and its plan do not differ, between any two offsets."""
    source = plan(log.buffer, Offset(0), log.aborted.get(0, ()))
    mirrored = b"".join(_stored(piece) for piece in source)
    start = data.draw(st.integers(0, log.end - 1))
    end = data.draw(st.integers(start, log.end))
    destination_plan = plan(memoryview(mirrored), Offset(start))
    source_plan = plan(log.answer(start), Offset(start), log.aborted.get(start, ()))
    if not destination_plan or destination_plan[-1].end < end:
        destination_plan.append(
            gap(destination_plan[-1].end if destination_plan else start, log.end, seen=True)
        )
    assert differences(source_plan, destination_plan, start, end) == []


def _stored(piece: Piece) -> bytes:
    if isinstance(piece, Gap):
        return b""
    made = whole(Encoded(piece.header, piece.records))
    return piece.start.to_bytes(8, "big") + made[8:]


@given(captures, st.data())
def test_a_missing_record_is_reported(log: Capture, data: st.DataObject) -> None:
    """Goal: a missing record is reported at any offset."""
    source = plan(log.buffer, Offset(0), log.aborted.get(0, ()))
    at = data.draw(st.sampled_from(log.seen)).offset
    before = plan(log.buffer, Offset(0), log.aborted.get(0, ()))
    destination_plan = [piece for piece in before if piece.end <= at]
    reached = destination_plan[-1].end if destination_plan else 0
    destination_plan.append(gap(reached, at + 1, seen=True))
    if at + 1 < log.end:
        destination_plan += plan(log.answer(at + 1), Offset(at + 1), log.aborted.get(at + 1, ()))
    found = differences(source, destination_plan, 0, log.end)
    assert {d.reason for d in found} == {Mismatch.MISSING}
    assert any(d.start <= at < d.end for d in found)
    assert all(reached <= d.start and d.end <= at + 1 for d in found)


FIVE = [record(at, THEN + at) for at in range(5)]


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (record(2, THEN + 2, b"other"), Mismatch.CONTENT),
        (record(2, THEN + 2, None), Mismatch.CONTENT),
        (record(2, THEN + 2, key=b"other"), Mismatch.CONTENT),
        (record(2, THEN + 3), Mismatch.TIMESTAMP),
    ],
)
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_a_changed_record_is_reported(changed: object, reason: Mismatch, codec: Codec) -> None:
    """Goal: a changed record is reported with its offset and what differs, in any batches."""
    other = [*FIVE[:2], changed, *FIVE[3:]]
    destination_plan = planned(*(batch([one], codec) for one in other))  # type: ignore[list-item]
    assert differences(planned(batch(FIVE)), destination_plan, 0, 5) == expected_difference(
        2, 3, reason
    )
    assert differences(planned(batch(FIVE)), destination_plan, 3, 5) == []
    assert differences(planned(batch(FIVE)), destination_plan, 0, 2) == []


def test_adjacent_offsets_with_the_same_difference_form_one_range() -> None:
    """Goal: a lost range is one line of a report; across batches it is a line for each."""
    source = planned(batch(FIVE))
    assert differences(source, [gap(0, 5, seen=True)], 0, 5) == expected_difference(
        0, 5, Mismatch.MISSING
    )
    assert differences(source, [], 0, 5) == expected_difference(0, 5, Mismatch.MISSING)
    changed = planned(batch([r._replace(timestamp=0) for r in FIVE[:2]] + FIVE[2:]))
    assert differences(source, changed, 0, 5) == expected_difference(0, 2, Mismatch.TIMESTAMP)


def test_records_in_a_gap_of_the_source_are_extra_or_skipped() -> None:
    """Goal: data in a proven gap is told from data at an offset that the source skips."""
    destination_plan = planned(batch(FIVE))
    assert differences([gap(0, 5, seen=True)], destination_plan, 0, 5) == expected_difference(
        0, 5, Mismatch.EXTRA
    )
    assert differences([gap(0, 5, seen=False)], destination_plan, 0, 5) == expected_difference(
        0, 5, Mismatch.SKIPPED
    )
    spans = (AbsentSpan(Absence.COMPACTED, Offset(2)), AbsentSpan(Absence.MARKER, Offset(3)))
    mixed = Gap(Offset(0), Offset(3), False, spans)
    extra = expected_difference(2, 3, Mismatch.EXTRA)
    assert (
        differences([mixed], destination_plan, 0, 3)
        == expected_difference(0, 2, Mismatch.SKIPPED) + extra
    )
    assert differences([gap(0, 9, seen=True)], [gap(0, 3, seen=False)], 0, 9) == []


def test_compacted_records_are_no_difference_in_a_compacted_topic() -> None:
    """Goal: records that the cleaner may have removed are no difference in a compacted topic."""
    source = planned(batch(FIVE))
    destination_plan = planned(holed(0, 4, [(0, THEN), (4, THEN)]))
    assert differences(source, destination_plan, 1, 4) == expected_difference(
        1, 4, Mismatch.MISSING
    )
    assert differences(source, destination_plan, 1, 4, compacted=True) == []
    assert differences(source, [gap(0, 5, seen=True)], 1, 4, compacted=True) == expected_difference(
        1, 4, Mismatch.MISSING
    )


def test_log_append_time_counts_as_the_timestamp() -> None:
    """Goal: a mirror that forwards LogAppendTime unchanged is detected."""
    stamped = batch(FIVE, attributes=LOG_APPEND_TIME)
    assert differences(planned(stamped), planned(stamped), 0, 5) == []
    assert differences(planned(stamped), planned(batch(FIVE)), 0, 5) == expected_difference(
        0, 4, Mismatch.TIMESTAMP
    )


def test_an_empty_range_has_no_difference() -> None:
    """Goal: an empty range has no difference, whatever the plans are."""
    assert differences(planned(batch(FIVE)), [], 3, 3) == []


def test_identical_batches_are_compared_without_decoding() -> None:
    """Goal: a forwarded batch is compared as bytes: these would not decode."""
    [piece] = planned(batch(FIVE))
    assert isinstance(piece, Data)
    broken = Data(piece.start, piece.end, piece.header, memoryview(b"nonsense"))
    assert differences([broken], [broken], 0, 5) == []
