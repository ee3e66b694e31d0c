"""A minute of torture.py, whose long form is `make torture`."""

from pathlib import Path

import pytest

from torture import torture

pytestmark = [pytest.mark.last, pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(900)]


def test_a_minute(tmp_path: Path) -> None:
    """Nothing is lost, added or claimed, with faults of one seed."""
    summary = torture(tmp_path, "16", 60)
    assert not summary["oracle"]["problems"], summary
    assert summary["oracle"]["records"] > 0
    assert summary["faults"] > 0
