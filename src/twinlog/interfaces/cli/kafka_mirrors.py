"""`kafka-mirrors`, and `twinlog mirrors`: KIP-1279's command, flag for flag.

The tables are the KIP's, on standard output; everything else (warnings, reasons of FAILED
partitions, stale statuses) goes to standard error, so that scripts get the tables that they expect.
`--json` prints the same and more for programs. Each call has one action; `ACTIONS` has them all,
and an action's flag and its `--json` come from there:

    action       needs                        may have
    -----------  ---------------------------  --------------------
    --create     --mirror, --mirror-config    --replication-factor
    --add        --mirror, --topic            --replication-factor, --rebuild, --save-tail
    --pause      --mirror, --topic
    --resume     --mirror, --topic
    --remove     --mirror, --topic            --wait-seconds
    --alter      --mirror, --mirror-config
    --delete     --mirror
    --list
    --describe                                --mirror
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, TypeVar

import click

import twinlog
from twinlog.interfaces.cli.conditions import say_conditions, say_incomplete
from twinlog.interfaces.cli.options import destination_properties
from twinlog.interfaces.cli.output import print_json, say
from twinlog.interfaces.cli.tables import print_table
from twinlog.kafka.client.configuration import read_properties
from twinlog.kafka.client.references import EVERYTHING
from twinlog.kafka.errors import UserError
from twinlog.lifecycle import creation as mirrors
from twinlog.lifecycle.rebuild import Interrupted, Rebuild
from twinlog.mirror.mirror_names import check_name, mirror_name
from twinlog.operations.describe import DescribedPartition
from twinlog.operations.mirror_admin import MirrorAdmin
from twinlog.operations.results import (
    ChangedTopics,
    CreateMirrorResult,
    DeleteMirrorResult,
    DescribeMirrorsResult,
    ListMirrorsResult,
)
from twinlog.text import printable

WAIT_SECONDS: Final = 60.0
"""How long --remove waits until its partitions are STOPPED: a takeover adds a lease."""

LIST_COLUMNS: Final = ("MIRROR", "TOPICS", "CLUSTER-ID", "BOOTSTRAP-SERVER")
DESCRIBE_COLUMNS: Final = (
    "MIRROR",
    "TOPIC",
    "PARTITION",
    "SOURCE-OFFSET",
    "DESTINATION-OFFSET",
    "LAG",
    "STATE",
)

OF_ACTIONS: Final = (
    "mirror", "mirror_config", "topic", "replication_factor", "rebuild", "save_tail",
    "wait_seconds",
)  # fmt: skip

R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """The arguments of the action."""

    mirror: str = ""
    mirror_config: Path | None = None
    topic: str = ""
    replication_factor: int | None = None
    rebuild: bool = False
    save_tail: Path | None = None
    wait_seconds: float = WAIT_SECONDS
    as_json: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Action(Generic[R]):
    """An action: how its operation is called, and its result printed.

    Attributes:
        help: of its flag.
        needs: arguments without which it is refused.
        may_have: arguments that go with it as well.
        check: what can be checked without a cluster, before any request.
        call: calls the operation.
        text: prints the result for people.
        notes: prints what has to be known in any case, on standard error.
    """

    help: str
    needs: tuple[str, ...] = ()
    may_have: tuple[str, ...] = ()
    check: Callable[[Arguments], None] = lambda _: None
    call: Callable[[MirrorAdmin, Arguments], Awaitable[R]]
    text: Callable[[R], None]
    notes: Callable[[R], None] = lambda _: None

    async def run(self, admin: MirrorAdmin, arguments: Arguments) -> None:
        """Call the operation, and print its result."""
        result = await self.call(admin, arguments)
        if arguments.as_json:
            print_json(result, indent=1)
        else:
            self.text(result)
        self.notes(result)


def _check_created(arguments: Arguments) -> None:
    """Check the mirror's name and properties; an error names the file of --mirror-config."""
    check_name(arguments.mirror)
    try:
        warnings = mirrors.check_properties(_configs(arguments), EVERYTHING)[1]
    except UserError as error:
        error.message = f"{arguments.mirror_config}: {error.message}"
        raise
    for warning in warnings:
        say(f"{arguments.mirror_config}: {warning}")


def _configs(arguments: Arguments) -> dict[str, str]:
    assert arguments.mirror_config is not None
    return read_properties(arguments.mirror_config)


async def _create(admin: MirrorAdmin, arguments: Arguments) -> CreateMirrorResult:
    return await admin.create_mirror(
        arguments.mirror, _configs(arguments), replication_factor=arguments.replication_factor
    )


async def _add(admin: MirrorAdmin, arguments: Arguments) -> ChangedTopics:
    return await admin.add_topics_to_mirror(
        arguments.mirror,
        arguments.topic,
        replication_factor=arguments.replication_factor,
        rebuild=Rebuild(arguments.save_tail, say) if arguments.rebuild else None,
    )


class _Removed(NamedTuple):
    """Topics that were removed, and their partitions if they were waited for."""

    topics: ChangedTopics
    stopped: tuple[DescribedPartition, ...] = ()

    def as_json(self) -> object:
        return self.topics


async def _remove(admin: MirrorAdmin, arguments: Arguments) -> _Removed:
    topics = await admin.remove_topics_from_mirror(arguments.mirror, arguments.topic)
    if not arguments.wait_seconds:
        return _Removed(topics)
    stopped_partitions = await admin.await_stopped(
        arguments.mirror, topics, timeout_s=arguments.wait_seconds, tell=say
    )
    return _Removed(topics, stopped_partitions)


def _say_reasons(result: _Removed) -> None:
    """Print the reasons stored with STOPPED: foreign records, or that nothing was fenced."""
    for _, topic, partition in result.stopped:
        if partition.reason:
            say(f"{topic.topic}-{partition.partition} is STOPPED: {partition.reason}")


def _print_topics(sentence: str) -> Callable[[ChangedTopics], None]:
    """Print a sentence about topics: their number, their mirror, and their names."""

    def show(topics: ChangedTopics) -> None:
        start = f"{sentence.format(len(topics))} {topics.mirror}"
        click.echo(f"{start}: [{printable(', '.join(topics))}]")

    return show


def _print_deleted(result: DeleteMirrorResult) -> None:
    click.echo(f"Deleted mirror {result.mirror}")
    if result.copied_acls:
        say(
            f"{len(result.copied_acls)} ACL(s) that were copied from the source stay, but no "
            "longer follow it; remove those that are not needed with kafka-acls --remove:"
        )
        for acl in result.copied_acls:
            say(acl)


def _print_list(result: ListMirrorsResult) -> None:
    rows = [
        (mirror.mirror, mirror.topics, mirror.source_cluster_id, mirror.source_bootstrap)
        for mirror in result.mirrors
    ]
    print_table(LIST_COLUMNS, rows)


async def _describe(admin: MirrorAdmin, arguments: Arguments) -> DescribeMirrorsResult:
    return await admin.describe_mirrors([arguments.mirror] if arguments.mirror else None)


def _print_description(result: DescribeMirrorsResult) -> None:
    rows = result.partitions
    print_table(DESCRIBE_COLUMNS, map(_columns, rows))
    say_conditions(rows)


def _columns(row: DescribedPartition) -> tuple[object, ...]:
    """The KIP's columns."""
    mirror, topic, partition = row
    offsets = (partition.source_offset, partition.destination_offset, partition.lag)
    return (mirror.mirror, topic.topic, partition.partition, *offsets, partition.state.name)


def _warn_incomplete(result: ListMirrorsResult | DescribeMirrorsResult) -> None:
    """Warn of topics that are not mirrored, and of records that cannot be read."""
    say_incomplete((mirror.not_mirrored for mirror in result.mirrors), result.unreadable)


ACTIONS: Final[Mapping[str, Action[Any]]] = {
    "create": Action(
        help="Create a new cluster mirror from a source cluster.",
        needs=("mirror", "mirror_config"),
        may_have=("replication_factor",),
        check=_check_created,
        call=_create,
        text=lambda result: click.echo(f"Created mirror {result.mirror}"),
    ),
    "add": Action(
        help="Add topic(s) to an existing cluster mirror (supports regex).",
        needs=("mirror", "topic"),
        may_have=("replication_factor", "rebuild", "save_tail"),
        call=_add,
        text=_print_topics("Added {} topic(s) to mirror"),
    ),
    "pause": Action(
        help="Pause mirroring for topic(s) matching the pattern (supports regex).",
        needs=("mirror", "topic"),
        call=lambda admin, given: admin.pause_mirror_topics(given.mirror, given.topic),
        text=_print_topics("Paused mirroring for {} topic(s) in mirror"),
    ),
    "resume": Action(
        help="Resume mirroring for previously paused topic(s) matching the pattern (supports "
        "regex).",
        needs=("mirror", "topic"),
        call=lambda admin, given: admin.resume_mirror_topics(given.mirror, given.topic),
        text=_print_topics("Resumed mirroring for {} topic(s) in mirror"),
    ),
    "remove": Action(
        help="Remove topic(s) from an existing cluster mirror (supports regex).",
        needs=("mirror", "topic"),
        may_have=("wait_seconds",),
        call=_remove,
        text=lambda removed: _print_topics("Removed {} topic(s) from mirror")(removed.topics),
        notes=_say_reasons,
    ),
    "alter": Action(
        help="Alter the configuration of an existing cluster mirror.",
        needs=("mirror", "mirror_config"),
        call=lambda admin, given: admin.alter_mirror(given.mirror, _configs(given)),
        text=lambda done: click.echo(f"Completed updating config for mirror {done.mirror}."),
    ),
    "delete": Action(
        help="Delete a cluster mirror that is empty or has only stopped partitions.",
        needs=("mirror",),
        call=lambda admin, given: admin.delete_mirror(given.mirror),
        text=_print_deleted,
    ),
    "list": Action(
        help="List all cluster mirrors.",
        call=lambda admin, _: admin.list_mirrors(),
        text=_print_list,
        notes=_warn_incomplete,
    ),
    "describe": Action(
        help="Describe a cluster mirror including partition lag and state.",
        may_have=("mirror",),
        call=_describe,
        text=_print_description,
        notes=_warn_incomplete,
    ),
}


def _with_actions(command: click.Command) -> click.Command:
    """Add the actions' flags; those before `--json` are in order of the alphabet."""
    names = [parameter.name for parameter in command.params]
    at = names.index("as_json")
    flags = [
        click.Option([f"--{name}", name], is_flag=True, help=action.help)
        for name, action in ACTIONS.items()
    ]
    command.params[:at] = sorted(
        [*flags, *command.params[:at]], key=lambda parameter: parameter.opts[0]
    )
    return command


@_with_actions
@click.command(
    help="This tool helps to create cluster mirrors and add topics to them.",
    context_settings={"max_content_width": 100},
)
@click.option(
    "--bootstrap-server",
    metavar="<String: server to connect to>",
    required=True,
    help="REQUIRED: The destination Kafka server to connect to.",
)
@click.option(
    "--command-config",
    metavar="<String: command config property file>",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Property file containing configs to be passed to Admin Client.",
)
@click.option("--mirror", metavar="<String: mirror>", help="The name of the cluster mirror.")
@click.option(
    "--mirror-config",
    metavar="<String: mirror config property file>",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Property file containing source cluster configs for mirroring.",
)
@click.option(
    "--rebuild",
    is_flag=True,
    default=None,
    help="With --add: delete destination topics that were failed over or removed from a mirror and "
    "hold records that the source does not have, and mirror them from the beginning.",
)
@click.option(
    "--replication-factor",
    metavar="<Short: replication-factor>",
    type=click.IntRange(1, (1 << 15) - 1),
    help="The replication factor to use for the mirror topic. If not specified, uses the "
    "destination cluster's default.",
)
@click.option(
    "--save-tail",
    metavar="<String: directory>",
    type=click.Path(path_type=Path, file_okay=False),
    help="With --rebuild: first save the records that only the destination has to this directory, "
    "as TOPIC-PARTITION/OFFSET.log, for kafka-dump-log.",
)
@click.option(
    "--topic",
    metavar="<String: topic>",
    help="Topic name or regex pattern to match topics (e.g., 'my-topic' or 'test-.*').",
)
@click.option(
    "--wait-seconds",
    metavar="<Float: seconds>",
    type=click.FloatRange(0),
    help="With --remove: how long to wait until the partitions are STOPPED; it is an error if they "
    f"are not by then, and the removal goes on. {WAIT_SECONDS:g} by default, 0 does not wait.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.version_option(
    twinlog.__version__, message="%(version)s (twinlog)", help="Display twinlog's version."
)
@click.help_option("--help", help="Print usage information.")
@click.pass_context
def mirrors_command(
    context: click.Context,
    /,
    *,
    bootstrap_server: str,
    command_config: Path | None,
    debug: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Parse the options, run the action, and print each error as one line."""
    action, arguments = _parse(options, as_json=as_json)
    try:
        asyncio.run(_run(action, _admin(bootstrap_server, command_config), arguments))
    except (click.ClickException, click.exceptions.Exit, click.Abort):
        raise
    except Interrupted as error:
        say(f"Error: {error}")
        context.exit(error.exit_status)
    except Exception as error:
        if debug or context.find_root().params.get("debug"):
            raise
        lines = str(error).splitlines() or [type(error).__name__]
        raise click.ClickException(printable(lines[0])) from error


def _parse(options: Mapping[str, Any], *, as_json: bool) -> tuple[str, Arguments]:
    """Return the action and its arguments.

    Raises:
        click.UsageError: none or several actions, or a missing or surplus argument.
    """
    actions = [name for name in ACTIONS if options[name]]
    if len(actions) != 1:
        flags = ", ".join(f"--{name}" for name in ACTIONS)
        raise click.UsageError(f"Command must include exactly one action: {flags}")
    action = ACTIONS[actions[0]]
    values = {name: options[name] for name in OF_ACTIONS if options[name] is not None}
    for name in action.needs:
        if name not in values:
            raise click.UsageError(f"--{actions[0]} needs {_flag(name)}")
    for name in values:
        if name not in action.needs + action.may_have:
            raise click.UsageError(f"{_flag(name)} cannot be used with --{actions[0]}")
    if "save_tail" in values and not values.get("rebuild"):
        raise click.UsageError("--save-tail needs --rebuild")
    if "mirror" in values and action is not ACTIONS["create"]:
        # A flow is not created here: there `A->B` is refused, as a name that no mirror can have.
        values["mirror"] = mirror_name(values["mirror"])
    return actions[0], Arguments(as_json=as_json, **values)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _admin(bootstrap_server: str, command_config: Path | None) -> MirrorAdmin:
    """The administration client for the destination's mirrors.

    Raises:
        UserError: a setting is malformed.
    """
    properties = destination_properties(bootstrap_server, command_config)
    admin = MirrorAdmin({"client.id": "kafka-mirrors", **properties})
    for warning in admin.warnings:
        say(f"{command_config}: {warning}")
    return admin


async def _run(name: str, admin: MirrorAdmin, arguments: Arguments) -> None:
    action = ACTIONS[name]
    action.check(arguments)
    async with admin:
        await action.run(admin, arguments)
