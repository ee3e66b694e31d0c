"""Flows go on in a remote topic that was deleted and recreated on the target.

With `twinlog.data.loss=continue` a flow goes on in the new topic at the source's offset up to which
it had copied, as MirrorMaker 2 does. This sync finds the new topic, and stores its id:

    each refresh        a broker shows another id than is stored  ─► all brokers are asked
    all brokers agree   on one other id, at two checks that are `AGREED_S` apart
    stored              the new id, and the former one in `MirrorTopic.lost_topic_ids`
    lanes               start the partitions anew (runtime/mirror_engines.py). Each is fenced in the
                        new log, and its map begins anew (engines/translated/surviving_copies.py)

**When ids count.** A broker that has just started, or is cut off from the controllers, may show the
id of a topic that was deleted before the flow began. The other brokers do not, and one that does
not answer leaves it open. Lanes send only where their own broker shows the stored id.

Should the id be wrong all the same, nothing is copied twice: where a partition goes on depends on
what is recorded and on what the log holds up to its fence, and not on the id.

A topic that was deleted and not recreated is left alone: an operator may be about to create it.
"""

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Final, NamedTuple
from uuid import UUID

from twinlog.kafka.client.metadata import is_another
from twinlog.kafka.requests.topics import create_partitions, known_topics
from twinlog.mirror.flow import flow_settings_of
from twinlog.mirror.settings import TRANSLATED
from twinlog.store.config_records import MirrorTopic, topic_id_text
from twinlog.sync.base import METADATA, Moved, Sync, SyncContext

log = logging.getLogger(__name__)

AGREED_S: Final = 10.0
"""Seconds between the first check and the one that counts: as long as a lease."""
_MOST_LOST: Final = 100
"""Former ids that are stored of a topic. A partition whose last plan is of an earlier one is copied
from its beginning; each start of a partition stores a plan of the present one."""


class RecreatedRemote(NamedTuple):
    """A remote topic that all brokers know under another id than is stored."""

    topic_id: UUID
    partitions: int


class RecreatedRemotes(Sync[Mapping[str, RecreatedRemote]]):
    """Stores the new ids of recreated remote topics, by their names; see the module.

    Args:
        clock: monotonic seconds.
    """

    kinds = frozenset({TRANSLATED})
    name = "recreated remote topics of a flow"
    metric = METADATA

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: dict[tuple[str, str, UUID], float] = {}  # by flow, remote topic and new id

    def forget(self, moved: Moved) -> None:
        """Begin to compare anew."""
        self._since = {key: at for key, at in self._since.items() if not moved(key[0])}

    async def compare(self, context: SyncContext) -> Mapping[str, RecreatedRemote]:
        """The remote topics that were recreated, as all brokers agree for long enough.

        Raises:
            Retriable: a broker of the destination does not answer.
            UserError: the flow's settings are malformed.
        """
        suspects = {
            topic.destination_name
            for topic in context.topics
            if (copy := context.here.get(topic.destination_name)) is not None
            and is_another(topic.destination_topic_id, copy.topic_id)
        }
        agreed: dict[str, RecreatedRemote] = {}
        if suspects and flow_settings_of(context.mirror.source).passes_lost:
            for name, known in (await known_topics(context.destination, suspects)).items():
                if known.everywhere and len(known.ids) == 1:
                    [topic_id] = known.ids
                    agreed[name] = RecreatedRemote(topic_id, known.partitions)
        now, flow = self._clock(), context.name
        keys = {(flow, name, one.topic_id) for name, one in agreed.items()}
        self._since = {
            key: at for key, at in self._since.items() if key[0] != flow or key in keys
        } | {key: self._since.get(key, now) for key in keys}
        return {
            name: one
            for name, one in agreed.items()
            if now - self._since[flow, name, one.topic_id] >= AGREED_S
        }

    async def apply(self, context: SyncContext, difference: Mapping[str, RecreatedRemote]) -> int:
        """Store the new ids; return how many topics lack partitions, and wait for them.

        Raises:
            TwinlogError: the destination is unreachable, or a right is missing.
        """
        topics = [
            topic
            for topic in context.topics
            if (remote := difference.get(topic.destination_name)) is not None
            and is_another(topic.destination_topic_id, remote.topic_id)
        ]
        lacking = await _grow(context, difference, topics)
        topics = [topic for topic in topics if topic.destination_name not in lacking]
        if not topics:
            return len(lacking)
        await context.store.change(
            lambda now: [
                _going_on(topic, difference[topic.destination_name].topic_id)
                for topic in now.topics
                if topic in topics
            ]
        )
        for topic in topics:
            log.error(
                "flow %s: %s was deleted and recreated on the target: all that was copied to the "
                "former topic is lost; going on in the new one (%s) behind what was copied",
                context.name,
                topic.destination_name,
                topic_id_text(difference[topic.destination_name].topic_id),
            )
        return len(lacking)


async def _grow(
    context: SyncContext,
    remotes: Mapping[str, RecreatedRemote],
    topics: Collection[MirrorTopic],
) -> Collection[str]:
    """Give recreated topics the partitions that they lack; return those that still lack some.

    Raises:
        TwinlogError: the destination is unreachable, or a right is missing.
    """
    counts: dict[str, int] = {}
    for topic in topics:
        name = topic.destination_name
        if topic.partitions > max(remotes[name].partitions, counts.get(name, 0)):
            counts[name] = topic.partitions
    if not counts:
        return ()
    answers = await create_partitions(context.destination, counts)
    refusals = {name: one for name, one in answers.items() if one is not None}
    for name, refusal in refusals.items():
        log.warning(
            "flow %s: %s was recreated with fewer than %d partitions, and cannot get more: %s",
            context.name,
            name,
            counts[name],
            refusal,
        )
    return refusals.keys()


def _going_on(topic: MirrorTopic, topic_id: UUID) -> MirrorTopic:
    former = topic.destination_topic_id
    assert former is not None
    lost = (*topic.lost_topic_ids, former)[-_MOST_LOST:]
    return replace(topic, destination_topic_id=topic_id, lost_topic_ids=lost)
