"""`twinlog mirror-maker` and `twinlog kafka-mirror-maker`: MirrorMaker's commands.

Both take the files and flags of Kafka's own scripts, `connect-mirror-maker.sh` and the former
`kafka-mirror-maker.sh`, and run their flows. `--check` explains them, and connects to nothing.
"""

import asyncio
import os
import signal
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from twinlog.interfaces.cli.options import lane_options, spark_options
from twinlog.interfaces.cli.output import print_json, say
from twinlog.interfaces.cli.tables import print_table
from twinlog.kafka.client.configuration import parse_config, resolve
from twinlog.kafka.errors import UserError
from twinlog.logs import set_up
from twinlog.mirror.legacy_mirror_maker import READ_NAMES, LegacyOptions, legacy_flow
from twinlog.mirror.mirror_maker_file import (
    CLIENTS_OF_FLOW,
    Flow,
    FlowClients,
    parse_mirror_maker_file,
    targeting,
)
from twinlog.mirror.mirror_maker_lines import FileLine
from twinlog.mirror.mirror_maker_names import BOOTSTRAP
from twinlog.mirror.mirror_maker_report import (
    EXAMPLE_TOPIC,
    FlowRow,
    MirrorMakerReport,
    flow_row,
    report,
)
from twinlog.mirror.properties_text import ENCODING, last_values, parse_lines
from twinlog.node.flow_targets import run_parts
from twinlog.node.mirror_maker import MirrorMaker

COLUMNS: Final = (
    "FLOW",
    "TOPICS",
    "GROUPS",
    f"{EXAMPLE_TOPIC.upper()} BECOMES",
    "HEARTBEATS",
    "CHECKPOINTS",
    "GROUP OFFSETS",
)
MAX_CELL: Final = 40
"""Characters of an expression in the table; JSON has all."""

PROPERTIES_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
RUNNING: Final = ("master", "conf", "lanes", "lane_config", "lane_property", "log_level")
F = TypeVar("F", bound=Callable[..., Any])


def running_options(command: F) -> F:
    """The options of `twinlog run` that also make sense for several nodes (`RUNNING`)."""
    command = click.option(
        "--log-level",
        type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"]),
        default="WARNING",
        show_default=True,
    )(command)
    command = click.option(
        "--lanes",
        type=click.IntRange(min=1),
        help="Number of lanes for each target; one for each core by default.",
    )(command)
    return spark_options(lane_options(command))


@click.command("mirror-maker")
@click.argument("file", type=PROPERTIES_FILE)
@click.argument("aliases", nargs=-1)
@click.option("--clusters", is_flag=True, help="Only flows to the clusters ALIASES, behind FILE.")
@click.option("--check", is_flag=True, help="Explain each line of FILE; connect to nothing.")
@click.option("--json", "as_json", is_flag=True, help="The result as one JSON object.")
@running_options
def mirror_maker(
    *,
    file: Path,
    aliases: tuple[str, ...],
    clusters: bool,
    check: bool,
    as_json: bool,
    **running: Any,
) -> None:
    """Run the flows of a properties file of MirrorMaker 2 (connect-mirror-maker.sh).

    It goes on until Ctrl-C. Exit status 0: it ended as requested, or with --check the file is
    valid. 1: the file has errors, or a flow cannot run.
    """
    if aliases and not clusters:
        raise click.UsageError(f"unexpected argument {aliases[0]!r}: expected one FILE")
    if clusters and not aliases:
        raise click.UsageError("--clusters needs at least one alias behind FILE")
    parsed = parse_mirror_maker_file(
        _read(file), lambda key, value: resolve(key, value, os.environ)
    )
    unused, errors = _check_clients(parsed.clients)
    result = report(parsed, aliases, unused, errors)
    if check:
        _finish(result, as_json)
        return
    _require_valid(result)
    _run(targeting(parsed.flows, aliases), parsed.clusters, running)


@click.command("kafka-mirror-maker")
@click.option("--consumer.config", "consumer_config", type=PROPERTIES_FILE, required=True)
@click.option("--producer.config", "producer_config", type=PROPERTIES_FILE, required=True)
@click.option("--include", help="Topics to mirror: a regular expression.")
@click.option("--whitelist", help="The former name of --include.")
@click.option("--num.streams", "num_streams", type=int, default=1)
@click.option("--new.consumer", "new_consumer", is_flag=True)
@click.option("--offset.commit.interval.ms", "offset_commit_interval_ms", type=int, default=60_000)
@click.option("--abort.on.send.failure", "abort_on_send_failure", default="true")
@click.option("--message.handler", "message_handler")
@click.option("--message.handler.args", "message_handler_args")
@click.option("--consumer.rebalance.listener", "--rebalance.listener", "rebalance_listener")
@click.option("--rebalance.listener.args", "rebalance_listener_args")
@click.option("--check", is_flag=True, help="Explain the flags; connect to nothing.")
@click.option("--json", "as_json", is_flag=True, help="The result as one JSON object.")
@running_options
def kafka_mirror_maker(
    *, consumer_config: Path, producer_config: Path, check: bool, as_json: bool, **flags: Any
) -> None:
    """Run the flow that the flags of the former kafka-mirror-maker.sh describe (Kafka 3.9).

    It goes on until Ctrl-C. Exit status 0: it ended as requested, or with --check the flags are
    valid. 1: there are errors, or the flow cannot run.
    """
    running = {name: flags.pop(name) for name in RUNNING}
    options = LegacyOptions(**flags)
    legacy = legacy_flow(options, _properties(consumer_config), _properties(producer_config))
    flows = () if legacy.flow is None else (legacy.flow,)
    unused, errors = _check_clients(
        FlowClients(flow.source_alias, flow.target_alias, flow.source, flow.target)
        for flow in flows
    )
    warnings = tuple(f"{name} is not used by twinlog" for name in sorted(unused - READ_NAMES))
    result = MirrorMakerReport(
        flows=tuple(map(flow_row, flows)),
        lines=legacy.lines,
        warnings=warnings,
        errors=(*legacy.errors, *errors),
    )
    if check:
        _finish(result, as_json)
        return
    _require_valid(result)
    connections = {
        alias: client
        for flow in flows
        for alias, client in (
            (flow.source_alias, flow.source_client),
            (flow.target_alias, flow.target_client),
        )
    }
    _run(flows, connections, running)


def _require_valid(result: MirrorMakerReport) -> None:
    """Print warnings and errors; exit with 1 if there are errors."""
    for warning in result.warnings:
        say(f"Warning: {warning}")
    for error in result.errors:
        say(f"Error: {error}")
    if result.errors:
        sys.exit(1)


def _run(
    flows: Sequence[Flow], clusters: Mapping[str, Mapping[str, str]], running: Mapping[str, Any]
) -> None:
    targets, pairs = run_parts(flows, clusters)
    if not targets and not pairs:
        raise click.ClickException("no flow is enabled: write SOURCE->TARGET.enabled = true")
    set_up(running["log_level"], "text")
    maker = MirrorMaker(targets, pairs, _node_arguments(running))
    for flow in flows:
        if not flow.heartbeats_only:
            say(f"running {flow.name}")
    sys.exit(asyncio.run(_until_stopped(maker)))


def _node_arguments(running: Mapping[str, Any]) -> list[str]:
    """The options of `twinlog run` for each node."""
    arguments = ["--log-level", running["log_level"], "--master", running["master"]]
    if running["lanes"] is not None:
        arguments += ["--lanes", str(running["lanes"])]
    if running["lane_config"] is not None:
        arguments += ["--lane-config", str(running["lane_config"])]
    for name, values in (
        ("--conf", running["conf"]),
        ("--lane-property", running["lane_property"]),
    ):
        for value in values:
            arguments += [name, value]
    return arguments


async def _until_stopped(maker: MirrorMaker) -> int:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, maker.stop)
    return await maker.run()


def _read(file: Path) -> str:
    try:
        return file.read_bytes().decode(ENCODING)
    except OSError as error:
        raise UserError(f"cannot read properties from {file}: {error.strerror}") from error


def _properties(file: Path) -> dict[str, str]:
    return {key: item.value for key, item in last_values(parse_lines(_read(file))).items()}


def _check_clients(flows: Iterable[FlowClients]) -> tuple[frozenset[str], tuple[str, ...]]:
    """Names of client properties that twinlog does not use, and errors in the others."""
    unused: set[str] = set()
    roles: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for flow in flows:
        for side, role in sorted(CLIENTS_OF_FLOW):
            alias = flow.source_alias if side == "source" else flow.target_alias
            properties = getattr(getattr(flow, side), role)
            if BOOTSTRAP not in properties:
                continue  # it was reported with the line of `clusters`
            try:
                parsed = parse_config(properties)
            except UserError as error:
                roles[alias, str(error)].add(role)
            else:
                unused.update(parsed.unused)
    errors = (
        f"cluster {alias} ({', '.join(sorted(roles[alias, text]))}): {text}"
        for alias, text in roles
    )
    return frozenset(unused), tuple(errors)


def _finish(result: MirrorMakerReport, as_json: bool) -> None:
    """Print a report; exit with 1 if there are errors."""
    if as_json:
        print_json(result, indent=1)
    else:
        _print(result)
    if result.errors:
        sys.exit(1)


def _print(result: MirrorMakerReport) -> None:
    if result.flows:
        print_table(COLUMNS, map(_columns, result.flows))
        click.echo()
    print_table(("LINE", "VERDICT", "PROPERTY", "MEANING"), map(_line_columns, result.lines))
    for warning in result.warnings:
        say(f"Warning: {warning}")
    for error in result.errors:
        say(f"Error: {error}")


def _columns(row: FlowRow) -> tuple[str, ...]:
    mirrors = row.mirrors_topics
    return (
        f"{row.source}->{row.target}",
        _short(row.topics) if mirrors else "-",
        _short(row.groups) if row.checkpoints_seconds else "-",
        (row.remote_topic or "unknown") if mirrors else "-",
        _every(row.heartbeats_seconds),
        _every(row.checkpoints_seconds),
        _every(row.group_offsets_seconds),
    )


def _line_columns(line: FileLine) -> tuple[str, ...]:
    value = "..." if line.value is None else _short(line.value)
    number = str(line.number) if line.number else "-"
    return number, line.verdict.value, f"{line.key} = {value}", line.text


def _every(seconds: int | None) -> str:
    return "-" if seconds is None else f"every {seconds} s"


def _short(text: str) -> str:
    return text if len(text) <= MAX_CELL else f"{text[: MAX_CELL - 3]}..."
