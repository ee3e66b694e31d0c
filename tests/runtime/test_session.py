"""Twin of twinlog.runtime.session: what a user sees of Spark, and which user settings win."""

import shlex
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from spark_cluster import SparkCluster

from twinlog.kafka.errors import Retriable, UserError
from twinlog.local.ports import PortClaim
from twinlog.runtime import session

_QUIET = """
from twinlog.runtime.session import map_tasks, start_spark, stop_spark

spark = start_spark("local[1]", {})
assert map_tasks(spark, len, ["one", "eleven"]) == [3, 6]
stop_spark(spark)
"""


def test_jvm_options_of_the_user_come_last() -> None:
    """The JVM takes the last one of repeated options."""
    archive = "-XX:SharedArchiveFile=/a folder/spark.jsa"
    own_options, _, user_options = session._jvm_options([archive], "-Xss4m").rpartition(" ")
    assert own_options.startswith("-Dlog4j2.configurationFile=file:///")
    assert archive in shlex.split(own_options)
    assert user_options == "-Xss4m"


def test_an_invalid_spark_master_is_a_user_error() -> None:
    """Goal: one line with what is allowed, where Spark itself would print a stack trace."""
    with pytest.raises(UserError, match=r"'nonsense': expected local\[N\]"):
        session.start_spark("nonsense", {})


@pytest.mark.parametrize("master", ["spark://127.0.0.1:1", "spark://nowhere", "spark://h:x"])
def test_an_unreachable_spark_master_is_reported_at_once(master: str) -> None:
    """Goal: the error comes at once, with the address; Spark takes a minute to give up."""
    with pytest.raises(UserError, match=f"no Spark master responds at {master}: "):
        session.start_spark(master, {"spark.authenticate.secret": "s"})


@pytest.mark.spark
def test_spark_writes_nothing_to_the_terminal() -> None:
    """Spark's own lines (profiles, host names, modules) do not reach the terminal."""
    done = subprocess.run(
        [sys.executable, "-c", _QUIET], capture_output=True, text=True, timeout=500, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


_LOGGED = """
from twinlog.runtime.session import start_spark, stop_spark

spark = start_spark("local[1]", {})
for name in ("TaskContextImpl", "executor.Executor"):
    logger = spark._jvm.org.apache.logging.log4j.LogManager.getLogger(f"org.apache.spark.{name}")
    logger.error("has failed")
stop_spark(spark)
"""


@pytest.mark.spark
def test_what_tasks_of_a_cancelled_job_cannot_release_is_not_shown() -> None:
    """About each fourth stop of Spark printed a stack trace behind twinlog's own error."""
    done = subprocess.run(
        [sys.executable, "-c", _LOGGED], capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.endswith("ERROR spark Executor: has failed")


_ATTACKED = r"""
import os, socket, stat, struct
from pathlib import Path
from twinlog.runtime.session import map_tasks, start_spark, stop_spark

def utf(text):
    return struct.pack(">H", len(text)) + text.encode()

def ask(port):
    "Sends an object to an endpoint of the driver, as any process on this machine can."
    object_ = b"\xac\xed\x00\x05t" + utf("anything")
    receiver = b"\x01" + utf("127.0.0.1") + struct.pack(">i", port) + utf("endpoint-verifier")
    body = b"\x00" + receiver + object_
    message = struct.pack(">bqi", 3, 42, len(body)) + body
    with socket.create_connection(("127.0.0.1", port), 100) as connection:
        connection.sendall(struct.pack(">q", 8 + len(message)) + message)
        connection.settimeout(100)
        answer = connection.makefile("rb")
        return answer.read(struct.unpack(">q", answer.read(8))[0] - 8)

def umask(_):
    found = os.umask(0)
    os.umask(found)
    return found

spark = start_spark("local[1]", CONF)
(mask,) = map_tasks(spark, umask, [0])
settings = dict(spark.getConf().getAll())
answer = ask(int(settings["spark.driver.port"]))
command = Path(f"/proc/{spark._gateway.proc.pid}/cmdline").read_text()
print("deserialized" if b"org.apache.spark.rpc.netty.RpcFailure" in answer else "refused")
print("AuthRpcHandler" if b"AuthRpcHandler.doAuthChallenge" in answer else "")
print(oct(mask), "spark.authenticate.secret" in command)
stop_spark(spark)
"""


@pytest.mark.spark
@pytest.mark.parametrize(
    ("conf", "said"),
    [
        ({}, ["refused", "AuthRpcHandler", "0o77 False"]),
        pytest.param(
            {"spark.authenticate": "false"},
            ["deserialized", "", "0o77 False"],
            marks=pytest.mark.long,
        ),
    ],
)
def test_clients_without_the_authentication_secret_are_refused(
    conf: dict[str, str], said: list[str]
) -> None:
    """Goal: the driver deserializes no object of another user of this machine.

    With `spark.authenticate=false` the same attack succeeds.
    """
    program = _ATTACKED.replace("CONF", repr(conf))
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=500, check=False
    )
    assert (done.returncode, done.stdout.splitlines()) == (0, said), done.stderr


_OVERHEARD = r"""
import socket, threading
from twinlog.runtime.session import map_tasks, start_spark, stop_spark

MASTER, CONF, PORTS, ARGUMENT = ...

heard = []

def pass_on(one, other):
    part = bytearray()
    heard.append(part)
    while data := one.recv(1 << 16):
        part += data
        other.sendall(data)
    other.shutdown(socket.SHUT_WR)

def relay(listener, port):
    while True:
        near = listener.accept()[0]
        far = socket.create_connection(("127.0.0.1", port))
        for ends in ((near, far), (far, near)):
            threading.Thread(target=pass_on, args=ends, daemon=True).start()

for port in PORTS:
    listener = socket.create_server(("127.0.0.2", port))
    threading.Thread(target=relay, args=(listener, port), daemon=True).start()

spark = start_spark(MASTER, CONF)
print(map_tasks(spark, len, [ARGUMENT]))
stop_spark(spark)
print(sum(map(len, heard)) > 1000)
print(any(ARGUMENT.encode() in part for part in heard))
"""


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize(
    ("encrypted", "read"),
    [(True, False), pytest.param(False, True, marks=pytest.mark.long)],
)
def test_spark_traffic_is_encrypted(tmp_path: Path, encrypted: bool, read: bool) -> None:
    """Goal: C5: a lane's arguments, which contain secrets, cross the network encrypted.

    Executors reach the driver through a relay that records the traffic. With authentication alone,
    the same argument can be read there.
    """
    argument = "no-one-may-read-this"
    settings = {} if encrypted else {"spark.network.crypto.enabled": "false"}
    shared = {**session.AUTHENTICATED, **settings}
    with (
        closing(PortClaim.fresh(2)) as claim,
        SparkCluster(tmp_path, 1, shared) as cluster,
    ):
        conf = {
            "spark.authenticate.secret": cluster.secret,
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.2",
            "spark.driver.port": str(claim.ports[0]),
            "spark.driver.blockManager.port": str(claim.ports[1]),
            "spark.executor.memory": "512m",
            **settings,
        }
        given = repr((cluster.master, conf, claim.ports, argument))
        done = subprocess.run(
            [sys.executable, "-c", _OVERHEARD.replace("...", given)],
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
    assert (done.returncode, done.stdout.splitlines()) == (
        0,
        [f"[{len(argument)}]", "True", str(read)],
    ), done.stderr


def test_a_missing_spark_secret_is_reported_with_its_location(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: without the secret one line says where it belongs; with it, Spark is called."""
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    master = "spark://127.0.0.1:1"
    with pytest.raises(UserError, match=r"spark\.authenticate\.secret is not set") as caught:
        session.start_spark(master, {})
    assert str(tmp_path / "spark-defaults.conf") in str(caught.value)
    asked = "no Spark master responds"
    for conf in ({"spark.authenticate": "false"}, {"spark.authenticate.secret": "s"}):
        with pytest.raises(UserError, match=asked):
            session.start_spark(master, conf)
    (tmp_path / "spark-defaults.conf").write_text("# shared\n  spark.authenticate.secret  geheim\n")
    with pytest.raises(UserError, match=asked) as caught:
        session.start_spark(master, {})
    assert "geheim" not in str(caught.value)


_HOPELESS = """
from twinlog.operations.verification import VerifyConfig, _compare
from twinlog.verify.job import ANY_TOPICS, Sides, VerifyTask

task = VerifyTask(
    source={"bootstrap.servers": "nonsense"},
    destination={},
    cluster_ids=Sides("a", "b"),
    topic_ids=ANY_TOPICS,
    stretches=[],
)
try:
    _compare(VerifyConfig(destination={}, master=MASTER), [task], lambda _: None)
except Exception as error:
    print(error)
"""


@pytest.mark.spark
@pytest.mark.parametrize("master", ["local[1]", "local"])
def test_a_batch_job_ends_after_repeated_task_failures(master: str) -> None:
    """Goal: `verify` ends if a task fails repeatedly, although lanes are retried for ever (E3).

    The test uses each name of the local master: Spark itself tries a task of `local` once.
    """
    program = _HOPELESS.replace("MASTER", repr(master))
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=500, check=False
    )
    assert f"failed {session.BATCH_FAILURES} times; aborting job" in done.stderr
    [line] = done.stdout.splitlines()
    assert "UserError: bootstrap.servers is ''" in line


def test_error_of_a_failed_spark_job_is_one_line_with_the_reason() -> None:
    """Goal: one line with the reason, whether a task has raised or an executor was lost."""
    called = "An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collect.\n"
    stack = "\tat org.apache.spark.Some.thing(Some.scala:1)\nCaused by: another\n"
    raised = f"{called}: x.PythonException: Traceback:\n  File\nValueError: bad\n SQLSTATE: 38000\n"
    lost = f"{called}: x.SparkException: ExecutorLostFailure: gone\nDriver stacktrace:\n"
    assert session._reason(raised + stack) == "ValueError: bad"
    assert session._reason(lost + stack) == "x.SparkException: ExecutorLostFailure: gone"
    assert session._reason("") == "no reason reported"


def test_results_that_the_jvm_has_not_handed_on_are_an_error() -> None:
    """Goal: what PySpark takes for the end of the results is no empty answer of all tasks."""
    spark: Any = SimpleNamespace(
        parallelize=lambda *_: SimpleNamespace(
            mapPartitions=lambda _: SimpleNamespace(collect=lambda: [1])
        )
    )
    assert session.map_tasks(spark, abs, [1]) == [1]
    with pytest.raises(Retriable, match="Spark's JVM has ended"):
        session.map_tasks(spark, abs, [1, 2])
