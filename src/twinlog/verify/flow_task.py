"""What `twinlog verify` asks of a flow's partition, and what it answers (flow_job.py compares)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from uuid import UUID

from twinlog.kafka.types import LogBounds, Offset, TopicPartition
from twinlog.mirror.offset_runs import Ends
from twinlog.verify.flow_targets import Neighbour
from twinlog.verify.job import Sides
from twinlog.verify.log_reader import PATIENCE_S
from twinlog.verify.map_check import MapClaim
from twinlog.verify.transformed_log import TransformSettings
from twinlog.verify.verdict import Tally

NO_BEGIN: Final = Ends(Offset(0), Offset(0))
NO_LACKS: Final = Sides("", "")


class FlowPair(NamedTuple):
    """A partition of the source, and a partition that a flow copies its records to."""

    flow: str
    source: TopicPartition
    remote: TopicPartition

    @property
    def sides(self) -> Sides[TopicPartition]:
        """Both partitions."""
        return Sides(self.source, self.remote)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowClaim:
    """What a flow has recorded about a partition, before the logs' bounds were read."""

    begin: Ends = NO_BEGIN
    """Where it began, on both sides."""
    end: int = 0
    """The source's offset up to which everything is copied."""
    map: MapClaim | None = None
    """The recorded map; None: there is none, or it cannot be read."""
    taken_over: bool = False
    """Whether another program has copied what is below `begin`."""
    lacks: Sides[str] = NO_LACKS
    """Why each side may lack records in front of the first pair; empty: it lacks none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowTask:
    """One Spark task: a partition of a flow.

    `cluster_ids` and `topic_ids` are as in `VerifyTask`. `bounds` have no error. Those of the
    remote log were read after the claim, and before those of the source.
    """

    source: Mapping[str, str] = field(repr=False)
    destination: Mapping[str, str] = field(repr=False)
    cluster_ids: Sides[str]
    topic_ids: Sides[UUID]
    pair: FlowPair
    bounds: Sides[LogBounds]
    claim: FlowClaim
    in_transactions: bool = False
    """Whether the flow writes in transactions: one that is open is of records to come."""
    transforms: TransformSettings | None = None
    is_absent: bool = False
    """Whether the remote partition does not exist: it is created with the first record. What it
    lacks may have been deleted."""
    neighbours: tuple[Neighbour, ...] = ()
    """Those whose records may go to the same topics."""
    finds_topics: bool = False
    """Whether this task compares the topics that are named by time, too."""
    only_topics: frozenset[str] = frozenset()
    """If there are any: only these topics, named by time, are compared."""
    has_source: bool = True
    """Whether the source has the partition; else no record is expected of it."""
    patience: float = PATIENCE_S

    @property
    def ends(self) -> Sides[int]:
        """The offsets up to which both logs are read."""
        return Sides(self.bounds.source.last_stable, self.bounds.destination.last_stable)


@dataclass(slots=True, kw_only=True)
class FlowCompared:
    """The result for a partition.

    The ranges of `source` and `recorded` are the source's offsets, those of `remote` the remote
    ones.
    """

    pair: FlowPair
    source: Tally = field(default_factory=Tally)
    remote: Tally = field(default_factory=Tally)
    recorded: Tally | None = None
    """Of the recorded map; None: there was none to compare."""
    behind: int = 0
    """The source's offsets that are not claimed to be copied."""
    bounds: Sides[LogBounds] | None = None
    """Of a topic that the task has found; None: those of the task."""
