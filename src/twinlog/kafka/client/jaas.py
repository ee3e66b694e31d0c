r"""`sasl.jaas.config`: one login module and its options, in Java's syntax.

    org.apache.kafka.common.security.plain.PlainLoginModule required username="a" password="b";

A quoted value may contain any character; `"` and `\` are written `\"` and `\\`.
"""

import re
from collections.abc import Callable
from typing import Final

from twinlog.kafka.errors import UserError

_SHAPE: Final = re.compile(
    r"\s*([\w.$]+)\s+(required|requisite|sufficient|optional)\b(.*);\s*", re.S
)
_OPTION: Final = re.compile(r'\s*([\w.]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s";]+))', re.S)
_ESCAPE: Final = re.compile(r"\\(.)", re.S)
_TO_ESCAPE: Final = re.compile(r'["\\]')
_MODULES: Final = {
    "PLAIN": "PlainLoginModule",
    "SCRAM-SHA-256": "ScramLoginModule",
    "SCRAM-SHA-512": "ScramLoginModule",
    "GSSAPI": "Krb5LoginModule",
}


def parse_jaas(text: str, mechanism: str) -> dict[str, str]:
    """Return the options of the login module, which must be the one that `mechanism` needs.

    Raises:
        UserError: it is not one entry of that form. The text, which has secrets, is not repeated.
    """
    module, _, rest = _entry(text)
    required_module = _MODULES[mechanism]
    if module.rpartition(".")[2] != required_module:
        raise UserError(
            f"sasl.jaas.config names {module}: expected {required_module} for {mechanism}"
        )
    return _options(rest)


def with_values(text: str, change: Callable[[str, str], str]) -> str:
    """Replace each option's value by what `change` returns for its name and value.

    Raises:
        UserError: it is not one entry.
    """
    module, flag, rest = _entry(text)
    parts = [module, flag]
    for name, value in _options(rest).items():
        escaped = _TO_ESCAPE.sub(r"\\\g<0>", change(name, value))
        parts.append(f'{name}="{escaped}"')
    return f"{' '.join(parts)};"


def _entry(text: str) -> tuple[str, str, str]:
    shape = _SHAPE.fullmatch(text)
    if shape is None:
        raise UserError(
            'sasl.jaas.config: expected one entry `MODULE required NAME="VALUE" ...;`',
            hint="check the quotes, and that it ends with a semicolon",
        )
    module, flag, rest = shape.groups()
    return module, flag, rest


def _options(text: str) -> dict[str, str]:
    options: dict[str, str] = {}
    at = 0
    while text[at:].strip():
        option = _OPTION.match(text, at)
        if option is None:
            raise UserError(f"sasl.jaas.config: expected NAME=VALUE after {len(options)} options")
        name, quoted, plain = option.groups()
        options[name] = plain if quoted is None else _ESCAPE.sub(r"\1", quoted)
        at = option.end()
    return options
