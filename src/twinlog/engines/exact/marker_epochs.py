"""Which epochs a written marker carries, so that a late one lands nowhere.

A control record that WriteTxnMarkers writes lands wherever the log ends when the request arrives,
and a request may arrive late: the client has timed out, the lane is dead, the gap has been filled
again. So of all requests that were ever made for one offset, only one may land. A partition
compares two numbers of a marker with those of the producer's last marker there, and refuses it if
*either* is lower (tests/contract/test_transactions.py; 3.9.1 and 4.3.1):

* the producer epoch (47 INVALID_PRODUCER_EPOCH), here that of InitProducerId on the state
  partition's marker id: each owner has a higher one, and takes the next after a lost answer;
* the coordinator epoch (52 TRANSACTION_COORDINATOR_FENCED), which nobody else uses for this id.

Two markers of which one has the higher producer epoch and the other one the higher coordinator
epoch exclude each other: whichever lands first, the other one is refused. So a later attempt at
the same offset goes *up* in the first and *down* in the second:

    coordinator
    epoch     ▲
              │   first attempt (e, c + STEP)      The last marker there is (e, c), which the
      c + STEP│ ○                                  partition itself reports (DescribeProducers).
              │   ○ second, in epoch e + 1         None of these is below it, and none is below
              │       ○ third, in epoch e + 3      another one in both: one of them lands.
            c │ ●
              └─────────────────────────► producer epoch

What an attempt carries follows from the last marker there and its own producer epoch alone, so
that owners that know nothing of each other's attempts choose well. After `STEP` epochs the attempts
cannot go down any more, and only newer ones exclude older ones.

`settled`: the last marker is of our own epoch. Then all attempts of lower epochs are refused, and
all of our own were answered, or the epoch would be a newer one. Only then may a request write
several markers to a partition. All but the last one carry the coordinator epoch `c`, the last one
`c + STEP`: whoever comes later, and finds any number of them, excludes the last one by writing one.
So at most as many land as there are offsets.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

STEP: Final = 16
"""Attempts at one offset that exclude each other."""
LAST_COORDINATOR_EPOCH: Final = 2**31 - 1


class LastMarker(NamedTuple):
    """The epochs of a producer's last marker in a partition."""

    epoch: int
    coordinator_epoch: int


NO_MARKER: Final = LastMarker(-1, 0)
"""Where the producer has none; any marker is above it."""


def settled(last: LastMarker, epoch: int) -> bool:
    """Whether no attempt of an owner before `epoch` can land, and none of its own is unanswered."""
    return last.epoch == epoch


def disputed(last: LastMarker, epoch: int) -> int:
    """The coordinator epoch of a marker that other attempts may compete with.

    Args:
        last: the last marker in the partition, of a lower producer epoch.
        epoch: the producer epoch of this attempt.
    """
    return min(last.coordinator_epoch + max(STEP - (epoch - last.epoch), 0), LAST_COORDINATOR_EPOCH)


def common(lasts: Iterable[LastMarker]) -> tuple[int, int]:
    """The coordinator epochs for partitions that are settled: of all markers but the last, of it.

    One pair for all of them, so that a request has one entry for many partitions.
    """
    before = max((last.coordinator_epoch for last in lasts), default=0)
    return before, min(before + STEP, LAST_COORDINATOR_EPOCH)


def used_up(last: LastMarker) -> bool:
    """Whether the coordinator epochs end here, and another producer id is needed."""
    return last.coordinator_epoch > LAST_COORDINATOR_EPOCH - 2 * STEP
