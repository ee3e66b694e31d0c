"""Twin of mirror_maker_file.py; test_mirror_maker_java.py compares precedence with Java's."""

import pytest
from checkout import ROOT
from hypothesis import given
from hypothesis import strategies as st

from twinlog.kafka.errors import UserError
from twinlog.mirror.mirror_maker_file import (
    Flow,
    MirrorMakerFile,
    parse_mirror_maker_file,
    targeting,
)
from twinlog.mirror.mirror_maker_precedence import client_properties, connector_properties
from twinlog.mirror.properties_text import Property

FILES = ROOT / "tests" / "data" / "mirror-maker"
HEADER = """\
clusters = A, B
A.bootstrap.servers = a:9092
B.bootstrap.servers = b:9092
A->B.enabled = true
"""
ENVIRONMENT = "org.apache.kafka.common.config.provider.EnvVarConfigProvider\n"
ONE_WAY = HEADER + "emit.heartbeats.enabled = false\n"


def parse(text: str) -> MirrorMakerFile:
    return parse_mirror_maker_file(text, lambda _, value: value)


def flow(text: str, name: str = "A->B") -> Flow:
    """The flow of a file without errors."""
    file = parse(text)
    assert file.problems == ()
    return next(flow for flow in file.flows if flow.name == name)


def problems(text: str) -> list[str]:
    return [str(problem) for problem in parse(text).problems]


def test_the_example_of_kafka() -> None:
    """Goal: config/connect-mirror-maker.properties of Kafka is parsed unchanged."""
    file = parse((FILES / "connect-mirror-maker.properties").read_text())
    assert file.problems == ()
    assert [flow.name for flow in file.flows] == ["A->B", "B->A"]
    first = file.flows[0]
    assert not first.heartbeats_only
    assert first.source_client == {"bootstrap.servers": "A_host1:9092, A_host2:9092, A_host3:9092"}
    assert first.target.producer == {
        "bootstrap.servers": "B_host1:9092, B_host2:9092, B_host3:9092"
    }
    settings = first.settings
    assert settings.selects_topic("orders")
    assert settings.replication_factor == 1
    assert settings.checkpoints_topic_replication_factor == 1
    assert settings.heartbeats_topic_replication_factor == 1
    assert settings.offset_syncs_topic_replication_factor == 1


def test_the_flow_of_kip_382() -> None:
    file = parse((FILES / "kip-382-flow.properties").read_text())
    assert file.problems == ()
    assert [flow.name for flow in file.flows] == ["primary->backup", "backup->primary"]
    assert file.clusters["primary"] == {"bootstrap.servers": "vip1:9092"}


def test_the_properties_of_kip_382() -> None:
    """Goal: an old name counts; names that MirrorMaker 2 never read do not."""
    file = parse((FILES / "kip-382-properties.properties").read_text())
    assert file.problems == ()
    there, back = file.flows
    assert (there.name, there.heartbeats_only) == ("us-west->us-east", False)
    assert (back.name, back.heartbeats_only) == ("us-east->us-west", True)
    assert there.settings.selects_group("group2")
    assert not there.settings.selects_group("group3")
    assert not there.settings.selects_topic("topics_to_blacklist")
    assert there.settings.emit_checkpoints_interval_seconds == 10
    assert there.settings.emits_heartbeats
    assert not there.settings.syncs_group_offsets
    assert there.settings.consumer_isolation_level == "read_committed"
    assert there.source.admin["bootstrap.servers"] == "localhost:9092"
    assert there.source_client["bootstrap.servers"] == "host1:9092"
    assert there.target.producer["compression.type"] == "gzip"


def test_the_clusters_of_kip_382() -> None:
    """Goal: any topology; heartbeats between all clusters, as in MirrorMaker 2."""
    file = parse((FILES / "kip-382-multicluster.properties").read_text())
    assert file.problems == ()
    assert len(file.flows) == 6 * 5
    mirroring = {flow.name for flow in file.flows if not flow.heartbeats_only}
    assert len(mirroring) == 12
    assert "north-1->east-1" in mirroring
    near = targeting(file.flows, ["west-1", "west-2"])
    assert {flow.target_alias for flow in near} == {"west-1", "west-2"}
    assert len(near) == 10


def test_without_heartbeats_only_enabled_flows_exist() -> None:
    assert [flow.name for flow in parse(ONE_WAY).flows] == ["A->B"]
    assert [flow.name for flow in parse(HEADER).flows] == ["A->B", "B->A"]


def test_enabled_without_prefix_enables_flows_that_exist_for_heartbeats() -> None:
    """MirrorMaker 2 gives it to the connectors of all flows, which its driver has started."""
    text = HEADER.replace("A->B.enabled", "enabled")
    assert [flow.settings.enabled for flow in parse(text).flows] == [True, True]
    assert problems(text + "emit.heartbeats.enabled=false\n") == [
        "line 1: there is no flow: no A->B.enabled is true, and no heartbeats are enabled"
    ]


@pytest.mark.parametrize(
    "key",
    ["consumer.fetch.max.bytes", "A.fetch.max.bytes", "A->B.fetch.max.bytes", "source.x", "A.x"],
)
def test_a_property_that_has_no_effect(key: str) -> None:
    """Goal: MirrorMaker 2 gives none of these to its clients."""
    assert set(flow(f"{HEADER}{key} = 1\n").source_client) == {"bootstrap.servers"}


@given(
    whole=st.none() | st.integers(1, 9),
    cluster=st.none() | st.integers(1, 9),
    own=st.none() | st.integers(1, 9),
    other=st.none() | st.integers(1, 9),
)
def test_precedence_of_a_setting(
    whole: int | None, cluster: int | None, own: int | None, other: int | None
) -> None:
    """Goal: the flow's own, else the file's, else the default; a cluster's never counts."""
    levels = {"": whole, "A.": cluster, "B.": cluster, "A->B.": own, "B->A.": other}
    text = HEADER + "".join(
        f"{prefix}replication.factor={value}\n" for prefix, value in levels.items() if value
    )
    assert flow(text).settings.replication_factor == (own or whole or 2)
    assert flow(text, "B->A").settings.replication_factor == (other or whole or 2)


NAMES = ("ssl.protocol", "fetch.max.bytes")


@given(
    present=st.sets(
        st.tuples(
            st.sampled_from(
                [
                    "A->B.source.cluster.",
                    "A->B.consumer.",
                    "",
                    "A.",
                    "A.consumer.",
                    "A->B.source.consumer.",
                    "B.consumer.",
                    "B->A.source.consumer.",
                    "A->B.target.consumer.",
                    "source.consumer.",
                    "consumer.",
                ]
            ),
            st.sampled_from(NAMES),
        )
    )
)
def test_precedence_of_client_properties(present: set[tuple[str, str]]) -> None:
    """Goal: the table in the module's docstring, over all combinations of levels."""
    properties = {
        f"{prefix}{name}": Property(1, f"{prefix}{name}", prefix) for prefix, name in present
    }
    merged = connector_properties(properties, "A", "B")
    found = client_properties(merged, "source", "consumer")
    order = {
        "ssl.protocol": [
            "A->B.source.consumer.",
            "A.consumer.",
            "A.",
            "",
            "A->B.consumer.",
            "A->B.source.cluster.",
        ],
        "fetch.max.bytes": ["A->B.source.consumer.", "A.consumer.", "A->B.consumer."],
    }
    for name in NAMES:
        expected = next((p for p in order[name] if (p, name) in present), None)
        assert (found[name].value if name in found else None) == expected


def test_the_present_name_counts_whatever_its_level() -> None:
    text = HEADER + "A->B.topics.blacklist = x\ntopics.exclude = y\n"
    assert flow(text).settings.selects_topic("x")
    assert not flow(text).settings.selects_topic("y")


def test_the_alias_in_remote_names_can_be_set() -> None:
    settings = flow(HEADER + "A->B.source.cluster.alias = eu\n").settings
    assert (settings.source_cluster_alias, settings.target_cluster_alias) == ("eu", "B")


def test_an_empty_alias_is_refused() -> None:
    """Goal: the known trick for unchanged names has a policy instead, which the error names."""
    text = HEADER + "A->B.source.cluster.alias =\nA->B.replication.policy.separator =\n"
    (problem,) = problems(text)
    assert problem.startswith("line 5: A->B.source.cluster.alias is '': expected a name; Identity")


def test_properties_of_the_policy_are_kept() -> None:
    text = HEADER + "replication.policy.mine = 1\nA->B.replication.policy.separator = _\n"
    assert flow(text).policy_properties == {
        "replication.policy.mine": "1",
        "replication.policy.separator": "_",
    }


def test_an_alias_may_contain_dots_and_begin_another_one() -> None:
    text = (
        "clusters = A, A.b\nA.bootstrap.servers = a:1\nA.b.bootstrap.servers = b:1\n"
        "A->A.b.enabled = true\nA->A.b.topics = x\n"
    )
    there = flow(text, "A->A.b")
    assert there.settings.selects_topic("x")
    assert there.target.producer["bootstrap.servers"] == "b:1"


TRANSFORMS = """\
A->B.transforms = mark
A->B.transforms.mark.type = InsertHeader
A->B.transforms.mark.header = h
A->B.transforms.mark.value.literal = ${env:X}
A->B.predicates =
transforms.mark.header = other
"""


@pytest.mark.parametrize("enabled", ["A->B.enabled = true\n", "enabled = true\n"])
def test_transforms_are_those_of_the_flow_with_references_resolved(enabled: str) -> None:
    """Goal: however the flow is enabled; a flow with heartbeats only has none."""
    text = HEADER.replace("A->B.enabled = true\n", enabled) + TRANSFORMS
    text += "config.providers = env\nconfig.providers.env.class = " + ENVIRONMENT
    file = parse_mirror_maker_file(text, lambda _, value: value.replace("${env:X}", "resolved"))
    assert file.problems == ()
    first, second = file.flows
    assert first.transforms == {
        "transforms": "mark",
        "transforms.mark.type": "InsertHeader",
        "transforms.mark.header": "h",
        "transforms.mark.value.literal": "resolved",
        "predicates": "",
    }
    assert second.transforms == {}


def test_credentials_of_a_schema_registry_are_not_resolved() -> None:
    """Goal: the flow is stored in a topic, with the place of the secret and not the secret."""
    prefix = "A->B.twinlog.transform."
    text = ONE_WAY + (
        f"{prefix}sql = SELECT record FROM records\n{prefix}value.format = avro\n"
        f"{prefix}value.subject = ${{e:S}}\n{prefix}registry.url = https://a\n"
        f"{prefix}registry.basic.auth.user.info = ${{e:U}}\n"
        f"{prefix}registry.ssl.key.password = ${{e:P}}\n"
        f"config.providers = e\nconfig.providers.e.class = {ENVIRONMENT}"
    )
    file = parse_mirror_maker_file(text, lambda _, value: value.replace("${env:S}", "resolved"))
    assert file.problems == ()
    transforms = file.flows[0].transforms
    name = "twinlog.transform."
    assert transforms[f"{name}value.subject"] == "resolved"
    assert transforms[f"{name}registry.basic.auth.user.info"] == "${env:U}"
    assert transforms[f"{name}registry.ssl.key.password"] == "${env:P}"
    bad = text.replace("${e:U}", "geheim:${x:U}")
    assert problems(bad) == [
        (
            "line 10: A->B.twinlog.transform.registry.basic.auth.user.info has ${x:U}: expected a "
            "provider that config.providers declares, not 'x'"
        )
    ]


@pytest.mark.parametrize("name", ["sync.group.offsets.enabled", "twinlog.offset.map"])
def test_offsets_are_translated_where_each_copy_has_its_record(name: str) -> None:
    """Goal: a file is refused where a query, or the time, decides where copies are."""
    wanted = f"{name} = true\n"
    query = "A->B.twinlog.transform.sql = SELECT record FROM records\n"
    (problem,) = problems(ONE_WAY + query + wanted)
    assert problem.startswith(f"line 6: A->B: {name} is true: expected false")
    timed = "A->B.transforms = t\nA->B.transforms.t.type = TimestampRouter\n"
    (problem,) = problems(ONE_WAY + timed + wanted)
    assert problem.startswith(f"line 6: A->B: {name} is true: expected false")
    assert not problems(ONE_WAY + TRANSFORMS.replace("${env:X}", "x") + wanted)
    assert not problems(ONE_WAY + "transaction.producer = true\n" + wanted)


def test_all_errors_are_reported_with_their_lines() -> None:
    text = HEADER + (
        "A->B.tasks.max = many\n"
        "replication.factor = 0\n"
        "B->A.emit.heartbeats.enabled = perhaps\n"
        "A->B.topics = (\n"
        "A->B.source.consumer.auto.offset.reset = begin\n"
    )
    found = problems(text)
    assert [line.split(":")[0] for line in found] == [f"line {n}" for n in range(5, 10)]
    assert found[0] == (
        "line 5: A->B.tasks.max is 'many': expected a whole number from 1 to 2147483647"
    )
    assert "'perhaps': expected true or false" in found[2]
    assert "expected earliest, latest, none or by_duration" in found[4]
    with pytest.raises(UserError, match=r"line 5: .*; line 6: "):
        parse(text).require_valid()
    parse(HEADER).require_valid()


def test_all_errors_of_transforms_are_reported_with_their_lines() -> None:
    """Goal: none hides another one, also of another transform, or of a setting."""
    found = problems(
        ONE_WAY
        + "A->B.transforms = route, insert, gone\n"
        + "A->B.transforms.route.type = TimestampRouter\n"
        + "A->B.transforms.route.timestamp.format = MMM\n"
        + "A->B.transforms.insert.type = InsertField$Value\n"
        + "A->B.transforms.insert.offset.field = o\n"
        + "A->B.transforms.insert.topic.field = t\n"
        + "value.converter = AvroConverter\n"
        + "A->B.tasks.max = many\n"
    )
    assert [line.partition(" is ")[0] for line in found] == [
        "line 6: A->B: transforms.gone.type",
        "line 8: A->B: transforms.route.timestamp.format",
        "line 10: A->B: transforms.insert.offset.field",
        "line 12: A->B: value.converter",
        "line 13: A->B.tasks.max",
    ]


@pytest.mark.parametrize("reset", ["none", "by_duration:PT1H"])
def test_a_beginning_that_a_flow_does_not_have_is_an_error(reset: str) -> None:
    """As the start refuses it. Where no topics are copied, nothing begins."""
    (problem,) = problems(ONE_WAY + f"A.consumer.auto.offset.reset = {reset}\n")
    assert problem == (
        f"line 6: A.consumer.auto.offset.reset is '{reset}': expected earliest or latest, since a "
        "flow knows its position from the first record on"
    )
    assert problems(HEADER + f"B.consumer.auto.offset.reset = {reset}\n") == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a=1\n", "clusters is missing: expected cluster aliases, comma-separated"),
        ("clusters=\n", "line 1: clusters is '': expected cluster aliases, comma-separated"),
        (
            ONE_WAY.replace("clusters = A, B", "clusters = A, B, x y"),
            (
                "line 1: clusters is 'A, B, x y': expected cluster aliases, comma-separated, of "
                "ASCII letters, digits, '.', '_' and '-'"
            ),
        ),
        (
            "clusters=A,A\n",
            ("line 1: there is no flow: no A->B.enabled is true, and no heartbeats are enabled"),
        ),
        ("clusters=A,,B\n", "line 1: clusters is 'A,,B': expected a list without empty items"),
        (
            HEADER.replace("B.boot", "#"),
            "line 1: B.bootstrap.servers is missing: expected HOST:PORT,HOST:PORT,...",
        ),
        (
            HEADER + "A->B.transforms = mask\nA->B.transforms.mask.type = x\n",
            (
                "line 6: A->B: transforms.mask.type is 'x': expected one of RegexRouter, "
                "TimestampRouter, InsertHeader, DropHeaders, ValueToKey, Filter, InsertField$Key, "
                "InsertField$Value, ReplaceField$Key, ReplaceField$Value, MaskField$Key, "
                "MaskField$Value, ExtractField$Key, ExtractField$Value, HeaderFrom$Key, "
                "HeaderFrom$Value; twinlog runs no Java and cannot load other classes"
            ),
        ),
        (
            HEADER + "A.consumer.interceptor.classes = x.Y\n",
            (
                "line 5: A.consumer.interceptor.classes is 'x.Y': Java interceptors cannot be run, "
                "and may change records; remove it if it only monitors"
            ),
        ),
        (
            HEADER + "topic.filter.class = x.Y\n",
            (
                "line 5: topic.filter.class is 'x.Y': expected "
                "org.apache.kafka.connect.mirror.DefaultTopicFilter: twinlog runs no Java and "
                "cannot load other classes"
            ),
        ),
        (
            HEADER + "emit.offset-syncs.enabled = false\noffset-syncs.topic.location = target\n",
            (
                "line 5: emit.offset-syncs.enabled is false, but offset-syncs.topic.location is "
                "set: MirrorMaker 2 refuses this; expected only one of them"
            ),
        ),
        (
            HEADER + "A.sasl.jaas.config = secret ${vault:/p:k}\n",
            (
                "line 5: A.sasl.jaas.config has ${vault:/p:k}: expected a provider that "
                "config.providers declares, not 'vault'"
            ),
        ),
        (
            HEADER + "config.providers = v\nconfig.providers.v.class = x.Vault\n",
            (
                "line 5: config.providers.v.class is 'x.Vault': expected one of "
                "org.apache.kafka.common.config.provider.FileConfigProvider, "
                "org.apache.kafka.common.config.provider.DirectoryConfigProvider, "
                "org.apache.kafka.common.config.provider.EnvVarConfigProvider (twinlog runs no "
                "Java and cannot load other classes)"
            ),
        ),
    ],
)
def test_an_error(text: str, message: str) -> None:
    assert problems(text) == [message]


PROVIDER = """\
config.providers = f
config.providers.f.class = org.apache.kafka.common.config.provider.FileConfigProvider
"""


def test_references_are_resolved_unless_they_may_be_of_secrets() -> None:
    """Goal: a stored flow has no reference outside of `sasl.*` and `ssl.*`; secrets stay out."""
    text = (
        HEADER.replace("A.bootstrap.servers = a:9092", "A.bootstrap.servers = ${f:/a:b}")
        + PROVIDER
        + "topics = ${f:/a:t}\nA.sasl.jaas.config = ${f:/a:j}\n"
    )
    known = {"${file:/a:t}": "x", "${file:/a:b}": "a:9092"}
    file = parse_mirror_maker_file(text, lambda _, value: known.get(value, value))
    assert file.problems == ()
    assert file.flows[0].settings.selects_topic("x")
    for client in (file.flows[0].source_client, file.clusters["A"]):
        assert client["bootstrap.servers"] == "a:9092"
        assert client["sasl.jaas.config"] == "${file:/a:j}"


def test_a_reference_that_cannot_be_resolved_is_an_error_with_its_line() -> None:
    def fail(_key: str, value: str) -> str:
        if "$" in value:
            raise UserError("topics: cannot read it")
        return value

    file = parse_mirror_maker_file(HEADER + PROVIDER + "topics = ${f:/a:t}\n", fail)
    assert [str(problem) for problem in file.problems] == ["line 7: topics: cannot read it"]


def test_a_reference_that_cannot_be_resolved_hides_no_other_error() -> None:
    def fail(key: str, value: str) -> str:
        if "$" in value:
            raise UserError(f"{key}: cannot read it")
        return value

    text = (
        ONE_WAY
        + PROVIDER
        + (
            "topics = ${f:/a:t}\n"
            "groups = ${f:/a:g}\n"
            "tasks.max = many\n"
            "A->B.transforms = h\n"
            "A->B.transforms.h.type = ${f:/a:c}\n"
            "A->B.transforms.h.header = ${f:/a:h}\n"
        )
    )
    file = parse_mirror_maker_file(text, fail)
    assert [str(problem).partition(": expected")[0] for problem in file.problems] == [
        "line 8: topics: cannot read it",
        "line 9: groups: cannot read it",
        "line 10: tasks.max is 'many'",
        "line 12: A->B.transforms.h.type: cannot read it",
        "line 13: A->B.transforms.h.header: cannot read it",
    ]


def test_secrets_are_not_part_of_a_representation() -> None:
    file = parse(HEADER + "A.sasl.jaas.config = hunter2\n")
    assert "hunter2" not in repr(file)
    assert "hunter2" in repr(file.flows[0].source_client)


@given(text=st.text(max_size=200) | st.text("AB->.=\n clustersenabld,true", max_size=200))
def test_any_text_is_a_file_or_one_documented_error(text: str) -> None:
    try:
        file = parse(text)
    except UserError:
        return
    assert file.flows or file.problems


RATE, REPLICAS = "mirror.replication.throttled.rate", "mirror.replication.throttled.replicas"


def test_the_throttle_of_a_flow() -> None:
    """Goal: each flow has its own; without a line, a stored flow keeps what it has."""
    text = HEADER + f"A->B.{RATE} = 1000000\nA->B.{REPLICAS} = orders:0,users:*\n"
    found = flow(text + f"B->A.{RATE} = 5\nB->A.enabled = true\n{RATE} = 7\nB.{RATE} = 8\n")
    assert found.throttle == {RATE: "1000000", REPLICAS: "orders:0,users:*"}
    assert flow(text).throttle == found.throttle
    assert flow(text, "B->A").throttle == {}, "it copies no topics"
    assert flow(HEADER).throttle == {}


def test_the_throttle_may_be_a_reference() -> None:
    text = HEADER + f"config.providers = e\nconfig.providers.e.class = {ENVIRONMENT}"
    text += f"A->B.{RATE} = ${{e:RATE}}\n"
    values = {"${env:RATE}": "2000000"}
    file = parse_mirror_maker_file(text, lambda _, value: values.get(value, value))
    assert file.problems == ()
    assert file.flows[0].throttle == {RATE: "2000000"}
    wrong = parse_mirror_maker_file(text, lambda _, value: value).problems
    assert [problem.line for problem in wrong] == [7]


def test_a_malformed_throttle_is_an_error() -> None:
    assert problems(HEADER + f"A->B.{RATE} = fast\nA->B.{REPLICAS} = orders\n") == [
        f"line 5: A->B.{RATE} is 'fast': expected a whole number from 1 to 9223372036854775807",
        (
            f"line 6: A->B.{REPLICAS} is 'orders': expected *, or topic:partition and topic:*, "
            "comma-separated"
        ),
    ]
