"""Results of `FlowAdmin`: flows, and offsets of both sides of them.

Each serialises itself (serialise.py), with the names that `twinlog flows` has with `--json`.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from twinlog.kafka.types import TopicPartition
from twinlog.lifecycle.flow_positions import GroupSide, ImportedPosition
from twinlog.mirror.recorded_map import MapAnswer
from twinlog.mirror.states import State
from twinlog.operations.describe import DescribedPartition, MirrorDescription


class Creation(Enum):
    """What `create` has done."""

    CREATED = "created"
    REPLACED = "replaced"
    """The flow existed, and has these settings now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateFlowResult:
    """A flow that was created, and the cluster that its addresses connect to."""

    flow: str
    creation: Creation
    source_cluster_id: str
    lines: tuple[str, ...] = ()
    """About topics that the settings select no more, or again, settings that the flow has kept, and
    whether it is paused; for people."""

    def as_json(self) -> Mapping[str, object]:
        """The flow under what was done."""
        return {self.creation.value: self.flow, "cluster_id": self.source_cluster_id}


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowDescription:
    """A flow with its settings, topics and partitions."""

    flow: str
    source: str
    """The source's alias; empty if its settings cannot be read."""
    target: str
    config: Mapping[str, str]
    """The properties of its connection, as they were set; secrets are hidden."""
    settings: Mapping[str, str]
    """All settings of MirrorMaker 2, as they are in force, and those of the mirror that are not the
    default, such as a throttle; empty if they cannot be read."""
    changed: tuple[str, ...]
    """The names of those that are not the default."""
    paused: bool
    """Whether it is paused as a whole: topics that it gets are paused, too."""
    mirror: MirrorDescription
    """How its partitions are."""

    @property
    def partitions(self) -> tuple[DescribedPartition, ...]:
        """All partitions, with their topics."""
        return tuple(
            DescribedPartition(self.mirror, topic, partition)
            for topic in self.mirror.topics
            for partition in topic.partitions
        )

    @property
    def states(self) -> Mapping[str, int]:
        """How many partitions have each state, by its name."""
        return dict(sorted(Counter(row.one.state.name for row in self.partitions).items()))

    @property
    def lag(self) -> int:
        """Source offsets that are not copied yet, of partitions that are not STOPPED.

        -1: unknown for one of them, or there are none.
        """
        lags = [row.one.lag for row in self.partitions if row.one.state is not State.STOPPED]
        return -1 if not lags or min(lags) < 0 else sum(lags)

    def summary(self) -> Mapping[str, object]:
        """As `list --json` prints it."""
        return {
            "flow": self.flow,
            "source": self.source,
            "target": self.target,
            "cluster_id": self.mirror.source_cluster_id,
            "bootstrap_servers": self.mirror.source_bootstrap,
            "paused": self.paused,
            "topics": len(self.mirror.topics),
            "partitions": len(self.partitions),
            "states": self.states,
            "lag": self.lag,
        }

    def as_json(self) -> Mapping[str, object]:
        """As `describe --json` prints it."""
        rows = [
            {**row.as_json(), "target_topic": row.topic.destination_topic}
            for row in self.partitions
        ]
        return {
            **self.summary(),
            "config": self.config,
            "settings": self.settings,
            "changed_settings": self.changed,
            "not_mirrored": dict(self.mirror.not_mirrored.topics),
            "partitions": rows,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ListFlowsResult:
    """All flows in the order of their names."""

    flows: tuple[FlowDescription, ...]
    unreadable: tuple[str, ...]
    """What cannot be read: records of control topics, and settings of flows."""

    def as_json(self) -> object:
        """A row for each flow; what cannot be read is for people."""
        return [flow.summary() for flow in self.flows]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeFlowsResult:
    """Flows in the order of their names."""

    flows: tuple[FlowDescription, ...]
    unreadable: tuple[str, ...]
    """As in `ListFlowsResult`."""

    def as_json(self) -> object:
        """An object for each flow; what cannot be read is for people."""
        return self.flows


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteFlowResult:
    """A flow that was deleted; its remote topics stay, with their records."""

    flow: str
    removed: tuple[str, ...]
    """The source's topics that were still copied, and were removed first."""
    forgot_offsets: bool = False
    """Whether its recorded maps and positions are deleted, too. False, although it was asked for:
    the maps are, but positions of a former flow of this name may be left."""

    def as_json(self) -> Mapping[str, object]:
        """As `delete --json` prints it."""
        return {
            "deleted": self.flow,
            "removed": self.removed,
            "forgot_offsets": self.forgot_offsets,
        }


class Direction(Enum):
    """Of a translation."""

    TO_TARGET = "to_target"
    TO_SOURCE = "to_source"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPlace:
    """A group's checkpoint in a partition of the target (KIP-382)."""

    source_offset: int
    """What the group had committed on the source (*upstream*)."""
    target_offset: int
    """Where the flow had it then (*downstream*): clients of MirrorMaker 2 go on there."""
    time_ms: int
    """When it was written, in ms since 1970, by the clock of the node that wrote it."""
    age_ms: int | None
    """By this machine's clock; None: it is dated ahead of that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslatedOffset:
    """An offset of one side, and what is known of the other side."""

    source: TopicPartition | None
    """None: the flow copies nothing to the target's partition."""
    source_offset: int | None
    target: TopicPartition | None
    """None: the flow does not copy the source's partition."""
    target_offset: int | None
    """None: unknown; `source_offset` if the direction is the other one."""
    answer: MapAnswer
    text: str = ""
    """What has to be known about the answer, for people."""
    checkpoint: CheckpointPlace | None = None
    """The checkpoint that `source_offset` is from; None: it is from none."""

    @property
    def known(self) -> bool:
        """Whether the translated offset is exact; otherwise it is None, or the answer is STALE."""
        offsets = {self.source_offset, self.target_offset}
        return None not in offsets and self.answer is not MapAnswer.STALE

    def as_json(self) -> Mapping[str, object]:
        """As an element of `translate --json`."""
        return {
            "source": _place(self.source, self.source_offset),
            "target": _place(self.target, self.target_offset),
            "answer": self.answer,
            "known": self.known,
            "text": self.text,
            "checkpoint": self.checkpoint,
        }


def _place(partition: TopicPartition | None, offset: int | None) -> Mapping[str, object] | None:
    return None if partition is None else {**partition._asdict(), "offset": offset}


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCheckpoints:
    """What is to be known of a group's checkpoints as a whole."""

    topic: str
    """Where they are on the target."""
    without_checkpoint: tuple[TopicPartition, ...]
    """Partitions of the same topics, as the source names them, in which the group has none: whether
    it has committed an offset there is not known."""
    unreadable: tuple[str, ...]
    """Why checkpoints that are of this group, or may be, cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslatedOffsets:
    """Offsets of a flow, translated."""

    flow: str
    direction: Direction
    offsets: tuple[TranslatedOffset, ...]
    group: str | None = None
    """The group that has committed them."""
    timestamp_ms: int | None = None
    """They are those of the first records with this timestamp or a later one."""
    checkpoints: GroupCheckpoints | None = None
    """About the checkpoints that they are from; None: they are from none."""

    @property
    def all_known(self) -> bool:
        """Whether each of them could be translated, and no checkpoint of them is unreadable."""
        unreadable = self.checkpoints is not None and self.checkpoints.unreadable
        return not unreadable and all(offset.known for offset in self.offsets)

    def as_json(self) -> Mapping[str, object]:
        """As `translate --json` prints it."""
        return {
            "flow": self.flow,
            "direction": self.direction.value,
            "group": self.group,
            "timestamp_ms": self.timestamp_ms,
            "checkpoints": self.checkpoints,
            "all_known": self.all_known,
            "offsets": self.offsets,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportPositionsResult:
    """Where a flow begins, as a group has committed."""

    flow: str
    group: str
    on: GroupSide
    dry_run: bool
    """Whether nothing was written."""
    positions: tuple[ImportedPosition, ...]

    def as_json(self) -> Mapping[str, object]:
        """As `import-positions --json` prints it."""
        return {
            "flow": self.flow,
            "group": self.group,
            "on": self.on.value,
            "dry_run": self.dry_run,
            "positions": [
                {
                    **one.source._asdict(),
                    "target_topic": one.target.topic,
                    "position": one.position,
                    "former": one.former,
                    "lost": one.lost,
                }
                for one in self.positions
            ],
        }
