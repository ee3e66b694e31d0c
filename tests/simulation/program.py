"""Runs the simulation as a program of its own: Python's hash seed has to be fixed."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
SECONDS: Final = 280


def run_simulation(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it with these arguments."""
    return subprocess.run(
        [sys.executable, "-m", "tests.simulation", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
