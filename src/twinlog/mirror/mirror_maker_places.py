"""Where the lines of a MirrorMaker 2 file belong: to a flow, to a cluster, or to the whole file.

The longest prefix counts, since an alias may have dots: with the clusters `A` and `A.b`, the line
`A.b.ssl.protocol` is the cluster's `A.b`. A name that MirrorMaker 2 reads without a prefix is of
the whole file, also where it begins with an alias (`topics.exclude` with a cluster `topics`).

What a line is about may have its value from another one: `precedence` and `client_precedence` name
that line. mirror_maker_lines.py explains what a line does where it belongs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from twinlog.mirror.mirror_maker_file import ENABLED, HEARTBEATS, MirrorMakerFile
from twinlog.mirror.mirror_maker_names import (
    CLIENT_NAMES,
    CONNECTOR_NAMES,
    HEARTBEAT_SETTINGS,
)
from twinlog.mirror.mirror_maker_precedence import (
    CLIENTS_OF_FLOW,
    client_properties,
    connector_properties,
)
from twinlog.mirror.properties_text import Property, last_values
from twinlog.text import few


@dataclass(frozen=True, slots=True)
class LinePlace:
    """Where a property belongs."""

    source: str = ""
    target: str = ""
    """Both: a flow. Only the source: a cluster. Neither: the whole file."""
    prefix: str = ""
    rest: str = ""

    @property
    def flow(self) -> str:
        """`A->B`, of a place in a flow."""
        return f"{self.source}->{self.target}"


class LinePlaces:
    """The places of one file.

    `pairs` are the names of all flows that its clusters may have (`A->B`), `existing` those of the
    flows that exist, and `added` those that exist although MirrorMaker 2 does not have them.
    """

    def __init__(self, file: MirrorMakerFile) -> None:
        self._uses = file.uses
        self._last = last_values(file.properties)
        aliases = file.aliases
        of_flows = [LinePlace(a, b, f"{a}->{b}.") for a in aliases for b in aliases if a != b]
        self._places = sorted(
            (*of_flows, *(LinePlace(a, "", f"{a}.") for a in aliases)),
            key=lambda place: (bool(place.target), len(place.prefix)),
            reverse=True,
        )
        self.pairs = frozenset(place.flow for place in of_flows)
        self.existing = frozenset(f"{c.source_alias}->{c.target_alias}" for c in file.clients)
        self._copying = frozenset(
            f"{c.source_alias}->{c.target_alias}" for c in file.clients if c.copies
        )
        existing = (place for place in of_flows if place.flow in self.existing)
        self.added = frozenset(place.flow for place in existing if _is_added(self._last, place))

    def place(self, key: str) -> LinePlace:
        """Where a property belongs."""
        if key not in CONNECTOR_NAMES and key not in CLIENT_NAMES:
            for place in self._places:
                if key.startswith(place.prefix) and len(key) > len(place.prefix):
                    return replace(place, rest=key.removeprefix(place.prefix))
        return LinePlace(rest=key)

    def flows(self, item: Property) -> str:
        """The flows that have the value of a line, for people; empty: none has."""
        return few(sorted(self._uses.get(item.line, ())))

    def candidates(self, item: Property) -> Sequence[tuple[str, str]]:
        """The existing flows that a line is about: the aliases of source and target of each."""
        place = self.place(item.key)
        pairs = [(p.source, p.target) for p in self._places if p.flow in self.existing]
        if place.target:
            return [pair for pair in pairs if pair == (place.source, place.target)]
        return [pair for pair in pairs if not place.source or place.source in pair]

    def silenced(self, item: Property) -> str:
        """The pairs without heartbeats, and without topics, because of a line; for people."""
        name = self.place(item.key).rest
        if name != HEARTBEATS:
            return ""
        off = sorted(self.pairs - self.existing)
        return few([p for p in off if self._last.get(f"{p}.{name}", self._last.get(name)) == item])

    def _has(self, flow: str, name: str) -> bool:
        """Whether an existing flow has a setting: one that copies no topics has few."""
        return flow in self._copying or name in HEARTBEAT_SETTINGS

    def precedence(self, item: Property, name: str) -> str:
        """Why no flow has the value of a line with this setting."""
        candidates = self.candidates(item)
        place = self.place(item.key)
        if place.target and not self._has(place.flow, name):
            return f"flow {place.flow} is not enabled"
        for source, target in candidates:
            if not self._has(f"{source}->{target}", name):
                continue
            winner = connector_properties(self._last, source, target).get(name)
            if winner is not None and winner.line != item.line:
                return f"line {winner.line} has precedence"
        return "no flow that copies topics has it" if candidates else "no flow exists that has it"

    def client_precedence(self, item: Property, role: str, name: str) -> str:
        """Why no client has the value of a line with this property; `role` may be `client`."""
        for source, target in self.candidates(item):
            merged = connector_properties(self._last, source, target)
            for side, each in sorted(CLIENTS_OF_FLOW):
                winner = client_properties(merged, side, each).get(name)
                if winner is not None and winner.line != item.line and role in {each, "client"}:
                    return f"line {winner.line} has precedence"
        return "no flow that copies topics has it"


def _is_added(properties: Mapping[str, Property], place: LinePlace) -> bool:
    """Whether MirrorMaker 2 does not have an existing flow (`MirrorMakerConfig.clusterPairs`).

    It reads what decides that from the text as it is written.
    """

    def is_true(key: str, *, default: bool) -> bool:
        return properties[key].value.lower() == "true" if key in properties else default

    beats = is_true(HEARTBEATS, default=True)
    beats = is_true(f"{place.prefix}{HEARTBEATS}", default=beats)
    return not (beats or is_true(f"{place.prefix}{ENABLED}", default=False))
