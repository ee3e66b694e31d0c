"""Writes markers into gaps, and fences them at a stop (marker_epochs.py has the reasons).

Each state partition has one. It knows the last marker of its producer id on each partition that it
has written to, and asks the leader for the last marker of any other. After a lost answer it takes
the next producer epoch (InitProducerId), and asks again about the partitions of the lost request.

It asks for the last marker *before* the log end offset, and sends nothing unless the log still ends
where the gap begins. Another request that lands after that competes with the one that is sent, and
one of the two is refused. If the source has had records in the gap, which are compacted or
deleted now, the log end offset is read each time: another owner may have written them.

    last marker in the partition          what is sent
    ------------------------------------  ---------------------------------------------------------
    of the own producer epoch             as many as the gap needs
    none, or of a lower producer epoch    one, which excludes every other attempt at this offset

If many markers were sent to a partition (`ANSWERED_EACH`), or one that may have had competitors,
the log end offset is read, never computed: a broker may answer 0 although some markers are missing,
and a refused marker means that another attempt has landed.

Each round uses up coordinator epochs, of which there are enough for 134 million. Then another
producer id is needed, which a coordinator gives only when the producer epochs are used up, too: up
to 32,767 InitProducerId, one after another. They run in the background; gaps wait for minutes. No
marker is written meanwhile: one in a producer epoch far above the last marker's would not exclude
others (marker_epochs.py).

A *fence* is one committed marker of the own producer epoch. Markers of lower epochs are refused
behind it. It is left out where the last marker is of the own epoch, or where no marker was ever
sent: the partition had no other owner, and this one has sent none.
"""

import asyncio
import logging
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from twinlog.engines.exact.marker_epochs import (
    LAST_PRODUCER_EPOCH,
    NO_MARKER,
    LastMarker,
    common,
    disputed,
    settled,
    used_up,
)
from twinlog.engines.ports import (
    ANSWERED_EACH,
    ActiveProducers,
    DestinationPort,
    LogEnd,
    MarkerRequest,
    Markers,
    ProducerIdentity,
)
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Disconnected, Retriable
from twinlog.kafka.types import TopicPartition
from twinlog.mirror.plan import Gap

log = logging.getLogger(__name__)

_FORBIDDEN: Final = frozenset(
    {ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.UNSUPPORTED_VERSION}
)
"""UNSUPPORTED_VERSION is from a service that does not have the API."""
_OUTRUN: Final = frozenset(
    {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED}
)
"""These mean that another attempt has landed."""

_NEXT_EPOCH: Final = frozenset({ErrorCode.NETWORK_EXCEPTION, ErrorCode.INVALID_PRODUCER_EPOCH})
"""These need a new epoch: after a lost answer; if another owner has taken a newer epoch."""

SHARED_GAP: Final = 100
"""Offsets of the largest gap that shares a request with those of other state partitions. A larger
one takes seconds, for which the others would wait."""

_PATIENCE_S: Final = 10.0
"""How long a round waits for another producer id. Its partitions cannot be revoked meanwhile."""
_SAMPLE: Final = 20
"""Requests whose time tells how long the others will take."""

Lasts = dict[TopicPartition, LastMarker]


class Prepared(NamedTuple):
    """What is to be sent into gaps, log ends or errors of the others, and the settled ones."""

    request: MarkerRequest
    gaps: Mapping[TopicPartition, Gap]
    found: dict[TopicPartition, LogEnd]
    own: Collection[TopicPartition]


class MarkerWriter:
    """The written markers of one state partition.

    Args:
        transactional_id: the markers carry its producer id and epoch.
        destination: the cluster where they are written.
        at_once: the most markers of one gap in one call.
    """

    def __init__(self, transactional_id: str, destination: DestinationPort, at_once: int) -> None:
        self.allowed = True
        """Whether the cluster grants CLUSTER_ACTION, as far as is known."""
        self._id = transactional_id
        self._destination = destination
        self._at_once = at_once
        self._identity: ProducerIdentity | None = None
        self._producer_id: int | None = None  # the producer id of the markers in `_lasts`
        self._used_up: int | None = None  # the producer id whose coordinator epochs are used up
        self._announced: int | None = None  # the producer id of which this was logged
        self._replacing: asyncio.Task[None] | None = None
        self._renewing = asyncio.Lock()  # guards `_identity`: rounds to several brokers use it
        self._lasts: Lasts = {}
        self._first_owned: set[TopicPartition] = set()

    async def close(self) -> None:
        """End the background task."""
        if self._replacing is not None:
            self._replacing.cancel()
            await asyncio.gather(self._replacing, return_exceptions=True)

    @property
    def held_back(self) -> str:
        """Why no gap can be filled now; empty if there is no reason."""
        if not self._is_replacing:
            return ""
        return f"a gap waits for another producer id of {self._id}: coordinator epochs are used up"

    def first_owned(self, partitions: Iterable[TopicPartition]) -> None:
        """Note that these never had another owner: no marker was ever sent to them."""
        self._first_owned.update(partitions)

    def ready(self, partition: TopicPartition, gap: Gap) -> bool:
        """Whether this gap is small, and markers may be sent into it without any wait."""
        identity, marker = self._current, self._lasts.get(partition)
        return (
            gap.seen
            and gap.end - gap.start <= SHARED_GAP
            and identity is not None
            and marker is not None
            and settled(marker, identity.epoch)
        )

    async def prepare(self, gaps: Mapping[TopicPartition, Gap]) -> "Prepared":
        """Decide what to send into these gaps.

        Args:
            gaps: what to fill; each starts at its partition's log end offset, and the caller has
                nothing else in flight there.

        Raises:
            Retriable: the last markers are not known.
        """
        identity = await self._epoch()
        lasts, answers = await self._find_lasts(gaps, identity)
        if unproven := [p for p in lasts if p not in self._lasts or not gaps[p].seen]:
            ends = await self._destination.log_ends(unproven)
            grown = {p: e for p, e in ends.items() if e.error or e.log_end != gaps[p].start}
            lasts = {p: marker for p, marker in lasts.items() if p not in grown}
            answers |= grown
        own = {p: gaps[p] for p, marker in lasts.items() if settled(marker, identity.epoch)}
        markers = self._settled_markers(own, lasts)
        for partition, marker in lasts.items():
            if partition not in own:
                epoch = disputed(marker, identity.epoch)
                markers[partition] = Markers(1, epoch, epoch)
        return Prepared(MarkerRequest(identity, markers), gaps, answers, own)

    def prepare_ready(self, gaps: Mapping[TopicPartition, Gap]) -> "Prepared":
        """Decide as `prepare` does for gaps that are all `ready`."""
        assert self._identity is not None
        markers = self._settled_markers(gaps, self._lasts)
        return Prepared(MarkerRequest(self._identity, markers), gaps, {}, gaps)

    def _settled_markers(
        self, gaps: Mapping[TopicPartition, Gap], lasts: Lasts
    ) -> dict[TopicPartition, Markers]:
        """As many markers as these gaps need, where the last marker is of the own epoch."""
        before, end = common([lasts[p].coordinator_epoch for p in gaps])
        return {
            p: Markers(min(gap.end - gap.start, self._at_once), before, end)
            for p, gap in gaps.items()
        }

    async def write(self, gaps: Mapping[TopicPartition, Gap]) -> Mapping[TopicPartition, LogEnd]:
        """Write markers into these gaps alone (`write_all`)."""
        return await write_all({self: await self.prepare(gaps)}, self._destination)

    async def fence(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Fence markers of earlier requests on these partitions; return error codes.

        A broker that does not allow it refuses late markers for the same reason, so its partitions
        need no fence. That is known of no other broker: a right is withdrawn from one after the
        other. So each leader is asked, also where gaps are filled by transactions by now.

        The caller has nothing in flight on these partitions.

        Raises:
            Retriable: not possible now; call again.
        """
        fenced = dict.fromkeys(partitions, 0)
        open_ones = [p for p in partitions if p not in self._first_owned]
        if not open_ones:
            return fenced
        identity = await self._epoch()
        lasts, answers = await self._find_lasts(open_ones, identity)
        markers = {
            p: Markers(1, marker.coordinator_epoch, marker.coordinator_epoch)
            for p, marker in lasts.items()
            if not settled(marker, identity.epoch)
        }
        codes: Mapping[TopicPartition, int] = {}
        if markers:
            request = MarkerRequest(identity, markers)
            codes = await send([(self, request)], self._destination, committed=True)
        sent = {p: codes.get(p, ErrorCode.NETWORK_EXCEPTION) for p in markers}
        errors = {p: end.error for p, end in answers.items()} | {
            p: 0 if code in _FORBIDDEN else code for p, code in sent.items()
        }
        return fenced | {
            p: ErrorCode.NETWORK_EXCEPTION if e in _OUTRUN else e for p, e in errors.items()
        }

    async def producer_id(self) -> int:
        """The producer id that the markers carry."""
        return (await self._epoch()).producer_id

    @property
    def _current(self) -> ProducerIdentity | None:
        """The producer id and epoch, if they are known and nothing renews them."""
        identity = self._identity
        if identity is None or identity.producer_id == self._used_up or self._renewing.locked():
            return None
        return identity

    async def _epoch(self) -> ProducerIdentity:
        """The producer id and epoch; a new one if there is none or an answer was lost."""
        while (current := self._current) is None:
            if self._is_replacing:
                await self._replaced()
                continue
            async with self._renewing:
                if self._identity is None:
                    self._identity = await self._next_epoch()
                if self._identity.producer_id != self._used_up:
                    continue
            await self._replaced()
        return current

    @property
    def _is_replacing(self) -> bool:
        return self._replacing is not None and not self._replacing.done()

    async def _replaced(self) -> None:
        """Wait until there is another producer id.

        Raises:
            Retriable: not yet; call again.
        """
        if self._replacing is None or self._replacing.done():
            self._replacing = asyncio.create_task(self._replace())
        task = self._replacing
        await asyncio.wait([task], timeout=_PATIENCE_S)
        if not task.done() or task.cancelled():
            raise Retriable(f"{self._id} waits for another producer id")
        task.result()

    async def _replace(self) -> None:
        """Use up the producer epochs, since the coordinator epochs are used up."""
        now = asyncio.get_running_loop().time
        began, requests = now(), 0
        async with self._renewing:
            while self._identity is None or self._identity.producer_id == self._used_up:
                self._identity = await self._next_epoch()
                requests += 1
                if requests == _SAMPLE and self._announced != self._used_up:
                    self._announced = self._used_up
                    left = LAST_PRODUCER_EPOCH - self._identity.epoch
                    log.warning(
                        "%s: its coordinator epochs are used up, and it needs another producer id. "
                        "Gaps of its partitions, and data behind them, wait for about %d s (%d "
                        "InitProducerId, one after another); nothing is lost",
                        self._id,
                        math.ceil(left * (now() - began) / requests),
                        left,
                    )
        log.info(
            "%s: it has another producer id, after %d InitProducerId in %.1f s",
            self._id,
            requests,
            now() - began,
        )

    async def keep_id(self) -> None:
        """Use the transactional id, so that its coordinator keeps it: markers do not count as use.

        Raises:
            Retriable: not possible now; retry.
        """
        if self.allowed:
            async with self._renewing:
                self._identity = await self._next_epoch()

    async def _next_epoch(self) -> ProducerIdentity:
        try:
            identity = await self._destination.init_producer(self._id)
        except Disconnected as error:
            raise Retriable(f"no producer id for {self._id}: {error}") from error
        if identity.producer_id != self._producer_id:
            self._producer_id = identity.producer_id
            self._lasts.clear()
        return identity

    async def _find_lasts(
        self, partitions: Collection[TopicPartition], identity: ProducerIdentity
    ) -> tuple[Lasts, dict[TopicPartition, LogEnd]]:
        """The last marker of each partition, read where it is unknown; errors of the others."""
        lasts = {p: self._lasts[p] for p in partitions if p in self._lasts}
        errors: dict[TopicPartition, LogEnd] = {}
        if unread := [p for p in partitions if p not in lasts]:
            for partition, answer in (await self._destination.producers(unread)).items():
                if answer.error:
                    errors[partition] = LogEnd(answer.error, -1, -1)
                else:
                    lasts[partition] = _last(answer, identity.producer_id)
        return lasts, errors

    def begin(self, request: MarkerRequest) -> None:
        """Note that a request is sent."""
        self._first_owned.difference_update(request.partitions)

    def answered(self, request: MarkerRequest, codes: Mapping[TopicPartition, int]) -> None:
        """Note the last markers after a request, as far as they are known."""
        identity, markers = request
        if any(codes.values()):
            if _FORBIDDEN.intersection(codes.values()):
                self._forbid()
            if _NEXT_EPOCH.intersection(codes.values()):
                self._identity = None
        is_of_lasts = identity.producer_id == self._producer_id
        for partition, code in codes.items():
            if code or not is_of_lasts:
                self._lasts.pop(partition, None)
                continue
            self._lasts[partition] = marker = LastMarker(identity.epoch, markers[partition].last)
            if used_up(marker):
                self._used_up = identity.producer_id

    def must_read(
        self, partition: TopicPartition, code: int, prepared: Prepared, *, seen: bool
    ) -> bool:
        """Whether the log end offset cannot be computed from what was sent, and its answer.

        Where the gap is not `seen`, another owner's data may have landed between two markers.
        """
        number = prepared.request.partitions[partition].number
        several = number > (ANSWERED_EACH if seen else 1)
        return code in _OUTRUN or (not code and (several or partition not in prepared.own))

    def lost(self, request: MarkerRequest) -> None:
        """Note a request of unknown outcome: the next one has a newer epoch."""
        self._identity = None
        for partition in request.partitions:
            self._lasts.pop(partition, None)

    def _forbid(self) -> None:
        if not self.allowed:
            return
        self.allowed = False
        log.info(
            "%s: gaps are filled by empty transactions, which is slower; "
            "WriteTxnMarkers needs CLUSTER_ACTION, and a broker that has it",
            self._id,
        )


async def write_all(
    prepared: Mapping[MarkerWriter, Prepared],
    destination: DestinationPort,
    node: int | None = None,
) -> Mapping[TopicPartition, LogEnd]:
    """Write as many markers as the gaps need, up to a limit, of all these writers at once.

    Args:
        prepared: what each writer has decided (`MarkerWriter.prepare`).
        destination: where they are written.
        node: the broker that leads all of these partitions, if it is one.

    Returns:
        Log ends or errors; none of a writer that the cluster does not allow it (`allowed`).

    Raises:
        Disconnected: whether markers were written, or will be, is unknown.
        Retriable: nothing was sent.
    """
    codes = await send(
        [(writer, part.request) for writer, part in prepared.items()], destination, node=node
    )
    forbidden = {partition for partition, code in codes.items() if code in _FORBIDDEN}
    results: dict[TopicPartition, LogEnd] = {}
    to_read: list[TopicPartition] = []
    for writer, part in prepared.items():
        if not forbidden.isdisjoint(part.request.partitions):
            continue
        results |= part.found
        for partition, markers in part.request.partitions.items():
            code = codes.get(partition)
            if code is None:
                continue
            gap = part.gaps[partition]
            results[partition] = LogEnd(code, -1 if code else gap.start + markers.number, -1)
            if writer.must_read(partition, code, part, seen=gap.seen):
                to_read.append(partition)
    return {**results, **await destination.log_ends(to_read)} if to_read else results


async def send(
    requests: Sequence[tuple[MarkerWriter, MarkerRequest]],
    destination: DestinationPort,
    *,
    committed: bool = False,
    node: int | None = None,
) -> Mapping[TopicPartition, int]:
    """Send these once, together; each writer notes its last markers as far as they are known."""
    # 3.9 and 4.3 give no answer if all partitions of the last producer id are gone from the broker,
    # and the others are done (tests/contract/test_markers_of_gone_partitions.py).
    requests = sorted(
        ((writer, request) for writer, request in requests if request.partitions),
        key=lambda item: len(item[1].partitions),
    )
    if not requests:
        return {}
    for writer, request in requests:
        writer.begin(request)
    try:
        codes = await destination.write_markers(
            [request for _, request in requests], committed=committed, node=node
        )
    except BaseException:  # a cancelled request may land as well as one whose answer was lost
        for writer, request in requests:
            writer.lost(request)
        raise
    for writer, request in requests:
        writer.answered(request, {p: codes[p] for p in request.partitions if p in codes})
    return codes


def _last(answer: ActiveProducers, producer_id: int) -> LastMarker:
    for state in answer.active:
        if state.producer_id == producer_id:
            return LastMarker(state.epoch, max(state.coordinator_epoch, 0))
    return NO_MARKER
