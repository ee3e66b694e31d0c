"""Functions of flows, for tests: DataFrame -> DataFrame."""

import os

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

NOTHING = None


def gold(records: DataFrame) -> DataFrame:
    """Keep even offsets, route them to the topic `gold`, and add the price of a static table."""
    prices = records.sparkSession.table("prices")
    even = records.where("offset % 2 = 0").join(prices, f.col("value.id") == prices["id"])
    return even.select(
        "record",
        f.lit("gold").alias("topic"),
        f.struct(f.col("value.id"), prices["price"]).alias("value"),
    )


def sampled(records: DataFrame) -> DataFrame:
    """Drop records by a checksum of their values, and each fourth run of ten offsets."""
    some = f.pmod(f.crc32(f.coalesce("value", f.lit(b""))), f.lit(3)) != 0
    return records.where(some & (f.expr("offset div 10 % 4") != 0)).select("record")


def broken(records: DataFrame) -> list[object]:
    """Return what is no DataFrame."""
    return records.columns  # type: ignore[return-value]


def noted(records: DataFrame) -> DataFrame:
    """Append the columns of `records` to the file that CALLED names."""
    with open(os.environ["CALLED"], "a") as file:
        file.write(f"{','.join(records.columns)}\n")
    return records


def first(records: DataFrame) -> DataFrame:
    """The first of the records that have arrived together."""
    return records.limit(1)
