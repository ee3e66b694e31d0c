"""The stored results of the benches: bench/results/NAME.json, to which runs are added one by one.

A run replaces the one with the same key, so a bench can be run in parts (`--round 1`), at different
times, and a part again. The files are the input of report.py's page, and are committed with it.
"""

import json
import os
import platform
from collections.abc import Iterable, Mapping
from pathlib import Path

import pyspark

from twinlog.java import find_java
from twinlog.local.cluster import DEFAULT_VERSION

FOLDER = Path(__file__).parent / "results"

Run = Mapping[str, float | str]


def put(bench: str, run: Run, key: Iterable[str]) -> None:
    """Store a run, in place of the one with the same values in the fields of `key`."""
    names = list(key)
    kept = [old for old in load(bench) if any(old.get(name) != run[name] for name in names)]
    FOLDER.mkdir(exist_ok=True)
    text = json.dumps({"machine": machine(), "runs": [*kept, run]}, indent=1)
    partial = FOLDER / f"{bench}.json.partial"
    partial.write_text(text + "\n")
    partial.replace(FOLDER / f"{bench}.json")


def load(bench: str) -> list[Run]:
    """Return all runs of a bench, in the order in which they were stored."""
    file = FOLDER / f"{bench}.json"
    return json.loads(file.read_text())["runs"] if file.exists() else []


def loaded_machine(bench: str) -> Mapping[str, str]:
    """Return the machine that a bench ran on; empty if it has not run."""
    file = FOLDER / f"{bench}.json"
    return json.loads(file.read_text())["machine"] if file.exists() else {}


def machine() -> dict[str, str]:
    """Describe this machine, as far as it matters to the figures."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "cores": str(os.cpu_count()),
        "processor": models[0] if models else platform.machine(),
        "memory": f"{pages / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "java": str(find_java().version),
        "kafka": DEFAULT_VERSION,
        "python": platform.python_version(),
        "spark": pyspark.__version__,
    }
