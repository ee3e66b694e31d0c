"""`twinlog switchover`: a planned failover with nothing lost."""

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from twinlog.cli.options import destination_options, destination_properties
from twinlog.cli.readiness import ALL, find_readiness
from twinlog.cluster.config import parse_config
from twinlog.control.mirrors import connected
from twinlog.control.switchover import (
    Progress,
    Step,
    SwitchedOver,
    SwitchoverFailed,
    standing_against,
    switch_over,
)

SILENCE_S: Final = 5.0
TIMEOUT_S: Final = 300.0
UNFINISHED: Final = 3
"""Exit status where something was changed, and not all is as it is to be."""
INTERRUPTED: Final = 130


@click.command()
@destination_options
@click.option("--mirror", required=True, help="The mirror.")
@click.option(
    "--topic", default=ALL, help="Only this topic of it, or those that match; all by default."
)
@click.option(
    "--producers-stopped",
    "--yes",
    "stopped",
    is_flag=True,
    help="Do not ask: the producers of these topics on the source have been stopped.",
)
@click.option(
    "--silence-seconds",
    "silence_s",
    type=click.FloatRange(min=0.5),
    default=SILENCE_S,
    show_default=True,
    help="For how long nothing must have been written to the source.",
)
@click.option(
    "--step-timeout-seconds",
    "timeout_s",
    type=click.FloatRange(min=1),
    default=TIMEOUT_S,
    show_default=True,
    help="How long each step may take before all is left as it was.",
)
@click.option("--json", "as_json", is_flag=True, help="A JSON object for each step and the end.")
def switchover(
    *,
    bootstrap_server: str,
    command_config: Path | None,
    mirror: str,
    topic: str,
    stopped: bool,
    silence_s: float,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Fail over with nothing lost, while both clusters run.

    Waits until the source is silent, everything is mirrored and every group's offsets are copied,
    then removes the topics from the mirror. Up to there, an error or Ctrl-C changes nothing.

    Exit status 0: switched over. 1: it could not be done, and nothing was changed. 3: it was begun,
    and a person has to look. 130: interrupted.
    """
    properties = destination_properties(bootstrap_server, command_config)
    show = _Show(as_json=as_json)
    try:
        if not stopped:
            _ask(properties, mirror, topic, show)
        result = asyncio.run(
            _switch(properties, mirror, topic, silence_s=silence_s, timeout_s=timeout_s, show=show)
        )
    except SwitchoverFailed as error:
        show.failed(error)
        sys.exit(1 if error.gone_back else UNFINISHED)
    except KeyboardInterrupt:
        show.interrupted()
        sys.exit(INTERRUPTED)
    show.switched_over(result)
    sys.exit(0 if result.left_behind == () else UNFINISHED)


def _ask(properties: Mapping[str, str], mirror: str, topic: str, show: "_Show") -> None:
    """Look whether it is the time to stop producers, and ask for it.

    Raises:
        SwitchoverFailed: something stands against it.
        click.Abort: the answer is no.
    """
    found = asyncio.run(find_readiness(properties, mirror, topic))
    if against := standing_against(found):
        text = "; ".join(one.text for one in against)
        raise SwitchoverFailed(Step.READINESS, text, gone_back=True)
    show.progress(Progress(Step.PRODUCERS, done=False, text=Step.PRODUCERS.value))
    names = ", ".join(one.topic for one in found.topics)
    click.confirm(
        f"Stop all producers of these topics on the source: {names}\nAre they stopped?",
        abort=True,
        err=True,
    )
    show.progress(Progress(Step.PRODUCERS, done=True, text="the operator says that they are"))


async def _switch(
    properties: Mapping[str, str],
    mirror: str,
    topic: str,
    *,
    silence_s: float,
    timeout_s: float,
    show: "_Show",
) -> SwitchedOver:
    async with connected(parse_config(properties).config, "destination") as destination:
        return await switch_over(
            destination,
            mirror,
            topic,
            silence_s=silence_s,
            timeout_s=timeout_s,
            tell=show.progress,
        )


class _Show:
    """Steps on standard error, the end on standard output; with `--json` all of it there."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._can_go_back = True

    def progress(self, told: Progress) -> None:
        """A step begins, goes on, or is done."""
        self._can_go_back = told.step.can_go_back
        if self._as_json:
            self._object(
                step=told.step.name,
                done=told.done,
                text=told.text,
                can_go_back=self._can_go_back,
            )
        else:
            back = "" if self._can_go_back else " (no way back)"
            mark = "done" if told.done else "    "
            click.echo(f"{told.step.name:<10}{mark}  {told.text}{back}", err=True)

    def failed(self, error: SwitchoverFailed) -> None:
        """It has ended at a step."""
        if self._as_json:
            self._object(
                result="GONE_BACK" if error.gone_back else "UNFINISHED",
                step=error.step.name,
                error=error.message,
            )
        click.echo(f"Error: {error}", err=True)

    def interrupted(self) -> None:
        """By Ctrl-C."""
        text = (
            "nothing was changed: the mirror goes on, producers may write to the source again"
            if self._can_go_back
            else "the topics may be failed over: see kafka-mirrors --describe"
        )
        if self._as_json:
            self._object(result="GONE_BACK" if self._can_go_back else "UNFINISHED", error=text)
        click.echo(f"Interrupted; {text}", err=True)

    def switched_over(self, result: SwitchedOver) -> None:
        """It is done."""
        names = ", ".join(result.topics)
        late = result.left_behind
        if self._as_json:
            self._object(
                result="SWITCHED_OVER" if late == () else "UNFINISHED",
                mirror=result.mirror,
                topics=list(result.topics),
                left_behind=None if late is None else [_late(*one) for one in late],
            )
        else:
            click.echo(
                f"Switched over {len(result.topics)} topic(s) of mirror {result.mirror}: [{names}]"
            )
        if late is None:
            click.echo(
                "The source could not be asked whether it was written to meanwhile", err=True
            )
        for one in late or ():
            click.echo(
                f"NOT MIRRORED {one.partition} [{one.start}, {one.end}): written to the source by "
                "a producer that was not stopped",
                err=True,
            )

    @staticmethod
    def _object(**fields: Any) -> None:
        click.echo(json.dumps(fields))


def _late(partition: Any, start: int, end: int) -> dict[str, Any]:
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "start": start,
        "end": end,
    }
