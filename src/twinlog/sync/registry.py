"""All syncs, in the order in which a refresh runs them (base.py has the interface).

The set of topics comes first. Deny ACLs for a mirror's topics are made before ACLs are copied, by
`AclSync` itself. `ReadOnly` has a loop of its own: it needs no source, and must not wait for one.
"""

from typing import Any, Final

from twinlog.sync.acls import AclSync
from twinlog.sync.base import METADATA, Host, Sync
from twinlog.sync.compaction import Compaction
from twinlog.sync.configs import ConfigSync
from twinlog.sync.flow_acls import FlowAcls
from twinlog.sync.flow_records import Checkpoints
from twinlog.sync.flow_topics import FlowConfigs, FlowTopics
from twinlog.sync.group_offsets import GroupSync
from twinlog.sync.heartbeats import Heartbeats, SourceHeartbeats
from twinlog.sync.read_only import ReadOnly
from twinlog.sync.recreated_remotes import RecreatedRemotes
from twinlog.sync.source_positions import SourcePositions
from twinlog.sync.topics import DeletedTopics, NewTopics, TopicGrowth, TopicOrigins

REGISTRY: Final[tuple[type[Sync[Any]], ...]] = (
    DeletedTopics,
    TopicGrowth,
    TopicOrigins,
    NewTopics,
    RecreatedRemotes,
    FlowTopics,
    ConfigSync,
    FlowConfigs,
    Compaction,
    GroupSync,
    Checkpoints,
    SourcePositions,
    AclSync,
    FlowAcls,
    ReadOnly,
    Heartbeats,
    SourceHeartbeats,
)
METRICS: Final = tuple(dict.fromkeys((METADATA, *(sync.metric for sync in REGISTRY))))
"""The metrics that count failures, by mirror."""


def create_syncs(host: Host) -> tuple[Sync[Any], ...]:
    """One instance of each sync."""
    return tuple(host.sync(kind) for kind in REGISTRY)
