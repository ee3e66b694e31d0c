"""A node's report, while lanes die, statuses become stale and the destination is unreachable."""

import json
import time
from collections import Counter
from dataclasses import replace
from typing import cast
from uuid import UUID

import pytest
from prometheus_client.parser import text_string_to_metric_families

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.states import State
from twinlog.node.health import DEAD_S, live, ready
from twinlog.node.metrics import exposition
from twinlog.node.observation import OLD_S, Observed
from twinlog.store.config_records import (
    ConfigRecord,
    Followed,
    Mirror,
    MirrorTopic,
    NotMirrored,
    Wanted,
    key_of,
)
from twinlog.store.control_topics import States
from twinlog.store.snapshot import Snapshot
from twinlog.store.state_records import PartitionState
from twinlog.store.status_records import FetcherStatus, PartitionStatus, Status, ThrottleStatus

NAMES = [MirrorPartition("m", "t", 0), MirrorPartition("m", "t", 1)]
LANES = frozenset({"n-0", "n-1"})
LIMITED = {"mirror.replication.throttled.rate": "500"}
MIRROR = Mirror(name="m", source=LIMITED, source_cluster_id="c")
TOPIC = MirrorTopic(mirror="m", topic="t", topic_id=UUID(int=1), partitions=2)
RECORDS = (MIRROR, TOPIC)
SNAPSHOT = Snapshot({key_of(record): record for record in RECORDS})


def row(partition: int, **more: int | None) -> PartitionStatus:
    known = {"source_end": 10, "destination_end": 7, "lag_ms": 1500}
    return PartitionStatus(
        partition=NAMES[partition],
        state=State.MIRRORING,
        **{**known, **more},  # type: ignore[arg-type]
    )


class Scene:
    """A node with two lanes, one of which has both partitions; the test sets the time."""

    def __init__(self) -> None:
        self.now = 1000.0
        errors: Counter[object] = Counter()
        nobody = cast("KafkaCluster", None)
        self.observed = Observed(nobody, "g", LANES, errors, lambda: self.now)  # type: ignore[arg-type]
        self.states(State.MIRRORING, State.FAILED)
        self.written = 0
        self.look()

    def states(self, *states: State) -> None:
        found = {
            name: PartitionState(name, state) for name, state in zip(NAMES, states, strict=True)
        }
        self.observed.states = States(found, {})

    def look(
        self,
        *rows: PartitionStatus,
        members: frozenset[str] = LANES,
        again: bool = True,
        snapshot: Snapshot = SNAPSHOT,
    ) -> None:
        """Check a second later; the lane has written a new status or not."""
        self.now += 1
        self.written += again
        status = Status(
            state_partition=3,
            lane="n-0",
            node="n",
            time_ms=self.written * 1000,
            partitions=rows,
            fetchers=(FetcherStatus("m", 1, 10 * self.written, 100 * self.written, 0),),
            throttles=(ThrottleStatus("m", 400 * self.written, 400, held_back=True),),
        )
        self.observed.take(members, snapshot, {3: status})

    def metric(self, name: str, **labels: str) -> float | None:
        for family in text_string_to_metric_families(exposition(self.observed).decode()):
            for sample in family.samples:
                if (sample.name, sample.labels) == (name, labels):
                    return sample.value
        return None


AGE = "twinlog_partition_lag_seconds"
MAX_LAG = "kafka_server_mirror_mirrorfetchermanager_maxlag"
BEHIND = "twinlog_topic_compaction_behind_seconds"
OF_TOPIC = {"mirror": "m", "topic": "t"}
FIRST = {**OF_TOPIC, "partition": "0"}


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_failed_partition_does_not_make_a_node_unhealthy(scene: Scene) -> None:
    """A FAILED partition is counted, and does not make a node unhealthy."""
    scene.look(row(0), row(1))
    scene.look(row(0), row(1))
    for health in (ready(scene.observed), live(scene.observed)):
        told = json.loads(health.body)
        assert (health.status, told["status"], told["reasons"]) == (200, "healthy", [])
        assert told["lanes"] == {"started": 2, "alive": 2}
        assert (told["partitions"]["MIRRORING"], told["partitions"]["FAILED"]) == (1, 1)
    assert scene.metric(AGE, **FIRST) == 1.5
    assert scene.metric("kafka_server_fetcherlagmetrics_consumerlag", **FIRST) == 3
    manager = "kafka_server_mirror_mirrorfetchermanager_"
    assert scene.metric(MAX_LAG, mirror="m") == 3
    assert scene.metric(manager + "minfetchrate", mirror="m") == 10
    assert scene.metric(manager + "deadthreadcount") == 0
    fetcher = {"lane": "n-0", "mirror": "m", "broker": "1"}
    assert scene.metric("kafka_server_fetcherstats_bytes_total", **fetcher) == 300
    rate = "kafka_server_mirrorreplication_byterate"
    assert scene.metric(rate, lane="n-0", mirror="m") == 400
    assert scene.metric("twinlog_throttled_rate_limit", mirror="m") == 500


def test_unknown_values_have_no_metric(scene: Scene) -> None:
    assert scene.metric(MAX_LAG, mirror="m") is None
    scene.look(row(0, lag_ms=None, destination_end=-1))
    assert scene.metric(MAX_LAG, mirror="m") is None
    assert scene.metric(AGE, **FIRST) is None
    assert scene.metric("kafka_server_fetcherlagmetrics_consumerlag", **FIRST) is None
    assert scene.metric("twinlog_partition_destination_offset", **FIRST) is None
    assert scene.metric("twinlog_partition_source_offset", **FIRST) == 10
    scene.look(row(0, destination_end=-1), row(1))
    assert scene.metric(MAX_LAG, mirror="m") == 3, "of the other one"


def test_a_mirror_without_partitions_has_no_lag(scene: Scene) -> None:
    scene.look(snapshot=Snapshot({key_of(RECORDS[0]): RECORDS[0]}))
    assert scene.metric(MAX_LAG, mirror="m") == 0


def test_statuses_from_before_a_restart_are_not_fresh() -> None:
    """A node restarted under its name has members of that name, and stale statuses."""
    scene = Scene()
    scene.look(row(0), again=False)
    assert scene.metric(AGE, **FIRST) is None
    assert "1 partitions that are MIRRORING have no fresh status" in ready(scene.observed).reasons
    scene.look(row(0))
    assert ready(scene.observed).reasons == ()


def test_a_stale_status_makes_a_node_unready(scene: Scene) -> None:
    scene.look(row(0))
    scene.now += OLD_S - 2
    scene.look(row(0), again=False)
    assert ready(scene.observed).status == 200
    scene.look(row(0), again=False)
    assert ready(scene.observed).status == 503
    assert live(scene.observed).status == 200
    assert scene.metric(AGE, **FIRST) is None


def test_a_dead_lane_makes_a_node_unready(scene: Scene) -> None:
    """Its statuses are stale; a restart of the node is not needed."""
    scene.look(row(0))
    scene.look(row(0), members=frozenset({"n-1", "other-0"}))
    told = ready(scene.observed)
    assert told.status == 503
    assert "1 lanes are not members of the group: n-0" in told.reasons
    assert scene.metric("kafka_server_mirror_mirrorfetchermanager_deadthreadcount") == 1
    assert scene.metric(AGE, **FIRST) is None
    assert scene.metric(MAX_LAG, mirror="m") is None
    assert live(scene.observed).status == 200


def test_a_node_is_not_alive_when_all_lanes_are_dead_for_long(scene: Scene) -> None:
    """Then, and only while the destination answers, a restart of the node would help."""
    for _ in range(int(DEAD_S)):
        scene.look(members=frozenset())
        assert live(scene.observed).status == 200
    scene.look(members=frozenset())
    assert live(scene.observed).status == 503
    scene.now += OLD_S + 1
    assert live(scene.observed).status == 200
    assert "the destination has not responded for 16 s" in ready(scene.observed).reasons


def test_paused_partitions_have_no_lag(scene: Scene) -> None:
    scene.look(row(0), row(1))
    scene.states(State.PAUSED, State.STOPPED)
    assert scene.metric(AGE, **FIRST) is None
    assert ready(scene.observed).status == 200
    name = "kafka_server_mirror_mirrormetadatamanager_pausedpartitionstate"
    assert scene.metric(name, mirror="m") == 1


def snapshot_with(*more: ConfigRecord) -> Snapshot:
    """Return the mirror's records, with these added or replaced."""
    return Snapshot({key_of(record): record for record in (*RECORDS, *more)})


def test_source_topics_that_are_not_mirrored_are_counted(scene: Scene) -> None:
    """Goal: D3: the metric counts all of them, more than are stored by name, and 0 is a value."""
    name = "twinlog_topics_not_mirrored"
    other = replace(MIRROR, name="other")
    scene.look(snapshot=snapshot_with(other))
    assert (scene.metric(name, mirror="m"), scene.metric(name, mirror="other")) == (0, 0)
    missed = NotMirrored(mirror="m", topics=(("u", "INVALID_CONFIG"),), total=3)
    scene.look(snapshot=snapshot_with(other, missed))
    assert (scene.metric(name, mirror="m"), scene.metric(name, mirror="other")) == (3, 0)


@pytest.mark.parametrize(
    ("behind_ms", "since_ms", "least", "most"),
    [
        (0, 0, 0, 0),  # caught up just now
        (90_000_000, 0, 90_000, 90_000),  # was behind once, which is not forgotten
        (0, 100_000_000, 100_000, 100_100),  # is behind, and no node has stored it yet
    ],
)
def test_the_time_behind_of_a_compacted_topic_is_in_seconds(
    scene: Scene, behind_ms: int, since_ms: int, least: int, most: int
) -> None:
    """Goal: E2: the metric's value is seconds; a removed topic has none."""
    topic = replace(TOPIC, destination_topic_id=UUID(int=7))
    followed = Followed(
        mirror="m",
        topic="t",
        destination_topic_id=UUID(int=7),
        caught_up_ms=time.time_ns() // 1_000_000 - since_ms,
        retention_ms=86_400_000,
        behind_ms=behind_ms,
    )
    scene.look(snapshot=snapshot_with(topic))
    assert scene.metric(BEHIND, **OF_TOPIC) is None, "never followed: not compacted"
    scene.look(snapshot=snapshot_with(topic, followed))
    value = scene.metric(BEHIND, **OF_TOPIC)
    assert value is not None
    assert least <= value <= most
    scene.look(snapshot=snapshot_with(replace(topic, wanted=Wanted.STOPPED), followed))
    assert scene.metric(BEHIND, **OF_TOPIC) is None


def test_a_rebuilt_topic_has_no_time_behind(scene: Scene) -> None:
    """Goal: E2: the record of the destination's former topic is not reported for the new one.

    `--add --rebuild` is the repair: the alert ends with it, and not with a node's next check.
    """
    followed = Followed(
        mirror="m",
        topic="t",
        destination_topic_id=UUID(int=7),
        caught_up_ms=0,
        retention_ms=86_400_000,
        behind_ms=90_000_000,
    )
    rebuilt = replace(TOPIC, destination_topic_id=UUID(int=8))
    scene.look(snapshot=snapshot_with(rebuilt, followed))
    assert not scene.metric(BEHIND, **OF_TOPIC)
