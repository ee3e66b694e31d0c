"""One check of a mirror's groups: inputs, what was read, and what is due (group_offsets.py)."""

from collections.abc import Callable, Collection, Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import TwinlogError
from twinlog.kafka.groups.offsets import Committed, Group
from twinlog.kafka.types import TopicPartition
from twinlog.mirror.translation import Translation
from twinlog.sync.base import always
from twinlog.sync.group_memory import KnownGroups
from twinlog.sync.group_readings import Bounds, GroupOffsets, compared_offsets
from twinlog.sync.group_selection import GroupFilter
from twinlog.sync.repeated_commits import DEFAULT_REPEAT_S
from twinlog.sync.topic_identity import doubtful_topics

AT_ONCE: Final = 20
"""Groups that are served concurrently."""
_QUIET_CHECKS: Final = 10
_MAX_QUIET_S: Final = 300.0

WantedTopics = Callable[[], Container[str]]


def quiet_time(interval_s: float) -> float:
    """How long a group must have been quiet on the destination, if it is checked at this interval.

    A consumer that restarts has a member again within five minutes. If checks are further apart,
    the next one decides: what has moved in between shows in the offsets.
    """
    return min(_QUIET_CHECKS * interval_s, _MAX_QUIET_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCheck:
    """The inputs of one check of a mirror's groups; see `GroupSync.sync`."""

    source: KafkaCluster
    mirror: str
    include: GroupFilter
    partitions: Mapping[TopicPartition, UUID]
    translation: Translation
    wanted: WantedTopics
    quiet_s: float
    topic_ids: Mapping[str, UUID]
    """The ids of the source's topics, by name."""
    is_ours: Callable[[], bool] = always
    """See `SyncContext`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDifference:
    """The offsets of a mirror's groups in both clusters; group_rules.py says which are copied."""

    check: GroupCheck
    memory: KnownGroups
    now_ms: int
    listed: Mapping[str, Group]
    """All groups that the source lists."""
    served: Collection[Group]
    """Those of them whose offsets are copied."""
    bounds: Bounds = field(default_factory=lambda: Bounds({}, {}))
    repeat_s: float = DEFAULT_REPEAT_S
    offsets: Mapping[Group, GroupOffsets] = field(default_factory=dict)
    busy: Container[str] = frozenset()
    """Groups with members on the destination."""
    unread: Mapping[str, TwinlogError] = field(default_factory=dict)
    """Why offsets of other groups cannot be read."""

    @property
    def unplaced_texts(self) -> list[str]:
        """Which groups have no place in which shared partition, and why."""
        return sorted(
            f"{group.name} in {self.check.translation.name(partition)}: {place.lacks}"
            for group, offsets in self.offsets.items()
            for partition, place in offsets.unplaced.items()
        )


class DueOffsets(NamedTuple):
    """What is to be committed of a group, and its copies before, in the destination's offsets."""

    offsets: Mapping[TopicPartition, Committed]
    copies: Mapping[TopicPartition, Committed]
    repeats: Mapping[TopicPartition, Committed]
    """Own offsets that are committed again, as they are, before the brokers expire them."""


NOTHING_DUE: Final = DueOffsets({}, {}, {})
Doubtful: TypeAlias = Collection[str] | TwinlogError
"""Topics that may be others than those that were copied, or why that is unknown."""


async def without_recreated(
    check: GroupCheck, offsets: Mapping[Group, GroupOffsets]
) -> Mapping[Group, GroupOffsets]:
    """The offsets of groups, without those of recreated topics in shared partitions.

    They are about other records than the map, and may neither raise nor lower what was committed.
    The source's topics are read after the offsets, so that each of these is detected.
    """
    shared = check.translation.shared.values()
    copied = {topic for one in shared for topic in one.copied_topics} & check.topic_ids.keys()
    doubtful = await doubtful_topics(check.source, copied, check.topic_ids, tells=False)
    if not doubtful:
        return offsets
    return {
        group: compared_offsets(one.destination, one.committed, check.translation, doubtful)
        for group, one in offsets.items()
    }


def topics_of_due(check: GroupCheck, due: DueOffsets) -> dict[TopicPartition, frozenset[str]]:
    """By partition, the topics that have to be the copied ones for what is due to be committed.

    In a shared partition that concerns raised offsets only: what lowers one is of the others
    (`without_recreated`), and one of its topics may be deleted for good.
    """
    copies, shared = due.copies, check.translation.shared
    return {
        p: check.translation.copied_topics(p)
        for p, at in due.offsets.items()
        if p not in shared or p not in copies or at.offset > copies[p].offset
    }


async def doubtful_of_due(check: GroupCheck, due: Iterable[DueOffsets]) -> Doubtful:
    """The doubtful ones of all topics on which due offsets depend, or why that is unknown.

    Each broker of the source is asked, so one answer has to do for all groups. It vouches for the
    source's offsets that were read before, so this is called when all of the check have been read.
    """
    names = {
        name for one in due for topics in topics_of_due(check, one).values() for name in topics
    }
    try:
        return await doubtful_topics(check.source, names, check.topic_ids)
    except TwinlogError as error:
        return error
