"""The epochs that a written marker carries, so that a late one is refused.

A control record that WriteTxnMarkers writes lands wherever the log ends when the request arrives,
and a request may arrive late: the client has timed out, the lane is dead, the gap has been filled
again. So of all requests for one offset only one may land. A partition compares two numbers of a
marker with those of the producer's last marker in it, and refuses the marker if *either* is lower
(tests/contract/test_transactions.py; 3.9.1 and 4.3.1):

* the producer epoch (47 INVALID_PRODUCER_EPOCH), which InitProducerId gives to the state
  partition's marker id: each owner has a higher one, and takes the next after a lost answer;
* the coordinator epoch (52 TRANSACTION_COORDINATOR_FENCED), which only the mirror uses for this id.

Two markers exclude each other if one has the higher producer epoch and the other one the higher
coordinator epoch: the one that lands first makes the partition refuse the other. So a later attempt
at the same offset goes *up* in the first and *down* in the second:

    coordinator
    epoch     ▲
              │   first attempt (e, c + STEP)      The last marker is (e, c), which the
      c + STEP│ ○                                  partition itself reports (DescribeProducers).
              │   ○ second, in epoch e + 1         None of these is below it, and none is below
              │       ○ third, in epoch e + 3      another one in both: one of them lands.
            c │ ●
              └─────────────────────────► producer epoch

An attempt's epochs follow from the last marker and its own producer epoch alone. So owners that
know nothing of each other's attempts still choose epochs that exclude each other. After `STEP`
epochs the attempts cannot go down any more, and only newer ones exclude older ones.

`settled`: the last marker is of the own epoch. Then all attempts of lower epochs are refused, and
all attempts of the own epoch were answered, since a lost answer leads to a newer epoch.

Only then may a request write several markers to a partition. All but the last one carry the
coordinator epoch `c`, the last one `c + STEP`: a later attempt that finds any number of them
excludes the last one by writing one. So at most as many land as there are offsets.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

STEP: Final = 16
"""The number of attempts at one offset that exclude each other."""
LAST_COORDINATOR_EPOCH: Final = 2**31 - 1
LAST_PRODUCER_EPOCH: Final = 2**15 - 2
"""A coordinator answers the next InitProducerId with another producer id, in epoch 0."""


class LastMarker(NamedTuple):
    """The epochs of a producer's last marker in a partition."""

    epoch: int
    coordinator_epoch: int


NO_MARKER: Final = LastMarker(-1, 0)
"""Stands for no marker of the producer; any marker is above it."""


def settled(marker: LastMarker, epoch: int) -> bool:
    """Whether no attempt of an owner before `epoch` can land, and none of its own is unanswered."""
    return marker.epoch == epoch


def disputed(marker: LastMarker, epoch: int) -> int:
    """The coordinator epoch of a marker that may compete with other attempts.

    Args:
        marker: the last marker in the partition, of a lower producer epoch.
        epoch: the producer epoch of this attempt.
    """
    return min(
        marker.coordinator_epoch + max(STEP - (epoch - marker.epoch), 0), LAST_COORDINATOR_EPOCH
    )


def common(coordinator_epochs: Iterable[int]) -> tuple[int, int]:
    """The coordinator epochs for settled partitions: of all markers but the last, and of the last.

    All of them get one pair, so that a request has one entry for many partitions.

    Args:
        coordinator_epochs: of the last marker in each of the partitions.
    """
    before = max(coordinator_epochs, default=0)
    return before, min(before + STEP, LAST_COORDINATOR_EPOCH)


def used_up(marker: LastMarker) -> bool:
    """Whether the coordinator epochs are used up, so that another producer id is needed."""
    return marker.coordinator_epoch > LAST_COORDINATOR_EPOCH - 2 * STEP
