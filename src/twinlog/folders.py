"""Where twinlog keeps files of its own on a machine.

Two folders, as the XDG base directory specification has them: a cache, which may be deleted at any
time and is filled again, and a state folder, which says what runs on this machine. Each has its
own environment variable, so that tests and shared machines can move it.
"""

import os
from pathlib import Path


def cache_folder() -> Path:
    """Where fetched artifacts lie: `$TWINLOG_CACHE`, else `twinlog` in the user's cache folder."""
    return _folder("TWINLOG_CACHE", "XDG_CACHE_HOME", ".cache")


def state_folder() -> Path:
    """Where running clusters are noted: `$TWINLOG_STATE`, else `twinlog` in the user's state."""
    return _folder("TWINLOG_STATE", "XDG_STATE_HOME", ".local/state")


def _folder(own: str, base: str, default: str) -> Path:
    if chosen := os.environ.get(own):
        return Path(chosen).absolute()
    shared = os.environ.get(base)
    return (Path(shared) if shared else Path.home() / default).absolute() / "twinlog"
