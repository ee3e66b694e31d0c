"""The console scripts, with two measures for a quick start.

- The garbage collector is off during the imports: imported objects live until the command ends, and
  scanning them again and again takes an eighth of the start time.
- The clients of kafka-python are not imported: its package imports them, which takes another
  eighth, and twinlog uses none. So the package's own code is not run; its modules are imported by
  name.
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
