"""What the end of a remote log shows of a stored plan.

    recorded end                                     fence
    ──────┬──────────────────────────────────────────┬──────
     tail │ batches of the plan, of other producers  │

The record before the recorded end is the last one of the map, the *tail*. If it is another one, the
log has lost its end and was filled again. A log that lacks offsets was compacted, or has lost its
start; one that lacks none holds all that was ever appended to it.
"""

import asyncio
from typing import Final, NamedTuple

from twinlog.engines.ports import DestinationPort
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Refusal, Retriable
from twinlog.kafka.log.batch import Header, batches
from twinlog.kafka.types import Offset, ProducerEpoch, ProducerId, Sequence, TopicPartition, advance
from twinlog.mirror.offset_runs import Ends
from twinlog.mirror.sequence_plan import Contradiction, Landed
from twinlog.store.offset_records import MapTail, StoredPlan

_READ_BYTES: Final = 1 << 20
_PAUSE_S: Final = 0.02
RECREATED: Final = "the destination's topic was deleted and recreated"
"""Why copies are lost."""


class LostEnd(Contradiction):
    """The log has lost records that were copied.

    Args:
        reason: what shows it.
        start: where the loss begins; None: not known.
        end: up to where records were copied; None: not known.
    """

    def __init__(
        self, reason: object, *, start: Offset | None = None, end: Offset | None = None
    ) -> None:
        super().__init__(str(reason))
        self.start = start
        self.end = end


class RemoteEnd(NamedTuple):
    """The plan's batches up to the fence, and the end of the log's last hole before it.

    Without a hole it is the recorded end.
    """

    landed: list[Landed]
    whole_from: Offset


def require_whole(map_end: Ends, recorded: Ends) -> None:
    """Check that a stored map reaches as far as its plan says.

    Raises:
        LostEnd: an owner has dropped its last parts, and ended before it replaced them.
    """
    if map_end.destination < recorded.destination:
        reason = "the last parts of its map were dropped, and not replaced"
        raise LostEnd(reason, end=recorded.destination)


async def read_end(
    port: DestinationPort, key: TopicPartition, stored: StoredPlan, fence: Offset, deadline_s: float
) -> RemoteEnd:
    """Read a log from the recorded end to the fence.

    Args:
        port: the destination.
        key: the partition.
        stored: its last plan.
        fence: the offset of the marker behind which nothing of the plan can be.
        deadline_s: how long to try, in seconds.

    Raises:
        Retriable: it cannot be read now.
        LostEnd: it ends before the recorded end, or the record before that is another one than was
            copied.
        Contradiction: it holds a batch of another epoch, which no plan explains.
    """
    if fence < stored.plan.recorded.destination:
        raise LostEnd(
            f"the destination has lost records: it ends at {fence}, and records were copied up to "
            f"{stored.plan.recorded.destination}",
            start=fence,
            end=stored.plan.recorded.destination,
        )
    end = _End(stored)
    now = asyncio.get_running_loop().time
    deadline = now() + deadline_s
    while end.position < fence:
        position = end.position
        if now() > deadline:
            raise Retriable(f"cannot read {key} up to its fence at {fence}: read to {position}")
        headers, start = await read_headers(port, key, position)
        end.skip_to(start)
        for header in headers:
            end.skip_to(Offset(header.base_offset))
            if header.base_offset >= fence:
                return RemoteEnd(end.landed, end.whole_from)
            end.take(header)
        if end.position == position:
            await asyncio.sleep(_PAUSE_S)
    return RemoteEnd(end.landed, end.whole_from)


async def read_headers(
    port: DestinationPort, key: TopicPartition, position: Offset
) -> tuple[list[Header], Offset]:
    """Batches from a position on, and the position: the log may start behind it.

    Raises:
        Retriable: it cannot be read now.
    """
    fetched = (await port.read({key: position}, partition_max_bytes=_READ_BYTES))[key]
    if fetched.error == ErrorCode.OFFSET_OUT_OF_RANGE:
        bounds = (await port.bounds([key]))[key]
        if bounds.error:
            raise Retriable(f"cannot read the log start of {key}: {Refusal(bounds.error)}")
        if bounds.start > position:
            return [], Offset(bounds.start)
    if fetched.error:
        raise Retriable(f"cannot read {key} at {position}: {Refusal(fetched.error)}")
    return [one for one in batches(fetched.records) if one.next_offset > position], position


class _End:
    """The end of a log as far as it was read."""

    def __init__(self, stored: StoredPlan) -> None:
        self._plan, self._tail = stored.plan, stored.tail
        self._begin = self.whole_from = stored.plan.recorded.destination
        self.position = self._begin if self._tail is None else Offset(self._begin - 1)
        self.landed: list[Landed] = []

    def skip_to(self, offset: Offset) -> None:
        """Note that no offset follows before this one."""
        if offset > self.position:
            self.position = offset
            self.whole_from = max(self._begin, offset)

    def take(self, header: Header) -> None:
        """Note the next batch; one that was read before is left out.

        The log may start within it: a reader sees its last records, so all of it is mapped.
        """
        if header.next_offset <= self.position:
            return
        self.position = header.next_offset
        if header.base_offset < self._begin:
            if self._tail is not None:
                check_tail(self._tail, header, self._begin)
            elif self._is_planned(header):
                raise LostEnd(
                    f"the batch at offset {header.base_offset} is of the stored plan, and the log "
                    f"had ended at {self._begin} before: the destination has lost records",
                    end=self._begin,
                )
            return
        if header.is_control or header.producer_id != self._plan.producer_id:
            return
        if header.producer_epoch != self._plan.epoch:
            raise Contradiction(
                f"the batch at offset {header.base_offset} is of epoch {header.producer_epoch}, "
                f"the stored plan of {self._plan.epoch}"
            )
        count = header.last_offset_delta + 1
        self.landed.append(
            Landed(Sequence(header.base_sequence), count, Offset(header.base_offset))
        )

    def _is_planned(self, header: Header) -> bool:
        """Whether a batch may be of the plan's epoch."""
        of_plan = (self._plan.producer_id, self._plan.epoch)
        return not header.is_control and (header.producer_id, header.producer_epoch) == of_plan


def check_tail(tail: MapTail, header: Header, end: Offset) -> None:
    """Check the batch before the recorded end. Compaction keeps its header, or removes all of it.

    Raises:
        LostEnd: it is not the one that was copied.
    """
    found = MapTail(
        ProducerId(header.producer_id),
        ProducerEpoch(header.producer_epoch),
        advance(Sequence(header.base_sequence), end - 1 - header.base_offset),
    )
    if header.is_control or header.next_offset != end or found != tail:
        raise LostEnd(
            f"the record at offset {end - 1} is not the one that was copied there: the destination "
            "has lost records, and others were written in their place",
            end=end,
        )
