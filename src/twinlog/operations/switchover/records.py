"""A switchover's steps, what it is told and asks, and what it reports: progress, errors, result.

Each report serialises itself as `twinlog switchover --json` prints it. The steps are carried out by
switchover.py; its module has their table.
"""

import enum
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from twinlog.kafka.acls import Acl
from twinlog.kafka.errors import TwinlogError
from twinlog.kafka.types import TopicPartition

AS_IT_WAS: Final = (
    "everything is as before: the mirror continues, producers may write to the source again"
)
NOTHING_CHANGED: Final = "nothing was changed"
STILL_DENIED: Final = (
    "the mirror continues; producers may still be denied WRITE on the source: remove the denials "
    "with twinlog switchover --allow-producers"
)
FAILED_OVER: Final = (
    "topics were failed over: see kafka-mirrors --describe; while producers are denied WRITE on "
    "the source, it takes no records that are not mirrored"
)


class Step(enum.Enum):
    """A step; see the module. The value describes the action to people."""

    READINESS = "checking whether the mirror is ready"
    PRODUCERS = "producers must stop writing to the source"
    SILENCE = "waiting until nothing is written to the source"
    LAG = "waiting until everything is mirrored"
    GROUPS = "waiting until the groups' offsets are final and copied"
    FAILOVER = "failing over"

    @property
    def can_go_back(self) -> bool:
        """Whether everything can be undone."""
        return self is not Step.FAILOVER


class Progress(NamedTuple):
    """A step that has begun, goes on, or is done; `text` describes it."""

    step: Step
    done: bool
    text: str
    denied: bool = False
    """Whether producers may be denied WRITE on the source by now."""

    def as_json(self) -> Mapping[str, object]:
        """The step with its progress, and whether all can be undone."""
        return {
            "step": self.step,
            "done": self.done,
            "text": self.text,
            "can_go_back": self.step.can_go_back,
        }


Tell = Callable[[Progress], None]
Ask = Callable[[Sequence[str], str], Awaitable[bool]]
"""Asks an operator whether all producers of these topics are stopped; the second argument is why
they cannot be denied WRITE."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Producers:
    """What to do about the source's producers."""

    stopped: bool = False
    """The operator confirms that the producers are stopped that cannot be denied WRITE."""
    deny: bool = True
    """The others are denied it. If false, ACLs are left alone, and no producer is denied."""
    source_config: Mapping[str, str] | None = field(default=None, repr=False)
    """Properties of a connection to the source that may alter its ACLs; None: the mirror's."""
    ask: Ask | None = field(default=None, repr=False)
    """Called in the middle of the switchover, which waits for the answer and goes on; None: it ends
    with ProducersNotStopped."""


class SwitchoverFailed(TwinlogError):
    """A switchover has ended at a step. `gone_back`: everything is as it was."""

    def __init__(self, step: Step, message: str, *, gone_back: bool) -> None:
        if not gone_back:
            hint = "the failover of the topics continues: see kafka-mirrors --describe"
        else:
            hint = NOTHING_CHANGED if step is Step.READINESS else AS_IT_WAS
        super().__init__(f"{step.name}: {message}", hint=hint)
        self.step = step
        self.why = message
        self.gone_back = gone_back

    def as_json(self) -> Mapping[str, object]:
        """Whether all is as it was, the step, and the message."""
        return {"result": _end(self.gone_back), "step": self.step, "error": self.message}


class ProducersNotStopped(SwitchoverFailed):
    """Some producers may write and cannot be denied it, and no operator says they are stopped."""

    def __init__(self, topics: Sequence[str], why: str) -> None:
        super().__init__(Step.PRODUCERS, why, gone_back=True)
        self.topics = topics


class DenialsStay(SwitchoverFailed):
    """A switchover has ended before its FAILOVER, and its denials were not removed."""

    def __init__(self, step: Step, message: str, hint: str = STILL_DENIED) -> None:
        super().__init__(step, message, gone_back=False)
        self.hint = hint


class SwitchoverInterrupted(NamedTuple):
    """What is known of a switchover that was interrupted: its last report."""

    can_go_back: bool = True
    """Whether its failover had not begun."""
    denied: bool = False
    """Whether producers may still be denied WRITE on the source."""

    @property
    def gone_back(self) -> bool:
        """Whether everything is as it was."""
        return self.can_go_back and not self.denied

    def __str__(self) -> str:
        if not self.can_go_back:
            return "the topics may have been failed over: see kafka-mirrors --describe"
        return STILL_DENIED if self.denied else AS_IT_WAS

    def as_json(self) -> Mapping[str, object]:
        """Whether all is as it was, and the text."""
        return {"result": _end(self.gone_back), "error": str(self)}


def _end(gone_back: bool) -> str:
    return "GONE_BACK" if gone_back else "UNFINISHED"


class LeftBehind(NamedTuple):
    """Offsets `[start, end)` that were written to the source too late to be mirrored."""

    partition: TopicPartition
    start: int
    end: int

    def as_json(self) -> Mapping[str, object]:
        """The offsets, with topic and partition."""
        return {**self.partition._asdict(), "start": self.start, "end": self.end}


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchedOver:
    """The result of a switchover."""

    mirror: str
    topics: tuple[str, ...]
    left_behind: tuple[LeftBehind, ...] | None
    """What was written to the source meanwhile; None: the source could not be read any more."""
    denied: frozenset[Acl] = frozenset()
    """The denials that stay on the source."""
    not_denied: str = ""
    """Why it is unknown whether these denials still exist; empty: they do."""
    groups_behind: str = ""
    """Groups whose offsets are not as on the source, or why that is unknown; empty: none."""

    @property
    def finished(self) -> bool:
        """Whether nothing is left for an operator to check."""
        return self.left_behind == () and not self.not_denied and not self.groups_behind

    def as_json(self) -> Mapping[str, object]:
        """The result, and what an operator has to check."""
        return {
            "result": "SWITCHED_OVER" if self.finished else "UNFINISHED",
            "mirror": self.mirror,
            "topics": self.topics,
            "left_behind": self.left_behind,
            "denied": _texts(self.denied),
            "not_denied": self.not_denied,
            "groups_behind": self.groups_behind,
        }


class Allowed(NamedTuple):
    """The result of removing a switchover's denials."""

    taken_back: frozenset[Acl] = frozenset()
    left: frozenset[Acl] = frozenset()
    """Left to the source's own mirror, which mirrors the topic from the destination again and has
    taken them over (`mirrors.add_topics`): its failover removes them. The destination forgets them.
    """

    def as_json(self) -> Mapping[str, object]:
        """Both as texts."""
        return {"allowed": _texts(self.taken_back), "left": _texts(self.left)}


class ForgottenDenials(NamedTuple):
    """Denials that were forgotten without removing them."""

    denials: frozenset[Acl]

    def as_json(self) -> Mapping[str, object]:
        """As texts."""
        return {"forgotten": _texts(self.denials)}


def _texts(acls: Iterable[Acl]) -> list[str]:
    return sorted(map(str, acls))
