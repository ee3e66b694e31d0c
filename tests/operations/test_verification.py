"""`twinlog verify --json`: a result serialises itself."""

import json
from collections import Counter
from dataclasses import replace

from twinlog.kafka.types import TopicPartition
from twinlog.operations.serialise import json_data
from twinlog.operations.verification import verification
from twinlog.verify.job import Compared, Extent, Stretch
from twinlog.verify.verdict import DifferenceKind, Tally

PLACE = TopicPartition("t", 1)


def test_the_json_form_is_stable() -> None:
    """Goal: names, order and form of the JSON stay as they are."""
    tally = Tally(compared=5, absent=Counter(marker=2))
    tally.differ(3, 4, DifferenceKind.CONTENT)
    tally.see_not(8, 9, "no answer")
    extent = Extent(partition=PLACE, start=0, end=9, length=11, behind=2, tally=Tally())
    compared = Compared(Stretch(PLACE, 0, 9, compacted=False), tally)
    unverified = {"m": "no source"}
    found = replace(
        verification([extent], [compared]), unreadable=("record",), unverified=unverified
    )
    counts = {
        "length": 11,
        "compared": 5,
        "differs": 1,
        "absent": {
            "marker": 2,
            "aborted": 0,
            "compacted": 0,
            "log_start": 0,
            "filtered": 0,
            "routed": 0,
            "other_topics": 0,
        },
        "not_seen": 1,
        "behind": 2,
    }
    place = {"topic": "t", "partition": 1}
    assert json.dumps(json_data(found)) == json.dumps(
        {
            "equal": False,
            "verdict": "differs",
            "partitions": 1,
            "records": 5,
            **counts,
            "differences": [{**place, "start": 3, "end": 4, "reason": DifferenceKind.CONTENT}],
            "unseen": [{**place, "start": 8, "end": 9, "reason": "no answer"}],
            "unreadable": ["record"],
            "unverified": {"m": "no source"},
            "logs": [{**place, **counts}],
        }
    )
