"""The settings of a mirror, except those of its connection (KIP-1279, "Mirror Configuration").

They are parsed once into frozen values; an error names a malformed value and the allowed ones. The
names, defaults and meanings are the KIP's. `mirror.metadata.refresh.interval.ms` and the throttling
settings are broker settings in the KIP; twinlog runs no broker, so they are mirror settings.
"""

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from re import Pattern
from typing import Final, NamedTuple, TypeVar

from twinlog.kafka.acls import AclRule, Operation, Permission, ResourceType
from twinlog.kafka.errors import UserError
from twinlog.mirror.throttle import ALL, UNLIMITED, Throttle

KIND: Final = "mirror.kind"
EXCLUDE: Final = "mirror.topic.properties.exclude"
GROUPS: Final = "mirror.groups.include"
ACLS: Final = "mirror.acl.include"
ACLS_EMPTY: Final = "mirror.acl.empty.source.trusted"
PARTITIONS: Final = "mirror.partitions.max"
LOG_START: Final = "mirror.log.start.delay.ms"
REFRESH: Final = "mirror.metadata.refresh.interval.ms"
RATE: Final = "mirror.replication.throttled.rate"
REPLICAS: Final = "mirror.replication.throttled.replicas"
PREFIX: Final = "mirror."
OF_CONTROL_TOPICS: Final = ("mirror.topic.num.partitions", "mirror.topic.replication.factor")
"""Settings of a destination, with the same prefix."""

MAX_PARTITIONS: Final = (1 << 31) - 1
MIN_REFRESH_MS: Final = 1000
MAX_REFRESH_MS: Final = 24 * 60 * 60 * 1000
MAX_LOG_START_MS: Final = 366 * 24 * 60 * 60 * 1000
ANY: Final = "*"
EXACT: Final = "exact"
"""The kind of a mirror that names none."""
TRANSLATED: Final = "translated"
"""The kind of a flow: topics may have other names, and records have other offsets."""
TRANSACTIONAL: Final = "transactional"
"""The kind of a flow that transforms records, or writes in transactions (KIP-656)."""
FLOW_KINDS: Final = frozenset({TRANSLATED, TRANSACTIONAL})
FLOW_PREFIX: Final = "mirror.flow."
"""Settings of a flow begin with it (flow.py)."""

E = TypeVar("E", bound=IntEnum)


class Setting(NamedTuple):
    """A setting's default, and its meaning, for people."""

    default: str
    meaning: str


SETTINGS: Final[Mapping[str, Setting]] = {
    KIND: Setting(
        EXACT, "which engine mirrors it; `exact`: same topic names, same offsets; cannot be altered"
    ),
    EXCLUDE: Setting(
        "follower.replication.throttled.replicas,leader.replication.throttled.replicas,"
        "message.timestamp.difference.max.ms,log.message.timestamp.before.max.ms,"
        "log.message.timestamp.after.max.ms,message.timestamp.type,"
        "unclean.leader.election.enable,min.insync.replicas,mirror.name",
        "regular expressions, comma-separated: topic configurations that are not copied",
    ),
    GROUPS: Setting(".*", "regular expressions, comma-separated: groups whose offsets are copied"),
    ACLS: Setting(
        "*",
        "rules, comma-separated: resourceType;resourceName;operation;permissionType;principal. "
        "`*` matches all, trailing fields may be omitted, resourceName and principal are regular "
        "expressions; ACLs on resources other than topics and groups of the mirror are copied "
        "only if a rule names both their resourceType and their resourceName",
    ),
    ACLS_EMPTY: Setting(
        "false",
        "true: all copied ACLs are removed if the source lists no ACL at all; false: they are kept",
    ),
    PARTITIONS: Setting(
        "2147483647",
        "maximum number of partitions of the mirror; new topics and partitions of the source "
        "beyond it are not added, but reported",
    ),
    LOG_START: Setting(
        "0",
        "milliseconds for which a lane must know the source's log start offset before the "
        "destination's follows it",
    ),
    REFRESH: Setting("30000", "milliseconds between two refreshes of the source's metadata"),
    RATE: Setting(str(UNLIMITED), "bytes per second that a node fetches of throttled partitions"),
    REPLICAS: Setting(
        "*",
        "throttled partitions: `*`, or topic:partition, comma-separated; topic:* is all "
        "partitions of a topic",
    ),
}

_INDEX: Final = re.compile(r"[0-9]{1,9}")
_ESCAPE: Final = re.compile(r"\\.", re.DOTALL)
_CHARACTER_CLASS: Final = re.compile(r"\[\^?\]?[^\]]*\]")
_CLOSED: Final = re.compile(r"\([^(){}]*\)|\{[^(){}]*\}")
_BRACKET: Final = re.compile(r"[(){}\[\]]")


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorSettings:
    """A mirror's settings."""

    topic_properties_exclude: tuple[Pattern[str], ...]
    groups_include: tuple[Pattern[str], ...]
    acl_include: tuple[AclRule, ...]
    acl_empty_source_trusted: bool
    """Whether an empty ACL list of the source means that the source has no ACLs."""
    partitions_max: int
    log_start_delay: float
    """Seconds."""
    refresh_interval: float
    """Seconds."""
    throttle: Throttle


def split_settings(properties: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Split a mirror's properties into its settings, and those of the connection to its source."""
    settings = {key: value for key, value in properties.items() if key.startswith(PREFIX)}
    connection = {key: value for key, value in properties.items() if key not in settings}
    return settings, connection


def kind_of(properties: Mapping[str, str]) -> str:
    """Which engine mirrors a mirror with these properties."""
    return properties.get(KIND, EXACT).strip()


def parse_settings(properties: Mapping[str, str]) -> MirrorSettings:
    """Parse a mirror's settings from its properties; those of the connection are ignored.

    Raises:
        UserError: a `mirror.` setting that does not exist, or a malformed value.
    """
    settings, _ = split_settings(properties)
    for key in settings:
        if key.startswith(FLOW_PREFIX):
            continue
        if key in OF_CONTROL_TOPICS:
            raise UserError(
                f"{key} is not a setting of a mirror but of the control topics",
                hint="set it in the file of --command-config when the first mirror is created "
                "(--create)",
            )
        if key not in SETTINGS:
            raise UserError(
                f"{key} is not a setting of a mirror: expected one of {', '.join(SETTINGS)}"
            )
    value = {key: settings.get(key, setting.default).strip() for key, setting in SETTINGS.items()}
    return MirrorSettings(
        topic_properties_exclude=_patterns(EXCLUDE, value[EXCLUDE]),
        groups_include=_patterns(GROUPS, value[GROUPS]),
        acl_include=tuple(_rule(rule) for rule in _items(value[ACLS])),
        acl_empty_source_trusted=_boolean(ACLS_EMPTY, value[ACLS_EMPTY]),
        partitions_max=_number(PARTITIONS, value[PARTITIONS], 1, MAX_PARTITIONS),
        log_start_delay=_number(LOG_START, value[LOG_START], 0, MAX_LOG_START_MS) / 1000,
        refresh_interval=_number(REFRESH, value[REFRESH], MIN_REFRESH_MS, MAX_REFRESH_MS) / 1000,
        throttle=Throttle(_number(RATE, value[RATE], 1, UNLIMITED), _replicas(value[REPLICAS])),
    )


def check_settings(properties: Mapping[str, str]) -> None:
    r"""Check a mirror's settings before they are stored, more strictly than `parse_settings`.

    A comma separates expressions, as in Kafka's own lists, also inside brackets. So `app-\d{1,3}`
    is the two expressions `app-\d{1` and `3}`, which are valid in Python (not in Java) and match no
    group. This function refuses such a value. It is not an error when a stored mirror is read: an
    older version has accepted it, and the mirror's other settings have to stay in force.

    Raises:
        UserError: a `mirror.` setting that does not exist, or a malformed value.
    """
    parse_settings(properties)
    for key in (EXCLUDE, GROUPS, ACLS):
        for item in _items(properties.get(key, "")):
            if not _balanced(item):
                raise UserError(
                    f"{key} has the expression {item!r} with unbalanced brackets: a comma "
                    "separates expressions, also inside brackets",
                    hint=r"write \x2c for a comma, and \d\d?\d? for \d{1,3}",
                )


def _balanced(expression: str) -> bool:
    """Whether each bracket of a regular expression is closed; escaped ones do not count."""
    bare = _ESCAPE.sub("", expression)
    bare = _CHARACTER_CLASS.sub("", bare)
    while (shorter := _CLOSED.sub("", bare)) != bare:
        bare = shorter
    return not _BRACKET.search(bare)


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _patterns(key: str, text: str) -> tuple[Pattern[str], ...]:
    return tuple(_pattern(key, item) for item in _items(text))


def _pattern(key: str, text: str) -> Pattern[str]:
    try:
        # DOTALL: a group's name may contain a newline, and `.*` has to match every name.
        return re.compile(text, re.DOTALL)
    except (re.error, OverflowError, RecursionError) as error:
        raise _bad(key, text, f"a regular expression ({error})") from error


def _rule(text: str) -> AclRule:
    fields = [field.strip() for field in text.split(";")]
    if len(fields) > 5:
        raise _bad(ACLS, text, "up to five fields, separated by semicolons")
    fields += [ANY] * (5 - len(fields))
    return AclRule(
        resource_type=_choice(fields[0], ResourceType),
        resource_name=None if fields[1] == ANY else _pattern(ACLS, fields[1]),
        operation=_choice(fields[2], Operation),
        permission=_choice(fields[3], Permission),
        principal=None if fields[4] == ANY else _pattern(ACLS, fields[4]),
    )


def _choice(text: str, kind: type[E]) -> E | None:
    if text == ANY:
        return None
    if text not in kind.__members__:
        raise _bad(ACLS, text, f"{ANY} or one of {', '.join(kind.__members__)}")
    return kind[text]


def _boolean(key: str, text: str) -> bool:
    if text not in {"true", "false"}:
        raise _bad(key, text, "true or false")
    return text == "true"


def _number(key: str, text: str, lowest: int, highest: int) -> int:
    number = int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else -1
    if not lowest <= number <= highest:
        raise _bad(key, text, f"a whole number from {lowest} to {highest}")
    return number


def _replicas(text: str) -> dict[str, frozenset[int]] | None:
    if text == ANY:
        return None
    replicas: defaultdict[str, set[int]] = defaultdict(set)
    for item in _items(text):
        topic, colon, partition = item.rpartition(":")
        number = ALL if partition == ANY else int(partition) if _INDEX.fullmatch(partition) else -2
        if not topic or not colon or number < ALL:
            raise _bad(
                REPLICAS, text, f"{ANY}, or topic:partition and topic:{ANY}, comma-separated"
            )
        replicas[topic].add(number)
    return {topic: frozenset(partitions) for topic, partitions in replicas.items()}


def _bad(key: str, value: str, expectation: str) -> UserError:
    return UserError(f"{key} is {value!r}: expected {expectation}")
