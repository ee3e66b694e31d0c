"""The console scripts.

What a command imports stays until it ends. Looking through all of that for garbage, again and again
while it grows, is an eighth of the time that a command takes to start: so it begins afterwards.
"""

import gc
from importlib import import_module
from typing import Any


def kafka_mirrors() -> None:
    """`kafka-mirrors`."""
    _imported("twinlog.cli.kafka_mirrors").mirrors_command(prog_name="kafka-mirrors")


def twinlog() -> None:
    """`twinlog`."""
    _imported("twinlog.cli.main").main()


def _imported(name: str) -> Any:
    gc.disable()
    module = import_module(name)
    gc.freeze()
    gc.enable()
    return module
