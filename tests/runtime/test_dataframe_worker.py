"""Which transforms stay prepared, without Spark."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from twinlog.engines.dataframes import ResultRows
from twinlog.kafka.client.references import NOTHING
from twinlog.mirror.dataframe_transform import DataFrameTransform
from twinlog.runtime import dataframe_worker
from twinlog.runtime.dataframe_process import TransformRequest
from twinlog.runtime.dataframe_worker import Worker


def test_only_the_least_recently_used_transform_is_prepared_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: the tables of a flow that runs are not read again as others are altered."""
    prepared: list[str | None] = []
    result: Callable[[object], ResultRows] = lambda _: ResultRows((), ())  # noqa: E731

    def prepare(_: object, transform: DataFrameTransform, __: object) -> SimpleNamespace:
        prepared.append(transform.sql)
        return SimpleNamespace(result=result)

    monkeypatch.setattr(dataframe_worker, "PreparedTransform", prepare)
    worker = Worker(1024)
    worker._spark = cast("Any", object())

    def ask(sql: str) -> None:
        worker.answer(TransformRequest(DataFrameTransform(sql=sql), NOTHING, ()))

    altered = [f"altered {at}" for at in range(40)]
    for sql in altered:
        ask("runs")
        ask(sql)
    assert prepared == ["runs", *altered]
    ask(altered[0])
    assert prepared[-1] == altered[0]
    assert len(worker._prepared) == 32
