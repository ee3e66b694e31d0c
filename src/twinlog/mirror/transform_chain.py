r"""The transforms of a flow, from `transforms`, `predicates` and converters (KIP-66, KIP-585).

    transforms = mask, route
    transforms.mask.type = org.apache.kafka.connect.transforms.MaskField$Value
    transforms.mask.fields = card
    transforms.mask.predicate = orders
    transforms.route.type = org.apache.kafka.connect.transforms.RegexRouter
    ...
    predicates = orders
    predicates.orders.type = org.apache.kafka.connect.transforms.predicates.TopicNameMatches
    predicates.orders.pattern = A\.orders
    value.converter = org.apache.kafka.connect.json.JsonConverter
    value.converter.schemas.enable = false

They are applied in the order of `transforms`. MirrorMaker 2 hands bytes to its transforms, so those
of fields fail there; here the converters say what the bytes are, before and after the transforms.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from twinlog.kafka.errors import ProtocolError, UserError
from twinlog.kafka.log.records import Record
from twinlog.mirror.mirror_maker_names import TRANSFORMS
from twinlog.mirror.mm2_records import decode_heartbeat
from twinlog.mirror.record_converters import (
    BYTES,
    CONVERTERS,
    JSON,
    TEXT,
    Converter,
    TransformError,
)
from twinlog.mirror.record_transforms import (
    FlowRecord,
    Headers,
    Part,
    Predicate,
    Transform,
    applied,
    is_router,
    is_uniform_predicate,
    is_uniform_transform,
    makes_keys,
    predicate_named,
    side_of_fields,
    transform_named,
)
from twinlog.mirror.setting_values import parse_flag, split_list
from twinlog.mirror.transform_options import TransformOptions, WrongProperty, joined

PREDICATES: Final = "predicates"
CONVERTER_NAMES: Final = ("key.converter", "value.converter")

T = TypeVar("T")
_IGNORED: Final = ("plugin.version",)
_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_OF_SCHEMAS: Final = frozenset(
    {"schemas.enable", "schemas.cache.size", "decimal.format", "replace.null.with.default"}
)
"""Properties of the JSON converter that change nothing where records have no schema."""
_UTF_8: Final = {"UTF-8", "UTF8"}
_CONVERTER_PACKAGES: Final = (
    "org.apache.kafka.connect.json.",
    "org.apache.kafka.connect.storage.",
    "org.apache.kafka.connect.converters.",
)


class Transformed(NamedTuple):
    """A record to write."""

    topic: str
    partition: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class ChainStep(NamedTuple):
    """A transform of a chain, with its name for messages.

    `is_uniform`: it depends on nothing of a record but its topic and partition, and only changes
    the topic, appends headers, or drops the record.
    """

    name: str
    transform: Transform
    is_uniform: bool


@dataclass(frozen=True, slots=True)
class TransformChain:
    """All transforms of a flow; without any, records stay as they are."""

    steps: Sequence[ChainStep] = ()
    key_converter: Converter = BYTES
    value_converter: Converter = BYTES

    @property
    def is_uniform(self) -> bool:
        """Whether all records of a remote partition get the same topic and more headers.

        What `apply` does to any record, an empty one included, is then done to all.
        """
        return all(step.is_uniform for step in self.steps)

    def apply(self, record: Record, topic: str, partition: int) -> Transformed | None:
        """Transform a record.

        Args:
            record: as a consumer of the source sees it.
            topic: its remote topic.
            partition: the source's.

        Returns:
            What is to be written; None: nothing, the record is dropped.

        Raises:
            TransformError: a transform cannot be applied; the text names it.
        """
        if not self.steps:
            return Transformed(topic, partition, *record[1:])
        key = Part(record.key, self.key_converter)
        value = Part(record.value, self.value_converter)
        current = FlowRecord(topic, partition, record.timestamp, key, value, record.headers)
        for name, transform, _ in self.steps:
            try:
                changed = transform(current)
            except TransformError as error:
                raise TransformError(f"transform {name}: {error}") from error
            if changed is None:
                return None
            current = changed
        if current.topic != topic:
            check_routed_topic(current.topic)
        return Transformed(
            current.topic,
            current.partition,
            current.timestamp,
            current.key.bytes(),
            current.value.bytes(),
            current.headers,
        )

    def routed_topic(self, topic: str) -> str:
        """The topic that records of a remote topic go to, where only its name decides.

        Args:
            topic: the remote topic.

        Returns:
            Where records would go if none was dropped: a `Filter` that is added or removed moves
            no topic. The topic itself if none may be routed there: then `apply` refuses each.
        """
        nothing = Part(None, BYTES)
        record = FlowRecord(topic, 0, 0, nothing, nothing)
        for step in self.steps:
            if step.is_uniform:
                record = step.transform(record) or record
        if record.topic == topic:
            return topic
        try:
            check_routed_topic(record.topic)
        except TransformError:
            return topic
        return record.topic


def _require_heartbeat(record: FlowRecord) -> FlowRecord:
    try:
        decode_heartbeat(record.key.bytes(), record.value.bytes())
    except ProtocolError as error:
        raise TransformError(
            f"its topic has the name of one of heartbeats, to which no transform applies, and the "
            f"record is no heartbeat ({error.message}); leave the topic out: "
            "heartbeats.replication.enabled=false, and topics.exclude"
        ) from error
    return record


OF_HEARTBEATS: Final = TransformChain((ChainStep("none", _require_heartbeat, is_uniform=False),))
"""What is applied to topics of heartbeats in a flow with transforms. The records stay as they are:
MirrorMaker 2's clients could not read changed ones. Another record in a topic of such a name is
refused, since a filter or mask would be left out without a word."""


def check_routed_topic(topic: str) -> None:
    """Refuse a name of a topic that no record may be routed to.

    Raises:
        TransformError: it is no name of a topic, or one of an internal topic.
    """
    if not _TOPIC.fullmatch(topic) or topic in {".", ".."}:
        raise TransformError(f"the record is routed to {topic!r}, which is no name of a topic")
    if topic.startswith("__"):
        raise TransformError(f"the record is routed to {topic}, an internal topic")


def is_transform_property(name: str) -> bool:
    """Whether a flow's property belongs to its transforms."""
    parts = (TRANSFORMS, PREDICATES, *CONVERTER_NAMES)
    return any(name == part or name.startswith(f"{part}.") for part in parts)


def has_transforms(values: Mapping[str, str]) -> bool:
    """Whether a flow's properties name a transform."""
    return bool(values.get(TRANSFORMS, "").strip())


def has_router(values: Mapping[str, str]) -> bool:
    """Whether a transform of a flow with these properties routes records."""
    return bool(_routers(values))


def routes_by_name(values: Mapping[str, str]) -> bool:
    """Whether only a topic's name decides where transforms of these properties send its records.

    Without a router it does. What is wrong with the properties is not noticed.
    """
    return all(_is_uniform(values, name) for name in _routers(values))


def _routers(values: Mapping[str, str]) -> Sequence[str]:
    """The transforms that may route records."""
    names = _list(values, TRANSFORMS) if has_transforms(values) else ()
    return [name for name in names if is_router(values.get(f"{TRANSFORMS}.{name}.type", ""))]


def parse_transforms(values: Mapping[str, str]) -> TransformChain:
    """The transforms of a flow with these properties, as written; others are ignored.

    Raises:
        UserError: a transform is not known, or a property is missing, malformed or unknown; all
            such mistakes in one message.
    """
    reader = _ChainReader(values)
    chain = reader.chain()
    if reader.wrong:
        raise joined(reader.wrong)
    return chain


def transforms_without_fields(values: Mapping[str, str]) -> Mapping[str, str]:
    """Transforms of fields where the converter, as it is set, reads no fields.

    Args:
        values: of a flow, as written.

    Returns:
        Their names, each with the property of the converter. All records that have something there
        fail, unless a predicate excludes them. None if the properties have mistakes, which are
        reported by themselves.
    """
    lacking: dict[str, str] = {}
    has_made_keys = False
    is_read = has_transforms(values) and not wrong_transforms(values)
    for name in _list(values, TRANSFORMS) if is_read else ():
        class_name = values.get(f"{TRANSFORMS}.{name}.type", "")
        side = side_of_fields(class_name)
        converter = f"{side}.converter"
        is_json = values.get(converter, "").strip().rpartition(".")[2] == JSON.name
        if side and not is_json and not (side == "key" and has_made_keys):
            lacking[name] = converter
        has_made_keys |= makes_keys(class_name)
    return lacking


def wrong_transforms(values: Mapping[str, str]) -> Sequence[WrongProperty]:
    """All that `parse_transforms` refuses these properties for."""
    reader = _ChainReader(values)
    reader.chain()
    return tuple(reader.wrong)


class _ChainReader:
    """Reads the transforms of a flow, and collects what is wrong; then the chain is of no use."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values
        self.wrong: list[WrongProperty] = []

    def chain(self) -> TransformChain:
        if not has_transforms(self._values):
            return TransformChain()
        names, predicate_names = self._list(TRANSFORMS), self._list(PREDICATES)
        predicates = {name: self._predicate(name) for name in predicate_names or ()}
        transforms = {name: self._transform(name, predicates) for name in names or ()}
        self._check_declared(TRANSFORMS, names)
        self._check_declared(PREDICATES, predicate_names)
        converters = [self._converter(name) for name in CONVERTER_NAMES]
        if self.wrong:
            return TransformChain()
        return TransformChain(
            [
                ChainStep(name, transform, _is_uniform(self._values, name))
                for name, transform in transforms.items()
                if transform is not None
            ],
            *converters,
        )

    def _predicate(self, name: str) -> Predicate | None:
        options = self._options(f"{PREDICATES}.{name}.", {"type", *_IGNORED})
        return self._built(predicate_named, options)

    def _transform(self, name: str, predicates: Mapping[str, Predicate | None]) -> Transform | None:
        prefix = f"{TRANSFORMS}.{name}."
        own = {"type", "predicate", "negate", *_IGNORED}
        transform = self._built(transform_named, self._options(prefix, own))
        common = self._options(prefix, set())
        wanted, negate = common.text("predicate"), common.flag("negate", default=False)
        if wanted is None:
            if "negate" in common.values:
                common.missing("predicate", "negate needs one")
            if common.values.get("type", "").strip().rpartition(".")[2] == "Filter":
                common.missing("predicate", "this Filter would drop every record of the flow")
        elif wanted not in predicates:
            common.refuse("predicate", f"one of {PREDICATES}: {', '.join(predicates) or 'none'}")
        self.wrong += common.wrong
        predicate = None if wanted is None else predicates.get(wanted)
        return transform and applied(transform, predicate, negate=negate)

    def _built(
        self, build: Callable[[str, TransformOptions], T], options: TransformOptions
    ) -> T | None:
        """A transform or predicate; None: it is wrong."""
        class_name = self._values.get(f"{options.prefix}type", "").strip()
        result = None
        if class_name:
            with suppress(UserError):
                result = build(class_name, options)
        else:
            options.missing(
                "type",
                hint=f"write it for the flow: SOURCE->TARGET.{options.prefix}type; MirrorMaker 2 "
                "does not read it without a prefix",
            )
        self.wrong += options.wrong
        return result

    def _options(self, prefix: str, without: set[str]) -> TransformOptions:
        own = {k.removeprefix(prefix): v for k, v in self._values.items() if k.startswith(prefix)}
        return TransformOptions(
            prefix, {name: value for name, value in own.items() if name not in without}
        )

    def _list(self, name: str) -> tuple[str, ...] | None:
        """The items of a list; None: it is none."""
        try:
            return split_list(self._values.get(name, ""))
        except ValueError as error:
            self._note(name, f"{name} is {self._values[name]!r}: expected {error}")
            return None

    def _check_declared(self, kind: str, names: Sequence[str] | None) -> None:
        """Refuse properties of a transform that is not in the list: it would not be applied."""
        if names is None:
            return
        others = set[str]()
        for key in sorted(self._values):
            if not key.startswith(f"{kind}.") or any(
                key.startswith(f"{kind}.{name}.") for name in names
            ):
                continue
            other = key.removeprefix(f"{kind}.").partition(".")[0]
            if other not in others:  # its first property speaks for the others
                others.add(other)
                self._note(
                    key, f"{key} is set, and {kind} does not name it: expected it in the list"
                )

    def _converter(self, name: str) -> Converter:
        text = self._values.get(name, BYTES.name).strip()
        short = text
        for package in _CONVERTER_PACKAGES:
            short = short.removeprefix(package)
        if short not in CONVERTERS:
            self._note(
                name,
                f"{name} is {text!r}: expected one of {', '.join(CONVERTERS)}",
                "twinlog runs no Java and cannot load other classes",
            )
            return BYTES
        if CONVERTERS[short] is JSON:
            self._check_schemas(f"{name}.schemas.enable")
        self._check_converter(name, CONVERTERS[short])
        return CONVERTERS[short]

    def _check_converter(self, name: str, converter: Converter) -> None:
        """Refuse properties of a converter that would be ignored, and change what Kafka writes."""
        for key in sorted(self._values):
            own = key.removeprefix(f"{name}.")
            if own == key or own in _OF_SCHEMAS or own in _IGNORED:
                continue
            if own == "converter.encoding" and converter is TEXT:
                if self._values[key].strip().upper() not in _UTF_8:
                    self._note(key, f"{key} is {self._values[key]!r}: expected UTF-8")
                continue
            self._note(key, f"unknown property {key} of {converter.name}")

    def _check_schemas(self, name: str) -> None:
        try:
            enabled = parse_flag(self._values.get(name, "true"))
        except ValueError as error:
            self._note(name, f"{name} is {self._values[name]!r}: expected {error}")
            return
        if enabled:
            self._note(
                name,
                f"{name} is true, the converter's default: expected false, since JSON with an "
                "embedded schema is not supported",
            )

    def _note(self, name: str, message: str, hint: str = "") -> None:
        self.wrong.append(WrongProperty(name, UserError(message, hint=hint)))


def _list(values: Mapping[str, str], name: str) -> tuple[str, ...]:
    """The items of a list; none if it is malformed, which `wrong_transforms` tells."""
    try:
        return split_list(values.get(name, ""))
    except ValueError:
        return ()


def _is_uniform(values: Mapping[str, str], name: str) -> bool:
    """Whether a transform and its predicate are uniform; not if a class is missing."""
    prefix = f"{TRANSFORMS}.{name}."
    predicate = values.get(f"{prefix}predicate")
    return is_uniform_transform(values.get(f"{prefix}type", "")) and (
        predicate is None
        or is_uniform_predicate(values.get(f"{PREDICATES}.{predicate.strip()}.type", ""))
    )
