"""The folders for twinlog's own files on a machine.

There are two, as in the XDG base directory specification: a cache, which may be deleted at any time
and is filled again, and a state folder, which records what runs on this machine. Each has its own
environment variable, so that tests and shared machines can move it.
"""

import os
from pathlib import Path


def cache_folder() -> Path:
    """The folder of fetched artifacts: `$TWINLOG_CACHE`, else `twinlog` in the user's cache."""
    return _folder("TWINLOG_CACHE", "XDG_CACHE_HOME", ".cache")


def state_folder() -> Path:
    """The folder of running clusters: `$TWINLOG_STATE`, else `twinlog` in the user's state."""
    return _folder("TWINLOG_STATE", "XDG_STATE_HOME", ".local/state")


def _folder(variable: str, base: str, default: str) -> Path:
    if folder := os.environ.get(variable):
        return Path(folder).absolute()
    base_folder = os.environ.get(base)
    return (Path(base_folder) if base_folder else Path.home() / default).absolute() / "twinlog"
