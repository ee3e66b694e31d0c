"""Which positions have to be committed again although they have not changed.

Brokers forget an offset some time after it was committed (`offsets.retention.minutes`), also that
of a partition that is FAILED, or has nothing to copy.
"""

import asyncio
from collections.abc import Collection, Mapping
from typing import Final

from twinlog.engines.transactional.positions import is_dated, lost_of
from twinlog.engines.transactional.queue import TransactionalQueue
from twinlog.kafka.groups.offsets import Committed
from twinlog.kafka.requests.transactions import TransactionOffset
from twinlog.kafka.types import LeaderEpoch, TopicPartition
from twinlog.mirror.placement import MirrorPartition

KEEP_S: Final = 3600.0
"""How often a position is committed that has not changed."""
_FIRST_KEEP_S: Final = 60.0
"""After its first location, in case its last commit was long ago. One that is copied by then has
committed another position, as a rule."""


class KeptPositions:
    """When each position is due, by group and remote partition."""

    def __init__(self) -> None:
        self._due_at: dict[tuple[str, TopicPartition], float] = {}

    def due(
        self, group: str, remotes: Mapping[MirrorPartition, TopicPartition]
    ) -> Mapping[MirrorPartition, TopicPartition]:
        """Those of these that are due, which are noted as committed: errors wait for the next time.

        Needs a running event loop.
        """
        now = asyncio.get_running_loop().time()
        due = {
            name: remote
            for name, remote in remotes.items()
            if now >= self._due_at.setdefault((group, remote), now + _FIRST_KEEP_S)
        }
        for remote in due.values():
            self.note(group, remote)
        return due

    def note(self, group: str, remote: TopicPartition) -> None:
        """Note that this position is committed now."""
        self._due_at[group, remote] = asyncio.get_running_loop().time() + KEEP_S


def to_keep(
    remotes: Mapping[MirrorPartition, TopicPartition],
    results: Mapping[MirrorPartition, object],
    new: Collection[MirrorPartition],
    found: Mapping[TopicPartition, Committed],
    settled: Collection[MirrorPartition],
) -> Mapping[MirrorPartition, TopicPartition]:
    """The partitions whose positions may be committed again as they were found.

    Only where the logs agree with the position, or have lost records behind it for all that is
    known. Another one may be a former position, which a coordinator that is cut off has given.

    Args:
        remotes: the partitions that were located, with their remote ones.
        results: what was found; a queue where the logs agree.
        new: those that have been committed just now.
        found: the positions, by remote partition.
        settled: those with a loss that counts (losses.py).
    """

    def agrees(name: MirrorPartition, remote: TopicPartition) -> bool:
        if isinstance(results[name], TransactionalQueue) or name in settled:
            return True
        return lost_of(found[remote], remote) is not None

    return {
        name: remote
        for name, remote in remotes.items()
        if name not in new and remote in found and is_dated(found[remote]) and agrees(name, remote)
    }


def as_found(
    found: Mapping[TopicPartition, Committed], remotes: Collection[TopicPartition]
) -> dict[TopicPartition, TransactionOffset]:
    """The positions of these remote partitions, to be committed again as they are."""
    return {
        remote: TransactionOffset(at.offset, LeaderEpoch(at.leader_epoch), at.metadata)
        for remote in remotes
        for at in [found[remote]]
    }
