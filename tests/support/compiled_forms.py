"""The two forms of a module that mypyc compiles (docs/decisions/0007-compiled-modules.md)."""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any


def source(module: ModuleType) -> Path:
    """Return the module's source file, also for a compiled module."""
    assert module.__file__ is not None
    built = Path(module.__file__)
    return built.with_name(f"{built.name.split('.')[0]}.py")


def interpreted(module: ModuleType) -> Any:
    """Load the same module from its source, uncompiled."""
    spec = importlib.util.spec_from_file_location(f"interpreted_{module.__name__}", source(module))
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found
