"""Translates offsets of a flow by its recorded maps, and says what it does not know.

What is asked for is read first, then the maps: so what was copied before the question is in them,
or named by a plan. Of the target's logs the bounds are read as well:

    to the target    after the maps    a place that the map names has to be in the log
    to the source    before the maps   behind the log's end there is nothing to translate
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from twinlog.engines.transactional.kind import read_flow_maps
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import Refusal
from twinlog.kafka.requests.partitions import Isolation, OffsetSpec, list_offsets
from twinlog.kafka.requests.topics import known_topics
from twinlog.kafka.types import Offset, TopicPartition
from twinlog.mirror.recorded_map import MapAnswer, OffsetAnswer, RecordedMap
from twinlog.mirror.settings import KIND, TRANSACTIONAL
from twinlog.mirror.states import State
from twinlog.operations.flow_results import Direction, TranslatedOffset
from twinlog.store.config_records import MirrorTopic
from twinlog.store.control_topics import read_states


class TargetLog(NamedTuple):
    """Log start offset and high watermark of a partition of the target."""

    start: int
    end: int
    open_from: int | None = None
    """Where its first open transaction begins, if the flow writes in transactions, and one is open:
    what the flow has in it is not in the map."""


class NoAnswer(NamedTuple):
    """Why an offset cannot be translated."""

    answer: MapAnswer
    text: str


Question = int | NoAnswer
"""An offset of a partition, or why there is none."""

_LOST: Final = (
    "the target has lost records that were copied (the partition is FAILED), and may have others "
    "at their offsets"
)
_OF_BEFORE_LOSS: Final = (
    "the target has lost copies, and the group may have committed this offset before: what it has "
    "read is not known"
)
_UNMAPPED: Final = "no map of this partition is recorded yet, or it has lost its last part"
_TEXTS: Final[Mapping[tuple[Direction, MapAnswer], str]] = {
    (Direction.TO_TARGET, MapAnswer.RECORD): "",
    (Direction.TO_TARGET, MapAnswer.NEXT): (
        "this offset has no copy (a marker, or an aborted, compacted or deleted record); the next "
        "record that was copied is source offset {limit}"
    ),
    (Direction.TO_TARGET, MapAnswer.END): (
        "everything before it is copied; the next record that is copied follows here"
    ),
    (Direction.TO_TARGET, MapAnswer.NOT_COPIED): (
        "not copied yet, or not recorded yet: the map ends at source offset {limit}"
    ),
    (Direction.TO_TARGET, MapAnswer.BEFORE_START): (
        "the flow began at source offset {limit}: earlier records have no copy"
    ),
    (Direction.TO_SOURCE, MapAnswer.RECORD): "",
    (Direction.TO_SOURCE, MapAnswer.NEXT): (
        "no copied record has this offset; the next one is at target offset {limit}"
    ),
    (Direction.TO_SOURCE, MapAnswer.END): (
        "behind the last copied record: everything below this source offset is copied"
    ),
    (Direction.TO_SOURCE, MapAnswer.NOT_COPIED): (
        "not recorded yet: the map ends at target offset {limit}"
    ),
    (Direction.TO_SOURCE, MapAnswer.LOST): (
        "the target has lost the copies that were here, and the flow went on behind them: what a "
        "reader of this offset has read is not known"
    ),
    (Direction.TO_SOURCE, MapAnswer.BEFORE_START): (
        "what the flow has copied begins at target offset {limit}"
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowOffsets:
    """What is known of some topics of a flow."""

    names: Mapping[TopicPartition, TopicPartition]
    """The target's partition of each of the source's."""
    maps: Mapping[TopicPartition, RecordedMap]
    """By the source's partition."""
    bounds: Mapping[TopicPartition, TargetLog | Refusal]
    """Of the target's partitions; those of topics that are gone are missing."""
    gone: Mapping[str, str]
    """Why the target's topic is not the one that was copied to, by its name."""
    without_map: str = "nothing of this partition was copied yet"
    """Why a partition may have no map."""

    def to_target(self, source: TopicPartition, question: Question) -> TranslatedOffset:
        """Where the target has an offset of the source's partition."""
        target = self.names.get(source)
        if target is None:
            reason = NoAnswer(MapAnswer.NOT_IN_FLOW, "the flow does not copy this partition")
            return _translated(source, question, None, reason)
        if isinstance(question, NoAnswer):
            return _translated(source, question, target, question)
        offset_map = self._map(source, target)
        if isinstance(offset_map, NoAnswer):
            return _translated(source, question, target, offset_map)
        found = offset_map.to_destination(question)
        text = _text(Direction.TO_TARGET, found, offset_map)
        if offset_map.has_lost(question) and found.answer in {MapAnswer.NEXT, MapAnswer.END}:
            text = f"the target has lost the copy of this offset; {text}"
        if found.offset is None:
            return _translated(source, question, target, NoAnswer(found.answer, text))
        bounds = self.bounds[target]
        if isinstance(bounds, Refusal):
            text = joined(text, f"the target's log cannot be read: {bounds}")
        elif found.offset + (found.answer is not MapAnswer.END) > bounds.end:  # END has no record
            text = (
                f"it was copied to {found.offset}, and the target's log ends at {bounds.end}: it "
                "has lost records"
            )
            return _translated(source, question, target, NoAnswer(MapAnswer.BEHIND_LOG, text))
        elif found.offset < bounds.start:
            text = joined(text, f"deleted on the target, whose log starts at {bounds.start}")
        return _translated(source, question, target, found, text)

    def to_source(
        self, target: TopicPartition, question: Question, *, of_group: bool = False
    ) -> list[TranslatedOffset]:
        """Which offsets of the source an offset of the target's partition is.

        Several of the source's partitions may be copied to one of the target: one result for each.

        Args:
            target: the partition.
            question: an offset of it.
            of_group: whether a group has committed it, so that it may be of before a loss.
        """
        sources = sorted(source for source, name in self.names.items() if name == target)
        if not sources:
            reason = NoAnswer(MapAnswer.NOT_IN_FLOW, "the flow copies nothing to this partition")
            return [_translated(None, reason, target, question)]
        # What one of them has lost, the log has lost for all: their next copies landed below.
        is_doubtful = (
            of_group
            and not isinstance(question, NoAnswer)
            and any(
                offset_map.lost or offset_map.may_precede_loss(question)
                for source in sources
                if (offset_map := self.maps.get(source)) is not None
            )
        )
        return [self._to_source(one, target, question, is_doubtful) for one in sources]

    def _to_source(
        self, source: TopicPartition, target: TopicPartition, question: Question, is_doubtful: bool
    ) -> TranslatedOffset:
        if isinstance(question, NoAnswer):
            return _translated(source, question, target, question)
        offset_map = self._map(source, target)
        if isinstance(offset_map, NoAnswer):
            return _translated(source, offset_map, target, question)
        bounds = self.bounds[target]
        if isinstance(bounds, Refusal):
            reason = NoAnswer(MapAnswer.UNREADABLE, f"the target's log cannot be read: {bounds}")
            return _translated(source, reason, target, question)
        if question > bounds.end:
            text = f"the target's log ends at {bounds.end}"
            return _translated(source, NoAnswer(MapAnswer.BEHIND_LOG, text), target, question)
        if is_doubtful:
            found = OffsetAnswer(MapAnswer.LOST, None, Offset(question))
            text = _OF_BEFORE_LOSS
        else:
            found = offset_map.to_source(question)
            text = _text(Direction.TO_SOURCE, found, offset_map)
        if found.answer is MapAnswer.END and _is_open(bounds, question):
            found = OffsetAnswer(MapAnswer.NOT_COPIED, None, Offset(question))
            text = f"a transaction is open on the target from offset {bounds.open_from} on"
        if found.offset is None:
            return _translated(source, NoAnswer(found.answer, text), target, question)
        return _translated(source, found, target, question, text)

    def _map(self, source: TopicPartition, target: TopicPartition) -> RecordedMap | NoAnswer:
        if target.topic in self.gone:
            return NoAnswer(MapAnswer.RECREATED, self.gone[target.topic])
        offset_map = self.maps.get(source)
        if offset_map is None:
            return NoAnswer(MapAnswer.NO_MAP, self.without_map)
        # From which offset on is not recorded, and a log that has grown again does not show it.
        return NoAnswer(MapAnswer.LOST, _LOST) if offset_map.lost else offset_map


def _is_open(log: TargetLog, offset: int) -> bool:
    """Whether a transaction may still be open that has a copy in front of this offset."""
    return log.open_from is not None and offset > log.open_from


def _text(direction: Direction, found: OffsetAnswer, offset_map: RecordedMap) -> str:
    if found.answer is MapAnswer.BEFORE_START and offset_map.lacks_start:
        return f"where records below offset {found.limit} were copied to is not recorded"
    return _TEXTS[direction, found.answer].format(limit=found.limit)


def joined(*texts: str) -> str:
    """Texts about an answer as one; empty ones are left out."""
    return "; ".join(filter(None, texts))


def _translated(
    source: TopicPartition | None,
    source_offset: Question | OffsetAnswer,
    target: TopicPartition | None,
    target_offset: Question | OffsetAnswer,
    text: str = "",
) -> TranslatedOffset:
    """Put a question and its answer together; a reason for none is the answer."""
    answer, places = MapAnswer.RECORD, list[int | None]()
    for each in (source_offset, target_offset):
        match each:
            case OffsetAnswer(answer, place, _):
                places.append(place)
            case NoAnswer(answer, text):
                places.append(None)
            case int():
                places.append(each)
    return TranslatedOffset(
        source=source,
        source_offset=places[0],
        target=target,
        target_offset=places[1],
        answer=answer,
        text=text,
    )


async def read_flow_offsets(
    destination: KafkaCluster,
    topics: Sequence[MirrorTopic],
    properties: Mapping[str, str],
    direction: Direction,
) -> FlowOffsets:
    """What is known now; what is asked for has to be read before (see the module).

    Args:
        destination: the flow's cluster.
        topics: of one flow; those that are asked for.
        properties: the flow's.
        direction: of the questions.

    Raises:
        TwinlogError: maps cannot be read now, or a part of them is lost.
    """
    names = {
        name.source: topic.on_destination(name)
        for topic in topics
        for name in topic.mirror_partitions
    }
    there = await known_topics(destination, {topic.destination_name for topic in topics})
    gone: dict[str, str] = {}
    for topic in topics:
        remote = topic.destination_name
        if remote not in there:
            gone[remote] = f"{remote} is not in the target's metadata"
        elif there[remote].has_another(topic.destination_topic_id):
            gone[remote] = f"{remote} was recreated on the target since it was copied to"
    targets = {target for target in names.values() if target.topic not in gone}
    if direction is Direction.TO_TARGET:
        maps = await read_flow_maps(destination, topics, properties)
        bounds = await _bounds(destination, targets)
    else:
        bounds = await _bounds(destination, targets, open_too=properties[KIND] == TRANSACTIONAL)
        maps = await read_flow_maps(destination, topics, properties)
    known = FlowOffsets(names=names, maps=maps, bounds=bounds, gone=gone)
    return replace(known, without_map=_UNMAPPED) if properties[KIND] == TRANSACTIONAL else known


async def _bounds(
    cluster: KafkaCluster, partitions: Collection[TopicPartition], *, open_too: bool = False
) -> dict[TopicPartition, TargetLog | Refusal]:
    """Where the logs begin and end, and, if asked for, where what is undecided begins."""
    starts, ends, stable = await asyncio.gather(
        list_offsets(cluster, partitions, OffsetSpec.EARLIEST),
        list_offsets(cluster, partitions, OffsetSpec.LATEST),
        list_offsets(cluster, partitions if open_too else (), isolation=Isolation.READ_COMMITTED),
    )
    bounds: dict[TopicPartition, TargetLog | Refusal] = {}
    for partition in partitions:
        start, end = starts[partition], ends[partition]
        decided = stable.get(partition, end)
        if isinstance(start, Refusal):
            bounds[partition] = start
        elif isinstance(end, Refusal):
            bounds[partition] = end
        elif isinstance(decided, Refusal):
            bounds[partition] = decided
        else:
            open_from = decided.offset if decided.offset < end.offset else None
            bounds[partition] = TargetLog(start.offset, end.offset, open_from)
    return bounds


async def at_timestamp(
    cluster: KafkaCluster, partitions: Collection[TopicPartition], timestamp_ms: int, side: str
) -> dict[TopicPartition, Question]:
    """The offsets of the first records with this timestamp or a later one (ListOffsets).

    Args:
        cluster: whose partitions.
        partitions: which.
        timestamp_ms: milliseconds since 1970.
        side: what the cluster is, for messages.
    """
    answers = await list_offsets(cluster, dict.fromkeys(partitions, timestamp_ms))
    none = NoAnswer(
        MapAnswer.NO_RECORD, f"the {side} has no record with this timestamp or a later one"
    )
    questions: dict[TopicPartition, Question] = {}
    for partition, answer in answers.items():
        if isinstance(answer, Refusal):
            text = f"the {side} refuses to list its offsets: {answer}"
            questions[partition] = NoAnswer(MapAnswer.UNREADABLE, text)
        else:
            questions[partition] = answer.offset if answer.offset >= 0 else none
    return questions


async def of_copied_topics(
    source: KafkaCluster,
    topics: Iterable[MirrorTopic],
    questions: Mapping[TopicPartition, Question],
) -> dict[TopicPartition, Question]:
    """The questions about the source; none is left of a topic that may be another one by now.

    The topics are read after the offsets, so that one that was recreated before is detected. Every
    broker is asked: one whose metadata lags shows the former topic.

    Raises:
        Retriable: a broker of the source does not answer.
    """
    asked = {partition.topic for partition in questions}
    copied = {topic.topic: topic for topic in topics if topic.topic in asked}
    there = await known_topics(source, set(copied))

    def checked(partition: TopicPartition, question: Question) -> Question:
        topic = copied.get(partition.topic)
        if topic is None:
            return question
        present = there.get(partition.topic)
        if present is None:
            return NoAnswer(MapAnswer.RECREATED, "the topic is not in the source's metadata")
        if present.has_another(topic.topic_id):
            return NoAnswer(
                MapAnswer.RECREATED, "the topic was recreated on the source, and is not copied yet"
            )
        if not present.everywhere:
            text = "some broker of the source does not know the topic: it may be deleted"
            return NoAnswer(MapAnswer.RECREATED, text)
        return question

    return {partition: checked(partition, question) for partition, question in questions.items()}


async def without_failed(
    destination: KafkaCluster,
    topics: Iterable[MirrorTopic],
    results: Sequence[TranslatedOffset],
    direction: Direction,
) -> list[TranslatedOffset]:
    """What is known of the source as it is now: nothing in partitions that are, or may be, FAILED.

    The source may have lost records that were copied, and have others at their offsets: the map is
    about the log that was copied.

    Args:
        destination: the flow's cluster.
        topics: of the flow.
        results: by the map, of offsets that were read before.
        direction: of the translation.

    Raises:
        TwinlogError: the states of partitions cannot be read now.
    """
    states = await read_states(destination)
    failed = {
        name.source: states.states[name].reason
        for topic in topics
        for name in topic.mirror_partitions
        if states.state(name) is State.FAILED
    }
    unread = {
        name.source: why
        for topic in topics
        for name in topic.mirror_partitions
        if (why := states.unread(name))
    }

    def checked(found: TranslatedOffset) -> TranslatedOffset:
        if found.source is None or None in {found.source_offset, found.target_offset}:
            return found
        if found.source in unread:
            state = f"state of the partition cannot be read ({unread[found.source]})"
        elif found.source in failed:
            state = f"partition is FAILED ({failed[found.source]})"
        else:
            return found
        text = (
            f"the {state}, and the source may have other records than those that were copied; by "
            f"the map, source offset {found.source_offset} is target offset {found.target_offset}"
        )
        found = replace(found, answer=MapAnswer.UNPROVEN, text=joined(found.text, text))
        if direction is Direction.TO_TARGET:
            return replace(found, target_offset=None)
        return replace(found, source_offset=None)

    return [checked(found) for found in results]
