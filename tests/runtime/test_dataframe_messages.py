"""What a lane and its process for DataFrames send each other, without Spark."""

import asyncio

import pytest
from loop_beats import beating

from twinlog.engines import loop_steps
from twinlog.engines.dataframes import ResultRows, SourceRow
from twinlog.engines.loop_steps import Steps
from twinlog.kafka.client.references import NOTHING
from twinlog.mirror.dataframe_transform import DataFrameTransform
from twinlog.runtime.dataframe_process import (
    _ROWS,
    Answer,
    TransformFailure,
    TransformRequest,
    pickled,
    unpickling,
)

STEPS = 5
TRANSFORM = DataFrameTransform(sql="SELECT * FROM records")


def row(number: int) -> SourceRow:
    return SourceRow(number, "A.t", 1, 7 + number, 9, None, b"v", (("h", None),))


def messages() -> list[TransformRequest | Answer]:
    counts = (0, 1, _ROWS, _ROWS + 1, STEPS * _ROWS)
    return [
        TransformRequest(TRANSFORM, NOTHING, None),
        TransformFailure("no table", for_all=True, name="x", only_here=True),
        *(TransformRequest(TRANSFORM, NOTHING, [*map(row, range(n))]) for n in counts),
        *(ResultRows(("record", "key"), [(at, b"k") for at in range(n)]) for n in counts),
    ]


@pytest.mark.parametrize("message", messages(), ids=lambda one: type(one).__name__)
def test_a_message_is_read_as_it_was_sent(
    monkeypatch: pytest.MonkeyPatch, message: TransformRequest | Answer
) -> None:
    """Goal: each row once, in order; that there are no rows differs from no rows to transform."""
    monkeypatch.setattr(loop_steps, "_STEP_S", 0.0)  # on a machine of any speed

    async def body() -> None:
        parts = list(pickled(message))
        async with beating() as beats:
            assert await Steps().finish(unpickling(b"".join(parts))) == message
        assert beats.count >= len(parts) - 1

    asyncio.run(body())


def test_rows_are_sent_in_parts() -> None:
    """Goal: none takes long to pickle."""
    rows = [*map(row, range(STEPS * _ROWS))]
    parts = list(pickled(TransformRequest(TRANSFORM, NOTHING, rows)))
    assert len(parts) == 1 + STEPS
    assert max(map(len, parts)) < 2 * min(map(len, parts[1:]))
