"""The data plane on Spark: lanes, and the batch job that verifies."""
