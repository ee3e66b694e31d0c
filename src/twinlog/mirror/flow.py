"""A flow as it is stored: a mirror of one of `FLOW_KINDS`, with MirrorMaker 2's settings.

Each setting that is not the default is one of the mirror's properties, with `PREFIX` before its
name: `mirror.flow.topics`. Those of the connection to the source are as in any mirror. A policy of
one's own may read more properties: all that begin with `replication.policy.`.

The name of a flow has the pair of aliases that a file writes before its settings, `A->B`. What the
flow itself calls its clusters are `source.cluster.alias` and `target.cluster.alias`: the same,
unless the file sets them. MirrorMaker 2's Connect worker goes by the pair (connect_worker.py).
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from twinlog.kafka.errors import UserError
from twinlog.mirror.connect_worker import (
    STORED_NAMES,
    ConnectWorker,
    default_worker,
    stored_worker,
    worker_of,
)
from twinlog.mirror.dataframe_transform import (
    DataFrameTransform,
    has_dataframe_transform,
    is_dataframe_property,
    may_route_rows,
    parse_dataframe_transform,
    wrong_dataframe_transform,
)
from twinlog.mirror.flow_settings import (
    MAP,
    POLICY_PREFIX,
    SETTINGS,
    TRANSACTIONS,
    FlowSettings,
)
from twinlog.mirror.flow_settings_parser import parse_flow_settings
from twinlog.mirror.mirror_maker_names import TRANSFORMS
from twinlog.mirror.replication_policy import (
    ReplicationPolicy,
    has_properties_of_its_own,
    policy_of,
)
from twinlog.mirror.routed_names import ROUTED_TOPICS, has_routed_topics, routed_policy
from twinlog.mirror.setting_values import parse_flag
from twinlog.mirror.settings import (
    FLOW_PREFIX,
    GROUPS,
    KIND,
    RATE,
    REFRESH,
    REPLICAS,
    TRANSACTIONAL,
    TRANSLATED,
    parse_settings,
)
from twinlog.mirror.settings import SETTINGS as MIRROR_SETTINGS
from twinlog.mirror.transform_chain import (
    TransformChain,
    has_router,
    has_transforms,
    is_transform_property,
    parse_transforms,
    routes_by_name,
    wrong_transforms,
)
from twinlog.mirror.transform_options import WrongProperty

_GROUPS: Final = "sync.group.offsets.enabled"
NO_MAP: Final = (
    "expected false, since offsets are not translated for TimestampRouter, a RegexRouter with a "
    "predicate other than TopicNameMatches, or a query or function without "
    "twinlog.transform.routes=false"
)
_POSITIONS: Final = "emit.checkpoints.interval.seconds"
_ALIASES: Final = ("source.cluster.alias", "target.cluster.alias")

THROTTLE: Final = (RATE, REPLICAS)
"""Settings of a mirror that a file may set for a flow: `A->B.mirror.replication.throttled.rate`."""
_LASTING: Final = MIRROR_SETTINGS.keys() - {KIND, GROUPS, REFRESH}
"""Settings of a flow's mirror that do not follow from the flow's own: `kafka-mirrors --alter` sets
them, and a file those of `THROTTLE`."""


class FlowRules(NamedTuple):
    """The settings of a flow, and the policy that names its topics."""

    settings: FlowSettings
    policy: ReplicationPolicy


def flow_properties(values: Mapping[str, str], source: str, target: str) -> dict[str, str]:
    """The properties of a mirror for a flow with these settings.

    Args:
        values: the settings by MirrorMaker 2's names, as written; they may have other aliases.
        source: the source's alias in the flow's name.
        target: the target's.
    """
    pair = {_ALIASES[0]: source, _ALIASES[1]: target}
    # Without white space: a policy is given the text as it is stored.
    aliases = {name: values.get(name, alias).strip() for name, alias in pair.items()}
    stored = {**values, **aliases}
    if aliases[_ALIASES[0]] != source:
        stored = {**stored_worker(default_worker(source)), **stored}
    properties = {f"{FLOW_PREFIX}{name}": text for name, text in stored.items()}
    return {KIND: flow_kind(values), **properties}


def wrong_throttle(name: str, text: str) -> str | None:
    """What is wrong with the value of one of `THROTTLE`; None: nothing."""
    try:
        parse_settings({name: text})
    except UserError as error:
        return error.message
    return None


def lasting_settings(properties: Mapping[str, str]) -> dict[str, str]:
    """What a flow keeps when it gets the settings of a file that does not set it.

    A file without the line ends no throttle: nothing tells whether an earlier file has had it, or
    `kafka-mirrors --alter` has set it.

    Args:
        properties: those of the flow's mirror.

    Returns:
        The settings that are not the default, by name.
    """
    return {
        name: text
        for name, text in properties.items()
        if name in _LASTING and text.strip() != MIRROR_SETTINGS[name].default
    }


def kept_settings(stored: Mapping[str, str], properties: Mapping[str, str]) -> str:
    """The settings that a flow has kept, for people (`lasting_settings`).

    Args:
        stored: the present properties of the flow's mirror.
        properties: those that a file or a command has just given it.

    Returns:
        One line; empty: none.
    """
    lasting = sorted(lasting_settings(stored).items())
    kept = [f"{name}={text.strip()}" for name, text in lasting if name not in properties]
    if not kept:
        return ""
    return (
        f"keeps {', '.join(kept)}, which kafka-mirrors --alter or an earlier start has set; "
        "to undo it, set its default"
    )


def flow_kind(values: Mapping[str, str]) -> str:
    """The kind of a flow with these settings.

    Raises:
        UserError: `transaction.producer` is no boolean.
    """
    text = values.get(TRANSACTIONS, "false")
    try:
        in_transactions = parse_flag(text)
    except ValueError as error:
        raise UserError(f"{TRANSACTIONS} is {text!r}: expected {error}") from error
    return TRANSACTIONAL if in_transactions or has_any_transform(values) else TRANSLATED


def has_any_transform(values: Mapping[str, str]) -> bool:
    """Whether a flow's properties have a transform of one of the two kinds."""
    return has_transforms(values) or has_dataframe_transform(values)


def belongs_to_transforms(name: str) -> bool:
    """Whether a flow's property belongs to a transform of one of the two kinds."""
    return is_transform_property(name) or is_dataframe_property(name)


def flow_of(properties: Mapping[str, str]) -> FlowRules:
    """The flow of a mirror with these properties.

    Raises:
        UserError: they are not those of a flow, a value is malformed, there is no such policy, or
            the transforms that name topics are wrong.
    """
    values = settings_texts(properties)
    return FlowRules(flow_settings_of(properties), routed_policy(policy_of(values), values))


def flow_settings_of(properties: Mapping[str, str]) -> FlowSettings:
    """The settings of a flow whose mirror has these properties, without loading its policy.

    Raises:
        UserError: they are not those of a flow, or a value is malformed.
    """
    values = settings_texts(properties)
    missing = [alias for alias in _ALIASES if not values.get(alias, "").strip()]
    if missing:
        raise UserError(f"{FLOW_PREFIX}{missing[0]} is missing: a flow has two aliases")
    own_policy = has_properties_of_its_own(values)
    unknown = sorted(
        name
        for name in values.keys() - SETTINGS.keys()
        if not belongs_to_transforms(name)
        and name not in STORED_NAMES
        and name != ROUTED_TOPICS
        and not (own_policy and name.startswith(f"{POLICY_PREFIX}."))
    )
    if unknown:
        raise UserError(f"{FLOW_PREFIX}{unknown[0]} is not a setting of a flow")
    settings = parse_flow_settings(values, values[_ALIASES[0]], values[_ALIASES[1]])
    if not isinstance(settings, FlowSettings):
        bad = settings[0]
        text = values.get(bad.name)
        raise UserError(f"{FLOW_PREFIX}{bad.name} is {text!r}: expected {bad.expectation}")
    return settings


def unsupported_offset_reset(settings: FlowSettings) -> str | None:
    """What is expected of the `auto.offset.reset` of a flow with these settings.

    MirrorMaker 2 accepts more. A flow that copies no topics begins nowhere, and may have any.

    Returns:
        The expectation; None: the flow can begin so.
    """
    if not settings.enabled or settings.consumer_auto_offset_reset in {"earliest", "latest"}:
        return None
    return "earliest or latest, since a flow knows its position from the first record on"


def begins_at_end(settings: FlowSettings) -> bool:
    """Whether a flow with these settings begins its topics at their end."""
    return settings.consumer_auto_offset_reset == "latest"


def connect_worker_of(properties: Mapping[str, str]) -> ConnectWorker:
    """The Connect worker of MirrorMaker 2 that has copied, or will copy, a flow's topics.

    Args:
        properties: a flow's, as `flow_of` accepts them.
    """
    values = settings_texts(properties)
    return worker_of(values, values[_ALIASES[0]])


def reports_positions(properties: Mapping[str, str]) -> bool:
    """Whether the positions of a flow with these properties are committed on its source, too.

    KIP-656's sink connector does so: its consumer group is on the source.

    Raises:
        UserError: see `flow_of`.
    """
    settings = flow_of(properties).settings
    wanted = properties[KIND] == TRANSACTIONAL or settings.connector_type == "sink"
    return wanted and settings.twinlog_source_offsets_interval_seconds > 0


def records_map(properties: Mapping[str, str]) -> bool:
    """Whether a flow with these properties records where each record landed.

    In transactions it does so on request, as it costs a batch of records in each of them.

    Raises:
        UserError: see `flow_settings_of`.
    """
    if properties[KIND] != TRANSACTIONAL:
        return True
    values = settings_texts(properties)
    if has_router(values) and not has_routed_topics(values):
        return False  # an earlier version has stored a setting that it did not follow
    return records_map_of(values, flow_settings_of(properties))


def records_map_of(values: Mapping[str, str], settings: FlowSettings) -> bool:
    """See `records_map`, of a flow with these settings and properties of transforms."""
    if not settings.transaction_producer and not has_any_transform(values):
        return True
    is_wanted = settings.sync_group_offsets_enabled or settings.twinlog_offset_map
    return is_wanted and may_record_map(values)


def emits_offset_syncs(properties: Mapping[str, str]) -> bool:
    """Whether a flow with these properties writes offset syncs, with checkpoints or without.

    In MirrorMaker 2 they belong to the connector that copies (`MirrorSourceConnector`, 4.3).

    Raises:
        UserError: see `flow_settings_of`.
    """
    settings = flow_settings_of(properties)
    return settings.enabled and settings.emit_offset_syncs_enabled and records_map(properties)


def positions_interval_s(settings: FlowSettings) -> int:
    """Seconds between two writes of offset syncs, and of checkpoints.

    A negative interval ends checkpoints only, as `emit.checkpoints.enabled=false` does: then offset
    syncs have the default.
    """
    interval = settings.emit_checkpoints_interval_seconds
    return interval if interval > 0 else int(SETTINGS[_POSITIONS].default or 0)


def may_record_map(values: Mapping[str, str]) -> bool:
    """Whether a flow with transforms of these properties, by MirrorMaker 2's names, can do so.

    Records that are routed by what is in them may go to the remote topic of another one, and a
    group that goes on there between two of its own records has not read them. So may the rows of a
    query or function, unless they may not be routed. Where only the name of their topic decides,
    they have a remote topic of their own (routed_names.py).
    """
    return not may_route_rows(values) and routes_by_name(values)


def routed_topics(values: Mapping[str, str], settings: FlowSettings) -> dict[str, str]:
    """What is stored with a flow whose remote topics are those that records are routed to.

    Args:
        values: the properties of its transforms, by MirrorMaker 2's names.
        settings: the flow's.
    """
    # What an earlier version has accepted beside a router, it has stored without a map.
    is_routed = has_router(values) and any(_wanted_maps(settings).values())
    return {ROUTED_TOPICS: "true"} if is_routed and may_record_map(values) else {}


def impossible_maps(values: Mapping[str, str], settings: FlowSettings) -> Sequence[str]:
    """The settings, by MirrorMaker 2's names, that need a map which the flow cannot record.

    Args:
        values: the properties of its transforms, by MirrorMaker 2's names.
        settings: the flow's.
    """
    if may_record_map(values):
        return ()
    return [name for name, is_wanted in _wanted_maps(settings).items() if is_wanted]


def _wanted_maps(settings: FlowSettings) -> Mapping[str, bool]:
    """The settings that need a map, by MirrorMaker 2's names, and whether they have an effect."""
    return {
        _GROUPS: settings.syncs_group_offsets,
        MAP: settings.enabled and settings.twinlog_offset_map,
    }


def transforms_of(properties: Mapping[str, str]) -> TransformChain | DataFrameTransform:
    """The transforms of a mirror with these properties.

    Raises:
        UserError: a transform is not known, or a property is wrong.
    """
    return parse_any_transform(settings_texts(properties))


def may_route(properties: Mapping[str, str]) -> bool:
    """Whether a flow's transforms may write records to other topics than the remote ones.

    Unless it is excluded, a query or function of Spark may: only its result has the topics.

    Args:
        properties: a flow's, as `transforms_of` accepts them.
    """
    values = settings_texts(properties)
    return may_route_rows(values) or has_router(values)


def splits_topics(properties: Mapping[str, str]) -> bool:
    """Whether single-message transforms may send some records of a topic elsewhere than others.

    Args:
        properties: a flow's, as `transforms_of` accepts them.
    """
    return not routes_by_name(settings_texts(properties))


def may_have_routed(properties: Mapping[str, str]) -> bool:
    """Whether a flow of these properties may have written to other topics than its remote ones.

    A query or function may have, before it was told not to.

    Args:
        properties: a flow's, as `transforms_of` accepts them.
    """
    values = settings_texts(properties)
    return has_dataframe_transform(values) or has_router(values)


def goes_on_in_recreated(properties: Mapping[str, str]) -> bool:
    """Whether a flow goes on in a remote topic that was deleted or recreated on the target.

    Where its positions are deleted with the topic, it copies all again. What transforms have routed
    to other topics would be there twice.

    Args:
        properties: a flow's.

    Raises:
        UserError: they are malformed.
    """
    return flow_settings_of(properties).passes_lost and not may_route(properties)


def parse_any_transform(values: Mapping[str, str]) -> TransformChain | DataFrameTransform:
    """The transforms of a flow with these properties, by MirrorMaker 2's names.

    Raises:
        UserError: a transform is not known, a property is wrong, or there are both kinds.
    """
    if not has_dataframe_transform(values):
        return parse_transforms(values)
    if has_transforms(values):
        raise _both_kinds()
    transform = parse_dataframe_transform(values)
    assert transform is not None
    return transform


def wrong_any_transform(values: Mapping[str, str]) -> Sequence[WrongProperty]:
    """All that `parse_any_transform` refuses these properties for."""
    if not has_dataframe_transform(values):
        return wrong_transforms(values)
    wrong = wrong_dataframe_transform(values)
    return (WrongProperty(TRANSFORMS, _both_kinds()), *wrong) if has_transforms(values) else wrong


def _both_kinds() -> UserError:
    return UserError(
        f"{TRANSFORMS} and twinlog.transform.* are both set: expected one of them",
        hint="a query can do what single-message transforms do",
    )


def settings_texts(properties: Mapping[str, str]) -> dict[str, str]:
    """MirrorMaker 2's settings of a mirror with these properties, by their names, as written."""
    return {
        name.removeprefix(FLOW_PREFIX): text
        for name, text in properties.items()
        if name.startswith(FLOW_PREFIX)
    }
