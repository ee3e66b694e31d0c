"""Positions of an append, for tests that need any."""

from typing import Final

from twinlog.engines.exact.append import Position
from twinlog.kafka.types import Offset, ProducerEpoch, ProducerId, Sequence

START: Final = Position(
    log_end=Offset(0),
    producer_id=ProducerId(7),
    epoch=ProducerEpoch(0),
    sequence=Sequence(0),
    guarded=True,
)
"""That of an empty log."""
