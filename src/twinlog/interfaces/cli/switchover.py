"""`twinlog switchover`: a planned failover that loses no record."""

import asyncio
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import click

from twinlog.interfaces.cli.calls import call
from twinlog.interfaces.cli.options import MirrorName, destination_options, destination_properties
from twinlog.interfaces.cli.output import print_json, say, unread_output_ignored
from twinlog.interfaces.cli.questions import confirm
from twinlog.kafka.client.configuration import read_properties
from twinlog.kafka.errors import TwinlogError
from twinlog.operations.mirror_admin import ALL_TOPICS, SILENCE_S, STEP_TIMEOUT_S, MirrorAdmin
from twinlog.operations.switchover.records import (
    Allowed,
    ForgottenDenials,
    Producers,
    Progress,
    Step,
    SwitchedOver,
    SwitchoverFailed,
    SwitchoverInterrupted,
)
from twinlog.text import printable

LEFT: Final = "Left to the source's own mirror, whose failover removes them"
UNFINISHED: Final = 3
"""Exit status if something was changed, and the switchover is not complete."""
INTERRUPTED: Final = 130


@click.command()
@destination_options
@click.option("--mirror", required=True, type=MirrorName(), help="The mirror.")
@click.option(
    "--topic",
    default=ALL_TOPICS,
    help="Only this topic, or the topics that match this regular expression; all by default.",
)
@click.option(
    "--producers-stopped",
    "--yes",
    "stopped",
    is_flag=True,
    help="Do not ask: the producers of these topics on the source are stopped, or at least those "
    "that ACLs cannot deny WRITE.",
)
@click.option(
    "--leave-acls", is_flag=True, help="Do not add ACLs on the source that deny producers to write."
)
@click.option(
    "--source-config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Client properties for a principal that may alter the source's ACLs; the mirror's own "
    "by default.",
)
@click.option(
    "--allow-producers",
    "allow",
    is_flag=True,
    help="Instead of switching over: remove the denials that switchovers have created on the "
    "source.",
)
@click.option(
    "--forget-denials",
    "forget",
    is_flag=True,
    help="With --allow-producers: forget the denials without removing them, because the source no "
    "longer exists.",
)
@click.option(
    "--silence-seconds",
    "silence_s",
    type=click.FloatRange(min=0.5),
    default=SILENCE_S,
    show_default=True,
    help="How long nothing must have been written to the source.",
)
@click.option(
    "--step-timeout-seconds",
    "timeout_s",
    type=click.FloatRange(min=1),
    default=STEP_TIMEOUT_S,
    show_default=True,
    help="How long each step may take before the switchover ends and is undone.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print a JSON object for each step and for the result."
)
def switchover(
    *,
    bootstrap_server: str,
    command_config: Path | None,
    mirror: str,
    topic: str,
    stopped: bool,
    leave_acls: bool,
    source_config: Path | None,
    allow: bool,
    forget: bool,
    silence_s: float,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Fail over without losing a record, while both clusters run.

    Adds ACLs that deny producers to write to the source if it has an authorizer. Waits until
    nothing is written to the source, everything is mirrored and every group's offsets are copied.
    Then removes the topics from the mirror. Until then, an error, Ctrl-C, SIGTERM or SIGHUP removes
    the deny ACLs of this switchover; afterwards they stay until --allow-producers.

    Exit status 0: switched over. 1: not switched over, and nothing is changed. 3: not complete, or
    it could not be undone; an operator has to check. 130: interrupted.
    """
    if forget and not allow:
        raise click.UsageError("--forget-denials needs --allow-producers")
    properties = destination_properties(bootstrap_server, command_config)
    source = None if source_config is None else read_properties(source_config)
    show = _Show(as_json=as_json)
    if allow:
        _release(properties, mirror, topic, source, forget=forget, as_json=as_json)
        return
    producers = Producers(
        stopped=stopped, deny=not leave_acls, source_config=source, ask=_ask_whether_stopped
    )
    try:
        result = asyncio.run(
            _switch(
                *(properties, mirror, topic, producers),
                silence_s=silence_s,
                timeout_s=timeout_s,
                show=show,
            )
        )
    except SwitchoverFailed as error:
        show.failed(error)
        sys.exit(1 if error.gone_back else UNFINISHED)
    except TwinlogError as error:  # before its first step
        show.failed(SwitchoverFailed(Step.READINESS, str(error), gone_back=True))
        sys.exit(1)
    except (KeyboardInterrupt, asyncio.CancelledError):
        show.interrupted()
        sys.exit(INTERRUPTED)
    show.switched_over(result)
    sys.exit(0 if result.finished else UNFINISHED)


async def _ask_whether_stopped(topics: Sequence[str], why: str) -> bool:
    """Ask the operator whether the producers that no ACL keeps out are stopped."""
    # The text has principals of the source's ACLs, which may be any text.
    return await confirm(
        f"Stop all producers of these topics on the source: {printable(', '.join(topics))}\n"
        f"({printable(why)})\nAre they stopped?"
    )


def _release(
    properties: Mapping[str, str],
    mirror: str,
    topic: str,
    source: Mapping[str, str] | None,
    *,
    forget: bool,
    as_json: bool,
) -> None:
    """Remove or forget denials, and print those that were removed, left or forgotten."""
    if forget:
        forgotten = call(properties, lambda admin: admin.forget_denials(mirror, topic))
        released: Allowed | ForgottenDenials = forgotten
        texts = [("Forgotten", forgotten.denials)]
    else:
        released = allowed = call(
            properties, lambda admin: admin.allow_producers(mirror, topic, source_config=source)
        )
        texts = [("Removed on the source", allowed.taken_back)]
        if allowed.left:
            texts.append((LEFT, allowed.left))
    if as_json:
        print_json(released)
        return
    for label, acls in texts:
        click.echo(f"{label}: {len(acls)} denial(s)")
        for text in sorted(map(str, acls)):
            click.echo(printable(text))


async def _switch(
    properties: Mapping[str, str],
    mirror: str,
    topic: str,
    producers: Producers,
    *,
    silence_s: float,
    timeout_s: float,
    show: "_Show",
) -> SwitchedOver:
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # as nohup does, on purpose
    _cancel_at([signal.SIGTERM] if ignored else [signal.SIGTERM, signal.SIGHUP])
    async with MirrorAdmin(properties) as admin:
        return await admin.switchover(
            *(mirror, topic),
            producers=producers,
            silence_s=silence_s,
            timeout_s=timeout_s,
            tell=show.progress,
        )


def _cancel_at(numbers: Sequence[signal.Signals]) -> None:
    """Let the first of these signals cancel the current task, as Ctrl-C does.

    Later ones, of either kind, change nothing: the task cleans up.
    """
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()

    def cancel() -> None:
        for number in numbers:
            loop.add_signal_handler(number, lambda: None)
        task.cancel()

    for number in numbers:
        loop.add_signal_handler(number, cancel)


class _Show:
    """The steps on standard error, the result on standard output; with `--json` all on stdout."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._interruption = SwitchoverInterrupted()

    def progress(self, report: Progress) -> None:
        """Show that a step begins, goes on, or is done."""
        self._interruption = SwitchoverInterrupted(report.step.can_go_back, report.denied)
        if self._as_json:
            print_json(report)
        else:
            note = "" if report.step.can_go_back else " (cannot be undone)"
            mark = "done" if report.done else "    "
            say(f"{report.step.name:<10}{mark}  {report.text}{note}")

    @unread_output_ignored()
    def failed(self, error: SwitchoverFailed) -> None:
        """Show the step at which the switchover failed."""
        if self._as_json:
            print_json(error)
        say(f"Error: {error}")

    @unread_output_ignored()
    def interrupted(self) -> None:
        """Show that Ctrl-C, SIGTERM or SIGHUP has interrupted the switchover."""
        if self._as_json:
            print_json(self._interruption)
        click.echo(f"Interrupted; {self._interruption}", err=True)

    @unread_output_ignored()
    def switched_over(self, result: SwitchedOver) -> None:
        """Show the result."""
        names = ", ".join(result.topics)
        leftovers = result.left_behind
        if self._as_json:
            print_json(result)
        else:
            click.echo(
                f"Switched over {len(result.topics)} topic(s) of mirror {result.mirror}: "
                f"[{printable(names)}]"
            )
        if result.not_denied:
            say(f"Producers may be able to write to the source: {result.not_denied}")
        elif result.denied:
            click.echo(
                "Producers stay denied WRITE on the source; to allow them: twinlog switchover "
                f"--mirror {result.mirror} --allow-producers",
                err=True,
            )
        if leftovers is None:
            click.echo(
                "Unknown whether the source was written to during the failover: "
                "it could not be read",
                err=True,
            )
        if result.groups_behind:
            say(f"GROUPS {result.groups_behind}")
        for leftover in leftovers or ():
            click.echo(
                f"NOT MIRRORED {leftover.partition} [{leftover.start}, {leftover.end}): written to "
                "the source by "
                "a producer that was not stopped",
                err=True,
            )
