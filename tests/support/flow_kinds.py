"""The kinds of flows whose parts are killed, and what each kind makes of a record.

    batches        forwards batches: exactly once for readers of both isolation levels
    transactions   `transaction.producer` (KIP-656)
    query          SQL that changes each record, by the Spark beside a lane (decision 0016)
    function       a Python function that drops records, and leaves the others as they are

What a query or function gives is computed here from the records of the source, as librdkafka reads
them, and by no code of a flow. A copy's value by the query names its partition and offset on the
source, so a record that is doubled, misplaced, or that has another record's result differs from
what is expected.

The function drops records one by one, and whole runs of them: then a micro-batch may have no
result, and only its position is written.

Flows of queries and functions record a map of offsets, which `verify` compares.

Flows of all kinds but the first write in transactions, and some are aborted by kills: see `aborted`
for what readers with read_uncommitted may find beyond the committed records.
"""

import hashlib
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

Copied = tuple[bytes | None, bytes | None, tuple[int, int], object]
"""Key, value, timestamp and headers of a record."""

Placed = list[tuple[int, Copied]]
"""Records with their offsets."""

Changed = Callable[[str, int, bytes | None], bytes | None]
"""A copy's value, by remote partition, the source's offset, and the source's value."""

Kept = Callable[[int, bytes | None], bool]
"""Whether a record is copied, by the source's offset and value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowKind:
    """A kind of flow (see the module)."""

    name: str
    settings: Mapping[str, str] = field(default_factory=dict)
    """Properties of the flow."""
    is_transactional: bool = True
    """Whether a kill may leave records of aborted transactions."""
    changed: Changed = lambda _place, _offset, value: value
    kept: Kept = lambda _offset, _value: True
    drops: bool = False
    """Whether `kept` is not always true."""

    @property
    def is_mapped(self) -> bool:
        """Whether the flow records a map of offsets."""
        return not self.is_transactional or "twinlog.offset.map" in self.settings

    @property
    def has_query(self) -> bool:
        """Whether a Spark beside each lane transforms the records, by a query or a function."""
        return any(name.startswith("twinlog.transform.") for name in self.settings)


def _by_query(place: str, offset: int, value: bytes | None) -> bytes:
    digest = "null" if value is None else hashlib.sha256(value).hexdigest()
    return f"{place}@{offset} {digest} {(value or b'').decode()[::-1]}".encode()


def _kept_by_function(offset: int, value: bytes | None) -> bool:
    return zlib.crc32(value or b"") % 3 != 0 and offset // 10 % 4 != 0


_SQL: Final = """
    SELECT record, concat(topic, '-', string(partition), '@', string(offset), ' ',
                          coalesce(sha2(value, 256), 'null'), ' ',
                          reverse(coalesce(string(value), ''))) AS value
    FROM records
"""
BATCHES: Final = FlowKind(name="batches", is_transactional=False)
TRANSACTIONS: Final = FlowKind(name="transactions", settings={"transaction.producer": "true"})
_MAPPED: Final = {"twinlog.transform.routes": "false", "twinlog.offset.map": "true"}
QUERY: Final = FlowKind(
    name="query", settings={"twinlog.transform.sql": _SQL, **_MAPPED}, changed=_by_query
)
FUNCTION: Final = FlowKind(
    name="function",
    settings={"twinlog.transform.function": "frame_functions:sampled", **_MAPPED},
    kept=_kept_by_function,
    drops=True,
)


def aborted(committed: Placed, seen: Placed) -> int:
    """Count the copies that only readers with read_uncommitted see, and check each of them.

    Each has to be the copy of a record whose committed copy follows: a flow that has committed a
    record never copies it again, not even in a transaction that it aborts. Then its position would
    have been older than its copy.

    Args:
        committed: a partition as readers with read_committed see it; no two records are alike.
        seen: the same partition as readers with read_uncommitted see it, without open transactions.
    """
    places = {_identity(record): offset for offset, record in committed}
    assert len(places) == len(committed), "records of the load are not unique"
    offsets = dict(committed)
    beyond = 0
    for offset, record in seen:
        if offset in offsets:
            assert record == offsets.pop(offset), f"another record is committed at {offset}"
            continue
        place = places.get(_identity(record))
        assert place is not None, f"{record!r:.200} at {offset} is the copy of no record"
        assert offset < place, f"a copy at {offset} follows the committed one at {place}"
        beyond += 1
    assert not offsets, f"committed records are not seen: {sorted(offsets)[:10]}"
    return beyond


def _identity(record: Copied) -> tuple[object, ...]:
    *parts, headers = record
    assert headers is None or isinstance(headers, list)
    return (*parts, None if headers is None else tuple(headers))
