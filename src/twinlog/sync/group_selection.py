"""Which groups' offsets are copied, and how often: rules for exact mirrors, and for flows.

    mirror   by name                                       kinds of groups
    -------  --------------------------------------------  -------------------------------------
    exact    `mirror.groups.include`                       classic, consumer-protocol and share
    flow     `groups`, `groups.exclude`, as MirrorMaker 2  those that MirrorMaker 2 lists
                                                           (`ListGroupsOptions.forConsumerGroups`)

A streams group's offsets (KIP-1071) are not copied: its state stores and repartition topics belong
to them. Neither are those of groups that hold the positions of a flow to this source.

A flow is stored with an empty `mirror.groups.include`, and nothing here reads it. What an earlier
version has stored there, an expression that it has derived from `groups`, has no effect any more.
"""

from collections.abc import Callable, Collection
from re import Pattern
from typing import Final

from twinlog.kafka.groups.offsets import CLASSIC, Group
from twinlog.mirror.flow import flow_settings_of
from twinlog.mirror.flow_settings import FlowSettings
from twinlog.mirror.reported_positions import is_position_group
from twinlog.mirror.settings import FLOW_KINDS, MirrorSettings
from twinlog.store.config_records import Mirror
from twinlog.sync.group_readings import SHARE

GroupFilter = Callable[[Group], bool]
"""Whether a group's offsets are copied."""

_CONSUMER: Final = "consumer"
_CONSUMER_KINDS: Final = frozenset({CLASSIC, _CONSUMER})
_CONSUMER_PROTOCOLS: Final = frozenset({"", _CONSUMER})
"""Protocol types of classic groups: none, if clients have only committed offsets, and consumers'.
Connect's workers, for example, have another one."""
_EXACT_KINDS: Final = _CONSUMER_KINDS | {SHARE}


def named_groups(include: Collection[Pattern[str]]) -> GroupFilter:
    """The groups of an exact mirror: a group is one whose whole name matches one of these."""
    return lambda group: (
        group.kind in _EXACT_KINDS
        and not is_position_group(group.name)
        and any(pattern.fullmatch(group.name) for pattern in include)
    )


def flow_groups(settings: FlowSettings) -> GroupFilter:
    """The groups that a flow selects, for checkpoints and for offsets on the target."""
    return lambda group: (
        group.kind in _CONSUMER_KINDS
        and group.protocol in _CONSUMER_PROTOCOLS
        and settings.selects_group(group.name)
    )


def copied_groups(mirror: Mirror, settings: MirrorSettings) -> GroupFilter:
    """The groups whose offsets are committed on the destination.

    Args:
        mirror: of any kind.
        settings: its settings; of a flow, its own count instead.

    Raises:
        UserError: a flow's settings are malformed.
    """
    if mirror.kind not in FLOW_KINDS:
        return named_groups(settings.groups_include)
    flow = flow_settings_of(mirror.source)
    return flow_groups(flow) if flow.syncs_group_offsets else lambda _: False


def check_interval_s(mirror: Mirror) -> float:
    """Seconds between two checks of these groups, by a flow's settings; 0: each refresh has one.

    Raises:
        UserError: a flow's settings are malformed.
    """
    if mirror.kind not in FLOW_KINDS:
        return 0.0
    return flow_settings_of(mirror.source).sync_group_offsets_interval_seconds
