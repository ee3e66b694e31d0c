"""Jars from Maven repositories, fetched once into the cache.

Apache Kafka's artifact `kafka_2.13` with its dependencies is a complete broker, so there is nothing
to unpack or install. If Maven is installed, it fetches the jars with the user's own settings
(mirrors, proxies, credentials); otherwise PySpark's Ivy does. Both verify the checksums.

    cache/jars/<coordinates>/*.jar     complete, never changed again
    cache/jars/<coordinates>.partial   a fetch in progress, or an aborted one
    cache/jars/.lock                   held during a fetch: neither tool's cache supports two

The rename from partial to complete is the commit.
"""

import fcntl
import importlib.util
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import quoteattr

from twinlog.folders import cache_folder
from twinlog.java import find_java
from twinlog.local.errors import LocalError
from twinlog.local.truststore import java_trust_flags

_COORDINATE = re.compile(r"([\w.-]+):([\w.-]+):([\w.-]+)(?::([\w.-]+))?", re.ASCII)
_FETCH_SECONDS = 900.0
_DEPENDENCY_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1"


class _Artifact(NamedTuple):
    """A jar to fetch; the classifier, mostly empty, names another jar of the same module."""

    group: str
    name: str
    version: str
    classifier: str = ""

    def __str__(self) -> str:
        return ":".join(part for part in self if part)


_IVY_NAME = "[artifact]-[revision](-[classifier]).[ext]"

LOGGING = "org.slf4j:slf4j-simple:1.7.36"
"""Kafka has no logging backend; this one writes to standard error, is configured by system
properties, and fits 3.9 and 4.x."""


def kafka_jars(version: str) -> Path:
    """Return the folder with the broker of that version."""
    return fetch(f"org.apache.kafka:kafka_2.13:{version}", LOGGING)


def tools_jars(version: str) -> Path:
    """Return the folder with the console tools of that version and their dependencies.

    Main classes moved between versions: `DumpLogSegments` is in the package `kafka.tools` in 3.9.1
    and in `org.apache.kafka.tools` in 4.3.1.
    """
    broker = f"org.apache.kafka:kafka_2.13:{version}"
    return fetch(broker, f"org.apache.kafka:kafka-tools:{version}", LOGGING)


def mirror_maker_jars(version: str) -> Path:
    """Return the folder with MirrorMaker 2 of that version."""
    return fetch(
        f"org.apache.kafka:connect-mirror:{version}",
        f"org.apache.kafka:connect-runtime:{version}",
        LOGGING,
    )


def tiered_storage_jars(version: str) -> list[Path]:
    """Return the jars with Kafka's LocalTieredStorage (from its tests): remote storage in a folder.

    They are `remote.log.storage.manager.class.path`. Their dependencies are in the broker's jars,
    and must not be repeated: the class loader of remote storage searches its own jars first.
    """
    tests = (
        f"org.apache.kafka:{name}:{version}:test" for name in ("kafka-clients", "kafka-storage")
    )
    return sorted(fetch(*tests).glob("*-test.jar"))


def fetch(*coordinates: str) -> Path:
    """Return the folder with the jars of `group:artifact:version`s and their dependencies.

    `group:artifact:version:classifier` is another jar of the same module.

    Raises:
        LocalError: a coordinate is malformed, or the artifacts cannot be fetched.
    """
    parsed = [_parse(coordinate) for coordinate in coordinates]
    jars = cache_folder() / "jars"
    complete = jars / "+".join(sorted(_folder_name(artifact) for artifact in parsed))
    if complete.is_dir():
        return complete
    with _lock(jars / ".lock"):
        if not complete.is_dir():
            _fetch_into(complete, parsed)
    return complete


def _parse(coordinate: str) -> _Artifact:
    match = _COORDINATE.fullmatch(coordinate)
    if match is None:
        raise LocalError(f"invalid artifact {coordinate!r}: expected group:artifact:version")
    return _Artifact(match[1], match[2], match[3], match[4] or "")


def _folder_name(artifact: _Artifact) -> str:
    name = f"{artifact.group}.{artifact.name}-{artifact.version}"
    return f"{name}-{artifact.classifier}" if artifact.classifier else name


def _fetch_into(complete: Path, parsed: Sequence[_Artifact]) -> None:
    partial = complete.with_name(complete.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    tool = _with_maven if shutil.which("mvn") else _with_ivy
    names = ", ".join(f"{artifact.name} {artifact.version}" for artifact in parsed)
    sys.stderr.write(f"fetching {names} into {complete.parent} (once)\n")
    try:
        tool(partial, parsed)
        if not any(partial.glob("*.jar")):
            raise LocalError(f"cannot fetch {names}: no jar was downloaded")
        partial.rename(complete)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _with_maven(target: Path, parsed: Sequence[_Artifact]) -> None:
    dependencies = "".join(
        f"<dependency><groupId>{artifact.group}</groupId><artifactId>{artifact.name}</artifactId>"
        f"<version>{artifact.version}</version><classifier>{artifact.classifier}</classifier></dependency>"
        for artifact in parsed
    )
    pom = target / "pom.xml"
    pom.write_text(
        "<project><modelVersion>4.0.0</modelVersion><groupId>twinlog</groupId>"
        "<artifactId>artifacts</artifactId><version>1</version><packaging>pom</packaging>"
        f"<dependencies>{dependencies}</dependencies></project>\n"
    )
    maven = ["mvn", "--batch-mode", "--quiet", "--file", str(pom)]
    goal = [f"{_DEPENDENCY_PLUGIN}:copy-dependencies", "-DincludeScope=runtime"]
    _run([*maven, *goal, f"-DoutputDirectory={target}"], parsed)
    pom.unlink()


def _with_ivy(target: Path, parsed: Sequence[_Artifact]) -> None:
    dependencies = "".join(
        f"<dependency org={quoteattr(jar.group)} name={quoteattr(jar.name)}"
        f' rev={quoteattr(jar.version)} conf="default->default">{_ivy_artifact(jar)}</dependency>'
        for jar in parsed
    )
    module = target / "ivy.xml"
    module.write_text(
        '<ivy-module version="2.0" xmlns:e="http://ant.apache.org/ivy/extra">'
        '<info organisation="twinlog" module="artifacts"/>'
        f"<dependencies>{dependencies}</dependencies></ivy-module>\n"
    )
    # Ivy reads ~/.m2 first, and fails at a pom without its jar in it. So it gets an empty home.
    home = cache_folder() / "ivy"
    ivy_jar, java = _ivy_jar(), find_java()
    home.mkdir(parents=True, exist_ok=True)
    trust = java_trust_flags(home) if java.bundled else []
    ivy = [str(java.executable), *trust, f"-Duser.home={home}", "-jar", str(ivy_jar)]
    options = ["-ivy", str(module), "-confs", "default", "-types", "jar", "bundle"]
    _run([*ivy, *options, "-retrieve", f"{target}/{_IVY_NAME}"], parsed)
    module.unlink()


def _ivy_artifact(jar: _Artifact) -> str:
    """The Ivy element for a jar with a classifier; empty for the module's usual jar."""
    if not jar.classifier:
        return ""
    classifier = quoteattr(jar.classifier)
    return f'<artifact name={quoteattr(jar.name)} type="jar" ext="jar" e:classifier={classifier}/>'


def _ivy_jar() -> Path:
    spec = importlib.util.find_spec("pyspark")
    folders = (spec.submodule_search_locations if spec else None) or []
    for folder in folders:
        for jar in Path(folder, "jars").glob("ivy-*.jar"):
            return jar
    raise LocalError("cannot fetch jars: neither Maven (mvn) nor PySpark's Ivy is installed")


def _run(command: list[str], parsed: Sequence[_Artifact]) -> None:
    names = ", ".join(map(str, parsed))
    try:
        process = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_FETCH_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LocalError(f"cannot fetch {names}: {error}") from error
    if process.returncode != 0:
        raise LocalError(f"cannot fetch {names}: {_cause(process.stdout)}")


def _cause(output: str) -> str:
    """Return the line of Maven's or Ivy's output that names the cause of a failure."""
    lines = [re.sub(r"\x1b\[[\d;]*m", "", line).strip() for line in output.splitlines()]
    for sign in ("access error", "[ERROR]", "not found", "FAILED", ""):
        for line in lines:
            if line and sign in line:
                return line.removeprefix("[ERROR] ").removesuffix(" -> [Help 1]")
    return "no output"


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
