"""Which losses of the target were found in a flow's partitions, and which of them count.

A log that is shorter than what was copied counts when the answers of a lease agree: a broker that
is cut off, and led it once, may answer so. What a log itself shows counts at once.

Each loss counts once. A partition with a loss is located again and again, and each location finds
the same loss. It is known by its log and by how far records were copied there; the log may grow
meanwhile. Once the partition was located, whatever is found is another loss.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from twinlog.engines.destination.sightings import Sightings
from twinlog.engines.settings import LaneSettings
from twinlog.kafka.types import Offset, TopicPartition
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.record_losses import RecordLoss

_AGAIN: Final = "; it is compared again, as the broker that says so may be cut off"

_Key = tuple[TopicPartition, Offset | None]


class FoundLosses:
    """The losses of one state partition's flows, in one process."""

    def __init__(self) -> None:
        self._new: defaultdict[MirrorPartition, list[RecordLoss]] = defaultdict(list)
        self._known: defaultdict[MirrorPartition, set[_Key]] = defaultdict(set)

    def note(self, name: MirrorPartition, loss: RecordLoss) -> None:
        """Note a loss, unless it was found before."""
        key = loss.log, loss.end
        if key not in self._known[name]:
            self._known[name].add(key)
            self._new[name].append(loss)

    def note_former(self, name: MirrorPartition, loss: RecordLoss) -> None:
        """Note a loss that is stored, and that this process may have found itself."""
        if all(log != loss.log for log, _ in self._known[name]):
            self.note(name, loss)

    def forget(self, name: MirrorPartition) -> None:
        """Begin to count anew: the partition is started, and what was counted before is gone."""
        self._known.pop(name, None)
        self._new.pop(name, None)

    def take(self, name: MirrorPartition, *, located: bool) -> Sequence[RecordLoss]:
        """The losses of a partition since the last call.

        Args:
            name: the partition.
            located: whether it goes on, so that it has none any more.
        """
        if located:
            self._known.pop(name, None)
        return self._new.pop(name, [])


class ShorterLogs:
    """Which partitions wait, as their logs are shorter than what was copied.

    Args:
        settings: the lane's limits.
        losses: gets those that count, of partitions that stay as they are.
    """

    def __init__(self, settings: LaneSettings, losses: FoundLosses) -> None:
        recent_s = settings.lease_s + 2 * settings.backoff_max_s
        # Several partitions may share a log, of which each has another end.
        self._seen = Sightings[MirrorPartition](settings.lease_s, recent_s)
        self._losses = losses

    def waiting(
        self,
        names: Mapping[TopicPartition, MirrorPartition],
        shorter: Mapping[TopicPartition, RecordLoss],
        passing: Collection[TopicPartition],
    ) -> Mapping[TopicPartition, str]:
        """The partitions that are not fenced, and why.

        Args:
            names: the partitions that were compared, by the destination's.
            shorter: what those have lost whose log is shorter.
            passing: those of them that go on once the loss counts.
        """
        lasting = self._seen.last(list(names.values()), [names[key] for key in shorter])
        settled = {key for key in shorter if names[key] in lasting}
        # What those have lost that go on is read from their logs: it may begin before the end.
        for key in settled - {*passing}:
            self._losses.note(names[key], shorter[key])
        return {
            key: f"the destination's log ends at {loss.start}, and records up to {loss.end} were "
            f"copied: it has lost records{_AGAIN if key in passing else ''}"
            for key, loss in shorter.items()
            if key not in passing or key not in settled
        }
