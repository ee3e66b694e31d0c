"""Twin of twinlog.kafka.client.redaction: the printed form of a mirror's properties."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinlog.kafka.client.redaction import HIDDEN, shown

MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("bootstrap.servers", "source:9092", "source:9092"),
        ("ssl.truststore.location", "/ca.pem", "/ca.pem"),
        ("ssl.key.password", "geheim", HIDDEN),
        ("ssl.key.password", "", HIDDEN),
        ("ssl.keystore.key", "-----BEGIN", HIDDEN),
        ("ssl.key.password", "${file:/s:pw}", "${file:/s:pw}"),
        ("ssl.key.password", "${file:/s:pw}geheim", HIDDEN),
        ("ssl.key.password", "${vault:geheim}", HIDDEN),
        ("mirror.flow.twinlog.transform.registry.basic.auth.user.info", "a:geheim", HIDDEN),
        ("twinlog.transform.registry.basic.auth.user.info", "${file:/s:u}", "${file:/s:u}"),
        ("sasl.oauthbearer.client.credentials.client.secret", "geheim", HIDDEN),
        (
            "sasl.jaas.config",
            f'{MODULE} username="a" password="geheim";',
            f'{MODULE} username="a" password="[hidden]";',
        ),
        (
            "sasl.jaas.config",
            f'{MODULE} username="${{env:U}}" password="${{env:PW}}" ;',
            f'{MODULE} username="${{env:U}}" password="${{env:PW}}";',
        ),
        (
            "sasl.jaas.config",
            rf'{MODULE} username="a\"\\b" password=x;',
            rf'{MODULE} username="a\"\\b" password="[hidden]";',
        ),
        ("sasl.jaas.config", f'{MODULE} password="geheim"', HIDDEN),
        ("sasl.jaas.config", "${env:JAAS}", HIDDEN),
    ],
)
def test_only_secret_values_are_redacted(key: str, value: str, expected: str) -> None:
    assert shown({key: value}) == {key: expected}


@given(st.text(), st.text())
def test_secrets_of_login_modules_are_redacted(before: str, after: str) -> None:
    """The surroundings do not matter: an invalid entry is hidden as a whole."""
    entry = f'{MODULE} {before} password="geheim" {after};'
    assert "geheim" not in shown({"sasl.jaas.config": entry})["sasl.jaas.config"]
