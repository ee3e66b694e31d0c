"""The process that Spark forks its Python workers from, with a lane's imports already done.

Spark's own daemon imports next to nothing before it forks, so each worker spends a third of a
second of CPU on imports and shares none of their memory. This one imports what a lane needs,
freezes it against the garbage collector (which would touch, and so copy, each page), and goes on as
Spark's. It starts no thread: a fork would not take it along.

Named by `spark.python.daemon.module` (session.py).
"""

import gc

import pyspark.worker  # noqa: F401 - what each worker imports first
from pyspark.daemon import manager

import twinlog.pipeline.lane  # noqa: F401

if __name__ == "__main__":
    gc.freeze()
    manager()
