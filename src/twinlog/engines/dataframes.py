"""How an engine has records transformed by Spark: what a lane offers to it.

The transform is a function from records to records that writes nothing. So nothing has to be fenced
there, and it may run again at any time, or twice: exactly once is the business of the transaction
that its result is written in.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from twinlog.mirror.dataframe_transform import DataFrameTransform


class SourceRow(NamedTuple):
    """A row of `records`: see `RECORD_COLUMNS`."""

    record: int
    """The row's index in its micro-batch."""
    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


class ResultRows(NamedTuple):
    """The rows of a result, and their columns: those of `RESULT_COLUMNS` that the result has."""

    columns: tuple[str, ...]
    rows: Sequence[tuple[object, ...]]


class QueryUnusable(Exception):
    """The transform cannot be applied to any record.

    Args:
        reason: why, in one line.
        name: the property that is at fault; empty: none is.
        only_here: whether it may be usable on another host, or later: a table or a module is
            missing here, or a registry does not answer.
    """

    def __init__(self, reason: str, *, name: str = "", only_here: bool = False) -> None:
        super().__init__(f"{name}: {reason}" if name else reason)
        self.reason, self.name, self.only_here = reason, name, only_here


class QueryFailed(Exception):
    """The transform has failed for these records; the text holds nothing of them."""


class DataFrames(Protocol):
    """Applies transforms to micro-batches."""

    async def run(self, transform: DataFrameTransform, rows: Sequence[SourceRow]) -> ResultRows:
        """Transform a micro-batch.

        Raises:
            QueryUnusable, QueryFailed: see the classes.
            Retriable: not now; call it again.
        """
        ...
