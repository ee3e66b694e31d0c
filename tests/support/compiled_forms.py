"""The two forms of a module that mypyc compiles (docs/decisions/0007-compiled-modules.md)."""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any


def source(module: ModuleType) -> Path:
    """The file that it was written in, or compiled from."""
    assert module.__file__ is not None
    built = Path(module.__file__)
    return built.with_name(f"{built.name.split('.')[0]}.py")


def interpreted(module: ModuleType) -> Any:
    """The same module from its source, never compiled."""
    spec = importlib.util.spec_from_file_location(f"interpreted_{module.__name__}", source(module))
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found
