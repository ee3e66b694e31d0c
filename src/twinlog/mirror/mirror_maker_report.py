"""What a MirrorMaker 2 file does: its flows as rows, its lines explained, warnings and errors."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint

from twinlog.kafka.errors import UserError
from twinlog.mirror.checkpoint_lines import writes_checkpoints
from twinlog.mirror.flow import routed_topics
from twinlog.mirror.flow_circles import EXAMPLE_TOPIC, find_circle
from twinlog.mirror.flow_settings import FlowSettings
from twinlog.mirror.mirror_maker_file import (
    ALIAS,
    CLUSTERS,
    Flow,
    MirrorMakerFile,
    Problem,
    targeting,
)
from twinlog.mirror.mirror_maker_lines import FileLine, explain_lines
from twinlog.mirror.mirror_maker_precedence import connector_properties
from twinlog.mirror.mirror_names import wrong_flow_name
from twinlog.mirror.properties_text import last_values
from twinlog.mirror.replication_policy import (
    DEFAULT,
    IDENTITY,
    LEGACY,
    POLICY_CLASS,
    SAME_NAMES,
    installed,
    policy_class,
    policy_of,
    refused_policy,
)
from twinlog.mirror.setting_values import Names
from twinlog.mirror.transform_chain import parse_transforms, transforms_without_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowRow:
    """One flow, as a row of a table."""

    source: str
    target: str
    mirrors_topics: bool
    """False: the flow only writes heartbeats."""
    topics: str
    """A regular expression; empty: no topic."""
    topics_exclude: str
    groups: str
    groups_exclude: str
    remote_topic: str | None
    """The name of the source topic `orders` on the target; None: the policy is unknown."""
    heartbeats_seconds: int | None
    """None: no heartbeats; likewise below."""
    checkpoints_seconds: int | None
    group_offsets_seconds: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorMakerReport:
    """What a file does."""

    flows: tuple[FlowRow, ...]
    lines: tuple[FileLine, ...]
    warnings: tuple[str, ...]
    errors: tuple[str, ...]


def remote_topic(settings: FlowSettings, topic: str) -> str | None:
    """The name of a source's topic on the target, for the policies of Kafka and of legacy flows.

    Returns:
        The name; None: the policy is another class.
    """
    match policy_class(settings.replication_policy_class):
        case policy if policy == DEFAULT:
            separator = settings.replication_policy_separator
            return f"{settings.source_cluster_alias}{separator}{topic}"
        case policy if policy in {IDENTITY, LEGACY, SAME_NAMES}:
            return topic
        case _:
            return None


def report(
    file: MirrorMakerFile,
    targets: Collection[str] = (),
    unused: Collection[str] = (),
    client_problems: Collection[Problem] = (),
    registered: Callable[[], Iterable[EntryPoint]] = installed,
) -> MirrorMakerReport:
    """Explain a file.

    Args:
        file: the file.
        targets: only flows to these clusters (`--clusters`); empty: all.
        unused: names of client properties that twinlog's client does not use.
        client_problems: errors in client properties.
        registered: the entry points of policies, for tests.
    """
    flows = targeting(file.flows, targets)
    refused = {
        flow.name: text
        for flow in flows
        if (text := refused_policy(flow.settings.replication_policy_class, registered))
    }
    named = [flow for flow in flows if flow.name not in refused]
    unknown = _unknown_policies(file, flows, refused)
    names = wrong_flow_names(file, flows)
    problems = sorted({*file.problems, *client_problems, *unknown, *names})
    errors = [str(problem) for problem in problems]
    errors += [
        f"--clusters has {alias!r}: expected one of {', '.join(file.aliases)}"
        for alias in targets
        if alias not in file.aliases
    ]
    errors += _policy_errors(flows)
    if not flows and not errors:
        errors.append(f"no flow has a target of --clusters {' '.join(targets)}")
    return MirrorMakerReport(
        flows=tuple(map(flow_row, flows)),
        lines=explain_lines(file, unused, problems),
        warnings=(*flow_warnings(named, file.flows), *_encoding_warnings(file)),
        errors=tuple(errors),
    )


def flow_row(flow: Flow) -> FlowRow:
    """A flow as a row."""
    settings = flow.settings
    beats, syncs = settings.emits_heartbeats, settings.syncs_group_offsets
    checks = writes_checkpoints(flow)
    return FlowRow(
        source=flow.source_alias,
        target=flow.target_alias,
        mirrors_topics=settings.enabled,
        topics=_pattern(settings.topics),
        topics_exclude=_pattern(settings.topics_exclude),
        groups=_pattern(settings.groups),
        groups_exclude=_pattern(settings.groups_exclude),
        remote_topic=_routed_topic(flow, remote_topic(settings, EXAMPLE_TOPIC)),
        heartbeats_seconds=settings.emit_heartbeats_interval_seconds if beats else None,
        checkpoints_seconds=settings.emit_checkpoints_interval_seconds if checks else None,
        group_offsets_seconds=settings.sync_group_offsets_interval_seconds if syncs else None,
    )


def _routed_topic(flow: Flow, remote: str | None) -> str | None:
    """A remote topic, or the one in its place that records are routed to (routed_names.py)."""
    if remote is None or not routed_topics(flow.transforms, flow.settings):
        return remote
    return parse_transforms(flow.transforms).routed_topic(remote)


def _pattern(names: Names) -> str:
    return "" if names is None else names.pattern


def flow_warnings(flows: Collection[Flow], connected: Collection[Flow]) -> Iterable[str]:
    """What flows will do that their author may not expect.

    Args:
        flows: those that are started.
        connected: all flows between their clusters that are known. Where each cluster has a command
            of its own (`--clusters`), what one of them copies comes back by the others.
    """
    mirroring = [flow for flow in flows if flow.settings.enabled]
    for flow in mirroring:
        if remote_topic(flow.settings, EXAMPLE_TOPIC) is None:
            yield (
                f"flow {flow.name}: replication.policy.class is "
                f"{flow.settings.replication_policy_class!r}, a policy of your own, which is not "
                "loaded now: remote names are unknown"
            )
        if flow.settings.sync_group_offsets_enabled and not flow.settings.syncs_group_offsets:
            yield (
                f"flow {flow.name}: sync.group.offsets.enabled has no effect without checkpoints "
                "(emit.checkpoints.enabled, emit.offset-syncs.enabled), as in MirrorMaker 2"
            )
        for name, converter in transforms_without_fields(flow.transforms).items():
            yield (
                f"flow {flow.name}: transforms.{name} needs fields, which {converter} does not "
                f"read: it fails with each {converter.partition('.')[0]} that is not null; set "
                f"{converter} to JsonConverter, with schemas.enable=false"
            )
    circle = find_circle([flow for flow in connected if flow.settings.enabled])
    if circle is not None and any(flow.name in circle.flows for flow in mirroring):
        apart = "give them different topics"
        if circle.of_heartbeats:
            apart = (
                "set heartbeats.replication.enabled=false for those whose topics do not match it"
            )
        yield (
            f"flows {', '.join(circle.flows)} form a circle: what they copy comes back to them, "
            f"and is copied again and again ({circle.names[0]} of {circle.cluster} becomes "
            f"{', then '.join(circle.names[1:])}); {apart}, or give all of them "
            "DefaultReplicationPolicy with one separator, and aliases without it"
        )


def line_warnings(lines: Iterable[FileLine]) -> Iterable[str]:
    """The lines of which a start warns: what they were to do is not done. No values are shown."""
    for line in lines:
        if line.warns:
            yield f"line {line.number}: {line.key}: {line.text}"


def wrong_flow_names(file: MirrorMakerFile, flows: Collection[Flow]) -> Iterable[Problem]:
    """Aliases whose flow has no valid name: a start is refused. Heartbeats alone need no name."""
    line = last_values(file.properties)[CLUSTERS].line if flows else 0
    for flow in flows:
        source, target = flow.source_alias, flow.target_alias
        valid = ALIAS.fullmatch(source) and ALIAS.fullmatch(target)  # else there is a problem
        if not flow.heartbeats_only and valid and (trouble := wrong_flow_name(source, target)):
            yield Problem(line, trouble)


def _unknown_policies(
    file: MirrorMakerFile, flows: Collection[Flow], refused: Mapping[str, str]
) -> Iterable[Problem]:
    """The lines that name a policy which is not installed here: a start is refused."""
    last = last_values(file.properties)
    for flow in flows:
        if flow.name in refused:
            name = flow.settings.replication_policy_class
            line = connector_properties(last, flow.source_alias, flow.target_alias)[POLICY_CLASS]
            yield Problem(
                line.line,
                f"{line.key} is {name!r}, {refused[flow.name]}, or a policy of your own "
                "(docs/api.md), since Java classes cannot be loaded",
            )


def _policy_errors(flows: Collection[Flow]) -> Iterable[str]:
    """Why the policies of Kafka itself refuse their properties; other policies are warnings."""
    for flow in flows:
        if remote_topic(flow.settings, EXAMPLE_TOPIC) is None:
            continue
        try:
            policy_of(flow.policy_properties)
        except UserError as error:
            yield f"flow {flow.name}: {error}"


def _encoding_warnings(file: MirrorMakerFile) -> Iterable[str]:
    for item in file.properties:
        if not item.is_ascii:
            yield f"line {item.line} is not ASCII: it is read as ISO-8859-1, as Java does"
