"""The readiness of a flow on real brokers; records that a node would write are written by hand."""

import asyncio
import secrets
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any
from uuid import UUID

import librdkafka_tools
import pytest
from clients import client, put
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as Place
from copied_topic import CopiedTopic
from scene import reasons

from conftest import Pair
from twinlog.engines.transactional.positions import position_group, position_metadata
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.requests.topics import KnownTopic
from twinlog.kafka.types import Offset, ProducerEpoch, ProducerId, Sequence, TopicPartition
from twinlog.local.load import delete_before
from twinlog.mirror.mm2_records import Checkpoint, Heartbeat, Mm2Record
from twinlog.mirror.mm2_records import encode as encode_mm2
from twinlog.mirror.offset_runs import Ends, Run
from twinlog.mirror.placement import MirrorPartition, state_partition
from twinlog.mirror.sequence_plan import SequencePlan
from twinlog.operations.readiness import source_topics
from twinlog.operations.readiness.begins_later import Below, Front, may_lack
from twinlog.operations.readiness.facts import GroupFacts, SourceLog
from twinlog.operations.readiness.reasons import Reason
from twinlog.operations.readiness.verdict import Readiness
from twinlog.store.control_topics import LANES_GROUP
from twinlog.store.map_chunks import MapChunk
from twinlog.store.mirrors import MirrorStore
from twinlog.store.offset_log import OFFSETS_TOPIC
from twinlog.store.offset_records import LostCopies, Route, StoredPlan, encode
from twinlog.store.topic_writer import Entry

pytestmark = [pytest.mark.broker]

RECORDS = 20
SHIFT = 3
"""Records of others in front of the copies."""
HOUR_MS = 3_600_000
START = Ends(Offset(0), Offset(0))
SETTINGS = {"heartbeats.topic.replication.factor": "1"}


class RecordedFlow(CopiedTopic):
    """A flow whose copies, map and bookkeeping are written by hand."""

    def __init__(self, pair: Pair, *, suffix: str = "", **settings: str) -> None:
        self.alias = secrets.token_hex(4)
        super().__init__(pair, settings, alias=self.alias, suffix=suffix)
        existing = librdkafka_tools.admin(self.target).list_topics(timeout=120).topics
        for topic in {"heartbeats", self.checkpoints} - existing.keys():
            librdkafka_tools.make_topic(self.target, topic)
        librdkafka_tools.write(self.source, self.topic, librdkafka_tools.simple(RECORDS))

    @property
    def checkpoints(self) -> str:
        """The topic of its checkpoints."""
        return f"{self.alias}.checkpoints.internal"

    def copy(
        self, count: int, *, recorded: int | None = None, begin: int = 0, **plan_fields: Any
    ) -> None:
        """Write copies, and a map of them, or of so many, which begins at an offset.

        `plan_fields`: of the plan that is stored with it.
        """
        librdkafka_tools.write(self.target, self.remote, librdkafka_tools.simple(count + SHIFT))
        length = count if recorded is None else recorded
        start = START._replace(source=Offset(begin))
        if plan_fields.get("behind_another"):  # others' copies are in front of it
            start = start._replace(destination=Offset(SHIFT))
        run = Run(start.source, Offset(SHIFT), length)

        async def store(cluster: KafkaCluster) -> None:
            snapshot = await MirrorStore(cluster).snapshot()
            (topic,) = snapshot.topics_of(self.flow)
            name = MirrorPartition(self.flow, self.topic, 0)
            ends = Ends(run.source_end, run.destination_end)
            plan = SequencePlan(ProducerId(1), ProducerEpoch(0), Sequence(length), (), ends)
            route = Route(topic.topic_id, self.remote, topic.destination_topic_id)
            count = len((await cluster.refresh([OFFSETS_TOPIC])).topics[OFFSETS_TOPIC].partitions)
            place = state_partition(self.flow, topic.topic_id, 0, count)
            stored = StoredPlan(name, plan, route, **plan_fields)
            records = (MapChunk(name, 0, start, (run,)), stored)
            entries = [Entry(OFFSETS_TOPIC, place, *encode(record)) for record in records]
            await put(cluster, entries)

        self.on_target(store)

    def keep_books(self, topic: str, records: Iterable[Mm2Record], *, age_ms: int = 0) -> None:
        """Write records of MirrorMaker 2 to the target, as of some time ago."""
        producer = Producer({"bootstrap.servers": self.target})
        for record in records:
            key, value = encode_mm2(record)
            timestamp = time.time_ns() // 1_000_000 - age_ms
            producer.produce(topic, value, key, partition=0, timestamp=timestamp)
        assert producer.flush(120) == 0

    def checkpoint(self, group: str, upstream: int, downstream: int, *, age_ms: int = 0) -> None:
        record = Checkpoint(
            group=group,
            partition=TopicPartition(self.remote, 0),
            upstream_offset=upstream,
            downstream_offset=downstream,
        )
        self.keep_books(self.checkpoints, [record], age_ms=age_ms)


@pytest.fixture
def flow(pair: Pair) -> RecordedFlow:
    """Store a flow of a topic with 20 records on the source."""
    return RecordedFlow(pair)


def group_of(readiness: Readiness, name: str) -> GroupFacts | None:
    (topic,) = readiness.topics
    return next((group for group in topic.facts.groups if group.group == name), None)


def test_the_lag_of_a_flow_is_counted_by_its_record(flow: RecordedFlow) -> None:
    """Goal: the remote log's end, which is shifted, does not count."""
    assert flow.readiness().lag == RECORDS, "nothing is copied"
    flow.copy(12)
    readiness = flow.readiness()
    assert (readiness.lag, readiness.lag_is_all) == (RECORDS - 12, True)
    assert Reason.LAG in reasons(readiness)
    assert not {Reason.DIVERGED, Reason.BEGINS_LATER, Reason.PURGED} & reasons(readiness).keys()


@pytest.mark.parametrize("is_heartbeats", [True, False])
def test_the_lag_of_copied_heartbeats_is_shown_only(pair: Pair, is_heartbeats: bool) -> None:
    """Goal: a flow that copies them, as all do by default, can be ready; other topics count."""
    flow = RecordedFlow(pair, suffix=".heartbeats" if is_heartbeats else "-heartbeats")
    try:
        flow.copy(12)
        readiness = flow.readiness()
    finally:
        # Other flows of this cluster select it, and lack it.
        librdkafka_tools.delete_topic(flow.source, flow.topic)
    (topic,) = readiness.topics
    assert topic.lag == RECORDS - 12
    assert readiness.lag == (0 if is_heartbeats else RECORDS - 12)
    assert (Reason.LAG in reasons(readiness)) == (not is_heartbeats)


def test_a_remote_log_that_has_lost_its_end_is_reported(flow: RecordedFlow) -> None:
    flow.copy(12, recorded=18)
    readiness = flow.readiness()
    assert (
        "the remote log ends at 15, and records up to 21 were copied"
        in (reasons(readiness)[Reason.REMOTE_LOST])
    )
    assert not readiness.lag_is_all


@pytest.mark.parametrize("commits", ["true", "false"])
def test_copies_that_a_flow_has_gone_on_without_are_reported(pair: Pair, commits: str) -> None:
    """Goal: not once the source has deleted the records, too; a group that lacks them is named."""
    flow = RecordedFlow(pair, **{"sync.group.offsets.enabled": commits})
    lost = LostCopies(Offset(4), Offset(9), Offset(1), Offset(SHIFT))
    flow.copy(RECORDS - 9, begin=9, behind_another=True, losses=(lost,))
    behind = f"behind-{flow.topic}"
    librdkafka_tools.commit(flow.source, behind, flow.topic, {0: 9})
    readiness = flow.readiness()
    found = reasons(readiness)
    assert "lost copies of offsets [4, 9), which the source keeps" in found[Reason.COPIES_LOST]
    assert "all copies of offsets [0, 4), which the source keeps" in found[Reason.NOT_COMPARED]
    assert (readiness.lag, readiness.lag_is_all) == (0, False)
    assert Reason.GROUP_SKIPS not in found
    delete_before(flow.source, [(flow.topic, 0, 5)])
    found = reasons(flow.readiness())
    assert "lost copies of offsets [5, 9)" in found[Reason.COPIES_LOST]
    assert Reason.NOT_COMPARED not in found
    delete_before(flow.source, [(flow.topic, 0, 9)])
    readiness = flow.readiness()
    assert readiness.lag_is_all
    assert not {Reason.COPIES_LOST, Reason.NOT_COMPARED} & reasons(readiness).keys()


def test_copies_in_front_of_a_map_may_be_deleted(pair: Pair) -> None:
    """Goal: after a takeover nobody knows where they are: a log that begins later has lost some.

    Not if it is whole, nor if what it has deleted has expired on the source.
    """
    flow = RecordedFlow(pair)
    flow.copy(RECORDS - 9, begin=9, behind_another=True)

    def doubts() -> list[str]:
        return [
            one.text for one in flow.readiness().all_findings() if one.reason is Reason.NOT_COMPARED
        ]

    assert not doubts()
    delete_before(flow.target, [(flow.remote, 0, 1)])
    [doubt] = doubts()
    assert "has deleted copies of offsets [0, 9), which the source keeps" in doubt
    assert not flow.readiness().lag_is_all
    delete_before(flow.source, [(flow.topic, 0, 9)])
    assert not doubts()


def test_ordinary_retention_in_front_of_a_map_is_no_finding(pair: Pair) -> None:
    """Goal: a flow that has taken over is not doubted for as long as old copies are there.

    The source has four records that are expired, and the target has deleted one of them.
    """
    flow = RecordedFlow(pair)
    now_ms = time.time_ns() // 1_000_000
    times_ms = [now_ms - HOUR_MS * 24 * 365] * 4 + [now_ms - 5000 + at for at in range(6)]
    topic = f"old-{flow.topic}"

    async def doubtful(log_start: int) -> dict[TopicPartition, Below]:
        remote, key = TopicPartition(flow.remote, 0), TopicPartition(topic, 0)
        fronts = {key: Front(remote, log_start, 0, 10)}
        async with client(pair.source) as source, client(pair.destination) as target:
            logs = {key: SourceLog(0, 10, 10, 10)}
            return await may_lack(source, target, logs, fronts)

    retention = {"retention.ms": str(HOUR_MS), "segment.bytes": str(1 << 30)}
    librdkafka_tools.make_topic(flow.source, topic, config=retention)
    for servers, name in ((flow.source, topic), (flow.target, flow.remote)):
        producer = Producer({"bootstrap.servers": servers})
        for at_ms in times_ms:
            producer.produce(name, "v", partition=0, timestamp=at_ms)
        assert producer.flush(120) == 0
    assert asyncio.run(doubtful(1)) == {}
    assert asyncio.run(doubtful(4)) == {TopicPartition(topic, 0): (4, 10)}
    delete_before(flow.target, [(flow.remote, 0, 6)])
    assert asyncio.run(doubtful(6)) == {TopicPartition(topic, 0): (4, 10)}


def test_groups_are_judged_by_their_checkpoints(flow: RecordedFlow) -> None:
    """Goal: one that is right, one behind, one without a checkpoint, one that has read more."""
    flow.copy(12)
    groups = {"right": 5, "behind": 9, "missing": 4, "ahead": 15, "rewound": 2}
    names = {name: f"{name}-{flow.topic}" for name in groups}
    for name, offset in groups.items():
        librdkafka_tools.commit(flow.source, names[name], flow.topic, {0: offset})
    flow.checkpoint(names["right"], 5, 5 + SHIFT)
    flow.checkpoint(names["behind"], 6, 6 + SHIFT)
    flow.checkpoint(names["ahead"], 12, 12 + SHIFT)
    flow.checkpoint(names["rewound"], 7, 7 + SHIFT)
    found = flow.readiness()
    facts = {name: group_of(found, full) for name, full in names.items()}
    assert all(facts.values()), facts
    counts = {n: (g.due, g.behind, g.missing, g.ahead) for n, g in facts.items() if g is not None}
    assert counts == {
        "right": (0, 0, 0, 0),
        "behind": (1, 3, 0, 0),
        "missing": (1, 4, 1, 0),
        "ahead": (0, 0, 0, 15 - 12),
        "rewound": (0, 0, 0, 0),
    }
    assert facts["rewound"] is not None
    assert [(skip.source, skip.destination) for skip in facts["rewound"].skips] == [(2, 7)]
    texts = [text.text for text in found.all_findings()]
    assert any(names["behind"] in text for text in texts)
    assert not any(names["right"] in text for text in texts)


@pytest.mark.parametrize("commits", ["true", "false"])
def test_a_group_in_front_of_where_the_flow_began_is_reported(pair: Pair, commits: str) -> None:
    """Goal: it is at the flow's beginning on the target, and would skip what is in front of it."""
    flow = RecordedFlow(pair, **{"sync.group.offsets.enabled": commits})
    flow.copy(8, begin=12)
    groups = {f"{name}-{flow.topic}": at for name, at in (("front", 7), ("at-begin", 12))}
    for group, offset in groups.items():
        librdkafka_tools.commit(flow.source, group, flow.topic, {0: offset})
        librdkafka_tools.commit(flow.target, group, flow.remote, {0: SHIFT})
        flow.checkpoint(group, offset, SHIFT)
    readiness = flow.readiness()
    skipped = reasons(readiness)[Reason.GROUP_SKIPS]
    assert f"group front-{flow.topic} would skip records of {flow.topic}-0 (source 7" in skipped
    assert "at-begin" not in skipped
    assert Reason.GROUP_BEHIND not in reasons(readiness)
    found = [group_of(readiness, group) for group in groups]
    assert [one and one.unread for one in found] == [13, 8]


def test_old_heartbeats_and_checkpoints_are_reported(flow: RecordedFlow) -> None:
    """Goal: their age is told; old ones are findings, and recent ones are none."""
    flow.copy(RECORDS)
    group = f"g-{flow.topic}"
    librdkafka_tools.commit(flow.source, group, flow.topic, {0: 5})
    assert "heartbeats: none of the last" in reasons(flow.readiness())[Reason.HEARTBEAT]

    def beat(age_ms: int) -> None:
        record = Heartbeat(
            source_cluster_alias=flow.alias,
            target_cluster_alias="b",
            timestamp=time.time_ns() // 1_000_000 - age_ms,
        )
        flow.keep_books("heartbeats", [record])

    flow.checkpoint(group, 5, 5 + SHIFT, age_ms=HOUR_MS)
    beat(HOUR_MS)
    readiness = flow.readiness()
    assert readiness.flow is not None
    assert readiness.flow.heartbeat_age_ms is not None
    assert 0 <= readiness.flow.heartbeat_age_ms - HOUR_MS < 60_000
    assert "heartbeats: the last one is 36" in reasons(readiness)[Reason.HEARTBEAT]
    assert "checkpoints: the last one is 36" in reasons(readiness)[Reason.CHECKPOINT]
    flow.checkpoint(group, 5, 5 + SHIFT)
    beat(0)
    found = reasons(flow.readiness())
    assert not {Reason.HEARTBEAT, Reason.CHECKPOINT} & found.keys(), found


def test_a_flow_that_translates_no_groups_says_so(pair: Pair) -> None:
    for settings in ({"emit.checkpoints.enabled": "false"}, {"transaction.producer": "true"}):
        found = reasons(RecordedFlow(pair, **settings).readiness())
        assert "translates no offsets" in found[Reason.GROUP_NOT_COPIED]
        assert (Reason.NOT_COMPARED in found) == ("transaction.producer" in settings)


@pytest.mark.parametrize(
    ("refreshes", "what"),
    [("true", "the next refresh adds it"), ("false", "a node that starts anew adds it")],
)
def test_a_topic_that_is_not_added_yet_is_named(pair: Pair, refreshes: str, what: str) -> None:
    name = f"new-{secrets.token_hex(4)}"
    settings = {"topics": f"t-.*, {name}", "refresh.topics.enabled": refreshes}
    flow = RecordedFlow(pair, **settings)
    librdkafka_tools.make_topic(flow.source, name)
    found = [each.text for each in flow.readiness().all_findings()]
    assert any(name in text and what in text for text in found), found


def test_a_topic_that_the_settings_do_not_select_is_named(pair: Pair) -> None:
    """Goal: it does not go on without a word after `kafka-mirrors --alter`."""
    flow = RecordedFlow(pair, topics="other")
    assert "settings do not select it" in reasons(flow.readiness())[Reason.NOT_SELECTED]


def test_topics_that_another_flow_copies_too_are_named(pair: Pair) -> None:
    """Goal: an earlier version has added one to both flows; another one is left to that flow."""
    taken, name = f"taken-{secrets.token_hex(4)}", f"other-{secrets.token_hex(4)}"
    flow = RecordedFlow(pair, topics=taken)  # other tests have topics in these clusters
    librdkafka_tools.make_topic(flow.source, taken)

    async def store(cluster: KafkaCluster) -> None:
        mirrors = MirrorStore(cluster)
        snapshot = await mirrors.snapshot()
        (both,) = snapshot.topics_of(flow.flow)
        other = replace(snapshot.mirrors[flow.flow], name=name)
        remote = f"{flow.alias}.{taken}"
        copied = replace(both, mirror=name, topic=taken, destination_topic=remote)
        await mirrors.change(lambda _: [other, replace(both, mirror=name), copied])

    flow.on_target(store)
    readiness = flow.readiness()
    assert f"{name} copies it to the same remote topic" in reasons(readiness)[Reason.COPIED_TWICE]
    found = [each.text for each in readiness.all_findings()]
    assert any(taken in text and f"not added: {name} copies it" in text for text in found), found


def test_a_topic_that_only_one_broker_knows_is_named(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: the broker that answers first may be behind, as with partitions of topics."""
    name = f"new-{secrets.token_hex(4)}"
    flow = RecordedFlow(pair, topics=f"t-.*, {name}")

    async def known(_: object) -> dict[str, KnownTopic]:
        ids = frozenset({UUID(int=1)})
        more = KnownTopic(ids, 2, internal=False)
        return {name: KnownTopic(ids, 1, internal=False, everywhere=False), flow.topic: more}

    monkeypatch.setattr(source_topics, "known_topics", known)
    found = reasons(flow.readiness())
    assert name in found[Reason.NOT_MIRRORED]
    assert Reason.NEW_PARTITIONS in found


def test_a_committed_position_of_a_former_topic_is_no_position(pair: Pair) -> None:
    """Goal: a source topic that was recreated is not copied because its name once was."""
    flow = RecordedFlow(pair, **{"transaction.producer": "true"})
    ids: list[UUID] = []

    async def read(cluster: KafkaCluster) -> None:
        (topic,) = (await MirrorStore(cluster).snapshot()).topics_of(flow.flow)
        ids.append(topic.topic_id)

    flow.on_target(read)
    for topic_id, lag in ((UUID(int=9), RECORDS), (ids[0], RECORDS - 12)):
        metadata = position_metadata(Route(topic_id, flow.remote, None), None)
        place = Place(flow.remote, 0, 12, metadata=metadata)
        with librdkafka_tools.consumer(
            flow.target, position_group(LANES_GROUP, flow.flow)
        ) as client:
            librdkafka_tools.commit_as(client, [place])
        assert flow.readiness().lag == lag
