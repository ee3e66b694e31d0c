"""Descriptions of mirrors from topics, states and statuses, without a cluster."""

from dataclasses import replace
from uuid import UUID

import pytest

from twinlog.kafka.types import LeaderEpoch, Offset
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.states import State
from twinlog.operations.describe import PartitionDescription, describe
from twinlog.store.config_records import Mirror, MirrorTopic, NotMirrored, encode, key_of
from twinlog.store.control_topics import States
from twinlog.store.snapshot import Snapshot, StoredRecord
from twinlog.store.state_records import (
    MIRROR_PARTITION_STATE,
    LastMirrored,
    PartitionState,
)
from twinlog.store.status_records import PartitionStatus, Status
from twinlog.store.statuses import FRESH_S, ages_of

NO_STATES = States({}, {})
FIRST = MirrorPartition("m", "t", 0)
SNAPSHOT = Snapshot().after(
    StoredRecord(0, 0, *encode(record))
    for record in (
        Mirror(name="m", source={"bootstrap.servers": "h:1"}, source_cluster_id="c"),
        MirrorTopic(mirror="m", topic="t", topic_id=UUID(int=1), partitions=2),
        Mirror(name="n", source={}, source_cluster_id="d"),
        MirrorTopic(mirror="n", topic="u", topic_id=UUID(int=2), partitions=1),
    )
)


def status(time_ms: int, end: int, state: State = State.MIRRORING) -> Status:
    row = PartitionStatus(
        partition=FIRST, state=state, source_end=10, destination_end=end, reason="in status"
    )
    return Status(state_partition=1, lane="l", node="n", time_ms=time_ms, partitions=(row,))


def first(states: States, *statuses: Status) -> PartitionDescription:
    (mirror,) = describe(SNAPSHOT, states, statuses, ["m"])
    return mirror.topics[0].partitions[0]


def test_mirrors_are_described_in_order() -> None:
    """Without a status offsets are unknown."""
    found = describe(SNAPSHOT, NO_STATES, ())
    unknown = "no lane has reported it; the last stored state is UNKNOWN"
    assert [(one.mirror, one.source_bootstrap, one.source_cluster_id) for one in found] == [
        ("m", "h:1", "c"),
        ("n", "", "d"),
    ]
    assert [
        (topic.topic, topic.source_topic_id, part)
        for one in found
        for topic in one.topics
        for part in topic.partitions
    ] == [
        ("t", UUID(int=1), PartitionDescription(partition=0, state=State.UNKNOWN, reason=unknown)),
        ("t", UUID(int=1), PartitionDescription(partition=1, state=State.UNKNOWN, reason=unknown)),
        ("u", UUID(int=2), PartitionDescription(partition=0, state=State.UNKNOWN, reason=unknown)),
    ]


def test_only_requested_mirrors_are_described() -> None:
    assert [one.mirror for one in describe(SNAPSHOT, NO_STATES, (), ["n"])] == ["n"]
    assert describe(SNAPSHOT, NO_STATES, (), []) == ()


def test_only_the_status_of_the_current_state_partition_counts() -> None:
    """A recreated topic has another state partition; the row of the former one is stale."""
    place = {(MIRROR_PARTITION_STATE, FIRST): 7}
    states = States({FIRST: PartitionState(FIRST, State.STOPPED)}, {}, {}, place)
    assert first(states, status(2, 8)).destination_offset == -1
    here = replace(status(1, 4), state_partition=7)
    assert first(states, here, status(2, 8)).destination_offset == 4


def test_the_newest_status_counts() -> None:
    """A partition whose state partition has moved may have left an older row elsewhere."""
    partition = first(NO_STATES, status(2, 8), status(1, 4))
    assert (partition.source_offset, partition.destination_offset, partition.lag) == (10, 8, 2)
    assert (partition.lane, partition.node, partition.status_time_ms) == ("l", "n", 2)


def test_the_stored_state_and_its_reason_are_shown() -> None:
    """A reason is shown of FAILED, and of what holds up STOPPING."""

    def shown(state: PartitionState) -> tuple[State, str | None]:
        partition = first(States({FIRST: state}, {}), status(1, 4))
        return partition.state, partition.reason

    assert shown(PartitionState(FIRST, State.PAUSED)) == (State.PAUSED, None)
    assert shown(PartitionState(FIRST, State.FAILED, "in state")) == (State.FAILED, "in state")
    assert shown(PartitionState(FIRST, State.FAILED)) == (State.FAILED, "in status")
    assert shown(PartitionState(FIRST, State.STOPPING, "held up")) == (State.STOPPING, "held up")
    assert shown(PartitionState(FIRST, State.STOPPING)) == (State.STOPPING, None)


@pytest.mark.parametrize("stored", State)
@pytest.mark.parametrize("age", [1.0, FRESH_S + 1.0])
def test_an_unstored_failure_is_shown_from_the_status(stored: State, age: float) -> None:
    """The lane reports it in its status; a stored way out, or another lane's state, counts more."""
    states = States({FIRST: PartitionState(FIRST, stored)}, {})
    failed = status(1, 10, State.FAILED)
    (mirror,) = describe(SNAPSHOT, states, [failed], ["m"], ages={1: age})
    partition = mirror.topics[0].partitions[0]
    running = stored in {State.UNKNOWN, State.PREPARING, State.MIRRORING}
    if age <= FRESH_S:
        assert partition.state is (State.FAILED if running else stored)
        assert partition.reason == "in status" or not running
    else:
        assert partition.state is (State.UNKNOWN if running else stored)


def test_a_paused_partition_has_no_lag() -> None:
    """No lane polls the source: the lag before the pause does not describe the present."""
    told = replace(status(1, 10).partitions[0], lag_ms=0)
    paused = States({FIRST: PartitionState(FIRST, State.PAUSED)}, {})
    partition = first(paused, replace(status(1, 10), partitions=(told,)))
    assert (partition.source_offset, partition.destination_offset) == (10, 10)
    assert (partition.lag, partition.lag_ms) == (-1, None)
    assert first(NO_STATES, replace(status(1, 10), partitions=(told,))).lag_ms == 0


def test_the_last_mirrored_end_of_a_stopped_partition_is_shown() -> None:
    epochs = {FIRST: LastMirrored(LeaderEpoch(3), Offset(9))}
    stopped = {FIRST: PartitionState(FIRST, State.STOPPED, "foreign records")}
    partition = first(States(stopped, epochs))
    assert (partition.last_mirrored_epoch, partition.last_mirrored_end) == (3, 9)
    assert partition.reason == "foreign records"
    assert first(States({}, epochs)).last_mirrored_end == -1, "a bound only"


@pytest.mark.parametrize(
    ("stored", "age", "shown", "lag", "why"),
    [
        (State.MIRRORING, 15.0, State.MIRRORING, 0, "in status"),
        (State.MIRRORING, 40.0, State.UNKNOWN, -1, "no lane has reported it for 40 s"),
        (State.PREPARING, 40.0, State.UNKNOWN, -1, "no lane has reported it for 40 s"),
        (State.MIRRORING, -40.0, State.UNKNOWN, -1, "is 40 s ahead of this machine's clock"),
        (State.STOPPING, 40.0, State.STOPPING, -1, "the last stored state is STOPPING"),
        (State.PAUSING, 40.0, State.PAUSING, -1, "the last stored state is PAUSING"),
        (State.PAUSED, 40.0, State.PAUSED, -1, None),
        (State.STOPPED, 40.0, State.STOPPED, 0, None),
    ],
)
def test_partitions_without_a_fresh_status_are_not_mirrored(
    stored: State, age: float, shown: State, lag: int, why: str | None
) -> None:
    """A stored state does not show that a lane runs: neither a lag of 0 nor MIRRORING is shown."""
    states = States({FIRST: PartitionState(FIRST, stored)}, {})
    (mirror,) = describe(SNAPSHOT, states, [status(1, 10)], ["m"], ages={1: age})
    partition = mirror.topics[0].partitions[0]
    assert (partition.state, partition.lag, partition.fresh) == (shown, lag, abs(age) <= FRESH_S)
    assert (partition.reason is None) if why is None else (why in (partition.reason or ""))


def test_status_ages_are_in_seconds() -> None:
    assert ages_of({3: status(2_000, 1)}, 5.0) == {3: 3.0}


def test_unmirrored_topics_are_shown_with_their_mirror() -> None:
    record = NotMirrored(mirror="m", topics=(("u", "occupied"),), total=1)
    snapshot = replace(SNAPSHOT, records={**SNAPSHOT.records, key_of(record): record})
    found = describe(snapshot, NO_STATES, ())
    assert [one.not_mirrored.total for one in found] == [1, 0]
    assert found[0].not_mirrored == record
