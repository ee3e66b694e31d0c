"""Whether a partition was copied to another remote topic before, and records may be routed.

A flow that is deleted and created again goes on at its positions, which are kept at its remote
topics. If these have other names by then, a flow begins anew with the new names. That is no way on
where transforms may route records: with a map of offsets the position is kept at the topic that
they are routed to, without one at the policy's (mirror/routed_names.py), and the records go to the
same topic in both cases. They would be there twice.

So such a partition does not begin. The record that it has begun (positions.py) names the former
remote topic; where the former position is, or whether brokers have forgotten it, does not matter.
What is forgotten with the flow does not count, nor does a source topic that was recreated since. A
takeover since then says where the partition begins.
"""

from collections.abc import Mapping
from typing import Final

from twinlog.engines.transactional.source_position import ToBegin
from twinlog.engines.translated.location import NotLocated
from twinlog.mirror.placement import MirrorPartition
from twinlog.store.offset_records import BegunPartition

REMEDY: Final = (
    "set transforms, sync.group.offsets.enabled, twinlog.offset.map and replication.policy.* as "
    "before; or, to copy all records once more, create the flow as before, and delete it with "
    "twinlog flows delete --forget-offsets"
)


def former_route(begun: BegunPartition, wanted: ToBegin) -> str | None:
    """Why a partition of a flow that may have routed records may not begin; None: it may.

    Args:
        begun: the record that it has begun.
        wanted: between which topics it is copied now.
    """
    route = begun.route
    if (
        route.topic == wanted.route.topic
        or route.source_topic_id != wanted.route.source_topic_id
        or wanted.copied_to not in {None, begun.copied_to}
    ):
        return None
    return (
        f"{begun.name.source} was copied to {route.topic} before, and would be copied to "
        f"{wanted.route.topic}: records that transforms route may be there twice then"
    )


def former_routes(
    begun: Mapping[MirrorPartition, BegunPartition],
    partitions: Mapping[MirrorPartition, ToBegin],
) -> Mapping[MirrorPartition, NotLocated]:
    """Why partitions of such a flow may not begin, by those of which that holds.

    Args:
        begun: the records that partitions have begun.
        partitions: between which topics they are copied now.
    """
    reasons = {
        name: former_route(begun[name], wanted)
        for name, wanted in partitions.items()
        if name in begun
    }
    return {
        name: NotLocated(f"{reason}; {REMEDY}", transient=False)
        for name, reason in reasons.items()
        if reason is not None
    }
