"""MirrorMaker's files and flags: what their flows will do, and what is to be run.

The checks read only local files: the properties, and what these refer to. They connect to no
cluster. Queries and functions are analysed by a Spark that is started for it (query_analysis.py),
which asks the schema registry if they read Avro.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NamedTuple

from twinlog.kafka.client.configuration import Parsed, parse_config, resolve
from twinlog.kafka.errors import UserError
from twinlog.lifecycle.flow_creation import check_start
from twinlog.mirror.config_providers import OWN_PROVIDERS
from twinlog.mirror.flow_settings import SOURCE_HEARTBEATS
from twinlog.mirror.legacy_mirror_maker import READ_NAMES, LegacyOptions, legacy_flow
from twinlog.mirror.mirror_maker_file import (
    ALIAS,
    Flow,
    FlowClients,
    MirrorMakerFile,
    Problem,
    disabled_pairs,
    parse_flow_lines,
    parse_mirror_maker_file,
    targeting,
)
from twinlog.mirror.mirror_maker_lines import LineVerdict, explain_lines
from twinlog.mirror.mirror_maker_names import BOOTSTRAP, CLIENT_NAMES, SIDES
from twinlog.mirror.mirror_maker_precedence import CLIENTS_OF_FLOW
from twinlog.mirror.mirror_maker_report import (
    MirrorMakerReport,
    flow_row,
    flow_warnings,
    report,
    wrong_flow_names,
)
from twinlog.mirror.properties_text import ENCODING, Property, last_values, parse_lines
from twinlog.operations.query_analysis import QueryFinding, analyse_queries

_SELECTORS: Final = ("security.protocol", "sasl.mechanism")
"""Properties that decide which others are read."""
_SECURITY: Final = ("security.", "sasl.", "ssl.")
"""How the names of properties begin that say who a client is, and how it is protected."""
_GIVEN: Final = frozenset({"enabled", "source.cluster.alias", "target.cluster.alias"})
"""Settings of a flow that follow from its creation."""
_USELESS: Final = frozenset({LineVerdict.UNKNOWN, LineVerdict.NO_EFFECT})
_NOTED: Final = frozenset({LineVerdict.DIFFERS, LineVerdict.NOT_NEEDED})


class CheckedFlows(NamedTuple):
    """What is to be run, and the report of the check."""

    report: MirrorMakerReport
    flows: Sequence[Flow]
    """Those without errors."""
    clusters: Mapping[str, Mapping[str, str]]
    """The properties of the client on each cluster, as a target, by its alias."""
    disabled: Sequence[tuple[str, str]] = ()
    """The pairs of source and target that a file disables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowRequest:
    """A flow that is described by itself, not in a file."""

    source_alias: str
    target_alias: str
    source: Mapping[str, str] = field(repr=False)
    """Properties of the client that reads the source."""
    settings: Mapping[str, str]
    """Properties as they would stand behind `A->B.` in a file of MirrorMaker 2."""


class CheckedFlow(NamedTuple):
    """A flow that may be created, and what its author should know."""

    flow: Flow
    warnings: tuple[str, ...]


def check_flow(request: FlowRequest) -> CheckedFlow:
    """Check a flow by the rules of `check_file`.

    A property that has no effect is an error here: in a file it may be meant for MirrorMaker 2.

    Raises:
        UserError: an alias, a setting or a client property is malformed or unknown.
    """
    source, target = request.source_alias, request.target_alias
    for alias in (source, target):
        if not ALIAS.fullmatch(alias):
            raise UserError(
                f"the alias {alias!r} is not valid: expected ASCII letters, digits, '.', '_', '-'"
            )
    if source == target:
        raise UserError(f"source and target have the same alias {source}: expected different ones")
    if given := sorted(request.settings.keys() & _GIVEN):
        raise UserError(f"{given[0]} cannot be set: it follows from the aliases of the flow")
    if BOOTSTRAP not in request.source:
        raise UserError(f"{BOOTSTRAP} of the source is missing: expected HOST:PORT,HOST:PORT,...")
    flow = f"{source}->{target}."
    consumer = {
        f"{source}.{name}" if name in CLIENT_NAMES else f"{source}.consumer.{name}": text
        for name, text in request.source.items()
    }
    settings = {f"{flow}{name}": text for name, text in request.settings.items()}
    frame = {
        **OWN_PROVIDERS,
        "clusters": f"{source},{target}",
        f"{target}.{BOOTSTRAP}": "localhost:9092",  # its client is another one's concern
        f"{flow}enabled": "true",
        f"{target}->{source}.emit.heartbeats.enabled": "false",
    }
    lines = tuple(
        Property(number, key, text)
        for number, (key, text) in enumerate((frame | consumer | settings).items(), 1)
    )
    parsed = parse_flow_lines(lines, lambda key, value: resolve(key, value, os.environ))
    unused, client_problems = _check_clients(parsed.clients)
    # The consumer's are those of the one client on the source, and nothing else is asked for here.
    client_problems += _split_security(parsed, ("target",))
    names = wrong_flow_names(parsed, parsed.flows)
    problems = sorted({*parsed.problems, *client_problems, *names})
    errors = [problem.text for problem in problems]
    explained = explain_lines(parsed, unused, problems)
    of_request = [line for line in explained if line.key not in frame]
    errors += [f"{line.key}: {line.text}" for line in of_request if line.verdict in _USELESS]
    if errors:
        raise UserError("; ".join(errors))
    (created,) = parsed.flows
    noted = [f"{line.key}: {line.text}" for line in of_request if line.verdict in _NOTED]
    has = created.settings
    if has.heartbeats_replication_enabled and not has.twinlog_source_heartbeats_enabled:
        noted.append(
            f"flow {created.name}: its nodes write no heartbeats to {source}; MirrorMaker 2 does. "
            f"Unless a flow {target}->{source} or another program does, replication_hops of "
            f"{source} is -1 on {target}; --config {SOURCE_HEARTBEATS}=true makes them do it"
        )
    return CheckedFlow(created, (*noted, *flow_warnings(parsed.flows, parsed.flows)))


def check_file(
    file: Path,
    targets: Sequence[str] = (),
    *,
    analyse: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> CheckedFlows:
    """Explain a properties file of MirrorMaker 2.

    Args:
        file: the file.
        targets: only flows to these clusters; empty: all.
        analyse: have Spark analyse the queries and functions of the flows (`analyse_queries`).
        tell: receives a line before Spark is started.

    Raises:
        UserError: the file cannot be read, or is not in the format of a properties file.
    """
    parsed = parse_mirror_maker_file(
        _read(file), lambda key, value: resolve(key, value, os.environ)
    )
    unused, problems = _check_clients(parsed.clients)
    problems += _split_security(parsed)
    flows = targeting(parsed.flows, targets)
    findings = analyse_queries(flows, tell) if analyse else ()
    wrong = [finding for finding in findings if finding.wrong]
    problems = (*problems, *_query_problems(wrong, parsed.properties))
    checked = report(parsed, targets, unused, problems)
    if not checked.errors:
        checked = replace(checked, errors=_start_errors(flows))
    not_analysed = (str(finding) for finding in findings if not finding.wrong)
    return CheckedFlows(
        replace(checked, warnings=(*checked.warnings, *not_analysed)),
        [flow for flow in flows if flow.name not in {finding.flow for finding in wrong}],
        parsed.clusters,
        disabled_pairs(parsed),
    )


def check_queries(flows: Iterable[Flow], tell: Callable[[str], None]) -> tuple[str, ...]:
    """Have Spark analyse the queries and functions of flows that are to be created.

    Args:
        flows: without errors.
        tell: receives a line before Spark is started.

    Returns:
        Why some of them were not analysed.

    Raises:
        UserError: a query or function is wrong.
    """
    findings = analyse_queries(flows, tell)
    if wrong := [str(finding) for finding in findings if finding.wrong]:
        raise UserError("; ".join(wrong))
    return tuple(map(str, findings))


def _start_errors(flows: Iterable[Flow]) -> tuple[str, ...]:
    """Why a start would refuse flows without other errors: by the checks that it makes itself."""
    errors: list[str] = []
    for flow in flows:
        if flow.heartbeats_only:
            continue  # it is not stored
        try:
            check_start(flow)
        except UserError as error:
            errors.append(f"flow {flow.name}: {error}")
    return tuple(errors)


def _query_problems(
    findings: Iterable[QueryFinding], properties: tuple[Property, ...]
) -> Iterable[Problem]:
    """Errors, each with the line of the property that is at fault."""
    last = last_values(properties)
    for finding in findings:
        item = last.get(f"{finding.flow}.{finding.name}")
        yield Problem(item.line if item else 0, str(finding))


def check_flags(options: LegacyOptions, consumer: Path, producer: Path) -> CheckedFlows:
    """Explain the flags of the former `kafka-mirror-maker.sh`.

    Args:
        options: the flags.
        consumer: the file of `--consumer.config`.
        producer: the file of `--producer.config`.

    Raises:
        UserError: as `check_file`.
    """
    legacy = legacy_flow(options, _properties(consumer), _properties(producer))
    flows = () if legacy.flow is None else (legacy.flow,)
    unused, problems = _check_clients(
        FlowClients(flow.source_alias, flow.target_alias, flow.source, flow.target, {})
        for flow in flows
    )
    checked = MirrorMakerReport(
        flows=tuple(map(flow_row, flows)),
        lines=legacy.lines,
        warnings=tuple(f"{name} is not used by twinlog" for name in sorted(unused - READ_NAMES)),
        errors=(*legacy.errors, *map(str, problems)) or _start_errors(flows),
    )
    clients = [(flow.source_alias, flow.source_client) for flow in flows]
    clients += [(flow.target_alias, flow.target.producer) for flow in flows]
    return CheckedFlows(checked, flows, dict(clients))


def _read(file: Path) -> str:
    try:
        return file.read_bytes().decode(ENCODING)
    except OSError as error:
        raise UserError(f"cannot read properties from {file}: {error.strerror}") from error


def _properties(file: Path) -> dict[str, str]:
    return {key: item.value for key, item in last_values(parse_lines(_read(file))).items()}


def _check_clients(flows: Iterable[FlowClients]) -> tuple[frozenset[str], tuple[Problem, ...]]:
    """Names of client properties that twinlog does not use, and errors in the others."""
    unused: set[str] = set()
    problems: dict[Problem, None] = {}
    for flow in flows:
        for side, role in sorted(CLIENTS_OF_FLOW):
            properties = getattr(getattr(flow, side), role)
            if BOOTSTRAP not in properties:
                continue  # it was reported with the line of `clusters`
            try:
                unused.update(parse_config(properties).unused)
            except UserError as error:
                alias = flow.source_alias if side == "source" else flow.target_alias
                line = _line_of(error, properties, flow.lines.get((side, role), {}))
                problems[Problem(line, f"cluster {alias}: {error}")] = None
    return frozenset(unused), tuple(problems)


def _split_security(file: MirrorMakerFile, sides: Sequence[str] = SIDES) -> tuple[Problem, ...]:
    """Where a client of MirrorMaker 2 has other credentials than twinlog's one on the cluster.

    twinlog would do with one principal what MirrorMaker 2 does with another one, or without TLS.
    """
    keys = {item.line: item.key for item in file.properties}
    problems: dict[Problem, None] = {}
    for flow in file.clients:
        for side, role in sorted(CLIENTS_OF_FLOW):
            if side not in sides or (side == "source" and not flow.copies):
                continue
            of_source = side == "source"
            alias = flow.source_alias if of_source else flow.target_alias
            client = flow.source.consumer if of_source else file.clusters[alias]
            for name in _other_security(getattr(getattr(flow, side), role), client):
                lines = [flow.lines[side, role].get(name)]
                lines += [flow.lines["source", "consumer"].get(name)] if of_source else []
                of_cluster = {f"{alias}.{name}", name}
                line = next((n for n in lines if n and keys[n] not in of_cluster), 0)
                text = (
                    f"{keys.get(line, name)} is for some clients on {alias} only, but twinlog has "
                    f"one client on {alias}: write {alias}.{name}, for all"
                )
                problems[Problem(line, text)] = None
    return tuple(problems)


def _other_security(properties: Mapping[str, str], client: Mapping[str, str]) -> Sequence[str]:
    """The properties by which one client has other credentials, or another protocol, than another.

    Returns:
        Their names; none also if one of the two is malformed, which is an error of its own.
    """
    try:
        one, other = parse_config(properties), parse_config(client)
    except UserError:
        return ()
    if one.config.security == other.config.security:
        return ()
    return [
        name
        for name in sorted(properties.keys() | client.keys())
        if name.startswith(_SECURITY)
        and properties.get(name, "").strip() != client.get(name, "").strip()
        and (_is_read(name, properties, one) or _is_read(name, client, other))
    ]


def _is_read(name: str, properties: Mapping[str, str], parsed: Parsed) -> bool:
    return name in properties and name not in parsed.unused


def _line_of(error: UserError, properties: Mapping[str, str], lines: Mapping[str, int]) -> int:
    """The line of the property without which this error does not occur; 0: there is none.

    An error names its property only in its text. Without `security.protocol`, most errors do not
    occur, so it is the last to be named.
    """
    culprits = []
    for name, line in lines.items():
        others = {other: value for other, value in properties.items() if other != name}
        others.setdefault(BOOTSTRAP, "localhost:9092")
        try:
            parse_config(others)
        except UserError as remaining:
            if str(remaining) == str(error):
                continue
        culprits.append((name not in _SELECTORS, line))
    return max(culprits, default=(False, 0))[1]
