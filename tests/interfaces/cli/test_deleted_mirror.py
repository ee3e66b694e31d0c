"""`kafka-mirrors --delete`: what of a mirror stays on the destination, without a cluster."""

import asyncio
from typing import Any

import pytest

from twinlog.interfaces.cli.kafka_mirrors import ACTIONS, Arguments
from twinlog.operations.results import DeleteMirrorResult

ACL = "ALLOW User:app READ on TOPIC orders"


class Admin:
    """A destination whose mirror has copied one ACL."""

    async def delete_mirror(self, mirror: str) -> DeleteMirrorResult:
        return DeleteMirrorResult(mirror=mirror, copied_acls=(ACL,))


def test_delete_names_the_copied_acls_that_remain(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Goal: an operator and a program see the ACLs that stay (D11)."""
    admin: Any = Admin()
    asyncio.run(ACTIONS["delete"].run(admin, Arguments(mirror="m")))
    out, err = capsys.readouterr()
    assert out == "Deleted mirror m\n"
    assert "1 ACL(s) that were copied from the source stay" in err
    assert err.splitlines()[-1] == ACL
    asyncio.run(ACTIONS["delete"].run(admin, Arguments(mirror="m", as_json=True)))
    assert ACL in capsys.readouterr().out
