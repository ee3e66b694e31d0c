"""Which topics of the source a flow adds; with brokers: tests/end_to_end/test_flows.py.

Also, when it leaves the configurations of remote topics alone.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from sync_contexts import snapshot_of, sync_context

from twinlog.kafka.client.metadata import NO_TOPIC_ID
from twinlog.kafka.errors import Retriable, UserError
from twinlog.kafka.requests.partitions import ListedOffset
from twinlog.kafka.requests.topics import ConfigEntry, ConfigSource, KnownTopic
from twinlog.kafka.types import TopicPartition
from twinlog.lifecycle import flow_ends
from twinlog.lifecycle.flow_creation import stored_properties
from twinlog.lifecycle.flow_takeover import FlowTakeover
from twinlog.lifecycle.flow_topics import FlowClusters
from twinlog.mirror.flow import flow_properties
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.settings import REFRESH, check_settings
from twinlog.mirror.states import State
from twinlog.mirror.topic_configs import ConfigOrigin, SourceConfig
from twinlog.store import shared_remotes
from twinlog.store.config_records import ConfigRecord, Mirror, MirrorTopic, Wanted, encode
from twinlog.store.snapshot import SettingsReplaced, Snapshot, StoredRecord, require_settings
from twinlog.store.status_records import PartitionStatus, Status
from twinlog.sync import configs, flow_begins, flow_topics, recreated_sources, topic_identity
from twinlog.sync.base import run_sync
from twinlog.sync.flow_topics import SEARCH_S, FlowChanges, FlowConfigs, FlowTopics

ONCE = {"enabled": "true", "topics": "t.*", "refresh.topics.enabled": "false"}


class Flow:
    """A flow of topics `t...` that looks for topics once, and a source in memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **settings: str) -> None:
        properties = flow_properties({**ONCE, **settings}, "a", "b")
        self.mirror = Mirror(name="m", source=properties, source_cluster_id="s")
        self.ids: dict[str, UUID] = {}
        self.topics: list[MirrorTopic] = []
        self.hidden: set[str] = set()
        """Topics that the broker which answers does not show."""
        self.others: list[ConfigRecord] = []
        """Other mirrors, and their topics."""
        self.elsewhere: dict[str, UUID] = {}
        """The ids that another broker of the source shows, where they are other ones."""
        self.unreachable = False
        self.now = 0.0
        self.sync = self.start()
        monkeypatch.setattr(flow_topics, "topic_names", self.topic_names)
        monkeypatch.setattr(flow_topics, "known_topics", self.known_topics)

    def start(self) -> FlowTopics:
        """Start another node."""
        self.sync = FlowTopics(lambda: self.now)
        return self.sync

    async def topic_names(self, _: object) -> set[str]:
        """The topics that some broker knows."""
        if self.unreachable:
            raise Retriable("a broker does not answer")
        return {*self.ids}

    async def known_topics(self, _: object, names: Collection[str]) -> dict[str, KnownTopic]:
        """The ids of topics, by all brokers."""
        if self.unreachable:
            raise Retriable("a broker does not answer")
        return {
            name: KnownTopic(frozenset({topic_id, self.elsewhere.get(name, topic_id)}), 1, False)
            for name, topic_id in self.ids.items()
            if name in names
        }

    async def refresh(self, _: None) -> Any:
        topics = {
            name: SimpleNamespace(topic_id=topic_id, partitions=range(1))
            for name, topic_id in self.ids.items()
            if name not in self.hidden
        }
        return SimpleNamespace(topics=topics)

    def add(self, name: str) -> None:
        self.topics.append(
            MirrorTopic(mirror="m", topic=name, topic_id=self.ids[name], partitions=1)
        )

    def new(self, after_s: float = 1.0) -> set[str]:
        """The topics that a check finds to be added, so long after the last one."""
        return set(self.compared(after_s).new)

    def compared(self, after_s: float = 1.0) -> FlowChanges:
        """What a check finds, so long after the last one."""
        self.now += after_s
        snapshot = snapshot_of(self.mirror, *self.topics, *self.others)
        wanted = [topic for topic in self.topics if topic.wanted is not Wanted.STOPPED]
        context = sync_context(self, None, None, snapshot=snapshot, topics=wanted, same=wanted)
        return asyncio.run(self.sync.compare(context))


NEVER = [
    {"refresh.topics.enabled": "false"},
    {"refresh.topics.enabled": "true", "refresh.topics.interval.seconds": "-1"},
]


@pytest.fixture
def flow(monkeypatch: pytest.MonkeyPatch) -> Flow:
    return Flow(monkeypatch)


@pytest.mark.parametrize("settings", NEVER)
def test_a_flow_looks_once_until_it_has_all_topics(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, str]
) -> None:
    """Goal: one topic that was added first, or alone, does not stand for the others."""
    flow = Flow(monkeypatch, **settings)
    flow.ids = {"t1": UUID(int=1), "t2": UUID(int=2), "other": UUID(int=3)}
    flow.add("t1")
    assert flow.new() == {"t2"}
    assert flow.new(SEARCH_S) == {"t2"}, "it was not added: the destination did not answer"
    flow.add("t2")
    assert flow.new() == set()
    assert flow.new(SEARCH_S) == set()
    flow.ids["t3"] = UUID(int=4)
    assert flow.new() == set(), "topics are not refreshed"
    flow.start()
    assert flow.new() == {"t3"}, "as MirrorMaker 2, when it starts"


def test_a_topic_of_another_flow_does_not_keep_the_search_going(flow: Flow) -> None:
    """Goal: it is never added, and topics that are created months later are not either."""
    flow.ids = {"t1": UUID(int=1), "t2": UUID(int=2)}
    flow.add("t1")
    copy = MirrorTopic(mirror="o", topic="t2", topic_id=UUID(int=2), partitions=1)
    flow.others = [replace(flow.mirror, name="o"), replace(copy, destination_topic="a.t2")]
    assert [flow.new(), flow.new(SEARCH_S)] == [set(), set()]
    flow.ids["t3"] = UUID(int=3)
    assert flow.new() == set()
    assert flow.sync.interval_s(flow.mirror) == 0, "partitions are looked for all the same"


def test_one_answer_without_a_topic_does_not_end_the_search(flow: Flow) -> None:
    """Goal: a broker that was just restarted shows a part of the topics, in one answer."""
    flow.ids = {"t1": UUID(int=1), "t2": UUID(int=2)}
    flow.add("t1")
    flow.hidden = {"t2"}
    assert flow.new() == set()
    flow.hidden = set()
    assert flow.new() == {"t2"}


def test_a_broker_that_knows_more_keeps_the_search_going(flow: Flow) -> None:
    """Goal: one that is behind for long, and gives all answers, does not end the search."""
    flow.ids = {"t1": UUID(int=1), "t2": UUID(int=2)}
    flow.add("t1")
    flow.hidden = {"t2"}
    for _ in range(10):
        assert flow.new(SEARCH_S) == set()
    flow.hidden = set()
    assert flow.new() == {"t2"}


def test_a_broker_that_does_not_answer_keeps_the_search_going(flow: Flow) -> None:
    """Goal: it may be the one that knows a topic. What else the check has found is not lost."""
    flow.ids = {"t1": UUID(int=1)}
    flow.add("t1")
    flow.unreachable = True
    for _ in range(3):
        assert flow.new(SEARCH_S) == set()
    flow.ids["t2"] = UUID(int=2)
    assert flow.new() == {"t2"}


def test_the_interval_begins_when_nothing_is_left_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the next refresh looks again after a find, and while it is unknown where to begin."""
    passes = {"refresh.topics.enabled": "true", "twinlog.data.loss": "continue"}
    flow = Flow(monkeypatch, **passes)

    def interval() -> float:
        return flow.sync.interval_s(flow.mirror)

    flow.ids = {"t1": UUID(int=1)}
    assert flow.new() == {"t1"}
    assert interval() == 0, "an answer may have shown a part of the topics"
    flow.add("t1")
    assert flow.new() == set()
    assert interval() == 600
    flow.ids["t1"] = UUID(int=9)
    assert flow.new() == set()
    assert interval() == 0, "a recreated topic is removed, and then added"
    flow.ids["t1"] = UUID(int=1)
    flow.new()
    flow.sync._begins.incomplete.add("m")
    assert interval() == 0
    flow.sync._begins.incomplete.clear()
    assert interval() == 600


def test_a_flow_without_topics_looks_again(flow: Flow) -> None:
    for _ in range(3):
        assert flow.new(SEARCH_S) == set()
    flow.ids["t1"] = UUID(int=1)
    assert flow.new() == {"t1"}


def test_a_recreated_topic_is_added_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: with `twinlog.data.loss=continue`, also where the flow looks once."""
    flow = Flow(monkeypatch, **{"twinlog.data.loss": "continue"})
    flow.ids = {"t1": UUID(int=1), "t2": UUID(int=2)}
    flow.add("t1")
    flow.add("t2")
    for _ in range(2):
        assert flow.new(SEARCH_S) == set()
    flow.ids["t1"] = UUID(int=9)
    assert flow.new() == set(), "it is removed first"
    (first, second) = flow.topics
    flow.topics = [
        MirrorTopic(
            mirror="m",
            topic="t1",
            topic_id=first.topic_id,
            partitions=1,
            wanted=Wanted.STOPPED,
            source_deleted=True,
        ),
        second,
    ]
    assert flow.new() == {"t1"}


def test_a_topic_is_not_recreated_while_a_broker_of_the_source_shows_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: a broker that is cut off shows a topic that was deleted before; nothing is copied anew.

    Nor is it known while a broker does not answer. Each refresh looks again.
    """
    flow = Flow(monkeypatch, **{"twinlog.data.loss": "continue", "refresh.topics.enabled": "true"})
    flow.ids = {"t1": UUID(int=1)}
    flow.add("t1")
    flow.ids, flow.elsewhere = {"t1": UUID(int=9)}, {"t1": UUID(int=1)}
    assert flow.compared().recreated == []
    assert flow.sync.interval_s(flow.mirror) == 0
    flow.elsewhere, flow.unreachable = {}, True
    assert flow.compared().recreated == []
    flow.unreachable = False
    assert flow.compared().recreated == flow.topics


@pytest.mark.parametrize(
    ("known", "level", "text"),
    [
        ((None, None), "WARNING", "lost, if there were any (t1-0: unknown what was copied)"),
        (((), 9), "WARNING", "lost, if there were any (t1-0: copied up to offset 9 at least)"),
        (((), -1), "WARNING", "lost, if there were any (t1-0: unknown what was copied)"),
        (
            ((-1, -1), 9),
            "WARNING",
            "lost, if there were any (t1-0: copied up to offset 9 at least)",
        ),
        # Its owner has found the new topic, and does not copy: the end may be the new one's.
        (
            ((20, -1), 9),
            "WARNING",
            "lost, if there were any (t1-0: copied up to offset 9 at least)",
        ),
        (((20, 15), 9), "ERROR", "lost (t1-0, offsets [15, 20) at least)"),
        (((20, 15), 18), "ERROR", "lost (t1-0, offsets [18, 20) at least)"),
        (((20, 0), -1), "ERROR", "lost (t1-0, offsets [0, 20) at least)"),
        (((20, 15), 20), "WARNING", "lost, if there were any (t1-0: copied up to offset 20 at"),
        # The rest is of an open transaction, which was never committed.
        (((20, 15, 15), 9), "WARNING", "lost, if there were any (t1-0: copied up to offset 15 at"),
        (((20, 15, 17), 9), "ERROR", "lost (t1-0, offsets [15, 17) at least)"),
        (((20, 20), 9), "WARNING", "lost, if there were any (t1-0: copied up to offset 20 at"),
    ],
)
def test_a_recreated_topic_is_logged_with_what_was_not_copied(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    known: tuple[tuple[int, ...] | None, int | None],
    level: str,
    text: str,
) -> None:
    """Goal: with `twinlog.data.loss=continue` as well, a loss is reported with its range.

    Without a record that is known to be lost, it is no error, and nothing is said to be lost.
    """
    row, recorded = known
    flow = Flow(monkeypatch, **{"twinlog.data.loss": "continue"})
    flow.ids = {"t1": UUID(int=1)}
    flow.add("t1")
    [topic] = flow.topics
    flow.ids["t1"] = UUID(int=9)
    sync = FlowTopics(lambda: 0.0)

    async def read_ends(_: object, topics: list[MirrorTopic]) -> dict[TopicPartition, int]:
        if recorded is None:
            raise UserError("__mirror_offsets was deleted")
        assert topics == [topic]
        return {} if recorded < 0 else {TopicPartition("t1", 0): recorded}

    monkeypatch.setattr(recreated_sources, "read_ends", read_ends)

    class Store:
        broken = True

        async def statuses(self) -> tuple[dict[int, Status], tuple[str, ...]]:
            if row is None:
                raise Retriable("no answer")
            if not row:
                return {}, ()
            name = MirrorPartition("m", "t1", 0)
            partition = PartitionStatus(
                partition=name,
                state=State.MIRRORING,
                source_end=row[0],
                mirrored_end=row[1],
                source_last_stable=row[2] if len(row) > 2 else -1,
            )
            parts = (partition,)
            return {
                0: Status(state_partition=0, lane="l", node="n", time_ms=1, partitions=parts)
            }, ()

        async def change(self, decide: Callable[[Snapshot], Any]) -> None:
            if self.broken:
                raise Retriable("no answer")
            [changed] = decide(context.snapshot)
            assert (changed.wanted, changed.source_deleted) == (Wanted.STOPPED, True)

    store = Store()
    snapshot = snapshot_of(flow.mirror, topic)
    context = sync_context(flow, None, store, snapshot=snapshot, topics=[topic], same=[])
    with pytest.raises(Retriable):
        asyncio.run(run_sync(sync, context))
    store.broken = False
    asyncio.run(run_sync(sync, context))
    last = [record for record in caplog.records if "recreated" in record.message][-1]
    assert last.levelname == level
    assert (
        f"recreated on the source: records of the former topic that were not copied are {text}"
        in last.message
    )


class Growing(Flow):
    """A flow whose topics may have more partitions, with what is stored of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **settings: str) -> None:
        super().__init__(monkeypatch, **settings)
        self.counts = {"t1": 1}
        self.ids = {"t1": UUID(int=1)}
        self.added: dict[str, object] = {}
        self.end = 7
        monkeypatch.setattr(flow_begins, "known_topics", self.known_topics)
        monkeypatch.setattr(flow_ends, "list_offsets", self.list_offsets)
        monkeypatch.setattr(FlowClusters, "add", self.add_topics)

    async def refresh(self, _: None) -> Any:
        topics = {
            name: SimpleNamespace(name=name, topic_id=one, partitions=range(self.counts[name]))
            for name, one in self.ids.items()
        }
        return SimpleNamespace(topics=topics)

    async def known_topics(self, *_: object) -> dict[str, KnownTopic]:
        return {
            name: KnownTopic(frozenset({topic_id}), self.counts[name], internal=False)
            for name, topic_id in self.ids.items()
        }

    async def list_offsets(self, _: object, partitions: list[Any], **__: object) -> dict[Any, Any]:
        return {partition: ListedOffset(self.end, -1, -1) for partition in partitions}

    async def add_topics(self, _: Mapping[str, Any], names: Mapping[str, str], **more: Any) -> None:
        for name in names:
            self.added[name] = more["followed_from"].get(name)

    async def change(self, decide: Callable[[Any], list[MirrorTopic]]) -> None:
        """As the store does."""
        changed = {one.topic: one for one in decide(SimpleNamespace(topics=self.topics))}
        self.topics = [changed.get(topic.topic, topic) for topic in self.topics]

    def run(self) -> int:
        """Refresh; return how many failures it has counted."""
        snapshot = snapshot_of(self.mirror, *self.topics, *self.others)
        here = {one.destination_name: SimpleNamespace(partitions=range(9)) for one in self.topics}
        topics = [topic for topic in self.topics if topic.wanted is not Wanted.STOPPED]
        context = sync_context(self, None, self, snapshot=snapshot, topics=topics, here=here)
        return asyncio.run(run_sync(self.sync, context))


REFRESHED = {"refresh.topics.enabled": "true"}
LATEST = {**REFRESHED, "consumer.auto.offset.reset": "latest"}


@pytest.mark.parametrize("refreshed", ["true", "false"])
@pytest.mark.parametrize(
    ("loss", "present", "outcome"),
    [
        ("continue", UUID(int=9), ({"t1"}, 1, 0)),
        ("fail", UUID(int=9), (set(), 0, 1)),
        ("continue", NO_TOPIC_ID, (set(), 0, 1)),
        ("fail", NO_TOPIC_ID, (set(), 0, 1)),
        ("fail", UUID(int=1), ({"t1"}, 0, 0)),
    ],
)
def test_a_topic_that_was_deleted_and_returns_later(
    monkeypatch: pytest.MonkeyPatch,
    refreshed: str,
    loss: str,
    present: UUID,
    outcome: tuple[set[str], int, int],
) -> None:
    """Goal: as one that is recreated at once: with `fail`, not copied as if nothing was lost.

    One with the same id had only been missing in the answers; a topic without an id may be any.
    """
    flow = Growing(monkeypatch, **{"refresh.topics.enabled": refreshed, "twinlog.data.loss": loss})
    flow.sync._complete.add("m")
    flow.add("t1")
    counted: list[int] = []
    monkeypatch.setattr(flow.sync, "_failed", lambda *count: counted.append(count[2]))
    former = NO_TOPIC_ID if present == NO_TOPIC_ID else UUID(int=1)
    flow.topics = [
        replace(flow.topics[0], topic_id=former, wanted=Wanted.STOPPED, source_deleted=True)
    ]
    flow.ids["t1"] = present
    flow.ids["t2"], flow.counts["t2"] = UUID(int=2), 1
    shown = {"t2"} if refreshed == "true" else set[str]()  # else it waits for another node
    failures = flow.run()
    assert (set(flow.added) - shown, sum(counted), failures) == outcome
    assert flow.run() == failures
    assert set(flow.added) - shown == outcome[0]


def test_a_partition_that_a_topic_gets_later_is_copied_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: with `latest`, records are not left out that were written before a refresh saw it."""
    flow = Growing(monkeypatch, **LATEST)
    flow.add("t1")
    assert flow.run() == 0
    assert [topic.followed_from for topic in flow.topics] == [(7,)]
    flow.counts["t1"], flow.end = 3, 20
    flow.start()  # another node
    assert flow.run() == 0
    (topic,) = flow.topics
    assert topic.partitions == 3
    assert [topic.follows_from(index) for index in range(4)] == [7, 0, 0, None]
    assert flow.run() == 0
    assert flow.topics == [topic]


def test_a_topic_that_is_created_later_is_copied_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: with `latest`, the record of a new topic has where it begins when it is stored."""
    flow = Growing(monkeypatch, **LATEST)
    assert flow.run() == 0
    flow.ids["t2"], flow.counts["t2"] = UUID(int=2), 2
    assert flow.run() == 0
    assert flow.added == {"t1": (7,), "t2": (0, 0)}


def test_partitions_of_other_flows_have_no_stored_beginning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flow = Growing(monkeypatch, **REFRESHED)
    assert flow.run() == 0
    flow.add("t1")
    flow.counts["t1"] = 2
    assert flow.run() == 0
    assert flow.added == {"t1": None}
    assert [(topic.partitions, topic.followed_from) for topic in flow.topics] == [(2, ())]


def test_partitions_of_a_recreated_topic_are_none_of_the_former_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: it was recreated with more of them since the refresh has compared ids."""
    flow = Growing(monkeypatch, **LATEST)
    flow.add("t1")
    flow.ids["t1"], flow.counts["t1"] = UUID(int=9), 5
    assert flow.run() == 0
    assert [(topic.partitions, topic.followed_from) for topic in flow.topics] == [(1, ())]


def test_topics_that_share_a_copy_grow_in_one_refresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the second one does not ask for fewer partitions than the copy has got by the first."""
    flow = Growing(monkeypatch, **REFRESHED)
    flow.ids = {"t1": UUID(int=1), "t2": UUID(int=2), "t3": UUID(int=3)}
    flow.topics = [
        MirrorTopic(mirror="m", topic=name, topic_id=one, partitions=1, destination_topic="common")
        for name, one in flow.ids.items()
    ]
    flow.counts = {"t1": 12, "t2": 10, "t3": 14}
    asked: list[Mapping[str, int]] = []

    async def grow(_: FlowClusters, counts: Mapping[str, int]) -> None:
        asked.append(counts)

    monkeypatch.setattr(FlowClusters, "grow", grow)
    assert flow.run() == 0
    assert asked == [{"common": 12}, {"common": 14}]
    assert [topic.partitions for topic in flow.topics] == [12, 10, 14]


def test_why_a_topic_is_refused_is_logged_once_and_counted_each_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: alerts show it for as long as it lasts, and the log is not filled; others are added."""
    flow = Growing(monkeypatch, **REFRESHED)
    flow.ids = {name: UUID(int=number) for number, name in enumerate(("t1", "t2"), 1)}
    flow.counts = dict.fromkeys(flow.ids, 1)
    refused = {"t1": "other-flow copies it"}

    async def add(_: FlowClusters, __: object, names: Mapping[str, str], **___: object) -> None:
        (name,) = names
        if name in refused:
            raise UserError(refused[name])
        flow.add(name)

    monkeypatch.setattr(FlowClusters, "add", add)
    assert [flow.run(), flow.run()] == [1, 1]
    assert [topic.topic for topic in flow.topics] == ["t2"]
    text = "flow m: t1 is not copied: other-flow copies it"
    assert caplog.text.count(text) == 1
    flow.sync.forget(lambda _: True)
    assert flow.run() == 1
    assert caplog.text.count(text) == 2, "another node may have had the flow meanwhile"
    refused["t1"] = "the partition limit is reached"
    assert flow.run() == 1
    assert "t1 is not copied: the partition limit" in caplog.text
    refused.clear()
    assert flow.run() == 0
    assert flow.topics.pop().topic == "t1"
    refused["t1"] = "the partition limit is reached"
    assert flow.run() == 1
    assert caplog.text.count("the partition limit is reached") == 2, "it was added in between"


@pytest.mark.parametrize("again", [False, True])
def test_a_check_ends_when_the_settings_are_replaced(
    monkeypatch: pytest.MonkeyPatch, *, again: bool
) -> None:
    """Goal: of many topics, none is tried by the former settings; the next refresh looks again."""
    flow = Growing(monkeypatch, **REFRESHED, **{"twinlog.takeover": "ignore"})
    flow.ids = {f"t{number}": UUID(int=number) for number in range(1, 6)}
    flow.counts = dict.fromkeys(flow.ids, 1)
    stored, tried = flow.mirror, list[str]()
    if again:
        for name in ("t1", "t2"):
            flow.add(name)
        flow.topics = [
            replace(topic, wanted=Wanted.STOPPED, not_selected=True) for topic in flow.topics
        ]

    async def snapshot() -> Snapshot:
        return snapshot_of(stored)

    async def add(
        clusters: FlowClusters, _: object, names: Mapping[str, str], **__: object
    ) -> None:
        tried.extend(names)
        require_settings(await snapshot(), clusters.mirror)
        flow.add(*names)

    async def select_again(_: object, mirror: Mirror, topic: MirrorTopic) -> bool:
        tried.append(topic.topic)
        flow.topics.remove(topic)
        flow.add(topic.topic)
        return mirror == stored

    monkeypatch.setattr(flow, "snapshot", snapshot, raising=False)
    monkeypatch.setattr(FlowClusters, "add", add)
    monkeypatch.setattr(flow_topics, "select_again", select_again)
    topics = list(flow.topics)
    stored = replace(stored, source={**stored.source, "mirror.flow.topics.exclude": "t[345]"})
    with pytest.raises(SettingsReplaced, match="settings of flow m have changed"):
        flow.run()
    assert tried == ["t1"]
    assert flow.sync.interval_s(flow.mirror) == 0
    flow.mirror, flow.topics = stored, topics
    assert flow.run() == 0
    assert tried == ["t1", "t1", "t2"]


def test_topics_that_two_flows_have_are_logged_once_and_counted_each_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: an earlier version has added them to both. No flow stops, and both are named."""
    flow = Growing(monkeypatch, **REFRESHED)
    flow.add("t1")
    other = replace(flow.mirror, name="o")
    both: list[ConfigRecord] = [other, replace(flow.topics[0], mirror="o")]
    flow.others = both
    assert [flow.run(), flow.run()] == [1, 1]
    text = "which have each record twice: t1 (o); remove them from one flow"
    assert caplog.text.count(text) == 1
    assert [topic.wanted for topic in flow.topics] == [Wanted.MIRRORING]
    flow.others = [other, replace(flow.topics[0], mirror="o", wanted=Wanted.STOPPED)]
    assert flow.run() == 0
    flow.others = both
    assert flow.run() == 1
    assert caplog.text.count(text) == 2
    flow.others = [replace(other, source_cluster_id="another"), *both[1:]]
    assert flow.run() == 0


@pytest.mark.parametrize(
    ("settings", "asked"),
    [
        ({}, True),
        ({"sync.topic.configs.enabled": "false"}, False),
        ({"sync.topic.configs.interval.seconds": "-1"}, False),
    ],
)
def test_configurations_that_are_not_synced_are_not_even_read(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], asked: bool
) -> None:
    """Goal: a remote topic that keeps its records for longer is not shortened to the source's."""
    flow, asks = Flow(monkeypatch, **settings), []
    flow.ids = {"t1": UUID(int=1)}
    flow.add("t1")

    async def read(*_: object) -> dict[object, object]:
        asks.append(1)
        raise LookupError

    monkeypatch.setattr(flow_topics, "known_configs", read)
    snapshot = snapshot_of(flow.mirror, *flow.topics)
    context = sync_context(
        flow, None, None, snapshot=snapshot, topics=flow.topics, same=flow.topics
    )
    compared = FlowConfigs().compare(context)
    if asked:
        with pytest.raises(LookupError):
            asyncio.run(compared)
    else:
        assert asyncio.run(compared).changes == {}
    assert bool(asks) is asked


@pytest.mark.parametrize("recreated", ["source", "destination", "neither"])
def test_the_copy_of_a_recreated_topic_keeps_its_configurations(
    monkeypatch: pytest.MonkeyPatch, recreated: str
) -> None:
    """Goal: a shorter retention of the new topic deletes no copies of the former one.

    It was recreated after the refresh had read its id, and one broker still shows the former id.
    """
    flow, former, new = Flow(monkeypatch), UUID(int=1), UUID(int=9)
    topic = MirrorTopic(
        mirror="m",
        topic="t1",
        topic_id=former,
        partitions=1,
        destination_topic="a.t1",
        destination_topic_id=former,
    )
    altered: list[object] = []

    async def broker_reports(*_: object) -> None:
        pass

    async def source_configs(_: object, names: list[str], _reports: None) -> dict[str, Any]:
        config = SourceConfig("60000", explicit=True, origin=ConfigOrigin.TOPIC)
        return {name: {"retention.ms": config} for name in names}

    async def remote_configs(_: object, resources: list[Any]) -> dict[Any, Any]:
        entry = ConfigEntry("604800000", ConfigSource.DEFAULT, read_only=False, sensitive=False)
        return {resource: {"retention.ms": entry} for resource in resources}

    async def known_configs(_: object) -> list[str]:
        return ["retention.ms"]

    async def known_topics(cluster: object, names: set[str]) -> dict[str, KnownTopic]:
        assert names == {"t1" if cluster == "source" else "a.t1"}
        ids = frozenset({former, new} if cluster == recreated else {former})
        return dict.fromkeys(names, KnownTopic(ids, 1, internal=False))

    async def alter(_: object, changes: Mapping[Any, Any]) -> dict[Any, None]:
        altered.extend(resource.name for resource in changes)
        return dict.fromkeys(changes)

    monkeypatch.setattr(flow_topics, "source_configs", source_configs)
    monkeypatch.setattr(flow_topics, "broker_reports", broker_reports)
    monkeypatch.setattr(flow_topics, "describe_configs", remote_configs)
    monkeypatch.setattr(flow_topics, "known_configs", known_configs)
    monkeypatch.setattr(topic_identity, "known_topics", known_topics)
    monkeypatch.setattr(configs, "incremental_alter_configs", alter)
    snapshot = snapshot_of(flow.mirror, topic)
    context = sync_context("source", "destination", None, snapshot=snapshot, topics=[topic])
    assert asyncio.run(run_sync(FlowConfigs(), context)) == 0
    assert altered == (["a.t1"] if recreated == "neither" else [])


def altered_copies(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The remote topics that are changed: all have a longer retention than the source's topics."""
    altered: list[str] = []

    async def nothing(*_: object) -> None: ...

    async def source_configs(_: object, names: list[str], __: object) -> dict[str, Any]:
        config = SourceConfig("60000", explicit=True, origin=ConfigOrigin.TOPIC)
        return {name: {"retention.ms": config} for name in names}

    async def remote_configs(_: object, resources: list[Any]) -> dict[Any, Any]:
        entry = ConfigEntry("604800000", ConfigSource.TOPIC, read_only=False, sensitive=False)
        return {resource: {"retention.ms": entry} for resource in resources}

    async def known_configs(_: object) -> list[str]:
        return ["retention.ms"]

    async def change_configs(_: object, changes: Mapping[str, object], __: str) -> list[str]:
        altered.extend(changes)
        return []

    async def recreated_topics(*_: object) -> list[MirrorTopic]:
        return []

    monkeypatch.setattr(flow_topics, "broker_reports", nothing)
    monkeypatch.setattr(flow_topics, "source_configs", source_configs)
    monkeypatch.setattr(flow_topics, "describe_configs", remote_configs)
    monkeypatch.setattr(flow_topics, "known_configs", known_configs)
    monkeypatch.setattr(flow_topics, "change_configs", change_configs)
    monkeypatch.setattr(flow_topics, "recreated_topics", recreated_topics)
    return altered


@pytest.mark.parametrize("removed", [{}, {"not_selected": True}, {"source_deleted": True}])
def test_a_remote_topic_keeps_the_records_of_a_removed_topic(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, removed: dict[str, Any]
) -> None:
    """Goal: the shorter retention of the topic that remains does not delete those of the other."""
    flow = Flow(monkeypatch)
    first = MirrorTopic(
        mirror="m", topic="t1", topic_id=UUID(int=1), partitions=1, destination_topic="all"
    )
    second = replace(first, topic="t2", topic_id=UUID(int=2))
    altered = altered_copies(monkeypatch)
    sync = FlowConfigs()

    def altered_with(*topics: MirrorTopic) -> list[str]:
        snapshot = snapshot_of(flow.mirror, *topics)
        same = [topic for topic in topics if topic.wanted is Wanted.MIRRORING]
        context = sync_context("source", "destination", None, snapshot=snapshot, topics=same)
        altered.clear()
        assert asyncio.run(run_sync(sync, context)) == 0
        return altered

    assert altered_with(first) == ["all"]
    assert altered_with(first, second) == ["all"]
    assert altered_with(first, replace(second, wanted=Wanted.PAUSED)) == []
    assert "is left as it is" not in caplog.text
    gone = replace(second, wanted=Wanted.STOPPED, **removed)
    for _ in range(2):
        assert altered_with(first, gone) == []
    text = (
        "all has the records of t1, t2, of which the flow no longer copies t2: retention.ms of all "
        "is left as it is"
    )
    assert caplog.text.count(text) == 1
    alone = replace(first, destination_topic="t2")
    assert altered_with(alone, gone) == ["t2"], "the removed topic has this name on the source only"


@pytest.mark.parametrize("shared", [False, True])
def test_a_remote_topic_may_have_records_of_a_topic_that_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, shared: bool
) -> None:
    """Goal: the shorter retention of those that can be read does not delete those of the other.

    By a policy of Kafka's it has a remote topic of its own.
    """
    flow = Flow(monkeypatch)
    altered = altered_copies(monkeypatch)
    topic = MirrorTopic(
        mirror="m", topic="t1", topic_id=UUID(int=1), partitions=1, destination_topic="all"
    )
    topics = [topic, replace(topic, topic="t2", topic_id=UUID(int=2))] if shared else [topic]
    readable = snapshot_of(flow.mirror, *topics)
    key, _ = encode(replace(topic, topic="t3", topic_id=UUID(int=3)))
    unread = readable.after([StoredRecord(0, 99, key, b"of a later version")])
    own_policy = True
    monkeypatch.setattr(shared_remotes, "has_properties_of_its_own", lambda _: own_policy)
    sync = FlowConfigs()

    def altered_by(snapshot: Snapshot) -> list[str]:
        context = sync_context("source", "destination", None, snapshot=snapshot, topics=topics)
        altered.clear()
        assert asyncio.run(run_sync(sync, context)) == 0
        return altered

    text = "topics of the flow that cannot be read may be copied to the same remote topics: t3"
    for times in (1, 2):
        for _ in range(2):
            assert altered_by(unread) == []
        assert caplog.text.count(f"{text}; configurations of all are left as they are") == times
        assert altered_by(readable) == ["all"]
    own_policy = False
    assert altered_by(unread) == ([] if shared else ["all"])


def test_what_never_happens_does_not_set_the_pace() -> None:
    """Goal: a refresh comes at the shortest interval of what is in use, once a day at least."""
    never = {
        "enabled": "true",
        "refresh.topics.interval.seconds": "-5",
        "sync.topic.acls.enabled": "false",
        "emit.checkpoints.enabled": "false",
        "emit.offset-syncs.enabled": "false",
    }
    configs = {"sync.topic.configs.interval.seconds": "30"}
    for settings, pace in (({}, 600_000), (configs, 30_000)):
        properties = stored_properties({"bootstrap.servers": "a:1"}, never | settings, "a", "b")
        assert properties[REFRESH] == str(pace)
    all_off = never | {"sync.topic.configs.interval.seconds": "-1"}
    properties = stored_properties({"bootstrap.servers": "a:1"}, all_off, "a", "b")
    assert properties[REFRESH] == "600000", "new partitions are copied all the same"
    rare = never | {"sync.topic.configs.interval.seconds": "604800"}
    properties = stored_properties({"bootstrap.servers": "a:1"}, rare, "a", "b")
    check_settings(properties)
    assert properties[REFRESH] == "86400000"


@pytest.mark.parametrize("settings", [*NEVER, {"refresh.topics.enabled": "true"}])
def test_what_the_settings_have_removed_goes_on_once_they_select_it(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, str]
) -> None:
    """Goal: also in a flow that looks for no topics; what an operator has removed does not."""
    flow = Flow(monkeypatch, **settings)
    flow.ids = {name: UUID(int=n) for n, name in enumerate(("t1", "t2", "t3", "other"), 1)}
    for name in flow.ids:
        flow.add(name)
    assert flow.new() == set()
    assert flow.new(SEARCH_S) == set()
    flow.topics[1:] = [replace(topic, wanted=Wanted.STOPPED) for topic in flow.topics[1:]]
    assert flow.new(SEARCH_S) == set()
    for number in (2, 3):
        flow.topics[number] = replace(flow.topics[number], not_selected=True)
    assert flow.new() == {"t3"}


@pytest.mark.parametrize(("takeover", "asked"), [("refuse", True), ("ignore", False)])
def test_a_topic_goes_on_unless_mirror_maker_has_copied_it_on(
    monkeypatch: pytest.MonkeyPatch, takeover: str, asked: bool
) -> None:
    """Goal: MirrorMaker 2 may have run while the flow did not select the topic."""
    flow = Growing(monkeypatch, **REFRESHED, **{"twinlog.takeover": takeover})
    flow.ids["t1"] = UUID(int=1)
    flow.add("t1")
    [added] = flow.topics
    removed = replace(added, wanted=Wanted.STOPPED, not_selected=True, begins=(60,))
    flow.topics = [removed]
    checked: list[object] = []
    again: list[MirrorTopic] = []
    refused = True

    async def copied_to(_: object, __: object, topics: list[MirrorTopic]) -> dict[str, int]:
        return {topic.topic: 80 for topic in topics}

    async def check_copied(_: object, ends: Mapping[str, int]) -> None:
        checked.append(dict(ends))
        if refused:
            raise Retriable("MirrorMaker 2 has copied it on since")

    async def select_again(_: object, mirror: Mirror, topic: MirrorTopic) -> bool:
        assert mirror == flow.mirror
        again.append(topic)
        return True

    monkeypatch.setattr(flow_topics, "copied_to", copied_to)
    monkeypatch.setattr(FlowTakeover, "check_copied", check_copied)
    monkeypatch.setattr(flow_topics, "select_again", select_again)
    snapshot = snapshot_of(flow.mirror, *flow.topics)
    context = sync_context(flow, None, flow, snapshot=snapshot, topics=[])
    assert asyncio.run(run_sync(flow.sync, context)) == asked
    assert (again == []) == asked
    refused = False
    again.clear()
    assert asyncio.run(run_sync(flow.sync, context)) == 0
    assert again == [removed]
    assert checked == [{"t1": 80}] * (2 if asked else 0)
    assert flow.added == {}, "it begins where it was, not as a new topic"


def test_topics_that_are_not_selected_are_named_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: after `kafka-mirrors --alter` they do not go on without a word."""
    flow = Flow(monkeypatch)
    flow.ids = {"t1": UUID(int=1), "payroll": UUID(int=2)}
    flow.add("t1")
    flow.add("payroll")
    for _ in range(3):
        flow.new()
    assert caplog.text.count("its settings do not select: payroll; a start of") == 1
    assert "t1" not in caplog.text
