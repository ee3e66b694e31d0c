"""Load on a source cluster, like that of real applications, from an independent client.

It writes four topics, each with something that a mirror has to get right:

    orders      4 partitions   several transactional producers, their transactions interleaved in
                               every partition; about a third is aborted
    customers   2 partitions   compacted: keys updated and tombstoned, small segments, so that
                               cleaning really happens
    clicks      5 partitions   one codec each: none, gzip, snappy, lz4, zstd; headers, keys and
                               values that are null
    archive     2 partitions   begins above offset zero (DeleteRecords)

`--prefix` is put before the topics' names: loads of several sources then fit into one destination.

Each record's headers have its writer (`writer`) and its number among that writer's records in the
partition (`number`: 1, 2, 3, ...). Numbers of an aborted transaction are used again. So in offset
order a read_committed consumer sees each writer's numbers without gap or repetition, except what
compaction and DeleteRecords removed; check.py checks that.

    python -m twinlog.local.load --bootstrap-servers HOST:PORT --rate 2000 --seconds 60

It runs until SIGTERM or until its time is over, then completes what is in flight. Each second it
writes a JSON object with the totals to standard output. The last one has `"done": true` and, in
`written`, each writer's last number. The client is librdkafka with idempotence and unlimited
retries: a failed broker delays it, and has no other effect.
"""

import argparse
import json
import signal
import sys
import time
from collections.abc import Iterable
from typing import Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from twinlog.local.writers import ARCHIVE, Archive, Clicks, Customers, Orders, Totals, Writers

TICK_SECONDS: Final = 0.1
SHARES: Final = {"orders": 0.4, "customers": 0.15, "clicks": 0.35, "archive": 0.1}
"""Each topic's share of the rate."""
ARCHIVED: Final = 600
"""Records in each archive partition before the load begins; the first `FORGOTTEN` are deleted."""
FORGOTTEN: Final = 400

TOPICS: Final = {
    "orders": (4, {}),
    "customers": (
        2,
        {
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0.01",
            "segment.ms": "2000",
            "segment.bytes": str(1 << 20),
        },
    ),
    "clicks": (5, {}),
    "archive": (2, {}),
}
"""Partitions and configurations."""

_ADMIN_SECONDS: Final = 120.0


class Load:
    """The writers of all four topics, driven by one loop."""

    def __init__(self, bootstrap_servers: str, rate: float, seed: str, prefix: str = "") -> None:
        self._bootstrap_servers = bootstrap_servers
        self._prefix = prefix
        self._rate = rate
        self._seed = seed
        self._stopping = False
        self.totals = Totals()

    def stop(self, *_: object) -> None:
        """Ask the load to end: a signal handler."""
        self._stopping = True

    def run(self, seconds: float) -> None:
        """Write until asked to stop, at most for `seconds`."""
        names = create_topics(self._bootstrap_servers, self._prefix)
        make = (self._bootstrap_servers, self._seed, self.totals, self._prefix)
        archive = Archive(*make)
        if self._prefix + ARCHIVE in names:
            self._begin_above_zero(archive)
        writers: dict[str, Writers] = {
            "orders": Orders(*make),
            "customers": Customers(*make),
            "clicks": Clicks(*make),
            ARCHIVE: archive,
        }
        end = time.monotonic() + seconds
        self._say()
        self._write(writers, end)
        for writer in writers.values():
            writer.finish()
        self._say(done=True)

    def _begin_above_zero(self, archive: Archive) -> None:
        archive.write(ARCHIVED * archive.partitions)
        archive.flush()
        delete_before(
            self._bootstrap_servers,
            [(self._prefix + ARCHIVE, at, FORGOTTEN) for at in range(archive.partitions)],
        )

    def _write(self, writers: dict[str, Writers], end: float) -> None:
        owed = dict.fromkeys(writers, 0.0)
        measured_at, reported_at = time.monotonic(), time.monotonic()
        while not self._stopping and (now := time.monotonic()) < end:
            # Records that a failed broker held up are not made up for: that would be one burst.
            elapsed = min(now - measured_at, 1.0)
            measured_at = now
            for name, writer in writers.items():
                owed[name] += self._rate * SHARES[name] * elapsed
                count = int(owed[name])
                owed[name] -= count
                writer.write(count)
            if now - reported_at >= 1.0:
                reported_at = now
                self._say()
            time.sleep(max(0.0, TICK_SECONDS - (time.monotonic() - now)))

    def _say(self, *, done: bool = False) -> None:
        totals = self.totals.as_json(written=done)
        sys.stdout.write(json.dumps({"done": done, **totals}) + "\n")
        sys.stdout.flush()


def create_topics(bootstrap_servers: str, prefix: str = "") -> set[str]:
    """Create the missing topics; return their names."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    new_topics = [
        NewTopic(prefix + name, num_partitions=partitions, config=dict(config))
        for name, (partitions, config) in TOPICS.items()
    ]
    names = set()
    futures = admin.create_topics(new_topics, operation_timeout=_ADMIN_SECONDS)
    for name, future in futures.items():
        try:
            future.result(_ADMIN_SECONDS)
            names.add(name)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
    return names


def delete_before(bootstrap_servers: str, offsets: Iterable[tuple[str, int, int]]) -> None:
    """Move the log start offsets of (topic, partition, offset)s to the given offsets."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    for future in admin.delete_records([TopicPartition(*offset) for offset in offsets]).values():
        future.result(_ADMIN_SECONDS)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m twinlog.local.load", description=__doc__)
    parser.add_argument("--bootstrap-servers", required=True)
    parser.add_argument(
        "--rate", type=float, default=2000.0, help="records per second, over all topics"
    )
    parser.add_argument("--seconds", type=float, default=600.0, help="maximum duration")
    parser.add_argument(
        "--seed", default=str(time.time_ns()), help="the seed, which names the writers"
    )
    parser.add_argument("--prefix", default="", help="prefix of the topics' names")
    arguments = parser.parse_args()
    load = Load(arguments.bootstrap_servers, arguments.rate, arguments.seed, arguments.prefix)
    signal.signal(signal.SIGTERM, load.stop)
    signal.signal(signal.SIGINT, load.stop)
    load.run(arguments.seconds)


if __name__ == "__main__":
    main()
