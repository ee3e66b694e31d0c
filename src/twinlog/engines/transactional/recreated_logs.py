"""Where a partition goes on in a remote topic that was recreated (sync/recreated_remotes.py).

Brokers delete a group's offsets with a topic, so its position is gone: all is copied again, as into
any new topic. But transactions name topics, and not their ids. A lane that has not seen yet that
the topic was recreated may write to the new one, and commits positions that name the former one.
Whether such a position is deleted, too, depends on when its coordinator learns of the deletion. So
the new log is read whole. The lane is fenced, so nothing of the partition comes later:

| committed batches of the flow in the new log | the partition |
| --- | --- |
| none | begins, whatever position there is |
| the last one is the tail of the position | goes on at it: the former topic's copies are lost |
| another one | is FAILED: how far it was copied is not known |

All flows of a state partition write under one producer id. Where several have one remote topic, the
last batch may be another flow's: FAILED, too.
"""

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from twinlog.engines.ports import DestinationPort
from twinlog.engines.transactional.position_maps import KnownMap
from twinlog.engines.transactional.positions import tail_of
from twinlog.engines.transactional.remote_reader import read_batches
from twinlog.engines.transactional.remote_tails import RemoteTail, known_end, tail_of_batch
from twinlog.engines.transactional.source_position import ToBegin
from twinlog.engines.translated.location import NotLocated
from twinlog.kafka.errors import Retriable, TwinlogError
from twinlog.kafka.groups.offsets import Committed
from twinlog.kafka.log.batch import Header
from twinlog.kafka.log.markers import commits
from twinlog.kafka.types import Offset, Sequence, TopicPartition
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.record_losses import RecordLoss

_READ_S: Final = 5.0
"""How long one location reads, in all logs: other partitions of the state partition wait for it."""
_REMEDY: Final = "delete the topic once more, and it is copied again"

_Key = tuple[TopicPartition, UUID | None, frozenset[int]]


@dataclass
class _LogSearch:
    """What is known of a log up to an offset; the next reading goes on there."""

    epoch: int
    """The leader epoch in which it is read."""
    position: Offset = field(default=Offset(0))
    undecided: dict[int, RemoteTail] = field(default_factory=dict)
    """By producer id, its last batch since its last marker."""
    last: RemoteTail | None = None
    """The last batch that is committed."""

    def take(self, header: Header, records: memoryview) -> None:
        """Take the next batch of one of the producers."""
        if not header.is_control:
            count = header.next_offset - header.base_offset
            producer = header.producer_id, header.producer_epoch
            first = Sequence(header.base_sequence)
            tail = tail_of_batch(header.base_offset, count, producer, first)
            self.undecided[header.producer_id] = tail
        elif (tail_of_own := self.undecided.pop(header.producer_id, None)) is not None:
            self.last = tail_of_own if commits(header, records) else self.last


class RecreatedLogs:
    """The remote logs of a state partition's flows that were recreated; see the module.

    A partition is located again and again: each time, only what is new is read, as far as one
    location may read.

    Args:
        port: the target.
    """

    def __init__(self, port: DestinationPort) -> None:
        self._port = port
        self._searches: dict[_Key, _LogSearch] = {}

    async def positions(
        self,
        found: Mapping[MirrorPartition, Committed | None],
        recreated: Mapping[MirrorPartition, ToBegin],
        committed: Mapping[TopicPartition, Committed],
        *,
        own_ids: Collection[int],
    ) -> tuple[dict[MirrorPartition, Committed | None], dict[MirrorPartition, NotLocated]]:
        """Where partitions go on, also those whose remote topics were recreated.

        Args:
            found: the positions of these topics, None without one. No transaction of them is open.
            recreated: those whose remote topics were recreated.
            committed: the positions that are committed, also of former topics.
            own_ids: producer ids of the flow's state partition.

        Returns:
            The positions, None of those that begin; and those of which it is not known.
        """
        positions, unknown = dict(found), dict[MirrorPartition, NotLocated]()
        searched = [name for name, here in found.items() if here is None and name in recreated]
        for name in searched:
            route = recreated[name].route
            remote = TopicPartition(route.topic, name.partition)
            there = await self._position(
                *(remote, route.topic_id, committed.get(remote)),
                own_ids=own_ids,
                for_s=_READ_S / len(searched),
            )
            if isinstance(there, NotLocated):
                unknown[name] = there
                del positions[name]
            else:
                positions[name] = there
        return positions, unknown

    async def _position(
        self,
        remote: TopicPartition,
        topic_id: UUID | None,
        committed: Committed | None,
        *,
        own_ids: Collection[int],
        for_s: float,
    ) -> Committed | NotLocated | None:
        tail = None if committed is None else tail_of(committed)
        ids = {*own_ids, *(() if tail is None else (tail.last.producer_id,))}
        key = remote, topic_id, frozenset(ids)
        try:
            last = await self._last_committed(remote, ids, key, for_s)
        except TwinlogError as error:
            return NotLocated(str(error))
        if last is None or (tail and (last.end, last.last) == (tail.end, tail.last)):
            self._searches.pop(key, None)
            return None if last is None else committed
        return NotLocated(
            f"{remote} was recreated, and a transaction has landed there up to {last.end} whose "
            f"position is not known; {_REMEDY}",
            transient=False,
        )

    async def _last_committed(
        self, remote: TopicPartition, own_ids: Collection[int], key: _Key, for_s: float
    ) -> RemoteTail | None:
        """The last batch of these producers that is committed in a log; None: there is none.

        It is read for so many seconds, or one answer.

        Raises:
            TwinlogError: it cannot be read now, or not yet to its end, or a marker is missing.
        """
        end = known_end(remote, (await self._port.log_ends([remote])).get(remote))
        search = self._searches.get(key)
        if search is None or search.epoch != end.leader_epoch or search.position > end.log_end:
            # Another leader may have lost what was read.
            search = self._searches[key] = _LogSearch(end.leader_epoch)
        now = asyncio.get_running_loop().time
        until = now() + for_s
        while search.position < end.log_end:
            read = await read_batches(self._port, remote, search.position)
            if not read.headers and read.replicated < end.log_end:
                raise Retriable(f"{remote} is replicated up to {read.replicated} only")
            for header in read.headers:
                if header.producer_id in own_ids:
                    search.take(header, read.records)
            next_offset = read.headers[-1].next_offset if read.headers else read.replicated
            search.position = Offset(next_offset)
            if search.position < end.log_end and now() > until:
                raise Retriable(
                    f"{remote} was recreated, and is read up to its end, {end.log_end}, first: "
                    f"now at {search.position}"
                )
        if search.undecided:
            raise Retriable(f"{remote} lacks the marker of a transaction of the flow")
        return search.last


def lost_copies(remote: TopicPartition, known: KnownMap) -> RecordLoss:
    """What was lost with a former remote topic: up to where its map names copies, if it has one."""
    return RecordLoss(remote, None, None if known.head is None else known.head.end.destination)
