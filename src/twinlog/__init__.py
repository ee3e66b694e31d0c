"""twinlog: one Kafka log, in two clusters.

The public API is the names in `__all__` (docs/api.md). They are imported on first use, so that a
lane, or a layer that needs one module, does not load the control plane.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from twinlog.version import __version__

if TYPE_CHECKING:
    from twinlog.interfaces.client.mirror_client import MirrorClient
    from twinlog.interfaces.client.remote_cluster_utils import RemoteClusterUtils
    from twinlog.kafka.errors import Retriable, TwinlogError, UnsupportedVersion, UserError
    from twinlog.kafka.groups.offsets import Committed
    from twinlog.kafka.types import TopicPartition
    from twinlog.lifecycle.flow_positions import GroupSide, ImportedPosition
    from twinlog.lifecycle.rebuild import Rebuild
    from twinlog.mirror.errors import MirrorError, MirrorRefused
    from twinlog.mirror.recorded_map import MapAnswer
    from twinlog.mirror.replication_policy import (
        DefaultReplicationPolicy,
        IdentityReplicationPolicy,
        ReplicationPolicy,
    )
    from twinlog.mirror.states import State
    from twinlog.operations.describe import (
        MirrorDescription,
        PartitionDescription,
        TopicDescription,
    )
    from twinlog.operations.flow_results import (
        CheckpointPlace,
        CreateFlowResult,
        DeleteFlowResult,
        DescribeFlowsResult,
        Direction,
        FlowDescription,
        GroupCheckpoints,
        ImportPositionsResult,
        ListFlowsResult,
        TranslatedOffset,
        TranslatedOffsets,
    )
    from twinlog.operations.flows import FlowAdmin
    from twinlog.operations.log_dump import SegmentDump
    from twinlog.operations.mirror_admin import MirrorAdmin
    from twinlog.operations.mirror_maker import FlowRequest, check_flow
    from twinlog.operations.readiness.reasons import Finding, Reason, Verdict
    from twinlog.operations.readiness.verdict import Readiness, TopicReadiness
    from twinlog.operations.results import (
        AlterMirrorResult,
        ChangedTopics,
        CreateMirrorResult,
        DeleteMirrorResult,
        DescribeMirrorsResult,
        ListMirrorsResult,
        MirrorListing,
    )
    from twinlog.operations.serialise import json_data
    from twinlog.operations.switchover.records import (
        Allowed,
        DenialsStay,
        ForgottenDenials,
        Producers,
        ProducersNotStopped,
        Progress,
        Step,
        SwitchedOver,
        SwitchoverFailed,
    )
    from twinlog.operations.verification_report import Verification
    from twinlog.store.config_records import Wanted

__all__ = [
    "Allowed",
    "AlterMirrorResult",
    "ChangedTopics",
    "CheckpointPlace",
    "Committed",
    "CreateFlowResult",
    "CreateMirrorResult",
    "DefaultReplicationPolicy",
    "DeleteFlowResult",
    "DeleteMirrorResult",
    "DenialsStay",
    "DescribeFlowsResult",
    "DescribeMirrorsResult",
    "Direction",
    "Finding",
    "FlowAdmin",
    "FlowDescription",
    "FlowRequest",
    "ForgottenDenials",
    "GroupCheckpoints",
    "GroupSide",
    "IdentityReplicationPolicy",
    "ImportPositionsResult",
    "ImportedPosition",
    "ListFlowsResult",
    "ListMirrorsResult",
    "MapAnswer",
    "MirrorAdmin",
    "MirrorClient",
    "MirrorDescription",
    "MirrorError",
    "MirrorListing",
    "MirrorRefused",
    "PartitionDescription",
    "Producers",
    "ProducersNotStopped",
    "Progress",
    "Readiness",
    "Reason",
    "Rebuild",
    "RemoteClusterUtils",
    "ReplicationPolicy",
    "Retriable",
    "SegmentDump",
    "State",
    "Step",
    "SwitchedOver",
    "SwitchoverFailed",
    "TopicDescription",
    "TopicPartition",
    "TopicReadiness",
    "TranslatedOffset",
    "TranslatedOffsets",
    "TwinlogError",
    "UnsupportedVersion",
    "UserError",
    "Verdict",
    "Verification",
    "Wanted",
    "__version__",
    "check_flow",
    "json_data",
]

_FOUND_IN: Final = {
    "Allowed": "twinlog.operations.switchover.records",
    "AlterMirrorResult": "twinlog.operations.results",
    "MapAnswer": "twinlog.mirror.recorded_map",
    "ChangedTopics": "twinlog.operations.results",
    "CheckpointPlace": "twinlog.operations.flow_results",
    "Committed": "twinlog.kafka.groups.offsets",
    "CreateFlowResult": "twinlog.operations.flow_results",
    "CreateMirrorResult": "twinlog.operations.results",
    "DefaultReplicationPolicy": "twinlog.mirror.replication_policy",
    "DeleteFlowResult": "twinlog.operations.flow_results",
    "DeleteMirrorResult": "twinlog.operations.results",
    "DenialsStay": "twinlog.operations.switchover.records",
    "DescribeFlowsResult": "twinlog.operations.flow_results",
    "DescribeMirrorsResult": "twinlog.operations.results",
    "Direction": "twinlog.operations.flow_results",
    "Finding": "twinlog.operations.readiness.reasons",
    "FlowAdmin": "twinlog.operations.flows",
    "FlowDescription": "twinlog.operations.flow_results",
    "FlowRequest": "twinlog.operations.mirror_maker",
    "ForgottenDenials": "twinlog.operations.switchover.records",
    "GroupCheckpoints": "twinlog.operations.flow_results",
    "GroupSide": "twinlog.lifecycle.flow_positions",
    "IdentityReplicationPolicy": "twinlog.mirror.replication_policy",
    "ImportPositionsResult": "twinlog.operations.flow_results",
    "ImportedPosition": "twinlog.lifecycle.flow_positions",
    "ListFlowsResult": "twinlog.operations.flow_results",
    "ListMirrorsResult": "twinlog.operations.results",
    "MirrorAdmin": "twinlog.operations.mirror_admin",
    "MirrorClient": "twinlog.interfaces.client.mirror_client",
    "MirrorDescription": "twinlog.operations.describe",
    "MirrorError": "twinlog.mirror.errors",
    "MirrorListing": "twinlog.operations.results",
    "MirrorRefused": "twinlog.mirror.errors",
    "PartitionDescription": "twinlog.operations.describe",
    "Producers": "twinlog.operations.switchover.records",
    "ProducersNotStopped": "twinlog.operations.switchover.records",
    "Progress": "twinlog.operations.switchover.records",
    "Readiness": "twinlog.operations.readiness.verdict",
    "Reason": "twinlog.operations.readiness.reasons",
    "Rebuild": "twinlog.lifecycle.rebuild",
    "RemoteClusterUtils": "twinlog.interfaces.client.remote_cluster_utils",
    "ReplicationPolicy": "twinlog.mirror.replication_policy",
    "Retriable": "twinlog.kafka.errors",
    "SegmentDump": "twinlog.operations.log_dump",
    "State": "twinlog.mirror.states",
    "Step": "twinlog.operations.switchover.records",
    "SwitchedOver": "twinlog.operations.switchover.records",
    "SwitchoverFailed": "twinlog.operations.switchover.records",
    "TopicDescription": "twinlog.operations.describe",
    "TopicPartition": "twinlog.kafka.types",
    "TopicReadiness": "twinlog.operations.readiness.verdict",
    "TranslatedOffset": "twinlog.operations.flow_results",
    "TranslatedOffsets": "twinlog.operations.flow_results",
    "TwinlogError": "twinlog.kafka.errors",
    "UnsupportedVersion": "twinlog.kafka.errors",
    "UserError": "twinlog.kafka.errors",
    "Verdict": "twinlog.operations.readiness.reasons",
    "Verification": "twinlog.operations.verification_report",
    "Wanted": "twinlog.store.config_records",
    "check_flow": "twinlog.operations.mirror_maker",
    "json_data": "twinlog.operations.serialise",
}


def __getattr__(name: str) -> Any:
    if name not in _FOUND_IN:
        raise AttributeError(f"module 'twinlog' has no attribute {name!r}")
    return getattr(import_module(_FOUND_IN[name]), name)
