"""Class data sharing: a JVM that starts again loads its classes from one file.

Spark and brokers spend most of their start on loading and verifying thousands of classes. The JVM
can store them in an archive that later starts map into memory (JEP 350). One run creates it, the
training run; every later start takes about half the time and half the CPU
(docs/decisions/0003-java.md has the figures).

    cache/archives/<program>-java-<feature>-<key>.jsa   complete; empty if this Java cannot

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

Train = Callable[[tuple[str, ...]], None]
"""Runs the program once with the given JVM flags, and ends it cleanly."""


def archive_of(program: str, jars: str) -> Path:
    """Return the path of a program's archive for this machine's Java; it need not exist.

    Args:
        program: the first part of its name.
        jars: what tells the program's jars apart from others.

    Raises:
        JavaError: there is no Java.
    """
    java = find_java()
    key = hashlib.sha256(f"{java.home}\n{jars}".encode()).hexdigest()[:12]
    return cache_folder() / "archives" / f"{program}-java-{java.version}-{key}.jsa"


def archive_flags(archive: Path) -> tuple[str, ...]:
    """Return the JVM flags for a start from an archive; none where there is no archive."""
    if not archive.exists() or archive.stat().st_size == 0:
        return ()
    return f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", "-Xlog:disable"


def make_archive(archive: Path, title: str, train: Train, *, newer_than: float = 0.0) -> None:
    """Create an archive by a training run, unless there is one.

    Args:
        archive: its path, from `archive_of`.
        title: what the message calls the program.
        train: the training run.
        newer_than: an archive that was written before is replaced (seconds since the epoch).
    """
    if _exists(archive, newer_than):
        return
    archive.parent.mkdir(parents=True, exist_ok=True)
    with (archive.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _exists(archive, newer_than):
            _make(archive, title, train)


def _exists(archive: Path, newer_than: float) -> bool:
    return archive.exists() and archive.stat().st_mtime > newer_than


def _make(archive: Path, title: str, train: Train) -> None:
    sys.stderr.write(f"preparing class data archives for quick starts of {title} (once)\n")
    folder = Path(tempfile.mkdtemp(dir=archive.parent))
    partial = folder / archive.name
    try:
        train((f"-XX:ArchiveClassesAtExit={partial}", "-Xlog:disable"))
        partial.touch()
        partial.replace(archive)
    finally:
        shutil.rmtree(folder)
