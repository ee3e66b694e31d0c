"""What a mirror's properties may read: attacks by a writer of `__mirror_config`.

Each of them succeeds with `parse_config`, which is for a process's own configuration.
"""

import pickle
from pathlib import Path
from typing import Any

import pytest

from twinlog.kafka.client.configuration import parse_config, parse_source
from twinlog.kafka.client.references import EVERYTHING, NOTHING, Grants, parse_grants
from twinlog.kafka.client.security import TOKEN_URL
from twinlog.kafka.errors import Retriable, UserError

SECRET = "geheim"
ENVIRONMENT = {
    "NODE_SECRET": SECRET,
    "OF_SOURCE_NODE": SECRET,
    "SOURCE_PASSWORD": "source",
    "KRB5CCNAME": "FILE:/tickets",
}
BASE = {"bootstrap.servers": "foreign:1"}
PLAIN = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
TOKEN = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}
KERBEROS = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "GSSAPI"}
TLS = {"security.protocol": "SSL"}
KRB5 = "com.sun.security.auth.module.Krb5LoginModule required"


def jaas(password: str) -> dict[str, str]:
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    return {**PLAIN, "sasl.jaas.config": f'{module} required username="a" password="{password}";'}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Create two folders: `private` is the node's own, `mirrors` is for mirrors."""
    for name in ("private", "mirrors"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "secrets.properties").write_text(f"pw={SECRET}\n")
        (tmp_path / name / "pw").write_text(SECRET)
        (tmp_path / name / "store.pem").write_text("-----BEGIN CERTIFICATE-----")
    return tmp_path


ATTACKS: dict[str, dict[str, str]] = {
    "environment in the client id": {"client.id": "${env:NODE_SECRET}"},
    "file in the client id": {"client.id": "${file:PRIVATE/secrets.properties:pw}"},
    "environment in the password": jaas("${env:NODE_SECRET}"),
    "environment by a part of its name": jaas("${env:OF_SOURCE_NODE}"),
    "file in the password": jaas("${file:PRIVATE/secrets.properties:pw}"),
    "directory in the password": jaas("${directory:PRIVATE:pw}"),
    "way out of the allowed directory": jaas("${directory:MIRRORS/../private:pw}"),
    "way out by the name": jaas("${directory:MIRRORS:../private/pw}"),
    "absolute name": jaas("${directory:MIRRORS:PRIVATE/pw}"),
    "sibling of the allowed directory": jaas("${file:MIRRORSx/secrets.properties:pw}"),
    "relative path": jaas("${file:mirrors/secrets.properties:pw}"),
    "reference in the servers": {"bootstrap.servers": "${env:NODE_SECRET}:1"},
    "token file": {**TOKEN, TOKEN_URL: "file://PRIVATE/pw"},
    "escaped token file": {**TOKEN, TOKEN_URL: "file://MIRRORS/%2e%2e/private/pw"},
    "trust store": {**TLS, "ssl.truststore.location": "PRIVATE/store.pem"},
    "key store": {**TLS, "ssl.keystore.location": "PRIVATE/store.pem"},
    "keytab": {
        **KERBEROS,
        "sasl.jaas.config": f'{KRB5} useKeyTab=true keyTab="PRIVATE/pw" principal="a@B";',
    },
    "keytab with its type": {
        **KERBEROS,
        "sasl.jaas.config": f'{KRB5} useKeyTab=true keyTab="FILE:PRIVATE/pw" principal="a@B";',
    },
    "ticket cache": {**KERBEROS, "sasl.jaas.config": f'{KRB5} ticketCache="PRIVATE/pw";'},
    "tickets of the system": KERBEROS,
}


def _filled(properties: dict[str, str], folder: Path) -> dict[str, str]:
    named = {"PRIVATE": str(folder / "private"), "MIRRORS": str(folder / "mirrors")}
    for name, path in named.items():
        properties = {key: value.replace(name, path) for key, value in properties.items()}
    return {**BASE, **properties}


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("granted", [False, True])
def test_references_that_are_not_granted_are_refused(
    attack: str, granted: bool, folder: Path
) -> None:
    """It is refused also if other paths are granted; the error has the setting, and no secret."""
    some = parse_grants(
        {
            "mirror.allowed.paths": str(folder / "mirrors"),
            "mirror.allowlist.pattern": "SOURCE_.*",
        }
    )
    properties = _filled(ATTACKS[attack], folder)
    with pytest.raises(UserError) as caught:
        parse_source(properties, some if granted else NOTHING, ENVIRONMENT)
    message = str(caught.value)
    assert any(message.startswith(f"{key} of a mirror") for key in {**properties, **_JAAS}), message
    assert "--command-config" in message or "only sasl.*, ssl.* and basic.auth.*" in message
    assert SECRET not in message


_JAAS = {"sasl.jaas.config": ""}


@pytest.mark.parametrize(
    "properties",
    [
        jaas("${env:SOURCE_PASSWORD}"),
        jaas("${file:MIRRORS/secrets.properties:pw}"),
        jaas("${directory:MIRRORS:pw}"),
        {**TOKEN, TOKEN_URL: "file://MIRRORS/pw"},
        {**TLS, "ssl.keystore.location": "MIRRORS/store.pem"},
        {**KERBEROS, "sasl.jaas.config": f'{KRB5} ticketCache="MIRRORS/pw";'},
        KERBEROS,
    ],
)
def test_granted_references_are_read(properties: dict[str, str], folder: Path) -> None:
    """A grant is a path above the file, the file itself, or the name of a variable."""
    named = {"mirror.allowlist.pattern": "SOURCE_.*|KRB5CCNAME"}
    mirrors = folder / "mirrors"
    files = ",".join(str(mirrors / name) for name in ("secrets.properties", "pw", "store.pem"))
    for paths in (str(mirrors), f" {folder}/other, {mirrors}/ ", files):
        own = parse_config(BASE | named | {"mirror.allowed.paths": paths}, ENVIRONMENT)
        assert own.warnings == ()
        found = parse_source(_filled(properties, folder), own.config.grants, ENVIRONMENT)
        sent: Any = pickle.loads(pickle.dumps(found.config))
        assert sent.security_now() == found.config.security


def test_grants_apply_to_each_later_connection(folder: Path) -> None:
    """Each connection resolves references again, with the grants of the first one."""
    properties = _filled(jaas("${directory:MIRRORS:pw}"), folder)
    grants = parse_grants({"mirror.allowed.paths": str(folder / "mirrors")})
    config = parse_source(properties, grants, ENVIRONMENT).config
    assert config.client_properties is not None
    assert config.client_properties.grants == grants
    (folder / "mirrors" / "pw").unlink()
    with pytest.raises(Retriable, match="cannot resolve"):
        config.security_now()


def test_grants_in_the_properties_of_a_mirror_are_ignored(folder: Path) -> None:
    """The names of the grants count in a process's own configuration only."""
    own = {
        "mirror.allowed.paths": "/",
        "mirror.allowlist.pattern": ".*",
        "mirror.dataframes.enable": "true",
    }
    for grants in (NOTHING, EVERYTHING):
        assert parse_source(BASE | own, grants, ENVIRONMENT).config.grants == NOTHING
    with pytest.raises(UserError, match=r"is not within mirror\.allowed\.paths"):
        parse_source(_filled(jaas("${directory:PRIVATE:pw}"), folder) | own, NOTHING, ENVIRONMENT)


def test_code_of_flows_needs_a_grant() -> None:
    """Goal: whoever may write to `__mirror_config` runs no code on a node by default."""
    for properties, allowed in (({}, False), ({"mirror.dataframes.enable": " TRUE "}, True)):
        grants = parse_config(BASE | properties, ENVIRONMENT).config.grants
        assert grants.dataframes is allowed
    grants.check_dataframes()
    for refusing in (NOTHING, EVERYTHING):
        with pytest.raises(UserError, match=r"needs mirror\.dataframes\.enable=true"):
            refusing.check_dataframes()


def test_a_process_resolves_all_references_of_its_own_configuration(folder: Path) -> None:
    for properties in ({"client.id": "${env:NODE_SECRET}"}, jaas("${directory:PRIVATE:pw}")):
        parse_config(_filled(properties, folder), ENVIRONMENT)


def test_the_configuration_file_of_a_command_may_use_any_reference(folder: Path) -> None:
    """The command is `--create`; a reference that nodes never resolve is refused there already."""
    parse_source(_filled(jaas("${directory:PRIVATE:pw}"), folder), EVERYTHING, ENVIRONMENT)
    with pytest.raises(UserError, match=r"client\.id of a mirror contains the reference"):
        parse_source(_filled({"client.id": "${env:NODE_SECRET}"}, folder), EVERYTHING, ENVIRONMENT)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("mirror.dataframes.enable", "yes"),
        ("mirror.allowed.paths", "secrets"),
        ("mirror.allowed.paths", "/etc/../root"),
        ("mirror.allowlist.pattern", "("),
    ],
)
def test_malformed_grants_are_named(key: str, value: str) -> None:
    with pytest.raises(UserError, match=key):
        parse_config({**BASE, key: value}, {})


def test_a_path_behind_a_reference_is_not_shown(folder: Path) -> None:
    (folder / "mirrors" / "where").write_text("/very/private")
    properties = {**TLS, "ssl.keystore.location": "${directory:MIRRORS:where}"}
    grants = parse_grants({"mirror.allowed.paths": str(folder / "mirrors")})
    with pytest.raises(UserError, match=r"ssl\.keystore\.location of a mirror: its file") as caught:
        parse_source(_filled(properties, folder), grants, {})
    assert "/very/private" not in str(caught.value)


def test_nothing_is_granted_by_default() -> None:
    assert parse_grants({}) == Grants() == parse_config(BASE, {}).config.grants == NOTHING
