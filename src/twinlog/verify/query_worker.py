"""The process that compares flows with queries and functions: a Spark of its own, with one slot.

    twinlog verify --stdin: tasks--> this process --stdout: answers-->

Tasks have secrets, so they are in no command line. What Spark or a function prints goes to standard
error. Records that are expected are written to a folder that ends with the process.
"""

import asyncio
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from twinlog.kafka.errors import Retriable, TwinlogError
from twinlog.runtime.session import start_spark
from twinlog.verify.flow_task import FlowCompared
from twinlog.verify.job import checked_clusters, client_configs
from twinlog.verify.query_frames import QueryFrames
from twinlog.verify.query_job import QueryAnswer, QueryTask, compare_query
from twinlog.verify.query_plan import NotDecidable

CONF: Final = {
    "spark.app.name": "twinlog verify",
    "spark.driver.extraJavaOptions": "-XX:+ExitOnOutOfMemoryError",  # else its job never ends
    "spark.log.level": "OFF",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.shuffle.partitions": "1",
}
"""As queries of flows are documented: a cast that is not possible is an error. Logs of Spark would
have contents of records."""
_LOGGERS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""They print failed queries, with values."""
_NO_QUERY_HINT: Final = "compare them with a program of your own; docs/operations/verifying.md"
_AGAIN_HINT: Final = "see standard error for what Spark has printed, and start the command again"
_MODULE: Final = "twinlog.verify.query_worker"


def run_queries(tasks: Sequence[QueryTask]) -> Sequence[QueryAnswer]:
    """Compare flows in a process of their own; it takes about 10 s to start.

    Raises:
        Retriable: the process has ended.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(  # noqa: S603 - this package's own module
        [sys.executable, "-m", _MODULE],
        input=pickle.dumps(tasks),
        stdout=subprocess.PIPE,
        env=environment,
        check=False,
    )
    if done.returncode != 0:
        raise Retriable(
            f"the process that runs Spark has ended ({done.returncode})",
            hint=_AGAIN_HINT,
        )
    answers: Sequence[QueryAnswer] = pickle.loads(done.stdout)  # noqa: S301 - the own child process
    return answers


def _session(memory_mib: int, folder: Path) -> SparkSession:
    for name in _LOGGERS:
        PySparkLogger.getLogger(name).disabled = True
    conf = {
        **CONF,
        "spark.driver.maxResultSize": f"{memory_mib}m",
        "spark.driver.memory": f"{memory_mib}m",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    return SparkSession(start_spark("local[1]", conf, max_failures=1, obeys_host=False))


def answered(task: QueryTask, spark: SparkSession, folder: Path) -> QueryAnswer:
    """Compare a flow, with a session of its own."""
    try:
        frames = QueryFrames(spark.newSession(), task.transform)
        return QueryAnswer(asyncio.run(_compared(task, frames, folder)))
    except NotDecidable as error:
        refusal = f"verify cannot tell what its copies should be: {error}"
        return QueryAnswer(refusal=refusal, hint=_NO_QUERY_HINT)
    except TwinlogError as error:
        return QueryAnswer(refusal=error.message, hint=error.hint)
    except Exception as error:  # a full disk, too little memory, a JVM that has ended
        return QueryAnswer(refusal=f"the comparison has failed: {_named(error)}", hint=_AGAIN_HINT)


def _named(error: Exception) -> str:
    """An error of Python, Spark or the disk, without the contents of records."""
    text = error.strerror if isinstance(error, OSError) else None
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


async def _compared(task: QueryTask, frames: QueryFrames, folder: Path) -> list[FlowCompared]:
    configs = client_configs(task.source, task.destination)
    async with checked_clusters(configs, task.cluster_ids) as clusters:
        return await compare_query(clusters, task, frames, folder)


def main() -> None:
    """Answer the tasks of standard input."""
    answers_to = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what Spark or a function prints is no answer
    tasks: Sequence[QueryTask] = pickle.load(sys.stdin.buffer)  # noqa: S301 - of the parent process
    with tempfile.TemporaryDirectory(prefix="twinlog-verify-") as name:
        spark = _session(max(task.transform.memory_mib for task in tasks), Path(name))
        answers = []
        for at, task in enumerate(tasks):
            folder = Path(name, str(at))
            folder.mkdir(mode=0o700)
            answers.append(answered(task, spark, folder))
        spark.stop()
    with answers_to:
        pickle.dump(answers, answers_to)


if __name__ == "__main__":
    main()
