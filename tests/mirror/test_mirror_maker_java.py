"""Flows' settings and precedence are those of MirrorMaker 2's own Java classes (needs its jars)."""

from collections.abc import Callable, Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from java_config_defs import (
    CONNECTORS,
    JavaMirrorMaker,
    java_include_list,
    java_mirror_maker,
)
from py4j.protocol import Py4JJavaError

from twinlog.kafka.requests.topics import ConfigEntry, ConfigSource
from twinlog.lifecycle.flow_topics import excluded_configs, wanted_configs
from twinlog.lifecycle.source_configs import config_origin
from twinlog.mirror.connect_worker import (
    GROUP,
    OFFSETS,
    OWN_OFFSETS,
    READ_AT,
    default_worker,
    stored_names,
    stored_worker,
    worker_of,
)
from twinlog.mirror.copied_configs import remote_changes
from twinlog.mirror.flow_settings import (
    DEFAULT_POLICY,
    IDENTITY_POLICY,
    POLICY_PREFIX,
    SETTINGS,
    FlowSettings,
)
from twinlog.mirror.flow_settings_parser import parse_flow_settings
from twinlog.mirror.legacy_mirror_maker import include_expression
from twinlog.mirror.mirror_maker_file import parse_mirror_maker_file
from twinlog.mirror.mirror_maker_names import (
    CLIENT_NAMES,
    CONNECTOR_NAMES,
    HEARTBEAT_SETTINGS,
    ROLE_NAMES,
    ROLES,
    SIDES,
    reason,
)
from twinlog.mirror.mirror_maker_precedence import (
    client_properties,
    connector_properties,
    worker_properties,
)
from twinlog.mirror.mirror_maker_report import remote_topic
from twinlog.mirror.pattern_lists import compile_list, matches
from twinlog.mirror.properties_text import ENCODING, Property, last_values, parse_lines
from twinlog.mirror.topic_configs import DestinationConfig, SourceConfig

pytestmark = pytest.mark.broker

ADDED_BY_JAVA = {"name", "connector.class", "source.cluster.alias", "target.cluster.alias"}


@pytest.fixture(scope="module")
def java() -> Iterator[JavaMirrorMaker]:
    with java_mirror_maker() as classes:
        yield classes


def test_defaults_equal_those_of_the_java_definitions(java: JavaMirrorMaker) -> None:
    """Goal: each setting of 4.3 has Java's default, whichever connectors define it."""
    compared = set()
    for defaults in (*map(java.defaults, CONNECTORS), java.topic_config_defaults()):
        for name, expected in defaults.items():
            setting = SETTINGS.get(name)
            if setting is None or setting.default is None:
                continue
            compared.add(name)
            if name == "enabled":  # the driver overrides it: MirrorMakerConfig
                assert (expected, setting.default) == (True, "false")
            else:
                assert _java_value(setting.default, expected) == expected, name
    mm2 = {name for name, setting in SETTINGS.items() if setting.origin == "4.3"}
    assert mm2 - compared == {"source.cluster.alias", "target.cluster.alias"}


def _java_value(text: str, like: object) -> object:
    """The default as Java has it, of the type of its own."""
    if isinstance(like, bool):
        return text == "true"
    if isinstance(like, int):
        return int(text)
    return [item.strip() for item in text.split(",")] if isinstance(like, list) else text


def test_every_java_setting_has_a_place(java: JavaMirrorMaker) -> None:
    """Goal: no property of MirrorMaker 2 is unknown."""
    names = set().union(*map(java.defaults, CONNECTORS))
    unplaced = {
        name
        for name in names | java.driver_names()
        if name not in SETTINGS and name not in CLIENT_NAMES and reason(name) is None
    }
    assert unplaced == {"clusters", "config.providers", "transforms"}


def test_every_name_of_connect_has_a_place(java: JavaMirrorMaker) -> None:
    """Goal: no property of Connect's workers and connectors is unknown, also of its topics."""
    of_clients = set().union(*ROLE_NAMES.values())
    unplaced = {
        name
        for name in java.connect_names()
        if name not in SETTINGS and name not in {*CLIENT_NAMES, *of_clients}
        if reason(name) is None
    }
    assert unplaced == {"transforms", "topics.regex"}
    for kind in ("offset", "config", "status"):
        for name in java.topic_config_names():
            assert reason(f"{kind}.storage.{name}") is not None, name


def test_what_heartbeats_alone_have_equals_java(java: JavaMirrorMaker) -> None:
    """Goal: the settings that a pair of clusters without mirrored topics has."""
    assert java.defaults("Heartbeat").keys() & SETTINGS.keys() == HEARTBEAT_SETTINGS


def test_a_cluster_that_is_named_twice_counts_once(java: JavaMirrorMaker) -> None:
    values = {"clusters": "A,A,B"} | {f"{name}.bootstrap.servers": f"{name}:1" for name in "AB"}
    assert java.pairs(values) == {("A", "B"), ("B", "A")}


def test_what_an_interval_of_zero_is_to_java(java: JavaMirrorMaker) -> None:
    """Goal: its scheduler fails with it (topics, configurations, ACLs, offsets), its tasks run.

    The task of checkpoints waits in the same way, for `emit.checkpoints.interval.seconds`.
    """
    assert [java.schedules(seconds) for seconds in (1, -1, 0)] == [True, True, False]
    assert java.heartbeats(0, polls=100) == 100


def test_names_equal_those_of_java(java: JavaMirrorMaker) -> None:
    """Goal: connection properties, properties of roles, and what is read without prefix."""
    assert set(CLIENT_NAMES) == java.client_names()
    for role in ROLES:
        assert ROLE_NAMES[role] == java.role_names(role) - java.client_names()
    everywhere = set().union(*map(java.defaults, CONNECTORS))
    ours = {n for n in CONNECTOR_NAMES if n not in SETTINGS or SETTINGS[n].origin == "4.3"}
    assert everywhere == {n for n in ours if "blacklist" not in n}


KEYS = st.sampled_from(
    [
        "ssl.protocol",
        "ssl.key.password",
        "bootstrap.servers",
        "consumer.ssl.protocol",
        "consumer.fetch.max.bytes",
        "producer.batch.size",
        "producer.ssl.protocol",
        "admin.request.timeout.ms",
        "source.consumer.fetch.max.bytes",
        "source.cluster.ssl.protocol",
        "source.cluster.client.id",
        "source.producer.ssl.protocol",
        "source.admin.ssl.protocol",
        "target.cluster.ssl.key.password",
        "target.consumer.ssl.protocol",
        "target.producer.batch.size",
        "target.admin.request.timeout.ms",
        "consumer.poll.timeout.ms",
        "replication.factor",
        "replication.policy.separator",
        "replication.policy.mine",
        "topics",
        "groups.exclude",
        "use.defaults.from",
        "emit.heartbeats.interval.seconds",
        "refresh.topics.enabled",
        "offset.storage.topic",
        "fetch.max.bytes",
    ]
)
ALIASES = st.sampled_from([("A", "B", "C"), ("source", "target", "A.b"), ("consumer", "A", "A-B")])


@st.composite
def files(draw: st.DrawFn) -> tuple[tuple[str, ...], dict[str, str]]:
    aliases = draw(ALIASES)
    prefixes = ["", *(f"{a}." for a in aliases)]
    prefixes += [f"{a}->{b}." for a in aliases for b in aliases if a != b]
    keys = draw(st.lists(st.tuples(st.sampled_from(prefixes), KEYS), max_size=25, unique=True))
    values = {f"{prefix}{key}": str(n + 1) for n, (prefix, key) in enumerate(keys)}
    for flow in prefixes[4:]:
        for flag in ("enabled", "emit.heartbeats.enabled"):
            if (value := draw(st.sampled_from([None, "true", "false", "TRUE"]))) is not None:
                values[f"{flow}{flag}"] = value
    if (value := draw(st.sampled_from([None, "true", "false"]))) is not None:
        values["emit.heartbeats.enabled"] = value
    for alias in aliases:
        values.setdefault(f"{alias}.bootstrap.servers", f"{alias}:9092")
    values["clusters"] = ",".join(aliases)
    for key in list(values):
        if key.endswith("refresh.topics.enabled"):
            values[key] = "false"
    return aliases, values


@settings(max_examples=30)
@given(file=files())
def test_precedence_equals_that_of_java(
    java: JavaMirrorMaker, file: tuple[tuple[str, ...], dict[str, str]]
) -> None:
    """Goal: settings and the properties of all clients, for lines at all levels at random."""
    aliases, values = file
    properties = {key: Property(n, key, v) for n, (key, v) in enumerate(values.items(), 1)}
    for source in aliases:
        for target in aliases:
            if source == target:
                continue
            merged = connector_properties(properties, source, target)
            expected = java.connector(values, source, target)
            for name in set(SETTINGS) - ADDED_BY_JAVA - {"enabled"}:
                value = merged[name].value if name in merged else None
                assert value == expected.get(name), name
            for name in expected:
                if name.startswith(POLICY_PREFIX):
                    assert merged[name].value == expected[name]
            clients = java.clients(expected)
            for side in SIDES:
                for role in ROLES:
                    found = client_properties(merged, side, role)
                    ours = {name: item.value for name, item in found.items()}
                    java_client = clients[side, role]
                    for name in ("poll.timeout.ms", "timeout.ms"):  # settings, not of clients
                        java_client.pop(name, None)
                        ours.pop(name, None)
                    if role == "consumer":
                        ours.setdefault("auto.offset.reset", "earliest")
                    ours.pop("client.id", None)
                    assert ours == java_client, (side, role)


@settings(max_examples=30)
@given(
    aliases=st.sampled_from([("A", "B"), ("A.b", "A"), ("consumer", "offset")]),
    levels=st.lists(st.tuples(st.integers(0, 4), st.sampled_from(list(READ_AT))), unique=True),
)
def test_the_worker_is_named_as_by_java(
    java: JavaMirrorMaker, aliases: tuple[str, str], levels: list[tuple[int, str]]
) -> None:
    """Goal: the group and the topics of offsets, for lines at all levels at random."""
    source, target = aliases
    pair = (f"{source}->{target}.", f"{target}->{source}.")
    prefixes = ("", f"{source}.", f"{target}.", *pair)
    values = {f"{prefixes[at]}{name}": f"{at}-{name}" for at, name in levels}
    values |= {"clusters": ",".join(aliases), f"{pair[0]}source.cluster.alias": "eu"}
    values |= {f"{alias}.bootstrap.servers": f"{alias}:9092" for alias in aliases}
    properties = {key: Property(n, key, v) for n, (key, v) in enumerate(values.items(), 1)}
    names = {n: item.value for n, item in worker_properties(properties, source, target).items()}
    worker = worker_of(stored_worker(default_worker(source)) | stored_names(names), "eu")
    expected = java.worker(values, source, target)
    connector = java.connector(values, source, target)
    assert worker.group == expected[GROUP]
    assert worker.offsets_topic == expected[OFFSETS]
    assert worker.own_offsets_topic == connector.get(OWN_OFFSETS, "")


@settings(max_examples=30)
@given(file=files())
def test_flows_equal_those_of_java(
    java: JavaMirrorMaker, file: tuple[tuple[str, ...], dict[str, str]]
) -> None:
    """Goal: the same flows exist, with and without topics."""
    _, values = file
    fixed = {"use.defaults.from": "source"}
    for key in values:
        for name, value in fixed.items():
            if key.endswith(name):
                values[key] = value
    text = "".join(f"{key}={value}\n" for key, value in values.items())
    parsed = parse_mirror_maker_file(text, lambda _, value: value)
    if not java.pairs(values):
        assert "there is no flow" in parsed.problems[0].text
        return
    assert parsed.problems == ()
    assert {(flow.source_alias, flow.target_alias) for flow in parsed.flows} == java.pairs(values)
    for flow in parsed.flows:
        config = java.connector(values, flow.source_alias, flow.target_alias)
        assert flow.settings.enabled == (config["enabled"].lower() == "true")


@settings(max_examples=300)
@given(
    items=st.lists(
        st.sampled_from(
            [
                "a",
                "ab.*",
                "(a",
                "b)c?",
                "[a-c]+",
                r"\d{2}",
                "[^]a]",
                r"a\.b",
                "a{1",
                "2}",
                "",
                "{x",
                "[a&&b]",
                "(?i)A",
                "a++",
                r"\w$",
                "^b",
                r"[\]x]",
                "x|y",
                "[",
            ]
        ),
        min_size=1,
        max_size=4,
    ),
    names=st.lists(st.text("abcx019.-]A", max_size=4), max_size=5),
)
def test_lists_match_what_java_matches(
    java: JavaMirrorMaker, items: list[str], names: list[str]
) -> None:
    """Goal: a list that is accepted matches the same names in Java."""
    try:
        pattern = compile_list(items)
    except ValueError:
        return
    for name in names:
        assert matches(pattern, name) == java.fullmatch(items, name), (items, name)


@example(data=b"\\\r!")
@example(data=b"\\\n\n")
@example(data=b" \\\n !a\\\nb=c")
@example(data=b"\\\n\\\r\n#x\ny=1")
@example(data=b"a=\\\n!b")
@example(data=b"\\\n#\\u00\nb=c")
@example(data=b"\\\n \na=b")
@given(data=st.binary(max_size=60) | st.text("a=: \\\n\r#!\tub1é", max_size=40).map(str.encode))
def test_lines_equal_those_of_java(java: JavaMirrorMaker, data: bytes) -> None:
    """Goal: any bytes are the same properties, or an error in both."""
    try:
        ours = {k: p.value for k, p in last_values(parse_lines(data.decode(ENCODING))).items()}
    except Exception:
        ours = None
    if ours is None:
        with pytest.raises(Exception, match=r"Malformed|IllegalArgument"):
            java.lines(data)
    else:
        expected = java.lines(data)
        if expected.get("") == "":  # a backslash at the end of the file is an empty property
            expected.pop("")
            ours.pop("", None)
        assert expected == ours


@pytest.mark.parametrize("defaults_from", ["target", "source"])
def test_configurations_of_remote_topics_equal_those_of_java(
    java: JavaMirrorMaker, defaults_from: str
) -> None:
    """Goal: for each source of a value that a broker reports, what is set, unset and left alone."""
    numbers = java.config_sources()
    assert {*numbers} == {int(source) for source in ConfigSource}
    entries = {
        f"{prefix}.{number}.{'fixed' if fixed else 'free'}": ConfigEntry("5", number, fixed, False)
        for prefix in ("copied", "excluded")
        for number in (*numbers, max(numbers) + 1)
        for fixed in (False, True)
    }
    values = {"use.defaults.from": defaults_from, "config.properties.exclude": r"excluded\..*"}
    created, altered = java.remote_configs(values, entries)
    parsed = parse_flow_settings(values, "A", "B")
    assert isinstance(parsed, FlowSettings)
    source = {
        name: SourceConfig(
            "5", explicit=entry.source == ConfigSource.TOPIC, origin=config_origin(entry)
        )
        for name, entry in entries.items()
    }
    wanted = wanted_configs(source, parsed, entries)
    assert wanted == created
    remote = dict.fromkeys(entries, DestinationConfig("9", explicit=True))
    assert remote_changes(source, wanted, remote, excluded_configs(parsed)) == altered
    assert set(altered.values()) == ({"5", None} if defaults_from == "target" else {"5"})


@pytest.mark.parametrize("policy", [DEFAULT_POLICY, IDENTITY_POLICY])
@pytest.mark.parametrize("separator", [None, "_", ""])
def test_remote_names_equal_those_of_java(
    java: JavaMirrorMaker, policy: str, separator: str | None
) -> None:
    """Goal: the example of a remote name."""
    values = {"replication.policy.class": policy, "source.cluster.alias": "us-west"}
    if separator is not None:
        values["replication.policy.separator"] = separator
    parsed = parse_flow_settings(values, "us-west", "us-east")
    assert isinstance(parsed, FlowSettings)
    assert remote_topic(parsed, "orders") == java.remote_topic(policy, values, "orders")


@pytest.fixture(scope="module")
def include_list() -> Iterator[Callable[[str], str]]:
    with java_include_list() as expression:
        yield expression


@given(text=st.text("ab,| \"'.*[\t", max_size=8))
def test_the_expression_of_include_equals_that_of_java(
    include_list: Callable[[str], str], text: str
) -> None:
    """Goal: what `--include` of the former script means."""
    try:
        expected = include_list(text)
    except Py4JJavaError:  # it is no Java expression
        return
    assert include_expression(text) == expected
