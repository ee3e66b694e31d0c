"""Twin of twinlog.local.named: names, stale records, two commands at once. No broker is started."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from twinlog.local import named
from twinlog.local.cluster import LocalCluster
from twinlog.local.errors import LocalError
from twinlog.local.identity import identity_of


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use a state folder for this test alone."""
    monkeypatch.setenv("TWINLOG_STATE", str(tmp_path))
    monkeypatch.setattr(LocalCluster, "start", _no_start)
    return tmp_path / "clusters"


def _no_start(*_: object, **__: object) -> LocalCluster:
    raise LocalError("a start was tried")


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that has nothing to do with any cluster."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def _record(state: Path, name: str, pid: int, started: str) -> Path:
    """Write the record of a cluster of one node, as another command left it."""
    directory = state / name
    node = {"node_id": 1, "port": 20001, "controller_port": 20002}
    content = {
        "cluster_id": "x",
        "settings": {"version": "4.3.1", "heap": "512m", "config": {}, "jvm_flags": []},
        "nodes": [{**node, "directory": str(directory / "node-1")}],
        "processes": {"1": {"pid": pid, "started": started}},
    }
    directory.mkdir(parents=True)
    (directory / "cluster.json").write_text(json.dumps(content))
    return directory


def _up(name: str) -> LocalCluster:
    return named.up(name, 1, "4.3.1", config={}, heap="512m", listeners={})


def test_down_does_not_kill_a_process_with_a_recycled_pid(
    state: Path, bystander: subprocess.Popen[bytes]
) -> None:
    """A record whose pid belongs to another process now is removed, and nothing is killed."""
    directory = _record(state, "old", bystander.pid, "1")
    assert named.find("old").living == ()
    named.down("old")
    assert not directory.exists()
    assert bystander.poll() is None


def test_down_ends_the_recorded_process(state: Path, bystander: subprocess.Popen[bytes]) -> None:
    """The recorded process itself is ended."""
    identity = identity_of(bystander.pid)
    assert identity is not None
    _record(state, "it", identity.pid, identity.started)
    assert named.find("it").living == (1,)
    named.down("it")
    assert bystander.wait(30) != 0
    assert named.names() == []


def test_error_for_a_running_name_gives_the_down_command(state: Path) -> None:
    """The error tells how to end the cluster of that name."""
    identity = identity_of(os.getpid())
    assert identity is not None
    directory = _record(state, "it", identity.pid, identity.started)
    with pytest.raises(LocalError, match=r"'it' is already running; twinlog cluster down it"):
        _up("it")
    shutil.rmtree(directory)


def test_the_name_of_a_dead_cluster_stays_in_use(state: Path) -> None:
    """Its data may be wanted: the error tells how to start or remove it."""
    _record(state, "it", os.getpid(), "1")
    with pytest.raises(LocalError, match="none of its nodes is running"):
        _up("it")
    with pytest.raises(LocalError, match="node 1 is not running"):
        named.kill("it", 1)
    with pytest.raises(LocalError, match="no node 2"):
        named.kill("it", 2)


def test_leftovers_of_an_interrupted_start_do_not_block_a_start(state: Path) -> None:
    """Without a record there is nothing to keep: the next start tries, and down removes it."""
    (state / "half" / "node-1").mkdir(parents=True)
    with pytest.raises(LocalError, match="a start was tried"):
        _up("half")
    (state / "half").mkdir()
    named.down("half")
    assert named.names() == []


def test_an_unreadable_record_is_named_with_its_path(state: Path) -> None:
    """An invalid record is named with its path."""
    _record(state, "it", 1, "1").joinpath("cluster.json").write_text("{")
    with pytest.raises(LocalError, match=r"no cluster in .*it:"):
        named.find("it")


def test_error_for_an_unknown_cluster_lists_existing_clusters(state: Path) -> None:
    """The error lists the existing clusters."""
    _record(state, "it", 1, "1")
    for command in (named.find, named.down, lambda name: named.kill(name, 1)):
        with pytest.raises(LocalError, match="no cluster 'other' on this machine; clusters: it"):
            command("other")


def test_a_concurrent_command_is_refused(state: Path) -> None:
    """The second one fails at once, and changes nothing."""
    _record(state, "it", 1, "1")
    with named._lock("it"), pytest.raises(LocalError, match="is in use by another command"):
        named.down("it")
    named.down("it")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/a", "-a", ".a", "a b", "a\n", "x" * 65])
def test_names_that_leave_the_state_folder_are_refused(name: str) -> None:
    """No name leaves the state folder."""
    with pytest.raises(LocalError, match="invalid cluster name"):
        named.find(name)
