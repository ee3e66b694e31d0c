"""Whether a partition was copied to another remote topic before, where records are routed on.

A flow that is deleted and created again goes on at its positions, which are kept at its remote
topics. If these have other names by then, a flow begins anew with the new names. That is no way on
where transforms route records: with a map of offsets the position is kept at the topic that they
are routed to, without one at the policy's (mirror/routed_names.py), and the records go to the same
topic in both cases. They would be there twice.

So such a partition does not begin in front of its position at the former remote topic. The record
that it has begun (positions.py) names that topic. What is forgotten with the flow does not count,
nor does a source topic that was recreated since. A takeover or an import says where it begins.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from twinlog.engines.transactional.positions import PositionLost, found_position
from twinlog.engines.transactional.source_position import ToBegin
from twinlog.engines.translated.location import NotLocated
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.groups.offsets import Committed, committed_offsets
from twinlog.kafka.types import TopicPartition
from twinlog.mirror.placement import MirrorPartition
from twinlog.store.offset_records import BegunPartition

FORGET: Final = (
    "set transforms, sync.group.offsets.enabled, twinlog.offset.map and replication.policy.* as "
    "before; or, to copy all records once more, create the flow as before, and delete it with "
    "twinlog flows delete --forget-offsets"
)


class Moved(NamedTuple):
    """A partition that was copied to another remote topic, and where it is to begin."""

    begun: BegunPartition
    wanted: ToBegin
    found: Committed | None
    """Its position at the remote topic that it has now."""


def moved(
    begun: Mapping[MirrorPartition, BegunPartition],
    partitions: Mapping[MirrorPartition, ToBegin],
    found: Mapping[MirrorPartition, Committed | None],
) -> list[Moved]:
    """Those partitions of a flow whose source topic was copied to another remote topic before.

    Args:
        begun: the records that partitions have begun.
        partitions: between which topics they are copied.
        found: their positions; None: they have not begun.
    """
    return [
        Moved(begun[name], partitions[name], at)
        for name, at in found.items()
        if name in begun
        and begun[name].route.topic != partitions[name].route.topic
        and begun[name].route.source_topic_id == partitions[name].route.source_topic_id
    ]


def repeats(one: Moved, committed: Mapping[TopicPartition, Committed], group: str) -> str | None:
    """Why a partition may not begin; None: nothing that was copied before is copied again.

    Args:
        one: the partition.
        committed: all offsets of the flow's group.
        group: its name.
    """
    name, route, wanted = one.begun.name, one.begun.route, one.wanted
    former = None
    with suppress(PositionLost):
        former = found_position(
            committed.get(TopicPartition(route.topic, name.partition)),
            one.begun,
            route,
            group,
            name.partition,
            copied_to=one.begun.copied_to,
            passes_lost=True,
        )
    begin = wanted.copied_to if one.found is None else one.found.offset
    if former is None:
        if wanted.copied_to not in {None, one.begun.copied_to}:
            return None  # a takeover or an import since
    elif (begin or 0) >= former.offset:
        return None
    position = "a position that is lost" if former is None else f"position {former.offset}"
    return (
        f"{name.source} was copied to {route.topic} before, with {position}, and would go on at "
        f"{begin or 0} with {wanted.route.topic}: records that transforms route would be copied "
        "twice"
    )


async def repeated(
    destination: KafkaCluster,
    group: str,
    begun: Mapping[MirrorPartition, BegunPartition],
    partitions: Mapping[MirrorPartition, ToBegin],
    found: Mapping[MirrorPartition, Committed | None],
) -> dict[MirrorPartition, str]:
    """Why partitions of a flow that routes records may not begin, by those of which that holds.

    Args:
        destination: the target.
        group: the flow's (`position_group`).
        begun: as for `moved`.
        partitions: as for `moved`.
        found: as for `moved`.

    Raises:
        Retriable: the coordinator does not answer.
        UserError: a right is missing.
    """
    candidates = moved(begun, partitions, found)
    if not candidates:
        return {}
    # All of them: a topic that was deleted, or that may not be described, has no position then.
    committed = await committed_offsets(destination, group, stable=True)
    reasons = {one.begun.name: repeats(one, committed, group) for one in candidates}
    return {name: reason for name, reason in reasons.items() if reason is not None}


async def take_out_repeated(
    destination: KafkaCluster,
    group: str,
    begun: Mapping[MirrorPartition, BegunPartition],
    partitions: Mapping[MirrorPartition, ToBegin],
    found: dict[MirrorPartition, Committed | None],
) -> dict[MirrorPartition, NotLocated]:
    """Take partitions that may not begin out of `found`, and return why; see `repeated`."""
    reasons = await repeated(destination, group, begun, partitions, found)
    for name in reasons:
        del found[name]
    return {n: NotLocated(f"{why}; {FORGET}", transient=False) for n, why in reasons.items()}
