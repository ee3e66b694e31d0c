"""What each line of a MirrorMaker 2 file does, for people and as JSON.

A line has one verdict:

| verdict | meaning |
| --- | --- |
| USED | twinlog does what MirrorMaker 2 does |
| DIFFERS | one of both uses it, or they use it differently |
| NOT_NEEDED | a property of Kafka Connect that has no meaning in twinlog |
| NO_EFFECT | neither uses it: another line has precedence, or it is at the wrong level |
| UNKNOWN | neither knows it |
| ERROR | the file cannot be used as it is |

Where a line belongs, and which other line has precedence: mirror_maker_places.py.

Secrets are never part of a line: values are shown only of properties that cannot hold one.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from twinlog.mirror.checkpoint_lines import without_checkpoints
from twinlog.mirror.config_providers import PROVIDERS
from twinlog.mirror.connect_worker import GROUP, OFFSETS, READ_AT, lines_read
from twinlog.mirror.dataframe_transform import (
    FUNCTION,
    MEMORY,
    REGISTRY,
    ROUTES,
    SQL,
    TABLES,
    TARGET_REGISTRY,
    TIME_ZONE,
    is_dataframe_property,
)
from twinlog.mirror.flow import THROTTLE, belongs_to_transforms, routed_topics
from twinlog.mirror.flow_settings import (
    CONSUMER,
    ISOLATION,
    OFFSET_RESET,
    POLICY_PREFIX,
    SETTINGS,
    TRANSACTIONS,
)
from twinlog.mirror.mirror_maker_file import (
    CLUSTERS,
    ENABLED,
    HEARTBEATS,
    Flow,
    MirrorMakerFile,
    Problem,
)
from twinlog.mirror.mirror_maker_hints import GUESS, LineHints, with_role_of_flow
from twinlog.mirror.mirror_maker_names import (
    BOOTSTRAP,
    BYTES_CONVERTER,
    CLIENT_NAMES,
    CLIENT_REASONS,
    CREATION,
    CREATION_ENABLED,
    DRAFT_NAMES,
    FORMER_NAMES,
    REMOTE_ADMIN,
    ROLE_NAMES,
    ROLES,
    SIDES,
    TRANSFORMS,
    is_client_property,
    read_instead,
    reason,
)
from twinlog.mirror.mirror_maker_places import LinePlace, LinePlaces
from twinlog.mirror.mirror_maker_precedence import (
    OVERRIDE,
    client_of_flow,
    connector_properties,
)
from twinlog.mirror.properties_text import Property, last_values
from twinlog.mirror.record_transforms import FORMER_OPTIONS
from twinlog.mirror.replication_policy import (
    IDENTITY,
    LEGACY,
    POLICY_CLASS,
    POLICY_NAMES,
    has_properties_of_its_own,
    policy_class,
)
from twinlog.mirror.setting_values import parse_task_interval
from twinlog.mirror.settings import SETTINGS as MIRROR_SETTINGS
from twinlog.mirror.transform_chain import CONVERTER_NAMES, has_router
from twinlog.text import closest, few

_ALIAS: Final = "alias"
_SHOWN: Final = frozenset(
    {BOOTSTRAP, "security.protocol", "sasl.mechanism", CLUSTERS, TRANSFORMS, _ALIAS}
)
_FORCED: Final = frozenset({"enable.auto.commit"})
"""Client properties that MirrorMaker 2 overwrites."""
_UNSHOWN: Final = "..."
"""The key of a line that may be a part of a secret."""
_READ: Final = {OFFSET_RESET: "earliest", ISOLATION: "read_committed"}
"""Properties of the source's consumer that are settings of the flow, each with the value with which
twinlog does what MirrorMaker 2 does."""

_ADDED: Final = (
    "; MirrorMaker 2 has no such flow, as only the word true counts for it, without white space "
    "behind it, and not by a reference"
)


class LineVerdict(Enum):
    """What comes of a line."""

    USED = "used"
    DIFFERS = "differs"
    NOT_NEEDED = "not needed"
    NO_EFFECT = "no effect"
    UNKNOWN = "unknown"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLine:
    """One line, explained."""

    number: int
    key: str
    value: str | None
    """None: not shown, as it may be a secret."""
    verdict: LineVerdict
    text: str
    warns: bool = False
    """Whether a start warns of it: nobody knows the property, or another one should be written."""


class _Advice(str):
    """Why a line does not do what it says, with what to do instead: a start warns of it."""

    __slots__ = ()


def explain_lines(
    file: MirrorMakerFile, unused: Collection[str], problems: Collection[Problem]
) -> tuple[FileLine, ...]:
    """Explain all lines with a property, in order.

    Args:
        file: the file.
        unused: names of client properties that twinlog's client does not use.
        problems: all errors, those of client properties, too.
    """
    return _LineReader(file, unused, problems).lines()


Explanation = tuple[LineVerdict, str]


class _LineReader:
    """Explains the lines of one file."""

    def __init__(
        self, file: MirrorMakerFile, unused: Collection[str], problems: Collection[Problem]
    ) -> None:
        self._file = file
        self._unused = unused
        self._problems = problems
        self._last = last_values(file.properties)
        self._places = LinePlaces(file)
        self._hints = LineHints(file.aliases, self._places.pairs)

    def lines(self) -> tuple[FileLine, ...]:
        return tuple(map(self._line, self._file.properties))

    def _line(self, item: Property) -> FileLine:
        place = self._places.place(item.key)
        verdict, text = self._explained(item, place)
        unknown = verdict is LineVerdict.UNKNOWN
        return FileLine(
            number=item.line,
            key=_UNSHOWN if unknown and _may_continue_a_value(item, text) else item.key,
            value=item.value if _is_public(place.rest) else None,
            verdict=verdict,
            text=text,
            warns=unknown or isinstance(text, _Advice),
        )

    def _explained(self, item: Property, place: LinePlace) -> Explanation:
        errors = [problem.text for problem in self._problems if problem.line == item.line]
        if errors:
            return LineVerdict.ERROR, "; ".join(errors)
        last = self._last[item.key].line
        if last != item.line:
            return LineVerdict.NO_EFFECT, f"line {last} sets it again; the last value counts"
        if place.target:
            return self._of_flow(item, place)
        if place.source:
            return self._of_cluster(item, place)
        return self._of_file(item)

    def _of_flow(self, item: Property, place: LinePlace) -> Explanation:
        if place.rest == ENABLED:
            return self._enabled(place)
        if place.flow not in self._places.existing and not self._places.silenced(item):
            return LineVerdict.NO_EFFECT, f"flow {place.flow} is not enabled"
        if client := client_of_flow(place.rest):
            side, role, name = client
            alias = place.source if side == "source" else place.target
            return self._client(item, role, name, f"on {alias}")
        if place.rest in SETTINGS or place.rest in FORMER_NAMES:
            return self._setting(item, place.rest)
        of_role = any(place.rest in names for names in ROLE_NAMES.values())
        if place.rest in CLIENT_NAMES or (of_role and place.rest != PROVIDERS):
            return LineVerdict.NO_EFFECT, _Advice(
                "MirrorMaker 2 does not read a client property here: write "
                f"{with_role_of_flow(place)}"
            )
        return self._other(item, place)

    def _enabled(self, place: LinePlace) -> Explanation:
        # The flow itself is not there if its settings have errors.
        written = self._last[f"{place.prefix}{ENABLED}"].value.strip().lower() == "true"
        flow = next((flow for flow in self._file.flows if flow.name == place.flow), None)
        stored = (
            "a flow that the target has stored is switched off if another one to "
            f"{place.target} is enabled"
        )
        if written if flow is None else flow.settings.enabled:
            text = f"mirrors topics from {place.source} to {place.target}"
        elif place.flow in self._places.existing:
            heartbeats = f"heartbeats of {place.source} are written to {place.target}"
            text = f"mirrors no topics; {heartbeats}; {stored}"
        else:
            text = f"flow {place.flow} is off; {stored}"
        if place.flow in self._places.added:
            return LineVerdict.DIFFERS, f"{text}{_ADDED}"
        return LineVerdict.USED, text

    def _of_cluster(self, item: Property, place: LinePlace) -> Explanation:
        role, dot, name = place.rest.partition(".")
        if place.rest in CLIENT_NAMES:
            return self._client(item, "client", place.rest, f"on {place.source}")
        if dot and role in ROLES:
            return self._client(item, role, name, f"on {place.source}")
        if place.rest == _ALIAS:
            return self._alias(item, place)
        if place.rest in SETTINGS or place.rest in FORMER_NAMES or place.rest in DRAFT_NAMES:
            return LineVerdict.NO_EFFECT, _not_of_cluster(place.rest)
        roles = [role for role in ROLES if place.rest in ROLE_NAMES[role]]
        if roles and place.rest != PROVIDERS and not reason(place.rest):
            others = " or ".join(f"{role}." for role in roles[1:])
            return LineVerdict.NO_EFFECT, _Advice(
                f"MirrorMaker 2 does not give it to clients: write {place.prefix}{roles[0]}."
                f"{place.rest}" + (others and f", or {others}")
            )
        return self._other(item, place)

    def _alias(self, item: Property, place: LinePlace) -> Explanation:
        """A cluster's properties become those of flows behind `source.cluster.` and so on.

        Of the settings of a flow, this is the only one that a cluster can have in this way.
        """
        texts, winners = list[str](), set[int]()
        for source, target in self._places.candidates(item):
            side = SIDES[source != place.source]
            name = f"{side}.cluster.{_ALIAS}"
            if f"{source}->{target}" in self._file.uses.get(item.line, ()):
                texts.append(f"{name} of {source}->{target}: {SETTINGS[name].meaning}")
            else:
                winners.add(connector_properties(self._last, source, target)[name].line)
        if texts:
            return LineVerdict.USED, "; ".join(sorted(texts))
        if winners:
            return LineVerdict.NO_EFFECT, f"line {min(winners)} has precedence"
        return LineVerdict.NO_EFFECT, "no flow exists that has it"

    def _of_file(self, item: Property) -> Explanation:
        key = item.key
        if key == CLUSTERS:
            text = f"aliases of {len(self._file.aliases)} clusters"
            repeated = item.value.count(",") + 1 > len(self._file.aliases)
            return LineVerdict.USED, f"{text}; each counts once" if repeated else text
        if key in CLIENT_NAMES:
            return self._client(item, "client", key, "on clusters that have no value of their own")
        if hint := self._hints.with_prefix(key):
            advice = _Advice(f"MirrorMaker 2 does not read it here: write {hint}")
            return LineVerdict.NO_EFFECT, advice
        if key in SETTINGS or key in FORMER_NAMES:
            return self._setting(item, key)
        if "->" in key:
            return LineVerdict.UNKNOWN, self._hints.unknown_flow(key)
        return self._other(item, LinePlace(rest=key))

    def _setting(self, item: Property, name: str) -> Explanation:
        present = FORMER_NAMES.get(name, name)
        setting = SETTINGS[present]
        flows = self._places.flows(item)
        if off := self._places.silenced(item):
            return LineVerdict.USED, f"{setting.meaning}{flows and f' ({flows})'}; none of {off}"
        if not flows:
            return LineVerdict.NO_EFFECT, self._places.precedence(item, present)
        if differs := self._differs(item, name, present):
            return LineVerdict.DIFFERS, f"{setting.meaning}{differs}"
        added = name == HEARTBEATS and self._places.added & self._file.uses[item.line]
        verdict = LineVerdict.DIFFERS if added else LineVerdict.USED
        return verdict, f"{setting.meaning} ({flows}){_ADDED if added else ''}"

    def _differs(self, item: Property, name: str, present: str) -> str:
        """What differs with the value of a setting, behind its meaning; empty: nothing."""
        flows = self._places.flows(item)
        if name in FORMER_NAMES:
            return (
                f" ({flows}); MirrorMaker 2 ignores this name since 4.0 and reads {present}, "
                "twinlog obeys it"
            )
        if present == POLICY_CLASS and policy_class(item.value) == LEGACY:
            return (
                f" ({flows}); {LEGACY} is KIP-382's name of {IDENTITY}, and no MirrorMaker 2 "
                "knows it"
            )
        if lacking := without_checkpoints(self._flows(item), present):
            return f" ({flows}){lacking}"
        if differs := SETTINGS[present].differs or self._without_pause(item, present):
            return f": {differs}"
        if SETTINGS[present].origin != "draft":
            return ""
        lacking = without_checkpoints(self._flows(item)) if present == TRANSACTIONS else ""
        return f" ({flows}); no MirrorMaker 2 has it{lacking}"

    def _flows(self, item: Property) -> Sequence[Flow]:
        """The flows without errors that have the value of a line."""
        return [flow for flow in self._file.flows if flow.name in self._file.uses[item.line]]

    def _without_pause(self, item: Property, name: str) -> str:
        """What differs with an interval of 0 of MirrorMaker 2's tasks; empty: it is another one."""
        if SETTINGS[name].parse is not parse_task_interval:
            return ""
        zero = any(int(flow.values[name]) == 0 for flow in self._flows(item))
        return "0 is one second; MirrorMaker 2 does not pause then" if zero else ""

    def _client(self, item: Property, role: str, name: str, where: str) -> Explanation:
        plain = name.removeprefix(OVERRIDE)
        if role != "client" and not is_client_property(role, plain):
            known = {*ROLE_NAMES[role], *CLIENT_NAMES}
            if self._places.place(item.key).rest == f"{role}.{plain}" and "->" in item.key:
                known.update(n.removeprefix(f"{role}.") for n in SETTINGS if n.startswith(role))
            guess = closest(plain, known)
            hint = f": did you mean {item.key.removesuffix(plain)}{guess}?" if guess else ""
            return LineVerdict.UNKNOWN, f"Kafka's {role} has no property {plain}{hint}"
        if not self._places.flows(item) and item.line in self._file.internal_uses:
            return LineVerdict.DIFFERS, (
                "MirrorMaker 2 uses it only for its internal topics (offset syncs, checkpoints); "
                "twinlog does not use it"
            )
        if not self._places.flows(item):
            return LineVerdict.NO_EFFECT, self._places.client_precedence(item, role, plain)
        what = f"{plain} of {'clients' if role == 'client' else f'the {role}'} {where}"
        return self._client_use(item, role, plain, what)

    def _client_use(self, item: Property, role: str, name: str, what: str) -> Explanation:
        flows = self._places.flows(item)
        if name in _FORCED:
            return LineVerdict.NO_EFFECT, f"{what}: MirrorMaker 2 sets it itself"
        if role == "consumer" and name in _READ:
            setting = SETTINGS[CONSUMER + name]
            if item.value.strip() == _READ[name]:
                return LineVerdict.USED, f"{setting.meaning} ({flows})"
            return LineVerdict.DIFFERS, f"{setting.meaning} ({flows}): {setting.differs}"
        if name in self._unused:
            why = CLIENT_REASONS.get(name, "twinlog's client does not use it")
            return LineVerdict.DIFFERS, f"{what}: {why}"
        if apart := self._file.apart.get(item.line):
            clients = (f"one client on {alias}, configured by {key}" for alias, key in apart)
            return LineVerdict.DIFFERS, f"{what} ({flows}): twinlog has {few(sorted(clients))}"
        return LineVerdict.USED, f"{what} ({flows})"

    def _other(self, item: Property, place: LinePlace) -> Explanation:
        name = place.rest
        if name == PROVIDERS or name.startswith(f"{PROVIDERS}."):
            if place.prefix:
                advice = _Advice(f"MirrorMaker 2 reads {PROVIDERS} without a prefix")
                return LineVerdict.NO_EFFECT, advice
            return LineVerdict.USED, "how references such as ${file:...} are resolved"
        of_one_flow = name in THROTTLE or is_dataframe_property(name)
        if of_one_flow or belongs_to_transforms(name):
            explain = self._of_one_flow if of_one_flow else self._of_transforms
            return explain(item, place)
        if name.startswith(POLICY_PREFIX):
            return self._of_policy(item, place)
        if name in DRAFT_NAMES or name.startswith(REMOTE_ADMIN):
            why = "a name that no MirrorMaker 2 reads"
            instead = read_instead(name, self._file.aliases)
            return LineVerdict.NO_EFFECT, _Advice(why + instead) if instead else why
        return self._of_connect(item, place)

    def _of_policy(self, item: Property, place: LinePlace) -> Explanation:
        """A property that Kafka's own policies do not have.

        A policy of one's own may read it. Nothing else does, and a misspelt separator would leave
        remote topics with wrong names, which a stored flow never changes.
        """
        name = place.rest
        flows = [
            f"{a}->{b}"
            for a, b in self._places.candidates(item)
            if _has_own_policy(self._file, a, b)
        ]
        if not flows:
            guess = closest(name, POLICY_NAMES)
            # Of a cluster, a policy's properties are not read.
            prefix = place.prefix if place.target else ""
            hint = f": did you mean {prefix}{guess}?" if guess else ""
            return LineVerdict.UNKNOWN, f"Kafka's replication policies have no such property{hint}"
        if place.source and not place.target:
            return LineVerdict.NO_EFFECT, _not_of_cluster(name)
        return LineVerdict.USED, "a property of the replication policy, if its class reads it"

    def _of_transforms(self, item: Property, place: LinePlace) -> Explanation:
        name, flows = place.rest, self._places.flows(item)
        converter = name.startswith(CONVERTER_NAMES)
        if flows:
            return self._of_applied(item, place, flows)
        if "." in name and not place.prefix and not converter:
            return LineVerdict.NO_EFFECT, _Advice(
                f"a part of {TRANSFORMS}: MirrorMaker 2 does not read it without a prefix, write "
                f"SOURCE->TARGET.{name}"
            )
        if name == TRANSFORMS or ("." in name and not converter):
            why = f"a part of {TRANSFORMS}, and the flow has none"
            # A start warns of a transform that a flow does not apply.
            copies = any(
                flow.name == place.flow for flow in self._file.flows if flow.settings.enabled
            )
            return LineVerdict.NO_EFFECT, _Advice(why) if copies and name != TRANSFORMS else why
        return self._of_connect(item, place)

    def _of_applied(self, item: Property, place: LinePlace, flows: str) -> Explanation:
        """A property of transforms that flows apply."""
        name = place.rest
        if name == TRANSFORMS:
            return LineVerdict.USED, (
                f"applied to each record, in this order ({flows}); not to heartbeats and "
                f"checkpoints{without_checkpoints(self._flows(item))}"
            )
        if name.startswith(CONVERTER_NAMES) and not item.value.strip().endswith(BYTES_CONVERTER):
            return LineVerdict.DIFFERS, (
                f"what the bytes mean to {TRANSFORMS} ({flows}); MirrorMaker 2 converts only "
                "afterwards, so that its transforms see bytes"
            )
        if present := _present_option(name):
            winner = self._last.get(f"{place.prefix}{present}")
            if winner is not None and winner.value.strip():
                return LineVerdict.NO_EFFECT, f"line {winner.line} has precedence"
            return LineVerdict.DIFFERS, (
                f"a part of {TRANSFORMS} ({flows}); Kafka ignores this name since 4.0 and reads "
                f"{present}, twinlog obeys it"
            )
        return LineVerdict.USED, f"a part of {TRANSFORMS} ({flows})"

    def _of_one_flow(self, item: Property, place: LinePlace) -> Explanation:
        """A property of a flow's throttle, or of its query or function."""
        name, flows = place.rest, self._places.flows(item)
        if not flows:
            return LineVerdict.NO_EFFECT, (
                _Advice(f"it belongs to one flow: write SOURCE->TARGET.{name}")
                if not place.target
                else f"flow {place.flow} copies no topics"
            )
        if name in THROTTLE:
            what = MIRROR_SETTINGS[name].meaning
        elif name == SQL:
            what = "Spark applies this query to each micro-batch of records"
        elif name == FUNCTION:
            what = "Spark applies this Python function to each micro-batch of records"
        elif name.startswith(TABLES):
            what = "a static table of the query or function"
        elif name.startswith((REGISTRY, TARGET_REGISTRY)):
            what = "where the schemas of Avro are, and how that is reached"
        elif name in {MEMORY, TIME_ZONE}:
            what = "a setting of the Spark beside each lane"
        elif name == ROUTES:
            what = "whether rows of the result may go to another topic or partition"
        else:
            what = "how keys or values become columns of records"
        lacking = without_checkpoints(self._flows(item)) if name in {SQL, FUNCTION} else ""
        return LineVerdict.DIFFERS, f"{what} ({flows}); no MirrorMaker 2 has it{lacking}"

    def _of_connect(self, item: Property, place: LinePlace) -> Explanation:
        why = reason(place.rest)
        if why is None:
            return LineVerdict.UNKNOWN, self._hints.unknown(item.key, place)
        if place.rest in READ_AT:
            return self._of_worker(item, place, why)
        if place.target and (instead := self._created_for_routes(place)):
            return LineVerdict.DIFFERS, _Advice(instead)
        converter = place.rest.endswith(".converter")
        if converter and not item.value.strip().endswith(BYTES_CONVERTER):
            return LineVerdict.DIFFERS, f"{why}; this converter would change them"
        return LineVerdict.NOT_NEEDED, why

    def _created_for_routes(self, place: LinePlace) -> str:
        """What becomes of a rule for topics that Connect's worker creates; empty: nothing lacks.

        It creates those that a flow's transforms route to; MirrorMaker 2 creates the remote topics
        itself, without these rules.
        """
        flow = next((flow for flow in self._file.flows if flow.name == place.flow), None)
        of_routes = place.rest.startswith(CREATION) and place.rest != CREATION_ENABLED
        if not of_routes or flow is None or not flow.settings.enabled:
            return ""
        if not has_router(flow.transforms):
            return ""
        what = f"how Connect creates topics that records are routed to ({flow.name}); twinlog"
        if routed_topics(flow.transforms, flow.settings):
            return f"{what} creates them as remote topics, with replication.factor"
        return (
            f"{what} gives them as many partitions as the remote topics, replication.factor and "
            "the target's default configuration: create them before"
        )

    def _of_worker(self, item: Property, place: LinePlace, why: str) -> Explanation:
        flows = self._places.flows(item)
        if flows and place.rest == GROUP:
            return LineVerdict.DIFFERS, (
                f"the group of MirrorMaker 2's processes ({flows}): with members in it, --takeover "
                "and --hand-back are refused"
            )
        if flows:
            return LineVerdict.DIFFERS, (
                f"where MirrorMaker 2 records what it has copied ({flows}): --takeover reads it, "
                "--hand-back writes to it"
            )
        if place.rest == OFFSETS and place.prefix and not place.target and OFFSETS in self._last:
            return LineVerdict.NO_EFFECT, f"line {self._last[OFFSETS].line} has precedence"
        read = lines_read(place.source, place.target or place.source)[place.rest]
        if item.key not in read:
            return LineVerdict.NO_EFFECT, (
                f"MirrorMaker 2 does not read it here: write {READ_AT[place.rest]}"
            )
        return LineVerdict.NOT_NEEDED, why


def _has_own_policy(file: MirrorMakerFile, source: str, target: str) -> bool:
    """Whether a flow's policy is none of Kafka's."""
    for flow in file.flows:  # with references resolved; those with errors are not there
        if (flow.source_alias, flow.target_alias) == (source, target):
            return has_properties_of_its_own(flow.values)
    merged = connector_properties(last_values(file.properties), source, target)
    return has_properties_of_its_own({name: item.value for name, item in merged.items()})


def _present_option(name: str) -> str:
    """The present name of a transform's property that has a former one; empty: it has none."""
    stem, _, option = name.rpartition(".")
    is_former = stem.startswith(f"{TRANSFORMS}.") and option in FORMER_OPTIONS
    return f"{stem}.{FORMER_OPTIONS[option]}" if is_former else ""


def _may_continue_a_value(item: Property, text: str) -> bool:
    """Whether a line may be the rest of a value, as of a private key whose lines were broken.

    A property has a name with dots and a value, or its name is close to a known one (`text`).
    """
    named = "." in item.key and item.value.strip(" =")
    return not named and GUESS not in text


def _not_of_cluster(name: str) -> _Advice:
    return _Advice(
        f"MirrorMaker 2 does not read it of a cluster: write {name} for all flows, or "
        f"SOURCE->TARGET.{name} for one"
    )


def _is_public(name: str) -> bool:
    """Whether the value of a property cannot be a secret; `name` is without a cluster or flow."""
    if any(name in names for names in (SETTINGS, FORMER_NAMES, DRAFT_NAMES, READ_AT, THROTTLE)):
        return True
    parts = name.split(".")
    while len(parts) > 1 and parts[0] in {*SIDES, *ROLES, "cluster", OVERRIDE.rstrip(".")}:
        del parts[0]
    client_name = ".".join(parts)
    return client_name in _SHOWN or any(client_name in names for names in ROLE_NAMES.values())
