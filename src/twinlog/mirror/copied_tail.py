"""Where a copy ends that another program has made: which record of the source is its last one.

MirrorMaker 2 stores now and then up to which offset N it has copied a partition. What it copied
after that, it copies again when it starts. Its copies have the key, value, timestamp and headers of
their record, and are in the source's order. So the end of the log shows where it was killed:

    source          ... 40 (N) 41 42 43 44 45 ...          N: recorded as copied
    remote topic    ... 40     41 42 43                    43 is the last copy: go on at 44

The last copy is of a record at N or behind it, since all up to N were copied. Of the source's
records from N on, the *first* one with the content of the last copy is taken:

- No record is missed: the last copy is of this record or a later one, so this one was copied, and
  all before it.
- Records are repeated only if a later record of the source has the same content, down to the
  timestamp, and if the program was restarted and had come further before.

This holds if nobody else wrote to the end of the remote topic, and if the copies were made in
order. It is not taken on trust: the records between N and the end have to be the last ones of the
remote topic, one by one, and whether those behind it are further in front is looked up
(`lifecycle/flow_takeover.py`).
"""

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from twinlog.kafka.log.records import Record
from twinlog.kafka.types import Offset

Content: TypeAlias = tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]
"""Timestamp, key, value and headers of a record."""


def content(record: Record) -> Content:
    """What is the same in a record and its copy."""
    return record.timestamp, record.key, record.value, record.headers


class OffsetRange(NamedTuple):
    """Offsets `[start, end)`."""

    start: Offset
    end: Offset

    def __str__(self) -> str:
        """As it is written in messages."""
        return f"[{self.start}, {self.end})"


class CopiedTail:
    """Looks for the last copy among the source's records.

    Args:
        last: the last record of the remote topic.
        recorded: N, the offset up to which all is known to be copied; None: nothing is known.
    """

    def __init__(self, last: Record, recorded: Offset | None) -> None:
        self._last = content(last)
        self._recorded = -1 if recorded is None else recorded
        self.records = 0
        """Records behind N that were looked at."""
        self.end: Offset | None = None
        """Behind the record that was copied last; None: it was not found."""
        self.copies = 0
        """How many of the remote topic's last records are to be copies of records behind N."""

    def look(self, records: Iterable[Record]) -> None:
        """Look at the source's next records: all from N on, with N itself, have to be shown."""
        for record in records:
            self.records += record.offset > self._recorded
            # The timestamp first: it differs nearly always.
            if record.timestamp == self._last[0] and content(record) == self._last:
                self.end, self.copies = Offset(record.offset + 1), self.records
                return
