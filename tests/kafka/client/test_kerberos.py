"""Twin of twinlog.kafka.client.kerberos: GSSAPI on a real KDC (`make kerberos`)."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from twinlog.kafka.client import kerberos
from twinlog.kafka.client.security import Kerberos


def cache(principal: str, keytab: Path) -> str:
    """Return the path of the ticket cache of such a connection."""
    library: Any = SimpleNamespace(
        Name=lambda name, _kind: name,
        NameType=SimpleNamespace(kerberos_principal=None),
        Credentials=lambda **asked: asked["store"]["ccache"],
    )
    config = Kerberos(principal=principal, keytab=str(keytab))
    return str(kerberos._credentials(library, config))


def test_ticket_caches_are_separate_per_principal_and_keytab(tmp_path: Path) -> None:
    """A mirror's properties name the node's principal, and some file that they may read.

    Goal: the tickets that the node has by its own keytab stay in a cache of their own. Existing
    tickets are used without a check of the keytab.
    """
    own, granted = tmp_path / "node.keytab", tmp_path / "anything"
    for file in (own, granted):
        file.write_bytes(b"")
    assert cache("node@R", own) == cache("node@R", own), "one ticket for all its connections"
    assert cache("node@R", granted) != cache("node@R", own)
    assert cache("mirror@R", own) != cache("node@R", own)
