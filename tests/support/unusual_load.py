"""A load that its source serves in unusual but legal ways, for flows whose parts are killed.

    large     3 partitions    records of 0 B to 5 MB: one may exceed what a Fetch asks for
    tiered    2 partitions    most of the log is in remote storage

The quota of the flow's client id answers a Fetch without partitions, and a quota of remote reads
answers a partition without records: an empty answer must not be taken for the end of a log
(KAFKA_FACTS.md). The records' headers have a writer and its numbers, as those of
`twinlog.local.load`.
"""

import random
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import librdkafka_tools
from unusual_sources import LARGEST, MEGABYTE, TIERED_TOPIC, await_tiered, set_quota, tiered

from twinlog.local.cluster import DEFAULT_VERSION, LocalCluster
from twinlog.local.writers import PlainWriter, Totals

LARGE: Final = "large"
TIERED: Final = "tiered"
_TICK_S: Final = 0.5
_LARGE_EACH: Final = 4
"""One tick in so many writes a record of any size; the others write small ones."""
_BACKLOG: Final = 1600
"""Records of the tiered topic, 8 KB each on average, that are written before the flow begins."""
_FLUSH_S: Final = 120.0


def unusual_brokers(folder: Path, choose: random.Random) -> dict[str, str]:
    """Return the configuration of brokers with slow and limited remote storage in a folder."""
    return {
        "message.max.bytes": str(8 << 20),
        "replica.fetch.max.bytes": str(8 << 20),
        # Default: 11 windows of a second, so a client is throttled after 10 s of its rate.
        "quota.window.num": "2",
        "remote.fetch.max.wait.ms": choose.choice(["1", "500"]),
        "remote.log.manager.fetch.max.bytes.per.second": str(choose.randrange(2, 4) * MEGABYTE),
        "remote.log.manager.fetch.quota.window.num": "2",
        **tiered(folder, DEFAULT_VERSION),
    }


class UnusualLoad:
    """See the module. It writes about 500 KB a second, in a thread.

    Args:
        source: the cluster, started with `unusual_brokers`.
        seed: of all choices.
    """

    topics: Mapping[str, int] = {LARGE: 3, TIERED: 2}

    def __init__(self, source: LocalCluster, seed: str) -> None:
        self._source = source
        self._random = random.Random(f"{seed}/unusual")
        self._totals = Totals()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)
        servers = source.bootstrap_servers
        librdkafka_tools.make_topic(servers, LARGE, self.topics[LARGE], LARGEST)
        librdkafka_tools.make_topic(servers, TIERED, self.topics[TIERED], TIERED_TOPIC)
        sizes: dict[str, Any] = {
            "message_max_bytes": 8 << 20,
            "queue_buffering_max_kbytes": 64 << 10,
        }
        self._large = PlainWriter(servers, LARGE, self._totals, **sizes)
        self._tiered = PlainWriter(servers, TIERED, self._totals, batch_size=50_000)

    def start(self) -> None:
        """Move a backlog to remote storage, limit the flow's client id, and begin to write."""
        for _ in range(_BACKLOG):
            self._tiered.write(TIERED, self._random.randrange(2), None, self._text(15_000))
        assert self._tiered.flush(_FLUSH_S) == 0
        await_tiered(self._source, TIERED)
        rate = self._random.uniform(2, 4) * MEGABYTE
        set_quota(self._source, {"consumer_byte_rate": rate})
        self._thread.start()

    def stop(self) -> Totals:
        """End, wait for all acknowledgements, and return what was written."""
        self._ending.set()
        self._thread.join()
        assert self._large.flush(_FLUSH_S) == self._tiered.flush(_FLUSH_S) == 0
        assert not self._totals.failures, self._totals.failures
        return self._totals

    def _write(self) -> None:
        tick = 0
        while not self._ending.wait(_TICK_S):
            tick += 1
            for index in range(self.topics[LARGE]):
                self._large.write(LARGE, index, None, self._text(1000))
            if tick % _LARGE_EACH == 0:
                largest = self._random.choice((100_000, 1 << 20, 5_000_000))
                self._large.write(LARGE, self._random.randrange(3), None, self._text(largest))
            for index in range(self.topics[TIERED]):
                for _ in range(4):
                    self._tiered.write(TIERED, index, None, self._text(15_000))

    def _text(self, most: int) -> str:
        """Random text, which does not compress, of at most so many bytes."""
        return self._random.randbytes(self._random.randrange(most) // 2).hex()
