"""MirrorMaker 2's properties file: from its text to flows (KIP-382, "Running MirrorMaker").

    clusters = A, B                     aliases
    A.bootstrap.servers = a:9092        a client property of a cluster
    A.consumer.fetch.max.bytes = 1      of its consumers; also producer. and admin.
    A->B.enabled = true                 a setting of one flow
    A->B.source.consumer.client.id = x  a client property of one flow
    replication.factor = 3              a setting of all flows

mirror_maker_precedence.py computes what a flow has of these.

Flows exist for each pair of clusters with `A->B.enabled=true`, and, since heartbeats are on by
default, for all other pairs: these only write heartbeats of A to B (`Flow.heartbeats_only`).

Nothing is raised for the content of a file: `problems` has all errors, each with its line.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from twinlog.kafka.client.references import REFERRING
from twinlog.kafka.errors import UserError
from twinlog.mirror.config_providers import PROVIDERS, Provider, parse_providers, rewrite
from twinlog.mirror.dataframe_transform import (
    has_dataframe_transform,
    is_dataframe_property,
    keeps_references,
)
from twinlog.mirror.flow import (
    NO_MAP,
    THROTTLE,
    belongs_to_transforms,
    has_any_transform,
    impossible_maps,
    unsupported_offset_reset,
    wrong_any_transform,
    wrong_throttle,
)
from twinlog.mirror.flow_settings import (
    CONSUMER,
    ISOLATION,
    OFFSET_RESET,
    POLICY_PREFIX,
    SETTINGS,
    FlowSettings,
)
from twinlog.mirror.flow_settings_parser import parse_flow_settings
from twinlog.mirror.mirror_maker_names import (
    BOOTSTRAP,
    CLIENT_NAMES,
    FORMER_NAMES,
    HEARTBEAT_SETTINGS,
    INTERCEPTORS,
    ROLES,
    SIDES,
    TRANSFORMS,
)
from twinlog.mirror.mirror_maker_precedence import (
    CLIENTS_OF_FLOW,
    OWN_SETTINGS,
    Properties,
    client_properties,
    connector_properties,
    target_properties,
    worker_properties,
)
from twinlog.mirror.properties_text import Property, last_values, parse_lines
from twinlog.mirror.setting_values import parse_flag, split_set

CLUSTERS: Final = "clusters"
ENABLED: Final = "enabled"
HEARTBEATS: Final = "emit.heartbeats.enabled"
OFFSET_SYNCS: Final = "emit.offset-syncs.enabled"
ALIAS: Final = re.compile(r"[a-zA-Z0-9._-]+")
"""An alias of a cluster: it is part of a flow's name, and of names of topics."""

Resolve = Callable[[str, str], str]
"""From a key and a value with twinlog's references to the value; raises UserError."""


class Problem(NamedTuple):
    """An error in a file."""

    line: int
    """0: it is an error of the whole file."""
    text: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.text}" if self.line else self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterClients:
    """The properties of the clients that a flow has on one cluster; `REFERRING` ones unresolved."""

    consumer: Mapping[str, str] = field(repr=False)
    producer: Mapping[str, str] = field(repr=False)
    admin: Mapping[str, str] = field(repr=False)


class FlowClients(NamedTuple):
    """The clients of a flow that exists; its settings may have errors."""

    source_alias: str
    target_alias: str
    source: ClusterClients
    target: ClusterClients
    lines: Mapping[tuple[str, str], Mapping[str, int]]
    """By side and role: the line of each property, by its name."""
    copies: bool = True
    """False: the flow only writes heartbeats, and has no client on its source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """One flow."""

    source_alias: str
    target_alias: str
    source: ClusterClients
    target: ClusterClients
    settings: FlowSettings
    values: Mapping[str, str]
    """The settings that the file sets, by present names, as written; references resolved."""
    policy_properties: Mapping[str, str]
    """All properties of the replication policy (`replication.policy...`), as written."""
    transforms: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The properties of its transforms (transform_chain.py), as written; none: no transforms."""
    worker: Mapping[str, str] = field(default_factory=dict)
    """What MirrorMaker 2's Connect worker is called (connect_worker.py), as far as it is set."""
    throttle: Mapping[str, str] = field(default_factory=dict)
    """The settings of its throttle (`flow.THROTTLE`), as far as the file sets them."""

    @property
    def name(self) -> str:
        """`A->B`."""
        return f"{self.source_alias}->{self.target_alias}"

    @property
    def source_client(self) -> Mapping[str, str]:
        """Properties of twinlog's client on the source."""
        return self.source.consumer

    @property
    def heartbeats_only(self) -> bool:
        """Whether no topic is mirrored; the flow exists for its heartbeats."""
        return not self.settings.enabled


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorMakerFile:
    """What a file says."""

    properties: tuple[Property, ...] = field(repr=False)
    """All lines, in order; a key that occurs again is there again."""
    aliases: tuple[str, ...]
    clusters: Mapping[str, Mapping[str, str]] = field(repr=False)
    """The properties of twinlog's client on each cluster, as a target, by its alias."""
    flows: tuple[Flow, ...]
    """Flows without errors, in the order of `clusters`."""
    clients: tuple[FlowClients, ...] = field(repr=False)
    """Of all flows, also of those with errors."""
    problems: tuple[Problem, ...]
    uses: Mapping[int, frozenset[str]]
    """By line: the flows that have its value, in a setting or in a client that mirrors."""
    apart: Mapping[int, frozenset[tuple[str, str]]]
    """By line: where MirrorMaker 2 and twinlog do not both have its value in a client: the
    cluster's alias, and the property that twinlog's client there has, or would have, instead."""
    internal_uses: frozenset[int]
    """Lines whose value MirrorMaker 2 uses in further clients, for its internal topics."""

    def require_valid(self) -> None:
        """Raise all errors as one.

        Raises:
            UserError: there are errors.
        """
        if self.problems:
            raise UserError("; ".join(map(str, self.problems)))


def parse_mirror_maker_file(text: str, resolve: Resolve) -> MirrorMakerFile:
    """Parse the text of a file.

    Args:
        text: as decoded by `properties_text.ENCODING`.
        resolve: replaces references, except in client properties that may be secret (`REFERRING`).

    Raises:
        UserError: the text is not in the format of a properties file.
    """
    return parse_flow_lines(parse_lines(text), resolve)


def parse_flow_lines(lines: tuple[Property, ...], resolve: Resolve) -> MirrorMakerFile:
    """Parse the properties of a file, or of a command; `resolve` as above."""
    reader = _FileReader(last_values(lines), resolve)
    flows = tuple(reader.flows())
    return MirrorMakerFile(
        properties=lines,
        aliases=reader.aliases,
        clusters={alias: reader.client(alias) for alias in reader.aliases},
        flows=flows,
        clients=tuple(reader.clients),
        problems=tuple(sorted(set(reader.problems))),
        uses={line: frozenset(names) for line, names in reader.uses.items()},
        apart={line: frozenset(clients) for line, clients in reader.apart.items()},
        internal_uses=frozenset(reader.internal_uses),
    )


def disabled_pairs(file: MirrorMakerFile) -> list[tuple[str, str]]:
    """The pairs of source and target that a line disables, with or without heartbeats.

    A pair without such a line may be the flow of another file.
    """
    keys = {item.key for item in file.properties}
    enabled = {
        (flow.source_alias, flow.target_alias) for flow in file.flows if flow.settings.enabled
    }
    return [
        (a, b)
        for a in file.aliases
        for b in file.aliases
        if a != b
        and (a, b) not in enabled
        and not keys.isdisjoint({ENABLED, f"{a}->{b}.{ENABLED}"})
    ]


def targeting(flows: Iterable[Flow], aliases: Collection[str]) -> tuple[Flow, ...]:
    """The flows that a node with `--clusters` runs: those whose target is one of them."""
    return tuple(flow for flow in flows if not aliases or flow.target_alias in aliases)


class _FileReader:
    """Reads flows, and collects errors and uses."""

    def __init__(self, properties: Properties, resolve: Resolve) -> None:
        self.problems: list[Problem] = []
        self.clients: list[FlowClients] = []
        self.uses: defaultdict[int, set[str]] = defaultdict(set)
        self.apart: defaultdict[int, set[tuple[str, str]]] = defaultdict(set)
        self.internal_uses: set[int] = set()
        self._properties = properties
        self._resolve = resolve
        self._providers = self._parse_providers()
        self.aliases = self._parse_aliases()

    def flows(self) -> Iterable[Flow]:
        """The flows without errors."""
        pairs = [(a, b) for a in self.aliases for b in self.aliases if a != b]
        existing = [pair for pair in pairs if self._exists(*pair)]
        if self.aliases and not existing:
            self._problem(
                self._properties.get(CLUSTERS),
                "there is no flow: no A->B.enabled is true, and no heartbeats are enabled",
            )
        flows = [self._flow(*pair) for pair in existing]
        return (flow for flow in flows if flow is not None)

    def client(self, alias: str) -> dict[str, str]:
        """The properties of twinlog's client on a cluster, as a target."""
        return self._values(target_properties(self._properties, alias))

    def _parse_providers(self) -> Mapping[str, Provider]:
        texts = {key: item.value for key, item in self._properties.items()}
        try:
            return parse_providers(texts)
        except UserError as error:
            self._problem(self._properties.get(PROVIDERS), error.message)
            return {}

    def _parse_aliases(self) -> tuple[str, ...]:
        item = self._properties.get(CLUSTERS)
        expected = "cluster aliases, comma-separated"
        if item is None:
            self._problem(None, f"{CLUSTERS} is missing: expected {expected}")
            return ()
        try:
            aliases = split_set(item.value)
        except ValueError as error:
            self._bad(item, str(error))
            return ()
        if not aliases:
            self._bad(item, expected)
        if not all(map(ALIAS.fullmatch, aliases)):
            self._bad(item, f"{expected}, of ASCII letters, digits, '.', '_' and '-'")
        return aliases

    def _exists(self, source: str, target: str) -> bool:
        """Whether MirrorMaker 2 has this flow (`MirrorMakerConfig.clusterPairs`)."""
        flow = f"{source}->{target}."
        heartbeats = self._flag(HEARTBEATS, default=True)
        enabled = self._flag(f"{flow}{ENABLED}", default=False)
        return enabled or self._flag(f"{flow}{HEARTBEATS}", default=heartbeats)

    def _flag(self, key: str, *, default: bool) -> bool:
        item = self._properties.get(key)
        if item is None:
            return default
        try:
            return parse_flag(self._setting(item))
        except UserError:
            return default
        except ValueError as error:
            self._bad(item, str(error))
            return default

    def _flow(self, source: str, target: str) -> Flow | None:
        before = len(self.problems)
        merged = connector_properties(self._properties, source, target)
        clients = {
            (side, role): client_properties(merged, side, role) for side in SIDES for role in ROLES
        }
        parsed = self._settings(merged, clients["source", "consumer"], source, target)
        copies = parsed is None or parsed[0].enabled
        self._record_uses(merged, clients, source, target, copies=copies)
        self._check_unsupported(merged, clients.values())
        transforms: Mapping[str, str] = {}
        # What only writes heartbeats has no transforms. With other errors, these are reported, too.
        if copies:
            transforms = self._transforms(merged, parsed and parsed[0], f"{source}->{target}")
        throttle = self._throttle(merged, f"{source}->{target}") if copies else {}
        worker = self._worker(source, target) if parsed is not None and copies else {}
        self._check_bootstrap(clients, source, target)
        sides = {
            side: ClusterClients(**{role: self._values(clients[side, role]) for role in ROLES})
            for side in SIDES
        }
        lines = {
            key: {name: item.line for name, item in items.items()} for key, items in clients.items()
        }
        self.clients.append(
            FlowClients(source, target, sides["source"], sides["target"], lines, copies)
        )
        if parsed is None or len(self.problems) > before:
            return None
        return Flow(
            source_alias=source,
            target_alias=target,
            source=sides["source"],
            target=sides["target"],
            settings=parsed[0],
            values=parsed[1],
            policy_properties=self._values(
                {key: item for key, item in merged.items() if key.startswith(POLICY_PREFIX)}
            ),
            transforms=transforms,
            worker=worker,
            throttle=throttle,
        )

    def _throttle(self, merged: Properties, flow: str) -> dict[str, str]:
        """The settings of a flow's throttle, as far as the file sets them."""
        values: dict[str, str] = {}
        for name in THROTTLE:
            if (item := merged.get(name)) is None:
                continue
            self.uses[item.line].add(flow)
            with suppress(UserError):
                values[name] = self._setting(item)
                if wrong := wrong_throttle(name, values[name]):
                    self._problem(item, f"{flow}.{wrong}")
        return values

    def _worker(self, source: str, target: str) -> dict[str, str]:
        """What MirrorMaker 2's Connect worker is called, as far as the file sets it."""
        names: dict[str, str] = {}
        for name, item in worker_properties(self._properties, source, target).items():
            self.uses[item.line].add(f"{source}->{target}")
            with suppress(UserError):
                names[name] = self._setting(item).strip()
                if not names[name]:
                    self._bad(item, "a name")
        return names

    def _transforms(
        self, merged: Properties, settings: FlowSettings | None, flow: str
    ) -> dict[str, str]:
        """The properties of a flow's transforms; none if it has no transforms."""
        items = {name: item for name, item in merged.items() if belongs_to_transforms(name)}
        if has_dataframe_transform(dict.fromkeys(items, "")):
            # Converters are of single-message transforms.
            items = {n: i for n, i in items.items() if is_dataframe_property(n) or n == TRANSFORMS}
        values: dict[str, str] = {}
        for name, item in items.items():
            # What refers to a secret is stored as it is written, as in client properties.
            of = self._rewritten if keeps_references(name) else self._setting
            with suppress(UserError):
                values[name] = of(item)
        if len(values) < len(items):
            return {}  # what the others lack is not known
        transformed = has_any_transform(values)
        first = min(items.values(), key=lambda item: item.line, default=None)
        blamed = items.get(TRANSFORMS, first)
        if transformed and blamed is not None:
            for item in items.values():
                self.uses[item.line].add(flow)
            for name, error in wrong_any_transform(values):
                self._problem(items.get(name, blamed), f"{flow}: {error}")
        if settings is not None and blamed is not None:
            for name in impossible_maps(values, settings):
                self._problem(blamed, f"{flow}: {name} is true: {NO_MAP}")
        return values if transformed else {}

    def _record_uses(
        self,
        merged: Properties,
        clients: Mapping[tuple[str, str], Properties],
        source: str,
        target: str,
        *,
        copies: bool,
    ) -> None:
        flow = f"{source}->{target}"
        for name in OWN_SETTINGS if copies else HEARTBEAT_SETTINGS:
            if (item := _of_setting(merged, name)) is not None:
                self.uses[item.line].add(flow)
        ends: dict[str, tuple[str, Properties]] = {
            "target": (target, target_properties(self._properties, target))
        }
        if copies:
            ends["source"] = source, clients["source", "consumer"]
        for side, (alias, client) in ends.items():
            of_flow = [clients[key] for key in CLIENTS_OF_FLOW if key[0] == side]
            for name, item in (pair for of_role in of_flow for pair in of_role.items()):
                self.uses[item.line].add(flow)
                if name not in client:
                    role = "consumer" if side == "source" else "producer"
                    of_client = name if name in CLIENT_NAMES else f"{role}.{name}"
                    self.apart[item.line].add((alias, f"{alias}.{of_client}"))
                elif client[name].value.strip() != item.value.strip():
                    self.apart[item.line].add((alias, client[name].key))
            for name, item in client.items():
                if not any(of_role.get(name) == item for of_role in of_flow):
                    self.uses[item.line].add(flow)
                    self.apart[item.line].add((alias, item.key))
        # What only writes heartbeats has none of the others.
        for internal in clients.keys() - CLIENTS_OF_FLOW if copies else ():
            self.internal_uses.update(item.line for item in clients[internal].values())

    def _settings(
        self, merged: Properties, consumer: Properties, source: str, target: str
    ) -> tuple[FlowSettings, dict[str, str]] | None:
        found = {name: _of_setting(merged, name) for name in SETTINGS if name in OWN_SETTINGS}
        items = {name: item for name, item in found.items() if item is not None}
        for name in (OFFSET_RESET, ISOLATION):
            if name in consumer:
                items[CONSUMER + name] = consumer[name]
        values: dict[str, str] = {}
        for name, item in items.items():
            with suppress(UserError):
                values[name] = self._setting(item)
        parsed = parse_flow_settings(values, source, target)
        if isinstance(parsed, FlowSettings):
            if expectation := unsupported_offset_reset(parsed):
                self._bad(items[CONSUMER + OFFSET_RESET], expectation)
            return (parsed, values) if len(values) == len(items) else None
        for bad in parsed:
            self._bad(items[bad.name], bad.expectation)
        return None

    def _check_unsupported(self, merged: Properties, clients: Iterable[Properties]) -> None:
        """Refuse what runs Java, or what MirrorMaker 2 itself refuses."""
        for properties in clients:
            item = properties.get(INTERCEPTORS)
            if item is not None and item.value.strip():
                self._problem(
                    item,
                    f"{item.key} is {item.value.strip()!r}: Java interceptors cannot be run, and "
                    "may change records; remove it if it only monitors",
                )
        syncs = merged.get(OFFSET_SYNCS)
        topic = [key for key in merged if key.startswith("offset-syncs.topic.")]
        if syncs is not None and syncs.value.strip().lower() == "false" and topic:
            self._problem(
                syncs,
                f"{syncs.key} is false, but {merged[topic[0]].key} is set: MirrorMaker 2 refuses "
                "this; expected only one of them",
            )

    def _check_bootstrap(
        self, clients: Mapping[tuple[str, str], Properties], source: str, target: str
    ) -> None:
        aliases = {"source": source, "target": target}
        needed = [(aliases[side], clients[side, role]) for side, role in sorted(CLIENTS_OF_FLOW)]
        # What roles have is not enough on the target, also for MirrorMaker 2's Connect worker.
        needed.append((target, target_properties(self._properties, target)))
        for alias, client in needed:
            if BOOTSTRAP not in client:
                self._problem(
                    self._properties.get(CLUSTERS),
                    f"{alias}.{BOOTSTRAP} is missing: expected HOST:PORT,HOST:PORT,...",
                )

    def _values(self, items: Properties) -> dict[str, str]:
        """Values with references only where a stored flow may have them; errors are collected."""
        values = {}
        for name, item in items.items():
            of = self._rewritten if name.startswith(REFERRING) else self._setting
            with suppress(UserError):
                values[name] = of(item)
        return values

    def _rewritten(self, item: Property) -> str:
        """The value with twinlog's references.

        Raises:
            UserError: a reference is malformed, or may not be read; the error was collected.
        """
        try:
            return rewrite(item.value, self._providers)
        except UserError as error:
            self._problem(item, f"{item.key} has {error.message}")
            raise

    def _setting(self, item: Property) -> str:
        """The value of a setting, references resolved.

        Raises:
            UserError: a reference cannot be resolved; the error was collected.
        """
        value = self._rewritten(item)
        try:
            return self._resolve(item.key, value)
        except UserError as error:
            self._problem(item, error.message)
            raise

    def _bad(self, item: Property, expectation: str) -> None:
        self._problem(item, f"{item.key} is {item.value.strip()!r}: expected {expectation}")

    def _problem(self, item: Property | None, text: str) -> None:
        self.problems.append(Problem(item.line if item else 0, text))


def _of_setting(merged: Properties, name: str) -> Property | None:
    """The line of a setting, by its present name or else by its former one."""
    former = (merged[old] for old, new in FORMER_NAMES.items() if new == name and old in merged)
    return merged.get(name) or next(former, None)
