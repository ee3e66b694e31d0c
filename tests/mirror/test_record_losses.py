"""Twin of twinlog.mirror.record_losses."""

import pytest

from twinlog.kafka.types import Offset, TopicPartition
from twinlog.mirror.record_losses import NO_LOSSES, RecordLoss, RecordLosses

LOG = TopicPartition("a.orders", 2)


@pytest.mark.parametrize(
    ("start", "end", "offsets", "text"),
    [
        (3, 8, 5, "a.orders-2, offsets [3, 8)"),
        (None, 8, None, "a.orders-2, offsets up to 8, from an unknown one on"),
        (None, None, None, "a.orders-2, an unknown number of offsets"),
        (3, None, None, "a.orders-2, offsets from 3 on, if there were any"),
        (9, 8, 0, "a.orders-2, offsets [9, 8)"),
    ],
)
def test_a_loss_has_a_range_as_far_as_it_is_known(
    start: int | None, end: int | None, offsets: int | None, text: str
) -> None:
    loss = RecordLoss(
        LOG, None if start is None else Offset(start), None if end is None else Offset(end)
    )
    assert (loss.offsets, loss.text) == (offsets, text)
    partial = loss._replace(at_least=True)
    assert partial.offsets == offsets
    assert partial.text == text + (" at least" if offsets is not None else "")


def test_losses_are_counted_also_where_their_number_is_unknown() -> None:
    known, unknown = RecordLoss(LOG, Offset(3), Offset(8)), RecordLoss(LOG, None, Offset(9))
    assert NO_LOSSES.with_loss(known) == RecordLosses(1, 5, known.text)
    assert NO_LOSSES.with_loss(known).with_loss(unknown) == RecordLosses(2, 5, unknown.text)
