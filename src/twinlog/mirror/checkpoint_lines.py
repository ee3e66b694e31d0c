"""Which flows of a file write checkpoints, and which lines have no effect where they do not.

A flow that writes in transactions translates offsets only if it is asked for a map of them, and not
with all transforms. MirrorMaker 2 has no such flows: it writes checkpoints whatever its transforms
are (docs/operations/kip-656.md).
"""

from collections.abc import Collection, Iterable
from typing import Final

from twinlog.mirror.flow import NO_MAP, may_record_map, records_map_of
from twinlog.mirror.flow_settings import MAP
from twinlog.mirror.mirror_maker_file import OFFSET_SYNCS, Flow
from twinlog.text import few

_OF_CHECKPOINTS: Final = frozenset(
    {
        "groups",
        "groups.exclude",
        "emit.checkpoints.enabled",
        "emit.checkpoints.interval.seconds",
        "checkpoints.topic.replication.factor",
    }
)
_OF_OFFSET_SYNCS: Final = frozenset({OFFSET_SYNCS, "offset-syncs.topic.replication.factor"})


def writes_checkpoints(flow: Flow) -> bool:
    """Whether a flow writes checkpoints: it is asked to, and has a map of offsets."""
    return flow.settings.emits_checkpoints and records_map_of(flow.transforms, flow.settings)


def without_checkpoints(flows: Iterable[Flow], name: str = "") -> str:
    """Why flows do not write the checkpoints or offset syncs that their settings ask for.

    Args:
        flows: the flows.
        name: a setting that all of them have; empty: any.

    Returns:
        Text for people, with what to write instead, behind a semicolon; empty: they do, or the
        setting does not need it.
    """
    if name in _OF_OFFSET_SYNCS:
        asked = [f for f in flows if f.settings.enabled and f.settings.emit_offset_syncs_enabled]
        what = "offset syncs"
    else:
        asked = [f for f in flows if f.settings.emits_checkpoints]
        what = "checkpoints"
    lacking = [f for f in asked if not records_map_of(f.transforms, f.settings)]
    if not lacking or (name and name not in _OF_CHECKPOINTS | _OF_OFFSET_SYNCS):
        return ""
    possible = [flow.name for flow in lacking if may_record_map(flow.transforms)]
    others = [flow.name for flow in lacking if not may_record_map(flow.transforms)]
    text = ""
    if possible:
        text = (
            f"; without a map of offsets no {what} are written ({few(possible)}): write "
            f"{_written(possible)} = true"
        )
    if others:
        text += f"; no {what} are written ({few(others)}), {NO_MAP.partition(', ')[2]}"
    return text


def _written(flows: Collection[str]) -> str:
    """The setting that gives flows a map."""
    (first, *others) = flows
    return f"SOURCE->TARGET.{MAP}" if others else f"{first}.{MAP}"
