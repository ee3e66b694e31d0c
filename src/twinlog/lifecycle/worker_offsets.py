"""The offsets of MirrorMaker 2's Connect worker: which ones a hand-back replaces.

MirrorMaker 2 may have copied on since a flow was handed back: it has then recorded an offset that
the flow has not reached. Such an offset is not replaced, as all behind the flow's end would be
copied again. Only the operator knows whether it is from before the flow instead
(`twinlog.takeover`). The same holds for any offset of a topic that was recreated on the source
after the flow had copied it: nothing tells of which of both topics it is.

Written are the offsets of MirrorMaker 2's own connector. One of another name in the same topic,
from a Connect cluster of the user's, may copy to another remote topic, and would skip records.

An offset is written to the partition that has its key already, or else to that which Connect's own
producer would choose. Otherwise two records of one key would be in two partitions, and which of
them Connect reads last is not defined.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from kafka.partitioner.default import murmur2

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Refusal, UserError
from twinlog.kafka.requests.topics import NewTopic, confirm_absent, create_topics
from twinlog.kafka.types import TopicPartition
from twinlog.mirror.connect_offsets import CONNECTOR, ConnectOffset, decode, encode
from twinlog.mirror.flow_settings import TAKEOVER, FlowSettings
from twinlog.store.control_topics import partition_count
from twinlog.store.topic_reader import read_whole
from twinlog.store.topic_writer import ALL, Entry, append

_PARTITIONS: Final = 25
"""Connect's default of `offset.storage.partitions`."""
_POSITIVE: Final = 0x7FFFFFFF


class RecordedOffsets(NamedTuple):
    """What an offsets topic of Connect has of the partitions of a source."""

    topic: str
    partitions: int | None
    """Of the topic's partitions; None: there is no topic."""
    places: Mapping[bytes, int]
    """By key, the topic's partition that has it."""
    offsets: Mapping[TopicPartition, Mapping[str, int]]
    """By connector, the last offset that it has copied."""

    def own(self, partition: TopicPartition) -> list[int]:
        """What MirrorMaker 2's own connector has recorded of a partition: one offset, or none."""
        found = self.offsets.get(partition, {}).get(CONNECTOR)
        return [] if found is None else [found]

    def of(self, partition: TopicPartition) -> list[int]:
        """The offsets of a partition, of all connectors."""
        return [*self.offsets.get(partition, {}).values()]


async def read_recorded(destination: KafkaCluster, topic: str, alias: str) -> RecordedOffsets:
    """Read what an offsets topic has of the partitions of a source.

    Raises:
        UserError: it may not be read.
        ProtocolError: a record cannot be read.
        Retriable: not now; or only some brokers have the topic.
    """
    places: dict[bytes, int] = {}
    offsets: defaultdict[TopicPartition, dict[str, int]] = defaultdict(dict)
    count = await partition_count(destination, topic)
    if count is None:
        await confirm_absent(destination, topic)
        return RecordedOffsets(topic, None, places, offsets)
    for record in await read_whole(destination, topic):
        found = decode(record.key, record.value)
        if found is None or found.cluster != alias or record.key is None:
            continue
        places[record.key] = record.partition
        if found.offset is None:
            offsets[found.partition].pop(found.connector, None)
        else:
            offsets[found.partition][found.connector] = found.offset
    return RecordedOffsets(topic, count, places, offsets)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsAhead:
    """Which offsets of MirrorMaker 2 a flow has not reached.

    Args:
        flow: the flow's name.
        settings: its settings by the file that MirrorMaker 2 will be started with.
        recorded: what each offsets topic has.
    """

    flow: str
    settings: FlowSettings
    recorded: Collection[RecordedOffsets]

    @property
    def keeps(self) -> bool:
        """Whether they stay."""
        return self.settings.twinlog_takeover == "recorded"

    @property
    def _undecided(self) -> bool:
        return self.settings.twinlog_takeover not in {"recorded", "ignore"}

    def of_present(self, upto: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The highest of them by partition, of topics that are the ones that the flow has copied.

        Args:
            upto: from where on each partition is to be copied.

        Raises:
            UserError: there are some, and the operator has not said what becomes of them; or they
                are to be kept, and MirrorMaker 2's own connector goes on at another one.
        """
        ahead: dict[TopicPartition, int] = {}
        for source, end in upto.items():
            highest = max((at for one in self.recorded for at in one.of(source)), default=-1)
            if highest >= end:
                ahead[source] = self._kept(source, end, highest) if self.keeps else highest
        if ahead and self._undecided:
            source, offset = min(ahead.items())
            raise UserError(
                f"MirrorMaker 2 has copied {source} on since: it has recorded offset {offset}, and "
                f"the flow has copied up to {upto[source]}",
                hint=f"delete flow {self.flow} without --hand-back: MirrorMaker 2 goes on where it "
                f"has stopped; or set {TAKEOVER}=recorded in the file to keep its offset and hand "
                f"back the rest; {TAKEOVER}=ignore replaces an offset from before the flow",
            )
        return ahead

    def of_former(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """All of them by partition, of topics that the source has deleted or recreated.

        Raises:
            UserError: there are some, and the operator has not said what becomes of them.
        """
        found = {source: self._own(source) for source in partitions}
        recorded = {source: offsets[-1] for source, offsets in found.items() if offsets}
        if recorded and self._undecided:
            source, offset = min(recorded.items())
            raise UserError(
                f"MirrorMaker 2 has recorded offset {offset} of {source}, and the source's topic "
                "was deleted or recreated after the flow had copied it: of which topic the offset "
                "is, is not known",
                hint=f"if MirrorMaker 2 has not run since, set {TAKEOVER}=ignore in the file to "
                f"remove such offsets; if it has, {TAKEOVER}=recorded to keep them",
            )
        return recorded

    def other_connectors(self, source: TopicPartition) -> tuple[str, ...]:
        """The other connectors that have recorded offsets of a partition."""
        names = {name for one in self.recorded for name in one.offsets.get(source, ())}
        return tuple(sorted(names - {CONNECTOR}))

    def _kept(self, source: TopicPartition, end: int, highest: int) -> int:
        """The offset at which MirrorMaker 2's own connector goes on, if it is not replaced.

        Raises:
            UserError: it may go on at one that the flow has passed.
        """
        own = self._own(source)
        if min(own, default=-1) >= end:
            return own[-1]
        has = f"offset {min(own)}" if own else "nothing"
        raise UserError(
            f"offset {highest} of {source} is recorded by another connector, or in another topic: "
            f"MirrorMaker 2's own connector has recorded {has}, and the flow has copied up to "
            f"{end}; where it goes on is not known",
            hint=f"remove the offsets that it does not use, or set {TAKEOVER}=ignore in the file "
            "to replace its own",
        )

    def _own(self, source: TopicPartition) -> list[int]:
        """What MirrorMaker 2's own connector has recorded, by topic: the last one counts."""
        return [at for one in self.recorded for at in one.own(source)]


async def write_offsets(
    destination: KafkaCluster,
    alias: str,
    recorded: RecordedOffsets,
    ends: Mapping[TopicPartition, int],
) -> None:
    """Write what MirrorMaker 2's own connector has copied to a topic, which is created if absent.

    Args:
        destination: the target.
        alias: the source's.
        recorded: what the topic has.
        ends: from where on each partition is to be copied; 0: nothing is recorded of it.

    Raises:
        UserError: a right is missing.
        Retriable: not now; some may be written.
    """
    topic, count = recorded.topic, recorded.partitions
    if count is None:
        count = await _create(destination, topic)
    entries: list[Entry] = []
    for source, end in ends.items():
        if end > 0 or recorded.own(source):  # what was recorded must not stay where nothing counts
            last = end - 1 if end > 0 else None
            key, value = encode(ConnectOffset(CONNECTOR, alias, source, last))
            place = recorded.places.get(key, (murmur2(key) & _POSITIVE) % count)
            entries.append(Entry(topic, place, key, value))
    for partition, answer in (await append(destination, entries, acks=ALL)).items():
        if isinstance(answer, Refusal):
            with destination.needing("WRITE", f"the topic {topic}"):
                answer.fail("write offsets for MirrorMaker 2", topic=partition.topic)


async def _create(destination: KafkaCluster, topic: str) -> int:
    new = NewTopic(
        name=topic,
        partitions=_PARTITIONS,
        replication_factor=-1,
        configs={"cleanup.policy": "compact"},
    )
    answer = (await create_topics(destination, [new]))[topic]
    if isinstance(answer, Refusal) and answer.code != ErrorCode.TOPIC_ALREADY_EXISTS:
        with destination.needing("CREATE", f"the topic {topic}"):
            answer.fail("create the topic", topic=topic)
    return _PARTITIONS
