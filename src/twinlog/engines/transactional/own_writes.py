"""Which producer ids show that a batch in a remote partition is of its own source partition.

All source partitions of a state partition write under one transactional id, and transforms may
route records of one to the remote partition of another. So a producer id alone shows nothing. Who
writes to another one's remote partition first records it (`SharedPartition`), in the
`__mirror_offsets` that the tail of each position names (remote_tails.py).
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from uuid import UUID

from twinlog.engines.transactional.remote_tails import RemoteTail
from twinlog.kafka.types import TopicPartition
from twinlog.mirror.placement import MirrorPartition
from twinlog.store.offset_records import BegunPartition

Begun = Mapping[MirrorPartition, BegunPartition]
"""The partitions of a state partition that have begun."""


def by_remote(begun: Begun) -> Mapping[TopicPartition, Collection[MirrorPartition]]:
    """Which source partitions are copied to each of these partitions of the target."""
    names: defaultdict[TopicPartition, set[MirrorPartition]] = defaultdict(set)
    for name, one in begun.items():
        names[TopicPartition(one.route.topic, name.partition)].add(name)
    return names


def newly_shared(
    batches: Collection[TopicPartition],
    own: Collection[TopicPartition],
    shared: Collection[TopicPartition],
    begun: Begun,
) -> set[TopicPartition]:
    """Partitions that get their first records of others than those that are copied to them.

    Where these are in the same transaction, their tails are behind all of its records.

    Args:
        batches: partitions that a transaction writes to.
        own: the remote partitions of those that it has.
        shared: see `own_ids`.
        begun: what has begun in the state partition.
    """
    routed = {*batches}.difference(own, shared)
    return routed.intersection(by_remote(begun)) if routed else set()


def own_ids(
    tails: Mapping[TopicPartition, RemoteTail],
    producer_ids: Collection[int],
    *,
    begun: Begun,
    shared: Collection[TopicPartition],
    recorded_in: UUID | None,
) -> Mapping[TopicPartition, Collection[int]]:
    """See `compare_tails`; partitions of which nothing is known are left out.

    An earlier version has not recorded it where two have begun. Of producer ids that the
    transactional id has had between the tail's and the present one, nothing is known.

    Args:
        tails: by remote partition, those of a state partition's positions.
        producer_ids: that the transactional id is known to have had since.
        begun: what has begun in the state partition.
        shared: remote partitions that several have written to under the transactional id.
        recorded_in: the id of the `__mirror_offsets` that has both; None: it is not known.
    """
    names = by_remote(begun)
    return {
        remote: {tail.last.producer_id, *producer_ids}
        for remote, tail in tails.items()
        if tail.recorded_in is not None
        and tail.recorded_in == recorded_in
        and remote not in shared
        and len(names[remote]) == 1
    }
