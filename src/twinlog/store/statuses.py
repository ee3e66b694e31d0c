"""Which statuses of lanes are fresh, and which foreign members the lanes' groups have.

A status carries the time of its lane's clock, which may differ from the reader's clock. So if lanes
are alive, a status that seems stale, or is dated in the future, is read again for `WATCH_S`. Each
living lane writes in that time (runtime/status_writer.py). A status that has changed is fresh. A
status that has not changed has no owner.
"""

import asyncio
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import TwinlogError
from twinlog.kafka.groups.assignor import foreign_reason
from twinlog.kafka.groups.offsets import CLASSIC, Group, group_members
from twinlog.store.control_topics import CONFIG_TOPIC, LANES_GROUP, STATE_TOPIC
from twinlog.store.mirrors import MirrorStore
from twinlog.store.status_records import Status

FRESH_S: Final = 15.0
"""Seconds for which a status is fresh: lanes write each every 5 s (runtime/status_writer.py)."""
WATCH_S: Final = 7.0
"""Seconds in which a living lane writes each status again: the 5 s interval and a margin."""
LOOK_S: Final = 0.5
_STALE_S: Final = FRESH_S + 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reports:
    """The last status of each state partition.

    Attributes:
        statuses: by state partition.
        ages: seconds since each was written; 0 if it changed while it was watched.
        unreadable: records of `__mirror_status` that cannot be read.
    """

    statuses: Mapping[int, Status]
    ages: Mapping[int, float]
    unreadable: tuple[str, ...] = ()


async def read_reports(store: MirrorStore, *, has_lanes: bool) -> Reports:
    """The statuses and their ages.

    Args:
        store: the destination's mirrors.
        has_lanes: whether there are lanes: only then are doubtful statuses watched.

    Raises:
        Retriable, UserError: the destination is unreachable, or returns an error code.
    """
    statuses, unreadable = await store.statuses()
    ages = ages_of(statuses, time.time())
    reports = Reports(statuses=statuses, ages=ages, unreadable=unreadable)
    doubtful = {number for number, age in ages.items() if not is_fresh(age)}
    return await renewed(store, reports, doubtful) if has_lanes and doubtful else reports


async def renewed(store: MirrorStore, reports: Reports, numbers: Collection[int]) -> Reports:
    """The statuses once each of these was written again, or after `WATCH_S`.

    A status that was not written again has no owner: it is stale, however young it is.

    Raises:
        Retriable, UserError: the destination is unreachable, or returns an error code.
    """
    statuses, ages = dict(reports.statuses), dict(reports.ages)
    awaited_numbers, deadline = set(numbers), time.monotonic() + WATCH_S
    while awaited_numbers and time.monotonic() < deadline:
        await asyncio.sleep(LOOK_S)
        later_statuses, _ = await store.statuses()
        for number in awaited_numbers & later_statuses.keys():
            if later_statuses[number].time_ms != reports.statuses[number].time_ms:
                statuses[number], ages[number] = later_statuses[number], 0.0
                awaited_numbers = awaited_numbers - {number}
    for number in awaited_numbers:
        if is_fresh(ages[number]):
            ages[number] = _STALE_S
    return Reports(statuses=statuses, ages=ages, unreadable=reports.unreadable)


class ForeignMembers(NamedTuple):
    """Members of the nodes' groups that are not twinlog's.

    Attributes:
        descriptions: each with its host and the reason why it is foreign, for people.
        all_foreign: whether the lanes' group has members, and all are foreign: no node runs.
    """

    descriptions: tuple[str, ...]
    all_foreign: bool


async def foreign_members(destination: KafkaCluster, groups: Mapping[str, Group]) -> ForeignMembers:
    """Members of the nodes' groups that are not twinlog's.

    Empty for a group that cannot be described, or rebalances: stale statuses then show the effect.
    A group that is not a classic group (KIP-848) is named as a whole, as lanes may be in it.

    Args:
        destination: the cluster that has the groups.
        groups: the groups as they were listed.
    """
    descriptions: list[str] = []
    all_foreign = False
    for name, topic in ((LANES_GROUP, STATE_TOPIC), (f"{LANES_GROUP}.mirrors", CONFIG_TOPIC)):
        group = groups.get(name)
        if group is not None and not group.idle and group.kind != CLASSIC:
            descriptions.append(f"group {name} is a {group.kind} group, expected a classic group")
            continue
        try:
            members = await group_members(destination, name)
        except TwinlogError:
            continue
        foreign = [
            f"group {name}: member {member.member_id} at {member.host}: {reason}"
            for member in members
            if (reason := foreign_reason(topic, member.subscription))
        ]
        descriptions += foreign
        if name == LANES_GROUP:
            all_foreign = 0 < len(members) == len(foreign)
    return ForeignMembers(tuple(descriptions), all_foreign)


def ages_of(statuses: Mapping[int, Status], now_s: float) -> dict[int, float]:
    """Seconds since each status was written; negative if the lane's clock is ahead."""
    return {number: now_s - status.time_ms / 1000 for number, status in statuses.items()}


def is_fresh(age_s: float) -> bool:
    """Whether a status of this age is fresh. A status from the future has no known age."""
    return abs(age_s) <= FRESH_S
