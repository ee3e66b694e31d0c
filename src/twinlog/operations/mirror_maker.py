"""MirrorMaker's files and flags: what their flows will do, and what is to be run.

The checks read only local files: the properties, and what these refer to. They connect to nothing.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from twinlog.kafka.client.configuration import parse_config, resolve
from twinlog.kafka.errors import UserError
from twinlog.mirror.legacy_mirror_maker import READ_NAMES, LegacyOptions, legacy_flow
from twinlog.mirror.mirror_maker_file import (
    CLIENTS_OF_FLOW,
    Flow,
    FlowClients,
    Problem,
    parse_mirror_maker_file,
    targeting,
)
from twinlog.mirror.mirror_maker_names import BOOTSTRAP
from twinlog.mirror.mirror_maker_report import MirrorMakerReport, flow_row, report
from twinlog.mirror.properties_text import ENCODING, last_values, parse_lines

_SELECTORS: Final = ("security.protocol", "sasl.mechanism")
"""Properties that decide which others are read."""


class CheckedFlows(NamedTuple):
    """What is to be run, and the report of the check."""

    report: MirrorMakerReport
    flows: Sequence[Flow]
    """Those without errors."""
    clusters: Mapping[str, Mapping[str, str]]
    """The connection properties of each cluster, by its alias."""


def check_file(file: Path, targets: Sequence[str] = ()) -> CheckedFlows:
    """Explain a properties file of MirrorMaker 2.

    Args:
        file: the file.
        targets: only flows to these clusters; empty: all.

    Raises:
        UserError: the file cannot be read, or is not in the format of a properties file.
    """
    parsed = parse_mirror_maker_file(
        _read(file), lambda key, value: resolve(key, value, os.environ)
    )
    unused, problems = _check_clients(parsed.clients)
    return CheckedFlows(
        report(parsed, targets, unused, problems),
        targeting(parsed.flows, targets),
        parsed.clusters,
    )


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
        errors=(*legacy.errors, *map(str, problems)),
    )
    clients = [(flow.source_alias, flow.source_client) for flow in flows]
    clients += [(flow.target_alias, flow.target_client) for flow in flows]
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
