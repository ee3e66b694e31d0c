"""Command line options of `make chaos`, and the table at its end."""

import time
from pathlib import Path
from typing import Any

import pytest
from chaos_harness import Proof, Trials

RATE = 600.0
"""Records a second that are written, for all topics together."""
_PROOFS = pytest.StashKey[dict[str, Proof]]()
_HEAD = (
    "killed",
    "times",
    "median s",
    "max s",
    "without s",
    "written",
    "aborted",
    "compared",
    "states",
)


@pytest.fixture
def trials(request: pytest.FixtureRequest, tmp_path: Path) -> Trials:
    """Return the trials that the command line asks for, for the test's kind of kill."""
    config = request.config
    return Trials(
        kind=request.node.name.removeprefix("test_").replace("_", " "),
        times=config.getoption("--times"),
        seed=config.getoption("--chaos-seed") or str(time.time_ns()),
        rate=RATE,
        gone_seconds=config.getoption("--gone-seconds"),
        directory=tmp_path,
        proofs=config.stash.setdefault(_PROOFS, {}),
    )


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the table of docs/chaos.md, then each kind's recoveries and verdict."""
    proofs = config.stash.get(_PROOFS, {})
    if not proofs:
        return
    terminalreporter.section("chaos")
    terminalreporter.line(f"| {' | '.join(_HEAD)} |")
    terminalreporter.line(f"|{' --- |' * len(_HEAD)}")
    for kind, proof in proofs.items():
        cells = (
            kind,
            f"{len(proof.recoveries)}",
            f"{proof.median:.1f}",
            f"{max(proof.recoveries):.1f}",
            f"{proof.rest:.1f}",
            f"{proof.written:,}",
            f"{proof.aborted:,}",
            f"{proof.records:,}",
            f"{proof.steps:,}",
        )
        terminalreporter.line(f"| {' | '.join(cells)} |")
    for kind, proof in proofs.items():
        each = " ".join(f"{seconds:.1f}" for seconds in proof.recoveries)
        terminalreporter.line(f"{kind}: {each}; {proof.verified}")
