"""Commands that pause, resume and remove a mirror's topics, and alter and delete a mirror.

A command writes the *desired state* (`wanted`) of all of its topics, or of none. The lanes then
take the partitions through their states (mirror/states.py).

    command   applies to topics        desired state          error otherwise
    --------  -----------------------  ---------------------  ----------------------------------
    pause     MIRRORING                PAUSED                 MIRROR_TOPIC_ALREADY_PAUSED,
                                                              MIRROR_TOPIC_BEING_REMOVED
    resume    PAUSED                   MIRRORING              MIRROR_TOPIC_NOT_PAUSED,
                                                              MIRROR_TOPIC_BEING_REMOVED
    remove    MIRRORING, PAUSED        STOPPED                MIRROR_TOPIC_BEING_REMOVED

A topic that a flow does not select any more was removed by its settings (flow_selection.py). A
removal by command applies to it, too: then the settings do not add it again.

A removal by the expression that topics were added with also ends that expression. The removal of a
mirror's last topic ends all of its expressions. An ended expression adds no more topics.

An expression selects the mirror's topics that match it and that the command applies to: in a
disaster, a topic that was removed before must not hold up `--remove --topic '.*'`. If the command
applies to none of them, the error is that of the first one.
"""

import logging
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

from twinlog.kafka.acls import Acl
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import UserError
from twinlog.lifecycle.creation import compiled, connected_source
from twinlog.mirror.errors import MirrorError, MirrorRefused
from twinlog.mirror.flow import lasting_settings
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.routed_names import ROUTED_TOPICS
from twinlog.mirror.settings import FLOW_KINDS, FLOW_PREFIX, GROUPS, KIND, check_settings
from twinlog.mirror.states import State
from twinlog.store.config_records import ConfigChange, MadeFor, Mirror, MirrorTopic, Wanted
from twinlog.store.control_topics import States
from twinlog.store.mirrors import (
    STOPPED_HINT,
    Forget,
    MirrorStore,
    to_be_set_back,
    unknown_mirror,
)
from twinlog.store.shared_remotes import require_sole_active_copy, transforms
from twinlog.store.snapshot import Snapshot
from twinlog.text import few

log = logging.getLogger(__name__)

Topics: TypeAlias = str | Collection[str]
"""A topic name or otherwise a regular expression; or a collection of topic names."""
_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")
Refuse = Callable[[MirrorTopic], MirrorError | None]
_STANDING: Final = {
    Wanted.MIRRORING: "being mirrored",
    Wanted.PAUSED: "paused",
    Wanted.STOPPED: "being removed, or removed already",
}
_WAY_ON: Final = {
    MirrorError.MIRROR_TOPIC_ALREADY_PAUSED: "--resume starts mirroring again",
    MirrorError.MIRROR_TOPIC_NOT_PAUSED: "--describe shows the state of each partition",
    MirrorError.MIRROR_TOPIC_BEING_REMOVED: (
        "wait until --describe shows all partitions STOPPED, then --add mirrors it again"
    ),
}


async def pause_topics(destination: KafkaCluster, mirror: str, topics: Topics) -> list[str]:
    """Stop copying these topics, which stay read-only; return their names.

    Raises:
        MirrorRefused: UNKNOWN_MIRROR, TOPIC_NOT_IN_MIRROR, MIRROR_TOPIC_ALREADY_PAUSED,
            MIRROR_TOPIC_BEING_REMOVED, INVALID_REGULAR_EXPRESSION.
        Retriable, UserError: the destination is unreachable, or refuses.
    """
    refusals = {
        Wanted.PAUSED: MirrorError.MIRROR_TOPIC_ALREADY_PAUSED,
        Wanted.STOPPED: MirrorError.MIRROR_TOPIC_BEING_REMOVED,
    }
    return await _change(destination, mirror, topics, Wanted.PAUSED, refusals)


async def resume_topics(destination: KafkaCluster, mirror: str, topics: Topics) -> list[str]:
    """Resume paused topics from where they are; return their names.

    Raises:
        MirrorRefused: UNKNOWN_MIRROR, TOPIC_NOT_IN_MIRROR, MIRROR_TOPIC_NOT_PAUSED,
            MIRROR_TOPIC_BEING_REMOVED, INVALID_REGULAR_EXPRESSION.
        Retriable, UserError: the destination is unreachable, or refuses.
    """
    refusals = {
        Wanted.MIRRORING: MirrorError.MIRROR_TOPIC_NOT_PAUSED,
        Wanted.STOPPED: MirrorError.MIRROR_TOPIC_BEING_REMOVED,
    }
    return await _change(destination, mirror, topics, Wanted.MIRRORING, refusals)


async def remove_topics(
    destination: KafkaCluster, mirror: str, topics: Topics, expression: Topics | None = None
) -> list[str]:
    """Fail over to the destination's topics: they are fenced, then writable; return their names.

    Args:
        destination: the mirror's cluster.
        mirror: the mirror's name.
        topics: the topics to remove.
        expression: how the operator has named them, if `topics` was derived from that; it adds no
            more topics then.

    Raises:
        MirrorRefused: UNKNOWN_MIRROR, TOPIC_NOT_IN_MIRROR, MIRROR_TOPIC_BEING_REMOVED,
            INVALID_REGULAR_EXPRESSION.
        Retriable, UserError: the destination is unreachable, or refuses.
    """
    refusals = {Wanted.STOPPED: MirrorError.MIRROR_TOPIC_BEING_REMOVED}
    ending = topics if expression is None else expression
    return await _change(destination, mirror, topics, Wanted.STOPPED, refusals, ending=ending)


async def alter_mirror(
    destination: KafkaCluster,
    name: str,
    properties: Mapping[str, str],
    *,
    replaces: bool = False,
    check: Callable[[Snapshot], None] = lambda _: None,
) -> None:
    """Set these properties of a mirror; its lanes reconnect.

    `replaces`: see `altered`. `check`: refuses the change itself by raising, as a node may add
    topics until then.

    Raises:
        MirrorRefused: UNKNOWN_MIRROR.
        UserError: a setting is wrong or cannot be altered, or the source is another cluster now.
        Retriable: a cluster is unreachable.
    """
    check_settings(properties)
    snapshot = await MirrorStore(destination).snapshot()
    mirror = altered(snapshot, name, properties, replaces=replaces)
    async with connected_source(mirror, destination.config.grants):
        pass

    def decide(now: Snapshot) -> list[ConfigChange]:
        changed = altered(now, name, properties, replaces=replaces)
        check(now)
        return [changed]

    await MirrorStore(destination).change(decide)


def altered(
    snapshot: Snapshot, name: str, properties: Mapping[str, str], *, replaces: bool
) -> Mirror:
    """A mirror with other properties.

    Args:
        snapshot: all mirrors.
        name: the mirror's.
        properties: those that are set.
        replaces: whether others are dropped, except `lasting_settings`; otherwise they are kept.

    Raises:
        MirrorRefused: UNKNOWN_MIRROR.
        UserError: one cannot be altered; or another mirror copies topics of the flow to the same
            remote topics: without its transforms they would have each record twice.
    """
    mirror = snapshot.mirrors.get(name)
    if mirror is None:
        raise unknown_mirror(name, snapshot)
    kept = lasting_settings(mirror.source) if replaces else mirror.source
    changed = replace(mirror, source={**kept, **properties})
    if changed.kind != mirror.kind:
        raise UserError(
            f"{KIND} of mirror {name} is {mirror.kind} and cannot be altered",
            hint="create another mirror",
        )
    routed = f"{FLOW_PREFIX}{ROUTED_TOPICS}"
    if not replaces and mirror.source.get(routed) != changed.source.get(routed):
        raise UserError(
            f"{routed} of flow {name} cannot be altered",
            hint="start twinlog mirror-maker with a changed file: it follows from the transforms "
            "and the map of offsets",
        )
    if mirror.kind in FLOW_KINDS and properties.get(GROUPS, "").strip():
        raise UserError(
            f"{GROUPS} has no effect on flow {name}: its settings groups and groups.exclude "
            "select groups",
            hint="start twinlog mirror-maker with a changed file, or use twinlog flows create "
            "--replace",
        )
    if transforms(mirror):
        require_sole_active_copy(snapshot, changed)
    return changed


async def delete_mirror(
    destination: KafkaCluster, name: str, *, forget: Forget | None = None
) -> frozenset[Acl]:
    """Delete a mirror without topics, or whose partitions are all STOPPED, and its stored records.

    The destination's topics stay as they are, and so do the ACLs that the mirror has copied.

    Args:
        destination: the mirror's cluster.
        name: its name.
        forget: see `MirrorStore.delete_mirror`.

    Returns:
        The copied ACLs that no other mirror has copied. No mirror removes them when the source
        revokes them later.

    Raises:
        MirrorRefused: UNKNOWN_MIRROR, MIRROR_NOT_EMPTY.
        Retriable, UserError: the destination is unreachable, or refuses.
    """
    store = MirrorStore(destination)
    copied_acls = frozenset[Acl]()
    await store.settled(lambda snapshot: _not_given_back(snapshot, name))

    def check(snapshot: Snapshot, states: States) -> None:
        nonlocal copied_acls
        if name not in snapshot.mirrors:
            raise unknown_mirror(name, snapshot)
        copied_acls = snapshot.made_acls(name, MadeFor.SOURCE).difference(
            *(snapshot.made_acls(m, MadeFor.SOURCE) for m in snapshot.mirrors if m != name)
        )
        active = [
            f"{partition.topic}-{partition.partition} ({state.name})"
            for topic, partition in partitions_of(snapshot, name)
            if (state := states.state(partition)) is not State.STOPPED
            or topic.wanted is not Wanted.STOPPED
        ]
        if active:
            raise MirrorError.MIRROR_NOT_EMPTY.error(
                f"{len(active)} partition(s) of mirror {name} are not STOPPED: {few(active)}",
                hint=f"remove its topics first, and {STOPPED_HINT}",
            )
        if obstacle := _not_given_back(snapshot, name):
            raise MirrorError.MIRROR_NOT_EMPTY.error(
                f"mirror {name}: {obstacle}",
                hint="a running node does this; its log contains errors if it cannot",
            )
        if snapshot.made_acls(name, MadeFor.SWITCHOVER):
            raise MirrorError.MIRROR_NOT_EMPTY.error(
                f"ACLs created by a switchover of mirror {name} still deny producers WRITE on the "
                "source",
                hint="remove them with twinlog switchover --allow-producers",
            )

    await store.delete_mirror(name, check, forget)
    return copied_acls


def _not_given_back(snapshot: Snapshot, mirror: str) -> str:
    """What is still to be restored for a mirror whose topics are all removed; empty: nothing."""
    topics = snapshot.topics_of(mirror)
    if any(topic.wanted is not Wanted.STOPPED for topic in topics):
        return ""
    if snapshot.made_acls(mirror, MadeFor.READ_ONLY):
        return "ACLs that keep its topics read-only are not removed yet"
    names = to_be_set_back(snapshot, [topic.topic for topic in topics])
    return f"configurations of these topics are not reset yet: {few(names)}" if names else ""


def partitions_of(snapshot: Snapshot, mirror: str) -> list[tuple[MirrorTopic, MirrorPartition]]:
    """All partitions of a mirror's topics, each with its topic."""
    return [
        (topic, name) for topic in snapshot.topics_of(mirror) for name in topic.mirror_partitions
    ]


async def _change(
    destination: KafkaCluster,
    mirror: str,
    topics: Topics,
    wanted: Wanted,
    refusals: dict[Wanted, MirrorError],
    *,
    ending: Topics = "",
) -> list[str]:
    if isinstance(topics, str):
        compiled(topics)
    names: list[str] = []
    unread: dict[str, str] = {}

    def refuse(topic: MirrorTopic) -> MirrorError | None:
        by_settings = wanted is Wanted.STOPPED and topic.not_selected
        return None if by_settings else refusals.get(topic.wanted)

    def decide(snapshot: Snapshot) -> list[ConfigChange]:
        # `change` may call this more than once, so each run replaces the results of the last one.
        unread.clear()
        unread.update(_unread(snapshot, mirror, topics))
        selection = choose(snapshot, mirror, topics, refuse)
        names[:] = [topic.topic for topic in selection]
        changes: list[ConfigChange] = [
            replace(topic, wanted=wanted, not_selected=False) for topic in selection
        ]
        if wanted is Wanted.STOPPED:
            changes += _without_patterns(snapshot, mirror, ending, names)
        return changes

    try:
        await MirrorStore(destination).change(decide)
    finally:
        for name, why in sorted(unread.items()):
            log.warning("%s is unchanged, because its record cannot be read: %s", name, why)
    return names


def _unread(snapshot: Snapshot, mirror: str, topics: Topics) -> dict[str, str]:
    """The mirror's topics that may be selected but have an unreadable record, with the reason."""
    unread = snapshot.unread_topics(mirror)
    if isinstance(topics, str):
        pattern = compiled(topics)
        return {
            name: why for name, why in unread.items() if name == topics or pattern.fullmatch(name)
        }
    return {name: why for name, why in unread.items() if name in topics}


def _without_patterns(
    snapshot: Snapshot, mirror: str, topics: Topics, names: Collection[str]
) -> list[ConfigChange]:
    """The mirror without the patterns that this removal ends; nothing if it ends none.

    A pattern ends when it is removed by name. All patterns end with the last topic, so that a
    failover of the whole mirror is not followed by new topics.
    """
    previous = snapshot.mirrors[mirror]
    others = [
        topic
        for topic in snapshot.topics_of(mirror)
        if topic.wanted is not Wanted.STOPPED and topic.topic not in names
    ]
    patterns = tuple(pattern for pattern in previous.topic_patterns if others and pattern != topics)
    return (
        [] if patterns == previous.topic_patterns else [replace(previous, topic_patterns=patterns)]
    )


def choose(snapshot: Snapshot, mirror: str, topics: Topics, refuse: Refuse) -> list[MirrorTopic]:
    """The selected topics of a mirror that `refuse` accepts.

    A text selects the topic of exactly this name, if the mirror has it; otherwise all accepted
    topics whose whole name matches. A text that may be a topic name and contains dots is an
    expression only if topics were added by it: `orders.eu` must not fail over `orders-eu`. Names
    select exactly these topics.

    Raises:
        MirrorRefused: UNKNOWN_MIRROR, TOPIC_NOT_IN_MIRROR, or the error of `refuse` for the first
            one.
    """
    if mirror not in snapshot.mirrors:
        raise unknown_mirror(mirror, snapshot)
    by_name = {topic.topic: topic for topic in snapshot.topics_of(mirror)}
    if not isinstance(topics, str):
        return _named(by_name, mirror, topics, refuse)
    pattern = compiled(topics)
    if topics in by_name:
        matched = [by_name[topics]]
    elif _NAME.fullmatch(topics) and topics not in snapshot.mirrors[mirror].topic_patterns:
        matched = []
    else:
        matched = [topic for name, topic in by_name.items() if pattern.fullmatch(name)]
    if not matched:
        raise MirrorError.TOPIC_NOT_IN_MIRROR.error(
            f"no topic of mirror {mirror} has the name or matches the regular expression "
            f"{topics!r}",
            hint=f"{_shows_topics(mirror)}; text that is a valid topic name is treated as a name: "
            "in a regular expression, write [.] or (.) for a dot",
        )
    selection = [topic for topic in matched if refuse(topic) is None]
    if not selection:
        raise _refused(matched, refuse)
    return selection


def _named(
    by_name: Mapping[str, MirrorTopic], mirror: str, names: Collection[str], refuse: Refuse
) -> list[MirrorTopic]:
    """The topics of these names, if the mirror has all of them and `refuse` accepts them."""
    missing_names = sorted(set(names) - by_name.keys())
    if missing_names or not names:
        raise MirrorError.TOPIC_NOT_IN_MIRROR.error(
            f"not topics of mirror {mirror}: {few(missing_names)}"
            if missing_names
            else "no topic was specified",
            hint=_shows_topics(mirror),
        )
    selection = [by_name[name] for name in sorted(set(names))]
    if refusals := [topic for topic in selection if refuse(topic) is not None]:
        raise _refused(refusals, refuse)
    return selection


def _shows_topics(mirror: str) -> str:
    return f"--describe --mirror {mirror} lists its topics"


def _refused(topics: Sequence[MirrorTopic], refuse: Refuse) -> MirrorRefused:
    """The error of the first topic, with all topics that have the same error."""
    kind = refuse(topics[0])
    assert kind is not None
    names = [topic.topic for topic in topics if refuse(topic) is kind]
    return kind.error(f"{few(names)}: {_STANDING[topics[0].wanted]}", hint=_WAY_ON[kind])
