"""The console scripts.

What a command imports stays until it ends. Looking through all of that for garbage, again and again
while it grows, is an eighth of the time that a command takes to start: so it begins afterwards.
Another eighth are kafka-python's clients, which its package imports, and of which we use none: the
package is there, with what is imported from it by name.
"""

import gc
import sys
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from typing import Any


def kafka_mirrors() -> None:
    """`kafka-mirrors`."""
    _imported("twinlog.interfaces.cli.kafka_mirrors").mirrors_command(prog_name="kafka-mirrors")


def twinlog() -> None:
    """`twinlog`."""
    _imported("twinlog.interfaces.cli.main").main()


def _imported(name: str) -> Any:
    gc.disable()
    _leave_out_clients()
    module = import_module(name)
    gc.freeze()
    gc.enable()
    return module


def _leave_out_clients() -> None:
    spec = find_spec("kafka")
    if spec is not None:
        sys.modules.setdefault(spec.name, module_from_spec(spec))
