"""Kafka's property files: what works there works with twinlog; errors are named."""

import errno
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from leaks import exposed_text

from twinlog.kafka.client.configuration import Address, ClusterConfig, parse_config, read_properties
from twinlog.kafka.client.jaas import parse_jaas
from twinlog.kafka.client.security import TOKEN_URL, Kerberos, Sasl, Tls
from twinlog.kafka.errors import Retriable, UserError

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
BASE = {"bootstrap.servers": "a:1"}
JAAS = f'{PLAIN} required username="a" password="{{}}";'
SECRET = "geheim"


def config(**properties: str) -> ClusterConfig:
    named = {key.replace("_", "."): value for key, value in properties.items()}
    return parse_config(BASE | named, {}).config


def test_bootstrap_servers_alone_are_sufficient() -> None:
    parsed = parse_config({"bootstrap.servers": " kafka1:9092, [::1]:9093,PLAINTEXT://b:3 "}, {})
    assert parsed.config.bootstrap_servers == (
        Address("kafka1", 9092),
        Address("::1", 9093),
        Address("b", 3),
    )
    assert parsed.warnings == ()
    assert str(parsed.config.bootstrap_servers[1]) == "[::1]:9093"


def test_numeric_settings_are_converted_to_seconds_and_bytes() -> None:
    parsed = config(
        request_timeout_ms="1500",
        metadata_max_age_ms="1000",
        socket_receive_buffer_bytes="65536",
        send_buffer_bytes="-1",
        client_id="me",
        tcp_user_timeout_ms="500",
    )
    assert parsed.request_timeout == 1.5
    assert parsed.metadata_max_age == 1.0
    assert parsed.receive_buffer == 65536
    assert parsed.options().user_timeout == 0.5
    assert parsed.options().client_id == "me"


def test_unused_settings_are_named() -> None:
    parsed = parse_config(BASE | {"group.id": "g", "acks": "all"}, {})
    assert parsed.warnings == ("acks is not used by twinlog", "group.id is not used by twinlog")


@pytest.mark.parametrize(
    ("protocol", "mechanism", "module", "warned"),
    [
        ("SASL_PLAINTEXT", "PLAIN", PLAIN, True),
        ("SASL_SSL", "PLAIN", PLAIN, False),
        ("SASL_PLAINTEXT", "SCRAM-SHA-512", "ScramLoginModule", False),
    ],
)
def test_a_password_in_clear_text_is_a_warning(
    protocol: str, mechanism: str, module: str, warned: bool
) -> None:
    """A TLS setting that would not hold is a warning, too."""
    properties = {
        "security.protocol": protocol,
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f'{module} required username="a" password="{SECRET}";',
        "ssl.cipher.suites": "TLS_AES_256_GCM_SHA384",
    }
    warnings = parse_config(BASE | properties, {}).warnings
    assert "ssl.cipher.suites is not used by twinlog" in warnings
    assert any("clear text" in warning for warning in warnings) is warned
    assert SECRET not in str(warnings)


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("bootstrap.servers", "", "HOST:PORT"),
        ("bootstrap.servers", "host", "HOST:PORT"),
        ("bootstrap.servers", "host:0", "from 1 to 65535"),
        ("bootstrap.servers", "host:99999", "from 1 to 65535"),
        ("request.timeout.ms", "soon", "a whole number from 1"),
        ("request.timeout.ms", "0", "a whole number from 1"),
        ("send.buffer.bytes", "-2", "a whole number from -1"),
        ("security.protocol", "TLS", "PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
    ],
)
def test_invalid_values_are_named_with_the_allowed_values(
    key: str, value: str, allowed: str
) -> None:
    with pytest.raises(UserError) as caught:
        parse_config(BASE | {key: value}, {})
    message = str(caught.value)
    assert message.startswith(key)
    assert repr(value) in message
    assert allowed in message


def test_secrets_are_resolved_from_references(tmp_path: Path) -> None:
    secrets = tmp_path / "secrets.properties"
    secrets.write_text("pw=from file\n")
    (tmp_path / "name").write_text("alice\n")
    jaas = (
        f'{PLAIN} required username="${{directory:{tmp_path}:name}}" '
        f'password="${{file:{secrets}:pw}}-${{env:SUFFIX}}";'
    )
    properties = BASE | {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": jaas,
    }
    parsed = parse_config(properties, {"SUFFIX": "x"}).config
    assert parsed.security.sasl == Sasl(mechanism="PLAIN", username="alice", password="from file-x")
    assert "from file" not in repr(parsed)
    assert pickle.loads(pickle.dumps(parsed)) == parsed


def test_references_are_resolved_for_each_connection(tmp_path: Path) -> None:
    """Parsed properties and environment stay; a missing reference target may come back."""
    (tmp_path / "pw").write_text("one")
    environment = {"NAME": "alice"}
    jaas = f'{PLAIN} required username="${{env:NAME}}" password="${{directory:{tmp_path}:pw}}";'
    properties = BASE | {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": jaas,
    }
    parsed = parse_config(properties, environment).config
    properties.clear()
    (tmp_path / "pw").write_text("two")
    sasl = parsed.security_now().sasl
    assert sasl == Sasl(mechanism="PLAIN", username="alice", password="two")
    (tmp_path / "pw").unlink()
    with pytest.raises(Retriable, match=r"sasl\.jaas\.config: cannot resolve"):
        parsed.security_now()
    (tmp_path / "pw").write_text("three")
    assert pickle.loads(pickle.dumps(parsed)).security_now().sasl.password == "three"
    assert "three" not in repr(parsed)


def test_literal_secrets_are_not_shown() -> None:
    named = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    parsed = parse_config(BASE | named | {"sasl.jaas.config": JAAS.format(SECRET)})
    assert SECRET not in repr(parsed)
    assert parsed.config.security_now() == parsed.config.security


@pytest.mark.parametrize(
    ("reference", "why"),
    [
        ("${env:GONE}", "environment variable GONE is not set"),
        ("${file:/nowhere:key}", "/nowhere does not exist or is not a file"),
        ("${file:HERE/secrets:key}", "the file has no key 'key'"),
        ("${file:key}", ": expected PATH:NAME"),
        ("${directory:/nowhere:key}", "/nowhere/key does not exist or is not a file"),
        ("${directory:HERE:key}", "HERE/key does not exist or is not a file"),
    ],
)
def test_unresolvable_references_are_named(reference: str, why: str, tmp_path: Path) -> None:
    """The missing part is named: the file, or its content. Other values are not shown."""
    (tmp_path / "secrets").write_text("other=hidden\n")
    reference, why = (text.replace("HERE", str(tmp_path)) for text in (reference, why))
    with pytest.raises(UserError) as caught:
        parse_config(BASE | {"client.id": f"before-{reference}"}, {})
    message = str(caught.value)
    assert message.startswith("client.id")
    assert reference in message
    assert message.endswith(why)
    assert "hidden" not in message
    assert "before" not in message


def _exposed_text(properties: dict[str, str], environment: dict[str, str] | None = None) -> str:
    """Return all texts about invalid properties; the error's message comes first."""
    plain = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    with pytest.raises(UserError) as caught:
        parse_config(BASE | plain | properties, environment or {})
    return f"{caught.value}\n{exposed_text(caught.value)}"


@pytest.mark.parametrize(
    ("reference", "reason"),
    [
        ("${directory:FOLDER:bytes}", ": not valid UTF-8"),
        ("${directory:FOLDER:" + "n" * 300 + "}", "File name too long"),
        ("${directory:FOLDER:forbidden}", "Permission denied"),
        ("${file:FOLDER/bytes:pw}", ": not valid UTF-8"),
        ("${file:FOLDER/gone:pw}", "/gone does not exist or is not a file"),
        ("${file:FOLDER/forbidden:pw}", "Permission denied"),
        ("${env:GONE}", "cannot resolve"),
    ],
)
def test_an_unreadable_reference_is_a_user_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference: str, reason: str
) -> None:
    """The error names the setting and the cause, and nothing of the content."""
    (tmp_path / "bytes").write_bytes(b"pw=" + SECRET.encode() + b"\xff")
    (tmp_path / "forbidden").write_text(f"pw={SECRET}")
    opened = Path.open

    def guarded(path: Path, *arguments: Any, **named: Any) -> Any:
        # Permissions do not limit root, who runs tests in containers.
        if path.name == "forbidden":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return opened(path, *arguments, **named)

    monkeypatch.setattr(Path, "open", guarded)
    said = _exposed_text(
        {"sasl.jaas.config": JAAS.format(reference.replace("FOLDER", str(tmp_path)))}
    )
    assert said.startswith("sasl.jaas.config: ")
    assert reason in said
    assert SECRET not in said


def test_certificates_that_are_not_ascii_are_a_user_error() -> None:
    with pytest.raises(UserError, match=r"ssl\.truststore\.certificates: .* not ASCII"):
        Tls(trusted=f"# {SECRET} \xe9\n-----BEGIN CERTIFICATE-----").context()


def test_a_secret_that_is_not_utf_8_is_not_shown(tmp_path: Path) -> None:
    """The secret is from the environment, from a file, or written out."""
    file = tmp_path / "secrets.properties"
    file.write_text(f"escape={SECRET}\\ud800\n")
    references = ("${env:PW}", f"${{file:{file}:escape}}", f"{SECRET}\ud800")
    for password in references:
        said = _exposed_text({"sasl.jaas.config": JAAS.format(password)}, {"PW": f"{SECRET}\udcff"})
        assert said.startswith(
            "sasl.jaas.config, or the value that it refers to, is not valid UTF-8"
        )
        assert SECRET not in said
        assert "udcff" not in said


@pytest.mark.parametrize(
    ("content", "reason"), [(b"\xff", "not valid UTF-8"), (b"\\u12zz", "InvalidUEscapeError")]
)
def test_the_content_of_an_invalid_properties_file_is_not_shown(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    file = tmp_path / "secrets.properties"
    file.write_bytes(b"pw=" + SECRET.encode() + content)
    said = _exposed_text({"sasl.jaas.config": JAAS.format(f"${{file:{file}:pw}}")})
    assert f"cannot read properties from {file}: {reason}" in said
    for secret in (SECRET, "u12zz", "xff"):
        assert secret not in said


@pytest.mark.parametrize(
    "key",
    [
        "bootstrap.servers",
        "request.timeout.ms",
        "send.buffer.bytes",
        "security.protocol",
        "sasl.mechanism",
    ],
)
def test_a_secret_in_the_wrong_place_is_not_shown(key: str) -> None:
    """A bad value is named as written in the properties."""
    said = _exposed_text({key: "${env:PW}"}, {"PW": SECRET})
    assert said.startswith(f"{key} is '${{env:PW}}': expected ")
    assert SECRET not in said


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("ssl.truststore.location", "${env:PW}"),
        ("ssl.truststore.type", "${env:PW}"),
        ("ssl.keystore.location", f"-----BEGIN PRIVATE KEY----- {SECRET}"),
        ("ssl.endpoint.identification.algorithm", "${env:PW}"),
    ],
)
def test_a_secret_in_the_wrong_place_of_tls_is_not_shown(key: str, value: str) -> None:
    said = _exposed_text({"security.protocol": "SSL", key: value}, {"PW": SECRET})
    assert said.startswith(f"{key} is ")
    assert SECRET not in said


def test_a_reference_with_an_unknown_provider_is_not_shown() -> None:
    """It may be a part of a password."""
    said = _exposed_text({"sasl.jaas.config": JAAS.format(f"${{{SECRET}:x}}")})
    assert said.startswith(
        "sasl.jaas.config has a reference with an unknown provider: expected ${env:"
    )
    assert SECRET not in said


def test_a_password_in_an_url_is_not_shown() -> None:
    properties = {"sasl.mechanism": "OAUTHBEARER", TOKEN_URL: f"https://a:{SECRET}@host/token"}
    said = _exposed_text(properties)
    assert said.startswith(TOKEN_URL)
    assert SECRET not in said


def test_a_key_that_is_not_utf_8_is_not_shown(tmp_path: Path) -> None:
    identity = tmp_path / "identity.pem"
    identity.write_text("-----BEGIN")
    for tls in (
        Tls(key=f"{SECRET}\udcff", chain=""),
        Tls(identity_file=str(identity), key_password=f"{SECRET}\udcff"),
    ):
        with pytest.raises(UserError, match=r"ssl\.keystore") as caught:
            tls.context()
        assert SECRET not in exposed_text(caught.value)
        assert "udcff" not in exposed_text(caught.value)


def test_a_dollar_without_provider_is_kept() -> None:
    assert config(client_id="a${b}c").client_id == "a${b}c"


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (f"{PLAIN} required;", {}),
        (f"{PLAIN} required username=a password=b;", {"username": "a", "password": "b"}),
        (rf'{PLAIN} required password="a\"b\\;= c" ;', {"password": 'a"b\\;= c'}),
        (f'{PLAIN}\n required\n username="a"\n;\n', {"username": "a"}),
    ],
)
def test_jaas_entries_are_parsed(text: str, options: dict[str, str]) -> None:
    assert parse_jaas(text, "PLAIN") == options


@pytest.mark.parametrize(
    "text",
    [
        "",
        f'{PLAIN} required password="geheim"',
        f'{PLAIN} password="geheim";',
        f'{PLAIN} required "geheim";',
        'a.ScramLoginModule required password="geheim";',
    ],
)
def test_invalid_jaas_is_refused_without_showing_secrets(text: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_jaas(text, "PLAIN")
    assert "geheim" not in str(caught.value)


def test_sasl_needs_name_and_password() -> None:
    with pytest.raises(UserError, match="needs a username and a password for PLAIN"):
        config(
            security_protocol="SASL_SSL",
            sasl_mechanism="PLAIN",
            sasl_jaas_config=f"{PLAIN} required;",
        )


def test_scram_names_are_escaped() -> None:
    """RFC 5802: kafka-python puts the name into the message unescaped."""
    sasl = Sasl(mechanism="SCRAM-SHA-256", username="a=b,c", password="p")
    assert sasl.mechanism_options()["sasl_plain_username"] == "a=3Db=2Cc"


def _kerberos(options: str, **properties: str) -> Kerberos:
    module = "com.sun.security.auth.module.Krb5LoginModule required"
    security = config(
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="GSSAPI",
        sasl_jaas_config=f"{module} {options};",
        **properties,
    ).security
    assert security.sasl is not None
    return security.sasl.kerberos


def test_kerberos_options_have_the_meaning_of_java() -> None:
    """The options give the tickets' origin and principal; other options have no effect."""
    keytab = 'useKeyTab=true storeKey=true keyTab="FILE:/etc/k" principal="m@R"'
    wanted = Kerberos(service="kafka", principal="m@R", keytab="/etc/k")
    assert _kerberos(keytab) == wanted
    assert _kerberos(f"{keytab} serviceName=broker").service == "broker"
    named = _kerberos(f"{keytab} serviceName=broker", sasl_kerberos_service_name="other")
    assert named.service == "other"
    cached = _kerberos('useTicketCache=true ticketCache="FILE:/tmp/c"')
    assert cached == Kerberos(ticket_cache="/tmp/c")
    assert _kerberos('useKeyTab=false keyTab="/etc/k"') == Kerberos()


@pytest.mark.parametrize("options", ['keyTab="/etc/k"', 'principal="m@R"'])
def test_a_keytab_without_a_principal_is_refused(options: str) -> None:
    with pytest.raises(UserError, match="needs keyTab and principal for useKeyTab=true"):
        _kerberos(f"useKeyTab=True {options}")


def test_the_oauth_token_is_read_from_the_file_each_time(tmp_path: Path) -> None:
    token = tmp_path / "a token"
    token.write_text("one\n")
    parsed = parse_config(
        BASE
        | {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url": f"file://{str(token).replace(' ', '%20')}",
        },
        {},
    ).config
    assert parsed.security.sasl is not None
    provider = parsed.security.sasl.mechanism_options()["sasl_oauth_token_provider"]
    assert provider.token() == "one"
    token.write_text("two")
    assert provider.token() == "two"


def test_oauth_over_http_is_refused() -> None:
    with pytest.raises(UserError, match="file:///PATH"):
        parse_config(
            BASE
            | {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.oauthbearer.token.endpoint.url": "https://login.example",
            },
            {},
        )


def test_stores_that_are_not_pem_are_refused(tmp_path: Path) -> None:
    jks = tmp_path / "trust.jks"
    jks.write_bytes(b"\xfe\xed\xfe\xed")
    for properties in (
        {"ssl.truststore.location": str(jks)},
        {"ssl.truststore.location": str(jks), "ssl.truststore.type": "JKS"},
        {"ssl.keystore.type": "PKCS12"},
    ):
        with pytest.raises(UserError, match="openssl pkcs12"):
            parse_config(BASE | {"security.protocol": "SSL"} | properties, {})
    missing = {"ssl.truststore.location": str(tmp_path / "gone")}
    with pytest.raises(UserError, match="No such file"):
        parse_config(BASE | {"security.protocol": "SSL"} | missing, {})


def test_invalid_pem_files_are_refused(tmp_path: Path) -> None:
    fake = tmp_path / "fake.pem"
    fake.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    with pytest.raises(UserError, match=r"ssl\.truststore"):
        Tls(trusted_file=str(fake)).context()
    with pytest.raises(UserError, match=r"ssl\.keystore"):
        Tls(identity_file=str(fake)).context()


def test_hostnames_are_verified_unless_disabled() -> None:
    assert Tls().context().check_hostname
    parsed = config(security_protocol="SSL", ssl_endpoint_identification_algorithm="")
    assert parsed.security.tls is not None
    assert not parsed.security.tls.context().check_hostname


def test_properties_files_are_read_as_by_java(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text("# a comment\nbootstrap.servers = a:1,\\\n  b:2\n! another\nclient.id:x\n")
    parsed = parse_config(read_properties(path), {}).config
    assert parsed.bootstrap_servers == (Address("a", 1), Address("b", 2))
    assert parsed.client_id == "x"
    with pytest.raises(UserError, match=r"cannot read properties from .*gone"):
        read_properties(tmp_path / "gone")
