"""Twin of twinlog.runtime.class_archive: what Spark's JVM makes of its archive."""

import subprocess
import sys
from pathlib import Path

import pytest

from twinlog.runtime import class_archive
from twinlog.runtime.session import class_archive as archive_path

pytestmark = pytest.mark.spark

_STARTED = """
from pathlib import Path
from twinlog.runtime.session import map_tasks, start_spark, stop_spark

spark = start_spark("local[1]", CONF)
print(map_tasks(spark, str, [7]))
files = Path(f"/proc/{spark._gateway.proc.pid}/maps").read_text()
print([line.split()[-1] for line in files.splitlines() if ".jsa" in line])
stop_spark(spark)
"""


@pytest.fixture(scope="module")
def archive() -> Path:
    """The archive, which `make setup` has created before."""
    assert class_archive.main() == 0
    if archive_path().stat().st_size == 0:
        pytest.skip("this Java cannot write an archive")
    return archive_path()


def started(conf: dict[str, str]) -> list[str]:
    """Start Spark in another process: what a task returns, and the archives that the JVM maps."""
    return subprocess.run(
        [sys.executable, "-c", _STARTED.replace("CONF", repr(conf))],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=500,
        check=True,
    ).stdout.splitlines()


def test_spark_starts_from_its_archive(archive: Path) -> None:
    """Goal: the JVM has accepted the archive; one that does not fit it would ignore."""
    result, mapped = started({})
    assert result == "['7']"
    assert str(archive) in mapped


def test_an_archive_of_other_jars_is_ignored(archive: Path, tmp_path: Path) -> None:
    """Goal: with more jars before its own, Spark starts, and says nothing."""
    result, mapped = started({"spark.driver.extraClassPath": str(tmp_path)})
    assert result == "['7']"
    assert str(archive) not in mapped
