"""`--describe`, without a cluster: states, statuses and topics put together."""

from uuid import UUID

from twinlog.cli.kafka_mirrors import DESCRIBE_COLUMNS, described
from twinlog.cluster.mirrorlog import States
from twinlog.core.placement import MirrorPartition
from twinlog.core.states import State
from twinlog.wire.config_records import Mirror, MirrorTopic, encode
from twinlog.wire.snapshot import Snapshot, Written
from twinlog.wire.state_records import PartitionState
from twinlog.wire.status_records import PartitionStatus, Status

NO_STATES = States({}, {}, ())
FIRST = MirrorPartition("m", "t", 0)
SNAPSHOT = Snapshot().after(
    Written(0, 0, *encode(record))
    for record in (
        Mirror(name="m", source={}, source_cluster_id="c"),
        MirrorTopic(mirror="m", topic="t", topic_id=UUID(int=1), partitions=2),
        Mirror(name="n", source={}, source_cluster_id="c"),
        MirrorTopic(mirror="n", topic="u", topic_id=UUID(int=2), partitions=1),
    )
)


def status(time_ms: int, end: int, state: State = State.MIRRORING) -> Status:
    row = PartitionStatus(
        partition=FIRST, state=state, source_end=10, destination_end=end, reason="in status"
    )
    return Status(state_partition=1, lane="l", node="n", time_ms=time_ms, partitions=(row,))


def test_without_a_status_offsets_are_unknown() -> None:
    rows = [row.columns() for row in described(SNAPSHOT, NO_STATES, ())]
    assert rows == [
        ("m", "t", 0, -1, -1, -1, "UNKNOWN"),
        ("m", "t", 1, -1, -1, -1, "UNKNOWN"),
        ("n", "u", 0, -1, -1, -1, "UNKNOWN"),
    ]
    assert all(len(row) == len(DESCRIBE_COLUMNS) for row in rows)


def test_one_mirror_alone() -> None:
    assert [row.row.partition.topic for row in described(SNAPSHOT, NO_STATES, (), "n")] == ["u"]


def test_the_newest_status_counts() -> None:
    """A partition whose state partition has moved may have left an older row elsewhere."""
    first, _ = described(SNAPSHOT, NO_STATES, (status(2, 8), status(1, 4)), "m")
    assert first.columns() == ("m", "t", 0, 10, 8, 2, "MIRRORING")
    assert first.written == status(2, 8)


def test_the_state_that_was_written_wins() -> None:
    """And a reason is shown for FAILED alone."""
    states = {FIRST: PartitionState(FIRST, State.PAUSED)}
    first, _ = described(SNAPSHOT, States(states, {}, ()), (status(1, 4),), "m")
    assert (first.row.state, first.row.reason) == (State.PAUSED, None)
    states = {FIRST: PartitionState(FIRST, State.FAILED, "in state")}
    first, _ = described(SNAPSHOT, States(states, {}, ()), (status(1, 4),), "m")
    assert (first.row.state, first.row.reason) == (State.FAILED, "in state")
    states = {FIRST: PartitionState(FIRST, State.FAILED)}
    assert (
        described(SNAPSHOT, States(states, {}, ()), (status(1, 4),), "m")[0].row.reason
        == "in status"
    )
