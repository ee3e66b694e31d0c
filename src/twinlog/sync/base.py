"""What follows a mirror's data, behind one interface: topics, configurations, groups, ACLs.

    compare     only reads; returns the difference, with what could not be read
    apply       writes the difference; returns how many parts of it could not be written
    describe    the difference in words for an operator, if it is a `ReportedSync`

A node runs the first two for each sync of registry.py (refresh.py), and counts failures by
`metric`. `twinlog readiness` compares and describes (operations/readiness/sync_survey.py). A new
sync is a module with a class, and its line in registry.py.

What could not be read is part of the difference, or an error: an empty difference says that there
is none. Between `compare` and `apply` time passes, so `apply` checks again what must not have
changed meanwhile, as the ids of topics.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, NamedTuple, TypeVar

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.metadata import Topic
from twinlog.kafka.errors import Retriable
from twinlog.mirror.settings import EXACT, MirrorSettings
from twinlog.store.config_records import Mirror, MirrorTopic
from twinlog.store.mirrors import MirrorStore
from twinlog.store.snapshot import Snapshot

D = TypeVar("D")


def always() -> bool:
    """For a command, which no node takes over from."""
    return True


Moved = Callable[[str], bool]
"""Whether a mirror has been assigned to this node just now."""

METADATA: Final = "MetadataRefreshError"
"""Counts failures to read the source's metadata, and to bring the set of topics up to date."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorContext:
    """A mirror, for a sync that does not need the source."""

    destination: KafkaCluster
    store: MirrorStore
    name: str
    """The mirror's name."""
    snapshot: Snapshot
    """All mirrors of the destination, read before."""

    @property
    def mirror(self) -> Mirror:
        """The mirror's record."""
        return self.snapshot.mirrors[self.name]


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncContext(MirrorContext):
    """A mirror with its source, and the topics to sync."""

    source: KafkaCluster
    settings: MirrorSettings
    topics: Collection[MirrorTopic]
    """In a refresh, those that are to be mirrored."""
    same: Collection[MirrorTopic]
    """Those of `topics` that exist and were not recreated since they were added."""
    there: Mapping[str, Topic]
    """The source's metadata of `topics`."""
    here: Mapping[str, Topic]
    """The destination's."""
    latest: Callable[[], Snapshot]
    """Returns the mirrors as they are known to the node at the time of the call."""
    is_ours: Callable[[], bool] = always
    """Whether no other node can serve the mirror at the time of the call."""


class Sync(ABC, Generic[D]):
    """One sync; D is the type of its difference. An instance serves all mirrors of one node."""

    name: ClassVar[str]
    """What it syncs, in the plural."""
    metric: ClassVar[str]
    """The metric that counts its failures; KIP-1279 names four."""
    kinds: ClassVar[frozenset[str] | None] = frozenset({EXACT})
    """The kinds of mirrors that it serves; None: all of them."""
    needs_source: ClassVar[bool] = True
    """Whether a refresh runs it. Otherwise it has a loop of its own, with `MirrorContext`."""

    @classmethod
    def create(cls, host: "Host") -> "Sync[D]":
        """The sync of one node."""
        del host
        return cls()

    @classmethod
    def serves(cls, kind: str) -> bool:
        """Whether it serves mirrors of this kind."""
        return cls.kinds is None or kind in cls.kinds

    def concerns(self, settings: MirrorSettings, topics: Collection[MirrorTopic]) -> bool:
        """Whether there is anything to sync for a mirror with these settings and topics."""
        del settings, topics
        return True

    def interval_s(self, mirror: Mirror) -> float:
        """Seconds between two runs for a mirror; 0: each refresh runs it.

        Raises:
            UserError: the mirror's settings are malformed.
        """
        del mirror
        return 0.0

    def forget(self, moved: Moved) -> None:
        """Drop what is remembered of mirrors that another node may have served meanwhile.

        What is remembered of the others stays: it may have been seen at a certain time only.
        """

    @abstractmethod
    async def compare(self, context: SyncContext) -> D:
        """Compare both clusters; change nothing.

        Raises:
            TwinlogError: nothing can be compared: a cluster is unreachable, or a right is missing.
        """

    @abstractmethod
    async def apply(self, context: SyncContext, difference: D) -> int:
        """Change the destination; return how many parts failed, those not read included.

        Raises:
            TwinlogError: the destination is unreachable, or a right is missing.
        """


class Remark(NamedTuple):
    """A difference, or what could not be read, in words for an operator."""

    text: str
    topic: str | None = None
    """None: it concerns the whole mirror."""
    unreadable: bool = False


class ReportedSync(Sync[D]):
    """A sync whose difference `twinlog readiness` reports in the sync's own words.

    For the others it has facts of its own (operations/readiness/facts.py).
    """

    @abstractmethod
    def describe(self, difference: D) -> Iterable[Remark]:
        """The difference; nothing only if there is none."""

    async def follows(self, destination: KafkaCluster) -> bool:
        """Whether the destination can have what is synced; asked if the source is unreachable."""
        del destination
        return True


def drop(moved: Moved, *memories: dict[str, Any]) -> None:
    """Drop what is remembered of mirrors that were assigned just now, by their names."""
    for memory in memories:
        for name in [name for name in memory if moved(name)]:
            del memory[name]


def require_ours(mirror: str, is_ours: Callable[[], bool]) -> None:
    """Called before a write that would hide what the next owner of a mirror has written.

    Raises:
        Retriable: another node may serve the mirror by now.
    """
    if not is_ours():
        raise Retriable(f"another node may serve mirror {mirror} by now")


async def run_sync(sync: Sync[Any], context: SyncContext) -> int:
    """Compare, and apply the difference; return how many parts failed.

    Raises:
        TwinlogError: see `Sync` and `require_ours`.
    """
    difference = await sync.compare(context)
    require_ours(context.name, context.is_ours)
    return await sync.apply(context, difference)


async def _nobody(_mirror: str) -> bool:
    return False


def _ignore(_mirror: str, _metric: str, _count: int) -> None:
    pass


S = TypeVar("S", bound=Sync[Any])


class Host:
    """The process that runs syncs: what they share, and one instance of each.

    Args:
        destination: the cluster that holds the mirrored topics.
        store: its mirror configuration.
        is_ours: whether this node owns a mirror.
        failed: receives a mirror's name, a metric, and how many parts failed.
        latest: returns the mirrors as the node knows them.
    """

    def __init__(
        self,
        destination: KafkaCluster,
        store: MirrorStore,
        *,
        is_ours: Callable[[str], Awaitable[bool]] = _nobody,
        failed: Callable[[str, str, int], None] = _ignore,
        latest: Callable[[], Snapshot] = Snapshot,
    ) -> None:
        self.destination = destination
        self.store = store
        self.is_ours = is_ours
        self.failed = failed
        self.latest = latest
        self._syncs: dict[type[Sync[Any]], Sync[Any]] = {}

    def sync(self, kind: type[S]) -> S:
        """The sync of this class, created at its first use."""
        if kind not in self._syncs:
            self._syncs[kind] = kind.create(self)
        instance = self._syncs[kind]
        assert isinstance(instance, kind)
        return instance


def is_mirrored(topic: MirrorTopic, source_topic: Topic | None) -> bool:
    """Whether the source's topic of this name is the one that is mirrored."""
    return source_topic is not None and source_topic.topic_id == topic.topic_id
