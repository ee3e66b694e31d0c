"""Class data sharing: Kafka's classes are loaded ahead of time.

A starting broker spends most of its time on loading and verifying some 8000 classes. The JVM can
store them in a file that later starts map into memory (class data sharing, JEP 350). One broker of
each version runs once to create that file; every later start takes about half the time and half the
CPU (docs/decisions/0003-java.md has the figures).

    cache/archives/kafka-<version>-java-<feature>-<key>.jsa   complete; empty if this Java cannot

The JVM checks that an archive fits its own build and the jars, and otherwise ignores it.
"""

import fcntl
import hashlib
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from twinlog.folders import cache_folder
from twinlog.java import find_java
from twinlog.local.artifacts import kafka_jars

Train = Callable[[tuple[str, ...]], None]
"""Runs one broker with the given JVM flags and shuts it down cleanly."""


def archive_flags(version: str, train: Train) -> tuple[str, ...]:
    """Return the JVM flags for a quick start of that version, after a training run if needed."""
    archive = _path(version)
    if not archive.exists():
        archive.parent.mkdir(parents=True, exist_ok=True)
        with (archive.parent / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not archive.exists():
                _make(archive, version, train)
    if archive.stat().st_size == 0:
        return ()
    return f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", "-Xlog:disable"


def _make(archive: Path, version: str, train: Train) -> None:
    sys.stderr.write(f"preparing class data archives for quick starts of Kafka {version} (once)\n")
    folder = Path(tempfile.mkdtemp(dir=archive.parent))
    partial = folder / archive.name
    try:
        train((f"-XX:ArchiveClassesAtExit={partial}", "-Xlog:disable"))
        partial.touch()
        partial.rename(archive)
    finally:
        shutil.rmtree(folder)


def _path(version: str) -> Path:
    java = find_java()
    key = hashlib.sha256(f"{java.home}\n{kafka_jars(version)}".encode()).hexdigest()[:12]
    return cache_folder() / "archives" / f"kafka-{version}-java-{java.version}-{key}.jsa"
