"""Progress of a Spark job, for those who start none and do not load Spark."""

from typing import NamedTuple


class JobProgress(NamedTuple):
    """How many of a job's tasks have ended."""

    done: int
    total: int
