"""Text scenarios: commands and their output, in files that a run can rewrite.

    # Anything about the scenario.
    command argument argument
    ----
    its output

A blank line ends the output. `pytest --rewrite` writes the actual output into the files: check the
difference before you commit it.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from checkout import ROOT

SCENARIOS: Final = ROOT / "tests" / "scenarios"
_RULE: Final = "----"


class Step(NamedTuple):
    """A command, the comments in front of it, and its expected output."""

    before: str
    command: str
    output: str


def files(pattern: str) -> list[Path]:
    """Return the scenarios of a kind, at least one."""
    found = sorted(SCENARIOS.glob(pattern))
    assert found, pattern
    return found


def steps(text: str) -> Iterator[Step]:
    """Parse the steps of a file."""
    lines = iter(text.splitlines())
    before: list[str] = []
    for line in lines:
        if not line:
            continue
        if line.startswith("#"):
            before.append(line)
            continue
        rule = next(lines, None)
        assert rule == _RULE, f"{line}: {_RULE} has to follow, not {rule}"
        output = list(iter(lambda: next(lines, ""), ""))
        yield Step("".join(f"{one}\n" for one in before), line, "\n".join(output))
        before = []
    assert not before, "comments at the end belong to no step"


def run(path: Path, execute: Callable[[list[str]], str], *, rewrite: bool) -> None:
    """Run a scenario; assert that each step's output matches the file, or rewrite the file."""
    written = []
    for number, step in enumerate(steps(path.read_text()), 1):
        printed = execute(step.command.split())
        written.append(f"{step.before}{step.command}\n{_RULE}\n{printed}\n\n")
        if not rewrite:
            assert printed == step.output, f"{path.name}, step {number}: {step.command}"
    if rewrite:
        path.write_text("".join(written).rstrip("\n") + "\n")
