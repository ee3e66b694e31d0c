r"""What a flow's transforms should do to a record: a second implementation, for the check.

A check that applied the engine's transforms would repeat their mistakes. So this module is written
from Kafka Connect's documented transforms and predicates (KIP-66, KIP-145, KIP-585; the classes of
`org.apache.kafka.connect.transforms`, for records without a schema), and from what
docs/operations/transforms.md says is different in twinlog. It imports none of the engine's
(mirror/record_transforms.py, transform_chain.py, record_converters.py); `pyproject.toml` forbids
it. What both read are the flow's settings, which were checked when it was created.

    a record of the source  --steps, in order-->  topic, key, value, headers    or dropped

A step changes a `Message` in place. The key and value are bytes until a step asks for their fields;
what no step changes keeps its bytes. Where a record cannot be transformed, nothing is expected of
its copy: an engine makes the partition `FAILED` there.

Which topics records may go to follows from the settings, but for `TimestampRouter`: then a record's
time has to be known as well (dated_names.py).
"""

import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Final, NamedTuple

from twinlog.kafka.errors import UserError
from twinlog.kafka.log.records import Headers, Record
from twinlog.mirror.setting_values import parse_flag, split_list
from twinlog.verify.dated_names import NoDate, dated_name
from twinlog.verify.json_meaning import (
    JsonNumber,
    JsonValue,
    NotJson,
    is_json_null,
    read_json,
    write_json,
)

KEY: Final = "key"
VALUE: Final = "value"
JSON: Final = "JsonConverter"
TEXT: Final = "StringConverter"

_CLASSES: Final = "org.apache.kafka.connect."
_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_WHOLE: Final = re.compile(r"[+-]?[0-9]+")
_DECIMAL: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_TRIMMED: Final = bytes(range(0x21)).decode("ascii")
"""What `ConfigDef.parseType` removes from both ends of a value (`String.trim`)."""
_REPLACED: Final = re.compile(r"\\(?P<plain>.)|\$(?P<group>[0-9]+)|(?P<text>[^\\$]+)", re.DOTALL)


class NotTransformable(Exception):
    """A step cannot be applied to a record."""


class Message:
    """A record on its way through the steps, which change it.

    Args:
        record: as a consumer of the source sees it.
        topic: its remote topic, such as `A.orders`.
        partition: the source's, and that of the copy.
        converters: those of `KEY` and `VALUE`.
    """

    def __init__(
        self, record: Record, topic: str, partition: int, converters: Mapping[str, str]
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.timestamp = record.timestamp
        self.headers = list(record.headers)
        self._raw = {KEY: record.key, VALUE: record.value}
        self._read: dict[str, JsonValue] = {}
        self._changed: set[str] = set()
        self._converters = converters

    def is_null(self, part: str) -> bool:
        """Whether a converter gives null for the key or value."""
        if part in self._changed:
            return self._read[part] is None
        raw = self._raw[part]
        return raw is None or (self._converters[part] == JSON and is_json_null(raw))

    def fields(self, part: str) -> dict[str, JsonValue]:
        """The fields of the key or value; a copy.

        Raises:
            NotTransformable: it is no JSON object.
        """
        if part not in self._read:
            raw = self._raw[part]
            if self._converters[part] != JSON:
                raise NotTransformable(f"the {part} has no JsonConverter")
            try:
                self._read[part] = None if raw is None else read_json(raw)
            except NotJson as error:
                raise NotTransformable(f"the {part} is no JSON: {error}") from error
        value = self._read[part]
        if not isinstance(value, dict):
            raise NotTransformable(f"the {part} is no object")
        return dict(value)

    def put(self, part: str, value: JsonValue) -> None:
        """Give the record another key or value."""
        self._read[part] = value
        self._changed.add(part)

    def written(self, part: str) -> bytes | None:
        """The bytes of the key or value.

        Raises:
            NotTransformable: the converter cannot write it.
            NotJson: it has too many levels.
        """
        if part not in self._changed:
            return self._raw[part]
        value, converter = self._read[part], self._converters[part]
        if value is None:
            return None
        if converter == JSON:
            return write_json(value).encode()
        if converter == TEXT and isinstance(value, JsonNumber) and value.is_whole:
            return b"0" if value.text == "-0" else _field_text(value)
        if converter == TEXT and isinstance(value, bool | str):
            return _field_text(value)
        raise NotTransformable(f"the {part}'s converter cannot write the new one")


class ClassSettings:
    """The settings of one transform or predicate, without their prefix."""

    def __init__(self, values: Mapping[str, str], prefix: str) -> None:
        self._values = {
            k.removeprefix(prefix): v for k, v in values.items() if k.startswith(prefix)
        }
        self.prefix = prefix

    def text(self, name: str) -> str:
        """A setting; empty if it is not set."""
        return self._values.get(name, "").strip(_TRIMMED)

    def has(self, name: str) -> bool:
        """Whether it is set."""
        return name in self._values

    def names(self, name: str, former: str = "") -> tuple[str, ...]:
        """A list; `former`: the setting's former name, which counts if it has no items."""
        try:
            return split_list(self.text(name)) or split_list(self.text(former))
        except ValueError as error:
            raise UserError(
                f"{self.prefix}{name} is {self.text(name)!r}: expected {error}"
            ) from error

    @property
    def class_name(self) -> str:
        """The class, without its package."""
        return self.text("type").rpartition(".")[2]

    def pattern(self, name: str) -> re.Pattern[str]:
        """A regular expression."""
        try:
            return re.compile(self.text(name), re.ASCII)
        except re.error as error:
            raise UserError(f"{self.prefix}{name} is no regular expression: {error}") from error


Change = Callable[[Message], None]
Route = Callable[[str, int], str]
"""The topic of a record, of its topic before and its timestamp."""


# ---- steps -------------------------------------------------------------------------------------


def _router(settings: ClassSettings) -> Route:
    r"""`RegexRouter`: `Matcher.replaceFirst` of the names that match in full.

    In the replacement `$12` is group 12, or, if there is none, group 1 and the text 2.
    """
    pattern, replacement = settings.pattern("regex"), settings.text("replacement")
    tokens = list(_REPLACED.finditer(replacement))

    def reference(digits: str, match: re.Match[str]) -> str:
        length = 1
        while length < len(digits) and int(digits[: length + 1]) <= pattern.groups:
            length += 1
        return (match[int(digits[:length])] or "") + digits[length:]

    def route(topic: str, _timestamp: int) -> str:
        match = pattern.search(topic) if pattern.fullmatch(topic) else None
        if match is None:
            return topic
        new = [
            reference(token["group"], match)
            if token["group"] is not None
            else token["plain"] or token["text"]
            for token in tokens
        ]
        return f"{topic[: match.start()]}{''.join(new)}{topic[match.end() :]}"

    return route


def _timestamp_router(settings: ClassSettings) -> Route:
    """`TimestampRouter`: a name of the topic before and the record's time."""
    formats = {"topic.format": "${topic}-${timestamp}", "timestamp.format": "yyyyMMdd"}
    texts = (settings.text(name) if settings.has(name) else formats[name] for name in formats)
    try:
        route = dated_name(*texts)
    except ValueError as error:
        raise UserError(f"{settings.prefix}timestamp.format: {error}") from error

    def checked(topic: str, timestamp: int) -> str:
        try:
            return route(topic, timestamp)
        except NoDate as error:
            raise NotTransformable(str(error)) from error

    return checked


def _insert_header(settings: ClassSettings) -> Change:
    name, text = settings.text("header"), settings.text("value.literal")
    added = name, text.encode("utf-8", "surrogatepass")
    return lambda message: message.headers.append(added)


def _drop_headers(settings: ClassSettings) -> Change:
    names = settings.names("headers")

    def change(message: Message) -> None:
        message.headers = [header for header in message.headers if header[0] not in names]

    return change


def _header_from(settings: ClassSettings, part: str) -> Change:
    """`HeaderFrom`: a header for each field, which `move` removes."""
    pairs = list(zip(settings.names("fields"), settings.names("headers"), strict=True))
    moves = settings.text("operation") == "move"

    def change(message: Message) -> None:
        fields = message.fields(part)
        left = dict(fields)
        for field, header in pairs:
            value = fields.get(field)
            message.headers.append((header, None if value is None else _field_text(value)))
            left.pop(field, None)
        if moves:
            message.put(part, left)

    return change


def _field_text(value: JsonValue) -> bytes:
    text = value if isinstance(value, str) else write_json(value)
    return text.encode("utf-8", "surrogatepass")


def _insert_field(settings: ClassSettings, part: str) -> Change:
    """`InsertField`: a key or value that is null stays as it is (KAFKA-9707)."""
    topic, partition, timestamp, static = (
        re.sub(r"[?!]$", "", settings.text(f"{name}.field"))
        for name in ("topic", "partition", "timestamp", "static")
    )

    def change(message: Message) -> None:
        if message.is_null(part):
            return
        fields = message.fields(part)
        inserted: tuple[tuple[str, JsonValue], ...] = (
            (topic, message.topic),
            (partition, JsonNumber(str(message.partition))),
            (timestamp, JsonNumber(str(message.timestamp))),
            (static, settings.text("static.value")),
        )
        fields.update({name: value for name, value in inserted if name})
        message.put(part, fields)

    return change


def _replace_field(settings: ClassSettings, part: str) -> Change:
    """`ReplaceField`: what is excluded goes, then what is not included; the rest is renamed."""
    exclude = settings.names("exclude", "blacklist")
    include = settings.names("include", "whitelist")
    renames = dict(pair.split(":", 1) for pair in settings.names("renames"))

    def change(message: Message) -> None:
        if message.is_null(part):
            return
        result: dict[str, JsonValue] = {}
        for name, value in message.fields(part).items():
            if name in exclude or (include and name not in include):
                continue
            new = renames.get(name, name)
            if new in result:
                raise NotTransformable("two fields of the same name: either may be the copy's")
            result[new] = value
        message.put(part, result)

    return change


def _mask_field(settings: ClassSettings, part: str) -> Change:
    """`MaskField`; a null key or value stays as it is, where Kafka fails."""
    names = settings.names("fields")
    replacement = settings.text("replacement") if settings.has("replacement") else None

    def change(message: Message) -> None:
        if message.is_null(part):
            return
        fields = message.fields(part)
        for name in names:
            value = fields.get(name)
            fields[name] = _blank(value) if replacement is None else _replaced(value, replacement)
        message.put(part, fields)

    return change


def _blank(value: JsonValue) -> JsonValue:
    """The empty value of the same type."""
    match value:
        case None:
            return None
        case bool():
            return False
        case JsonNumber():
            return JsonNumber("0" if value.is_whole else "0.0")
        case str():
            return ""
        case list():
            return []
    return {}


def _replaced(value: JsonValue, replacement: str) -> JsonValue:
    match value:
        case None:
            return None
        case JsonNumber() if value.is_whole and _WHOLE.fullmatch(replacement):
            return JsonNumber(str(Decimal(replacement)))
        case JsonNumber() if not value.is_whole and _DECIMAL.fullmatch(replacement):
            return JsonNumber(str(Decimal(replacement)))
        case str():
            return replacement
    raise NotTransformable("the value of a masked field is of another type than its replacement")


def _extract_field(settings: ClassSettings, part: str) -> Change:
    name = settings.text("field")

    def change(message: Message) -> None:
        message.put(part, None if message.is_null(part) else message.fields(part).get(name))

    return change


def _value_to_key(settings: ClassSettings) -> Change:
    names = settings.names("fields")

    def change(message: Message) -> None:
        fields = message.fields(VALUE)
        message.put(KEY, {name: fields.get(name) for name in names})

    return change


_PART_CHANGES: Final[Mapping[str, Callable[[ClassSettings, str], Change]]] = {
    "InsertField": _insert_field,
    "ReplaceField": _replace_field,
    "MaskField": _mask_field,
    "ExtractField": _extract_field,
    "HeaderFrom": _header_from,
}
_CHANGES: Final[Mapping[str, Callable[[ClassSettings], Change]]] = {
    "InsertHeader": _insert_header,
    "DropHeaders": _drop_headers,
    "ValueToKey": _value_to_key,
}


# ---- predicates --------------------------------------------------------------------------------


class StepCondition(NamedTuple):
    """Which records a step is for. `of_topic`: what is known from the topic's name alone."""

    holds: Callable[[Message], bool]
    of_topic: Callable[[str], bool | None]


ALWAYS: Final = StepCondition(lambda _: True, lambda _: True)


def _condition(values: Mapping[str, str], settings: ClassSettings) -> StepCondition:
    if not settings.has("predicate"):
        return ALWAYS
    negated = settings.has("negate") and parse_flag(settings.text("negate"))
    predicate = ClassSettings(values, f"predicates.{settings.text('predicate')}.")
    match predicate.class_name:
        case "TopicNameMatches":
            pattern = predicate.pattern("pattern")

            def matches(topic: str) -> bool:
                return (pattern.fullmatch(topic) is not None) != negated

            return StepCondition(lambda message: matches(message.topic), matches)
        case "HasHeaderKey":
            name = predicate.text("name")
            return StepCondition(
                lambda message: (name in {header for header, _ in message.headers}) != negated,
                lambda _: None,
            )
        case "RecordIsTombstone":
            return StepCondition(lambda message: message.is_null(VALUE) != negated, lambda _: None)
    raise UserError(
        f"{predicate.prefix}type is {predicate.text('type')!r}: verify has no such predicate"
    )


# ---- all of a flow -----------------------------------------------------------------------------


class TransformStep(NamedTuple):
    """One transform. Of `route` and `change`, one is set; none: it drops the record."""

    name: str
    condition: StepCondition
    route: Route | None = None
    change: Change | None = None
    is_dated: bool = False
    """Whether `route` depends on the record's timestamp."""

    def apply(self, message: Message) -> bool:
        """Change a message; False: it is dropped.

        Raises:
            NotTransformable: the step cannot be applied; the text names it.
        """
        if not self.condition.holds(message):
            return True
        if self.route is None and self.change is None:
            return False
        try:
            if self.route is not None:
                message.topic = self.route(message.topic, message.timestamp)
            elif self.change is not None:
                self.change(message)
        except (NotTransformable, NotJson) as error:
            raise NotTransformable(f"transform {self.name}: {error}") from error
        return True


class Expected(NamedTuple):
    """What should be in the target's log of a record, or would be if it was not dropped."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers
    dropped: bool


class ConnectTransforms:
    """The transforms of a flow.

    Args:
        values: the flow's settings, by MirrorMaker 2's names.

    Raises:
        UserError: verify does not have one of the transforms.
    """

    def __init__(self, values: Mapping[str, str]) -> None:
        self._converters = {
            part: values.get(f"{part}.converter", "").strip().rpartition(".")[2]
            for part in (KEY, VALUE)
        }
        self.meant_parts: set[str] = set()
        """Which of `KEY` and `VALUE` may be written anew as JSON: their meaning is compared."""
        self.meant_headers: set[str] = set()
        """The names of headers that have the text of a field."""
        self._steps = [self._step(values, name) for name in split_list(values["transforms"])]

    def _step(self, values: Mapping[str, str], name: str) -> TransformStep:
        settings = ClassSettings(values, f"transforms.{name}.")
        base, _, side = settings.class_name.partition("$")
        condition = _condition(values, settings)
        if base == "RegexRouter":
            return TransformStep(name, condition, route=_router(settings))
        if base == "TimestampRouter":
            route = _timestamp_router(settings)
            return TransformStep(name, condition, route=route, is_dated=True)
        if base == "Filter":
            return TransformStep(name, condition)
        if base in _CHANGES:
            if base == "ValueToKey":
                self._mean(KEY)
            return TransformStep(name, condition, change=_CHANGES[base](settings))
        if base in _PART_CHANGES and side.lower() in {KEY, VALUE}:
            part = side.lower()
            if base == "HeaderFrom":
                self.meant_headers |= set(settings.names("headers"))
            if base != "HeaderFrom" or settings.text("operation") == "move":
                self._mean(part)
            return TransformStep(name, condition, change=_PART_CHANGES[base](settings, part))
        raise UserError(
            f"verify cannot apply transforms.{name}, a {settings.class_name}: it has no such "
            "transform",
            hint="compare the flow's topics with a program of your own",
        )

    def _mean(self, part: str) -> None:
        if self._converters[part] == JSON:
            self.meant_parts.add(part)

    @property
    def is_dated(self) -> bool:
        """Whether the topic of a record may depend on its timestamp."""
        return any(step.is_dated for step in self._steps)

    def topics_of(self, remote: str, timestamp: int | None = None) -> frozenset[str]:
        """All topics to which records of a remote topic may be routed, as far as a name shows.

        Empty: they are all dropped, or have names that depend on the timestamp.

        Args:
            remote: the remote topic.
            timestamp: that of a record; None: topics with names that depend on it are left out.

        Raises:
            NotTransformable: the timestamp has no date.
        """
        topics = {remote}
        for step in self._steps:
            after = set()
            for topic in topics:
                holds = step.condition.of_topic(topic)
                if holds is not True or step.change is not None:
                    after.add(topic)
                if holds is False or step.route is None:
                    continue
                if timestamp is not None or not step.is_dated:
                    after.add(step.route(topic, timestamp or 0))
            topics = after
        return frozenset(topic for topic in topics if topic == remote or _is_allowed(topic))

    def expected(self, record: Record, topic: str, partition: int) -> Expected:
        """What should become of a record.

        Args:
            record: as a consumer of the source sees it.
            topic: its remote topic.
            partition: the source's.

        Raises:
            NotTransformable: a step cannot be applied to it.
        """
        message, dropped = Message(record, topic, partition, self._converters), False
        try:
            for step in self._steps:
                dropped = not step.apply(message) or dropped
            written = message.written(KEY), message.written(VALUE), tuple(message.headers)
        except (NotTransformable, NotJson) as error:
            if not dropped:
                raise NotTransformable(str(error)) from error
            written = record.key, record.value, record.headers
        if not (dropped or message.topic == topic or _is_allowed(message.topic)):
            raise NotTransformable(f"it is routed to {message.topic!r}, where nothing may be")
        return Expected(message.topic, *written, dropped)


def _is_allowed(topic: str) -> bool:
    """Whether records may be routed there: a name of a topic, and of no internal one."""
    return (
        _TOPIC.fullmatch(topic) is not None
        and topic not in {".", ".."}
        and not topic.startswith("__")
    )
