"""The tasks of `twinlog verify` in the test's own process, without Spark."""

from collections.abc import Callable, Sequence

import pytest

from twinlog.operations import verification
from twinlog.operations.verification import VerifyConfig
from twinlog.runtime.job_progress import JobProgress
from twinlog.verify.flow_job import run_task
from twinlog.verify.flow_task import FlowCompared, FlowTask
from twinlog.verify.job import Compared, VerifyTask


def run_tasks_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the tasks in this process, one after the other."""

    def compare(
        _config: VerifyConfig,
        tasks: Sequence[VerifyTask | FlowTask],
        _progress: Callable[[JobProgress], None],
    ) -> list[Compared | FlowCompared]:
        return [each for task in tasks for each in run_task(task)]

    monkeypatch.setattr(verification, "_compare", compare)
