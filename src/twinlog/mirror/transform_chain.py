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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from twinlog.kafka.errors import UserError
from twinlog.kafka.log.records import Record
from twinlog.mirror.mirror_maker_names import TRANSFORMS
from twinlog.mirror.record_converters import BYTES, CONVERTERS, JSON, Converter, TransformError
from twinlog.mirror.record_transforms import (
    FlowRecord,
    Headers,
    Part,
    Predicate,
    Transform,
    TransformOptions,
    applied,
    is_router,
    is_uniform_predicate,
    is_uniform_transform,
    predicate_named,
    transform_named,
)
from twinlog.mirror.setting_values import parse_flag, split_list

PREDICATES: Final = "predicates"
CONVERTER_NAMES: Final = ("key.converter", "value.converter")

_IGNORED: Final = ("plugin.version",)
_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
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
    """Whether a transform of a flow with these properties, which can be read, routes records."""
    names = _list(values, TRANSFORMS) if has_transforms(values) else []
    return any(is_router(values[f"{TRANSFORMS}.{name}.type"]) for name in names)


def parse_transforms(values: Mapping[str, str]) -> TransformChain:
    """The transforms of a flow with these properties, as written; others are ignored.

    Raises:
        UserError: a transform is not known, or a property is missing, malformed or unknown.
    """
    if not has_transforms(values):
        return TransformChain()
    names, predicate_names = _list(values, TRANSFORMS), _list(values, PREDICATES)
    predicates: dict[str, Predicate] = {}
    for name in predicate_names:
        options = _options(values, f"{PREDICATES}.{name}.", {"type", *_IGNORED})
        predicates[name] = predicate_named(_class_name(values, options.prefix), options)
    _check_declared(values, TRANSFORMS, names)
    _check_declared(values, PREDICATES, predicate_names)
    return TransformChain(
        [
            ChainStep(name, _transform(values, name, predicates), _is_uniform(values, name))
            for name in names
        ],
        *(_converter(values, name) for name in CONVERTER_NAMES),
    )


def _is_uniform(values: Mapping[str, str], name: str) -> bool:
    """Whether a transform and its predicate, which can be read, are uniform."""
    prefix = f"{TRANSFORMS}.{name}."
    predicate = values.get(f"{prefix}predicate")
    return is_uniform_transform(values[f"{prefix}type"]) and (
        predicate is None or is_uniform_predicate(values[f"{PREDICATES}.{predicate.strip()}.type"])
    )


def _transform(
    values: Mapping[str, str], name: str, predicates: Mapping[str, Predicate]
) -> Transform:
    prefix = f"{TRANSFORMS}.{name}."
    own = {"type", "predicate", "negate", *_IGNORED}
    transform = transform_named(_class_name(values, prefix), _options(values, prefix, own))
    common = _options(values, prefix, set())
    wanted, negate = common.text("predicate"), common.flag("negate", default=False)
    if wanted is None:
        if "negate" in common.values:
            raise UserError(f"{prefix}predicate is missing: negate needs one")
        if common.values["type"].strip().rpartition(".")[2] == "Filter":
            raise UserError(
                f"{prefix}predicate is missing: this Filter would drop every record of the flow"
            )
        return transform
    if wanted.strip() not in predicates:
        raise common.bad("predicate", f"one of {PREDICATES}: {', '.join(predicates) or 'none'}")
    return applied(transform, predicates[wanted.strip()], negate=negate)


def _class_name(values: Mapping[str, str], prefix: str) -> str:
    name = values.get(f"{prefix}type", "").strip()
    if not name:
        raise UserError(
            f"{prefix}type is missing",
            hint=f"write it for the flow: SOURCE->TARGET.{prefix}type; MirrorMaker 2 does not read "
            "it without a prefix",
        )
    return name


def _options(values: Mapping[str, str], prefix: str, without: set[str]) -> TransformOptions:
    own = {k.removeprefix(prefix): v for k, v in values.items() if k.startswith(prefix)}
    return TransformOptions(
        prefix, {name: value for name, value in own.items() if name not in without}
    )


def _list(values: Mapping[str, str], name: str) -> tuple[str, ...]:
    try:
        return split_list(values.get(name, ""))
    except ValueError as error:
        raise UserError(f"{name} is {values[name]!r}: expected {error}") from error


def _check_declared(values: Mapping[str, str], kind: str, names: Sequence[str]) -> None:
    """Refuse properties of a transform that is not in the list: it would not be applied."""
    for key in sorted(values):
        if key.startswith(f"{kind}.") and not any(
            key.startswith(f"{kind}.{name}.") for name in names
        ):
            raise UserError(f"{key} is set, and {kind} does not name it: expected it in the list")


def _converter(values: Mapping[str, str], name: str) -> Converter:
    text = values.get(name, BYTES.name).strip()
    short = text
    for package in _CONVERTER_PACKAGES:
        short = short.removeprefix(package)
    if short not in CONVERTERS:
        raise UserError(
            f"{name} is {text!r}: expected one of {', '.join(CONVERTERS)}",
            hint="twinlog runs no Java and cannot load other classes",
        )
    converter = CONVERTERS[short]
    if converter is JSON:
        schemas = f"{name}.schemas.enable"
        try:
            enabled = parse_flag(values.get(schemas, "true"))
        except ValueError as error:
            raise UserError(f"{schemas} is {values[schemas]!r}: expected {error}") from error
        if enabled:
            raise UserError(
                f"{schemas} is true, the converter's default: expected false, since JSON with an "
                "embedded schema is not supported"
            )
    return converter
