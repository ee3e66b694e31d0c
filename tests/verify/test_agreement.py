"""Only records that were seen on both sides, and are equal, count as evidence."""

import pytest
from batch_builders import batch, record

from twinlog.kafka.log.compression import Codec, TooLong
from twinlog.kafka.types import Offset
from twinlog.mirror.plan import plan
from twinlog.verify import agreement as agreement_module
from twinlog.verify.agreement import Side, agreement

A, B = (1, b"a"), (1, b"b")


@pytest.mark.parametrize("left", ["record", "other", "nothing", "unseen"])
@pytest.mark.parametrize("right", ["record", "other", "nothing", "unseen"])
def test_agreement_of_every_combination_of_sides(left: str, right: str) -> None:
    """All combinations of what two sides may show of an offset."""

    def side(shows: str) -> Side:
        records = {"record": {5: A}, "other": {5: B}}.get(shows, {})
        return Side(records, {5} if shows == "nothing" else set())

    found = agreement(side(left), side(right), 5, 6)
    seen = "unseen" not in {left, right}
    assert found.unseen == (not seen)
    assert found.first_difference == (5 if seen and left != right else None)
    assert found.equal == (left == right and left in {"record", "other"})


def test_logs_that_end_in_markers_are_distinguished() -> None:
    """Three transactions of one record against five records, each behind ten common ones."""
    common = {at: (at, b"same") for at in range(10)}
    source = Side(common | {at: (at, b"foreign") for at in range(10, 15)}, {15})
    destination = Side(common | {at: (at, b"own") for at in (10, 12, 14)}, {11, 13, 15})
    assert agreement(source, destination, 15, 16).first_difference is None
    assert agreement(source, destination, 15, 16).equal == 0
    assert agreement(source, destination, 0, 16).first_difference == 10


def test_records_with_different_timestamps_differ() -> None:
    assert agreement(Side({0: (1, b"a")}), Side({0: (2, b"a")}), 0, 1).first_difference == 0


def test_a_source_batch_is_decoded_only_as_far_as_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: a source's batch of some kilobytes never becomes gigabytes in a comparison."""
    records = [record(at, timestamp=at, value=bytes(1000)) for at in range(100)]
    pieces = plan(memoryview(batch(records, Codec.ZSTD)), Offset(0))
    side = Side()
    side.add(pieces, 3, 6)
    assert side.records.keys() == {3, 4, 5}
    monkeypatch.setattr(agreement_module, "MAX_DECODED", 50_000)
    with pytest.raises(TooLong):
        Side().add(pieces, 3, 6)
