"""Contexts in which tests run syncs by themselves (twinlog.sync.base)."""

from typing import Any

from twinlog.mirror.settings import MirrorSettings, parse_settings
from twinlog.store.config_records import ConfigRecord, Mirror, key_of
from twinlog.store.snapshot import Snapshot
from twinlog.sync.base import SyncContext


def snapshot_of(*records: ConfigRecord) -> Snapshot:
    """Return a snapshot that has these records."""
    return Snapshot({key_of(record): record for record in records})


def sync_context(
    source: Any,
    destination: Any,
    store: Any,
    name: str = "m",
    settings: MirrorSettings | None = None,
    **more: Any,
) -> SyncContext:
    """Return a context of a mirror; the topics to sync are also those that are the same."""
    mirror = Mirror(name=name, source={}, source_cluster_id="source")
    more.setdefault("snapshot", snapshot_of(mirror))
    for field, nothing in (("topics", ()), ("there", {}), ("here", {}), ("latest", Snapshot)):
        more.setdefault(field, nothing)
    more.setdefault("same", more["topics"])
    return SyncContext(
        source=source,
        destination=destination,
        store=store,
        name=name,
        settings=settings or parse_settings({}),
        **more,
    )
