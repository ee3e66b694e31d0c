"""Spark: the session that lanes run in, and the one job of long-lived tasks.

Each lane is one task of one stage, for as long as the node runs. Spark places it and restarts it
after a failure, and does nothing else: no mirrored byte goes through the JVM.

    setting                                  why
    ---------------------------------------  ----------------------------------------------------
    spark.python.unix.domain.socket.enabled  over TCP each Python task waits 37 ms for Nagle
    spark.speculation = false                a second attempt beside the first gains nothing
    spark.task.maxFailures                   a lane that failed is restarted, however often
    spark.python.daemon.module               imports are done once, before the fork (daemon.py)
    spark.ui.enabled = false                 it shows nothing about mirrors; one port less
    spark.driver.extraJavaOptions            only errors of the JVM reach the terminal; C1 and the
                                             serial collector are enough for its work: 8 CPU
                                             seconds until the first task, not 14; with a class
                                             archive (class_archive.py) it is half of that

    spark.authenticate                       else any user of this machine (with a cluster: of the
                                             network) reaches the driver's RPC port, which
                                             deserializes what it receives: arbitrary code
    spark.network.crypto.enabled             encrypts what the driver and executors exchange
    spark.io.encryption.enabled              encrypts what they write to disks: lanes' arguments
                                             have secrets

In local mode, on YARN and on Kubernetes Spark creates a secret for each application by itself. In a
standalone cluster, the application must know the secret of the master and the workers: Spark reads
it from spark-defaults.conf, so that it is in no command line. Sockets between the JVM and Python
are files, to which the umask gives access to this user only.

`--conf` overrides each of these settings. An executor needs this package and Python version;
docs/spark.md has the steps.
"""

import itertools
import os
import re
import shlex
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

import pyspark
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext

from twinlog.class_archives import archive_flags, archive_of
from twinlog.java import JavaError, find_java, write_shim
from twinlog.kafka.errors import Retriable, UserError
from twinlog.runtime.job_progress import JobProgress

T = TypeVar("T")
R = TypeVar("R")

MAX_FAILURES: Final = 1_000_000
"""Failures of one task after which Spark aborts the job: in practice never."""

BATCH_FAILURES: Final = 4
"""The same for a batch job, whose tasks do not fail by design: Spark's default."""

PROGRESS_S: Final = 1.0
"""Seconds between reports of a job's progress."""

REACH_S: Final = 5.0
"""How long a Spark master may take to accept a connection."""

DEFAULTS: Final[Mapping[str, str]] = {
    "spark.app.name": "twinlog",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.python.daemon.module": "twinlog.runtime.daemon",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.speculation": "false",
    "spark.task.maxFailures": str(MAX_FAILURES),
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
AUTHENTICATED: Final[Mapping[str, str]] = {
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    "spark.network.crypto.saslFallback": "false",
    "spark.io.encryption.enabled": "true",
}
"""Set with DEFAULTS, unless `spark.authenticate` is false: Spark refuses encryption without it."""
_SECRET: Final = "spark.authenticate.secret"  # noqa: S105 (the setting's name)
_MAKES_SECRET: Final = re.compile(r"local(\[.*\])?|yarn|k8s://.+")
"""Masters for which Spark creates a secret for each application."""
PRIVATE: Final = 0o077
"""The umask of processes whose sockets and files only their user may open."""
_JVM_OPTIONS: Final = "spark.driver.extraJavaOptions"
_LOGGING: Final = Path(__file__).with_name("log4j2.properties")
_NO_DEFAULTS: Final = Path(__file__).with_name("no_defaults.properties")
_LOCAL_ONLY: Final = ("spark.driver.bindAddress", "spark.driver.host")
_MASTER: Final = re.compile(r"local(-cluster)?(\[.*\])?|spark://.+|yarn|k8s://.+")
_NO_REASON: Final = (" SQLSTATE:", "Driver stacktrace:")
_LOCAL: Final = re.compile(r"local(?:\[(\d+|\*)\])?")


def start_spark(
    master: str,
    conf: Mapping[str, str],
    *,
    max_failures: int = MAX_FAILURES,
    jvm_flags: Sequence[str] | None = None,
    obeys_host: bool = True,
) -> SparkContext:
    """Start a Spark application.

    Args:
        master: as for spark-submit; `local[*]` has one task slot for each core.
        conf: settings that override `DEFAULTS`.
        max_failures: failures of one task after which Spark aborts the job.
        jvm_flags: flags of the driver's JVM before all others (default: its class archive, if there
            is one).
        obeys_host: whether settings of `spark-defaults.conf` and `PYSPARK_SUBMIT_ARGS` count that
            these ones do not name; if not, they count in no later start of this process either.

    Raises:
        UserError: there is no Java, the kind of master is unknown, the master is unreachable, or
            the secret that it shares with applications is unknown.
    """
    if not _MASTER.fullmatch(master):
        raise UserError(
            f"the Spark master is {master!r}: expected local[N], local[*], spark://HOST:PORT, "
            "yarn or k8s://URL"
        )
    authenticated = conf.get("spark.authenticate", "true").lower() != "false"
    if authenticated:
        _check_secret(master, conf)
    _reach(master)
    try:
        first = archive_flags(class_archive()) if jvm_flags is None else jvm_flags
        # The shim leaves out a JVM module that is not needed and that causes a warning.
        os.environ["JAVA_HOME"] = str(write_shim(find_java().executable).parents[1])
    except JavaError as error:
        raise UserError(str(error)) from error
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if not obeys_host:
        args = ["--properties-file", str(_NO_DEFAULTS), "pyspark-shell"]
        os.environ["PYSPARK_SUBMIT_ARGS"] = shlex.join(args)
    settings = {**DEFAULTS, "spark.task.maxFailures": str(max_failures)}
    if local := _LOCAL.fullmatch(master):
        # In local mode the number of failures is part of the master's name; the default is 1.
        master = f"local[{local[1] or 1},{max_failures}]"
    elif not master.startswith("local"):
        for name in _LOCAL_ONLY:
            del settings[name]
    settings |= AUTHENTICATED if authenticated else {"spark.authenticate": "false"}
    settings |= conf
    settings[_JVM_OPTIONS] = _jvm_options(first, conf.get(_JVM_OPTIONS, ""))
    spark_conf = SparkConf().setMaster(master).setAll(list(settings.items()))
    umask = os.umask(PRIVATE)  # the JVM and its child processes inherit it
    try:
        return SparkContext.getOrCreate(spark_conf)
    except Exception as error:  # py4j wraps whatever the JVM threw
        reason = str(error).strip().splitlines()[-1] if str(error).strip() else repr(error)
        raise UserError(f"cannot start Spark at {master}: {reason}") from error
    finally:
        os.umask(umask)


def _check_secret(master: str, conf: Mapping[str, str]) -> None:
    """Check that the application will know the secret of a cluster that has its own secret.

    Raises:
        UserError: the secret is not set.
    """
    if _MAKES_SECRET.fullmatch(master) or _SECRET in conf:
        return
    home = os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent
    folder = os.environ.get("SPARK_CONF_DIR") or Path(home, "conf")
    defaults = Path(folder, "spark-defaults.conf")
    with suppress(OSError, UnicodeDecodeError):
        lines = defaults.read_text(encoding="utf-8").splitlines()
        if _SECRET in {re.split(r"[\s=:]", line.strip(), maxsplit=1)[0] for line in lines}:
            return
    raise UserError(
        f"{_SECRET} is not set: the Spark master {master} and its applications share it",
        hint=f"set it in {defaults}, or in spark-defaults.conf of SPARK_CONF_DIR, to the value of "
        "the master and the workers; with --conf spark.authenticate=false anyone who can "
        "connect to Spark's ports can run code",
    )


def _reach(master: str) -> None:
    """Check that a master listens at `spark://HOST:PORT,...`: Spark itself takes a minute for that.

    Raises:
        UserError: no master listens.
    """
    servers = master.removeprefix("spark://").split(",") if master.startswith("spark://") else []
    troubles = []
    for server in servers:
        host, _, port = server.rpartition(":")
        try:
            with socket.create_connection((host, int(port)), REACH_S):
                return
        except (OSError, ValueError, OverflowError) as error:
            troubles.append(f"{server}: {error}")
    if troubles:
        raise UserError(
            f"no Spark master responds at {master}: {'; '.join(troubles)}",
            hint="start a Spark master, or omit --master",
        )


def spark_jars() -> Path:
    """The folder of Spark's jars."""
    return Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent) / "jars"


def class_archive() -> Path:
    """Where the class archive of Spark's driver is, if it was created (class_archive.py)."""
    return archive_of(f"spark-{pyspark.__version__}", str(spark_jars()))


def _jvm_options(first: Iterable[str], user_options: str) -> str:
    """The default JVM options, then the user's options, which override them."""
    logging = f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}"
    flags = [logging, *map(shlex.quote, first), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    return f"{' '.join(flags)} {user_options}".strip()


def stop_spark(spark: SparkContext) -> None:
    """End the application, and tasks that still run with it."""
    # If the JVM has died, nothing of the application is left to end.
    with suppress(Py4JError, OSError):
        spark.cancelAllJobs()
        spark.stop()


def map_tasks(
    spark: SparkContext,
    task: Callable[[T], R],
    arguments: Sequence[T],
    *,
    progress: Callable[[JobProgress], None] | None = None,
) -> list[R]:
    """Run one task for each argument and return their results, in the arguments' order.

    Args:
        spark: the application.
        task: a function at the top of a module.
        arguments: picklable, at least one; each goes to one task.
        progress: is called each second, from another thread, with the number of ended tasks.

    Raises:
        Retriable: Spark's JVM has died, or Spark has aborted the job, with a task's exception.
    """

    def body(part: Iterable[T]) -> Iterator[R]:
        (argument,) = part  # a task that has lost it fails, and does not end
        return iter([task(argument)])

    end_event = threading.Event()
    if progress is not None:
        watcher = threading.Thread(
            target=_watch, args=(spark, len(arguments), progress, end_event), daemon=True
        )
        watcher.start()
    try:
        results: list[R] = (
            spark.parallelize(arguments, len(arguments)).mapPartitions(body).collect()
        )
    except Py4JJavaError as error:
        raise Retriable(f"the Spark job failed: {_reason(str(error))}") from error
    except (Py4JError, OSError) as error:
        raise _jvm_has_ended() from error
    finally:
        end_event.set()
    if len(results) != len(arguments):  # see whole_results.py
        raise _jvm_has_ended()
    return results


def _jvm_has_ended() -> Retriable:
    return Retriable("Spark's JVM has ended", hint="start the command again")


def _reason(text: str) -> str:
    """The last line of Spark's error before the Java stack: a task's exception, if there is one."""
    lines = itertools.takewhile(lambda line: not line.startswith("\tat "), text.splitlines())
    messages = [line.strip(" :") for line in lines if not line.startswith(_NO_REASON)]
    return next((line for line in reversed(messages) if line), "no reason reported")


def _watch(
    spark: SparkContext,
    total: int,
    progress: Callable[[JobProgress], None],
    end_event: threading.Event,
) -> None:
    """Poll Spark's status tracker until the job has ended; a failed poll reports nothing."""
    tracker = spark.statusTracker()
    while not end_event.wait(PROGRESS_S):
        with suppress(Py4JError, OSError):
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            completed_tasks = sum(stage.numCompletedTasks for stage in stages if stage is not None)
            progress(JobProgress(completed_tasks, total))
