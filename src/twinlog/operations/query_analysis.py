"""Has Spark analyse the queries and functions of flows before a node runs them.

    flows ──► transforms ──► the process that a lane starts, here ──► findings

It is the analysis that a lane makes before its first micro-batch: the same process, with the
columns that keys and values have there, and the static tables as they are read there. No record is
read, and a query is not executed. A function is called, once, with an empty DataFrame.

What cannot be told on this host is no error: a table's path or a module may exist where the lanes
run, and a schema registry may be reachable from there.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from twinlog.engines.dataframes import QueryUnusable
from twinlog.kafka.client.references import EVERYTHING
from twinlog.kafka.errors import Retriable
from twinlog.mirror.dataframe_transform import (
    FUNCTION,
    RECORD_NAMES,
    SQL,
    TABLES,
    TIME_ZONE,
    DataFrameTransform,
    parse_dataframe_transform,
)
from twinlog.mirror.mirror_maker_file import Flow
from twinlog.runtime.dataframe_process import DataFrameProcess

_COLUMNS: Final = ", ".join(RECORD_NAMES)


class QueryFinding(NamedTuple):
    """Why a flow's query or function is wrong, or was not analysed."""

    flow: str
    """`A->B`."""
    name: str
    """The property that is at fault, without the flow's prefix; or the one that has the query."""
    reason: str
    wrong: bool
    """False: it was not analysed, as this host lacks something."""

    def __str__(self) -> str:
        key = f"{self.flow}.{self.name}"
        if self.wrong:
            return f"{key}: {self.reason}; {_remedy(self.name)}"
        return f"{key} was not analysed here: {self.reason}; check it on a host of a lane"


def analyse_queries(
    flows: Iterable[Flow], tell: Callable[[str], None] = lambda _: None
) -> Sequence[QueryFinding]:
    """Analyse the transforms by Spark of flows; those that are right have no finding.

    Without such a flow nothing is started. Else it takes about 10 s, and no event loop may run in
    this thread.

    Args:
        flows: of a file, without errors.
        tell: receives a line before Spark is started.
    """
    transforms = {}
    for flow in flows:
        transform = parse_dataframe_transform(flow.transforms)
        if transform is not None:
            transforms[flow.name] = transform
    if not transforms:
        return ()
    tell(f"Spark analyses the query or function of {', '.join(transforms)}")
    return asyncio.run(_findings(transforms.items()))


async def _findings(
    transforms: Iterable[tuple[str, DataFrameTransform]],
) -> Sequence[QueryFinding]:
    process, findings = DataFrameProcess(EVERYTHING), []  # the properties are their author's own
    try:
        for flow, transform in transforms:
            name = FUNCTION if transform.sql is None else SQL
            try:
                await process.analyse(transform)
            except QueryUnusable as error:
                if error.only_here:
                    findings.append(QueryFinding(flow, name, str(error), wrong=False))
                else:
                    findings.append(QueryFinding(flow, error.name or name, error.reason, True))
            except Retriable as error:
                findings.append(QueryFinding(flow, name, str(error), wrong=False))
    finally:
        await process.close()
    return findings


def _remedy(name: str) -> str:
    if name == SQL:
        return f"correct the query: its table records has the columns {_COLUMNS}"
    if name == FUNCTION:
        return f"correct the function: it is called with a DataFrame of the columns {_COLUMNS}"
    if name.startswith(TABLES):
        return "expected the path of a table that Spark can read, and its columns in .schema"
    if name.endswith(".schema"):
        return "expected fields in Spark's DDL, such as id BIGINT, card STRING"
    if name == TIME_ZONE:
        return "expected a time zone, such as UTC or Europe/Berlin"
    return "expected a subject of the schema registry, in Avro"
