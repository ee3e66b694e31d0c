"""Where the records of flows go, so that `verify` knows which logs belong together.

Without transforms a topic of the source goes to its remote topic. Transforms may route records to
other topics. Which ones these are follows from the settings (verify/connect_transforms.py), but for
names that depend on the time of a record: these are found when records are read.

A topic that several topics are routed to holds the records of all of them in an order that only the
target knows. It is judged if all of them are of one flow (verify/flow_targets.py). So a flow's
routes are set against those of all other flows.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from twinlog.kafka.errors import UserError
from twinlog.mirror.dataframe_transform import DataFrameTransform
from twinlog.mirror.flow import flow_of, settings_texts, transforms_of
from twinlog.mirror.routed_names import name_for_transforms
from twinlog.mirror.settings import FLOW_KINDS
from twinlog.mirror.transform_chain import is_transform_property
from twinlog.store.config_records import Mirror, MirrorTopic
from twinlog.store.snapshot import Snapshot
from twinlog.verify.connect_transforms import ConnectTransforms
from twinlog.verify.transformed_log import TransformSettings


class Writer(NamedTuple):
    """A topic of a flow's source whose records may go to a topic of the target."""

    flow: str
    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRoute:
    """Where the records of a topic may go."""

    targets: frozenset[str]
    """Topics of the target, but for those that are named by time or by a query; without these,
    empty means that all records are dropped."""
    is_dated: bool = False
    """Whether there are topics that are named by time."""
    transforms: TransformSettings | None = None
    """Single-message transforms."""
    query: DataFrameTransform | None = None
    """A query or function; it may send records anywhere."""

    @property
    def is_transformed(self) -> bool:
        """Whether records are transformed; else they stay as they are."""
        return self.transforms is not None or self.query is not None


def flow_routes(mirror: Mirror, topics: Iterable[MirrorTopic]) -> Mapping[str, TopicRoute]:
    """The routes of these topics of a flow.

    Raises:
        UserError: `verify` cannot apply the flow's transforms, or a setting is malformed.
    """
    parsed, (settings, policy) = transforms_of(mirror.source), flow_of(mirror.source)
    if isinstance(parsed, DataFrameTransform):
        return {
            topic.topic: _plain(topic)
            if policy.is_heartbeats_topic(topic.topic)
            else TopicRoute(targets=frozenset(), query=parsed)
            for topic in topics
        }
    if not parsed.steps:
        return {topic.topic: _plain(topic) for topic in topics}
    texts = settings_texts(mirror.source)
    values = {name: text for name, text in texts.items() if is_transform_property(name)}
    try:
        transforms = ConnectTransforms(values)
    except UserError as error:
        raise UserError(f"flow {mirror.name}: {error.message}", hint=error.hint) from error
    routes: dict[str, TopicRoute] = {}
    for topic in topics:
        if policy.is_heartbeats_topic(topic.topic):  # they are never transformed
            routes[topic.topic] = _plain(topic)
            continue
        alias = settings.source_cluster_alias
        name = name_for_transforms(policy, alias, topic.topic, topic.destination_name)
        routes[topic.topic] = TopicRoute(
            targets=transforms.topics_of(name),
            is_dated=transforms.is_dated,
            transforms=TransformSettings(values=values, topic=name),
        )
    return routes


def _plain(topic: MirrorTopic) -> TopicRoute:
    return TopicRoute(targets=frozenset({topic.destination_name}))


def writers_of(snapshot: Snapshot) -> Mapping[str, Collection[Writer]]:
    """By topic of the target: whose records it may hold.

    Flows whose routes are not known are left out: those with a query, for example. So are topics
    that are named by time.
    """
    writers: defaultdict[str, set[Writer]] = defaultdict(set)
    for mirror in snapshot.mirrors.values():
        if mirror.kind not in FLOW_KINDS:
            continue
        try:
            routes = flow_routes(mirror, snapshot.topics_of(mirror.name))
        except UserError:
            continue
        for topic, route in routes.items():
            for target in route.targets:
                writers[target].add(Writer(mirror.name, topic))
    return writers
