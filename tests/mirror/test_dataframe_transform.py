"""A flow's transform by Spark, as it is written in properties."""

import pytest

from twinlog.kafka.errors import UserError
from twinlog.mirror.dataframe_transform import (
    DataFrameTransform,
    PartColumn,
    PartFormat,
    Registries,
    StaticTable,
    has_dataframe_transform,
    parse_dataframe_transform,
)

SQL = {"twinlog.transform.sql": "SELECT * FROM records"}


def test_a_flow_without_such_properties_has_no_transform() -> None:
    """Goal: the properties of other transforms do not count."""
    values = {"transforms": "a", "twinlog.takeover": "compare"}
    assert not has_dataframe_transform(values)
    assert parse_dataframe_transform(values) is None


def test_all_properties() -> None:
    """Goal: each property has its place."""
    values = {
        **SQL,
        "topics": "x",
        "twinlog.transform.key.format": "String",
        "twinlog.transform.value.format": "json",
        "twinlog.transform.value.schema": "id BIGINT",
        "twinlog.transform.tables.prices": "/data/prices.CSV",
        "twinlog.transform.tables.prices.schema": "id BIGINT, price INT",
        "twinlog.transform.tables.names": "/data/names.parquet",
    }
    assert parse_dataframe_transform(values) == DataFrameTransform(
        sql="SELECT * FROM records",
        key=PartColumn(PartFormat.STRING),
        value=PartColumn(PartFormat.JSON, "id BIGINT"),
        tables=(
            StaticTable("names", "/data/names.parquet", "parquet"),
            StaticTable("prices", "/data/prices.CSV", "csv", "id BIGINT, price INT"),
        ),
    )


AVRO = {
    **SQL,
    "twinlog.transform.value.format": "avro",
    "twinlog.transform.value.subject": "orders-value",
    "twinlog.transform.registry.url": "http://registry-a:8081",
}


@pytest.mark.parametrize("target", ["", "https://registry-b:8081/path"])
def test_avro(target: str) -> None:
    """Goal: a column's subject, and one registry or two."""
    more = {"twinlog.transform.target.registry.url": target} if target else {}
    found = parse_dataframe_transform({**AVRO, **more})
    assert found is not None
    assert found.value == PartColumn(PartFormat.AVRO, subject="orders-value")
    source = "http://registry-a:8081"
    assert found.registries == Registries(source, target or source)


def test_a_function() -> None:
    """Goal: a function is named as in Python's entry points."""
    values = {"twinlog.transform.function": "acme.flows:masked"}
    assert parse_dataframe_transform(values) == DataFrameTransform(function="acme.flows:masked")


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"twinlog.transform.value.format": "string"}, "neither is set"),
        ({"twinlog.transform.sqll": "SELECT 1"}, "twinlog.transform.sqll is not known"),
        ({**SQL, "twinlog.transform.function": "a:b"}, "both are set"),
        ({"twinlog.transform.function": "masked"}, "expected MODULE:FUNCTION"),
        (
            {**SQL, "twinlog.transform.value.format": "xml"},
            "expected one of bytes, string, json, avro",
        ),
        ({**SQL, "twinlog.transform.value.format": "json"}, "value.schema is missing"),
        ({**SQL, "twinlog.transform.key.schema": "a INT"}, "expected twinlog.transform.key.format"),
        ({**SQL, "twinlog.transform.tables.a": "/a.txt"}, "ends in .csv, .json, .parquet"),
        ({**SQL, "twinlog.transform.tables.records": "/a.csv"}, "other than records"),
        ({**SQL, "twinlog.transform.tables.a-b": "/a.csv"}, "letters, digits and _"),
        (
            {
                **SQL,
                "twinlog.transform.tables.a": "/a.csv",
                "twinlog.transform.tables.A": "/a.csv",
            },
            "differ in case only",
        ),
        ({**SQL, "twinlog.transform.tables.a.schema": "a INT"}, "tables.a.schema is not known"),
        ({**AVRO, "twinlog.transform.value.subject": ""}, "value.subject is missing"),
        ({**AVRO, "twinlog.transform.registry.url": ""}, "registry.url is missing"),
        ({**AVRO, "twinlog.transform.registry.url": "registry:8081"}, "registry.url is not a URL"),
        (
            {**AVRO, "twinlog.transform.target.registry.url": "http://user:secret@b:8081"},
            "target.registry.url is not a URL: expected .* without a user",
        ),
        ({**SQL, "twinlog.transform.registry.url": "http://a:1"}, "registry.url is set"),
        ({**SQL, "twinlog.transform.target.registry.url": "http://a:1"}, "registry.url is missing"),
        ({**SQL, "twinlog.transform.key.subject": "a"}, "expected twinlog.transform.key.format"),
        ({**SQL, "twinlog.transform.query": "a"}, "twinlog.transform.query is not known"),
    ],
)
def test_mistakes_are_named(values: dict[str, str], text: str) -> None:
    """Goal: no property is passed over: records would go unchanged."""
    with pytest.raises(UserError, match=text.replace(".", r"\.").replace(r"\.*", ".*")):
        parse_dataframe_transform(values)
