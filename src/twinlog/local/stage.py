"""A stage: two real clusters, load on the source, a mirror in the destination.

The demo and the tests use it. It runs the commands that users have; measurements are independent of
them, by librdkafka. All that a stage starts ends with it.
"""

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

from confluent_kafka import KafkaException

from twinlog.local import commands
from twinlog.local.check import ConsumerView, Report, check
from twinlog.local.cluster import LocalCluster
from twinlog.local.commands import Done, Reporting
from twinlog.local.errors import LocalError
from twinlog.local.load import TOPICS
from twinlog.local.processes import SHORT_LIVED, ProcessGroup
from twinlog.local.writers import Numbers

MIRROR: Final = "demo"
ALL_TOPICS: Final = "|".join(TOPICS)
BROKERS: Final = {
    # So that compaction happens within seconds.
    "log.cleaner.backoff.ms": "2000",
    # By default a broker checkpoints log start offsets each minute, first 30 s after its start. If
    # it is killed before, the records that DeleteRecords removed come back: the source would have
    # records that its mirror does not have.
    "log.flush.start.offset.checkpoint.interval.ms": "1000",
    "log.initial.task.delay.ms": "1000",
}
ON_TWO: Final = {"min.insync.replicas": "2"}
"""With three brokers an acknowledged record is on two brokers: one broker may be killed."""

COMMAND_SECONDS: Final = 240.0
VERIFY_SECONDS: Final = 300.0
NO_LAG_SECONDS: Final = 300.0
NODE_END_SECONDS: Final = 180.0
LOOK_SECONDS: Final = 3.0
"""How long one measurement of the progress may take."""


class DestinationProgress(NamedTuple):
    """The destination's progress: its lag, and the sum of its log end offsets."""

    lag: int
    offsets: int


class Stage:
    """A stage (see the module). Its methods start its parts, in any order that makes sense."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.source: LocalCluster
        self.destination: LocalCluster
        self.load: Reporting | None = None
        self.nodes: dict[str, Reporting] = {}
        self.written: dict[tuple[str, int, str], Numbers] = {}
        self._logs: tuple[ConsumerView, ConsumerView] | None = None
        self._group = ProcessGroup()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self.directory.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._end_nodes()
        finally:
            self._group.stop()
            self._stack.__exit__(kind, error, trace)

    def _end_nodes(self) -> None:
        """Let the nodes end by themselves, if they do: then Spark removes its files."""
        for node in self.nodes.values():
            node.signal(15)
        for node in self.nodes.values():
            try:
                node.end(NODE_END_SECONDS)
            except LocalError as error:
                sys.stderr.write(f"{error}\n")

    def start_source(
        self,
        brokers: int = 1,
        directory: Path | None = None,
        *,
        config: Mapping[str, str] | None = None,
        proxied: Sequence[str] = (),
        classpath: Sequence[str] = (),
    ) -> LocalCluster:
        """Start the source; `config`, `proxied` and `classpath` are LocalCluster's.

        The mirror bootstraps at the first listener in `proxied`, if there is one.
        """
        home = directory or self.directory / "source"
        self.source = self._cluster(
            brokers, home, config=config, proxied=proxied, classpath=classpath
        )
        return self.source

    def start_destination(
        self,
        brokers: int = 1,
        directory: Path | None = None,
        controllers: int = 1,
        *,
        config: Mapping[str, str] | None = None,
        proxied: Sequence[str] = (),
    ) -> LocalCluster:
        """Start the destination; nodes bootstrap at the first listener in `proxied`.

        The commands only read, or write the desired state; they use the default listener.
        """
        home = directory or self.directory / "destination"
        self.destination = self._cluster(
            brokers, home, controllers=controllers, config=config, proxied=proxied
        )
        return self.destination

    def _cluster(
        self,
        brokers: int,
        directory: Path,
        *,
        controllers: int = 1,
        config: Mapping[str, str] | None = None,
        proxied: Sequence[str] = (),
        classpath: Sequence[str] = (),
    ) -> LocalCluster:
        heap = "320m" if brokers == 1 else "256m"
        usual = BROKERS if brokers < 3 else BROKERS | ON_TWO
        return self._stack.enter_context(
            LocalCluster.start(
                brokers,
                heap=heap,
                config={**usual, **(config or {})},
                jvm_flags=SHORT_LIVED,
                directory=directory,
                controllers=controllers,
                listeners=dict.fromkeys(proxied, "PLAINTEXT"),
                proxied=proxied,
                classpath=classpath,
            )
        )

    # ---- the load ------------------------------------------------------------------------------

    def start_load(self, rate: float, seconds: float, prefix: str = "") -> Reporting:
        """Start the load; it ends by itself after `seconds`, whatever happens.

        `prefix` is put before the topics' names.
        """
        arguments = ["--rate", f"{rate:g}", "--seconds", f"{seconds:g}", "--prefix", prefix]
        self.load = Reporting(
            self._group,
            "load",
            self.directory,
            [*commands.LOAD, "--bootstrap-servers", self.source.bootstrap_servers, *arguments],
        )
        self.load.wait_for(bool, "the load's topics", COMMAND_SECONDS)
        return self.load

    def stop_load(self, seconds: float = COMMAND_SECONDS) -> dict[str, int]:
        """End the load, note the numbers of its writers, and return its totals.

        Raises:
            LocalError: it does not end, or it could not write.
        """
        assert self.load is not None
        self.load.end(seconds)
        report = self.load.last()
        if not report.get("done") or report["failures"]:
            raise LocalError(
                f"the load has failed: {report.get('failures') or 'it died'} (log: {self.load.log})"
            )
        for topic, partition, writer, least, most in report["written"]:
            self.written[topic, partition, writer] = Numbers(least, most)
        return {
            name: report[name] for name in ("records", "committed", "aborted", "aborted_records")
        }

    # ---- the mirror ----------------------------------------------------------------------------

    def mirrors(self, *arguments: str) -> Done:
        """Run `kafka-mirrors` on the destination; --remove waits only with --wait-seconds."""
        servers = self.destination.bootstrap_servers
        if "--remove" in arguments and "--wait-seconds" not in arguments:
            arguments = (*arguments, "--wait-seconds", "0")
        return commands.run(
            commands.KAFKA_MIRRORS,
            "--bootstrap-server",
            servers,
            *arguments,
            seconds=COMMAND_SECONDS,
        )

    def create_mirror(
        self, name: str = MIRROR, extra: Sequence[str] = (), state_partitions: int = 50
    ) -> Path:
        """Create a mirror of the source; return the file with its properties.

        `state_partitions` takes effect with the first mirror of a destination.
        """
        properties = self.directory / f"{name}.properties"
        lines = [f"bootstrap.servers={_mirrors_servers(self.source)}", *extra]
        properties.write_text("\n".join(lines) + "\n")
        config = self.directory / "command.properties"
        config.write_text(f"mirror.topic.num.partitions={state_partitions}\n")
        arguments = (
            *("--create", "--mirror", name, "--mirror-config", str(properties)),
            *("--command-config", str(config)),
        )
        self._done(self.mirrors(*arguments), arguments)
        return properties

    def add(self, topics: str, name: str = MIRROR) -> None:
        """Add topics to a mirror."""
        arguments = ("--add", "--topic", topics, "--mirror", name)
        self._done(self.mirrors(*arguments), arguments)

    @staticmethod
    def _done(done: Done, arguments: Iterable[str]) -> None:
        if done.status:
            raise LocalError(f"kafka-mirrors {' '.join(arguments)}: {done.errors.strip()}")

    def start_node(
        self, name: str = "node", *arguments: str, environment: Mapping[str, str] | None = None
    ) -> Reporting:
        """Start `twinlog run`; `environment` is added to that of this process."""
        servers = _mirrors_servers(self.destination)
        self.nodes[name] = Reporting(
            self._group,
            name,
            self.directory,
            [
                *commands.TWINLOG,
                "run",
                "--bootstrap-server",
                servers,
                "--node",
                name,
                "--json",
                *arguments,
            ],
            environment,
        )
        return self.nodes[name]

    def verify(self, *arguments: str, seconds: float = VERIFY_SECONDS) -> Done:
        """Run `twinlog verify`, for so many seconds at most."""
        servers = self.destination.bootstrap_servers
        return commands.run(
            commands.TWINLOG,
            "verify",
            "--bootstrap-server",
            servers,
            *arguments,
            seconds=seconds,
        )

    # ---- independent measurements --------------------------------------------------------------

    def progress(self, topics: Iterable[str] = tuple(TOPICS)) -> DestinationProgress:
        """The destination's progress, measured by another client than the mirror's.

        Raises:
            LocalError: it cannot be measured now.
        """
        if self._logs is None:
            source, destination = self.source, self.destination
            self._logs = (
                ConsumerView(source.bootstrap_servers, LOOK_SECONDS),
                ConsumerView(destination.bootstrap_servers, LOOK_SECONDS),
            )
        source_view, destination_view = self._logs
        try:
            partitions = source_view.partitions(topics)
            stable, ends = source_view.stable(partitions), destination_view.ends(partitions)
        except (KafkaException, TimeoutError) as error:
            # After a leader change librdkafka keeps requesting in the old leader epoch: the next
            # call creates new clients.
            self._logs = None
            raise LocalError(f"cannot measure the lag: {error!r}") from error
        if silent := [p for p in partitions if min(stable[p], ends[p]) < 0]:
            raise LocalError(f"{len(silent)} partitions have no leader")
        lag = sum(max(stable[partition] - ends[partition], 0) for partition in partitions)
        return DestinationProgress(lag, sum(ends.values()))

    def await_no_lag(
        self,
        topics: Iterable[str] = tuple(TOPICS),
        seconds: float = NO_LAG_SECONDS,
        look: Callable[[DestinationProgress], None] = lambda _: None,
    ) -> None:
        """Wait until the destination has reached the source's last stable offsets.

        Raises:
            LocalError: it takes too long.
        """
        deadline = time.monotonic() + seconds
        progress: DestinationProgress | LocalError
        while True:
            try:
                progress = self.progress(topics)
            except LocalError as error:
                progress = error
            else:
                look(progress)
                if not progress.lag:
                    return
            if time.monotonic() > deadline:
                raise LocalError(f"the mirror still has a lag after {seconds:g} s: {progress}")
            time.sleep(0.2)

    def check(self, topics: Iterable[str] = tuple(TOPICS), *, numbered: bool = True) -> Report:
        """Compare both clusters' logs as their consumers see them (check.py)."""
        return check(
            self.source.bootstrap_servers,
            self.destination.bootstrap_servers,
            topics,
            written=self.written if numbered else None,
            numbered=numbered,
        )


def _mirrors_servers(cluster: LocalCluster) -> str:
    """The bootstrap servers of a mirror: the first proxied listener, else the default one."""
    for listener in cluster.settings.proxied:
        return cluster.listener(listener)
    return cluster.bootstrap_servers
