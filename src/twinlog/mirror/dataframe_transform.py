r"""A flow's transform by Spark: a SQL query or a Python function (decision 0016).

    twinlog.transform.sql = SELECT record, 'gold' AS topic, struct(value.id, p.price) AS value \
        FROM records JOIN prices p ON p.id = value.id
    twinlog.transform.value.format = json
    twinlog.transform.value.schema = id BIGINT, card STRING
    twinlog.transform.tables.prices = /data/prices.csv
    twinlog.transform.tables.prices.schema = id BIGINT, price DECIMAL(10, 2)

`twinlog.transform.function = module:function` names a function `DataFrame -> DataFrame` instead.
`twinlog.transform.routes = false` tells that records stay in their own topic and partition.

The query reads `records`, one row for each record (`RECORD_COLUMNS`). A row of its result is a
record to write, and `record` names the record that it comes from. Another column of
`RESULT_COLUMNS` that the result lacks stays as in that record, with the same bytes. A record that
no row names is dropped.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import PurePosixPath
from typing import Final

from twinlog.kafka.errors import UserError
from twinlog.mirror.setting_values import parse_flag
from twinlog.mirror.transform_options import WrongProperty, joined

PREFIX: Final = "twinlog.transform."
SQL: Final = f"{PREFIX}sql"
FUNCTION: Final = f"{PREFIX}function"
ROUTES: Final = f"{PREFIX}routes"
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

_ROUTES: Final = "true"
"""The default: a query may have a column `topic`."""
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
    routes: bool = True
    """Whether rows may go to another topic, or partition, than their records; else they fail."""
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


def may_route_rows(values: Mapping[str, str]) -> bool:
    """Whether a flow with these properties has a transform by Spark that may route records."""
    if not has_dataframe_transform(values):
        return False
    try:
        return parse_flag(values.get(ROUTES, _ROUTES))
    except ValueError:
        return True  # it is refused by `parse_dataframe_transform`


def parse_dataframe_transform(values: Mapping[str, str]) -> DataFrameTransform | None:
    """The transform of a flow with these properties; others are ignored. None: it has none.

    The query itself is checked by Spark, where it runs.

    Raises:
        UserError: a property is missing, malformed or unknown; all such mistakes in one message.
    """
    if not has_dataframe_transform(values):
        return None
    reader = _QueryReader(values)
    transform = reader.transform()
    if reader.wrong:
        raise joined(reader.wrong)
    return transform


def wrong_dataframe_transform(values: Mapping[str, str]) -> Sequence[WrongProperty]:
    """All that `parse_dataframe_transform` refuses these properties for."""
    if not has_dataframe_transform(values):
        return ()
    reader = _QueryReader(values)
    reader.transform()
    return tuple(reader.wrong)


class _QueryReader:
    """Takes the properties of a transform one by one, and collects what is wrong.

    Behind a mistake it goes on with something harmless; then the transform is of no use.
    """

    def __init__(self, values: Mapping[str, str]) -> None:
        self._left = {
            name: text.strip() for name, text in values.items() if is_dataframe_property(name)
        }
        self.wrong: list[WrongProperty] = []

    def transform(self) -> DataFrameTransform:
        sql, function = self._take(SQL), self._take(FUNCTION)
        key, value = (self._part(part) for part in _PARTS)
        # Whether a registry is needed is known only of valid formats.
        uses_avro = None if self.wrong else PartFormat.AVRO in {key.format, value.format}
        registries = self._registries(uses_avro)
        tables, memory = self._tables(), self._memory()
        time_zone = self._take(TIME_ZONE) or "UTC"
        routes = self._flag(ROUTES, _ROUTES)
        self._refuse_left()
        if bool(sql) == bool(function):
            which = "both are set" if sql else "neither is set"
            self._refuse(SQL, f"{SQL} and {FUNCTION}: {which}, expected one of them")
        elif function and not _FUNCTION.fullmatch(function):
            self._refuse(FUNCTION, f"{FUNCTION} is {function!r}: expected MODULE:FUNCTION")
        return DataFrameTransform(
            sql=sql or None,
            function=function or None,
            routes=routes,
            tables=tables,
            key=key,
            value=value,
            registries=registries,
            memory_mib=memory,
            time_zone=time_zone,
        )

    def _refuse_left(self) -> None:
        """Refuse what nothing has taken."""
        hint = (
            f"expected {SQL}, {FUNCTION}, {TABLES}NAME, {TABLES}NAME.schema, "
            f"{PREFIX}value.format, {PREFIX}value.schema, {PREFIX}value.subject, or those of key; "
            f"{ROUTES}, {MEMORY}, {TIME_ZONE}; "
            f"{REGISTRY}NAME or {TARGET_REGISTRY}NAME with the name {URL}, {USER_INFO}, "
            f"{_USER_SOURCE}, {', '.join(_TLS_NAMES)}"
        )
        *others, last = sorted(self._left) or [""]
        for name in others:
            self._refuse(name, f"{name} is not known")
        if last:
            self._refuse(last, f"{last} is not known", hint)

    def _flag(self, name: str, default: str) -> bool:
        """Take a boolean."""
        text = self._left.pop(name, default)
        try:
            return parse_flag(text)
        except ValueError as error:
            self._refuse(name, f"{name} is {text!r}: expected {error}")
            return True

    def _memory(self) -> int:
        """MiB of a size as Spark writes it."""
        text = self._left.pop(MEMORY, "1g")
        found = _MEMORY.fullmatch(text)
        size = 0 if found is None else int(found[1]) * (1024 if found[2] in "gG" else 1)
        if not LEAST_MIB <= size <= MOST_MIB:
            self._refuse(
                MEMORY, f"{MEMORY} is {text!r}: expected 512m to 1024g, such as 1500m or 4g"
            )
        return size

    def _registries(self, uses_avro: bool | None) -> Registries | None:
        """Take the properties of schema registries; `uses_avro` is None: it is not known."""
        before = len(self.wrong)
        source, target = self._registry(REGISTRY), self._registry(TARGET_REGISTRY)
        if len(self.wrong) > before or uses_avro is None:
            return None
        if (source is not None) != uses_avro or (target and not source):
            self._refuse(
                f"{REGISTRY}{URL}",
                f"{REGISTRY}{URL} is missing: format=avro needs it"
                if not source
                else f"{REGISTRY}{URL} is set: expected a key or value with format=avro",
            )
        return None if source is None else Registries(source, target or source)

    def _registry(self, prefix: str) -> RegistryAccess | None:
        """Take the properties of one registry."""
        url, user_source = (
            self._take(f"{prefix}{URL}"),
            self._left.pop(f"{prefix}{_USER_SOURCE}", None),
        )
        user_info = self._left.pop(f"{prefix}{USER_INFO}", None)
        tls = {
            name: self._left.pop(f"{prefix}{name}")
            for name in _TLS_NAMES
            if f"{prefix}{name}" in self._left
        }
        if not url:
            extra = [USER_INFO] * (user_info is not None) + [_USER_SOURCE] * (
                user_source is not None
            )
            if extra := [*extra, *tls]:
                name = f"{prefix}{extra[0]}"
                self._refuse(name, f"{name} is set: expected {prefix}{URL} with it")
            return None
        if not _URL.fullmatch(url):
            self._refuse(
                f"{prefix}{URL}",
                f"{prefix}{URL} is not a URL: expected http:// or https://, a host, a port and a "
                "path, without a user",
                f"{prefix}{USER_INFO} has name and password",
            )
        elif tls and not url.startswith("https://"):
            name = f"{prefix}{min(tls)}"
            self._refuse(name, f"{name} is set: expected a {prefix}{URL} with https://")
        self._check_user(prefix, user_source, user_info)
        return RegistryAccess(url, user_info, tuple(sorted(tls.items())))

    def _check_user(self, prefix: str, source: str | None, info: str | None) -> None:
        source_name, name = f"{prefix}{_USER_SOURCE}", f"{prefix}{USER_INFO}"
        if source is not None and source.upper() != "USER_INFO":
            self._refuse(
                source_name, f"{source_name} is {source!r}: expected USER_INFO, with {name}"
            )
        elif source is not None and info is None:
            self._refuse(source_name, f"{name} is missing: {source_name} needs it")
        if info is not None and ":" not in info:  # a reference has one, too
            self._refuse(name, f"{name} has no colon: expected NAME:PASSWORD, or a reference to it")

    def _part(self, part: str) -> PartColumn:
        """Take the properties of keys or values."""
        name, schema_name = f"{PREFIX}{part}.format", f"{PREFIX}{part}.schema"
        text = self._left.pop(name, PartFormat.BYTES.value).lower()
        subject_name = f"{PREFIX}{part}.subject"
        schema, subject = self._take(schema_name), self._take(subject_name)
        known = [each.value for each in PartFormat]
        if text not in known:
            self._refuse(name, f"{name} is {text!r}: expected one of {', '.join(known)}")
            return PartColumn()
        form = PartFormat(text)
        if (form is PartFormat.JSON) != bool(schema):
            self._refuse(
                schema_name if schema else name,
                f"{schema_name} is missing: {name}=json needs the fields, such as id BIGINT, card "
                "STRING"
                if not schema
                else f"{schema_name} is set: expected {name}=json with it",
            )
        if (form is PartFormat.AVRO) != bool(subject):
            self._refuse(
                subject_name if subject else name,
                f"{subject_name} is missing: {name}=avro needs a subject of the schema registry"
                if not subject
                else f"{subject_name} is set: expected {name}=avro with it",
            )
        if subject.startswith(_CONTEXT):
            self._refuse(
                subject_name,
                f"{subject_name} is {subject!r}: expected a subject without a context",
                f"write the context into {REGISTRY}{URL}: http://HOST:PORT/contexts/.NAME",
            )
        return PartColumn(form, schema or None, subject or None)

    def _tables(self) -> tuple[StaticTable, ...]:
        """Take the properties of static tables."""
        tables: list[StaticTable] = []
        for property_name in sorted(name for name in self._left if name.startswith(TABLES)):
            name, dot, _ = property_name.removeprefix(TABLES).partition(".")
            if dot:
                continue
            path, schema = self._take(property_name), self._take(f"{property_name}.schema")
            if not _TABLE.fullmatch(name) or name.lower() == RECORDS:
                self._refuse(
                    property_name,
                    f"{property_name}: expected a name of letters, digits and _, other than "
                    f"{RECORDS}",
                )
            suffix = PurePosixPath(path).suffix.removeprefix(".").lower()
            if suffix not in _TABLE_FORMATS:
                self._refuse(
                    property_name,
                    f"{property_name} is {path!r}: expected a path that ends in "
                    f"{', '.join(f'.{each}' for each in _TABLE_FORMATS)}",
                )
            if any(name.lower() == table.name.lower() for table in tables):
                self._refuse(
                    property_name,
                    f"{TABLES}NAME: two names differ in case only, which SQL does not tell",
                )
            tables.append(StaticTable(name, path, suffix, schema or None))
        return tuple(tables)

    def _take(self, name: str) -> str:
        """A property, or nothing."""
        return self._left.pop(name, "")

    def _refuse(self, name: str, message: str, hint: str = "") -> None:
        self.wrong.append(WrongProperty(name, UserError(message, hint=hint)))
