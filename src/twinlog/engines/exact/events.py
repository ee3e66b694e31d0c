"""What happens to a mirror partition, and what its state machine wants done (machine.py).

The parts of the data plane report events. The machine answers each with actions in the order in
which they are to be carried out. A part carries out one kind of action, and knows no other part.
"""

import enum
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from twinlog.engines.exact.append import Plan, Position
from twinlog.engines.ports import Appended, LeaderReport, LogEnd
from twinlog.engines.settings import LaneSettings
from twinlog.kafka.types import EpochEnd, LeaderEpoch, LogBounds, Offset
from twinlog.mirror.plan import Piece

# ---- events ------------------------------------------------------------------------------------


class Look(NamedTuple):
    """Something may have changed: decide what is to be done next."""


class Trouble(NamedTuple):
    """Something failed that may work later; `code` is Kafka's error code, or 0."""

    what: str
    code: int = 0


class Failure(NamedTuple):
    """It cannot be mirrored.

    `transient`: a retry may help. `differs`: it shows that the destination's log is not the
    source's; that the source is refused, or is another one, shows nothing about the destination.
    """

    reason: str
    transient: bool = False
    differs: bool = False


class RetryDue(NamedTuple):
    """The backoff of a transient failure is over."""


class Gone(NamedTuple):
    """The lane does not own it any more."""


# The placer.


class Located(NamedTuple):
    """The destination's position was read, and nothing contradicts the source's log."""

    position: Position
    read_at: float
    """When the request was sent."""
    source: LogBounds
    takes_bulk: bool
    """Whether offsets below the source's log start offset are used up by empty records."""
    compared: bool
    """Whether the log's last data was found on the source."""
    epoch: LeaderEpoch
    """The source's leader epoch at the position; -1 if unknown."""


class Unsettled(NamedTuple):
    """The position did not count: a request is still in flight on the destination."""


class Ahead(NamedTuple):
    """The destination's log ends above the source's last stable offset."""

    log_end: Offset
    last_stable: Offset


class NotAhead(NamedTuple):
    """The source's last stable offset has reached the destination's log end offset."""


# The fetcher and the absence reader.


class SourceBounds(NamedTuple):
    """An answer of the source has its high watermark, last stable offset and log start offset.

    `at_least`: the source may reach further. A follower may lag behind, and what a leader was asked
    beside the fetches may be older than they are. Such offsets prove no end, and no log start.
    """

    high_watermark: Offset
    last_stable: Offset
    start: int
    at_least: bool


class Queued(NamedTuple):
    """The source's next pieces; `touch`: answers to fetches in flight are out of date."""

    pieces: list[Piece]
    touch: bool = False


class Read(NamedTuple):
    """An answer without error was taken.

    `sound`: it has whole batches, and none is corrupt. `explained`: it leaves no offset open, since
    it has pieces, or the log ends there. `behind`: the source has offsets that it leaves open.
    """

    sound: bool
    explained: bool
    behind: bool


class HeldBack(NamedTuple):
    """Why the source answers without records although it has offsets."""

    reason: str


class CorruptRead(NamedTuple):
    """The source's answer holds a corrupt batch, by the network or on its disk."""

    error: str


class Diverged(NamedTuple):
    """The source has lost the end of its log since it was read."""

    source: EpochEnd


class FetchRefused(NamedTuple):
    """The source's leader answered a fetch with this error code."""

    code: int


# The sender.


class BatchAnswered(NamedTuple):
    """The destination answered the oldest batch in flight."""

    answer: Appended


class BatchLost(NamedTuple):
    """The oldest batch in flight got no answer: it may land until the lease has ended."""

    what: str


class BatchNotSent(NamedTuple):
    """The oldest batch in flight was never sent."""

    what: str


# The gap filler.


class RoundBegan(NamedTuple):
    """Fillers for its gap are sent: its position must not be read meanwhile."""


class RoundEnded(NamedTuple):
    """No filler is in flight any more."""

    end: LogEnd | None
    """The log end offset after the round; None: the round has not reached it."""


class MarkersLost(NamedTuple):
    """A marker request got no answer: it may land until the lease has ended."""

    why: str


class DataFenced(NamedTuple):
    """Data of earlier epochs is fenced."""


# The confirmations.


class Confirmed(NamedTuple):
    """The lane owned the partition after this had been planned."""

    plan: Plan


# The leaders.


class SourceLed(NamedTuple):
    """The source's answer about the leader; None: it does not name the partition."""

    leader: LeaderReport | None


class DestinationLed(NamedTuple):
    """The destination's answer about the leader; None: it does not name the partition."""

    leader: LeaderReport | None


class LeadersDoubted(NamedTuple):
    """A leader is unknown, or may have moved."""


Event: TypeAlias = (
    Look
    | Trouble
    | Failure
    | RetryDue
    | Gone
    | Located
    | Unsettled
    | Ahead
    | NotAhead
    | SourceBounds
    | Queued
    | Read
    | HeldBack
    | CorruptRead
    | Diverged
    | FetchRefused
    | BatchAnswered
    | BatchLost
    | BatchNotSent
    | RoundBegan
    | RoundEnded
    | MarkersLost
    | DataFenced
    | Confirmed
    | SourceLed
    | DestinationLed
    | LeadersDoubted
)

# ---- actions -----------------------------------------------------------------------------------


class Do(enum.Enum):
    """An action without arguments."""

    __hash__ = object.__hash__  # an Enum's own is Python code, and each action is looked up

    FETCH = "fetch it from the end of its plan"
    LEAVE = "do not fetch it"
    LEADER = "fetch it from the leader, not from the replica that the leader has named"
    TOUCH = "drop answers to fetches that are in flight"
    SUSPECT = "read it alone, if it stays without records"
    CLEAR = "do not read it alone"
    LOCATE = "read its position"
    SEND = "send its next batch, when the broker's turn comes"
    UNSEND = "do not send its next batch to the former leader"
    PUMP = "send the ready batches of its broker"
    CONFIRM = "confirm that the lane owns it"
    FILL = "fill its gap"
    TRIM = "let the destination's log start offset follow"
    REFRESH = "refresh the leaders of its topic"
    REPORT = "its stage or reason has changed"
    FORGET = "drop it from everything that waits"
    LOOK_SOON = "look again in the loop's next turn"


class At(NamedTuple):
    """An event at a time of the loop's clock."""

    when: float
    event: Event


class After(NamedTuple):
    """An event after some seconds."""

    delay: float
    event: Event


class Note(NamedTuple):
    """A log message; `attempt` is the number of the failure that it is about, or 0."""

    level: int
    text: str
    attempt: int = 0


Action: TypeAlias = Do | At | After | Note


class Moment(NamedTuple):
    """What a step may depend on besides the partition and the event."""

    now: float
    settings: LaneSettings
    backoff: Callable[[int], float]
    """The pause in seconds after a number of failures, with jitter."""


LOOK: Final = Look()
