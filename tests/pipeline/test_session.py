"""Twin of twinlog.pipeline.session: what a user sees of Spark, and what a user's settings win."""

import subprocess
import sys

import pytest

from twinlog.core.errors import UserError
from twinlog.pipeline import session

_QUIET = """
from twinlog.pipeline.session import map_tasks, start_spark, stop_spark

spark = start_spark("local[1]", {})
assert map_tasks(spark, len, ["one", "eleven"]) == [3, 6]
stop_spark(spark)
"""


def test_the_users_jvm_options_come_last() -> None:
    """Of an option that is given twice, the JVM takes the last."""
    ours, _, theirs = session._jvm_options("-Xss4m").rpartition(" ")
    assert ours.startswith("-Dlog4j2.configurationFile=file:///")
    assert theirs == "-Xss4m"


def test_a_master_that_is_none() -> None:
    """Goal: one line with what is allowed, where Spark itself would print a trace of its own."""
    with pytest.raises(UserError, match=r"'nonsense': allowed is local\[N\]"):
        session.start_spark("nonsense", {})


@pytest.mark.parametrize("master", ["spark://127.0.0.1:1", "spark://nowhere", "spark://h:x"])
def test_a_master_that_does_not_answer(master: str) -> None:
    """Goal: at once, and with the address; Spark takes a minute to give it up."""
    with pytest.raises(UserError, match=f"no Spark master answers at {master}: "):
        session.start_spark(master, {})


@pytest.mark.spark
def test_a_session_says_nothing() -> None:
    """Spark's own lines (profiles, host names, modules) do not reach the terminal."""
    done = subprocess.run(
        [sys.executable, "-c", _QUIET], capture_output=True, text=True, timeout=200, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
