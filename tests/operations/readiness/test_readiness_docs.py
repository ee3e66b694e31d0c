"""docs/readiness.md names every finding, with its weight and an existing test."""

import re
from typing import Final, NamedTuple

import pytest
from checkout import ROOT

from twinlog.operations.readiness.reasons import WEIGHTS, Reason, Verdict

PAGE: Final = ROOT / "docs" / "readiness.md"


class Row(NamedTuple):
    """A way in which a failover loses or repeats records."""

    what: str
    lost: str
    findings: tuple[Reason, ...]
    verdict: Verdict
    test: str


def rows() -> list[Row]:
    found = []
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 5 and cells[4].startswith("`"):
            what, lost, findings, verdict, test = cells
            named = tuple(Reason[name] for name in re.findall(r"`(\w+)`", findings))
            found.append(Row(what, lost, named, Verdict[verdict], test.strip("`")))
    return found


def test_every_finding_is_in_the_table() -> None:
    named = {reason for row in rows() for reason in row.findings}
    assert named == set(Reason)


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.what[:40])
def test_each_row_has_the_weight_of_its_finding_and_an_existing_test(row: Row) -> None:
    """Each row has a finding of the same weight, and its test exists."""
    assert row.findings
    assert {WEIGHTS[finding] for finding in row.findings} == {row.verdict}
    path, _, name = row.test.partition("::")
    assert re.search(rf"^def {name}\(", (ROOT / "tests" / path).read_text(), re.MULTILINE), row.test
