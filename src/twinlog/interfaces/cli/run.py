"""`twinlog run`: a node, in the foreground."""

import asyncio
import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import click

from twinlog.interfaces.cli.options import (
    ListenAddress,
    destination_options,
    destination_properties,
    lane_options,
    lane_settings,
    spark_options,
    spark_settings,
)
from twinlog.interfaces.cli.signals import Stop, end_signals
from twinlog.logs import FORMATS, set_up
from twinlog.node.node import Node, NodeConfig, NodeProgress
from twinlog.store.control_topics import take_control_topics
from twinlog.text import printable


@click.command()
@destination_options
@click.option(
    "--once", is_flag=True, help="Exit when everything that the sources hold is mirrored."
)
@spark_options
@lane_options
@click.option(
    "--lanes", type=click.IntRange(min=1), help="Number of lanes; one for each core by default."
)
@click.option(
    "--node", default=socket.gethostname, show_default="host name", help="Name of this node."
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print the progress as a JSON object each second."
)
@click.option(
    "--log-level",
    type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"]),
    default="WARNING",
    show_default=True,
)
@click.option(
    "--log-format",
    type=click.Choice(FORMATS),
    default="text",
    show_default=True,
    help="Log lines as text or as JSON objects.",
)
@click.option(
    "--metrics-address",
    type=ListenAddress(),
    help="Address for Prometheus metrics and /health; without a host, only for this machine.",
)
def run(
    *,
    bootstrap_server: str,
    command_config: Path | None,
    once: bool,
    master: str,
    conf: tuple[str, ...],
    lanes: int | None,
    lane_config: Path | None,
    lane_property: tuple[str, ...],
    node: str,
    as_json: bool,
    log_level: str,
    log_format: str,
    metrics_address: tuple[str, int] | None,
) -> None:
    """Run a node: mirror until interrupted (or with --once, until caught up).

    Exit status 0 if it ended as requested, 1 if mirror partitions are FAILED at the end.
    """
    with end_signals() as call_at_signals:
        destination = destination_properties(bootstrap_server, command_config)
        config = NodeConfig(
            node=node,
            control_topics=take_control_topics(destination),
            destination=destination,
            master=master,
            spark_conf=spark_settings(conf),
            lanes=lanes,
            settings=lane_settings(lane_config, lane_property),
            once=once,
            log_level=log_level,
            log_format=log_format,
            metrics_address=metrics_address,
        )
        set_up(log_level, log_format)
        progress = asyncio.run(_run(config, _Display(as_json=as_json), call_at_signals))
    failed = () if progress is None else progress.failed
    for row in failed:
        click.echo(printable(f"FAILED {row.partition}: {row.reason}"), err=True)
    if failed:
        sys.exit(1)


async def _run(
    config: NodeConfig, display: "_Display", call_at_signals: Callable[[Stop], None]
) -> NodeProgress | None:
    node = Node(config, display.show)
    call_at_signals(node.stop)
    progress = await node.run()
    if progress is not None:
        display.show(progress)
    display.end()
    return progress


class _Display:
    """Progress on standard error: one line that is overwritten on a terminal."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._terminal = sys.stderr.isatty()
        self._last_text = ""

    def show(self, progress: NodeProgress) -> None:
        """Show the progress."""
        if self._as_json:
            fields = {
                "mirroring": progress.mirrored,
                "failed": len(progress.failed),
                "waiting": progress.waiting,
                "lag": progress.lag,
                "records": progress.records,
                "bytes": progress.bytes,
            }
            click.echo(json.dumps(fields))
            return
        text = (
            f"{progress.mirrored} mirroring, {len(progress.failed)} failed, "
            f"{progress.waiting} waiting; lag {progress.lag}; {progress.records} records, "
            f"{progress.bytes / 1e6:.1f} MB"
        )
        if text == self._last_text:
            return
        self._last_text = text
        if self._terminal:
            width = os.get_terminal_size(sys.stderr.fileno()).columns
            click.echo(f"\r{text[: width - 1]:<{width - 1}}", nl=False, err=True)
        else:
            click.echo(text, err=True)

    def end(self) -> None:
        """End the line that is overwritten."""
        if self._terminal and not self._as_json:
            click.echo(err=True)
