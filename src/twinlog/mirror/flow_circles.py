"""Flows that copy the same records again and again: what they copy comes back to them.

Whether a topic comes back depends on what names show (copied_topics.py). The default policy ends
each way at a cluster whose alias is in the topic's name, and the identity policy ends none. But
flows may have different policies, or aliases that no name shows: `us.west.orders` comes from `us`.
So a topic is sent round the flows, with the policies and settings that they have:

    A: orders ──A->B──► B: orders ──B->A──► A: B.orders ──A->B──► B: B.orders ──B->A──► ...

A way that arrives at the same topic of the same cluster again is a circle, and so is one that has
come further than all clusters and `_HOPS`. Nothing is sent beyond: names grow with each hop.

`heartbeats` is sent, too: flows copy it also if `topics` does not match it, so they may form a
circle for it although they have different topics.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from typing import Final, NamedTuple

from twinlog.kafka.errors import UserError
from twinlog.mirror.copied_topics import copied_topics
from twinlog.mirror.flow import FlowRules, routed_topics
from twinlog.mirror.mirror_maker_file import Flow
from twinlog.mirror.replication_policy import (
    HEARTBEATS,
    SOURCE_ALIAS,
    has_properties_of_its_own,
    policy_of,
)
from twinlog.mirror.routed_names import routed_policy

EXAMPLE_TOPIC: Final = "orders"

_HOPS: Final = 12
_MAX_COPIES: Final = 2000
"""Limit of copies that are followed from one topic: between many clusters there are many ways."""
_MAX_ALL_COPIES: Final = 10_000
_WORDS: Final = (EXAMPLE_TOPIC, "payments", "x1")
"""The first of them that a flow does not exclude makes an example of a topic."""
_EXAMPLES: Final = 3
"""Limit of topics that are made of a flow's expressions."""
_CLASS: Final = re.compile(r"\[([^\]\\^])[^\]]*\]")
_QUANTIFIER: Final = re.compile(r"(?<!\\)([*+?]|\{[0-9,]+\})")


class Circle(NamedTuple):
    """Flows that form circles."""

    flows: tuple[str, ...]
    """`A->B`, all of them, sorted."""
    cluster: str
    """Where the example begins."""
    names: tuple[str, ...]
    """What a topic becomes on the first way round, from its own name on."""

    @property
    def of_heartbeats(self) -> bool:
        """Whether the example is `heartbeats`, which flows copy whatever their topics are."""
        return self.names[0] == HEARTBEATS


class _TopicPlace(NamedTuple):
    cluster: str
    topic: str


class _Hop(NamedTuple):
    flow: str
    place: _TopicPlace


def find_circle(flows: Collection[Flow]) -> Circle | None:
    """Find flows that copy the same records again and again.

    Args:
        flows: of a file. Those with a policy of one's own have no part in it, as only its package
            knows its names, and neither have those whose policy is malformed.

    Returns:
        None: there are none, as far as examples of topics show.
    """
    rules = [(flow, known) for flow in flows if (known := _rules(flow)) is not None]
    clusters = sorted({flow.source_alias for flow, _ in rules})
    examples = sorted({topic for flow in flows for topic in islice(_examples(flow), _EXAMPLES)})
    copies = 0
    found: set[str] = set()
    first: tuple[str, tuple[str, ...]] | None = None
    for topic in [EXAMPLE_TOPIC, HEARTBEATS, *examples]:
        for cluster in clusters:
            walk = _TopicWalk(rules, len(clusters))
            if copies < _MAX_ALL_COPIES:
                walk.follow(_TopicPlace(cluster, topic))
            copies += walk.copies
            found |= walk.flows
            if first is None and walk.names:
                first = cluster, walk.names
    return Circle(tuple(sorted(found)), *first) if first else None


def _rules(flow: Flow) -> FlowRules | None:
    """What names the flow's topics; None: it is not known."""
    alias = {SOURCE_ALIAS: flow.settings.source_cluster_alias}
    properties = {**flow.values, **flow.policy_properties, **alias}
    if has_properties_of_its_own(properties):
        return None
    try:
        routed = {**flow.transforms, **routed_topics(flow.transforms, flow.settings)}
        return FlowRules(flow.settings, routed_policy(policy_of(properties), routed))
    except UserError:
        return None


class _TopicWalk:
    """All ways of one topic, each to its end before the next one."""

    def __init__(self, rules: Sequence[tuple[Flow, FlowRules]], clusters: int) -> None:
        self.flows: set[str] = set()
        """Those that are part of a circle."""
        self.names: tuple[str, ...] = ()
        """Of the first circle."""
        self.copies = 0
        self._rules = rules
        self._hops = _HOPS + clusters
        self._done: set[_TopicPlace] = set()

    def follow(self, start: _TopicPlace) -> None:
        """Follow a topic from where it is written."""
        way: list[_Hop] = [_Hop("", start)]
        open_hops = [iter(list(self._copies(start)))]
        while open_hops:
            hop = next(open_hops[-1], None)
            if hop is None:
                open_hops.pop()
                self._done.add(way.pop().place)
                continue
            places = [past.place for past in way]
            if hop.place in places:
                self._found([*way[places.index(hop.place) + 1 :], hop], [*way, hop])
            elif len(way) > self._hops:
                self._found([*way[-_HOPS:], hop], [*way, hop])
            elif hop.place not in self._done and self.copies < _MAX_COPIES:
                self.copies += 1
                way.append(hop)
                open_hops.append(iter(list(self._copies(hop.place))))

    def _copies(self, place: _TopicPlace) -> Iterable[_Hop]:
        for flow, rules in self._rules:
            if flow.source_alias == place.cluster:
                for name in copied_topics([place.topic], *rules).values():
                    yield _Hop(flow.name, _TopicPlace(flow.target_alias, name))

    def _found(self, part: Sequence[_Hop], way: Sequence[_Hop]) -> None:
        self.flows.update(hop.flow for hop in part)
        if not self.names:
            clusters = [hop.place.cluster for hop in way]
            again = next(n for n, alias in enumerate(clusters) if alias in clusters[:n])
            self.names = tuple(hop.place.topic for hop in way[: again + 1])


def _examples(flow: Flow) -> Iterable[str]:
    """Names of topics that a flow selects, made of its own expression where that is simple."""
    topics = flow.settings.topics
    if topics is None:
        return
    for text in topics.pattern.split("|"):
        made = (_example(text, word) for word in _WORDS)
        if name := next(filter(flow.settings.selects_topic, made), None):
            yield name


def _example(expression: str, word: str) -> str:
    """A name that the expression may match, with this word for any text."""
    name = expression.replace(".*", word).replace(".+", word)
    name = name.replace(r"\d", "1").replace(r"\w", "a")
    name = _QUANTIFIER.sub("", _CLASS.sub(r"\1", name))
    return re.sub(r"[()^$]|\?:", "", name).replace("\\", "")
