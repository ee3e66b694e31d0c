"""Twin of config_providers.py."""

import pytest

from twinlog.kafka.errors import UserError
from twinlog.mirror.config_providers import parse_providers, rewrite

PACKAGE = "org.apache.kafka.common.config.provider."
DECLARED = {
    "config.providers": "secrets, dir,env",
    "config.providers.secrets.class": f"{PACKAGE}FileConfigProvider",
    "config.providers.dir.class": f"{PACKAGE}DirectoryConfigProvider",
    "config.providers.env.class": f"{PACKAGE}EnvVarConfigProvider",
}
LIMITED = {
    **DECLARED,
    "config.providers.secrets.param.allowed.paths": "/etc/kafka, /run",
    "config.providers.dir.param.allowed.paths": "/etc",
    "config.providers.env.param.allowlist.pattern": "MM2_.*",
}


@pytest.mark.parametrize(
    ("value", "rewritten"),
    [
        ("plain", "plain"),
        ("${x}", "${x}"),
        ("a ${secrets:/etc/kafka/a:pw} b", "a ${file:/etc/kafka/a:pw} b"),
        ("${dir:/etc/d:name}${env:MM2_A}", "${directory:/etc/d:name}${env:MM2_A}"),
    ],
)
def test_references_get_the_names_of_twinlog(value: str, rewritten: str) -> None:
    assert rewrite(value, parse_providers(DECLARED)) == rewritten
    assert rewrite(value, parse_providers(LIMITED)) == rewritten


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("${file:/a:b}", "declares, not 'file'"),
        ("${secrets:b}", r"expected \$\{secrets:PATH:KEY\}"),
        ("${secrets:/a:b:c}", "without further colons"),
        ("${env:x:MM2_A}", r"expected \$\{env:VARIABLE\}"),
        ("${env:HOME}", "allowlist.pattern"),
        ("${secrets:/home/a:b}", "allowed.paths"),
        ("${secrets:/etc/kafka/../shadow:b}", "allowed.paths"),
        ("${dir:/home:b}", "allowed.paths"),
    ],
)
def test_a_reference_that_is_refused(value: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        rewrite(f"password {value}", parse_providers(LIMITED))
    assert "password" not in caught.value.message


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"config.providers": "a"}, r"config\.providers\.a\.class is '': expected one of"),
        ({"config.providers": "a", "config.providers.a.class": "x.Vault"}, "cannot load other"),
        ({"config.providers": "a,a"}, "without duplicates"),
        (
            {**DECLARED, "config.providers.env.param.allowlist.pattern": "("},
            r"allowlist\.pattern: expected a regular expression",
        ),
    ],
)
def test_a_declaration_that_is_refused(properties: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_providers(properties)
