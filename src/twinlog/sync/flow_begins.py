"""Where partitions begin in a flow that begins at the end (`auto.offset.reset=latest`).

`latest` leaves out what the source had when the flow began. A partition that did not exist then is
copied whole. MirrorMaker 2 begins it at the end that it has when it is found, up to
`refresh.topics.interval.seconds` later: its first records are missing there.

    partition                                        begins at
    -----------------------------------------------  ---------------------------------------------
    of a topic that is added to the flow             its end (the last stable offset) at that time
    that a topic of the flow gets later              0
    of a topic that was created after the flow's     0
    first complete look at the source
    else, as long as brokers do not answer           its end when a lane first locates it

Where it begins is stored with the topic (`MirrorTopic.followed_from`) before a lane may locate it,
so neither failed locations nor other owners move it. A command that adds topics does the same
(lifecycle/flow_ends.py).

**That something is new** is concluded from the answers of *all* brokers. One that is behind leaves
out topics and partitions that exist. What no broker knows has no leader that could have taken
records, so all of its records are newer than this look.

- A topic is new if no broker knew its name, or its id, at the first complete look. What was looked
  at is known to this process only. After a restart, or a change of the flow's settings, the next
  look counts. Brokers do not show topics that the flow may not describe, so one that it may
  describe later counts as new.
- A partition is new if all brokers have shown fewer of its topic since the flow has the topic. That
  is so if each of these has an entry in `followed_from`.
"""

import logging
from collections.abc import Mapping
from typing import NamedTuple

from twinlog.kafka.client.metadata import NO_TOPIC_ID, Topic
from twinlog.kafka.errors import TwinlogError
from twinlog.kafka.requests.topics import KnownTopic, known_topics
from twinlog.lifecycle.flow_ends import UNKNOWN, Offsets, with_ends
from twinlog.mirror.flow import begins_at_end
from twinlog.mirror.flow_settings import FlowSettings
from twinlog.store.config_records import MirrorTopic, Wanted
from twinlog.sync.base import Moved, SyncContext, drop

log = logging.getLogger(__name__)


class _Look(NamedTuple):
    """A complete look at a source: what there was for a flow when it began, or later."""

    settings: FlowSettings
    topics: Mapping[str, KnownTopic]


class _Asked(NamedTuple):
    """A topic of which it is not known where its partitions begin."""

    topic: Topic | MirrorTopic
    offsets: Offsets
    """Those that are known, or -1; for each partition that the flow has or is to have."""
    grows_later: bool = False
    """Whether the flow gets further partitions later, as it is paused; they begin at 0."""

    def is_shown(self, known: KnownTopic | None) -> bool:
        """Whether no broker knows more partitions, or another topic of this name."""
        return (
            known is not None
            and (self.grows_later or known.partitions <= len(self.offsets))
            and not known.has_another(self.topic.topic_id)
        )


class FlowBegins:
    """Finds out where partitions begin, for the flows of one node."""

    def __init__(self) -> None:
        self._looks: dict[str, _Look] = {}  # by flow
        self._topics: dict[str, set[str]] = {}  # by flow, the topics that it had
        self.incomplete: set[str] = set()
        """Flows of which the last search has left something unknown."""

    def forget(self, moved: Moved) -> None:
        """Look again: another node may have served these flows meanwhile."""
        drop(moved, self._looks)

    async def find(
        self, context: SyncContext, settings: FlowSettings, new: Mapping[str, Topic]
    ) -> dict[str, Offsets]:
        """Where partitions begin of which that is not stored.

        Args:
            context: of a flow.
            settings: the flow's.
            new: the source's topics that it is to have, too.

        Returns:
            By name, `MirrorTopic.followed_from` of new topics, and of those of `followed` that lack
            it. There is none where a broker does not answer, and if the flow does not begin
            at the end.
        """
        self.incomplete.discard(context.name)
        if not begins_at_end(settings):
            return {}
        self.incomplete.add(context.name)
        look = self._last_look(context, settings)
        created = {} if look is None else _created(new, look.topics)
        asked = {
            name: _Asked(topic, (UNKNOWN,) * len(topic.partitions))
            for name, topic in new.items()
            if name not in created
        }
        asked |= {
            topic.topic: _Asked(topic, _padded(topic), topic.wanted is Wanted.PAUSED)
            for topic in followed(context)
            if _lacks_offsets(topic)
        }
        try:
            if look is None:
                known = await known_topics(context.source)
                self._looks[context.name] = _Look(settings, known)
            else:
                known = await known_topics(context.source, asked) if asked else {}
            shown = {n: one.offsets for n, one in asked.items() if one.is_shown(known.get(n))}
            found = await with_ends(context.source, shown)
            if all(UNKNOWN not in found.get(name, (UNKNOWN,)) for name in asked):
                self.incomplete.discard(context.name)
            return created | found
        except TwinlogError as error:
            log.warning("flow %s: where its topics begin is not known now: %s", context.name, error)
            return created

    def _last_look(self, context: SyncContext, settings: FlowSettings) -> _Look | None:
        """The first complete look for this flow, if it has not begun again since."""
        names = {topic.topic for topic in context.snapshot.topics_of(context.name)}
        former, self._topics[context.name] = self._topics.get(context.name, names), names
        look = self._looks.get(context.name)
        # Others may be selected now; and a flow that was deleted and created again begins now.
        if look is not None and (look.settings != settings or not former <= names):
            look = None
            del self._looks[context.name]
        return look


def followed(context: SyncContext) -> list[MirrorTopic]:
    """The topics that a flow copies, or will copy once they are resumed: they begin now as well."""
    topics = context.snapshot.topics_of(context.name)
    return [*context.same, *(topic for topic in topics if topic.wanted is Wanted.PAUSED)]


def grown(topic: MirrorTopic, partitions: int) -> Offsets:
    """`MirrorTopic.followed_from` of a topic that has more partitions now."""
    if len(topic.followed_from) != topic.partitions:
        return topic.followed_from  # they may have existed before the flow had the topic
    return topic.followed_from + (0,) * (partitions - topic.partitions)


def _created(new: Mapping[str, Topic], known: Mapping[str, KnownTopic]) -> dict[str, Offsets]:
    """The new topics that were created since a complete look; they begin at 0."""

    def was_there(topic: Topic) -> bool:
        former = known.get(topic.name)
        return former is not None and (
            topic.topic_id == NO_TOPIC_ID
            or not former.ids.isdisjoint({topic.topic_id, NO_TOPIC_ID})
        )

    return {n: (0,) * len(topic.partitions) for n, topic in new.items() if not was_there(topic)}


def _lacks_offsets(topic: MirrorTopic) -> bool:
    return len(topic.followed_from) != topic.partitions or UNKNOWN in topic.followed_from


def _padded(topic: MirrorTopic) -> Offsets:
    missing = topic.partitions - len(topic.followed_from)
    return (topic.followed_from + (UNKNOWN,) * missing)[: topic.partitions]
