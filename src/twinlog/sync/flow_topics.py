"""The topics of a flow follow the source's (KIP-382), and so do their configurations.

on the source                          on the destination
-------------------------------------  --------------------------------------------------------
a topic that the flow selects          a remote topic is created, or appended to
a topic has more partitions            the remote topic grows
a configuration is set                 it is set there, too (mirror/copied_configs.py)
"""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from twinlog.kafka.client.metadata import Topic, is_another
from twinlog.kafka.errors import Refusal, Retriable, TwinlogError
from twinlog.kafka.requests.topics import (
    ConfigSource,
    describe_configs,
    known_topics,
    topic_names,
    topic_resource,
)
from twinlog.lifecycle.destination_topics import chunks, known_configs
from twinlog.lifecycle.flow_creation import copied_to
from twinlog.lifecycle.flow_ends import Offsets
from twinlog.lifecycle.flow_selection import select_again, unselected, why_not_again
from twinlog.lifecycle.flow_topics import (
    FlowClusters,
    excluded_configs,
    left_out_text,
    wanted_configs,
)
from twinlog.lifecycle.source_configs import broker_reports, source_configs
from twinlog.mirror.copied_configs import agreed_changes, remote_changes, shortened
from twinlog.mirror.copied_topics import copied_topics
from twinlog.mirror.flow import FlowRules, flow_of, flow_settings_of
from twinlog.mirror.settings import FLOW_KINDS
from twinlog.mirror.topic_configs import (
    ConfigChanges,
    DestinationConfig,
    settled_changes,
    unsettled,
)
from twinlog.store.config_records import Mirror, MirrorTopic, Wanted
from twinlog.store.shared_remotes import copied_twice, may_share, other_copies
from twinlog.store.snapshot import SettingsReplaced, require_settings, shared_topics
from twinlog.sync.absent_acls import MirrorTexts
from twinlog.sync.base import METADATA, Host, Moved, Sync, SyncContext, drop
from twinlog.sync.configs import ConfigSync, change_configs
from twinlog.sync.flow_begins import FlowBegins, followed, grown
from twinlog.sync.recreated_sources import log_recreated
from twinlog.sync.topic_identity import recreated_topics
from twinlog.sync.topics import Room
from twinlog.sync.unsettled_configs import UnsettledConfigs, by_reason
from twinlog.text import few

log = logging.getLogger(__name__)

FLOWS = FLOW_KINDS
RECREATED: Final = "SourceTopicRecreated"
"""Counts topics of the source that were recreated, and that a flow goes on with (`Host.failed`)."""
_SELECTION: Final = "selection"
_COPIES: Final = "copies"
_UNREAD: Final = "unread"
_TO_REMOVE: Final = (
    "a start of twinlog mirror-maker, or twinlog flows create --replace, removes them"
)
SEARCH_S: Final = 10.0
"""Seconds of checks without a new topic before a flow that looks once counts as complete."""


class FlowChanges(NamedTuple):
    """What a flow lacks on the destination."""

    topics: Mapping[str, Topic]
    """The source's topics."""
    new: Mapping[str, str]
    """The remote names of the topics to add, by the source's."""
    grown: Mapping[str, int]
    """The source's partition counts, by the source's names."""
    selected_again: Mapping[str, MirrorTopic]
    """Those of `new` that the settings had removed from the flow, by the source's names."""
    recreated: Collection[MirrorTopic]
    """Topics whose source topic is another one now, of which the new one is wanted."""
    begins: Mapping[str, Offsets]
    """Where partitions begin: see `FlowBegins.find`."""
    others: Mapping[str, str]
    """Why other topics that it selects are not added."""


class FlowTopics(Sync[FlowChanges]):
    """Adds the topics that a flow selects, and lets remote topics grow.

    A topic that an operator has removed from the flow is not added again. One that its settings had
    removed goes on where it was, once they select it again; those that they do not select are
    removed by whoever changes them (lifecycle/flow_selection.py). One that was recreated on the
    source is removed and added again, if `twinlog.data.loss` is `continue`: the new topic's
    records follow those of the former one. Otherwise its partitions are FAILED; where it was
    removed before, as it was deleted (`DeletedTopics`), it is not added again. It counts as
    recreated once all brokers of the source agree: one that is cut off may show the id of a topic
    that was deleted before, and the flow would copy the present one again when it is back.

    A topic that another mirror copies to the same remote topic, or has copied, is refused
    (store/shared_remotes.py). If an earlier version has added it to two flows, none is stopped:
    each of them logs and counts it, until an operator has removed it from one.

    Without `FlowSettings.refreshes_topics` a node looks for topics when it starts, as MirrorMaker 2
    does, and not later. One answer without new topics does not end that: a broker that has just
    started, or is cut off from the controllers, shows a part of the topics. The search ends when

    1. all topics that were found are added, and checks for `SEARCH_S` have found no other one, and
    2. then no broker of the source knows another one.

    Args:
        clock: monotonic seconds.
        failed: see `Host`.
    """

    kinds = FLOWS
    name = "topics of a flow"
    metric = METADATA

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        failed: Callable[[str, str, int], None] = lambda *_: None,
    ) -> None:
        self._clock = clock
        self._failed = failed
        self._complete: set[str] = set()  # flows that have all topics that the source had
        self._since: dict[str, float] = {}  # by flow: since when checks find no new topic
        self._begins = FlowBegins()
        self._unfinished: set[str] = set()  # flows whose last look has found something to do
        self._texts = MirrorTexts()
        self._refused: dict[str, dict[str, str]] = {}  # by flow and topic: why it is not added

    @classmethod
    def create(cls, host: Host) -> "FlowTopics":
        """The sync of one node."""
        return cls(failed=host.failed)

    def interval_s(self, mirror: Mirror) -> float:
        """`refresh.topics.interval.seconds`, once a look has found nothing to do.

        Until then each refresh looks again: a broker that has just started shows a part of the
        topics, and a recreated topic is added after it was removed. So do flows that look once,
        also when they have all: a topic may get partitions.
        """
        settings = flow_settings_of(mirror.source)
        unfinished = self._unfinished | self._begins.incomplete
        if mirror.name in unfinished or not settings.refreshes_topics:
            return 0
        return settings.refresh_topics_interval_seconds

    def forget(self, moved: Moved) -> None:
        """Look for topics again."""
        self._complete -= {flow for flow in self._complete if moved(flow)}
        drop(moved, self._since, self._refused)
        self._begins.forget(moved)

    async def compare(self, context: SyncContext) -> FlowChanges:
        """Compare the source's topics with the flow's.

        Raises:
            Retriable: the source is unreachable.
            UserError: the flow's settings are malformed.
        """
        flow, topics = flow_of(context.mirror.source), context.snapshot.topics_of(context.name)
        there = (await context.source.refresh(None)).topics
        incomplete = not topics or context.name not in self._complete
        searches = incomplete and not flow.settings.refreshes_topics
        looks = searches or flow.settings.refreshes_topics
        deselected = {topic.topic: topic for topic in topics if topic.not_selected}
        returning = {topic.topic: topic for topic in topics if topic.may_return}
        # Which topics it has is no question of what the source shows.
        shown = there if looks else there.keys() & returning.keys()
        names = copied_topics(shown, flow.settings, flow.policy)
        known = {topic.topic for topic in topics if not topic.may_return}
        grown = {
            topic.topic: len(there[topic.topic].partitions)
            for topic in context.same
            if len(there[topic.topic].partitions) > topic.partitions
            and not is_another(topic.topic_id, there[topic.topic].topic_id)
        }
        new = {name: remote for name, remote in names.items() if name not in known}
        ids = {name: there[name].topic_id for name in new}
        # Not tried: whoever adds a topic checks it again in the change itself.
        others = {
            topic.topic: str(copied_twice(context.snapshot, context.mirror, topic))
            for topic in other_copies(context.snapshot, context.mirror, new, ids)
        }
        others |= {
            name: why
            for name in new.keys() & returning.keys()
            if (why := why_not_again(returning[name], there[name].topic_id, flow.settings))
        }
        new = {name: remote for name, remote in new.items() if name not in others}
        self._tell_unselected(context, flow)
        suspects = [
            topic
            for topic in context.topics
            if flow.settings.passes_lost
            and topic.topic in there
            and is_another(topic.topic_id, there[topic.topic].topic_id)
        ]
        recreated = await _recreated_everywhere(context, suspects)
        self._unfinished.discard(context.name)
        if suspects or new or grown:
            self._unfinished.add(context.name)
        if new.keys() - returning.keys() or not topics:
            self._complete.discard(context.name)
            self._since.pop(context.name, None)
        elif searches and await self._has_all(context, flow, known | others.keys()):
            self._complete.add(context.name)
        begins = await self._begins.find(
            context, flow.settings, {name: there[name] for name in new.keys() - deselected.keys()}
        )
        again = {name: deselected[name] for name in new if name in deselected}
        return FlowChanges(there, new, grown, again, recreated, begins, others)

    def _tell_unselected(self, context: SyncContext, flow: FlowRules) -> None:
        """Log once which topics go on although the settings do not select them."""
        names = [topic.topic for topic in unselected(context.topics, flow)]
        if not names:
            self._texts.last.pop((context.name, _SELECTION), None)
            return
        text = f"goes on with topics that its settings do not select: {few(names)}; {_TO_REMOVE}"
        self._texts.tell(context.name, _SELECTION, text)

    def _tell_copies(self, context: SyncContext) -> int:
        """Log once which topics another flow copies to the same remote topics, too; count them."""
        names = {topic.topic: topic.destination_name for topic in context.topics}
        copies = other_copies(context.snapshot, context.mirror, names, removed=False)
        if not copies:
            self._texts.last.pop((context.name, _COPIES), None)
            return 0
        texts = [f"{topic.topic} ({topic.mirror})" for topic in copies]
        text = (
            f"another flow copies these topics to the same remote topics, which have each record "
            f"twice: {few(texts)}; remove them from one flow: kafka-mirrors --remove --mirror"
        )
        self._texts.tell(context.name, _COPIES, text)
        return len({topic.topic for topic in copies})

    def _tell_refused(self, flow: str, refused: Mapping[str, str]) -> None:
        """Log once why topics are not added, until another reason is the last one."""
        former = self._refused.get(flow, {})
        for name, why in refused.items():
            if former.get(name) != why:
                log.warning("flow %s: %s is not copied: %s", flow, name, why)
        self._refused[flow] = {**refused}

    async def _has_all(self, context: SyncContext, flow: FlowRules, known: Container[str]) -> bool:
        """Whether the source has no topic that the flow lacks; see the class."""
        now = self._clock()
        if now - self._since.setdefault(context.name, now) < SEARCH_S:
            return False
        try:
            names = await topic_names(context.source)
        except TwinlogError as error:
            log.info("flow %s: still looking for topics: %s", context.name, error)
            return False
        lacking = [
            name for name in copied_topics(names, flow.settings, flow.policy) if name not in known
        ]
        if lacking:
            log.info("flow %s: some broker knows %s: still looking", context.name, few(lacking))
            del self._since[context.name]
        return not lacking

    async def apply(self, context: SyncContext, difference: FlowChanges) -> int:
        """Add topics and partitions; return how many topics were not, or are copied twice.

        Raises:
            SettingsReplaced: the flow's settings have changed since the refresh began.
            TwinlogError: the destination is unreachable, or a right is missing.
        """
        flow = flow_of(context.mirror.source)
        clusters = FlowClusters(
            destination=context.destination,
            source=context.source,
            mirror=context.mirror,
            flow=flow,
        )
        room, refused = Room(context.mirror, context.snapshot.topics), {**difference.others}
        returned = {
            topic.topic
            for topic in context.snapshot.topics_of(context.name)
            if topic.source_deleted
            and topic.topic in difference.topics
            and is_another(topic.topic_id, difference.topics[topic.topic].topic_id)
        }
        for name, remote in sorted(difference.new.items()):
            count = len(difference.topics[name].partitions)
            if why := room.refuses(count):
                refused[name] = why
                continue
            try:
                if former := difference.selected_again.get(name):
                    await _go_on(context, clusters, former)
                else:
                    await clusters.add(
                        difference.topics, {name: remote}, followed_from=difference.begins
                    )
                    self._failed(context.name, RECREATED, int(name in returned))
            except SettingsReplaced:
                # The other topics were selected and named by the former settings as well. The
                # flow is unfinished, so the next refresh looks again, by the present ones.
                raise
            except TwinlogError as error:
                refused[name] = str(error)
            else:
                room.take(count)
                how = "is added, paused, and will be" if context.mirror.paused else "is"
                log.info("flow %s: %s %s copied to %s", context.name, name, how, remote)
        self._tell_refused(context.name, refused)
        if difference.recreated:
            await log_recreated(context, difference.recreated)
            await context.store.change(
                lambda now: [
                    replace(topic, wanted=Wanted.STOPPED, source_deleted=True)
                    for topic in now.topics
                    if topic in difference.recreated
                ]
            )
        await _note_begins(context, difference.begins)
        failures = len(refused) + self._tell_copies(context)
        return failures + await self._grow(context, clusters, room, difference)

    async def _grow(
        self, context: SyncContext, clusters: FlowClusters, room: Room, difference: FlowChanges
    ) -> int:
        failures = 0
        counts: dict[tuple[str, str, object, object], int] = {}
        sizes = {name: len(remote.partitions) for name, remote in context.here.items()}
        for topic in context.same:
            count = difference.grown.get(topic.topic, 0)
            if count <= topic.partitions:
                continue
            try:
                if why := room.refuses(count - topic.partitions):
                    log.warning("flow %s: %s cannot grow: %s", context.name, topic.topic, why)
                    failures += 1
                    continue
                if sizes.get(topic.destination_name, 0) < count:
                    await clusters.grow({topic.destination_name: count})
                    # Another source topic may have the same remote topic, and fewer partitions.
                    sizes[topic.destination_name] = count
            except TwinlogError as error:
                log.warning("flow %s: %s cannot grow: %s", context.name, topic.topic, error)
                failures += 1
            else:
                room.take(count - topic.partitions)
                counts[topic.incarnation] = count
        if counts:
            await context.store.change(
                lambda now: [
                    replace(topic, partitions=count, followed_from=grown(topic, count))
                    for topic in now.topics
                    if (count := counts.get(topic.incarnation, 0)) > topic.partitions
                ]
            )
        return failures


async def _recreated_everywhere(
    context: SyncContext, suspects: Sequence[MirrorTopic]
) -> list[MirrorTopic]:
    """Those of these topics that all brokers of the source know under one other id."""
    if not suspects:
        return []
    try:
        known = await known_topics(context.source, {topic.topic for topic in suspects})
    except Retriable as error:
        log.info("flow %s: whether topics were recreated is not known: %s", context.name, error)
        return []
    return [
        topic
        for topic in suspects
        if (one := known.get(topic.topic)) is not None
        and one.agreed_id is not None
        and is_another(topic.topic_id, one.agreed_id)
    ]


async def _go_on(context: SyncContext, clusters: FlowClusters, topic: MirrorTopic) -> None:
    """Go on with a topic that is selected again, unless MirrorMaker 2 has done so meanwhile."""
    if clusters.flow.settings.twinlog_takeover != "ignore":
        ends = await copied_to(context.destination, context.mirror, [topic])
        await clusters.takeover.check_copied(ends)
    if not await select_again(context.store, context.mirror, topic):
        require_settings(await context.store.snapshot(), context.mirror)
        raise Retriable("the flow was changed meanwhile", topic=topic.topic)


async def _note_begins(context: SyncContext, begins: Mapping[str, Offsets]) -> None:
    """Store where partitions of the flow's topics begin."""
    found = {
        topic.incarnation: (topic.followed_from, begins[topic.topic])
        for topic in followed(context)
        if begins.get(topic.topic, topic.followed_from) != topic.followed_from
    }
    if found:
        await context.store.change(
            lambda now: [
                replace(topic, followed_from=offsets)
                for topic in now.topics
                if topic.incarnation in found
                for known, offsets in [found[topic.incarnation]]
                if topic.followed_from == known and topic.partitions == len(offsets)
            ]
        )


class RemoteConfigs(NamedTuple):
    """The changes of remote topics, and why others are unknown."""

    changes: Mapping[str, ConfigChanges]
    unread: Mapping[str, Refusal]
    unsettled: Mapping[str, Collection[str]]
    """Why the source may have other values by now, by remote topic."""
    shortened: Mapping[str, Mapping[str, str]]
    """By remote topic and name, by which changes it may keep less than before, as text."""


class FlowConfigs(Sync[RemoteConfigs]):
    """Copies configurations to remote topics (`FlowSettings.syncs_topic_configs`)."""

    kinds = FLOWS
    name = "configurations of a flow"
    metric = ConfigSync.metric

    def __init__(self) -> None:
        self._texts = MirrorTexts()
        self._unsettled = UnsettledConfigs()

    def interval_s(self, mirror: Mirror) -> float:
        """`sync.topic.configs.interval.seconds`; a negative one is never (`compare`).

        While the source's brokers disagree each refresh looks again.
        """
        settings = flow_settings_of(mirror.source)
        waits = self._unsettled.waits(mirror.name)
        return 0 if waits else settings.sync_topic_configs_interval_seconds

    def forget(self, moved: Moved) -> None:
        """Let brokers disagree for a while again before it is logged."""
        self._unsettled.forget(moved)

    async def compare(self, context: SyncContext) -> RemoteConfigs:
        """Compare the configurations of the topics that exist on both sides.

        Raises:
            UserError: a right is missing, or the flow's settings are malformed.
            Retriable: a cluster is unreachable.
        """
        flow = flow_of(context.mirror.source)
        changes: defaultdict[str, list[ConfigChanges]] = defaultdict(list)
        unread: dict[str, Refusal] = {}
        reasons: dict[str, Collection[str]] = {}
        less: dict[str, Mapping[str, str]] = {}
        if not flow.settings.syncs_topic_configs or not context.same:
            return RemoteConfigs({}, unread, reasons, less)
        known_names = dict.fromkeys(await known_configs(context.destination))
        reports = await broker_reports(context.source, [topic.topic for topic in context.same])
        for topics in chunks(list(context.same)):
            names = [topic.topic for topic in topics]
            found = await source_configs(context.source, names, reports)
            remote = await describe_configs(
                context.destination, [topic_resource(topic.destination_name) for topic in topics]
            )
            for topic in topics:
                ours, theirs = remote[topic_resource(topic.destination_name)], found[topic.topic]
                if isinstance(ours, Refusal):
                    unread[topic.destination_name] = ours
                elif isinstance(theirs, Refusal):
                    unread[topic.topic] = theirs
                else:
                    current = {
                        key: DestinationConfig(entry.value, entry.source == ConfigSource.TOPIC)
                        for key, entry in ours.items()
                    }
                    wanted = wanted_configs(theirs, flow.settings, known_names)
                    exclude = excluded_configs(flow.settings)
                    changed = settled_changes(
                        remote_changes(theirs, wanted, current, exclude), theirs, current
                    )
                    changes[topic.destination_name].append(changed)
                    less[topic.destination_name] = shortened(changed, theirs, current)
                    if texts := unsettled(theirs, exclude):
                        reasons[topic.destination_name] = texts
                    self._tell_left_out(context.name, topic, left_out_text(theirs, flow.settings))
        return RemoteConfigs(self._agreed(context, changes), unread, reasons, less)

    def _agreed(
        self, context: SyncContext, changes: Mapping[str, Sequence[ConfigChanges]]
    ) -> dict[str, ConfigChanges]:
        """The changes by remote topic; of one that several topics share, those of all of them.

        A removed topic agrees to none: its records are still there, and what its source topic had,
        a longer `retention.ms` for example, is not known any more. Nor is it known what a topic
        needs that cannot be read, and it may be copied to any of them.
        """
        copied = context.snapshot.topics_of(context.name)
        unread = context.snapshot.unread_topics(context.name)
        if unread and may_share(copied, context.mirror.source):
            self._tell_unread(context.name, unread, changes)
            return {}
        self._texts.last.pop((context.name, _UNREAD), None)
        removed = {topic.topic for topic in copied if topic.wanted is Wanted.STOPPED}
        shared = shared_topics(copied)
        agreed: dict[str, ConfigChanges] = {}
        for remote, several in changes.items():
            sources = shared.get(remote, [])
            former = sorted(removed.intersection(sources))
            if len(several) < len(sources) and not former:
                continue  # one is paused, or could not be read
            changed = {} if former else agreed_changes(several)
            if changed:
                agreed[remote] = changed
            if disputed := sorted({name for one in several for name in one} - changed.keys()):
                why = (
                    f"of which the flow no longer copies {few(former)}"
                    if former
                    else "whose configurations differ"
                )
                text = (
                    f"{remote} has the records of {few(sources)}, {why}: {few(disputed)} of "
                    f"{remote} is left as it is"
                )
                self._texts.tell(context.name, f"{remote} is shared", text)
        return agreed

    def _tell_unread(
        self, flow: str, unread: Collection[str], changes: Mapping[str, Sequence[ConfigChanges]]
    ) -> None:
        """Log once which remote topics do not follow, as a topic that cannot be read may share it.

        Args:
            flow: its name.
            unread: the topics that cannot be read.
            changes: what differs, by remote topic.
        """
        if left := sorted(remote for remote, several in changes.items() if any(several)):
            text = (
                "topics of the flow that cannot be read may be copied to the same remote topics: "
                f"{few(sorted(unread))}; configurations of {few(left)} are left as they are"
            )
            self._texts.tell(flow, _UNREAD, text)

    async def apply(self, context: SyncContext, difference: RemoteConfigs) -> int:
        """Change the remote topics; return how many could not be compared or changed.

        The copy of a topic that was recreated on the source keeps its configurations: with a
        shorter `retention.ms` of the new topic, the target would delete what is left of the former.

        Raises:
            Retriable: a cluster is unreachable, or it is not known whether a topic was recreated.
        """
        for name, refusal in difference.unread.items():
            log.warning("%s: its configurations cannot be read: %s", name, refusal)
        topics = [t for t in context.same if t.destination_name in difference.changes]
        # Of two topics that share a copy, one that was recreated is enough to leave it alone.
        recreated = {t.destination_name for t in await recreated_topics(context, topics)}
        changes = {
            name: change for name, change in difference.changes.items() if name not in recreated
        }
        lasting = self._unsettled.note(context.name, by_reason(difference.unsettled))
        for name, change in changes.items():
            less = [text for key, text in difference.shortened[name].items() if key in change]
            if less:  # before it is done: the answer may not arrive
                log.warning(
                    "flow %s: %s may keep less from now on, as its source topic does: %s",
                    context.name,
                    name,
                    ", ".join(less),
                )
        refusals = await change_configs(context.destination, changes, "to the source's value")
        return len(difference.unread) + lasting + len(refusals)

    def _tell_left_out(self, flow: str, topic: MirrorTopic, text: str) -> None:
        """Log once what is not copied; a topic without it would look like a failure to copy."""
        if text:
            text = f"{topic.destination_name} follows the configurations of {topic.topic} {text}"
            self._texts.tell(flow, topic.destination_name, text, logging.INFO)
