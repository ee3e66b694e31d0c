"""The result of `twinlog verify`: counts by class, ranges, and the verdict."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from twinlog.kafka.types import TopicPartition
from twinlog.verify.job import RangeDifference
from twinlog.verify.verdict import REASONS

SAME: Final = "the same"
DIFFERS: Final = "differs"
NOT_SEEN: Final = "not seen"


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Offsets by class; `length` is their sum."""

    compared: int = 0
    differs: int = 0
    absent: Mapping[str, int] = field(default_factory=dict)
    not_seen: int = 0
    behind: int = 0

    @property
    def length(self) -> int:
        """The sum of all classes."""
        return (
            self.compared + self.differs + sum(self.absent.values()) + self.not_seen + self.behind
        )

    @property
    def absent_by_reason(self) -> Mapping[str, int]:
        """`absent` with all reasons, in their order."""
        return {reason: self.absent.get(reason, 0) for reason in REASONS}

    def as_json(self) -> Mapping[str, object]:
        """The length, and the classes."""
        return {
            "length": self.length,
            "compared": self.compared,
            "differs": self.differs,
            "absent": self.absent_by_reason,
            "not_seen": self.not_seen,
            "behind": self.behind,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteReport:
    """What was found of a flow's partition besides the classes of the source's offsets."""

    flow: str
    partition: TopicPartition
    """The remote one."""
    counts: Counts
    """Of the remote log's offsets."""
    recorded_map: Counts | None
    """Records that the recorded map has: at the right offset (compared), at another one or wrongly
    not (differs), not known (not seen). None: there was none to compare."""

    def as_json(self) -> Mapping[str, object]:
        """The partition with its counts, and those of the map."""
        recorded = self.recorded_map
        return {
            "flow": self.flow,
            **self.partition._asdict(),
            **self.counts.as_json(),
            "recorded_map": None
            if recorded is None
            else {
                "agrees": recorded.compared,
                "differs": recorded.differs,
                "not_seen": recorded.not_seen,
            },
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class LogReport:
    """The comparison of a partition's two logs."""

    partition: TopicPartition
    counts: Counts
    differences: tuple[RangeDifference, ...]
    unseen: tuple[RangeDifference, ...]
    remote: RemoteReport | None = None
    """Of a flow's partition; then `counts` are of the source's offsets."""

    def as_json(self) -> Mapping[str, object]:
        """The partition with its counts; the ranges of all logs are in the `Verification`."""
        remote = {} if self.remote is None else {"remote": self.remote}
        return {**self.partition._asdict(), **self.counts.as_json(), **remote}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The verdict."""

    logs: tuple[LogReport, ...]
    unreadable: tuple[str, ...] = ()
    """Configuration records that cannot be read: what they concern was not compared."""
    unverified: Mapping[str, str] = field(default_factory=dict)
    """Why nothing of a mirror was compared, by its name."""

    @property
    def counts(self) -> Counts:
        """The sums over all logs."""
        return sum_of(report.counts for report in self.logs)

    @property
    def differences(self) -> tuple[RangeDifference, ...]:
        """All ranges that differ."""
        return tuple(difference for report in self.logs for difference in report.differences)

    @property
    def unseen(self) -> tuple[RangeDifference, ...]:
        """All ranges that were not seen; an empty range if a log's bounds were not."""
        return tuple(difference for report in self.logs for difference in report.unseen)

    @property
    def verdict(self) -> str:
        """`DIFFERS`; else `NOT_SEEN` if a single offset or record was not seen; else `SAME`."""
        if self.differences or self.counts.differs:
            return DIFFERS
        missed = self.unseen or self.counts.not_seen or self.unreadable or self.unverified
        return NOT_SEEN if missed else SAME

    @property
    def equal(self) -> bool:
        """Whether all that the destination has reached was seen, and nothing differs."""
        return self.verdict == SAME

    def as_json(self) -> Mapping[str, object]:
        """The verdict, the sums, the ranges, and the counts of each log."""
        counts = self.counts
        return {
            "equal": self.equal,
            "verdict": self.verdict,
            "partitions": len(self.logs),
            "records": counts.compared,
            **counts.as_json(),
            "differences": self.differences,
            "unseen": self.unseen,
            "unreadable": self.unreadable,
            "unverified": dict(self.unverified),
            "logs": self.logs,
        }


def sum_of(counts: Iterable[Counts]) -> Counts:
    """The sums of each class."""
    every = list(counts)
    absent: Counter[str] = Counter()
    for part in every:
        absent.update(part.absent)
    return Counts(
        compared=sum(part.compared for part in every),
        differs=sum(part.differs for part in every),
        absent=dict(absent),
        not_seen=sum(part.not_seen for part in every),
        behind=sum(part.behind for part in every),
    )
