"""The topics that a command applies to; the commands: tests/end_to_end/test_life.py."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from types import MappingProxyType
from typing import Any, cast
from uuid import UUID

import pytest

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import UserError
from twinlog.lifecycle import changes
from twinlog.lifecycle.changes import altered, choose, remove_topics, resume_topics
from twinlog.mirror.errors import MirrorError, MirrorRefused
from twinlog.mirror.settings import GROUPS, KIND, RATE, REFRESH, TRANSLATED
from twinlog.store.config_records import Mirror, MirrorTopic, Wanted, key_of
from twinlog.store.snapshot import Snapshot


def snapshot(**topics: Wanted) -> Snapshot:
    """Return a mirror `m` with these topics, and an empty one, `other`."""
    records: list[Mirror | MirrorTopic] = [
        Mirror(name=name, source={}, source_cluster_id="c") for name in ("m", "other")
    ]
    records += [
        MirrorTopic(mirror="m", topic=name, topic_id=UUID(int=1), partitions=1, wanted=wanted)
        for name, wanted in topics.items()
    ]
    return Snapshot(MappingProxyType({key_of(record): record for record in records}))


def unless(*wanted: Wanted) -> Callable[[MirrorTopic], MirrorError | None]:
    return lambda topic: None if topic.wanted in wanted else MirrorError.MIRROR_TOPIC_NOT_PAUSED


ANY = unless(*Wanted)
SOME = snapshot(a=Wanted.MIRRORING, ab=Wanted.PAUSED, b=Wanted.STOPPED)


def names(topics: list[MirrorTopic]) -> list[str]:
    return [topic.topic for topic in topics]


def test_an_expression_selects_only_applicable_topics() -> None:
    """In a disaster, a topic removed before does not block `.*`."""
    assert names(choose(SOME, "m", ".*", ANY)) == ["a", "ab", "b"]
    assert names(choose(SOME, "m", "a.*", unless(Wanted.PAUSED))) == ["ab"]
    assert names(choose(SOME, "m", ".*", unless(Wanted.MIRRORING, Wanted.PAUSED))) == ["a", "ab"]


def test_a_topic_name_takes_precedence_over_an_expression() -> None:
    topics = snapshot(**{"a.b": Wanted.PAUSED, "axb": Wanted.PAUSED})
    assert names(choose(topics, "m", "a.b", ANY)) == ["a.b"]


@pytest.mark.parametrize(
    ("mirror", "expression", "kind"),
    [
        ("m", "b", MirrorError.MIRROR_TOPIC_NOT_PAUSED),
        ("m", "[ab]", MirrorError.MIRROR_TOPIC_NOT_PAUSED),
        ("m", "c.*", MirrorError.TOPIC_NOT_IN_MIRROR),
        ("other", "a", MirrorError.TOPIC_NOT_IN_MIRROR),
        ("none", "a", MirrorError.UNKNOWN_MIRROR),
        ("m", "(", MirrorError.INVALID_REGULAR_EXPRESSION),
    ],
)
def test_a_change_that_applies_to_no_topic_is_refused(
    mirror: str, expression: str, kind: MirrorError
) -> None:
    with pytest.raises(MirrorRefused) as refused:
        choose(SOME, mirror, expression, unless(Wanted.PAUSED))
    assert refused.value.kind is kind


def test_all_refused_topics_are_named() -> None:
    """Refused topics of an expression, and those of names, are named, without those accepted."""
    both = "MIRROR_TOPIC_NOT_PAUSED: a, b: .*; --describe shows"
    for topics in ("a|b", ["a", "ab", "b"]):
        with pytest.raises(MirrorRefused, match=both):
            choose(SOME, "m", topics, unless(Wanted.PAUSED))


def test_a_possible_topic_name_is_not_an_expression() -> None:
    """`--remove --topic a.b` leaves `a-b` alone, unless topics were added by `a.b`."""
    other = snapshot(**{"a-b": Wanted.MIRRORING})
    with pytest.raises(MirrorRefused, match="TOPIC_NOT_IN_MIRROR"):
        choose(other, "m", "a.b", ANY)
    assert names(choose(other, "m", "a[.-]b", ANY)) == ["a-b"]
    mirror = Mirror(name="m", source={}, source_cluster_id="c", topic_patterns=("a.b",))
    added = replace(other, records={**other.records, key_of(mirror): mirror})
    assert names(choose(added, "m", "a.b", ANY)) == ["a-b"]


def test_a_list_of_names_is_not_treated_as_expressions() -> None:
    """Unlike with an expression, one name that the command cannot apply to refuses the others."""
    every = unless(Wanted.MIRRORING, Wanted.PAUSED)
    assert names(choose(SOME, "m", ["ab", "a"], every)) == ["a", "ab"]


@pytest.mark.parametrize(
    ("chosen", "kind"),
    [
        (["a", "b"], MirrorError.MIRROR_TOPIC_NOT_PAUSED),
        (["a", "a.*"], MirrorError.TOPIC_NOT_IN_MIRROR),
        ([], MirrorError.TOPIC_NOT_IN_MIRROR),
    ],
)
def test_inapplicable_or_unknown_names_are_refused(chosen: list[str], kind: MirrorError) -> None:
    with pytest.raises(MirrorRefused) as refused:
        choose(SOME, "m", chosen, unless(Wanted.MIRRORING))
    assert refused.value.kind is kind


def test_a_flow_takes_no_expression_for_groups() -> None:
    """Goal: it goes by its own settings, so a value without effect is refused; an empty one not."""
    flow = Mirror(name="a-to-b", source={"mirror.kind": "translated"}, source_cluster_id="c")
    stored = Snapshot(MappingProxyType({key_of(flow): flow}))
    with pytest.raises(UserError, match=r"mirror\.groups\.include has no effect on flow a-to-b"):
        altered(stored, "a-to-b", {GROUPS: "app-.*"}, replaces=False)
    assert altered(stored, "a-to-b", {GROUPS: ""}, replaces=False).source[GROUPS] == ""
    exact = altered(SOME, "m", {GROUPS: "app-.*"}, replaces=False)
    assert exact.source[GROUPS] == "app-.*"


def test_a_flow_that_gets_other_settings_keeps_its_throttle() -> None:
    """Goal: a start of `twinlog mirror-maker` ends no throttle that `--alter` has set."""
    own = {KIND: TRANSLATED, REFRESH: "1000", GROUPS: "", "client.id": "x", RATE: "7"}
    flow = Mirror(name="a-to-b", source=own, source_cluster_id="c")
    stored = Snapshot(MappingProxyType({key_of(flow): flow}))
    given = {KIND: TRANSLATED, REFRESH: "2000", GROUPS: ""}
    assert altered(stored, "a-to-b", given, replaces=True).source == given | {RATE: "7"}
    given[RATE] = "9"
    assert altered(stored, "a-to-b", given, replaces=True).source == given


def test_where_a_flow_s_positions_are_is_not_altered() -> None:
    """Goal: only a start, which compares the names of topics, changes what follows from both."""
    name = "mirror.flow.twinlog.routed.topics"
    source = {"mirror.kind": "transactional", name: "true"}
    flow = Mirror(name="a-to-b", source=source, source_cluster_id="c")
    stored = Snapshot(MappingProxyType({key_of(flow): flow}))
    for value in ("false", ""):
        with pytest.raises(UserError, match=rf"{name} of flow a-to-b cannot be altered"):
            altered(stored, "a-to-b", {name: value}, replaces=False)
    assert altered(stored, "a-to-b", {name: "true"}, replaces=False) == flow
    kept = altered(stored, "a-to-b", {"mirror.flow.topics": "x"}, replaces=False)
    assert kept.source[name] == "true"


def test_an_operator_removes_for_good_what_a_flow_s_settings_have_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: settings that select the topic again do not add it after `--remove --topic '.*'`."""
    mirror = Mirror(name="m", source={}, source_cluster_id="c")
    (topic,) = snapshot(a=Wanted.STOPPED).topics_of("m")
    written: list[MirrorTopic] = []

    class Store:
        def __init__(self, _: object) -> None:
            last = written[-1] if written else replace(topic, not_selected=True)
            self.records = (mirror, last)

        async def change(self, decide: Callable[[Snapshot], Any]) -> None:
            written.extend(decide(Snapshot({key_of(one): one for one in self.records})))

    monkeypatch.setattr(changes, "MirrorStore", Store)
    cluster = cast("KafkaCluster", None)
    with pytest.raises(MirrorRefused, match="being removed"):
        asyncio.run(resume_topics(cluster, "m", ".*"))
    assert asyncio.run(remove_topics(cluster, "m", ".*")) == ["a"]
    assert written == [topic]
    with pytest.raises(MirrorRefused, match="being removed"):
        asyncio.run(remove_topics(cluster, "m", ".*"))
