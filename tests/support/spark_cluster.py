"""A standalone Spark cluster on this machine: a master and workers, from PySpark's own files.

    directory/master.log
              worker-1.log, worker-2.log     the workers' logs
              worker-1/app-.../0/stderr      the logs of executors and their lanes

Each is a separate process on loopback, and ends with the block, or with this process.
"""

import json
import secrets
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.error import URLError

import process_tree
import pyspark
from waiting import until

from twinlog.java import find_java, write_shim
from twinlog.local.identity import Identity
from twinlog.local.ports import HOST, PortClaim
from twinlog.local.processes import JavaProcess, ProcessGroup, Program, last_error
from twinlog.runtime.session import AUTHENTICATED

CORES = 2
MEMORY = "2g"
START_SECONDS = 240.0
LIGHT = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class SparkCluster:
    """See the module. Workers are numbered from 1; `settings` apply to them and the master."""

    def __init__(
        self, directory: Path, workers: int = 2, settings: Mapping[str, str] = AUTHENTICATED
    ) -> None:
        self._directory = directory
        self._count = workers
        self._group = ProcessGroup()
        self._workers: dict[int, JavaProcess] = {}
        self.secret = secrets.token_hex(16)
        self._properties = directory / "spark.properties"
        directory.mkdir(parents=True, exist_ok=True)
        shared = {**settings, "spark.authenticate.secret": self.secret}
        self._properties.write_text("".join(f"{key} {value}\n" for key, value in shared.items()))

    def __enter__(self) -> Self:
        self._claim = PortClaim.fresh(2)
        port, self._web_port = self._claim.ports
        self.master = f"spark://{HOST}:{port}"
        addresses = ("--host", HOST, "--port", str(port), "--webui-port", str(self._web_port))
        self._start("master", "org.apache.spark.deploy.master.Master", *addresses)
        for number in range(1, self._count + 1):
            self.start_worker(number)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._group.stop()
        self._claim.close()

    @property
    def arguments(self) -> list[str]:
        """The arguments of `twinlog run`: an executor of one core for each lane, on loopback."""
        conf = {
            "spark.driver.host": HOST,
            "spark.driver.bindAddress": HOST,
            "spark.cores.max": str(self._count),
            "spark.executor.cores": "1",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": LIGHT,
            "spark.authenticate.secret": self.secret,
        }
        settings = [text for name, value in conf.items() for text in ("--conf", f"{name}={value}")]
        return ["--master", self.master, "--lanes", str(self._count), *settings]

    def start_worker(self, number: int) -> None:
        """Start a worker, and wait until it has registered with the master."""
        before = len(self._alive())
        home = self._directory / f"worker-{number}"
        place = ("--host", HOST, "--webui-port", "0", "--work-dir", str(home))
        size = ("--cores", str(CORES), "--memory", MEMORY)
        name = "org.apache.spark.deploy.worker.Worker"
        self._workers[number] = self._start(home.name, name, *place, *size, self.master)
        until(lambda: len(self._alive()) > before, START_SECONDS, f"worker {number}")

    def kill_worker(self, number: int) -> None:
        """Kill a worker. Its executors end by themselves when they notice."""
        self._workers[number].kill()

    @property
    def workers(self) -> list[int]:
        """The workers that run."""
        return [number for number, process in self._workers.items() if process.alive]

    def executors(self, number: int) -> list[Identity]:
        """Return the executors of a worker."""
        return process_tree.executors(self._workers[number].identity.pid)

    def lanes(self, number: int) -> list[Identity]:
        """Return the current lanes of a worker."""
        return process_tree.lanes(self._workers[number].identity.pid)

    def await_spread(self) -> None:
        """Wait until each worker has one lane. Before, all lanes may be on the first worker."""
        until(
            lambda: [len(self.lanes(number)) for number in self.workers],
            process_tree.START_SECONDS,
            "one lane at each worker",
            good=lambda found: found == [1] * self._count,
        )

    def _start(self, name: str, main: str, *arguments: str) -> JavaProcess:
        home = Path(pyspark.__file__).parent
        log = self._directory / f"{name}.log"
        process = self._group.start(
            Program(
                argv=[
                    *(str(home / "bin" / "spark-class"), main),
                    *("--properties-file", str(self._properties), *arguments),
                ],
                environment={
                    "SPARK_HOME": str(home),
                    "SPARK_LOCAL_IP": HOST,
                    "SPARK_DAEMON_MEMORY": "256m",
                    "SPARK_DAEMON_JAVA_OPTS": LIGHT,
                    "JAVA_HOME": str(write_shim(find_java().executable).parents[1]),
                },
                log=log,
            )
        )

        def serves() -> bool:
            assert process.alive, last_error(log)
            return self._state() is not None

        until(serves, START_SECONDS, f"Spark's {name}")
        return process

    def _alive(self) -> list[dict[str, Any]]:
        state = self._state() or {"workers": []}
        return [one for one in state["workers"] if one["state"] == "ALIVE"]

    def _state(self) -> dict[str, Any] | None:
        """Return the master's status of its cluster; None if it does not answer."""
        try:
            with urllib.request.urlopen(f"http://{HOST}:{self._web_port}/json/", timeout=5) as page:
                state: dict[str, Any] = json.load(page)
        except (URLError, OSError, ValueError):
            return None
        return state
