"""One minute of torture.py; `make torture` is the long form."""

from pathlib import Path

import pytest

from torture import torture

pytestmark = [pytest.mark.last, pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(2400)]


def test_one_minute_of_torture_loses_nothing(tmp_path: Path) -> None:
    """With the faults of one seed nothing is lost or added, and no claim is false."""
    summary = torture(tmp_path, "16", 60)
    assert not summary["oracle"]["problems"], summary
    assert summary["oracle"]["records"] > 0
    assert summary["faults"] > 0
