"""The rights that docs/security.md grants, parsed from its `kafka-acls` commands."""

import argparse
import re
import shlex

from checkout import DOCS

from twinlog.kafka.acls import Acl, Operation, PatternType, Permission, ResourceType

PAGE = DOCS / "security.md"
_PARSER = argparse.ArgumentParser(exit_on_error=False)
_PARSER.add_argument("--bootstrap-server", required=True)
_PARSER.add_argument("--add", action="store_true", required=True)
_PARSER.add_argument("--allow-principal", required=True)
_PARSER.add_argument("--operation", action="append", required=True)
_PARSER.add_argument("--resource-pattern-type", default="literal")
_WHAT = _PARSER.add_mutually_exclusive_group(required=True)
for _name in ("topic", "group", "transactional-id"):
    _WHAT.add_argument(f"--{_name}")
_WHAT.add_argument("--cluster", action="store_const", const="kafka-cluster")


def granted(principal: str, where: str = "") -> list[Acl]:
    """Return what the page grants a principal, in order; `where`: `source` or `destination`."""
    found: list[Acl] = []
    begin = f"kafka-acls --bootstrap-server {where}"
    for line in PAGE.read_text().splitlines():
        if line.startswith(begin) and f" --allow-principal {principal} " in line:
            found += _acls(shlex.split(line)[1:])
    assert found, f"{PAGE.name} grants {principal} nothing"
    return found


def _acls(arguments: list[str]) -> list[Acl]:
    told = _PARSER.parse_args(arguments)
    kinds = {
        ResourceType.TOPIC: told.topic,
        ResourceType.GROUP: told.group,
        ResourceType.TRANSACTIONAL_ID: told.transactional_id,
        ResourceType.CLUSTER: told.cluster,
    }
    ((kind, name),) = ((kind, name) for kind, name in kinds.items() if name)
    pattern = PatternType[told.resource_pattern_type.upper()]
    operations = [re.sub("(?<=[a-z])(?=[A-Z])", "_", text).upper() for text in told.operation]
    return [
        Acl(kind, name, pattern, told.allow_principal, "*", Operation[text], Permission.ALLOW)
        for text in operations
    ]
