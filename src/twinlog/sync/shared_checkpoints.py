"""Checkpoints in remote partitions that several source partitions share (shared_partitions.py).

A checkpoint names the remote partition (KIP-382: Kafka's `MirrorCheckpointTask` renames it before),
and so does its key. So there is one for a group and a shared partition, whatever the number of its
source partitions, and Kafka's `RemoteClusterUtils` uses its downstream offset as it is. It has to
be the lowest place. The upstream offset is the one that the group has committed in the source's
partition whose place that is.

Where not all places are known, none is written, but one that was written before is lowered to the
floor: the group may have gone back.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import NamedTuple

from twinlog.kafka.groups.offsets import Committed
from twinlog.kafka.types import TopicPartition
from twinlog.mirror.mm2_records import Checkpoint
from twinlog.mirror.shared_partitions import JoinedPartition


class SharedCheckpoints(NamedTuple):
    """The checkpoints of all groups in shared partitions."""

    exact: Collection[Checkpoint]
    """Where each group goes on."""
    floors: Collection[Checkpoint]
    """Where others go on at least: they replace stored ones that are higher."""


def shared_checkpoints(
    committed: Mapping[str, Mapping[TopicPartition, Committed]],
    shared: Collection[JoinedPartition],
    logs: Mapping[TopicPartition, tuple[int, int]],
    recreated: Collection[str] = (),
) -> SharedCheckpoints:
    """The checkpoints of groups in shared partitions, whose logs can be read.

    Args:
        committed: what groups have committed on the source, by group.
        shared: the shared partitions.
        logs: where the remote logs start and end, read after the maps.
        recreated: topics of the source that were recreated or deleted.
    """
    exact: list[Checkpoint] = []
    floors: list[Checkpoint] = []
    for group, offsets in committed.items():
        own = {partition: at.offset for partition, at in offsets.items()}
        for one in shared:
            place = one.place(own, recreated)
            if place.lowest is None or place.feeder is None or one.remote not in logs:
                continue
            start, end = logs[one.remote]
            if place.lacks and place.lowest > end:
                continue  # that end may be of a leader that does not show the record yet
            checkpoint = Checkpoint(
                group=group,
                partition=one.remote,
                upstream_offset=own[place.feeder],
                downstream_offset=max(start, min(place.lowest, end)),
            )
            (floors if place.lacks else exact).append(checkpoint)
    return SharedCheckpoints(exact, floors)


def lowered(
    floors: Collection[Checkpoint],
    stored: Mapping[tuple[str, TopicPartition], Checkpoint],
    starts: Mapping[TopicPartition, int],
) -> list[Checkpoint]:
    """Those of the floors that replace a stored checkpoint.

    Args:
        floors: see `SharedCheckpoints`.
        stored: the checkpoints that the target has, by group and partition.
        starts: the remote log starts: a consumer cannot begin below.
    """
    return [
        replace(floor, downstream_offset=place)
        for floor in floors
        if (known := stored.get((floor.group, floor.partition))) is not None
        and floor.partition in starts
        and known.downstream_offset
        > (place := max(floor.downstream_offset, starts[floor.partition]))
    ]
