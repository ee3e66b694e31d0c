"""The reasons against a failover, and the weight of each: one table, `WEIGHTS`.

verdict     a failover
----------  -------------------------------------------------------------------------------
READY       loses nothing
WARNING     works, and loses or changes what the reasons name
NOT_READY   would not be carried out, or yields topics whose losses are unknown
"""

import enum
from collections.abc import Mapping
from typing import Final, NamedTuple


class Verdict(enum.IntEnum):
    """See the module; the greater value is worse."""

    READY = 0
    WARNING = 1
    NOT_READY = 2


class Reason(enum.Enum):
    """The reasons against a failover."""

    NO_NODE = "no node is running that could carry out the failover"
    DESTINATION_UNREADABLE = "the destination's log cannot be read"
    DESTINATION_RECREATED = "the destination topic was deleted and recreated"
    NOT_MIRRORING = "partitions that are not MIRRORING"
    PAUSED = "partitions that are paused"
    NOT_MIRRORED = "source topics that match the mirror and are not mirrored"
    NOT_SELECTED = "topics that a flow copies, and its settings do not select"
    COPIED_TWICE = "topics that another flow copies to the same remote topic, too"
    FOREIGN_MEMBER = "members of the nodes' groups that are not twinlog nodes"
    CONTROL_UNREADABLE = "records of the control topics that cannot be read"
    SOURCE_UNREACHABLE = "the current state of the source is unknown"
    SOURCE_UNREADABLE = "the current state of some source partitions is unknown"
    TOPIC_GONE = "the source topic was deleted"
    TOPIC_MADE_AGAIN = "the source topic was deleted and recreated"
    NEW_PARTITIONS = "the source topic has partitions that are not mirrored"
    EXTRA_PARTITIONS = "partitions were added to the destination topic"
    PURGED = "the source has deleted records that were not mirrored yet"
    BEGINS_LATER = "the destination has deleted records that the source keeps"
    DIVERGED = "the destination holds records that the source does not have"
    FOREIGN_RECORDS = "the destination holds records that its mirror has not written"
    COMPACTION_MISSED = "compacted topics that were behind for longer than delete.retention.ms"
    NOT_COMPARED = "unknown whether the destination holds what its mirror has written, and no more"
    LOG_END_UNREADABLE = "unknown which records the source has acknowledged and not replicated"
    UNREPLICATED = "records that the source has not replicated yet"
    LAG = "records that are not mirrored yet"
    OPEN_TRANSACTION = "records of open transactions on the source"
    GROUP_BEHIND = "a group would read records again"
    GROUP_AHEAD = "a group has read records that are not mirrored yet"
    GROUP_REWOUND = "a group's offsets have to be set back, and are not yet"
    GROUP_SKIPS = "a group would skip records"
    GROUP_DELETED = "a group's offsets were deleted on the source, and not on the destination"
    GROUP_NOT_COPIED = "a group's offsets are not copied"
    GROUP_UNREADABLE = "groups' offsets cannot be read"
    CONFIGURATION = "configurations that differ from the source"
    CONFIGURATION_UNREADABLE = "configurations cannot be read"
    ACL = "ACLs that differ from the source"
    ACL_UNREADABLE = "ACLs cannot be read"
    NOT_SYNCED = "other synced data differs from the source"
    SYNC_UNREADABLE = "other synced data cannot be read"
    REMOTE_LOST = "the remote log of a flow has lost records that were copied"
    COPIES_LOST = "a flow has gone on without copies that its target has lost"
    HEARTBEAT = "the heartbeats of a flow are missing or old"
    CHECKPOINT = "the checkpoints of a flow are old or cannot be read"


WEIGHTS: Final[Mapping[Reason, Verdict]] = {
    Reason.NO_NODE: Verdict.NOT_READY,
    Reason.DESTINATION_UNREADABLE: Verdict.NOT_READY,
    Reason.DESTINATION_RECREATED: Verdict.NOT_READY,
    Reason.NOT_MIRRORING: Verdict.NOT_READY,
    Reason.PAUSED: Verdict.WARNING,
    Reason.NOT_MIRRORED: Verdict.WARNING,
    Reason.NOT_SELECTED: Verdict.WARNING,
    Reason.COPIED_TWICE: Verdict.WARNING,
    Reason.FOREIGN_MEMBER: Verdict.WARNING,
    Reason.CONTROL_UNREADABLE: Verdict.WARNING,
    Reason.SOURCE_UNREACHABLE: Verdict.WARNING,
    Reason.SOURCE_UNREADABLE: Verdict.WARNING,
    Reason.TOPIC_GONE: Verdict.WARNING,
    Reason.TOPIC_MADE_AGAIN: Verdict.WARNING,
    Reason.NEW_PARTITIONS: Verdict.WARNING,
    Reason.EXTRA_PARTITIONS: Verdict.WARNING,
    Reason.PURGED: Verdict.WARNING,
    Reason.BEGINS_LATER: Verdict.WARNING,
    Reason.DIVERGED: Verdict.WARNING,
    Reason.FOREIGN_RECORDS: Verdict.WARNING,
    Reason.NOT_COMPARED: Verdict.WARNING,
    Reason.COMPACTION_MISSED: Verdict.WARNING,
    Reason.LOG_END_UNREADABLE: Verdict.WARNING,
    Reason.UNREPLICATED: Verdict.WARNING,
    Reason.LAG: Verdict.WARNING,
    Reason.OPEN_TRANSACTION: Verdict.WARNING,
    Reason.GROUP_BEHIND: Verdict.WARNING,
    Reason.GROUP_AHEAD: Verdict.WARNING,
    Reason.GROUP_REWOUND: Verdict.WARNING,
    Reason.GROUP_SKIPS: Verdict.WARNING,
    Reason.GROUP_DELETED: Verdict.WARNING,
    Reason.GROUP_NOT_COPIED: Verdict.WARNING,
    Reason.GROUP_UNREADABLE: Verdict.WARNING,
    Reason.CONFIGURATION: Verdict.WARNING,
    Reason.CONFIGURATION_UNREADABLE: Verdict.WARNING,
    Reason.ACL: Verdict.WARNING,
    Reason.ACL_UNREADABLE: Verdict.WARNING,
    Reason.NOT_SYNCED: Verdict.WARNING,
    Reason.SYNC_UNREADABLE: Verdict.WARNING,
    Reason.REMOTE_LOST: Verdict.NOT_READY,
    Reason.COPIES_LOST: Verdict.WARNING,
    Reason.HEARTBEAT: Verdict.WARNING,
    Reason.CHECKPOINT: Verdict.WARNING,
}

OF_SYNCS: Final = frozenset(
    {
        Reason.CONFIGURATION,
        Reason.CONFIGURATION_UNREADABLE,
        Reason.ACL,
        Reason.ACL_UNREADABLE,
        Reason.NOT_SYNCED,
        Reason.SYNC_UNREADABLE,
    }
)
"""Reasons that syncs report (sync_survey.py)."""

BEYOND_LAG: Final = frozenset(
    {
        Reason.NOT_MIRRORED,
        Reason.DESTINATION_RECREATED,
        Reason.CONTROL_UNREADABLE,
        Reason.SOURCE_UNREACHABLE,
        Reason.SOURCE_UNREADABLE,
        Reason.LOG_END_UNREADABLE,
        Reason.TOPIC_GONE,
        Reason.TOPIC_MADE_AGAIN,
        Reason.NEW_PARTITIONS,
        Reason.PURGED,
        Reason.BEGINS_LATER,
        Reason.DIVERGED,
        Reason.FOREIGN_RECORDS,
        Reason.NOT_COMPARED,
        Reason.COMPACTION_MISSED,
        Reason.REMOTE_LOST,
        Reason.COPIES_LOST,
    }
)
"""With these reasons, records may be lost, or may differ, that no lag counts."""


class Finding(NamedTuple):
    """A reason, and a text for people about what was found."""

    reason: Reason
    text: str

    @property
    def verdict(self) -> Verdict:
        """What it means for a failover."""
        return WEIGHTS[self.reason]

    def as_json(self) -> Mapping[str, object]:
        """The reason, its weight, and the text."""
        return {"reason": self.reason, "weight": self.verdict, "text": self.text}
