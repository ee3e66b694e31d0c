"""Twin of twinlog.local.artifacts: fetched once, whole or not at all; a failure is one line."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from twinlog.local import artifacts
from twinlog.local.artifacts import fetch
from twinlog.local.errors import LocalError

_MAVEN = """\
#!/bin/sh
echo run >>{log}
for a do case "$a" in -DoutputDirectory=*) target=${{a#-DoutputDirectory=}};; esac; done
{body}
"""


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a Maven on the PATH that writes one jar; return the file that counts its runs."""
    monkeypatch.setenv("TWINLOG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return _maven(tmp_path, 'sleep 0.2; echo jar >"$target/a-1.jar"')


def _maven(folder: Path, body: str) -> Path:
    log = folder / "runs"
    log.touch()
    executable = folder / "mvn"
    executable.write_text(_MAVEN.format(log=log, body=body))
    executable.chmod(0o755)
    return log


def _count(runs: Path) -> int:
    return len(runs.read_text().splitlines())


def test_artifacts_are_fetched_once(runs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The second call uses the first one's folder, and prints nothing."""
    first = fetch("g:a:1")
    assert [jar.name for jar in first.iterdir()] == ["a-1.jar"]
    assert "fetching a 1" in capfd.readouterr().err
    assert fetch("g:a:1") == first
    assert capfd.readouterr().err == ""
    assert _count(runs) == 1


def test_jars_with_a_classifier_are_fetched_separately(runs: Path) -> None:
    """A jar with a classifier has a folder of its own, and its name in the message."""
    assert fetch("g:a:1:test") != fetch("g:a:1")
    assert _count(runs) == 2
    with pytest.raises(LocalError, match="invalid artifact"):
        fetch("g:a:1:test:more")


def test_the_order_of_artifacts_does_not_matter(runs: Path) -> None:
    """The same set of artifacts is one folder."""
    assert fetch("g:a:1", "g:b:1") == fetch("g:b:1", "g:a:1")
    assert _count(runs) == 1


def test_a_second_process_waits_for_the_fetch_of_the_first(runs: Path) -> None:
    """The second process waits for the first, and uses its jars."""
    code = "from twinlog.local.artifacts import fetch; print(fetch('g:a:1'))"
    both = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(2)
    ]
    told = {process.communicate()[0] for process in both}
    assert len(told) == 1
    assert Path(told.pop().decode().strip(), "a-1.jar").exists()
    assert _count(runs) == 1


def test_a_failed_fetch_leaves_no_files(runs: Path, tmp_path: Path) -> None:
    """Maven's own cause becomes the one line, and the next call tries again."""
    _maven(tmp_path, "echo '[INFO] x'; echo '[ERROR] Could not find g:a:1 -> [Help 1]'; exit 1")
    with pytest.raises(LocalError) as caught:
        fetch("g:a:1")
    assert str(caught.value) == "cannot fetch g:a:1: Could not find g:a:1"
    _maven(tmp_path, 'echo jar >"$target/a-1.jar"')
    assert (fetch("g:a:1") / "a-1.jar").exists()
    assert _count(runs) == 2


def test_leftovers_of_a_killed_fetch_are_not_used(runs: Path, tmp_path: Path) -> None:
    """A half-filled folder is removed."""
    partial = tmp_path / "cache" / "jars" / "g.a-1.partial"
    partial.mkdir(parents=True)
    (partial / "half.jar").touch()
    assert [jar.name for jar in fetch("g:a:1").iterdir()] == ["a-1.jar"]
    assert _count(runs) == 1


@pytest.mark.parametrize("wrong", ["g:a", "g:a:1:x:y", "g:a:1/../2", "g:a:<b>", "", "g:a:1\n"])
def test_malformed_coordinates_are_refused(wrong: str) -> None:
    """Only a coordinate reaches a file name or a pom."""
    with pytest.raises(LocalError, match="group:artifact:version"):
        fetch(wrong)


def test_error_without_maven_and_ivy_names_both(
    runs: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The error names the programs to install."""
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(LocalError, match="Maven"):
        fetch("g:a:1")
    assert _count(runs) == 0
    assert not list((tmp_path / "cache" / "jars").glob("*.partial"))


def test_the_cause_is_extracted_from_the_output_of_ivy() -> None:
    """Ivy prints pages; a refused connection explains more than the missing module."""
    output = "\t\tmodule not found: g#a;1\n\tServer access error at url x (handshake)\n"
    assert artifacts._cause(output) == "Server access error at url x (handshake)"
    assert artifacts._cause("\t\tmodule not found: g#a;1\n") == "module not found: g#a;1"
    assert artifacts._cause("") == "no output"
