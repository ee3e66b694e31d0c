"""`twinlog mirror-maker` and `twinlog kafka-mirror-maker`: MirrorMaker's commands.

Both take the files and flags of Kafka's own scripts, `connect-mirror-maker.sh` and the former
`kafka-mirror-maker.sh`, and run their flows. `--check` explains them, and connects to no cluster.

The commands import what they need when they run: every other command would start later by the 25
milliseconds that its import takes.
"""

import asyncio
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

import click

import twinlog
from twinlog.interfaces.cli.options import ListenAddress, lane_options, spark_options
from twinlog.interfaces.cli.output import say
from twinlog.interfaces.cli.signals import end_signals

PROPERTIES_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
RUNNING: Final = (
    *("node", "master", "conf", "lanes", "lane_config", "lane_property"),
    *("log_level", "metrics_address"),
)
_LAST_PORT: Final = 65535
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
        "--metrics-address",
        type=ListenAddress(),
        help="Address for Prometheus metrics and /health of the first target's node; each further "
        "target has the next port.",
    )(command)
    command = click.option(
        "--lanes",
        type=click.IntRange(min=1),
        help="Number of lanes for each target; one for each core by default.",
    )(command)
    command = click.option("--node", help="Name of each target's node; the host name by default.")(
        command
    )
    return spark_options(lane_options(command))


@click.command("mirror-maker")
@click.argument("file", type=PROPERTIES_FILE)
@click.argument("aliases", nargs=-1)
@click.option("--clusters", is_flag=True, help="Only flows to the clusters ALIASES, behind FILE.")
@click.option("--check", is_flag=True, help="Explain each line of FILE; connect to no cluster.")
@click.option(
    "--takeover",
    is_flag=True,
    help="New flows go on where MirrorMaker 2 has stopped (twinlog.takeover=compare).",
)
@click.option(
    "--hand-back",
    is_flag=True,
    help="Record where MirrorMaker 2 goes on with flows whose topics were removed; then end.",
)
@click.option(
    "--own-offsets",
    type=click.Choice(["keep", "replace"]),
    help="With --hand-back: what becomes of offsets that MirrorMaker 2 has recorded itself and the "
    "flow has not reached. By default, nothing is handed back.",
)
@click.option("--json", "as_json", is_flag=True, help="The result as one JSON object.")
@running_options
def mirror_maker(
    *,
    file: Path,
    aliases: tuple[str, ...],
    clusters: bool,
    check: bool,
    takeover: bool,
    hand_back: bool,
    own_offsets: str | None,
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
    if check + takeover + hand_back > 1:
        raise click.UsageError("expected at most one of --check, --takeover and --hand-back")
    if own_offsets is not None and not hand_back:
        raise click.UsageError("--own-offsets needs --hand-back")

    def checked() -> Any:
        from twinlog.operations.mirror_maker import check_file  # noqa: PLC0415 (see above)

        return check_file(file, aliases, analyse=check, tell=say)

    if hand_back:
        _hand_back(checked(), own_offsets or "refuse")
    elif check:
        _explain(checked(), as_json)
    else:
        _run(checked, running, takeover=takeover)


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
@click.version_option(
    twinlog.__version__, message="%(version)s (twinlog)", help="Display twinlog's version."
)
@click.option("--check", is_flag=True, help="Explain the flags; connect to nothing.")
@click.option("--json", "as_json", is_flag=True, help="The result as one JSON object.")
@running_options
def kafka_mirror_maker(
    *, consumer_config: Path, producer_config: Path, check: bool, as_json: bool, **flags: Any
) -> None:
    """Run the flow that flags of the former kafka-mirror-maker.sh describe (Kafka 3.9 and older).

    It goes on until Ctrl-C. Exit status 0: it ended as requested, or with --check the flags are
    valid. 1: there are errors, or the flow cannot run.
    """
    running = {name: flags.pop(name) for name in RUNNING}

    def checked() -> Any:
        from twinlog.mirror.legacy_mirror_maker import LegacyOptions  # noqa: PLC0415 (see above)
        from twinlog.operations.mirror_maker import check_flags  # noqa: PLC0415

        return check_flags(LegacyOptions(**flags), consumer_config, producer_config)

    if check:
        _explain(checked(), as_json)
    else:
        _run(checked, running)


def _explain(checked: Any, as_json: bool) -> None:
    """Print the report of a check."""
    from twinlog.interfaces.cli.mirror_maker_tables import finish  # noqa: PLC0415 (see above)

    finish(checked.report, as_json)


def _run(
    check: Callable[[], Any], running: Mapping[str, Any], *, takeover: bool = False
) -> NoReturn:
    """Check the flows, and run them until a signal, which may arrive from now on."""
    with end_signals() as call_at_signals:
        checked = check()
        maker = _mirror_maker(checked, running, takeover=takeover)

        async def until_stopped() -> int:
            call_at_signals(maker.stop)
            status: int = await maker.run()
            return status

        for flow in checked.flows:
            if not flow.heartbeats_only:
                say(f"running {flow.name}")
        sys.exit(asyncio.run(until_stopped()))


def _mirror_maker(checked: Any, running: Mapping[str, Any], *, takeover: bool) -> Any:
    """What runs the flows, if they can run."""
    from twinlog.interfaces.cli.mirror_maker_tables import require_valid  # noqa: PLC0415 (see above)
    from twinlog.logs import set_up  # noqa: PLC0415
    from twinlog.node.flow_targets import run_parts  # noqa: PLC0415
    from twinlog.node.mirror_maker import MirrorMaker  # noqa: PLC0415

    require_valid(checked.report)
    targets, pairs = run_parts(
        checked.flows, checked.clusters, disabled=checked.disabled, takeover=takeover
    )
    if not targets and not pairs:
        raise click.ClickException("no flow is enabled: write SOURCE->TARGET.enabled = true")
    metrics = running["metrics_address"]
    if metrics is not None and not 0 < metrics[1] <= _LAST_PORT - len(targets) + 1:
        raise click.UsageError(
            f"--metrics-address: {len(targets)} nodes need ports from {metrics[1]} on: name a port "
            f"from 1 to {_LAST_PORT - len(targets) + 1}"
        )
    set_up(running["log_level"], "text")
    return MirrorMaker(targets, pairs, _node_arguments(running), say, metrics)


def _hand_back(checked: Any, own_offsets: str) -> None:
    """Record where MirrorMaker 2 goes on."""
    from twinlog.interfaces.cli.mirror_maker_tables import require_valid  # noqa: PLC0415 (see above)
    from twinlog.lifecycle.worker_offsets import OwnOffsets  # noqa: PLC0415
    from twinlog.node.flow_targets import run_parts  # noqa: PLC0415
    from twinlog.node.mirror_maker import hand_back_flows  # noqa: PLC0415

    require_valid(checked.report)
    targets, _ = run_parts(checked.flows, checked.clusters)
    asyncio.run(hand_back_flows(targets, OwnOffsets(own_offsets), say))


def _node_arguments(running: Mapping[str, Any]) -> list[str]:
    """The options of `twinlog run` for each node."""
    arguments = ["--log-level", running["log_level"], "--master", running["master"]]
    for name in ("node", "lanes", "lane_config"):
        if running[name] is not None:
            arguments += [f"--{name.replace('_', '-')}", str(running[name])]
    for name in ("conf", "lane_property"):
        for value in running[name]:
            arguments += [f"--{name.replace('_', '-')}", value]
    return arguments
