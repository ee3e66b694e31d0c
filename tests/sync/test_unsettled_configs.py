"""Configurations that a broker reports which is behind, or that not all brokers report.

The copies of a topic on the destination keep no less because of them.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import pytest
from differing_brokers import DEFAULTS, DifferingBrokers, Values, entries
from sync_contexts import sync_context

from twinlog.kafka.requests.topics import ConfigSource, KnownTopic
from twinlog.mirror.flow import flow_properties
from twinlog.store.config_records import Mirror, MirrorTopic, key_of
from twinlog.store.snapshot import Snapshot
from twinlog.sync import configs, flow_topics, topic_identity
from twinlog.sync.base import Sync, run_sync
from twinlog.sync.configs import ConfigSync
from twinlog.sync.flow_topics import FlowConfigs
from twinlog.sync.unsettled_configs import UNSETTLED_S, UnsettledConfigs, by_reason

DAY, WEEK = "86400000", "604800000"


class Clusters:
    """A source with two brokers, and a destination with a copy of its topic `t`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.source = DifferingBrokers(monkeypatch, {}, {})
        self.copy: Values = {}
        self.now = 0.0
        self.syncs: Mapping[str, Sync[Any]] = {"exact": ConfigSync(), "flow": FlowConfigs()}
        for sync in self.syncs.values():
            sync._unsettled = UnsettledConfigs(lambda: self.now)  # type: ignore[attr-defined]
        for module in (configs, flow_topics):
            monkeypatch.setattr(module, "describe_configs", self._describe)
            monkeypatch.setattr(module, "known_configs", self._known_configs)
        monkeypatch.setattr(topic_identity, "known_topics", self._known_topics)
        monkeypatch.setattr(configs, "incremental_alter_configs", self._alter)

    async def _known_configs(self, _: object) -> dict[str, str]:
        return {**DEFAULTS, "segment.ms": ""}

    async def _describe(self, _: object, resources: Sequence[Any]) -> Any:
        return dict.fromkeys(resources, entries(self.copy, {**DEFAULTS, "segment.ms": "1"}))

    async def _known_topics(self, _: object, names: set[str]) -> dict[str, KnownTopic]:
        return dict.fromkeys(names, KnownTopic(frozenset({UUID(int=1)}), 1, internal=False))

    async def _alter(self, _: object, changes: Mapping[Any, Any]) -> dict[Any, None]:
        for alterations in changes.values():
            for name, operation, value in alterations:
                del operation
                self.copy.pop(name, None)
                if value is not None:
                    self.copy[name] = value
        return dict.fromkeys(changes)

    def refresh(self, kind: str) -> int:
        """Let the configurations follow; return the failures."""
        properties = flow_properties({"enabled": "true"}, "a", "b") if kind == "flow" else {}
        mirror = Mirror(name="m", source=properties, source_cluster_id="s")
        topic = MirrorTopic(mirror="m", topic="t", topic_id=UUID(int=1), partitions=1, set_back=())
        snapshot = Snapshot({key_of(record): record for record in (mirror, topic)})
        context = sync_context(self.source, None, None, snapshot=snapshot, topics=[topic])
        return asyncio.run(run_sync(self.syncs[kind], context))


@pytest.fixture
def clusters(monkeypatch: pytest.MonkeyPatch) -> Clusters:
    return Clusters(monkeypatch)


KINDS = pytest.mark.parametrize("kind", ["exact", "flow"])
FIRST = pytest.mark.parametrize("first", [0, 1])


@KINDS
@FIRST
@pytest.mark.parametrize("behind", [{"retention.ms": DAY}, {}])
def test_a_broker_that_is_behind_shortens_nothing(
    clusters: Clusters, kind: str, first: int, behind: Values
) -> None:
    """Goal: an old value is taken for a change by no refresh, nor that it was not set then."""
    clusters.source.topics = [{"retention.ms": str(2 * int(WEEK))}] * 2
    assert clusters.refresh(kind) == 0
    copied = dict(clusters.copy)
    assert copied["retention.ms"] == str(2 * int(WEEK))
    clusters.source.topics[1] = behind
    clusters.source.first = first
    assert clusters.refresh(kind) == 0
    assert clusters.copy == copied


@KINDS
@FIRST
def test_more_is_kept_as_soon_as_one_broker_knows_and_less_when_all_do(
    clusters: Clusters, kind: str, first: int
) -> None:
    clusters.source.first = first
    clusters.source.topics = [{"retention.ms": WEEK}, {"retention.ms": DAY}]
    clusters.copy = {"retention.ms": DAY}
    clusters.refresh(kind)
    assert clusters.copy["retention.ms"] == WEEK
    clusters.source.topics = [{"retention.ms": DAY}, {"retention.ms": WEEK}]
    clusters.refresh(kind)
    assert clusters.copy["retention.ms"] == WEEK
    clusters.source.topics = [{"retention.ms": DAY}, {"retention.ms": DAY}]
    clusters.refresh(kind)
    assert clusters.copy["retention.ms"] == DAY


@FIRST
def test_a_policy_changes_only_if_all_brokers_report_it(clusters: Clusters, first: int) -> None:
    """Goal: a flow turns on neither deletion nor compaction by an old value (exact: never)."""
    clusters.source.first = first
    clusters.source.topics = [{"cleanup.policy": "compact"}, {}]
    clusters.copy = {"cleanup.policy": "compact"}
    clusters.refresh("flow")
    assert clusters.copy["cleanup.policy"] == "compact"
    clusters.source.topics = [{}, {"cleanup.policy": "compact"}]
    clusters.copy = {}
    clusters.refresh("flow")
    assert "cleanup.policy" not in clusters.copy
    clusters.source.topics = [{"cleanup.policy": "compact"}] * 2
    clusters.refresh("flow")
    assert clusters.copy["cleanup.policy"] == "compact"


@FIRST
@KINDS
def test_a_former_answer_shortens_no_compaction_lag(
    clusters: Clusters, kind: str, first: int
) -> None:
    """Goal: the target's cleaner removes no record for good that the source has to keep."""
    clusters.source.first = first
    clusters.source.topics = [{}, {"min.compaction.lag.ms": WEEK}]
    clusters.copy = {"min.compaction.lag.ms": WEEK}
    clusters.refresh(kind)
    assert clusters.copy["min.compaction.lag.ms"] == WEEK
    clusters.copy = {}
    clusters.refresh(kind)
    assert clusters.copy["min.compaction.lag.ms"] == WEEK, "one broker knows of it"


@KINDS
def test_a_broker_that_does_not_answer_holds_up_only_what_would_be_kept_less(
    clusters: Clusters, kind: str
) -> None:
    clusters.copy = {"retention.ms": WEEK, "delete.retention.ms": DAY}
    clusters.source.topics = [{"retention.ms": DAY, "segment.ms": "7"}, {}]
    clusters.source.silent = {1}
    assert clusters.refresh(kind) == 0
    assert clusters.copy["retention.ms"] == WEEK
    assert clusters.copy["delete.retention.ms"] == DAY, "not unset"
    assert clusters.copy["segment.ms"] == "7"
    clusters.source.topics[0]["retention.ms"] = str(2 * int(WEEK))
    assert clusters.refresh(kind) == 0
    assert clusters.copy["retention.ms"] == str(2 * int(WEEK))


@KINDS
def test_brokers_that_disagree_for_long_are_named_once(
    clusters: Clusters, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    text = f"retention.ms is {WEEK} or {DAY} by the source's brokers"
    clusters.source.topics = [{"retention.ms": WEEK}, {"retention.ms": DAY}]
    assert clusters.refresh(kind) == 0
    assert text not in caplog.text
    for _ in range(2):
        clusters.now += UNSETTLED_S
        assert clusters.refresh(kind) == 1
    assert caplog.text.count(text) == 1
    clusters.source.topics = [{"retention.ms": WEEK}, {"retention.ms": WEEK}]
    assert clusters.refresh(kind) == 0
    clusters.source.topics = [{"retention.ms": WEEK}, {"retention.ms": DAY}]
    assert clusters.refresh(kind) == 0, "it begins anew"


STATIC, DEFAULT = ConfigSource.STATIC_BROKER, ConfigSource.DEFAULT
CLUSTER, BROKER = ConfigSource.DYNAMIC_DEFAULT_BROKER, ConfigSource.DYNAMIC_BROKER
MONTHS = str(13 * int(WEEK))


@pytest.mark.parametrize(
    ("sources", "own", "value"),
    [
        ((STATIC, STATIC), MONTHS, MONTHS),
        ((STATIC, DEFAULT), MONTHS, MONTHS),
        ((DEFAULT, DEFAULT), MONTHS, None),
        ((CLUSTER, CLUSTER), MONTHS, WEEK),
        ((CLUSTER, CLUSTER), None, WEEK),
        ((CLUSTER, STATIC), MONTHS, MONTHS),
        ((CLUSTER, DEFAULT), MONTHS, MONTHS),
        ((BROKER, DEFAULT), DAY, WEEK),
        ((STATIC, STATIC), None, None),
    ],
)
def test_an_own_retention_of_a_remote_topic(
    clusters: Clusters,
    caplog: pytest.LogCaptureFixture,
    sources: tuple[int, int],
    own: str | None,
    value: str | None,
) -> None:
    """Goal: only what all brokers report replaces or unsets it, and then a warning names both.

    The source's topic has a retention of a week, which it does not set itself. Any broker may be
    the one that is asked for the rest of the configurations.
    """
    became = value or f"the target's default (the source's is {WEEK})"
    text = f"may keep less from now on, as its source topic does: retention.ms from {own} to "
    keeps_less = value != own and int(value or 0) < int(own or 0)
    for clusters.source.first in (0, 1):
        for clusters.source.default_sources in (list(sources), list(sources[::-1])):
            caplog.clear()
            clusters.copy = {} if own is None else {"retention.ms": own}
            assert clusters.refresh("flow") == 0
            assert clusters.copy.get("retention.ms") == value
            warnings = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
            assert warnings == ([f"flow m: t {text}{became}"] if keeps_less else [])


def test_a_broker_that_is_silent_unsets_no_own_retention(clusters: Clusters) -> None:
    clusters.source.default_sources = [DEFAULT, DEFAULT]
    clusters.source.silent = {1}
    clusters.copy = {"retention.ms": MONTHS, "segment.ms": "7"}
    assert clusters.refresh("flow") == 0
    assert clusters.copy == {"retention.ms": MONTHS, "segment.ms": "7"}
    clusters.source.silent = set()
    assert clusters.refresh("flow") == 0
    assert clusters.copy == {"segment.ms": "7"}, "the source does not know segment.ms"


def test_a_survey_says_that_it_is_not_known(clusters: Clusters) -> None:
    """Goal: `twinlog readiness` takes no old value for the source's."""
    clusters.source.silent = {1}
    sync = ConfigSync()
    topic = MirrorTopic(mirror="m", topic="t", topic_id=UUID(int=1), partitions=1)
    context = sync_context(clusters.source, None, None, topics=[topic])
    remarks = list(sync.describe(asyncio.run(sync.compare(context))))
    assert [(one.topic, one.unreadable) for one in remarks] == [("t", True)]
    assert "not reported by broker 1" in remarks[0].text


def test_topics_by_reason() -> None:
    assert by_reason({"a": ("x", "y"), "b": ("x",), "c": ()}) == {"x": ["a", "b"], "y": ["a"]}
