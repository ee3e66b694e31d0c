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
from twinlog.engines.transactional.positions import lost_of
from twinlog.engines.transactional.remote_tails import ShorterLog, TailProblem
from twinlog.engines.transactional.routed_tails import RoutedLoss, RoutedTails
from twinlog.engines.transactional.source_position import SourcePosition
from twinlog.engines.translated.found_losses import FoundLosses
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
    for loss in losses:
        log.error("%s: %s; going on at position %d", name, loss, position.offset)
        if isinstance(loss, RoutedLoss):
            others = tuple(one for one in position.routed if one.log != loss.log)
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


def as_record_loss(loss: LostEnd, remote: TopicPartition) -> RecordLoss:
    """A loss as it is counted.

    Args:
        loss: of a position.
        remote: the position's remote partition.
    """
    log = loss.log if isinstance(loss, RoutedLoss) else remote
    # It begins where the log ends, which others may have written to since.
    return RecordLoss(log, loss.start, loss.end, at_least=loss.start is not None)


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
            (name, key): loss
            for name, found in compared.items()
            for key, loss in _losses(found, positions[name].remote)
        }
        logs = {(name, key) for name, one in positions.items() for key in _logs(one)}
        lasting = self._seen.last(logs, set(losses))
        settled: defaultdict[MirrorPartition, list[LostEnd]] = defaultdict(list)
        for (name, key), loss in losses.items():
            if proved(loss, key) is not None or (name, key) in lasting:
                settled[name].append(loss)
        return settled


def unsettled(loss: LostEnd) -> str:
    """The reason of a partition with a loss that does not count yet."""
    return f"{loss}{_AGAIN}"


def _logs(position: SourcePosition) -> Iterable[TopicPartition]:
    return position.remote, *(one.log for one in position.routed)


def _losses(
    problem: RoutedTails | TailProblem, remote: TopicPartition
) -> Iterable[tuple[TopicPartition, LostEnd]]:
    if isinstance(problem, RoutedLoss):
        return [(loss.log, loss) for loss in problem.all]
    return [(remote, problem)] if isinstance(problem, LostEnd) else []
