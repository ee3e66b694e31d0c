"""Twin of twinlog.java: which Java is taken, and what is said when there is none."""

import subprocess
from pathlib import Path

import pytest

from twinlog import java
from twinlog.java import JavaError, find_java


def _fake(folder: Path, version: str, *, runs: bool = True) -> Path:
    """Write a Java that only answers what it is; gives its home."""
    home = folder / f"java-{version}"
    (home / "bin").mkdir(parents=True)
    executable = home / "bin" / "java"
    executable.write_text(
        f"#!/bin/sh\necho '    java.home = {home}' >&2\n"
        f"echo '    java.specification.version = {version}' >&2\nexit {0 if runs else 1}\n"
    )
    executable.chmod(0o755)
    return home


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide the machine's own Java."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setattr(java, "_BUNDLED", "no_such_package")


def test_java_home_precedes_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A Java in JAVA_HOME is taken before one on the PATH."""
    monkeypatch.setenv("JAVA_HOME", str(_fake(tmp_path, "17")))
    monkeypatch.setenv("PATH", str(_fake(tmp_path, "21") / "bin"))
    assert find_java().version == 17


def test_an_old_java_home_is_skipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where the one in JAVA_HOME is too old, the one on the PATH does."""
    monkeypatch.setenv("JAVA_HOME", str(_fake(tmp_path, "1.8")))
    monkeypatch.setenv("PATH", str(newer := _fake(tmp_path, "21") / "bin"))
    found = find_java()
    assert found.version == 21
    assert found.executable == newer / "java"


def test_error_without_a_recent_java_names_each_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The error names each Java that was found, and its version."""
    monkeypatch.setenv("JAVA_HOME", str(_fake(tmp_path, "1.8")))
    monkeypatch.setenv("PATH", str(_fake(tmp_path, "11") / "bin"))
    with pytest.raises(JavaError, match=r"JAVA_HOME\) is Java 8; .*PATH\) is Java 11; install"):
        find_java()


def test_error_for_a_java_that_does_not_run_names_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A Java that fails (macOS has such a placeholder) is named, not a traceback."""
    monkeypatch.setenv("PATH", str(_fake(tmp_path, "21", runs=False) / "bin"))
    with pytest.raises(JavaError, match=r"does not run"):
        find_java()


def test_error_without_java_names_the_places_searched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The error says where was looked."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaError, match="none is in JAVA_HOME or on the PATH"):
        find_java()


def test_the_shim_removes_only_the_module_argument(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Spark's module argument goes, all others reach the Java behind it unchanged."""
    behind = tmp_path / "be hind"
    behind.write_text('#!/bin/sh\nfor a; do echo "<$a>"; done\n')
    behind.chmod(0o755)
    monkeypatch.setenv("TWINLOG_CACHE", str(tmp_path / "cache"))
    shim = java.write_shim(behind)
    assert shim == java.write_shim(behind)
    told = subprocess.run(
        ["/bin/sh", shim, "-a b", "--add-modules=jdk.incubator.vector", "", "--x=*"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert told == "<-a b>\n<>\n<--x=*>\n"
