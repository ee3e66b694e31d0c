"""A stored flow follows settings that have changed, as MirrorMaker 2 does at each of its starts.

MirrorMaker 2 selects and names topics anew whenever it starts. A flow stores both with each topic.
So a start, and `twinlog flows create --replace`, compare what is stored with the new settings:

    topic that the flow has         by the new settings    what happens
    ------------------------------  ---------------------  ---------------------------------------
    MIRRORING                       is not selected        removed, as by an operator: it is fenced,
                                                           its copy and what is recorded stay
    removed in this way             is selected            it goes on where it was
    removed by an operator, paused  either                 it stays as it is; one that is paused is
                                                           removed if the flow is resumed as a whole
                                                           and does not select it
    MIRRORING, paused, or removed   has another remote     the settings are refused
    in this way                     name

Which topics the settings select depends on names alone, not on what a cluster answers. Only whoever
changes the settings removes topics: the last one counts, for settings and topics alike. Nodes never
do. They add what is selected again (sync/flow_topics.py), by the stored settings.

A flow that is paused as a whole stays so, too, as a connector of MirrorMaker 2 does: topics that it
gets meanwhile are paused.

With `A->B.enabled=false`, MirrorMaker 2 copies no topic of a flow. A stored flow is switched off:
it selects no topic, and writes no heartbeats, as the process that has the file does that.
"""

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final
from uuid import UUID

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.metadata import NO_TOPIC_ID, is_another
from twinlog.kafka.errors import UserError
from twinlog.mirror.copied_topics import copied_topics
from twinlog.mirror.flow import (
    FlowRules,
    belongs_to_transforms,
    flow_of,
    may_have_routed,
    settings_texts,
)
from twinlog.mirror.flow_settings import POLICY_PREFIX, FlowSettings
from twinlog.mirror.replication_policy import SOURCE_ALIAS, has_properties_of_its_own
from twinlog.mirror.routed_names import RoutedPolicy, has_routed_topics, routing_differs
from twinlog.mirror.setting_values import parse_flag
from twinlog.mirror.settings import FLOW_KINDS, FLOW_PREFIX
from twinlog.store.config_records import ConfigChange, Mirror, MirrorTopic, Wanted
from twinlog.store.mirrors import MirrorStore, stored_flow
from twinlog.store.shared_remotes import check_positions
from twinlog.store.snapshot import Snapshot
from twinlog.text import few

log = logging.getLogger(__name__)

_ENABLED: Final = f"{FLOW_PREFIX}enabled"
_NAMING: Final = {
    SOURCE_ALIAS,
    "enabled",
    "heartbeats.replication.enabled",
    "target.cluster.alias",
    "topics",
    "topics.exclude",
}
"""What names remote topics, or selects topics again, besides policies and transforms."""
_OFF: Final = {_ENABLED: "false", f"{FLOW_PREFIX}emit.heartbeats.enabled": "false"}


def why_not_again(former: MirrorTopic, topic_id: UUID, settings: FlowSettings) -> str:
    """Why a topic that was deleted on the source does not go on in the present one of its name.

    All brokers have agreed that it was deleted (`DeletedTopics`). Without ids, the recorded
    positions would be taken for those of the present topic.

    Args:
        former: the flow's topic.
        topic_id: the present one's.
        settings: the flow's.

    Returns:
        The reason; empty: it does. One with the same id had been missing in answers only.
    """
    if not former.source_deleted or former.topic_id == topic_id != NO_TOPIC_ID:
        return ""
    if not is_another(former.topic_id, topic_id):
        return (
            "it was deleted on the source, which has no ids of topics: delete the remote topic, "
            "and the flow with --forget-offsets, and create the flow again; or exclude the topic "
            "(topics.exclude)"
        )
    if settings.passes_lost:
        return ""
    return (
        "it was deleted and recreated on the source: with twinlog.data.loss=continue, the present "
        "topic is copied behind the records of the former one; or exclude it (topics.exclude)"
    )


def require_same_names(snapshot: Snapshot, name: str, properties: Mapping[str, str]) -> None:
    """Check that a flow's topics keep their remote names with new settings.

    Args:
        snapshot: all mirrors.
        name: the flow's.
        properties: those that the flow is to have.

    Raises:
        UserError: a topic that it goes on with would have another remote name.
    """
    _require_same_routes(snapshot, name, properties)
    topics = [
        topic
        for topic in snapshot.topics_of(name)
        if topic.wanted is not Wanted.STOPPED or topic.not_selected
    ]
    rules = flow_of(properties)
    remote = copied_topics([topic.topic for topic in topics], *rules)
    names, forget = "source.cluster.alias and replication.policy.*", ""
    if isinstance(rules.policy, RoutedPolicy):
        names = "source.cluster.alias, replication.policy.*, transforms and predicates"
    if may_have_routed(properties):
        forget = " --forget-offsets"
    for topic in topics:
        wanted = remote.get(topic.topic, topic.destination_name)
        if wanted != topic.destination_name:
            raise UserError(
                f"{topic.topic} would be copied to {wanted} by these settings, and flow {name} "
                f"copies it to {topic.destination_name}",
                hint=f"set {names} as before; or remove the "
                f"topic from the flow: kafka-mirrors --remove --mirror {name} --topic "
                f"'{re.escape(topic.topic)}'; or, to copy all topics from their beginning to the "
                f"new names, delete the flow first: twinlog flows delete --flow {name}{forget}",
            )


def may_rename(altered: Mapping[str, str], properties: Mapping[str, str]) -> bool:
    """Whether a flow's topics may have other remote names by what is altered.

    What it selects counts, too: a topic that it selects again may have a former name.

    Args:
        altered: the properties of its mirror that are set.
        properties: all that it is to have. A policy of one's own may read any of the flow's.
    """
    names = settings_texts(altered)
    return bool(names and has_properties_of_its_own(settings_texts(properties))) or any(
        name in _NAMING or name.startswith(POLICY_PREFIX) or belongs_to_transforms(name)
        for name in names
    )


def _require_same_routes(snapshot: Snapshot, name: str, properties: Mapping[str, str]) -> None:
    """Check that a flow does not begin, or end, to have remote topics that records are routed to.

    Its records are there in any case, and its positions at other topics. So a removed topic counts
    as well: if it was added again, it would be copied twice to the same topic.

    Raises:
        UserError: one of its topics would have another remote name.
    """
    stored = snapshot.mirrors[name].source
    if not routing_differs(stored, properties):
        return
    after = has_routed_topics(settings_texts(properties))
    settings, policy = flow_of(properties)
    for topic in snapshot.topics_of(name):
        wanted = policy.format_remote_topic(settings.source_cluster_alias, topic.topic)
        if wanted != topic.destination_name:
            raise UserError(
                f"flow {name} would keep its position of {topic.topic} at {wanted}, and keeps it "
                f"at {topic.destination_name}: where RegexRouter routes records, a map of offsets "
                f"can be switched {'on' if after else 'off'} only before the flow has topics",
                hint="set sync.group.offsets.enabled, twinlog.offset.map and transforms as before; "
                "or take the steps of docs/operations/kip-656.md "
                "(Offsets of groups in routed topics)",
            )


def unselected(topics: Iterable[MirrorTopic], flow: FlowRules) -> list[MirrorTopic]:
    """Those of a flow's topics that are mirrored, and that its settings do not select."""
    mirrored = [topic for topic in topics if topic.wanted is Wanted.MIRRORING]
    selected = copied_topics([topic.topic for topic in mirrored], *flow)
    return [topic for topic in mirrored if topic.topic not in selected]


async def follow_selection(destination: KafkaCluster, name: str) -> list[str]:
    """Remove the topics from a flow that its stored settings do not select.

    Returns:
        A line for each of these topics, and for each one that goes on since it is selected again.

    Raises:
        UserError: its settings cannot be read, or a right is missing.
        Retriable: the target is unreachable.
    """
    store = MirrorStore(destination)
    removed: list[MirrorTopic] = []

    def decide(snapshot: Snapshot) -> list[ConfigChange]:
        rules = flow_of(stored_flow(snapshot, name).source)
        removed[:] = unselected(snapshot.topics_of(name), rules)
        return _without(removed)

    snapshot = await store.snapshot()
    # A change fences other writers, so there is none without a need.
    if decide(snapshot):
        await store.change(decide)
    lines = [_removed_line(topic) for topic in removed]
    off = [topic for topic in snapshot.topics_of(name) if topic.not_selected]
    mirror = stored_flow(snapshot, name)
    again = copied_topics([t.topic for t in off], *flow_of(mirror.source))
    how = "it is paused, as the flow is" if mirror.paused else "it goes on where it was"
    return lines + [f"{topic} is selected again: {how}" for topic in again]


async def switch_off(destination: KafkaCluster, name: str) -> list[str]:
    """End the copying of a flow that is not enabled in a file, until it is.

    Returns:
        A line, unless there is no such flow, or it is off already.

    Raises:
        UserError: a right is missing.
        Retriable: the target is unreachable.
    """
    store = MirrorStore(destination)
    removed: list[MirrorTopic] = []

    def decide(snapshot: Snapshot) -> list[ConfigChange]:
        mirror = snapshot.mirrors.get(name)
        if mirror is None or mirror.kind not in FLOW_KINDS:
            return []
        topics = snapshot.topics_of(name)
        removed[:] = [topic for topic in topics if topic.wanted is Wanted.MIRRORING]
        off = replace(mirror, source={**mirror.source, **_OFF})
        return [*([] if off == mirror else [off]), *_without(removed)]

    if not decide(await store.snapshot()):
        return []
    await store.change(decide)
    topics = f" ({few([topic.topic for topic in removed])})" if removed else ""
    line = (
        f"it is not enabled: flow {name} is switched off, and no longer copies {len(removed)} "
        f"topic(s){topics}; their copies stay, and once it is enabled, it goes on where it was"
    )
    return [line]


async def pause_flow(destination: KafkaCluster, name: str) -> list[str]:
    """Pause a flow: all topics that it has, and gets.

    Args:
        destination: the target.
        name: the flow's.

    Returns:
        The topics that are changed by this.

    Raises:
        MirrorRefused: UNKNOWN_MIRROR.
        UserError: the mirror is no flow, or a right is missing.
        Retriable: the target is unreachable.
    """

    def paused(mirror: Mirror, topics: Sequence[MirrorTopic]) -> list[ConfigChange]:
        running = [topic for topic in topics if topic.wanted is Wanted.MIRRORING]
        changes: list[ConfigChange] = [replace(one, wanted=Wanted.PAUSED) for one in running]
        return changes if mirror.paused else [replace(mirror, paused=True), *changes]

    return await _change_whole(destination, name, paused)


async def resume_flow(destination: KafkaCluster, name: str) -> list[str]:
    """Resume a flow, with all of its topics that are paused.

    Those that its settings do not select any more are removed, as they were when they changed.

    Args:
        destination: the target.
        name: the flow's.

    Returns:
        The topics that go on.

    Raises:
        MirrorRefused: UNKNOWN_MIRROR.
        UserError: the mirror is no flow, its settings cannot be read, or a right is missing.
        Retriable: the target is unreachable.
    """

    def resumed(mirror: Mirror, topics: Sequence[MirrorTopic]) -> list[ConfigChange]:
        paused = [topic for topic in topics if topic.wanted is Wanted.PAUSED]
        selected = copied_topics([one.topic for one in paused], *flow_of(mirror.source))
        changes = _without(one for one in paused if one.topic not in selected)
        on = [one for one in paused if one.topic in selected]
        changes += [replace(one, wanted=Wanted.MIRRORING) for one in on]
        return [replace(mirror, paused=False), *changes] if mirror.paused else changes

    return await _change_whole(destination, name, resumed)


async def _change_whole(
    destination: KafkaCluster,
    name: str,
    change: Callable[[Mirror, Sequence[MirrorTopic]], list[ConfigChange]],
) -> list[str]:
    """Change a flow and its topics; return those that are paused or resumed by this."""
    store = MirrorStore(destination)
    names: list[str] = []
    removed: list[MirrorTopic] = []

    def decide(snapshot: Snapshot) -> list[ConfigChange]:
        changes = change(stored_flow(snapshot, name), snapshot.topics_of(name))
        topics = [one for one in changes if isinstance(one, MirrorTopic)]
        names[:] = [one.topic for one in topics if one.wanted is not Wanted.STOPPED]
        removed[:] = [one for one in topics if one.wanted is Wanted.STOPPED]
        return changes

    snapshot = await store.snapshot()
    # A change fences other writers, so there is none without a need.
    if decide(snapshot):
        await store.change(decide)
    for unread, why in sorted(snapshot.unread_topics(name).items()):
        log.warning("%s is unchanged, because its record cannot be read: %s", unread, why)
    for topic in removed:
        log.warning("%s", _removed_line(topic))
    return names


def paused_line(mirror: Mirror) -> str:
    """What is to be said at the start of a flow that is paused as a whole; empty: it is not."""
    if not mirror.paused:
        return ""
    return (
        f"it is paused, with topics that it gets, until twinlog flows resume --flow {mirror.name}"
    )


def _removed_line(topic: MirrorTopic) -> str:
    return (
        f"{topic.topic} is not selected any more: it is removed from the flow, and "
        f"{topic.destination_name} stays as it is"
    )


def _without(topics: Iterable[MirrorTopic]) -> list[ConfigChange]:
    return [replace(topic, wanted=Wanted.STOPPED, not_selected=True) for topic in topics]


async def select_again(store: MirrorStore, mirror: Mirror, topic: MirrorTopic) -> bool:
    """Go on with a topic that was removed since the settings did not select it.

    All that is stored of it stays: where it begins, and of which topics on both sides it is.

    Args:
        store: of the target.
        mirror: the flow, with the settings that select the topic.
        topic: the topic.

    Returns:
        Whether it goes on, or is paused, as the flow is; False: the flow or the topic was changed
        meanwhile.

    Raises:
        MirrorRefused: MIRROR_TOPIC_BEING_REMOVED: it is not STOPPED yet.
        UserError: another mirror copies it to the same remote topic, or has done so.
        UserError, Retriable: see `MirrorStore.change`.
    """
    wanted = Wanted.PAUSED if mirror.paused else Wanted.MIRRORING
    back = replace(topic, wanted=wanted, not_selected=False)
    changed = False

    async def decide(snapshot: Snapshot) -> list[ConfigChange]:
        nonlocal changed
        same = snapshot.mirrors.get(mirror.name) == mirror
        topics = snapshot.topics_of(mirror.name)
        changed = same and topic in topics
        if not changed:
            return []
        names, ids = {topic.topic: topic.destination_name}, {topic.topic: topic.topic_id}
        await store.check_addable(snapshot, mirror.name, names, ids)
        check_positions(mirror.kind, [one for one in topics if one != topic], names)
        return [back]

    await store.change(decide)
    return changed


def other_flows(snapshot: Snapshot, names: Iterable[str]) -> list[str]:
    """The flows that a node runs besides these: those that are not switched off."""
    others = snapshot.mirrors.keys() - {*names}
    return sorted(
        name
        for name in others
        if snapshot.mirrors[name].kind in FLOW_KINDS and not _is_off(snapshot.mirrors[name])
    )


def _is_off(mirror: Mirror) -> bool:
    try:
        return not parse_flag(mirror.source.get(_ENABLED, "false"))
    except ValueError:
        return False
