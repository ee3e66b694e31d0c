"""From the flows of a file to what runs them."""

import re
from collections.abc import Mapping
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from twinlog.kafka.client.configuration import parse_config
from twinlog.kafka.errors import UserError
from twinlog.lifecycle import flow_creation
from twinlog.lifecycle.creation import check_properties
from twinlog.mirror import replication_policy
from twinlog.mirror.flow import flow_of
from twinlog.mirror.mirror_maker_lines import LineVerdict
from twinlog.mirror.mirror_maker_names import CLIENT_NAMES, ROLE_NAMES, ROLES, SIDES
from twinlog.mirror.settings import RATE, check_settings, parse_settings
from twinlog.node.flow_targets import run_parts
from twinlog.operations.mirror_maker import CheckedFlows, check_file

FILE = """\
clusters = A, B
A.bootstrap.servers = a:9092
B.bootstrap.servers = b:9092
A->B.enabled = true
"""


@pytest.mark.parametrize(
    ("line", "takeover", "expected"),
    [
        ("", False, "refuse"),
        ("", True, "compare"),
        ("twinlog.takeover = recorded\n", True, "recorded"),
        ("A->B.twinlog.takeover = ignore\n", False, "ignore"),
    ],
)
def test_a_takeover_is_asked_for_by_the_flag_or_the_file(
    tmp_path: Path, line: str, takeover: bool, expected: str
) -> None:
    """Goal: what the file says takes precedence, as it may say it for one flow."""
    file = tmp_path / "mm2.properties"
    file.write_text(FILE + line)
    checked = check_file(file)
    [target], _ = run_parts(checked.flows, checked.clusters, takeover=takeover)
    [flow] = target.flows
    assert flow_of(flow.properties).settings.twinlog_takeover == expected


def test_a_throttle_of_the_file_is_the_mirror_s(tmp_path: Path) -> None:
    """Goal: it is stored as `kafka-mirrors --alter` stores it; of a flow without one, nothing."""
    file = tmp_path / "mm2.properties"
    file.write_text(f"{FILE}B->A.enabled = true\nA->B.{RATE} = 1000000\n")
    checked = check_file(file)
    targets, _ = run_parts(checked.flows, checked.clusters)
    rates = {target.alias: target.flows[0].properties.get(RATE) for target in targets}
    assert rates == {"B": "1000000", "A": None}
    assert parse_settings(targets[0].flows[0].properties).throttle.rate == 1_000_000


@pytest.mark.parametrize(
    "line",
    [
        "A.consumer.auto.offset.reset = none",
        "A->B.consumer.auto.offset.reset = by_duration:P1D",
        "B.consumer.auto.offset.reset = none",
        "A.consumer.auto.offset.reset = latest",
        "A->B.transforms = t\nA->B.transforms.t.type = TimestampRouter\ntwinlog.offset.map = true",
        "transaction.producer = true\nsync.group.offsets.enabled = true",
        "replication.policy.separator =",
        "replication.policy.class = x.Mine",
        "replication.policy.class = LegacyReplicationPolicy",
        "replication.policy.class = IdentityReplicationPolicy",
        "sync.group.offsets.enabled = true\ngroups.exclude = (?i)test.*",
        "sync.group.offsets.enabled = true\ngroups = (a|b)-\\\\1, [0-9]{3}",
        (
            "refresh.topics.interval.seconds = 604800\nsync.topic.configs.enabled = false\n"
            "sync.topic.acls.enabled = false\nemit.checkpoints.enabled = false"
        ),
    ],
)
def test_the_check_reports_what_the_start_refuses(tmp_path: Path, line: str) -> None:
    """Goal: a file without errors can be run, and a file that cannot be run has errors."""
    file = tmp_path / "mm2.properties"
    file.write_text(f"{FILE}{line}\n")
    checked = check_file(file)
    refused = False
    try:
        for target in run_parts(checked.flows, checked.clusters)[0]:
            for flow in target.flows:
                check_settings(flow.properties)
    except UserError:
        refused = True
    copied = [flow for flow in checked.flows if flow.settings.enabled]
    assert bool(checked.report.errors) == (refused or not copied)


def test_the_check_makes_the_checks_of_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: what only these refuse is an error of the check, too, for flows that are stored."""
    stored: list[Mapping[str, str]] = []

    def refuse(properties: Mapping[str, str]) -> None:
        stored.append(properties)
        raise UserError("mirror.acl.include is refused")

    file = tmp_path / "mm2.properties"
    file.write_text(FILE)
    checked = check_file(file)
    assert checked.report.errors == ()
    monkeypatch.setattr(flow_creation, "check_settings", refuse)
    assert check_file(file).report.errors == ("flow A->B: mirror.acl.include is refused",)
    [target], _ = run_parts(checked.flows, checked.clusters)
    assert stored == [flow.properties for flow in target.flows], "not those of B->A"
    file.write_text(f"{FILE}A->B.replication.factor = many\n")
    (error,) = check_file(file).report.errors
    assert "replication.factor" in error


def test_the_check_loads_no_policy_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: its code is run by a start only."""
    point = EntryPoint("Mine", "no_such_module:Mine", replication_policy.ENTRY_POINTS)
    monkeypatch.setattr(replication_policy, "entry_points", lambda group: [point] if group else [])
    file = tmp_path / "mm2.properties"
    file.write_text(f"{FILE}replication.policy.class = Mine\nreplication.policy.mine = x\n")
    checked = check_file(file)
    assert checked.report.errors == ()
    with pytest.raises(UserError, match="cannot load"):
        run_parts(checked.flows, checked.clusters)


def test_a_node_may_read_what_the_access_to_a_registry_refers_to(tmp_path: Path) -> None:
    """Goal: a secret of the file's author needs no further setting."""
    file = tmp_path / "mm2.properties"
    prefix = "A->B.twinlog.transform"
    provider = "org.apache.kafka.common.config.provider.FileConfigProvider"
    file.write_text(
        f"{FILE}{prefix}.sql = SELECT record FROM records\n{prefix}.value.format = avro\n"
        f"{prefix}.value.subject = s\n{prefix}.registry.url = https://a\n"
        f"{prefix}.registry.basic.auth.user.info = ${{f:/secrets/a:user}}\n"
        f"{prefix}.registry.ssl.truststore.location = /certificates/ca.pem\n"
        f"config.providers = f\nconfig.providers.f.class = {provider}\n"
    )
    checked = check_file(file)
    assert checked.report.errors == ()
    [target], _ = run_parts(checked.flows, checked.clusters)
    assert target.properties["mirror.allowed.paths"] == "/certificates/ca.pem,/secrets/a"
    [flow] = target.flows
    stored = flow.properties["mirror.flow.twinlog.transform.registry.basic.auth.user.info"]
    assert stored == "${file:/secrets/a:user}"


@pytest.mark.parametrize(
    ("line", "granted"),
    [
        ("", None),
        (
            (
                "A->B.transforms = a\nA->B.transforms.a.type = DropHeaders\n"
                "A->B.transforms.a.headers = h\n"
            ),
            None,
        ),
        ("A->B.twinlog.transform.sql = SELECT record FROM records\n", "true"),
    ],
)
def test_a_node_may_run_code_if_a_flow_of_the_file_has_some(
    tmp_path: Path, line: str, granted: str | None
) -> None:
    """Goal: the file is its operator's own; without such a flow the grant stays off."""
    file = tmp_path / "mm2.properties"
    file.write_text(FILE + line)
    checked = check_file(file)
    assert not checked.report.errors
    [target], _ = run_parts(checked.flows, checked.clusters)
    assert target.properties.get("mirror.dataframes.enable") == granted


MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SASL = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "PLAIN",
    "sasl.jaas.config": f'{MODULE} required username="one" password="p";',
}
OTHER = {
    **SASL,
    "bootstrap.servers": "c:9092",
    "sasl.jaas.config": f'{MODULE} required username="other" password="p";',
}
PLACES = [
    "",
    "A.",
    "B.",
    *(f"{alias}.{role}." for alias in "AB" for role in ROLES),
    *(f"A->B.{side}.cluster." for side in SIDES),
    *(f"A->B.{side}.{role}." for side in SIDES for role in ROLES),
    *(f"A->B.{role}." for role in ROLES),
    "A->B.producer.override.",
]


def text_of(properties: Mapping[str, str]) -> str:
    return "".join(f"{key} = {value}\n" for key, value in properties.items())


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("secured", [False, True])
def test_a_client_property_that_is_used_arrives_in_a_client(
    tmp_path: Path, place: str, *, secured: bool
) -> None:
    """Goal: what the check calls used is in the configuration of a node or of a stored flow.

    Each property is written with a value that no other line has.
    """
    frame = FILE + (text_of(SASL) if secured else "")
    role = next((role for role in ROLES if role in place), None)
    names = {*SASL} if secured else {*CLIENT_NAMES, *ROLE_NAMES.get(role or "consumer", ())}
    used = set()
    for name in sorted(names):
        value = OTHER.get(name, "7")
        file = tmp_path / "mm2.properties"
        file.write_text(f"{frame}{place}{name} = {value}\n")
        checked = check_file(file)
        line = checked.report.lines[-1]
        if line.verdict is not LineVerdict.USED or line.text.startswith("how references"):
            continue
        used.add(name)
        if checked.report.errors:
            continue  # nothing is run
        targets, pairs = run_parts(checked.flows, checked.clusters)
        clients = [target.properties for target in targets]
        clients += [pair.properties for pair in pairs]
        clients += [flow.properties for target in targets for flow in target.flows]
        assert value in {client.get(name) for client in clients}, (line.key, line.text)
    if not secured and place in {"A.consumer.", "B.producer.", "A->B.source.consumer."}:
        assert {"client.id", "request.timeout.ms"} <= used
    if place.startswith(("A->B.target.", "A->B.producer.")) or place == "B.admin.":
        assert used <= {name for name in SASL if secured and SASL[name] == OTHER[name]}


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("B.producer.security.protocol = SSL\n", "B.producer.security.protocol"),
        ("B.admin.security.protocol = SSL\n", "B.admin.security.protocol"),
        ("A->B.producer.override.security.protocol = SSL\n", None),
        ("A->B.target.cluster.security.protocol = SSL\n", None),
        ("A.admin.security.protocol = SSL\n", "A.admin.security.protocol"),
        ("A.consumer.security.protocol = SSL\n", "A.consumer.security.protocol"),
        ("security.protocol = SSL\nA.consumer.security.protocol = PLAINTEXT\n", None),
        (text_of(SASL | {"B.producer.sasl.jaas.config": OTHER["sasl.jaas.config"]}), None),
        (text_of({f"A.consumer.{name}": text for name, text in SASL.items()}), None),
    ],
)
def test_credentials_of_some_clients_only_are_an_error(
    tmp_path: Path, text: str, written: str | None
) -> None:
    """Goal: twinlog never connects as another principal, or without TLS, and says nothing.

    The error names the property to write instead, and holds no secret.
    """
    file = tmp_path / "mm2.properties"
    file.write_text(f"{FILE}{text}")
    report = check_file(file).report
    assert report.errors
    key = written or text.splitlines()[-1].partition(" =")[0]
    alias = "A" if key.startswith("A.") else "B"
    roles = r"target\.cluster\.|(consumer|producer|admin)\.|override\."
    name = re.sub(rf"^(A->B\.|[AB]\.|{roles})*", "", key)
    assert any(
        error.endswith(
            f": {key} is for some clients on {alias} only, but twinlog has one client on {alias}: "
            f"write {alias}.{name}, for all"
        )
        for error in report.errors
    )
    assert not any("password" in error for error in report.errors)
    assert [line.verdict for line in report.lines if line.key == key] == [LineVerdict.ERROR]


@pytest.mark.parametrize(
    "text",
    [
        text_of(SASL),
        text_of({f"{alias}.{name}": text for alias in "AB" for name, text in SASL.items()}),
        text_of(
            {
                f"{alias}.{role}{name}": text
                for alias in "AB"
                for role in ("", *(f"{role}." for role in ROLES))
                for name, text in SASL.items()
            }
        ),
        "B.producer.security.protocol = PLAINTEXT\n",
        # Not read without SASL, by none of the clients.
        "B.producer.sasl.jaas.config = x\n",
        # Flow B->A has heartbeats only, and no client on B.
        text_of({f"B.consumer.{name}": text for name, text in SASL.items()}),
        # MirrorMaker 2's clients for its internal topics.
        text_of({f"A.producer.{name}": text for name, text in SASL.items()})
        + "emit.heartbeats.enabled = false\n",
        "B.producer.request.timeout.ms = 7\nB.admin.client.id = x\n",
    ],
)
def test_credentials_that_all_clients_have_are_right(tmp_path: Path, text: str) -> None:
    """Goal: a file that repeats them for each role runs as it is."""
    file = tmp_path / "mm2.properties"
    file.write_text(f"{FILE}{text}")
    assert check_file(file).report.errors == ()


def test_a_cluster_that_only_roles_can_reach_is_an_error(tmp_path: Path) -> None:
    """Goal: the node on B has no address then, and neither has MirrorMaker 2's Connect worker."""
    file = tmp_path / "mm2.properties"
    file.write_text(
        FILE.replace("B.bootstrap", "B.producer.bootstrap") + "B.admin.bootstrap.servers = b:9092\n"
        "emit.heartbeats.enabled = false\n"
    )
    errors = check_file(file).report.errors
    assert errors == ("line 1: B.bootstrap.servers is missing: expected HOST:PORT,HOST:PORT,...",)


@pytest.mark.parametrize(
    ("line", "disabled"),
    [
        ("C->B.enabled = false\n", ["C"]),
        ("C->B.enabled = false\nemit.heartbeats.enabled = false\n", ["C"]),
        ("enabled = false\n", ["C"]),
        ("", []),
        ("C->B.enabled = true\n", []),
    ],
)
def test_only_flows_that_the_file_disables_are_switched_off(
    tmp_path: Path, line: str, disabled: list[str]
) -> None:
    """Goal: a pair without a line may be the flow of another file, or was created by command."""
    file = tmp_path / "mm2.properties"
    file.write_text(f"{FILE}clusters = A, B, C\nC.bootstrap.servers = c:9092\n{line}")
    checked = check_file(file)
    assert checked.report.errors == ()
    [target], _ = run_parts(checked.flows, checked.clusters, disabled=checked.disabled)
    assert target.alias == "B"
    assert list(target.disabled) == disabled


KRB5 = "com.sun.security.auth.module.Krb5LoginModule required"
KERBEROS = "A.security.protocol = SASL_PLAINTEXT\nA.sasl.mechanism = GSSAPI\nA.sasl.jaas.config = "
TOKEN = "A.security.protocol = SASL_PLAINTEXT\nA.sasl.mechanism = OAUTHBEARER\n"
TLS = "A.security.protocol = SSL\nA.ssl.truststore.location = "
PROVIDERS = "".join(
    f"config.providers.{name}.class = org.apache.kafka.common.config.provider.{kind}\n"
    for name, kind in (
        ("file", "FileConfigProvider"),
        ("directory", "DirectoryConfigProvider"),
        ("env", "EnvVarConfigProvider"),
    )
)
NAMED = {
    "keyTab": (
        f'{KERBEROS}{KRB5} useKeyTab=true keyTab="FOLDER/x.keytab" principal="x@Y";',
        "FOLDER/x.keytab",
        None,
    ),
    "keyTab with its type": (
        f'{KERBEROS}{KRB5} useKeyTab=true keyTab="FILE:FOLDER/x.keytab" principal="x@Y";',
        "FOLDER/x.keytab",
        None,
    ),
    "relative keyTab": (
        f"{KERBEROS}{KRB5} useKeyTab=true keyTab=x.keytab principal=x@Y;",
        "FOLDER/x.keytab",
        None,
    ),
    "relative keyTab with its type": (
        f'{KERBEROS}{KRB5} useKeyTab=true keyTab="FILE:x.keytab" principal="x@Y";',
        "FOLDER/x.keytab",
        None,
    ),
    "ticketCache": (f'{KERBEROS}{KRB5} ticketCache="FOLDER/tickets";', "FOLDER/tickets", None),
    "tickets of the system": (f"{KERBEROS}{KRB5} useTicketCache=true;", None, "KRB5CCNAME"),
    "entry in a file": (
        f"{KERBEROS}${{file:FOLDER/a.properties:jaas}}",
        "FOLDER/a.properties,FOLDER/x.keytab",
        None,
    ),
    "entry in a relative file": (
        f"{KERBEROS}${{file:a.properties:jaas}}",
        "FOLDER/a.properties,FOLDER/x.keytab",
        None,
    ),
    "token": (
        f"{TOKEN}A.sasl.oauthbearer.token.endpoint.url = file://FOLDER/the%20token",
        "FOLDER/the token",
        None,
    ),
    "store": (f"{TLS}FOLDER/ca.pem", "FOLDER/ca.pem", None),
    "relative store": (f"{TLS}ca.pem", "FOLDER/ca.pem", None),
    "store with a way up": (f"{TLS}sub/../ca.pem", "FOLDER/ca.pem", None),
    "store by a variable": (f"{TLS}${{env:TS}}", "FOLDER/ca.pem", "TS"),
    "store by a directory": (
        f"{TLS}${{directory:FOLDER:where}}",
        "FOLDER/ca.pem,FOLDER/where",
        None,
    ),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with the files that `NAMED` names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TS", str(tmp_path / "ca.pem"))
    (tmp_path / "sub").mkdir()
    (tmp_path / "ca.pem").write_text("-----BEGIN CERTIFICATE-----")
    (tmp_path / "where").write_text(f"{tmp_path}/ca.pem")
    keytab = f'useKeyTab=true keyTab="{tmp_path}/x.keytab" principal="x@Y";'
    (tmp_path / "a.properties").write_text(f"jaas={KRB5} {keytab}\nrelative=ca.pem\n")
    return tmp_path


def checked_lines(folder: Path, lines: str) -> CheckedFlows:
    file = folder / "mm2.properties"
    providers = f"config.providers = file, directory, env\n{PROVIDERS}"
    file.write_text(f"{FILE}{providers}{lines}\n".replace("FOLDER", str(folder)))
    return check_file(file)


@pytest.mark.parametrize("name", NAMED)
def test_a_node_may_read_what_the_connection_of_a_flow_names(folder: Path, name: str) -> None:
    """Goal: a flow that a start stores connects by what its own node is allowed, and no more."""
    lines, paths, variables = NAMED[name]
    checked = checked_lines(folder, lines)
    assert checked.report.errors == ()
    [target], _ = run_parts(checked.flows, checked.clusters)
    expected = None if paths is None else paths.replace("FOLDER", str(folder))
    assert target.properties.get("mirror.allowed.paths") == expected
    assert target.properties.get("mirror.allowlist.pattern") == variables
    node = parse_config(target.properties).config
    [flow] = target.flows
    source, _ = check_properties(flow.properties, node.grants)
    assert source.security_now() == source.security
    for other in ("/etc/krb5.keytab", f"{folder}/other.keytab", f"{folder}/x.keytab2"):
        foreign = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "GSSAPI",
            "sasl.jaas.config": f'{KRB5} useKeyTab=true keyTab="{other}" principal="x@Y";',
        }
        with pytest.raises(UserError, match=r"is not within mirror\.allowed\.paths"):
            check_properties({**flow.properties, **foreign}, node.grants)


@pytest.mark.parametrize(
    "line",
    [
        f"{TLS}${{file:FOLDER/a.properties:relative}}",
        f"{TOKEN}A.sasl.oauthbearer.token.endpoint.url = file://FOLDER/sub/../token",
        f'{KERBEROS}{KRB5} ticketCache="FOLDER/a,b";',
    ],
)
def test_what_a_node_cannot_be_allowed_is_an_error_of_the_check(folder: Path, line: str) -> None:
    """Goal: it is reported before a flow is stored; by the setting, as the path may be a secret."""
    [error] = checked_lines(folder, line).report.errors
    key = line.splitlines()[-1].partition(" =")[0].removeprefix("A.")
    assert error.startswith(f"flow A->B: {key} leads to a file that a node cannot be allowed")
    assert str(folder) not in error


def test_a_node_s_own_store_may_be_relative_in_the_file(folder: Path) -> None:
    """Goal: executors, which may have another working directory, find it, too."""
    checked = checked_lines(folder, TLS.replace("A.", "B.") + "ca.pem")
    [target], _ = run_parts(checked.flows, checked.clusters)
    assert target.properties["ssl.truststore.location"] == f"{folder}/ca.pem"
    assert "mirror.allowed.paths" not in target.properties
