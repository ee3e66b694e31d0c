"""Findings about what a consumer group would read again or skip after a failover. Pure."""

from collections.abc import Iterable, Iterator
from typing import Final

from twinlog.operations.readiness.facts import GroupFacts, Skip
from twinlog.operations.readiness.reasons import Finding, Reason
from twinlog.text import few

_SHARE: Final = "share"
_STREAMS: Final = "streams"


def of_group(group: GroupFacts) -> Iterator[Finding]:
    """Findings about what a group would read again or skip."""
    name = f"{'share ' if group.kind == _SHARE else ''}group {group.group}"
    if group.due and group.followed:
        why = "" if group.idle_on_destination else ", because it has members on the destination"
        yield Finding(
            Reason.GROUP_BEHIND,
            f"{name}: its offsets of {group.due} partition(s) are not copied yet{why}; it would "
            f"read {group.behind} offsets again{_reset(group)}",
        )
    if group.due and not group.followed:
        why = "streams groups are not" if group.kind == _STREAMS else "see mirror.groups.include"
        yield Finding(
            Reason.GROUP_NOT_COPIED,
            f"{name}: its offsets of {group.due} partition(s) are not copied ({why}); it would "
            f"read {group.behind} offsets again{_reset(group)}",
        )
    if group.kind == _SHARE and group.unread:
        yield Finding(
            Reason.GROUP_NOT_COPIED,
            f"{name}: acknowledgements above its start offsets are not copied; up to "
            f"{group.unread} offsets would be delivered again",
        )
    if group.ahead:
        yield Finding(
            Reason.GROUP_AHEAD,
            f"{name} has read {group.ahead} offsets that are not mirrored yet",
        )
    if group.left_out:
        yield Finding(
            Reason.GROUP_SKIPS,
            f"{name} would skip records of {_places(group.left_out)}, which the target does not "
            "have: the flow began behind them, or has gone on without lost copies; let it read up "
            "to there on the source",
        )
    if group.deleted:
        yield _deleted(group, name)
    if not group.followed and group.skips:
        yield Finding(
            Reason.GROUP_NOT_COPIED,
            f"{name} would skip records of {_places(group.skips)}, unless it has read them on the "
            f"destination: its offsets are not copied",
        )
        return
    if rewound := [skip for skip in group.skips if skip.follows]:
        yield Finding(
            Reason.GROUP_REWOUND,
            f"{name} was rewound on the source, or the destination has lost what it had read; "
            f"until the next check sets it back, it would skip records of {_places(rewound)}",
        )
    if unfollowed := [skip for skip in group.skips if not skip.follows]:
        yield Finding(
            Reason.GROUP_SKIPS,
            f"{name} would skip records of {_places(unfollowed)}, unless it has read them on the "
            f"destination; the mirror did not commit these offsets and does not lower them: reset "
            f"them on the destination (kafka-consumer-groups --reset-offsets)",
        )


def _deleted(group: GroupFacts, name: str) -> Finding:
    places = few([f"{partition} ({offset})" for partition, offset in group.deleted])
    return Finding(
        Reason.GROUP_DELETED,
        f"{name} no longer has offsets on the source for {places} (deleted or expired), and would "
        "continue from these copies; if it is to start again, delete them on the destination, "
        "too (kafka-consumer-groups --delete-offsets)",
    )


def _places(skips: Iterable[Skip]) -> str:
    return few([str(skip) for skip in skips])


def _reset(group: GroupFacts) -> str:
    if not group.missing:
        return ""
    return (
        f"; {group.missing} partition(s) have no offset on the destination, where "
        f"auto.offset.reset decides: latest skips records"
    )
