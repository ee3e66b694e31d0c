"""Clusters that live on after the command that started them, by name.

    state/clusters/NAME/        the cluster's directory (cluster.py)
                   .NAME.lock   held by a command that works on it

The directory is the only record: no second list could differ from it. A name is in use while its
directory exists, even if no node runs any more, since the data may still be of interest; `down`
removes both. Only the remains of an incomplete start (there is no cluster.json) are removed by the
next start.
"""

import fcntl
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from twinlog.folders import state_folder
from twinlog.local.cluster import STATE_FILE, LocalCluster
from twinlog.local.errors import LocalError


def up(
    name: str,
    brokers: int,
    version: str,
    *,
    config: Mapping[str, str],
    heap: str,
    listeners: Mapping[str, str],
) -> LocalCluster:
    """Start a cluster under a name that is not in use.

    Raises:
        LocalError, JavaError: the name is in use, or the cluster does not start.
    """
    with _lock(name):
        cluster = LocalCluster.start(
            brokers,
            version,
            config=config,
            heap=heap,
            directory=_free(name),
            listeners=listeners,
        )
        cluster.release()
        return cluster


def reserve(name: str) -> Path:
    """Return the directory for a cluster of this name, which the caller starts.

    Raises:
        LocalError: the name is in use.
    """
    with _lock(name):
        return _free(name)


def _free(name: str) -> Path:
    directory = _directory(name)
    if (directory / STATE_FILE).exists():
        raise LocalError(_in_use(name, directory))
    shutil.rmtree(directory, ignore_errors=True)
    return directory


def names() -> list[str]:
    """Return the names in use."""
    return sorted(path.name for path in _folder().glob("*") if path.is_dir())


def find(name: str) -> LocalCluster:
    """Return a cluster by its name.

    Raises:
        LocalError: there is none, or its start was not completed.
    """
    directory = _directory(name)
    if not directory.is_dir():
        raise LocalError(
            f"no cluster {name!r} on this machine; clusters: {', '.join(names()) or 'none'}"
        )
    return LocalCluster.open(directory)


def kill(name: str, node_id: int) -> None:
    """Kill a node of a cluster."""
    with _lock(name):
        find(name).kill(node_id)


def start(name: str, node_id: int) -> LocalCluster:
    """Restart an ended node of a cluster."""
    with _lock(name):
        cluster = find(name)
        try:
            cluster.start_broker(node_id)
        except BaseException:
            cluster.abandon()
            raise
        cluster.release()
        return cluster


def down(name: str) -> None:
    """Kill a cluster, if it runs, and remove its files."""
    directory = _directory(name)
    with _lock(name):
        if not directory.is_dir():
            find(name)
        if (directory / STATE_FILE).exists():
            find(name).stop()
        shutil.rmtree(directory)


def _in_use(name: str, directory: Path) -> str:
    if LocalCluster.open(directory).living:
        return f"cluster {name!r} is already running; twinlog cluster down {name} ends it"
    return (
        f"cluster {name!r} exists, but none of its nodes is running: twinlog cluster start {name} "
        f"NODE starts one, twinlog cluster down {name} removes the cluster"
    )


def _folder() -> Path:
    return state_folder() / "clusters"


def _directory(name: str) -> Path:
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", name) is None:
        raise LocalError(f"invalid cluster name {name!r}: expected letters, digits and - _ .")
    return _folder() / name


@contextmanager
def _lock(name: str) -> Iterator[None]:
    path = _directory(name).with_name(f".{name}.lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise LocalError(f"cluster {name!r} is in use by another command") from error
        yield
