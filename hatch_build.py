"""Compiles the loops that meet every record, or every byte, while twinlog is installed or packed.

docs/decisions/0007-compiled-modules.md. Where there is no C compiler the modules work as they are.
"""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COMPILED = ("checksum", "lone", "rebase", "record_parts", "small_transactions")
"""Modules of src/twinlog/kafka/log.

Compiled together they would share a library beside the package.
"""
MYPYC = (sys.executable, "-m", "mypyc", "--ignore-missing-imports", "--cache-dir", os.devnull)


class Compile(BuildHookInterface):
    """Hatchling's `custom` build hook, for wheels and for editable installations."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Put what this Python compiles beside the sources, in place of what it did before."""
        source = Path(self.root, "src")
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            compiled = list(pool.map(partial(self._compile, source), COMPILED))
        build_data["artifacts"] += ["*.so", "*.pyd"]
        if any(compiled) and self.target_name == "wheel" and version == "standard":
            build_data["pure_python"] = False
            build_data["infer_tag"] = True

    def _compile(self, source: Path, name: str) -> bool:
        for old in (source / "twinlog" / "kafka" / "log").glob(f"{name}*{EXTENSION_SUFFIXES[0]}"):
            old.unlink()
        # What is built on the way goes below the working directory, of which each has its own.
        with TemporaryDirectory() as folder:
            Path(folder, "twinlog").symlink_to(source / "twinlog")
            found = subprocess.run(  # noqa: S603
                [*MYPYC, f"twinlog/kafka/log/{name}.py"],
                cwd=folder,
                capture_output=True,
                text=True,
                check=False,
            )
        if found.returncode:
            last = (found.stderr or found.stdout).strip().splitlines()[-1:]
            self.app.display_warning(f"kafka/log/{name}.py stays interpreted: {''.join(last)}")
        return not found.returncode
