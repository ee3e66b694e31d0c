"""What `twinlog flows translate` prints; no cluster."""

import json
from dataclasses import replace

import pytest

from twinlog.interfaces.cli.translated_offsets import print_translated
from twinlog.kafka.types import TopicPartition
from twinlog.mirror.recorded_map import MapAnswer
from twinlog.operations.flow_results import (
    CheckpointPlace,
    Direction,
    GroupCheckpoints,
    TranslatedOffset,
    TranslatedOffsets,
)

PLACE = CheckpointPlace(source_offset=4, target_offset=54, time_ms=1_700_000_000_000, age_ms=41_600)
OFFSET = TranslatedOffset(
    source=TopicPartition("orders", 0),
    source_offset=4,
    target=TopicPartition("A.orders", 0),
    target_offset=54,
    answer=MapAnswer.RECORD,
    checkpoint=PLACE,
)
FOUND = TranslatedOffsets(
    flow="A-to-B",
    direction=Direction.TO_TARGET,
    offsets=(OFFSET, replace(OFFSET, checkpoint=replace(PLACE, age_ms=None))),
    group="g",
    checkpoints=GroupCheckpoints(
        topic="A.checkpoints.internal",
        without_checkpoint=(TopicPartition("orders", 1),),
        unreadable=("the value of a checkpoint is 7 bytes long",),
    ),
)
WARNINGS = [
    (
        "these are the offsets of group g in the checkpoints of A.checkpoints.internal; what it "
        "has committed since is not known"
    ),
    (
        "Warning: no checkpoint of the group in orders-1: it is not known whether it has committed "
        "an offset there"
    ),
    "Warning: checkpoints of the group cannot be read: the value of a checkpoint is 7 bytes long",
]


def test_the_topic_and_the_ages_of_checkpoints_are_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_translated(FOUND, as_json=False)
    shown = capsys.readouterr()
    assert shown.err.splitlines() == WARNINGS
    assert [" ".join(line.split()) for line in shown.out.splitlines()] == [
        "SOURCE SOURCE-OFFSET TARGET TARGET-OFFSET CHECKPOINT-AGE ANSWER",
        "orders-0 4 A.orders-0 54 42 s record",
        "orders-0 4 A.orders-0 54 dated ahead record",
    ]


def test_json_has_the_warnings_on_standard_error_only(capsys: pytest.CaptureFixture[str]) -> None:
    print_translated(FOUND, as_json=True)
    shown = capsys.readouterr()
    assert shown.err.splitlines() == WARNINGS
    assert json.loads(shown.out)["checkpoints"]["topic"] == "A.checkpoints.internal"


def test_a_stale_offset_is_shown_and_not_certain(capsys: pytest.CaptureFixture[str]) -> None:
    stale = replace(FOUND, offsets=(replace(OFFSET, answer=MapAnswer.STALE, text="old"),))
    print_translated(stale, as_json=False)
    assert capsys.readouterr().out.split()[-6:] == ["A.orders-0", "54", "42", "s", "stale:", "old"]
    print_translated(stale, as_json=True)
    shown = json.loads(capsys.readouterr().out)
    (one,) = shown["offsets"]
    assert (one["target"]["offset"], one["known"], shown["all_known"]) == (54, False, False)


def test_offsets_of_the_source_have_no_age(capsys: pytest.CaptureFixture[str]) -> None:
    print_translated(replace(FOUND, checkpoints=None), as_json=False)
    shown = capsys.readouterr()
    assert shown.err == ""
    assert shown.out.split()[:5] == ["SOURCE", "SOURCE-OFFSET", "TARGET", "TARGET-OFFSET", "ANSWER"]
