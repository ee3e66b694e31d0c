"""Compiles the loop that meets every record while twinlog is installed or packed.

docs/decisions/0007-compiled-loop.md. Without a C compiler the module stays as it is, and works.
"""

import os
import shutil
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COMPILED = ("lone",)
"""Modules of src/twinlog/core."""
UNCACHED = ("--cache-dir", os.devnull)


class Compile(BuildHookInterface):
    """Hatchling's `custom` build hook, for wheels and for editable installations."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Put what this Python compiles beside the sources, in place of what it did before."""
        source = Path(self.root, "src")
        core = source / "twinlog" / "core"
        for name in COMPILED:
            for old in core.glob(f"{name}*{EXTENSION_SUFFIXES[0]}"):
                old.unlink()
        files = [f"twinlog/core/{name}.py" for name in COMPILED]
        found = subprocess.run(  # noqa: S603
            [sys.executable, "-m", "mypyc", "--ignore-missing-imports", *UNCACHED, *files],
            cwd=source,
            capture_output=True,
            text=True,
            check=False,
        )
        shutil.rmtree(source / "build", ignore_errors=True)
        if found.returncode:
            last = (found.stderr or found.stdout).strip().splitlines()[-1:]
            self.app.display_warning(f"twinlog stays interpreted: {''.join(last)}")
            return
        build_data["artifacts"] += ["*.so", "*.pyd"]
        if self.target_name == "wheel" and version == "standard":
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
