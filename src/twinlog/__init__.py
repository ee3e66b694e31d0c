"""twinlog: one Kafka log, in two clusters.

The public API is the names in `__all__` (docs/api.md). They are imported on first use, so that a
lane, or a layer that needs one module, does not load the control plane.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from twinlog.version import __version__

if TYPE_CHECKING:
    from twinlog.kafka.errors import Retriable, TwinlogError, UnsupportedVersion, UserError
    from twinlog.lifecycle.rebuild import Rebuild
    from twinlog.mirror.errors import MirrorError, MirrorRefused
    from twinlog.mirror.states import State
    from twinlog.operations.describe import (
        MirrorDescription,
        PartitionDescription,
        TopicDescription,
    )
    from twinlog.operations.mirror_admin import MirrorAdmin
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
    from twinlog.store.config_records import Wanted

__all__ = [
    "AlterMirrorResult",
    "ChangedTopics",
    "CreateMirrorResult",
    "DeleteMirrorResult",
    "DescribeMirrorsResult",
    "ListMirrorsResult",
    "MirrorAdmin",
    "MirrorDescription",
    "MirrorError",
    "MirrorListing",
    "MirrorRefused",
    "PartitionDescription",
    "Rebuild",
    "Retriable",
    "State",
    "TopicDescription",
    "TwinlogError",
    "UnsupportedVersion",
    "UserError",
    "Wanted",
    "__version__",
    "json_data",
]

_FOUND_IN: Final = {
    "AlterMirrorResult": "twinlog.operations.results",
    "ChangedTopics": "twinlog.operations.results",
    "CreateMirrorResult": "twinlog.operations.results",
    "DeleteMirrorResult": "twinlog.operations.results",
    "DescribeMirrorsResult": "twinlog.operations.results",
    "ListMirrorsResult": "twinlog.operations.results",
    "MirrorAdmin": "twinlog.operations.mirror_admin",
    "MirrorDescription": "twinlog.operations.describe",
    "MirrorError": "twinlog.mirror.errors",
    "MirrorListing": "twinlog.operations.results",
    "MirrorRefused": "twinlog.mirror.errors",
    "PartitionDescription": "twinlog.operations.describe",
    "Rebuild": "twinlog.lifecycle.rebuild",
    "Retriable": "twinlog.kafka.errors",
    "State": "twinlog.mirror.states",
    "TopicDescription": "twinlog.operations.describe",
    "TwinlogError": "twinlog.kafka.errors",
    "UnsupportedVersion": "twinlog.kafka.errors",
    "UserError": "twinlog.kafka.errors",
    "Wanted": "twinlog.store.config_records",
    "json_data": "twinlog.operations.serialise",
}


def __getattr__(name: str) -> Any:
    if name not in _FOUND_IN:
        raise AttributeError(f"module 'twinlog' has no attribute {name!r}")
    return getattr(import_module(_FOUND_IN[name]), name)
