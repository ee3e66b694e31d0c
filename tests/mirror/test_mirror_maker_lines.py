"""Twin of mirror_maker_lines.py."""

import re

import pytest

from twinlog.mirror.config_providers import PROVIDERS
from twinlog.mirror.flow_settings import IDENTITY_POLICY, SETTINGS
from twinlog.mirror.mirror_maker_file import parse_mirror_maker_file
from twinlog.mirror.mirror_maker_lines import FileLine, LineVerdict, explain_lines
from twinlog.mirror.mirror_maker_names import CLIENT_NAMES, ROLE_NAMES

HEADER = """\
clusters = A, B
A.bootstrap.servers = a:9092
B.bootstrap.servers = b:9092
A->B.enabled = true
emit.heartbeats.enabled = false
"""


def explained(text: str, unused: tuple[str, ...] = ()) -> tuple[FileLine, ...]:
    file = parse_mirror_maker_file(HEADER + text, lambda _, value: value)
    return explain_lines(file, unused, file.problems)


def last(text: str) -> FileLine:
    """The last line of a file, explained."""
    return explained(text, ("linger.ms", "retries"))[-1]


USED, DIFFERS = LineVerdict.USED, LineVerdict.DIFFERS
NO_EFFECT, NOT_NEEDED = LineVerdict.NO_EFFECT, LineVerdict.NOT_NEEDED
UNKNOWN, ERROR = LineVerdict.UNKNOWN, LineVerdict.ERROR


@pytest.mark.parametrize(
    ("line", "verdict", "text"),
    [
        (
            "A->B.topics = x",
            USED,
            "topics that are mirrored; a stored flow loses what is not selected (A->B)",
        ),
        ("replication.factor = 3", USED, "replication factor of remote topics"),
        ("A.consumer.auto.offset.reset = earliest", USED, "where a partition begins"),
        ("A.consumer.auto.offset.reset = latest", DIFFERS, "what is added later is copied whole"),
        ("A.consumer.isolation.level = read_committed", USED, "aborted and open transactions"),
        (
            "A.consumer.isolation.level = read_uncommitted",
            DIFFERS,
            "transactions are copied, too (A->B): only committed records are copied",
        ),
        ("A.ssl.protocol = TLSv1.3", USED, "ssl.protocol of clients on A (A->B)"),
        ("ssl.protocol = TLSv1.3", USED, "on clusters that have no value of their own (A->B)"),
        ("B.producer.acks = all", USED, "acks of the producer on B (A->B)"),
        ("A->B.source.cluster.ssl.protocol = x", USED, "ssl.protocol of clients on A (A->B)"),
        ("config.providers =", USED, "references"),
        ("replication.policy.mine = 1", UNKNOWN, "Kafka's replication policies have no such"),
        ("replication.policy.seperator = _", UNKNOWN, "did you mean replication.policy.separator?"),
        ("A->B.replication.policy.seperator = _", UNKNOWN, "A->B.replication.policy.separator?"),
        ("A.replication.policy.seperator = _", UNKNOWN, "did you mean replication.policy.sep"),
        ("replication.policy.clas = x", UNKNOWN, "did you mean replication.policy.class?"),
        ("refresh.groups.enabled = false", DIFFERS, "no effect, as groups are listed"),
        ("tasks.max = 4", DIFFERS, "twinlog distributes partitions over lanes"),
        ("topics.blacklist = x", DIFFERS, "MirrorMaker 2 ignores this name since 4.0"),
        (
            "transaction.producer = true",
            DIFFERS,
            "records and positions are written in transactions",
        ),
        ("B.producer.linger.ms = 5", DIFFERS, "copies batches as their producers made them"),
        ("B.producer.retries = 5", DIFFERS, "twinlog's client does not use it"),
        (
            "A->B.target.producer.acks = 1",
            DIFFERS,
            "one client on B, configured by B.producer.acks",
        ),
        ("B.admin.client.id = x", DIFFERS, "one client on B, configured by B.producer.client.id"),
        ("B.producer.ssl.protocol = x", DIFFERS, "one client on B, configured by B.ssl.protocol"),
        ("A.admin.client.id = x", DIFFERS, "one client on A, configured by A.consumer.client.id"),
        ("B.producer.client.id = x", USED, "client.id of the producer on B (A->B)"),
        ("A->B.enabled=true\\u0020", DIFFERS, "MirrorMaker 2 has no such flow, as only the word"),
        ("A->B.emit.heartbeats.enabled=true\\u0020", USED, "whether heartbeats"),
        ("B->A.emit.heartbeats.enabled=true\\u0020", DIFFERS, "MirrorMaker 2 has no such flow"),
        ("A.producer.acks = 1", DIFFERS, "only for its internal topics"),
        ("key.converter = x.JsonConverter", DIFFERS, "this converter would change them"),
        ("key.converter = x.ByteArrayConverter", NOT_NEEDED, "bytes of keys"),
        ("dedicated.mode.enable.internal.rest = true", NOT_NEEDED, "no REST server"),
        ("A.offset.storage.topic = x", NOT_NEEDED, "control topics of its own"),
        ("B.group.id = x", DIFFERS, "with members in it, --takeover and --hand-back are refused"),
        ("offset.storage.topic = x", DIFFERS, "records what it has copied (A->B): --takeover"),
        ("B.offset.storage.topic = x", DIFFERS, "--hand-back writes to it"),
        ("A->B.offsets.storage.topic = x", DIFFERS, "--hand-back writes to it"),
        ("group.id = x", NO_EFFECT, "does not read it here: write TARGET.group.id"),
        ("A->B.offset.storage.topic = x", NO_EFFECT, "or TARGET.offset.storage.topic"),
        ("offsets.storage.topic = x", NO_EFFECT, "write SOURCE->TARGET.offsets.storage.topic"),
        ("B.group.id =", ERROR, "expected a name"),
        ("A->B.errors.tolerance = all", NOT_NEEDED, "skips no record"),
        ("A->B.errors.tolerence = all", UNKNOWN, "did you mean A->B.errors.tolerance?"),
        ("A->B.task.max = 4", UNKNOWN, "did you mean A->B.tasks.max?"),
        ("A->B.connector.tpye = sink", UNKNOWN, "did you mean A->B.connector.type?"),
        ("A->B.exactly.once = true", UNKNOWN, "did you mean A->B.exactly.once.support?"),
        ("A->B.offset.storage.locaton = x", UNKNOWN, "unknown property"),
        ("A->B.plugin.bla = x", UNKNOWN, "did you mean A->B.plugin.path?"),
        ("A->B.group.id.x = x", UNKNOWN, "did you mean B.group.id?"),
        ("A->B.transform = x", UNKNOWN, "did you mean A->B.transforms?"),
        ("A->B.predicate = x", UNKNOWN, "did you mean A->B.predicates?"),
        ("A->B.value.convertor = x", UNKNOWN, "did you mean A->B.value.converter?"),
        ("A->B.TOPICS = x", UNKNOWN, "did you mean A->B.topics?"),
        ("B.offset.storage.cleanup.policy = compact", NOT_NEEDED, "control topics of its own"),
        ("A->B.topic.creation.default.partitions = 3", NOT_NEEDED, "creates remote topics itself"),
        ("B.listeners.https.ssl.protocol = x", NOT_NEEDED, "no REST server"),
        ("B.exactly.once.source.support = enabled", NOT_NEEDED, "need no setting for that"),
        ("B->A.topics = x", NO_EFFECT, "flow B->A is not enabled"),
        ("use.defaults.from = source", NO_EFFECT, "write A->B.use.defaults.from"),
        ("consumer.auto.offset.reset = latest", NO_EFFECT, "write A.consumer.auto.offset.reset"),
        ("consumer.fetch.max.bytes = 1", NO_EFFECT, "write A.consumer.fetch.max.bytes"),
        ("source.consumer.client.id = 1", NO_EFFECT, "write A->B.source.consumer.client.id"),
        ("B.replication.factor = 3", NO_EFFECT, "write replication.factor for all flows"),
        ("A.request.timeout.ms = 1", NO_EFFECT, "write A.consumer.request.timeout.ms"),
        (
            "A->B.auto.offset.reset = latest",
            NO_EFFECT,
            "write A->B.source.consumer.auto.offset.reset, or A.consumer.auto.offset.reset",
        ),
        (
            "A->B.linger.ms = 5",
            NO_EFFECT,
            "write A->B.producer.override.linger.ms, or B.producer.linger.ms",
        ),
        ("A.linger.ms = 5", NO_EFFECT, "write A.producer.linger.ms"),
        ("A.config.providers = x", NO_EFFECT, "without a prefix"),
        ("A.consumer.enable.auto.commit = true", NO_EFFECT, "MirrorMaker 2 sets it itself"),
        ("sync.topic.configs = false", NO_EFFECT, "it reads sync.topic.configs.enabled"),
        ("remote.admin.retries = 5", NO_EFFECT, "write A.admin.retries or B.admin.retries"),
        ("A->B.remote.admin.retries = 5", NO_EFFECT, "write A.admin.retries or B.admin.retries"),
        (
            "replication.policy.class = LegacyReplicationPolicy",
            DIFFERS,
            "LegacyReplicationPolicy is KIP-382's name of IdentityReplicationPolicy",
        ),
        ("readahead.queue.capacity = 5", NO_EFFECT, "a name that no MirrorMaker 2 reads"),
        ("predicates = p", NOT_NEEDED, "where a transform applies"),
        ("transforms.x.type = y", NO_EFFECT, "write SOURCE->TARGET.transforms.x.type"),
        ("A->B.transforms.x.type = y", NO_EFFECT, "and the flow has none"),
        ("A->B.config.providers = x", NO_EFFECT, "without a prefix"),
        ("A->B.topcs = x", UNKNOWN, "did you mean A->B.topics?"),
        ("A.bootstrap.server = x", UNKNOWN, "did you mean A.bootstrap.servers?"),
        ("A.consumer.fetch.max.byte = 1", UNKNOWN, "did you mean A.consumer.fetch.max.bytes?"),
        ("C.bootstrap.servers = c:9092", UNKNOWN, "'C' is not in clusters: expected A, B"),
        ("A->C.enabled = true", UNKNOWN, "A->C is not a pair of different aliases"),
        ("A->A.enabled = true", UNKNOWN, "did you mean"),
        ("zzz = 1", UNKNOWN, "unknown property, which MirrorMaker 2 ignores"),
        ("A->B.tasks.max = x", ERROR, "expected a whole number"),
        ("A->B.offset.lag.max = -1", DIFFERS, "no offset is approximate"),
        ("A->B.offset.lag.max = x", ERROR, "expected a whole number of records"),
        ("A.consumer.auto.offset.reset = none", ERROR, "expected earliest or latest"),
        (
            "emit.heartbeats.interval.seconds = 0",
            DIFFERS,
            "time between heartbeats: 0 is one second; MirrorMaker 2 does not pause then",
        ),
        ("A->B.emit.checkpoints.interval.seconds = 00", DIFFERS, "checkpoints: 0 is one second"),
        ("emit.checkpoints.interval.seconds = 1", USED, "time between checkpoints (A->B)"),
        ("emit.checkpoints.interval.seconds = -1", USED, "time between checkpoints (A->B)"),
        ("emit.checkpoints.interval.seconds = x", ERROR, "expected whole seconds from 0 to"),
        ("sync.group.offsets.interval.seconds = 0", ERROR, "expected whole seconds from 1 to"),
        ("refresh.topics.interval.seconds = 0", ERROR, "or a negative number: never"),
        ("transforms = mask", ERROR, "transforms.mask.type is missing; write it for the flow"),
        (
            "A->B.mirror.replication.throttled.rate = 1000000",
            DIFFERS,
            "bytes per second that a node fetches of throttled partitions (A->B); no MirrorMaker 2",
        ),
        ("A->B.mirror.replication.throttled.replicas = t:0", DIFFERS, "all partitions of a topic"),
        ("A->B.mirror.replication.throttled.rate = fast", ERROR, "expected a whole number from 1"),
        ("A->B.mirror.replication.throtled.rate = 1", UNKNOWN, "A->B.mirror.replication.throttled"),
        ("A->B.mirror.partitions.max = 1", UNKNOWN, "unknown property"),
        ("mirror.replication.throttled.rate = 1", NO_EFFECT, "write SOURCE->TARGET.mirror.replic"),
        ("B.mirror.replication.throttled.rate = 1", NO_EFFECT, "it belongs to one flow"),
        ("B->A.mirror.replication.throttled.rate = 1", NO_EFFECT, "B->A is not enabled"),
    ],
)
def test_a_line(line: str, verdict: LineVerdict, text: str) -> None:
    found = last(line)
    assert text in found.text
    assert found.verdict is verdict
    assert found.number == 6


@pytest.mark.parametrize(
    ("lines", "verdict"),
    [
        ("A->B.replication.policy.class = x.Mine\nA->B.replication.policy.mine = 1", USED),
        ("A->B.replication.policy.class = x.Mine\nreplication.policy.mine = 1", USED),
        ("A->B.replication.policy.class = ${e:P}\nreplication.policy.mine = 1", USED),
        # Of a flow that is not there, since its settings have errors.
        ("A->B.tasks.max = x\nreplication.policy.class = Mine\nreplication.policy.mine = 1", USED),
        ("replication.policy.class = x.Mine\nA.replication.policy.mine = 1", NO_EFFECT),
        ("B->A.replication.policy.class = x.Mine\nreplication.policy.mine = 1", UNKNOWN),
        (f"replication.policy.class={IDENTITY_POLICY}\nreplication.policy.mine = 1", UNKNOWN),
    ],
)
def test_a_property_that_only_a_policy_of_ones_own_can_have(
    lines: str, verdict: LineVerdict
) -> None:
    """Goal: a misspelt separator counts as used for no flow whose policy would ignore it."""
    assert last(lines).verdict is verdict


@pytest.mark.parametrize(
    ("lines", "verdict", "text"),
    [
        ("A.alias = S", USED, "source.cluster.alias of A->B: the source's name in remote topic"),
        ("B.alias = T", USED, "target.cluster.alias of A->B: the target's name in names of"),
        ("B->A.enabled = true\nA.alias = S", USED, "; target.cluster.alias of B->A: the target's"),
        ("A->B.source.cluster.alias = X\nA.alias = S", NO_EFFECT, "line 6 has precedence"),
        ("clusters = A, B, C\nC.alias = S", NO_EFFECT, "no flow exists that has it"),
        ("A.alias = ", ERROR, "A.alias is '': expected a name"),
        ("alias = S", UNKNOWN, "unknown property, which MirrorMaker 2 ignores"),
        ("A->B.alias = S", UNKNOWN, "unknown property, which MirrorMaker 2 ignores"),
    ],
)
def test_a_cluster_s_alias_names_remote_topics(lines: str, verdict: LineVerdict, text: str) -> None:
    """Goal: a line that decides the names of all remote topics is not called unknown."""
    found = last(lines)
    assert found.verdict is verdict
    assert text in found.text
    assert found.value == lines.rpartition(" = ")[2]


REGEX_ROUTER = "type = RegexRouter\nA->B.transforms.t.regex = A\\\\.(.*)\n"
ROUTERS = {
    "none": "",
    "mask": "A->B.transforms = t\nA->B.transforms.t.type = DropHeaders\n"
    "A->B.transforms.t.headers = h\n",
    "regex": f"A->B.transforms = t\nA->B.transforms.t.{REGEX_ROUTER}"
    "A->B.transforms.t.replacement = eu-$1\n",
    "time": "A->B.transforms = t\nA->B.transforms.t.type = TimestampRouter\n",
}


@pytest.mark.parametrize("name", ["groups", "default.replication.factor", "old.retention.ms"])
@pytest.mark.parametrize("router", ROUTERS)
def test_how_topics_are_created_that_records_are_routed_to(router: str, name: str) -> None:
    """Goal: nobody believes that a topic has the retention that Connect would give it."""
    routes = router in {"regex", "time"}
    found = last(f"{ROUTERS[router]}A->B.topic.creation.{name} = 1")
    assert (found.verdict, found.warns) == ((DIFFERS, True) if routes else (NOT_NEEDED, False))
    if routes:
        assert "default configuration: create them before" in found.text
    for place in ("", "B.", "A->B.topic.creation.enable = true\n"):
        line = place if place.endswith("\n") else f"{place}topic.creation.{name} = 1"
        assert last(f"{ROUTERS[router]}{line}").verdict is NOT_NEEDED


def test_with_a_map_routed_topics_are_created_as_remote_topics() -> None:
    text = f"{ROUTERS['regex']}A->B.twinlog.offset.map = true\n"
    found = last(f"{text}A->B.topic.creation.default.partitions = 3")
    assert (found.verdict, found.warns) == (DIFFERS, True)
    assert found.text.endswith("twinlog creates them as remote topics, with replication.factor")


@pytest.mark.parametrize("place", ["A->B.", "A."])
def test_what_a_hint_names_has_an_effect(place: str) -> None:
    """Goal: nobody is sent to a line that the next check refuses."""
    names = {name for names in ROLE_NAMES.values() for name in names}
    hinted = 0
    for name in sorted((names | {*CLIENT_NAMES}) - SETTINGS.keys()):
        found = last(f"{place}{name} = 1")
        hint = found.text.partition(": write ")[2]
        if found.verdict is not NO_EFFECT or name in {PROVIDERS, "enable.auto.commit"}:
            continue
        assert hint, name
        first, *others = re.split(", or | or ", hint)
        role = first.removeprefix(place).partition(".")[0]
        keys = [other if name in other else first.replace(role, other[:-1]) for other in others]
        for key in (first, *keys):
            assert last(f"{key} = 1").verdict in {USED, DIFFERS, ERROR}, key
            hinted += 1
    assert hinted > 50


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("replication.factor = 1\nA->B.replication.factor = 2\n", 7),
        ("A->B.source.cluster.ssl.protocol = 1\nA.ssl.protocol = 2\n", 7),
        ("A.consumer.client.id = 1\nA->B.source.consumer.client.id = 2\n", 7),
        ("B.offset.storage.topic = x\noffset.storage.topic = y\n", 7),
    ],
)
def test_a_line_that_another_one_overrides_names_it(text: str, number: int) -> None:
    line = explained(text)[5]
    assert (line.verdict, line.text) == (NO_EFFECT, f"line {number} has precedence")


def test_a_key_that_is_set_again() -> None:
    first, second = explained("tasks.max = x\ntasks.max = 2\n")[5:]
    assert first.text == "line 7 sets it again; the last value counts"
    assert second.verdict is DIFFERS


def test_what_occurs_twice_in_a_list_counts_once() -> None:
    """As in MirrorMaker 2, which removes it, and says so in its log."""
    assert explained("")[0].text == "aliases of 2 clusters"
    text = HEADER.replace("A, B", "A, A, B") + "A->B.topics = x, x\n"
    file = parse_mirror_maker_file(text, lambda _, value: value)
    lines = explain_lines(file, (), file.problems)
    assert (file.problems, [flow.name for flow in file.flows]) == ((), ["A->B"])
    assert [line.verdict for line in (lines[0], lines[-1])] == [USED, USED]
    assert lines[0].text == "aliases of 2 clusters; each counts once"


def test_what_enabled_does() -> None:
    lines = explained("B->A.enabled = false\nB->A.emit.heartbeats.enabled = true\n")
    assert lines[3].text == "mirrors topics from A to B"
    assert lines[5].text == (
        "mirrors no topics; heartbeats of B are written to A; a flow that the target has stored is "
        "switched off if another one to A is enabled"
    )
    assert last("B->A.enabled = false").text.startswith(
        "flow B->A is off; a flow that the target has"
    )


@pytest.mark.parametrize(
    "key",
    [
        "A.sasl.jaas.config",
        "A.consumer.sasl.jaas.config",
        "A->B.source.cluster.ssl.key.password",
        "ssl.keystore.key",
        "A.sasl.jas.config",
        "A->B.secret",
        "config.providers.v.param.token",
        "replication.policy.password",
        "remote.admin.sasl.jaas.config",
    ],
)
def test_a_value_that_may_be_a_secret_is_not_shown(key: str) -> None:
    found = last(f"{key} = hunter2")
    assert found.value is None
    assert "hunter2" not in found.text


@pytest.mark.parametrize(
    "key",
    [
        "topics",
        "A->B.topics",
        "A.bootstrap.servers",
        "B.producer.acks",
        "topics.blacklist",
        "A->B.mirror.replication.throttled.replicas",
    ],
)
def test_other_values_are_shown(key: str) -> None:
    assert last(f"{key} = x").value == "x"


def test_a_flow_of_heartbeats_alone_has_no_throttle() -> None:
    text = "B->A.emit.heartbeats.enabled = true\nB->A.mirror.replication.throttled.rate = 1\n"
    found = explained(text)[-1]
    assert (found.verdict, found.text) == (NO_EFFECT, "flow B->A copies no topics")


BEATING = HEADER.replace("emit.heartbeats.enabled = false\n", "")
"""B->A is not enabled, and has heartbeats."""


def beating(text: str) -> list[tuple[LineVerdict, str]]:
    """The lines behind `BEATING`, explained."""
    file = parse_mirror_maker_file(BEATING + text, lambda _, value: value)
    lines = explain_lines(file, (), file.problems)[len(BEATING.splitlines()) :]
    return [(line.verdict, line.text) for line in lines]


@pytest.mark.parametrize(
    "line",
    [
        "topics = foo",
        "topics.blacklist = foo",
        "groups = g",
        "sync.group.offsets.enabled = true",
        "emit.checkpoints.interval.seconds = 0",
        "replication.factor = 3",
        "transaction.producer = true",
        "twinlog.takeover = compare",
    ],
)
def test_a_flow_of_heartbeats_alone_mirrors_nothing(line: str) -> None:
    """Goal: nobody takes it for enabled since its lines are used."""
    assert beating(f"B->A.{line}\n") == [(NO_EFFECT, "flow B->A is not enabled")]
    assert beating(f"B->A.{line}\nB->A.enabled = true\n")[0][0] in {USED, DIFFERS}
    (verdict, text), _ = beating(f"{line}\nB->A.enabled = false\n")
    assert verdict in {USED, DIFFERS}
    assert "B->A" not in text


@pytest.mark.parametrize(
    ("line", "verdict"),
    [
        ("emit.heartbeats.enabled = true", USED),
        ("emit.heartbeats.interval.seconds = 5", USED),
        ("heartbeats.topic.replication.factor = 1", USED),
        ("replication.policy.class = IdentityReplicationPolicy", USED),
        ("replication.policy.separator = _", USED),
        ("source.cluster.alias = eu", USED),
        ("admin.timeout.ms = 1000", DIFFERS),
    ],
)
def test_what_heartbeats_alone_have(line: str, verdict: LineVerdict) -> None:
    assert beating(f"B->A.{line}\n")[0][0] is verdict


def test_what_only_clients_that_copy_have() -> None:
    """Goal: without topics there is no client on the source, and none for internal topics."""
    for name in ("source.consumer.client.id", "source.producer.acks", "target.consumer.client.id"):
        assert beating(f"B->A.{name} = x\n") == [(NO_EFFECT, "no flow that copies topics has it")]


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ("B->A.emit.heartbeats.enabled = false\n", "no topic is mirrored; none of B->A"),
        ("emit.heartbeats.enabled = false\n", "no topic is mirrored (A->B); none of B->A"),
        (
            "emit.heartbeats.enabled = false\nA->B.emit.heartbeats.enabled = true\n",
            "no topic is mirrored; none of B->A",
        ),
    ],
)
def test_heartbeats_that_a_line_switches_off(lines: str, text: str) -> None:
    """Goal: the line has an effect: without it, B->A would write heartbeats."""
    verdict, found = beating(lines)[0]
    assert verdict is USED
    assert found.endswith(text)


def test_a_line_that_switches_off_nothing_has_no_effect() -> None:
    lines = "emit.heartbeats.enabled = false\nB->A.emit.heartbeats.enabled = false\n"
    both = beating(f"{lines}A->B.emit.heartbeats.enabled = true\n")
    assert both[0] == (NO_EFFECT, "line 7 has precedence")
    assert both[1][0] is USED


def test_a_setting_that_no_enabled_flow_has() -> None:
    off = "A->B.enabled = false\ntopics = x\nB->A.topics = y\n"
    assert [text for _, text in beating(off)[1:]] == [
        "no flow that copies topics has it",
        "flow B->A is not enabled",
    ]


def test_the_lines_of_transforms() -> None:
    """Goal: what is applied, and what the converters mean here."""
    text = (
        "A->B.transforms = mask\n"
        "A->B.transforms.mask.type = MaskField$Value\n"
        "A->B.transforms.mask.fields = card\n"
        "A->B.value.converter = org.apache.kafka.connect.json.JsonConverter\n"
        "A->B.value.converter.schemas.enable = false\n"
        "key.converter = org.apache.kafka.connect.converters.ByteArrayConverter\n"
    )
    found = explained(text)[-6:]
    assert [line.verdict for line in found] == [USED, USED, USED, DIFFERS, DIFFERS, USED]
    assert "in this order (A->B); not to heartbeats" in found[0].text
    assert "its transforms see bytes" in found[3].text


@pytest.mark.parametrize(
    ("former", "present"), [("blacklist", "exclude"), ("whitelist", "include")]
)
def test_options_of_transforms_that_kafka_has_removed(former: str, present: str) -> None:
    """Goal: as `topics.blacklist`: with MirrorMaker 2 4.x the fields would stay."""
    lines = "A->B.transforms = r\nA->B.transforms.r.type = ReplaceField$Value\n"
    line = f"A->B.transforms.r.{former} = secret"
    found = last(f"{lines}{line}")
    assert found.verdict is DIFFERS
    assert found.text == (
        "a part of transforms (A->B); Kafka ignores this name since 4.0 and reads "
        f"transforms.r.{present}, twinlog obeys it"
    )
    other = last(f"{lines}A->B.transforms.r.{present} = x\n{line}")
    assert (other.verdict, other.text) == (NO_EFFECT, "line 8 has precedence")
    assert last(f"{lines}A->B.transforms.r.{present} =\n{line}").verdict is DIFFERS
    assert last(lines.replace("= r", f"= {former}").replace(".r.", f".{former}.")).verdict is USED


def test_a_property_that_value_to_key_does_not_have() -> None:
    lines = "A->B.transforms = k\nA->B.transforms.k.type = ValueToKey\n"
    found = last(f"{lines}A->B.transforms.k.fields = id\nA->B.transforms.k.topics = A.orders\n")
    assert found.verdict is ERROR
    assert "unknown property transforms.k.topics" in found.text


ROUTER = """\
A->B.transforms = r
A->B.transforms.r.type = RegexRouter
A->B.transforms.r.regex = .*
A->B.transforms.r.replacement = eu-$0
"""


@pytest.mark.parametrize("lines", [ROUTER, "A->B.transaction.producer = true\n"])
def test_lines_of_checkpoints_that_are_not_written(lines: str) -> None:
    """Goal: where the table has no checkpoints, no line says that they are written."""
    asked = [
        "emit.checkpoints.enabled = true",
        "emit.checkpoints.interval.seconds = 0",
        "checkpoints.topic.replication.factor = 1",
        "groups = g",
        "groups.exclude = h",
        "emit.offset-syncs.enabled = true",
        "offset-syncs.topic.replication.factor = 1",
    ]
    for line in (*asked, "A->B.groups = g"):
        found = last(f"{lines}{line}")
        assert found.verdict is DIFFERS
        assert found.text.endswith("(A->B): write A->B.twinlog.offset.map = true")
        assert not found.warns
        mapped = last(f"{lines}A->B.twinlog.offset.map = true\n{line}")
        assert "twinlog.offset.map" not in mapped.text
        assert mapped.verdict is (DIFFERS if line.endswith("= 0") else USED)
        off = "emit.offset-syncs.enabled = false\n"
        if not line.startswith(("emit.offset", "offset")):
            assert "twinlog.offset.map" not in last(f"{lines}{off}{line}").text
    assert last(f"{lines}emit.checkpoints.enabled = false").verdict is USED
    assert last(f"{lines}A->B.topics = x").verdict is USED


def test_what_asks_for_a_map_of_offsets() -> None:
    """Goal: the line because of which there are no checkpoints names what there is to write."""
    lacks = "; without a map of offsets no checkpoints are written (A->B): write A->B.twinlog"
    assert lacks in last("A->B.transaction.producer = true").text
    applied = explained(ROUTER)[5]
    assert f"not to heartbeats and checkpoints{lacks}" in applied.text
    assert applied.verdict is USED
    mapped = explained(f"{ROUTER}A->B.sync.group.offsets.enabled = true\n")[5]
    assert mapped.text.endswith("not to heartbeats and checkpoints")
    query = "A->B.twinlog.transform.sql = SELECT record FROM records"
    assert "no checkpoints are written (A->B), since offsets are not" in last(query).text


def test_the_lines_of_a_transform_by_spark() -> None:
    """Goal: each line says what it is for; one without the flow's prefix has no effect."""
    text = (
        "twinlog.transform.sql = SELECT 1\n"
        "A->B.twinlog.transform.sql = SELECT record FROM records\n"
        "A->B.twinlog.transform.value.format = string\n"
        "A->B.twinlog.transform.routes = false\n"
        "A->B.twinlog.transform.tables.prices = /data/prices.csv\n"
        "A->B.value.converter = org.apache.kafka.connect.json.JsonConverter\n"
    )
    found = explained(text)[-6:]
    assert [line.verdict for line in found] == [NO_EFFECT, *[DIFFERS] * 5]
    assert "write SOURCE->TARGET.twinlog.transform.sql" in found[0].text
    assert "applies this query to each micro-batch of records (A->B)" in found[1].text
    assert "keys or values become columns" in found[2].text
    assert "rows of the result may go to another topic" in found[3].text
    assert "a static table" in found[4].text
    assert "this converter would change them" in found[5].text


@pytest.mark.parametrize(
    ("lines", "number", "text"),
    [
        ("A->B.twinlog.transform.sql = x\nA->B.twinlog.transform.qsl = y\n", 1, "qsl is not known"),
        ("A->B.twinlog.transform.value.format = string\n", 0, "neither is set"),
        (
            (
                "A->B.twinlog.transform.sql = x\nA->B.transforms = m\n"
                "A->B.transforms.m.type = DropHeaders\n"
            ),
            1,
            "are both set",
        ),
    ],
)
def test_mistakes_in_a_transform_by_spark(lines: str, number: int, text: str) -> None:
    """Goal: an error, at the line of the property."""
    found = explained(lines)[len(HEADER.splitlines()) :]
    assert [line.verdict is ERROR for line in found].index(True) == number
    assert text in found[number].text


def test_a_start_warns_of_what_should_be_written_otherwise() -> None:
    """Goal: no misspelt line is silent, and a file that is right has no warning."""
    warned = [
        "A->B.topics.exlude = x",
        "A-B->B.enabled = true",
        "topics.whitelist = x",
        "consumer.fetch.max.bytes = 1",
        "A->B.ssl.protocol = x",
        "A.topics = x",
        "A.request.timeout.ms = 1",
        "A.config.providers = x",
        "transforms.x.type = y",
        "A->B.transforms.x.type = y",
        "twinlog.transform.sql = x",
        "mirror.replication.throttled.rate = 1",
        "A.replication.policy.separator = _",
    ]
    silent = [
        "A->B.topics = x",
        "A->B.mirror.replication.throttled.rate = 1",
        "tasks.max = 4",
        "offset.storage.replication.factor = 1",
        "readahead.queue.capacity = 5",
        "group.id = x",
        "B->A.topics = x",
        "B->A.transforms.x.type = y",
        "transforms =",
        "A.consumer.enable.auto.commit = true",
    ]
    assert [line for line in (*warned, *silent) if last(line).warns] == warned


@pytest.mark.parametrize(
    "line", ["MIIEvQIBADANBg+/kqhkiG9w0", "abcdef==", "hunter2", "eyJzdWIi.c2Vj.s1gn", "s3cr:et"]
)
def test_a_line_that_may_continue_a_secret_is_not_shown(line: str) -> None:
    """Goal: a private key over several lines, without backslashes, is in no log."""
    found = last(line)
    assert (found.key, found.verdict) == ("...", UNKNOWN)
    assert line.rstrip("=").partition(":")[0] not in found.text


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("auto.offset.reset", "A.consumer.auto.offset.reset"),
        ("consumer.fetch.max.byte", "A.consumer.fetch.max.bytes"),
        ("consumer.poll.timeout", "consumer.poll.timeout.ms"),
        ("A->B.consumer.poll.timeout", "A->B.consumer.poll.timeout.ms"),
        ("A->B.ssl.protocl", "A->B.source.consumer.ssl.protocol, or A.ssl.protocol"),
    ],
)
def test_the_closest_property_is_named_as_it_has_an_effect(line: str, hint: str) -> None:
    assert last(f"{line} = 1").text.endswith(f": did you mean {hint}?")
    for key in hint.split(", or "):
        assert last(f"{key} = 1").verdict in {USED, DIFFERS, ERROR}
