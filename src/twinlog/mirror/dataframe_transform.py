r"""A flow's transform by Spark: a SQL query or a Python function (decision 0016).

    twinlog.transform.sql = SELECT record, 'gold' AS topic, struct(value.id, p.price) AS value \
        FROM records JOIN prices p ON p.id = value.id
    twinlog.transform.value.format = json
    twinlog.transform.value.schema = id BIGINT, card STRING
    twinlog.transform.tables.prices = /data/prices.csv
    twinlog.transform.tables.prices.schema = id BIGINT, price DECIMAL(10, 2)

`twinlog.transform.function = module:function` names a function `DataFrame -> DataFrame` instead.

The query reads `records`, one row for each record (`RECORD_COLUMNS`). A row of its result is a
record to write, and `record` names the record that it comes from. Another column of
`RESULT_COLUMNS` that the result lacks stays as in that record, with the same bytes. A record that
no row names is dropped.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import PurePosixPath
from typing import Final

from twinlog.kafka.errors import UserError

PREFIX: Final = "twinlog.transform."
SQL: Final = f"{PREFIX}sql"
FUNCTION: Final = f"{PREFIX}function"
TABLES: Final = f"{PREFIX}tables."
REGISTRY: Final = f"{PREFIX}registry."
TARGET_REGISTRY: Final = f"{PREFIX}target.registry."
URL: Final = "url"
USER_INFO: Final = "basic.auth.user.info"
"""`NAME:PASSWORD`; Confluent's name, as are those of TLS."""
_USER_SOURCE: Final = "basic.auth.credentials.source"
_TLS_NAMES: Final = (
    "ssl.endpoint.identification.algorithm",
    "ssl.key.password",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
    "ssl.keystore.location",
    "ssl.keystore.type",
    "ssl.truststore.certificates",
    "ssl.truststore.location",
    "ssl.truststore.type",
)
"""How a registry is reached by https; as for brokers (kafka/client/configuration.py)."""
MEMORY: Final = f"{PREFIX}spark.memory"
TIME_ZONE: Final = f"{PREFIX}spark.sql.session.timeZone"
LEAST_MIB: Final = 512
"""Below, Spark does not start."""
MOST_MIB: Final = 1024 * 1024
RECORDS: Final = "records"
"""The name of the table that a query reads."""

RECORD_COLUMNS: Final = (
    "record BIGINT NOT NULL, topic STRING NOT NULL, partition INT NOT NULL, "
    "offset BIGINT NOT NULL, timestamp BIGINT NOT NULL, key BINARY, value BINARY, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>> NOT NULL"
)
"""The columns of `records` in Spark's DDL, before keys and values are decoded.

`topic` is the remote topic. `timestamp` is in milliseconds since 1970.
"""
RECORD_NAMES: Final = (
    "record",
    "topic",
    "partition",
    "offset",
    "timestamp",
    "key",
    "value",
    "headers",
)
"""Their names."""
RESULT_COLUMNS: Final = ("record", "topic", "partition", "timestamp", "key", "value", "headers")
"""The columns of a result that mean something, in the order in which they are handed on."""
IGNORED_COLUMNS: Final = ("offset",)
"""Columns of a result without effect: `SELECT *` has them."""

_PARTS: Final = ("key", "value")
_FUNCTION: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
_TABLE: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_URL: Final = re.compile(r"https?://[^@/?#\s]+(/[^@?#\s]*)?")
_MEMORY: Final = re.compile(r"([0-9]{1,7})([mg])b?", re.IGNORECASE)
_CONTEXT: Final = ":."
"""Begins the name of a subject in a context of Confluent's registry. Ids count within a context,
and a request for an id tells none."""
_TABLE_FORMATS: Final = ("csv", "json", "parquet")


class PartFormat(Enum):
    """What the bytes of keys or values are."""

    BYTES = "bytes"
    STRING = "string"
    JSON = "json"
    AVRO = "avro"


@dataclass(frozen=True, slots=True)
class PartColumn:
    """The column of keys, or of values."""

    format: PartFormat = PartFormat.BYTES
    schema: str | None = None
    """The DDL of the fields of JSON objects."""
    subject: str | None = None
    """The subject of the source's schema registry whose latest schema the column has."""


@dataclass(frozen=True, slots=True)
class RegistryAccess:
    """How a schema registry is reached; references are unresolved, and `repr` shows no secret."""

    url: str
    user_info: str | None = field(default=None, repr=False)
    """`NAME:PASSWORD`, for HTTP's basic authentication."""
    tls: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Properties `ssl.*`, sorted by name."""


@dataclass(frozen=True, slots=True)
class Registries:
    """The schema registries; the same access twice: ids stay."""

    source: RegistryAccess
    target: RegistryAccess


@dataclass(frozen=True, slots=True)
class StaticTable:
    """A table that is read once; without a schema, Spark infers it."""

    name: str
    path: str
    format: str
    schema: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFrameTransform:
    """What Spark does to each micro-batch. Exactly one of `sql` and `function` is set."""

    sql: str | None = None
    function: str | None = None
    """`module:function`, imported where it runs."""
    tables: tuple[StaticTable, ...] = ()
    key: PartColumn = PartColumn()
    value: PartColumn = PartColumn()
    registries: Registries | None = None
    """For Avro."""
    memory_mib: int = 1024
    """Of the Spark beside a lane, which has the most that a flow of the lane wants. MiB."""
    time_zone: str = "UTC"
    """In which Spark reads and writes timestamps without a zone; Spark knows which there are."""


def is_dataframe_property(name: str) -> bool:
    """Whether a flow's property belongs to its transform by Spark."""
    return name.startswith(PREFIX)


def keeps_references(name: str) -> bool:
    """Whether a property of a flow may refer to a secret, which is resolved where it is used."""
    for prefix in (REGISTRY, TARGET_REGISTRY):
        rest = name.removeprefix(prefix)
        if rest != name and (rest == USER_INFO or rest in _TLS_NAMES):
            return True
    return False


def has_dataframe_transform(values: Mapping[str, str]) -> bool:
    """Whether a flow's properties have a transform by Spark, complete or not."""
    return any(map(is_dataframe_property, values))


def parse_dataframe_transform(values: Mapping[str, str]) -> DataFrameTransform | None:
    """The transform of a flow with these properties; others are ignored. None: it has none.

    The query itself is checked by Spark, where it runs.

    Raises:
        UserError: a property is missing, malformed or unknown.
    """
    if not has_dataframe_transform(values):
        return None
    left = {name: text.strip() for name, text in values.items() if is_dataframe_property(name)}
    sql, function = left.pop(SQL, ""), left.pop(FUNCTION, "")
    key, value = (_part(left, part) for part in _PARTS)
    registries = _registries(left, uses_avro=PartFormat.AVRO in {key.format, value.format})
    tables, memory = _tables(left), _memory(left.pop(MEMORY, "1g"))
    time_zone = left.pop(TIME_ZONE, "") or "UTC"
    if left:
        raise UserError(
            f"{min(left)} is not known",
            hint=f"expected {SQL}, {FUNCTION}, {TABLES}NAME, {TABLES}NAME.schema, "
            f"{PREFIX}value.format, {PREFIX}value.schema, {PREFIX}value.subject, or those of key; "
            f"{MEMORY}, {TIME_ZONE}; "
            f"{REGISTRY}NAME or {TARGET_REGISTRY}NAME with the name {URL}, {USER_INFO}, "
            f"{_USER_SOURCE}, {', '.join(_TLS_NAMES)}",
        )
    if bool(sql) == bool(function):
        which = "both are set" if sql else "neither is set"
        raise UserError(f"{SQL} and {FUNCTION}: {which}, expected one of them")
    if function and not _FUNCTION.fullmatch(function):
        raise UserError(f"{FUNCTION} is {function!r}: expected MODULE:FUNCTION")
    return DataFrameTransform(
        sql=sql or None,
        function=function or None,
        tables=tables,
        key=key,
        value=value,
        registries=registries,
        memory_mib=memory,
        time_zone=time_zone,
    )


def _memory(text: str) -> int:
    """MiB of a size as Spark writes it."""
    found = _MEMORY.fullmatch(text)
    size = 0 if found is None else int(found[1]) * (1024 if found[2] in "gG" else 1)
    if not LEAST_MIB <= size <= MOST_MIB:
        raise UserError(f"{MEMORY} is {text!r}: expected 512m to 1024g, such as 1500m or 4g")
    return size


def _registries(left: dict[str, str], *, uses_avro: bool) -> Registries | None:
    """Take the properties of schema registries."""
    source, target = _registry(left, REGISTRY), _registry(left, TARGET_REGISTRY)
    if (source is not None) != uses_avro or (target and not source):
        raise UserError(
            f"{REGISTRY}{URL} is missing: format=avro needs it"
            if not source
            else f"{REGISTRY}{URL} is set: expected a key or value with format=avro"
        )
    return None if source is None else Registries(source, target or source)


def _registry(left: dict[str, str], prefix: str) -> RegistryAccess | None:
    """Take the properties of one registry."""
    url, user_source = left.pop(f"{prefix}{URL}", ""), left.pop(f"{prefix}{_USER_SOURCE}", None)
    user_info = left.pop(f"{prefix}{USER_INFO}", None)
    tls = {name: left.pop(f"{prefix}{name}") for name in _TLS_NAMES if f"{prefix}{name}" in left}
    if not url:
        extra = [USER_INFO] * (user_info is not None) + [_USER_SOURCE] * (user_source is not None)
        if extra := [*extra, *tls]:
            raise UserError(f"{prefix}{extra[0]} is set: expected {prefix}{URL} with it")
        return None
    if not _URL.fullmatch(url):
        raise UserError(
            f"{prefix}{URL} is not a URL: expected http:// or https://, a host, a port and a path, "
            f"without a user",
            hint=f"{prefix}{USER_INFO} has name and password",
        )
    if user_source is not None and user_source.upper() != "USER_INFO":
        raise UserError(
            f"{prefix}{_USER_SOURCE} is {user_source!r}: expected USER_INFO, with {prefix}"
            f"{USER_INFO}"
        )
    if user_source is not None and user_info is None:
        raise UserError(f"{prefix}{USER_INFO} is missing: {prefix}{_USER_SOURCE} needs it")
    if user_info is not None and ":" not in user_info:  # a reference has one, too
        raise UserError(
            f"{prefix}{USER_INFO} has no colon: expected NAME:PASSWORD, or a reference to it"
        )
    if tls and not url.startswith("https://"):
        raise UserError(f"{prefix}{min(tls)} is set: expected a {prefix}{URL} with https://")
    return RegistryAccess(url, user_info, tuple(sorted(tls.items())))


def _part(left: dict[str, str], part: str) -> PartColumn:
    """Take the properties of keys or values."""
    name, schema_name = f"{PREFIX}{part}.format", f"{PREFIX}{part}.schema"
    text, schema = left.pop(name, PartFormat.BYTES.value).lower(), left.pop(schema_name, "")
    subject_name = f"{PREFIX}{part}.subject"
    subject = left.pop(subject_name, "")
    known = [each.value for each in PartFormat]
    if text not in known:
        raise UserError(f"{name} is {text!r}: expected one of {', '.join(known)}")
    form = PartFormat(text)
    if (form is PartFormat.JSON) != bool(schema):
        raise UserError(
            f"{schema_name} is missing: {name}=json needs the fields, such as id BIGINT, card "
            "STRING"
            if not schema
            else f"{schema_name} is set: expected {name}=json with it"
        )
    if (form is PartFormat.AVRO) != bool(subject):
        raise UserError(
            f"{subject_name} is missing: {name}=avro needs a subject of the schema registry"
            if not subject
            else f"{subject_name} is set: expected {name}=avro with it"
        )
    if subject.startswith(_CONTEXT):
        raise UserError(
            f"{subject_name} is {subject!r}: expected a subject without a context",
            hint=f"write the context into {REGISTRY}{URL}: http://HOST:PORT/contexts/.NAME",
        )
    return PartColumn(form, schema or None, subject or None)


def _tables(left: dict[str, str]) -> tuple[StaticTable, ...]:
    """Take the properties of static tables."""
    found = []
    for property_name in sorted(name for name in left if name.startswith(TABLES)):
        name, dot, _ = property_name.removeprefix(TABLES).partition(".")
        if dot:
            continue
        path, schema = left.pop(property_name), left.pop(f"{property_name}.schema", "")
        if not _TABLE.fullmatch(name) or name.lower() == RECORDS:
            raise UserError(
                f"{property_name}: expected a name of letters, digits and _, other than {RECORDS}"
            )
        suffix = PurePosixPath(path).suffix.removeprefix(".").lower()
        if suffix not in _TABLE_FORMATS:
            raise UserError(
                f"{property_name} is {path!r}: expected a path that ends in "
                f"{', '.join(f'.{each}' for each in _TABLE_FORMATS)}"
            )
        found.append(StaticTable(name, path, suffix, schema or None))
    if len({table.name.lower() for table in found}) < len(found):
        raise UserError(f"{TABLES}NAME: two names differ in case only, which SQL does not tell")
    return tuple(found)
