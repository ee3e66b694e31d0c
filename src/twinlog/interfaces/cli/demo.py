"""`twinlog demo`: two real clusters, a live mirror, a killed broker, and the verification.

    clusters ─► load ─► kafka-mirrors --create, --add ─► twinlog run ─► a broker is killed and
    restarted ─► the load ends ─► nothing lags ─► twinlog verify ─► the independent checker

The demo runs the commands that users have, each as a process of its own; librdkafka measures the
progress independently. After any error, and after Ctrl-C, nothing is left running.
"""

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

import click

from twinlog.local import named
from twinlog.local.check import Report
from twinlog.local.cluster import DEFAULT_VERSION
from twinlog.local.errors import LocalError
from twinlog.local.stage import ALL_TOPICS, MIRROR, DestinationProgress, Stage

DESTINATION_BROKERS: Final = 3
RATE: Final = 1000.0
NAMES: Final = ("demo-source", "demo-destination")
LOAD_SECONDS: Final = 600.0
STEP_SECONDS: Final = 180.0
SHOW_SECONDS: Final = 5.0
"""How long the progress is shown before, during and after the broker's absence."""
ABSENT_SECONDS: Final = 30.0
"""How long the destination may take to go on without the broker."""
KEPT_RATE: Final = 200.0
KEPT_SECONDS: Final = 24 * 3600.0
INTERRUPTED: Final = 130


@click.command()
@click.option("--keep", is_flag=True, help="Keep clusters and mirror running until Ctrl-C.")
@click.option("--rate", default=RATE, show_default=True, help="Records per second to write.")
@click.option(
    "--brokers",
    type=click.IntRange(1, 3),
    default=DESTINATION_BROKERS,
    show_default=True,
    help="Number of brokers of the destination.",
)
def demo(*, keep: bool, rate: float, brokers: int) -> None:
    """Demonstrate twinlog: two real clusters, a live mirror, a killed broker, a verification.

    Exit status 0 if both clusters have the same log, 1 otherwise.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    directory = Path(tempfile.mkdtemp(prefix="twinlog-demo-"))
    show = Show()
    good = False
    try:
        with _clusters_directories(directory, keep=keep) as (source, destination):
            good = _run(show, Stage(directory), (source, destination), rate, brokers, keep=keep)
    except KeyboardInterrupt:
        show.say("interrupted: all processes have been ended")
        shutil.rmtree(directory, ignore_errors=True)
        sys.exit(INTERRUPTED)
    except BaseException:
        show.say(f"all processes have been ended; the logs are in {directory}")
        raise
    if good:
        shutil.rmtree(directory, ignore_errors=True)
    else:
        show.say(f"the logs are in {directory}")
    sys.exit(0 if good else 1)


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


@contextmanager
def _clusters_directories(directory: Path, *, keep: bool) -> Iterator[tuple[Path, Path]]:
    """The clusters' directories; with --keep, those of named clusters (`twinlog cluster`)."""
    if not keep:
        yield directory / "source", directory / "destination"
        return
    source, destination = (named.reserve(name) for name in NAMES)
    try:
        yield source, destination
    finally:
        # This also ends brokers that `twinlog cluster start` has started meanwhile.
        for name in NAMES:
            with suppress(LocalError):
                named.down(name)


class Show:
    """The demo's output: a line for each event, and the lag on a line that is overwritten."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._live = sys.stderr.isatty()
        self._shown = False
        self._printed_at = 0.0

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start

    def say(self, text: str) -> None:
        """Print an event."""
        if self._shown:
            click.echo(err=True)
            self._shown = False
        click.echo(f"{self.seconds:6.1f} s  {text}", err=True)

    def command(self, text: str) -> None:
        """Print a command that is run now."""
        self.say(click.style(f"$ {text}", bold=True))

    def lag(self, text: str) -> None:
        """Print the progress: overwritten on a terminal, every 2 s elsewhere."""
        line = f"{self.seconds:6.1f} s    {text}"
        if self._live:
            width = os.get_terminal_size(sys.stderr.fileno()).columns
            click.echo(f"\r{line[: width - 1]:<{width - 1}}", nl=False, err=True)
            self._shown = True
        elif time.monotonic() - self._printed_at >= 2.0:
            self._printed_at = time.monotonic()
            click.echo(line, err=True)


@dataclass(slots=True)
class Story:
    """The facts for the summary."""

    killed: str = ""
    away: float = 0.0
    mirrored_meanwhile: int = 0
    max_lag: int = 0
    offsets: int = 0

    def saw(self, progress: DestinationProgress) -> None:
        """Note one measurement."""
        self.max_lag = max(self.max_lag, progress.lag)
        self.offsets = progress.offsets


def _run(
    show: Show,
    stage: Stage,
    directories: tuple[Path, Path],
    rate: float,
    brokers: int,
    *,
    keep: bool,
) -> bool:
    with stage:
        _begin(show, stage, directories, rate, brokers)
        story = Story()
        _watch(show, stage, story, SHOW_SECONDS)
        _kill_a_broker(show, stage, story)
        good = _prove(show, stage, story)
        if keep:
            _keep(show, stage)
    return good


def _begin(
    show: Show, stage: Stage, directories: tuple[Path, Path], rate: float, brokers: int
) -> None:
    """Start the clusters, the load, the mirror and a node; wait until all partitions mirror."""
    show.say(f"two clusters of Kafka {DEFAULT_VERSION}: a source of 1 broker, {_of(brokers)}")
    source = stage.start_source(directory=directories[0]).bootstrap_servers
    destination = stage.start_destination(brokers, directory=directories[1]).bootstrap_servers
    show.say(f"source {source}, destination {destination}")
    stage.start_load(rate, LOAD_SECONDS)
    show.say(f"the load begins: {rate:g} records per second")
    show.say("  orders     three transactional producers, a third of the transactions aborted")
    show.say("  customers  compacted, with updates and tombstones")
    show.say("  clicks     a codec for each partition: none, gzip, snappy, lz4, zstd")
    show.say("  archive    its log starts above offset zero")
    properties = stage.directory / f"{MIRROR}.properties"
    to = f"kafka-mirrors --bootstrap-server {destination}"
    show.command(f"{to} --create --mirror {MIRROR} --mirror-config {properties}")
    stage.create_mirror()
    show.command(f"{to} --add --topic '{ALL_TOPICS}' --mirror {MIRROR}")
    stage.add(ALL_TOPICS)
    show.command(f"twinlog run --bootstrap-server {destination}")
    node = stage.start_node()
    deadline = time.monotonic() + STEP_SECONDS
    while node.last().get("waiting", 1):
        _look(show, stage)
        if not node.alive or time.monotonic() > deadline:
            node.wait_for(lambda report: not report["waiting"], "all partitions are mirroring", 0)
        time.sleep(0.5)


def _of(brokers: int) -> str:
    return f"a destination of {brokers} broker{'s' if brokers > 1 else ''}"


def _look(show: Show, stage: Stage, note: str = "") -> DestinationProgress | None:
    """Show the lag; return None if it cannot be measured now."""
    try:
        progress = stage.progress()
    except LocalError:
        show.lag(f"cannot measure the lag{note}")
        return None
    show.lag(_text(stage, progress) + note)
    return progress


def _text(stage: Stage, progress: DestinationProgress) -> str:
    report = stage.nodes["node"].last()
    return (
        f"lag {progress.lag:,} offsets; {progress.offsets:,} mirrored; "
        f"{report.get('mirroring', 0)} partitions mirroring, {report.get('failed', 0)} failed"
    )


def _watch(show: Show, stage: Stage, story: Story, seconds: float, note: str = "") -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if (progress := _look(show, stage, note)) is not None:
            story.saw(progress)
        if not stage.nodes["node"].alive:
            stage.nodes["node"].wait_for(lambda _: False, "it runs", 0)
        time.sleep(0.5)


def _kill_a_broker(show: Show, stage: Stage, story: Story) -> None:
    cluster = stage.destination
    victim = cluster.brokers[-1].node_id
    story.killed = f"broker {victim} of the destination (kill -9)"
    without = f"  (without broker {victim})"
    before = story.offsets
    show.say(click.style(f"kill -9: broker {victim} of the destination", fg="red", bold=True))
    killed = time.monotonic()
    cluster.kill(victim)
    while story.offsets <= before and time.monotonic() < killed + ABSENT_SECONDS:
        _watch(show, stage, story, 0.1, without)
    _watch(show, stage, story, SHOW_SECONDS, without)
    story.mirrored_meanwhile = story.offsets - before
    show.say(f"broker {victim} is restarted")
    cluster.start_broker(victim)
    story.away = time.monotonic() - killed
    _watch(show, stage, story, SHOW_SECONDS)


def _prove(show: Show, stage: Stage, story: Story) -> bool:
    totals = stage.stop_load()
    show.say("the load has ended")

    def look(progress: DestinationProgress) -> None:
        story.saw(progress)
        show.lag(_text(stage, progress))

    stage.await_no_lag(look=look)
    show.say("caught up: the lag is 0")
    show.command(f"twinlog verify --bootstrap-server {stage.destination.bootstrap_servers}")
    verified = stage.verify()
    text = (verified.output or verified.errors).strip()
    for line in text.splitlines()[:20]:
        show.say(f"  {line}")
    show.say("the independent checker: librdkafka consumers on both clusters, read_committed")
    report = stage.check()
    for problem in report.problems:
        show.say(f"  {problem}")
    good = verified.status == 0 and report.good
    _summary(show, totals, story, report, text, good=good)
    return good


def _summary(
    show: Show,
    totals: dict[str, int],
    story: Story,
    report: Report,
    verified: str,
    *,
    good: bool,
) -> None:
    transactions = totals["committed"] + totals["aborted"]
    rows = {
        "written": f"{totals['records']:,} records; {transactions:,} transactions, "
        f"{totals['aborted']:,} of them aborted with {totals['aborted_records']:,} records",
        "killed": f"{story.killed}, back after {story.away:.0f} s; "
        f"{story.mirrored_meanwhile:,} offsets mirrored without it",
        "lag": f"at most {story.max_lag:,} offsets, 0 at the end",
        "verify": verified.splitlines()[-1] if verified else "no output",
        "checker": f"{report.records:,} records of {report.partitions} partitions at the same "
        f"offsets, {report.gaps:,} offsets without a record, "
        f"{report.writers} numberings, {len(report.problems)} problems",
        "verdict": click.style(
            "the same log in both clusters" if good else "NOT the same", bold=True
        ),
    }
    click.echo()
    for name, text in rows.items():
        click.echo(f"  {name:<9} {text}")
    click.echo(f"  {'time':<9} {show.seconds:.0f} s")


def _keep(show: Show, stage: Stage) -> None:
    """Keep the demo running until Ctrl-C."""
    stage.start_load(KEPT_RATE, KEPT_SECONDS)
    source, destination = stage.source.bootstrap_servers, stage.destination.bootstrap_servers
    lines = (
        "",
        f"The load continues with {KEPT_RATE:g} records per second. In another terminal:",
        f"  kafka-mirrors --bootstrap-server {destination} --describe",
        f"  twinlog verify --bootstrap-server {destination}",
        f"  twinlog cluster kill {NAMES[1]} 1     (and: twinlog cluster start {NAMES[1]} 1)",
        f"The source is {source}; the logs are in {stage.directory}.",
        "Press Ctrl-C here to end everything.",
    )
    for line in lines:
        click.echo(line, err=True)
    with suppress(KeyboardInterrupt):
        while stage.nodes["node"].alive:
            _look(show, stage)
            time.sleep(1.0)
    show.say("ending all processes")
