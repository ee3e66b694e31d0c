"""Connect's single-message transforms and predicates (KIP-66, KIP-145, KIP-585), one record each.

A transform is a function of a record that returns another one, or None: the record is dropped.
Each has the semantics of Kafka 4.3's Java class of its name for records without a schema, which
tests/mirror/test_record_transforms_java.py compares. What differs, since Kafka's way is of no use
to a flow:

- A header has bytes. `InsertHeader` writes the literal as text in UTF-8, and `HeaderFrom` a field's
  text. Other headers stay as they are, whatever `header.converter` is.
- `MaskField` leaves null as it is: there is nothing to mask, and Kafka fails.
- A number that is no 64-bit integer keeps its digits (record_converters.py).

In MirrorMaker 2 a transform sees the remote topic's name (`A.orders`), and the source's partition.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, NamedTuple

from twinlog.mirror.date_patterns import date_format
from twinlog.mirror.pattern_lists import compile_list
from twinlog.mirror.record_converters import (
    JSON,
    Converter,
    Data,
    TransformError,
    kind_of,
    plain_text,
)
from twinlog.mirror.setting_values import MAX_LONG
from twinlog.mirror.transform_options import TransformOptions

Headers = tuple[tuple[str, bytes | None], ...]

TRANSFORMS_PACKAGE: Final = "org.apache.kafka.connect.transforms."
_JSON_CLASS: Final = "org.apache.kafka.connect.json.JsonConverter"
FORMER_OPTIONS: Final[Mapping[str, str]] = {"blacklist": "exclude", "whitelist": "include"}
"""Properties of `ReplaceField` until Kafka 3.9; the present name counts if it names a field."""
PREDICATES_PACKAGE: Final = "org.apache.kafka.connect.transforms.predicates."
_OPTIONALITY: Final = re.compile(r"[?!]\Z")
"""Behind the name of a field that is inserted; without a schema it means nothing."""
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,19}")
_DECIMAL: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")


class Part:
    """The key or value of a record: bytes until a transform asks what they mean, or new data.

    Never changed: records share it.
    """

    __slots__ = ("_converter", "_data", "_decoded", "_raw")

    def __init__(self, raw: bytes | None, converter: Converter) -> None:
        self._raw = raw
        self._converter = converter
        self._data: Data = None
        self._decoded = raw is None

    @property
    def data(self) -> Data:
        """What a transform sees.

        Raises:
            TransformError: the converter cannot read the bytes.
        """
        if not self._decoded:
            assert self._raw is not None
            self._data, self._decoded = self._converter.decode(self._raw), True
        return self._data

    @property
    def is_null(self) -> bool:
        """Whether it is null: for Connect's JSON, also the text `null`, and no text at all."""
        if self._raw is None:
            return self.data is None
        return self._converter is JSON and self._raw.strip(b" \t\r\n") in {b"", b"null"}

    @property
    def is_json(self) -> bool:
        """Whether its converter reads JSON, the only one with objects."""
        return self._converter is JSON

    def with_data(self, data: Data) -> "Part":
        """Other data, to be written by the same converter."""
        part = Part(None, self._converter)
        part._data = data
        return part

    def bytes(self) -> bytes | None:
        """What is written: the bytes as they were read, or the new data's.

        Raises:
            TransformError: the converter cannot write the data.
        """
        if self._raw is not None:
            return self._raw
        return None if self._data is None else self._converter.encode(self._data)


class FlowRecord(NamedTuple):
    """A record on its way to a topic of the target."""

    topic: str
    partition: int
    timestamp: int
    key: Part
    value: Part
    headers: Headers = ()


Transform = Callable[[FlowRecord], FlowRecord | None]
Predicate = Callable[[FlowRecord], bool]


@dataclass(frozen=True, slots=True)
class _Side:
    """The key or the value of a record."""

    name: str

    def part(self, record: FlowRecord) -> Part:
        return record.key if self.name == "key" else record.value

    def fields(self, record: FlowRecord, purpose: str) -> dict[str, Data]:
        """The fields; a copy.

        Raises:
            TransformError: it is no object.
        """
        part = self.part(record)
        data = part.data
        if not isinstance(data, dict):
            advice = "exclude such records with a predicate"
            if not part.is_json:
                advice = f"set {self.name}.converter to {_JSON_CLASS}, or {advice}"
            text = f"the {self.name} is {kind_of(data)}, and {purpose} needs an object"
            raise TransformError(f"{text}: {advice}")
        return dict(data)

    def put(self, record: FlowRecord, data: Data) -> FlowRecord:
        part = self.part(record).with_data(data)
        return record._replace(key=part) if self.name == "key" else record._replace(value=part)


KEY: Final = _Side("key")
VALUE: Final = _Side("value")


# ---- routes ------------------------------------------------------------------------------------


def _regex_router(options: TransformOptions) -> Transform:
    pattern = _pattern(options, "regex")
    replacement = options.required("replacement")
    # Which groups there are is known only of a valid expression.
    pieces = [] if options.wrong else _pieces(options, replacement, pattern)

    def route(record: FlowRecord) -> FlowRecord:
        if pattern.fullmatch(record.topic) is None:
            return record
        # As Java: what is replaced is the first match, which may be shorter than the whole name.
        first = pattern.search(record.topic)
        assert first is not None
        text = "".join(p if isinstance(p, str) else first[p] or "" for p in pieces)
        topic = record.topic[: first.start()] + text + record.topic[first.end() :]
        return record._replace(topic=topic)

    return route


def _pattern(options: TransformOptions, name: str) -> re.Pattern[str]:
    text = options.required(name)
    try:
        pattern = compile_list([text])
    except ValueError as error:
        options.refuse(name, f"a regular expression ({error})")
        return re.compile("")
    assert pattern is not None
    return pattern


def _pieces(options: TransformOptions, text: str, pattern: re.Pattern[str]) -> Sequence[str | int]:
    r"""Java's replacement: `$1` is a group, `\x` the character x. Numbers of groups, and texts."""
    name = "replacement"
    pieces, at = list[str | int](), 0
    while at < len(text):
        character = text[at]
        at += 1
        if character == "\\":
            if at == len(text):
                options.refuse(name, "a character behind each backslash")
                break
            pieces.append(text[at])
            at += 1
        elif character == "$":
            match = re.compile("[0-9]+").match(text, at)
            if match is None or int(match[0][0]) > pattern.groups:
                options.refuse(name, f"$N with a group of the regex, 0 to {pattern.groups}")
                break
            digits = match[0][:1]
            for digit in match[0][1:]:  # Java reads on as long as there is such a group
                if int(digits + digit) > pattern.groups:
                    break
                digits += digit
            pieces.append(int(digits))
            at += len(digits)
        else:
            pieces.append(character)
    return pieces


def _timestamp_router(options: TransformOptions) -> Transform:
    topic_format = options.text("topic.format", "${topic}-${timestamp}") or ""
    format_ms: Callable[[int], str] = str
    try:
        format_ms = date_format(options.text("timestamp.format", "yyyyMMdd") or "")
    except ValueError as error:
        options.refuse("timestamp.format", str(error))

    def route(record: FlowRecord) -> FlowRecord:
        try:
            date = format_ms(record.timestamp)
        except OverflowError as error:
            raise TransformError(f"its timestamp {record.timestamp} has no date") from error
        topic = topic_format.replace("${topic}", record.topic).replace("${timestamp}", date)
        return record._replace(topic=topic)

    return route


# ---- fields ------------------------------------------------------------------------------------


def _insert_field(options: TransformOptions, side: _Side) -> Transform:
    topic, partition, timestamp, static = (
        _OPTIONALITY.sub("", options.text(f"{name}.field") or "")
        for name in ("topic", "partition", "timestamp", "static")
    )
    value = options.text("static.value")
    if options.text("offset.field"):
        options.refuse("offset.field", "nothing: Kafka inserts offsets in sink connectors only")
    options.flag("replace.null.with.default", default=True)
    if static and value is None:
        options.missing("static.value", "static.field needs it")
    if not (topic or partition or timestamp or static):
        options.missing(
            "topic.field",
            "expected it, partition.field, timestamp.field, or static.field with static.value",
        )

    def insert(record: FlowRecord) -> FlowRecord:
        if side.part(record).is_null:
            return record
        fields = side.fields(record, "InsertField")
        if topic:
            fields[topic] = record.topic
        if partition:
            fields[partition] = record.partition
        if timestamp:
            fields[timestamp] = record.timestamp
        if static:
            fields[static] = value
        return side.put(record, fields)

    return insert


def _replace_field(options: TransformOptions, side: _Side) -> Transform:
    former = {present: options.names(name) for name, present in FORMER_OPTIONS.items()}
    exclude = frozenset(options.names("exclude") or former["exclude"])
    include = frozenset(options.names("include") or former["include"])
    options.flag("replace.null.with.default", default=True)
    renames: dict[str, str] = {}
    for item in options.names("renames"):
        parts = item.split(":")
        if len(parts) != 2 or not all(parts):
            options.refuse("renames", "OLD:NEW, comma-separated")
            break
        renames[parts[0]] = parts[1]
    if len(set(renames.values())) < len(renames):
        options.refuse("renames", "different new names: one field would replace another")

    def change(record: FlowRecord) -> FlowRecord:
        if side.part(record).is_null:
            return record
        fields = side.fields(record, "ReplaceField")
        kept = {
            name: data
            for name, data in fields.items()
            if name not in exclude and (not include or name in include)
        }
        changed = {renames.get(name, name): data for name, data in kept.items()}
        if len(changed) < len(kept):
            raise TransformError("two fields would get the same name by ReplaceField's renames")
        return side.put(record, changed)

    return change


def _mask_field(options: TransformOptions, side: _Side) -> Transform:
    names = options.names("fields", required=True)
    replacement = options.text("replacement")
    options.flag("replace.null.with.default", default=True)
    if replacement == "":
        options.refuse("replacement", "a text that is not empty")

    def mask(record: FlowRecord) -> FlowRecord:
        if side.part(record).is_null:
            return record
        fields = side.fields(record, "MaskField")
        for name in names:
            fields[name] = _masked(fields.get(name), replacement)
        return side.put(record, fields)

    return mask


def _masked(data: Data, replacement: str | None) -> Data:
    """What stands for a value: nothing of its type, or a text converted to its type."""
    if data is None:
        return None
    if replacement is None:
        empty: dict[type, Data] = {bool: False, int: 0, Decimal: Decimal("0.0"), str: ""}
        return empty[type(data)] if type(data) in empty else type(data)()
    if isinstance(data, str):
        return replacement
    if isinstance(data, bool) or not isinstance(data, int | Decimal):
        raise TransformError(f"MaskField cannot replace {kind_of(data)} by a text")
    if isinstance(data, int):
        if _WHOLE.fullmatch(replacement) and -MAX_LONG - 1 <= int(replacement) <= MAX_LONG:
            return int(replacement)
    elif _DECIMAL.fullmatch(replacement):
        return Decimal(replacement)
    raise TransformError(f"MaskField's replacement {replacement!r} is no number of this type")


def _value_to_key(options: TransformOptions) -> Transform:
    names = options.names("fields", required=True)
    options.flag("replace.null.with.default", default=True)

    def change(record: FlowRecord) -> FlowRecord:
        fields = VALUE.fields(record, "ValueToKey")
        return KEY.put(record, {name: fields.get(name) for name in names})

    return change


def _extract_field(options: TransformOptions, side: _Side) -> Transform:
    name = options.required("field")
    syntax = options.text("field.syntax.version", "V1")
    if syntax != "V1":
        options.refuse("field.syntax.version", "V1: paths to nested fields are not supported")
    options.flag("replace.null.with.default", default=True)

    def extract(record: FlowRecord) -> FlowRecord:
        if side.part(record).is_null:
            return side.put(record, None)
        return side.put(record, side.fields(record, "ExtractField").get(name))

    return extract


# ---- headers -----------------------------------------------------------------------------------


def _insert_header(options: TransformOptions) -> Transform:
    name = options.required("header")
    data = options.required("value.literal").encode("utf-8", "surrogatepass")
    return lambda record: record._replace(headers=(*record.headers, (name, data)))


def _drop_headers(options: TransformOptions) -> Transform:
    names = frozenset(options.names("headers", required=True))

    def drop(record: FlowRecord) -> FlowRecord:
        return record._replace(headers=tuple(h for h in record.headers if h[0] not in names))

    return drop


def _header_from(options: TransformOptions, side: _Side) -> Transform:
    fields = options.names("fields", required=True)
    headers = options.names("headers", required=True)
    operation = options.required("operation")
    options.flag("replace.null.with.default", default=True)
    if fields and headers and len(fields) != len(headers):
        options.refuse("headers", "as many headers as fields")
    if operation and operation not in {"move", "copy"}:
        options.refuse("operation", "move or copy")

    def change(record: FlowRecord) -> FlowRecord:
        data = side.fields(record, "HeaderFrom")
        added = [
            (header, None if data.get(name) is None else _header_bytes(data[name]))
            for name, header in zip(fields, headers, strict=True)
        ]
        record = record._replace(headers=(*record.headers, *added))
        if operation == "copy":
            return record
        return side.put(record, {name: value for name, value in data.items() if name not in fields})

    return change


def _header_bytes(data: Data) -> bytes:
    return plain_text(data).encode("utf-8", "surrogatepass")


# ---- filter and predicates ---------------------------------------------------------------------


def _filter(options: TransformOptions) -> Transform:
    del options
    return lambda _: None


def _topic_name_matches(options: TransformOptions) -> Predicate:
    pattern = _pattern(options, "pattern")
    return lambda record: pattern.fullmatch(record.topic) is not None


def _has_header_key(options: TransformOptions) -> Predicate:
    name = options.required("name")
    return lambda record: any(header == name for header, _ in record.headers)


def _record_is_tombstone(options: TransformOptions) -> Predicate:
    del options
    return lambda record: record.value.is_null


_OF_RECORDS: Final[Mapping[str, Callable[[TransformOptions], Transform]]] = {
    "RegexRouter": _regex_router,
    "TimestampRouter": _timestamp_router,
    "InsertHeader": _insert_header,
    "DropHeaders": _drop_headers,
    "ValueToKey": _value_to_key,
    "Filter": _filter,
}
_OF_SIDES: Final[Mapping[str, Callable[[TransformOptions, _Side], Transform]]] = {
    "InsertField": _insert_field,
    "ReplaceField": _replace_field,
    "MaskField": _mask_field,
    "ExtractField": _extract_field,
    "HeaderFrom": _header_from,
}
_PREDICATES: Final[Mapping[str, Callable[[TransformOptions], Predicate]]] = {
    "TopicNameMatches": _topic_name_matches,
    "HasHeaderKey": _has_header_key,
    "RecordIsTombstone": _record_is_tombstone,
}
# Whose functions read nothing of a record but its topic and partition, and append headers.
_UNIFORM: Final = frozenset({"RegexRouter", "InsertHeader", "Filter"})
_UNIFORM_PREDICATES: Final = frozenset({"TopicNameMatches"})
_ROUTERS: Final = frozenset({"RegexRouter", "TimestampRouter"})
_SIDE_NAMES: Final = {"Key": KEY, "Value": VALUE}

TRANSFORM_NAMES: Final = (*_OF_RECORDS, *(f"{n}${s}" for n in _OF_SIDES for s in _SIDE_NAMES))
PREDICATE_NAMES: Final = (*_PREDICATES,)


def transform_named(class_name: str, options: TransformOptions) -> Transform:
    """A transform, by the name of its Java class, with or without the package.

    Raises:
        UserError: twinlog does not have it, or a property is wrong or unknown.
    """
    name = class_name.strip().removeprefix(TRANSFORMS_PACKAGE)
    base, _, side = name.partition("$")
    if name in _OF_RECORDS:
        transform = _OF_RECORDS[name](options)
    elif base in _OF_SIDES and side in _SIDE_NAMES:
        transform = _OF_SIDES[base](options, _SIDE_NAMES[side])
    else:
        raise options.unknown_class(class_name, TRANSFORM_NAMES)
    options.finish()
    return transform


def predicate_named(class_name: str, options: TransformOptions) -> Predicate:
    """A predicate, by the name of its Java class, with or without the package.

    Raises:
        UserError: twinlog does not have it, or a property is wrong or unknown.
    """
    name = class_name.strip().removeprefix(PREDICATES_PACKAGE)
    if name not in _PREDICATES:
        raise options.unknown_class(class_name, PREDICATE_NAMES)
    predicate = _PREDICATES[name](options)
    options.finish()
    return predicate


def is_uniform_transform(class_name: str) -> bool:
    """Whether a transform of this class, without a predicate, is uniform: see `ChainStep`."""
    return class_name.strip().removeprefix(TRANSFORMS_PACKAGE) in _UNIFORM


def makes_keys(class_name: str) -> bool:
    """Whether keys are objects behind a transform of this class, whatever they were."""
    return class_name.strip().removeprefix(TRANSFORMS_PACKAGE) == "ValueToKey"


def side_of_fields(class_name: str) -> str | None:
    """`key` or `value`, if a transform of this class needs its fields; None: it needs neither."""
    name = class_name.strip().removeprefix(TRANSFORMS_PACKAGE)
    base, _, side = name.partition("$")
    if makes_keys(name):
        return VALUE.name
    return _SIDE_NAMES[side].name if base in _OF_SIDES and side in _SIDE_NAMES else None


def is_router(class_name: str) -> bool:
    """Whether a transform of this class may change the topic of a record."""
    return class_name.strip().removeprefix(TRANSFORMS_PACKAGE) in _ROUTERS


def is_uniform_predicate(class_name: str) -> bool:
    """Whether a predicate depends on nothing of a record but its topic and partition."""
    return class_name.strip().removeprefix(PREDICATES_PACKAGE) in _UNIFORM_PREDICATES


def applied(transform: Transform, predicate: Predicate | None, *, negate: bool) -> Transform:
    """A transform of the records only for which a predicate holds; with `negate`, of the others."""
    if predicate is None:
        return transform
    return lambda record: transform(record) if predicate(record) != negate else record
