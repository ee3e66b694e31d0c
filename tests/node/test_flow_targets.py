"""From the flows of a file to what runs them."""

from pathlib import Path

import pytest

from twinlog.kafka.errors import UserError
from twinlog.mirror.flow import flow_of
from twinlog.node.flow_targets import run_parts
from twinlog.operations.mirror_maker import check_file

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
    ],
)
def test_the_check_reports_what_the_start_refuses(tmp_path: Path, line: str) -> None:
    """Goal: a file without errors can be run, and a file that cannot be run has errors."""
    file = tmp_path / "mm2.properties"
    file.write_text(f"{FILE}{line}\n")
    checked = check_file(file)
    refused = False
    try:
        run_parts(checked.flows, checked.clusters)
    except UserError:
        refused = True
    copied = [flow for flow in checked.flows if flow.settings.enabled]
    assert bool(checked.report.errors) == (refused or not copied)


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
