"""Where a partition goes on in a remote topic that was recreated (sync/recreated_remotes.py).

Brokers delete a group's offsets with a topic, so its position is gone: all is copied again, as into
any new topic. But a lane that has not seen yet that the topic was recreated may write to the new
one (brokers before 4.1 know a topic by its name in a Produce request), and commits positions that
name the former one. Whether such a position is deleted, too, depends on when its coordinator learns
of the deletion. So the new log is read whole. The lane is fenced, so nothing of it comes later:

| committed batches of the flow in the new log | the partition |
| --- | --- |
| none | begins, whatever position there is |
| the last one is the tail of the position | goes on at it: the former topic's copies are lost |
| another one | is FAILED: how far it was copied is not known |
"""

from collections.abc import Collection, Mapping
from typing import Final

from twinlog.engines.ports import DestinationPort
from twinlog.engines.transactional.position_maps import KnownMap
from twinlog.engines.transactional.positions import tail_of
from twinlog.engines.transactional.remote_reader import read_batches
from twinlog.engines.transactional.remote_tails import RemoteTail, tail_of_batch
from twinlog.engines.transactional.source_position import ToBegin
from twinlog.engines.translated.location import NotLocated
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Refusal, Retriable, TwinlogError
from twinlog.kafka.groups.offsets import Committed
from twinlog.kafka.log.batch import Header
from twinlog.kafka.log.markers import commits
from twinlog.kafka.types import Offset, Sequence, TopicPartition
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.record_losses import RecordLoss
from twinlog.store.offset_records import BegunPartition

_REMEDY: Final = "delete the flow with --forget-offsets, and the topic, and create it again"


async def positions_in_recreated(
    port: DestinationPort,
    found: Mapping[MirrorPartition, Committed | None],
    partitions: Mapping[MirrorPartition, ToBegin],
    begun: Mapping[MirrorPartition, BegunPartition],
    committed: Mapping[TopicPartition, Committed],
    *,
    own_ids: Collection[int],
) -> tuple[dict[MirrorPartition, Committed | None], dict[MirrorPartition, NotLocated]]:
    """Where partitions go on, also those whose remote topics were recreated.

    Args:
        port: the target.
        found: the positions of these topics, None without one. No transaction of them is open.
        partitions: between which topics they are copied.
        begun: the records that partitions have begun.
        committed: the positions that are committed, also of former topics.
        own_ids: producer ids of the flow's state partition.

    Returns:
        The positions, None of those that begin; and those of which it is not known.
    """
    positions, unknown = dict(found), dict[MirrorPartition, NotLocated]()
    for name, here in found.items():
        if here is None and partitions[name].is_lost(begun.get(name)):
            remote = TopicPartition(partitions[name].route.topic, name.partition)
            there = await _position(port, remote, committed.get(remote), own_ids)
            if isinstance(there, NotLocated):
                unknown[name] = there
                del positions[name]
            else:
                positions[name] = there
    return positions, unknown


def lost_copies(remote: TopicPartition, known: KnownMap) -> RecordLoss:
    """What was lost with a former remote topic: up to where its map names copies, if it has one."""
    return RecordLoss(remote, None, None if known.head is None else known.head.end.destination)


async def _position(
    port: DestinationPort,
    remote: TopicPartition,
    committed: Committed | None,
    own_ids: Collection[int],
) -> Committed | NotLocated | None:
    tail = None if committed is None else tail_of(committed)
    ids = {*own_ids, *(() if tail is None else (tail.last.producer_id,))}
    try:
        last = await _last_committed(port, remote, ids)
    except TwinlogError as error:
        return NotLocated(str(error))
    if last is None:
        return None
    if tail is not None and (last.end, last.last) == (tail.end, tail.last):
        return committed
    return NotLocated(
        f"{remote} was recreated, and a transaction has landed there up to {last.end} whose "
        f"position is not known; {_REMEDY}",
        transient=False,
    )


async def _last_committed(
    port: DestinationPort, remote: TopicPartition, own_ids: Collection[int]
) -> RemoteTail | None:
    """The last batch of these producers that is committed in a log; None: there is none.

    Raises:
        TwinlogError: the log cannot be read now, or a marker is missing.
    """
    end = (await port.log_ends([remote])).get(remote)
    if end is None or end.error:
        refusal = Refusal(ErrorCode.LEADER_NOT_AVAILABLE if end is None else end.error)
        raise Retriable(f"cannot read the log end of {remote}: {refusal}")
    undecided: dict[int, Header] = {}  # by producer id, its last batch since its last marker
    last: Header | None = None
    position = Offset(0)
    while position < end.log_end:
        read = await read_batches(port, remote, position)
        if not read.headers and read.replicated < end.log_end:
            raise Retriable(f"{remote} is replicated up to {read.replicated} only")
        for header in read.headers:
            if header.producer_id not in own_ids:
                continue
            if not header.is_control:
                undecided[header.producer_id] = header
            elif (batch := undecided.pop(header.producer_id, None)) is not None:
                last = batch if commits(header, read.records) else last
        position = Offset(read.headers[-1].next_offset if read.headers else read.replicated)
    if undecided:
        raise Retriable(f"{remote} lacks the marker of a transaction of the flow")
    if last is None:
        return None
    count = last.next_offset - last.base_offset
    producer = last.producer_id, last.producer_epoch
    return tail_of_batch(last.base_offset, count, producer, Sequence(last.base_sequence))
