"""What the flows of a file refer to; those of whole files are in node/test_flow_targets.py."""

from pathlib import Path

import pytest

from twinlog.kafka.errors import UserError
from twinlog.lifecycle.flow_references import grants_of, with_absolute_paths

BASE = {"bootstrap.servers": "a:9092"}
REGISTRY = "mirror.flow.twinlog.transform.registry"


def test_a_path_becomes_that_of_the_file_that_it_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: `..` behind a link is the parent of where the link leads; the file's own link stays.

    Such a link is how a certificate is exchanged.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "far" / "deep").mkdir(parents=True)
    (tmp_path / "far" / "new.pem").touch()
    (tmp_path / "far" / "current").symlink_to("new.pem")
    (tmp_path / "link").symlink_to("far/deep")
    for written, stored in (
        ("link/../current", f"{tmp_path}/far/current"),
        ("far/current", f"{tmp_path}/far/current"),
        ("/a/current", "/a/current"),
        ("${env:STORE}", "${env:STORE}"),
        ("${file:far/a:store}", f"${{file:{tmp_path}/far/a:store}}"),
    ):
        for name in ("ssl.keystore.location", f"{REGISTRY}.ssl.keystore.location"):
            assert with_absolute_paths({name: written}) == {name: stored}


def test_what_has_no_relative_path_stays_as_it_is_written() -> None:
    """Goal: a stored flow is not changed by a start of a later version."""
    properties = {
        "client.id": "${file:a:b}",
        "sasl.jaas.config": 'x.Krb5LoginModule  required keyTab=/a  principal="${env:P}"; ',
        "mirror.flow.topics": "a, b",
        f"{REGISTRY}.url": "http://a:1/${file:a:b}",
    }
    assert with_absolute_paths(properties) == properties
    malformed = {"sasl.jaas.config": "keyTab=a"}
    assert with_absolute_paths(malformed) == malformed


def test_a_registry_s_store_that_a_reference_names_is_granted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: lanes may open it; what is missing now may be there when a lane asks for it."""
    location = {f"{REGISTRY}.ssl.truststore.location": "${env:REGISTRY_CA}"}
    user = {f"{REGISTRY}.basic.auth.user.info": "${directory:/missing:user}"}
    monkeypatch.delenv("REGISTRY_CA", raising=False)
    assert grants_of([BASE | location | user]) == {
        "mirror.allowed.paths": "/missing",
        "mirror.allowlist.pattern": "REGISTRY_CA",
    }
    monkeypatch.setenv("REGISTRY_CA", "/missing/ca.pem")
    assert grants_of([BASE | location])["mirror.allowed.paths"] == "/missing/ca.pem"
    monkeypatch.setenv("REGISTRY_CA", "ca.pem")
    with pytest.raises(UserError, match=r"registry\.ssl\.truststore\.location leads to a file"):
        grants_of([BASE | location])


def test_several_flows_are_granted_what_each_of_them_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A.B", "u")
    store = tmp_path / "ca.pem"
    store.write_text("-----BEGIN CERTIFICATE-----")
    tls = {**BASE, "security.protocol": "SSL", "ssl.truststore.location": str(store)}
    key = {**tls, "ssl.key.password": "${env:A.B}"}
    assert grants_of([BASE]) == {}
    assert grants_of([BASE, tls, key]) == {
        "mirror.allowed.paths": str(store),
        "mirror.allowlist.pattern": r"A\.B",
    }
