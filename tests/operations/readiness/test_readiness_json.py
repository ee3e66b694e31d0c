"""`twinlog readiness --json`: a result serialises itself."""

import json

from twinlog.kafka.types import TopicPartition
from twinlog.mirror.states import State
from twinlog.operations.readiness.begins_later import Below
from twinlog.operations.readiness.facts import (
    AclFacts,
    GroupFacts,
    PartitionFacts,
    Skip,
    SourceLog,
    Standing,
    TopicFacts,
)
from twinlog.operations.readiness.reasons import Finding, Reason, Verdict
from twinlog.operations.readiness.verdict import Readiness, TopicReadiness
from twinlog.operations.serialise import json_data

PLACE = TopicPartition("t", 0)
SEEN = PartitionFacts(
    partition=0,
    state=State.MIRRORING,
    reason="not shown",
    source=SourceLog(0, 10, 8, 12),
    destination_end=12,
    lag_ms=40,
    held_by=("producer id 3",),
    reported_end=6,
    lacks=Below(1, 3),
)
GROUP = GroupFacts(
    group="g",
    kind="share",
    due=1,
    behind=2,
    missing=3,
    ahead=4,
    skips=(Skip(PLACE, 3, 5, follows=True),),
    left_out=(Skip(PLACE, 1, 2, follows=False),),
    deleted=(Standing(PLACE, 9),),
    unread=5,
    unread_from=(Standing(PLACE, 6),),
)
FACTS = TopicFacts(
    topic="t",
    partitions=(SEEN, PartitionFacts(partition=1, state=State.PAUSED)),
    groups=(GROUP,),
    configurations=("retention.ms",),
)
RESULT = Readiness(
    mirror="m",
    verdict=Verdict.NOT_READY,
    findings=(Finding(Reason.NO_NODE, "none runs"),),
    topics=(
        TopicReadiness(
            topic="t",
            verdict=Verdict.WARNING,
            lag=7,
            undecided=2,
            lag_ms=None,
            findings=(Finding(Reason.LAG, "7 offsets"),),
            facts=FACTS,
        ),
    ),
    acls=AclFacts(to_make=("a",), withheld=("b",)),
    not_mirrored={"z": "late"},
    age_ms=120,
    source_age_ms=None,
)
EXPECTED = {
    "mirror": "m",
    "readiness": "NOT_READY",
    "lag": 7,
    "lag_is_all": True,
    "age_ms": 120,
    "source_age_ms": None,
    "status_age_ms": None,
    "not_mirrored": {"z": "late"},
    "findings": [{"reason": "NO_NODE", "weight": "NOT_READY", "text": "none runs"}],
    "acls": {"to_make": ["a"], "to_remove": [], "denying": [], "missed": [], "withheld": ["b"]},
    "topics": [
        {
            "topic": "t",
            "readiness": "WARNING",
            "lag": 7,
            "undecided": 2,
            "lag_ms": None,
            "findings": [{"reason": "LAG", "weight": "WARNING", "text": "7 offsets"}],
            "partitions": [
                {
                    "partition": 0,
                    "state": "MIRRORING",
                    "source_start": 0,
                    "source_offset": 10,
                    "source_last_stable_offset": 8,
                    "source_log_end": 12,
                    "destination_offset": 12,
                    "reported_end": 6,
                    "lacks": [1, 3],
                    "held_by": ["producer id 3"],
                },
                {
                    "partition": 1,
                    "state": "PAUSED",
                    "source_start": None,
                    "source_offset": None,
                    "source_last_stable_offset": None,
                    "source_log_end": None,
                    "destination_offset": None,
                    "reported_end": None,
                    "lacks": None,
                    "held_by": [],
                },
            ],
            "groups": [
                {
                    "group": "g",
                    "kind": "share",
                    "followed": True,
                    "idle_on_source": True,
                    "idle_on_destination": True,
                    "due": 1,
                    "behind": 2,
                    "missing": 3,
                    "ahead": 4,
                    "skips": [{"partition": 0, "source": 3, "destination": 5, "follows": True}],
                    "left_out": [{"partition": 0, "source": 1, "destination": 2, "follows": False}],
                    "deleted": [{"partition": 0, "destination": 9}],
                    "unread": 5,
                }
            ],
            "configurations": ["retention.ms"],
        }
    ],
}


def test_the_json_form_is_stable() -> None:
    """Goal: names, order and form of the JSON stay as they are."""
    assert json.dumps(json_data(RESULT)) == json.dumps(EXPECTED)
