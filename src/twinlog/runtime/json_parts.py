r"""Keys or values in JSON as a column of Spark, and columns of a result as JSON.

Spark reads more than JSON's producers write: `20240101` in a DATE is a day of the year 57385, a
number in a TIMESTAMP counts seconds, also one of milliseconds, and `1,50` in a DECIMAL is 150. So
the rule is: what Spark reads is what it would write, or the record fails. `from_json` refuses most
else by itself. For the types whose parsers guess, the text of each value has to have the one
spelling that means the same to everybody (`_SPELLINGS`). A type that is not in that table is not
read at all.
"""

import secrets
from collections.abc import Callable, Mapping
from functools import reduce
from operator import and_
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql import types as t

from twinlog.engines.dataframes import QueryUnusable

_WRITTEN: Final = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""Of results. By default, Spark cuts timestamps to milliseconds."""
_END: Final = secrets.token_hex(16)
"""What no record can hold: it is another one in each process."""

Test = Callable[[Column, t.DataType], Column | None]
"""Of a single value of a type; None: all values of this type pass."""
_DATE: Final = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_MINUTE: Final = "[0-9]{2}:[0-9]{2}"
_SECOND: Final = f"{_MINUTE}:[0-9]{{2}}([.][0-9]{{1,6}})?"
_ZONE: Final = "( ?(Z|[+-][0-9]{2}(:?[0-9]{2})?))?"
"""Spark takes an offset behind seconds only."""
_ANY: Final = ""
_SPELLINGS: Final[Mapping[type[t.DataType], str]] = {
    t.BooleanType: _ANY,
    t.ShortType: _ANY,
    t.IntegerType: _ANY,
    t.LongType: _ANY,
    t.FloatType: _ANY,
    t.DoubleType: _ANY,
    t.DecimalType: r"[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]+)?",
    t.StringType: _ANY,
    t.BinaryType: _ANY,
    t.DateType: _DATE,
    t.TimestampType: f"{_DATE}([T ]({_MINUTE}|{_SECOND}{_ZONE}))?",
    t.TimestampNTZType: f"{_DATE}([T ]({_MINUTE}|{_SECOND}))?",
    t.VariantType: _ANY,
}
"""The types of values that are read, with the regular expression of a value's text.

`_ANY`: Spark reads no other value without an error. (Texts that are no texts in JSON, and numbers
that are rounded, are documented.) TINYINT is missing, as Spark reads 128 as -128; so are intervals,
whose units Spark adds, and VOID, which drops values.
"""


def check_schema(data_type: t.DataType) -> None:
    """Refuse a type that values of JSON cannot be read as.

    Raises:
        QueryUnusable: names it.
    """
    match data_type:
        case t.StructType():
            for field in data_type.fields:
                check_schema(field.dataType)
        case t.ArrayType():
            check_schema(data_type.elementType)
        case t.MapType():
            check_schema(data_type.valueType)
        case _ if type(data_type) not in _SPELLINGS:
            raise QueryUnusable(
                f"{data_type.simpleString().upper()} is not supported in JSON: expected BOOLEAN, "
                "SMALLINT, INT, BIGINT, FLOAT, DOUBLE, DECIMAL, STRING, BINARY, DATE, TIMESTAMP, "
                "TIMESTAMP_NTZ, VARIANT, or a STRUCT, ARRAY or MAP of these"
            )


def parsed(text: Column, schema: str) -> Column:
    """The object of a text in JSON. Any other text is an error; null is null.

    Args:
        text: in UTF-8.
        schema: the fields, in Spark's DDL.
    """
    fields = t.StructType.fromDDL(schema)
    within = t.StructType([t.StructField("object", fields)])
    whole = f.concat(f.lit('{"object":'), text, f.lit("}"))
    found = f.from_json(whole, within, {"mode": "FAILFAST"})
    # A VARIANT keeps what is a text, and refuses a name that is there twice and, since Spark 4.3,
    # half a surrogate pair: from_json takes the last one, and makes a question mark of the other.
    array = f.parse_json(f.concat(f.lit("["), text, f.lit(f',"{_END}"]')))
    # from_json ignores what follows a value. As no record knows `_END`, it is the second element
    # only if the whole text is the first.
    valid = f.variant_get(array, "$[1]", "string") == _END
    texts = _texts(fields)
    if texts:
        spelled = _all(f.variant_get(array, "$[0]", texts), fields, _spelling)
        assert spelled is not None
        valid &= spelled
    # Null is made of the text null. Written, that would be a tombstone.
    return f.coalesce(
        f.when(valid, found["object"]),
        f.when(text.isNotNull(), f.raise_error(f.lit("no JSON object of the schema"))),
    )


def _texts(data_type: t.DataType) -> str:
    """The part of a type whose values have spellings, as texts, in Spark's DDL; empty: none."""
    match data_type:
        case t.StructType():
            found = {field.name: _texts(field.dataType) for field in data_type.fields}
            fields = [
                f"`{name.replace('`', '``')}`: {texts}" for name, texts in found.items() if texts
            ]
            return f"struct<{', '.join(fields)}>" if fields else ""
        case t.ArrayType():
            texts = _texts(data_type.elementType)
            return f"array<{texts}>" if texts else ""
        case t.MapType():
            texts = _texts(data_type.valueType)
            return f"map<string, {texts}>" if texts else ""
        case _:
            return "string" if _SPELLINGS[type(data_type)] else ""


def _spelling(text: Column, data_type: t.DataType) -> Column | None:
    """Whether a text (see `_texts`) has the spelling of its type; None: any has it."""
    spelling = _SPELLINGS[type(data_type)]
    return text.rlike(rf"\A({spelling})\z") if spelling else None


def _all(column: Column, data_type: t.DataType, test: Test) -> Column | None:
    """Whether all values in a column pass a test, as null does; None: there is nothing to test."""
    match data_type:
        case t.StructType():
            tests = [
                _all(column.getField(field.name), field.dataType, test)
                for field in data_type.fields
            ]
        case t.ArrayType():
            tests = [_each(column, data_type.elementType, test)]
        case t.MapType():
            tests = [
                _each(f.map_keys(column), data_type.keyType, test),
                _each(f.map_values(column), data_type.valueType, test),
            ]
        case _:
            tests = [test(column, data_type)]
    found = [f.coalesce(one, f.lit(True)) for one in tests if one is not None]
    return reduce(and_, found) if found else None


def _each(column: Column, element: t.DataType, test: Test) -> Column | None:
    def passes(one: Column) -> Column:
        found = _all(one, element, test)
        return f.lit(True) if found is None else found

    return None if _all(column, element, test) is None else f.forall(column, passes)


def written(column: Column, data_type: t.DataType) -> Column:
    """A STRUCT, MAP, ARRAY or VARIANT as JSON, in UTF-8. A field that is null stays.

    A STRING that is no UTF-8 is an error: to_json would have U+FFFD for it.
    """
    json = f.to_json(column, _WRITTEN)
    text = _all_utf8(column, data_type)
    if text is not None:  # what has U+FFFD is rare, and may have had it before
        json = f.when(json.contains("\ufffd"), f.when(text, json).otherwise(_no_utf8())).otherwise(
            json
        )
    return json.cast("binary")


def only_utf8(column: Column, data_type: t.DataType) -> Column:
    """The same column; a STRING in it that is no UTF-8 is an error: rows would have U+FFFD."""
    text = _all_utf8(column, data_type)
    return column if text is None else f.when(text, column).otherwise(_no_utf8())


def _all_utf8(column: Column, data_type: t.DataType) -> Column | None:
    """Whether all STRINGs are UTF-8, as casts of bytes need not be; None: there are none."""
    return _all(column, data_type, _utf8)


def _utf8(text: Column, data_type: t.DataType) -> Column | None:
    return f.is_valid_utf8(text) if isinstance(data_type, t.StringType) else None


def _no_utf8() -> Column:
    return f.raise_error(f.lit("a STRING is not valid UTF-8"))
