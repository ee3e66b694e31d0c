"""Questions to an operator, while an event loop goes on."""

import asyncio
import io
import os
import sys
from typing import Final

import click

_ANSWERS: Final = {"y": True, "yes": True, "n": False, "no": False, "": False}
_READ: Final = 4096


async def confirm(question: str) -> bool:
    """Ask a question on standard error, as `click.confirm` does; no answer counts as no.

    The event loop goes on: a signal can cancel the task that asks.
    """
    typed = ""
    while True:
        click.echo(f"{question} [y/N]: ", nl=False, err=True)
        while "\n" not in typed:
            more = await _read()
            if not more and not typed:  # standard input is closed
                click.echo(err=True)
                return False
            typed += more or "\n"  # the last line may have no end
        line, _, typed = typed.partition("\n")
        answer = _ANSWERS.get(line.strip().lower())
        if answer is not None:
            return answer
        click.echo("Error: invalid input", err=True)


async def _read() -> str:
    """What was typed, or piped; empty at the end of standard input."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    try:
        descriptor = sys.stdin.fileno()
        loop.add_reader(descriptor, readable.set)
    except (io.UnsupportedOperation, PermissionError):
        return sys.stdin.readline()  # a file, or no descriptor at all: it does not block for long
    try:
        await readable.wait()
    except asyncio.CancelledError:
        click.echo(err=True)  # what follows begins on a line of its own
        raise
    finally:
        loop.remove_reader(descriptor)
    return os.read(descriptor, _READ).decode(errors="replace")
