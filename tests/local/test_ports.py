"""Twin of twinlog.local.ports: two claims never overlap, however their holders end."""

import os
import secrets
import socket
from contextlib import suppress

import pytest

from twinlog.local import ports
from twinlog.local.errors import LocalError
from twinlog.local.ports import HOST, PortClaim


def test_port_claims_do_not_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a range of as many ports as two claims take, each port has one owner."""
    first, second = None, None
    _narrow(monkeypatch, 8)
    try:
        first, second = PortClaim.fresh(4), PortClaim.fresh(2)
        assert not set(first.ports) & set(second.ports)
    finally:
        for claim in (first, second):
            if claim is not None:
                claim.close()


def test_a_bound_port_is_not_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port that any program listens on is not claimed."""
    start = _narrow(monkeypatch, 1)
    with socket.socket() as other:
        other.bind((HOST, start))
        with pytest.raises(LocalError, match="no 1 free ports"):
            PortClaim.fresh(1)


def test_the_ports_of_a_closed_claim_can_be_claimed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The only port of a range can be claimed, closed and claimed again, but not twice at once."""
    _narrow(monkeypatch, 1)
    first = PortClaim.fresh(1)
    known = first.ports
    assert PortClaim.again(known).ports == ()
    first.close()
    again = PortClaim.again(known)
    assert again.ports == known
    again.close()
    PortClaim.fresh(1).close()


def test_an_inherited_descriptor_keeps_the_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that outlives the process that claimed its port holds the claim."""
    _narrow(monkeypatch, 1)
    claim = PortClaim.fresh(1)
    inherited = os.dup(claim.descriptors[0])
    claim.close()
    with pytest.raises(LocalError):
        PortClaim.fresh(1)
    os.close(inherited)
    PortClaim.fresh(1).close()


def _narrow(monkeypatch: pytest.MonkeyPatch, count: int) -> int:
    """Make the range of ports small, at a free place below those of systems and other claims."""
    start = 0
    while not start or not all(_free(port) for port in range(start, start + count)):
        start = 10_000 + secrets.randbelow(9000)
    monkeypatch.setattr(ports, "FIRST", start)
    monkeypatch.setattr(ports, "END", start + count)
    return start


def _free(port: int) -> bool:
    with socket.socket() as probe, suppress(OSError):
        probe.bind((HOST, port))
        return True
    return False
