"""Flows go on in a remote topic that was deleted on the target, once it is recreated.

With `twinlog.data.loss=continue` a flow goes on in the new topic at the source's offset up to which
it had copied, as MirrorMaker 2 does. A flow in transactions copies all again, since brokers delete
a group's offsets with a topic: its positions. So it does not go on if its transforms may route
records: those in other topics would be there twice. This sync recreates a topic that nobody else
has recreated, finds the new topic, and stores its id:

    each refresh        a broker shows another id than is stored, or none  ─► all brokers are asked
    all brokers agree   on one other id, or that it does not exist, at two checks that are
                        `AGREED_S` apart
    does not exist      it is created as when it was added to the flow; the next checks find its id
    stored              the new id, and the former one in `MirrorTopic.lost_topic_ids`
    lanes               start the partitions anew (runtime/mirror_engines.py). Each is fenced in the
                        new log, and its map begins anew (engines/translated/surviving_copies.py,
                        engines/transactional/positions.py)

**When ids count.** A broker that has just started, or is cut off from the controllers, may show the
id of a topic that was deleted before the flow began. The other brokers do not, and one that does
not answer leaves it open. Lanes send only where their own broker shows the stored id.

Should the id be wrong all the same, nothing is copied twice: where a partition goes on depends on
what is recorded and on what the log holds up to its fence. (A flow in transactions compares ids,
too: a position of another one does not count. But its own records in the log do.)

**When a topic is created.** A topic does not exist if each broker answers so; one that does not
answer, or refuses to describe the topic, leaves it open. The controller decides in the end: it
creates no topic that exists, whoever has created it. All that is needed is read before, and then
whether the flow still has the topic. So a topic that is removed from the flow, and deleted then, is
not created: both checks follow its deletion. If it is removed after it was deleted, the creation
may come first, and leaves an empty topic. The request is sent once: one that is sent again later
would rest on what was read before. Nothing is undone: others may use the new topic by then.
"""

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Final, NamedTuple
from uuid import UUID

from twinlog.kafka.client.metadata import is_another
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Refusal, TwinlogError
from twinlog.kafka.requests.topics import (
    absent_everywhere,
    create_partitions,
    create_topics,
    known_topics,
)
from twinlog.lifecycle.creation import usable_topic
from twinlog.lifecycle.flow_topics import FlowClusters, not_created
from twinlog.mirror.flow import flow_of, goes_on_in_recreated
from twinlog.mirror.settings import FLOW_KINDS, TRANSACTIONAL
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


class LostRemotes(NamedTuple):
    """Remote topics of which all brokers agree for long enough that they are not as stored."""

    recreated: Mapping[str, RecreatedRemote]
    """Those that were recreated, by name."""
    deleted: Collection[str]
    """Those that do not exist."""


class RecreatedRemotes(Sync[LostRemotes]):
    """Stores the new ids of recreated remote topics, and recreates deleted ones; see the module.

    Args:
        clock: monotonic seconds.
    """

    kinds = FLOW_KINDS
    name = "recreated remote topics of a flow"
    metric = METADATA

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: dict[tuple[str, str, UUID | None], float] = {}
        """By flow, remote topic, and new id; None: it does not exist."""

    def forget(self, moved: Moved) -> None:
        """Begin to compare anew."""
        self._since = {key: at for key, at in self._since.items() if not moved(key[0])}

    async def compare(self, context: SyncContext) -> LostRemotes:
        """The remote topics that were recreated or deleted, as all brokers agree for long enough.

        Raises:
            Retriable: a broker of the destination does not answer.
            UserError: the flow's settings are malformed.
        """
        agreed: dict[str, RecreatedRemote | None] = {}
        if goes_on_in_recreated(context.mirror.source):
            agreed = {**await _recreated(context), **dict.fromkeys(await _deleted(context))}
        now, flow = self._clock(), context.name
        keys = {(flow, name, remote and remote.topic_id) for name, remote in agreed.items()}
        self._since = {
            key: at for key, at in self._since.items() if key[0] != flow or key in keys
        } | {key: self._since.get(key, now) for key in keys}
        lasting = {
            name: remote
            for name, remote in agreed.items()
            if now - self._since[flow, name, remote and remote.topic_id] >= AGREED_S
        }
        return LostRemotes(
            {name: remote for name, remote in lasting.items() if remote is not None},
            sorted(name for name, remote in lasting.items() if remote is None),
        )

    async def apply(self, context: SyncContext, difference: LostRemotes) -> int:
        """Create deleted topics, and store new ids; return how many topics have to wait.

        Raises:
            TwinlogError: the destination is unreachable, or a right is missing.
        """
        failures = 0
        for name in difference.deleted:
            # In any case: what is deleted again later, or is refused, is checked for as long again.
            self._since.pop((context.name, name, None), None)
            try:
                await _create(context, name)
            except TwinlogError as error:
                log.warning("flow %s: %s cannot be created again: %s", context.name, name, error)
                failures += 1
        return failures + await _go_on(context, difference.recreated)


async def _recreated(context: SyncContext) -> dict[str, RecreatedRemote]:
    """The remote topics that all brokers know under one id, which is another one than is stored.

    Raises:
        Retriable: a broker does not answer.
    """
    suspects = {
        topic.destination_name
        for topic in context.topics
        if (copy := context.here.get(topic.destination_name)) is not None
        and is_another(topic.destination_topic_id, copy.topic_id)
    }
    agreed: dict[str, RecreatedRemote] = {}
    if suspects:
        for name, known in (await known_topics(context.destination, suspects)).items():
            if (topic_id := known.agreed_id) is not None:
                agreed[name] = RecreatedRemote(topic_id, known.partitions)
    return agreed


async def _deleted(context: SyncContext) -> Collection[str]:
    """The remote topics of which all brokers answer that they do not exist.

    Those whose source topic is missing, or another one, have nothing to copy. Those whose id was
    not known when they were added could not be told from the new ones.

    Raises:
        Retriable: a broker does not answer.
    """
    suspects = {
        topic.destination_name
        for topic in context.same
        if topic.destination_topic_id is not None and topic.destination_name not in context.here
    }
    return await absent_everywhere(context.destination, suspects) if suspects else ()


async def _create(context: SyncContext, remote: str) -> None:
    """Create a remote topic that was deleted, unless the flow has changed since it was compared.

    Raises:
        TwinlogError: a cluster is unreachable, a right is missing, or it is refused.
    """
    topics = [topic for topic in context.same if topic.destination_name == remote]
    clusters = FlowClusters(
        destination=context.destination,
        source=context.source,
        mirror=context.mirror,
        flow=flow_of(context.mirror.source),
    )
    usable = {topic.topic: usable_topic(context.there[topic.topic]) for topic in topics}
    missing = await clusters.missing(usable, dict.fromkeys(usable, remote))
    # Reading that may have taken long.
    stored = await context.store.snapshot()
    is_same = stored.mirrors.get(context.name) == context.mirror
    if not missing or not is_same or not all(topic in stored.topics for topic in topics):
        return
    for name, answer in (await create_topics(context.destination, missing, once=True)).items():
        if not isinstance(answer, Refusal):
            log.warning(
                "flow %s: %s was deleted on the target; created it again", context.name, name
            )
        elif answer.code != ErrorCode.TOPIC_ALREADY_EXISTS:
            raise not_created(name, answer)


async def _go_on(context: SyncContext, recreated: Mapping[str, RecreatedRemote]) -> int:
    """Store the new ids; return how many topics lack partitions, and wait for them.

    Raises:
        TwinlogError: the destination is unreachable, or a right is missing.
    """
    topics = [
        topic
        for topic in context.topics
        if (remote := recreated.get(topic.destination_name)) is not None
        and is_another(topic.destination_topic_id, remote.topic_id)
    ]
    lacking = await _grow(context, recreated, topics)
    topics = [topic for topic in topics if topic.destination_name not in lacking]
    if not topics:
        return len(lacking)
    await context.store.change(
        lambda now: [
            _going_on(topic, recreated[topic.destination_name].topic_id)
            for topic in now.topics
            if topic in topics
        ]
    )
    is_copied_again = context.mirror.kind == TRANSACTIONAL
    for topic in topics:
        log.error(
            "flow %s: %s was deleted and recreated on the target: all that was copied to the "
            "former topic is lost; the flow goes on in the new one (%s), %s",
            context.name,
            topic.destination_name,
            topic_id_text(recreated[topic.destination_name].topic_id),
            "copying it again" if is_copied_again else "behind what was copied",
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
