"""Rows of Spark's are all there, or there is an error: the JVM is killed while it serves them."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

PROGRAM = '''
import os, signal, sys, time
from pyspark.sql import SparkSession
from pyspark.sql.classic import dataframe
from twinlog.runtime.session import start_spark
from twinlog.runtime.whole_results import collected

spark = SparkSession(start_spark("local[1]", {}, max_failures=1))
frame = spark.range(20_000).selectExpr("id AS record", "repeat('x', 1000) AS value")
whole = collected(frame)
assert whole == frame.collect()
assert [row.record for row in whole] == list(range(20_000))
assert collected(frame.where("false")) == []
try:
    collected(spark.range(3).selectExpr("assert_true(id < 2)"))
except Exception as error:
    assert "is not true" in str(error), error
else:
    raise AssertionError("the error of a query is lost")

jvm = int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())


def state(pid):
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]


class Killing(dataframe.BatchedSerializer):
    """Kills the JVM once it is connected, before the first row is read."""

    def load_stream(self, stream):
        os.kill(jvm, signal.SIGKILL)
        while state(jvm) != "Z":
            time.sleep(0.01)
        return super().load_stream(stream)


dataframe.BatchedSerializer = Killing
try:
    rows = (collected if sys.argv[1] == "ours" else type(frame).collect)(frame)
except Exception as error:
    print("raised", type(error).__name__)
else:
    print("rows", len(rows))
os._exit(0)
'''


@pytest.mark.parametrize("whose", ["ours", "spark's"])
def test_a_jvm_that_is_killed_while_it_serves_rows(tmp_path: Path, whose: str) -> None:
    """Goal: an error; Spark's own method takes what has arrived for the result."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, program, whose], capture_output=True, text=True, timeout=300, check=False
    )
    last = done.stdout.strip().splitlines()[-1:]
    if whose == "ours":
        assert last
        # Of the way to the JVM: any other error would be the test's own.
        assert last[0].startswith(("raised Py4J", "raised Connection")), done
    else:  # if this fails, Spark tells it by itself
        assert last
        assert last[0].startswith("rows "), done
        assert int(last[0].split()[1]) < 20_000
