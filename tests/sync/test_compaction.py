"""Compacted topics that were behind for longer than their source keeps tombstones."""

import asyncio
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from types import SimpleNamespace
from uuid import UUID

import pytest
from sync_contexts import sync_context

from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.states import State
from twinlog.mirror.topic_configs import SourceConfig
from twinlog.store.config_records import (
    ConfigRecord,
    Followed,
    Mirror,
    MirrorTopic,
    Wanted,
    key_of,
)
from twinlog.store.snapshot import Snapshot
from twinlog.store.status_records import PartitionStatus
from twinlog.sync import compaction as compaction_sync
from twinlog.sync.base import run_sync
from twinlog.sync.compaction import (
    Compaction,
    Marks,
    behind_ms,
    followed,
    is_to_be_stored,
    retention_of,
    store_period_ms,
)

DAY = 24 * 3600 * 1000
MIRROR = Mirror(name="m", source={}, source_cluster_id="source")
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


def test_the_caught_up_time_is_that_of_the_slowest_partition() -> None:
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
def test_unknown_offsets_give_no_caught_up_time(bad: PartitionStatus) -> None:
    marks = Marks()
    marks.observe([bad])
    assert marks.caught_up_ms(replace(TOPIC, partitions=1)) is None


@pytest.mark.parametrize(
    ("caught_up", "now", "behind"),
    [
        (None, 1_000_000 + DAY, 0),
        (None, 1_000_000 + DAY + 1, DAY + 1),  # paused, FAILED, or without a lane
        (1_000_000 + DAY, 1_000_000 + DAY, 0),
        (1_000_000 + DAY, 1_000_000 + 2 * DAY, 2 * DAY),  # it may have caught up just now
        (1_000_000 + DAY + 1, 1_000_000 + DAY + 5, DAY + 5),  # the same
        (999_000, 1_000_005, 0),
    ],
)
def test_a_topic_behind_longer_than_its_tombstones_stays_reported(
    caught_up: int | None, now: int, behind: int
) -> None:
    """It is reported while it is behind, and for ever after: missed tombstones do not come back."""
    found = followed(TOPIC, KNOWN, caught_up, DAY, now)
    assert found.behind_ms == behind
    assert found.caught_up_ms == max(1_000_000, caught_up or 0)
    later = followed(TOPIC, found, now + 5, DAY, now + 10)
    assert later.behind_ms >= behind
    assert behind_ms(later, now + 10) == later.behind_ms


def test_the_first_check_sets_the_baseline() -> None:
    """A recreated destination topic (a rebuild) starts again without a baseline."""
    first = followed(TOPIC, None, None, DAY, 5_000_000)
    assert (first.caught_up_ms, first.behind_ms) == (5_000_000, 0)
    missed = replace(KNOWN, behind_ms=2 * DAY)
    rebuilt = replace(TOPIC, destination_topic_id=UUID(int=8))
    assert followed(rebuilt, missed, None, DAY, 5_000_000).behind_ms == 0
    assert followed(TOPIC, missed, None, DAY, 5_000_000).behind_ms == 2 * DAY


def test_a_stale_caught_up_record_shows_a_topic_behind() -> None:
    """Readiness detects it without a node, as a node does."""
    assert behind_ms(KNOWN, 1_000_000 + DAY) == 0
    assert behind_ms(KNOWN, 1_000_000 + DAY + 1) == DAY + 1


@pytest.mark.parametrize(
    ("retention", "allowed"),
    [(0, 75_000), (60_000, 120_000), (90_000, 120_000), (120_000, 120_000)],
)
def test_short_retentions_allow_for_the_store_period(retention: int, allowed: int) -> None:
    """Without a node it is detected up to a store period later: such a record may be as old."""
    short = replace(KNOWN, retention_ms=retention)
    assert behind_ms(short, 1_000_000 + allowed) == 0
    assert behind_ms(short, 1_000_000 + allowed + 1) == allowed + 1


def test_a_retention_below_the_reporting_interval_is_raised_to_it() -> None:
    """Lanes report every 5 s, so being behind for 2 s cannot be seen."""
    assert followed(TOPIC, KNOWN, None, 2_000, 1_000_000 + 15_000).behind_ms == 0
    assert followed(TOPIC, KNOWN, None, 2_000, 1_000_000 + 15_001).behind_ms == 15_001


def test_the_shorter_of_old_and_new_retention_counts() -> None:
    """Goal: of the retention before and now, the shorter one says what may have been removed."""
    hour = 3600 * 1000
    short = replace(KNOWN, retention_ms=60_000)
    resumed = KNOWN.caught_up_ms + hour
    assert followed(TOPIC, short, None, DAY, resumed).behind_ms == hour
    assert followed(TOPIC, KNOWN, None, 60_000, resumed).behind_ms == hour


def test_caught_up_records_are_stored_on_large_changes() -> None:
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
def test_only_compacted_topics_have_a_tombstone_retention(
    policy: str, retention: int | None
) -> None:
    configs = {"cleanup.policy": policy, "delete.retention.ms": "7"}
    found = {name: SourceConfig(value, explicit=False) for name, value in configs.items()}
    assert retention_of(found) == retention


class Stored:
    """A store that holds one topic's record, and nodes that check it at given times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.snapshot = Snapshot({key_of(one): one for one in (MIRROR, TOPIC, KNOWN)})
        self.now_ms = 0
        monkeypatch.setattr(compaction_sync, "source_configs", self._configs)

    @staticmethod
    async def _configs(_source: object, names: Iterable[str]) -> dict[str, dict[str, SourceConfig]]:
        values = {"cleanup.policy": "compact", "delete.retention.ms": str(DAY)}
        configs = {name: SourceConfig(value, explicit=False) for name, value in values.items()}
        return dict.fromkeys(names, configs)

    async def change(self, decide: Callable[[Snapshot], Collection[ConfigRecord]]) -> None:
        changes = {key_of(one): one for one in decide(self.snapshot)}
        self.snapshot = Snapshot({**self.snapshot.records, **changes})

    def node(self) -> Compaction:
        return Compaction(lambda: self.now_ms)

    def check(self, node: Compaction, now_ms: int) -> Followed:
        self.now_ms = now_ms
        context = sync_context(None, None, self, snapshot=self.snapshot, topics=[TOPIC])
        assert asyncio.run(run_sync(node, context)) == 0
        found = self.snapshot.followed("m", "t")
        assert found is not None
        return found


def test_a_new_node_counts_time_since_the_stored_record_as_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: what was mirrored since the stored time is unknown, and counts as not mirrored."""
    exactly = Stored(monkeypatch)
    assert exactly.check(exactly.node(), 1_000_000 + DAY).behind_ms == 0
    stored = Stored(monkeypatch)
    assert stored.check(stored.node(), 1_000_000 + DAY + 1).behind_ms == DAY + 1


def test_configurations_that_an_answer_leaves_out_are_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: the topic does not count as not compacted: its record stays, and it is a failure."""
    stored = Stored(monkeypatch)

    async def configs(_source: object, names: Iterable[str]) -> dict[str, dict[str, SourceConfig]]:
        return {name: {"cleanup.policy": SourceConfig("compact", explicit=True)} for name in names}

    monkeypatch.setattr(compaction_sync, "source_configs", configs)
    context = sync_context(None, None, stored, snapshot=stored.snapshot, topics=[TOPIC])
    assert asyncio.run(run_sync(stored.node(), context)) == 1
    assert stored.snapshot.followed("m", "t") == KNOWN


def test_records_stored_by_another_node_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: what another node has stored meanwhile counts, with the missed tombstones."""
    stored = Stored(monkeypatch)
    node = stored.node()
    stored.check(node, 1_000_001)
    other = replace(KNOWN, caught_up_ms=1_000_000 + 3 * DAY, behind_ms=2 * DAY)
    stored.snapshot = Snapshot({key_of(one): one for one in (MIRROR, TOPIC, other)})
    later = 1_000_000 + 3 * DAY + store_period_ms(DAY)
    node.marks.observe([row(index, later, 5, 5) for index in range(2)])
    assert stored.check(node, later) == replace(other, caught_up_ms=later)


@pytest.mark.parametrize("former", [None, UUID(int=6)])
def test_a_topic_paused_before_its_first_check_has_a_baseline(
    monkeypatch: pytest.MonkeyPatch, former: UUID | None
) -> None:
    """Goal: it has a baseline, also where the record is that of the topic before a rebuild."""
    stored = Stored(monkeypatch)
    topic = replace(TOPIC, wanted=Wanted.PAUSED)
    records: list[ConfigRecord] = [MIRROR, topic]
    if former is not None:
        records.append(replace(KNOWN, destination_topic_id=former))
    stored.snapshot = Snapshot({key_of(record): record for record in records})

    async def refresh(names: Collection[str]) -> object:
        found = dict.fromkeys(names, SimpleNamespace(topic_id=TOPIC.topic_id))
        return SimpleNamespace(topics=found)

    source = SimpleNamespace(refresh=refresh)
    context = sync_context(source, None, stored, snapshot=stored.snapshot)
    changes = asyncio.run(stored.node().compare(context)).changes
    assert [change.destination_topic_id for change in changes if isinstance(change, Followed)] == [
        TOPIC.destination_topic_id
    ]
