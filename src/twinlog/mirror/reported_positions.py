"""Positions of a flow that are committed on its source, so that the source's tools show its lag.

KIP-656 commits them for the group that has the true positions on the target, periodically and
outside of the transactions. twinlog never reads them back. Each has a mark in its metadata: of
which flow it is, and of which target. It tells

- whose an offset on the source is: an offset with another mark, or none, is not overwritten;
- what is no position: a cluster may be the source of one flow, and the target of another one with
  the same name, whose true positions are in the group of this name;
- what is not copied: it would be no offset of an application on the destination.

The true positions, on the target, are offsets of a source that the target's own mirrors and flows
do not know. So no mirror copies or translates anything of a group of this name: it would count as a
position where it was copied to.
"""

from typing import Final

_MARK: Final = "twinlog-reported:"
_POSITION_GROUPS: Final = "twinlog.flow."


def report_mark(flow: str, target_cluster_id: str) -> str:
    """The metadata of the positions that a flow reports."""
    return f"{_MARK}flow={flow};target={target_cluster_id}"


def is_reported(metadata: str) -> bool:
    """Whether an offset with this metadata is a position that some flow reports."""
    return metadata.startswith(_MARK)


def is_position_group(name: str) -> bool:
    """Whether a group of this name has the positions of a flow."""
    return name.startswith(_POSITION_GROUPS)
