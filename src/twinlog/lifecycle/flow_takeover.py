"""Where a flow begins in remote topics that MirrorMaker 2 has filled (`twinlog.takeover`).

    refuse     a topic that MirrorMaker 2 has copied is not added to a flow
    compare    behind the last record that MirrorMaker 2 has copied, as a comparison proves
    recorded   behind the last record that it has recorded as copied; it may have copied more
    ignore     as if the remote topic were empty

A remote partition that never had a record shows that nothing in it can be copied twice. The records
below the recorded offset may have been routed to other topics, or left out. With `recorded` the
flow begins behind that offset, as MirrorMaker 2 would. Otherwise, if transforms may route, the
topic is refused. If not, all of the source's records are copied, also by a flow that begins at the
end of its topics, as it would miss records that MirrorMaker 2 had still to copy; a line names them.

What MirrorMaker 2 has recorded is in the offsets topic of its Connect worker
(mirror/connect_offsets.py). Where that has nothing of a partition yet, its last offset sync counts,
if the records at both of its offsets are equal: it is written after the target has acknowledged
the record, and so all before it.

What is recorded may be of a former topic of the same name, and a flow that believes it would miss
records. So the last record of the remote topic has to be a copy of a record from the recorded
offset on; otherwise the topic is refused, and `recorded` is the operator's word for the offset.

An offset that only other connectors have recorded may be of copies in another topic, and further
than those in the remote topic. An offset sync goes before it. Where there is none, `recorded` is
refused: to begin behind it might leave records out, and elsewhere would copy records twice.

The comparison (mirror/copied_tail.py) needs a source that has kept all records from the recorded
one on: it is not made for compacted topics. Where it proves no more than that, the flow begins
behind the recorded offset. No record is missed, and what may be copied twice is named
(`TakenOver.repeated`).

MirrorMaker 2 has to be stopped. Members of its group (worker_records.py), and a remote topic that
grows, show that it is not.
"""

import logging
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.metadata import Topic
from twinlog.kafka.errors import Refusal, Retriable, TwinlogError, UserError
from twinlog.kafka.log.records import Record
from twinlog.kafka.log_reader import ClusterLogs
from twinlog.kafka.requests.partitions import Isolation, list_offsets
from twinlog.kafka.types import LogBounds, Offset, TopicPartition
from twinlog.lifecycle.log_records import record_at, records_in
from twinlog.lifecycle.remote_ends import RemoteEnds, RemoteLogs, known_bounds, require_shown
from twinlog.lifecycle.taken_over import (
    NAME_CONNECTOR,
    TakenOver,
    begins_anew,
    begun_behind,
    begun_whole,
    doubtful,
    not_believed,
)
from twinlog.lifecycle.worker_records import WorkerRecords
from twinlog.mirror.connect_worker import ConnectWorker
from twinlog.mirror.copied_tail import CopiedTail, OffsetRange, content
from twinlog.mirror.flow import FlowRules, begins_at_end
from twinlog.mirror.flow_settings import TAKEOVER, FlowSettings

log = logging.getLogger(__name__)

TAKING_OVER: Final = frozenset({"compare", "recorded"})
"""The values of `twinlog.takeover` with which a flow goes on where MirrorMaker 2 has stopped."""

_NO_RECORDS: Final = LogBounds(0, 0, 0, 0)
_MOST: Final = 10_000_000
"""Records of a partition behind the recorded one that are looked at."""
_HELD: Final = 1_000_000
"""Records of a remote partition among which repeated ones are looked for."""


@dataclass(frozen=True, slots=True)
class _Subject:
    """A partition on both sides, with the bounds of its logs before the comparison."""

    source: TopicPartition
    remote: TopicPartition
    source_bounds: LogBounds
    remote_bounds: LogBounds
    by_others: bool = False
    """Whether other connectors alone have recorded an offset: it has to be proved."""


class _LastCopy(NamedTuple):
    """The last record of a remote topic; the others as in `CopiedTail`."""

    copy: Record
    end: Offset
    copies: int


class FlowTakeover:
    """Finds out where the topics of a flow begin; what MirrorMaker 2 has recorded is read once.

    Args:
        destination: the target.
        source: the source.
        flow: the flow, with its `twinlog.takeover`.
        worker: what MirrorMaker 2's Connect worker is called.
        routes: whether transforms may write to other topics than the remote ones (`may_route`).
        splits: whether those of MirrorMaker 2 may have sent only some records of a topic there
            (`splits_topics`): then its copies in the remote topic tell nothing of the others.
    """

    def __init__(
        self,
        destination: KafkaCluster,
        source: KafkaCluster,
        flow: FlowRules,
        worker: ConnectWorker,
        *,
        routes: bool,
        splits: bool,
    ) -> None:
        self._destination = destination
        self._source = source
        self._flow = flow
        self._routes = routes
        self._splits = splits
        self._left = WorkerRecords(destination, source, flow, worker)
        # Read while MirrorMaker 2 may run: it tells only whether the above has to be read.
        self._glance = WorkerRecords(destination, source, flow, worker)
        self._reads_all = self._settings.consumer_isolation_level == "read_uncommitted"
        isolation = Isolation.READ_UNCOMMITTED if self._reads_all else Isolation.READ_COMMITTED
        self._source_logs = ClusterLogs(source, isolation=isolation)
        self._remote_logs = ClusterLogs(destination)
        self._remote = RemoteLogs(destination, self._remote_logs)

    @property
    def _settings(self) -> FlowSettings:
        return self._flow.settings

    async def check(self, topics: Mapping[str, Topic], remote: Mapping[str, Topic | None]) -> None:
        """Check that a flow may begin with these topics.

        Args:
            topics: the source's topics, by name.
            remote: their remote topics, by the source's names; None: it does not exist.

        Raises:
            UserError: MirrorMaker 2 has copied a topic, or is running, or its offsets are missing.
            Retriable: a cluster is unreachable.
        """
        if self._settings.twinlog_takeover in TAKING_OVER:
            await self._left.require_stopped()
            await self._left.require_copied()
        elif self._settings.twinlog_takeover == "refuse":
            for name, topic in remote.items():
                ends = await self._remote.ends(topics[name], topic)
                if ends.filled or self._asks_empty:
                    recorded = await self._recorded(topics[name], ends)
                    self._refuse(topics[name], ends, recorded)

    async def check_copied(self, ends: Mapping[TopicPartition, int]) -> None:
        """Check that MirrorMaker 2 is stopped, and has copied no more of what a flow has.

        Args:
            ends: the source's offsets up to which the flow has copied.

        Raises:
            UserError: it is running, or has recorded an offset that the flow has not reached.
            Retriable: the target is unreachable.
        """
        await self._left.require_stopped()
        if not ends:
            return
        # Not the lowest: one that a former connector has left would hide what was copied since.
        copied = await self._left.highest()
        for partition in sorted(ends.keys() & copied.keys()):
            if copied[partition] >= ends[partition]:
                raise UserError(
                    f"MirrorMaker 2 has copied {partition} on since: it has recorded offset "
                    f"{copied[partition]}, and the flow has copied up to {ends[partition]}",
                    hint="delete the flow, then take over again; if MirrorMaker 2 has not run "
                    f"since, start without --takeover, or with {TAKEOVER}=ignore",
                )

    async def begins(self, topic: Topic, remote: Topic | None) -> list[TakenOver]:
        """Where the partitions of a topic begin; those are left out that begin as usual.

        Args:
            topic: the source's topic.
            remote: the remote topic, which existed before the flow; None: there was none.

        Raises:
            UserError: MirrorMaker 2 has copied the topic, or is running, or what it has recorded
                contradicts the logs.
            ProtocolError: its records cannot be read.
            Retriable: a cluster is unreachable.
        """
        if self._settings.twinlog_takeover == "ignore":
            return []
        ends = await self._remote.ends(topic, remote)
        if not ends.filled and not await self._matters(topic, ends):
            return []
        takes_over = self._settings.twinlog_takeover in TAKING_OVER
        if takes_over:
            await self._left.require_stopped()
            ends = await self._remote.ends(topic, remote)
            ends.require_replicated()
        recorded = await self._recorded(topic, ends)
        self._refuse(topic, ends, recorded)
        if ends.filled or self._asks_empty or self._settings.twinlog_takeover == "recorded":
            require_shown(topic, ends, recorded)
        begins = await self._begins_empty(topic, ends, recorded)
        if takes_over and ends.filled:
            begins += await self._begins_filled(topic, ends)
        return begins

    async def _begins_filled(self, topic: Topic, ends: RemoteEnds) -> list[TakenOver]:
        await self._left.require_copied()
        bounds, compacted = await self._source_bounds(topic, ends.filled)
        results = [
            await self._begin(_Subject(one, name, bounds[one], ends.bounds[name]), compacted)
            for one, name in ends.filled.items()
        ]
        for name, end in (await self._remote.log_ends(ends.log_ends)).items():
            if end != (before := ends.log_ends[name]):
                raise UserError(
                    f"{name} has grown from {before} to {end} while it was compared with the "
                    "source",
                    hint="another program writes to it: stop MirrorMaker 2, and try again",
                )
        return results

    async def _source_bounds(
        self, topic: Topic, partitions: Collection[TopicPartition]
    ) -> tuple[Mapping[TopicPartition, LogBounds], bool]:
        """The bounds of the source's partitions, and whether the topic may be compacted."""
        await self._source_logs.refresh([topic.name])
        bounds = await self._source_logs.bounds(partitions)
        compacts = await self._source_logs.compacts([topic.name])
        return {one: known_bounds(bounds, one) for one in partitions}, compacts[
            topic.name
        ] is not False

    # ---- empty remote partitions -----------------------------------------------------------------

    @property
    def _asks_empty(self) -> bool:
        """Whether a flow may not begin before it is known what was recorded of empty partitions.

        If MirrorMaker 2's transforms have routed the records to other topics, it has copied them.
        Otherwise they are copied from the source's beginning, which is as usual unless the flow
        begins at the end of its topics. With `recorded`, see `_matters`.
        """
        return self._routes or begins_at_end(self._settings)

    async def _matters(self, topic: Topic, ends: RemoteEnds) -> bool:
        """Whether it matters what MirrorMaker 2 has recorded of empty remote partitions.

        MirrorMaker 2 may run beside a flow, for other topics. It has to be stopped only if it has
        recorded something of this one. Only `recorded` goes by that; otherwise it is named in a
        line, so a missing right, a broker that does not answer, or a partition that is not shown
        does not keep the topic out.
        """
        if self._asks_empty:
            return True
        mode = self._settings.twinlog_takeover
        if mode == "refuse" and ends.remote is None:
            return False  # who never had MirrorMaker 2 needs no right to its topics
        try:
            recorded = await self._glance.copied() or {}
        except TwinlogError as error:
            if mode == "recorded":
                raise
            log.info("whether MirrorMaker 2 has copied %s is not known: %s", topic.name, error)
            return False
        if mode == "recorded":  # also of a partition that is not shown (`require_shown`)
            return any(one.topic == topic.name for one in recorded)
        return not ends.empty.isdisjoint(recorded)

    async def _begins_empty(
        self, topic: Topic, ends: RemoteEnds, recorded: Mapping[TopicPartition, int]
    ) -> list[TakenOver]:
        """Where partitions begin whose remote partition is empty, if something is recorded."""
        partitions = sorted(ends.empty & recorded.keys())
        if not partitions:
            return []
        bounds, compacted = await self._source_bounds(topic, partitions)
        believes = self._settings.twinlog_takeover == "recorded"
        begins: list[TakenOver] = []
        for one in partitions:
            # Another connector may have copied it elsewhere; MirrorMaker 2 does not go by that.
            by_others = not self._routes and await self._left.only_by_others(one)
            if believes and not by_others:
                begun = await self._begin(_Subject(one, one, bounds[one], _NO_RECORDS), compacted)
                if not self._routes:  # whose records are elsewhere
                    begun = begun_behind(begun, bounds[one].start, ends.remote)
                begins.append(begun)
                continue
            place = (one, bounds[one], Offset(recorded[one]), ends.remote)
            is_usual = not self._asks_empty
            begins.append(begun_whole(*place, by_others=by_others, is_usual=is_usual))
        return begins

    # ---- what MirrorMaker 2 has recorded ---------------------------------------------------------

    async def _recorded(self, topic: Topic, ends: RemoteEnds) -> Mapping[TopicPartition, int]:
        """The offsets that MirrorMaker 2 has recorded; none if it has no topic for them.

        A topic that may not be read proves nothing. If there is no remote topic either, which
        MirrorMaker 2 creates in any case, who never had it needs no right to its topics.

        Raises:
            UserError: they may not be read.
        """
        try:
            return await self._left.copied() or {}
        except UserError as error:
            what = f"whether MirrorMaker 2 has copied {topic.name} is not known: {error}"
            if self._settings.twinlog_takeover in TAKING_OVER:
                raise
            if ends.remote is not None:
                raise UserError(
                    what,
                    hint=f"or set {TAKEOVER}=ignore, which copies all topics of the flow once "
                    f"more, {topic.name} to {ends.remote} behind what is there",
                    code=error.code,
                ) from error
            log.warning("%s", what)
            return {}

    def _refuse(
        self, topic: Topic, ends: RemoteEnds, recorded: Mapping[TopicPartition, int]
    ) -> None:
        """Refuse a topic that MirrorMaker 2 has copied, if its copies cannot be found.

        With `refuse`, any topic that it has copied is refused.

        Raises:
            UserError: it would be copied again, unless the operator says otherwise.
        """
        refuses = self._settings.twinlog_takeover == "refuse"
        if refuses and (copied := sorted(ends.filled.keys() & recorded.keys())):
            raise UserError(
                f"MirrorMaker 2 has copied {copied[0]} to {ends.remote} up to offset "
                f"{recorded[copied[0]]}; the flow would copy all of {topic.name} again",
                hint=f"--takeover goes on where it has stopped, {TAKEOVER}=ignore copies all again",
            )
        asks = self._routes and self._settings.twinlog_takeover != "recorded"
        if asks and (copied := sorted(ends.empty & recorded.keys())):
            raise UserError(
                f"MirrorMaker 2 has copied {copied[0]} up to offset {recorded[copied[0]]}, and "
                "its remote topic is empty: transforms may have routed the records to other topics",
                hint=f"{TAKEOVER}=recorded begins behind that offset, {TAKEOVER}=ignore copies "
                "all again",
            )
        if refuses and ends.filled:
            log.warning(
                "%s has records already; those of %s are copied behind them",
                ends.remote,
                topic.name,
            )

    async def _synced(self, place: _Subject) -> Offset | None:
        """The source offset of the last offset sync, if it is true."""
        sync = (await self._left.offset_syncs()).get(place.source)
        if sync is None:
            return None
        original = await record_at(
            self._source_logs, place.source, sync.upstream_offset, self._bounds(place)
        )
        remote = OffsetRange(
            Offset(place.remote_bounds.start), Offset(place.remote_bounds.last_stable)
        )
        copy = await record_at(self._remote_logs, place.remote, sync.downstream_offset, remote)
        if original is None or copy is None or content(original) != content(copy):
            log.warning("the last offset sync is of other records, and is not used: %s", sync)
            return None
        return Offset(sync.upstream_offset)

    # ---- comparison ------------------------------------------------------------------------------

    def _bounds(self, place: _Subject) -> OffsetRange:
        """The source's offsets that MirrorMaker 2's consumer could read."""
        bounds = place.source_bounds
        end = bounds.high_watermark if self._reads_all else bounds.last_stable
        return OffsetRange(Offset(bounds.start), Offset(end))

    async def _believed(self, place: _Subject) -> tuple[Offset | None, bool]:
        """What counts as recorded of a partition, and whether only other connectors have done so.

        Raises:
            UserError: only they have, and `recorded` compares nothing. A connector that copies
                elsewhere may be ahead, and what is between would be left out.
        """
        copied = (await self._left.require_copied()).get(place.source)
        recorded = None if copied is None else Offset(copied)
        by_others = await self._left.only_by_others(place.source)
        if by_others:
            log.warning("of %s, only other connectors have recorded an offset", place.source)
        if recorded is None or by_others:
            synced = await self._synced(place)
            if synced is not None:
                return synced, False
        if recorded is not None and by_others and self._settings.twinlog_takeover == "recorded":
            raise not_believed(place.source, recorded)
        return recorded, by_others

    async def _begin(self, place: _Subject, compacted: bool) -> TakenOver:
        believes = self._settings.twinlog_takeover == "recorded"
        recorded, by_others = await self._believed(place)
        place = replace(place, by_others=by_others)
        start, end = self._bounds(place)
        if place.remote_bounds.last_stable < place.remote_bounds.high_watermark:
            raise Retriable(
                "a transaction is open in the remote topic",
                topic=place.remote.topic,
                partition=place.remote.partition,
                hint="the broker ends it after its timeout; then try again",
            )
        if recorded is not None and recorded >= place.source_bounds.high_watermark:
            raise UserError(
                f"MirrorMaker 2 has copied {place.source} up to offset {recorded}, and the source "
                f"ends at {place.source_bounds.high_watermark}: the topic was recreated, or lost "
                "records",
                hint=begins_anew(place.source.topic),
            )
        begin = start if recorded is None else Offset(recorded + 1)
        needed = Offset(0) if recorded is None else recorded
        rest = OffsetRange(begin, Offset(max(begin, place.source_bounds.high_watermark)))
        if believes:
            why = "nothing was compared"
        elif compacted:
            why = "records of a compacted topic cannot be compared"
        elif self._splits:
            why = "transforms may have routed records to other topics, which are not compared"
        elif start > needed:
            why = f"the source has deleted its records below {start}, which the comparison needs"
        else:
            return await self._compared(place, recorded, OffsetRange(needed, end), rest)
        if recorded is not None and not believes:
            kept = OffsetRange(Offset(max(start, needed)), end)
            await self._last_copy(place, recorded, kept, rest.start)
        return doubtful(place.source, recorded, rest, why)

    async def _last_copy(
        self, place: _Subject, recorded: Offset | None, readable: OffsetRange, begin: Offset
    ) -> "_LastCopy | None":
        """The last record of the remote topic, and where the source has it.

        Returns:
            None if there is none, and nothing is recorded that it would have to prove.

        Raises:
            UserError: nothing proves that what is recorded is of this topic.
        """
        last = await self._last_record(place)
        if last is None:
            if recorded is None:
                return None
            raise _unproven(
                f"{place.remote} has no records any more", place, recorded, begin, "they expired"
            )
        tail = CopiedTail(last, recorded)
        most = min(place.remote_bounds.high_watermark, _MOST)
        async for records in records_in(self._source_logs, place.source, readable):
            tail.look(records)
            if tail.end is not None or tail.records > most:
                break
        if tail.end is not None:
            return _LastCopy(last, tail.end, tail.copies)
        if recorded is None:
            return None
        cut_off = tail.records > most == _MOST
        among = f"any of {_MOST} records" if cut_off else "a record"
        raise _unproven(
            f"the last record of {place.remote} is no copy of {among} of {place.source} from "
            f"offset {max(recorded, readable.start)} on",
            place,
            recorded,
            begin,
            "another program writes there, timestamps are not kept, the source has deleted the "
            f"record{', or transforms have routed later ones elsewhere' * self._splits}",
        )

    async def _compared(
        self, place: _Subject, recorded: Offset | None, readable: OffsetRange, rest: OffsetRange
    ) -> TakenOver:
        found = await self._last_copy(place, recorded, readable, rest.start)
        if found is None:
            return doubtful(place.source, recorded, rest, "the last copied record was not found")
        upto = Offset(found.copy.offset + 1)
        if not await self._equal(
            place,
            OffsetRange(rest.start, found.end),
            OffsetRange(Offset(upto - found.copies), upto),
            found.copies,
        ):
            why = "the remote topic does not end with copies of all records up to its last one"
            begin = rest.start
        else:
            why = "MirrorMaker 2 has copied them before, or others of the same content"
            begin = found.end
        repeated = await self._repeated(place, begin, readable.end)
        if repeated is None:
            repeated = OffsetRange(begin, rest.end)
        # The copy of `begin` may be missing in the remote topic, and later ones not: MirrorMaker 2
        # skips records with `errors.tolerance=all` (KIP-779), and retention deletes old timestamps.
        named = OffsetRange(begin, max(repeated.end, found.end))
        return doubtful(place.source, recorded, named, why)

    async def _repeated(self, place: _Subject, begin: Offset, end: Offset) -> OffsetRange | None:
        """The source's records from `begin` on that the remote topic has; None: too many to say.

        A MirrorMaker 2 that was restarted has copied again what it had not recorded. If it was
        killed before it was done with that, records behind its last copy are further in front.
        Each run of it copies without a gap, so the first record that is missing ends the search.
        """
        held: set[int] | None = None
        upto = begin
        async for records in records_in(self._source_logs, place.source, OffsetRange(begin, end)):
            if records and held is None:
                held = await self._held_since(place, records[0].timestamp)
                if held is None:
                    return None
            for record in records:
                if held is None or hash(content(record)) not in held:
                    return OffsetRange(begin, upto)
                upto = Offset(record.offset + 1)
        return OffsetRange(begin, upto)

    async def _held_since(self, place: _Subject, timestamp: int) -> set[int] | None:
        """Hashes of the remote topic's records from the first one of a time on; None: too many.

        Of records with a timestamp that is asked for, a broker may find a later one, as its index
        has the last of them.
        """
        earlier = max(timestamp - 1, 0)
        answers = await list_offsets(self._destination, {place.remote: earlier})
        answer = answers[place.remote]
        if isinstance(answer, Refusal):
            answer.fail("find a record by its timestamp", topic=place.remote.topic)
        if answer.offset < 0:
            return set()
        part = OffsetRange(Offset(answer.offset), Offset(place.remote_bounds.last_stable))
        if part.end - part.start > _HELD:
            return None
        held: set[int] = set()
        async for records in records_in(self._remote_logs, place.remote, part):
            held.update(hash(content(record)) for record in records)
        return held

    async def _last_record(self, place: _Subject) -> Record | None:
        """The last record of the remote topic; behind it there are only markers."""
        upto, step = place.remote_bounds.last_stable, 1
        while upto > place.remote_bounds.start:
            begin = max(place.remote_bounds.start, upto - step)
            last = None
            part = OffsetRange(Offset(begin), Offset(upto))
            async for records in records_in(self._remote_logs, place.remote, part):
                last = records[-1] if records else last
            if last is not None:
                return last
            upto, step = begin, step * 10
        return None

    async def _equal(
        self, place: _Subject, originals: OffsetRange, copies: OffsetRange, count: int
    ) -> bool:
        """Whether both ranges have this many records, and these are equal one by one."""
        if copies.start < place.remote_bounds.start:
            return False
        remote = records_in(self._remote_logs, place.remote, copies)
        queue: deque[Record] = deque()
        equal = 0
        async for records in records_in(self._source_logs, place.source, originals):
            for record in records:
                while not queue:
                    batch = await anext(remote, None)
                    if batch is None:
                        return False
                    queue.extend(batch)
                if content(record) != content(queue.popleft()):
                    return False
                equal += 1
        return equal == count


def _unproven(what: str, place: _Subject, recorded: Offset, begin: Offset, other: str) -> UserError:
    who, way = "MirrorMaker 2 has", f"{TAKEOVER}=recorded begins at {begin} all the same"
    if place.by_others:
        who, way = "only other connectors have", NAME_CONNECTOR
    return UserError(
        f"{what}; nothing proves that offset {recorded}, which {who} recorded, is of this topic "
        f"{place.source.topic}",
        hint=f"{other}: {way}; or the source topic was recreated: "
        f"{begins_anew(place.source.topic)}",
    )
