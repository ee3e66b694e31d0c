"""What should be written in place of a line that has no effect, or that nobody knows.

What a hint names has an effect, or needs none: it is written where MirrorMaker 2 reads it.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

from twinlog.mirror.connect_worker import READ_AT, lines_read
from twinlog.mirror.flow import THROTTLE
from twinlog.mirror.flow_settings import SETTINGS
from twinlog.mirror.mirror_maker_file import CLUSTERS
from twinlog.mirror.mirror_maker_names import (
    CLIENT_NAMES,
    CONNECT_NAMES,
    ROLE_NAMES,
    ROLES,
    SIDES,
    TRANSFORMS,
    is_client_property,
    reason,
)
from twinlog.mirror.mirror_maker_places import LinePlace
from twinlog.mirror.mirror_maker_precedence import OVERRIDE
from twinlog.mirror.transform_chain import CONVERTER_NAMES, PREDICATES
from twinlog.text import closest

GUESS: Final = "did you mean"
_OF_TRANSFORMS: Final = (TRANSFORMS, PREDICATES, *CONVERTER_NAMES)
_OF_ROLES: Final = frozenset(f"{role}.{name}" for role in ROLES for name in ROLE_NAMES[role])


class LineHints:
    """The hints of one file.

    Args:
        aliases: those of its clusters.
        pairs: the names of all flows that it may have.
    """

    def __init__(self, aliases: Sequence[str], pairs: Collection[str]) -> None:
        self._aliases = aliases
        self._pairs = pairs

    def with_prefix(self, key: str) -> str:
        """How a property is written that has no effect without a prefix; empty: it has one."""
        alias = next(iter(self._aliases), "A")
        other = next(iter(self._aliases[1:]), "B")
        role, _, name = key.partition(".")
        if key in SETTINGS:
            flow = "" if SETTINGS[key].everywhere else f"{alias}->{other}.{key}"
            return f"{alias}.{key}" if flow and role in ROLES else flow
        if role in ROLES and not is_client_property(role, name):
            return ""
        if role in {*ROLES, *SIDES} and reason(key) is None:
            return f"{alias}.{key}" if role in ROLES else f"{alias}->{other}.{key}"
        return ""

    def unknown(self, key: str, place: LinePlace) -> str:
        """Why a property is unknown, with the closest one that is known."""
        known = {*CLIENT_NAMES, *CONNECT_NAMES}
        if place.target:
            known |= {*SETTINGS, *THROTTLE, TRANSFORMS}
        else:
            known |= _OF_ROLES
            known |= set() if place.source else {*SETTINGS, TRANSFORMS}
        alias, dot, rest = key.partition(".")
        if not place.source and dot and rest in CLIENT_NAMES:
            return f"{alias!r} is not in {CLUSTERS}: expected {', '.join(self._aliases)}"
        why = "unknown property, which MirrorMaker 2 ignores"
        guess = closest(place.rest, known) or closest(place.rest.lower(), known)
        if guess is None and place.target:
            guess = _closest_of_transforms(place.rest)
        return why if guess is None else f"{why}: {GUESS} {self._written(guess, place)}?"

    def unknown_flow(self, key: str) -> str:
        """Why a property of a flow is unknown that the clusters of the file do not have."""
        flow, _, rest = key.partition(".")
        guess = closest(flow, self._pairs)
        hint = f": {GUESS} {guess}.{rest}?" if guess else ""
        return f"{flow} is not a pair of different aliases in {CLUSTERS}{hint}"

    def _written(self, guess: str, place: LinePlace) -> str:
        """How a known property is written so that it has an effect."""
        if guess in READ_AT:
            source, target = place.source or "SOURCE", place.target or place.source or "TARGET"
            return lines_read(source, target)[guess][0]
        if place.target and guess not in SETTINGS and _is_of_clients(guess):
            return with_role_of_flow(replace(place, rest=guess))
        return f"{place.prefix}{guess}" if place.source else self.with_prefix(guess) or guess


def _closest_of_transforms(name: str) -> str | None:
    """A property of a transform or converter (`transfroms.x.type`) whose first part is misspelt."""
    for stem in _OF_TRANSFORMS:
        parts = name.split(".")
        count = stem.count(".") + 1
        if len(parts) > count and closest(".".join(parts[:count]), (stem,)):
            return ".".join((stem, *parts[count:]))
    return None


def _is_of_clients(name: str) -> bool:
    return any(is_client_property(role, name) for role in ROLES)


def with_role_of_flow(place: LinePlace) -> str:
    """How a client property of a flow is written so that a client of the flow has it."""
    name = place.rest
    if name in CLIENT_NAMES:
        return f"{place.prefix}source.consumer.{name}, or {place.source}.{name}"
    if name not in ROLE_NAMES["consumer"] and name in ROLE_NAMES["producer"]:
        return f"{place.prefix}producer.{OVERRIDE}{name}, or {place.target}.producer.{name}"
    role = "consumer" if name in ROLE_NAMES["consumer"] else "admin"
    return f"{place.prefix}source.{role}.{name}, or {place.source}.{role}.{name}"
