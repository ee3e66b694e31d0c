"""Errors of Java programs that tests call through py4j."""

from collections.abc import Iterator
from contextlib import contextmanager

from py4j import java_gateway, protocol


@contextmanager
def errors_of_py4j() -> Iterator[None]:
    """Get Py4JJavaError, also where PySpark has run in this process.

    PySpark replaces py4j's function for answers by one that asks Spark's own JVM about the error
    of any other one (`pyspark.errors.exceptions.captured.install_exception_handler`).
    """
    replaced = java_gateway.get_return_value
    java_gateway.get_return_value = protocol.get_return_value
    try:
        yield
    finally:
        java_gateway.get_return_value = replaced
