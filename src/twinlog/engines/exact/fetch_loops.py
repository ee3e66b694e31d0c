"""Which fetch loop reads a partition: one for each source broker, or several.

Each loop has a connection and a fetch session. It asks for the next records only when the last ones
have arrived, so it carries one answer in each round trip at most, and often no more than one TCP
window. The partitions of a *distant* broker are therefore distributed among several loops.
"""

import logging
from collections import defaultdict
from typing import Final
from zlib import crc32

from twinlog.engines.exact.partition import ExactPartition
from twinlog.engines.settings import LaneSettings

log = logging.getLogger(__name__)

LoopKey = tuple[int, int]
"""Source broker, fetcher."""

DISTANT_S: Final = 0.05
"""The round trip in seconds from which a broker is distant: 8 MiB in each are 160 MB/s."""
DISTANT_FETCHES: Final = 3
"""The fetches of a broker that all have to take as long before it counts as distant."""
DISTANT_FETCHERS: Final = 4
"""The fewest loops of a distant broker."""
_THROTTLED: Final = 64
"""The first fetcher of throttled partitions, above all of `mirror.num.replica.fetchers`."""


def is_throttled(key: LoopKey) -> bool:
    """Whether the loop reads throttled partitions."""
    return key[1] >= _THROTTLED


class FetchLoops:
    """The fetch loops of an engine's source. `settings` are the engine's."""

    def __init__(self, settings: LaneSettings) -> None:
        self._settings = settings
        self._distant: set[int] = set()
        self._slow_fetches: defaultdict[int, int] = defaultdict(int)

    def is_new_distant(self, node: int, round_trip_s: float) -> bool:
        """Whether a broker is known to be distant since this call.

        A single slow answer shows nothing: the broker may just have started, or be busy.

        Args:
            node: the broker.
            round_trip_s: the shortest round trip that opened a connection.
        """
        if node in self._distant or round_trip_s < DISTANT_S:
            return False
        if self._slow_fetches[node] < DISTANT_FETCHES:
            return False
        self._distant.add(node)
        log.info("source broker %d is distant: a round trip takes %.3f s", node, round_trip_s)
        return True

    def fetched(self, node: int, seconds: float) -> None:
        """Note how long a fetch took."""
        self._slow_fetches[node] = self._slow_fetches[node] + 1 if seconds >= DISTANT_S else 0

    def key(self, partition: ExactPartition) -> LoopKey:
        """The loop that reads this partition."""
        fetchers = self._settings.fetchers_per_broker
        if partition.read_node in self._distant:
            fetchers = max(fetchers, DISTANT_FETCHERS)
        first = _THROTTLED if partition.throttled else 0
        if fetchers == 1:
            return partition.read_node, first
        topic, index = partition.key  # the topic too: topics of one partition are spread as well
        return partition.read_node, first + (crc32(topic.encode()) + index) % fetchers

    def partition_max_bytes(self, key: LoopKey, partitions: int) -> int:
        """Bytes of a partition in an answer; those of a distant broker share the whole answer."""
        most = self._settings.partition_fetch_bytes
        if key[0] not in self._distant:
            return most
        return max(most, self._settings.fetch_max_bytes // partitions)
