"""The real batches of tests/data, and what a real consumer read of them (see data/capture.py)."""

import base64
import functools
import hashlib
import json
from typing import Final, NamedTuple

from checkout import ROOT

from twinlog.kafka.log.batch import Header, batches
from twinlog.kafka.log.records import Record, decode, raw_records
from twinlog.kafka.types import AbortedTransaction
from twinlog.mirror.plan import Data, Gap, Piece

_HERE: Final = ROOT / "tests" / "data"
NAMES: Final = tuple(sorted(path.stem for path in _HERE.glob("*.bin")))
SHORT: Final = 64
"""The most bytes of a value that the capture stores itself; longer ones are stored as SHA-256."""


class Seen(NamedTuple):
    """A record as a consumer received it; long bytes as their SHA-256."""

    offset: int
    timestamp: int
    key: bytes | str | None
    value: bytes | str | None
    headers: tuple[tuple[str, bytes | str | None], ...]


class Capture(NamedTuple):
    """A partition's log. `aborted[at]` lists what a Fetch from offset `at` reports as aborted."""

    name: str
    data: bytes
    headers: tuple[Header, ...]
    aborted: dict[int, tuple[AbortedTransaction, ...]]
    seen: tuple[Seen, ...]

    @property
    def end(self) -> int:
        """The offset after the last record."""
        return self.headers[-1].next_offset

    @property
    def buffer(self) -> memoryview:
        """The whole log as one answer."""
        return memoryview(self.data)

    def answer(self, position: int) -> memoryview:
        """Return the answer to a Fetch from this offset; it begins with the batch that holds it."""
        start = next((h.position for h in self.headers if h.next_offset > position), len(self.data))
        return self.buffer[start:]


@functools.cache
def capture(name: str) -> Capture:
    """Read one capture."""
    data = (_HERE / f"{name}.bin").read_bytes()
    told = json.loads((_HERE / f"{name}.json").read_text())
    return Capture(
        name,
        data,
        tuple(batches(memoryview(data))),
        {
            int(at): tuple(AbortedTransaction(*listed) for listed in aborted)
            for at, aborted in told["aborted"].items()
        },
        tuple(
            Seen(
                offset,
                timestamp,
                _bytes(key),
                _bytes(value),
                tuple((header, _bytes(content)) for header, content in headers),
            )
            for offset, timestamp, key, value, headers in told["records"]
        ),
    )


def _bytes(text: str | None) -> bytes | str | None:
    if text is None or text.startswith("sha256:"):
        return text
    return base64.b64decode(text)


def as_seen(record: Record) -> Seen:
    """Convert a decoded record to the capture's form."""
    return Seen(
        record.offset,
        record.timestamp,
        _short(record.key),
        _short(record.value),
        tuple((name, _short(content)) for name, content in record.headers),
    )


def _short(data: bytes | None) -> bytes | str | None:
    if data is None or len(data) <= SHORT:
        return data
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def records_of(pieces: list[Piece]) -> list[Seen]:
    """Return all records of a plan, decoded."""
    return [
        as_seen(decode(record))
        for piece in pieces
        if isinstance(piece, Data)
        for record in raw_records(piece.header, piece.records)
    ]


def check_cover(pieces: list[Piece], start: int) -> int:
    """Assert that the pieces follow each other without a hole; return their end."""
    at = start
    for piece in pieces:
        assert piece.start == at < piece.end
        if isinstance(piece, Data):
            header = piece.header
            assert header.num_records == piece.end - piece.start
            assert not header.is_log_append_time
            assert len(piece.records) == header.length - 49
        else:
            assert isinstance(piece, Gap)
        at = piece.end
    return at
