"""What goes into a query of the check, and what comes out: plain data, without Spark."""

from collections.abc import Sequence
from typing import NamedTuple

from twinlog.kafka.log.records import Headers, Record


class InputRecord(NamedTuple):
    """A record of the source with its remote partition."""

    topic: str
    partition: int
    record: Record


class OutputRow(NamedTuple):
    """A record that a result has for a record of the source."""

    topic: str
    partition: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class Failed(NamedTuple):
    """A record that the query cannot be applied to, or whose row no record can be made of."""

    reason: str


Output = Sequence[OutputRow] | Failed
