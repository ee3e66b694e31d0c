"""Records of a flow that are lost, as they are counted and reported.

The target loses copies by an unclean election, a lost disk, or if a topic is recreated. How many is
known if the log shows where it ends, or up to where the copies still are. Otherwise only the loss
itself is counted.

The source loses records before they are copied by retention, `kafka-delete-records`, or if a topic
is recreated.
"""

from typing import Final, NamedTuple

from twinlog.kafka.types import Offset, TopicPartition


class RecordLoss(NamedTuple):
    """One loss: records of a log's offsets `[start, end)`."""

    log: TopicPartition
    """On the side that has lost them."""
    start: Offset | None
    """Where the loss begins; None: not known."""
    end: Offset | None
    """Where it ends; None: not known, nor whether there was a record at `start`."""
    at_least: bool = False
    """Whether more may be lost. Below `start` on the target: the log ends there, and others may
    have written in place of copies, too. Behind `end` on the source, as far as it was known."""

    @property
    def offsets(self) -> int | None:
        """How many offsets are lost (see `at_least`); None: not known."""
        if self.start is None or self.end is None:
            return None
        return max(self.end - self.start, 0)

    @property
    def text(self) -> str:
        """The log, and the range as far as it is known."""
        if self.start is None and self.end is None:
            return f"{self.log}, an unknown number of offsets"
        if self.start is None:
            return f"{self.log}, offsets up to {self.end}, from an unknown one on"
        if self.end is None:
            return f"{self.log}, offsets from {self.start} on, if there were any"
        return f"{self.log}, offsets [{self.start}, {self.end}){' at least' * self.at_least}"


class RecordLosses(NamedTuple):
    """The losses of a partition on one side, since its owner has it."""

    times: int = 0
    offsets: int = 0
    """Of those losses whose number is known, in full or in part (`RecordLoss.at_least`)."""
    last: str | None = None
    """The last one: `RecordLoss.text`."""

    def with_loss(self, loss: RecordLoss) -> "RecordLosses":
        """These, and one more."""
        return RecordLosses(self.times + 1, self.offsets + (loss.offsets or 0), loss.text)


NO_LOSSES: Final = RecordLosses()
