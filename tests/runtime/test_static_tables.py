"""A static table that is replaced while Spark reads it is refused, and Spark itself would not."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

PROGRAM = '''
import os, pathlib, sys
from pyspark.sql import SparkSession
from twinlog.mirror.dataframe_transform import StaticTable
from twinlog.runtime.session import start_spark
from twinlog.runtime.static_tables import UnreadTable, read_whole

spark = SparkSession(start_spark("local[1]", {}, max_failures=1))
form, folder = sys.argv[1], pathlib.Path(sys.argv[2])
row = {"csv": "{}\\n", "json": '{{"id":{}}}\\n'}[form]
head = {"csv": "id\\n", "json": ""}[form]
table, later = folder / "table", folder / "later"


def write(path, count):
    path.write_text(head + "".join(row.format(number) for number in range(count)))


class Replaced:
    """Replaces the table, as documented, once Spark's reader has listed its files."""

    def __init__(self, reader):
        self.reader = reader

    def load(self, path):
        loaded = self.reader.load(path)
        write(later, 9)
        os.replace(later, table)
        return loaded


def reader():
    options = {"header": "true", "enforceSchema": "false"} if form == "csv" else {}
    return spark.read.format(form).options(**options).schema("id BIGINT")


write(table, 3)
part = Replaced(reader()).load(str(table)).coalesce(1).localCheckpoint()
print("spark", sorted(row.id for row in part.collect()))
write(table, 3)
try:
    read_whole(spark, Replaced(reader()), StaticTable("t", str(table), form, "id BIGINT"))
except UnreadTable as error:
    print("ours", error)
whole = read_whole(spark, reader(), StaticTable("t", str(table), form, "id BIGINT"))
print("then", sorted(row.id for row in whole.collect()))
os._exit(0)
'''


@pytest.mark.parametrize("form", ["csv", "json"])
def test_a_table_that_is_replaced_while_it_is_read_is_refused(tmp_path: Path, form: str) -> None:
    """Goal: no row is missing behind the length that the former file had."""
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, form, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=500,
        check=True,
    )
    assert ran.stdout.splitlines() == [
        "spark [0, 1, 2, 3]",  # to the end of the line that begins at the former length
        "ours it was replaced while it was read",
        "then [0, 1, 2, 3, 4, 5, 6, 7, 8]",
    ], ran.stderr
