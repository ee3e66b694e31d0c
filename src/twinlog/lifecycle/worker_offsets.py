"""The offsets of MirrorMaker 2's Connect worker: which ones a hand-back replaces.

MirrorMaker 2 may have copied on since a flow was handed back: it has then recorded an offset that
the flow has not reached. Such an offset is not replaced, as all behind the flow's end would be
copied again. Only the operator knows whether it is from before the flow instead. The same holds for
any offset of a topic that was recreated on the source after the flow had copied it: nothing tells
of which of both topics it is. The operator says so to this command (`OwnOffsets`): what a file says
may be left from a takeover.

Read and written are the offsets of MirrorMaker 2's own connector (`twinlog.takeover.connector`).
One of another name in the same topic may copy to another remote topic, and would skip records.

An offset is written to the partition that has its key already, or else to that which Connect's own
producer would choose. Otherwise two records of one key would be in two partitions, and which of
them Connect reads last is not defined.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from kafka.partitioner.default import murmur2

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Refusal, Retriable, UserError
from twinlog.kafka.requests.topics import NewTopic, confirm_absent, create_topics
from twinlog.kafka.types import TopicPartition
from twinlog.mirror.connect_offsets import ConnectOffset, encode, last_copied
from twinlog.store.control_topics import partition_count
from twinlog.store.topic_reader import read_whole
from twinlog.store.topic_writer import ALL, Entry, append

_PARTITIONS: Final = 25
"""Connect's default of `offset.storage.partitions`."""
_POSITIVE: Final = 0x7FFFFFFF
_KEEP: Final = "--own-offsets keep"
_REPLACE: Final = "--own-offsets replace"


class OwnOffsets(Enum):
    """What becomes of offsets of MirrorMaker 2 that a flow has not reached."""

    REFUSE = "refuse"
    """Nothing is handed back as long as there are some."""
    KEEP = "keep"
    """MirrorMaker 2 goes on there: it has run since."""
    REPLACE = "replace"
    """MirrorMaker 2 goes on where the flow has ended: it has not run since."""


class RecordedOffsets(NamedTuple):
    """What an offsets topic of Connect has of the partitions of a source."""

    topic: str
    partitions: int | None
    """Of the topic's partitions; None: there is no topic."""
    places: Mapping[bytes, int]
    """By key, the topic's partition that has it."""
    offsets: Mapping[TopicPartition, Mapping[str, int]]
    """By connector, the last offset that it has copied."""

    def of(self, connector: str, partition: TopicPartition) -> list[int]:
        """What a connector has recorded of a partition: one offset, or none."""
        found = self.offsets.get(partition, {}).get(connector)
        return [] if found is None else [found]


async def read_recorded(destination: KafkaCluster, topic: str, alias: str) -> RecordedOffsets:
    """Read what an offsets topic has of the partitions of a source.

    Raises:
        UserError: it may not be read.
        ProtocolError: a record cannot be read.
        Retriable: not now; or only some brokers have the topic.
    """
    count = await partition_count(destination, topic)
    if count is None:
        await confirm_absent(destination, topic)
        return RecordedOffsets(topic, None, {}, {})
    records = await read_whole(destination, topic)
    return RecordedOffsets(
        topic,
        count,
        {record.key: record.partition for record in records if record.key is not None},
        last_copied(((record.key, record.value) for record in records), alias),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsAhead:
    """The offsets of MirrorMaker 2's own connector that a flow has not reached.

    Args:
        flow: the flow's name.
        connector: MirrorMaker 2's own.
        own: what becomes of them.
        recorded: what each offsets topic has; a later one takes precedence.
    """

    flow: str
    connector: str
    own: OwnOffsets
    recorded: Sequence[RecordedOffsets]

    def of_present(self, upto: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Those of the topics that the flow has copied, by partition.

        Args:
            upto: from where on each partition is to be copied.

        Raises:
            UserError: there are some, and they are refused; or are to be kept, and MirrorMaker 2
                may go on at a lower one, of another topic.
        """
        ahead: dict[TopicPartition, int] = {}
        for source, end in upto.items():
            own = self._own(source)
            if max(own, default=-1) >= end:
                ahead[source] = own[-1] if self.own is OwnOffsets.KEEP else max(own)
                if self.own is OwnOffsets.KEEP and min(own) < end:
                    raise UserError(
                        f"MirrorMaker 2 has recorded the offsets {min(own)} and {max(own)} of "
                        f"{source}, in several topics, and the flow has copied up to {end}: at "
                        "which of them it goes on is not known",
                        hint=f"remove the offset that it does not use; or {_REPLACE} replaces both",
                    )
        if ahead and self.own is OwnOffsets.REFUSE:
            source, offset = min(ahead.items())
            raise UserError(
                f"MirrorMaker 2 has copied {source} on since: it has recorded offset {offset}, and "
                f"the flow has copied up to {upto[source]}",
                hint=f"delete flow {self.flow} without --hand-back: MirrorMaker 2 goes on where it "
                f"has stopped; or {_KEEP} keeps such offsets, and hands back the rest; {_REPLACE} "
                "replaces them, if they are from before the flow",
            )
        return ahead

    def of_recreated(self, log_ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Those that may be of topics that were recreated on the source, by partition.

        Args:
            log_ends: where the present logs end; an offset behind that is of a former one.

        Raises:
            UserError: there are some, and they are refused.
        """
        last = {source: self.last(source) for source in log_ends}
        unclear = {one: at for one, at in last.items() if at is not None and at < log_ends[one]}
        if unclear and self.own is OwnOffsets.REFUSE:
            source, offset = min(unclear.items())
            raise UserError(
                f"MirrorMaker 2 has recorded offset {offset} of {source}, and the source's topic "
                "was recreated after the flow had copied it: of which topic the offset is, is not "
                "known",
                hint=f"if MirrorMaker 2 has not run since, {_REPLACE} removes such offsets; if it "
                f"has, {_KEEP} keeps them",
            )
        return unclear

    def last(self, source: TopicPartition) -> int | None:
        """The offset of a partition at which MirrorMaker 2 goes on; None: it has recorded none."""
        return next(reversed(self._own(source)), None)

    def other_connectors(self, source: TopicPartition) -> tuple[str, ...]:
        """The other connectors that have recorded offsets of a partition."""
        names = {name for one in self.recorded for name in one.offsets.get(source, ())}
        return tuple(sorted(names - {self.connector}))

    def _own(self, source: TopicPartition) -> list[int]:
        return [at for one in self.recorded for at in one.of(self.connector, source)]


async def write_offsets(
    destination: KafkaCluster,
    connector: str,
    alias: str,
    recorded: RecordedOffsets,
    ends: Mapping[TopicPartition, int],
) -> None:
    """Write what a connector has copied to a topic, which is created if absent.

    Args:
        destination: the target.
        connector: its name.
        alias: the source's.
        recorded: what the topic has.
        ends: from where on each partition is to be copied; 0: nothing is recorded of it.

    Raises:
        UserError: a right is missing.
        Retriable: not now; some may be written.
    """
    topic, places, count = recorded.topic, recorded.places, recorded.partitions
    if count is None:
        places, count = await _create(destination, topic, alias)
    entries: list[Entry] = []
    for source, end in ends.items():
        # What was recorded must not stay where nothing counts.
        if end > 0 or recorded.of(connector, source):
            last = end - 1 if end > 0 else None
            key, value = encode(ConnectOffset(connector, alias, source, last))
            place = places.get(key, (murmur2(key) & _POSITIVE) % count)
            entries.append(Entry(topic, place, key, value))
    for partition, answer in (await append(destination, entries, acks=ALL)).items():
        if isinstance(answer, Refusal):
            with destination.needing("WRITE", f"the topic {topic}"):
                answer.fail("write offsets for MirrorMaker 2", topic=partition.topic)


async def _create(
    destination: KafkaCluster, topic: str, alias: str
) -> tuple[Mapping[bytes, int], int]:
    """Create a topic for offsets; return the places of its keys, and its number of partitions.

    It may exist by now: another program has created it, with any number of partitions, or an
    earlier try, whose answer was lost.

    Raises:
        UserError: a right is missing.
        Retriable: offsets are recorded in it meanwhile, or it is not shown yet.
    """
    new = NewTopic(
        name=topic,
        partitions=_PARTITIONS,
        replication_factor=-1,
        configs={"cleanup.policy": "compact"},
    )
    answer = (await create_topics(destination, [new]))[topic]
    if not isinstance(answer, Refusal):
        return {}, _PARTITIONS
    if answer.code != ErrorCode.TOPIC_ALREADY_EXISTS:
        with destination.needing("CREATE", f"the topic {topic}"):
            answer.fail("create the topic", topic=topic)
    present = await read_recorded(destination, topic, alias)
    if present.partitions is None:
        raise Retriable("the target does not show the topic yet, which exists", topic=topic)
    if present.offsets:
        raise Retriable(
            "another program has created the topic and recorded offsets in it meanwhile",
            topic=topic,
            hint="try again, with MirrorMaker 2 stopped: they are compared with the flow then",
        )
    return present.places, present.partitions
