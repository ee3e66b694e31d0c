"""Records that the target has lost: what proves it, and when a flow goes on without them.

What a log itself shows is proved: another batch is in the place of the last one. One broker's
answer may be stale instead. A broker that is cut off may lead a log no more that it answers for, or
report a topic that was deleted since. So with `twinlog.data.loss=continue` such a loss counts when
each comparison of a lease has found it.
"""

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from twinlog.engines.destination.sightings import Sightings
from twinlog.engines.settings import LaneSettings
from twinlog.engines.transactional.positions import loss, lost_of
from twinlog.engines.transactional.remote_tails import OlderPosition, ShorterLog, TailProblem
from twinlog.engines.transactional.routed_tails import RoutedLoss, RoutedTails
from twinlog.engines.transactional.source_position import SourcePosition
from twinlog.engines.translated.found_losses import FoundLosses
from twinlog.engines.translated.location import NotLocated
from twinlog.engines.translated.remote_log import LostEnd
from twinlog.kafka.groups.offsets import Committed
from twinlog.kafka.types import TopicPartition
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.record_losses import RecordLoss

log = logging.getLogger(__name__)

_AGAIN: Final = "; it is compared again, as the broker that says so may be cut off"


def proved(problem: TailProblem, remote: TopicPartition) -> TopicPartition | None:
    """Where the target has lost records; None: nowhere, or a broker that is cut off may say so.

    Args:
        problem: of a position.
        remote: the position's remote partition.
    """
    if isinstance(problem, RoutedLoss):
        return problem.log if problem.proved else None
    return remote if isinstance(problem, LostEnd) and not isinstance(problem, ShorterLog) else None


def passed(
    name: MirrorPartition, position: SourcePosition, losses: Iterable[LostEnd]
) -> SourcePosition:
    """Report losses, and return the position without the tails of records that are lost.

    All at once: each location that finds one counts as a failure of the partition.
    """
    for one_loss in losses:
        log.error("%s: %s; going on at position %d", name, one_loss, position.offset)
        if isinstance(one_loss, RoutedLoss):
            others = tuple(one for one in position.routed if one.log != one_loss.log)
            position = replace(position, routed=others)
        else:
            position = replace(position, tail=None)
    return position


def report_stored(
    name: MirrorPartition,
    position: SourcePosition,
    found: Committed | None,
    losses: FoundLosses,
    others: Iterable[LostEnd] = (),
) -> bool:
    """Report the loss that a position names, if it is passed over; return whether it names one.

    Compaction may have removed what showed it.

    Args:
        name: the partition.
        position: where it goes on.
        found: what is committed; None: nothing.
        losses: get the one that is named.
        others: losses that the logs show, and that are reported with them.
    """
    lost = None if found is None else lost_of(found, position.remote)
    if lost is None:
        return False
    if lost not in {as_record_loss(one, position.remote).log for one in others}:
        text = "%s: the destination has lost records of %s; going on at position %d"
        log.error(text, name, lost, position.offset)
        losses.note_former(name, RecordLoss(lost, None, None))
    return True


def as_record_loss(found: LostEnd, remote: TopicPartition) -> RecordLoss:
    """A loss as it is counted.

    Args:
        found: of a position.
        remote: the position's remote partition.
    """
    log = found.log if isinstance(found, RoutedLoss) else remote
    # It begins where the log ends, which others may have written to since.
    return RecordLoss(log, found.start, found.end, at_least=found.start is not None)


class SettledLosses:
    """Which losses count: a flow goes on without them, or stays FAILED."""

    def __init__(self, settings: LaneSettings) -> None:
        recent_s = settings.lease_s + 2 * settings.backoff_max_s
        self._seen = Sightings[tuple[MirrorPartition, TopicPartition]](settings.lease_s, recent_s)

    def settled(
        self,
        positions: Mapping[MirrorPartition, SourcePosition],
        compared: Mapping[MirrorPartition, RoutedTails | TailProblem],
    ) -> Mapping[MirrorPartition, Sequence[LostEnd]]:
        """The losses of one comparison that are proved, or that were found for long enough.

        Args:
            positions: those that were compared.
            compared: what was found of each.
        """
        losses = {
            (name, key): one
            for name, found in compared.items()
            for key, one in _losses(found, positions[name].remote)
        }
        logs = {(name, key) for name, one in positions.items() for key in _logs(one)}
        lasting = self._seen.last(logs, set(losses))
        settled: defaultdict[MirrorPartition, list[LostEnd]] = defaultdict(list)
        for (name, key), one in losses.items():
            if proved(one, key) is not None or (name, key) in lasting:
                settled[name].append(one)
        return settled


def unlocated(
    name: MirrorPartition,
    position: SourcePosition,
    found: Committed | None,
    problem: TailProblem,
    losses: FoundLosses,
    *,
    settled: Sequence[LostEnd] | None,
    passes_lost: bool,
    group: str,
) -> tuple[NotLocated, SourcePosition | None]:
    """What becomes of a partition whose position does not agree with the target's logs.

    Args:
        name: the partition.
        position: its position.
        found: as it is committed; None: it is not.
        problem: what the comparison has found.
        losses: get what is passed over.
        settled: see `SettledLosses.settled`; None: no loss counts.
        passes_lost: whether the flow goes on without lost records.
        group: the flow's.

    Returns:
        Why it is not located, and the position to commit; None: it stays as it is.
    """
    if isinstance(problem, LostEnd) and passes_lost:
        if settled is None:
            return NotLocated(f"{problem}{_AGAIN}"), None
        report_stored(name, position, found, losses, settled)
        return NotLocated(str(problem)), passed(name, position, settled)
    proved_at = proved(problem, position.remote)
    changed = replace(position, lost=proved_at) if proved_at else None
    if isinstance(problem, LostEnd | OlderPosition):
        reason = loss(str(problem), position.offset, group)
        return NotLocated(reason, transient=False), changed
    return NotLocated(str(problem)), changed


def _logs(position: SourcePosition) -> Iterable[TopicPartition]:
    return position.remote, *(one.log for one in position.routed)


def _losses(
    problem: RoutedTails | TailProblem, remote: TopicPartition
) -> Iterable[tuple[TopicPartition, LostEnd]]:
    if isinstance(problem, RoutedLoss):
        return [(one.log, one) for one in problem.all]
    return [(remote, problem)] if isinstance(problem, LostEnd) else []
