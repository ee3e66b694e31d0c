"""When a deleted remote topic is recreated, and its new id stored; brokers in memory."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from sync_contexts import sync_context

from twinlog.kafka.client.metadata import NO_TOPIC_ID
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Refusal, Retriable
from twinlog.kafka.requests.topics import KnownTopic, NewTopic
from twinlog.lifecycle.flow_topics import FlowClusters
from twinlog.mirror.flow import flow_properties
from twinlog.store.config_records import ConfigRecord, Mirror, MirrorTopic, Wanted, key_of
from twinlog.store.snapshot import Snapshot
from twinlog.sync import recreated_remotes
from twinlog.sync.base import run_sync
from twinlog.sync.recreated_remotes import AGREED_S, RecreatedRemotes

FORMER, OLDER, NEW, LATER = (UUID(int=at) for at in range(1, 5))
TOPIC = MirrorTopic(
    mirror="m",
    topic="t",
    topic_id=UUID(int=9),
    partitions=2,
    destination_topic="a.t",
    destination_topic_id=FORMER,
)
OTHER = replace(TOPIC, topic="u", destination_topic="a.u")
DENIED, LEFT_OUT = "denied", "left out"


class Target:
    """A target of three brokers, by the ids and partition counts that they show of `a.t`."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        loss: str = "continue",
        more: Mapping[str, str] | None = None,
    ) -> None:
        properties = flow_properties({"twinlog.data.loss": loss, **(more or {})}, "a", "b")
        self.mirror: Mirror | None = Mirror(name="m", source=properties, source_cluster_id="s")
        self.shown: Sequence[UUID | str | None] = [FORMER] * 3
        self.partitions = 2
        self.metadata = SimpleNamespace(brokers=range(3))
        self.created: list[NewTopic] = []
        self.refusal: Refusal | None = None
        self.meanwhile: Callable[[], object] = list  # between the last check and the creation
        self.unreachable = self.refuses = False
        self.asked = 0
        self.now = 0.0
        self.topics = {"t": TOPIC, "u": OTHER}
        self.sync = RecreatedRemotes(lambda: self.now)
        monkeypatch.setattr(recreated_remotes, "known_topics", self.known_topics)
        monkeypatch.setattr(recreated_remotes, "create_partitions", self.create_partitions)
        monkeypatch.setattr(recreated_remotes, "create_topics", self.create_topics)
        monkeypatch.setattr(FlowClusters, "missing", self.missing)

    async def call(self, request: Any, *, node: int) -> object:
        """What a broker answers to `absent_everywhere`."""
        self.asked += 1
        if self.unreachable and node == 1:
            raise Retriable("a broker does not answer")
        codes: Mapping[object, int] = {
            None: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            DENIED: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        }
        code = codes.get(self.shown[node], 0)
        topics = [SimpleNamespace(name=topic.name, error_code=code) for topic in request.topics]
        return SimpleNamespace(topics=[] if self.shown[node] == LEFT_OUT else topics)

    async def missing(
        self, topics: Mapping[str, Any], names: Mapping[str, str]
    ) -> Sequence[NewTopic]:
        self.meanwhile()
        [name] = {*names.values()}
        return [NewTopic(name=name, partitions=max(len(one.partitions) for one in topics.values()))]

    async def create_topics(
        self, _: object, topics: Sequence[NewTopic], *, once: bool
    ) -> Mapping[str, UUID | Refusal]:
        assert once, "what was read before holds for one request"
        self.created += topics
        return {topic.name: self.refusal or NEW for topic in topics}

    async def known_topics(self, _: object, names: Collection[str]) -> Mapping[str, KnownTopic]:
        assert set(names) == {"a.t"}
        self.asked += 1
        if self.unreachable:
            raise Retriable("a broker does not answer")
        ids = frozenset(one for one in self.shown if isinstance(one, UUID))
        everywhere = None not in self.shown
        return {"a.t": KnownTopic(ids, self.partitions, internal=False, everywhere=everywhere)}

    async def create_partitions(
        self, _: object, counts: Mapping[str, int]
    ) -> Mapping[str, Refusal | None]:
        if self.refuses:
            return dict.fromkeys(counts, Refusal(ErrorCode.POLICY_VIOLATION))
        [self.partitions] = counts.values()
        return dict.fromkeys(counts)

    async def change(self, decide: Callable[[Snapshot], Collection[MirrorTopic]]) -> None:
        for topic in decide(await self.snapshot()):
            self.topics[topic.topic] = topic

    async def snapshot(self) -> Snapshot:
        records: list[ConfigRecord] = [*self.topics.values()]
        records += [] if self.mirror is None else [self.mirror]
        return Snapshot({key_of(one): one for one in records})

    def refreshes(self, after_s: float = 0.0, **more: object) -> MirrorTopic:
        """Refresh so long after the last one; the first broker's metadata comes with it."""
        self.now += after_s
        shown: Mapping[str, Any] = {"a.u": SimpleNamespace(topic_id=FORMER)}
        if isinstance(self.shown[0], UUID):
            shown = {**shown, "a.t": SimpleNamespace(topic_id=self.shown[0])}
        wanted = [one for one in self.topics.values() if one.wanted is Wanted.MIRRORING]
        there = {
            name: SimpleNamespace(name=name, error=0, partitions=range(one.partitions))
            for name, one in self.topics.items()
        }
        fields: dict[str, Any] = {"topics": wanted, "there": there, "here": shown, **more}
        snapshot, other = asyncio.run(self.snapshot()), self.topics["u"]
        context = sync_context(None, self, self, snapshot=snapshot, **fields)
        self.failures = asyncio.run(run_sync(self.sync, context))
        assert self.topics["u"] is other or other.destination_name == "a.t"
        return self.topics["t"]


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Target:
    return Target(monkeypatch)


def test_a_flow_goes_on_once_all_brokers_agree_for_a_lease(target: Target) -> None:
    """Goal: at two checks. A second time, too: the ids of all former topics are kept."""
    assert target.refreshes(100) == TOPIC
    assert target.asked == 0, "all is as it was"
    target.shown = [NEW] * 3
    assert target.refreshes() == TOPIC
    assert target.refreshes(AGREED_S - 1) == TOPIC
    going_on = target.refreshes(1)
    assert going_on == replace(TOPIC, destination_topic_id=NEW, lost_topic_ids=(FORMER,))
    target.shown = [LATER] * 3
    assert target.refreshes() == going_on
    again = target.refreshes(AGREED_S)
    assert (again.destination_topic_id, again.lost_topic_ids) == (LATER, (FORMER, NEW))
    assert target.refreshes(AGREED_S) == again


@pytest.mark.parametrize(
    "shown",
    [
        [OLDER, FORMER, FORMER],  # it shows a topic that was deleted before the flow began
        [NEW, NEW, FORMER],  # one has not learned yet that it was recreated
        [NEW, NEW, LATER],
        [NEW, None, NEW],
        [None, NEW, NEW],
        [NO_TOPIC_ID] * 3,
    ],
)
def test_a_broker_that_is_behind_changes_nothing(
    target: Target, shown: Sequence[UUID | None]
) -> None:
    """Goal: the flow never goes on in a topic that was deleted before it began."""
    target.shown = shown
    for _ in range(5):
        assert target.refreshes(AGREED_S) == TOPIC
    target.shown = [FORMER] * 3
    assert target.refreshes(AGREED_S) == TOPIC


def test_a_broker_that_does_not_answer_changes_nothing(target: Target) -> None:
    target.shown, target.unreachable = [NEW] * 3, True
    for _ in range(3):
        with pytest.raises(Retriable):
            target.refreshes(AGREED_S)
    assert target.topics["t"] == TOPIC
    target.unreachable = False
    assert target.refreshes() == TOPIC, "the time begins with the first answer of all"
    assert target.refreshes(AGREED_S) != TOPIC


def test_the_time_begins_anew_with_another_id(target: Target) -> None:
    target.shown = [NEW] * 3
    target.refreshes()
    for shown in ([FORMER] * 3, [NEW] * 3, [LATER] * 3):
        target.shown = shown
        assert target.refreshes(AGREED_S) == TOPIC
    assert target.refreshes(AGREED_S).destination_topic_id == LATER


def test_another_node_compares_anew(target: Target) -> None:
    target.shown = [NEW] * 3
    target.refreshes()
    target.sync.forget(lambda mirror: mirror == "m")
    assert target.refreshes(AGREED_S) == TOPIC
    assert target.refreshes(AGREED_S) != TOPIC


def test_by_default_an_operator_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target(monkeypatch, "fail")
    target.shown = [NEW] * 3
    for _ in range(3):
        assert target.refreshes(AGREED_S) == TOPIC
    target.shown = [None] * 3
    for _ in range(3):
        assert target.refreshes(AGREED_S) == TOPIC
    assert (target.asked, target.created) == (0, [])


@pytest.mark.parametrize("refuses", [False, True])
def test_a_topic_that_was_recreated_with_fewer_partitions_gets_more(
    target: Target, refuses: bool
) -> None:
    """Goal: it waits until there is a partition for each; that is counted as a failure."""
    target.shown, target.partitions, target.refuses = [NEW] * 3, 1, refuses
    target.refreshes()
    found = target.refreshes(AGREED_S)
    assert (found == TOPIC, target.failures) == (refuses, int(refuses))
    target.refuses = False
    assert target.refreshes(AGREED_S).destination_topic_id == NEW
    assert target.partitions == 2


def test_a_topic_that_an_operator_removes_meanwhile_stays_as_it_is(target: Target) -> None:
    """Goal: its copies end where they do; adding it again begins anew."""
    target.shown = [NEW] * 3
    target.refreshes()
    removed = replace(TOPIC, wanted=Wanted.STOPPED)
    change = target.change

    async def late(decide: Callable[[Snapshot], Collection[MirrorTopic]]) -> None:
        target.topics["t"] = removed
        await change(decide)

    target.change = late  # type: ignore[method-assign]
    assert target.refreshes(AGREED_S) == removed


def test_a_deleted_topic_is_created_once_all_brokers_agree_for_a_lease(target: Target) -> None:
    """Goal: at two checks, and then the flow goes on as in one that was recreated by others."""
    target.shown = [None] * 3
    assert target.refreshes(100) == TOPIC
    target.refreshes(AGREED_S - 1)
    assert not target.created
    assert target.refreshes(1) == TOPIC, "its id is not known yet"
    assert [(one.name, one.partitions) for one in target.created] == [("a.t", 2)]
    assert target.failures == 0
    target.shown = [NEW] * 3
    target.refreshes()
    going_on = target.refreshes(AGREED_S)
    assert going_on == replace(TOPIC, destination_topic_id=NEW, lost_topic_ids=(FORMER,))
    assert len(target.created) == 1


@pytest.mark.parametrize(
    "shown",
    [
        [None, FORMER, None],  # the first one has just started, or is cut off
        [None, NEW, None],
        [None, DENIED, None],
        [DENIED] * 3,
        [None, LEFT_OUT, None],
        [FORMER, None, None],
    ],
)
def test_a_topic_that_may_exist_is_not_created(
    target: Target, shown: Sequence[UUID | str | None]
) -> None:
    """Goal: what a broker does not say is no evidence."""
    target.shown = shown
    for _ in range(5):
        assert target.refreshes(AGREED_S) == TOPIC
    assert not target.created


def test_nothing_is_created_while_a_broker_does_not_answer(target: Target) -> None:
    target.shown, target.unreachable = [None] * 3, True
    for _ in range(3):
        with pytest.raises(Retriable):
            target.refreshes(AGREED_S)
    target.unreachable = False
    target.refreshes()
    assert not target.created, "the time begins with the first answer of all"
    target.refreshes(AGREED_S)
    assert target.created


def test_the_time_of_a_deletion_begins_anew(target: Target) -> None:
    """Goal: also behind a creation, and on another node."""
    target.shown = [None] * 3
    for shown in ([FORMER] * 3, [None] * 3):
        target.refreshes(AGREED_S)
        target.shown = shown
    target.refreshes()
    target.sync.forget(lambda mirror: mirror == "m")
    target.refreshes(AGREED_S)
    assert not target.created
    for _ in range(4):
        target.refreshes(AGREED_S / 2)
    assert len(target.created) == 1
    target.refreshes(AGREED_S)
    assert len(target.created) == 2


@pytest.mark.parametrize("change", ["removed", "paused", "deleted", "fails"])
def test_a_topic_that_the_flow_has_no_more_is_not_created(target: Target, change: str) -> None:
    """Goal: as far as that is stored before the request is sent, however long the reads take."""
    assert target.mirror is not None
    fails = flow_properties({"twinlog.data.loss": "fail"}, "a", "b")
    mirror, wanted = {
        "removed": (target.mirror, Wanted.STOPPED),
        "paused": (target.mirror, Wanted.PAUSED),
        "deleted": (None, Wanted.MIRRORING),
        "fails": (replace(target.mirror, source=fails), Wanted.MIRRORING),
    }[change]

    def meanwhile() -> None:
        target.mirror, target.topics["t"] = mirror, replace(TOPIC, wanted=wanted)

    target.shown, target.meanwhile = [None] * 3, meanwhile
    for _ in range(2):
        target.refreshes(AGREED_S)
    assert (target.created, target.failures) == ([], 0)


@pytest.mark.parametrize(
    ("code", "failures"),
    [(ErrorCode.TOPIC_ALREADY_EXISTS, 0), (ErrorCode.POLICY_VIOLATION, 1)],
)
def test_a_creation_that_is_refused(target: Target, code: int, failures: int) -> None:
    """Goal: another node or an operator may have created it; else it is counted, and tried again.

    Not at each refresh: it is checked for as long as before.
    """
    target.shown, target.refusal = [None] * 3, Refusal(code)
    target.refreshes()
    target.refreshes(AGREED_S)
    assert target.failures == failures
    target.refreshes()
    target.refreshes(AGREED_S - 1)
    assert len(target.created) == 1
    target.refreshes(1)
    assert len(target.created) == 2


def test_a_topic_without_a_known_id_or_source_is_not_created(target: Target) -> None:
    """Goal: the new one could not be told from the former one, or there is nothing to copy."""
    target.shown = [None] * 3
    for _ in range(3):
        target.refreshes(AGREED_S, same=[])
    target.topics["t"] = replace(TOPIC, destination_topic_id=None)
    for _ in range(3):
        target.refreshes(AGREED_S)
    assert (target.created, target.asked) == ([], 0)


def test_a_topic_of_several_source_topics_is_created_once(target: Target) -> None:
    """Goal: with as many partitions as the largest of them."""
    target.topics["u"] = replace(OTHER, destination_topic="a.t", partitions=5)
    target.shown = [None] * 3
    for _ in range(2):
        target.refreshes(AGREED_S)
    assert [(one.name, one.partitions) for one in target.created] == [("a.t", 5)]


ROUTED = {
    "transforms": "route",
    "transforms.route.type": "org.apache.kafka.connect.transforms.RegexRouter",
    "transforms.route.regex": "(.*)",
    "transforms.route.replacement": "eu-$1",
}


QUERY = {"twinlog.transform.sql": "SELECT * FROM records"}


@pytest.mark.parametrize(
    ("settings", "goes_on"),
    [
        ({"transaction.producer": "true"}, True),
        ({"transaction.producer": "true", "twinlog.offset.map": "true"}, True),
        (ROUTED, False),
        (QUERY, False),
        ({**QUERY, "twinlog.transform.routes": "false"}, True),
    ],
    ids=["transactions", "map", "router", "query", "query that routes nothing"],
)
def test_flows_in_transactions_go_on_unless_they_may_route(
    monkeypatch: pytest.MonkeyPatch, settings: Mapping[str, str], goes_on: bool
) -> None:
    """Goal: copied again, no record is twice in a topic that was not recreated."""
    target = Target(monkeypatch, more=settings)
    target.shown = [NEW] * 3
    target.refreshes()
    assert (target.refreshes(AGREED_S).lost_topic_ids == (FORMER,)) is goes_on
