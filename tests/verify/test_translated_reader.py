"""Twin of twinlog.verify.translated_reader, without brokers."""

import asyncio
from typing import Any

from twinlog.verify.log_view import Kind, Span
from twinlog.verify.translated_reader import TranslatedReader


class Own:
    """A destination that has two offsets of its own before the source's offset 3."""

    def to_destination(self, offset: int) -> int:
        return offset if offset <= 3 else offset + 2

    def to_source(self, offset: int) -> int:
        return offset if offset <= 3 else max(offset - 2, 3)

    def lowest(self, offset: int) -> int:
        return offset


class Reader:
    """The spans of such a destination."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    async def span(self, at: int, end: int) -> Span:
        self.asked.append(at)
        return Span(at, 5, Kind.CONTROL) if at < 5 else Span(at, min(end, 9), Kind.ABORTED)


def test_additional_destination_offsets_prove_nothing() -> None:
    """Goal: an offset of the source has the kind of what stands in its place, not before it."""
    reader: Any = Reader()
    found = asyncio.run(TranslatedReader(reader, Own()).span(3, 7))
    assert found == Span(3, 7, Kind.ABORTED)
    assert reader.asked == [3, 5]
