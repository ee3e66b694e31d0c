"""Whether the result of a query for a record depends on that record alone: what `verify` can check.

An engine applies a query to micro-batches with arbitrary bounds. A check computes it for other
batches, at another time. Both results are the same only if each row depends on nothing but its
record and the static tables. So the analysed plan of Spark has to consist of operators that keep
records apart, and of expressions that always give the same:

    Project  Filter  Generate  Sort  Union       one record at a time
    Join, where one side reads records           inner, cross; of the outer ones that which keeps
                                                 the records; semi and anti joins of the records
    Aggregate by the column `record`             the parts of one record
    any of these and others over static tables   the same for all records

The column `record` is the number of a record in its batch. It is only handed on, or grouped or
ordered by: what is computed of it would differ.

Everything else (other aggregates, windows, DISTINCT, LIMIT, functions over whole batches, a join of
records with themselves) is refused by name: what is not known to keep records apart may not.
"""

import re
from collections.abc import Sequence
from typing import Any, Final

from twinlog.mirror.dataframe_transform import RECORD_NAMES

_EACH_ALONE: Final = frozenset(
    {
        "CTERelationDef",
        "Filter",
        "Generate",
        "LogicalRDD",
        "LocalRelation",
        "Project",
        "ResolvedHint",
        "Sort",
        "SubqueryAlias",
        "Union",
        "View",
        "WithCTE",
    }
)
"""Operators whose rows are made of one record each."""
_CONSTANT: Final = frozenset({"LocalRelation", "OneRowRelation", "Range"})
"""Leaves whose rows are a part of the query."""
_JOINS: Final = {
    True: ("Inner", "Cross", "LeftOuter", "LeftSemi", "LeftAnti"),
    False: ("Inner", "Cross", "RightOuter"),
}
"""Kinds of joins, by whether the left side reads records."""
_VARYING: Final = frozenset(
    {
        "CurrentBatchTimestamp",
        "CurrentDate",
        "CurrentTime",
        "CurrentTimestamp",
        "CurrentTimeZone",
        "CurrentUser",
        "LocalTimestamp",
        "Now",
    }
)
"""Expressions that Spark counts as deterministic, and that differ from one run to another."""

_DAYS: Final = ("now", "today", "tomorrow", "yesterday")
"""Texts that Spark takes for times."""
_QUOTED_DAYS: Final = re.compile(rf"""(['"])\s*({"|".join(_DAYS)})\s*\1""", re.IGNORECASE)
_TIMES: Final = frozenset({"date", "time", "timestamp", "timestamp_ntz"})
"""Types that such texts are cast to."""

_BARE: Final = frozenset({"Project", "Aggregate", "Sort"})
"""Operators that may have the column `record` as it is: as an output, for groups or an order."""
_NAMING: Final = frozenset({"Alias", "SortOrder"})
NUMBER: Final = "the number `record` is used as data, and depends on the batch"
NO_NUMBER: Final = "values that are not the records' own are taken for `record`"

_PYTHON: Final = ("PythonUDF", "PythonUDAF", "PythonUDTF", "PolymorphicPythonUDTF")
_ROW_BY_ROW: Final = frozenset({100, 101})
"""Evaluation types of Python functions that get one row at a time (`PythonEvalType`)."""


class NotDecidable(Exception):
    """A check cannot tell what the result for a record should be; the text says why."""


def check_plan(plan: Any, records: Any) -> bool:
    """Check that the result for a record depends on that record and static tables alone.

    Args:
        plan: of Spark, analysed (`QueryExecution.analyzed`), by py4j.
        records: that of the table `records`, as it was created.

    Returns:
        Whether it reads tables or files.

    Raises:
        NotDecidable: it may depend on more.
    """
    walk = _PlanWalk(records.rdd().id())
    if not walk.reads_records(plan):
        raise NotDecidable("the result does not read the records it is computed for")
    walk.check_result(plan)
    return walk.reads_tables


class _PlanWalk:
    def __init__(self, records: int) -> None:
        self._records = records  # the RDD of the table `records`
        self._shared: dict[int, bool] = {}  # whether the parts of WITH read records
        self._shared_numbers: dict[int, list[bool]] = {}  # which of their columns are `record`
        self._numbers: set[int] = set()  # the ids of the columns that are `record`
        self.reads_tables = False

    def reads_records(self, plan: Any) -> bool:
        """Whether a part of a plan reads records; its own parts are checked as well."""
        parts = [self.reads_records(part) for part in _sequence(plan.children())]
        for part in _sequence(plan.subqueries()):
            if self.reads_records(part):
                raise NotDecidable("a subquery reads records")
        for expression in _sequence(plan.expressions()):
            _check_expression(expression)
        kind, found = plan.nodeName(), any(parts)
        if kind == "CTERelationRef":
            if plan.cteId() not in self._shared:
                raise NotDecidable("a part of WITH is used before it is known")
            found = self._shared[plan.cteId()]
            self._number(plan, self._shared_numbers[plan.cteId()])
        elif not parts:
            found = kind == "LogicalRDD" and plan.rdd().id() == self._records
            if found:
                self._number(plan, [name == "record" for name in RECORD_NAMES])
            self.reads_tables |= not found and kind not in _CONSTANT
        if kind == "CTERelationDef":
            self._shared[plan.id()] = found
            self._shared_numbers[plan.id()] = self._are_numbers(plan)
        if found:
            self._check_operator(kind, plan, parts)
        if parts:
            self._follow_numbers(kind, plan)
        return found

    def check_result(self, plan: Any) -> None:
        """Check the columns of a result: `record` is that of the records, and no other one is.

        Raises:
            NotDecidable: they are others.
        """
        for column, is_number in zip(
            _sequence(plan.output()), self._are_numbers(plan), strict=True
        ):
            if (column.name().lower() == "record") != is_number:
                raise NotDecidable(
                    f"column {column.name()} of the result: {NUMBER if is_number else NO_NUMBER}"
                )

    def _follow_numbers(self, kind: str, plan: Any) -> None:
        """Find the columns that are `record` behind an operator; refuse other uses of it.

        An engine numbers the records of its own batches. So a number is no data.
        """
        if kind == "Union":
            columns = zip(*map(self._are_numbers, _sequence(plan.children())), strict=True)
            flags = [set(each) for each in columns]
            if {True, False} in flags:
                raise NotDecidable(f"a UNION: {NO_NUMBER}")
            self._number(plan, [True in each for each in flags])
            return
        for expression in _sequence(plan.expressions()):
            if kind in _BARE and self._is_number(expression):
                continue
            name, children = expression.nodeName(), _sequence(expression.children())
            if kind in _BARE and name in _NAMING and all(map(self._is_number, children)):
                if name == "Alias":
                    self._numbers.add(expression.exprId().id())
                continue
            if self._mentions_number(expression):
                raise NotDecidable(f"{NUMBER} in {kind}")

    def _number(self, plan: Any, flags: Sequence[bool]) -> None:
        for column, is_number in zip(_sequence(plan.output()), flags, strict=True):
            if is_number:
                self._numbers.add(column.exprId().id())

    def _are_numbers(self, plan: Any) -> list[bool]:
        """Which of the columns of a part are `record`."""
        return [self._is_number(column) for column in _sequence(plan.output())]

    def _is_number(self, expression: Any) -> bool:
        name = expression.nodeName()
        return name == "AttributeReference" and expression.exprId().id() in self._numbers

    def _mentions_number(self, expression: Any) -> bool:
        return self._is_number(expression) or any(
            map(self._mentions_number, _sequence(expression.children()))
        )

    def _check_operator(self, kind: str, plan: Any, parts: list[bool]) -> None:
        if kind in _EACH_ALONE or kind == "CTERelationRef":
            return
        if kind == "Join":
            if all(parts):
                raise NotDecidable("records are joined with records")
            joined = plan.joinType().toString()
            if joined in _JOINS[parts[0]]:
                return
            kind = f"a join ({joined})"
        if kind == "Aggregate" and self._groups_by_record(plan):
            return
        raise NotDecidable(f"rows may depend on more than one record: {kind}")

    def _groups_by_record(self, plan: Any) -> bool:
        return any(map(self._is_number, _sequence(plan.groupingExpressions())))


def check_text(sql: str) -> None:
    """Refuse names of days in a query: Spark's parser replaces `DATE 'today'` by a constant.

    Raises:
        NotDecidable: there is one, in quotes. A text that is no date is refused as well.
    """
    if name := _QUOTED_DAYS.search(sql):
        raise NotDecidable(f"an expression depends on when it is computed: {name[0]}")


def _is_varying(expression: Any) -> bool:
    if expression.nodeName() != "Cast" or expression.dataType().typeName() not in _TIMES:
        return expression.nodeName() in _VARYING
    text = expression.child()
    if not text.foldable() or text.dataType().typeName() != "string":
        return False
    # The optimizer computes texts that are the same for all records: they may be such a name.
    return text.nodeName() != "Literal" or text.toString().strip().lower() in _DAYS


def _check_expression(expression: Any) -> None:
    if not expression.deterministic():
        raise NotDecidable(f"an expression is not deterministic: {expression.nodeName()}")
    if _is_varying(expression):
        raise NotDecidable(f"an expression depends on when it is computed: {expression.nodeName()}")
    if expression.nodeName() in _PYTHON and (
        expression.nodeName() != "PythonUDF" or expression.evalType() not in _ROW_BY_ROW
    ):
        raise NotDecidable("a Python function may see several records at a time")
    for child in _sequence(expression.children()):
        _check_expression(child)


def _sequence(scala: Any) -> list[Any]:
    return [scala.apply(at) for at in range(scala.size())]
