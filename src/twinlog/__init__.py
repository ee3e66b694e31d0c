"""twinlog: one Kafka log, in two clusters.

The public API is what stands in `__all__` (docs/api.md). It is imported when it is first asked for,
so that a lane, or a layer that wants a module of its own, does not load the control plane.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from twinlog.version import __version__

if TYPE_CHECKING:
    from twinlog.control.described import (
        MirrorDescription,
        PartitionDescription,
        TopicDescription,
    )
    from twinlog.control.mirror_admin import (
        CreateMirrorResult,
        DeleteMirrorResult,
        DescribeMirrorsResult,
        ListMirrorsResult,
        MirrorAdmin,
        MirrorListing,
    )
    from twinlog.control.mirror_errors import MirrorError, MirrorRefused
    from twinlog.control.rebuild import Rebuild
    from twinlog.core.errors import Retriable, TwinlogError, UnsupportedVersion, UserError
    from twinlog.core.states import State
    from twinlog.wire.config_records import Wanted

__all__ = [
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
]

_FOUND_IN: Final = {
    "CreateMirrorResult": "twinlog.control.mirror_admin",
    "DeleteMirrorResult": "twinlog.control.mirror_admin",
    "DescribeMirrorsResult": "twinlog.control.mirror_admin",
    "ListMirrorsResult": "twinlog.control.mirror_admin",
    "MirrorAdmin": "twinlog.control.mirror_admin",
    "MirrorDescription": "twinlog.control.described",
    "MirrorError": "twinlog.control.mirror_errors",
    "MirrorListing": "twinlog.control.mirror_admin",
    "MirrorRefused": "twinlog.control.mirror_errors",
    "PartitionDescription": "twinlog.control.described",
    "Rebuild": "twinlog.control.rebuild",
    "Retriable": "twinlog.core.errors",
    "State": "twinlog.core.states",
    "TopicDescription": "twinlog.control.described",
    "TwinlogError": "twinlog.core.errors",
    "UnsupportedVersion": "twinlog.core.errors",
    "UserError": "twinlog.core.errors",
    "Wanted": "twinlog.wire.config_records",
}


def __getattr__(name: str) -> Any:
    if name not in _FOUND_IN:
        raise AttributeError(f"module 'twinlog' has no attribute {name!r}")
    return getattr(import_module(_FOUND_IN[name]), name)
