"""Create the class archive of Spark's driver, so that its JVM starts quicker: once on each machine.

    python -m twinlog.runtime.class_archive

Nodes and flows use the archive where it exists (session.py). They do not create it, as that takes
more than the first start would gain.
"""

import os
import subprocess
import sys
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from twinlog.class_archives import make_archive
from twinlog.java import JavaError
from twinlog.kafka.errors import TwinlogError
from twinlog.runtime.session import class_archive, map_tasks, spark_jars, start_spark, stop_spark

_END_S = 600.0
"""How long the JVM may take to write the archive: 10 s where nothing else runs."""
_QUERY = """
SELECT upper(CAST(value AS STRING)) AS name, count(*) AS records, sum(parsed.price) AS price
FROM (SELECT value, from_json(CAST(value AS STRING), 'price DECIMAL(9,2)') AS parsed FROM records)
WHERE length(value) > 0 GROUP BY 1 ORDER BY 1
"""
"""What flows ask of SQL: texts, JSON, numbers, groups."""


class _Failed(Exception):
    """The JVM has written no archive, or perhaps not the whole one."""


def main() -> int:
    """Create the archive, unless there is one; the exit status is 1 if Spark cannot start."""
    try:
        archive = class_archive()
        make_archive(archive, "Spark", _train, newer_than=spark_jars().stat().st_mtime)
    except (
        JavaError,
        TwinlogError,
        Py4JError,
        PySparkException,
        OSError,
        subprocess.SubprocessError,
        _Failed,
    ) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{archive}\n")
    return 0


def _train(flags: tuple[str, ...]) -> None:
    """Run a job in Python and a query, and wait until the JVM has written the archive."""
    # The JVM writes no archive if a folder with files is in its class path.
    os.environ.pop("SPARK_CONF_DIR", None)
    spark = start_spark("local[1]", {"spark.log.level": "OFF"}, jvm_flags=flags)
    try:
        map_tasks(spark, str, [0])
        session = SparkSession(spark)
        rows = [(b'{"price":1.5}',), (b"",)]
        session.createDataFrame(rows, "value BINARY").createOrReplaceTempView("records")
        session.sql(_QUERY).collect()
    finally:
        gateway: Any = spark._gateway  # noqa: SLF001 - no public way
        stop_spark(spark)
        gateway.proc.stdin.close()  # the end of its input ends the JVM
    if status := gateway.proc.wait(_END_S):
        raise _Failed(f"the JVM has ended with status {status}")


if __name__ == "__main__":
    sys.exit(main())
