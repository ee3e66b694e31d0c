"""The plan against what a real consumer of the same log was given, and against each odd batch."""

import pytest

from captures import NAMES, capture, check_cover, records_of
from twinlog.core.plan import plan
from twinlog.core.types import Offset


@pytest.mark.parametrize("name", NAMES)
def test_a_whole_log_holds_what_a_committed_consumer_sees(name: str) -> None:
    """Goal: exactly the consumer's records, at their offsets, and no hole between pieces."""
    log = capture(name)
    pieces = plan(log.buffer, Offset(0), log.aborted.get(0, ()))
    assert check_cover(pieces, 0) == log.end
    assert records_of(pieces) == list(log.seen)


@pytest.mark.parametrize("name", ["transactions", "compacted", "append-time"])
def test_a_log_from_any_offset(name: str) -> None:
    """Goal: with what a real Fetch from there lists, also at a marker and within a batch."""
    log = capture(name)
    for position in range(log.end):
        pieces = plan(log.answer(position), Offset(position), log.aborted.get(position, ()))
        assert check_cover(pieces, position) == log.end
        assert records_of(pieces) == [seen for seen in log.seen if seen.offset >= position]
