"""Compacted topics that were behind for longer than their source keeps tombstones."""

from dataclasses import replace
from uuid import UUID

import pytest

from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.states import State
from twinlog.mirror.topic_configs import SourceConfig
from twinlog.store.config_records import Followed, MirrorTopic
from twinlog.store.status_records import PartitionStatus
from twinlog.sync.compaction import (
    Marks,
    behind_ms,
    followed,
    is_to_be_stored,
    retention_of,
    store_period_ms,
)

DAY = 24 * 3600 * 1000
TOPIC = MirrorTopic(
    mirror="m",
    topic="t",
    topic_id=UUID(int=1),
    partitions=2,
    destination_topic_id=UUID(int=7),
)
KNOWN = Followed(
    mirror="m",
    topic="t",
    destination_topic_id=UUID(int=7),
    caught_up_ms=1_000_000,
    retention_ms=DAY,
    behind_ms=0,
)


def row(partition: int, time_ms: int | None, stable: int, destination: int) -> PartitionStatus:
    return PartitionStatus(
        partition=MirrorPartition("m", "t", partition),
        state=State.MIRRORING,
        source_end=stable,
        source_last_stable=stable,
        destination_end=destination,
        source_time_ms=time_ms,
    )


def test_marks_are_passed() -> None:
    """A mirror that never has everything passes marks, too; the slowest partition counts."""
    marks = Marks()
    assert marks.caught_up_ms(TOPIC) is None
    marks.observe([row(0, 100, 50, 50), row(1, 100, 50, 40)])
    assert marks.caught_up_ms(TOPIC) is None, "nothing is known of the second partition"
    marks.observe([row(0, 200, 60, 60), row(1, 200, 90, 45)])
    assert marks.caught_up_ms(TOPIC) is None
    marks.observe([row(0, 300, 60, 60), row(1, 300, 120, 51)])
    assert marks.caught_up_ms(TOPIC) == 100, "what was there at 100 is mirrored"
    marks.observe([row(0, 400, 60, 60), row(1, 400, 140, 119)])
    assert marks.caught_up_ms(TOPIC) == 100
    marks.observe([row(0, 500, 60, 60), row(1, 500, 140, 120)])
    assert marks.caught_up_ms(TOPIC) == 300
    marks.observe([row(0, 600, 60, 60), row(1, 600, 140, 140)])
    assert marks.caught_up_ms(TOPIC) == 600


@pytest.mark.parametrize("bad", [row(0, None, 9, 9), row(0, 1, -1, 9), row(0, 1, 9, -1)])
def test_what_is_not_known_marks_nothing(bad: PartitionStatus) -> None:
    marks = Marks()
    marks.observe([bad])
    assert marks.caught_up_ms(replace(TOPIC, partitions=1)) is None


@pytest.mark.parametrize(
    ("caught_up", "now", "behind"),
    [
        (None, 1_000_000 + DAY, 0),
        (None, 1_000_000 + DAY + 1, DAY + 1),  # paused, FAILED, or without a lane
        (1_000_000 + DAY, 1_000_000 + 2 * DAY, 0),
        (1_000_000 + DAY + 1, 1_000_000 + DAY + 5, DAY + 1),  # it has caught up since
        (999_000, 1_000_005, 0),
    ],
)
def test_behind_for_longer_than_tombstones_are_kept(
    caught_up: int | None, now: int, behind: int
) -> None:
    """It is reported while it is behind, and for ever after: missed tombstones do not come back."""
    found = followed(TOPIC, KNOWN, caught_up, DAY, now)
    assert found.behind_ms == behind
    assert found.caught_up_ms == max(1_000_000, caught_up or 0)
    later = followed(TOPIC, found, found.caught_up_ms + 5, DAY, now + 10)
    assert later.behind_ms >= behind
    assert behind_ms(later, now + 10) == later.behind_ms


def test_the_first_check_is_the_baseline() -> None:
    """A recreated destination topic (a rebuild) starts again without a baseline."""
    first = followed(TOPIC, None, None, DAY, 5_000_000)
    assert (first.caught_up_ms, first.behind_ms) == (5_000_000, 0)
    missed = replace(KNOWN, behind_ms=2 * DAY)
    rebuilt = replace(TOPIC, destination_topic_id=UUID(int=8))
    assert followed(rebuilt, missed, None, DAY, 5_000_000).behind_ms == 0
    assert followed(TOPIC, missed, None, DAY, 5_000_000).behind_ms == 2 * DAY


def test_a_stored_record_that_nobody_updates() -> None:
    """Readiness detects it without a node, a little later than a node: it is stored seldom."""
    allowed = DAY + store_period_ms(DAY)
    assert behind_ms(KNOWN, 1_000_000 + allowed) == 0
    assert behind_ms(KNOWN, 1_000_000 + allowed + 1) == allowed + 1


def test_a_short_retention_counts_as_what_can_be_seen() -> None:
    """Lanes report every 5 s, so being behind for 2 s cannot be seen."""
    assert followed(TOPIC, KNOWN, None, 2_000, 1_000_000 + 15_000).behind_ms == 0
    assert followed(TOPIC, KNOWN, None, 2_000, 1_000_000 + 15_001).behind_ms == 15_001


def test_what_is_stored() -> None:
    """A new record, one that has moved far, and a missed tombstone (at once) are stored."""
    assert is_to_be_stored(None, KNOWN)
    assert not is_to_be_stored(KNOWN, replace(KNOWN, caught_up_ms=1_000_001))
    far = KNOWN.caught_up_ms + store_period_ms(DAY)
    assert is_to_be_stored(KNOWN, replace(KNOWN, caught_up_ms=far))
    missed = replace(KNOWN, behind_ms=DAY + 1)
    assert is_to_be_stored(KNOWN, missed)
    assert not is_to_be_stored(missed, replace(missed, behind_ms=DAY + 2))
    assert is_to_be_stored(KNOWN, replace(KNOWN, retention_ms=5))


@pytest.mark.parametrize(
    ("policy", "retention"), [("compact", 7), ("compact,delete", 7), ("delete", None)]
)
def test_only_compacted_topics(policy: str, retention: int | None) -> None:
    configs = {"cleanup.policy": policy, "delete.retention.ms": "7"}
    found = {name: SourceConfig(value, explicit=False) for name, value in configs.items()}
    assert retention_of(found) == retention
    assert retention_of({}) is None
