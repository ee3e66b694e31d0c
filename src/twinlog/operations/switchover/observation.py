"""What a switchover reads from both clusters while it goes on.

Nothing is changed here. What cannot be read is an error, which the step that asks waits for or ends
with; after the failover it is reported as unknown.
"""

import asyncio
from collections.abc import Mapping

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import Refusal, Retriable, TwinlogError
from twinlog.kafka.requests.partitions import DEBUGGING, Isolation, OffsetSpec, list_offsets
from twinlog.kafka.types import TopicPartition
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.states import State
from twinlog.operations.readiness.facts import GroupFacts, SourceLog, Standing
from twinlog.operations.readiness.group_survey import group_facts, uncommitted
from twinlog.operations.readiness.subject import Subject
from twinlog.operations.readiness.survey import destination_ends, survey_live
from twinlog.operations.readiness.verdict import Readiness, judge
from twinlog.operations.switchover.readable import Readable
from twinlog.operations.switchover.records import LeftBehind
from twinlog.operations.switchover.silence import SourceEnd
from twinlog.store.config_records import MirrorTopic, Wanted
from twinlog.store.mirrors import MirrorStore
from twinlog.store.snapshot import Snapshot
from twinlog.sync.group_selection import named_groups
from twinlog.text import few


class Observation:
    """What both clusters hold of the topics that are switched over."""

    def __init__(self, source: KafkaCluster, destination: KafkaCluster, subject: Subject) -> None:
        self.partitions = subject.partitions
        """Of the topics; those that are added meanwhile follow when they are seen."""
        self._source = source
        self._destination = destination
        self._subject = subject
        self._readable = Readable.of(source)

    async def judge(self, subject: Subject) -> Readiness:
        """The verdict on these topics now."""
        ends = await destination_ends(self._destination, subject.partitions, subject.translation)
        return judge(await survey_live(self._source, self._destination, subject, ends))

    async def source_ends(self) -> dict[TopicPartition, SourceEnd]:
        """The source's log ends: the leaders' own, including what followers do not have yet.

        A last stable offset is at most the high watermark. If it equals the log end, no transaction
        is open, and every in-sync follower has everything.

        Raises:
            Retriable: one cannot be read.
        """
        partitions = self.partitions
        stable, ends = await asyncio.gather(
            list_offsets(self._source, partitions, isolation=Isolation.READ_COMMITTED),
            list_offsets(self._source, partitions, replica_id=DEBUGGING),
        )
        logs = {}
        for partition in partitions:
            last_stable, log_end = stable[partition], ends[partition]
            if isinstance(last_stable, Refusal) or isinstance(log_end, Refusal):
                raise Retriable(f"cannot read the log end offset of {partition} on the source")
            logs[partition] = SourceEnd(log_end.offset, last_stable.offset)
        return logs

    async def group_facts(self, ends: Mapping[TopicPartition, int]) -> list[GroupFacts]:
        """The groups whose offsets are copied; no offset may be part of an open transaction."""
        logs = {partition: SourceLog(0, end, end) for partition, end in ends.items()}
        include = named_groups(self._subject.settings.groups_include)
        by_topic, _ = await group_facts(
            *(self._source, self._destination, self._subject.mirror.name, include, logs),
            stable=True,
            translation=self._subject.translation,
        )
        return [group for groups in by_topic.values() for group in groups]

    async def groups_behind(self, ends: Mapping[TopicPartition, int]) -> str:
        """Groups that have committed since the last check, or whose copy was overwritten.

        They are reported and not copied: on the destination they may have begun to read.
        """
        try:
            facts = await self.group_facts(ends)
        except TwinlogError as error:
            return f"unknown whether all groups' offsets equal those on the source: {error}"
        names = sorted({group.group for group in facts if group.pending})
        return f"offsets differ from the source: {few(names)}" if names else ""

    async def reads(self, group: GroupFacts, ends: Mapping[TopicPartition, int]) -> bool:
        """Whether anything is left on the source for a group to read."""
        for begin in group.unread_from:
            if await self._readable.between(begin, ends[begin.partition]):
                return True
        return False

    async def uncommitted(self, ends: Mapping[TopicPartition, int]) -> list[str]:
        """Groups whose members have read a partition, and may still make their first commit for it.

        Raises:
            Retriable: it cannot be determined now, or offsets are part of an open transaction.
            ProtocolError, UserError: it cannot be determined.
        """
        include = named_groups(self._subject.settings.groups_include)
        by_group = await uncommitted(self._source, include, ends)
        partitions = sorted(set().union(*by_group.values()))
        starts = (
            await list_offsets(self._source, partitions, OffsetSpec.EARLIEST) if partitions else {}
        )
        readable = set[TopicPartition]()
        for partition in partitions:
            start = starts[partition]
            if isinstance(start, Refusal):
                raise Retriable(
                    f"cannot read the log start offset of {partition} on the source: {start}"
                )
            if await self._readable.between(Standing(partition, start.offset), ends[partition]):
                readable.add(partition)
        return [
            f"{group} ({few(pending)})"
            for group, candidates in by_group.items()
            if (pending := sorted(candidates & readable))
        ]

    async def removed(self) -> list[str]:
        """Topics that another command has failed over."""
        return sorted(self.stopped(await MirrorStore(self._destination).snapshot()))

    def stopped(self, snapshot: Snapshot) -> set[str]:
        """Those of the topics that were removed from the mirror."""
        return {topic.topic for topic in self.of_mirror(snapshot) if topic.wanted is Wanted.STOPPED}

    def of_mirror(self, snapshot: Snapshot) -> list[MirrorTopic]:
        """The switchover's topics with their present desired state."""
        name, names = self._subject.mirror.name, self._subject.names
        return [topic for topic in snapshot.topics_of(name) if topic.topic in names]

    async def not_stopped(self) -> str:
        """The partitions that are not STOPPED yet, as text; empty if there are none."""
        store = MirrorStore(self._destination)
        # A topic may have grown after the last check, and before it was removed.
        topics = self.of_mirror(await store.snapshot())
        states = await store.states()
        grown = {
            TopicPartition(topic.topic, index)
            for topic in topics
            for index in range(topic.partitions)
        }
        self.partitions = sorted(grown.union(self.partitions))
        name = self._subject.mirror.name
        pending = [
            partition
            for partition in self.partitions
            if states.state(MirrorPartition(name, *partition)) is not State.STOPPED
        ]
        return f"not STOPPED yet: {few(pending)}" if pending else ""

    async def left_behind(
        self, ends: Mapping[TopicPartition, int]
    ) -> tuple[LeftBehind, ...] | None:
        """What was written to the source too late; None: it cannot be read any more.

        Args:
            ends: the source's log ends while it was silent.
        """
        name = self._subject.mirror.name
        try:
            epochs = (await MirrorStore(self._destination).states()).epochs
            logs = await self.source_ends()
        except TwinlogError:
            return None
        tails = []
        for partition, log in logs.items():
            last_mirrored = epochs.get(MirrorPartition(name, *partition))
            mirrored = ends.get(partition, 0)
            if last_mirrored is not None and last_mirrored.end >= 0:
                mirrored = self._subject.translation.offsets(partition).to_source(last_mirrored.end)
            if log.log_end > mirrored:
                tails.append(LeftBehind(partition, mirrored, log.log_end))
        return tuple(tails)
