"""A flow's transform by Spark, as it is written in properties."""

import pytest

from twinlog.kafka.errors import UserError
from twinlog.mirror.dataframe_transform import (
    ROUTES,
    DataFrameTransform,
    PartColumn,
    PartFormat,
    Registries,
    RegistryAccess,
    StaticTable,
    has_dataframe_transform,
    keeps_references,
    may_route_rows,
    parse_dataframe_transform,
    wrong_dataframe_transform,
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
        "twinlog.transform.routes": "False",
        "twinlog.transform.spark.memory": "4g",
        "twinlog.transform.spark.sql.session.timeZone": "Europe/Berlin",
    }
    assert parse_dataframe_transform(values) == DataFrameTransform(
        sql="SELECT * FROM records",
        key=PartColumn(PartFormat.STRING),
        value=PartColumn(PartFormat.JSON, "id BIGINT"),
        tables=(
            StaticTable("names", "/data/names.parquet", "parquet"),
            StaticTable("prices", "/data/prices.CSV", "csv", "id BIGINT, price INT"),
        ),
        routes=False,
        memory_mib=4096,
        time_zone="Europe/Berlin",
    )


@pytest.mark.parametrize(
    ("text", "routes"), [(None, True), ("true", True), (" false ", False), ("no", True)]
)
def test_whether_rows_may_be_routed(text: str | None, *, routes: bool) -> None:
    """Goal: by default they may; and if it cannot be read, which is refused."""
    values = SQL if text is None else {**SQL, ROUTES: text}
    assert may_route_rows(values) == routes
    assert not may_route_rows({"transforms": "a"})


@pytest.mark.parametrize(
    ("text", "size"), [("512m", 512), ("1500MB", 1500), ("1g", 1024), ("1024g", 1024 * 1024)]
)
def test_sizes_of_memory(text: str, size: int) -> None:
    """Goal: as Spark writes them."""
    found = parse_dataframe_transform({**SQL, "twinlog.transform.spark.memory": text})
    assert found == DataFrameTransform(sql="SELECT * FROM records", memory_mib=size)


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
    source = RegistryAccess("http://registry-a:8081")
    assert found.registries == Registries(source, RegistryAccess(target) if target else source)


def test_credentials_of_registries() -> None:
    """Goal: Confluent's names behind the prefix, for each registry; references unresolved."""
    values = {
        "registry.url": "https://registry-a",
        "registry.basic.auth.credentials.source": "user_info",
        "registry.basic.auth.user.info": "${file:/secrets:user}",
        "registry.ssl.truststore.location": "/ca.pem",
        "registry.ssl.key.password": "${env:KEY}",
        "target.registry.url": "https://registry-b",
        "target.registry.basic.auth.user.info": "name:password",
    }
    given = {f"twinlog.transform.{name}": text for name, text in values.items()}
    found = parse_dataframe_transform({**AVRO, **given})
    assert found is not None
    tls = (("ssl.key.password", "${env:KEY}"), ("ssl.truststore.location", "/ca.pem"))
    assert found.registries == Registries(
        RegistryAccess("https://registry-a", "${file:/secrets:user}", tls),
        RegistryAccess("https://registry-b", "name:password"),
    )
    assert "password" not in repr(found)
    assert {name for name in values if keeps_references(f"twinlog.transform.{name}")} == {
        "registry.basic.auth.user.info",
        "registry.ssl.truststore.location",
        "registry.ssl.key.password",
        "target.registry.basic.auth.user.info",
    }


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
        (
            {**AVRO, "twinlog.transform.value.subject": ":.eu:orders-value"},
            "value.subject is ':.eu:orders-value': expected a subject without a context",
        ),
        ({**AVRO, "twinlog.transform.registry.url": ""}, "registry.url is missing"),
        ({**AVRO, "twinlog.transform.registry.url": "registry:8081"}, "registry.url is not a URL"),
        (
            {**AVRO, "twinlog.transform.target.registry.url": "http://user:secret@b:8081"},
            "target.registry.url is not a URL: expected .* without a user",
        ),
        ({**SQL, "twinlog.transform.registry.url": "http://a:1"}, "registry.url is set"),
        ({**SQL, "twinlog.transform.target.registry.url": "http://a:1"}, "registry.url is missing"),
        (
            {**AVRO, "twinlog.transform.registry.basic.auth.user.info": "geheim"},
            "registry.basic.auth.user.info has no colon: expected NAME:PASSWORD",
        ),
        (
            {**AVRO, "twinlog.transform.registry.basic.auth.credentials.source": "URL"},
            "credentials.source is 'URL': expected USER_INFO",
        ),
        (
            {**AVRO, "twinlog.transform.registry.basic.auth.credentials.source": "USER_INFO"},
            "registry.basic.auth.user.info is missing",
        ),
        (
            {**AVRO, "twinlog.transform.registry.ssl.truststore.location": "/ca.pem"},
            "ssl.truststore.location is set: expected a .*url with https",
        ),
        (
            {**AVRO, "twinlog.transform.target.registry.basic.auth.user.info": "a:b"},
            "target.registry.basic.auth.user.info is set: expected .*target.registry.url",
        ),
        (
            {**AVRO, "twinlog.transform.registry.ssl.truststore.password": "x"},
            "registry.ssl.truststore.password is not known",
        ),
        ({**SQL, "twinlog.transform.key.subject": "a"}, "expected twinlog.transform.key.format"),
        *(
            ({**SQL, "twinlog.transform.spark.memory": size}, "expected 512m to 1024g")
            for size in ("", "1", "511m", "1025g", "1024", "-1g", "1.5g", "1t")
        ),
        ({**SQL, "twinlog.transform.spark.sql.ansi.enabled": "false"}, "ansi.enabled is not known"),
        ({**SQL, "twinlog.transform.query": "a"}, "twinlog.transform.query is not known"),
    ],
)
def test_mistakes_are_named(values: dict[str, str], text: str) -> None:
    """Goal: no property is passed over: records would go unchanged."""
    with pytest.raises(UserError, match=text.replace(".", r"\.").replace(r"\.*", ".*")):
        parse_dataframe_transform(values)


def test_all_mistakes_are_found_at_once() -> None:
    """Goal: none hides another one, and none is reported that follows from another one only."""
    prefix = "twinlog.transform."
    names = {
        "function": "masked",
        "key.format": "xml",
        "value.format": "json",
        "registry.url": "registry:8081",
        "target.registry.url": "http://b:1",
        "target.registry.ssl.truststore.location": "/ca.pem",
        "tables.records": "/a.txt",
        "spark.memory": "1",
        "a": "x",
        "b": "y",
    }
    values = {f"{prefix}{name}": text for name, text in names.items()}
    wrong = wrong_dataframe_transform(values)
    assert [one.name.removeprefix(prefix) for one in wrong] == [
        "key.format",
        "value.format",
        "registry.url",
        "target.registry.ssl.truststore.location",
        "tables.records",
        "tables.records",
        "spark.memory",
        "a",
        "b",
        "function",
    ]
    with pytest.raises(UserError) as raised:
        parse_dataframe_transform(values)
    assert str(raised.value) == "; ".join(str(one.error) for one in wrong)
    assert wrong_dataframe_transform(SQL) == ()
    assert wrong_dataframe_transform({"topics": "x"}) == ()
