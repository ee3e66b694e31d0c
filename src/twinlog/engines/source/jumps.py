"""Skipped offsets on a topic that does not compact: accepted only if they are read twice.

On such a topic nothing explains why a batch skips offsets. The skip may be old (the topic was
compacted once, or has lost a segment), so it cannot simply be refused. But a single answer is weak
evidence, and a wrong skip loses records. So the plan is cut where the first skip begins, and the
source is read again from there. A skip that the second reading confirms is accepted, as
UNEXPLAINED.

    first answer     data 0-5 | skip 5-8 | data 8-10 | skip 10-12 | data 12-14
    taken            data 0-5;  doubted: 5-8, 10-12
    second answer              skip 5-8 | data 8-10 | skip 10-12 | data 12-14
    taken                      all of it
"""

from collections.abc import Collection, Iterator
from typing import NamedTuple

from twinlog.kafka.types import Offset
from twinlog.mirror.absence import Absence, AbsentSpan
from twinlog.mirror.plan import Gap, Piece


class Jump(NamedTuple):
    """Offsets `[start, end)` that a batch skips."""

    start: Offset
    end: Offset


class Believed(NamedTuple):
    """The pieces that may be taken, and the doubted skips from their end on."""

    pieces: list[Piece]
    doubted: tuple[Jump, ...]
    unexplained: tuple[Jump, ...]
    """The skips among the pieces."""


def believe(pieces: list[Piece], doubted: Collection[Jump]) -> Believed:
    """Cut a plan at its first skip that was not read before.

    Args:
        pieces: the plan of an answer.
        doubted: the doubted skips of the previous answer (`Believed.doubted`).
    """
    if not any(map(skips, pieces)):
        return Believed(pieces, (), ())
    known = frozenset(doubted)
    believed: list[Piece] = []
    iterator = iter(pieces)
    unexplained: list[Jump] = []
    for piece in iterator:
        jumps = list(_jumps(piece))
        first_jump = next((jump for jump in jumps if jump not in known), None)
        unexplained += [j for j in jumps if first_jump is None or j.end <= first_jump.start]
        if first_jump is None:
            believed.append(_explained(piece))
            continue
        if isinstance(piece, Gap) and piece.start < first_jump.start:
            believed.append(_explained(_until(piece, first_jump.start)))
        later_jumps = [jump for other in iterator for jump in _jumps(other)]
        in_doubt = (*(j for j in jumps if j.start >= first_jump.start), *later_jumps)
        return Believed(believed, in_doubt, tuple(unexplained))
    return Believed(believed, (), tuple(unexplained))


def skips(piece: Piece) -> bool:
    """Whether a batch skips offsets that no control record and no aborted transaction explains."""
    return isinstance(piece, Gap) and any(s.reason is Absence.COMPACTED for s in piece.spans)


def _jumps(piece: Piece) -> Iterator[Jump]:
    if isinstance(piece, Gap):
        start = piece.start
        for reason, end in piece.spans:
            if reason is Absence.COMPACTED:
                yield Jump(start, end)
            start = end


def _until(gap: Gap, end: Offset) -> Gap:
    spans = tuple(span for span in gap.spans if span.end <= end)
    seen = all(span.reason is not Absence.COMPACTED for span in spans)
    return Gap(gap.start, end, seen, spans)


def _explained(piece: Piece) -> Piece:
    """A piece with its skips marked as UNEXPLAINED."""
    if not isinstance(piece, Gap):
        return piece
    spans = tuple(
        AbsentSpan(Absence.UNEXPLAINED if s.reason is Absence.COMPACTED else s.reason, s.end)
        for s in piece.spans
    )
    return Gap(piece.start, piece.end, piece.seen, spans)
